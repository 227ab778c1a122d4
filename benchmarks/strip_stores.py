"""How fast a GPU takes results in the order in which blocks that go down strips of lines write them.

    python benchmarks/strip_stores.py                one line for each way of writing, JSON to --out
    python benchmarks/strip_stores.py --compile-only   anywhere with nvcc

No sums and no operands (`benchmarks/result_stores.py` is the same for tiles of rows): a block of each multiprocessor
goes down lines of one image, its consumer warpgroups of 128 threads take lines in turn, a warp has 16 of 64 planes, and
a thread stores two neighbours at a time. What changes from line to line is one thing at a time: how many lanes store
neighbours (4, 8, 16 and 32 are runs of 32 to 256 bytes), whether these begin at multiples of 32 bytes, whether a warp
goes through its planes or along the line first, the consumer warpgroups, the width of lines, and how long a consumer
warpgroup waits between two lines. Times are medians of CUDA events with a cold second-level cache.
"""

from __future__ import annotations

import ctypes
import itertools

from store_ways import BATCH, time_ways

LANES, ORDERS, BEGINS = (4, 8, 16, 32), ("planes first", "line first"), ("where lines do", "at sectors")

TEXT = r"""
#include <cuda_runtime.h>

template <int LANES, bool LINE_FIRST, bool SECTORS>
static __global__ void __launch_bounds__(1024) writes(float* out, int images, int width, int parts, int cycles) {
  constexpr int TOGETHER = 32 / LANES, GROUPS = 16 / TOGETHER;  // planes of a store; stores of a warp's planes
  const int warpgroup = threadIdx.x / 128, warpgroups = blockDim.x / 128, lane = threadIdx.x % 32;
  const int first_plane = threadIdx.x % 128 / 32 * 16 + lane / LANES, pair = lane % LANES * 2;
  const int steps = (width + (SECTORS ? 6 : 0) + 2 * LANES - 1) / (2 * LANES), each = (width + parts - 1) / parts;
  for (int strip = blockIdx.x; strip < images * parts; strip += gridDim.x) {
    const int begin = strip % parts * each, end = min(width, begin + each);
    for (int line = begin + warpgroup; line < end; line += warpgroups) {
      const long long until = clock64() + cycles;
      while (clock64() < until) {}
      float* const image = out + static_cast<long long>(strip / parts) * 64 * width * width;
      const auto store = [&](int step, int group) {
        const long long begins = static_cast<long long>(first_plane + group * TOGETHER) * width * width
                                 + static_cast<long long>(line) * width;
        const int at = step * 2 * LANES + pair - (SECTORS ? static_cast<int>(begins % 8) : 0);
        if (at >= 0 && at < width)
          *reinterpret_cast<float2*>(image + begins + at) = make_float2(group + 1.0f, at + 1.0f);
      };
      if constexpr (LINE_FIRST) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
          for (int step = 0; step < steps; ++step) store(step, group);
      } else {
        for (int step = 0; step < steps; ++step)
#pragma unroll
          for (int group = 0; group < GROUPS; ++group) store(step, group);
      }
    }
  }
}

template <int LANES, bool LINE_FIRST, bool SECTORS>
static const char* launch(float* out, int images, int width, int parts, int cycles, int blocks, int threads,
                          cudaStream_t stream) {
  writes<LANES, LINE_FIRST, SECTORS><<<blocks, threads, 0, stream>>>(out, images, width, parts, cycles);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

extern "C" const char* run_writes(int lanes, int order, int sectors, float* out, int images, int width, int parts,
                                  int cycles, int blocks, int threads, cudaStream_t stream) {
@CALLS@
  return "no such way";
}
"""


def text() -> str:
    """The CUDA text, with a call of each combination."""
    calls = [f"  if (lanes == {lanes} && order == {order} && sectors == {sectors})\n"
             f"    return launch<{lanes}, {bool(order)}, {bool(sectors)}>"
             "(out, images, width, parts, cycles, blocks, threads, stream);".replace("True", "true").replace(
                 "False", "false")
             for lanes, order, sectors in itertools.product(LANES, range(2), range(2))]
    return TEXT.replace("@CALLS@", "\n".join(calls))


def ways() -> list[dict[str, int]]:
    """The ways of writing: one thing changed at a time, at each width."""
    found = []
    for width, parts in ((126, 2), (254, 4), (256, 4)):
        base = {"lanes": 8, "order": 0, "sectors": 1, "width": width, "parts": parts, "warpgroups": 3, "cycles": 0}
        found += [{**base, "lanes": lanes, "sectors": sectors} for lanes in LANES for sectors in (1, 0)]
        found += [{**base, "lanes": lanes, "order": 1} for lanes in LANES]
        found += [{**base, "warpgroups": warpgroups} for warpgroups in (1, 2, 4, 8)]
        found += [{**base, "parts": other} for other in (1, 2 * parts)]
        found += [{**base, "cycles": cycles} for cycles in (500, 1000, 2000)]
    return found


def arguments(way: dict[str, int], out: ctypes.c_void_p, multiprocessors: int) -> tuple:
    """What ``run_writes`` takes."""
    return (way["lanes"], way["order"], way["sectors"], out, BATCH, way["width"], way["parts"], way["cycles"],
            multiprocessors, 128 * way["warpgroups"])


def words(way: dict[str, int]) -> dict[str, object]:
    """A way, its order and where runs begin by name."""
    return {**way, "order": ORDERS[way["order"]], "sectors": BEGINS[way["sectors"]]}


if __name__ == "__main__":
    time_ways(__doc__, text(), ways(), arguments, words,
              lambda way: way["lanes"] == LANES[0] and way["sectors"] == 0)
