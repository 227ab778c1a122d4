"""How fast a GPU takes results in the order in which a contraction's epilogue writes them.

    python benchmarks/result_stores.py                one line for each way of writing, JSON to --out
    python benchmarks/result_stores.py --compile-only   anywhere with nvcc

No sums and no operands: persistent blocks take tiles of 256 positions of 64 planes, and two consumer warpgroups of 128
threads write them as `epilogue.store.StorePositions` does. What changes from line to line is one thing at a time: the
hint of the store, how threads lie over positions and planes, the width (rows that begin at multiples of 128 bytes or do
not), shared memory that is taken (and so not first-level cache), and blocks on a multiprocessor. ``fill`` is PyTorch's
``fill_`` of as many bytes. Times are medians of CUDA events with a cold second-level cache.
"""

from __future__ import annotations

import ctypes
import itertools

from store_ways import BATCH, PLANES, time_ways

HINTS = ("none", "streaming", "no first level", "second level", "write through")
LAYOUTS = ("64 x 2 halves", "128 positions", "pairs", "aligned")
UNROLLS = (4, 16)

TEXT = r"""
#include <cuda_runtime.h>

template <int HINT>
static __device__ __forceinline__ void put(float* to, float value) {
  if constexpr (HINT == 0) *to = value;
  if constexpr (HINT == 1) asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
  if constexpr (HINT == 2) asm volatile("st.global.L1::no_allocate.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
  if constexpr (HINT == 3) asm volatile("st.global.cg.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
  if constexpr (HINT == 4) asm volatile("st.global.wt.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

struct Sizes {
  int images, planes, width, padded, tiles;  // planes are width x width, positions run over padded x padded
};

// The offset in its image of the position of a row, or -1 where it is none.
static __device__ __forceinline__ long long place(const Sizes& s, long long row) {
  const int u1 = row % s.padded, u0 = row / s.padded % s.padded;
  const long long image = row / (1LL * s.padded * s.padded);
  if (image >= s.images || u0 >= s.width || u1 >= s.width) return -1;
  return (image * s.planes * s.width + u0) * s.width + u1;
}

// Layouts: 0: 64 rows, a half of the planes each; 1: 128 rows; 2: two rows by one thread, as 8 bytes;
// 3: 128 rows, lanes moved so that a warp begins at a multiple of 128 bytes (the last one wraps).
template <int HINT, int LAYOUT, int UNROLL>
static __global__ void __launch_bounds__(256) writes(float* out, Sizes s) {
  extern __shared__ float taken[];
  const int warpgroup = threadIdx.x / 128, thread = threadIdx.x % 128;
  const long long plane = 1LL * s.width * s.width;
  if (s.images < 0) taken[thread] = 0.0f;  // never: the memory must look used
  for (int tile = blockIdx.x * 2 + warpgroup; tile < s.tiles; tile += gridDim.x * 2) {
    constexpr int SUBTILE = LAYOUT == 1 || LAYOUT == 3 ? 128 : 64;
    for (int subtile = 0; subtile < 256 / SUBTILE; ++subtile) {
      const long long first = tile * 256LL + subtile * SUBTILE;
      if constexpr (LAYOUT == 2) {
        const long long at = place(s, first + thread % 32 * 2);
        if (at < 0) continue;
        const int begin = thread / 32 * (s.planes / 4);
#pragma unroll UNROLL
        for (int o = begin; o < begin + s.planes / 4; ++o)
          *reinterpret_cast<float2*>(out + at + o * plane) = make_float2(o + 1, thread + 1);
      } else if constexpr (LAYOUT == 3) {
        const long long start = place(s, first);
#pragma unroll UNROLL
        for (int o = 0; o < s.planes; ++o) {
          const int beyond = start < 0 ? 0 : static_cast<int>((start + o * plane) % 32);
          const long long at = place(s, first + (thread + 128 - beyond) % 128);
          if (at >= 0) put<HINT>(out + at + o * plane, o + thread + 1);
        }
      } else {
        const int parts = LAYOUT == 0 ? 2 : 1;
        const long long at = place(s, first + thread % SUBTILE);
        if (at < 0) continue;
        const int begin = thread / SUBTILE * (s.planes / parts);
#pragma unroll UNROLL
        for (int o = begin; o < begin + s.planes / parts; ++o) put<HINT>(out + at + o * plane, o + thread + 1);
      }
    }
  }
}

template <int HINT, int LAYOUT, int UNROLL>
static const char* launch(float* out, Sizes s, int blocks, int shared, cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(writes<HINT, LAYOUT, UNROLL>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           shared);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  writes<HINT, LAYOUT, UNROLL><<<blocks, 256, shared, stream>>>(out, s);
  error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char* run_writes(int hint, int layout, int unroll, float* out, int images, int planes, int width,
                                  int padded, int blocks, int shared, cudaStream_t stream) {
  const long long rows = 1LL * images * padded * padded;
  const Sizes s{images, planes, width, padded, static_cast<int>((rows + 255) / 256)};
@CALLS@
  return "no such way";
}
"""


def text() -> str:
    """The CUDA text, with a call of each combination that exists; 8 bytes at a time have no hints."""
    calls = [f"  if (hint == {h} && layout == {layout} && unroll == {u}) return launch<{h}, {layout}, {u}>"
             "(out, s, blocks, shared, stream);"
             for h, layout, u in itertools.product(range(len(HINTS)), range(len(LAYOUTS)), UNROLLS)
             if layout != 2 or h == 0]
    return TEXT.replace("@CALLS@", "\n".join(calls))


def ways() -> list[dict[str, int]]:
    """The ways of writing: one thing changed at a time, at each width."""
    found = []
    for width, padded in ((254, 256), (256, 256), (126, 128)):
        base = {"hint": 0, "layout": 0, "unroll": 16, "width": width, "padded": padded, "blocks": 1, "kilobytes": 100}
        found += [base]
        found += [{**base, "hint": h} for h in range(1, len(HINTS))]
        found += [{**base, "layout": layout} for layout in range(1, len(LAYOUTS))]
        found += [{**base, "unroll": 4}, {**base, "kilobytes": 20}, {**base, "kilobytes": 200}]
        found += [{**base, "kilobytes": 20, "blocks": blocks} for blocks in (2, 4)]
        found += [{**base, "layout": layout, "hint": h} for layout in (1, 3) for h in (1, 2)]
    return found


def arguments(way: dict[str, int], out: ctypes.c_void_p, multiprocessors: int) -> tuple:
    """What ``run_writes`` takes."""
    return (way["hint"], way["layout"], way["unroll"], out, BATCH, PLANES, way["width"], way["padded"],
            multiprocessors * way["blocks"], way["kilobytes"] << 10)


def words(way: dict[str, int]) -> dict[str, object]:
    """A way, its hint and layout by name."""
    return {**way, "hint": HINTS[way["hint"]], "layout": LAYOUTS[way["layout"]]}


if __name__ == "__main__":
    time_ways(__doc__, text(), ways(), arguments, words, lambda way: way["layout"] == way["hint"] == 0)
