// Maximum over the 32 lanes of a warp, NaN when any lane holds one; every lane calls it and receives it.
template <typename T>
static __device__ __forceinline__ T kw_warp_max(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    value = kw_maximum(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
