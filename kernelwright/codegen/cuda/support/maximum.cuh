// The larger of two values; NaN when either is NaN (fmaxf would drop it).
template <typename T>
static __device__ __forceinline__ T kw_maximum(T a, T b) {
  return (a > b || a != a) ? a : b;
}
