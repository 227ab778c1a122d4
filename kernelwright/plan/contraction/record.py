"""What a contraction's kernel means, for every target: matrix products, convolutions and transposed convolutions.

As in `plan.kernels`: a record that PLAN hands to GENERATE, whose docstring states its mathematics.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Protocol

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


class TargetTiling(Protocol):
    """How a target runs a contraction: a frozen record of the target's own, which a plan hands on unread."""

    @property
    def words(self) -> str:
        """What the kernel does, in a line for the report."""
        ...


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

    fp16x3    float32 operands, scaled by powers of two (x per entry and g, w per (g, o)) and split into two float16
              terms;
              three products on tensor cores (Ootomo and Yokota, arXiv 2203.03341)
    fp16      the same with one term and one product: 11 bits, as TF32 has
    native    16-bit operands as they are, float32 sums
    float32   multiply-adds in float32, no tensor cores
    correlation   none are formed: reductions over positions, of which there must be nothing else, from products of x
    with itself in
              float64

    Functions of sums whose operands are rounded may be off by what that leaves; ``exact_functions`` forbids it.

    An entry is a row of a matrix, or an entry of a convolution's batch: what of x has a scale of its own. It may be
    several axes: n, and the first ``entry_axes`` of the spatial ones, which have no window.

    ``tiling`` says how that runs, in the target's terms (None leaves it to the generator); of float32 it is the number
    of a schedule, of which the generator has several in an order of its own.

    Where an operand is not finite, sums come from float32 multiply-adds, so that NaN and Inf are what PyTorch gives.

    ``reductions`` are taken in order over the output channels of each (n, g, p). In their expressions and in stores
    ``Reduced(i + 1, component)`` is the result of reduction i; indices are over ``domain`` everywhere. With reductions,
    a store whose index does not move along the output channels is written once per (n, g, p), and its expression does
    not depend on the channel.

    ``position_reductions`` are reductions (sum, max, min, moments) over all output positions p of each (n, g, o). Where
    there are any, a store that uses ``Reduced(i + 1, component)``, the result of total i, is written once per (n, g,
    o): its index does not move along positions, and neither does its expression depend on them.

    ``pools`` are reductions (sum, max, min) over windows of ``pool_size`` neighbouring positions along the last axis,
    which do not overlap: positions j * pool_size to (j + 1) * pool_size - 1, for j below out_size // pool_size. With
    ``pool_lines`` 2 a window has these positions of two neighbours along the axis before it, too, 2 * i and 2 * i + 1,
    whose out_stride is then 2 (see :func:`in_groups`), and with ``pool_planes`` 2 all that of two neighbours along the
    axis before that, in the same way. A store that uses ``Reduced(i + 1)`` is over `pooled_domain`, in which windows
    are counted along these axes; what its expression loads is, too. Other stores are as ever.

    At most one of ``reductions``, ``position_reductions`` and ``pools`` is not empty. The expression of a total or a
    pool uses no other.
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
    tiling: TargetTiling | int | None = None
    reductions: tuple[Reduction, ...] = ()
    position_reductions: tuple[Reduction, ...] = ()
    pools: tuple[Reduction, ...] = ()
    pool_size: int = 1
    pool_lines: int = 1
    pool_planes: int = 1
    exact_functions: bool = False
    entry_axes: int = 0
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __hash__(self) -> int:
        """Found once: the search for tilings keeps by contraction what thousands of them share."""
        if not self._hash:
            values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
            object.__setattr__(self, "_hash", hash(values) or 1)
        return self._hash

    @property
    def left_domain(self) -> tuple[int, ...]:
        """The domain of ``left``."""
        return (self.batch, self.groups, self.in_channels, *(a.in_size for a in self.axes))

    @property
    def entries(self) -> int:
        """Entries of a group: rows of a matrix, or entries of a batch."""
        return self.batch * prod(a.in_size for a in self.axes[:self.entry_axes])

    @property
    def is_matrix(self) -> bool:
        """Whether each position is a row of a matrix."""
        return len(self.axes) == self.entry_axes

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
        return (*self.reductions, *self.position_reductions, *self.pools)

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
    def parity_axis(self) -> int:
        """The spatial axis of which a tile may have both output phases: the last one, or that of pooled lines."""
        return len(self.axes) - self.pool_lines

    @property
    def multiply_adds(self) -> int:
        """The number of products, those with padding included."""
        taps = prod(sum(-(-(a.out_size - t.phase) // a.out_stride) for t in a.taps) for a in self.axes)
        return self.batch * self.groups * self.in_channels * self.out_channels * taps

