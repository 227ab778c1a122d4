      float sums[@ALL_SUMS@][COLUMNS / 2]@PART@;@ZERO@@COUNTS@
      int before = -1;  // a stage whose products may still be running
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;@NO_STEPS@
      for (int step = begin; step < end; ++step) {
        const int first = @NAME@_first_tap[tap_group], last = @NAME@_first_tap[tap_group + 1];
        const unsigned buffer = stages + stage * STAGE_BYTES;
        const unsigned long long a = kw_operand(buffer + part_row * 16, @LEADING@);
        const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
        kw_barrier_wait(full + 8 * stage, parity);
        @MULTIPLY@@YIELD@
        @PROMOTE@
        @NEXT_STAGE@
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
      kw_wgmma_wait<0>();
      @FREE@@REST@
