"""Times the CUDA kernels of batched products against PyTorch's calls, and checks both against float64.

    python benchmarks/kernels_batched.py                   on a machine with a GPU and nvcc: one table
    python benchmarks/kernels_batched.py --only states,64  cases whose name contains all of the texts; may be given
                                                           several times
    python benchmarks/kernels_batched.py --tune            layouts of each case that are predicted best, fastest first
    python benchmarks/kernels_batched.py --results FILE    as JSON lines, too, each with device and versions

``ours`` is one launch as a CUDA graph, ``eager`` PyTorch's calls launched from Python (a batched product with the
copies, factors and sums around it), and ``graph`` those as a CUDA graph; ``gain`` compares ours with the better of the
two. Times are medians of rounds in turn, each a call that is waited for. ``floor`` is what reading every operand once
and writing the result takes at the data sheet's bandwidth of an H200, and ``share`` how much of ours that is. Errors
are rms over the rms of the result.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

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

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from kernelwright.codegen.cuda.batched import generate  # noqa: E402
from kernelwright.codegen.cuda.batched.layout import Layout, choose, cycles, layouts  # noqa: E402
from kernelwright.codegen.source import KernelSource  # noqa: E402
from kernelwright.ir.node import Node, make, walk  # noqa: E402
from kernelwright.ir.ops.batched import ProductForm  # noqa: E402
from kernelwright.plan.compile.batched import compile_batched  # noqa: E402
from kernelwright.roofline.devices import H200  # noqa: E402

#: Batch entries of which float64 has the results; layouts of a case that ``--tune`` tries.
_FEW, _TRIED = 2, 24


def leaf(name: str, *shape: int, dtype: str = "float32") -> Node:
    return make("input", name=name, shape=shape, dtype=dtype)


def turned(node: Node, *axes: int) -> Node:
    return make("permute", node, axes=axes)


def shaped(node: Node, *shape: int) -> Node:
    return make("reshape", node, shape=shape)


def plain(batch: int, rows: int, columns: int, depth: int, dtype: str) -> tuple[Node, Node]:
    """Matrices one after the other: nothing is copied, and nothing fused."""
    product = make("matmul", leaf("a", batch, rows, depth, dtype=dtype), leaf("b", batch, depth, columns, dtype=dtype))
    return product, product


def heads(batch: int, rows: int, columns: int, count: int, depth: int) -> tuple[Node, Node]:
    """Products of heads that lie between positions and elements."""
    product = make("matmul", turned(leaf("a", batch, rows, count, depth), 0, 2, 1, 3),
                   turned(leaf("b", batch, columns, count, depth), 0, 2, 3, 1))
    return product, product


def states(batch: int, chunks: int, length: int, count: int, size: int, state: int) -> tuple[Node, Node]:
    """States of chunks of a state-space model: an operand times its decay up to the end of the chunk."""
    x, b = leaf("x", batch, chunks * length, count, size), leaf("b", batch, chunks * length, count, state)
    sums = leaf("sums", batch, count, chunks, length)
    last = make("slice", sums, axis=3, start=length - 1, stop=length, step=1)
    decay = shaped(turned(make("exp", make("sub", last, sums)), 0, 2, 3, 1), batch, chunks, length, count, 1)
    operand = make("mul", shaped(b, batch, chunks, length, count, state), decay)
    product = make("matmul", turned(operand, 0, 1, 3, 4, 2),
                   turned(shaped(x, batch, chunks, length, count, size), 0, 1, 3, 2, 4))
    return product, turned(product, 0, 1, 2, 4, 3)


def handed_on(batch: int, chunks: int, count: int, size: int, state: int) -> tuple[Node, Node]:
    """The states before each chunk: few rows, many columns, and an operand with zeros in front."""
    made, weights = leaf("states", batch, chunks, count, size, state), leaf("weights", batch, count, chunks, chunks + 1)
    shown = make("pad", made, value=0.0, amounts=((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    right = shaped(turned(shown, 0, 2, 1, 3, 4), batch, count, chunks + 1, size * state)
    product = make("matmul", weights, right)
    return product, turned(shaped(product, batch, count, chunks, size, state), 0, 2, 1, 4, 3)


def outputs(batch: int, chunks: int, length: int, count: int, size: int, state: int) -> tuple[Node, Node]:
    """Outputs of states, times their decay, and what chunks themselves give, which another kernel computed."""
    c, made = leaf("c", batch, chunks * length, count, state), leaf("states", batch, chunks, count, state, size)
    sums, beside = leaf("sums", batch, count, chunks, length), leaf("beside", batch, chunks, count, length, size)
    product = make("matmul", turned(shaped(c, batch, chunks, length, count, state), 0, 1, 3, 2, 4), made)
    decay = shaped(turned(make("exp", sums), 0, 2, 3, 1), batch, chunks, length, count, 1)
    whole = make("add", turned(beside, 0, 1, 3, 2, 4), make("mul", turned(product, 0, 1, 3, 2, 4), decay))
    return product, shaped(whole, batch, chunks * length, count, size)


@dataclass(frozen=True)
class Case:
    """A product by the function that gives its graph, and what that is given; the batch comes first."""

    made: Callable[..., tuple[Node, Node]]
    sizes: tuple[int | str, ...]

    @property
    def name(self) -> str:
        return f"{self.made.__name__} {'x'.join(map(str, self.sizes))}"

    def node(self, batch: int | None = None) -> Node:
        """The product as planning has it, of another batch where one is given."""
        product, result = self.made(*((batch, *self.sizes[1:]) if batch else self.sizes))
        leaves = tuple(n for n in walk([result]) if n.op == "input")
        return make("batched_product", *leaves, form=ProductForm(leaves, product, result))


CASES = [
    Case(states, (2048, 2, 64, 8, 64, 16)), Case(handed_on, (2048, 2, 8, 64, 16)),
    Case(outputs, (2048, 2, 64, 8, 64, 16)),
    Case(states, (16, 16, 128, 24, 64, 128)), Case(handed_on, (16, 16, 24, 64, 128)),
    Case(outputs, (16, 16, 128, 24, 64, 128)),
    Case(heads, (256, 64, 64, 16, 64)), Case(heads, (1024, 49, 49, 12, 32)), Case(heads, (512, 33, 65, 20, 20)),
    *(Case(plain, (groups, *sizes, "float32")) for groups, sizes in (
        (8192, (64, 64, 64)), (16384, (64, 64, 16)), (16384, (16, 64, 64)), (100000, (16, 16, 16)),
        (1000000, (4, 4, 4)), (20000, (33, 65, 20)), (4096, (128, 128, 32)))),
    *(Case(plain, (32768, 64, 64, 16, dtype)) for dtype in ("float16", "bfloat16")),
]


class Runner:
    """A case on the device."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(1)
        self.case, self.node = case, case.node()
        self.inputs = [(0.3 * torch.randn(n.shape, device="cuda")).to(getattr(torch, n.dtype))
                       for n in self.node.inputs]
        self.result = torch.empty(self.node.shape, device="cuda", dtype=getattr(torch, self.node.dtype))
        few = case.node(_FEW)
        self.right = few.operator.reference(*(x[:_FEW].double() for x in self.inputs), **dict(few.attributes))

    def theirs(self) -> torch.Tensor:
        return self.node.operator.reference(*self.inputs, **dict(self.node.attributes))

    def ours(self, library: ctypes.CDLL, source: KernelSource) -> Callable[[], None]:
        run = launcher(library, source)
        return lambda: run(*self.inputs, self.result)

    def error(self, result: torch.Tensor) -> float:
        off = result[:_FEW].double() - self.right
        return float(off.square().mean().sqrt() / self.right.square().mean().sqrt())


def measured(runner: Runner, library: ctypes.CDLL, source: KernelSource, layout: Layout, *, alone: bool
             ) -> dict[str, object]:
    """The figures of one kernel; ``alone``: without PyTorch's."""
    run = runner.ours(library, source)
    runner.result.fill_(float("nan"))
    run()
    error = runner.error(runner.result)
    ways: dict[str, Callable[[], object]] = {"ours": graphed(run)}
    if not alone:
        ways |= {"eager": runner.theirs, "graph": graphed(runner.theirs)}
    times = seconds(ways)
    moved = sum(n.bytes for n in runner.node.inputs) + runner.node.bytes
    row: dict[str, object] = {
        "case": runner.case.name, **{f"{name}_us": value * 1e6 for name, value in times.items()}, "bytes": moved,
        "error": error, "floor_us": moved / H200.memory_peak * 1e6, "layout": asdict(layout),
        "share": moved / H200.memory_peak / times["ours"]}
    if not alone:
        row["gain"] = min(times["eager"], times["graph"]) / times["ours"]
        row["their_error"] = runner.error(runner.theirs())
    return row


def line(row: dict[str, object]) -> str:
    layout = row["layout"]
    assert isinstance(layout, dict)
    sides = " x ".join(f"{side['tile']} ({side['threads']} threads of {side['times']} times {side['vector']})"
                       for side in (layout["rows"], layout["columns"]))
    figures = [f"{row[name]:10.1f}" if name in row else " " * 10
               for name in ("ours_us", "eager_us", "graph_us", "floor_us")]
    gain = f"{row['gain']:6.2f}x" if "gain" in row else " " * 7
    errors = f"{row['error']:.1e} {row['their_error']:.1e}" if "their_error" in row else f"{row['error']:.1e}"
    return f"{row['case']:36}{''.join(figures)} {gain} {row['share']:6.0%}  {errors}  {sides}, " \
           f"{layout['step']} deep, {layout['products']} products"


def tried(case: Case, *, tune: bool) -> list[Layout]:
    """The layout of a case that is chosen, or those that are predicted best."""
    kernel = compile_batched(case.node(), range(len(case.node().inputs)))
    if tune:
        return sorted(layouts(kernel), key=lambda layout: cycles(kernel, layout))[:_TRIED]
    chosen = choose(kernel)
    assert chosen is not None, case.name
    return [chosen]


def main() -> None:
    options = parser(__doc__.split("\n")[0]).parse_args()
    works = [(case, layout) for case in CASES if is_asked(case.name, options.only)
             for layout in tried(case, tune=options.tune)]
    sources = [generate.generate(compile_batched(node, range(len(node.inputs))), f"k{n}_batched", layout)
               for n, (node, layout) in enumerate((case.node(), layout) for case, layout in works)]
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor() as pool:
            built = list(pool.map(lambda n: compiled([sources[n]], Path(folder), n)[0], range(len(sources))))
        print(title())
        print(f"{'case':36}{'ours us':>10}{'eager':>10}{'graph':>10}{'floor':>10} {'gain':>7} {'share':>6}  "
              "error, PyTorch's  layout")
        rows = measure_all(works, sources, built, Runner, measured, line, tune=options.tune, by="ours_us")
        if not options.tune:
            print_gains(rows)
        keep(rows, options.results)


if __name__ == "__main__":
    main()
