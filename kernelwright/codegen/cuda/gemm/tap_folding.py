"""Convolutions of few channels, with neighbouring taps of the last axis as channels of one tap.

A product of tensor cores takes channels by eights (`packed_layout`): of 3 it multiplies more zeros than numbers.
Where f taps along a line stand a step d apart, they are one tap of f times as many channels. With tap b(e) the first of
entry e, and x' begun s positions before x, as far as its channels still reach::

    x'[t * C + c, v] = x[c, v - s + t * d]       w'[o, t * C + c, e] = w[o, c, b(e) + t]       0 <= t < f

    sum over c, k:     x[c, u + offset(k)] * w[o, c, k]
    = sum over t, c, e:  x'[t * C + c, u + offset(b(e)) + s] * w'[o, t * C + c, e]

Both are zero where they leave the input or the window. Of a line with a stride that divides f * d entries stand a
multiple of it apart, so that x' has no more positions than the line has sums, and no stride. Each product of the sum is
formed once, and others only with weights of zero, behind a window that f does not divide: of scaled operands, sums that
meet what is not finite are computed again anyway, from x and w themselves (`precision.recompute`); 16-bit operands as
they are fold no such window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, Tap
from kernelwright.plan.expressions import Apply, Expression, Guard, Index, Load, loaded


def foldable_taps(kernel: Contraction) -> int:
    """How many taps of the last axis to fold into channels; 1 where that saves nothing, or where `with_folded_taps`
    takes no such kernel."""
    taps = len(kernel.axes[-1].taps) if kernel.axes else 0
    room = CHUNK // max(1, kernel.in_channels)
    if min(taps, room) < 2:
        return 1
    count = -(-taps // -(-taps // room))
    try:
        with_folded_taps(kernel, count)
    except ValueError:
        return 1
    return count


def with_folded_taps(kernel: Contraction, count: int) -> Contraction:
    """The same sums, ``count`` taps of the last axis folded into channels. Raises ValueError where its taps do not
    stand equally far apart, in one phase of the output, and where an operand is computed on its way."""
    if not kernel.axes or count < 2 or count * kernel.in_channels > CHUNK:
        raise ValueError(f"no {count} taps of {kernel.in_channels} channels to fold")
    axis = kernel.axes[-1]
    taps = sorted(axis.taps, key=lambda tap: tap.offset)
    steps = {(b.offset - a.offset, b.number - a.number) for a, b in pairwise(taps)}
    plain = all(isinstance(side, Load) and side.otherwise == 0.0 for side in (kernel.left, kernel.right))
    if not plain or axis.out_stride != 1 or len(taps) != axis.kernel or len(steps) != 1:
        raise ValueError(f"no taps to fold: {axis}")
    (apart, numbered), = steps
    if abs(numbered) != 1 or not apart or (kernel.scheme == "native" and len(taps) % count):
        raise ValueError(f"no taps to fold: {axis}")
    stride = axis.in_stride if count * apart % axis.in_stride == 0 else 1
    # Position v of x' begins at position stride * (v - before) + phase of x.
    phase, reach = taps[0].offset % stride, (count - 1) * apart
    before = max(0, min(-(taps[0].offset // stride), (phase + reach) // stride))
    size = max(0, -(-(axis.in_size - phase) // stride)) + before
    entries = -(-len(taps) // count)
    own = tuple(Tap(e, 0, (taps[e * count].offset - phase) // stride + before) for e in range(entries))
    changed = ContractionAxis(size, axis.out_size, entries, axis.in_stride // stride, 1, own)
    first = phase - stride * before
    left = [_part(loaded(kernel.left), kernel, t, stride, first + t * apart, axis.in_size) for t in range(count)]
    right = [_part(loaded(kernel.right), kernel, t, numbered * count, taps[0].number + numbered * t, axis.kernel)
             for t in range(count)]
    return replace(kernel, in_channels=count * kernel.in_channels, axes=(*kernel.axes[:-1], changed),
                   left=_sum(left), right=_sum(right))


def _part(load: Load, kernel: Contraction, t: int, step: int, begin: int, size: int) -> Load:
    """What an operand has of folded tap ``t``: where c is one of its channels, the element at ``step * v + begin`` of
    the last axis, zero outside of ``size``."""
    channels, rank = kernel.in_channels, len(load.index.strides)

    def moved(index: Index) -> Index:
        strides = [*index.strides[:-1], index.strides[-1] * step]
        return Index(tuple(strides), index.offset - t * channels * index.strides[2] + begin * index.strides[-1])

    def along(axis: int, stride: int, offset: int, bound: int) -> Guard:
        return Guard(Index(tuple(stride if a == axis else 0 for a in range(rank)), offset), bound)

    guards = [replace(guard, index=moved(guard.index)) for guard in load.guards]
    guards += [along(2, 1, -t * channels, channels), along(rank - 1, step, begin, size)]
    return replace(load, index=moved(load.index), guards=tuple(guards))


def _sum(parts: Sequence[Expression]) -> Expression:
    total = parts[0]
    for part in parts[1:]:
        total = Apply("add", (total, part))
    return total
