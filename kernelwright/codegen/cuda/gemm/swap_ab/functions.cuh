// A thread's part of w in a step, which begins at `from`: of rows o and o + 1 four channels of every 16. What products
// take as their terms k, k + 1, k + 8, k + 9 are four neighbours; x is packed in the same order.
static __device__ __forceinline__ void @NAME@_take(const float* __restrict__ from, float (&x)[4][2][4]@WHERE@) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {@TAKE@
  }
}

// Splits them into float16 terms, times the power of two that brings the greatest of a row's channels into
// [2^14, 2^15); `factor` is its inverse, `greatest` the greatest magnitude of a row so far. What is not finite, and
// NaN, is not finite in all sums of its row; where it is in `greatest` they are computed again. Four lanes have a row.
static __device__ __forceinline__ void @NAME@_split(const float (&x)[4][2][4], unsigned (&high)[4][4],
                                                    unsigned (&low)[4][4], float (&factor)[2], float (&greatest)[2]) {
  constexpr int TERMS = @TERMS@;
  float most[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) most[h] = fmaxf(most[h], fabsf(x[k][h][e]));
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], lanes));
    greatest[h] = fmaxf(greatest[h], most[h]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned exponent = min(268u - (__float_as_uint(most[h]) >> 23), 253u);
    const float scale = __uint_as_float(exponent << 23);
    factor[h] = __uint_as_float((254u - exponent) << 23);
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = x[k][h][2 * i] * scale, second = x[k][h][2 * i + 1] * scale;
        high[k][h + 2 * i] = kw_float16_pair(first, second);
        if (TERMS == 2)
          low[k][h + 2 * i] = kw_float16_pair(first - kw_float16_value(high[k][h + 2 * i]),
                                              second - kw_float16_value(high[k][h + 2 * i] >> 16));
      }
  }
}

// Finishes a tile: its warpgroups put their sums into subtiles of 64 positions, and finish one of these each.
static __device__ __forceinline__ void @NAME@_results(
    @FINISH_PARAMETERS@, const float (&sums)[@POSITIONS@ / 2], float* subtiles, int worker, int thread, int group,
    int row_block, int column_block) {
  constexpr int COLUMNS = @COLUMNS@, SUBTILE_COLUMNS = @SUBTILE_COLUMNS@, ACROSS = COLUMNS / SUBTILE_COLUMNS;
  // Of a thread's sums: the subtile, the first channel in it, the first position.
  const int channel = worker * 64 % SUBTILE_COLUMNS + @OWN_CHANNEL@, position = @OWN_PLACE@;
  float* const own = subtiles + worker * 64 / SUBTILE_COLUMNS * @SUBTILE@;
#pragma unroll
  for (int j = 0; j < @ROWS@ / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      own[j / 8 * ACROSS * @SUBTILE@ + (@BLOCK_PLACE@ + position + @PAIR_PLACE@) * @ROW_STRIDE@ +
          (channel + @HALF_CHANNEL@) * @COLUMN_STRIDE@] = j < @POSITIONS@ / 8 ? sums[4 * j + e] : 0.0f;
  kw_part_sync(15, 128 * @WORKERS@);
#pragma unroll 1
  for (int number = worker; number < @SUBTILES@; number += @WORKERS@) {
    float* const subtile = subtiles + number * @SUBTILE@;
    const long long first_row = row_block * @ROWS@LL + number / ACROSS * 64;@FILL_TABLE@
    @NAME@_finish(@ARGUMENTS@subtile@COLUMN_TABLE@@ROW_SCALE@, thread, 0, group, first_row,
                  column_block * COLUMNS + number % ACROSS * SUBTILE_COLUMNS);
  }
}
