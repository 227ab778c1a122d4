"""The parts of the text of a contraction's core on wgmma.

``@NAME@`` stands for what `mainloop.sm90.core` fills in; a part may hold another part.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout

BRING = "kw_bulk_copy(buffer + LEFT_BYTES + j * (SHARE * 16), from, SHARE * 16, filled);"

# Each block of the cluster brings its share to all of them.
BRING_CLUSTER = """const unsigned to = buffer + LEFT_BYTES + (j * CLUSTER + rank) * (SHARE * 16);
            kw_bulk_copy_all(to, from + rank * (SHARE * 8), SHARE * 16, filled, (1u << CLUSTER) - 1);"""

# All blocks of the cluster fill a stage of each.
FREE_CLUSTER = ("lane < CLUSTER", "kw_barrier_arrive_at(empty + 8 * @STAGE@, lane);")
FREE_ONE = ("lane == 0", "kw_barrier_arrive(empty + 8 * @STAGE@);")

SKIP = """
      @STEPS@
      const bool mine = turn % TEAMS == worker;
      turn += 1;
      if (!mine) {  // another team's tile
        stage += steps % STAGES;
        parity ^= steps / STAGES & 1;
        if (stage >= STAGES) stage -= STAGES, parity ^= 1;
        continue;
      }@FILL_TABLE@
      @AWAIT_ORDER@
      __syncwarp();"""

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
  constexpr int ROW_BLOCKS = @ROW_BLOCKS@, CLASSES = @CLASSES@, CELLS = CLASSES * @COLUMN_BLOCKS@, BAND = @BAND@;
  constexpr @TILE@ ALL = static_cast<@TILE@>(ROW_BLOCKS) * CELLS;
  group = static_cast<int>(tile / ALL);
  const @TILE@ rest = tile % ALL;
  const int band = static_cast<int>(rest / (BAND * CELLS)) * BAND, within = static_cast<int>(rest % (BAND * CELLS));
  const int height = BAND < ROW_BLOCKS - band ? BAND : ROW_BLOCKS - band;
  const int cell = within / height;
  row_block = band + within % height;
  phase_class = cell % CLASSES;
  column_block = cell / CLASSES;"""

_BANDS = IN_BANDS, "neighbouring blocks work on a band of rows and share columns of w, so that L2 holds both."
#: By the order of tiles: where one lies, and a note. And the orders in which a block may come to another class.
ORDERS = {"": _BANDS, "one": _BANDS,
          "stacked": (SIDE_BY_SIDE, "a block goes through all classes of its rows. w stays in shared memory."),
          "side by side": (SIDE_BY_SIDE, "a block keeps to a class of positions, whose w stays in shared memory."),
          "in turn": (IN_TURN, "all blocks go from one class of positions to the next. Its w stays in shared memory.")}
REFILLED = ("side by side", "in turn")

BEGIN = "const int begin = 0, end = (last_piece - first_piece) * DEPTHS;"

BEGIN_PART = """const int all = (last_piece - first_piece) * DEPTHS;
      const int begin = static_cast<int>(static_cast<long long>(all) * part_number / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(all) * (part_number + 1) / SPLIT);"""

# Parts of the steps follow each other as groups do.
SPLIT_OF = """
      const int part_number = group % SPLIT;
      group /= SPLIT;"""

# Who brings steps begins every tile so. `@LEFT_OF_TILE@`: where a packed x of it lies.
PRODUCED_TILES = """\
    int stage = 0, turn = 0@FILLS@;
    unsigned parity = 1;
    for (@TILE@ tile = first_tile; tile < TILES; @NEXT_TILE@) {
      int group, phase_class, row_block, column_block;
      @NAME@_tile(tile, group, phase_class, row_block, column_block);@SPLIT_OF@@OTHER_CLASS@
      row_block = row_block * CLUSTER + rank;
      if (row_block > @LAST_BLOCK@) row_block = @LAST_BLOCK@;  // beyond the end: read, not used@LEFT_OF_TILE@
      const unsigned short* w = right + static_cast<long long>(group) * (@WINDOW@ * ALL_CHUNKS * ALL_COLUMNS * 8) +
                                static_cast<long long>(column_block) * (ALL_CHUNKS * COLUMNS * 8);
      const int first_piece = @NAME@_pieces[phase_class], last_piece = @NAME@_pieces[phase_class + 1];
      @BEGIN@
      int piece = first_piece + begin / DEPTHS, depth = begin % DEPTHS;"""

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
COPY = """
  if (warp < 4) {  // the producers
    @FEWER@
    // They bring steps in turns, as many as there are stages at most: so none is two phases of a barrier ahead.
    constexpr int PRODUCERS = STAGES < 4 ? STAGES : 4;
@PRODUCED_TILES@
      for (int step = begin; step < end; ++step) {
        if (turn == warp) {
          const int first = @NAME@_first_tap[piece], taps = @NAME@_first_tap[piece + 1] - first;
          const int rows = @NAME@_rows[piece];@FRESH@
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;@AWAIT_LEFT@
          kw_barrier_wait(empty + 8 * stage, parity);
          __syncwarp();
          if (lane == 0) kw_barrier_expect(filled, LINES * 16 * (rows + @LINE_TAPS@ * COLUMNS));
          __syncwarp();
#pragma unroll 1
          for (int i = lane * X_CHUNKS; i < LINES; i += 32 * X_CHUNKS) {
            const unsigned short* from = x + i / CHUNKS * @LEFT_TERM@LL +
                ((depth * CHUNKS + i % CHUNKS) * @LEFT_BLOCK@LL + @NAME@_place[piece]) * 8;
            kw_bulk_copy(buffer + i * (PITCH * 16), from, X_CHUNKS * rows * 16, filled);
          }
@BRING_RIGHT@
        }
        if (++turn == PRODUCERS) turn = 0;@COUNT_FILLS@
        @NEXT_STAGE@
        if (++depth == DEPTHS) depth = 0, ++piece;
      }
    }
  }"""

FUNCTIONS = """
@TABLES@@SECOND_TAPS@

@TILE_NOTE@
static __device__ __forceinline__ void @NAME@_tile(@TILE@ tile, int& group, int& phase_class, int& row_block,
                                                   int& column_block) {
@TILE_PLACE@
}

// Puts a thread's sums of a slab's columns into the slab; they begin at number `first` of its sums of 64 rows.
static __device__ __forceinline__ void @NAME@_stage(@STAGED@, int first, float* slab,
                                                    int thread@STAGE_PLACES@) {
  @STAGE_AT@
#pragma unroll
  for (int j = 0; j < @SLAB_COLUMNS@ / 8; ++j) {
    const float* s = sums + first + 4 * j;
@STORE@
  }
}

// One step's products, of @TAPS_NOTE@, as one group. Operands begin at `a` and `b`, which count in rows of 16 bytes.
// The number of taps is a constant, because the compiler waits for products around loops that it cannot unroll.
template <@TAPS@>
static __device__ __forceinline__ void @NAME@_multiply(float (&sums)[@SUM_SETS@][@COLUMNS@ / 2], unsigned long long a,
                                                       unsigned long long b, const int (*taps)[@NUMS@]@ADD_PARAMETER@) {
  constexpr int CHUNKS = @CHUNKS@, TERMS = @TERMS@, PITCH = @PITCH@, COLUMNS = @COLUMNS@;
  kw_wgmma_fence();
#pragma unroll
  @PAIRS@  // of terms of x and w
#pragma unroll
    for (int tap = @FIRST_TAP@; tap < @END_TAP@; ++tap) {@TAP@
      const unsigned long long x = a + taps[tap][0] + (pair == 0 ? CHUNKS * PITCH : 0);
      const unsigned long long w = b + (tap * TERMS + (pair == 1 ? 1 : 0)) * (@TAP_CHUNKS@ * COLUMNS);
#pragma unroll
      for (int k = 0; k < CHUNKS; k += 2) {
#pragma unroll
        for (int p = @FIRST_PRODUCT@; p < @END_PRODUCT@; ++p)
          @PRODUCT@(sums[@TAP_SUMS@], x + k * PITCH + p * 64, w + k * COLUMNS, @ADD@);
      }
    }
  }
  kw_wgmma_commit();
}
@ADD_FUNCTION@"""

#: Of the frame's kernel: its constants, and where a block begins.
CONSTANTS = """\
  constexpr int ROWS = @ROWS@, COLUMNS = @COLUMNS@;   // of a tile of sums
  constexpr int APART = @APART@;                // rows from one tile to the next
  constexpr int CHUNKS = @CHUNKS@, TERMS = @TERMS@, LINES = TERMS * CHUNKS;   // chunks of 8 channels of a step
  constexpr int PITCH = @PITCH@;                 // rows of x from one chunk to the next in shared memory
  constexpr int STAGES = @STAGES@, STAGE_BYTES = @STAGE_BYTES@, LEFT_BYTES = LINES * PITCH * 16;
  constexpr int WORKERS = @WORKERS@, TEAMS = @TEAMS@, PRODUCTS = @PRODUCTS@;  // warpgroups; tiles in work; 64 rows each
  // Of a slab for the epilogue: floats, columns, products of 64 rows.
  constexpr int SLAB = @SLAB@, SLAB_COLUMNS = @SLAB_COLUMNS@, SLABS = COLUMNS / SLAB_COLUMNS, HEIGHT = @HEIGHT@;
  constexpr int DEPTHS = @DEPTHS@, CLUSTER = @CLUSTER@, SPLIT = @SPLIT@;
  constexpr long long ALL_CHUNKS = @ALL_CHUNKS@, ALL_ROWS = @ALL_ROWS@, ALL_COLUMNS = @ALL_COLUMNS@;
  constexpr int X_CHUNKS = @X_CHUNKS@, SHARE = CHUNKS * COLUMNS / CLUSTER;  // of x and w in one copy: chunks; rows
  constexpr @TILE@ TILES = @TILES@;"""
PLACE = """
  const int rank = @RANK@;
  const @TILE@ first_tile = blockIdx.x / CLUSTER@FIRST_TILE@, next_tile = gridDim.x / CLUSTER;"""

CONSUMERS = """\
    @MORE@
    const int worker = warp / 4 - @PRODUCER_GROUPS@, thread = threadIdx.x % 128;
    const int part_row = TEAMS > 1 ? 0 : worker * (PRODUCTS * 64);  // of the tile's rows
@SLAB_POINTER@@TABLE_OF@    int stage = 0@TURN@;
    unsigned parity = 0;
    for (@TILE@ tile = first_tile; tile < TILES; @NEXT_TILE@) {
      int group, phase_class, row_block, column_block;
      @NAME@_tile(tile, group, phase_class, row_block, column_block);@SPLIT_OF@
      row_block = row_block * CLUSTER + rank;@OWN_PIECES@
      @OWN_BEGIN@@SKIP@@SUMS@
@RESULTS@
    }"""


def registers(layout: Layout, count: int) -> str:
    """The statement by which a warpgroup goes from the registers that it begins with to so many. Of many warpgroups
    those that multiply few columns have fewer in the end: others wait for what they give back."""
    if not layout.moved_registers:
        return ""
    return f"kw_registers_{'fewer' if count <= layout.launched_registers else 'more'}<{count}>();"
