"""The parts of the text of a contraction's core on wgmma that form the sums of a tile.

``@NAME@`` stands for what `mainloop.sm90.accumulate`, which puts them together, or `mainloop.sm90.core` fills in.
"""

# Where a tile's pieces begin and end.
OWN_PIECES = """
      const int first_piece = @NAME@_pieces[phase_class], last_piece = @NAME@_pieces[phase_class + 1];"""

ADD = """
// Adds up what tensor cores have summed, of sets of 64 rows.
template <int FIRST, int END>
static __device__ __forceinline__ void @NAME@_add(float (&sums)[@SUM_SETS@][@COLUMNS@ / 2],
                                                  float (&part)[@SUM_SETS@][@COLUMNS@ / 2]) {
#pragma unroll
  for (int p = FIRST; p < END; ++p) {
    kw_wgmma_hold(part[p]);
#pragma unroll
    for (int i = 0; i < @COLUMNS@ / 2; ++i) sums[p][i] += part[p][i];
  }
}
"""

ZERO = """
#pragma unroll
      for (int p = @FIRST@; p < @END@; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) @ZEROS@ = 0.0f;"""

# One set of registers beside the sums, or none. They begin as zeros, so that they do not live from tile to tile.
LOOP = """
      float sums[@ALL_SUMS@][COLUMNS / 2]@PART@;@ZERO@@COUNTS@
      int before = -1;  // a stage whose products may still be running
      int piece = first_piece + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      for (int step = begin; step < end; ++step) {
        const int first = @NAME@_first_tap[piece], last = @NAME@_first_tap[piece + 1];
        const unsigned buffer = stages + stage * STAGE_BYTES;
        const unsigned long long a = kw_operand(buffer + part_row * 16, @LEADING@);
        const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
        kw_barrier_wait(full + 8 * stage, parity);
        @MULTIPLY@@YIELD@
        @PROMOTE@
        @NEXT_STAGE@
        if (++depth == DEPTHS) depth = 0, ++piece;
      }
      kw_wgmma_wait<0>();
      @FREE@@REST@
"""

COUNTS = """
      int add = 0, since = @OFFSET@;  // whether `part` holds something; steps since the last promotion"""

NO_PROMOTION = """kw_wgmma_wait<1>();  // The step before is done.
        @FREE@
        before = stage;"""

PROMOTE = """since += @ADVANCE@;
        if (since < @EVERY@) {
          kw_wgmma_wait<1>();  // The step before is done.
          @FREE@
          before = stage;
        } else {
          kw_wgmma_wait<0>();
          @FREE@
          @FREE_THIS@
          before = -1;
          @ADD_PART@
          add = since = 0;
        }"""

REST = """
      if (add) {
        @ADD_PART@
      }"""

# Two sets beside the sums, many steps.
ROUNDS = """
      float sums[@ALL_SUMS@][COLUMNS / 2], part[2][@ALL_SUMS@][COLUMNS / 2];@ZERO@
      int before = -1;  // a stage whose products may still be running
      int step = begin, piece = first_piece + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      // Stretches are summed in part[0] and part[1] in turn: one is added while products go to the other. No products
      // are on their way where paths meet, because the compiler would make all of them wait for each other.
      while (step < end) {@STRETCHES@
      }
"""

STRETCH = """
        @OPEN@
          const int first = @NAME@_first_tap[piece]@LAST_TAP@;
          const unsigned buffer = stages + stage * STAGE_BYTES;
          const unsigned long long a = kw_operand(buffer + part_row * 16, @LEADING@);
          const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
          kw_barrier_wait(full + 8 * stage, parity);
          @CALLS@
          step += 1;@YIELD@
          kw_wgmma_wait<1>();  // The step before is done.
          @FREE@
          before = stage;
          @NEXT_STAGE@
          if (++depth == DEPTHS) depth = 0, ++piece;@COUNT@
        @CLOSE@@ADD_OTHER@"""

# One set beside the sums, many steps, each of them a stretch.
HALF_ROUNDS = """
      float sums[@ALL_SUMS@][COLUMNS / 2], part[@ALL_SUMS@][COLUMNS / 2];@ZERO@
      int before = -1;  // a stage whose products may still be running
      int step = begin, piece = first_piece + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      // One half of a step's sums is added while the products of the other one run. No products are on their way where
      // paths meet, because the compiler would make all of them wait for each other.
      while (step < end) {@STRETCHES@
      }
"""

HALF_STRETCH = """
        {
          const int first = @NAME@_first_tap[piece]@LAST_TAP@;
          const unsigned buffer = stages + stage * STAGE_BYTES;
          const unsigned long long a = kw_operand(buffer + part_row * 16, @LEADING@);
          const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
          kw_barrier_wait(full + 8 * stage, parity);
          @ONE@@BEFORE@
          @TWO@
          step += 1;@YIELD@
          kw_wgmma_wait<1>();
          @ADD_ONE@
          before = stage;
          @NEXT_STAGE@
          if (++depth == DEPTHS) depth = 0, ++piece;
        }"""

HALF_BEFORE = """
          kw_wgmma_wait<1>();  // The step before is done.
          @FREE@
          @ADD_TWO@"""

ROUND_ENDS = """
        if (step == end) {
          kw_wgmma_wait<0>();
          @FREE@
          @ADD_OWN@
          break;
        }"""

ROUND_DRAINS = """
        kw_wgmma_wait<0>();
        @FREE@
        before = -1;
        @ADD_OWN@"""
