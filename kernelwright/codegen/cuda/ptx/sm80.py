"""PTX of compute capability 8.0 that contractions use: asynchronous copies, matrix loads, products of a warp.

Fragments are those of the PTX manual, "Matrix Fragments for mma.m16n8k16" (lane = 4 * group + t)::

    a[0..3]  rows group, group + 8, group, group + 8; two neighbours of k from 2 t, 2 t, 2 t + 8, 2 t + 8 on
    b0, b1   column group; two neighbours of k from 2 t, 2 t + 8 on
    d[0..3]  row group, columns 2 t and 2 t + 1; then row group + 8

ldmatrix gives lane l word l % 4 of row l / 4 of each 8 x 8 matrix, the rows of matrix i at the addresses of lanes
8 i .. 8 i + 7: so it makes those fragments of operands whose rows are 8 neighbours of k, 16 bytes.
"""

from __future__ import annotations

_MMA = r"""
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
"""

_WRITTEN = r"""
#ifndef KERNELWRIGHT_EMULATION
// The pointer; what this block wrote before a barrier is read through it afterwards.
template <typename T>
static __device__ __forceinline__ T* kw_written(T* pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
  return pointer;
}
#endif
"""

_MMA_FLOAT64 = r"""
// d += a * b over 16 rows, 8 columns and 4 terms in float64: lane 4 r + k has a[r][k], a[r + 8][k] and b[k][r], and of
// d columns 2 k and 2 k + 1 of rows r and r + 8 (compute capability 9.0; products of 8 rows take it as long).
#ifndef KERNELWRIGHT_EMULATION
static __device__ __forceinline__ void kw_mma_float64(double (&d)[4], double a0, double a1, double b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3]) : "d"(a0), "d"(a1), "d"(b));
}
#endif
"""

MMA_SNIPPETS: dict[str, str] = {"mma_sync": _MMA.lstrip("\n"), "written": _WRITTEN.lstrip("\n"),
                                "mma_float64": _MMA_FLOAT64.lstrip("\n")}
"""``written`` defines ``kw_written``, ``mma_float64`` ``kw_mma_float64``; ``mma_sync`` defines ``kw_shared_address``,
``kw_cp_async_16``, ``kw_cp_async_commit``, ``kw_cp_async_wait``, ``kw_ldmatrix``, ``kw_mma_float16`` and
``kw_mma_bfloat16``."""
