"""Input distributions for checking, each derived from the inputs that the problem itself draws.

A problem's own inputs hide faults: numbers in [0, 1) make ReLU an identity, and long averages of them make
losses constant. Each distribution here is a function of (tensor, generator) that returns a new tensor of
the same shape, dtype, device and strides. Only floating tensors are changed; integers (class labels, token
numbers, offsets) and booleans keep their values, so that they stay valid. Those of
:mod:`kernelwright.verify.along.placed` are drawn along an axis, for models that do something along it; tensors for
which none is given keep their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kernelwright.problem.inputs import changed
from kernelwright.verify.along.placed import loud_end, loud_start, loud_tile, near_one, quiet
from kernelwright.verify.flatten import clone, map_paths, tensors_of

AS_GIVEN = "as given"

Transform = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
Placing = Callable[[torch.Tensor, int, torch.Generator], torch.Tensor]
#: Rows from which on a matrix whose one half is zero counts as triangular: of a smaller one that may be chance.
_LEAST_ROWS = 8


@dataclass(frozen=True)
class Distribution:
    """A named way to make inputs. ``plants`` says that NaN or Inf are put in, ``extreme`` that values lie where
    products of a few of them leave the range of their type, ``costs_digits`` that errors on them say nothing of errors
    on ordinary ones; ``meaning`` is for people. ``place``: of those that depend on where a value stands, what takes the
    axis, too."""

    name: str
    meaning: str
    transform: Transform
    plants: bool = False
    extreme: bool = False
    costs_digits: bool = False
    place: Placing | None = None

    def apply(self, inputs: Any, seed: int, along: Mapping[str, int] | None = None, triangular: bool = False) -> Any:
        """Return nested ``inputs`` with this distribution in every floating tensor; others are cloned.

        ``along``: where values depend on where they stand, the axes of the tensors that have it, by their paths (root
        "input"). ``triangular``: matrices of which one half is zero keep that half. Deterministic for a seed, device
        and torch version; PyTorch's global random state is not touched.
        """
        generators: dict[torch.device, torch.Generator] = {}

        def change(path: str, tensor: torch.Tensor) -> torch.Tensor:
            plain = tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized
            if not plain or not tensor.dtype.is_floating_point or not tensor.numel():
                return clone(tensor)
            if tensor.device not in generators:
                generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)

            def drawn(part: torch.Tensor) -> torch.Tensor:
                wide = part if part.element_size() > 1 else part.float()  # nothing is drawn in 8 bits
                axis = (along or {}).get(path)
                if self.place is not None and axis is not None:
                    return self.place(wide, axis, generators[tensor.device])
                return self.transform(wide, generators[tensor.device])

            half = zero_half(tensor) if triangular else None
            found = changed(tensor, drawn)
            return found if half is None else changed(found, torch.tril if half == ABOVE else torch.triu)

        return map_paths(inputs, change, "input")


#: Where a triangular matrix is zero, from its diagonal.
ABOVE, BELOW = "above", "below"


def zero_half(tensor: torch.Tensor) -> str | None:
    """The half in which a matrix, or all of a batch of them, is zero; None where both halves or none are."""
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < _LEAST_ROWS \
            or not tensor.dtype.is_floating_point or tensor.layout != torch.strided or 0 in tensor.stride()[-2:]:
        return None
    above, below = (bool(half(tensor.detach(), by).any()) for half, by in ((torch.triu, 1), (torch.tril, -1)))
    return None if above is below else BELOW if above else ABOVE


def squares_leave_range(inputs: Any) -> bool:
    """Whether the squares of a floating tensor's largest finite elements overflow or vanish in its type."""
    for tensor in tensors_of(inputs):
        if tensor.dtype.is_floating_point and tensor.itemsize > 1 and tensor.layout == torch.strided \
                and tensor.numel() and not tensor._is_zerotensor():  # zeros without memory
            largest = float(tensor.detach().abs().nan_to_num(nan=0.0, posinf=0.0).amax())
            kind = torch.finfo(tensor.dtype)
            if largest and not kind.smallest_normal**0.5 <= largest <= kind.max**0.5:
                return True
    return False


def as_given(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's own values (other seeds through its own factory)."""
    return tensor


def shifted(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values moved down by mean + deviation / 2: both signs, more of them negative."""
    mean, deviation = _moments(tensor)
    return tensor.sub_(mean + 0.5 * deviation)


def scaled(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values times 8."""
    return tensor.mul_(8)


def small(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values times 2**-12, where absolute tolerances see nothing."""
    return tensor.mul_(2.0**-12)


def normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Standard normal values."""
    return tensor.normal_(generator=generator)


def large(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values of deviation 1000: a softmax without its maximum overflows."""
    return tensor.normal_(generator=generator).mul_(1e3)


def heavy_tailed(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Laplace-like values with rare outliers (one in 1024, at least one) a hundred times as large."""
    sign = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
    tensor.exponential_(generator=generator).mul_(torch.sign(sign))
    outlier = sign.uniform_(0, 1, generator=generator) < 1 / 1024
    tensor[outlier] *= 100
    one = _positions(tensor, 1, generator)[0]
    tensor[one] = 100.0
    return tensor


def sparse(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values, nine of ten exactly zero: ties, zero rows, empty tiles."""
    drop = torch.empty_like(tensor).uniform_(0, 1, generator=generator) >= 0.1
    return tensor.normal_(generator=generator).masked_fill_(drop, 0.0)


def tied(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Whole numbers from -2 to 2: every maximum, rank and place of an extremum is tied."""
    return tensor.random_(-2, 3, generator=generator)


def negative(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values, all with a minus: a maximum that starts at zero is zero."""
    return tensor.abs_().neg_()


def denormal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers of both signs below the smallest normal one: kernels that flush them see zeros."""
    return tensor.uniform_(-1, 1, generator=generator).mul_(torch.finfo(tensor.dtype).tiny)


def tiny(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values of deviation 1e-25, or 16 times the smallest normal number of a narrower type: squares vanish."""
    return tensor.normal_(generator=generator).mul_(max(1e-25, 16 * torch.finfo(tensor.dtype).tiny))


def huge(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Normal values of deviation 1e25, or a sixteenth of the largest number of a narrower type: squares overflow."""
    return tensor.normal_(generator=generator).mul_(min(1e25, torch.finfo(tensor.dtype).max / 16))


def offset(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values moved up by a million, or by 1/64 of what a narrower type holds: a mean beside which the
    deviation is small, so that one pass over squares loses it."""
    return tensor.add_(min(1e6, torch.finfo(tensor.dtype).max / 64))


def wide(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers of both signs from 1 to 2**30 (2**12 in a narrower type), evenly by exponent: angles of any size."""
    sign = torch.empty_like(tensor).uniform_(-1, 1, generator=generator).sign_()
    most = 30.0 if torch.finfo(tensor.dtype).max > 1e30 else 12.0
    return tensor.uniform_(0, most, generator=generator).exp2_().mul_(sign)


def signed_zeros(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Zeros of both signs, and one normal value in eight."""
    sign = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
    keep = torch.empty_like(tensor).uniform_(0, 1, generator=generator) < 1 / 8
    return tensor.normal_(generator=generator).mul_(keep).abs_().copysign_(sign)


def zeros(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """All zeros."""
    return tensor.zero_()


def with_nan(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values with NaN at up to three places of one entry of axis 0."""
    for position in _positions(tensor, 3, generator):
        tensor[position] = math.nan
    return tensor


def with_infinity(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The problem's values with +Inf and, where there is room, -Inf in one entry of axis 0."""
    for position, value in zip(_positions(tensor, 2, generator), (math.inf, -math.inf), strict=False):
        tensor[position] = value
    return tensor


def _moments(tensor: torch.Tensor) -> tuple[float, float]:
    """Mean and deviation from at most a million values (enough for a shift, cheap for a gigabyte)."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if tensor.is_contiguous() else tensor.flatten()
    flat = flat[:: max(1, flat.numel() // (1 << 20))].double()
    return float(flat.mean()), float(flat.std(correction=0))


def _positions(tensor: torch.Tensor, count: int, generator: torch.Generator) -> list[tuple[int, ...]]:
    """Up to ``count`` distinct random positions, all in one entry of axis 0 (the others stay clean)."""
    if tensor.dim() == 0:
        return [()]

    def draw(size: int) -> int:
        return int(torch.randint(size, (1,), generator=generator, device=tensor.device))

    entry = draw(tensor.shape[0])
    found: dict[tuple[int, ...], None] = {}
    for _ in range(count):
        found[(entry, *(draw(size) for size in tensor.shape[1:]))] = None
    return list(found)


DISTRIBUTIONS: dict[str, Distribution] = {
    d.name: d
    for d in (
        Distribution(AS_GIVEN, "the problem's own inputs, drawn with another seed", as_given),
        Distribution("shifted", "moved down to both signs", shifted),
        Distribution("scaled", "times 8", scaled),
        Distribution("small", "times 2**-12", small),
        Distribution("normal", "standard normal", normal),
        Distribution("large", "normal of deviation 1000", large),
        Distribution("heavy-tailed", "exponential of random sign with rare outliers", heavy_tailed),
        Distribution("sparse", "nine of ten values zero", sparse),
        Distribution("tied", "whole numbers from -2 to 2", tied),
        Distribution("negative", "the problem's values, none above zero", negative),
        Distribution("denormal", "below the smallest normal number", denormal, extreme=True, costs_digits=True),
        Distribution("tiny", "normal of deviation 1e-25", tiny, extreme=True, costs_digits=True),
        Distribution("huge", "normal of deviation 1e25", huge, extreme=True, costs_digits=True),
        Distribution("offset", "moved up by a million", offset, costs_digits=True),
        Distribution("wide", "both signs, from 1 to 2**30 by exponent", wide, costs_digits=True),
        Distribution("signed zeros", "zeros of both signs, one in eight normal", signed_zeros),
        Distribution("zeros", "all zeros", zeros),
        Distribution("loud start", "small but for the first few", as_given, place=loud_start),
        Distribution("quiet", "small, as where it is small beside the first few", as_given, place=quiet),
        Distribution("loud end", "tiny but for the last quarter", as_given, place=loud_end),
        Distribution("loud tile", "largest within one tile of 32 to 128 neighbours", as_given, place=loud_tile),
        Distribution("near one", "within a small part of 1", as_given, place=near_one),
        Distribution("with NaN", "NaN planted in one entry", with_nan, plants=True),
        Distribution("with Inf", "+Inf and -Inf planted in one entry", with_infinity, plants=True),
    )
}
