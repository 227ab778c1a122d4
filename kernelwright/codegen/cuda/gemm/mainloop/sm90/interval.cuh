        @OPEN@
          const int first = @NAME@_first_tap[tap_group]@LAST_TAP@;
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
          if (++depth == DEPTHS) depth = 0, ++tap_group;@COUNT@
        @CLOSE@@ADD_OTHER@
