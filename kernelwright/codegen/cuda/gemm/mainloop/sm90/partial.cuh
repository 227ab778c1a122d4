      // The sums of this part, thread after thread; @NAME@_merge finishes them.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;
      const long long partial_slot =
          ((part_number * @GROUPS@LL + group) * @CLASSES@ + phase_class) * @ALL_ROW_BLOCKS@ + row_block;
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) {
        const long long rows = (partial_slot * @COLUMN_BLOCKS@ + column_block) * (ROWS / 64) + part_row / 64 + p;
        float* to = partial + thread + rows * (COLUMNS / 2 * 128);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) to[i * 128] = sums[p][i];
      }
