// The power of two by which sums are multiplied whose operand's greatest magnitude has these bits, as bits: infinite
// where the operand is, 0 where all of it is 0.
static __device__ __forceinline__ unsigned NAME_scale(unsigned greatest) {
  if (greatest >= 0x7f800000u) return 0x7f800000u;
  return greatest == 0u ? 0u : (max(greatest >> 23, 15u) - 14u) << 23;
}
// Its inverse, by which the operand is multiplied; 0 where it is not finite.
static __device__ __forceinline__ float NAME_inverse(float factor) {
  return factor < 0x1p127f ? __uint_as_float(0x7f000000u - __float_as_uint(factor)) : 0.0f;
}
