"""What may be an input of forward, and other values like given ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kernelwright.errors import InputsInvalid


def checked_inputs(values: Any, source: str, where: str = "") -> list[Any]:
    """``values`` as a list of tensors, ints, floats, bools, None, or nested lists of these.

    Tuples become lists only at the top level, since a model may tell them apart below it.
    Raises InputsInvalid (KW113), naming the position of what is wrong.
    """
    if not isinstance(values, (list, tuple)):
        raise InputsInvalid(where=where, source=source, found=f"they are {_kind(values)}, not a list")
    for position, value in enumerate(values):
        for found in _unusable(value, f"item {position}"):
            raise InputsInvalid(where=where, source=source, found=found)
    return list(values)


def _unusable(value: Any, position: str) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            yield f"{position} is a sparse, nested or quantized tensor"
        elif value.device.type == "meta":
            yield f"{position} is on the meta device, which holds no values"
    elif isinstance(value, (list, tuple)):
        for inner, item in enumerate(value):
            yield from _unusable(item, f"{position}[{inner}]")
    elif value is not None and not isinstance(value, (bool, int, float)):
        yield f"{position} is {_kind(value)}"


def _kind(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"an object of type {name}" if value is not None else "None"


def map_tensors(values: Any, change: Any) -> Any:
    """``values`` with ``change(tensor)`` in place of every tensor of its nested lists and tuples."""
    if isinstance(values, torch.Tensor):
        return change(values)
    if isinstance(values, (list, tuple)):
        changed = [map_tensors(item, change) for item in values]
        return type(values)(*changed) if hasattr(values, "_fields") else type(values)(changed)
    return values


def fresh_copy(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of ``x`` on ``device`` with its own storage, its strides (a slice stays one) and its requires_grad."""
    given = x.detach()
    repeated = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in given.stride())
    part = given[repeated] if given.numel() else given
    if part.is_complex() or part.is_neg() or _overlaps(part):
        return given.to(device, copy=True).requires_grad_(x.requires_grad)
    copied = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=device).copy_(part)
    return copied.expand(x.shape).requires_grad_(x.requires_grad)


def _overlaps(x: torch.Tensor) -> bool:
    """Whether elements of ``x`` may share memory."""
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def random_like(x: torch.Tensor) -> torch.Tensor:
    """Random values of the shape, dtype, strides, device and range of ``x``, from the global generator.

    Floating point: normal with the mean and spread of ``x``, kept within its range, if it has both
    signs; else uniform over its range. Integers: uniform from least to greatest. Booleans: as many True,
    on average. Kept as they are, because their structure is meaningful: infinities and NaN, constants
    and masks with one finite value, and one-dimensional non-decreasing integers (offsets, positions).
    """
    given = x.detach()
    if given.numel() == 0:
        return fresh_copy(x, x.device)
    if given.dtype is torch.bool:
        result = torch.empty_like(given).bernoulli_(given.double().mean().item())
    elif given.is_complex():
        result = torch.complex(random_like(given.real.contiguous()), random_like(given.imag.contiguous()))
    elif given.is_floating_point():
        result = _random_floats(given)
    else:
        low, high = int(given.min()), int(given.max())
        ordered = given.dim() == 1 and given.numel() > 1 and bool((given[1:] >= given[:-1]).all())
        result = given.clone() if ordered or low == high else _random_integers(given, low, high)
    return result.requires_grad_(x.requires_grad)


def _random_integers(given: torch.Tensor, low: int, high: int) -> torch.Tensor:
    # random_ cannot reach the greatest 64-bit value as an exclusive bound; leaving it out loses nothing.
    bound = min(high + 1, torch.iinfo(torch.int64).max)
    return torch.empty_like(given, dtype=torch.int64).random_(low, max(bound, low + 1)).to(given.dtype)


def _random_floats(given: torch.Tensor) -> torch.Tensor:
    # float8 and float16 have neither a random fill nor exact moments; draw in float32 or float64.
    wide = given.double() if given.dtype is torch.float64 else given.float()
    finite = torch.isfinite(wide)
    kept = wide[finite]
    if kept.numel() == 0:
        return given.clone()
    low, high = kept.min(), kept.max()
    if low == high:
        return given.clone()
    drawn = torch.empty_like(wide)
    if low < 0 < high:
        spread = kept.std().item() if kept.numel() > 1 else 1.0
        drawn.normal_(kept.mean().item(), spread).clamp_(low, high)
    else:
        drawn.uniform_().mul_(high - low).add_(low).clamp_(low, high)
    return torch.where(finite, drawn, wide).to(given.dtype)
