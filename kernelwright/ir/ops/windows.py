"""Pooling over windows, 1-D to 3-D; every attribute has one entry per spatial axis."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def _rank(node: Applied) -> int:
    return len(node["kernel"])


def max_pool(x: torch.Tensor, *, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
             dilation: tuple[int, ...], ceil: bool) -> torch.Tensor:
    """Maximum over windows; padding never wins."""
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
    return function(x, kernel, stride, padding, dilation, ceil)


def average_pool(x: torch.Tensor, *, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
                 ceil: bool, include_padding: bool, divisor: int | None) -> torch.Tensor:
    """Mean over windows (``divisor`` None: the window's size, as ``include_padding`` says)."""
    if len(kernel) == 1:
        return F.avg_pool1d(x, kernel, stride, padding, ceil, include_padding)
    return (F.avg_pool2d, F.avg_pool3d)[len(kernel) - 2](x, kernel, stride, padding, ceil, include_padding, divisor)


def adaptive_average_pool(x: torch.Tensor, *, size: tuple[int, ...]) -> torch.Tensor:
    """Mean over windows that divide the axis into ``size`` parts."""
    functions: tuple[Callable[..., torch.Tensor], ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d,
                                                          F.adaptive_avg_pool3d)
    return functions[len(size) - 1](x, size)


def _average_code(inputs: list[str], node: Applied) -> str:
    divisor = "" if _rank(node) == 1 else f", {node['divisor']}"
    return (f"F.avg_pool{_rank(node)}d({inputs[0]}, {node['kernel']}, {node['stride']}, {node['padding']}, "
            f"{node['ceil']}, {node['include_padding']}{divisor})")


def _window_operations(node: Applied) -> int:
    return node.size * prod(node["kernel"])


declare("max_pool", "window", max_pool,
        lambda inputs, node: f"F.max_pool{_rank(node)}d({inputs[0]}, {node['kernel']}, {node['stride']}, "
                             f"{node['padding']}, {node['dilation']}, {node['ceil']})",
        operations=_window_operations)
declare("average_pool", "window", average_pool, _average_code, operations=_window_operations, linear_in=(0,))
declare("adaptive_average_pool", "window", adaptive_average_pool,
        lambda inputs, node: f"F.adaptive_avg_pool{len(node['size'])}d({inputs[0]}, {node['size']})",
        operations=lambda node: node.inputs[0].size, linear_in=(0,))



def windows(x: torch.Tensor, *, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
            dilation: tuple[int, ...], fill: float, size: tuple[int, ...]) -> torch.Tensor:
    """A view of all windows: (..., *size, *kernel); positions in the padding hold ``fill``."""
    rank = len(kernel)
    amounts = [amount for p, d, k in zip(reversed(padding), reversed(dilation), reversed(kernel), strict=True)
               for amount in (p, p + d * (k - 1))]
    x = F.pad(x, amounts, value=fill)
    first = x.ndim - rank
    for i in range(rank):
        x = x.unfold(first + i, dilation[i] * (kernel[i] - 1) + 1, stride[i])
        x = x.narrow(first + i, 0, size[i])[..., ::dilation[i]]
    return x


def reaches_beyond(node: Applied, axis: int) -> bool:
    """Whether some of a view's windows reach beyond the tensor along one of their axes: into its padding, or as the
    last one does where a pool's size is rounded up."""
    last = node["stride"][axis] * (node["size"][axis] - 1) + node["dilation"][axis] * (node["kernel"][axis] - 1)
    return node["padding"][axis] > 0 or last >= node.inputs[0].shape[axis % len(node["kernel"]) - len(node["kernel"])]


def are_inside(node: Applied) -> bool:
    """Whether all windows of a view are inside of the tensor."""
    return not any(reaches_beyond(node, axis) for axis in range(len(node["kernel"])))


def _no_call(inputs: list[str], node: Applied) -> str:
    raise ValueError("a view of windows exists in kernels only")


declare("windows", "view", windows, _no_call)

__all__ = ["adaptive_average_pool", "are_inside", "average_pool", "max_pool", "reaches_beyond", "windows"]
