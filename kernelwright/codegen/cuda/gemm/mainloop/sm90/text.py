"""The parts of the text of a contraction's core on wgmma.

``@NAME@`` stands for what `mainloop.sm90.core` fills in; a part may hold another part. Long ones are
files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.source import part_beside

BRING = "kw_bulk_copy(buffer + LEFT_BYTES + j * (SHARE * 16), from, SHARE * 16, filled);"

# Each block of the cluster brings its share to all of them.
BRING_CLUSTER = """const unsigned to = buffer + LEFT_BYTES + (j * CLUSTER + rank) * (SHARE * 16);
            kw_bulk_copy_all(to, from + rank * (SHARE * 8), SHARE * 16, filled, (1u << CLUSTER) - 1);"""

# All blocks of the cluster fill a stage of each.
FREE_CLUSTER = ("lane < CLUSTER", "kw_barrier_arrive_at(empty + 8 * @STAGE@, lane);")
FREE_ONE = ("lane == 0", "kw_barrier_arrive(empty + 8 * @STAGE@);")

SKIP = "\n" + part_beside(__file__, "skip.cuh")

# Each stage has the same step of every tile of a class, and these the same w.
FRESH = """
          const int fresh = fills < STAGES ? taps : 0;  // taps of w to bring: later they are there"""
COUNT_FILLS = """
        if (fills < STAGES) ++fills;"""

# Of another class w is another.
OTHER_CLASS = """
      if (phase_class != filled_class) fills = 0, filled_class = phase_class;"""

# Where tile number `tile` lies: of all classes of positions of the same rows one after the other, of all rows of a
# class one after the other, or in bands.
SIDE_BY_SIDE = """  group = 0, column_block = 0;
  phase_class = static_cast<int>(tile % @CLASSES@), row_block = static_cast<int>(tile / @CLASSES@);"""
IN_TURN = """  group = 0, column_block = 0;
  phase_class = static_cast<int>(tile / @ROW_BLOCKS@), row_block = static_cast<int>(tile % @ROW_BLOCKS@);"""
IN_BANDS = """\
  constexpr int ROW_BLOCKS = @ROW_BLOCKS@, CLASSES = @CLASSES@, TILES_ACROSS = CLASSES * @COLUMN_BLOCKS@, BAND = @BAND@;
  constexpr @TILE@ ALL = static_cast<@TILE@>(ROW_BLOCKS) * TILES_ACROSS;
  group = static_cast<int>(tile / ALL);
  const @TILE@ rest = tile % ALL;
  const int band = static_cast<int>(rest / (BAND * TILES_ACROSS)) * BAND;
  const int within = static_cast<int>(rest % (BAND * TILES_ACROSS));
  const int height = BAND < ROW_BLOCKS - band ? BAND : ROW_BLOCKS - band;
  const int across = within / height;
  row_block = band + within % height;
  phase_class = across % CLASSES;
  column_block = across / CLASSES;"""

_BANDS = IN_BANDS, "neighbouring blocks work on a band of rows and share columns of w, so that L2 holds both."
#: By the order of tiles: where one lies, and a note. And the orders in which a block may come to another class.
ORDERS = {"": _BANDS, "one": _BANDS,
          "stacked": (SIDE_BY_SIDE, "a block goes through all classes of its rows. w stays in shared memory."),
          "side by side": (SIDE_BY_SIDE, "a block keeps to a class of positions, whose w stays in shared memory."),
          "in turn": (IN_TURN, "all blocks go from one class of positions to the next. Its w stays in shared memory.")}
REFILLED = ("side by side", "in turn")

BEGIN = "const int begin = 0, end = (last_tap_group - first_tap_group) * DEPTHS;"

BEGIN_PART = """const int all = (last_tap_group - first_tap_group) * DEPTHS;
      const int begin = static_cast<int>(static_cast<long long>(all) * part_number / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(all) * (part_number + 1) / SPLIT);"""

# Parts of the steps follow each other as groups do.
SPLIT_OF = """
      const int part_number = group % SPLIT;
      group /= SPLIT;"""

# Who brings steps begins every tile so. `@LEFT_OF_TILE@`: where a packed x of it lies.
PRODUCED_TILES = part_beside(__file__, "produced_tiles.cuh")

LEFT_OF_TILE = """
      const unsigned short* x = left + static_cast<long long>(group) * (@PHASES@ * ALL_CHUNKS * ALL_ROWS * 8) +
                                static_cast<long long>(row_block) * (X_CHUNKS > 1 ? ALL_CHUNKS * ROWS * 8 : APART * 8);\
"""

# A step's weights, brought by the lanes of a warp.
BRING_RIGHT = """\
#pragma unroll 1
for (int j = lane; j < @LINE_TAPS@ * TERMS; j += 32) {
  const long long entry = @ENTRY@;
  const unsigned short* from = w + @TERM@ * @RIGHT_TERM@LL +
      entry * (ALL_CHUNKS * ALL_COLUMNS * 8) + depth * (CHUNKS * COLUMNS * 8);
  @BRING@
}"""

# The producers of a packed x.
COPY = "\n" + part_beside(__file__, "copy.cuh")

FUNCTIONS = "\n" + part_beside(__file__, "functions.cuh")

#: Of the frame's kernel: its constants, and where a block begins.
CONSTANTS = part_beside(__file__, "constants.cuh")
PLACE = """
  const int rank = @RANK@;
  const @TILE@ first_tile = blockIdx.x / CLUSTER@FIRST_TILE@, next_tile = gridDim.x / CLUSTER;"""

CONSUMERS = part_beside(__file__, "consumers.cuh")


def registers(layout: Layout, count: int) -> str:
    """The statement by which a warpgroup goes from the registers that it begins with to so many. Of many warpgroups
    those that multiply few columns have fewer in the end: others wait for what they give back."""
    if not layout.moved_registers:
        return ""
    return f"kw_registers_{'fewer' if count <= layout.launched_registers else 'more'}<{count}>();"
