"""What outputs of timed calls are where they are not what they should be: unwritten, another computation's, far off."""

from __future__ import annotations

import math

import torch

#: Outputs nearer than this to what another computation gives may be its results.
SAME = 1e-2


def unwritten(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """In words how much of the outputs was left as it was; empty where that is not so."""
    for path, value in got.items():
        right = expected[path]
        if not value.numel():
            continue
        if value.dtype.is_floating_point or value.dtype.is_complex:
            share = float((torch.isnan(value) & ~torch.isnan(right)).double().mean())
            if share:
                return f"{share:.1%} of {path} is still what was there before the call"
        elif value.dtype is not torch.bool and bool((value == 0x6B).all()) and not bool((right == 0x6B).all()):
            return f"{path} is still what was there before the call"
        if not bool(value.any()) and bool(right.any()):
            return f"{path} is all zeros, as fresh memory is"
    return ""


def marked(got: dict[str, torch.Tensor], pattern: int) -> float:
    """The largest share of an output's elements that are NaN or made of the byte ``pattern``, as poisoned memory is. Of
    one byte each, which may be that by chance, all must be."""
    share = 0.0
    for value in got.values():
        if not value.numel() or value.dtype is torch.bool:
            continue
        found = (value.contiguous().reshape(-1, 1).view(torch.uint8) == pattern).all(1)
        if value.dtype.is_floating_point or value.dtype.is_complex:
            found |= torch.isnan(value).reshape(-1)
        share = max(share, float(found.all() if value.element_size() == 1 else found.double().mean()))
    return share


def is_rather(got: dict[str, torch.Tensor], other: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether outputs are another computation's: much nearer to it than it is to what was expected."""
    apart = max((distance(other[path], value) for path, value in expected.items()), default=0.0)
    near = max((distance(value, other[path]) for path, value in got.items()), default=math.inf)
    return near <= min(0.05 * apart, SAME)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    """rms(difference) / rms(expected); the share of differing elements for whole numbers; inf for misplaced NaN."""
    if not expected.numel():
        return 0.0
    if not expected.dtype.is_floating_point and not expected.dtype.is_complex:
        return float((got.cpu() != expected.cpu()).double().mean())
    a, b = wide(got), wide(expected)
    finite = torch.isfinite(b)
    if not torch.equal(torch.isfinite(a), finite):
        return math.inf
    size = rms(b[finite])
    error = rms((a - b)[finite])
    return error / size if size else (0.0 if not error else math.inf)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of numbers as float64, or complex128, on the CPU."""
    tensor = tensor.detach().cpu()
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def rms(tensor: torch.Tensor) -> float:
    """The root of the mean of the squares; 0 of none."""
    return float(tensor.abs().square().mean().sqrt()) if tensor.numel() else 0.0
