"""Tensors filled with one number: literals, which kernels write where they would read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from emitted_tools import assert_like, emit, kernels_run, models
from graph_tools import assert_close, check_capture, filled, graph_of, leaf, rewritten, run_plan, values_of
from plan_tools import Of, contractions, planned
from torch import nn

from kernelwright.algebra.ranges import value_range
from kernelwright.capture.export import capture
from kernelwright.emit.once import made_once
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import Node, constant, make, number_of
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import Plan, TorchStep

X = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(0))


def literal(value: Any, *shape: int, dtype: str = "float32") -> Node:
    return make("literal", value=value, shape=shape, dtype=dtype)


def plan_of(function: Callable[..., Any], x: torch.Tensor = X) -> Plan:
    """The plan of the rewritten graph, checked in float64 against the function itself."""
    model = Of(lambda m, x: function(x))
    graph = capture(model, (x,))
    plan = make_plan(rewritten(graph)[0], graph)
    found, _ = run_plan(plan, values_of(model, graph, (x.double() if x.is_floating_point() else x,)))
    expected = function(x)
    results = filled(graph.structure, found)
    for actual, wanted in zip(*((r if isinstance(r, tuple) else (r,)) for r in (results, expected)), strict=True):
        assert_close(actual.to(wanted.dtype), wanted, 2e-6 if x.dtype == torch.float32 else 4e-3)
    return plan


def torch_calls(plan: Plan) -> list[str]:
    return [s.node["target"] if s.node.op == "opaque" else s.node.op for s in plan.steps
            if isinstance(s, TorchStep) and s.node.kind != "view"]


# Capture ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "value", "shape", "dtype"), [
    (lambda x: torch.tensor(0.1), 0.1, (), "float32"), (lambda x: torch.tensor([[2, 2]]), 2, (1, 2), "int64"),
    (lambda x: torch.tensor([True]), True, (1,), "bool"), (lambda x: torch.zeros(2, 3), 0.0, (2, 3), "float32"),
    (lambda x: torch.ones(2, dtype=torch.int32), 1, (2,), "int32"),
    (lambda x: torch.full((2, 1), 7), 7, (2, 1), "int64"),
    (lambda x: torch.full((2,), True), True, (2,), "bool"), (lambda x: torch.full((2,), 0.5), 0.5, (2,), "float32"),
    (lambda x: torch.full((2,), 1, dtype=torch.float16), 1.0, (2,), "float16"),
    (lambda x: torch.zeros_like(x), 0.0, (4, 3, 8), "float32"),
    (lambda x: torch.ones_like(x > 0), True, (4, 3, 8), "bool"),
    (lambda x: torch.full_like(x, 1 / 3, dtype=torch.bfloat16), 0.333984375, (4, 3, 8), "bfloat16"),
    (lambda x: x.new_zeros(2), 0.0, (2,), "float32"), (lambda x: x.new_ones(2, dtype=torch.int64), 1, (2,), "int64"),
    (lambda x: x.new_full((1, 2), -0.0), -0.0, (1, 2), "float32"),
    (lambda x: x.new_tensor([3.0]), 3.0, (1,), "float32"),
    (lambda x: torch.zeros(0, 3), 0.0, (0, 3), "float32"), (lambda x: torch.scalar_tensor(2.5), 2.5, (), "float32"),
    (lambda x: torch.zeros(()).double(), 0.0, (), "float64"),
])
def test_what_is_filled_becomes_a_literal(function, value, shape, dtype):
    graph = check_capture(Of(lambda m, x: (function(x), x + 1)), (X,), 1e-6)
    assert (graph.outputs[0].shape, graph.outputs[0].dtype) == (shape, dtype)
    found = number_of(rewritten(graph)[0].outputs[0])
    assert repr(found) == repr(float(torch.tensor(value)) if value == 0.1 else value)


@pytest.mark.parametrize("function", [
    lambda x: torch.tensor([0.5, 1.0]), lambda x: torch.tensor([0.0, -0.0]), lambda x: torch.arange(3)])
def test_others_keep_their_elements(function):
    graph = check_capture(Of(lambda m, x: (function(x), x + 1)), (X,), 1e-6)
    assert number_of(graph.outputs[0]) is None


def test_nan_is_one_number():
    graph = capture(Of(lambda m, x: x + torch.tensor([float("nan")] * 2 + [float("inf")] * 0).sum() * 0), (X,))
    assert any(n.op == "literal" and number_of(n) != number_of(n) for n in graph.nodes())


# Rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "operands", "found"), [
    ("mul", (leaf("x", 2, 3), literal(0.5, 1, 3)), ("mul", 0.5)),
    ("mul", (literal(0.5), leaf("x", 2, 3)), ("mul", 0.5)),
    ("sub", (literal(2.0, 3), leaf("x", 2, 3)), ("sub", 2.0)), ("pow", (leaf("x", 2, 3), literal(2.0)), ("pow", 2.0)),
    ("lt", (leaf("x", 2, 3), literal(0.25)), ("lt", 0.25)),
    ("add", (leaf("x", 3), literal(1.0, 2, 3)), None),  # the result has more elements
    ("add", (leaf("x", 2, 3, dtype="float16"), literal(1.0, 2, 3)), None),  # the result is of another type
    ("add", (leaf("x", 2, dtype="int64"), literal(1, 2, dtype="int64")), None),
    ("maximum", (leaf("x", 2, 3), literal(1.0)), None),  # takes tensors alone
])
def test_operands_that_are_one_number(op, operands, found):
    node = make(op, *operands)
    result = rewritten(graph_of(node))[0].outputs[0]
    if found is None:
        assert result is node
        return
    assert result.op == found[0] and found[1] in [i["value"] for i in result.inputs if i.op == "constant"]
    x = torch.randn(2, 3, dtype=torch.float64)
    assert torch.equal(*(evaluate([n], {"x": x})[0].to(x.dtype) for n in (node, result)))


@pytest.mark.parametrize("node", [
    make("add", literal(1.5, 2, 1), literal(0.25, 3)), make("sqrt", literal(2.0, 4)),
    make("relu", literal(float("nan"), 2)),
    make("mul", literal(3, 2, dtype="int64"), constant(2)), make("lt", literal(1.0, 2), literal(2.0)),
    make("cast", literal(1 / 3), to="bfloat16"),
    make("where", literal(True, 2, dtype="bool"), literal(1.0), literal(2.0)),
    make("div", literal(1.0, 2), literal(0.0)),
])
def test_arithmetic_of_numbers(node):
    result = rewritten(graph_of(node))[0].outputs[0]
    assert result.op == "literal" and (result.shape, result.dtype) == (node.shape, node.dtype)
    torch.testing.assert_close(*(evaluate([n], {})[0] for n in (result, node)), rtol=0, atol=0, equal_nan=True)


def test_ranges_know_numbers():
    assert value_range(make("minimum", leaf("x", 3), literal(0.5, 3))) == (-float("inf"), 0.5)
    assert value_range(literal(2, 3, dtype="int64")) == (2.0, 2.0)


# Plans --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [
    lambda x: torch.min(x, torch.tensor(0.5)) * 2, lambda x: torch.maximum(x, torch.zeros_like(x)) * 2,
    lambda x: torch.where(x > 0, x, torch.full_like(x, -0.5)) * 2, lambda x: x.tanh() + torch.ones(1, 3, 1) * 3,
    lambda x: torch.where(x > 0, torch.tensor(float("-inf")), x) * 2,
    lambda x: x.relu() / torch.sqrt(torch.tensor(64.0)),
    lambda x: (x * torch.full((8,), 2) + torch.tensor(3)).relu(), lambda x: torch.softmax(x + torch.zeros(8), -1),
    lambda x: torch.where(torch.ones_like(x, dtype=torch.bool), x, x * 3).relu(),
    lambda x: (x.relu() + torch.ones(3, 1)).sum(-1), lambda x: F.pad(x.relu() * torch.full((8,), 2.0), (1, 1)) + 1,
    lambda x: torch.cat((torch.zeros_like(x[..., :1]), x * 2, torch.zeros_like(x)), -1).relu(),
    lambda x: torch.stack((x.relu(), torch.full_like(x, 2.0)), 1) * 3,
])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_read_no_numbers(function, dtype):
    plan = plan_of(function, X.to(dtype))
    assert torch_calls(plan) == [] and len(plan.kernels) >= 1
    assert not any(n.op == "literal" for step in plan.kernels for n in step.inputs)


@pytest.mark.parametrize(("function", "calls"), [
    (lambda x: (torch.zeros_like(x), x.relu() * 2), ["literal"]),
    (lambda x: (x * 2 + torch.tril(torch.ones(3, 8))).relu(), ["literal"]),  # zeros beside its ones: it is read
    (lambda x: (torch.ones(4, 8, 3) @ x).relu() + 1, ["literal", "matmul"]),
])
def test_numbers_are_made_for_those_who_read_memory(function, calls):
    found = torch_calls(plan_of(function))
    assert set(calls) <= set(found) and len([c for c in found if c == "literal"]) == 1


def test_contractions_take_numbers_along():
    """Operands below and above a contraction are not read from memory."""
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.min(m.conv(x * torch.full((1, 3, 1, 1), 0.5)), torch.tensor(0.25)) + torch.ones(8, 1, 1)

    model = Of(forward, conv=nn.Conv2d(3, 8, 3))
    plan = planned(model, (torch.randn(2, 3, 9, 9),))
    assert len(contractions(plan)) == 1 and torch_calls(plan) == []
    assert {n.op for step in plan.kernels for n in step.inputs} == {"input", "parameter"}


# The emitted file ---------------------------------------------------------------------------------

_PROBLEM = '''
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.bound = 0.5

        def forward(self, x):
            first = torch.zeros_like(x)
            second = torch.zeros_like(x)
            y = torch.min(x, torch.tensor(self.bound)) + torch.full((16,), 2, dtype=torch.int64)
            return torch.cat((y.sigmoid(), torch.ones_like(y)), 1), first, second

    def get_inputs():
        return [torch.randn(4, 3, 16)]

    def get_init_inputs():
        return []
'''


def test_an_emitted_file_makes_no_numbers(tmp_path):
    original, emitted, text = emit(tmp_path, "numbers", _PROBLEM)
    program = text.split("def _kernelwright_training")[1].split("\ndef ")[0]
    assert "torch.tensor(" not in program and program.count("torch.full(") == 1, program
    model, new, inputs = models(original, emitted)
    with kernels_run(emitted):
        results = new(*inputs)
    assert_like(results, model(*inputs))
    results[1].add_(1)
    assert not results[2].any() and not new(*inputs)[1].any()


# What depends on no input -------------------------------------------------------------------------

_FIXED = '''
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(4))

        def forward(self, x):
            steps = torch.arange(16) / 15
            scale = torch.tensor([0.5, 1.0, 2.0, 4.0]).view(4, 1)
            places = torch.arange(4, dtype=torch.float32)
            self.count.copy_(torch.tensor([1.0, 2.0, 3.0, 5.0]))
            return torch.tanh(x * scale + steps) * 2 - x, places, torch.linspace(0, 1, 4).view(2, 2)

    def get_inputs():
        return [torch.randn(3, 4, 16)]

    def get_init_inputs():
        return []
'''


def test_what_depends_on_no_input_is_made_once(tmp_path):
    original, emitted, text = emit(tmp_path, "fixed", _FIXED)
    program = text.split("def _kernelwright_training(")[1].split("\ndef ")[0]
    assert "_kernelwright_once(_kernelwright_training_once, _device)" in program, program
    assert "torch.tensor(" not in program and program.count("arange.default(") == 1, program
    model, new, inputs = models(original, emitted)
    made = []
    once = emitted._kernelwright_once
    emitted._kernelwright_once = lambda make, device: made.append(once(make, device)) or made[-1]
    with kernels_run(emitted, times=3):
        with torch.inference_mode():
            assert_like(new(*inputs), model(*inputs))
        for result in new(*inputs)[1:]:  # results are tensors of their own: what a caller does to them stays with them
            result.fill_(-7)
        x = inputs[0].clone().requires_grad_()
        results = new(x)
        assert_like(results, model(*inputs))
    assert len(made) == 3 and all(a is b for tensors in made for a, b in zip(tensors, made[0], strict=True))
    assert not any(t.is_inference() for t in made[0])
    results[0].sum().backward()
    assert x.grad is not None and torch.equal(new.count, model.count)


@pytest.mark.parametrize(("function", "kept"), [
    (lambda x: x.relu() * torch.arange(8) + 1, True),
    (lambda x: (x.relu() * 2, torch.arange(8)), False),  # the caller gets it
    (lambda x: (x.relu() * 2 + torch.arange(8), torch.ops.aten.view.default(torch.arange(8), [2, 4])), False),
    (lambda x: x.relu() * torch.rand(8) + 1, False),  # drawn anew
    (lambda x: x.relu() * torch.linspace(0, 1, 5 << 20)[-8:] + 1, False),  # 20 MB
])
def test_what_is_kept(function, kept):
    plan = plan_of(function) if "rand" not in function.__code__.co_names else None
    if plan is None:
        graph = capture(Of(lambda m, x: function(x)), (X,))
        plan = make_plan(graph, graph)
    assert bool(made_once(plan.steps, plan.results)) == kept
