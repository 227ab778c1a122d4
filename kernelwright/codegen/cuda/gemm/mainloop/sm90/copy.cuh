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
  }
