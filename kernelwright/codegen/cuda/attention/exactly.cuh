// Rows of a point of which some operand is not finite, in multiply-adds alone: split into terms, infinities would be no
// numbers. So are those of operands some of which would lose digits beside others, and of scores and weights beyond what
// terms hold.
static __device__ __noinline__ void exactly(@EXACT_PARAMETERS@int first_row, int end_row, int begin) {
  constexpr int EACH = (WIDE + 31) / 32;
  const int lane = threadIdx.x % 32, end = begin + WIDE < WIDTH ? begin + WIDE : WIDTH;
#pragma unroll 1
  for (int i = first_row; i < end_row; ++i) {
    const int columns = columns_of(i);
    float sums[EACH]@EXACT_STATE@;
#pragma unroll
    for (int n = 0; n < EACH; ++n) sums[n] = 0.0f;
    const auto score_at = [&](int j) {
      float product = 0.0f;
#pragma unroll 1
      for (int k = 0; k < DEPTH; ++k) product = fmaf(@QUERY_AT@, @KEY_AT@, product);
      return @SCORE_AT@;
    };
@EXACT_TOP@
#pragma unroll 1
    for (int first = 0; first < columns; first += 32) {
      const int own = first + lane;
      const float weight = own < columns ? @EXACT_WEIGHT@ : 0.0f;
@EXACT_TOTAL@
      const int count = columns - first < 32 ? columns - first : 32;
#pragma unroll 1
      for (int other = 0; other < count; ++other) {
        const float given = __shfl_sync(0xffffffffu, weight, other);
        const int j = first + other;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
          const int p = begin + lane + 32 * n;
          if (p < end) sums[n] = fmaf(given, @VALUE_AT@, sums[n]);
        }
      }
    }
@EXACT_WHOLE@
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const int p = begin + lane + 32 * n;
      if (p < end) @EXACT_STORE@
    }
  }
}
