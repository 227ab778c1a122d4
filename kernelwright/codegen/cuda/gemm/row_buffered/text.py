"""The text of a row-buffered GEMM (`row_buffered`); ``@NAME@`` stands for what that fills in.

Long parts are files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.source import part_beside, text_beside

TABLE = """
// Which row of packed w each half of a product takes, for each line and phase of the output in it: entry of the
// window times chunks, plus chunk; -1 where there is none.
static __constant__ int @NAME@_of_w[][2][@LINES_OF_W@] = {@OF_W@};
"""

#: Of the frame's kernel: its constants, what is brought before all else, its producers (one warpgroup), its consumers.
CONSTANTS = """\
  constexpr int POSITIONS = @POSITIONS@, COLUMNS = @COLUMNS@;       // of a work tile: positions, output channels
  constexpr int SEGMENTS = @SEGMENTS@, BESIDE = @BESIDE@;            // work tiles of a line
  constexpr int BLOCKS = @BLOCKS@, WORK_TILES = SEGMENTS * BESIDE, WARPGROUPS = @WARPGROUPS@, SLOTS = @SLOTS@;
  constexpr int TERM_ROWS = @TERM_ROWS@, TERMS = @TERMS@;                 // of a line of x in shared memory
  // Of a work tile: lines that are pooled together, each a unit; products and lines of x of one; lines of x of all, and
  // to those of the next work tile.
  constexpr int POOL_LINES = @POOL_LINES@, PRODUCTS = @PRODUCTS@, WINDOW = @WINDOW@, SPAN = @SPAN@, STRIDE = @STRIDE@;
  // Strips: all, beside each other, one below the other, of so many lines, of all lines of the output.
  constexpr int STRIPS = @STRIPS@, ACROSS = @ACROSS@, PARTS = @PARTS@, EACH = @EACH@, LINES = @LINES@;
  constexpr int CHUNKS = @CHUNKS@, FINISHED = @FINISHED@, W_ROWS = TERMS * PRODUCTS * 2 * BLOCKS * 64;"""
START = part_beside(__file__, "start.cuh")
PRODUCERS = part_beside(__file__, "producers.cuh")
CONSUMERS = part_beside(__file__, "consumers.cuh")

MULTIPLY = "\n" + text_beside(__file__, "multiply.cuh")

#: A work tile's products of a line, and what becomes of their sums.
STEP = """\
          @NAME@_multiply(sums, weights + block * 1024, ring + segment * (POSITIONS * 16), line_of_x);
          @PASS_ORDER@
          kw_wgmma_wait<0>();
          kw_wgmma_hold(sums);
          const int lines_before = (tiles_before / WORK_TILES + line) * POOL_LINES + pool_line;
          const int unit = lines_before * WORK_TILES + work_tile % WORK_TILES;
          if (lane == 0) kw_barrier_arrive(finished + 8 * (unit % FINISHED));
          @NAME@_finish(@ARGUMENTS@channels, @PARTIALS@sums, strip / (PARTS * ACROSS), @OWN_LINE@,
                        @OWN_POSITION@, block * COLUMNS, thread);"""

#: The same where channels are reduced: product after product, then what all gave.
FOLDED = part_beside(__file__, "folded.cuh")
