  if (warp < 4) {  // The producers: they bring line after line, and have several on their way.
    constexpr int LOAD_CHUNKS = @LOAD_CHUNKS@, AHEAD = @AHEAD@;  // of a warp: load chunks of a line; lines on their way
    int* const last = reinterpret_cast<int*>(shared + (order - weights) + 8 * WARPGROUPS) + warp * SLOTS;
    if (lane < SLOTS) last[lane] = 0;  // units before the first one that need not be finished for a slot to be free
    __syncwarp();
    float x[AHEAD][LOAD_CHUNKS][8];
    int asked_strip = blockIdx.x, asked_line = 0;
    const auto ask = [&](float (&to)[LOAD_CHUNKS][8]) {
      if (asked_strip >= STRIPS) return;
      const int begin = asked_strip % PARTS * EACH, count = min(EACH, LINES - begin);
#pragma unroll
      for (int i = 0; i < LOAD_CHUNKS; ++i)
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
        for (int i = 0; i < LOAD_CHUNKS; ++i)
          @NAME@_put(@MARKED@x[j % AHEAD][i], operands + W_ROWS + slot * (TERMS * TERM_ROWS), 4 * i + warp, lane);
        kw_shared_written();
        __syncwarp();
        if (lane == 0) {
          kw_barrier_arrive(full + 8 * slot);
          last[slot] = units + (min(line / (STRIDE / POOL_LINES), count * POOL_LINES - 1) + 1) * WORK_TILES;
        }
        __syncwarp();
        ask(x[j % AHEAD]);
        if (++slot == SLOTS) slot = 0;
        if (++line == (count - 1) * STRIDE + SPAN) {
          line = 0, units += count * POOL_LINES * WORK_TILES, strip += gridDim.x;@NEXT_SCALE@
        }
      }
    }
  }
