"""Whether what eager gives is, but for rounding, what the model gives in float64: whether the two are one computation.

Truth is what the user's call gives, and float64 is the measure of error; it is one only where it computes the same. A
model may ask for types (``torch.finfo(x.dtype).eps``, a branch on a dtype, whole numbers of some width), and PyTorch
may take a path of its own (an encoder layer in inference, a fused kernel). The rule is this. Eager's results are held
against float64's as a candidate's are (`kernelwright.verify.floating`), but with another measure of what may be wrong:
where they are not within the tolerance, the errors of single elements, of slices and of the whole may be `MULTIPLE`
times what moves in eager itself when every operator's result is rounded one unit in the last place up or down
(`kernelwright.verify.sensitivity`). So a badly conditioned model, whose results are as far from float64 under any
rounding, is not accused, and a different formula, which no rounding leads to, is. Whole numbers (places of extrema,
rounded values) may differ from float64's where they differ in one of these calls, and in few other places. TF32 is
rounding: on a device that uses it the model is called without it here, and what one rounding to it moves is explained,
too, as a library may lose more than float32 does where nobody asked it for less. Where a few calls do not explain a
difference, more are made (`MOST_DRAWS`), as what lies on the edge of a jump moves in every second one only. And as
results that jump do not move `MULTIPLE` times as far where rounding is so many times as large, but more of them do, few
elements may be off by what such calls move these very elements (`without_moved`): a ReLU makes a zero, a sign the
other one, of what is left of terms that cancel, which no error in another element tells.

What a type cannot hold is no other computation, either: errors near the smallest normal number count as what rounding
moves, and places where eager is infinite or NaN and float64 is not are left out, unless float64 is so, too, on the
paths that eager takes (`kernelwright.verify.reference`), of which the type is not the reason. Where squares of inputs
or of an operator's results leave the type's range (`squares_leave_range`), places where eager has lost a value, and
whole numbers that may come of one, count for nobody (`settled`), and where inputs are made to (`Distribution.extreme`),
nothing is concluded.

What is left is held against a float64 run in which the result of every operator is rounded to eager's type. It makes
the large errors that eager makes where no unit up or down shows them (the fraction of a number of which the type holds
no fraction, the sign of one that it holds as zero): where eager gives the same, the two are one computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from kernelwright.verify.flatten import flatten, map_paths
from kernelwright.verify.floating import judge
from kernelwright.verify.sensitivity import Draw, add, are_few
from kernelwright.verify.statistics import NOISE_SHARE, SliceSums, Statistics, measure_error, plain_tensor
from kernelwright.verify.tolerance import Limits, Tolerance

#: How many times what rounding moves eager's results they may be off. An operator's own error is that of all its
#: additions, of which a draw moves the operands and the result; where they are more than the square of this, results
#: move by what is lacking (`kernelwright.verify.sensitivity.summed_units`).
MULTIPLE = 32.0
#: An operator computes in float32 or more, and what one of its steps loses below the smallest normal number a later one
#: may multiply: silu by its x, which is below 104 where exp(-x) is not infinite.
LARGEST_FACTOR = 128.0
#: Calls of eager before it is said that rounding does not explain a difference.
MOST_DRAWS = 24
#: Share of whole numbers that may differ although no draw moved them: places among what float32 rounds to equal values.
FEW = 0.25
_TOLERANCE = Tolerance(multiple=MULTIPLE, nonfinite="position")


@dataclass
class Spread:
    """How eager's results move under other rounding: errors of floating leaves against eager's own, by path, and of
    the others the elements that no draw moved. count: of the draws."""

    errors: dict[str, list[Statistics]] = field(default_factory=dict)
    still: dict[str, torch.Tensor] = field(default_factory=dict)
    count: int = 0

    def add(self, eager: Any, draw: Draw, part: Any = lambda outputs: outputs) -> None:
        """Take one more draw. eager: its own outputs, of which ``part`` takes what is compared."""
        self.count += 1
        moved = part(draw.outputs)
        add(self.errors, moved, eager, eager, "output", _TOLERANCE)
        others = flatten(moved)
        for path, leaf in flatten(eager).items():
            other = others.get(path)
            if isinstance(leaf, torch.Tensor) and isinstance(other, torch.Tensor) and leaf.shape == other.shape \
                    and not (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
                same = _same(leaf, other)
                self.still[path] = same & self.still[path] if path in self.still else same


def unexplained(eager: Any, reference: Any, spread: Spread, multiple: float = MULTIPLE) -> str:
    """In words what of ``eager`` is farther from the float64 ``reference`` than rounding explains; "" where nothing
    is. Without draws in ``spread`` nothing but the tolerance is explained, with them ``multiple`` times what they move.
    """
    results, exact = flatten(eager), flatten(reference)
    if [p for p, leaf in results.items() if isinstance(leaf, torch.Tensor)] != \
            [p for p, leaf in exact.items() if isinstance(leaf, torch.Tensor)]:
        return "it returns other tensors in float64"
    for path, leaf in results.items():
        right = exact.get(path)
        if not isinstance(leaf, torch.Tensor) or not isinstance(right, torch.Tensor):
            continue
        if leaf.shape != right.shape:
            return f"{path} has shape {tuple(right.shape)} in float64, not {tuple(leaf.shape)}"
        if leaf.dtype.is_floating_point or leaf.dtype.is_complex:
            found = _floating(path, leaf, right, spread.errors.get(path, ()), multiple)
        else:
            found = _whole_numbers(path, leaf, right, spread.still.get(path))
        if found:
            return found
    return ""


def _floating(path: str, eager: torch.Tensor, reference: torch.Tensor, draws: Sequence[Statistics], multiple: float
              ) -> str:
    eager, reference = plain_tensor(eager), plain_tensor(reference)
    limits = replace(_TOLERANCE, multiple=multiple).for_dtype(eager.dtype)
    if not draws and _obvious(eager, reference, limits):
        return ""
    found = measure_error(eager, eager, reference, atol=limits.atol, rtol=limits.rtol, nonfinite=limits.nonfinite)
    steps = torch.finfo(torch.promote_types(eager.dtype, torch.float32)).smallest_normal
    least = max(torch.finfo(eager.dtype).smallest_normal, LARGEST_FACTOR * steps)
    _measure_by(found, draws, least / limits.multiple, limits)
    verdict = judge(path, found, limits, None, {})
    if verdict.passed:
        return ""
    return (f"{path} is off by {verdict.relative:.2g} of its size, where rounding moves it by "
            f"{verdict.eager_relative:.2g}; worst at {verdict.worst_index}: {verdict.got:.6g}, in float64 "
            f"{verdict.expected:.6g}")


def _obvious(eager: torch.Tensor, reference: torch.Tensor, limits: Limits) -> bool:
    """Whether elements are so near that slices and the whole must be, too, seen without float64: cheaply."""
    if eager.dtype not in (torch.float32, torch.float64) or not eager.numel():
        return False
    right, share = reference.to(eager), 0.4 * limits.scaled
    # By axes 0 and 1: the sizes of slices and of the whole come of that.
    sizes = right if right.dim() <= 2 else torch.linalg.vector_norm(right, dim=tuple(range(2, right.dim())))
    smallest = torch.linalg.vector_norm(sizes) / right.numel() ** 0.5
    for axis in range(2 if right.dim() > 1 else 0):
        of_slices = torch.linalg.vector_norm(sizes, dim=1 - axis) / (right.numel() / right.shape[axis]) ** 0.5
        smallest = torch.minimum(smallest, of_slices.min())
    return bool(((eager - right).abs() <= (share * smallest).clamp_max(limits.atol) + share * right.abs()).all())


def _measure_by(found: Statistics, draws: Sequence[Statistics], least: float, limits: Limits) -> None:
    """Have what draws move, and ``least`` in each element, stand for the error by which ``found`` is judged."""
    found.eager_worst_units = max((d.worst_units for d in draws), default=least / limits.atol)
    found.eager_square_error = max(found.compared * least**2, *(d.square_error for d in draws), 0.0)
    for place, sums in enumerate(found.slices):
        sums.eager_error = _largest(sums, [d.slices[place] for d in draws]).clamp_min_(sums.elements * least**2)


def _largest(own: SliceSums, draws: Sequence[SliceSums]) -> torch.Tensor:
    largest = torch.zeros_like(own.eager_error)
    for draw in draws:
        largest = torch.maximum(largest, draw.error)
    return largest


def _whole_numbers(path: str, eager: torch.Tensor, reference: torch.Tensor, still: torch.Tensor | None) -> str:
    differ = ~_same(eager, reference.to(eager.device))
    count = int(differ.sum())
    if not count:
        return ""
    stays = int((differ & still.to(eager.device)).sum()) if still is not None else count
    # Without a draw nothing is known of a difference.
    if still is not None and stays <= FEW * eager.numel():
        return ""
    return f"{path} differs from float64's at {stays} of {eager.numel()} places that rounding does not move"


def _same(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return plain_tensor(left) == plain_tensor(right)


def without_moved(eager: Any, reference: Any, draw: Any) -> Any:
    """``eager`` with the elements of ``reference`` in place of those that are no farther from these than ``draw`` is
    from eager's, where few are off. draw: eager's outputs under rounding `MULTIPLE` times as large. None where none are
    off, or not few."""
    exact, others = flatten(reference), flatten(draw)
    few: list[bool] = []

    def replaced(path: str, value: torch.Tensor) -> torch.Tensor:
        right, other = exact.get(path), others.get(path)
        if not isinstance(right, torch.Tensor) or not isinstance(other, torch.Tensor) \
                or not right.shape == other.shape == value.shape or not value.dtype.is_floating_point:
            return value
        limits = _TOLERANCE.for_dtype(value.dtype)
        error = (value - right.to(value)).abs()
        off = error > limits.atol + limits.rtol * right.abs().to(value)
        count = int(off.sum())
        if not count or not are_few(count, value.numel()):
            return value
        few.append(True)
        return torch.where(off & (error <= (other - value).abs()), right.to(value), value).detach()

    result = map_paths(eager, replaced)
    return result if few else None


def nonfinite(eager: Any, reference: Any) -> int:
    """The number of elements at which ``eager`` is NaN or infinite and ``reference``, as its type holds it, is not."""
    return sum(int((~value.isfinite() & right.to(value).isfinite()).sum())
               for value, right in _floating_pairs(eager, reference).values() if not _all_finite(value))


def without_lost(eager: Any, reference: Any) -> tuple[Any, Any] | None:
    """Both with NaN where eager's type lost what float64 holds: NaN, an infinity, or nothing above its denormal numbers
    stands in ``eager`` where ``reference`` has a normal number. Whole numbers that differ may come of what was lost on
    the way, and are left out, too. None where nothing is lost.
    """
    masks = {path: _lost(value, right) for path, (value, right) in _pairs(eager, reference).items()}
    if not any(bool(mask.any()) for mask in masks.values()):
        return None
    masks |= {path: value != right for path, (value, right) in _whole_pairs(eager, reference).items()}
    return _without(eager, masks), _without(reference, masks)


def settled(candidate: Any, eager: Any, reference: Any = None) -> tuple[Any, Any, Any]:
    """All three with NaN, so that nothing is decided, where there is no truth: where eager's type has lost a value, or
    no digit of eager's is right; whole numbers with zeros where eager's are not float64's. A lost value may become
    anything: a norm that overflows makes its vector NaN in one order of the same operations, 0 in another. Where more
    than a few of eager's zeros are lost values, the others are no evidence, either: a ReLU behind such a norm gives
    float64 zeros of its own, which eager meets without having computed them. Zeros on one side of a ReLU are what
    rounding makes of values beside it, of which eager's are left out, as none of their digits is right: a candidate's
    go with them, up to the size of eager's. Where float64 is not known (None), any value that is not normal may be
    lost.
    """
    known, own = eager if reference is None else reference, flatten(candidate)
    masks = {}
    for path, (value, right) in _pairs(eager, known).items():
        got: Any = own.get(path)
        # A subclass may answer for itself: it is refused elsewhere.
        if type(got) in (torch.Tensor, torch.nn.Parameter) and plain_tensor(got).shape == value.shape:
            small = torch.finfo(value.dtype).smallest_normal
            wrong = (value.double() - right.double()).abs() > NOISE_SHARE * right.double().abs() + small
            vanished = value.abs() < small
            lost = _lost(value, right) if reference is not None else ~value.isfinite() | vanished
            if not are_few(int((lost & vanished).sum()), value.numel()):
                lost = lost | vanished
            zeros = right.abs() < small
            crossed = value.abs().masked_fill(~zeros | ~value.isfinite(), 0.0)
            near = zeros & vanished & (plain_tensor(got).to(value).abs() <= crossed.max()) if crossed.numel() else zeros
            masks[path] = lost | near | (wrong & right.isfinite())
    for path, (value, right) in _whole_pairs(eager, known).items():
        got = own.get(path)
        if type(got) is torch.Tensor and got.shape == value.shape:
            masks[path] = value != right
    return _without(candidate, masks), _without(eager, masks), _without(known, masks)


def _lost(value: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    small = torch.finfo(value.dtype).smallest_normal
    vanished = (value.abs() < small) & (right.abs() >= small)
    if _all_finite(value):
        return vanished if _all_finite(right) else vanished & right.isfinite()
    return right.isfinite() & (~value.isfinite() | vanished)


def _all_finite(tensor: torch.Tensor) -> bool:
    """Whether all elements are seen to be finite, cheaply: a sum is finite only where all of its terms are. Where it
    says no, they may be all the same."""
    return bool(tensor.sum().isfinite())


def _pairs(eager: Any, reference: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Floating and complex tensors of ``eager``, real, and those of ``reference`` as their types hold them, by path;
    but those of 8 bits."""
    return {path: (value, right.to(value)) for path, (value, right) in _floating_pairs(eager, reference).items()}


def _floating_pairs(eager: Any, reference: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """`_pairs`, with the tensors of ``reference`` in the types that they have."""
    found, exact = {}, flatten(reference)
    for path, value in flatten(eager).items():
        right = exact.get(path)
        if isinstance(value, torch.Tensor) and isinstance(right, torch.Tensor) and value.shape == right.shape \
                and (value.dtype.is_floating_point or value.dtype.is_complex) and value.dtype.itemsize > 1 \
                and value.dtype.is_complex == right.dtype.is_complex:
            found[path] = plain_tensor(value), plain_tensor(right)
    return found


def _whole_pairs(eager: Any, reference: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Tensors of ``eager`` that hold whole numbers or truth values, and those of ``reference``, by path."""
    found, exact = {}, flatten(reference)
    for path, value in flatten(eager).items():
        right = exact.get(path)
        if isinstance(value, torch.Tensor) and isinstance(right, torch.Tensor) and value.shape == right.shape \
                and not (value.dtype.is_floating_point or value.dtype.is_complex):
            plain = plain_tensor(value)
            found[path] = plain, plain_tensor(right).to(plain)
    return found


def _without(values: Any, masks: dict[str, torch.Tensor]) -> Any:
    """``values`` with NaN, or zeros among whole numbers, for the elements of its tensors that ``masks`` choose."""
    def without(path: str, tensor: torch.Tensor) -> torch.Tensor:
        mask = masks.get(path)
        if mask is None or not bool(mask.any()):
            return tensor
        inexact = tensor.dtype.is_floating_point or tensor.dtype.is_complex
        found = plain_tensor(tensor).masked_fill(mask.to(tensor.device), torch.nan if inexact else 0)
        return torch.view_as_complex(found) if tensor.dtype.is_complex else found

    return map_paths(values, without)
