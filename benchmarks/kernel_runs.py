"""What benchmarks of single kernels share: they are built, run on tensors of a device, timed in turn, and kept."""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.codegen.generate import support_text  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.roofline.devices import processor_name  # noqa: E402

#: Calls of a way in a round, and rounds.
_CALLS, _ROUNDS = 3, 9


def parser(what: str) -> argparse.ArgumentParser:
    """The options that all have."""
    made = argparse.ArgumentParser(description=what)
    made.add_argument("--only", action="append", help="texts, with commas between them, all of which a case's name "
                                                      "has; may be given several times")
    made.add_argument("--tune", action="store_true", help="every layout of each case")
    made.add_argument("--results", type=Path, help="a file for rows as JSON lines")
    return made


def is_asked(name: str, only: Iterable[str] | None) -> bool:
    """Whether a case is one of those that ``--only`` asks for."""
    return any(all(text in name for text in texts.split(",")) for texts in only or [""])


def compiled(sources: Sequence[KernelSource], folder: Path, number: int) -> tuple[Path, str]:
    """A library that exports each kernel as ``run_NAME``, and what the compiler says of registers."""
    text = support_text(sources, "cuda")
    for source in sources:
        signature = re.search(rf"static const char\* {source.name}(\([^)]*\))", source.definition)[1]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
        text += f'\n{source.definition}\nextern "C" const char* run_{source.name}{signature} ' \
                f"{{ return {source.name}({passed}); }}\n"
    path = folder / f"kernels{number}.cu"
    path.write_text(text)
    done = subprocess.run(["nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-w", "-Xptxas", "-v",
                           "-shared", "-Xcompiler", "-fPIC", str(path), "-o", str(path.with_suffix(".so"))],
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"nvcc refused {path}:\n{done.stderr[-4000:]}")
    return path.with_suffix(".so"), done.stderr


def launcher(library: ctypes.CDLL, source: KernelSource) -> Callable[..., None]:
    """What launches a kernel on inputs and outputs, in this order, with a workspace of its own. Raises RuntimeError
    where a launch fails."""
    function = getattr(library, f"run_{source.name}")
    function.restype = ctypes.c_char_p
    workspace = torch.empty(max(256, source.workspace_bytes), dtype=torch.uint8, device="cuda")

    def run(*tensors: torch.Tensor) -> None:
        message = function(*(ctypes.c_void_p(t.data_ptr()) for t in (*tensors, workspace)),
                           ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        if message is not None:
            raise RuntimeError(message.decode())

    return run


def seconds(ways: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Medians of the time of a call that is waited for, of each way, in rounds in turn."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(_ROUNDS + 1):
        for name, way in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(_CALLS):
                way()
                torch.cuda.synchronize()
            if turn:
                found[name].append((time.perf_counter() - began) / _CALLS)
    return {name: statistics.median(times) for name, times in found.items()}


def graphed(way: Callable[[], object]) -> Callable[[], object]:
    """One launch of all that a way launches."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        way()
    return graph.replay


def measure_all(works: Sequence[tuple[Any, Any]], sources: Sequence[KernelSource], libraries: Sequence[Path],
                runner_of: Callable[[Any], Any], measured: Callable[..., dict[str, object]],
                line: Callable[[dict[str, object]], str], *, tune: bool, by: str) -> list[dict[str, object]]:
    """A row for each work, a case and a layout, printed as it comes; with ``tune`` those of a case together at the end,
    the fastest first. by: the column that tells. Works of a case stand together, so that one case has memory at a time.
    """
    rows: list[dict[str, object]] = []
    case = runner = None
    with torch.no_grad():
        for (wanted, layout), source, path in zip(works, sources, libraries, strict=True):
            if runner is None or case != wanted:
                runner = None  # its memory goes first
                case, runner = wanted, runner_of(wanted)
            rows.append(measured(runner, ctypes.CDLL(str(path)), source, layout, alone=tune))
            if not tune:
                print(line(rows[-1]), flush=True)
    if tune:
        for name in dict.fromkeys(case.name for case, _ in works):
            own = [row for row in rows if row["case"] == name]
            print("\n".join(line(row) for row in sorted(own, key=lambda row: row[by])), flush=True)
    return rows


def print_gains(rows: Sequence[Mapping[str, Any]]) -> None:
    """The geometric mean of what the cases gain, and its ends."""
    gains = [float(row["gain"]) for row in rows]
    print(f"gain: {exp(statistics.fmean(map(log, gains))):.2f}x (geometric mean of {len(gains)}), "
          f"{min(gains):.2f}x to {max(gains):.2f}x")


def title() -> str:
    """The first line of a table."""
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {datetime.date.today()}"


def keep(rows: Sequence[Mapping[str, object]], path: Path | None) -> None:
    """Write rows as JSON lines, each with device, versions, date and command; nothing without a file."""
    if path is not None:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor_name()
        about = {"device": device, "torch": torch.__version__,
                 "date": str(datetime.date.today()), "command": " ".join(sys.argv)}
        path.write_text("".join(json.dumps({**row, **about}) + "\n" for row in rows))
