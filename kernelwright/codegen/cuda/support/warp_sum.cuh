// Sum over the 32 lanes of a warp; every lane calls it and receives the same bits (fixed order).
template <typename T>
static __device__ __forceinline__ T kw_warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
