      if (warp != 0) {
        const int column_block = rest / SPLIT % @COLUMN_BLOCKS@;
        for (int step = begin; step < end; ++step) {
          kw_barrier_wait(empty + 8 * stage, parity ^ 1);
          for (int line = 32 * (warp - 1) + lane; line < 2 * COLUMNS; line += 96) {  // of 128 bytes
            const long long o = column_block * COLUMNS + @LINE_COLUMN@, c = step * @DEPTH@LL + @LINE_CHANNEL@;
            if (o < @OUT_CHANNELS@ && c < @IN_CHANNELS@) kw_prefetch(@WEIGHT_OF_LINE@);
          }
          @NEXT_STAGE@
        }
        continue;
      }
