"""Where the operands of a contraction lie while tensor cores multiply them, and which rows meet which taps.

Packed operands. x becomes rows of 8 neighbouring channels, 16 bytes each::

    x[term][g][input phase][chunk of 8 channels][row]
    w[term][g][entry of the window][chunk of 8 channels][output channel]

A row is (n, u_1, ..., u_d), row-major with extents ``extents``. Along axis a, coordinate u of input phase r holds the
input at ``in_stride * (u - lead) + r``, zero outside of it. So a tap is nothing but a shift in rows: output row (n, u)
takes its products from row + shift, and the rows of a block are one run of memory, whatever the window. Rows whose u
is not below the class's counts are computed and dropped. A matrix product has rows n alone. This is what BLIS calls
packing (Van Zee and van de Geijn, ACM TOMS 41(3), 2015), with the shifts of indirect convolutions (Dukhan,
arXiv 1907.02129), which here are affine.

Where a tile has both output phases of an axis (``tiling.parities``: of the last one, or of that before it where lines
are pooled) they are one class, whose taps say which of the two they feed. Rows u are the same for both, so one run of
rows serves the taps of either.

With a depth of 8 channels a product takes two taps of a run (`tap_runs`), and w has one entry of zeros more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod

from kernelwright.codegen.cuda.gemm.tap_runs import Run, with_tap_pairs
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Load, walk

#: Channels of one row of a packed operand.
CHUNK = 8
#: Taps whose rows are at most so far apart are served by one run of rows, and those of the line that the last such tap
#: is in, so near to each other. Rows of pairs of taps are short: of 32 positions a line three and four lines are a run.
#: Where sums of pairs are promoted the steps of a tile are to be alike (`Rows.span`): more lines to a run, or one.
_SPAN, _SPAN_OF_TAP_PAIRS, _MOST_SPAN, _NEAR = 64, 96, 160, 8
#: Pairs of taps of a step at most where sums are promoted, which they are between steps: 128 channels; and of a step
#: that is one of several of its run, all of them alike.
MOST_TAP_PAIRS, _MOST_CUT = 8, 4
#: Results of 32 bytes.
_SECTOR = 8


@dataclass(frozen=True, slots=True)
class PhaseClass:
    """Output positions ``phases[a] + out_stride * u`` for u below ``counts[a]``, and the runs that feed them.

    Where a tile has two phases of an axis, ``phases`` and ``counts`` are those of the first one, which has one
    position more than the other where the output's size is odd.
    """

    phases: tuple[int, ...]
    counts: tuple[int, ...]
    runs: tuple[Run, ...]


def has_two_phases(kernel: Contraction) -> bool:
    """Whether a tile can have both output phases of its axis for them: there are two, with positions and taps each."""
    axis = kernel.axes[kernel.parity_axis] if kernel.axes else None
    return axis is not None and axis.out_stride == 2 and axis.out_size > 1 and len({t.phase for t in axis.taps}) == 2


def alike(counts: Sequence[tuple[int, ...]]) -> int:
    """The most pairs of taps that a step can have if all steps of runs with so many, of each output phase, have as
    many; 0 where there is no such number, where it is one although runs have more, and where some feed both phases."""
    first = counts[0] if counts else ()
    if set(counts) == {first} and sum(first) <= MOST_TAP_PAIRS:
        return sum(first)
    if not counts or any(len(count) != 1 for count in counts):
        return 0
    common = gcd(*(count for (count,) in counts))
    return max((n for n in range(2, _MOST_CUT + 1) if common % n == 0), default=0)


@dataclass(frozen=True)
class Rows:
    """Rows and taps of a contraction under a tiling. All sizes are in elements."""

    kernel: Contraction
    tiling: Tiling

    @property
    def terms(self) -> int:
        """Float16 terms of each operand."""
        return 2 if self.kernel.scheme == "fp16x3" else 1

    @property
    def scaled(self) -> bool:
        """Whether operands are scaled, and sums of operands that are not finite computed again."""
        return self.kernel.scheme in ("fp16x3", "fp16")

    @property
    def two_taps(self) -> bool:
        """Whether a product takes two taps of 8 channels each."""
        return self.tiling.depth == CHUNK

    @property
    def tap_chunks(self) -> int:
        """Chunks of w that a step has of a tap, or of a pair of them."""
        return 2 if self.two_taps else self.tiling.depth // CHUNK

    @property
    def entries(self) -> int:
        """Entries of packed w: those of the window, and one of zeros where taps are paired."""
        return prod(self.window) + self.two_taps

    @property
    def element(self) -> str:
        """The type of packed elements: "float16", or "bfloat16" where 16-bit operands are of that type."""
        if self.scaled:
            return "float16"
        loads = (n for root in (self.kernel.left, self.kernel.right) for n in walk(root) if isinstance(n, Load))
        return "bfloat16" if any(self.kernel.input_dtypes[n.buffer] == "bfloat16" for n in loads) else "float16"

    @property
    def depths(self) -> int:
        """Steps over the channels: blocks of ``tiling.depth`` channels, the last one filled up with zeros."""
        return -(-self.kernel.in_channels // self.tiling.depth)

    @property
    def chunks(self) -> int:
        """Chunks of channels, those of the last step's zeros included."""
        return self.depths * self.tiling.depth // CHUNK

    @cached_property
    def leads(self) -> tuple[int, ...]:
        """Per axis, row coordinates before the one that holds the input's first elements."""
        return tuple(max((-(t.offset // a.in_stride) for t in a.taps), default=0) for a in self.kernel.axes)

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Per axis, the number of row coordinates; along the last one, of a kernel that pools positions there, as many
        as whole windows have, so that each begins at a multiple of its size, whatever comes before it; of a tiling with
        fragments as many as whole sectors of results."""
        result = []
        for axis, lead in zip(self.kernel.axes, self.leads, strict=True):
            most = -(-axis.out_size // axis.out_stride)
            result.append(most + max((t.offset // axis.in_stride + lead for t in axis.taps), default=0))
        if self.kernel.pools and result:
            lines = self.kernel.pool_lines
            window = max(1, self.kernel.pool_size * lines // self.tiling.parities)
            result[-1] = -(-result[-1] // window) * window
        if self.tiling.from_registers and not self.kernel.reductions:
            sector = max(1, _SECTOR // self.tiling.parities)
            result[-1] = -(-result[-1] // sector) * sector
        return tuple(result)

    @property
    def pitches(self) -> tuple[int, ...]:
        """Rows from one coordinate to the next: of n, then of each axis."""
        return tuple(prod(self.extents[i:]) for i in range(len(self.extents) + 1))

    @property
    def rows(self) -> int:
        """Rows of x that mean something."""
        return self.kernel.batch * prod(self.extents)

    @property
    def step(self) -> int:
        """Rows from one block to the next."""
        return self.tiling.rows - self.tiling.overlap

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks along rows and along output channels, of one group and class."""
        return -(-self.rows // self.step), -(-self.kernel.out_channels // self.tiling.columns)

    @cached_property
    def allocated_rows(self) -> int:
        """Rows of x in memory: a block's last run may pass the end, where no output reads."""
        reach = max((run.shift for c in self.classes for run in c.runs), default=0) + self.run_rows
        rows = (self.blocks[0] - 1) * self.step + reach
        return -(-max(rows, self.rows) // CHUNK) * CHUNK

    @property
    def allocated_columns(self) -> int:
        """Output channels of w in memory."""
        return self.blocks[1] * self.tiling.columns

    @property
    def left_block(self) -> int:
        """Rows of x that lie together in memory, chunk after chunk: all, or for wgmma a tile's where no others are
        read."""
        own = self.tiling.core in ("wgmma", "swap_ab") and not self.kernel.axes
        return self.tiling.rows if own else self.allocated_rows

    @property
    def right_block(self) -> int:
        """Output channels of w that lie together in memory, chunk after chunk: all, or for wgmma a tile's."""
        return self.allocated_columns if self.tiling.core == "mma" else self.tiling.columns

    @cached_property
    def run_rows(self) -> int:
        """Rows of the longest run of a block."""
        reach = max((reach for c in self.classes for run in c.runs for reach in run.reaches), default=0)
        return -(-(self.tiling.rows + reach) // CHUNK) * CHUNK

    @property
    def input_phases(self) -> tuple[int, ...]:
        """Per axis, the number of input phases."""
        return tuple(a.in_stride for a in self.kernel.axes)

    @property
    def window(self) -> tuple[int, ...]:
        """Per axis, entries of the weight."""
        return tuple(a.kernel for a in self.kernel.axes)

    @property
    def together(self) -> tuple[int, ...]:
        """Per axis, the output phases of a class: one, along one axis as many as the tiling says."""
        return tuple(self.tiling.parities if a == self.kernel.parity_axis else 1 for a in range(len(self.kernel.axes)))

    @cached_property
    def canonical(self) -> Rows:
        """The same contraction under one tiling for all that have the same classes: they are found once."""
        tiling = self.tiling
        canonical = Tiling(tiling.core, 64, 64, CHUNK if self.two_taps else 2 * CHUNK, 2,
                           promote=min(1, tiling.promote),
                           parities=tiling.parities, from_registers=tiling.from_registers)
        return self if type(self) is Rows and tiling == canonical else _canonical(self.kernel, canonical)

    @cached_property
    def classes(self) -> tuple[PhaseClass, ...]:
        """The classes of output positions, row-major over phases; one for convolutions and matrix products."""
        return _classes(self) if self.canonical is self else self.canonical.classes

    @cached_property
    def span(self) -> int:
        """The rows that the taps of a run are apart, but for the rest of a line.

        With pairs of taps whose sums are promoted, the first of three spans with which runs can be cut into steps of as
        many pairs: where steps differ ptxas makes each product wait for the one before it (C7514; 8 to 64 channels,
        3x3x3, lines of 64, on an H200 3.07 ms, and 2.31 in tiles of another shape, which were not serialised).
        """
        if not self.two_taps:
            return _SPAN
        if self.tiling.core == "wgmma" and self.tiling.promote:
            last = self.kernel.axes[-1]
            places = [tap.offset // last.in_stride for tap in last.taps]
            for span in (_SPAN_OF_TAP_PAIRS, _MOST_SPAN, max(places, default=0) - min(places, default=0)):
                groups = product(*(range(0, a.out_stride, n)
                                   for a, n in zip(self.kernel.axes, self.together, strict=True)))
                if alike([run.counts for phases in groups for run in self._runs(phases, span)]):
                    return span
        return _SPAN_OF_TAP_PAIRS

    def runs(self, phases: tuple[int, ...]) -> tuple[Run, ...]:
        """Taps of a class in runs, by input phase and shift."""
        return self._runs(phases, self.span)

    def _runs(self, phases: tuple[int, ...], span: int) -> tuple[Run, ...]:
        axes, several = self.kernel.axes, self.kernel.parity_axis
        flat = []
        for taps in product(*([t for t in a.taps if p <= t.phase < p + n]
                              for a, p, n in zip(axes, phases, self.together, strict=True))):
            phase = shift = entry = 0
            for axis, tap, lead, pitch in zip(axes, taps, self.leads, self.pitches[1:], strict=True):
                phase = phase * axis.in_stride + tap.offset % axis.in_stride
                shift += (tap.offset // axis.in_stride + lead) * pitch
                entry = entry * axis.kernel + tap.number
            flat.append((phase, shift, entry, taps[several].phase - phases[several] if axes else 0))
        runs: list[Run] = []
        for phase, shift, entry, feed in sorted(flat):
            last = runs[-1] if runs else None
            near = last is not None and shift - last.shift - last.taps[-1][0] <= _NEAR
            if last is not None and last.phase == phase and shift - last.shift <= span + _NEAR * near:
                runs[-1] = Run(phase, last.shift, (*last.taps, (shift - last.shift, entry)), (*last.feeds, feed))
            else:
                runs.append(Run(phase, shift, ((0, entry),), (feed,)))
        return tuple(with_tap_pairs(run, prod(self.window)) for run in runs) if self.two_taps else tuple(runs)


#: Rows under canonical tilings, each once: what is found of one serves all that share it.
_canonical = lru_cache(maxsize=256)(Rows)


def _classes(rows: Rows) -> tuple[PhaseClass, ...]:
    axes = rows.kernel.axes
    found = []
    for phases in product(*(range(0, a.out_stride, n) for a, n in zip(axes, rows.together, strict=True))):
        counts = tuple(max(0, -(-(a.out_size - p) // a.out_stride)) for a, p in zip(axes, phases, strict=True))
        if all(counts):
            found.append(PhaseClass(phases, counts, rows.runs(phases)))
    return tuple(found)
