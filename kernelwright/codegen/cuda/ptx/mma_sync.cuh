// Tensor cores by mma.sync (compute capability 8.0 and later).
#ifdef KERNELWRIGHT_EMULATION
// The emulation's header defines the same functions.
#else
static __device__ __forceinline__ unsigned kw_shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}
// Copies 16 bytes to shared memory without waiting; bytes from `given` on become zeros and are not read.
static __device__ __forceinline__ void kw_cp_async_16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void kw_cp_async_16(unsigned to, const void* from, unsigned given) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(given) : "memory");
}
// Closes a group of copies; `wait` returns when at most `left` of the thread's groups are under way.
static __device__ __forceinline__ void kw_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int left>
static __device__ __forceinline__ void kw_cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
// Four 8 x 8 matrices of 16-bit elements; each lane gives the shared address of one row.
static __device__ __forceinline__ void kw_ldmatrix(unsigned (&to)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
// d += a * b over 16 rows, 8 columns, 16 channels, in float32.
#define KW_MMA(name, type)                                                                                     \
  static __device__ __forceinline__ void name(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, "              \
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                               \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                              \
  }
KW_MMA(kw_mma_float16, "f16")
KW_MMA(kw_mma_bfloat16, "bf16")
#undef KW_MMA
#endif
