"""Points of a contraction's domain, and its sums there in float64.

What a kernel reduces stands together: a row of `Points` is what one result of a reduction is made of. That are all
output channels of a position, a window of positions, or a whole plane of them; without reductions a row is one point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod

import torch

from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.ir.scalar import KERNEL_FUNCTIONS
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Store

Points = list[torch.Tensor]
"""For each axis of a domain an int64 tensor, all of which can be broadcast to (rows, points of a row)."""

# Rows that are looked at without reductions over positions, the products for which there may be fewer, and how many
# there are at least.
_ROWS, _PRODUCTS, _LEAST_ROWS = 8192, 1 << 29, 512
# Planes that are looked at with reductions over positions, but for no more points than this, and how many there are at
# least.
_PLANES, _PLANE_POINTS, _LEAST_PLANES = 512, 1 << 24, 4
# They are of so many pairs of batch and group, more where these have few channels and fewer where that needs more
# elements of the left operand than this, each counted for each of its taps.
_PAIRS, _MOST_PAIRS, _PLANE_READS = 16, 128, 1 << 33
# Elements of operands that are gathered at a time.
_GATHERED = 1 << 25


def some_points(kernel: Contraction, device: torch.device) -> Points:
    """Random rows of points of a contraction's domain, the same on every call.

    With reductions over positions these are planes, as many as keep to bounds of memory and time, and a handful
    whatever their size.
    """
    generator = torch.Generator().manual_seed(1)
    if kernel.position_reductions:
        return [p.to(device) for p in _some_planes(kernel, generator)]
    together = kernel.out_channels if kernel.reductions else prod(kernel.pool_window) if kernel.pools else 1
    depth = kernel.in_channels * prod(len(a.taps) for a in kernel.axes) * together
    count = max(_LEAST_ROWS, min(_ROWS, _PRODUCTS // depth))
    sizes = list(kernel.pooled_domain if kernel.pools else kernel.domain)
    points = [torch.randint(0, size, (count, 1), generator=generator) for size in sizes]
    if kernel.reductions:
        points[2] = torch.arange(together)[None]
    if kernel.pools:  # line after line of a window
        inside = torch.arange(together)
        for axis, size in _window(kernel):
            points[axis] = points[axis] * size + inside % size
            inside = inside // size
    return [p.to(device) for p in points]


def _some_planes(kernel: Contraction, generator: torch.Generator) -> Points:
    """Planes of some pairs of batch and group, the same channels of each."""
    sizes = kernel.domain[3:]
    pairs = kernel.batch * kernel.groups
    planes = max(_LEAST_PLANES, min(_PLANES, _PLANE_POINTS // prod(sizes)))
    reads = max(1, kernel.multiply_adds // (pairs * kernel.out_channels))
    wanted = max(_PAIRS, min(_MOST_PAIRS, -(-planes // kernel.out_channels)))
    taken = torch.randperm(pairs, generator=generator)[:max(1, min(wanted, planes, _PLANE_READS // reads))]
    columns = torch.randperm(kernel.out_channels, generator=generator)[:max(1, planes // len(taken))]
    positions = torch.meshgrid(*(torch.arange(size) for size in sizes), indexing="ij") if sizes else ()
    whole = [p.reshape(1, -1) for p in positions]
    pair = taken.repeat_interleave(len(columns))[:, None]
    return [pair // kernel.groups, pair % kernel.groups, columns.repeat(len(taken))[:, None], *whole]


def is_once(kernel: Contraction, store: Store) -> bool:
    """Whether a store is made once for all points of a row."""
    return not store.index.strides[2] if kernel.reductions else uses_reductions(store.expression)


def points_of(kernel: Contraction, store: Store, points: Points) -> Points:
    """Where a store is made, in the domain that its expression and its index are over: at each of `some_points`, or
    once for each row."""
    if not is_once(kernel, store):
        return points
    once = [p[:, :1] for p in points]
    for axis, size in _window(kernel) if kernel.pools else ():
        once[axis] = once[axis] // size
    return once


def _window(kernel: Contraction) -> list[tuple[int, int]]:
    """The axes that windows extend along, counted from the last one, and positions along each: the last one first."""
    return [(-1 - number, size) for number, size in enumerate(reversed(kernel.pool_window))]


def values_at(root: Expression, points: Points, inputs: Sequence[torch.Tensor], dtype: torch.dtype,
              reduced: Mapping[Reduced, torch.Tensor] | None = None) -> torch.Tensor:
    """The value of an expression at points of its domain, computed in ``dtype``.

    reduced: the sums, and what reductions give at the points. float64 rounds nothing in between. Raises TypeError for
    what is no expression of a contraction.
    """
    known = reduced or {}
    memo: dict[Expression, torch.Tensor] = {}
    for node in walk(root):
        match node:
            case Constant(value=number):
                memo[node] = torch.full((), number, dtype=torch.int64 if isinstance(number, int) else dtype,
                                        device=points[0].device)
            case Reduced() if node in known:
                memo[node] = known[node].to(dtype)
            case Load(buffer=buffer, index=index, guards=guards, otherwise=otherwise):
                place = position_of(index, points)
                legal = torch.ones_like(place, dtype=torch.bool)
                for guard in guards:
                    at = position_of(guard.index, points)
                    legal = legal & (at >= 0) & (at < guard.size)
                place, legal = torch.broadcast_tensors(place, legal)
                loaded = inputs[buffer].reshape(-1)[torch.where(legal, place, 0)]
                loaded = loaded.to(torch.int64 if node.whole else dtype)
                memo[node] = torch.where(legal, loaded, torch.full((), otherwise, dtype=loaded.dtype,
                                                                   device=loaded.device)) if guards else loaded
            case Apply(function=function, arguments=arguments):
                if function.startswith("round_") and dtype == torch.float64:
                    memo[node] = memo[arguments[0]]
                    continue
                values = torch.broadcast_tensors(*(memo[a] for a in arguments))
                memo[node] = KERNEL_FUNCTIONS[function].reference(*values).to(torch.int64 if is_whole(node) else dtype)
            case _:
                raise TypeError(f"not an expression of a contraction: {node!r}")
    return memo[root]


def position_of(index: Index, points: Points) -> torch.Tensor:
    """The element that an index has at each of the points; int64."""
    place = torch.full((), index.offset, dtype=torch.int64, device=points[0].device)
    for stride, point in zip(index.strides, points, strict=True):
        place = place + stride * point
    return place


def exact_sums(kernel: Contraction, points: Points, inputs: Sequence[torch.Tensor],
               changed: Callable[[torch.Tensor], torch.Tensor] = lambda operand: operand) -> torch.Tensor:
    """The sums at `some_points`, float64 of (rows, points of a row).

    changed: what is done to the operands' elements before they are multiplied, float64 to float64.
    """
    if kernel.position_reductions:
        return _sums_of_planes(kernel, points, inputs, changed)
    places = torch.broadcast_tensors(*points)
    result = torch.zeros(places[0].numel(), dtype=torch.float64, device=places[0].device)
    width = max(1, _GATHERED // kernel.in_channels)
    flat = [axis.reshape(-1, 1) for axis in places]
    for first in range(0, len(result), width):
        n, g, o, *p = (axis[first:first + width] for axis in flat)
        channels = torch.arange(kernel.in_channels, device=result.device)[None]
        for taps in product(*(a.taps for a in kernel.axes)):
            legal = torch.ones_like(n, dtype=torch.bool)
            read = []
            for axis, tap, place in zip(kernel.axes, taps, p, strict=True):
                u = (place - tap.phase) // axis.out_stride
                q = axis.in_stride * u + tap.offset
                legal = legal & (place >= tap.phase) & ((place - tap.phase) % axis.out_stride == 0) & (q >= 0) \
                    & (q < axis.in_size)
                read.append(torch.where(legal, q, 0).clamp(0, axis.in_size - 1))
            x = changed(values_at(kernel.left, [n, g, channels, *read], inputs, torch.float64))
            entries = [torch.full_like(n, tap.number) for tap in taps]
            w = changed(values_at(kernel.right, [g, o, channels, *entries], inputs, torch.float64))
            terms = torch.where(legal, x * w, 0.0)
            result[first:first + width] += terms.broadcast_to(len(n), kernel.in_channels).sum(-1)
    return result.reshape(places[0].shape)


def _sums_of_planes(kernel: Contraction, points: Points, inputs: Sequence[torch.Tensor],
                    changed: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The sums of whole planes: those of one batch entry and group read the left operand together, some channels at a
    time, and each tap is a product of matrices."""
    pairs = torch.cat(points[:2], 1)
    sizes = kernel.domain[3:]
    result = torch.zeros((len(pairs), *sizes), dtype=torch.float64, device=pairs.device)
    width = max(1, _GATHERED // prod(a.in_size for a in kernel.axes))
    spread = (1,) * len(kernel.axes)
    grid = [torch.arange(a.in_size, device=pairs.device).reshape([-1 if b == number else 1 for b in range(len(sizes))])
            for number, a in enumerate(kernel.axes)]
    for pair in pairs.unique(dim=0):
        rows = (pairs == pair).all(1).nonzero()[:, 0]
        n, g = pair
        o = points[2][rows]
        found = torch.zeros((len(rows), *sizes), dtype=torch.float64, device=pairs.device)
        for first in range(0, kernel.in_channels, width):
            c = torch.arange(first, min(first + width, kernel.in_channels), device=pairs.device)
            x = changed(values_at(kernel.left, [n, g, c.reshape(-1, *spread), *grid], inputs, torch.float64))
            x = x.broadcast_to(len(c), *(a.in_size for a in kernel.axes))
            for taps in product(*(a.taps for a in kernel.axes)):
                runs = [_run(a, tap) for a, tap in zip(kernel.axes, taps, strict=True)]
                entries = [torch.full_like(n, tap.number) for tap in taps]
                w = changed(values_at(kernel.right, [g, o, c[None], *entries], inputs, torch.float64))
                part = torch.tensordot(w.broadcast_to(len(o), len(c)), x[(slice(None), *(r for r, _ in runs))], 1)
                found[(slice(None), *(w for _, w in runs))] += part
        result[rows] = found
    return result.flatten(1)


def _run(axis: ContractionAxis, tap: Tap) -> tuple[slice, slice]:
    """The input's positions that a tap reads along an axis, and the output's to which it adds their products."""
    first = max(0, -(tap.offset // axis.in_stride))
    after = min(-(-(axis.out_size - tap.phase) // axis.out_stride), -(-(axis.in_size - tap.offset) // axis.in_stride))
    count = max(0, after - first)
    read, written = axis.in_stride * first + tap.offset, axis.out_stride * first + tap.phase
    if not count:
        return slice(0, 0), slice(0, 0)
    return slice(read, read + axis.in_stride * (count - 1) + 1, axis.in_stride), \
        slice(written, written + axis.out_stride * (count - 1) + 1, axis.out_stride)
