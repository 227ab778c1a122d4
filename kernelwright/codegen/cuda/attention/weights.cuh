        // Weights are multiplied by a power of two that brings the row's greatest so far near 2^15.
        const unsigned before = weight_exponent(top[h]), now = weight_exponent(most);
        kept[h] = now - before < 127u ? __uint_as_float((127u + before - now) << 23) : 0.0f;
        top[h] = most;
        far = far || most == INFINITY;
        const float unit = __uint_as_float((268u - now) << 23);
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) s[n / 2 * 4 + 2 * h + n % 2] *= unit;
