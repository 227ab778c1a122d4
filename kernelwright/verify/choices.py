"""What rounding decides in single elements: the place of a maximum, the side of a jump, what is left of a sum.

Where two values are nearly equal, eager's own rounding says which of them is the larger, and a kernel that rounds
otherwise may say the other. So before a candidate is refused for few such elements, eager is called with other
rounding (`kernelwright.verify.sensitivity.RoundingOfInexact`), and an element that one of these calls gives is right,
too. Inputs stay, results that need no rounding do, and equal values stay equal: a tie is decided by the operator, as
is a comparison with a bound that a value meets, so who decides these otherwise is refused.

Where terms cancel, what is left may be all rounding, beside results that are right to the last place: eager's error in
other elements does not say how far one may be off, its calls do. An element that has more than two values in them moves
by degrees, and may have any value between the least and the largest of them, and beyond by as much again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.verify.flatten import flatten, map_paths
from kernelwright.verify.records import Comparison, OutputError
from kernelwright.verify.sensitivity import ROUNDING, are_few, drawn, outputs_of
from kernelwright.verify.state import State
from kernelwright.verify.tolerance import Tolerance

#: How many calls of eager are made, where memory does for their results.
CALLS = 24
#: What is noted where that decided.
CHOSEN = "elements that rounding decides are those of a few calls of eager under other rounding, or lie among them"


def may_be_chosen(*comparisons: Comparison | None) -> bool:
    """Whether one of ``comparisons`` failed, and all that did for single elements that rounding may have decided: few
    outside of the tolerance, or more of which the whole output and its slices do not tell."""
    failed = [c for c in comparisons if c is not None and not c.passed]
    return bool(failed) and all(not c.structure and all(o.passed or _fails_at_few(o) or o.kinds == ("elements",)
                                                        for o in c.outputs) for c in failed)


def _fails_at_few(output: OutputError) -> bool:
    """Whether few elements are outside of the tolerance."""
    return set(output.kinds) <= {*ROUNDING, "whole-numbers"} and \
        are_few(output.failing_share * output.elements, output.elements)


def decided_otherwise(eager: nn.Module, inputs: Sequence[Any], before: State, seed: int, recording: bool) -> list[Any]:
    """Eager's outputs from the state ``before`` under other rounding. Its state stays as it is."""
    return outputs_of(drawn(eager, inputs, before, seed, range(CALLS), recording, inexact=True))


def with_choices_of(candidate: Any, eager: Any, others: Sequence[Any], tolerance: Tolerance, found: Comparison,
                    root: str = "output") -> Any:
    """``candidate`` with eager's elements in place of few that have the value of one of ``others``, or lie among them
    where they move by degrees. found: what was said of the candidate, whose paths begin with ``root``. Those are the
    elements outside of the tolerance, if they are few, else those that are off by more than eager is anywhere."""
    right, draws = flatten(eager, root), [flatten(other, root) for other in others]
    units = {o.path: 1.0 if o.passed or _fails_at_few(o) else tolerance.multiple * o.eager_units for o in found.outputs}

    def replaced(path: str, value: torch.Tensor) -> torch.Tensor:
        expected = right.get(path)
        if type(value) not in (torch.Tensor, nn.Parameter) or not isinstance(expected, torch.Tensor) \
                or (expected.shape, expected.dtype) != (value.shape, value.dtype) or value.dtype.is_complex:
            return value
        drawn = [other for draw in draws if isinstance(other := draw.get(path), torch.Tensor)
                 and (other.shape, other.dtype) == (value.shape, value.dtype)]
        far = max(1.0, units.get(path, 1.0))
        differ = ~_within(value, expected, tolerance, far)
        count = int(differ.sum())
        if not drawn or not count or (far > 1.0 and not are_few(count, value.numel())):
            return value
        own, usual = value.detach()[differ], expected[differ]
        chosen = torch.stack([usual, *(other[differ] for other in drawn)])
        met = _within(own, chosen, tolerance).any(0)
        if value.dtype.is_floating_point:
            met |= _is_among(own, chosen, tolerance)
        result = value.detach().clone()
        result[differ] = torch.where(met, usual, own)
        return result

    return map_paths(candidate, replaced, root)


def _is_among(own: torch.Tensor, chosen: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Whether each element of ``own``, of shape (n,), lies among those of ``chosen``, (draws, n), and these have more
    than two values: two are the sides of a jump."""
    ordered = chosen.sort(0).values
    values = 1 + (~_within(ordered[1:], ordered[:-1], tolerance)).sum(0)
    least, largest = ordered[0].double(), ordered[-1].double()
    beyond = largest - least  # of errors that are normal, and all of one size, one in 30,000 lies farther out
    return (values > 2) & (own >= least - beyond) & (own <= largest + beyond)


def _within(value: torch.Tensor, other: torch.Tensor, tolerance: Tolerance, units: float = 1.0) -> torch.Tensor:
    """Whether elements are within ``units`` of the tolerance of others."""
    if not value.dtype.is_floating_point:
        return value == other
    limits = tolerance.for_dtype(value.dtype)
    return torch.isclose(value, other, rtol=units * limits.rtol, atol=units * limits.atol)
