    @MORE@
    const int worker = warp / 4 - 1, thread = threadIdx.x % 128;
    int stage = 0;
    unsigned parity = 0@TILE_NUMBER@;
    for (int work = blockIdx.x; work < WORKS; work += gridDim.x) {
      const int row_block = work % @ROW_BLOCKS@, rest = work / @ROW_BLOCKS@, part = rest % SPLIT;
      const int column_block = rest / SPLIT % @COLUMN_BLOCKS@, group = rest / SPLIT / @COLUMN_BLOCKS@;
      [[maybe_unused]] const int partial_slot = (group * @COLUMN_BLOCKS@ + column_block) * @ROW_BLOCKS@ + row_block;
      const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT);
      const int first = column_block * COLUMNS + worker * 64 + thread / 4 * 2;  // of two output channels
      const float* from = @WEIGHT@;
      float sums[POSITIONS / 2] = {}, x[4][2][4];
      float greatest[2] = {};
      @NAME@_take(from, x@FIRST_STEP@);
#pragma unroll 1
      for (int step = begin; step < end; ++step) {
        unsigned high[4][4], low[4][4];
        float factor[2], products[POSITIONS / 2];
        @NAME@_split(x, high, low, factor, greatest);
        // On its way while this step's products are formed.
        from += @STEP@;
        if (step + 1 < end) @NAME@_take(from, x@NEXT_STEP@);
        kw_barrier_wait(full + 8 * stage, parity);
        __syncwarp();
        const unsigned long long right = kw_operand(stages + stage * STAGE_BYTES, POSITIONS * 16);
@AWAIT_ORDER@        kw_wgmma_fence();
        // Terms of w and x: low high, high low, high high. Low ones come first, because tensor cores cut sums.
#pragma unroll
        @PAIRS@
#pragma unroll
          for (int k = 0; k < 4; ++k)
            kw_wgmma_f16(products, pair == 0 ? low[k] : high[k],
                         right + (pair == 1 ? CHUNKS * POSITIONS : 0) + 2 * k * POSITIONS,
                         pair > @FIRST_PAIR@ || k > 0);
        }
        kw_wgmma_commit();@PASS_ORDER@
        kw_wgmma_wait<0>();
        kw_wgmma_hold(products);@PROMOTE@
        @NEXT_STAGE@
      }
@MAKE_UP@      // Sums are of w itself. Where that is not finite, or so large or small that sums in float32 might not
      // hold it, the epilogue is told to compute them again.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool fast = greatest[h] == 0.0f
            || (greatest[h] > 0x1p-@FAST_EXPONENT@f && greatest[h] < 0x1p@FAST_EXPONENT@f);
        const int o = first + h;
        if (lane % 4 == 0 && o < @OUT_CHANNELS@) {
          @SCALES@
        }
      }@RESULTS@
    }
