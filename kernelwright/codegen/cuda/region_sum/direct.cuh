// One group of @LANES@ threads per output.
static __global__ void __launch_bounds__(256) @NAME@_direct(
    const @IN@* __restrict__ x, @OUT@* __restrict__ out) {
  const long long thread = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const long long output = thread / @LANES@;
  double sum = output < @OUTPUTS@ ? @NAME@_one(x, output, static_cast<int>(thread % @LANES@)) : 0.0;
  for (int offset = @LANES@ / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (output < @OUTPUTS@ && thread % @LANES@ == 0) out[output] = static_cast<@OUT@>(@SCALE@ * sum);
}

static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  (void)workspace;
  KW_LAUNCH("@NAME@", @NAME@_direct, @BLOCKS@, 256, 0, stream, x, out);
  return nullptr;
}
