  if (warp < 4 * @PRODUCER_GROUPS@) {  // the producers
    @FEWER@
    // SIZE warps bring a step together, and TURNS steps are brought at a time; between two of a warp's steps there are
    // no more than stages, so that none is two phases of a barrier ahead. An item are 32 rows of a chunk.
    constexpr int SIZE = @FILL_WARPS@, TURNS = @FILL_TURNS@, ITEMS = @FILL_ITEMS@, BATCH = @FILL_BATCH@;
    const int part = warp % SIZE;
@PRODUCED_TILES@
      @NAME@_row row[ITEMS];
      for (int step = begin; step < end; ++step) {
        if (turn == warp / SIZE) {
          const int first = @NAME@_first_tap[piece], taps = @NAME@_first_tap[piece + 1] - first;@FRESH@
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;
          const int rows = @NAME@_rows[piece];
          if (@FIND@) {
            const @ROW@ first_row = static_cast<@ROW@>(row_block) * APART + @NAME@_shift[piece];
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
              @NAME@_find(row[i], @SCALES_OF@first_row + (part + SIZE * i) / CHUNKS * 32 + lane, group,
                          @NAME@_input_phase[piece]);
          }
#pragma unroll
          for (int batch = 0; batch < ITEMS; batch += BATCH) {
            float x[BATCH][8];
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
              if (batch + b < ITEMS)
                @NAME@_take(@TAKEN@row[batch + b], x[b], group,
                            (depth * CHUNKS + (part + SIZE * (batch + b)) % CHUNKS) * 8);
            if (batch == 0) {
              kw_barrier_wait(empty + 8 * stage, parity);
              __syncwarp();
              if (part == 0) {
                if (lane == 0) kw_barrier_expect(filled, LINES * 16 * @LINE_TAPS@ * COLUMNS);
                __syncwarp();
@BRING_RIGHT@
              }
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
              const int item = part + SIZE * (batch + b), at = item / CHUNKS * 32 + lane;
              // Of the last rows there may be fewer than 32.
              if (batch + b < ITEMS && ((SIZE - 1 + SIZE * (batch + b)) / CHUNKS * 32 + 32 <= ROWS || at < rows))
                @NAME@_put(@MARKED@row[batch + b], x[b],
                           reinterpret_cast<uint4*>(shared + stage * STAGE_BYTES) + item % CHUNKS * PITCH + at);
            }
          }
          kw_shared_written();
          __syncwarp();
          if (lane == 0) kw_barrier_arrive(filled);
        }
        @NEXT_STAGE@@COUNT_FILLS@
        if (++depth == DEPTHS) depth = 0, ++piece;
        if (@PASS_TURN@ && ++turn == TURNS) turn = 0;
      }
    }
  }
