"""Error statistics of one output against its float64 reference, in blocks so that no output is too large.

Every figure comes from one walk over the three tensors. A tensor of any rank is seen as (A, B, rest) with
A = size of axis 0 and B = size of axis 1, because errors are also taken per slice along these two axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import torch

#: Elements taken at a time; about ten float64 temporaries of this size live at once: on a CPU within its caches, and
#: fewer than PyTorch splits over threads (from 32768 on). Threads that meet after each of some twenty short operations
#: spin where other programs have their processors: up to sixty times as long in all, and no faster on a quiet machine.
BLOCK_ELEMENTS = {"cpu": (1 << 15) - 1, "cuda": 1 << 24}
#: Up to so many are compared on the CPU: of a GPU each of a dozen answers is waited for, one after the other.
_FEW_ELEMENTS = 1 << 14
#: Axes with more slices than this have no statistics per slice (their vectors would be outputs themselves).
MOST_SLICES = 1 << 20
#: The shares of elements whose largest error is told, and how many elements are looked at for that.
SPREAD, _SAMPLE = (0.5, 0.9, 0.99, 1.0), 4096
#: How close a finite value must be where float32 eager and float64 disagree on finiteness (overflow).
LOOSE = 1e-3
#: Relative error from which eager counts as noise.
NOISE_SHARE = 0.5
#: How many times eager's measured error its error on other inputs may count for, see `widen`.
MOST_MOVED = 4.0
#: Draws of a slice's error are of few roundings where the largest is so many times the smallest: of many, all are
#: alike.
_UNLIKE = 2.0
#: A slice jumps whose error is so many times its usual one. That slices jump is seen where at least so many did, in
#: more than one call.
_JUMP, _LEAST_JUMPS = 4.0, 3


@dataclass
class SliceSums:
    """Sums of squares for every slice along one axis: float64 vectors on the comparing device."""

    axis: int
    elements: int  # per slice
    error: torch.Tensor
    eager_error: torch.Tensor
    reference: torch.Tensor
    nonzero: torch.Tensor  # elements of the reference that are not zero
    jumps: int = 0  # how many slices of one result may jump, where rounding chooses which ones; see `widen`
    jump: float = 0.0  # the largest error of one that did, relative to its size
    jump_rms: float = 0.0  # and as it is
    lost: torch.Tensor | None = None  # eager's error where few of its calls have digits, else 0; see `widen`


@dataclass
class Statistics:
    """What one walk over (candidate, eager, reference) found. Errors are absolute, against the reference."""

    elements: int = 0
    compared: int = 0  # elements finite in all three
    worst_absolute: float = 0.0
    eager_worst_absolute: float = 0.0
    square_error: float = 0.0
    eager_square_error: float = 0.0
    square_reference: float = 0.0
    failing: int = 0
    eager_failing: int = 0
    worst_units: float = 0.0  # error / (atol + rtol |reference|)
    eager_worst_units: float = 0.0
    worst_index: tuple[int, ...] = ()
    at_worst: tuple[float, float, float] = (0.0, 0.0, 0.0)  # reference, candidate, eager
    misplaced: int = 0  # NaN or Inf not where it belongs
    first_misplaced: tuple[int, ...] = ()
    at_misplaced: tuple[float, float, float] = (0.0, 0.0, 0.0)
    zero_signs: int = 0  # zeros of another sign than eager and the reference agree on
    vanished_signs: int = 0  # of these, where the reference is a number too small for the type
    first_zero_sign: tuple[int, ...] = ()
    slices: list[SliceSums] = field(default_factory=list)
    is_wide: bool = False  # of a draw: nothing but float64 was rounded otherwise


def _blocks(shape: tuple[int, int, int], limit: int) -> Iterator[tuple[slice, slice, slice]]:
    a, b, rest = shape
    step_rest = max(1, min(rest, limit))
    step_b = max(1, min(b, limit // step_rest)) if step_rest == rest else 1
    step_a = max(1, min(a, limit // (step_rest * step_b))) if step_rest == rest and step_b == b else 1
    for i in range(0, a, step_a):
        for j in range(0, b, step_b):
            for k in range(0, rest, step_rest):
                yield (
                    slice(i, min(a, i + step_a)),
                    slice(j, min(b, j + step_b)),
                    slice(k, min(rest, k + step_rest)),
                )


def three_axes(shape: torch.Size | tuple[int, ...]) -> tuple[int, int, int]:
    """Return ``shape`` as (axis 0, axis 1, all others); missing axes have size 1."""
    sizes = tuple(shape)
    return (sizes[0] if sizes else 1, sizes[1] if len(sizes) > 1 else 1, math.prod(sizes[2:]))


def _part(tensor: torch.Tensor, where: tuple[slice, slice, slice], device: torch.device) -> torch.Tensor:
    """One block of ``tensor`` as float64 (a, b, rest) on ``device``; only the block is copied."""
    if tensor.dim() == 0:
        tensor = tensor.reshape(1, 1, 1)
    elif tensor.dim() == 1:
        tensor = tensor[where[0]].reshape(-1, 1, 1)
    else:
        tensor = tensor[where[0], where[1]]
        tensor = tensor.reshape(tensor.shape[0], tensor.shape[1], -1)[:, :, where[2]]
    return tensor.to(device=device, dtype=torch.float64)


def _kind(values: torch.Tensor) -> torch.Tensor:
    """0 finite, 1 NaN, 2 +Inf, 3 -Inf."""
    kind = torch.isnan(values).to(torch.int8)
    kind += 2 * torch.isposinf(values).to(torch.int8)
    kind += 3 * torch.isneginf(values).to(torch.int8)
    return kind


def _at(flat: int, *tensors: torch.Tensor) -> tuple[float, float, float]:
    """The element of each of three tensors."""
    first, second, third = (float(t.flatten()[flat]) for t in tensors)
    return first, second, third


def _index(
    flat: int, where: tuple[slice, slice, slice], block: torch.Size, shape: torch.Size
) -> tuple[int, ...]:
    rest_size = block[2]
    k = flat % rest_size + where[2].start
    j = flat // rest_size % block[1] + where[1].start
    i = flat // (rest_size * block[1]) + where[0].start
    if len(shape) < 3:
        return (i, j)[: len(shape)]
    tail: list[int] = []
    for size in reversed(shape[2:]):
        tail.append(k % size)
        k //= size
    return (i, j, *reversed(tail))


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as `measure_error` takes it: detached, strided and real."""
    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def measure_error(
    candidate: torch.Tensor,
    eager: torch.Tensor,
    reference: torch.Tensor,
    *,
    atol: float,
    rtol: float,
    nonfinite: str = "exact",
) -> Statistics:
    """Return the statistics of three real floating tensors of one shape (any strides, dtypes, devices); ``eager`` may
    be the ``reference`` itself.

    ``reference`` is float64 as a rule. NaN and Inf must stand where eager and reference agree that they do;
    where these two disagree (float32 overflowed) either is accepted. ``nonfinite`` is that of a `Tolerance`.
    Comparing happens on the candidate's device, of a few elements on the CPU.
    """
    shape = candidate.shape
    device = candidate.device if candidate.numel() > _FEW_ELEMENTS else torch.device("cpu")
    statistics = Statistics(elements=candidate.numel())
    if candidate.numel() == 0:
        return statistics
    axes = three_axes(shape)
    for axis in range(min(2, len(shape))):
        if axes[axis] <= MOST_SLICES:
            zero = torch.zeros(axes[axis], dtype=torch.float64, device=device)
            statistics.slices.append(
                SliceSums(axis, candidate.numel() // axes[axis], zero, zero.clone(), zero.clone(), zero.clone())
            )
    for where in _blocks(axes, BLOCK_ELEMENTS.get(device.type, 1 << 18)):
        c, e = (_part(tensor, where, device) for tensor in (candidate, eager))
        r = e if reference is eager else _part(reference, where, device)
        _add_block(statistics, c, e, r, where, shape, candidate.dtype, atol, rtol, nonfinite)
    return statistics


def spread(values: torch.Tensor, reference: torch.Tensor) -> tuple[float, ...]:
    """The quantiles `SPREAD` of the absolute errors of a sample of elements, at equal distances, over the rms of the
    reference there; () where no element is finite in both, or the reference is zero. Real tensors of one shape."""
    count = values.numel()
    flat = torch.arange(0, count, -(-count // _SAMPLE) | 1)  # odd: axes have even sizes
    error, size = (_sampled(t, flat) for t in (values, reference))
    error = error - size
    usable = error.isfinite()
    error, size = error[usable].abs(), size[usable]
    rms = float(size.square().mean().sqrt()) if size.numel() else 0.0
    if not rms or not math.isfinite(rms):
        return ()
    return tuple((torch.quantile(error, torch.tensor(SPREAD, dtype=torch.float64)) / rms).tolist())


def _sampled(tensor: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
    """Elements of a tensor by their numbers, as float64 on the CPU; only these are copied."""
    if tensor.dim() == 0:
        return tensor.reshape(1).to(device="cpu", dtype=torch.float64)
    steps = [math.prod(tensor.shape[axis + 1:]) for axis in range(tensor.dim())]
    places = flat[:, None] // torch.tensor(steps) % torch.tensor(tensor.shape)  # torch.unravel_index imports sympy
    return tensor[places.to(tensor.device).unbind(1)].to(device="cpu", dtype=torch.float64)


def _add_block(
    statistics: Statistics,
    c: torch.Tensor,
    e: torch.Tensor,
    r: torch.Tensor,
    where: tuple[slice, slice, slice],
    shape: torch.Size,
    dtype: torch.dtype,
    atol: float,
    rtol: float,
    nonfinite: str,
) -> None:
    rounded = r if r is e else r.to(dtype).to(r.dtype)
    if int((c.view(torch.int64) ^ e.view(torch.int64)).min()) < 0:  # signs differ somewhere
        zeros = (c == 0) & (e == 0) & (rounded == 0)
        own = torch.signbit(e)
        zeros &= (torch.signbit(rounded) == own) & (torch.signbit(c) != own)
        count = int(zeros.sum())
        if count and not statistics.zero_signs:
            statistics.first_zero_sign = _index(int(zeros.flatten().to(torch.uint8).argmax()), where, c.shape, shape)
        statistics.zero_signs += count
        statistics.vanished_signs += int((zeros & (r != 0)).sum()) if count else 0
    # A sum is finite only where all of its terms are.
    if bool((c.sum() + e.sum() + rounded.sum()).isfinite()):
        statistics.compared += c.numel()
    else:
        usable = torch.isfinite(c) & torch.isfinite(e) & torch.isfinite(rounded)
        bad = _misplaced(c, e, r, dtype, atol, nonfinite)
        count = int(bad.sum())
        if count:
            if not statistics.misplaced:
                flat = int(bad.flatten().to(torch.uint8).argmax())
                statistics.first_misplaced = _index(flat, where, c.shape, shape)
                statistics.at_misplaced = _at(flat, r, c, e)
            statistics.misplaced += count
        # Zeros leave every sum and maximum below as it is.
        same = r is e
        c, e, r = (torch.where(usable, t, torch.zeros_like(t)) for t in (c, e, r))
        r = e if same else r
        statistics.compared += int(usable.sum())
    size = r.abs()
    has_zeros = bool(size.min() == 0)
    allowed = size.mul_(rtol).add_(atol)
    own = _Errors(c, r, allowed)
    eager = own if torch.equal(c, e) else None if r is e else _Errors(e, r, allowed)
    if own.worst_units > statistics.worst_units or not statistics.worst_index:
        flat = int((own.error / allowed).abs_().argmax())
        statistics.worst_units = max(own.worst_units, statistics.worst_units)
        statistics.worst_index = _index(flat, where, c.shape, shape)
        statistics.at_worst = _at(flat, r, c, e)
    statistics.failing += own.failing
    statistics.worst_absolute = max(statistics.worst_absolute, own.worst)
    if eager is not None:
        statistics.eager_worst_units = max(statistics.eager_worst_units, eager.worst_units)
        statistics.eager_failing += eager.failing
        statistics.eager_worst_absolute = max(statistics.eager_worst_absolute, eager.worst)
    # By axes 0 and 1: what is asked of slices and of the whole are sums of that.
    of_own, of_reference = own.squares(), r.square().sum(2)
    nonzero = (r != 0).sum(2).to(torch.float64) if has_zeros else torch.full_like(of_own, r.shape[2])
    of_eager = torch.zeros_like(of_own) if eager is None else of_own if eager is own else eager.squares()
    squares = (of_own, of_eager, of_reference, nonzero)
    error, eager_error, reference, _ = torch.stack([part.sum() for part in squares]).tolist()
    statistics.square_error += error
    statistics.eager_square_error += eager_error
    statistics.square_reference += reference
    for sums in statistics.slices:
        totals = (sums.error, sums.eager_error, sums.reference, sums.nonzero)
        for total, part in zip(totals, squares, strict=True):
            total[where[sums.axis]] += part.sum(1 - sums.axis)


class _Errors:
    """Errors of one block's values, which are all finite, with their signs (float64, of the block's shape); the largest
    one, in itself and in units of what is allowed, and how many are larger than that."""

    def __init__(self, values: torch.Tensor, reference: torch.Tensor, allowed: torch.Tensor) -> None:
        self.error = values - reference
        units = self.error / allowed
        least, most, least_units, most_units = torch.stack((*self.error.aminmax(), *units.aminmax())).tolist()
        self.worst, self.worst_units = max(-least, most), max(-least_units, most_units)
        self.failing = 0 if self.worst_units <= 1 else int((units.abs_() > 1).sum())

    def squares(self) -> torch.Tensor:
        """Sums of squared errors along the last axis."""
        return self.error.square().sum(2)


def _misplaced(
    c: torch.Tensor, e: torch.Tensor, r: torch.Tensor, dtype: torch.dtype, atol: float, nonfinite: str
) -> torch.Tensor:
    """Elements whose finiteness is wrong: a boolean tensor."""
    kind_c, kind_e, kind_r = _kind(c), _kind(e), _kind(r.to(dtype).to(r.dtype))
    opposite = torch.zeros_like(kind_c, dtype=torch.bool)
    if nonfinite == "sign":  # of a sum that overflows the order of its terms decides, of one of infinities nothing does
        opposite = torch.isinf(r) & (kind_e == kind_r) & (kind_c > 1) & (kind_c != kind_e)
    if nonfinite != "exact":
        kind_c, kind_e, kind_r = (kind.clamp(max=1) for kind in (kind_c, kind_e, kind_r))
    near_r = (c - r).abs() <= atol + LOOSE * r.abs()
    near_e = (c - e).abs() <= atol + LOOSE * e.abs()
    # Where the two agree on a finite value, the size of the error is judged elsewhere.
    agree = kind_e == kind_r
    as_reference = (kind_c == kind_r) & ((kind_c != 0) | agree | near_r)
    as_eager = (kind_c == kind_e) & ((kind_c != 0) | agree | near_e)
    return ~(as_reference | as_eager) | opposite


def is_own_reference(dtype: str, eager_units: float) -> bool:
    """Whether eager's results of a type, as `OutputError` names it, are what they are measured against: those of a
    float64 model have rounding errors, too, and nothing to see them by."""
    return dtype in ("torch.float64", "torch.complex128") and eager_units == 0


def by_draws(found: Statistics, draws: Sequence[Statistics]) -> None:
    """Take the median error of ``draws`` for eager's in ``found``, where eager is its own reference: a jump in one of
    them excuses nothing."""
    found.eager_worst_units = median_low(draw.worst_units for draw in draws)
    found.eager_square_error = median_low(draw.square_error for draw in draws)
    for place, sums in enumerate(found.slices):
        sums.eager_error = torch.stack([draw.slices[place].error for draw in draws]).median(0).values


def widen(found: Statistics, draws: Sequence[Statistics], multiple: float, most: float = MOST_MOVED) -> None:
    """Take the largest error of ``draws`` for eager's in ``found``, up to ``most`` times what it is there.

    multiple: how many times eager's error a candidate may have. Of single elements 1 over it counts as eager's error
    where that is smaller; of a slice, whose elements may all share one rounding error, as much as its part of the whole
    output has, or as eager's calls usually have (`_usual`), since one call may be right by luck. An output or a slice
    in which eager has digits is not widened so far that more than half of its size may be wrong, nor that it counts as
    noise (`NOISE_SHARE`). Whether it has any in a slice is no matter of one call, either: see `_lost`.

    Some models jump at places that rounding chooses: a token goes to another expert. In which slices is another matter
    in every call; how many they are, and how far they jump, is what calls have in common, and what a candidate may do.
    """
    for place, sums in enumerate(found.slices):
        errors = torch.stack([draw.slices[place].error for draw in draws])
        sums.jumps, sums.jump, sums.jump_rms = _jumps(sums, errors)
        sums.lost = _lost(sums, errors, most)
    units = most * max(found.eager_worst_units, 1 / multiple)
    square = float(_most(torch.tensor(found.eager_square_error, dtype=torch.float64),
                         torch.tensor(found.square_reference, dtype=torch.float64), multiple, most))
    usual = found.eager_square_error / max(1, found.compared)
    slices = [_most(sums.eager_error, sums.reference, multiple, most, torch.clamp_min(
        _usual(sums, torch.stack([draw.slices[place].error for draw in draws])), usual * sums.elements))
              for place, sums in enumerate(found.slices)]
    for draw in draws:
        found.eager_worst_units = max(found.eager_worst_units, min(draw.worst_units, units))
        found.eager_square_error = max(found.eager_square_error, min(draw.square_error, square))
        for sums, widest, other in zip(found.slices, slices, draw.slices, strict=True):
            sums.eager_error = torch.maximum(sums.eager_error, torch.minimum(other.error, widest))


def _usual(own: SliceSums, draws: torch.Tensor) -> torch.Tensor:
    """The median of eager's errors (squares) in each slice, over its calls: of ``draws`` (a row for each) as much as
    eager's own error is of theirs in the median slice, as they round by whole units."""
    typical = draws.median(0).values
    telling = typical > 0
    if not bool(telling.any()):
        return own.eager_error
    share = (own.eager_error[telling] / typical[telling]).median().clamp_max(1.0)
    return torch.cat([own.eager_error[None], share * draws]).median(0).values


def _lost(own: SliceSums, draws: torch.Tensor, most: float) -> torch.Tensor:
    """Eager's error (squares) in slices that have no digits to speak of: in most of its calls half as much of a slice
    is wrong as of noise, and the calls do not agree by how much. There eager's error and a candidate's are two draws of
    few roundings, whose ratio says nothing: the largest of all calls counts, up to ``most`` times the median. 0
    elsewhere.
    """
    calls = torch.cat([own.eager_error[None], draws])
    median = calls.median(0).values
    noisy = (median > (NOISE_SHARE / 2)**2 * own.reference) & (draws.amax(0) > _UNLIKE**2 * draws.amin(0))
    return torch.where(noisy, torch.minimum(calls.amax(0), most**2 * median), 0.0)


def _jumps(own: SliceSums, draws: torch.Tensor) -> tuple[int, float, float]:
    """The most slices that jump in one of eager's calls, and how far one does, relative to its size and as it is; none
    where each slice has its errors always, or too few jumped to tell. A slice in which a call has no digits tells
    nothing: sums that cancel are small, and as much is little elsewhere."""
    errors = torch.cat([own.eager_error[None], draws])
    relative = torch.sqrt(errors / own.reference.clamp_min(torch.finfo(own.reference.dtype).tiny))
    usual = relative.median(0).values
    jumped = (relative > _JUMP * torch.maximum(usual, usual.median())) & (relative.amax(0) <= NOISE_SHARE)
    counts = jumped.sum(1)
    if int((counts > 0).sum()) < 2 or int(jumped.any(0).sum()) < _LEAST_JUMPS:
        return 0, 0.0, 0.0
    rms = torch.sqrt(errors / own.elements)
    return int(counts.max()), float(relative[jumped].max()), float(rms[jumped].max())


def _most(error: torch.Tensor, reference: torch.Tensor, multiple: float, most: float,
          least: torch.Tensor | None = None) -> torch.Tensor:
    """What squares of eager's errors, or ``least`` where they are less, may be widened to, beside squares of the
    reference."""
    known = error if least is None else torch.maximum(error, least)
    widest = most**2 * known.clamp_min(torch.finfo(error.dtype).tiny)
    with_digits = torch.maximum(error, torch.minimum(widest, (NOISE_SHARE / multiple)**2 * reference))
    return torch.where(error > NOISE_SHARE**2 * reference, widest, with_digits)
