"""Times the CUDA loop kernels against PyTorch eager, and checks them against float64.

    python benchmarks/kernels_loops.py                  on a machine with a GPU and nvcc: one table
    python benchmarks/kernels_loops.py --compile-only   anywhere with nvcc: registers, spills, 128-bit accesses
    python benchmarks/kernels_loops.py --only softmax   cases whose name contains one of the texts
    python benchmarks/kernels_loops.py --only large     those of a gigabyte and more
    python benchmarks/kernels_loops.py --tune           neighbouring schedules of each case, fastest first

Times are medians of CUDA event times with the L2 cache overwritten before each run. GB/s counts every
input and output once; the share is of ``--peak`` (GB/s, default 4300). "predicted" is what the bytes in flight and
the instructions of the schedule should give on an H200.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.codegen.cuda.loops.generate import chosen_schedule, generate  # noqa: E402
from kernelwright.codegen.cuda.loops.schedule import Schedule, fits  # noqa: E402
from kernelwright.codegen.cuda.math import SCALAR_SNIPPETS, scalar_snippets  # noqa: E402
from kernelwright.codegen.cuda.support.snippets import snippets  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced  # noqa: E402
from kernelwright.plan.kernels import LoopKernel, Reduction, Store  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A kernel, the shapes of its float32 inputs and outputs, and its meaning in PyTorch."""

    name: str
    kernel: LoopKernel
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    meaning: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]]
    predicted: float | None = None
    """Microseconds."""


def call(function: str, *arguments: Expression | float) -> Apply:
    return Apply(function, tuple(Constant(float(a)) if isinstance(a, int | float) else a for a in arguments))


def load(buffer: int, *strides: int) -> Load:
    return Load(buffer, Index(strides))


def store(buffer: int, strides: tuple[int, ...], expression: Expression) -> Store:
    return Store(buffer, Index(strides), expression)


def kernel(outer, row, inputs, outputs, reductions=(), row_stores=(), outer_stores=()) -> LoopKernel:
    return LoopKernel(
        outer,
        row,
        tuple(Reduction(*r) for r in reductions),
        tuple(row_stores),
        tuple(outer_stores),
        ("float32",) * inputs,
        ("float32",) * outputs,
    )


def softmax(rows: int, length: int, prefix: str = "") -> Case:
    x = load(0, length, 1)
    shifted = call("exp", call("sub", x, Reduced(0)))
    made = kernel(
        (rows,),
        (length,),
        1,
        1,
        [("max", x), ("sum", shifted)],
        [store(0, (length, 1), call("div", shifted, Reduced(1)))],
    )
    return Case(
        f"{prefix}softmax {rows}x{length}", made, ((rows, length),), ((rows, length),), lambda x: x.softmax(-1)
    )


def layer_norm(rows: int, length: int, prefix: str = "") -> Case:
    x = load(0, length, 1)
    scale = call("rsqrt", call("add", Reduced(0, 1), 1e-5))
    value = call(
        "add", call("mul", call("mul", call("sub", x, Reduced(0)), scale), load(1, 0, 1)), load(2, 0, 1)
    )
    made = kernel((rows,), (length,), 3, 1, [("moments", x)], [store(0, (length, 1), value)])
    return Case(
        f"{prefix}layer_norm {rows}x{length}",
        made,
        ((rows, length), (length,), (length,)),
        ((rows, length),),
        lambda x, w, b: F.layer_norm(x, (length,), w, b),
    )


def instance_norm(rows: int, length: int) -> Case:
    x = load(0, length, 1)
    value = call("mul", call("sub", x, Reduced(0)), call("rsqrt", call("add", Reduced(0, 1), 1e-5)))
    made = kernel((rows,), (length,), 1, 1, [("moments", x)], [store(0, (length, 1), value)])
    return Case(
        f"large: instance norm of {rows}x{length}",
        made,
        ((rows, length),),
        ((rows, length),),
        lambda x: F.instance_norm(x[None])[0],
    )


def column_sum(rows: int, columns: int) -> Case:
    made = kernel(
        (columns,), (rows,), 1, 1, [("sum", load(0, 1, columns))], (), [store(0, (1, 0), Reduced(0))]
    )
    return Case(
        f"sum over 0 of {rows}x{columns}", made, ((rows, columns),), ((columns,),), lambda x: x.sum(0)
    )


def full_sum(count: int) -> Case:
    made = kernel((), (count,), 1, 1, [("sum", load(0, 1))], (), [store(0, (0,), Reduced(0))])
    return Case("sum of 2^28", made, ((count,),), ((1,),), lambda x: x.sum().reshape(1))


def gelu_bias(rows: int, columns: int) -> Case:
    value = call("gelu_erf", call("add", load(0, columns, 1), load(1, 0, 1)))
    made = kernel((rows, columns), (), 2, 1, (), (), [store(0, (columns, 1), value)])
    return Case(
        "gelu(x + bias) 2^26",
        made,
        ((rows, columns), (columns,)),
        ((rows, columns),),
        lambda x, b: F.gelu(x + b),
    )


def max_pool(n: int, c: int, h: int, w: int) -> Case:
    oh, ow = h // 2, w // 2
    x = load(0, c * h * w, h * w, 2 * w, 2, w, 1)
    value = call("relu", call("add", call("mul", x, load(1, 0, 1, 0, 0, 0, 0)), load(2, 0, 1, 0, 0, 0, 0)))
    made = kernel(
        (n, c, oh, ow),
        (2, 2),
        3,
        1,
        [("max", value)],
        (),
        [store(0, (c * oh * ow, oh * ow, ow, 1, 0, 0), Reduced(0))],
    )
    return Case(
        "max_pool2d(relu(affine))",
        made,
        ((n, c, h, w), (c,), (c,)),
        ((n, c, oh, ow),),
        lambda x, s, b: F.max_pool2d(F.relu(x * s[:, None, None] + b[:, None, None]), 2),
    )


def max_pool_3x3(n: int, c: int, h: int, w: int) -> Case:
    from kernelwright.plan.expressions import Guard

    oh, ow = h // 2, w // 2
    guards = (Guard(Index((0, 0, 2, 0, 1, 0), -1), h), Guard(Index((0, 0, 0, 2, 0, 1), -1), w))
    x = Load(0, Index((c * h * w, h * w, 2 * w, 2, w, 1), -w - 1), guards, float("-inf"))
    made = kernel(
        (n, c, oh, ow),
        (3, 3),
        1,
        1,
        [("max", x)],
        (),
        [store(0, (c * oh * ow, oh * ow, ow, 1, 0, 0), Reduced(0))],
    )
    return Case(
        "max_pool2d 3x3 s2 p1", made, ((n, c, h, w),), ((n, c, oh, ow),), lambda x: F.max_pool2d(x, 3, 2, 1)
    )


def batch_moments(n: int, c: int, h: int, w: int) -> Case:
    x = load(0, h * w, c * h * w, w, 1)
    stores = [store(part, (1, 0, 0, 0), Reduced(0, part)) for part in (0, 1)]
    made = kernel((c,), (n, h, w), 1, 2, [("moments", x)], (), stores)
    return Case(
        "moments over (0, 2, 3)",
        made,
        ((n, c, h, w),),
        ((c,), (c,)),
        lambda x: tuple(reversed(torch.var_mean(x, (0, 2, 3), correction=0))),
    )


def normalise_relu(n: int, c: int, h: int, w: int) -> Case:
    def channel(buffer):
        return load(buffer, 0, 1, 0, 0)

    strides = (c * h * w, h * w, w, 1)
    scale = call("mul", call("rsqrt", call("add", channel(2), 1e-5)), channel(3))
    value = call(
        "relu", call("add", call("mul", call("sub", load(0, *strides), channel(1)), scale), channel(4))
    )
    made = kernel((n, c, h, w), (), 5, 1, (), (), [store(0, strides, value)])

    def meaning(x, mean, variance, weight, bias):
        mean, variance, weight, bias = (t[:, None, None] for t in (mean, variance, weight, bias))
        return F.relu((x - mean) * (variance + 1e-5).rsqrt() * weight + bias)

    return Case("normalise + relu", made, ((n, c, h, w), *((c,),) * 4), ((n, c, h, w),), meaning)


def group_norm_apply(n: int, groups: int, each: int, positions: int) -> Case:
    strides = (groups * each * positions, each * positions, positions, 1)

    def statistic(buffer):
        return load(buffer, groups, 1, 0, 0)

    def channel(buffer):
        return load(buffer, 0, each, 1, 0)

    scale = call("rsqrt", call("add", call("abs", statistic(2)), 1e-5))
    value = call("mul", call("mul", call("sub", load(0, *strides), statistic(1)), scale), channel(3))
    value = call("add", value, channel(4))
    made = kernel((n, groups, each, positions), (), 5, 1, (), (), [store(0, strides, value)])

    def meaning(x, mean, variance, weight, bias):
        scale = (variance.abs() + 1e-5).rsqrt()[..., None, None]
        return (x - mean[..., None, None]) * scale * weight[..., None] + bias[..., None]

    shapes = ((n, groups, each, positions), (n, groups), (n, groups), (groups, each), (groups, each))
    return Case(f"large: group norm of {n}x{groups}x{each}x{positions}", made, shapes, shapes[:1], meaning)


def channel_logsumexp(n: int, c: int, h: int, w: int) -> Case:
    made = kernel(
        (n, h, w),
        (c,),
        1,
        1,
        [("logsumexp", load(0, c * h * w, w, 1, h * w))],
        (),
        [store(0, (h * w, w, 1, 0), Reduced(0))],
    )
    return Case(
        f"logsumexp over 1 of {n}x{c}x{h}x{w}", made, ((n, c, h, w),), ((n, h, w),), lambda x: x.logsumexp(1)
    )


def channel_softmax(n: int, c: int, h: int, w: int) -> Case:
    x = load(0, c * h * w, w, 1, h * w)
    shifted = call("exp", call("sub", x, Reduced(0)))
    made = kernel(
        (n, h, w),
        (c,),
        1,
        1,
        [("max", x), ("sum", shifted)],
        [store(0, (c * h * w, w, 1, h * w), call("div", shifted, Reduced(1)))],
    )
    return Case(
        f"softmax over 1 of {n}x{c}x{h}x{w}", made, ((n, c, h, w),), ((n, c, h, w),), lambda x: x.softmax(1)
    )


def small_linear(m: int, n: int, k: int) -> Case:
    product = call("mul", load(0, k, 0, 1), load(1, 0, k, 1))
    made = kernel(
        (m, n),
        (k,),
        3,
        1,
        [("sum", product)],
        (),
        [store(0, (n, 1, 0), call("add", Reduced(0), load(2, 0, 1, 0)))],
    )
    return Case(
        f"linear {m}x{n}, K={k}", made, ((m, k), (n, k), (n,)), ((m, n),), lambda x, w, b: F.linear(x, w, b)
    )


def row_logsumexp(rows: int, length: int) -> Case:
    made = kernel(
        (rows,), (length,), 1, 1, [("logsumexp", load(0, length, 1))], (), [store(0, (1, 0), Reduced(0))]
    )
    return Case(
        f"logsumexp of {rows}x{length}", made, ((rows, length),), ((rows,),), lambda x: x.logsumexp(-1)
    )


def mean_of_squares(count: int) -> Case:
    value = call("square", call("sub", load(0, 1), load(1, 1)))
    result = store(0, (0,), call("mul", Reduced(0), 1.0 / count))
    made = kernel((), (count,), 2, 1, [("sum", value)], (), [result])
    return Case(
        "large: mean((a - b)^2)", made, ((count,),) * 2, ((1,),), lambda a, b: F.mse_loss(a, b).reshape(1), 500
    )


def hinge(rows: int, columns: int) -> Case:
    value = call("clamp_min", call("sub", 1.0, call("mul", load(0, columns, 1), load(1, 0, 1))), 0.0)
    result = store(0, (0, 0), call("mul", Reduced(0), 1.0 / (rows * columns)))
    made = kernel((), (rows, columns), 2, 1, [("sum", value)], (), [result])
    return Case(
        "large: mean(clamp(1 - x y))",
        made,
        ((rows, columns), (columns,)),
        ((1,),),
        lambda x, y: (1 - x * y).clamp(min=0).mean().reshape(1),
        255,
    )


def middle(kind: str, n: int, length: int, columns: int) -> Case:
    made = kernel(
        (n, columns),
        (length,),
        1,
        1,
        [(kind, load(0, length * columns, 1, columns))],
        (),
        [store(0, (columns, 1, 0), Reduced(0))],
    )
    return Case(
        f"large: {kind} over 1 of {n}x{length}x{columns}",
        made,
        ((n, length, columns),),
        ((n, columns),),
        lambda x: x.sum(1) if kind == "sum" else x.amax(1),
        510,
    )


def mean_norm(rows: int, length: int) -> Case:
    x = load(0, length, 1)
    value = call("div", x, call("mul", Reduced(0), 1.0 / length))
    made = kernel((rows,), (length,), 1, 1, [("sum", call("abs", x))], [store(0, (length, 1), value)])
    return Case(
        f"large: x / mean |x| of {rows}x{length}",
        made,
        ((rows, length),),
        ((rows, length),),
        lambda x: x / x.abs().mean(1, keepdim=True),
        1150,
    )


def channel_rms(n: int, c: int, h: int, w: int) -> Case:
    strides = (c * h * w, w, 1, h * w)
    x = load(0, *strides)
    scale = call("sqrt", call("add", call("mul", Reduced(0), 1.0 / c), 1e-5))
    made = kernel(
        (n, h, w), (c,), 1, 1, [("sum", call("square", x))], [store(0, strides, call("div", x, scale))]
    )
    return Case(
        f"large: rms norm over 1 of {n}x{c}x{h}x{w}",
        made,
        ((n, c, h, w),),
        ((n, c, h, w),),
        lambda x: x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt(),
        920,
    )


def pool_1d(kind: str, rows: int, length: int, size: int, padding: int, dilation: int, predicted: float) -> Case:
    from kernelwright.plan.expressions import Guard

    out = length + 2 * padding - dilation * (size - 1)
    guard = Guard(Index((0, 1, dilation), -padding), length)
    x = Load(0, Index((length, 1, dilation), -padding), (guard,), float("-inf") if kind == "max" else 0.0)
    result = Reduced(0) if kind == "max" else call("mul", Reduced(0), 1.0 / size)
    made = kernel((rows, out), (size,), 1, 1, [(kind, x)], (), [store(0, (out, 1, 0), result)])

    def meaning(x):
        if kind == "max":
            return F.max_pool1d(x, size, 1, padding, dilation)
        return F.avg_pool1d(x, size, 1, padding)

    return Case(
        f"large: {kind} pool of {size} in {rows}x{length}",
        made,
        ((rows, length),),
        ((rows, out),),
        meaning,
        predicted,
    )


def max_pool_4x4(images: int, size: int) -> Case:
    from kernelwright.plan.expressions import Guard

    out = size - 1
    guards = (Guard(Index((0, 1, 0, 1, 0), -1), size), Guard(Index((0, 0, 1, 0, 1), -1), size))
    x = Load(0, Index((size * size, size, 1, size, 1), -size - 1), guards, float("-inf"))
    made = kernel(
        (images, out, out), (4, 4), 1, 1, [("max", x)], (), [store(0, (out * out, out, 1, 0, 0), Reduced(0))]
    )
    return Case(
        "large: max_pool2d 4x4 s1 p1",
        made,
        ((images, size, size),),
        ((images, out, out),),
        lambda x: F.max_pool2d(x, 4, 1, 1),
        1000,
    )


def new_gelu(count: int) -> Case:
    x = load(0, 1)
    cube = call("mul", call("mul", x, x), x)
    inner = call("tanh", call("mul", 0.7978845608028654, call("add", x, call("mul", 0.044715, cube))))
    value = call("mul", call("mul", 0.5, x), call("add", 1.0, inner))
    made = kernel((count,), (), 1, 1, (), (), [store(0, (1,), value)])
    return Case(
        "gelu by tanh 2^26",
        made,
        ((count,),),
        ((count,),),
        lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x.pow(3.0)))),
        132,
    )


def cases() -> list[Case]:
    images = (64, 64, 112, 112)
    return [
        softmax(4096, 4096),
        softmax(1024, 65536),
        softmax(65536, 256),
        layer_norm(16384, 1024),
        layer_norm(4096, 8192),
        column_sum(16384, 4096),
        full_sum(2**28),
        gelu_bias(2**13, 2**13),
        max_pool(*images),
        max_pool_3x3(*images),
        batch_moments(*images),
        normalise_relu(*images),
        channel_logsumexp(64, 128, 64, 64),
        channel_softmax(64, 128, 64, 64),
        small_linear(16, 128, 576),
        small_linear(16, 128, 8000),
        row_logsumexp(16, 128),
        row_logsumexp(65536, 1024),
        new_gelu(2**26),
        mean_of_squares(2**28),
        hinge(8192, 32768),
        middle("sum", 32, 4096, 4095),
        middle("max", 32, 4096, 4095),
        mean_norm(8192, 65535),
        instance_norm(16384, 15876),
        instance_norm(49152, 4096),
        instance_norm(8192, 24000),
        group_norm_apply(128, 4, 4, 123039),
        group_norm_apply(512, 64, 4, 961),
        softmax(32768, 8192, "large: "),
        softmax(26816, 5000, "large: "),
        softmax(13376, 10000, "large: "),
        layer_norm(65536, 2048, "large: "),
        channel_rms(28, 64, 512, 512),
        pool_1d("sum", 16 * 128, 65536, 8, 4, 1, 330),
        pool_1d("max", 16 * 192, 65536, 8, 4, 3, 560),
        max_pool_4x4(1024, 512),
    ]


def translation_unit(sources: list[KernelSource]) -> str:
    names = {snippet for source in sources for snippet in source.support}
    text = snippets(names - SCALAR_SNIPPETS.keys()) + scalar_snippets(names & SCALAR_SNIPPETS.keys())
    for source in sources:
        signature = source.definition.split("static const char* ")[-1].split("{")[0].strip()
        arguments = signature[signature.index("(") :]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in arguments.strip("()").split(","))
        text += f"\n{source.definition}\n"
        text += f'extern "C" const char* run_{source.name}{arguments} {{ return {source.name}({passed}); }}\n'
    return text


def compile_library(text: str, folder: Path, architecture: str, verbose: bool) -> Path:
    source, library = folder / "loops.cu", folder / "loops.so"
    source.write_text(text)
    flags = [
        "-O3",
        "-std=c++17",
        "-shared",
        "-Xcompiler",
        "-fPIC",
        f"-gencode=arch=compute_{architecture},code=sm_{architecture}",
    ]
    done = subprocess.run(
        ["nvcc", *flags, *(["-Xptxas", "-v"] if verbose else []), str(source), "-o", str(library)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    if verbose:
        subprocess.run(
            [
                "nvcc",
                "-ptx",
                "-std=c++17",
                f"-arch=compute_{architecture}",
                str(source),
                "-o",
                str(folder / "loops.ptx"),
            ],
            check=True,
        )
        print_resources(done.stderr, (folder / "loops.ptx").read_text())
    return library


def print_resources(messages: str, ptx: str) -> None:
    """Registers and spills of each kernel, and its global accesses by width."""
    accesses = {}
    for part in ptx.split(".entry ")[1:]:
        found = re.findall(r"\b(ld|st)\.global(?:\.nc)?(?:\.(v[24]))?\.[a-z]+(\d+)", part)
        widths = sorted(f"{op}{int(bits) * int((width or 'v1')[1:])}" for op, width, bits in found)
        accesses[part.split("(")[0].strip()] = ", ".join(
            f"{widths.count(key)} {key}" for key in dict.fromkeys(widths)
        )
    for name, body in re.findall(
        r"Compiling entry function '(\w+)'.*?\n(.*?)(?=ptxas info\s+: Compiling|\Z)", messages, re.S
    ):
        spills = re.search(r"(\d+) bytes spill stores", body)
        registers = re.search(r"Used (\d+) registers", body)
        shared = re.search(r"(\d+) bytes smem", body)
        readable = re.search(r"k\d+_case\d+", name)
        values = [found.group(1) if found else "0" for found in (registers, spills, shared)]
        print(
            f"{readable.group() if readable else name:14} {values[0]:>3} registers, {values[1]} spilled, "
            f"{values[2]:>6} shared, {accesses.get(name, '')}"
        )


class Timer:
    """Median device time in milliseconds, with a cold L2 cache."""

    def __init__(self) -> None:
        self.trash = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")

    def __call__(self, run: Callable[[], object], repeats: int = 15) -> float:
        times = []
        for _ in range(3):
            run()
        for _ in range(repeats):
            self.trash.fill_(1)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        return statistics.median(times)


def error_of(outputs: list[torch.Tensor], case: Case, inputs: list[torch.Tensor]) -> float:
    """Largest |value - float64 value| / (|float64 value| + its root mean square)."""
    worst = 0.0
    expected = case.meaning(*(t.double() for t in inputs))
    for value, exact in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        scale = exact.square().mean().sqrt()
        difference = (value.double() - exact).abs_()
        worst = max(worst, (difference / (exact.abs_() + scale)).max().item())
        if not torch.isfinite(value).all():
            worst = float("inf")
    return worst


def measure(case: Case, source: KernelSource, library: ctypes.CDLL, timer: Timer, peak: float) -> str:
    generator = torch.Generator("cuda").manual_seed(1)
    inputs = [
        torch.rand(shape, generator=generator, device="cuda") + 0.1
        if len(shape) == 1 and case.shapes[0] != shape
        else torch.randn(shape, generator=generator, device="cuda")
        for shape in case.shapes
    ]
    outputs = [torch.full(shape, float("nan"), device="cuda") for shape in case.outputs]
    run = runner(source, library, inputs, outputs)
    run()
    torch.cuda.synchronize()
    first = [t.clone() for t in outputs]
    error = error_of(outputs, case, inputs)
    own = timer(run)
    stable = all(torch.equal(a, b) for a, b in zip(first, outputs, strict=True))
    eager_outputs = case.meaning(*inputs)
    eager_error = error_of(
        [*(eager_outputs if isinstance(eager_outputs, tuple) else (eager_outputs,))], case, inputs
    )
    del eager_outputs
    eager = timer(lambda: case.meaning(*inputs))
    rate = 4 * sum(prod(s) for s in (*case.shapes, *case.outputs)) / own / 1e6
    return (
        f"{case.name:36} {own * 1e3:9.1f} {rate:8.0f} {rate / peak:6.1%} {eager * 1e3:10.1f} {eager / own:7.2f}"
        f" {error:9.1e} {eager_error:9.1e} {case.predicted or '':>9} {'' if stable else 'NOT REPEATABLE'}"
    )


def neighbours(case: Case) -> list[Schedule]:
    """The chosen schedule of a case, then others near it."""
    chosen = chosen_schedule(case.kernel)
    found = [chosen]
    if not case.kernel.reductions and chosen.family == "rows":
        found += [Schedule("points", unroll=u, threads=256) for u in (1, 2, 4)]
        found += [replace(chosen, group=g, unroll=u, splits=-(-case.kernel.outer[-1] // (g * s)))
                  for g in (64, 256) for u in (4, 8, 16) for s in (8, 16, 32)]
    elif chosen.family == "points":
        found += [replace(chosen, unroll=u, threads=t) for u in (1, 2, 4, 8) for t in (128, 256, 512)]
    elif chosen.window:
        found += [replace(chosen, unroll=u, threads=t) for u in (1, 2, 3) for t in (128, 256, 512, 1024)]
        found += [replace(chosen, lanes=1, unroll=2)]
    elif chosen.family == "rows":
        vectors = prod(case.kernel.row) // chosen.lanes
        for group in (8, 16, 32, 64, 128, 256, 512, 1024):
            steps = -(-vectors // group)
            plain = replace(chosen, group=group, threads=max(group, 256), keep="", kept_steps=0)
            if chosen.keep and 4 <= steps * chosen.lanes <= 64:
                found.append(replace(plain, unroll=steps, keep="registers"))
                if group < 256:
                    found.append(replace(plain, unroll=steps, keep="registers", threads=128))
            if (
                chosen.keep
                and vectors * chosen.lanes * 4 * plain.threads // group <= 200 * 1024
                and group >= 256
            ):
                found.append(replace(plain, unroll=min(steps, 4), keep="shared"))
            if (not chosen.keep and steps >= 2) or (chosen.keep and steps > 8):
                for unroll in sorted({min(steps, u) for u in (2, 4, 8)}):
                    for splits in (
                        {max(1, int(chosen.splits * f)) for f in (0.125, 0.25, 0.5, 1, 2, 4)}
                        if group == 256
                        else {1}
                    ):
                        found.append(replace(plain, unroll=unroll, splits=splits))
        if chosen.kept_steps:
            found += [replace(chosen, kept_steps=chosen.kept_steps * part // 3) for part in (1, 2)]
            found += [replace(chosen, keep="", kept_steps=0, unroll=u) for u in (chosen.unroll, chosen.unroll // 2)]
    else:
        count = prod(case.kernel.row)
        for lanes in (1, 4):
            for group in (1, 2, 4, 8, 16, 32):
                steps = -(-count // group)
                plain = replace(chosen, lanes=lanes, group=group, threads=max(256, 32 * group), keep="")
                if chosen.keep and steps * lanes <= 64:
                    found.append(replace(plain, unroll=steps, keep="registers"))
                elif group <= 8 and not chosen.keep:
                    for splits in sorted({max(1, int(chosen.splits * f)) for f in (0.5, 1, 2)}):
                        found += [
                            replace(plain, unroll=min(-(-steps // splits), u), splits=splits) for u in (4, 8)
                        ]
    return [schedule for schedule in dict.fromkeys(found) if fits(schedule, case.kernel)]


def tune(chosen: list[Case], folder: Path, architecture: str, most: int) -> None:
    """Compile the neighbours of every case, several files at a time, and print their times."""
    jobs = [
        [
            (case, schedule, generate(case.kernel, f"case{number}_{n}", schedule))
            for n, schedule in enumerate(neighbours(case))
        ]
        for number, case in enumerate(chosen)
    ]

    def build(job) -> ctypes.CDLL:
        own = folder / job[0][2].name
        own.mkdir()
        return ctypes.CDLL(
            str(compile_library(translation_unit([source for *_, source in job]), own, architecture, False))
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        libraries = list(pool.map(build, jobs))
    timer = Timer()
    for job, library in zip(jobs, libraries, strict=True):
        case = job[0][0]
        torch.manual_seed(1)
        inputs = [torch.rand(shape, device="cuda") for shape in case.shapes]
        outputs = [torch.zeros(shape, device="cuda") for shape in case.outputs]
        timed, first = [], None
        for _, schedule, source in job:
            run = runner(source, library, inputs, outputs)
            run()
            torch.cuda.synchronize()
            first = first or [t.clone() for t in outputs]
            same = all(
                torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(first, outputs, strict=True)
            )
            timed.append((timer(run, 9) * 1e3, schedule, "" if same else "WRONG"))
        print(f"{case.name}: chosen {timed[0][0]:.1f} us {describe(timed[0][1])}")
        for time, schedule, wrong in sorted(timed, key=lambda row: row[0])[:most]:
            print(f"    {time:9.1f} {describe(schedule)} {wrong}", flush=True)
        for _, schedule, wrong in timed:
            if wrong:
                print(f"    WRONG {describe(schedule)}")
        del inputs, outputs, first
        torch.cuda.empty_cache()


def describe(schedule: Schedule) -> str:
    """A schedule without its defaults."""
    plain = Schedule(schedule.family)
    values = [
        f"{f.name}={getattr(schedule, f.name)}"
        for f in fields(schedule)
        if getattr(schedule, f.name) != getattr(plain, f.name)
    ]
    return f"{schedule.family} {' '.join(values)}"


def runner(
    source: KernelSource, library: ctypes.CDLL, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> Callable[[], None]:
    """A call that launches a kernel on the current stream."""
    workspace = torch.empty(source.workspace_bytes + 1, dtype=torch.uint8, device="cuda")
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*inputs, *outputs, workspace)]
    pointers.append(ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))

    def run(keep: torch.Tensor = workspace) -> None:
        message = function(*pointers)
        if message is not None:
            raise SystemExit(message.decode())

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--most", type=int, default=6, help="schedules of each case that --tune prints")
    parser.add_argument("--peak", type=float, default=4300.0)
    options = parser.parse_args()
    chosen = [case for case in cases() if any(text in case.name for text in options.only)]
    sources = [generate(case.kernel, f"case{number}") for number, case in enumerate(chosen)]
    with tempfile.TemporaryDirectory() as folder:
        if options.compile_only:
            for number, case in enumerate(chosen):
                print(f"case{number}: {case.name}")
            compile_library(translation_unit(sources), Path(folder), "90a", verbose=True)
            return
        major, minor = torch.cuda.get_device_capability()
        architecture = f"{major}{minor}{'a' if major >= 9 else ''}"
        if options.tune:
            tune(chosen, Path(folder), architecture, options.most)
            return
        library = ctypes.CDLL(
            str(compile_library(translation_unit(sources), Path(folder), architecture, verbose=False))
        )
        timer = Timer()
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
        print(
            f"{'case':36} {'us':>9} {'GB/s':>8} {'share':>6} {'eager us':>10} {'gain':>7} {'error':>9} {'eager':>9}"
            f" {'predicted':>9}"
        )
        for case, source in zip(chosen, sources, strict=True):
            print(measure(case, source, library, timer, options.peak), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
