"""Times the CUDA kernels of recurrent layers against cuDNN's layers, and checks them against float64.

    python benchmarks/kernels_recurrence.py                   on a machine with a GPU and nvcc: one table
    python benchmarks/kernels_recurrence.py --only lstm,256   cases whose name contains all of the texts; may be
                                                              given several times
    python benchmarks/kernels_recurrence.py --tune            every layout of each case, fastest first
    python benchmarks/kernels_recurrence.py --compile-only    anywhere with nvcc: registers and spills
    python benchmarks/kernels_recurrence.py --results FILE    as JSON lines, too, each with device and versions

A case is one layer in one direction whose inputs have as many elements as its state. ``kernel`` is the recurrence
alone; ``layer`` is the product of all inputs and the recurrence, as an emitted file has them, and ``gain`` compares it
with the better of cuDNN's layer launched from Python (``eager``) and as a CUDA graph (``graph``). Times are medians of
rounds in turn, each a call that is waited for, so that launches count. ``cycles`` are those of a step by the clock that
the device reports, ``predicted`` what :mod:`kernelwright.codegen.cuda.recurrence.layout` expects. Errors are the
largest ones of the states against float64: the layer's, and cuDNN's.
"""

from __future__ import annotations

import ctypes
import re
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from kernel_runs import compiled, graphed, is_asked, keep, launcher, measure_all, parser, seconds, title
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.codegen.cuda.recurrence import generate  # noqa: E402
from kernelwright.codegen.cuda.recurrence.layout import Layout, choose, layouts  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.ir.node import make  # noqa: E402
from kernelwright.plan.compile.recurrences import compile_recurrence  # noqa: E402
from kernelwright.plan.kernels import Recurrence  # noqa: E402
from kernelwright.plan.lowering.recurrent import cell_of, leaf  # noqa: E402

MODULES = {"lstm": (nn.LSTM, 4), "gru": (nn.GRU, 3), "rnn_tanh": (nn.RNN, 1)}


@dataclass(frozen=True)
class Case:
    """One layer: ``steps`` of ``batch`` sequences with a state of ``hidden`` elements."""

    kind: str
    steps: int
    batch: int
    hidden: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.steps}x{self.batch}x{self.hidden}"

    @property
    def kernel(self) -> Recurrence:
        """The record: gates with the batch first and a bias of the state, from zeros, all states stored."""
        gates = MODULES[self.kind][1]
        width = gates * self.hidden
        x, weight, bias = (leaf("gates", (self.batch, self.steps, width)), leaf("weight", (width, self.hidden)),
                           leaf("bias", (width,)))
        states = 2 if self.kind == "lstm" else 1
        cell, operands = cell_of(f"aten.{self.kind}.input", x, True, False, weight, [bias], [None] * states)
        node = make("recurrence", *operands, cell=cell, value=0, axis=0, reverse=False)
        return compile_recurrence([node], range(len(operands)))


CASES = [
    *(Case(kind, 512, 10, 256) for kind in MODULES), *(Case(kind, 128, batch, 256) for kind in ("lstm", "gru")
                                                       for batch in (1, 32, 64, 128, 256)),
    *(Case(kind, 256, batch, hidden) for kind in MODULES for hidden in (64, 128, 384, 512) for batch in (1, 16, 64)),
    *(Case(kind, 128, batch, hidden) for kind in MODULES for hidden in (768, 1024, 1536, 2048) for batch in (1, 8)),
    Case("lstm", 20, 64, 128), Case("gru", 1000, 4, 128),
]


def registers(said: str, name: str) -> tuple[int, int]:
    """Registers of a thread, and bytes that it spills."""
    part = said.split(f"{name}_core", 1)[-1]
    return int(re.search(r"Used (\d+) registers", part)[1]), int(re.search(r"(\d+) bytes spill stores", part)[1])


class Runner:
    """A case on the device: cuDNN's layer, and ours by a layout's kernel."""

    def __init__(self, case: Case) -> None:
        self.case = case
        torch.manual_seed(case.steps + case.batch + case.hidden)
        module, self.gates = MODULES[case.kind]
        self.layer = module(case.hidden, case.hidden, batch_first=True).cuda().eval()
        self.x = torch.randn(case.batch, case.steps, case.hidden, device="cuda")
        self.states = torch.empty(case.steps, case.batch, case.hidden, device="cuda")
        with torch.no_grad():
            self.exact = module(case.hidden, case.hidden, batch_first=True).cuda().double()
            self.exact.load_state_dict(self.layer.state_dict())
            self.right = self.exact(self.x.double())[0]

    def theirs(self) -> torch.Tensor:
        return self.layer(self.x)[0]

    def kernel(self, library: ctypes.CDLL, source: KernelSource) -> Callable[[torch.Tensor], None]:
        weight, bias = self.layer.weight_hh_l0.detach(), self.layer.bias_hh_l0.detach()
        run = launcher(library, source)
        return lambda gates: run(gates, weight, bias, self.states)

    def gates_of(self) -> torch.Tensor:
        return nn.functional.linear(self.x, self.layer.weight_ih_l0, self.layer.bias_ih_l0)

    def error(self, states: torch.Tensor) -> float:
        return float((states.double() - self.right).abs().max())


def measured(runner: Runner, library: ctypes.CDLL, source: KernelSource, layout: Layout, *, alone: bool
             ) -> dict[str, object]:
    """The figures of one kernel; ``alone``: without those of cuDNN."""
    case = runner.case
    run = runner.kernel(library, source)
    gates = runner.gates_of()

    def layer() -> None:
        run(runner.gates_of())

    layer()
    error = runner.error(runner.states.transpose(0, 1))
    ways: dict[str, Callable[[], object]] = {"kernel": graphed(lambda: run(gates))}
    if not alone:
        ways |= {"layer": graphed(layer), "eager": runner.theirs, "graph": graphed(runner.theirs)}
    times = seconds(ways)
    clock = torch.cuda.clock_rate() * 1e6
    row: dict[str, object] = {"case": case.name, **{f"{name}_us": value * 1e6 for name, value in times.items()},
                              "cycles": times["kernel"] / case.steps * clock, "clock_mhz": clock / 1e6,
                              "predicted": layout.cycles(runner.gates), "error": error, "layout": asdict(layout)}
    if not alone:
        row["gain"] = min(times["eager"], times["graph"]) / times["layer"]
        row["their_error"] = runner.error(runner.theirs())
    return row


def line(row: dict[str, object]) -> str:
    layout = row["layout"]
    assert isinstance(layout, dict)
    spread = f"{'grid' if layout['grid'] else 'cluster'} {layout['cluster']} x {layout['threads']}, slices " \
             f"{layout['slices']}, held {layout['held']}/{layout['quads']}, own {layout['own']}, rows " \
             f"{layout['rows']}/{layout['together']}"
    figures = [f"{row[name]:10.1f}" if isinstance(row.get(name), float) else " " * 10
               for name in ("kernel_us", "layer_us", "eager_us", "graph_us")]
    gain = f"{row['gain']:6.2f}x" if "gain" in row else " " * 7
    errors = f"{row['error']:.1e} {row['their_error']:.1e}" if "their_error" in row else f"{row['error']:.1e}"
    return f"{row['case']:24}{''.join(figures)} {gain} {row['cycles']:8.0f} {row['predicted']:8.0f}  {errors}  {spread}"


def main() -> None:
    options_of = parser(__doc__.split("\n")[0])
    options_of.add_argument("--compile-only", action="store_true", help="registers and spills; needs no GPU")
    options = options_of.parse_args()
    works: list[tuple[Case, Layout]] = []
    for case in CASES:
        if is_asked(case.name, options.only):
            gates = MODULES[case.kind][1]
            chosen = choose(gates, case.batch, case.hidden)
            if chosen is None:
                print(f"{case.name:24} nothing holds its weights and states")
            elif options.tune:
                works += [(case, layout) for layout in layouts(gates, case.batch, case.hidden)]
            else:
                works.append((case, chosen))
    sources = [generate.generate(case.kernel, f"k{n}_recurrence", layout) for n, (case, layout) in enumerate(works)]
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor() as pool:
            built = list(pool.map(lambda n: compiled([sources[n]], Path(folder), n), range(len(sources))))
        if options.compile_only:
            for (case, layout), source, (_, said) in zip(works, sources, built, strict=True):
                used, spilled = registers(said, source.name)
                print(f"{case.name:24} {used:4} registers {spilled:5} bytes spilled  {layout}")
            return
        print(title())
        print(f"{'case':24}{'kernel us':>10}{'layer':>10}{'eager':>10}{'graph':>10} {'gain':>7} {'cycles':>8} "
              f"{'predicted':>8}  error, cuDNN's  layout")
        rows = measure_all(works, sources, [path for path, _ in built], Runner, measured, line, tune=options.tune,
                           by="kernel_us")
        keep(rows, options.results)


if __name__ == "__main__":
    main()
