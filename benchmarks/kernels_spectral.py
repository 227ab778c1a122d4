"""Times the CUDA spectral energy kernel by kernel, and checks it against float64.

Usage, on a machine with a GPU and nvcc::

    python benchmarks/kernels_spectral.py [--compile-only] [--repeat 20] [--case NAME] [--json FILE]

Every case is built twice into one library: as generated (the total) and with an event around every launch
(the kernels; the events add a few microseconds). L2 is overwritten before every measurement. The reference
is a convolution by FFT in complex128. The last line of a case compares with PyTorch's convolution alone.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernelwright.codegen.cuda.fft_energy.generate import generate
from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.plan.kernels import SpectralEnergy


@dataclass(frozen=True)
class Case:
    """A transposed convolution, or a stride-1 convolution with full padding; one group."""

    batch: int
    inputs: int
    outputs: int
    size: tuple[int, ...]
    window: int
    stride: int = 1
    transposed: bool = True

    def kernel(self) -> SpectralEnergy:
        """The record of the energy of this convolution."""
        taps = tuple(
            (k % self.stride, k // self.stride) if self.transposed else (0, -k) for k in range(self.window)
        )
        axes = (taps,) * len(self.size)
        return SpectralEnergy(self.batch, 1, self.inputs, self.outputs, self.size, axes, self.transposed)

    def data(self, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Random float32 input and weight."""
        generator = torch.Generator(device).manual_seed(1)
        x = torch.randn(self.batch, self.inputs, *self.size, device=device, generator=generator)
        channels = (self.inputs, self.outputs) if self.transposed else (self.outputs, self.inputs)
        window = (self.window,) * len(self.size)
        weight = torch.randn(*channels, *window, device=device, generator=generator)
        return x + 0.25, weight / prod(window) ** 0.5

    def convolve(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The convolution itself, by PyTorch."""
        dims = len(self.size)
        if self.transposed:
            return getattr(torch.nn.functional, f"conv_transpose{dims}d")(x, weight, stride=self.stride)
        return getattr(torch.nn.functional, f"conv{dims}d")(x, weight, padding=self.window - 1)

    def energy(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Reference in float64: Parseval over the whole output, (outputs,)."""
        dims = tuple(range(2, 2 + len(self.size)))
        lengths = [self.stride * (n - 1) + self.window for n in self.size]
        spread = torch.zeros(
            *x.shape[:2],
            *(self.stride * (n - 1) + 1 for n in self.size),
            dtype=torch.float64,
            device=x.device,
        )
        spread[(slice(None),) * 2 + (slice(None, None, self.stride),) * len(self.size)] = x.double()
        w = torch.fft.rfftn(weight.double(), s=lengths, dim=dims)
        if not self.transposed:
            w = w.conj().resolve_conj().transpose(0, 1)
        count = torch.full((lengths[-1] // 2 + 1,), 2.0, dtype=torch.float64, device=x.device)
        count[0] = 1.0
        if lengths[-1] % 2 == 0:
            count[-1] = 1.0
        total = torch.zeros(self.outputs, dtype=torch.float64, device=x.device)
        # One index of the first transformed axis at a time bounds the memory.
        spectrum = torch.fft.rfftn(spread, s=lengths, dim=dims)
        for f in range(lengths[0] if len(dims) > 1 else 1):
            part = (spectrum[:, :, f], w[:, :, f]) if len(dims) > 1 else (spectrum, w)
            left = part[0].flatten(2).permute(2, 0, 1)
            y = left @ part[1].flatten(2).permute(2, 0, 1)
            power = (y.real.square() + y.imag.square()).sum(1)
            total += (power * count.repeat(power.shape[0] // count.numel())[:, None]).sum(0)
        return total / prod(lengths)


CASES = {
    "transposed3d_5": Case(16, 64, 128, (16, 32, 32), 5),
    "full2d_3": Case(32, 64, 128, (128, 128), 3, transposed=False),
    "transposed3d_3_stride2": Case(16, 32, 64, (16, 32, 32), 3, stride=2),
}

_PROFILE = r"""
// Every launch between two events.
#include <cstring>
static cudaEvent_t profile_events[512];
static const char* profile_names[256];
static int profile_count = 0;
static void profile_mark(int i, cudaStream_t stream) {
  if (profile_events[i] == nullptr) cudaEventCreate(&profile_events[i]);
  cudaEventRecord(profile_events[i], stream);
}
#undef KW_LAUNCH
#define KW_LAUNCH(where, kernel, grid, block, shared_bytes, stream, ...)              \
  do {                                                                                \
    if (profile_count == 256) return "too many launches to profile";                  \
    profile_names[profile_count] = where;                                             \
    profile_mark(2 * profile_count, stream);                                          \
    kernel<<<kw_extent(grid), kw_extent(block), shared_bytes, stream>>>(__VA_ARGS__); \
    profile_mark(2 * profile_count + 1, stream);                                      \
    ++profile_count;                                                                  \
    const cudaError_t error = cudaGetLastError();                                     \
    if (error != cudaSuccess) return cudaGetErrorString(error);                       \
  } while (0)
"""

_EXPORT = r"""
extern "C" const char* run(const float* x, const float* w, double* e, void* workspace, cudaStream_t stream) {
  return spectral(x, w, e, workspace, stream);
}
extern "C" const char* run_profile(const float* x, const float* w, double* e, void* workspace, cudaStream_t stream) {
  profile_count = 0;
  return profiled(x, w, e, workspace, stream);
}
extern "C" int profile_size() { return profile_count; }
extern "C" const char* profile_name(int i) { return profile_names[i]; }
extern "C" float profile_time(int i) {
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, profile_events[2 * i], profile_events[2 * i + 1]);
  return milliseconds;
}
"""


def text(case: Case) -> tuple[str, int]:
    """The library's text and the workspace's size."""
    plain, profiled = generate(case.kernel(), "spectral"), generate(case.kernel(), "profiled")
    body = snippets(plain.support) + plain.definition + _PROFILE + profiled.definition + _EXPORT
    return body, plain.workspace_bytes


def build(cases: dict[str, Case], folder: Path) -> dict[str, Path]:
    """Compiles all cases at once; prints registers and spills of kernels that spill."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    architecture = f"{major}{minor}" + ("a" if major == 9 else "")
    running, libraries = {}, {}
    for name, case in cases.items():
        source, libraries[name] = folder / f"{name}.cu", folder / f"{name}.so"
        source.write_text(text(case)[0])
        command = [nvcc, "-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v"]
        command += [f"-gencode=arch=compute_{architecture},code=sm_{architecture}"]
        command += ["-o", str(libraries[name]), str(source)]
        running[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        messages = process.communicate()[1]
        if process.returncode:
            raise SystemExit(f"{name}: nvcc failed\n{messages}")
        spills = [line for line in messages.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
        print(f"{name}: compiled, {len(spills)} kernels spill", *spills, sep="\n  ")
    return libraries


def measure(name: str, case: Case, library_path: Path, repeat: int) -> dict[str, object]:
    """Checks and times one case; milliseconds are medians."""
    library = ctypes.CDLL(str(library_path))
    for function in (library.run, library.run_profile):
        function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p] * 5
    library.profile_name.restype, library.profile_time.restype = ctypes.c_char_p, ctypes.c_float
    x, weight = case.data("cuda")
    size = generate(case.kernel(), "spectral").workspace_bytes
    workspace = torch.full((size // 4,), float("nan"), device="cuda")
    energy = torch.full((case.outputs,), float("nan"), dtype=torch.float64, device="cuda")
    flush = torch.empty(256 << 18, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    arguments = (x.data_ptr(), weight.data_ptr(), energy.data_ptr(), workspace.data_ptr(), stream)

    def checked(message: bytes | None) -> None:
        if message:
            raise SystemExit(f"{name}: {message.decode()}")

    def times(action) -> list[float]:
        result = []
        for _ in range(repeat + 2):
            flush.fill_(1.0)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            action()
            end.record()
            torch.cuda.synchronize()
            result.append(begin.elapsed_time(end))
        return result[2:]

    checked(library.run(*arguments))
    torch.cuda.synchronize()
    found, expected = energy.clone(), case.energy(x, weight)
    error = float(((found - expected).abs() / expected).max())
    total = times(lambda: checked(library.run(*arguments)))
    same = bool(torch.equal(found, energy))
    kernels: dict[str, list[float]] = {}
    for _ in range(repeat):
        flush.fill_(1.0)
        checked(library.run_profile(*arguments))
        torch.cuda.synchronize()
        once: dict[str, float] = {}
        for i in range(library.profile_size()):
            kernel = library.profile_name(i).decode()
            once[kernel] = once.get(kernel, 0.0) + library.profile_time(i)
        for kernel, time in once.items():
            kernels.setdefault(kernel, []).append(time)
    medians = {kernel: statistics.median(values) for kernel, values in kernels.items()}
    torch.backends.cudnn.allow_tf32 = True
    convolution = times(lambda: case.convolve(x, weight))

    layout = Layout(case.kernel(), "spectral")
    print(f"\n{name}: x {tuple(x.shape)}, weight {tuple(weight.shape)}")
    print(f"  slots {[a.slots for a in layout.axes]}, grid {case.kernel().grid}, workspace {size / 1e6:.0f} MB")
    print(f"  relative error {error:.2e}, repeated run {'equal' if same else 'DIFFERENT'}")
    for kernel, time in medians.items():
        print(f"  {kernel.replace('profiled_', ''):<14}{time * 1e3:9.1f} us")
    print(f"  {'total':<14}{statistics.median(total) * 1e3:9.1f} us  (least {min(total) * 1e3:.1f})")
    print(f"  {'convolution':<14}{statistics.median(convolution) * 1e3:9.1f} us  (PyTorch, TF32 allowed)")
    return {
        "case": name,
        "error": error,
        "deterministic": same,
        "kernels_ms": medians,
        "total_ms": statistics.median(total),
        "convolution_ms": statistics.median(convolution),
    }


def main() -> None:
    """Builds, checks and times the cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cases = {options.case: CASES[options.case]} if options.case else CASES
    with tempfile.TemporaryDirectory() as folder:
        libraries = build(cases, Path(folder))
        if options.compile_only:
            return
        results = [measure(name, case, libraries[name], options.repeat) for name, case in cases.items()]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
