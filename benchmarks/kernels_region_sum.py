"""Times the CUDA region sums on this machine's GPU and checks them against float64.

Usage: python benchmarks/kernels_region_sum.py [NAME ...]

Builds the generated text with nvcc (CUDA_HOME or PATH), runs every shape with a cold L2 cache and
prints the minimum and median time in microseconds, bytes of x per second, and the largest error
relative to the sum of absolute values.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from math import prod
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cold_clock import cold_milliseconds

from kernelwright.codegen.cuda.region_sum.generate import generate
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.plan.kernels import RegionSum

FLUSH_BYTES = 256 << 20
REPEATS = 30


def full(size: int):
    return (((0, size, 1),),)


def two(size: int):
    return ((0, size, 1),), ((1, size, 1),)


def taps(size: int, count: int = 3):
    pad = count // 2
    return tuple(((max(0, t - pad), min(size, size + t - pad), 1),) for t in range(count))


KERNELS = {
    "full_512": RegionSum((16, 64, 512, 512), (None, None, full(512), full(512)), 1 / 262144),
    "two_128": RegionSum((16, 64, 128, 128), (None, None, two(128), two(128))),
    "full_3d": RegionSum((16, 64, 16, 32, 32), (None, None, full(16), full(32), full(32))),
    "taps_512": RegionSum((16, 64, 512, 512), (None, None, taps(512), taps(512))),
    "taps_3d": RegionSum((16, 64, 16, 32, 32), (None, None, taps(16), taps(32), taps(32))),
    "kept_middle": RegionSum((16, 256, 64, 256), (None, taps(256), None, full(256))),
    "odd_33": RegionSum((64, 512, 33, 33), (None, None, two(33), two(33))),
    "few_planes": RegionSum((2, 3, 4096, 4096), (None, None, two(4096), two(4096))),
    "weights": RegionSum((64, 128, 5, 5, 5), (None, None, taps(5), taps(5), taps(5))),
    "weights_3": RegionSum((64, 128, 3, 3), (None, None, taps(3), taps(3))),
    "batch": RegionSum((64, 64, 256, 256), (full(64), None, None, None)),
    "channels_last": RegionSum((16, 256, 256, 64), (None, full(256), full(256), None)),
    "rows": RegionSum((100000, 128), (full(100000), None)),
    "one_axis": RegionSum((268435457,), (two(268435457),)),
}


def reference(kernel: RegionSum, x: torch.Tensor) -> torch.Tensor:
    """The region sum in float64, one axis after another from the last."""
    result = x
    order = sorted((axis for axis, c in enumerate(kernel.classes) if c is not None), reverse=True)
    for axis in order:
        parts = []
        for one in kernel.classes[axis]:
            total = torch.zeros_like(result.select(axis, 0), dtype=torch.float64)
            for start, stop, step in one:
                index = [slice(None)] * result.dim()
                index[axis] = slice(start, stop, step)
                total = total + result[tuple(index)].sum(axis, dtype=torch.float64)
            parts.append(total)
        result = torch.stack(parts, axis)
    return result * kernel.scale


def build(kernels: dict[str, RegionSum], folder: Path):
    """Compiles all kernels into one library; returns it and the sources by name."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    nvcc = shutil.which("nvcc") or str(Path(home, "bin", "nvcc"))
    sources = {name: generate(kernel, f"{name}_sum") for name, kernel in kernels.items()}
    text = snippets({s for source in sources.values() for s in source.support})
    for name, source in sources.items():
        text += source.definition
        text += (
            f'\nextern "C" const char* call_{name}(const void* x, void* out, void* workspace,\n'
            "                                  void* stream) {\n"
            f"  return {source.name}(static_cast<const float*>(x), static_cast<float*>(out), workspace, "
            "static_cast<cudaStream_t>(stream));\n}\n"
        )
    path = folder / "kernels.cu"
    path.write_text(text)
    major, minor = torch.cuda.get_device_capability()
    command = [
        nvcc,
        "-std=c++17",
        "-O3",
        f"-arch=sm_{major}{minor}",
        "-Xcompiler",
        "-fPIC",
        "-shared",
        "-diag-suppress",
        "177",
    ]
    subprocess.run([*command, str(path), "-o", str(folder / "kernels.so")], check=True)
    return ctypes.CDLL(str(folder / "kernels.so")), sources


def measure(name: str, kernel: RegionSum, function, workspace_bytes: int, flush: torch.Tensor) -> None:
    """Checks one kernel and prints its line of the table."""
    stream = torch.cuda.current_stream().cuda_stream
    x = torch.rand(kernel.shape, device="cuda")
    out = torch.full(kernel.output_shape, float("nan"), device="cuda")
    workspace = torch.empty(workspace_bytes + 256, dtype=torch.uint8, device="cuda")
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_void_p] * 4

    def run() -> None:
        message = function(x.data_ptr(), out.data_ptr(), workspace.data_ptr(), stream)
        if message is not None:
            raise RuntimeError(message.decode())

    def timed(work) -> list[float]:
        return [1e3 * time for time in cold_milliseconds(work, flush, REPEATS)]

    run()
    want = reference(kernel, x)
    error = ((out.double() - want).abs() / want.abs().clamp_min(1e-30)).max().item()
    times = timed(run)
    axes = [axis for axis, classes in enumerate(kernel.classes) if classes is not None]
    eager = timed(lambda: x.sum(axes))
    size = 4 * prod(kernel.shape)
    rate = size / min(times) / 1e3
    print(
        f"{name:14} {min(times):9.2f} "
        f"{statistics.median(times):10.2f} {rate:7.0f} {error:9.1e} {min(eager):13.2f}"
    )


def main() -> None:
    """Runs the shapes named on the command line, or all."""
    chosen = {name: KERNELS[name] for name in sys.argv[1:] or KERNELS}
    with tempfile.TemporaryDirectory() as folder:
        library, sources = build(chosen, Path(folder))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}; flush {FLUSH_BYTES >> 20} MB, {REPEATS} repeats")
    print(f"{'kernel':14} {'min us':>9} {'median us':>10} {'GB/s':>7} {'error':>9} {'torch sum us':>13}")
    for name, kernel in chosen.items():
        function = getattr(library, f"call_{name}")
        measure(name, kernel, function, sources[name].workspace_bytes, flush)


if __name__ == "__main__":
    main()
