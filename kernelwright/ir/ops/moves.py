"""Copies that only move elements. Alone they are PyTorch's; a kernel that reads one reads through it instead
(:mod:`kernelwright.plan.reading.pieces`). Also views of PyTorch's own kind that kernels read through."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def _triangle_code(inputs: list[str], node: Applied) -> str:
    return f"torch.{'tril' if node['lower'] else 'triu'}({inputs[0]}, {node['diagonal']})"


# amounts: (before, after) of every axis, none negative.
def pad(x: torch.Tensor, *, amounts: tuple[tuple[int, int], ...], value: float) -> torch.Tensor:
    """x with ``value`` around it."""
    return F.pad(x, _amounts(amounts), value=value)


def _amounts(amounts: tuple[tuple[int, int], ...]) -> list[int]:
    return [amount for pair in reversed(amounts) for amount in pair]


declare("pad", "opaque", pad, lambda inputs, node: f"F.pad({inputs[0]}, {_amounts(node['amounts'])}, value="
                                                   f"{_number(node['value'])})")
declare("roll", "opaque", lambda x, *, shifts, axes: torch.roll(x, shifts, axes), "torch.roll({0}, {shifts}, {axes})",
        linear_in=(0,))
declare("triangle", "opaque",
        lambda x, *, lower, diagonal: (torch.tril if lower else torch.triu)(x, diagonal), _triangle_code,
        linear_in=(0,))
# factors: one whole number for each of the last axes.
declare("upsample_nearest", "opaque",
        lambda x, *, factors: F.interpolate(x, scale_factor=[float(f) for f in factors], mode="nearest"),
        lambda inputs, node: f"F.interpolate({inputs[0]}, scale_factor={[float(f) for f in node['factors']]})",
        linear_in=(0,))
declare("unfold", "view", lambda x, *, axis, size, step: x.unfold(axis, size, step),
        "{0}.unfold({axis}, {size}, {step})", linear_in=(0,))
declare("diagonal", "view", lambda x, *, offset, axes: x.diagonal(offset, *axes),
        lambda inputs, node: f"{inputs[0]}.diagonal({node['offset']}, {node['axes'][0]}, {node['axes'][1]})",
        linear_in=(0,))


def _number(value: float) -> str:
    return f'float("{value}")' if value != value or abs(value) == float("inf") else repr(value)
