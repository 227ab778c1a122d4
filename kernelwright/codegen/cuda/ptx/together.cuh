#ifndef KERNELWRIGHT_EMULATION
// A value and a tag in eight bytes of global memory, which are written and read at once: who sees the tag has the
// value, whatever block wrote it, with no fence and no barrier (as NCCL's protocol LL).
static __device__ __forceinline__ void kw_tagged_store(unsigned long long* to, float value, unsigned tag) {
  const unsigned long long word = static_cast<unsigned long long>(tag) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "l"(word) : "memory");
}
static __device__ __forceinline__ unsigned long long kw_tagged_load(const unsigned long long* from) {
  unsigned long long word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(__cvta_generic_to_global(from)) : "memory");
  return word;
}
// The value at `from`, where `word` was read before, once it has this tag.
static __device__ __forceinline__ float kw_tagged_await(const unsigned long long* from, unsigned long long word,
                                                        unsigned tag) {
  while (word >> 32 != tag) word = kw_tagged_load(from);
  return __uint_as_float(static_cast<unsigned>(word));
}

// The launch of a kernel all of whose blocks run at once, or none.
template <typename... Parameters, typename... Values>
static cudaError_t kw_launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t stream, Values... values) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, values...);
}
#endif  // KERNELWRIGHT_EMULATION
