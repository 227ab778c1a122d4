  if (warp < 4 * @PRODUCER_GROUPS@) {  // the producers
    @FEWER@
    // SIZE warps bring a step together, and STEPS_AT_ONCE steps are brought at a time; between two of a warp's steps
    // there are no more than stages: none is two phases of a barrier ahead. A load chunk is 32 rows of a chunk.
    constexpr int SIZE = @FILL_WARPS@, STEPS_AT_ONCE = @FILL_STEPS_AT_ONCE@;
    constexpr int LOAD_CHUNKS = @FILL_LOAD_CHUNKS@, BATCH = @FILL_BATCH@;
    const int part = warp % SIZE;
@PRODUCED_TILES@
      @NAME@_row row[LOAD_CHUNKS];
      for (int step = begin; step < end; ++step) {
        if (producer == warp / SIZE) {
          const int first = @NAME@_first_tap[tap_group], taps = @NAME@_first_tap[tap_group + 1] - first;@FRESH@
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;
          const int rows = @NAME@_rows[tap_group];
          if (@FIND@) {
            const @ROW@ first_row = static_cast<@ROW@>(row_block) * APART + @NAME@_shift[tap_group];
#pragma unroll
            for (int i = 0; i < LOAD_CHUNKS; ++i)
              @NAME@_find(row[i], @SCALES_OF@first_row + (part + SIZE * i) / CHUNKS * 32 + lane, group,
                          @NAME@_input_phase[tap_group]);
          }
#pragma unroll
          for (int batch = 0; batch < LOAD_CHUNKS; batch += BATCH) {
            float x[BATCH][8];
#pragma unroll
            for (int b = 0; b < BATCH; ++b)
              if (batch + b < LOAD_CHUNKS)
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
              const int load_chunk = part + SIZE * (batch + b), at = load_chunk / CHUNKS * 32 + lane;
              // Of the last rows there may be fewer than 32.
              if (batch + b < LOAD_CHUNKS && ((SIZE - 1 + SIZE * (batch + b)) / CHUNKS * 32 + 32 <= ROWS || at < rows))
                @NAME@_put(@MARKED@row[batch + b], x[b],
                           reinterpret_cast<uint4*>(shared + stage * STAGE_BYTES) + load_chunk % CHUNKS * PITCH + at);
            }
          }
          kw_shared_written();
          __syncwarp();
          if (lane == 0) kw_barrier_arrive(filled);
        }
        @NEXT_STAGE@@COUNT_FILLS@
        if (++depth == DEPTHS) depth = 0, ++tap_group;
        if (@NEXT_PRODUCER@ && ++producer == STEPS_AT_ONCE) producer = 0;
      }
    }
  }
