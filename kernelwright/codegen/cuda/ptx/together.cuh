#ifndef KERNELWRIGHT_EMULATION
// A value and a tag in eight bytes of global memory, which are written and read at once: who sees the tag has the
// value, whatever block wrote it, with no fence and no barrier (as NCCL's protocol LL).
static __device__ __forceinline__ void kw_tagged_store(unsigned long long* to, float value, unsigned tag) {
  const unsigned long long word = static_cast<unsigned long long>(tag) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" :: "l"(__cvta_generic_to_global(to)), "l"(word) : "memory");
}
// The values of COUNT pairs of words, the first at `from` and each `apart` words behind the one before, once they have
// this tag: those of the `there` words from `from` on. All that are missing are asked for at once, again and again.
template <int COUNT>
static __device__ __forceinline__ void kw_tagged_receive(const unsigned long long* from, int apart, int there,
                                                         unsigned tag, float (&value)[COUNT][2]) {
  unsigned long long word[COUNT][2];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) word[i][0] = word[i][1] = 0;  // no step has this tag
  bool all;
  do {
    all = true;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
      const bool missing = (word[i][0] >> 32 != tag && i * apart < there)
                           || (word[i][1] >> 32 != tag && i * apart + 1 < there);
      if (missing)
        asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(word[i][0]), "=l"(word[i][1])
                     : "l"(__cvta_generic_to_global(from + i * apart)) : "memory");
      all = all && !missing;
    }
  } while (!all);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    value[i][0] = __uint_as_float(static_cast<unsigned>(word[i][0]));
    value[i][1] = __uint_as_float(static_cast<unsigned>(word[i][1]));
  }
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
