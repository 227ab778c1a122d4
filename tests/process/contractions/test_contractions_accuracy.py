"""How accurate each form of a contraction is: at some of its points, and beside the torch call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan, prod

import pytest
import torch
import torch.nn.functional as F
from contraction_cases import ContractionCase, cases, convolution
from test_contractions_plan import Of, contractions
from test_contractions_tune import CPU, a_case
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.codegen.reference.contraction import evaluate_contraction, sums_of_products
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.expressions import Apply, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.planner import make_plan
from kernelwright.plan.reading.access import strides_of
from kernelwright.plan.records import KernelConfig
from kernelwright.tune import accuracy, contraction_points
from kernelwright.tune import contraction_trials as trials
from kernelwright.tune.accuracy import Error
from kernelwright.tune.contraction_points import exact_sums, some_points
from kernelwright.tune.contraction_trials import Case


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_points_have_the_values_of_the_whole(case):
    kernel, inputs = case.kernel, case.inputs()
    points = some_points(kernel, CPU)
    found = exact_sums(kernel, points, inputs)
    torch.testing.assert_close(found, sums_of_products(kernel, inputs)[tuple(points)], rtol=1e-12, atol=1e-12)
    outputs = evaluate_contraction(kernel, inputs)
    exact = accuracy.results_at(kernel, points, found, inputs, exact=True)
    stored = accuracy.stored_at(kernel, points, outputs)
    assert len(stored) == len(kernel.stores)
    for value, expected in zip(stored, exact, strict=True):
        torch.testing.assert_close(value, expected)


def reducing(field: str, kinds: Sequence[str], case: ContractionCase, *, pool_size: int = 1,
             ordinary: bool = True) -> ContractionCase:
    """A case with totals or pools of its sums times a third input, stored with a fourth added; and sums, if asked."""
    kernel = case.kernel
    whole = Index(strides_of(kernel.domain))
    expression = Apply("mul", (Reduced(0), Load(2, whole)))
    if field == "pools":
        kernel = replace(kernel, pool_size=pool_size)
        shape = kernel.pooled_domain
        place = Index(strides_of(shape))
    else:
        shape = kernel.domain[:3]
        place = Index((*strides_of(shape), *(0 for _ in kernel.axes)))
    results = [Reduced(n, c) for n, kind in enumerate(kinds, 1) for c in range(1 + (kind == "moments"))]
    stores = [Store(n, place, Apply("add", (r, Load(3, place)))) for n, r in enumerate(results)]
    if ordinary:
        stores.insert(1, Store(len(stores), whole, Apply("relu", (Reduced(0),))))
    kernel = replace(kernel, stores=tuple(stores), input_dtypes=(*kernel.input_dtypes, "float32", "float32"),
                     output_dtypes=("float32",) * len(stores),
                     **{field: tuple(Reduction(kind, expression) for kind in kinds)})
    return ContractionCase(f"{case.name}_{field}", kernel, (*case.shapes, kernel.domain, shape))


REDUCING = [
    reducing("position_reductions", ["moments", "max"], convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1)),
    reducing("position_reductions", ["sum", "min"], convolution(2, 1, 5, 12, (17,), (3,), padding=1, transposed=True),
             ordinary=False),
    reducing("position_reductions", ["sum"],
             convolution(3, 2, 9, 10, (7, 9), (3, 3), stride=2, padding=1, transposed=True)),
    reducing("position_reductions", ["moments"], convolution(2, 1, 16, 24, (11, 8), (3, 2), dilation=2, stride=2)),
    reducing("position_reductions", ["max"],
             convolution(1, 1, 2, 7, (4, 5, 6), (5, 3, 1), padding=(4, 1, 0), stride=(1, 3, 2))),
    reducing("pools", ["max", "sum"], convolution(3, 2, 9, 10, (7, 9), (3, 3), padding=1), pool_size=2),
    reducing("pools", ["min"], convolution(2, 1, 5, 12, (17,), (3,), stride=2, transposed=True), pool_size=3),
]


@pytest.mark.parametrize("gathered", [1 << 25, 100])
@pytest.mark.parametrize("case", REDUCING, ids=lambda case: case.name)
def test_points_of_planes_and_windows(case, gathered, monkeypatch):
    """All positions of a plane, or of a window, stand together; their results are compared once, others at each. What
    does not fit the memory at once is gathered in parts."""
    monkeypatch.setattr(contraction_points, "_GATHERED", gathered if case.kernel.position_reductions
                        else 100 * gathered)
    kernel, inputs = case.kernel, case.inputs()
    points = some_points(kernel, CPU)
    together = prod(kernel.domain[3:]) if kernel.position_reductions else kernel.pool_size
    sums = exact_sums(kernel, points, inputs)
    assert sums.shape == torch.broadcast_shapes(*(p.shape for p in points)) and sums.shape[1] == together
    torch.testing.assert_close(sums, sums_of_products(kernel, inputs)[tuple(points)], rtol=1e-12, atol=1e-12)
    if kernel.position_reductions:
        assert len(points[0]) == prod(kernel.domain[:3]) == len(torch.cat(points[:3], 1).unique(dim=0)), "all of so few"
    exact = accuracy.results_at(kernel, points, sums, inputs, exact=True)
    outputs = evaluate_contraction(kernel, inputs)
    stored = accuracy.stored_at(kernel, points, outputs)
    assert [v.shape[1] for v in stored] == [together if s.expression.function == "relu" else 1 for s in kernel.stores]
    for value, expected in zip(stored, exact, strict=True):
        torch.testing.assert_close(value, expected)
    rounded = accuracy.results_at(kernel, points, sums.float(), inputs, exact=False)
    errors = accuracy.errors_of(rounded, exact)
    assert len(errors) == len(kernel.stores) and all(0 < e.rms < 1e-5 for e in errors)
    assert [e.count for e in errors] == [v.numel() for v in stored]
    wrong = [output.clone() for output in outputs]
    last = kernel.stores[-1].buffer
    wrong[last] *= 1.01  # every output is held to float64
    errors = accuracy.errors_of(accuracy.stored_at(kernel, points, wrong), exact)
    assert [e.rms > 5e-3 for e in errors] == [s.buffer == last for s in kernel.stores]


def test_so_many_planes_as_there_is_room_for():
    """A few of them where they are large, of several entries of the batch; many where they are small."""
    def of(*sizes: int, batch: int = 64, groups: int = 1, outs: int = 96, ins: int = 64) -> tuple[int, int, int, int]:
        kernel = convolution(batch, groups, ins, outs, sizes, (3,) * len(sizes), padding=1).kernel
        points = some_points(replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),)), CPU)
        rows = torch.cat(points[:3], 1)
        assert len(rows) == len(rows.unique(dim=0)) and all(
            (rows[:, a] < size).all() for a, size in enumerate(kernel.domain[:3]))
        assert torch.broadcast_shapes(*(p.shape for p in points)) == (len(rows), prod(sizes))
        pairs = len(rows[:, :2].unique(dim=0))
        return len(rows), pairs, len(rows[:, 2].unique()), sum(p.numel() for p in points)

    assert of(20, 20)[:3] == (512, 16, 32)
    assert of(1024, 1024)[:3] == (14, 14, 1)
    assert of(1024, 1024, batch=1)[:3] == (16, 1, 16)
    planes, pairs, channels, numbers = of(4096, 2048)
    assert (planes, pairs, channels) == (4, 1, 4) and numbers < 3 * 4096 * 2048, "positions are not repeated"
    assert of(1024, 1024, ins=512)[:3] == (16, 1, 16), "the left operand is read for one entry alone"
    assert of(20, 20, groups=64, outs=1)[:3] == (128, 128, 1)


REDUCED = {
    "softmax and greatest": (lambda m, x: (torch.softmax(m.a(x), 1), m.a(x).amax(1)), nn.Conv2d(4, 6, 3), (2, 4, 7, 6)),
    "norm": (lambda m, x: F.layer_norm(m.a(x), (5,)), nn.Linear(6, 5), (3, 4, 6)),
    "log-sum-exp": (lambda m, x: torch.logsumexp(m.a(x), 1) * 2, nn.Conv2d(4, 6, 3), (2, 4, 7, 6)),
    "comparison": (lambda m, x: (m.a(x).amin(1), m.a(x).amin(1) > 0), nn.Conv2d(4, 6, 3, groups=1), (2, 4, 7, 6)),
}


@pytest.mark.parametrize("name", REDUCED)
def test_points_of_reduced_channels(name):
    """All channels of a position stand together; what a reduction gives is compared once for each of them."""
    function, part, shape = REDUCED[name]
    step = a_case(Of(function, a=part), shape).step
    kernel, inputs = step.kernel, accuracy.operands(step.inputs, {}, "wide", CPU)
    points = some_points(kernel, CPU)
    sums = exact_sums(kernel, points, inputs)
    assert kernel.reductions and sums.shape[1] == kernel.out_channels
    exact = accuracy.results_at(kernel, points, sums, inputs, exact=True)
    stored = accuracy.stored_at(kernel, points, evaluate_contraction(kernel, inputs))
    floating = [s for s in kernel.stores if kernel.output_dtypes[s.buffer] != "bool"]
    assert len(exact) == len(stored) == len(floating)
    for store, value, expected in zip(floating, stored, exact, strict=True):
        assert value.shape == (len(sums), kernel.out_channels if store.index.strides[2] else 1)
        torch.testing.assert_close(value, expected)
    rounded = accuracy.results_at(kernel, points, sums.float(), inputs, exact=False)
    errors = accuracy.errors_of(rounded, exact)
    assert all(0 < e.rms < 1e-5 for e in errors) and all(r.dtype == torch.float32 for r in rounded)


SUMS = {
    "linear": (lambda m, x: m.a(x), {"a": nn.Linear(6, 5)}, (4, 6)),
    "rows": (lambda m, x: m.a(x.transpose(0, 1)), {"a": nn.Linear(6, 5)}, (3, 4, 6)),
    "batched": (lambda m, x: x @ m.w, {"w": torch.randn(2, 3, 6, 5)}, (2, 3, 4, 6)),
    "from the left": (lambda m, x: m.w @ x, {"w": torch.randn(3, 6)}, (2, 6, 5)),
    "convolution": (lambda m, x: m.a(x), {"a": nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)}, (2, 4, 7, 6)),
    "windows of one": (lambda m, x: m.a(x), {"a": nn.Conv2d(4, 6, 1)}, (2, 4, 7, 6)),
    "entries of two axes": (lambda m, x: m.a(x.view(2, 3, 4, 7).transpose(0, 1).reshape(6, 4, 7)),
                            {"a": nn.Conv1d(4, 5, 3)}, (6, 4, 7)),
    "transposed": (lambda m, x: m.a(x), {"a": nn.ConvTranspose1d(4, 6, 3, stride=2, groups=2)}, (2, 4, 7)),
    "prologue": (lambda m, x: m.a(F.pad(x, (1, 1)).relu()), {"a": nn.Conv1d(4, 6, 3)}, (2, 4, 7)),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_torch_call_computes_the_same_sums(name):
    function, parts, shape = SUMS[name]
    graph = capture(Of(function, **parts).double().float(), (torch.randn(shape),))
    plan = make_plan(graph, graph, contractions={n: KernelConfig("fp16x3") for n in graph.nodes() if can_contract(n)})
    (step,) = (s for s in plan.kernels if s.kernel in contractions(plan))
    inputs = accuracy.operands(step.inputs, {}, "wide", CPU)
    points = some_points(step.kernel, CPU)
    expected = exact_sums(step.kernel, points, inputs)
    found = accuracy.torch_sums(step.kernel, step.covers[0], points, inputs)
    (error,) = accuracy.errors_of([found], [expected])
    assert 0 < error.rms < 1e-6 and error.rms <= error.largest < 1e-5


@pytest.mark.parametrize("field", ["position_reductions", "pools"])
def test_what_is_reduced_is_held_to_the_torch_call(field, monkeypatch):
    """Each result on each distribution: a kernel that computes as PyTorch does passes, one that loses digits of its
    reductions alone does not."""
    step = a_case(Of(lambda m, x: m.a(F.relu(x)) * 2, a=nn.Conv2d(4, 6, 3, padding=1, stride=2)), (2, 4, 17, 16)).step
    kernel = step.kernel
    pooled = kernel.pooled_domain if field == "position_reductions" else (*kernel.domain[:-1], kernel.domain[-1] // 2)
    strides = strides_of(pooled) if field == "pools" else (*strides_of(kernel.domain[:3]), 0, 0)
    kernel = replace(kernel, stores=(*kernel.stores, Store(1, Index(strides), Reduced(1))), pool_size=2,
                     output_dtypes=("float32",) * 2, **{field: (Reduction("sum", kernel.stores[0].expression),)})
    case = Case(replace(step, kernel=kernel, outputs=(*step.outputs, step.outputs[0])), ())
    inputs = [torch.zeros(n.shape) for n in step.inputs]
    outputs = evaluate_contraction(kernel, inputs, torch.float32)

    def run(digits: float) -> None:
        for output, value in zip(outputs, evaluate_contraction(kernel, inputs, torch.float32), strict=True):
            output.copy_(value)
        outputs[1].mul_(1 + digits * torch.randn(outputs[1].shape))

    calls = {"right": lambda: run(0.0), "wrong": lambda: run(1e-3)}
    errors = trials._errors(case, calls, inputs, outputs, {}, CPU, strict=True)
    count = len(accuracy.DISTRIBUTIONS)
    granted = errors.pop(trials._GRANTED)
    assert len(granted) == 2 * count * (field == "position_reductions")
    assert {len(found) for found in errors.values()} == {2 * count}
    assert [e.count for e in errors["right"]] == [e.count for e in errors[trials._CALL]]
    assert all(e.rms < 1e-6 for e in errors["right"] + errors[trials._CALL])
    passes = [e.no_worse_than(m) for e, m in zip(errors["wrong"], errors[trials._CALL], strict=True)]
    assert not any(passes[1::2]) and all(1e-4 < e.rms < 1e-2 for e in errors["wrong"][1::2])
    assert errors["wrong"][::2] == errors["right"][::2]


def test_errors():
    wanted = [torch.tensor([3.0, 4.0, inf], dtype=torch.float64)]
    (error,) = accuracy.errors_of([torch.tensor([3.5, 4.0, inf])], wanted)
    assert error.rms == pytest.approx(0.1) and error.largest == pytest.approx(0.5 / 12.5 ** 0.5) and error.count == 2
    assert not accuracy.errors_of([torch.tensor([nan, 4.0, 1.0])], wanted)[0].no_worse_than(Error(1.0, 1.0))
    assert not accuracy.errors_of([], [])[0].no_worse_than(Error(inf, inf))
    zeros = [torch.zeros(3, dtype=torch.float64)]
    assert accuracy.errors_of([torch.zeros(3)], zeros) == (Error(0.0, 0.0, 3),)
    assert accuracy.errors_of([torch.ones(3)], zeros) == (Error(inf, inf, 3),)
    assert Error(1.0, 1.0).no_worse_than(Error(1.0, 1.0)) and not Error(1.2, 1.0).no_worse_than(Error(1.0, 1.0))
    assert Error(1.2, 1.0).no_worse_than(Error(1.0, 1.0), ordered=True)
    assert not Error(1.3, 1.0).no_worse_than(Error(1.0, 1.0), ordered=True)
    assert not Error(1.0, 2.0).no_worse_than(Error(1.0, 1.0))
    exact = Error(1e-9, 1e-9)  # what rounding results to float32 may be is no worse than any
    assert Error(5.5e-8, 2e-7).no_worse_than(exact)
    assert not Error(6.5e-8, 2e-7).no_worse_than(exact) and not Error(5.5e-8, 3e-7).no_worse_than(exact)
    assert not Error(nan, nan).no_worse_than(exact)


def test_few_results_may_differ_by_more():
    """Two equally good ones hardly ever fail each other, and twice the error is still seen with 64 results."""
    generator = torch.Generator().manual_seed(0)
    wanted = [torch.ones(4096, 1, dtype=torch.float64)]
    for count in (16, 64, 512, 4096):
        refused = missed = 0
        for _ in range(200):
            first, second = (accuracy.errors_of([1 + 1e-3 * torch.randn(count, 1, generator=generator).double()],
                                                [wanted[0][:count]])[0] for _ in range(2))
            refused += not first.no_worse_than(second)
            missed += Error(2 * first.rms, 2 * first.largest, count).no_worse_than(second)
        assert first.count == count and refused <= 20 and (missed <= 4 or count < 64), (count, refused, missed)


def test_values_are_the_models_own():
    graph = capture(nn.Linear(6, 5), (torch.randn(4, 6),))
    leaves = [n for n in graph.nodes() if n.kind == "leaf"]
    own = {n: torch.full(n.shape, 2.0) for n in leaves}
    given, wide = (accuracy.operands(leaves, own, d, CPU) for d in ("as given", "wide"))
    for leaf, first, second in zip(leaves, given, wide, strict=True):
        assert (first == 2).all() and bool((second == 2).all()) == (leaf.op != "input")


def test_totals_may_have_what_their_elements_may():
    """Of independent errors a mean has next to none; a kernel that takes it is held to one that all elements share, as
    large as the torch call's are."""
    case = reducing("position_reductions", ["sum"], convolution(2, 1, 9, 12, (30, 40), (3, 3)), ordinary=False)
    kernel, inputs = case.kernel, [x.abs() for x in case.inputs()]
    inputs[3].zero_()
    points = some_points(kernel, CPU)
    exact = exact_sums(kernel, points, inputs)
    rough = exact * (1 + 1e-4 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(3)).double())
    (allowed,) = accuracy.granted(kernel, points, exact, rough, inputs)
    wanted = accuracy.results_at(kernel, points, exact, inputs, exact=True)

    def error(sums: torch.Tensor) -> accuracy.Error:
        return accuracy.errors_of(accuracy.results_at(kernel, points, sums, inputs, exact=True), wanted)[0]

    assert error(rough).rms < 0.2 * allowed.rms
    assert allowed.rms == pytest.approx(1e-4, rel=0.2)
    for share, passes in ((0.9e-4, True), (1.5e-4, False)):
        short = error(exact * (1 - share))
        assert short.no_worse_than(allowed) == passes and not short.no_worse_than(error(rough))


def test_nothing_is_granted_without_totals():
    for case in (convolution(2, 1, 9, 10, (7, 9), (3, 3)), REDUCING[5]):
        points = some_points(case.kernel, CPU)
        sums = exact_sums(case.kernel, points, case.inputs())
        assert accuracy.granted(case.kernel, points, sums, sums.float(), case.inputs()) == ()
