"""Which contractions can go down strips of lines (`contraction_strips`)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.plan.contraction import Contraction, ContractionAxis, in_groups
from kernelwright.plan.expressions import Expression, Reduced, walk

#: Neighbouring positions of a window that four lanes can pool.
POOLED = (2, 4, 8)


def suits(kernel: Contraction) -> bool:
    """Whether a contraction can go down strips: a convolution in two dimensions or more, whose results lie along lines
    in memory, without reductions but for totals. Lines have an even number of positions: a thread has pairs of them."""
    if len(kernel.axes) < 2 or kernel.groups > 1 or kernel.batch >= 2**31 or kernel.reductions \
            or kernel.pool_planes > 1 or kernel.scheme not in ("fp16", "fp16x3"):
        return False
    *outer, line, last = kernel.axes
    if kernel.pools and (kernel.pool_size not in POOLED or not _in_groups(line, kernel.pool_lines) or any(
            pool.kind not in ("sum", "max", "min") or reductions_of(pool.expression) - {0} for pool in kernel.pools)
            or any(0 in (read := reductions_of(store.expression)) or not read for store in kernel.stores)):
        return False
    stores = [store for store in kernel.stores if store.index.strides[2] and any(store.index.strides[3:])]
    if not all(axis.taps for axis in kernel.axes) \
            or not prod(kernel.left_domain) * prod(kernel.right_domain) * prod(kernel.pooled_domain):
        return False
    even = bool(kernel.pools) or last.out_size % 2 == 0
    plain = outer if kernel.pools else (*outer, line)
    return even and last.out_size > 1 and last.in_stride == 1 == last.out_stride \
        and all(axis.out_stride == 1 for axis in plain) and all(
            store.index.strides[-1] == 1 and kernel.output_dtypes[store.buffer] == "float32" for store in stores)


def _in_groups(axis: ContractionAxis, count: int) -> bool:
    """Whether an axis has as many output phases, each of which is the first one some positions of x further."""
    if axis.out_stride != count or axis.in_stride % count or len(axis.taps) % count:
        return False
    own = [tap for tap in axis.taps if tap.phase == 0]
    return axis.taps == in_groups(replace(axis, taps=tuple(own), in_stride=axis.in_stride // count, out_stride=1),
                                  count).taps


def reductions_of(expression: Expression) -> set[int]:
    """The numbers of the reductions that an expression reads, 0 standing for the sums of products."""
    return {part.reduction for part in walk(expression) if isinstance(part, Reduced)}
