"""Times the C++ kernels of float32 attention against PyTorch's operators, in pairs, and checks all against float64.

    python benchmarks/kernels_attention.py --cpu                   a table
    python benchmarks/kernels_attention.py --cpu --only 512,bias   as without --cpu
    python benchmarks/kernels_attention.py --cpu --results FILE    as JSON lines, too

A case is named by its batch, heads, queries, keys, and elements of a head. ``operators`` are products, mask and softmax
one by one, ``operator`` is PyTorch's ``scaled_dot_product_attention``. Ways run in turn, in rounds that begin with
another one each; a gain is the median of the rounds' ratios, with their quarters. Seconds are those of the process on
its processors, so that what other programs take is not counted; with several threads they have the waiting of threads
for each other, so set OMP_NUM_THREADS=1 on a busy machine. Errors are rms over the rms of the result.
"""

from __future__ import annotations

import ctypes
import re
import statistics
import subprocess
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from kernel_runs import is_asked, keep

from kernelwright.codegen.cpp.attention import generate
from kernelwright.codegen.cpp.target import CPP
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import Attention

attend = torch.nn.functional.scaled_dot_product_attention
#: Rounds, and seconds that one of them takes of each way, at least.
_ROUNDS, _SECONDS = 15, 0.01
WAYS = ("ours", "operator", "operators")


class Case(Protocol):
    """What is asked of a case."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    causal: bool
    bias: bool

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> Attention: ...


def library(sources: list[KernelSource], folder: Path) -> ctypes.CDLL:
    """The kernels, each as ``run_NAME``."""
    text = CPP.support(sorted({name for source in sources for name in source.support}))
    for source in sources:
        signature = re.search(rf"static const char\* {source.name}(\([^)]*\))", source.definition)[1]
        passed = ", ".join(part.split()[-1].lstrip("*") for part in signature.strip("()").split(","))
        text += f'\n{source.definition}\nextern "C" const char* run_{source.name}{signature} ' \
                f"{{ return {source.name}({passed}); }}\n"
    path = folder / "kernels.cpp"
    path.write_text(text)
    subprocess.run([CPP.compiler[1], *CPP.flags, "-shared", "-fPIC", str(path), "-o", str(path.with_suffix(".so"))],
                   check=True)
    return ctypes.CDLL(str(path.with_suffix(".so")))


def ways(case: Case, run: Callable[..., Any]) -> tuple[dict[str, Callable[[], torch.Tensor]], torch.Tensor]:
    """The ways to compute a case, and what is right."""
    torch.manual_seed(case.queries + case.size)
    query, key, value = (torch.randn(case.batch, case.heads, length, case.size)
                         for length in (case.queries, case.keys, case.keys))
    bias = torch.randn(case.heads, case.queries, case.keys) if case.bias else None
    hidden = torch.ones(case.queries, case.keys, dtype=torch.bool).triu(1) if case.causal else None
    result, scale = torch.empty_like(query), case.size ** -0.5
    addresses = [ctypes.c_void_p(t.data_ptr()) for t in (query, key, value, *([] if bias is None else [bias]), result)]

    def ours() -> torch.Tensor:
        run(*addresses, None)
        return result

    def operators(query: torch.Tensor = query, key: torch.Tensor = key, value: torch.Tensor = value,
                  bias: torch.Tensor | None = bias) -> torch.Tensor:
        score = query @ key.mT * scale
        score = score if bias is None else score + bias
        score = score if hidden is None else score.masked_fill(hidden, -torch.inf)
        return torch.softmax(score, -1) @ value

    def operator() -> torch.Tensor:
        return attend(query, key, value, attn_mask=None if bias is None else bias[None], is_causal=case.causal)

    right = operators(query.double(), key.double(), value.double(), None if bias is None else bias.double())
    return {"ours": ours, "operator": operator, "operators": operators}, right


def seconds(ways: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """The processor's seconds of a call of each way in each round."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    begun = time.process_time()
    for run in ways.values():
        run()
    count = max(1, round(len(ways) * _SECONDS / max(time.process_time() - begun, 1e-6)))
    order = list(ways)
    for turn in range(_ROUNDS):
        for name in order[turn % len(order):] + order[:turn % len(order)]:
            begun = time.process_time()
            for _ in range(count):
                ways[name]()
            found[name].append((time.process_time() - begun) / count)
    return found


def measured(case: Case, run: Callable[..., Any]) -> dict[str, object]:
    """The figures of a case."""
    by_name, right = ways(case, run)

    def error(result: torch.Tensor) -> float:
        return float((result.double() - right).square().mean().sqrt() / right.square().mean().sqrt())

    with torch.no_grad():
        row: dict[str, object] = {"case": case.name, "threads": torch.get_num_threads(),
                                  "errors": {name: error(way()) for name, way in by_name.items()}}
        found = seconds(by_name)
    row |= {f"{name}_us": statistics.median(took) * 1e6 for name, took in found.items()}
    for name in WAYS[1:]:
        ratios = [theirs / ours for theirs, ours in zip(found[name], found["ours"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        row[f"over_{name}"] = {"median": middle, "quarters": [low, high]}
    kernel = case.kernel
    row["gflops"] = 4 * kernel.batch * kernel.pairs * case.size / statistics.median(found["ours"]) / 1e9
    return row


def line(row: dict[str, Any]) -> str:
    gains = "  ".join(f"{g['median']:5.2f}x [{g['quarters'][0]:5.2f} {g['quarters'][1]:5.2f}]"
                      for g in (row[f"over_{name}"] for name in WAYS[1:]))
    times = "".join(f"{row[f'{name}_us']:11.1f}" for name in WAYS)
    return f"{row['case']:27}{times}  {gains} {row['gflops']:7.0f}  " + " ".join(
        f"{row['errors'][name]:.1e}" for name in WAYS)


def main(cases: list[Case], options: Namespace) -> None:
    """Measure those cases that are asked for."""
    asked = [case for case in cases if is_asked(case.name, options.only)]
    sources = [generate.generate(case.kernel, f"k{n}_attention") for n, case in enumerate(asked)]
    print(f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}; microseconds of processors")
    print(f"{'case':27}{'ours':>11}{'operator':>11}{'operators':>11}  over the operator     over operators       "
          "GFLOP/s  errors")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        built = library(sources, Path(folder))
        for case, source in zip(asked, sources, strict=True):
            rows.append(measured(case, getattr(built, f"run_{source.name}")))
            print(line(rows[-1]), flush=True)
    for name in WAYS[1:]:
        mean = statistics.geometric_mean([row[f"over_{name}"]["median"] for row in rows])
        print(f"geometric mean over the {name}: {mean:.2f}x")
    keep(rows, options.results)
