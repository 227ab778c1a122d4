"""Scans of both targets against float64 (C++ compiled, CUDA under the CPU emulation), their rules and plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, nan, prod

import pytest
import test_loops_cpp
import test_loops_cuda
import torch
from graph_tools import assert_same, check_rewrite, graph_of, leaf
from loop_cases import LoopCase, call, contiguous, load
from test_capture import Of
from test_planner import check_graph, check_model, kinds

from kernelwright.codegen.cpp.scan import generate as cpp
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.scan import generate as cuda
from kernelwright.codegen.reference.scans import evaluate, required_output_sizes
from kernelwright.ir.node import make
from kernelwright.plan.expressions import Expression, Guard, Index, Load, Reduced
from kernelwright.plan.kernels import Scan, Store

STATE = Reduced(0)


@dataclass(frozen=True)
class ScanCase(LoopCase):
    """A LoopCase whose kernel is a Scan."""

    @property
    def output_sizes(self) -> list[int]:
        return required_output_sizes(self.kernel)

    def expected(self) -> list[torch.Tensor]:
        return evaluate(self.kernel, self.inputs())


def scan(outer: tuple[int, ...], length: int, *, axis: int | None = None, kind: str = "sum", exclusive: bool = False,
         reverse: bool = False, mask: bool = False, epilogue: bool = False, dtype: str = "float32",
         output: str | None = None) -> Scan:
    """A scan of one tensor of shape ``outer`` with ``length`` inserted at ``axis`` (at the end by default)."""
    place = len(outer) if axis is None else axis
    strides = list(contiguous((*outer[:place], length, *outer[place:])))
    step = strides.pop(place)
    index = Index((*strides, -step if reverse else step), step * (length - 1) if reverse else 0)
    expression: Expression = Load(0, index)
    types = [dtype]
    if mask:
        expression, types = call("mul", expression, Load(1, index)), [*types, "bool"]
    stores = [Store(0, index, STATE)]
    outputs = [output or dtype]
    if epilogue:  # a factor per outer point, and the scanned tensor again
        factor = Load(len(types), Index((*contiguous(outer), 0)))
        stores[0] = Store(0, index, call("add", call("mul", STATE, factor), Load(0, index)))
        stores.append(Store(1, index, STATE))
        types, outputs = [*types, dtype], [*outputs, dtype]
    return Scan(outer, length, kind, expression, exclusive, tuple(stores), tuple(types), tuple(outputs),
                "float64" if dtype == "float64" else "float32")


def special(at: dict[int, float]):
    """Plants values into the first input."""
    def edit(inputs: list[torch.Tensor]) -> None:
        for place, value in at.items():
            inputs[0][place] = value

    return edit


def small(inputs: list[torch.Tensor]) -> None:
    """Factors near one, so that products stay in range."""
    inputs[0].mul_(0.05).add_(1.0)


def cases() -> list[ScanCase]:
    """Every schedule, kind, direction and edge."""
    found: list[tuple[str, Scan, object]] = []

    def case(name: str, kernel: Scan, edit=None) -> None:
        found.append((name, kernel, edit))

    for length in (1, 2, 5, 31, 64, 100, 513, 1024, 1025, 2048, 5000):
        case(f"rows_{length}", scan((3,), length))
    case("rows_one_long", scan((), 70001))
    case("rows_one_long_by_4", scan((), 70004, epilogue=False))
    case("rows_parts_epilogue", scan((3,), 40000, mask=True, epilogue=True))
    case("rows_parts_reverse", scan((2,), 33000, reverse=True, exclusive=True))
    for kind in ("sum", "max", "min", "logsumexp"):
        for reverse in (False, True):
            case(f"rows_{kind}_{reverse}", scan((5,), 1300, kind=kind, reverse=reverse, exclusive=reverse))
            case(f"short_{kind}_{reverse}", scan((37,), 52, kind=kind, reverse=reverse, mask=True))
            case(f"columns_{kind}_{reverse}", scan((3, 40), 70, axis=1, kind=kind, reverse=reverse))
    case("rows_product", scan((5,), 1300, kind="product"), small)
    case("rows_product_exclusive", scan((5,), 2052, kind="product", exclusive=True, reverse=True), small)
    case("columns_product", scan((40,), 70, axis=0, kind="product"), small)
    case("columns_one", scan((), 130, axis=0))
    case("columns_few", scan((5, 3), 300, axis=1))
    case("columns_exclusive_epilogue", scan((2, 33), 77, axis=1, exclusive=True, mask=True, epilogue=True))
    case("columns_parts", scan((6,), 5000, axis=0, epilogue=True))
    case("columns_parts_wide", scan((70,), 3000, axis=0))
    case("columns_between", scan((3, 4, 5), 20, axis=2))
    case("rows_unaligned", scan((3,), 1029, mask=True, epilogue=True))
    case("rows_double", scan((3,), 3000, dtype="float64", mask=True, epilogue=True))
    case("columns_double", scan((3, 20), 100, axis=1, dtype="float64"))
    case("rows_to_bool", scan((3,), 300, kind="max", output="bool"))
    case("empty_rows", scan((0,), 5))
    case("empty_length", scan((3,), 0))
    case("nan", scan((3,), 1500), special({5: nan, 1700: inf, 1900: -inf}))
    case("nan_max", scan((3,), 1500, kind="max"), special({5: nan, 1700: inf, 3100: -inf}))
    case("nan_min_columns", scan((40,), 30, axis=0, kind="min"), special({5: nan, 100: inf, 210: -inf}))
    case("inf_logsumexp", scan((4,), 1200, kind="logsumexp"), special({0: -inf, 1: -inf, 1300: inf, 2500: nan}))
    case("inf_logsumexp_columns", scan((8,), 30, axis=0, kind="logsumexp"), special({0: -inf, 8: -inf, 11: inf}))
    # A window of the row, shifted by one: the first element is outside.
    shifted = Load(0, Index((600, 1), -1), (Guard(Index((0, 1), -1), 600),), 0.0)
    case("guarded", replace(scan((3,), 600), expression=call("add", shifted, load(0, 600, 1))))
    whole = Load(1, Index((600, 1)), whole=True)
    twice = call("to_real", call("whole_add", whole, whole))
    case("integers", replace(scan((3,), 600), input_dtypes=("float32", "int64"), expression=call(
        "mul", load(0, 600, 1), twice), stores=(Store(0, Index((600, 1)), call("add", STATE, twice)),)))
    case("repeated", replace(scan((3,), 600), expression=call("mul", load(0, 1, 0), 0.5)))
    case("strided", replace(scan((3,), 600), expression=load(0, 1200, 2)))
    result = []
    for name, kernel, edit in found:
        sizes = [prod((*kernel.outer, kernel.length))] * len(kernel.input_dtypes)
        if "epilogue" in name or name in ("rows_unaligned", "rows_double", "columns_parts"):
            sizes[-1] = prod(kernel.outer)
        if name == "strided":
            sizes[0] = 3600
        result.append(ScanCase(name, kernel, tuple(sizes), edit=edit))
    return result


CASES = cases()


@pytest.fixture(scope="module")
def cpp_library(tmp_path_factory):
    sources = [cpp.generate(c.kernel, c.name) for c in CASES]
    return test_loops_cpp.build(sources, tmp_path_factory.mktemp("scans"), "scans"), {s.name: s for s in sources}


@pytest.fixture(scope="module")
def cuda_library():
    sources = [cuda.generate(c.kernel, c.name) for c in CASES]
    return compile_emulated(test_loops_cuda.source_text(sources)), {s.name: s for s in sources}


def tensors(case: ScanCase) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    inputs = []
    for tensor in case.inputs():
        own = test_loops_cuda.aligned(tensor.numel(), tensor.dtype)
        own.copy_(tensor)
        inputs.append(own)
    return inputs, [test_loops_cuda.aligned(size, getattr(torch, dtype))
                    for size, dtype in zip(case.output_sizes, case.kernel.output_dtypes, strict=True)]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cpp(case: ScanCase, cpp_library) -> None:
    library, sources = cpp_library
    inputs, outputs = tensors(case)
    test_loops_cpp.launch(library, sources[case.name], [*inputs, *outputs])
    assert case.mismatch(outputs) is None, case.mismatch(outputs)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cuda(case: ScanCase, cuda_library) -> None:
    library, sources = cuda_library
    inputs, outputs = tensors(case)
    assert test_loops_cuda.launch(library, sources[case.name], [*inputs, *outputs]) is None
    assert case.mismatch(outputs) is None, case.mismatch(outputs)
    again = [o.clone() for o in outputs]
    assert test_loops_cuda.launch(library, sources[case.name], [*inputs, *outputs]) is None
    for one, two in zip(outputs, again, strict=True):
        assert torch.equal(one.nan_to_num(7), two.nan_to_num(7)), "not the same bits twice"


def test_huge_rows_count_in_64_bits() -> None:
    for kernel in (scan((3,), 1 << 32), scan((1 << 20,), 5000, axis=0)):
        text = cuda.generate(kernel, "huge").definition
        assert "const long long p = " in text
        assert "LL" in text


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown scan"):
        cuda.generate(scan((3,), 5, kind="median"), "bad")
    with pytest.raises(KeyError):
        cpp.generate(scan((3,), 5, kind="median"), "bad")


@pytest.mark.parametrize("target", ["cpp", "cuda"])
def test_long_sums_keep_their_digits(target: str, cpp_library, cuda_library) -> None:
    """Of many positive numbers every running sum is right to a few units in the last place."""
    case = next(c for c in CASES if c.name == "rows_one_long_by_4")
    library, sources = cpp_library if target == "cpp" else cuda_library
    inputs, outputs = tensors(case)
    inputs[0].abs_()
    launch = test_loops_cpp.launch if target == "cpp" else test_loops_cuda.launch
    assert launch(library, sources[case.name], [*inputs, *outputs]) is None
    expected = evaluate(case.kernel, inputs)[0]
    assert ((outputs[0].double() - expected).abs() / expected).max() < 2.5e-7


# From PyTorch's operators --------------------------------------------------------------------------

X = torch.rand(6, 9, generator=torch.Generator().manual_seed(5)) + 0.5
MASK = torch.rand(6, 9, generator=torch.Generator().manual_seed(6)) < 0.5


def segment_sums(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    total = torch.cumsum(x, -1)
    return torch.exp((total[..., :, None] - total[..., None, :]).masked_fill(mask[:, None], -inf))


# Function of x and a mask, and the kinds of its steps once rewritten ("Scan" alone where all of it is one kernel).
PROGRAMS: dict[str, tuple[Callable, list[str] | None]] = {
    "plain": (lambda x, m: x.cumsum(1), ["Scan"]),
    "negative_axis": (lambda x, m: x.cumprod(-2), ["Scan"]),
    "reverse": (lambda x, m: x.flip(0).cumsum(0).flip(0), ["Scan"]),
    "masked": (lambda x, m: (x * m).cumsum(1) + 1, ["Scan"]),
    "exclusive": (lambda x, m: torch.cat((torch.zeros_like(x.select(1, 0).unsqueeze(1)),
                                          torch.cumsum(x.narrow(1, 0, 8), 1)), 1), ["Scan"]),
    "exclusive_before": (lambda x, m: torch.cat((torch.zeros(6, 1, dtype=x.dtype), x[:, :-1]), 1).cumsum(1) * 2,
                         ["Scan"]),
    "exclusive_product_from_end": (lambda x, m: torch.cat((x[1:], torch.ones(1, 9, dtype=x.dtype))).flip(0).cumprod(
        0).flip(0), ["Scan"]),
    "without_itself": (lambda x, m: x.cumsum(1) - x, ["Scan"]),
    "extrema": (lambda x, m: (x.cummax(0).values, x.cummin(1)[0]), ["Scan", "Scan"]),
    "logcumsumexp": (lambda x, m: torch.logcumsumexp(x.log(), -1).exp(), ["Scan"]),
    "of_a_reshape": (lambda x, m: x.view(2, 3, 9).cumsum(1).view(6, 9) * x, ["Scan"]),
    "of_all": (lambda x, m: x.reshape(-1).cumsum(0).view(6, 9) * 2 + x, None),
    "transposed": (lambda x, m: x.t().reshape(3, 18).cumsum(1), None),
    "read_elsewhere": (lambda x, m: (x.cumsum(0) / x.cumsum(0).flip(1)).softmax(1), None),
    "segments": (segment_sums, None),
    "of_one": (lambda x, m: x[:, :1].cumsum(1), None),
    "of_a_comparison": (lambda x, m: (x > 1).to(x.dtype).cumsum(1), None),
    "of_integers": (lambda x, m: m.cumsum(1), ["opaque"]),
    "with_places": (lambda x, m: tuple(x.cummax(1)), None),
    "flips_alone": (lambda x, m: x.flip(1) * 2 + x.flip(0, 1), ["LoopKernel"]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    function, steps = PROGRAMS[name]
    check_model(Of(lambda m, *x: function(*x)), (X, MASK))
    plan = check_model(Of(lambda m, *x: function(*x)), (X, MASK), rewrite=True)
    assert steps is None or [k for k in kinds(plan) if k not in ("reshape", "slice")] == steps


def test_shifts_that_are_no_exclusive_scans() -> None:
    """Another first value, another axis, or another part of the tensor: nothing is rewritten."""
    x = leaf("x", 4, 5)

    def scan_of(y, **attributes):
        return make("cumsum", y, **{"axis": 1, "reverse": False, "exclusive": False, **attributes})

    ones, zeros = (make("literal", value=value, shape=(4, 1), dtype="float32") for value in (1.0, 0.0))
    first = make("slice", x, axis=1, start=0, stop=4, step=1)
    last = make("slice", x, axis=1, start=1, stop=5, step=1)
    for fill, inner in ((ones, scan_of(first)), (zeros, scan_of(last)), (zeros, scan_of(first, reverse=True)),
                        (zeros, scan_of(first, axis=0)), (zeros, scan_of(first, exclusive=True))):
        graph = graph_of(make("concatenate", fill, inner, axis=1, shape=(4, 5), dtype="float32"))
        assert "scan shifted by one" not in check_rewrite(graph)
    graph = graph_of(make("concatenate", zeros, scan_of(first), axis=1, shape=(4, 5), dtype="float32"))
    assert check_rewrite(graph) == ["numbers beside a tensor", "scan shifted by one"]
    padded = make("pad", scan_of(first), amounts=((0, 0), (1, 0)), value=0.0)
    assert check_rewrite(graph_of(padded)) == ["scan shifted by one"]
    flipped = make("flip", scan_of(make("flip", x, axes=(0,))), axes=(0,))
    assert "scan between flips" not in check_rewrite(graph_of(flipped))


def test_both_ends_of_every_scan() -> None:
    """The references of reverse and exclusive scans against their meaning, element by element."""
    x = torch.rand(3, 4, dtype=torch.float64) + 0.5
    combine = {"cumsum": torch.sum, "cumprod": torch.prod, "logcumsumexp": lambda v: v.logsumexp(0),
               "cummax": lambda v: v.max() if v.numel() else torch.tensor(-inf),
               "cummin": lambda v: v.min() if v.numel() else torch.tensor(inf)}
    for name, of in combine.items():
        for reverse in (False, True):
            for exclusive in (False, True):
                graph = graph_of(make(name, leaf("x", 3, 4), axis=1, reverse=reverse, exclusive=exclusive))
                found = graph.outputs[0].operator.reference(x, axis=1, reverse=reverse, exclusive=exclusive)
                for row in range(3):
                    for p in range(4):
                        part = x[row, p + exclusive:] if reverse else x[row, :p + 1 - exclusive]
                        assert_same(found[row, p], of(part).double(), 1e-12)
                assert [k for k in kinds(check_graph(graph))] == ["Scan"]


def test_kept_scans_are_torch_calls() -> None:
    node = make("cumsum", leaf("x", 3, 4), axis=1, reverse=True, exclusive=True)
    text = node.operator.code(["x"], node)
    x = torch.rand(3, 4)
    found = eval(text, {"torch": torch, "x": x})
    assert torch.equal(found, node.operator.reference(x, axis=1, reverse=True, exclusive=True))
    assert text.startswith("torch.cumsum(torch.cat((torch.full_like(x.flip(1)")


def test_scans_are_linear_where_declared() -> None:
    assert make("cumsum", leaf("x", 3, 4), axis=1).operator.linear_in == (0,)
    assert make("cumprod", leaf("x", 3, 4), axis=1).operator.linear_in == ()
