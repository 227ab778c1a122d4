@BASE@        top[h] = most;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
          x = kw_quick_exp2(@EXPONENT@);
          sum += x;
        }
        total[h] = fmaf(total[h], kept[h], sum);
