// Adds the parts of sums in order, into the first.
static __global__ void __launch_bounds__(@THREADS@) @NAME@_add_parts(float4* __restrict__ sums) {
  constexpr long long PART = @PART@LL / 4;
  const long long at = blockIdx.x * @THREADS@LL + threadIdx.x;
  if (at >= PART) return;
  float4 sum = sums[at];
#pragma unroll 8
  for (int part = 1; part < @SPLIT@; ++part) {
    const float4 more = sums[at + part * PART];
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
  sums[at] = sum;
}
