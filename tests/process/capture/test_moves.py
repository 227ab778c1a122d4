"""Operators that move elements, and products by another name: captured, planned, read through by kernels, exact."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from emitted_tools import short_budgets
from graph_tools import assert_same, check_capture, eager, filled, graph_of, leaf, run_plan, values_of
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import constant, make
from kernelwright.pipeline import optimize
from kernelwright.plan.planner import make_plan
from kernelwright.plan.reading.pieces import operand_fills
from kernelwright.plan.records import Plan, TorchStep
from kernelwright.roofline.cost import least_bytes
from kernelwright.roofline.devices import H200


class Of(nn.Module):
    """A module around a function of its inputs."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


def planned(function, *inputs: torch.Tensor) -> tuple[Graph, Plan]:
    """Capture and plan a function; both are checked against it."""
    model = Of(function)
    graph = check_capture(model, inputs)
    plan = make_plan(rewrite(graph, H200).graph, graph)
    with torch.no_grad():
        found, _ = run_plan(plan, values_of(model, graph, inputs))
    assert_same(filled(graph.structure, found), eager(model, inputs)[0], 1e-9)
    return graph, plan


def calls(plan: Plan) -> list[str]:
    """What stays a torch call, views apart."""
    return [s.node["target"] if s.node.op == "opaque" else s.node.op for s in plan.steps
            if isinstance(s, TorchStep) and s.node.kind != "view" and s.node.op != "item"]


X, Y = normal(4, 6, 5), normal(4, 3, 5)
PICTURE = normal(2, 8, 6, 4)

#: Functions whose only kernel reads through everything: one step, no torch call.
FUSED = {
    "unbind": lambda: (lambda x: sum(part.exp() for part in x.unbind(1)), X),
    "movedim": lambda: (lambda x: x.movedim(0, 2).sin() * x.swapaxes(0, 1).movedim((1, 0), (2, 0)).cos(), X),
    "view as": lambda: (lambda x, y: x.reshape_as(y).exp() + y.sin(), X, normal(8, 15)),
    "ravel": lambda: (lambda x: x.ravel().exp().sin(), X),
    "unfold": lambda: (lambda x: (x.unfold(1, 3, 2) * 2).exp(), X),
    "unfold then sum": lambda: (lambda x: x.unfold(0, 2, 1).square().sum(-1), X),
    "diagonal": lambda: (lambda x: x.diagonal(1, 1, 2).exp() * 2, normal(3, 5, 6)),
    "diagonal below": lambda: (lambda x: x.diagonal(-2, 2, 0).exp() * 2, normal(6, 2, 5)),
    "pixel shuffle": lambda: (lambda x: F.pixel_shuffle(x, 2).exp() + 1, PICTURE),
    "pixel unshuffle": lambda: (lambda x: F.pixel_unshuffle(x, 2).exp() + 1, PICTURE),
    "channel shuffle": lambda: (lambda x: F.channel_shuffle(x, 4).exp() + 1, PICTURE),
    "repeat interleave": lambda: (lambda x, y: x.repeat_interleave(3, dim=1).exp() * y, X, normal(4, 18, 5)),
    "repeat": lambda: (lambda x, y: x.repeat(2, 1, 3).exp() * y, X, normal(8, 6, 15)),
    "glu": lambda: (lambda x: F.glu(x, 1) * 2, X),
    "concatenate": lambda: (lambda x, y: torch.cat([x, y], 1).exp() * 2, X, Y),
    "concatenate results": lambda: (lambda x, y: torch.cat([-x, torch.relu(y) * 2], 1), X, Y),
    "concatenate parts": lambda: (lambda x: x * torch.cat([-x[..., 2:], x[..., :2]], -1), X),
    "stack": lambda: (lambda x, y: torch.stack([x, y, x - y], 1).tanh() + 1, X, X.cos()),
    "truth values": lambda: (lambda m, k, x, y: torch.where(torch.cat([m, k], 1), 1.5, torch.cat([x, y], 1)), X > 0,
                             Y > 1, X, Y),
    "pad": lambda: (lambda x: F.pad(x, (1, 2, 0, 1), value=0.5).exp() * 2, X),
    "pad and cut": lambda: (lambda x: F.pad(x, (-1, 2, 1, -1)).exp() * 2, X),
    "pad of a result": lambda: (lambda x: F.pad(torch.relu(x) * 3, (1, 1)).tanh(), X),
    "roll": lambda: (lambda x: torch.roll(x, (1, -2), (0, 1)).exp() * 2, X),
    "tril": lambda: (lambda x: torch.tril(x, -1).exp() * 2, X),
    "triu": lambda: (lambda x: torch.triu(x, 1).exp() * 2, X),
    "upsample": lambda: (lambda x, y: F.interpolate(x, scale_factor=2) + y.exp(), PICTURE, normal(2, 8, 12, 8)),
    "upsample to a size": lambda: (lambda x: F.interpolate(x, size=(18, 4)).exp() * 2, PICTURE),
    "prelu": lambda: (lambda x, w: F.prelu(x, w).exp(), PICTURE, normal(8)),
    "logic": lambda: (lambda x: torch.where((x > 0) & (x < 1) | ~(x > -1) ^ (x > 2), x, 2 * x), X),
    "logarithm and power": lambda: (lambda x: torch.log10(x.abs() + 1) + torch.exp2(x) + 3.0**x, X),
    "formulas": lambda: (lambda x: torch.addcmul(x, x, x.sin(), value=0.5).lerp(x.cos(), 0.7).frac() * 2, X),
    "adaptive maximum": lambda: (lambda x: F.adaptive_max_pool2d(x, (3, 2)).exp() * 2, PICTURE),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused(name):
    """A kernel reads through the copy: nothing stays a torch call."""
    function, *inputs = FUSED[name]()
    _, plan = planned(function, *inputs)
    assert calls(plan) == [] and len(plan.kernels) == 1


#: Functions in which PyTorch's copy stays, because nothing or a library reads it.
COPIED = {
    "concatenate": (lambda x, y: torch.cat([x, y], 1), (X, Y), ["concatenate"]),
    "many pieces": (lambda x: torch.cat([x, x + 1, x, x, x], 1).exp() * 2, (X,), ["add", "concatenate"]),
    "pad": (lambda x: F.conv1d(F.pad(x, (2, 0)), x[:1, :, :3]), (X,), ["pad", "convolution"]),
    "reflection": (lambda x: F.pad(x, (1, 1), mode="reflect").exp() * 2, (X,), ["places", "border_places"]),
    "padded pieces": (lambda x, y: F.pad(torch.cat([x, y], 1), (1, 1)).exp() * 2, (X, Y), ["concatenate"]),
    "pad of an exponential": (lambda x: F.pad(torch.exp(x), (1, 1)).sin() * 2, (X,), []),
    "roll": (lambda x: torch.roll(x, 2, 1), (X,), ["roll"]),
    # A kernel's own result has no guards: the copy of it is made.
    "triangle of a running sum": (lambda x: x.cumsum(-1).tril().relu() * 2, (X,), ["triangle"]),
    "triangle of a variance": (lambda x: x.var(-1, correction=0).tril().relu() * 2, (PICTURE,), ["triangle"]),
    "uneven": (lambda x: F.adaptive_max_pool2d(x, (4, 3)).exp() * 2, (PICTURE,), ["aten.adaptive_max_pool2d.default"]),
}


@pytest.mark.parametrize("name", COPIED)
def test_copied(name):
    function, inputs, expected = COPIED[name]
    _, plan = planned(function, *inputs)
    assert calls(plan) == expected


EQUATIONS = ("bhid,bhjd->bhij", "ab,bc->ac", "ab,cb->ca", "bhnd,bhd->bhn", "i,j->ij", "ikc,jkc->ijc", "bijl,lk->bijk",
             "abc,cab->b")


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation):
    """Two operands are a matrix product, or a broadcast product where nothing is summed."""
    sizes = {letter: size for size, letter in enumerate(sorted(set(equation) - set(",->")), start=2)}
    operands = [normal(*(sizes[c] for c in term)) for term in equation.split("->")[0].split(",")]
    graph, _ = planned(lambda a, b: torch.einsum(equation, a, b), *operands)
    assert {n.op for n in graph.operators()} <= {"matmul", "mul", "permute", "reshape"}


@pytest.mark.parametrize("equation", ["ab,ac->a", "aab,b->a", "ab,bc", "a,a,a->a"])
def test_other_einsum(equation):
    """What is no plain product stays PyTorch's, and right."""
    terms = equation.split("->")[0].split(",")
    operands = [normal(*([3] * len(term))) for term in terms]
    planned(lambda *x: torch.einsum(equation, *x), *operands)


def test_products():
    matrix, vector, batch = normal(4, 5), normal(5), normal(2, 4, 3)
    planned(lambda m, v: (torch.mv(m, v), torch.dot(v, v), torch.outer(v, v)), matrix, vector)
    planned(lambda m, b: torch.baddbmm(m, b.mT, b, beta=0.5, alpha=2.0), normal(2, 3, 3), batch)
    planned(lambda m, b: torch.baddbmm(m, b.mT, b, beta=0.0), torch.full((2, 3, 3), math.nan).double(), batch)


@pytest.mark.parametrize("function, fill, found", [
    ("neg", -0.0, (0.0,)), ("tanh", -0.0, (-0.0,)), ("exp", -0.0, None), ("exp", 1.0, (-0.0,)), ("square", -0.0, None),
    ("relu", -math.inf, None), ("neg", -math.inf, (math.inf,)),
])
def test_operand_fills(function, fill, found):
    """Operands with these values give the fill itself, sign of zero and all."""
    x = make("input", name="x", shape=(3,), dtype="float64")
    values = operand_fills(make(function, x), fill)
    assert (values is None) == (found is None)
    if values is not None:
        result = evaluate([make(function, x)], {"x": torch.tensor(values, dtype=torch.float64)})[0]
        assert repr(float(result[0])) == repr(fill)
    scaled = operand_fills(make("mul", x, constant(-2.0)), -0.0)
    assert scaled is not None and repr(scaled) == "(0.0, -2.0)"


class Rearranged(nn.Module):
    """Every kind of copy that kernels read through, with zeros of both signs, infinities and NaN in the input."""

    def forward(self, x, y):
        joined = torch.cat([x, y], 1) * 2.0
        turned = torch.roll(x, (1, -3), (2, 3)) * torch.cat([-x[..., 2:], x[..., :2]], -1)
        around = F.pad(torch.relu(y) * 3.0, (1, 2, 0, 1), value=-0.5).tanh() * 0.5
        lower = torch.tril(x, 1) - torch.triu(x, -1)
        return joined, turned, around, lower, F.interpolate(y, scale_factor=2) - 1.0, F.pixel_shuffle(x, 2).tanh() * 2.0


@pytest.mark.parametrize("target, dtype", [("cpp", torch.float32), ("cpp", torch.float16), ("cuda", torch.float32)])
def test_kernels(target, dtype, tmp_path, monkeypatch):
    """Built for the CPU, or run by emulation: the same bits as PyTorch's where nothing is rounded."""
    if target == "cuda" and torch.cuda.is_available():
        pytest.skip("the emulation is for machines without a GPU")
    short_budgets(monkeypatch)
    x, y = normal(2, 4, 5, 6, dtype=dtype), normal(2, 3, 5, 6, dtype=dtype)
    result = optimize(Rearranged(), [x, y], target=target, effort="quick")
    mode = result.modes[0]
    assert not mode.kept and mode.replaced == mode.operators
    if target == "cuda":
        assert any("Checked by emulation" in n and "Passed" in n for n in result.notes), result.notes
        return
    assert mode.certificate.passed
    x[0, 0, 0, :4] = torch.tensor([0.0, -0.0, math.inf, math.nan])
    y[:, :, 1, 2] = -0.0
    for found, expected in zip(result.module(x, y)[:2], Rearranged()(x, y)[:2], strict=True):
        assert torch.equal(found.isnan(), expected.isnan())
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
        assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())


@pytest.mark.parametrize("shift", [-7, -3, -1, 0, 1, 5])
def test_a_roll_by_any_number_is_read_where_it_lies(shift):
    """As the gradient of a roll goes the other way, and of one by more than all."""
    x = leaf("x", 3, 4)
    rolled = make("sigmoid", make("roll", x, shifts=(shift, 1), axes=(0, 1)))
    graph = graph_of(rolled)
    plan, value = make_plan(graph, graph), torch.randn(3, 4, dtype=torch.float64)
    assert len(plan.kernels) == 1
    (found,), _ = run_plan(plan, {"x": value})
    torch.testing.assert_close(found.double(), torch.roll(value, (shift, 1), (0, 1)).sigmoid(), atol=1e-6, rtol=1e-6)


def test_least_bytes():
    """A floor counts of a tensor what is read of it: a part, or nothing that is known where indices choose."""
    table, index = nn.Embedding(100, 8), torch.tensor([1, 5])
    graph = check_capture(table, [index], tolerance=0.0)
    assert least_bytes(graph.outputs) == index.numel() * 8 + 2 * 8 * 4
    assert least_bytes(graph.roots()) == least_bytes(graph.outputs) + 1  # whether the indices are numbers of rows
    graph = check_capture(Of(lambda x: x[1, :2].exp() + x[2, 1:3]), [X])
    assert least_bytes(graph.roots()) == 2 * 5 * 8 + X.numel() // 4 * 8


def test_adaptive_average():
    """Windows of one size are sums in a kernel; of others kernels read where they begin and end."""
    _, plan = planned(lambda x: F.adaptive_avg_pool2d(x.exp(), (3, 2)).sin(), PICTURE)
    assert calls(plan) == []
    _, plan = planned(lambda x: F.adaptive_avg_pool2d(x.exp(), (4, 2)).sin(), PICTURE)
    assert "adaptive_average_pool" not in calls(plan) and "adaptive_places" in calls(plan)
