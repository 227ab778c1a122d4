"""What a model chooses by values that rounding decides: the place of a maximum, the side of a jump.

Where two values are nearly equal, eager's own rounding says which of them is the larger, and a kernel that rounds
otherwise may say the other. So before a candidate is refused for few such elements, eager is called with other
rounding (`kernelwright.verify.sensitivity.RoundingOfInexact`), and an element that one of these calls gives is right,
too. Inputs stay, results that need no rounding do, and equal values stay equal: a tie is decided by the operator, as
is a comparison with a bound that a value meets, so who decides these otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from kernelwright.verify.flatten import flatten, map_paths
from kernelwright.verify.records import Comparison
from kernelwright.verify.sensitivity import ROUNDING, drawn, outputs_of
from kernelwright.verify.state import State
from kernelwright.verify.tolerance import Tolerance

#: How many calls of eager are made, where memory does for their results.
CALLS = 24
#: What is noted where that decided.
CHOSEN = "elements that rounding decides are those of one of a few calls of eager under other rounding"
#: Of more elements than these, and than this share of them, rounding is not the reason.
_FEW, _SHARE = 8, 0.01


def may_be_chosen(*comparisons: Comparison | None) -> bool:
    """Whether one of ``comparisons`` failed, and all that did for few elements that rounding may have decided."""
    failed = [c for c in comparisons if c is not None and not c.passed]
    return bool(failed) and all(not c.structure and all(o.passed or (
        set(o.kinds) <= {*ROUNDING, "whole-numbers"} and o.failing_share * o.elements <= max(_FEW, _SHARE * o.elements))
        for o in c.outputs) for c in failed)


def decided_otherwise(eager: nn.Module, inputs: Sequence[Any], before: State, seed: int, recording: bool) -> list[Any]:
    """Eager's outputs from the state ``before`` under other rounding. Its state stays as it is."""
    return outputs_of(drawn(eager, inputs, before, seed, range(CALLS), recording, inexact=True))


def with_choices_of(candidate: Any, eager: Any, others: Sequence[Any], tolerance: Tolerance) -> Any:
    """``candidate`` with eager's elements where it is not within the tolerance of these, but of those of one of
    ``others``."""
    right, draws = flatten(eager), [flatten(other) for other in others]

    def replaced(path: str, value: torch.Tensor) -> torch.Tensor:
        expected = right.get(path)
        if type(value) not in (torch.Tensor, nn.Parameter) or not isinstance(expected, torch.Tensor) \
                or (expected.shape, expected.dtype) != (value.shape, value.dtype) or value.dtype.is_complex:
            return value
        met = torch.zeros_like(value, dtype=torch.bool)
        for draw in draws:
            other = draw.get(path)
            if isinstance(other, torch.Tensor) and (other.shape, other.dtype) == (value.shape, value.dtype):
                met |= _within(value, other, tolerance)
        return torch.where(met & ~_within(value, expected, tolerance), expected, value).detach()

    return map_paths(candidate, replaced)


def _within(value: torch.Tensor, other: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    if not value.dtype.is_floating_point:
        return value == other
    limits = tolerance.for_dtype(value.dtype)
    return torch.isclose(value, other, rtol=limits.rtol, atol=limits.atol)
