      const bool whole = (tile + 1) * TILE_COLUMNS <= fewest;  // every row has all of its columns
@SLOPE@#pragma unroll
      for (int h = 0; h < 2; ++h) {
@ROW@        float most = @MOST@;
@LIMIT@#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
@SCORE@
          most = fmaxf(most, x);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
@MOST_AFTER@@BASE@        top[h] = most;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
          x = kw_quick_exp2(@EXPONENT@);
          sum += x;
        }
        total[h] = fmaf(total[h], kept[h], sum);
      }
