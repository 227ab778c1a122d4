"""Activations that are written out become one function: for all ways to write them, for nothing that only looks so."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_close, eager, examples, run_plan, values_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, walk
from kernelwright.plan.planner import make_plan
from kernelwright.plan.reading.activations import as_one_function, polynomial
from kernelwright.plan.records import Plan

ROOT, SLOPE = math.sqrt(2.0), math.sqrt(2.0 / math.pi)
X, Y = Load(0, Index((1,))), Load(1, Index((1,)))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def planned(function, *inputs: torch.Tensor) -> Plan:
    graph = capture(Function(function), inputs)
    return make_plan(graph, graph)


def functions(plan: Plan) -> set[str]:
    """The functions that a plan's kernels compute."""
    stores = [s for step in plan.kernels for s in (*step.kernel.row_stores, *step.kernel.outer_stores)]
    return {e.function for store in stores for e in walk(store.expression) if isinstance(e, Apply)}


def value(expression: Expression, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """An expression of X and Y in the type of their values."""
    match expression:
        case Load(buffer):
            return (x, y)[buffer]
        case Constant(number):
            return torch.tensor(number, dtype=x.dtype)
        case Apply(function, arguments):
            return FUNCTIONS[function].reference(*(value(a, x, y) for a in arguments))
    raise AssertionError(expression)


def check(plan: Plan, function, tolerance: float, *inputs: torch.Tensor) -> None:
    """A plan's result in float64 is the function's."""
    model = Function(function)
    (found,), _ = run_plan(plan, values_of(model, plan.graph, inputs))
    assert_close(found, eager(model, [t.double() for t in inputs])[0], tolerance)


# As the models of PyTorch's hub, of Hugging Face and of KernelBench write them.
WRITTEN = {
    "mish": ("mish", lambda x: x * torch.tanh(F.softplus(x))),
    "mish, the other way round": ("mish", lambda x: torch.multiply(torch.tanh(F.softplus(x)), x)),
    "mish, a later threshold": ("mish", lambda x: x * torch.tanh(F.softplus(x, threshold=30.0))),
    "gelu": ("gelu_erf", lambda x: 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))),
    "gelu, as in BERT": ("gelu_erf", lambda x: x * 0.5 * (1.0 + torch.erf(x / ROOT))),
    "gelu, halved last": ("gelu_erf", lambda x: x * (torch.erf(x * 0.7071067811865476) + 1) / 2),
    "gelu, its half inside": ("gelu_erf", lambda x: x * (0.5 * (1 + torch.erf(x / ROOT)))),
    "gelu, eight digits": ("gelu_erf", lambda x: 0.5 * x * (1.0 + torch.erf(x * 0.70710678))),
    "gelu by tanh": ("gelu_tanh", lambda x: 0.5 * x * (1.0 + torch.tanh(SLOPE * (x + 0.044715 * torch.pow(x, 3.0))))),
    "gelu by tanh, a cube": ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.044715 * x * x * x)))),
    "gelu by tanh, as in Megatron": (
        "gelu_tanh", lambda x: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))),
    "sigmoid": ("sigmoid", lambda x: 1.0 / (1.0 + torch.exp(-x))),
    "sigmoid, of -x": ("sigmoid neg", lambda x: torch.reciprocal(torch.exp(x) + 1)),
    "sigmoid times x": ("sigmoid mul", lambda x: x / (1 + torch.exp(-x))),
    "gelu by tanh, a square": (
        "gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh((x + x * torch.square(x) * 0.044715) * SLOPE))),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_one_function_is_left(name: str) -> None:
    expected, function = WRITTEN[name]
    x = torch.randn(4, 6)
    plan = planned(function, x)
    assert functions(plan) == set(expected.split())
    check(plan, function, 1e-8, x)


@pytest.mark.parametrize("name", WRITTEN)
def test_special_values_are_those_of_the_formula(name: str) -> None:
    """Infinities, NaN, zeros, and what is neither small nor large."""
    x = torch.tensor([[0.0, -0.0, math.inf, -math.inf, math.nan, 20.5], [-20.5, 1e-30, 80.0, -80.0, 1e4, -1e4],
                      [3.0, -3.0, 0.5, -0.5, 25.0, -30.0], [1.0] * 6])
    check(planned(WRITTEN[name][1], x), WRITTEN[name][1], 1e-8, x)


@pytest.mark.parametrize("digits", [0.70710678, 0.7071, 1 / ROOT])
def test_float64_keeps_its_digits(digits: float) -> None:
    """A constant of eight digits is what the model computes with; nothing is rounded to the root that it stands for."""
    x = torch.randn(40, 60, dtype=torch.float64)
    plan = planned(lambda x: 0.5 * x * (1.0 + torch.erf(x * digits)), x)
    assert "gelu_erf" in functions(plan) and "erf" not in functions(plan)
    check(plan, lambda x: 0.5 * x * (1.0 + torch.erf(x * digits)), 1e-15, x)


NOT_WRITTEN = {
    "another beta": lambda x, y: x * torch.tanh(F.softplus(x, beta=2.0)),
    "a threshold below": lambda x, y: x * torch.tanh(F.softplus(x, threshold=3.0)),
    "another value": lambda x, y: y * torch.tanh(F.softplus(x)),
    "no tanh": lambda x, y: x * F.softplus(x),
    "two": lambda x, y: x * (2 + torch.erf(x / ROOT)),
    "a square in it": lambda x, y: x * (1 + torch.erf(x * x)),
    "a shift": lambda x, y: x * (1 + torch.erf(x / ROOT + 0.1)),
    "another cube": lambda x, y: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.05 * x**3))),
    "no cube": lambda x, y: 0.5 * x * (1 + torch.tanh(SLOPE * x)),
    "an even power": lambda x, y: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.044715 * x**3 + 0.01 * x**2))),
    "a fourth power": lambda x, y: 0.5 * x * (1 + torch.tanh(SLOPE * (x + 0.044715 * x**4))),
    "a third factor": lambda x, y: x * y * torch.tanh(F.softplus(x)),
    "less one": lambda x, y: x * (torch.erf(x / ROOT) - 1),
    "another sum": lambda x, y: y / (2 + torch.exp(-x)),
    "its exponential first": lambda x, y: torch.exp(x) / (1 + torch.exp(x) * y),
    "in other places": lambda x, y: x.flip(0) * torch.tanh(F.softplus(x)),
}


@pytest.mark.parametrize("name", NOT_WRITTEN)
def test_what_only_looks_so_stays(name: str) -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    plan = planned(NOT_WRITTEN[name], x, y)
    assert not functions(plan) & {"mish", "gelu_erf", "gelu_tanh", "sigmoid"}
    check(plan, NOT_WRITTEN[name], 1e-9, x, y)


def test_sixteen_bits_too() -> None:
    """Kernels compute in float32 what PyTorch rounds to 16 bits between its operators."""
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    assert "mish" in functions(planned(WRITTEN["mish"][1], x))


def test_what_decides_is_rounded_as_in_pytorch() -> None:
    """A comparison asks for the roundings of PyTorch's own operators, 16 bits between any two: they stay."""
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    plan = planned(lambda x: torch.where(WRITTEN["mish"][1](x) > 0.3, x, -x), x)
    assert "mish" not in functions(plan)


def test_the_same_value_is_computed_alike_wherever_it_is_read() -> None:
    """Its greatest less itself is zero, also where a sign asks for PyTorch's roundings."""
    x = torch.randn(4, 6)
    plan = planned(lambda x: torch.sign(WRITTEN["gelu"][1](x) - WRITTEN["gelu"][1](x).amax(0)), x)
    computed = [e.function for step in plan.kernels for e in
                (*(r.expression for r in step.kernel.reductions), *(s.expression for s in step.kernel.row_stores))
                for e in walk(e) if isinstance(e, Apply)]
    assert computed.count("gelu_erf") == 2 and "erf" not in computed


def test_a_gate_that_is_a_result_stays_one() -> None:
    def both(x):
        gate = torch.tanh(F.softplus(x))
        return x * gate, gate

    x = torch.randn(4, 6)
    plan = planned(both, x)
    assert {"tanh", "softplus"} <= functions(plan)
    found, _ = run_plan(plan, values_of(Function(both), plan.graph, [x]))
    for actual, expected in zip(found, both(x.double()), strict=True):
        assert_close(actual, expected)


@given(st.data())
@examples(150)
def test_any_scale_before_and_behind(data: st.DataObject) -> None:
    """k x (1 + erf(c x)) and the like, of x that is itself a product, with constants anywhere, in any order."""
    number = st.floats(0.1, 4.0).map(lambda n: round(n, 3)) | st.floats(-4.0, -0.1).map(lambda n: round(n, 3))
    x = Apply("mul", (X, Y)) if data.draw(st.booleans()) else X

    def times(e: Expression) -> Expression:
        kind = data.draw(st.sampled_from(("none", "mul", "mul before", "div", "neg")))
        factor = Constant(data.draw(number))
        return {"none": e, "mul": Apply("mul", (e, factor)), "mul before": Apply("mul", (factor, e)),
                "div": Apply("div", (e, factor)), "neg": Apply("neg", (e,))}[kind]

    inner = times(times(x))
    kind = data.draw(st.sampled_from(("mish", "gelu_erf", "gelu_tanh")))
    if kind == "mish":
        gate = Apply("tanh", (Apply("softplus", (inner, Constant(1.0), Constant(20.0))),))
    else:
        if kind == "gelu_tanh":
            cube = Apply("mul", (Apply("pow", (inner, Constant(3.0))), Constant(0.044715)))
            inner = Apply("mul", (Apply("add", (inner, cube)), Constant(SLOPE)))
        sum_of = (Constant(1.0), Apply("erf" if kind == "gelu_erf" else "tanh", (inner,)))
        gate = Apply("add", sum_of if data.draw(st.booleans()) else sum_of[::-1])
    pair = (times(times(x)), times(gate))
    product = Apply("mul", pair if data.draw(st.booleans()) else pair[::-1])
    found = as_one_function(Apply("div", (product, Constant(2.0))), "float64")
    assert {e.function for e in walk(found) if isinstance(e, Apply)} <= {kind, "mul", "div", "neg"}
    x, y = torch.randn(2, 50, dtype=torch.float64)
    torch.testing.assert_close(value(found, x, y), value(product, x, y) / 2, rtol=1e-11, atol=1e-11)


@given(st.data())
@examples(150)
def test_polynomials_have_the_values_of_their_expressions(data: st.DataObject) -> None:
    number = st.floats(-3.0, 3.0).filter(lambda n: abs(n) > 0.01).map(Constant)

    def grown(depth: int) -> Expression:
        kinds = ("x", "constant", "add", "sub", "mul", "neg", "div", "square", "cube") if depth else ("x", "constant")
        match data.draw(st.sampled_from(kinds)):
            case "x":
                return X
            case "constant":
                return data.draw(number)
            case "div":
                return Apply("div", (grown(depth - 1), data.draw(number)))
            case "cube":
                return Apply("pow", (grown(depth - 1), Constant(3.0)))
            case "neg" | "square" as kind:
                return Apply(kind, (grown(depth - 1),))
            case kind:
                return Apply(kind, (grown(depth - 1), grown(depth - 1)))

    expression = grown(4)
    found = polynomial(expression, X)
    x = torch.tensor([-1.7, 0.3, 2.0], dtype=torch.float64)
    if found is not None:
        wanted = value(expression, x, x).expand(3)
        torch.testing.assert_close(sum(c * x**n for n, c in found.items()), wanted, rtol=1e-9, atol=1e-9)
