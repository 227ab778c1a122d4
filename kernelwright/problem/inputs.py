"""What may be an input of forward, and other values like given ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kernelwright.containers import Keywords, entries, is_plain, mapped
from kernelwright.errors import InputsInvalid


def checked_inputs(values: Sequence[Any], source: str, where: str = "") -> list[Any]:
    """``values``, the arguments of forward, as a list of tensors, plain values and containers of them.

    NumPy arrays become tensors of their type, and its scalars numbers. Raises InputsInvalid (KW113), naming the
    position of what is wrong.
    """
    usable = [_with_tensors(value) for value in values]
    for position, value in enumerate(usable):
        outer = "" if isinstance(value, Keywords) else f"item {position}"
        for found in _unusable(value, outer):
            raise InputsInvalid(where=where, source=source, found=found)
    return usable


def holds_arrays(value: Any) -> bool:
    """Whether a value is, or contains, a NumPy array."""
    return _is_array(value) or any(holds_arrays(part) for _, part in entries(value) or ())


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def _with_tensors(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if _is_array(value):
        return torch.from_numpy(value.copy())
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return mapped(value, _with_tensors)


def _unusable(value: Any, position: str) -> Iterator[str]:
    parts = entries(value)
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_nested or value.is_quantized:
            yield f"{position} is a sparse, nested or quantized tensor"
        elif value.device.type == "meta":
            yield f"{position} is on the meta device, which holds no values"
    elif parts is not None:
        for inner, item in parts:
            yield from _unusable(item, f"{position}[{inner!r}]" if position else f"keyword {inner}")
    elif not is_plain(value):
        yield f"{position} is an object of type {type(value).__name__}"


def map_tensors(values: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """``values`` with ``change(tensor)`` in place of every tensor in their containers."""
    if isinstance(values, torch.Tensor):
        return change(values)
    return mapped(values, lambda part: map_tensors(part, change))


def fresh_copy(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of ``x`` on ``device`` with its own storage, its strides (a slice stays one) and its requires_grad."""
    given = x.detach()
    part = _unrepeated(given)
    if part.is_complex() or part.is_neg() or _overlaps(part):
        return given.to(device, copy=True).requires_grad_(x.requires_grad)
    copied = torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=device).copy_(part)
    return copied.expand(x.shape).requires_grad_(x.requires_grad)


def changed(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copy of ``x`` of which ``function`` makes other elements, laid out as ``x`` is: what is expanded stays so."""
    copied = fresh_copy(x, x.device)
    part = _unrepeated(copied.detach())
    part.copy_(function(part))
    return copied


def _unrepeated(x: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that is expanded to all of it."""
    return x[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())] if x.numel() else x


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
