"""Times the CUDA kernels of attention against PyTorch's operator, and checks both against float64.

    python benchmarks/kernels_attention.py                    on a machine with a GPU and nvcc: one table
    python benchmarks/kernels_attention.py --only 1024,causal cases whose name contains all of the texts; may be given
                                                              several times
    python benchmarks/kernels_attention.py --tune             every layout of each case, fastest first; of each the
                                                              first N with --first N
    python benchmarks/kernels_attention.py --dtype bfloat16   in a type of 16 bits (or float16; the default is float32),
                                                              beside PyTorch's flash and cuDNN kernels by name
    python benchmarks/kernels_attention.py --results FILE     as JSON lines, too, each with device and versions
    python benchmarks/kernels_attention.py --cpu              the C++ kernels beside PyTorch's on the CPU, which needs
                                                              no GPU (benchmarks/kernels_attention_cpu.py)

A case is named by its batch, heads, queries, keys, and elements of a head. ``ours`` is a CUDA graph of all launches,
``eager`` PyTorch's ``scaled_dot_product_attention`` launched from Python, and ``graph`` that as a CUDA graph; in 16
bits ``flash`` and ``cudnn`` are CUDA graphs of these kernels alone, where they take the case. ``gain`` compares ours
with the best of the others. Times are medians of rounds in turn, each a call that is waited for. Products are two
operations for each pair that has a weight, and ``roofline`` is the share of what float16 units would take for one of
each, in float32 for three. Errors are rms over the rms of the result: ours, PyTorch's own choice, and in 16 bits flash
and cuDNN.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import kernels_attention_cpu
import torch
from kernel_runs import (
    compiled,
    graphed,
    is_asked,
    keep,
    launcher,
    measure_all,
    parser,
    print_gains,
    seconds,
    title,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.codegen.cuda.attention import generate  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.ir.node import Node, constant, make, walk  # noqa: E402
from kernelwright.ir.registry import torch_dtype  # noqa: E402
from kernelwright.plan.compile.attentions import compile_attention  # noqa: E402
from kernelwright.plan.kernels import Attention  # noqa: E402
from kernelwright.plan.lowering.attention import Attentions  # noqa: E402
from kernelwright.plan.lowering.forms import searched  # noqa: E402
from kernelwright.roofline.devices import H200  # noqa: E402

attend = torch.nn.functional.scaled_dot_product_attention
#: Kernels of PyTorch in types of 16 bits.
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
#: Pairs of which float64 has the weights at a time.
_PAIRS = 1 << 27


@dataclass(frozen=True)
class Case:
    """One attention; ``bias``: whether scores of each head get a table added."""

    batch: int
    heads: int
    queries: int
    keys: int
    size: int
    causal: bool = False
    bias: bool = False
    dtype: str = "float32"

    @property
    def name(self) -> str:
        more = " causal" * self.causal + " bias" * self.bias
        return f"{self.batch}x{self.heads}x{self.queries}x{self.keys}x{self.size}{more}"

    @property
    def kernel(self) -> Attention:
        """The record, as of a model that calls PyTorch's operator."""
        def leaf(name: str, *shape: int) -> Node:
            return make("input", name=name, shape=shape, dtype="float32")

        lead = self.batch, self.heads
        query, key, value = (leaf(name, *lead, length, self.size) for name, length in (
            ("query", self.queries), ("key", self.keys), ("value", self.keys)))
        score = make("mul", make("matmul", query, make("permute", key, axes=(0, 1, 3, 2))),
                     constant(self.size ** -0.5))
        if self.bias:
            score = make("add", score, leaf("bias", self.heads, self.queries, self.keys))
        result = make("matmul", make("softmax", score, axis=3), value)
        found = searched(Attentions, [result], (), None)
        assert found is not None, self.name
        node = next(n for n in walk([found.moved[result]]) if n.op == "attention")
        form = replace(node["form"], causal=self.causal, empty_rows=True)
        names = [i["name"] for i in node.inputs]
        order = [names.index(name) for name in ("query", "key", "value", *(["bias"] if self.bias else []))]
        own = make("attention", *node.inputs, form=form)
        kernel = compile_attention(own, [order.index(n) for n in range(len(names))])
        return replace(kernel, input_dtypes=(self.dtype,) * len(names), output_dtypes=(self.dtype,), compute=self.dtype)


CASES = [
    *(Case(max(1, 16384 // length), 16, length, length, size, causal) for length in (128, 512, 1024, 4096)
      for size in (64, 128) for causal in (False, True)),
    Case(2, 4, 16384, 16384, 32), Case(1, 8, 16384, 16384, 64, True), Case(1, 1, 8192, 8192, 64),
    Case(32, 12, 197, 197, 64), Case(64, 16, 257, 257, 80), Case(4096, 3, 49, 49, 32, bias=True),
    Case(1024, 12, 49, 49, 32, bias=True), Case(8, 32, 512, 512, 96, True), Case(128, 8, 512, 512, 96, True),
    Case(4, 8, 1024, 1024, 256), Case(4, 8, 1024, 1024, 256, True), Case(8, 8, 4096, 77, 40),
    Case(2, 8, 4096, 4096, 40), Case(16, 12, 384, 384, 64, bias=True),
]
#: Columns of the table.
WAYS = ("ours_us", "eager_us", "graph_us", "flash_us", "cudnn_us")
ERRORS = ("error", "their_error", "flash_error", "cudnn_error")
#: Those of two cores.
CPU_CASES = [
    *(Case(1, 12, length, length, 64, causal, bias) for length in (128, 197, 512, 1024)
      for causal, bias in ((False, False), (True, False), (False, True))),
    Case(1, 4, 4096, 4096, 64), Case(1, 4, 4096, 4096, 64, True), Case(8, 12, 128, 128, 64),
    Case(64, 3, 49, 49, 32, bias=True), Case(2, 8, 1024, 77, 40), Case(1, 32, 16, 1024, 128),
    Case(1, 8, 1024, 1024, 8), Case(1, 8, 1024, 1024, 16), Case(1, 4, 1024, 1024, 128), Case(1, 2, 1024, 1024, 256),
    Case(2, 4, 64, 64, 32),
]


class Runner:
    """A case on the device."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(case.queries + case.size)
        dtype = torch_dtype(case.dtype)
        self.query, self.key, self.value = (torch.randn(case.batch, case.heads, length, case.size, device="cuda")
                                            .to(dtype) for length in (case.queries, case.keys, case.keys))
        self.bias = torch.randn(case.heads, case.queries, case.keys, device="cuda").to(dtype) if case.bias else None
        self.result = torch.empty_like(self.query)
        self.few = max(1, min(case.batch, _PAIRS // (case.heads * case.queries * case.keys)))
        self.heads = max(1, min(case.heads, _PAIRS // (case.queries * case.keys)))
        self.right = self.attended([x[:self.few, :self.heads].double() for x in (self.query, self.key, self.value)],
                                   None if self.bias is None else self.bias[:self.heads].double())

    def attended(self, operands: list[torch.Tensor], bias: torch.Tensor | None) -> torch.Tensor:
        return attend(*operands, attn_mask=None if bias is None else bias[None], is_causal=self.case.causal)

    def theirs(self) -> torch.Tensor:
        return self.attended([self.query, self.key, self.value], self.bias)

    def by(self, backend: SDPBackend) -> torch.Tensor:
        with sdpa_kernel(backend):
            return self.theirs()

    def ours(self, library: ctypes.CDLL, source: KernelSource) -> Callable[[], None]:
        given = [self.query, self.key, self.value, *([] if self.bias is None else [self.bias]), self.result]
        run = launcher(library, source)
        return lambda: run(*given)

    def error(self, result: torch.Tensor) -> float:
        found = result[:self.few, :self.heads].double()
        return float((found - self.right).square().mean().sqrt() / self.right.square().mean().sqrt())


def backends(runner: Runner) -> dict[str, SDPBackend]:
    """PyTorch's kernels by name that take a case."""
    found = {}
    for name, backend in BACKENDS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runner.by(backend)
        except RuntimeError:
            continue
        found[name] = backend
    return found


def measured(runner: Runner, library: ctypes.CDLL, source: KernelSource, layout: Any, *, alone: bool
             ) -> dict[str, object]:
    """The figures of one kernel; ``alone``: without PyTorch's."""
    case = runner.case
    run = runner.ours(library, source)
    run()
    error = runner.error(runner.result)
    ways: dict[str, Callable[[], object]] = {"ours": graphed(run)}
    named = {} if alone or case.dtype == "float32" else backends(runner)
    if not alone:
        ways |= {"eager": runner.theirs, "graph": graphed(runner.theirs)}
        ways |= {name: graphed(partial(runner.by, backend)) for name, backend in named.items()}
    times = seconds(ways)
    kernel = case.kernel
    operations = 4 * kernel.batch * kernel.pairs * case.size
    row: dict[str, object] = {"case": case.name, **{f"{name}_us": value * 1e6 for name, value in times.items()},
                              "tflops": operations / times["ours"] / 1e12, "error": error, "layout": asdict(layout),
                              "roofline": (3 if case.dtype == "float32" else 1) * operations / H200.float16
                                          / times["ours"]}
    if not alone:
        row["gain"] = min(time for name, time in times.items() if name != "ours") / times["ours"]
        row["their_error"] = runner.error(runner.theirs())
        row |= {f"{name}_error": runner.error(runner.by(backend)) for name, backend in named.items()}
    return row


def line(row: dict[str, object]) -> str:
    layout = row["layout"]
    assert isinstance(layout, dict)
    more = "".join(f", {word}" for word in ("converts", "turns") if layout.get(word))
    spread = f"{layout['groups']} x 64 rows, {layout['tile_columns']} columns, {layout['stages']} stages, " \
             f"{layout['blocks']} blocks{more}"
    figures = [f"{row[name]:10.1f}" if name in row else " " * 10 for name in WAYS]
    gain = f"{row['gain']:6.2f}x" if "gain" in row else " " * 7
    errors = " ".join(f"{row[name]:.1e}" if name in row else "       " for name in ERRORS)
    return f"{row['case']:28}{''.join(figures)} {gain} {row['tflops']:7.0f} {row['roofline']:8.0%}  {errors}  {spread}"


def main() -> None:
    asked = parser(__doc__.split("\n")[0])
    asked.add_argument("--dtype", choices=tuple(generate.SCHEMES), default="float32", help="the type of all operands")
    asked.add_argument("--first", type=int, help="with --tune: so many layouts of each case, the first ones")
    asked.add_argument("--cpu", action="store_true", help="the C++ kernels, on the CPU")
    options = asked.parse_args()
    if options.cpu:
        kernels_attention_cpu.main(CPU_CASES, options)
        return
    works: list[tuple[Case, Any]] = []
    for case in (replace(case, dtype=options.dtype) for case in CASES):
        if is_asked(case.name, options.only):
            found = list(dict.fromkeys(generate.SCHEMES[case.dtype].layouts(case.kernel)))
            works += [(case, layout) for layout in (found[:options.first] if options.tune else found[:1])]
    sources = [generate.generate(case.kernel, f"k{n}_attention", layout) for n, (case, layout) in enumerate(works)]
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor() as pool:
            built = list(pool.map(lambda n: compiled([sources[n]], Path(folder), n)[0], range(len(sources))))
        print(f"{title()}, {options.dtype}")
        ways = "".join(f"{name.removesuffix('_us'):>10}" for name in WAYS)
        print(f"{'case':28}{ways} {'gain':>7} {'TFLOP/s':>7} {'roofline':>8}  "
              f"{'error':7} {'theirs':7} {'flash':7} {'cudnn':7}  layout")
        rows = measure_all(works, sources, built, Runner, measured, line, tune=options.tune, by="ours_us")
        if not options.tune:
            print_gains(rows)
        keep(rows, options.results)


if __name__ == "__main__":
    main()
