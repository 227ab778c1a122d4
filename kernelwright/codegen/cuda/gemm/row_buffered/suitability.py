"""Which contractions the row-buffered implicit GEMM takes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.plan.contraction.record import Contraction, ContractionAxis, in_groups
from kernelwright.plan.expressions import Expression, Load, Reduced, walk

#: Numbers of a position that a reduction over channels keeps, and how many of all; channels that a work tile goes
#: through.
COMPONENTS = {"sum": 1, "max": 1, "min": 1, "logsumexp": 2}
MOST_COMPONENTS, MOST_CHANNELS = 2, 256
#: Results of a sector of memory.
SECTOR = 8
#: Neighbouring positions of a window that four lanes can pool.
POOLED = (2, 4, 8)


def suits(kernel: Contraction) -> bool:
    """Whether a contraction can be row-buffered: a convolution in two dimensions or more, beside those of its batch,
    whose results lie along lines in memory or are reduced over all channels. Lines have an even number of positions: a
    thread has pairs of them."""
    if len(kernel.axes) < 2 + kernel.entry_axes or kernel.groups > 1 or kernel.batch >= 2**31 or not _reduces(kernel) \
            or kernel.pool_planes > 1 or (kernel.pool_lines > 1 and not kernel.pools) \
            or kernel.scheme not in ("fp16", "fp16x3"):
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
    if last.out_stride > 1 and not _interleaves(kernel):
        return False
    even = bool(kernel.pools) or last.out_size % (2 * last.out_stride) == 0
    plain = outer if kernel.pools or line.out_stride in (1, 2, 4) else (*outer, line)
    strides = last.in_stride == 1 or (last.in_stride == 2 and last.out_stride == 1)
    return even and last.out_size > 1 and strides and all(axis.out_stride == 1 for axis in plain) and all(
        store.index.strides[-1] == 1 and kernel.output_dtypes[store.buffer] == "float32" for store in stores)


def shares_sectors(kernel: Contraction) -> bool:
    """Whether lines of the only result follow each other in memory and end within a sector, which the next one begins
    in."""
    line, last = kernel.axes[-2:]
    if kernel.all_reductions or kernel.pools or len(kernel.stores) != 1 or line.out_stride * last.out_stride > 1:
        return False
    *others, apart, _ = kernel.stores[0].index.strides
    return apart == last.out_size and last.out_size % SECTOR > 0 and last.out_size >= 2 * SECTOR and not any(
        stride % 2 for stride in (*others, kernel.stores[0].index.offset))


def _interleaves(kernel: Contraction) -> bool:
    """Whether both phases of a line's positions can be rows of one product: of elements alone, as of now."""
    return kernel.axes[-1].out_stride == 2 and not kernel.all_reductions


def _reduces(kernel: Contraction) -> bool:
    """Whether nothing but reductions over channels is stored, of few numbers, if any are."""
    if not kernel.reductions:
        return True
    return not kernel.position_reductions and not kernel.pools and 0 < kernel.out_channels <= MOST_CHANNELS \
        and sum(COMPONENTS.get(r.kind, MOST_COMPONENTS + 1) for r in kernel.reductions) <= MOST_COMPONENTS \
        and not any(reductions_of(r.expression) - {0} for r in kernel.reductions) \
        and not any(s.index.strides[2] or 0 in reductions_of(s.expression) for s in kernel.stores) \
        and not any(isinstance(part, Load) and any(i.strides[2] for i in (part.index, *(g.index for g in part.guards)))
                    for store in kernel.stores for part in walk(store.expression))


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
