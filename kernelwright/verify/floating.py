"""The verdict on one floating output, from the statistics of its errors and of eager's.

Four figures are taken, each with its limit (see `Tolerance`):

- the worst element, in units of ``atol + rtol |reference|``: at most 1 (which is `torch.allclose`);
- the relative error of the whole output, ``rms(error) / rms(reference)``: at most ``scaled``;
- the same for every slice along axis 0 and along axis 1, so that neither a tiny output nor a tiny channel
  can pass vacuously under an absolute tolerance;
- and in each of them a candidate may instead be no worse than ``multiple`` times eager's own error, with a margin
  for chance where elements are few.

NaN and Inf must stand where they stand for eager and reference, and zeros have the sign on which these two agree, but
for those that eager chooses by place (:mod:`kernelwright.verify.ties`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.verify.records import OutputError, SliceError
from kernelwright.verify.statistics import NOISE_SHARE, SliceSums, Statistics
from kernelwright.verify.tolerance import Limits

#: Slices of fewer elements than this are held to eager's worst slice: eager's error there is too much luck.
FEW_ELEMENTS = 16
#: A reference below this share of its surroundings is zero as far as float64 can tell: it has no scale.
ZERO_SHARE = 1e-12
#: Where eager has no correct digit, both results are rounding noise and only its order of magnitude counts
#: (a batch norm of a constant multiplies one rounding error by 1/sqrt(eps): one draw, not a measure).
NOISE_MARGIN = 32.0


@dataclass(frozen=True)
class Allowance:
    """Eager's error known from elsewhere (from the sampled batch entries), for a reference that is eager;
    ``slices``: the relative error that a slice may have, as eager's own error in each is unknown; ``absolute``: what
    every element may be off, however small it is. Errors of elements beside their sizes tell nothing of others: some
    element of the whole lies closer to zero than all of a sample, and is zero on one side of a ReLU."""

    units: float
    relative: float
    slices: float
    absolute: float = 0.0


def judge(
    path: str, found: Statistics, limits: Limits, allowance: Allowance | None, facts: dict[str, Any]
) -> OutputError:
    """The verdict on the output at ``path``; ``facts`` are further fields of it."""
    count = max(1, found.compared)
    rms = math.sqrt(found.square_error / count)
    eager_rms = math.sqrt(found.eager_square_error / count)
    scale = math.sqrt(found.square_reference / count)
    eager_units = found.eager_worst_units
    if allowance is not None:
        eager_units, eager_rms = allowance.units, allowance.relative * scale
    is_noise = _ratio(eager_rms, scale) > NOISE_SHARE
    # A reference that is zero to float64's own rounding has no scale: the absolute tolerance alone decides. One in
    # which eager has digits is small, and nothing more.
    has_scale = scale > limits.atol * 1e-9 or (scale > 0 and not is_noise)
    # Of few elements eager's largest error is as much luck as the candidate's.
    multiple = limits.multiple * (NOISE_MARGIN if is_noise else _chance(count))
    problems: dict[str, str] = {}
    if found.misplaced:
        expected, got, by_eager = found.at_misplaced
        problems[
            f"NaN or Inf stands wrong at {found.misplaced} of {found.elements} elements, first at "
            f"{found.first_misplaced}: {got:g} instead of {by_eager:g} (float64: {expected:g})"
        ] = "nonfinite"
    signs = {"sign": found.zero_signs, "sums": found.zero_signs - found.vanished_signs}.get(limits.zeros, 0)
    if signs:
        problems[
            f"{signs} of {found.elements} elements are zeros of the wrong sign, first at "
            f"{found.first_zero_sign}"
        ] = "zero-sign"
    floor = limits.noise_units if is_noise or not has_scale else 1.0
    excused = max(limits.of_size * scale, allowance.absolute if allowance is not None else 0.0)
    if found.worst_units > max(floor, multiple * eager_units) and found.worst_absolute > excused:
        expected, got, by_eager = found.at_worst
        problems[
            f"{found.failing} of {found.elements} elements are outside atol={limits.atol:g}, "
            f"rtol={limits.rtol:g} and beyond {multiple:.3g} times eager's error, worst at "
            f"{found.worst_index}: {got:.9g} instead of {expected:.9g} (eager {by_eager:.9g})"
        ] = "elements"
    # Below: what an output that is noise may be off, where the caller says so.
    noise = limits.noise_units * limits.atol if is_noise and limits.noise_units > 1 else 0.0
    if has_scale and rms > max(limits.scaled * scale, multiple * eager_rms, noise):
        problems[
            f"the relative error is {rms / scale:.2g}, PyTorch's own is {eager_rms / scale:.2g} "
            f"(limit {max(limits.scaled, multiple * eager_rms / scale):.2g})"
        ] = "output"
    worst_slices = []
    if has_scale:
        for sums in found.slices:
            if sums.elements == 1:  # judged above, element by element
                continue
            worst = _worst_slice(sums, limits, scale, eager_rms / scale, noise)
            worst_slices.append(worst)
            # Where eager's own error in a slice is unknown: sums that cancel may be small, and a slice that is
            # wrong, rather than rounded otherwise, is off by far more.
            if worst.relative > max(worst.limit, allowance.slices if allowance is not None else 0.0):
                problems[
                    f"slice {worst.index} of axis {worst.axis} is wrong by {worst.relative:.2g} of its size "
                    f"(limit {worst.limit:.2g})"
                ] = "slice"
    expected, got, _ = found.at_worst
    return OutputError(
        path=path,
        passed=not problems,
        problems=tuple(problems),
        worst_absolute=found.worst_absolute,
        eager_worst_absolute=found.eager_worst_absolute,
        relative=_ratio(rms, scale),
        eager_relative=_ratio(eager_rms, scale),
        units=found.worst_units,
        eager_units=eager_units,
        failing_share=found.failing / max(1, found.elements),
        eager_failing_share=found.eager_failing / max(1, found.elements),
        reference_rms=scale,
        worst_index=found.worst_index,
        expected=expected,
        got=got,
        misplaced_nonfinite=found.misplaced,
        zero_signs=found.zero_signs,
        worst_slices=tuple(worst_slices),
        is_noise=is_noise,
        kinds=tuple(problems.values()),
        **facts,
    )


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else (0.0 if not error else math.inf)


def _chance(elements: Any) -> Any:
    """By how much the errors of so many elements may differ by chance: a margin that vanishes with their number."""
    return 1 + 4 / elements**0.5


def _worst_slice(sums: SliceSums, limits: Limits, scale: float, typical: float, least: float) -> SliceError:
    """Find the slice that is worst against its own limit.

    A slice's limit is the largest of ``scaled`` times its size; ``multiple`` times eager's error in it, with
    a margin for chance that vanishes with the number of elements; and ``multiple`` times eager's relative
    error in the whole output, in the median slice, or (up to 1 %) in its worst slice. Slices of few
    elements may have eager's largest error; those of a ReLU's zeros have no error and do not count. Where most of
    eager's calls have no digits to speak of in a slice, their largest error there counts as its own. Where slices jump
    at places that rounding chooses, ``multiple`` times as many as in a call of eager's may do so, so far.
    """
    error, eager, size = (
        torch.sqrt(t / sums.elements) for t in (sums.error, sums.eager_error, sums.reference)
    )
    by_size = torch.full_like(size, limits.scaled) * size
    # A slice that is zero to rounding (a dead channel) is held against the whole output's size.
    limit = torch.where(size <= ZERO_SHARE * scale, torch.full_like(size, limits.scaled * scale), by_size)
    # As many as all elements where a reference of zeros is approached, not met.
    telling = torch.where(sums.nonzero > 0, sums.nonzero, float(sums.elements))
    chance = _chance(telling)
    own = torch.where(telling >= FEW_ELEMENTS, eager, eager.max())
    noise = torch.where(own > NOISE_SHARE * size, NOISE_MARGIN, 1.0)
    limit = torch.maximum(limit, limits.multiple * chance * noise * own)
    relative = eager / size.clamp_min(torch.finfo(size.dtype).tiny)
    typical = max(typical, float(torch.median(relative)))
    # Small values may be less accurate in any slice (a softmax's are exponentials of rounding errors), so
    # eager's worst slice counts for all; but not one in which eager has lost its digits.
    worst = float(torch.where(relative > NOISE_SHARE, 0.0, relative).max())
    usual = max(min(limits.multiple * typical, 0.5), limits.multiple * min(worst, 0.01))
    limit = torch.maximum(limit, usual * size)
    limit = limit.clamp_min(least)
    if sums.lost is not None:
        limit = torch.maximum(limit, limits.multiple * chance * torch.sqrt(sums.lost / sums.elements))
    if sums.jumps and int((error > limit).sum()) <= limits.multiple * sums.jumps:
        far = (min(limits.multiple * sums.jump, NOISE_SHARE) * size).clamp_max(limits.multiple * sums.jump_rms)
        limit = torch.maximum(limit, far)
    excess = error / limit.clamp_min(torch.finfo(limit.dtype).tiny)
    index = int(excess.argmax())
    against = float(size[index]) if float(size[index]) > ZERO_SHARE * scale else scale
    return SliceError(sums.axis, index, float(error[index]) / against, float(limit[index]) / against)
