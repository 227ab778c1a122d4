"""The numbers of a contraction on tensor cores: whether a tiling suits it, and where its workspace has what.

Rows, taps and classes of output positions are `packed_layout`, which describes how packed operands lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK, Rows, has_two_phases
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Load
from kernelwright.plan.kernels import Reduction

#: Bytes of one row of a packed operand.
ROW_BYTES = 16
#: Rows of sums that an epilogue finishes at a time (a subtile), and what it keeps of them for each kind of total.
SUBTILE_ROWS = 64
COMPONENTS = {"sum": 1, "max": 1, "min": 1, "moments": 3}
#: Rows that a warp of a core packs together, and chunks at least, but for those of fewer channels.
LOAD_CHUNK_ROWS, _PART_CHUNKS = 32, 8
_ALIGNMENT = 256


def components(kernel: Contraction) -> list[tuple[int, Reduction]]:
    """Each of a kernel's reductions over positions, behind the number of its first component among those of a
    partial-sum slot."""
    ends = accumulate(COMPONENTS[total.kind] for total in kernel.position_reductions)
    return [(end - COMPONENTS[total.kind], total) for end, total in zip(ends, kernel.position_reductions, strict=True)]


def suits_two_taps(kernel: Contraction) -> bool:
    """Whether two taps in one product save something, and can be had: of few channels, with a window."""
    if not kernel.axes or kernel.in_channels > CHUNK:
        return False
    try:
        for phases in (1, 2) if has_two_phases(kernel) else (1,):
            Geometry(kernel, Tiling("wgmma", 64, 64, CHUNK, 2, parities=phases))
    except ValueError:
        return False
    return True


def strides_of_unpacked_right(kernel: Contraction) -> tuple[int, int, int]:
    """Elements of the right operand from one group to the next, from one channel and from one output channel.

    Raises ValueError where it has to be packed: it is to be float32 in memory, of a product without a window that is
    formed of float16 terms.
    """
    right = kernel.right
    if not isinstance(right, Load) or right.guards or right.whole or kernel.input_dtypes[right.buffer] != "float32" \
            or any(axis.kernel != 1 for axis in kernel.axes) or kernel.scheme not in ("fp16x3", "fp16"):
        raise ValueError("the right operand has to be packed")
    group, column, channel = right.index.strides[:3]
    return group, channel, column


@dataclass(frozen=True)
class Geometry(Rows):
    """Numbers of a contraction under a tiling. All sizes are in elements unless they are called bytes."""

    def __post_init__(self) -> None:
        if (self.tiling.depth % (2 * CHUNK) and not self.two_taps) or self.tiling.rows % CHUNK \
                or self.tiling.columns % CHUNK:
            raise ValueError(f"no tiles of {self.tiling}")
        if self.tiling.overlap < 0 or 2 * self.tiling.overlap > self.tiling.rows or self.tiling.overlap % 4 \
                or (self.tiling.overlap and (self.tiling.core != "wgmma" or self.tiling.split_k > 1)):
            raise ValueError(f"no tiles that overlap so: {self.tiling}")
        if self.tiling.sector_aligned and (self.tiling.core not in ("wgmma", "row_buffered") or self.tiling.overlap
                                    or self.tiling.split_k > 1):
            raise ValueError(f"no warps that begin at sectors of memory: {self.tiling}")
        if self.tiling.from_registers and (self.tiling.core != "wgmma" or self.tiling.overlap or self.tiling.split_k > 1
                                      or self.tiling.sector_aligned or not self.kernel.axes):
            raise ValueError(f"no lines of whole sectors: {self.tiling}")
        if self.tiling.takes_left and not self.splits_left and (
                self.tiling.core not in ("wgmma", "row_buffered") or not self.kernel.axes):
            raise ValueError(f"x is packed before but for windows on wgmma: {self.tiling}")
        if self.kernel.axes and self.kernel.is_matrix and (
                self.tiling.takes_left or self.extents[-1] > self.kernel.axes[-1].in_size):
            raise ValueError(f"rows of a matrix are packed before, with none between them: {self.tiling}")
        if self.tiling.packs_concurrently and (self.tiling.converts_left or self.tiling.split_k > 1):
            raise ValueError(f"no x to pack, or parts of steps: {self.tiling}")
        if self.two_taps and not self.kernel.axes:
            raise ValueError(f"no pairs of taps without a window: {self.tiling}")
        if self.tiling.parities != 1 and (self.tiling.parities != 2 or self.tiling.core != "wgmma"
                                        or not has_two_phases(self.kernel)):
            raise ValueError(f"no tiles of {self.tiling.parities} phases of an axis")
        if self.two_taps and not self.scaled and self._leaves_a_tap():
            raise ValueError(f"no pairs where a tap of unscaled operands has no partner: {self.tiling}")

    def _leaves_a_tap(self) -> bool:
        """Whether some tap has no partner: its rows are multiplied by zeros, too, and so an Inf in them gives NaN."""
        return any(entry == prod(self.window) for c in self.classes for run in c.runs for _, entry in run.seconds)

    @property
    def splits_left(self) -> bool:
        """Whether the core finds scales of x itself, as it splits it (`swap_ab`)."""
        return self.tiling.core == "swap_ab" and self.tiling.converts_left

    @property
    def mixes(self) -> bool:
        """Whether two neighbouring chunks of packed x have pairs of their channels in turn, so that four neighbours of
        the other operand are what a thread needs of it (`swap_ab`)."""
        return self.tiling.core == "swap_ab"

    @property
    def subtiles(self) -> int:
        """Subtiles of one group and class, one below the other."""
        return self.blocks[0] * (self.tiling.rows // SUBTILE_ROWS)

    @property
    def partial_slots(self) -> int:
        """Parts of subtiles with positions of one n: each subtile of each class may meet two. Number ``(class *
        subtiles + subtile) * 2`` is that of the subtile's first row, the one behind it the next."""
        return len(self.classes) * self.subtiles * 2

    @property
    def components(self) -> int:
        """Numbers that reductions over positions need of a partial-sum slot, for each of its columns."""
        return sum(COMPONENTS[total.kind] for total in self.kernel.position_reductions)

    # Bytes of the workspace, in this order: scales of x and of w, x, w.

    @property
    def left_term_bytes(self) -> int:
        """Bytes of one term of packed x."""
        return self.kernel.groups * prod(self.input_phases) * self.chunks * self.allocated_rows * ROW_BYTES

    @property
    def left_parts(self) -> int:
        """Parts of a row's chunks, each a load chunk by itself where the core packs x."""
        return -(-self.chunks // self.part_chunks)

    @property
    def part_chunks(self) -> int:
        """Chunks of such a part: those of whole steps, so that none needs two parts, and 8 at least."""
        step = self.tiling.depth // CHUNK
        return min(self.chunks, -(-_PART_CHUNKS // step) * step)

    @property
    def left_load_chunks(self) -> int:
        """Load chunks in which a core packs x: a part of the chunks of 32 rows of one group, all input phases."""
        return self.kernel.groups * -(-self.allocated_rows // LOAD_CHUNK_ROWS) * self.left_parts

    @property
    def right_term_bytes(self) -> int:
        """Bytes of one term of packed w."""
        return self.kernel.groups * self.entries * self.chunks * self.allocated_columns * ROW_BYTES

    @property
    def sums_of_part(self) -> int:
        """Sums of a part of the steps, of all tiles."""
        area = prod(self.blocks) * self.tiling.rows * self.tiling.columns
        return self.kernel.groups * len(self.classes) * area

    @property
    def partial_bytes(self) -> int:
        """Bytes of the sums of all parts of the steps."""
        return 4 * self.tiling.split_k * self.sums_of_part

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Offset and bytes of each part of the workspace: "repack" (uint32: whether scales have to be looked at again),
        "left_scales" (float32 per (entry, g)) and "right_scales" (per (g, o)), where operands are scaled, "left_ready"
        (uint32: two counters of load chunks taken, then the load chunks that are packed) where the core packs x,
        "left", "right" (no bytes where the mainloop converts them), "sums" of the parts of the steps, where they are
        split, and where there are reductions over positions "position_partials" (float32 of shape (partial-sum slots,
        components, groups, out_channels)) and "position_counts" (int32, the positions of each partial-sum slot).

        Sums are multiplied by both scales, powers of two; operands are packed times their inverses. An infinite scale
        says that the operand is not finite there.
        """
        kernel, at = self.kernel, 0
        lefts, rights = kernel.entries * kernel.groups, kernel.groups * kernel.out_channels
        sizes = {"repack": 4, "left_scales": 4 * lefts, "right_scales": 4 * rights}
        result = {}
        for name, size in {**(sizes if self.scaled else {}),
                           **({"left_ready": 4 * (2 + self.left_load_chunks)} if self.tiling.packs_concurrently
                              else {}),
                           "left": 0 if self.tiling.converts_left else self.terms * self.left_term_bytes,
                           "right": 0 if self.tiling.converts_right else self.terms * self.right_term_bytes,
                           **({"sums": self.partial_bytes} if self.tiling.split_k > 1 else {}),
                           **({"position_partials": 4 * self.partial_slots * self.components * rights,
                               "position_counts": 4 * self.partial_slots} if kernel.position_reductions
                              else {})}.items():
            result[name] = (at, size)
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        return result

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the whole workspace."""
        at, size = list(self.places.values())[-1]
        return at + -(-size // _ALIGNMENT) * _ALIGNMENT
