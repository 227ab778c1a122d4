      // Slab by slab through shared memory to the epilogue.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;@PLACES@
#pragma unroll 1
      for (int number = 0; number < PRODUCTS / HEIGHT * SLABS; ++number) {
        const long long first_row = row_block * (1LL * APART) + part_row + number / SLABS * (HEIGHT * 64);@ROW_SCALE@
        kw_part_sync(1 + worker, 128);  // The slab before has been read.
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
          for (int s = 0; s < SLABS; ++s)
            if (number == p / HEIGHT * SLABS + s)
              @NAME@_stage(@STAGED_SUMS@, s * (SLAB_COLUMNS / 2), slab, thread@PASS_PLACES@);
        kw_part_sync(1 + worker, 128);
        @NAME@_finish(@ARGUMENTS@slab@COLUMN_TABLE@@PASS_SCALE@, thread, phase_class, group, first_row,
                      column_block * COLUMNS + number % SLABS * SLAB_COLUMNS);
      }
