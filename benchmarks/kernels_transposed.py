"""Times loop kernels whose buffers are laid out in different orders, against a plain copy and PyTorch.

    python benchmarks/kernels_transposed.py                  CUDA where there is a GPU, else C++: one table
    python benchmarks/kernels_transposed.py --target cpp     the C++ kernels (sizes scaled down)
    python benchmarks/kernels_transposed.py --only heads     cases whose name contains the text
    python benchmarks/kernels_transposed.py --tune           other tiles of the pointwise cases (CUDA)

Inputs stand in memory as the case says (channels last, heads behind time); outputs are written in PyTorch's plain
order, unless the name says otherwise. Times are medians. GB/s counts every input and output once. "of copy" is the
time of a plain copy of as many bytes, over the kernel's time; "expected" is what the schedule was designed for:
1 read and 1 write of everything at 0.9 of a copy's speed, or as stated with the case (GPU only). On a GPU the L2
cache is overwritten before each run.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from kernels_loops import (  # noqa: E402
    Timer,
    call,
    compile_library,
    kernel,
    load,
    runner,
    store,
    translation_unit,
)

from kernelwright.codegen.cpp.loops import generate as cpp_loops  # noqa: E402
from kernelwright.codegen.cpp.support.snippets import snippets as cpp_snippets  # noqa: E402
from kernelwright.codegen.cpp.target import CPP  # noqa: E402
from kernelwright.codegen.cuda.loops import generate as cuda_loops  # noqa: E402
from kernelwright.codegen.cuda.loops.tiles import TileSchedule  # noqa: E402
from kernelwright.codegen.loops.order import Walk  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.plan.expressions import Reduced  # noqa: E402
from kernelwright.plan.kernels import LoopKernel  # noqa: E402


@dataclass(frozen=True)
class Case:
    """A kernel, the shapes of its float32 inputs as they stand in memory and of its outputs, and its meaning.

    expected: the designed share of a plain copy's speed.
    """

    name: str
    kernel: LoopKernel
    shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    meaning: Callable[..., torch.Tensor]
    expected: float = 0.9

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and outputs."""
        return 4 * sum(prod(shape) for shape in (*self.shapes, *self.outputs))


def plain(sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def last(n: int, c: int, *space: int) -> tuple[int, ...]:
    """Strides of (n, c, *space) where the channels come last in memory."""
    return (c * prod(space), 1, *(stride * c for stride in plain(space)))


def first(x: torch.Tensor) -> torch.Tensor:
    """A channels-last tensor seen with its channels first."""
    return x.movedim(-1, 1)


def channel(rank: int) -> tuple[int, ...]:
    return (0, 1) + (0,) * (rank - 2)


def relu_read(*sizes: int) -> Case:
    made = kernel(sizes, (), 1, 1, outer_stores=[store(0, plain(sizes), call("relu", load(0, *last(*sizes))))])
    name = f"relu {sizes} last to first"
    return Case(name, made, ((sizes[0], *sizes[2:], sizes[1]),), (sizes,), lambda x: F.relu(first(x)).contiguous())


def relu_write(*sizes: int) -> Case:
    made = kernel(sizes, (), 1, 1, outer_stores=[store(0, last(*sizes), call("relu", load(0, *plain(sizes))))])
    shape = (sizes[0], *sizes[2:], sizes[1])
    return Case(f"relu {sizes} first to last", made, (sizes,), (shape,),
                lambda x: F.relu(x.movedim(1, -1)).contiguous())


def gelu_bias(*sizes: int) -> Case:
    value = call("gelu_erf", call("add", load(0, *last(*sizes)), load(1, *channel(len(sizes)))))
    made = kernel(sizes, (), 2, 1, outer_stores=[store(0, plain(sizes), value)])
    shape = (1, -1) + (1,) * (len(sizes) - 2)
    return Case(f"gelu(x + bias) {sizes}", made, ((sizes[0], *sizes[2:], sizes[1]), (sizes[1],)), (sizes,),
                lambda x, b: F.gelu(first(x) + b.view(shape)).contiguous())


def residual(*sizes: int) -> Case:
    value = call("relu", call("add", load(0, *last(*sizes)), load(1, *plain(sizes))))
    made = kernel(sizes, (), 2, 1, outer_stores=[store(0, plain(sizes), value)])
    return Case(f"relu(last + first) {sizes}", made, ((sizes[0], *sizes[2:], sizes[1]), sizes), (sizes,),
                lambda x, y: F.relu(y + first(x)))


def heads(batch: int, length: int, count: int, width: int, transposed: bool = False) -> Case:
    sizes = (batch, count, width, length) if transposed else (batch, count, length, width)
    strides = (length * count * width, width, count * width, 1)
    order = (0, 2, 3, 1) if transposed else (0, 2, 1, 3)
    strides = tuple((strides[0], strides[2], strides[1], strides[3])[axis] for axis in order)
    made = kernel(sizes, (), 1, 1, outer_stores=[store(0, plain(sizes), call("mul", load(0, *strides), 0.125))])
    return Case(f"heads {(batch, length, count, width)}{' time last' if transposed else ''}", made,
                ((batch, length, count, width),), (sizes,), lambda x: (x.permute(order) * 0.125).contiguous())


def channel_softmax(n: int, c: int, h: int, w: int) -> Case:
    x = load(0, c * h * w, w * c, c, 1)
    shifted = call("exp", call("sub", x, Reduced(0)))
    made = kernel((n, h, w), (c,), 1, 1, [("max", x), ("sum", shifted)],
                  [store(0, (c * h * w, w, 1, h * w), call("div", shifted, Reduced(1)))])
    return Case(f"softmax over channels {(n, c, h, w)}", made, ((n, h, w, c),), ((n, c, h, w),),
                lambda x: first(x).softmax(1).contiguous(), 0.8)


def group_statistics(n: int, c: int, h: int, w: int, groups: int) -> Case:
    own = c // groups
    x = load(0, c * h * w, own, 1, w * c, c)
    stores = [store(part, (groups, 1, 0, 0, 0), Reduced(0, part)) for part in (0, 1)]
    made = kernel((n, groups), (own, h, w), 1, 2, [("moments", x)], (), stores)

    def meaning(x):
        return torch.var_mean(first(x).reshape(n, groups, -1), -1, correction=0)[::-1]

    return Case(f"moments of {groups} groups {(n, c, h, w)}", made, ((n, h, w, c),), ((n, groups),) * 2, meaning, 0.85)


def group_norm(n: int, c: int, h: int, w: int, groups: int, to_last: bool) -> Case:
    own = c // groups
    place = (c * h * w, own, 1, w * c, c)
    x = load(0, *place)
    value = call("mul", call("sub", x, Reduced(0)), call("rsqrt", call("add", Reduced(0, 1), 1e-5)))
    value = call("add", call("mul", value, load(1, 0, own, 1, 0, 0)), load(2, 0, own, 1, 0, 0))
    out = place if to_last else (c * h * w, own * h * w, h * w, w, 1)
    made = kernel((n, groups), (own, h, w), 3, 1, [("moments", x)], [store(0, out, value)])
    shape = (n, h, w, c) if to_last else (n, c, h, w)

    def meaning(x, weight, bias):
        result = F.group_norm(first(x), groups, weight, bias)
        return result.movedim(1, -1).contiguous() if to_last else result.contiguous()

    return Case(f"group norm {groups} {(n, c, h, w)} to {'last' if to_last else 'first'}", made,
                ((n, h, w, c), (c,), (c,)), (shape,), meaning, 0.6)


def global_mean(n: int, c: int, h: int, w: int) -> Case:
    x = load(0, c * h * w, 1, w * c, c)
    made = kernel((n, c), (h, w), 1, 1, [("sum", x)], (),
                  [store(0, (c, 1, 0, 0), call("mul", Reduced(0), 1 / (h * w)))])
    return Case(f"mean over space {(n, c, h, w)}", made, ((n, h, w, c),), ((n, c),),
                lambda x: first(x).mean((2, 3)), 0.85)


def cases(small: bool) -> list[Case]:
    """The cases; ``small`` for a CPU."""
    if small:
        return [
            relu_read(16, 64, 96, 96), relu_write(16, 64, 96, 96), relu_read(16, 512, 28, 28),
            relu_read(64, 512, 7, 7), relu_read(32, 3, 224, 224), relu_write(32, 3, 224, 224),
            gelu_bias(16, 64, 96, 96), residual(16, 64, 96, 96), heads(8, 512, 12, 64), heads(8, 512, 12, 64, True),
            channel_softmax(8, 64, 96, 96), group_statistics(8, 64, 96, 96, 8), group_statistics(8, 64, 96, 96, 32),
            group_norm(8, 64, 96, 96, 8, True), group_norm(8, 64, 96, 96, 8, False), global_mean(16, 512, 28, 28),
        ]
    return [
        relu_read(128, 64, 128, 128), relu_write(128, 64, 128, 128), relu_read(16, 512, 28, 28),
        relu_write(16, 512, 28, 28), relu_read(256, 512, 7, 7), relu_read(128, 3, 224, 224),
        relu_write(128, 3, 224, 224), relu_read(8, 64, 24, 96, 96), relu_read(64, 33, 61, 59),
        gelu_bias(128, 64, 128, 128), gelu_bias(8, 64, 24, 96, 96), residual(128, 64, 128, 128),
        heads(64, 1024, 12, 64), heads(64, 1024, 12, 64, True),
        channel_softmax(64, 128, 64, 64), channel_softmax(16, 512, 64, 64),
        group_statistics(64, 64, 128, 128, 8), group_statistics(64, 64, 128, 128, 32),
        group_norm(64, 64, 128, 128, 8, True), group_norm(64, 64, 128, 128, 8, False),
        group_norm(64, 64, 128, 128, 32, False), global_mean(128, 512, 28, 28),
    ]


class Clock:
    """Median time in milliseconds on the CPU; with one thread that of the processor, which others disturb less."""

    def __call__(self, run: Callable[[], object], repeats: int = 15) -> float:
        now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        times = []
        for repeat in range(repeats + 2):
            start = now()
            run()
            if repeat > 1:
                times.append(now() - start)
        return statistics.median(times) * 1e3


def cpp_library(sources: list[KernelSource], folder: Path) -> ctypes.CDLL:
    text = cpp_snippets({snippet for source in sources for snippet in source.support})
    for source in sources:
        signature = source.definition.split(f"static const char* {source.name}")[1].split("{")[0].strip()
        passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
        text += f"\n{source.definition}\n"
        text += f'extern "C" const char* run_{source.name}{signature} {{ return {source.name}({passed}); }}\n'
    (folder / "loops.cpp").write_text(text)
    command = ["g++", *CPP.flags, "-shared", "-fPIC", str(folder / "loops.cpp"), "-o", str(folder / "loops.so")]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "loops.so"))


def cpp_runner(source: KernelSource, library: ctypes.CDLL, tensors: list[torch.Tensor]) -> Callable[[], None]:
    workspace = torch.empty(source.workspace_bytes + 256, dtype=torch.uint8)
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    pointers.append(ctypes.c_void_p(-(-workspace.data_ptr() // 256) * 256))

    def run(keep: torch.Tensor = workspace) -> None:
        message = function(*pointers)
        if message is not None:
            raise SystemExit(message.decode())

    return run


def prepare(case: Case, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Inputs and outputs of a case, reproducible."""
    generator = torch.Generator(device).manual_seed(1)
    inputs = [torch.randn(shape, generator=generator, device=device) for shape in case.shapes]
    return inputs, [torch.full(shape, float("nan"), device=device) for shape in case.outputs]


def measure(case: Case, run: Callable[[], None], inputs, outputs, timer) -> str:
    run()
    expected = case.meaning(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    error = max(float((value - exact.reshape(value.shape)).abs().max() / exact.abs().max())
                for value, exact in zip(outputs, expected, strict=True))
    before = [value.clone() for value in outputs]
    own = timer(run)
    stable = all(torch.equal(a, b) for a, b in zip(before, outputs, strict=True))
    del expected, before
    one_way = case.bytes // 8
    pair = torch.ones((2, one_way), device=outputs[0].device)
    copied = timer(lambda: pair[0].copy_(pair[1]))
    eager = timer(lambda: case.meaning(*inputs), 7)
    expected_share = f"{case.expected:9.0%}" if outputs[0].is_cuda else f"{'':9}"
    return (
        f"{case.name:44} {own * 1e3:9.1f} {case.bytes / own / 1e6:8.1f} {copied / own:8.1%} {expected_share}"
        f" {eager * 1e3:10.1f} {eager / own:7.2f} {error:9.1e} {'' if error < 1e-4 else 'WRONG'}"
        f"{'' if stable else 'NOT REPEATABLE'}"
    )


def tiles(case: Case) -> list[TileSchedule]:
    """The chosen tile of a case, and others."""
    chosen = cuda_loops.chosen_schedule(case.kernel)
    if not isinstance(chosen, TileSchedule):
        return []
    walk, found = chosen.walk, [chosen, replace(chosen, threads=512), replace(chosen, threads=128)]
    # Scale the extents of the axis that the walk runs along, and of the longest other.
    along = walk.order[-1]
    other = max((a for a in range(len(walk.extents)) if a != along), key=lambda a: walk.extents[a])
    for a, b in ((16, 64), (32, 32), (32, 64), (32, 128), (64, 32), (64, 64)):
        extents = list(walk.extents)
        if extents[other] in (32, 64) and extents[along] in (32, 64):
            extents[other], extents[along] = a, b
            found += [TileSchedule(Walk(walk.order, tuple(extents), walk.across), t) for t in (128, 256, 512)]
    return list(dict.fromkeys(found))


def tune(chosen: list[Case], folder: Path, architecture: str) -> None:
    """Print the times of every tile of each case."""
    jobs = [(case, schedule) for case in chosen for schedule in tiles(case)]
    sources = [cuda_loops.generate(case.kernel, f"tile{n}", schedule) for n, (case, schedule) in enumerate(jobs)]
    library = ctypes.CDLL(str(compile_library(translation_unit(sources), folder, architecture, verbose=False)))
    timer, previous = Timer(), None
    for (case, schedule), source in zip(jobs, sources, strict=True):
        if case is not previous:
            previous, (inputs, outputs) = case, prepare(case, "cuda")
            print(case.name)
        own = timer(runner(source, library, inputs, outputs), 9)
        rate = case.bytes / own / 1e6
        print(f"    {own * 1e3:9.1f} us {rate:8.1f} GB/s  {schedule.walk.extents} by {schedule.threads}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=("cuda", "cpp"), default="cuda" if torch.cuda.is_available() else "cpp")
    parser.add_argument("--only", default="")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    cuda = options.target == "cuda"
    chosen = [case for case in cases(not cuda) if options.only in case.name]
    generate = (cuda_loops if cuda else cpp_loops).generate
    sources = [generate(case.kernel, f"case{number}") for number, case in enumerate(chosen)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if cuda:
            major, minor = torch.cuda.get_device_capability()
            architecture = f"{major}{minor}{'a' if major >= 9 else ''}"
            if options.tune:
                tune(chosen, folder, architecture)
                return
            library = ctypes.CDLL(str(compile_library(translation_unit(sources), folder, architecture, verbose=False)))
        else:
            library = cpp_library(sources, folder)
        timer = Timer() if cuda else Clock()
        columns = ("us", 9), ("GB/s", 8), ("of copy", 8), ("expected", 9), ("eager us", 10), ("gain", 7), ("error", 9)
        print(f"{'case':44} " + " ".join(f"{text:>{width}}" for text, width in columns))
        for case, source in zip(chosen, sources, strict=True):
            inputs, outputs = prepare(case, "cuda" if cuda else "cpu")
            run = (runner(source, library, inputs, outputs) if cuda
                   else cpp_runner(source, library, [*inputs, *outputs]))
            print(measure(case, run, inputs, outputs, timer), flush=True)


if __name__ == "__main__":
    main()
