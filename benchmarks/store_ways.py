"""What the scripts that time ways of storing share: the library of their text, and the clock."""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cold_clock import cold_milliseconds

from kernelwright.build.module import find_cuda_compiler

#: Of what is stored: entries and planes, each a square of the way's ``width``.
BATCH, PLANES = 128, 64


def build(text: str, folder: Path) -> Path:
    """The shared library of a CUDA text. Raises CalledProcessError where nvcc refuses it."""
    source, library = folder / "writes.cu", folder / "writes.so"
    source.write_text(text)
    compiler = find_cuda_compiler()
    if compiler is None:
        raise SystemExit("no nvcc was found; set NVCC or CUDA_HOME")
    subprocess.run([compiler, "-std=c++17", "-O3", "-arch=sm_90a", "-shared",
                    "-Xcompiler=-fPIC", str(source), "-o", str(library)], check=True)
    return library


def time_ways(description: str, text: str, ways: Sequence[dict[str, int]],
              arguments: Callable[[dict[str, int], ctypes.c_void_p, int], tuple],
              words: Callable[[dict[str, int]], dict[str, Any]], is_plain: Callable[[dict[str, int]], bool]) -> None:
    """Time every way and print a line for each, as the command line asks.

    arguments: what ``run_writes`` of the text takes, but for the stream, of a way, the result's address and the
    device's multiprocessors. words: what a line says of a way. is_plain: whether PyTorch's ``fill_`` is timed, too.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for one JSON object per line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build(text, Path(folder))
        if options.compile_only:
            return
        run = ctypes.CDLL(str(library)).run_writes
        run.restype = ctypes.c_char_p
        flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
        lines = []
        for way in ways:
            out = torch.zeros(BATCH, PLANES, way["width"], way["width"], device="cuda")

            def call(way: dict[str, int] = way, out: torch.Tensor = out) -> None:
                said = run(*arguments(way, ctypes.c_void_p(out.data_ptr()), multiprocessors),
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
                if said:
                    raise RuntimeError(f"{way}: {said.decode()}")

            call()
            torch.cuda.synchronize()
            left = int((out == 0).sum())
            times = cold_milliseconds(call, flush, 9)
            fill = cold_milliseconds(lambda out=out: out.fill_(1.0), flush, 5) if is_plain(way) else []
            lines.append({**words(way), "unwritten": left, "ms": statistics.median(times), "least_ms": min(times),
                          "gigabytes_per_second": out.nbytes / statistics.median(times) / 1e6,
                          "fill_ms": statistics.median(fill) if fill else None})
            print(json.dumps(lines[-1]), flush=True)
        if options.out is not None:
            options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
