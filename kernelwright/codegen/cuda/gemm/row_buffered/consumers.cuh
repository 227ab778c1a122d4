    const int team = warp / 4 - 1, thread = threadIdx.x % 128, block = team % BESIDE;
    int turn = 0, lines = 0;  // items and lines of x of the strips before@RESULTS_BEGIN@
    for (int strip = blockIdx.x; strip < STRIPS; strip += gridDim.x) {
      const int begin = strip % PARTS * EACH, count = min(EACH, LINES - begin);@BEGIN_TOTALS@
      for (int item = (team - turn % TEAMS + TEAMS) % TEAMS; item < count * ITEMS; item += TEAMS) {
        const int line = item / ITEMS, segment = item % ITEMS / BESIDE, first = lines + line * STRIDE;
        if (TEAMS > 1) @AWAIT_ORDER@
        float sums[POSITIONS / 2];@POOLED@
#pragma unroll 1
        for (int phase = 0; phase < PHASES; ++phase) {
          const int line_of_x = first + phase * (STRIDE / PHASES);
#pragma unroll
          for (int i = 0; i < WINDOW; ++i)
            kw_barrier_wait(full + 8 * ((line_of_x + i) % SLOTS), (line_of_x + i) / SLOTS & 1);
          __syncwarp();
@STEP@
        }
      }@END_TOTALS@
      turn += count * ITEMS, lines += (count - 1) * STRIDE + SPAN;
    }
