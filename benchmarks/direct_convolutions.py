"""Direct convolutions in float32 on this machine's GPU: right or wrong, how exact, how fast, beside PyTorch.

    python benchmarks/direct_convolutions.py                    every case with its first schedules
    python benchmarks/direct_convolutions.py --only depth       cases whose name contains a text
    python benchmarks/direct_convolutions.py --most 8           that many schedules of each
    python benchmarks/direct_convolutions.py --fill positive    operands of one sign
    python benchmarks/direct_convolutions.py --compile-only     anywhere with nvcc: registers and spills

Everything is compiled first, in parallel; then each case is measured in a process of its own, which is ended after
``--timeout`` seconds: what hangs or crashes costs the rest of its case. One JSON object per line goes to ``--out``:
milliseconds (median of CUDA events with a cold L2 cache), the floor (bytes at 4.2 TB/s, or operations at 60 TFLOP/s,
whichever takes longer) and the share of it, the model's guess, the error against float64 (rms and largest over rms, on
the first and last image) beside that of PyTorch with TF32 and without, with their times, whether it is ``exact`` enough
beside the latter for a tuner, and ``verdict``: PASS, or what is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests/support", "tests/emulation", "benchmarks")]

from cold_clock import cold_milliseconds  # noqa: E402
from contraction_cases import ContractionCase, convolution  # noqa: E402

from kernelwright.build.module import find_cuda_compiler  # noqa: E402
from kernelwright.codegen.cuda.direct_conv.generate import generate, schedules  # noqa: E402
from kernelwright.codegen.cuda.direct_conv.normal_form import normal_form  # noqa: E402
from kernelwright.codegen.cuda.direct_conv.schedules import predicted_seconds  # noqa: E402
from kernelwright.codegen.generate import support_text  # noqa: E402
from kernelwright.tune.accuracy import Error  # noqa: E402

FLUSH_BYTES, REPEATS, WRONG = 256 << 20, 15, 1e-6
FILLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "normal": lambda normal: normal, "positive": torch.abs, "uniform": torch.special.ndtr}
BYTES_PER_SECOND, OPERATIONS_PER_SECOND = 4.2e12, 60e12
CUBE, LAST = {"stride": 2, "padding": 1, "transposed": True}, {"output_padding": 1}


@dataclass(frozen=True)
class Shape:
    """A case and what PyTorch calls it."""

    case: ContractionCase
    call: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def conv(*sizes, **options) -> Shape:
    """A convolution or transposed convolution; as `convolution`."""
    transposed, spatial = options.get("transposed", False), len(sizes[4])
    function = getattr(F, f"conv{'_transpose' * transposed}{spatial}d")
    passed = {k: v for k, v in options.items() if k != "transposed"}
    return Shape(convolution(*sizes, scheme="float32", **options),
                 lambda x, w: function(x, w, groups=sizes[1], **passed))


SHAPES: dict[str, Shape] = {
    "depthwise_3x3": conv(16, 64, 1, 1, (512, 512), (3, 3)),
    "depthwise_3x1": conv(64, 8, 1, 1, (512, 512), (3, 1)),
    "depthwise_3x7": conv(32, 128, 1, 1, (128, 256), (3, 7)),
    "depthwise_large": conv(64, 128, 1, 1, (256, 512), (3, 3)),
    "depthwise_padded": conv(16, 64, 1, 1, (512, 512), (3, 3), padding=1),
    "depthwise_56_stride2": conv(128, 128, 1, 1, (56, 56), (3, 3), stride=2, padding=1),
    "depthwise_14": conv(128, 512, 1, 1, (14, 14), (3, 3), padding=1),
    "conv3d_3_64": conv(16, 1, 3, 64, (64, 64, 64), (3, 3, 3)),
    "conv3d_3_64_3x5x7": conv(16, 1, 3, 64, (64, 64, 64), (3, 5, 7)),
    "conv3d_3_16": conv(128, 1, 3, 16, (16, 64, 64), (3, 3, 3)),
    "conv2d_8_64": conv(128, 1, 8, 64, (128, 128), (3, 3)),
    "stem_7x7": conv(64, 1, 3, 64, (224, 224), (7, 7), stride=2, padding=3),
    "convt3d_3_16_odd": conv(128, 1, 3, 16, (16, 32, 32), (3, 3, 3), **CUBE),
    "convt3d_3_16_even": conv(128, 1, 3, 16, (16, 32, 32), (3, 3, 3), **CUBE, **LAST),
    "convt3d_16_32": conv(16, 1, 16, 32, (16, 32, 32), (3, 3, 3), **CUBE, **LAST),
    "convt3d_groups_3x5x7": conv(8, 4, 8, 8, (12, 24, 48), (3, 5, 7), stride=2, padding=(1, 2, 3), transposed=True,
                                 output_padding=1),
    "convt3d_groups": conv(4, 4, 8, 8, (32, 64, 128), (3, 3, 3), **CUBE),
    "convt2d_stride_2x3": conv(16, 4, 8, 16, (128, 256), (3, 5), stride=(2, 3), padding=(1, 2), dilation=(2, 1),
                               transposed=True),
    "convt3d_32_64_5x5x5": conv(16, 1, 32, 64, (32, 32, 32), (5, 5, 5), stride=2, padding=2, transposed=True),
    "convt3d_32_16_3x5x7": conv(16, 1, 32, 16, (16, 32, 64), (3, 5, 7), transposed=True),
    "conv1d_4_8": conv(64, 1, 4, 8, (65536,), (9,), padding=4),
}


def floor_ms(shape: Shape) -> float:
    """The least time of a case: its bytes, or its operations."""
    kernel = shape.case.kernel
    moved = 4 * (sum(map(prod, shape.case.shapes)) + prod(kernel.domain))
    return 1e3 * max(moved / BYTES_PER_SECOND, 2 * kernel.multiply_adds / OPERATIONS_PER_SECOND)


def compiled(name: str, number: int, folder: Path) -> tuple[str, int, str, str]:
    """Case, schedule, library and what is to be said of it."""
    kernel = SHAPES[name].case.kernel
    source = generate(kernel, "direct", schedules(kernel)[number])
    text = support_text([source], "cuda") + source.definition
    text += '\nextern "C" const char* run(void** p) {\n  return direct(static_cast<const float*>(p[0]), ' \
        "static_cast<const float*>(p[1]), static_cast<float*>(p[2]), p[3], static_cast<cudaStream_t>(p[4]));\n}\n"
    path = folder / f"{name}_{number}.cu"
    path.write_text(text)
    architecture = "90a"
    if torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0):
        architecture = "".join(map(str, torch.cuda.get_device_capability()))
    done = subprocess.run([find_cuda_compiler() or "nvcc", "-std=c++17", "-O3", "-Xptxas", "-v", "-shared",
                           f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-Xcompiler", "-fPIC", "-o",
                           str(path.with_suffix(".so")), str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return name, number, "", "does not compile: " + done.stderr[:1000]
    used = [line.split("Used ")[1].split(",")[0] for line in done.stderr.splitlines() if "Used " in line]
    spilled = [line for line in done.stderr.splitlines() if "spill" in line and " 0 bytes spill stores" not in line]
    return name, number, str(path.with_suffix(".so")), ", ".join(used) + " SPILLS" * bool(spilled)


def timed(work: Callable[[], object], flush: torch.Tensor, repeats: int = REPEATS) -> float:
    """Median milliseconds with a cold L2 cache."""
    work()
    return round(statistics.median(cold_milliseconds(work, flush, repeats)), 4)


def measure(name: str, libraries: list[tuple[int, str]], fill: str) -> Iterator[dict]:
    """Schedules of a case, by number and library; PyTorch's results and times with the first."""
    shape = SHAPES[name]
    kernel, least = shape.case.kernel, floor_ms(shape)
    generator = torch.Generator("cuda").manual_seed(7)
    x, w = (FILLS[fill](torch.randn(s, generator=generator, device="cuda")) for s in shape.case.shapes)
    ends = [x[:1], x[-1:]]
    with torch.backends.cudnn.flags(enabled=False):
        exact = torch.cat([shape.call(part.double(), w.double()) for part in ends])
    scale = exact.square().mean().sqrt()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def error(result: torch.Tensor) -> Error:
        difference = torch.cat([result[:1], result[-1:]]).double() - exact
        return Error(float(difference.square().mean().sqrt() / scale), float(difference.abs().max() / scale))

    beside: dict = {}
    for label, allowed in (("tf32", True), ("float32", False)):
        torch.backends.cudnn.allow_tf32 = allowed
        expected = shape.call(x, w)
        library = error(expected)
        beside[f"{label}_error"], beside[f"{label}_largest"] = library.rms, library.largest
        beside[f"{label}_ms"] = timed(lambda: shape.call(x, w), flush, 7)
    for number, path in libraries:
        loaded = ctypes.CDLL(path)
        loaded.run.restype = ctypes.c_char_p
        result = torch.full_like(expected, float("nan"))
        pointers = [x.data_ptr(), w.data_ptr(), result.data_ptr(), None, torch.cuda.current_stream().cuda_stream]
        passed = (ctypes.c_void_p * 5)(*pointers)

        def run(loaded=loaded, passed=passed) -> None:
            message = loaded.run(passed)
            if message is not None:
                raise RuntimeError(message.decode())

        run()
        torch.cuda.synchronize()
        first, own = result.clone(), error(result)
        # Every element, image by image; one that nobody wrote is NaN.
        most = float(torch.stack([(a - b).abs().max() for a, b in zip(result, expected, strict=True)]).max() / scale)
        ms = timed(run, flush)
        verdict = "PASS"
        if not own.rms <= WRONG:
            verdict = f"FAIL: error {own.rms:.1e}"
        elif not most <= 1e-4:
            verdict = f"FAIL: somewhere {most:.1e} from PyTorch's result"
        elif not torch.equal(first, result):
            verdict = "FAIL: two runs differ"
        guess = predicted_seconds(normal_form(kernel), schedules(kernel)[number]) * 1e3
        yield {"number": number, "verdict": verdict, "ms": ms, "floor_ms": round(least, 4),
               "share": round(least / ms, 3), "predicted_ms": round(guess, 4),
               "tflops": round(2e-9 * kernel.multiply_adds / ms, 2), "error": own.rms, "largest": own.largest,
               "exact": own.no_worse_than(library, ordered=True), **beside}
        beside = {}


def asked(name: str, libraries: list[tuple[int, str]], fill: str, timeout: float) -> dict[int, dict]:
    """The answers of a process of its own by number, or why there is none."""
    work = json.dumps([name, libraries, fill])
    try:
        done = subprocess.run([sys.executable, __file__, "--work", work], capture_output=True, text=True,
                              timeout=timeout, check=False)
        said, why = done.stdout, f"exit {done.returncode}: {done.stderr[-500:]}"
    except subprocess.TimeoutExpired as late:
        said, why = late.stdout or "", f"no answer in {timeout:.0f} s"
    said = said.decode() if isinstance(said, bytes) else said
    found = {line["number"]: line for line in map(json.loads, filter(lambda s: s.startswith("{"), said.splitlines()))}
    return {number: found.get(number, {"verdict": f"FAIL: {why}"}) for number, _ in libraries}


def main() -> None:
    """Compile, then measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of cases")
    parser.add_argument("--most", type=int, default=3, help="schedules of each case")
    parser.add_argument("--fill", choices=FILLS, default="normal", help="operands: of both signs, of one, in [0, 1)")
    parser.add_argument("--timeout", type=float, default=90.0)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no more is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", default="direct_convolutions.jsonl")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        for found in measure(*json.loads(options.work)):
            print(json.dumps(found), flush=True)
        return
    began = time.monotonic()
    chosen = {name: schedules(shape.case.kernel)[:options.most] for name, shape in SHAPES.items()
              if not options.only or any(part in name for part in options.only)}
    wanted = [(name, number) for name, found in chosen.items() for number in range(len(found))]
    with tempfile.TemporaryDirectory() as folder, open(options.out, "a") as out:
        with ThreadPoolExecutor(options.jobs) as pool:
            ready = list(pool.map(lambda job: compiled(*job, Path(folder)), wanted))
        print(f"{len(ready)} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)
        for name, found in chosen.items():
            notes = {number: (library, said) for case, number, library, said in ready if case == name}
            if time.monotonic() - began > options.budget:
                break
            answers = {} if options.compile_only else \
                asked(name, [(n, library) for n, (library, _) in notes.items() if library], options.fill,
                      options.timeout)
            for number, (_, said) in notes.items():
                answer = answers.get(number, {"verdict": said})
                line = {"case": name, "number": number, **answer, "registers": said, "schedule": str(found[number])}
                out.write(json.dumps(line) + "\n")
                out.flush()
                print(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else str(v) for k, v in line.items()), flush=True)


if __name__ == "__main__":
    main()
