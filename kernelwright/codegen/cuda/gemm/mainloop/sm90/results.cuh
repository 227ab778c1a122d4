      // Subtile by subtile through shared memory to the epilogue.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;@PLACES@
#pragma unroll 1
      for (int number = 0; number < PRODUCTS / HEIGHT * SUBTILES; ++number) {
        const long long first_row = row_block * (1LL * APART) + part_row + number / SUBTILES * (HEIGHT * 64);@ROW_SCALE@
        kw_part_sync(1 + worker, 128);  // The subtile before has been read.
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
          for (int s = 0; s < SUBTILES; ++s)
            if (number == p / HEIGHT * SUBTILES + s)
              @NAME@_stage(@STAGED_SUMS@, s * (SUBTILE_COLUMNS / 2), subtile, thread@PASS_PLACES@);
        kw_part_sync(1 + worker, 128);
        @NAME@_finish(@ARGUMENTS@subtile@COLUMN_TABLE@@PASS_SCALE@, thread, phase_class, group, first_row,
                      column_block * COLUMNS + number % SUBTILES * SUBTILE_COLUMNS);
      }
