"""The parts of the text of a contraction's core on wgmma that form the sums of a tile.

``@NAME@`` stands for what `mainloop.sm90.accumulate`, which puts them together, or `mainloop.sm90.core` fills in.
Long ones are files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.source import part_beside, text_beside

# Where a tile's tap groups begin and end.
OWN_TAP_GROUPS = """
      const int first_tap_group = @NAME@_tap_groups[phase_class];
      const int last_tap_group = @NAME@_tap_groups[phase_class + 1];"""

ADD = "\n" + text_beside(__file__, "add.cuh")

ZERO = """
#pragma unroll
      for (int p = @FIRST@; p < @END@; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) @ZEROS@ = 0.0f;"""

# One set of registers beside the sums, or none. They begin as zeros, so that they do not live from tile to tile.
LOOP = "\n" + text_beside(__file__, "loop.cuh")

COUNTS = """
      int add = 0, since = @OFFSET@;  // whether `part` holds something; steps since the last promotion"""

NO_PROMOTION = """kw_wgmma_wait<1>();  // The step before is done.
        @FREE@
        before = stage;"""

PROMOTE = part_beside(__file__, "promote.cuh")

REST = """
      if (add) {
        @ADD_PART@
      }"""

# Two sets beside the sums, many steps.
ROUNDS = """
      float sums[@ALL_SUMS@][COLUMNS / 2], part[2][@ALL_SUMS@][COLUMNS / 2];@ZERO@
      int before = -1;  // a stage whose products may still be running
      int step = begin, tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      // Intervals are summed in part[0] and part[1] in turn: one is added while products go to the other. No products
      // are on their way where paths meet, because the compiler would make all of them wait for each other.
      while (step < end) {@INTERVALS@
      }
"""

INTERVAL = "\n" + part_beside(__file__, "interval.cuh")

# One set beside the sums, many steps, each of them an interval.
HALF_ROUNDS = """
      float sums[@ALL_SUMS@][COLUMNS / 2], part[@ALL_SUMS@][COLUMNS / 2];@ZERO@
      int before = -1;  // a stage whose products may still be running
      int step = begin, tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      // One half of a step's sums is added while the products of the other one run. No products are on their way where
      // paths meet, because the compiler would make all of them wait for each other.
      while (step < end) {@INTERVALS@
      }
"""

HALF_INTERVAL = "\n" + part_beside(__file__, "half_interval.cuh")

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
