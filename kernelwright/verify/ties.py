"""Signs of zeros that no operator defines, as of zeros of both signs any may be the extremum, or that rounding decides.

Eager's vector code takes the second operand of ``torch.maximum`` there, and its code for the last elements of a tensor
the first; which of a row's zeros ``amax`` meets last depends on how the row is cut; and what a soft shrink makes zero
keeps the sign of a negative element among the last ones alone. So before a candidate is refused
for such a sign, eager is called with these chosen otherwise, and under other rounding (`chosen_otherwise`): zeros that
change their sign then may have either (`with_signs_of`), as those of differences of equal values that are truncated.
Bounds that are numbers are no ties: PyTorch keeps the element there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.verify.flatten import clone_tensors, flatten, map_paths
from kernelwright.verify.observe import call, seed_all
from kernelwright.verify.records import Comparison
from kernelwright.verify.sensitivity import drawn, outputs_of
from kernelwright.verify.state import State

#: How many calls of eager are made: one in which each tie is decided otherwise, and others in which half of them are.
CALLS = 4
#: How many calls of eager are made under other rounding: a sign that it decides is met but for odds of 1 to 4096.
ROUNDINGS = 12
_OF_ELEMENTS = frozenset(("maximum", "minimum", "clamp", "clamp_min", "clamp_max"))
_OF_AXES = frozenset(("amax", "amin", "max", "min", "aminmax", "median", "nanmedian"))


def has_wrong_signs(*comparisons: Comparison | None) -> bool:
    """Whether zeros of the wrong sign are a reason of a refusal."""
    return any("zero-sign" in output.kinds for c in comparisons if c is not None for output in c.outputs)


def chosen_otherwise(eager: nn.Module, inputs: Sequence[Any], before: State, seed: int, recording: bool) -> list[Any]:
    """Eager's outputs from the state ``before`` with ties of zeros decided otherwise, where it has such ties, and under
    other rounding. Its state stays as it is."""
    after, found = State.of(eager, parameters=False), []
    try:
        for number in range(CALLS):
            before.apply(eager)
            ties = _Ties(seed + number, all_of_them=number == 0)
            seed_all(seed)
            with ties:
                called = call(eager, clone_tensors(list(inputs)), recording=recording)
            if called.error is not None or not ties.met:
                break
            found.append(called.outputs)
    finally:
        after.apply(eager)
    return found + outputs_of(drawn(eager, inputs, before, seed, range(ROUNDINGS), recording))


def with_signs_of(candidate: Any, eager: Any, others: Sequence[Any]) -> Any:
    """``eager`` with the candidate's zeros where ``others`` have numbers of both signs: zeros, or what is no zero under
    other rounding."""
    own, draws = flatten(candidate), [flatten(other) for other in others]

    def replaced(path: str, value: torch.Tensor) -> torch.Tensor:
        got: Any = own.get(path)
        if not value.dtype.is_floating_point or type(got) not in (torch.Tensor, nn.Parameter) \
                or (got.shape, got.dtype) != (value.shape, value.dtype):
            return value
        either = torch.zeros_like(value, dtype=torch.bool)
        for other in (draw[path] for draw in draws if path in draw and draw[path].shape == value.shape):
            either |= ~other.isnan() & (torch.signbit(other) != torch.signbit(value))
        return torch.where(either & (value == 0) & (got == 0), got, value).detach()

    return map_paths(eager, replaced)


class _Ties(TorchDispatchMode):
    """Gives extrema of zeros of both signs the other sign: all of them, or half at random. ``met``: whether any was."""

    def __init__(self, seed: int, all_of_them: bool) -> None:
        super().__init__()
        self.met, self._all = False, all_of_them
        self._seed = seed

    def __torch_dispatch__(self, func: torch._ops.OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tied = _tied(func.overloadpacket.__name__.rstrip("_"), args, kwargs or {})
        results = func(*args, **(kwargs or {}))
        if tied is None:
            return results
        if isinstance(results, torch.Tensor):
            return self._other(results, tied, in_place=results is args[0])
        return type(results)([self._other(r, tied) if r.is_floating_point() else r for r in results])

    def _other(self, result: torch.Tensor, tied: torch.Tensor, in_place: bool = False) -> torch.Tensor:
        tied = tied.reshape(result.shape) & (result == 0)
        self.met |= bool(tied.any())
        if not self._all:
            generator = torch.Generator(tied.device).manual_seed(self._seed)
            tied &= torch.rand(tied.shape, generator=generator, device=tied.device) < 0.5
        other = torch.where(tied, -result, result)
        return result.copy_(other) if in_place else other


def _tied(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Where a zero that a call gives may have either sign; None for other operators."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not tensors or not tensors[0].is_floating_point():
        return None
    if name in _OF_ELEMENTS and len(tensors) > 1:
        signs = [[(value == 0) & (torch.signbit(value) == minus) for value in tensors] for minus in (False, True)]
        first, *rest = signs[0]
        plus, minus = first, signs[1][0]
        for more, less in zip(rest, signs[1][1:], strict=True):
            plus, minus = plus | more, minus | less
        return plus & minus
    if name in _OF_AXES and len(tensors) == 1:
        dims = kwargs.get("dim", args[1] if len(args) > 1 else None)
        axes = [dims] if isinstance(dims, int) else list(dims or range(tensors[0].dim()))
        zero, minus = tensors[0] == 0, torch.signbit(tensors[0])
        return (zero & minus).any(axes) & (zero & ~minus).any(axes) if axes else None
    if name == "softshrink":
        return torch.signbit(tensors[0])
    return None
