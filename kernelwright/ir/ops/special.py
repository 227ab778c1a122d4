"""Operators that only rules introduce; each has a skeleton of its own."""

from __future__ import annotations

import torch

from kernelwright.ir import spectral
from kernelwright.ir.registry import Applied, declare

Progression = tuple[int, int, int]
"""``(start, stop, step)``: the positions of ``range(start, stop, step)``."""


def region_sum(x: torch.Tensor, *, classes: tuple[tuple[tuple[Progression, ...], ...] | None, ...], scale: float,
               dtype: str) -> torch.Tensor:
    """Sums over classes of positions, in type ``dtype``; see :class:`kernelwright.plan.kernels.RegionSum`."""
    kind = getattr(torch, dtype)
    for axis, axis_classes in enumerate(classes):
        if axis_classes is None:
            continue
        parts = []
        for progressions in axis_classes:
            index = [q for start, stop, step in progressions for q in range(start, stop, step)]
            positions = torch.tensor(index, dtype=torch.int64, device=x.device)
            parts.append(x.index_select(axis, positions).sum(axis, keepdim=True, dtype=kind))
        x = torch.cat(parts, axis)
    x = x.to(kind)
    return x * scale if scale != 1.0 else x


def channel_energy(x: torch.Tensor, weight: torch.Tensor, *, stride: tuple[int, ...], dilation: tuple[int, ...],
                   groups: int, transposed: bool) -> torch.Tensor:
    """Sum over batch and positions of the square of an unclipped linear convolution, per channel.

    Output (out_channels,) float64. Unclipped: padding is dilation * (kernel - 1) for a convolution
    (whose stride is 1) and 0 for a transposed one, so every product that exists is in the domain.
    """
    rank = x.ndim - 2
    padding = (0,) * rank if transposed else tuple(d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True))
    y = torch.convolution(x, weight, None, stride, padding, dilation, transposed, (0,) * rank, groups)
    return y.double().square().sum((0, *range(2, y.ndim)))


def _operations_region_sum(node: Applied) -> int:
    return node.inputs[0].size


def not_torch(inputs: list[str], node: Applied) -> str:
    """The text of a call that there is not. Raises ValueError."""
    raise ValueError(f"{node.op} has no torch call: it needs its kernel")


declare("region_sum", "special", region_sum, not_torch, operations=_operations_region_sum, linear_in=(0,))
declare("channel_energy", "special", channel_energy, not_torch, operations=spectral.operations)
