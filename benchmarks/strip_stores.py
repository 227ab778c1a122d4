"""How fast a GPU takes results in the order in which blocks that go down strips of lines write them.

    python benchmarks/strip_stores.py                one line for each way of writing, JSON to --out
    python benchmarks/strip_stores.py --compile-only   anywhere with nvcc

No sums and no operands (`benchmarks/result_stores.py` is the same for tiles of rows): a block of each multiprocessor
goes down lines of one image, its teams of 128 threads take lines in turn, a warp has 16 of 64 planes, and a thread
stores two neighbours at a time. What changes from line to line is one thing at a time: how many lanes store neighbours
(4, 8, 16 and 32 are runs of 32 to 256 bytes), whether these begin at multiples of 32 bytes, whether a warp goes
through its planes or along the line first, the teams, the width of lines, and how long a team waits between two lines.
Times are medians of CUDA events with a cold second-level cache.
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

BATCH, PLANES = 128, 64
LANES, ORDERS, BEGINS = (4, 8, 16, 32), ("planes first", "line first"), ("where lines do", "at sectors")

TEXT = r"""
#include <cuda_runtime.h>

template <int LANES, bool LINE_FIRST, bool SECTORS>
static __global__ void __launch_bounds__(1024) writes(float* out, int images, int width, int parts, int cycles) {
  constexpr int TOGETHER = 32 / LANES, GROUPS = 16 / TOGETHER;  // planes of a store; stores of a warp's planes
  const int team = threadIdx.x / 128, teams = blockDim.x / 128, lane = threadIdx.x % 32;
  const int first_plane = threadIdx.x % 128 / 32 * 16 + lane / LANES, pair = lane % LANES * 2;
  const int steps = (width + (SECTORS ? 6 : 0) + 2 * LANES - 1) / (2 * LANES), each = (width + parts - 1) / parts;
  for (int strip = blockIdx.x; strip < images * parts; strip += gridDim.x) {
    const int begin = strip % parts * each, end = min(width, begin + each);
    for (int line = begin + team; line < end; line += teams) {
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


def build(folder: Path) -> Path:
    """The shared library. Raises CalledProcessError where nvcc refuses the text."""
    source, library = folder / "writes.cu", folder / "writes.so"
    source.write_text(text())
    compiler = find_cuda_compiler()
    if compiler is None:
        raise SystemExit("strip_stores.py: no nvcc was found; set NVCC or CUDA_HOME")
    subprocess.run([compiler, "-std=c++17", "-O3", "-arch=sm_90a", "-shared",
                    "-Xcompiler=-fPIC", str(source), "-o", str(library)], check=True)
    return library


def ways() -> list[dict[str, int]]:
    """The ways of writing: one thing changed at a time, at each width."""
    found = []
    for width, parts in ((126, 2), (254, 4), (256, 4)):
        base = {"lanes": 8, "order": 0, "sectors": 1, "width": width, "parts": parts, "teams": 3, "cycles": 0}
        found += [{**base, "lanes": lanes, "sectors": sectors} for lanes in LANES for sectors in (1, 0)]
        found += [{**base, "lanes": lanes, "order": 1} for lanes in LANES]
        found += [{**base, "teams": teams} for teams in (1, 2, 4, 8)]
        found += [{**base, "parts": other} for other in (1, 2 * parts)]
        found += [{**base, "cycles": cycles} for cycles in (500, 1000, 2000)]
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
                said = run(way["lanes"], way["order"], way["sectors"], ctypes.c_void_p(out.data_ptr()), BATCH,
                           way["width"], way["parts"], way["cycles"], multiprocessors, 128 * way["teams"],
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
                if said:
                    raise RuntimeError(f"{way}: {said.decode()}")

            call()
            torch.cuda.synchronize()
            left = int((out == 0).sum())
            times = cold_milliseconds(call, flush, 9)
            lines.append({**way, "order": ORDERS[way["order"]], "sectors": BEGINS[way["sectors"]], "unwritten": left,
                          "ms": statistics.median(times), "least_ms": min(times),
                          "gigabytes_per_second": out.nbytes / statistics.median(times) / 1e6})
            print(json.dumps(lines[-1]), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
