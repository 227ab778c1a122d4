  if (warp < 4) {  // the producers
    @FEWER@
    // They bring steps one after the other, at most as many as there are stages: none is two phases of a barrier ahead.
    constexpr int PRODUCERS = STAGES < 4 ? STAGES : 4;
@PRODUCED_TILES@
      for (int step = begin; step < end; ++step) {
        if (producer == warp) {
          const int first = @NAME@_first_tap[tap_group], taps = @NAME@_first_tap[tap_group + 1] - first;
          const int rows = @NAME@_rows[tap_group];@FRESH@
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;@AWAIT_LEFT@
          kw_barrier_wait(empty + 8 * stage, parity);
          __syncwarp();
          if (lane == 0) kw_barrier_expect(filled, LINES * 16 * (rows + @LINE_TAPS@ * COLUMNS));
          __syncwarp();
#pragma unroll 1
          for (int i = lane * X_CHUNKS; i < LINES; i += 32 * X_CHUNKS) {
            const unsigned short* from = x + i / CHUNKS * @LEFT_TERM@LL +
                ((depth * CHUNKS + i % CHUNKS) * @LEFT_BLOCK@LL + @NAME@_place[tap_group]) * 8;
            kw_bulk_copy(buffer + i * (PITCH * 16), from, X_CHUNKS * rows * 16, filled);
          }
@BRING_RIGHT@
        }
        if (++producer == PRODUCERS) producer = 0;@COUNT_FILLS@
        @NEXT_STAGE@
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
    }
  }
