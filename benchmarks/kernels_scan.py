"""Times the CUDA scans and places of extrema on this machine's GPU, and checks them against PyTorch.

Usage: python benchmarks/kernels_scan.py [NAME ...]
       python benchmarks/kernels_scan.py --compile      (build alone: registers and spills, no GPU needed)

Builds the generated text with nvcc (NVCC, CUDA_HOME or PATH), runs every shape with a cold L2 cache and prints the
minimum and median time, the time in which the memory moves what must be moved, and PyTorch's time. Predictions
(H200) are what the shape should take if the schedule is right: 1.1 times the floor for whole rows, 1.3 where a row
is cut into parts (its totals are read first).
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cold_clock import cold_milliseconds

from kernelwright.build.module import find_cuda_compiler
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets
from kernelwright.codegen.cuda.scan import argreduce as extrema
from kernelwright.codegen.cuda.scan import generate as scans
from kernelwright.codegen.cuda.support.snippets import snippets
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Apply, Index, Load, Reduced
from kernelwright.plan.kernels import Extremum, Scan, Store
from kernelwright.roofline.devices import H200

FLUSH_BYTES = 256 << 20
REPEATS = 20


@dataclass(frozen=True)
class Case:
    """A kernel, its inputs' shape, what PyTorch computes for it and the factor over the floor that it should take."""

    kernel: Scan | Extremum
    shape: tuple[int, ...]
    torch: Callable[..., torch.Tensor]
    factor: float
    masked: bool = False


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major."""
    return tuple(prod(shape[a + 1:]) for a in range(len(shape)))


def scan(shape: tuple[int, ...], axis: int, reference: Callable, factor: float = 1.1, *, kind: str = "sum",
         reverse: bool = False, exclusive: bool = False, masked: bool = False) -> Case:
    """A scan along an axis of a tensor of this shape, times a mask where ``masked``."""
    steps = list(strides(shape))
    step = steps.pop(axis)
    outer = tuple(s for a, s in enumerate(shape) if a != axis)
    length = shape[axis]
    index = Index((*steps, -step if reverse else step), step * (length - 1) if reverse else 0)
    value = Apply("mul", (Load(0, index), Load(1, index))) if masked else Load(0, index)
    types = ("float32", "bool") if masked else ("float32",)
    kernel = Scan(outer, length, kind, value, exclusive, (Store(0, index, Reduced(0)),), types, ("float32",))
    return Case(kernel, shape, reference, factor, masked)


def place(shape: tuple[int, ...], axis: int, kind: str, factor: float = 1.1) -> Case:
    """argmax or argmin along an axis."""
    steps = list(strides(shape))
    step = steps.pop(axis)
    outer = tuple(s for a, s in enumerate(shape) if a != axis)
    store = Store(0, Index((*strides(outer), 0)), Reduced(0, 1))
    kernel = Extremum(outer, shape[axis], kind, Load(0, Index((*steps, step))), (store,), ("float32",), ("int64",))
    return Case(kernel, shape, lambda x: (x.argmax if kind == "max" else x.argmin)(axis), factor)


SQUARE = (32768, 32768)
CASES = {
    "cumsum": scan(SQUARE, 1, lambda x: x.cumsum(1)),
    "cumprod": scan(SQUARE, 1, lambda x: x.cumprod(1), 1.2, kind="product"),
    "reverse": scan(SQUARE, 1, lambda x: x.flip(1).cumsum(1).flip(1), reverse=True),
    "exclusive": scan(SQUARE, 1, lambda x: torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)), 1),
                      exclusive=True),
    "masked": scan(SQUARE, 1, lambda x, m: (x * m).cumsum(1), masked=True),
    "columns": scan((64, 4096, 1024), 1, lambda x: x.cumsum(1), 1.2),
    "columns_few": scan((1 << 20, 64), 0, lambda x: x.cumsum(0), 1.7),
    "short_rows": scan((1 << 20, 64), 1, lambda x: x.cumsum(1), 1.2),
    "middle": scan((65536, 1000), 1, lambda x: x.cumsum(1), 1.15),
    "odd": scan((65536, 1001), 1, lambda x: x.cumsum(1), 1.4),
    "one_row": scan((1, 1 << 28), 1, lambda x: x.cumsum(1), 1.6),
    "logcumsumexp": scan((16384, 16384), 1, lambda x: x.logcumsumexp(1), 4.0, kind="logsumexp"),
    "cummax": scan((16384, 16384), 1, lambda x: x.cummax(1).values, 1.15, kind="max"),
    "argmax": place((128, 4096, 4095), 1, "max"),
    "argmin": place((128, 4096, 4095), 1, "min"),
    "argmax_rows": place((65536, 8192), 1, "max"),
    "argmax_all": place((1, 1 << 28), 1, "max", 1.2),
}


def build(cases: dict[str, Case], folder: Path) -> tuple[Path, dict[str, KernelSource], str]:
    """Compile the kernels into one library; its path, the sources, and ptxas's report."""
    sources = {name: (scans if isinstance(c.kernel, Scan) else extrema).generate(c.kernel, name)
               for name, c in cases.items()}
    wanted = {s for source in sources.values() for s in source.support}
    text = snippets(wanted - SCALAR_SNIPPETS.keys()) + scalar_snippets(wanted & SCALAR_SNIPPETS.keys())
    for name, source in sources.items():
        signature = source.definition.split(f"static const char* {name}")[1].split("{")[0].strip()
        passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
        text += f'\n{source.definition}\nextern "C" const char* call_{name}{signature} {{ return {name}({passed}); }}\n'
    path = folder / "kernels.cu"
    path.write_text(text)
    compiler = find_cuda_compiler()
    if compiler is None:
        raise SystemExit("nvcc is not there: set NVCC or CUDA_HOME")
    library = path.with_suffix(".so")
    flags = ["-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v"]
    flags += ["-cubin"] if "--compile" in sys.argv else ["-shared", "-Xcompiler", "-fPIC"]
    command = [compiler, *flags, "-o", str(library), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return library, sources, done.stderr


def measure(name: str, case: Case, library: ctypes.CDLL, source: KernelSource, flush: torch.Tensor) -> None:
    """Checks one kernel and prints its line of the table."""
    x = torch.rand(case.shape, device="cuda")
    if case.kernel.kind == "product":
        x.mul_(0.01).add_(0.995)
    inputs = [x] + ([torch.rand(case.shape, device="cuda") < 0.5] if case.masked else [])
    out = case.torch(*inputs)
    want = out.clone()
    out.fill_(-1)
    workspace = torch.empty(source.workspace_bytes + 256, dtype=torch.uint8, device="cuda")
    function = getattr(library, f"call_{name}")
    function.restype = ctypes.c_char_p
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, out, workspace)]
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def run() -> None:
        message = function(*pointers, stream)
        if message is not None:
            raise RuntimeError(message.decode())

    run()
    if out.dtype == torch.int64:
        same = torch.gather(x, 1, out.unsqueeze(1)) == torch.gather(x, 1, want.unsqueeze(1))
        error = float((~same).sum())  # another place of the same value is no error of PyTorch's
    else:
        error = float(((out - want).abs() / (want.abs() + want.abs().mean())).max())
    own = cold_milliseconds(run, flush, REPEATS)
    eager = cold_milliseconds(lambda: case.torch(*inputs), flush, 5)
    moved = sum(t.numel() * t.element_size() for t in (*inputs, out))
    floor = moved / H200.memory_peak * 1e3
    print(f"{name:14} {min(own):9.4f} {statistics.median(own):10.4f} {floor:9.4f} {min(own) / floor:7.2f} "
          f"{case.factor:9.2f} {min(eager):10.4f} {error:9.1e}")


def main() -> None:
    """Runs the shapes named on the command line, or all."""
    wanted = [a for a in sys.argv[1:] if not a.startswith("-")] or list(CASES)
    chosen = {name: CASES[name] for name in wanted}
    with tempfile.TemporaryDirectory() as folder:
        path, sources, report = build(chosen, Path(folder))
        if "--compile" in sys.argv:
            print(report)
            return
        library = ctypes.CDLL(os.fspath(path))
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}; flush {FLUSH_BYTES >> 20} MB, {REPEATS} repeats; milliseconds")
    titles = ("min", "median", "floor", "ratio", "predicted", "torch", "error")
    widths = (9, 10, 9, 7, 9, 10, 9)
    print("kernel        ", *(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True)))
    for name, case in chosen.items():
        measure(name, case, library, sources[name], flush)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
