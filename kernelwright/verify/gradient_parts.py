"""Gradients in float64 a few batch entries at a time, where all at once would take too much.

Outputs are proved to depend on each entry of axis 0 separately then. So gradients of inputs are those of each entry
alone, and a parameter's is the sum of what entries give, which is added in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import nn

from kernelwright.verify.compare import from_sample
from kernelwright.verify.differentiate import Found, differentiated
from kernelwright.verify.floating import Allowance
from kernelwright.verify.records import Comparison
from kernelwright.verify.state import OwnTypes, State
from kernelwright.verify.tolerance import Tolerance

#: What paths of gradients say to which a part of the entries adds.
BY_PART = "by those entries that float64 ran"


@dataclass(frozen=True)
class Parts:
    """How float64 runs entries. batched: which inputs have them, in axis 0. first: the entries of the first part, as
    many as others have at most. seconds: what all may take by ``clock``, as the first one tells; else it stays alone.
    """

    batched: Sequence[bool]
    first: torch.Tensor
    seconds: float
    clock: Callable[[], float]


@dataclass(frozen=True)
class Part:
    """Gradients to which a part of the entries adds: of outputs times ``directions``, which are ``exact``."""

    exact: Found
    directions: Mapping[str, torch.Tensor]


def in_parts(double: nn.Module, inputs: Sequence[Any], parts: Parts, state: State, seed: int,
             combinations: list[str] | None, like: Found, directions: Mapping[str, torch.Tensor], *, strict: bool,
             types: OwnTypes, of_inputs: bool) -> tuple[Found, torch.Tensor | None]:
    """What ``double`` gives and the gradients of outputs times ``directions``, in float64 on the host, and of which
    entries that is: None of all. Entries that did not run have zeros, and are in no parameter's gradient.

    Other arguments are those of `differentiated`. Raises what ``double`` raises.
    """
    size = next(len(value) for value, is_batched in zip(inputs, parts.batched, strict=True) if is_batched)
    rest = torch.ones(size, dtype=torch.bool)
    rest[parts.first] = False
    todo = [parts.first, *torch.arange(size)[rest].split(len(parts.first))]
    whole = Found(flags=like.flags)
    batched = {f"input {place}" for place, is_batched in enumerate(parts.batched) if is_batched}
    done: list[torch.Tensor] = []
    began = parts.clock()
    for entries in todo:
        if len(done) == 1 and (parts.clock() - began) * len(todo) > parts.seconds:
            break
        state.apply(double)
        own = differentiated(
            double, [rows(value, entries) if is_batched else value
                     for value, is_batched in zip(inputs, parts.batched, strict=True)], seed, combinations, like,
            in_float64=True, strict=strict, types=types, of_inputs=of_inputs,
            directions={path: rows(value, entries) for path, value in directions.items()})
        if own.error:
            return own, None
        whole.outputs = {path: _put(value, entries, size, (whole.outputs or {}).get(path))
                         for path, value in own.outputs.items()}
        for by, gradients in own.gradients.items():
            before = whole.gradients.get(by, {})
            whole.gradients[by] = {
                name: value if value is None else _put(value, entries, size, before.get(name)) if name in batched
                else _added(value, before.get(name)) for name, value in gradients.items()}
        done.append(entries)
    return whole, None if len(done) == len(todo) else torch.cat(done)


def rows(tensor: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """Some entries of axis 0."""
    return tensor.detach().index_select(0, entries.to(tensor.device))


def only(directions: Mapping[str, torch.Tensor], entries: torch.Tensor) -> dict[str, torch.Tensor]:
    """Directions in which nothing but these entries counts."""
    return {path: torch.zeros_like(value).index_copy_(0, entries.to(value.device), rows(value, entries))
            for path, value in directions.items()}


def allowed(found: Comparison, tolerance: Tolerance | None, share: float, words: tuple[str, str]
            ) -> dict[str, Allowance]:
    """What gradients of all entries may be off from eager's, by their paths, by those of a ``share`` of the entries,
    which float64 has ``found``: the error of a sum grows no faster than its terms are more. words: how paths begin
    there, and here."""
    there, here = words
    return {here + path.removeprefix(there): Allowance(off.units / share, off.relative / share, off.slices,
                                                        off.absolute / share)
            for path, off in from_sample(found, tolerance).items()}


def largest(*allowances: Allowance | None) -> Allowance | None:
    """What is allowed by any of these; None where there are none."""
    given = [astuple(a) for a in allowances if a is not None]
    return Allowance(*map(max, zip(*given))) if given else None


def _put(value: torch.Tensor, entries: torch.Tensor, size: int, into: torch.Tensor | None) -> torch.Tensor:
    """Entries in the place that they have among all, in memory of the host."""
    own = value.detach().cpu()
    into = own.new_zeros((size, *own.shape[1:])) if into is None else into
    return into.index_copy_(0, entries, own)


def _added(value: torch.Tensor, to: torch.Tensor | None) -> torch.Tensor:
    own = value.detach().cpu()
    return own if to is None else to.add_(own)
