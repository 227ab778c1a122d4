"""Stage 5, PLAN: what becomes one kernel of rows, and what stays with PyTorch."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_same, graph_of, leaf, run_plan
from test_planner import Of, check_model, kinds

from kernelwright.codegen.reference import loops as loops_reference
from kernelwright.ir.node import constant, make
from kernelwright.plan.expressions import Apply
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.planner import make_plan

ROWS = {
    "softmax": lambda m, x: F.softmax(x * 2, -1) + 1, "softmax first axis": lambda m, x: F.softmax(x, 0) * x,
    "softmax middle": lambda m, x: F.softmax(x.relu(), 1).square(),
    "log softmax": lambda m, x: -F.log_softmax(x + 3, -1), "log softmax first": lambda m, x: F.log_softmax(x, 0) * 2,
    "layer norm": lambda m, x: F.gelu(F.layer_norm(x + x.abs(), (4,), m.weight, m.shift)) + x,
    "layer norm of two": lambda m, x: F.layer_norm(x.tanh(), (3, 4)).relu(),
    "layer norm of all": lambda m, x: F.layer_norm(x, (2, 3, 4)) * 2,
    "group norm": lambda m, x: F.group_norm(x.transpose(1, 2) * 2, 2, m.weight, m.shift).relu(),
    "instance norm": lambda m, x: F.instance_norm(x.exp()).relu(),
    "two softmaxes": lambda m, x: F.softmax(F.softmax(x * 3, -1) * 2, -1) * 5,
    "softmax over both": lambda m, x: F.softmax(F.softmax(x, -1), -2) + 1,
    "square mean": lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.weight,
    "standard": lambda m, x: (x - x.mean((0, 1), keepdim=True)) / (x.std((0, 1), keepdim=True) + 1e-3),
    "extrema": lambda m, x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)),
    "mean and variance": lambda m, x: (x.mean(1), x.var(1), x.sum(1) * 2, x.amax(1)),
    "scalar": lambda m, x: ((x - x.mean()) ** 2).mean() / x.numel() + x.max(),
    "product": lambda m, x: (x * 2 + 1).prod(1).relu() - 1, "products of all": lambda m, x: (x * 0.5 + 1).prod() * 2,
    "logsumexp": lambda m, x: torch.logsumexp(x * 2 + 1, dim=(0, 2)).relu() - 1,
    "normalize": lambda m, x: x / x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, on_chip: None) -> None:
    torch.manual_seed(0)
    model = Of(ROWS[name], weight=torch.randn(4), shift=torch.randn(4))
    check_model(model, (torch.randn(2, 3, 4),), tolerance=1e-8)


def test_large_softmax_in_one_kernel() -> None:
    plan = check_model(Of(lambda m, x: F.softmax(x * 0.5 + 1, -1) * 3), (torch.randn(512, 40),))
    assert len(plan.kernels) == 1 and len(plan.steps) == 1
    plan = check_model(Of(lambda m, x: F.log_softmax(x * 0.5 + 1, -1) * 3), (torch.randn(512, 40),))
    assert len(plan.steps) == 1


def test_log_softmax_of_large_and_infinite_values() -> None:
    x = leaf("x", 4, 3)
    graph = graph_of(make("mul", make("log_softmax", x, axis=1), constant(2.0)))
    plan = make_plan(graph, graph_of())
    values = {"x": torch.tensor([[inf, 0.0, 1.0], [-inf, -inf, -inf], [-inf, 2.0, 1.0], [1.0, nan, 2.0]])}
    found, _ = run_plan(plan, values)
    assert_same(found[0], 2 * torch.log_softmax(values["x"].double(), 1), 1e-12)
    # In float32, at a large offset, nothing but the offset's own rounding may be lost.
    offset = torch.tensor([[16384.0, 16384.5, 16385.25]]).repeat(4, 1)
    result = offset
    assert len(plan.kernels) == 1
    for step in plan.kernels:
        result, = loops_reference.evaluate(step.kernel, [result], dtype=torch.float32)
    assert_same(result.reshape(4, 3), 2 * torch.log_softmax(offset.double(), 1), 1e-6)


@pytest.mark.parametrize("exponent", [0.5, -0.5, -1, 2, 2.0, -2, 3, 3.0])
def test_powers_are_what_pytorch_computes(exponent: float) -> None:
    """To the bit, and without a call of pow."""
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-40, -1e-40, 3e38, -3e38, 1e-30])
    x = torch.cat([special, torch.randn(500)])
    graph = graph_of(make("neg", make("pow", leaf("x", 512), constant(exponent))))
    plan = make_plan(graph, graph_of())
    step, = plan.kernels
    functions = {e.function for s in step.kernel.outer_stores for e in walk_expression(s.expression)
                 if isinstance(e, Apply)}
    assert "neg" in functions and "pow" not in functions
    found, = loops_reference.evaluate(step.kernel, [x], dtype=torch.float32)
    expected = -torch.pow(x, exponent)
    assert torch.equal(found.view(torch.int32)[~expected.isnan()], expected.view(torch.int32)[~expected.isnan()])
    assert found.isnan().equal(expected.isnan())


def test_powers_that_stay() -> None:
    x, count = leaf("x", 8), leaf("n", 8, dtype="int64")
    for node in (make("pow", x, constant(2.5)), make("pow", x, x), make("pow", constant(2.0), x)):
        step, = make_plan(graph_of(make("neg", node)), graph_of()).kernels
        assert any(isinstance(e, Apply) and e.function == "pow"
                   for s in step.kernel.outer_stores for e in walk_expression(s.expression))
    plan = make_plan(graph_of(make("pow", count, constant(2))), graph_of())
    assert not plan.kernels, "a power of integers is no float"


def test_rows_of_an_odd_quarter_million_bytes_stay_on_chip() -> None:
    x = leaf("x", 128, 65535)
    norm = make("mean", make("abs", x), axes=(1,), keepdim=True)
    assert len(make_plan(graph_of(make("div", x, norm)), graph_of()).steps) == 1
    longer = leaf("x", 128, 2 * 65535)
    norm = make("mean", make("abs", longer), axes=(1,), keepdim=True)
    assert len(make_plan(graph_of(make("div", longer, norm)), graph_of()).steps) == 2


def test_large_norms_in_one_kernel() -> None:
    for function in (lambda m, x: F.relu(F.layer_norm(x + 1, (16,))), lambda m, x: F.instance_norm(x * 2).sigmoid(),
                     lambda m, x: F.relu(F.group_norm(x + 1, 4))):
        plan = check_model(Of(function), (torch.randn(80, 8, 16),), tolerance=1e-8)
        assert len(plan.steps) == 1, kinds(plan)


@pytest.mark.parametrize("function", [
    lambda m, x: x.relu(), lambda m, x: x.sum(-1), lambda m, x: x @ x.mT, lambda m, x: x.amax(1),
    lambda m, x: x.prod(0), lambda m, x: x.t() if x.ndim == 2 else x.mT.reshape(-1), lambda m, x: x,
], ids=range(7))
def test_simple_lone_operators_stay(function: Any) -> None:
    plan = check_model(Of(function), (torch.randn(2, 3, 4),))
    assert not plan.kernels
    assert all(reason for reason in plan.kept.values())


@pytest.mark.parametrize("function", [
    lambda m, x: F.softmax(x, -1), lambda m, x: F.layer_norm(x, (4,)), lambda m, x: F.max_pool1d(x, 2),
    lambda m, x: F.log_softmax(x, 1), lambda m, x: F.instance_norm(x), lambda m, x: F.gelu(x),
], ids=range(6))
def test_dear_lone_operators_are_left_to_measurement(function: Any) -> None:
    plan = check_model(Of(function), (torch.randn(2, 3, 4),))
    assert len(plan.kernels) == 1 and len(plan.kernels[0].covers) == 1


def test_large_lone_reductions_are_left_to_measurement() -> None:
    for op in ("sum", "mean", "amax", "amin"):
        for size, count in ((2**21, 1), (2**17, 0)):
            node = make(op, leaf("x", 8, size // 8), axes=(0,), keepdim=False)
            assert len(make_plan(graph_of(node), graph_of(node)).kernels) == count


@pytest.mark.parametrize("read_again", [False, True], ids=["read by the norm alone", "a stream that goes on"])
def test_a_residual_sum_and_its_norm_are_one_kernel(read_again: bool) -> None:
    """The sum is stored beside the norm where others read it, and nowhere else."""
    def forward(m, x, y):
        total = x + y @ m.weight
        normed = F.layer_norm(total, (64,), m.gain, m.shift) @ m.weight
        return total + normed if read_again else normed

    torch.manual_seed(0)
    model = Of(forward, weight=torch.randn(64, 64), gain=torch.randn(64), shift=torch.randn(64))
    plan = check_model(model, (torch.randn(96, 64), torch.randn(96, 64)), tolerance=1e-8)
    (step,) = [s for s in plan.kernels if s.kernel.reductions]
    assert {n.op for n in step.covers} == {"add", "layer_norm"} and len(step.outputs) == 1 + read_again


@pytest.mark.parametrize("forward", [
    lambda m, x, y: (total := (x.erf().exp() + y.erf().exp()), F.layer_norm(total, (64,)) * 2),
    lambda m, x, y: (total := x + y, F.softmax(total, 0) * 2)], ids=["dear", "across rows"])
def test_what_is_dear_or_lies_across_rows_is_stored_first(forward: Any) -> None:
    """A dear sum is not computed for every pass over a row, nor are columns walked where rows are stored."""
    plan = check_model(Of(forward), (torch.randn(96, 64), torch.randn(96, 64)), tolerance=1e-8)
    assert all(n.op != "add" for s in plan.kernels if s.kernel.reductions for n in s.covers)


@pytest.mark.parametrize(("forward", "between"), [
    (lambda m, x, y: F.smooth_l1_loss(x, y), []),
    (lambda m, x, y: (gap := (x - y).erf(), gap * gap.sigmoid() + gap.square())[1], []),
    (lambda m, x, y: (gap := (x - y).erf().exp(), gap.sum(0), gap[:, 1:] * gap[:, :-1])[1:], ["exp"])],
    ids=["a loss", "a gate", "at several places"])
def test_what_one_evaluation_reads_several_times_is_not_stored(forward: Any, between: list[str]) -> None:
    """Whatever it costs, and however many tensors it is of; what others read, too, or one has at two places, is."""
    plan = check_model(Of(forward), (torch.randn(96, 64), torch.randn(96, 64)), tolerance=1e-8)
    assert [n.op for s in plan.kernels for n in s.outputs if n not in plan.results and n.op != "sum"] == between
