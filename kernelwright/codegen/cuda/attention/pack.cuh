// Operands as tensor cores take them. A tile of TALL rows and 8 * CHUNKS elements of each becomes two float16 terms of
// its values times a power of two: chunks of 8 elements, each of them for all rows. PACKERS threads have a part of it
// each, of which neighbours take neighbouring rows, or where ALONG neighbouring chunks of a row.
template <int TALL, int CHUNKS, bool ALONG>
struct Tile {
  static constexpr int PLACES = TALL * CHUNKS, EACH = (PLACES + PACKERS - 1) / PACKERS;
  float x[EACH][8];

  // `value` fills in 8 neighbouring elements of a row, or leaves zeros.
  template <typename Value>
  __device__ __forceinline__ void take(Value value) {
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const int place = threadIdx.x + n * PACKERS;
#pragma unroll
      for (int e = 0; e < 8; ++e) x[n][e] = 0.0f;
      if (place < PLACES)
        value(x[n], ALONG ? place / CHUNKS : place % TALL, (ALONG ? place % CHUNKS : place / TALL) * 8);
    }
  }

  // `factor` becomes the inverse of the power of two; `flag` is set where a value is not finite, or where 8 neighbours
  // are so much less than the greatest value that they would lose digits. `extremes` are two numbers for each warp, which
  // the next call but one may have again.
  __device__ __forceinline__ void put(unsigned short* to, float* factor, unsigned* flag, unsigned* extremes) const {
    unsigned greatest = 0u, least = 0xffffffffu;  // of the greatest of 8 neighbours, but of zeros
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      unsigned own = 0u;
#pragma unroll
      for (int e = 0; e < 8; ++e) own = max(own, __float_as_uint(x[n][e]) & 0x7fffffffu);
      greatest = max(greatest, own);
      least = min(least, own - 1u);  // that of zeros is the greatest number
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
      greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, lanes));
      least = min(least, __shfl_xor_sync(0xffffffffu, least, lanes));
    }
    if (threadIdx.x % 32 == 0) {
      extremes[2 * (threadIdx.x / 32)] = greatest;
      extremes[2 * (threadIdx.x / 32) + 1] = least;
    }
    kw_part_sync(1, PACKERS);
#pragma unroll
    for (int warp = 0; warp < PACKERS / 32; ++warp) {
      greatest = max(greatest, extremes[2 * warp]);
      least = min(least, extremes[2 * warp + 1]);
    }
    // The greatest value becomes one of 2^14 to 2^15.
    const unsigned exponent = max(min(greatest >> 23, 254u), 15u);
    const float scale = __uint_as_float((268u - exponent) << 23);
    if (threadIdx.x == 0) {
      *factor = __uint_as_float((exponent - 14u) << 23);
      if (greatest >= 0x7f800000u || (least < greatest && greatest - least > LOUDER << 23)) *flag = 1u;
    }
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
      const int place = threadIdx.x + n * PACKERS;
      if (place >= PLACES) break;
      const int at = ALONG ? place % CHUNKS * TALL + place / CHUNKS : place;
      unsigned high[4], low[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) split(x[n][2 * e] * scale, x[n][2 * e + 1] * scale, high[e], low[e]);
      reinterpret_cast<uint4*>(to)[at] = make_uint4(high[0], high[1], high[2], high[3]);
      reinterpret_cast<uint4*>(to)[PLACES + at] = make_uint4(low[0], low[1], low[2], low[3]);
    }
  }
};
using Queries = Tile<64, DEEP_CHUNKS, @QUERY_ALONG@>;
using Keys = Tile<TILE_COLUMNS, DEEP_CHUNKS, @KEY_ALONG@>;
using Values = Tile<WIDE, TILE_CHUNKS, @VALUE_ALONG@>;
