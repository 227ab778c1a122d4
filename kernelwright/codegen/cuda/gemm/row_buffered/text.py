"""The text of a row-buffered GEMM (`row_buffered`); ``@NAME@`` stands for what that fills in."""

from __future__ import annotations

TABLE = """
// Which row of packed w each half of a product takes, for each line and phase of the output in it: entry of the window
// times chunks, plus chunk; -1 where there is none.
static __constant__ int @NAME@_of_w[][2][@LINES_OF_W@] = {@OF_W@};
"""

#: Of the frame's kernel: its constants, what is brought before all else, its producers (one warpgroup), its consumers.
CONSTANTS = """\
  constexpr int POSITIONS = @POSITIONS@, COLUMNS = @COLUMNS@;       // of an item: positions, output channels
  constexpr int SEGMENTS = @SEGMENTS@, BESIDE = @BESIDE@;            // items of a line
  constexpr int BLOCKS = @BLOCKS@, ITEMS = SEGMENTS * BESIDE, TEAMS = @TEAMS@, SLOTS = @SLOTS@;
  constexpr int TERM_ROWS = @TERM_ROWS@, TERMS = @TERMS@;                 // of a line of x in shared memory
  // Of an item: lines that are pooled together, each a unit; products and lines of x of one; lines of x of all, and to
  // those of the next item.
  constexpr int PHASES = @PHASES@, PRODUCTS = @PRODUCTS@, WINDOW = @WINDOW@, SPAN = @SPAN@, STRIDE = @STRIDE@;
  // Strips: all, beside each other, one below the other, of so many lines, of all lines of the output.
  constexpr int STRIPS = @STRIPS@, ACROSS = @ACROSS@, PARTS = @PARTS@, EACH = @EACH@, LINES = @LINES@;
  constexpr int CHUNKS = @CHUNKS@, FINISHED = @FINISHED@, W_ROWS = TERMS * PRODUCTS * 2 * BLOCKS * 64;"""
START = """\
// All of w, and zeros where no x will be.
  uint4* const operands = reinterpret_cast<uint4*>(shared);
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  for (int i = threadIdx.x; i < W_ROWS; i += @THREADS@) {
    const int row = i % 64, block = i / 64 % BLOCKS, half = i / (64 * BLOCKS) % 2;
    const int product = i / (128 * BLOCKS) % PRODUCTS, term = i / (128 * BLOCKS * PRODUCTS);
    const int place = @NAME@_of_w[product][half][@WHICH@], entry = place / CHUNKS, chunk = place % CHUNKS;
    operands[i] = zeros;
    if (place >= 0)
      operands[i] = reinterpret_cast<const uint4*>(right)[term * @RIGHT_TERM@LL + entry * (@ALL_COLUMNS@LL * CHUNKS) +
                                                         (block * CHUNKS + chunk) * COLUMNS + @COLUMN@];
  }
  for (int i = threadIdx.x; i < SLOTS * TERMS * TERM_ROWS; i += @THREADS@) operands[W_ROWS + i] = zeros;
  kw_shared_written();
  __syncthreads();"""
PRODUCERS = """\
  if (warp < 4) {  // The producers: they bring line after line, and have several on their way.
    constexpr int PIECES = @PIECES@, AHEAD = @AHEAD@;  // of a warp: pieces of a line; lines on their way
    int* const last = reinterpret_cast<int*>(shared + (turns - weights) + 8 * TEAMS) + warp * SLOTS;
    if (lane < SLOTS) last[lane] = 0;  // units before the first one that need not be finished for a slot to be free
    __syncwarp();
    float x[AHEAD][PIECES][8];
    int asked_strip = blockIdx.x, asked_line = 0;
    const auto ask = [&](float (&to)[PIECES][8]) {
      if (asked_strip >= STRIPS) return;
      const int begin = asked_strip % PARTS * EACH, count = min(EACH, LINES - begin);
#pragma unroll
      for (int i = 0; i < PIECES; ++i)
        @NAME@_take(@TAKEN@to[i], asked_strip / (PARTS * ACROSS), begin * STRIDE + asked_line + @FIRST@,
                     @FIRST_POSITION@, 4 * i + warp, lane);
      if (++asked_line == (count - 1) * STRIDE + SPAN) asked_line = 0, asked_strip += gridDim.x;@PREFETCH@
    };
#pragma unroll
    for (int j = 0; j < AHEAD; ++j) ask(x[j]);
    int strip = blockIdx.x, line = 0, slot = 0;
    int units = 0, seen = 0;  // of strips before; seen to be finished@SCALE_OF_STRIP@
    while (strip < STRIPS) {
#pragma unroll
      for (int j = 0; j < @LINES_AT_ONCE@; ++j) {
        if (strip >= STRIPS) break;
        const int begin = strip % PARTS * EACH, count = min(EACH, LINES - begin);
        for (const int until = last[slot]; seen < until; ++seen)
          kw_barrier_wait(finished + 8 * (seen % FINISHED), seen / FINISHED & 1);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < PIECES; ++i)
          @NAME@_put(@MARKED@x[j % AHEAD][i], operands + W_ROWS + slot * (TERMS * TERM_ROWS), 4 * i + warp, lane);
        kw_shared_written();
        __syncwarp();
        if (lane == 0) {
          kw_barrier_arrive(full + 8 * slot);
          last[slot] = units + (min(line / (STRIDE / PHASES), count * PHASES - 1) + 1) * ITEMS;
        }
        __syncwarp();
        ask(x[j % AHEAD]);
        if (++slot == SLOTS) slot = 0;
        if (++line == (count - 1) * STRIDE + SPAN) {
          line = 0, units += count * PHASES * ITEMS, strip += gridDim.x;@NEXT_SCALE@
        }
      }
    }
  }"""
CONSUMERS = """\
    const int team = warp / 4 - 1, thread = threadIdx.x % 128, block = team % BESIDE;
    int turn = 0, lines = 0;  // items and lines of x of the strips before@RESULTS_BEGIN@
    for (int strip = blockIdx.x; strip < STRIPS; strip += gridDim.x) {
      const int begin = strip % PARTS * EACH, count = min(EACH, LINES - begin);@BEGIN_TOTALS@
      for (int item = (team - turn % TEAMS + TEAMS) % TEAMS; item < count * ITEMS; item += TEAMS) {
        const int line = item / ITEMS, segment = item % ITEMS / BESIDE, first = lines + line * STRIDE;
        if (TEAMS > 1) @AWAIT_ORDER@
        float sums[POSITIONS / 2];@POOLED@
#pragma unroll 1
        for (int phase = 0; phase < PHASES; ++phase) {
          const int line_of_x = first + phase * (STRIDE / PHASES);
#pragma unroll
          for (int i = 0; i < WINDOW; ++i)
            kw_barrier_wait(full + 8 * ((line_of_x + i) % SLOTS), (line_of_x + i) / SLOTS & 1);
          __syncwarp();
@STEP@
        }
      }@END_TOTALS@
      turn += count * ITEMS, lines += (count - 1) * STRIDE + SPAN;
    }"""

MULTIPLY = """
// The sums of an item: of output channels whose w begins at `weights`, at positions of a line whose first window begins
// at line number `first` of those brought. Low terms come first: tensor cores cut what they add to the last bits
// of a sum.
static __device__ __forceinline__ void @NAME@_multiply(float (&sums)[@POSITIONS@ / 2], unsigned weights, unsigned ring,
                                                       int first) {
  constexpr int PRODUCTS = @PRODUCTS@, SLOT = @TERMS@ * @TERM_ROWS@ * 16;
  // Of each product: line of the window, row of x, rows between its halves.
  constexpr int LINE[] = {@LINE@};
  constexpr int ROW[] = {@ROW@};
  constexpr int APART[] = {@APART@};
  unsigned lines[@WINDOW@];
#pragma unroll
  for (int i = 0; i < @WINDOW@; ++i) lines[i] = ring + (first + i) % @SLOTS@ * SLOT;
  kw_wgmma_fence();
#pragma unroll
  @PAIRS@  // of terms of x and w
#pragma unroll
    for (int k = 0; k < PRODUCTS; ++k) {
      const unsigned x = lines[LINE[k]] + (ROW[k] + (pair == 0 ? @TERM_ROWS@ : 0)) * 16;
      const unsigned w = weights + (k + (pair == 1 ? PRODUCTS : 0)) * (2 * @BLOCKS@ * 1024);
      @PRODUCT@(sums, kw_operand(w, @BLOCKS@ * 1024), kw_operand(x, APART[k] * 16), pair > @FIRST_PAIR@ || k > 0);
    }
  }
  kw_wgmma_commit();
}
"""

#: A work tile's products of a line, and what becomes of their sums.
STEP = """\
          @NAME@_multiply(sums, weights + block * 1024, ring + segment * (POSITIONS * 16), line_of_x);
          @PASS_ORDER@
          kw_wgmma_wait<0>();
          kw_wgmma_hold(sums);
          const int unit = ((turn / ITEMS + line) * PHASES + phase) * ITEMS + item % ITEMS;
          if (lane == 0) kw_barrier_arrive(finished + 8 * (unit % FINISHED));
          @NAME@_finish(@ARGUMENTS@channels, @TOTALS@sums, strip / (PARTS * ACROSS), @OWN_LINE@,
                        @OWN_POSITION@, block * COLUMNS, thread);"""

#: The same where channels are reduced: product after product, then what all gave.
FOLDED = """\
#pragma unroll 1
          for (int part = 0; part < BLOCKS; ++part) {
            const @NAME@_channels own = channels[part];
            @NAME@_multiply(sums, weights + part * 1024, ring + segment * (POSITIONS * 16), line_of_x);
            @PASS_ORDER@
            kw_wgmma_wait<0>();
            kw_wgmma_hold(sums);
            const int unit = turn + item;
            if (part == BLOCKS - 1 && lane == 0) kw_barrier_arrive(finished + 8 * (unit % FINISHED));
            @NAME@_finish(@ARGUMENTS@own, sums, strip / (PARTS * ACROSS), @OWN_LINE@, kept, part,
                          @OWN_POSITION@, part * COLUMNS, thread);
          }
          @NAME@_reduce(@ARGUMENTS@kept, results + ((turn + item) / TEAMS % 2 * TEAMS + team) * @RESULTS@, team,
                        strip / (PARTS * ACROSS), @OWN_LINE@, @OWN_POSITION@, thread);"""
