"""Contractions on this machine's GPU: right or wrong, how exact, how fast, tiling by tiling, beside PyTorch.

    python benchmarks/contractions.py                       probes, then every case with its tilings
    python benchmarks/contractions.py --only conv --most 3  cases whose name contains a text; tilings of each
    python benchmarks/contractions.py --core mma            the core for compute capability 8.0 and later
    python benchmarks/contractions.py --only linear --tiling "wgmma 128x128x32 s4 c2 p2 t1 x1"   this one alone
    python benchmarks/contractions.py --compile-only        anywhere with nvcc: registers, spills, warnings of ptxas
    python benchmarks/contractions.py --probes              the probes alone (benchmarks/contractions_probes.py)

Everything is compiled first, then measured in a process of its own that is ended and begun again when it crashes or
says nothing for ``--timeout`` seconds: a kernel that hangs costs one line. One JSON object per line goes to ``--out``:
milliseconds (median of CUDA events with a cold L2 cache; all, packing alone, core alone), TFLOP/s, the error against
float64 on sampled outputs (rms over rms) beside that of PyTorch's results, and ``verdict``: PASS, or what is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / folder) for folder in (".", "tests/support", "tests/emulation", "benchmarks")]

from cold_clock import cold_milliseconds  # noqa: E402
from contractions_probes import PROBES, TEXT, probe  # noqa: E402
from contractions_shapes import SHAPES  # noqa: E402

from kernelwright.build.module import find_cuda_compiler  # noqa: E402
from kernelwright.codegen.cuda.gemm.generate import generate, tilings  # noqa: E402
from kernelwright.codegen.cuda.gemm.search import predicted_milliseconds  # noqa: E402
from kernelwright.codegen.cuda.gemm.tiling import Tiling  # noqa: E402
from kernelwright.codegen.generate import support_text  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402

DEVICE, FLUSH_BYTES, REPEATS, SAMPLES = "cuda", 256 << 20, 12, 48
#: Errors (rms over rms, against float64) above which a result is called wrong.
WRONG = {"fp16x3": 4e-6, "fp16": 2e-3, "native": 1e-2}


# ----------------------------------------------------------------------------------------------- building

@dataclass(frozen=True)
class Job:
    """One kernel to build and measure."""

    shape: str
    tiling: Tiling
    name: str
    library: str = ""
    notes: str = ""
    workspace_bytes: int = 0


def library_text(kernel, name: str) -> tuple[str, KernelSource]:
    """A kernel's text with entries that take pointers: all of it, packing alone, the core alone."""
    source = generate(kernel, name)
    head, _, rest = source.definition.rpartition(f"static const char* {name}(")
    arguments, _, body = rest.partition(") {\n")
    lines = body.removesuffix("  return nullptr;\n}").split("\n")
    begins = next(i for i, line in enumerate(lines) if f"{name}_core" in line or "int device" in line)
    packing = ("_pack", "_greatest", "cudaMemsetAsync")
    parts = {"": lines, "_packing": lines[:begins],
             "_multiply": [line for line in lines if not any(word in line for word in packing)]}
    passed = ", ".join(p.rpartition(" ")[0].strip() for p in arguments.split(", "))
    types = [t.strip() for t in passed.split(",")]
    call = ", ".join(f"static_cast<{t}>(p[{i}])" for i, t in enumerate(types))
    text = support_text([source], "cuda") + head
    for suffix, chosen in parts.items():
        text += f"static const char* {name}{suffix}({arguments}) {{\n" + "\n".join(chosen) + "\n  return nullptr;\n}\n"
        text += f'extern "C" const char* run{suffix}(void** p) {{ return {name}{suffix}({call}); }}\n'
    return text, source


def compiled(job: Job, folder: Path) -> Job:
    """The job with its library, or with what the compiler said."""
    kernel = replace(SHAPES[job.shape].case.kernel, tiling=job.tiling)
    try:
        text, source = library_text(kernel, "contraction")
    except ValueError as error:
        return replace(job, notes=f"not generated: {error}")
    return build(replace(job, workspace_bytes=source.workspace_bytes), text, folder)


def build(job: Job, text: str, folder: Path) -> Job:
    path = folder / f"{job.name}.cu"
    path.write_text(text)
    library = path.with_suffix(".so")
    command = [find_cuda_compiler() or "nvcc", "-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas",
               "-v", "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return replace(job, notes="does not compile: " + done.stderr[:2000])
    words = [line for line in done.stderr.splitlines() if "C75" in line or
             ("spill" in line and not line.strip().endswith("0 bytes spill stores, 0 bytes spill loads"))]
    return replace(job, library=str(library), notes=" | ".join(w.strip()[:160] for w in words[:3]))


# ----------------------------------------------------------------------------------------------- measuring

class Measured:
    """A shape's inputs, its float64 results at samples, and PyTorch's results and times."""

    def __init__(self, name: str) -> None:
        self.name, self.shape = name, SHAPES[name]
        case, kernel = self.shape.case, self.shape.case.kernel
        generator = torch.Generator(device=DEVICE).manual_seed(7)
        draw = torch.rand if self.shape.positive else torch.randn
        self.inputs = [draw(s, generator=generator, device=DEVICE).to(getattr(torch, t))
                       for s, t in zip(case.shapes, kernel.input_dtypes, strict=True)]
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
        self.tflop = 2e-12 * kernel.multiply_adds
        self.torch: dict[str, float] = {}
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.expected = self.shape.call(*self.inputs)
        self.places, self.exact = self._exact()
        self.scale = self.exact.square().mean().sqrt().item()
        for label, tf32 in ((kernel.input_dtypes[0], False), ("tf32", True)):
            if tf32 and kernel.scheme == "native":
                continue
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
            self.torch[f"{label}_ms"] = self.timed(lambda: self.shape.call(*self.inputs), 5)
            self.torch[f"{label}_error"] = self.error(self.shape.call(*self.inputs))
        if kernel.scheme != "native":
            halves = [x.half() for x in self.inputs]
            self.torch["float16_ms"] = self.timed(lambda: self.shape.call(*halves), 5)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def _exact(self) -> tuple[tuple, torch.Tensor]:
        """Places of the result (an index of its first axes) and its float64 values there."""
        x, w = self.inputs
        if self.shape.case.kernel.axes:  # whole images
            entries = torch.unique(torch.tensor([0, len(x) // 2, len(x) - 1]))
            with torch.backends.cudnn.flags(enabled=False):
                exact = torch.cat([self.shape.call(x[i:i + 1].double(), w.double()) for i in entries.tolist()])
            return (entries.to(DEVICE),), exact
        groups, rows = x.shape[0], x.shape[-2]
        group = torch.unique(torch.tensor([0, groups - 1])).to(DEVICE)
        row = torch.unique(torch.linspace(0, rows - 1, SAMPLES).long()).to(DEVICE)
        exact = self.shape.call(x[group][:, row].double(), w[group].double())
        return (group[:, None], row[None]), exact.reshape(len(group), len(row), -1)

    def sampled(self, result: torch.Tensor) -> torch.Tensor:
        """A result in its sampled places."""
        if not self.shape.case.kernel.axes:
            result = result.reshape(self.inputs[0].shape[0], self.inputs[0].shape[-2], -1)
        return result[self.places].double()

    def error(self, result: torch.Tensor) -> float:
        """The rms of the error over that of the result."""
        return (self.sampled(result) - self.exact).square().mean().sqrt().item() / self.scale

    def timed(self, work: Callable[[], object], repeats: int = REPEATS) -> float:
        """Median milliseconds."""
        work()
        return round(statistics.median(cold_milliseconds(work, self.flush, repeats)), 4)

    def judge(self, job: Job) -> dict:
        """One tiling: verdict, error, times."""
        kernel = self.shape.case.kernel
        library = ctypes.CDLL(job.library)
        result = torch.full(self.expected.shape, float("nan"), dtype=self.expected.dtype, device=DEVICE)
        workspace = torch.empty(job.workspace_bytes + 256, dtype=torch.uint8, device=DEVICE)
        workspace.fill_(255)
        pointers = [t.data_ptr() for t in (*self.inputs, result, workspace)] + [torch.cuda.current_stream().cuda_stream]
        packed = (ctypes.c_void_p * len(pointers))(*pointers)

        def run(entry: str) -> None:
            function = getattr(library, entry)
            function.restype = ctypes.c_char_p
            message = function(packed)
            if message is not None:
                raise RuntimeError(message.decode())

        run("run")
        torch.cuda.synchronize()
        error = self.error(result)
        most = (result.float() - self.expected.float()).abs().max().item() / self.scale
        verdict = "PASS"
        if not error <= WRONG[kernel.scheme]:
            verdict = f"FAIL: error {error:.1e}"
        elif not most <= 1000 * WRONG[kernel.scheme]:
            verdict = f"FAIL: somewhere {most:.1e} from PyTorch's result"
        first = result.clone()
        run("run")
        if not torch.equal(first, result):
            verdict = "FAIL: two runs differ"
        found = {"verdict": verdict, "error": error, "most": most, "ms": self.timed(lambda: run("run")),
                 "packing_ms": self.timed(lambda: run("run_packing")),
                 "core_ms": self.timed(lambda: run("run_multiply"))}
        return {**found, "tflops": round(self.tflop / found["ms"] * 1e3, 1),
                "core_tflops": round(self.tflop / found["core_ms"] * 1e3, 1), "torch": self.torch}


def work() -> None:
    """The measuring process: a job per line in, a JSON object per line out; ends at the first CUDA error."""
    current: Measured | None = None
    print(json.dumps({"ready": torch.cuda.get_device_name()}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        if "probe" in order:
            print(json.dumps(probe(order["probe"], ctypes.CDLL(order["library"]))), flush=True)
            continue
        job = Job(**{**order, "tiling": Tiling(**order["tiling"])})
        if current is None or current.name != job.shape:
            current = None
            torch.cuda.empty_cache()
            current = Measured(job.shape)
        print(json.dumps(current.judge(job)), flush=True)


class Worker:
    """The measuring process, begun again when it is needed after an end."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.process, self.device = timeout, None, ""

    def ask(self, order: dict) -> dict:
        """The answer to an order, or why there is none."""
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, __file__, "--work"], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.lines: queue.Queue[str] = queue.Queue()
            self.errors: list[str] = []
            threading.Thread(target=self._listen, args=(self.process.stdout, self.lines.put), daemon=True).start()
            threading.Thread(target=self._listen, args=(self.process.stderr, self.errors.append), daemon=True).start()
            self.device = self._answer(2 * self.timeout).get("ready", "")
            if not self.device:
                return {"verdict": "FAIL: no process: " + "".join(self.errors)[-500:]}
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except OSError:
            return self._ended()
        return self._answer(self.timeout)

    @staticmethod
    def _listen(stream, take: Callable[[str], object]) -> None:
        for line in stream:
            take(line)
        take("")

    def _answer(self, seconds: float) -> dict:
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            self.process = None
            return {"verdict": f"FAIL: no answer in {seconds:.0f} s"}
        return json.loads(line) if line else self._ended()

    def _ended(self) -> dict:
        self.process.kill()
        self.process.wait()
        time.sleep(0.2)  # what it said last
        self.process = None
        return {"verdict": "FAIL: " + " ".join("".join(self.errors).strip().splitlines()[-1:])[:500]}

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(30)


# ----------------------------------------------------------------------------------------------- the command

def jobs(options: argparse.Namespace) -> Iterator[Job]:
    """What the command line asks for."""
    for name, shape in SHAPES.items():
        if options.only and not any(word in name for word in options.only):
            continue
        for core in ("wgmma", "mma") if options.core == "both" else (options.core,):
            found = [parsed(word) for word in options.tiling] or tilings(shape.case.kernel, core)[:options.most]
            for number, tiling in enumerate(found):
                yield Job(name, tiling, f"{name}_{core}_{number}")


def describe(tiling: Tiling) -> str:
    """A tiling in one word."""
    return f"{tiling.core} {tiling.rows}x{tiling.columns}x{tiling.depth} s{tiling.stages} c{tiling.cluster} " \
        f"p{tiling.promote} t{tiling.pingpong} x{tiling.split_k}" + f" o{tiling.parities}" * (tiling.parities > 1) \
        + " raw" * tiling.converts_right \
        + f" v{tiling.overlap}" * (tiling.overlap > 0) + " lies" * tiling.converts_left \
        + " packs" * tiling.packs_concurrently + " a" * tiling.sector_aligned + " f" * tiling.from_registers \
        + f" j{tiling.folded_taps}" * (tiling.folded_taps > 1)


def parsed(text: str) -> Tiling:
    """The tiling that `describe` writes so."""
    found = re.fullmatch(r"(\w+) (\d+)x(\d+)x(\d+) s(\d+) c(\d+) p(\d+) t(\d+) x(\d+)"
                         r"(?: o(\d+))?( raw)?(?: v(\d+))?( lies)?( packs)?( a)?( f)?(?: j(\d+))?", text)
    if found is None:
        raise SystemExit(f"no tiling: {text!r}; one looks like 'wgmma 128x128x32 s4 c2 p2 t1 x1'")
    core, output_phases, raw = found[1], int(found[10] or 1), bool(found[11])
    rows, columns, depth, stages, cluster, promote, warpgroups, split = map(int, found.groups()[1:9])
    overlap = int(found[12] or 0)
    return Tiling(core, rows, columns, depth, stages, cluster, promote, warpgroups, raw, split, output_phases, overlap,
                  bool(found[13]), bool(found[14]), bool(found[15]), bool(found[16]), int(found[17] or 1))


def main() -> None:
    """Compile, then measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="*", default=[], help="parts of names of cases")
    parser.add_argument("--core", choices=["wgmma", "mma", "both"], default="wgmma")
    parser.add_argument("--tiling", nargs="*", default=[], help="these instead of the proposed ones")
    parser.add_argument("--most", type=int, default=4, help="tilings of each case")
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds after which no more is begun")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", default="contractions.jsonl")
    parser.add_argument("--probes", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work()
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, open(options.out, "a") as out:
        folder = Path(name)
        wanted = [] if options.probes else list(jobs(options))
        with ThreadPoolExecutor(options.jobs) as pool:
            first = pool.submit(build, Job("", Tiling("wgmma", 64, 64, 16, 2), "probes"), TEXT, folder)
            ready = list(pool.map(lambda job: compiled(job, folder), wanted))
        print(f"{len(ready)} kernels compiled in {time.monotonic() - began:.0f} s", flush=True)
        if options.compile_only:
            for job in [first.result(), *ready]:
                print(f"{job.name:34} {describe(job.tiling):36} {job.notes or 'no spills, no warnings'}")
            return
        worker = Worker(options.timeout)
        for number, probe_name in enumerate(PROBES):
            found = worker.ask({"probe": probe_name, "library": first.result().library})
            if number == 0:
                run = {"device": worker.device, "pytorch": torch.__version__, "cuda": torch.version.cuda,
                       "date": time.strftime("%Y-%m-%d", time.gmtime()), "options": sys.argv[1:]}
                out.write(json.dumps(run) + "\n")
            out.write(json.dumps({"probe": probe_name, **found}) + "\n")
            print(f"probe {probe_name}: {json.dumps(found)}", flush=True)
        for job in ready:
            if time.monotonic() - began > options.budget:
                break
            found = worker.ask(asdict(job)) if job.library else {"verdict": f"FAIL: {job.notes}"}
            if job.tiling.core != "mma" and job.library:
                kernel = SHAPES[job.shape].case.kernel
                found["predicted_core_ms"] = round(predicted_milliseconds(kernel, job.tiling), 4)
            out.write(json.dumps({**asdict(replace(job, library="")), **found}) + "\n")
            out.flush()
            torchs = found.get("torch", {})
            print(f"{job.shape:26} {describe(job.tiling):36} {found.get('ms', 0):9.4f} ms "
                  f"(packing {found.get('packing_ms', 0):.4f}, core {found.get('core_ms', 0):.4f}, "
                  f"predicted {found.get('predicted_core_ms', 0):.4f}) "
                  f"{found.get('tflops', 0):6.1f} TFLOP/s, core {found.get('core_tflops', 0):6.1f}; "
                  f"error {found.get('error', 0):.1e}; torch "
                  + ", ".join(f"{k} {v:.4g}" for k, v in torchs.items()) + f"; {found['verdict']} {job.notes}",
                  flush=True)
        worker.close()


if __name__ == "__main__":
    main()
