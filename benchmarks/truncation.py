"""What sums on tensor cores lose (Hopper): the slope of their errors over the exact sums, and what is left beside it.

    python benchmarks/truncation.py            what the kernels give: the usual loss is made up for
    python benchmarks/truncation.py --raw      without that
    python benchmarks/truncation.py --list     anywhere: the kernels, and what they are said to lose

Shapes are those of benchmarks/contractions.py, each in a tiling of its own with sums promoted more and less often (p0:
never); operands are normal, or x is positive, or both are. One line each, Markdown: rms of the error against float64
over that of the result; the slope; the rms of what is left without it; median milliseconds of all, packing included,
with a cold L2 cache (normal operands).
"""

from __future__ import annotations

import argparse
import ctypes
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from contractions import DEVICE, FLUSH_BYTES, Job, Measured, compiled
from contractions_shapes import SHAPES

from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.precision import truncation_bias as truncation
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling

PAIRS = Tiling("wgmma", 128, 64, 8, 8, pingpong=2, overlap=12, converts_left=True)
TOTALS = Tiling("wgmma", 256, 64, 8, 4, converts_left=True)
KINDS = ("normal", "x positive", "both positive")


class Errors(Measured):
    """A shape's inputs of a kind, and its float64 results at samples."""

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.shape = name, SHAPES[name]
        generator = torch.Generator(device=DEVICE).manual_seed(7)
        draw = [torch.rand if kind != "normal" else torch.randn, torch.rand if kind == "both positive" else torch.randn]
        self.inputs = [one(s, generator=generator, device=DEVICE)
                       for one, s in zip(draw, self.shape.case.shapes, strict=True)]
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
        self.expected = self.shape.call(*self.inputs)
        self.places, self.exact = self._exact()
        self.scale = self.exact.square().mean().sqrt().item()

    def row(self, result: torch.Tensor) -> str:
        """The three figures of a result."""
        error = self.sampled(result) - self.exact
        slope = ((error * self.exact).sum() / self.exact.square().sum()).item()
        rms, left = (e.square().mean().sqrt().item() / self.scale for e in (error, error - slope * self.exact))
        return f"{rms:.2e} | {slope:+.2e} | {left:.2e}"

    def ours(self, job: Job, timed: bool) -> str:
        """The figures of a kernel, and its time."""
        geometry = Geometry(replace(self.shape.case.kernel, tiling=job.tiling), job.tiling)
        library = ctypes.CDLL(job.library)
        library.run.restype = ctypes.c_char_p
        result = torch.full_like(self.expected, float("nan"))
        workspace = torch.empty(geometry.workspace_bytes + 256, dtype=torch.uint8, device=DEVICE)
        pointers = [t.data_ptr() for t in (*self.inputs, result, workspace)] + [torch.cuda.current_stream().cuda_stream]
        packed = (ctypes.c_void_p * len(pointers))(*pointers)

        def run() -> None:
            if (message := library.run(packed)) is not None:
                raise RuntimeError(message.decode())

        run()
        torch.cuda.synchronize()
        return f"{self.row(result)} | {self.timed(run) if timed else ''}"


def jobs() -> Iterator[Job]:
    """The kernels that are measured."""
    own = {"conv_8_64": PAIRS, "conv_8_64_mean": TOTALS}
    for name in ("conv_8_64", "conv_8_64_mean", "conv_64_128", "convt_64_64", "matmul_4096", "positive_2048x8192x4096"):
        kernel = SHAPES[name].case.kernel
        tiling = own.get(name) or next(iter(tilings(kernel, "wgmma")))
        usual = tiling.promote or 1
        for promote in sorted({max(1, usual // 2), usual, 2 * usual, 3 if name in own else 4 * usual}) + [0]:
            yield Job(name, replace(tiling, promote=promote), f"{name}_p{promote}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", action="store_true", help="make up for nothing")
    parser.add_argument("--list", action="store_true", help="measure nothing")
    options = parser.parse_args()
    every = list(jobs())
    if options.list:
        for job in every:
            kernel = replace(SHAPES[job.shape].case.kernel, tiling=job.tiling)
            print(f"{job.name}: {truncation.lost(Layout(Geometry(kernel, job.tiling), 0)):.2e}")
        return
    if options.raw:
        truncation.LOSS = 0.0
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(16) as pool:
        every = list(pool.map(lambda job: compiled(job, Path(folder)), every))
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
        print("| shape | operands | kernel | error | slope | left | ms |\n| --- | --- | --- | --- | --- | --- | --- |")
        for name in dict.fromkeys(job.shape for job in every):
            for kind in KINDS:
                measured = Errors(name, kind)
                print(f"| {name} | {kind} | PyTorch | {measured.row(measured.expected)} | |")
                for job in every:
                    if job.shape == name:
                        found = measured.ours(job, kind == KINDS[0]) if job.library else f"{job.notes[:200]} | | | "
                        print(f"| {name} | {kind} | p{job.tiling.promote} | {found} |", flush=True)
                del measured
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
