"""Text shared by the generated CUDA kernels: the checking macros and small device helpers."""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.codegen.cuda.ptx.sm80 import MMA_SNIPPETS
from kernelwright.codegen.cuda.ptx.sm90 import TENSOR_NEEDS, TENSOR_SNIPPETS

_CHECK = r"""
// Checked CUDA calls and launches: a failure returns a message that names the kernel.
#include <cmath>
#include <cstdint>
#ifdef KERNELWRIGHT_EMULATION
// The emulation's header, which is included before this text, defines the same macros.
#else
#include <cstdio>
#include <cuda_runtime.h>

// Message of a failed call. The text is valid until this thread's next failure. Reading the
// error clears it, so that a later launch does not report it again.
static inline const char* kw_failure(const char* where, const char* call, cudaError_t error) {
  static thread_local char message[768];
  (void)cudaGetLastError();
  snprintf(message, sizeof(message), "%s: %s failed: %s (CUDA error %d)", where, call,
           cudaGetErrorString(error), static_cast<int>(error));
  return message;
}

static inline const char* kw_launch_failure(const char* where, const char* kernel, dim3 grid, dim3 block,
                                            size_t shared_bytes, cudaError_t error) {
  static thread_local char call[256];
  snprintf(call, sizeof(call), "launch of %s<<<(%u, %u, %u), (%u, %u, %u), %zu>>>", kernel, grid.x, grid.y,
           grid.z, block.x, block.y, block.z, shared_bytes);
  return kw_failure(where, call, error);
}

// Grid and block extents. An integer that dim3 would cut to 32 bits becomes 0, which no launch accepts.
static inline dim3 kw_extent(dim3 extent) { return extent; }
static inline dim3 kw_extent(long long extent) {
  return dim3(extent > 0 && extent <= 2147483647LL ? static_cast<unsigned>(extent) : 0u);
}

#define KW_CHECK(where, call)                                                           \
  do {                                                                                  \
    const cudaError_t kw_error_ = (call);                                               \
    if (kw_error_ != cudaSuccess) return kw_failure(where, #call, kw_error_);           \
  } while (0)

#define KW_LAUNCH(where, kernel, grid, block, shared_bytes, stream, ...)                \
  do {                                                                                  \
    const dim3 kw_grid_ = kw_extent(grid);                                              \
    const dim3 kw_block_ = kw_extent(block);                                            \
    const size_t kw_shared_ = (shared_bytes);                                           \
    kernel<<<kw_grid_, kw_block_, kw_shared_, (stream)>>>(__VA_ARGS__);                 \
    const cudaError_t kw_error_ = cudaGetLastError();                                   \
    if (kw_error_ != cudaSuccess)                                                       \
      return kw_launch_failure(where, #kernel, kw_grid_, kw_block_, kw_shared_, kw_error_); \
  } while (0)

// Declares `type* name`, the block's dynamic shared memory, aligned to 16 bytes.
#define KW_DYNAMIC_SHARED(type, name)                                                   \
  extern __shared__ __align__(16) unsigned char kw_dynamic_shared_[];                   \
  type* name = reinterpret_cast<type*>(kw_dynamic_shared_)
#endif  // KERNELWRIGHT_EMULATION
"""

_THREAD_RANK = r"""
// Position of the calling thread in its block, x fastest.
static __device__ __forceinline__ unsigned kw_thread_rank() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
"""

_WARP_SUM = r"""
// Sum over the 32 lanes of a warp; every lane calls it and receives the same bits (fixed order).
template <typename T>
static __device__ __forceinline__ T kw_warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
"""

_BLOCK_SUM = r"""
// Sum over all threads of a block, returned to every thread; every thread of the block calls it. The block's
// thread count is a multiple of 32. The order of additions is fixed, so equal inputs give equal bits.
template <typename T>
static __device__ __forceinline__ T kw_block_sum(T value) {
  __shared__ T partial[32];
  const unsigned rank = kw_thread_rank();
  const unsigned lane = rank % 32u;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32u;
  value = kw_warp_sum(value);
  if (lane == 0) partial[rank / 32u] = value;
  __syncthreads();
  value = kw_warp_sum(lane < warps ? partial[lane] : T(0));
  __syncthreads();  // The next call may overwrite `partial`.
  return value;
}
"""

_MAXIMUM = r"""
// The larger of two values; NaN when either is NaN (fmaxf would drop it).
template <typename T>
static __device__ __forceinline__ T kw_maximum(T a, T b) {
  return (a > b || a != a) ? a : b;
}
"""

_WARP_MAX = r"""
// Maximum over the 32 lanes of a warp, NaN when any lane holds one; every lane calls it and receives it.
template <typename T>
static __device__ __forceinline__ T kw_warp_max(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    value = kw_maximum(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
"""

_BLOCK_MAX = r"""
// Maximum over all threads of a block, NaN when any thread holds one, returned to every thread; every thread
// of the block calls it. T is float or double; the block's thread count is a multiple of 32.
template <typename T>
static __device__ __forceinline__ T kw_block_max(T value) {
  __shared__ T partial[32];
  const unsigned rank = kw_thread_rank();
  const unsigned lane = rank % 32u;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32u;
  value = kw_warp_max(value);
  if (lane == 0) partial[rank / 32u] = value;
  __syncthreads();
  value = kw_warp_max(lane < warps ? partial[lane] : static_cast<T>(-INFINITY));
  __syncthreads();  // The next call may overwrite `partial`.
  return value;
}
"""

# In the order in which the texts appear in a file: each after the snippets it uses.
SNIPPETS: dict[str, str] = {
    "check": _CHECK.lstrip("\n"),
    "thread_rank": _THREAD_RANK.lstrip("\n"),
    "warp_sum": _WARP_SUM.lstrip("\n"),
    "block_sum": _BLOCK_SUM.lstrip("\n"),
    "maximum": _MAXIMUM.lstrip("\n"),
    "warp_max": _WARP_MAX.lstrip("\n"),
    "block_max": _BLOCK_MAX.lstrip("\n"),
    **TENSOR_SNIPPETS,
    **MMA_SNIPPETS,
}
"""Snippet texts by name.

``check`` defines ``KW_CHECK``, ``KW_LAUNCH`` and ``KW_DYNAMIC_SHARED``; the others define device
functions named ``kw_`` plus the snippet's name: ``T kw_warp_sum(T)``, ``T kw_block_sum(T)``,
``T kw_warp_max(T)``, ``T kw_block_max(T)`` (T float or double), ``T kw_maximum(T, T)`` and
``unsigned kw_thread_rank()``.
"""

_NEEDS: dict[str, tuple[str, ...]] = {
    "block_sum": ("thread_rank", "warp_sum"),
    "warp_max": ("maximum",),
    "block_max": ("thread_rank", "warp_max"),
    **TENSOR_NEEDS,
}


def snippets(names: Iterable[str] = ()) -> str:
    """Text of the named snippets and of those they use, each once, in a fixed order, ``check`` always first.

    Raises ValueError for a name that ``SNIPPETS`` lacks.
    """
    wanted = {"check"}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in SNIPPETS:
            raise ValueError(f"unknown CUDA snippet {name!r}; there are {', '.join(SNIPPETS)}")
        if name not in wanted:
            wanted.add(name)
            pending.extend(_NEEDS.get(name, ()))
    return "\n".join(text for name, text in SNIPPETS.items() if name in wanted)
