"""What a kernel means, for every target: the records that PLAN hands to GENERATE.

Each record states its meaning in the mathematics of its docstring; the skeletons in
``codegen/<target>/`` give it a text. Sizes are constants that the emitted file guards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kernelwright.plan.expressions import Expression, Index


@dataclass(frozen=True, slots=True)
class Reduction:
    """One value per outer point: ``kind`` over the row axes of ``expression``.

    kind        components of the result
    sum         0: the sum
    max, min    0: the extremum (NaN if any element is NaN, as in PyTorch)
    logsumexp   0: log(sum(exp(e))), computed with the running maximum subtracted
    moments     0: mean, 1: biased variance (sum of squared deviations / count), by Welford or Chan

    An expression may use ``Reduced`` of an earlier reduction: the row is then walked again.
    """

    kind: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Store:
    """Write ``expression`` to element ``index`` of output number ``buffer``."""

    buffer: int
    index: Index
    expression: Expression


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """For every outer point: walk the row axes, reduce, then store.

    ``reductions`` are evaluated in order over the row axes; ``row_stores`` happen at every
    (outer, row) point after all reductions, ``outer_stores`` once per outer point. ``row`` is
    empty for a pointwise kernel, whose stores are ``outer_stores``. Index strides have
    ``len(outer) + len(row)`` entries (the row entries of an outer store are zero).

    ``input_dtypes`` and ``output_dtypes`` are torch names without the prefix ("float32", "float16",
    "int64", "bool"); arithmetic is in ``compute`` ("float32" or "float64"). Stores round to nearest
    even; in between nothing is rounded but by the functions ``round_float32``, ``round_float16`` and
    ``round_bfloat16``.

    ``backwards``: the last outer points come first, as far as a target has an order of them
    (:mod:`kernelwright.plan.turns`). It changes no value.
    """

    outer: tuple[int, ...]
    row: tuple[int, ...]
    reductions: tuple[Reduction, ...]
    row_stores: tuple[Store, ...]
    outer_stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"
    backwards: bool = False


Progression = tuple[int, int, int]
"""``(start, stop, step)``: the positions of ``range(start, stop, step)``."""


@dataclass(frozen=True, slots=True)
class RegionSum:
    """Sums of a contiguous tensor over classes of positions, in one pass over the tensor.

    ``shape`` is the input's shape. ``classes[a]`` is None where axis ``a`` is kept; otherwise it
    lists the classes of axis ``a``: each a tuple of disjoint progressions, and the output has
    ``len(classes[a])`` entries along that axis::

        out[..., u, ...] = sum over q in classes[a][u] of x[..., q, ...]   (for every reduced axis)

    Classes of one axis may overlap and need not cover it. ``scale`` multiplies the result, which is of
    type ``dtype``; x is of type ``input_dtype``.
    """

    shape: tuple[int, ...]
    classes: tuple[tuple[tuple[Progression, ...], ...] | None, ...]
    scale: float = 1.0
    dtype: str = "float32"
    input_dtype: str = "float32"

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The input's shape with every reduced axis replaced by its number of classes."""
        pairs = zip(self.shape, self.classes, strict=True)
        return tuple(size if axis is None else len(axis) for size, axis in pairs)


@dataclass(frozen=True, slots=True)
class SpectralEnergy:
    """Energy of every output channel of an unclipped linear convolution, without the output.

    With x of shape (batch, groups * in_channels, *size) and taps[i][k] = (phase, offset) of tap k
    along spatial axis i::

        y_r[n, o, p] = sum over c in the group of o, taps k with phase r:
                           w[c, o, k] * x[n, c, p - offset(k)]
        energy[o]    = sum over phases r, n, and p in Z^d of y_r[n, o, p] ** 2

    ``transposed`` weights have shape (groups * in_channels, out_channels, *kernel); others
    (groups * out_channels, in_channels, *kernel). ``out_channels`` and ``in_channels`` are per
    group. x and w are contiguous float32; the output is float64 of shape
    (groups * out_channels,).
    """

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    taps: tuple[tuple[tuple[int, int], ...], ...]
    transposed: bool

    @property
    def lags(self) -> tuple[int, ...]:
        """Per axis, the largest difference of two offsets within one phase."""
        result = []
        for axis in self.taps:
            phases: dict[int, list[int]] = {}
            for phase, offset in axis:
                phases.setdefault(phase, []).append(offset)
            result.append(max(max(o) - min(o) for o in phases.values()))
        return tuple(result)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Per axis, the length of the transform of x: no lag in use wraps around."""
        return tuple(n + d for n, d in zip(self.size, self.lags, strict=True))

    @property
    def grid(self) -> tuple[int, ...]:
        """Per axis, the number of lags, which is the length of the transform of the weights."""
        return tuple(2 * d + 1 for d in self.lags)

    @property
    def positions(self) -> int:
        """Number of elements of one channel of x."""
        return prod(self.size)


@dataclass(frozen=True, slots=True)
class Scan:
    """Along an axis of ``length`` positions, at every outer point: combine, then store.

    With ``kind`` one of sum, product, max, min (NaN stays) and logsumexp::

        state[outer, p] = combination over q <= p of expression[outer, q]     (q < p where ``exclusive``)

    and each store writes its expression, in which ``Reduced(0)`` is the state, at every (outer, p). The
    combination of nothing is 0, 1, -inf, inf and -inf. Index strides have ``len(outer) + 1`` entries,
    the last for p; a scan from the end has negative ones there.
    """

    outer: tuple[int, ...]
    length: int
    kind: str
    expression: Expression
    exclusive: bool
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def as_loop(self) -> LoopKernel:
        """A loop over the same points with the same loads and stores (of another meaning: a whole reduction)."""
        kind = self.kind if self.kind != "product" else "sum"
        return LoopKernel(self.outer, (self.length,), (Reduction(kind, self.expression),), self.stores, (),
                          self.input_dtypes, self.output_dtypes, self.compute)


@dataclass(frozen=True, slots=True)
class Extremum:
    """The extremum along an axis of ``length`` positions and its place, at every outer point.

    ``kind`` is max or min. Of ``expression`` at (outer, p), ``Reduced(0, 0)`` is the extremum and
    ``Reduced(0, 1)`` the least p that has it; NaN counts as the extremum, as in PyTorch. Each store writes its
    expression once per outer point; a place is stored as an integer. Index strides have ``len(outer) + 1``
    entries, the last for p (0 in a store).
    """

    outer: tuple[int, ...]
    length: int
    kind: str
    expression: Expression
    stores: tuple[Store, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    compute: str = "float32"

    @property
    def as_loop(self) -> LoopKernel:
        """A loop over the same points with the same loads and stores (without the places)."""
        return LoopKernel(self.outer, (self.length,), (Reduction(self.kind, self.expression),), (), self.stores,
                          self.input_dtypes, self.output_dtypes, self.compute)


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
    """How a contraction runs on tensor cores: a block computes ``rows`` positions of ``columns`` output channels.

    Sums advance by ``depth`` channels a step through ``stages`` buffers in shared memory (of 8 channels by two entries
    of the window a step); ``cluster`` blocks that differ in their rows share what they read of the weight; every
    ``promote`` steps (0: never) the tensor cores' sums, which they truncate, are added to sums in float32 registers.
    With several ``teams`` a block has as many tiles in work, so that the epilogues of some overlap with the products of
    another. ``core`` is "wgmma" (compute capability 9.0) or "mma" (8.0 and later). With ``raw_right`` blocks read the
    right operand in float32, as it lies in memory, and split it themselves: once for every block of rows, and it is
    never packed. With ``split`` above 1 the steps of a block are shared among so many, whose sums a second kernel adds
    in order. With two ``phases`` a block has both output phases of the last axis (of out_stride 2), which are
    neighbours in the output: twice as many positions as rows. Where windows of two lines are pooled the phases are
    those of the axis before it, the two lines. With an ``overlap`` a block computes that many rows of the next one,
    too, so that each stores whole sectors of memory, wherever they begin. With ``raw_left`` blocks of a
    convolution read x as it lies in memory, and round or split it themselves, once for every run of a tile's rows: it
    is never packed. With ``packs_left`` some warps of each block pack x while the others multiply what is packed. With
    ``aligned`` warps begin to store at multiples of 32 bytes, wherever results lie; nothing is computed twice for that.
    With ``fragments`` threads finish the sums that they have: they store them, in lines of whole sectors, not by way of
    shared memory, or reduce channels in registers. Of few channels so many neighbouring taps of the last axis are
    ``joined`` to one, of as many times the channels.
    """

    core: str
    rows: int
    columns: int
    depth: int
    stages: int
    cluster: int = 1
    promote: int = 0
    teams: int = 1
    raw_right: bool = False
    split: int = 1
    phases: int = 1
    overlap: int = 0
    raw_left: bool = False
    packs_left: bool = False
    aligned: bool = False
    fragments: bool = False
    joined: int = 1

    @property
    def takes_left(self) -> bool:
        """Whether blocks read x as it lies in memory: no kernel before them packs it."""
        return self.raw_left or self.packs_left


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
              float64 (:mod:`kernelwright.codegen.contraction_correlation`)

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


Kernel = LoopKernel | RegionSum | SpectralEnergy | Scan | Extremum | Contraction
