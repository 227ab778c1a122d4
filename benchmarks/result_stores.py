"""How fast a GPU takes results in the order in which a contraction's epilogue writes them.

    python benchmarks/result_stores.py                one line for each way of writing, JSON to --out
    python benchmarks/result_stores.py --compile-only   anywhere with nvcc

No sums and no operands: persistent blocks take tiles of 256 positions of 64 planes, and two teams of 128 threads write
them as `contraction_epilogue_walks.RowWalk` does. What changes from line to line is one thing at a time: the hint of
the store, how threads lie over positions and planes, the width (rows that begin at multiples of 128 bytes or do not),
shared memory that is taken (and so not first-level cache), and blocks on a multiprocessor. ``fill`` is PyTorch's
``fill_`` of as many bytes. Times are medians of CUDA events with a cold second-level cache.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cold_clock import cold_milliseconds

from kernelwright.build.module import find_cuda_compiler

BATCH, PLANES, ROWS = 128, 64, 256
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
  const int team = threadIdx.x / 128, thread = threadIdx.x % 128;
  const long long plane = 1LL * s.width * s.width;
  if (s.images < 0) taken[thread] = 0.0f;  // never: the memory must look used
  for (int tile = blockIdx.x * 2 + team; tile < s.tiles; tile += gridDim.x * 2) {
    constexpr int SLAB = LAYOUT == 1 || LAYOUT == 3 ? 128 : 64;
    for (int slab = 0; slab < 256 / SLAB; ++slab) {
      const long long first = tile * 256LL + slab * SLAB;
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
        const long long at = place(s, first + thread % SLAB);
        if (at < 0) continue;
        const int begin = thread / SLAB * (s.planes / parts);
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


def build(folder: Path) -> Path:
    """The shared library. Raises CalledProcessError where nvcc refuses the text."""
    source, library = folder / "writes.cu", folder / "writes.so"
    source.write_text(text())
    compiler = find_cuda_compiler()
    if compiler is None:
        raise SystemExit("result_stores.py: no nvcc was found; set NVCC or CUDA_HOME")
    subprocess.run([compiler, "-std=c++17", "-O3", "-arch=sm_90a", "-shared",
                    "-Xcompiler=-fPIC", str(source), "-o", str(library)], check=True)
    return library


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


def main() -> None:
    """Time every way and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for one JSON object per line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        if options.compile_only:
            return
        run = ctypes.CDLL(str(library)).run_writes
        run.restype = ctypes.c_char_p
        flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        lines = []
        for way in ways():
            out = torch.zeros(BATCH, PLANES, way["width"], way["width"], device="cuda")

            def call(way: dict[str, int] = way, out: torch.Tensor = out) -> None:
                said = run(way["hint"], way["layout"], way["unroll"], ctypes.c_void_p(out.data_ptr()), BATCH, PLANES,
                           way["width"], way["padded"], multiprocessors * way["blocks"], way["kilobytes"] << 10,
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
                if said:
                    raise RuntimeError(f"{way}: {said.decode()}")

            call()
            torch.cuda.synchronize()
            left = int((out == 0).sum())
            times = cold_milliseconds(call, flush, 9)
            plain = way["layout"] == way["hint"] == 0
            fill = cold_milliseconds(lambda out=out: out.fill_(1.0), flush, 5) if plain else []
            lines.append({**way, "hint": HINTS[way["hint"]], "layout": LAYOUTS[way["layout"]], "unwritten": left,
                          "ms": statistics.median(times), "least_ms": min(times),
                          "gigabytes_per_second": out.nbytes / statistics.median(times) / 1e6,
                          "fill_ms": statistics.median(fill) if fill else None})
            print(json.dumps(lines[-1]), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
