"""Pooling over windows, 1-D to 3-D; every attribute has one entry per spatial axis."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd, prod

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


def window_counts(*, size: int, kernel: int, stride: int, padding: int, count: int, include: bool, dtype_of: str
                  ) -> torch.Tensor:
    """By how many elements each of ``size`` windows along an axis of ``count`` divides: those inside, or with
    ``include`` those of the padding, too, beyond which the last window may reach where sizes are rounded up."""
    first = torch.arange(size) * stride - padding
    last = (first + kernel).clamp_max(count + padding)
    counts = last - first if include else last.clamp_max(count) - first.clamp_min(0)
    return counts.to(getattr(torch, dtype_of))


def _counts_code(_: list[str], node: Applied) -> str:
    first = f"(torch.arange({node['size']}, device=_device) * {node['stride']} - {node['padding']})"
    last = f"({first} + {node['kernel']}).clamp_max({node['count'] + node['padding']})"
    counts = f"({last} - {first})" if node["include"] else \
        f"({last}.clamp_max({node['count']}) - {first}.clamp_min(0))"
    return f"{counts}.to(torch.{node['dtype_of']})"


declare("window_counts", "opaque", window_counts, _counts_code, operations=lambda node: 0)


def adaptive_places(*, part: str, size: int, count: int) -> torch.Tensor:
    """Of the ``size`` windows that divide an axis of ``count`` elements: for each the numbers of its elements, of as
    many as the longest one has ("place"), whether each is one of its own ("inside"), and how many it has ("length")."""
    start = torch.arange(size) * count // size
    end = -(-(torch.arange(size) + 1) * count // size)
    place = start[:, None] + torch.arange(longest_window(size, count))
    return {"place": place.clamp_max(count - 1).int(), "inside": place < end[:, None],
            "length": (end - start).float()}[part]


def longest_window(size: int, count: int) -> int:
    """The most elements that one of ``size`` windows has that divide an axis of ``count``."""
    return max(-(-(i + 1) * count // size) - i * count // size for i in range(size))


def _adaptive_code(_: list[str], node: Applied) -> str:
    size, count = node["size"], node["count"]
    start = f"torch.arange({size}, device=_device) * {count} // {size}"
    end = f"-(-(torch.arange({size}, device=_device) + 1) * {count} // {size})"
    place = f"(({start})[:, None] + torch.arange({longest_window(size, count)}, device=_device))"
    return {"place": f"{place}.clamp_max({count - 1}).int()", "inside": f"({place} < ({end})[:, None])",
            "length": f"(({end}) - ({start})).float()"}[node["part"]]


declare("adaptive_places", "opaque", adaptive_places, _adaptive_code, operations=lambda node: 0)


def fold(x: torch.Tensor, *, size: tuple[int, int], dilation: tuple[int, int], padding: tuple[int, int],
         stride: tuple[int, int]) -> torch.Tensor:
    """Images (batch, channels, *size) whose elements are the sums of those of x (batch, channels, *kernel, *blocks)
    that windows have there, as F.fold has them."""
    return F.fold(x.reshape(x.shape[0], -1, x.shape[4] * x.shape[5]), size, x.shape[2:4], dilation, padding, stride)


def _fold_code(inputs: list[str], node: Applied) -> str:
    batch, _, *kernel, rows, columns = node.inputs[0].shape
    return (f"F.fold({inputs[0]}.reshape({batch}, -1, {rows * columns}), {node['size']}, {tuple(kernel)}, "
            f"{node['dilation']}, {node['padding']}, {node['stride']})")


def most_windows(kernel: int, stride: int, dilation: int) -> int:
    """How many windows at most have one element of an axis."""
    return -(-kernel // (stride // gcd(stride, dilation)))


def fold_places(*, part: str, size: int, kernel: int, blocks: int, stride: int, padding: int, dilation: int
                ) -> torch.Tensor:
    """For each element of an axis of ``size``, and each of the windows that may have it: as which of its elements
    ("tap"), the number of the window ("block"), or whether there is one ("inside")."""
    most = most_windows(kernel, stride, dilation)
    apart = torch.arange(size)[:, None] + padding - torch.arange(kernel) * dilation
    inside = (apart % stride == 0) & (apart >= 0) & (apart < blocks * stride)
    tap = inside.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
    return {"tap": tap.int(), "block": (apart // stride).clamp(0, blocks - 1).gather(1, tap).int(),
            "inside": inside.gather(1, tap)}[part]


def _fold_places_code(_: list[str], node: Applied) -> str:
    most = most_windows(node["kernel"], node["stride"], node["dilation"])
    apart = (f"(torch.arange({node['size']}, device=_device)[:, None] + {node['padding']} "
             f"- torch.arange({node['kernel']}, device=_device) * {node['dilation']})")
    inside = f"(({apart} % {node['stride']} == 0) & ({apart} >= 0) & ({apart} < {node['blocks'] * node['stride']}))"
    tap = f"{inside}.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :{most}]"
    block = f"({apart} // {node['stride']}).clamp(0, {node['blocks'] - 1}).gather(1, {tap}).int()"
    return {"tap": f"{tap}.int()", "block": block, "inside": f"{inside}.gather(1, {tap})"}[node["part"]]


declare("fold", "opaque", fold, _fold_code, operations=lambda node: node.inputs[0].size, linear_in=(0,))
declare("fold_places", "opaque", fold_places, _fold_places_code, operations=lambda node: 0)


def _no_call(inputs: list[str], node: Applied) -> str:
    raise ValueError("a view of windows exists in kernels only")


declare("windows", "view", windows, _no_call)

__all__ = ["adaptive_average_pool", "are_inside", "average_pool", "max_pool", "reaches_beyond", "window_counts",
           "windows"]
