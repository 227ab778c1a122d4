    for (int work = blockIdx.x; work < WORKS; work += gridDim.x) {
      // Tiles of other positions and the same channels of w follow each other, so that L2 holds these.
      const int row_block = work % @ROW_BLOCKS@, rest = work / @ROW_BLOCKS@, part = rest % SPLIT;
      const int group = rest / SPLIT / @COLUMN_BLOCKS@;
      const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT);@OTHERS@
      for (int step = begin; step < end; ++step) {
        kw_barrier_wait(empty + 8 * stage, parity ^ 1);
        __syncwarp();
        if (lane == 0) kw_barrier_expect(full + 8 * stage, STAGE_BYTES);
        __syncwarp();
        for (int line = lane; line < TERMS * CHUNKS; line += 32) {
          const unsigned short* const from = left + line / CHUNKS * @LEFT_TERM@LL +
              (group * (@ALL_CHUNKS@LL * @ALL_ROWS@) + row_block * (@ALL_CHUNKS@LL * @ROWS@) +
               (step * CHUNKS + line % CHUNKS) * @ROWS@LL) * 8;
          const unsigned to = stages + stage * STAGE_BYTES + line * (POSITIONS * 16);
          kw_bulk_copy(to, from, POSITIONS * 16, full + 8 * stage);
        }
        @NEXT_STAGE@
      }
    }
