    const int warpgroup = warp / 4 - 1, thread = threadIdx.x % 128, block = warpgroup % BESIDE;
    int tiles_before = 0, lines = 0;  // work tiles and lines of x of the strips before@RESULTS_BEGIN@
    for (int strip = blockIdx.x; strip < STRIPS; strip += gridDim.x) {
      const int begin = strip % PARTS * EACH, count = min(EACH, LINES - begin);@BEGIN_PARTIALS@
      const int first_tile = (warpgroup - tiles_before % WARPGROUPS + WARPGROUPS) % WARPGROUPS;
      for (int work_tile = first_tile; work_tile < count * WORK_TILES; work_tile += WARPGROUPS) {
        const int line = work_tile / WORK_TILES, segment = work_tile % WORK_TILES / BESIDE;
        const int first = lines + line * STRIDE;
        if (WARPGROUPS > 1) @AWAIT_ORDER@
        float sums[POSITIONS / 2];@POOLED@
#pragma unroll 1
        for (int pool_line = 0; pool_line < POOL_LINES; ++pool_line) {
          const int line_of_x = first + pool_line * (STRIDE / POOL_LINES);
#pragma unroll
          for (int i = 0; i < WINDOW; ++i)
            kw_barrier_wait(full + 8 * ((line_of_x + i) % SLOTS), (line_of_x + i) / SLOTS & 1);
          __syncwarp();
@STEP@
        }
      }@END_PARTIALS@
      tiles_before += count * WORK_TILES, lines += (count - 1) * STRIDE + SPAN;
    }
