"""Parameters and buffers that keep the model's state_dict from loading into the candidate."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch import nn

from kernelwright.judge.reading.interface import set_in_model
from kernelwright.judge.records import Finding

#: Names that are told of one kind.
MOST_NAMES = 4


def find_misfit(model: nn.Module, candidate: nn.Module, problem_text: str | None) -> Finding | None:
    """What ``candidate`` lacks of ``model``'s state, has beside it, or has in another shape; None where it fits.

    ``problem_text`` is the problem's file, in which the statement is looked up that makes what is missing.
    """
    wanted = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    own = {name: tuple(t.shape) for name, t in candidate.state_dict().items()}
    missing = [name for name in wanted if name not in own]
    extra = [name for name in own if name not in wanted]
    shapes = [name for name in wanted if name in own and own[name] != wanted[name]]
    parts = [f"it lacks {listed(missing)}" if missing else "", f"it has {listed(extra)}, which the model does not "
             "have" if extra else "", "; ".join(f"{n} has shape {own[n]} instead of {wanted[n]}"
                                                for n in shapes[:MOST_NAMES])]
    if not any(parts):
        return None
    words = "; ".join(part for part in parts if part)
    return Finding("state-dict", f"The model's parameters do not fit ModelNew: {words}.",
                   fix=_fix(missing, extra, shapes, wanted, own, problem_text),
                   evidence={"missing": missing, "extra": extra, "shapes": shapes, "loads": not missing and not shapes})


def _fix(missing: list[str], extra: list[str], shapes: list[str], wanted: dict[str, tuple[int, ...]],
         own: dict[str, tuple[int, ...]], problem_text: str | None) -> str:
    if not missing and not shapes:
        return (f"Keep {listed(extra)} out of the state_dict: as plain attributes, or with register_buffer(..., "
                "persistent=False).")
    tree = _tree(problem_text)
    made = [text for name in dict.fromkeys(n.partition(".")[0] for n in (*missing, *shapes))
            if (text := set_in_model(tree, name)) is not None]
    renamed = [f"{name} to {other}" for name in missing
               for other in [o for o in extra if own[o] == wanted[name]][:1]
               if sum(own[o] == wanted[name] for o in extra) == sum(wanted[n] == wanted[name] for n in missing) == 1]
    how = f": {'; '.join(made[:MOST_NAMES])}" if made else ""
    return f"Create parameters and buffers in __init__ under the model's names and in its shapes{how}." + (
        f" (It seems that {listed(renamed)} was renamed.)" if renamed else "")


def _tree(text: str | None) -> ast.Module | None:
    try:
        return ast.parse(text) if text else None
    except (SyntaxError, ValueError):
        return None


def listed(names: Sequence[str]) -> str:
    """Names in words, the first few of many."""
    told = [*names[:MOST_NAMES]] + ([f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else [])
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"
