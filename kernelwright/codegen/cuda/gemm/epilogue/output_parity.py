"""The epilogue of tiles that have both output phases of the last axis: of a transposed convolution of stride 2.

Of one phase alone a warp would write every other element of a row of the output. Here a slab holds 64 rows of both,
element (row, phase, column) at 2 * row + phase + column * pitch, and a thread takes one of those 128 places: a warp
writes 32 neighbouring positions at a time, as it does for convolutions without a stride. Where output channels are
reduced the walk is another (`epilogue.reduce_channels`), over a slab of the same shape.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import SLAB_ROWS, RowWalk, Walk, stores_channels
from kernelwright.codegen.cuda.gemm.problem import Geometry

#: Floats from one column of a slab of two phases to the next. Fragments of a core's threads lie 8 rows x 4 pairs of
#: columns. Half a warp writes 4 rows of these, both phases of an element at a time: 2 * PITCH is 8 modulo 32 banks.
PITCH = 2 * SLAB_ROWS + 4


class PairPositions(Walk):
    """Two phases of positions are one row: a thread has one of the 128 positions of a slab."""

    row_of = "thread / 2"

    def position(self, leave: str = "") -> list[str]:
        """Define n and p0, p1, ... of ``row`` and the thread's phase; ``leave`` where it is no position of a class."""
        last, lines = len(self.kernel.axes) - 1, super().position(leave)
        lines[-1] = f"const int p{last} = u{last} * 2 + thread % 2;"
        if self.kernel.axes[last].out_size % 2 and leave:
            lines.append(f"if (p{last} >= {self.kernel.axes[last].out_size}) {leave};")
        return lines


class PairOfChannels(PairPositions):
    """The same where channels are reduced: a thread has all of its position's."""

    place = "thread"

    def beyond(self) -> str:
        """As of every walk; of an odd number of positions the second phase has one less."""
        last = len(self.kernel.axes) - 1
        ends = f"u{last} * 2 + thread % 2 >= {self.kernel.axes[last].out_size}"
        return " || ".join(filter(None, [super().beyond(), ends * (self.kernel.axes[last].out_size % 2)]))

    def channels(self) -> list[str]:
        """All of them."""
        return [f"constexpr int first = 0, last = {self.kernel.out_channels};"]


class PairWalk(PairPositions, RowWalk):
    """Positions are neighbours, and two phases of them one row: a thread takes a position, and walks over the columns.

    Raises ValueError where channels are neighbours in the output.
    """

    comment = "a thread takes one of 128 positions, and walks over columns"

    def __init__(self, geometry: Geometry, name: str) -> None:
        if stores_channels(geometry.kernel):
            raise ValueError(f"{name}: no tiles of two phases of positions where channels are neighbours")
        super().__init__(geometry, name)
        self.strides = (2, PITCH)
        self.floats = self.columns * PITCH

    def body(self) -> list[str]:
        """The statements of ``NAME_finish``."""
        return ["const int g = group;", f"const {self.kind} row = first_row + {self.row_of};",
                f"if (row >= {self.geometry.rows}) return;", *self.position("return"),
                f"const int last = {self.end(f'first_column + {self.columns}')};",
                *self.finished(f"sums[thread + (o - first_column) * {self.strides[1]}]", "first_column")]
