"""What a contraction's kernel means, for every target: matrix products, convolutions and transposed convolutions.

As in `kernels.py`: a record that PLAN hands to GENERATE, whose docstring states its mathematics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import Reduction, Store


@dataclass(frozen=True, slots=True)
class Tap:
    """One entry of a contraction's window along one axis.

    Output position ``phase + out_stride * u`` takes entry ``number`` of the weight's axis times the input at
    ``in_stride * u + offset`` (zero outside of the input), for u = 0, 1, ....
    """

    number: int
    phase: int
    offset: int


@dataclass(frozen=True, slots=True)
class ContractionAxis:
    """A spatial axis of a :class:`Contraction`: sizes of input, output and weight along it, strides, taps.

    A convolution has out_stride 1 and taps (k, 0, k * dilation - padding). A transposed one has in_stride 1 and, for
    each k, the phase (k * dilation - padding) modulo out_stride.
    """

    in_size: int
    out_size: int
    kernel: int
    in_stride: int
    out_stride: int
    taps: tuple[Tap, ...]


def in_groups(axis: ContractionAxis, count: int = 2) -> ContractionAxis:
    """The same axis with so many times as many output phases: those of ``count`` neighbours u become phases of one."""
    taps = tuple(Tap(t.number, t.phase + axis.out_stride * i, t.offset + axis.in_stride * i)
                 for i in range(count) for t in axis.taps)
    return replace(axis, in_stride=count * axis.in_stride, out_stride=count * axis.out_stride, taps=taps)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a contraction runs on tensor cores.

    ``core``: "wgmma" (compute capability 9.0), "mma" (8.0 and later), "row_buffered" (9.0: a block goes down strips of
    lines of the output with all weights resident) or "swap_ab" (9.0: output channels are the rows of a product, and the
    weight goes straight into registers).
    ``rows``, ``columns``: of a tile, positions and output channels; of "row_buffered" positions of one line.
    ``depth``, ``stages``: channels of a step (8: of two taps, 8 channels each), and steps that shared memory holds; of
    "row_buffered" the lines of x that it holds.
    ``cluster``: blocks that differ in their rows and share what they read of the weight.
    ``promote``: steps of an accumulation interval, after which sums move to float32 registers, as tensor cores truncate
    them; 0: never.
    ``pingpong``: consumer warpgroups that have a tile each, so that the epilogues of some overlap with the products of
    another; 1: all of a block share one tile.
    ``converts_left``, ``converts_right``: whether an operand is converted in the mainloop: read as it lies in memory,
    and rounded or split for every tile; nothing of it is packed.
    ``packs_concurrently``: whether some warps of each block pack x while the others multiply what is packed.
    ``split_k``: blocks that share the steps of a tile, whose sums a second kernel adds in order.
    ``parities``: output-parity classes of a tile, 1 or 2: both of the last axis (of out_stride 2), which are neighbours
    in the output, or where windows of two lines are pooled the two lines.
    ``overlap``: rows of the next tile that a tile computes, too, so that each stores whole sectors of memory.
    ``sector_aligned``: whether warps begin to store at multiples of 32 bytes, wherever results lie; "row_buffered"
    stores once what two lines share of a sector.
    ``from_registers``: whether threads finish the sums that they have, without shared memory: they store them, in lines
    of whole sectors, or reduce channels.
    ``folded_taps``: neighbouring taps of the last axis that are one, of as many times the channels.
    """

    core: str
    rows: int
    columns: int
    depth: int
    stages: int
    cluster: int = 1
    promote: int = 0
    pingpong: int = 1
    converts_right: bool = False
    split_k: int = 1
    parities: int = 1
    overlap: int = 0
    converts_left: bool = False
    packs_concurrently: bool = False
    sector_aligned: bool = False
    from_registers: bool = False
    folded_taps: int = 1

    @property
    def takes_left(self) -> bool:
        """Whether blocks read x as it lies in memory: no kernel before them packs it."""
        return self.converts_left or self.packs_concurrently


#: Schemes of a `Contraction` whose operands have 11 bits or fewer.
ROUNDED_SCHEMES = ("fp16", "native")


@dataclass(frozen=True, slots=True)
class Contraction:
    """Sums of products over channels and windows, then an epilogue.

    With x of shape (batch, groups, in_channels, *in_size) and w of (groups, out_channels, in_channels, *kernel), which
    ``left`` and ``right`` give at every point of those domains::

        sum[n, g, o, p] = sum over c and one tap per axis:  x[n, g, c, in_stride * u + offset] * w[g, o, c, number]
                          where p = phase + out_stride * u

    and each store writes its expression, in which ``Reduced(0)`` is the sum, at every (n, g, o, *p). A matrix product
    has no spatial axes: x is (rows, 1, K), w (1, columns, K); the batch of a batched one is ``groups``. Indices are
    over those domains in that order. The epilogue computes in float32.

    ``scheme`` is how products are formed:

    fp16x3    float32 operands, scaled by powers of two (x per (n, g), w per (g, o)) and split into two float16 terms;
              three products on tensor cores (Ootomo and Yokota, arXiv 2203.03341)
    fp16      the same with one term and one product: 11 bits, as TF32 has
    native    16-bit operands as they are, float32 sums
    float32   multiply-adds in float32, no tensor cores
    correlation   none are formed: totals, of which there must be nothing else, from products of x with itself in
              float64 (:mod:`kernelwright.codegen.cuda.gram.problem`)

    Functions of sums whose operands are rounded may be off by what that leaves; ``exact_functions`` forbids it.

    ``tiling`` says how that runs (None leaves it to the generator); of float32 it is the number of a schedule, of which
    the generator has several in an order of its own.

    Where an operand is not finite, sums come from float32 multiply-adds, so that NaN and Inf are what PyTorch gives.

    ``reductions`` are taken in order over the output channels of each (n, g, p). In their expressions and in stores
    ``Reduced(i + 1, component)`` is the result of reduction i; indices are over ``domain`` everywhere. With reductions,
    a store whose index does not move along the output channels is written once per (n, g, p), and its expression does
    not depend on the channel.

    ``totals`` are reductions (sum, max, min, moments) over all output positions p of each (n, g, o). Where there are
    any, a store that uses ``Reduced(i + 1, component)``, the result of total i, is written once per (n, g, o): its
    index does not move along positions, and neither does its expression depend on them.

    ``pools`` are reductions (sum, max, min) over windows of ``pool_size`` neighbouring positions along the last axis,
    which do not overlap: positions j * pool_size to (j + 1) * pool_size - 1, for j below out_size // pool_size. With
    ``pool_lines`` 2 a window has these positions of two neighbours along the axis before it, too, 2 * i and 2 * i + 1,
    whose out_stride is then 2 (see :func:`in_groups`), and with ``pool_planes`` 2 all that of two neighbours along the
    axis before that, in the same way. A store that uses ``Reduced(i + 1)`` is over `pooled_domain`, in which windows
    are counted along these axes; what its expression loads is, too. Other stores are as ever.

    At most one of ``reductions``, ``totals`` and ``pools`` is not empty. The expression of a total or a pool uses no
    other.
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    axes: tuple[ContractionAxis, ...]
    left: Expression
    right: Expression
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    scheme: str
    tiling: Tiling | int | None = None
    reductions: tuple[Reduction, ...] = ()
    totals: tuple[Reduction, ...] = ()
    pools: tuple[Reduction, ...] = ()
    pool_size: int = 1
    pool_lines: int = 1
    pool_planes: int = 1
    exact_functions: bool = False

    @property
    def left_domain(self) -> tuple[int, ...]:
        """The domain of ``left``."""
        return (self.batch, self.groups, self.in_channels, *(a.in_size for a in self.axes))

    @property
    def right_domain(self) -> tuple[int, ...]:
        """The domain of ``right``."""
        return (self.groups, self.out_channels, self.in_channels, *(a.kernel for a in self.axes))

    @property
    def domain(self) -> tuple[int, ...]:
        """The domain of the sums and stores."""
        return (self.batch, self.groups, self.out_channels, *(a.out_size for a in self.axes))

    @property
    def all_reductions(self) -> tuple[Reduction, ...]:
        """What is reduced, over channels or positions."""
        return (*self.reductions, *self.totals, *self.pools)

    @property
    def pooled_domain(self) -> tuple[int, ...]:
        """The domain of stores of pools."""
        window = self.pool_window
        return (*self.domain[:-len(window)],
                *(size // part for size, part in zip(self.domain[-len(window):], window, strict=True)))

    @property
    def pool_window(self) -> tuple[int, ...]:
        """Positions of a window along each of the last axes that it extends along: of one, two or three."""
        window = self.pool_planes, self.pool_lines, self.pool_size
        return window if self.pool_planes > 1 else window[1:] if self.pool_lines > 1 else window[2:]

    @property
    def paired_axis(self) -> int:
        """The spatial axis of which a tile may have both output phases: the last one, or that of pooled lines."""
        return len(self.axes) - self.pool_lines

    @property
    def multiply_adds(self) -> int:
        """The number of products, those with padding included."""
        taps = prod(sum(-(-(a.out_size - t.phase) // a.out_stride) for t in a.taps) for a in self.axes)
        return self.batch * self.groups * self.in_channels * self.out_channels * taps

