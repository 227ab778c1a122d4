"""Stage 5, PLAN: the steps of a plan compute what the graph means, in an order that works."""

from __future__ import annotations

import importlib.util
import itertools
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import (
    all_anchors,
    assert_same,
    eager,
    exact,
    filled,
    graph_of,
    leaf,
    random_values,
    run_plan,
    values_of,
)
from places import ROOT
from torch import nn

from kernelwright.algebra.build import reduce
from kernelwright.algebra.collapse import cast
from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.codegen.reference import loops as loops_reference
from kernelwright.ir.graph import Graph, memory
from kernelwright.ir.node import Node, constant, make, walk
from kernelwright.plan import planner
from kernelwright.plan.compile import loops as compile_loops
from kernelwright.plan.kernels import LoopKernel, RegionSum, SpectralEnergy
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, LibraryCall, Plan, TorchStep

EXAMPLES = ROOT / "examples"


# Checks ------------------------------------------------------------------------------------------


def check_order(plan: Plan) -> None:
    """Every step's inputs exist before it runs, and every result and update exists at the end."""
    made: set[Node] = set()
    for step in plan.steps:
        reads = step.inputs if isinstance(step, KernelStep) else step.node.inputs
        for node in reads:
            assert node in made or (node.kind == "leaf" and node.op != "literal"), f"{step} reads {node!r} too early"
        new = step.outputs if isinstance(step, KernelStep) else (step.node,)
        assert not made & set(new), "a value is computed twice"
        made.update(new)
        if isinstance(step, KernelStep):
            assert step.covers and len(set(step.inputs)) == len(step.inputs)
            if isinstance(step.kernel, LoopKernel):
                assert step.kernel.input_dtypes == tuple(n.dtype for n in step.inputs)
                assert step.kernel.output_dtypes == tuple(n.dtype for n in step.outputs)
                assert 1 not in (*step.kernel.outer, *step.kernel.row)
    for node in (*plan.results, *(e.value for e in plan.effects)):
        assert node in made or (node.kind == "leaf" and node.op != "literal")
    assert all(reason for reason in plan.kept.values())
    kept = [s.node for s in plan.steps if isinstance(s, TorchStep)]
    assert len(kept) == len(set(kept))


def check_graph(graph: Graph, tolerance: float = 1e-9, kept: dict[Node, str] | None = None,
                captured: Graph | None = None) -> Plan:
    """Plan a hand-made graph and compare its results with the graph's meaning."""
    plan = make_plan(graph, captured or graph_of(), kept)
    check_order(plan)
    values = random_values([*graph.outputs, *(e.value for e in graph.effects)])
    found, _ = run_plan(plan, values)
    for actual, expected in zip(found, exact(graph.outputs, values), strict=True):
        if isinstance(expected, torch.Tensor) and expected.dtype == torch.bool:
            actual = actual.bool()
        assert_same(actual, expected, tolerance)
    return plan


def check_model(model: nn.Module, inputs: tuple[Any, ...], *, rewrite: bool = False, tolerance: float = 1e-9) -> Plan:
    """Capture, optionally rewrite, plan, run; results and buffers as the module's own in float64."""
    graph = capture(model, inputs)
    final = rewrite_with(graph, all_anchors(graph))[0] if rewrite else graph
    plan = make_plan(final, graph)
    check_order(plan)
    double = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs)
    expected, buffers = eager(model.double(), double)
    values = values_of(model, graph, double)
    torch.manual_seed(0)
    with torch.no_grad():
        found, after = run_plan(plan, values)
    assert_same(filled(final.structure, found), expected, tolerance)
    for name, tensor in buffers.items():
        assert_same(after[name], tensor, tolerance, f"buffer {name}")
    return plan


def loops(plan: Plan) -> list[LoopKernel]:
    return [s.kernel for s in plan.kernels if isinstance(s.kernel, LoopKernel)]


def kinds(plan: Plan) -> list[str]:
    return [type(s.kernel).__name__ if isinstance(s, KernelStep) else s.node.op for s in plan.steps]


class Of(nn.Module):
    """A module around a function of (module, inputs...), with tensors as given."""

    def __init__(self, function: Any, **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, value in parts.items():
            if isinstance(value, torch.Tensor) and name.startswith("buffer"):
                self.register_buffer(name, value)
            else:
                setattr(self, name, nn.Parameter(value) if isinstance(value, torch.Tensor) else value)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


# The examples ------------------------------------------------------------------------------------


def example(name: str, *arguments: Any) -> nn.Module:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    torch.manual_seed(1)
    return module.Model(*arguments)


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "arguments", "shapes"), [
    ("conv_network", (4, 5), [(2, 3, 16, 16)]), ("convt_batchnorm_pool", (3, 4, 3, 2.0), [(2, 3, 3, 4, 5)]),
    ("convt_global_mean", (3, 4, 3, 2, 1, 1, 0.5), [(2, 3, 6, 5)]),
    ("convt_mean_logsumexp", (3, 4, 3, (4, 1, 1)), [(2, 3, 6, 7)]), ("square_matmul", (), [(8, 8), (8, 8)]),
    ("transformer_block", (8, 16, 0.0), [(2, 5, 8)]),
])
def test_examples(name: str, arguments: tuple, shapes: list, training: bool, rewrite: bool) -> None:
    model = example(name, *arguments).train(training)
    inputs = tuple(torch.randn(s, generator=torch.Generator().manual_seed(2)) for s in shapes)
    plan = check_model(model, inputs, rewrite=rewrite, tolerance=2e-8)
    if name == "square_matmul":
        assert not plan.kernels and kinds(plan) == ["matmul"]
    if name == "convt_mean_logsumexp" and rewrite:
        assert [n for n in kinds(plan) if n == "RegionSum"] and "convolution" not in kinds(plan)
        assert len(plan.kernels) == len(plan.steps) <= 5
    if name == "convt_batchnorm_pool" and rewrite:
        assert "convolution" not in kinds(plan)
        assert any(isinstance(s.kernel, SpectralEnergy) for s in plan.kernels) == training
        assert any(isinstance(s.kernel, RegionSum) for s in plan.kernels)
    if name == "transformer_block":
        assert kinds(plan).count("linear") == 2
    if name == "conv_network":
        assert kinds(plan).count("convolution") == 2 and kinds(plan).count("max_pool") == 0


# Pools, views, broadcasting ----------------------------------------------------------------------

POOLS = {
    "prologue": lambda x: F.max_pool2d(F.relu(x + 1), 2) * 2, "padded": lambda x: F.max_pool2d(x * 2 - 3, 3, 2, 1) + 1,
    "padded load": lambda x: F.max_pool2d(x, 3, 2, 1).relu(), "average": lambda x: F.avg_pool2d(x * 2, 2).relu(),
    "average padded": lambda x: F.avg_pool2d(x, 3, 2, 1) * 3, "average padded prologue":
    lambda x: F.avg_pool2d(x.exp(), 3, 1, 1) * 3, "dilated": lambda x: F.max_pool2d(x, 2, 1, 0, 2) * 2,
    "not counted": lambda x: F.avg_pool2d(x * 2, 3, 1, 1, count_include_pad=False) + 1,
    "pool of pool": lambda x: F.max_pool2d(F.max_pool2d(x + 1, 2), 2) - 1,
    "shared": lambda x: F.max_pool2d(x + 1, 2) + F.avg_pool2d(x + 1, 2), "mean of pool":
    lambda x: F.max_pool2d(x, 2).mean((2, 3)) * 2, "softmax of pool": lambda x: F.softmax(F.avg_pool2d(x, 2) * 2, 1),
    "pool of view": lambda x: F.max_pool2d(x.transpose(2, 3)[:, 1:], (2, 3), padding=1) * 2,
    "pool of reshape": lambda x: F.max_pool1d(x.flatten(2) * 2, 3, 2, 1).relu(), "one row":
    lambda x: F.avg_pool2d(x, (1, 4)).sigmoid(), "ceil": lambda x: F.max_pool2d(x * 2, 3, ceil_mode=True) + 1,
    "divisor": lambda x: F.avg_pool2d(x * 2, 2, divisor_override=3) + 1, "minimum":
    lambda x: -F.max_pool2d(-x, 3, 1, 1), "pool of norm": lambda x: F.max_pool2d(F.instance_norm(x), 2) * 2,
    "overlap": lambda x: F.max_pool2d(x + 1, 3, 1).sum(1) * 2, "to one": lambda x: F.adaptive_avg_pool2d(x * 2, 1) + 1,
}


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str, on_chip: None) -> None:
    check_model(Of(lambda m, x: POOLS[name](x)), (torch.randn(2, 3, 8, 8),), tolerance=1e-8)


def test_padding_of_a_maximum_never_wins() -> None:
    plan = check_model(Of(lambda m, x: F.max_pool2d(-x.exp() - 5, 3, 1, 1).relu() - 1), (torch.randn(2, 2, 4, 4),))
    assert plan.kernels


BOUNDED = {
    "clamp": lambda x: F.softmax(x.clamp(0, 1), -1), "sigmoid": lambda x: F.softmax(x.sigmoid() * 8 - 2, 1) * 3,
    "log": lambda x: F.log_softmax(F.hardtanh(x), 1), "of 16 bits": lambda x: F.softmax(x.half().tanh(), -1) + 1,
}
NOT_BOUNDED = {
    "plain": lambda x: F.softmax(x * 2, -1), "one side": lambda x: F.softmax(x.relu(), 1),
    "too far": lambda x: F.softmax(x.clamp(0, 40), -1), "log": lambda x: F.log_softmax(x * 2, 1),
    "small logarithms": lambda x: F.log_softmax(x.clamp(-20, 20), 1),
}


@pytest.mark.parametrize("name", [*BOUNDED, *(f"not: {name}" for name in NOT_BOUNDED)])
def test_a_softmax_of_what_is_bounded_needs_no_maximum(name: str) -> None:
    function = BOUNDED.get(name) or NOT_BOUNDED[name.removeprefix("not: ")]
    x = torch.randn(4, 6, 8) * 3
    if name != "of 16 bits":  # whose values in float64 are rounded to 16 bits on the way
        plan = check_model(Of(lambda m, x: function(x)), (x,))
        special = torch.tensor([inf, -inf, nan, 1.0, 0.0, -2.0, 5.0, 40.0]).repeat(4, 6, 1)
        if name in BOUNDED:
            check_model(Of(lambda m, x: function(x)), (special,))
    else:
        graph = capture(Of(lambda m, x: function(x)), (x,))
        plan = make_plan(graph, graph)
    kinds_of = {r.kind for step in plan.kernels if isinstance(step.kernel, LoopKernel) for r in step.kernel.reductions}
    assert kinds_of == ({"sum"} if name in BOUNDED else {"sum", "max"})


VIEWS = {
    "transpose": lambda x: (x * 2).mT.relu() + 1, "odd reshape": lambda x: (x * 2).reshape(2, 8, 2) + 1,
    "reshape and transpose": lambda x: (x + 1).reshape(4, 2, 4).permute(2, 0, 1).reshape(8, 4) * 2,
    "uneven": lambda x: (x.mT * 2).reshape(2, 2, 8) * 3, "slices": lambda x: (x * 2)[:, 1:3] + x[:, ::2].relu(),
    "halves": lambda x: (x * 2)[..., :2] * (x + 1)[..., 2:], "flatten of a slice":
    lambda x: (x * 2)[:, 1:].flatten(1) + 1, "slice of a reshape": lambda x: (x * 2).flatten()[3:20] + 1,
    "step of a reshape": lambda x: (x * 2).flatten(1)[:, 1::3] * 2, "rows and columns":
    lambda x: x.softmax(-1) + x.softmax(-2) + x.sum(-1).unsqueeze(1) + x.sum(-2).unsqueeze(-1),
    "crossed": lambda x: (x.sum(-1, keepdim=True).mT + x).relu(), "crossed means":
    lambda x: x - x.mean(-1, keepdim=True).mT - x.mean(-2, keepdim=True),
    "outer": lambda x: x.sum(-1).unsqueeze(-1) * x.sum(-1).unsqueeze(-2), "transposed reduction":
    lambda x: x.mT.sum(-1) + x.sum(-1), "reduction of a reshape": lambda x: (x * 2).reshape(2, 2, 8).amax(-1) + 1,
    "expand": lambda x: x[:, :1].expand(2, 4, 4) * x + 1,
    "sum of expand": lambda x: x[:, :1].expand(2, 4, 4).sum(1) * 2,
    "short vector": lambda x: x + torch.arange(4.0) * x[0, 0], "scalar result": lambda x: x * x.sum() + x.mean(),
    "concatenation": lambda x: torch.cat([x * 2, x + 1], 1).relu() + 1, "stack":
    lambda x: torch.stack([x, x * 2]).sum(0) + 1, "shuffle":
    lambda x: (x * 2).reshape(2, 2, 2, 4).transpose(1, 2).reshape(2, 4, 4) + 1, "reduced then split":
    lambda x: (x.sum(0) * 2).reshape(2, 8).sum(0) + 1, "mask": lambda x: torch.where(x > 0, x, x.sum(-1, True)) * 2,
    "masked softmax": lambda x: F.softmax(x.masked_fill(torch.ones(4, 4).triu(1).bool(), float("-inf")), -1) * 2,
    "compare": lambda x: ((x > 0) & (x < x.mean())) * x, "truth": lambda x: (x * 2 > 1, (x > 0) | (x < -1)),
    "rotary": lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * x.sin() + x * x.cos(), "square reshape":
    lambda x: (x.sum(0) * 2).reshape(1, 4, 4) + x.amax(0).t(), "double transpose": lambda x: (x.mT + 1).mT * x,
    "select": lambda x: x[:, 1] * 2 + x[:, -1].relu(), "negative rows": lambda x: x.sum(-1, True) * x.amax(-2, True),
    "split reduction": lambda x: x.reshape(2, 2, 2, 4).mean((1, 3)) * 2 + 1, "long chain":
    lambda x: ((((x * 2).sum(-1) + 1).relu() * 3).amax(-1) - 1).exp(), "view of a result":
    lambda x: (x * 2 + 1).view(-1),
    "erfcx": lambda x: torch.special.erfcx(x * 2) + 1,
    "slices of one": lambda x: sum(x[:, i:i + 1] * (i + 1) for i in range(4)) + 1,
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("rewrite", [False, True])
def test_views(name: str, rewrite: bool, on_chip: None) -> None:
    check_model(Of(lambda m, x: VIEWS[name](x)), (torch.randn(2, 4, 4),), rewrite=rewrite)


@pytest.mark.parametrize("shapes", [p for p in itertools.product(
    [(4, 4), (4, 1), (1, 4), (4,), (1,), ()], repeat=2)], ids=str)
def test_broadcasting_of_square_shapes(shapes: tuple, on_chip: None) -> None:
    x, (a, b) = leaf("x", 4, 4), (leaf(f"t{i}", *s) for i, s in enumerate(shapes))
    row, column = (make("sum", x, axes=(i,), keepdim=True) for i in (1, 0))
    y = make("add", make("mul", x, a), b)
    check_graph(graph_of(make("sum", y, axes=(1,), keepdim=False), make("mul", make("add", row, a), b),
                         make("sub", make("mul", column, b), y), make("add", make("mul", row, column), a),
                         make("add", make("relu", column), make("reshape", row, shape=(1, 4)))))


# Graph shapes ------------------------------------------------------------------------------------


def test_diamonds_do_not_make_cycles(on_chip: None) -> None:
    torch.manual_seed(0)
    weight = torch.randn(8, 8)

    def through_product(m: Any, x: torch.Tensor) -> Any:
        s = (x + 1).relu()
        return s.sum(-1, keepdim=True) + (s.sum(-1, keepdim=True).mT @ x) @ m.weight + s.amax(-1, keepdim=True)

    def reductions_apart(m: Any, x: torch.Tensor) -> Any:
        a = x.sum(-1)
        b = x.amax(-1) + (a @ m.weight).sum()
        return a + b, (x * b.unsqueeze(-1)).sum(-1), x.amin(-1) * a.cumsum(0)

    def pointwise_apart(m: Any, x: torch.Tensor) -> Any:
        a = (x * 2).relu()
        b = a @ m.weight
        return a + b, a * 3, b.sigmoid() * a, (x + b).tanh()

    for function in (through_product, reductions_apart, pointwise_apart):
        check_model(Of(function, weight=weight), (torch.randn(8, 8),), tolerance=1e-8)


def test_a_reduction_that_reads_another_row_than_its_own_is_another_kernel() -> None:
    check_model(Of(lambda m, x: (F.log_softmax(x, 1).T.abs() + 0.5).amin(1)), (torch.randn(5, 5),), tolerance=1e-8)


def test_a_moved_copy_of_what_the_kernel_makes_is_another_kernel(on_chip: None) -> None:
    """Rolled values of a row's norm can't be computed in place of being read: zeros under guards have no norm."""
    for function in (lambda m, x: torch.roll(F.layer_norm(x, (x.shape[-1],)) * 2, 1, -1),
                     lambda m, x: F.pad(F.softmax(x, -1) + 1, (1, 2)) * 2):
        check_model(Of(function), (torch.randn(5),), tolerance=1e-8)
        check_model(Of(function), (torch.randn(3, 5),), tolerance=1e-8)


def test_a_reduction_of_a_moved_copy_of_what_the_kernel_makes_is_another_kernel(on_chip: None) -> None:
    for function in (lambda m, x: torch.clamp(0 - torch.roll(F.layer_norm(x, (x.shape[-1],)), 1, -1), min=0).mean(),
                     lambda m, x: (F.pad(F.softmax(x, -1) + 1, (1, 2)) * 2).square().sum(-1)):
        check_model(Of(function), (torch.randn(5),), tolerance=1e-8)
        check_model(Of(function), (torch.randn(3, 5),), tolerance=1e-8)


def test_a_reshape_of_rows_of_one_element_is_another_kernel() -> None:
    x, weight = leaf("x", 2, 2, 2, 1), leaf("weight", 1, 1)
    total = make("sum", make("reshape", make("mul", x, constant(2.0)), shape=(8, 1)), axes=(1,), keepdim=True)
    other = make("mul", make("reshape", total, shape=(2, 2, 2)), make("reshape", weight, shape=(1, 1, 1)))
    check_graph(graph_of(make("add", total, weight), make("relu", other)))


@pytest.mark.parametrize("crossed", [0, 1024])
def test_a_sum_of_what_is_stored_across_its_operand_is_another_kernel(
        crossed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that stores a value read in another order does not become one that goes through it as one long row."""
    monkeypatch.setattr(compile_loops, "_CROSSED_ROW", crossed)

    def difference(reduced: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
        d = y.permute(0, 3, 1, 2) - x
        return x + d, reduced(d)

    for reduced in (lambda d: d.square().mean(), lambda d: (d.square().mean((2, 3)), d.amax(3)), lambda d: d.sum(-1)):
        check_model(Of(lambda m, x, y, reduced=reduced: difference(reduced, x, y)),
                    (torch.randn(4, 8, 6, 6), torch.randn(4, 6, 6, 8)), tolerance=1e-8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_loaded_is_rounded_where_the_model_converts_it(dtype: str) -> None:
    x = leaf("x", 64)
    plan = make_plan(graph_of(make("add", make("cast", x, to=dtype, shape=(64,), dtype=dtype), x)), graph_of())
    value = torch.randn(64)
    (step,) = plan.kernels
    found, = loops_reference.evaluate(step.kernel, [value], dtype=torch.float32)
    assert torch.equal(found, value.to(getattr(torch, dtype)) + value)


def test_an_enlarged_reduction_is_another_kernel() -> None:
    check_model(Of(lambda m, x: F.interpolate(torch.norm(x, dim=2), scale_factor=2)), (torch.randn(1, 1, 2, 3),))


def test_several_outputs_that_later_kernels_read(on_chip: None) -> None:
    def forward(m: Any, x: torch.Tensor) -> Any:
        a = x * 2 + 1
        b = a.sum(-1, keepdim=True)
        c = (a / b).relu()
        d = F.max_pool1d(c, 2) * 3
        return {"a": a, "b": b, "c": [c, c.amax(1)], "d": d.flatten(1) + 1, "x": x, "view": a.mT}

    check_model(Of(forward), (torch.randn(2, 4, 6),), tolerance=1e-8)


def test_inputs_and_buffers_as_results() -> None:
    check_model(Of(lambda m, x, y: (x, y + m.buffer_a, m.buffer_a, m.w), buffer_a=torch.randn(3), w=torch.randn(2)),
                (torch.randn(3), torch.randn(2, 3)))


@pytest.mark.parametrize("pool", [lambda x: F.max_pool2d(x, 1), lambda x: F.avg_pool2d(x, 1, 2),
                                  lambda x: torch.broadcast_tensors(x, x[0, 0, 0].amax(0, keepdim=True))[1]])
def test_what_is_left_of_an_operator_has_memory_of_its_own(pool: Any) -> None:
    """Where nothing is computed the result would be the input's memory."""
    plan = check_model(Of(lambda m, x: (pool(x), (x * 2 + 1).tanh())), (torch.randn(2, 3, 4, 1),))
    assert memory(plan.results[0]).kind != "leaf"


class Biased(nn.Module):
    """Attention with a bias for each pair of positions and each head, from a table."""

    def __init__(self, contiguous: bool) -> None:
        super().__init__()
        self.contiguous = contiguous
        self.table = nn.Parameter(torch.randn(30, 2))
        self.register_buffer("places", torch.randint(30, (6, 6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.table[self.places.view(-1)].view(6, 6, 2).permute(2, 0, 1)
        bias = bias.contiguous() if self.contiguous else bias
        q, k, v = (x * 2).reshape(3, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0)).tanh()


def below(view: Node) -> list[Node]:
    """A chain of views, and what it shows."""
    chain = [view]
    while chain[-1].kind == "view":
        chain.append(chain[-1].inputs[0])
    return chain


@pytest.mark.parametrize("contiguous", [True, False])
def test_fused_attention_gets_operands_whose_last_axis_is_dense(contiguous: bool) -> None:
    """Where the model asked for contiguous memory, without which all scores would be stored; other views go to the call
    as they lie."""
    plan = check_model(Biased(contiguous), (torch.randn(3, 6, 24),))
    (attention,) = (s.node for s in plan.steps if isinstance(s, TorchStep)
                    and s.node.op == "opaque" and "attention" in s.node["target"])
    *others, mask = attention.inputs
    assert mask.shape == (1, 2, 6, 6) and any(n.op == "copy" for n in below(mask)) == contiguous
    assert all(n.op != "copy" for i in others for n in below(i))


def test_random_numbers_are_drawn_where_they_lay() -> None:
    """What is given a view of memory (N, H, W, C) is so beside a convolution in another order, too."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 1, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            both = torch.acos(torch.tanh(x))
            return F.alpha_dropout(both, 0.5, self.training), self.last(both)

    def lies(node: Node) -> list[tuple[int, ...]]:
        """The orders of axes in which a view shows what lies contiguous."""
        orders = []
        while node.kind == "view":
            orders.append(node["axes"])
            node = node.inputs[0]
        return orders

    graph = capture(Model(), [torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last)])
    convolutions = frozenset(n for n in graph.nodes() if n.op == "convolution")
    for kept in ({}, {n: "asked" for n in graph.nodes() if n.op == "opaque"}):
        for last in (frozenset(), convolutions):
            plan = make_plan(graph, graph, kept, move_bias=True, channels_last=last)
            drawn = [s.node for s in plan.steps if isinstance(s, TorchStep) and s.node.get("serial", -1) >= 0]
            assert [lies(n.inputs[0]) for n in drawn] == [[(0, 3, 1, 2)]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_dropout_drops_what_it_drops_in_eager(form: torch.memory_format, dtype: torch.dtype) -> None:
    """Beside a convolution in another order, too."""
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Conv2d(2, 1, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            both = x * 2
            return (F.dropout(both, 0.4, self.training), F.dropout2d(both, 0.5, self.training), self.last(both),
                    F.dropout(both[:, 1:], 0.5, self.training), F.dropout(both.transpose(1, 2), 0.5, self.training))

    x = torch.randn(3, 2, 4, 5).to(dtype).to(memory_format=form)
    model = Model().to(dtype)
    graph = capture(model, [x])
    values = {"x": x, **{name: p.detach() for name, p in model.named_parameters()}}
    torch.manual_seed(3)
    expected = [t.detach() for t in model(x)]
    convolutions = frozenset(n for n in graph.nodes() if n.op == "convolution")
    for last in (frozenset(), convolutions):
        torch.manual_seed(3)
        found, _ = run_plan(make_plan(graph, graph, {}, move_bias=True, channels_last=last), values)
        for place in (0, 1, 3, 4):
            torch.testing.assert_close(found[place].to(dtype), expected[place])


def test_kept_nodes_stay_torch_calls_below_views_that_are_read_through() -> None:
    """A contraction of a view lowers to products of what the view shows: nothing below that is lowered once more."""
    x, weight, bias = leaf("x", 4, 7, 7, 8), leaf("w", 8), leaf("b", 8)
    norm = make("layer_norm", x, weight, bias, axes=1, eps=1e-6, affine=True)
    pooled = make("sum", make("relu", norm), axes=(1, 2), keepdim=True)
    product = make("contract", make("reshape", pooled, shape=(4, 8)), leaf("v", 3, 8), equation="rk,ok->ro")
    plan = check_graph(graph_of(product), kept={norm: "asked"})
    assert norm in [s.node for s in plan.steps if isinstance(s, TorchStep)]


def test_kept_nodes_stay_torch_calls() -> None:
    x = leaf("x", 4, 6)
    soft = make("softmax", make("mul", x, constant(2.0)), axis=1)
    plan = check_graph(graph_of(make("relu", soft), make("sum", soft, axes=(0,), keepdim=False)), kept={soft: "asked"})
    assert [s.node for s in plan.steps if isinstance(s, TorchStep)] == [soft] and plan.kept[soft] == "asked"


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1), (1,), ()], ids=str)
def test_empty_and_unit_tensors(shape: tuple[int, ...]) -> None:
    def forward(m: Any, x: torch.Tensor) -> Any:
        y = (x * 2 + 1).relu()
        return y, y.sum() * 2, (y.mean(-1) + 1) if x.ndim else y + 1, F.softmax(y, -1) * 2 if x.ndim else y * 3

    check_model(Of(forward), (torch.randn(shape),))


def test_other_types() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        model = Of(lambda m, x: F.softmax(x * 2, -1) + 1)
        graph = capture(model, (torch.randn(3, 4).to(dtype),))
        plan = make_plan(graph, graph)
        check_order(plan)
        assert [k.compute for k in loops(plan)] == ["float64" if dtype == torch.float64 else "float32"]
    check_model(Of(lambda m, t, x: (x[0] * t + t.float().mean(), t * 2 + 1, (t > 1) * x)),
                (torch.arange(4), torch.randn(2, 4)), tolerance=1e-6)


# Buffers -----------------------------------------------------------------------------------------


def _running(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.buffer_mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    m.buffer_count += 1
    return x - m.buffer_mean


def _swap(m: Any, x: torch.Tensor) -> torch.Tensor:
    old = m.buffer_mean.clone()
    m.buffer_mean.copy_(m.buffer_other)
    m.buffer_other.copy_(old)
    return x + old


def _old_and_new(m: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    old = m.buffer_mean.clone()
    m.buffer_mean.add_(x.sum(0))
    return old, m.buffer_mean + 1, (x * old).sum(), m.buffer_other * m.buffer_mean


def _each_other(m: Any, x: torch.Tensor) -> torch.Tensor:
    a, b = m.buffer_mean * 1, m.buffer_other * 1
    m.buffer_mean.copy_(b * 2 + x[0])
    m.buffer_other.copy_(a * 3 + x[1])
    return x + 1


@pytest.mark.parametrize("function", [_running, _swap, _old_and_new, _each_other])
def test_buffers_are_written_in_the_right_order(function: Any) -> None:
    torch.manual_seed(0)
    model = Of(function, buffer_mean=torch.randn(6), buffer_other=torch.randn(6), buffer_count=torch.tensor(2))
    check_model(model, (torch.randn(4, 6),))


NORMED = {
    "alone": lambda m, x: m.norm(x), "relu": lambda m, x: F.relu(m.norm(x * 2)), "pool":
    lambda m, x: F.adaptive_avg_pool2d(m.norm(x), 1), "product": lambda m, x: F.relu(m.norm(m.convolution(x))),
    "statistics only": lambda m, x: (m.norm(x) * 0, x + 1)[1], "new statistics":
    lambda m, x: (m.norm(x), m.norm.running_mean + 1), "old statistics":
    lambda m, x: (m.norm.running_mean * 2, m.norm(x).relu()), "two": lambda m, x: m.norm(x) + m.second(m.norm.weight *
    x.mT.mT.sum((2, 3), keepdim=True) + x),
    "concatenated": lambda m, x: torch.cat([m.norm(x), m.second(x)], 1).cumsum(1),
}


@pytest.mark.parametrize("name", NORMED)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("rewrite", [False, True])
def test_batch_norm_statistics(name: str, training: bool, rewrite: bool, on_chip: None) -> None:
    torch.manual_seed(0)
    model = Of(lambda m, x: NORMED[name](m, x), norm=nn.BatchNorm2d(4), second=nn.BatchNorm2d(4, affine=False),
               convolution=nn.Conv2d(4, 4, 3)).train(training)
    check_model(model, (torch.randn(3, 4, 5, 4),), rewrite=rewrite, tolerance=1e-7)


def test_norm_that_has_no_kernel_updates_its_statistics_once() -> None:
    """In bfloat16 the torch call stays, and it updates the statistics by itself."""
    model = Of(lambda m, x: F.relu(m.norm(x)), norm=nn.BatchNorm1d(4)).bfloat16().train()
    inputs = (torch.randn(3, 4, 5).bfloat16(),)
    graph = capture(model, inputs)
    plan = make_plan(graph, graph)
    check_order(plan)
    assert {e.name for e in plan.effects} == {"norm.num_batches_tracked"}


# Order of random draws ---------------------------------------------------------------------------


def test_draws_keep_their_order_whatever_fuses(on_chip: None) -> None:
    def forward(m: Any, x: torch.Tensor) -> Any:
        a = F.dropout(x, 0.5)  # first draw, read last
        b = F.dropout((x * 2).relu(), 0.25)
        c = (x * 2).relu() + b
        d = F.dropout(c * 2, 0.5)
        return d.sum(-1) + c.sum(-1), F.rrelu(x + 1, training=True) * 2, a * d + c

    def crossing(m: Any, x: torch.Tensor) -> Any:
        a, b = x.sum(-1), x * 3 + 1
        first = F.dropout(b, 0.5)
        second = F.dropout(a, 0.5)
        return (x * second.unsqueeze(-1)).sum(-1) + a, first.sum(-1), b * second.unsqueeze(-1)

    def late(m: Any, x: torch.Tensor) -> Any:
        first, second = torch.rand_like(x), torch.rand_like(x)
        u, v = x.sum(-1), (x * second).sum(-1)
        return second * 2 + v.unsqueeze(-1), F.dropout(u, 0.5), first * u.unsqueeze(-1)

    def between(m: Any, x: torch.Tensor) -> Any:
        # The sums share their pass over x, but the second needs a draw that comes after the first's.
        first = F.dropout(x.sum(-1), 0.5)
        return (x * torch.rand_like(x)).sum(-1) * 2, first

    for function in (forward, crossing, late, between):
        plan = check_model(Of(function), (torch.randn(4, 6),))
        serials = [s.node["serial"] for s in plan.steps if isinstance(s, TorchStep) and s.node.op == "opaque"]
        assert serials == sorted(serials)


TURNED = {
    "computed": lambda m, x: F.dropout((x.transpose(1, 2) * 2 + 1).tanh(), 0.5),
    "as given": lambda m, x: F.dropout(x.transpose(1, 2), 0.5),
    "turned back": lambda m, x: F.dropout(x.transpose(1, 2).contiguous(), 0.5),
    "twice": lambda m, x: F.dropout(F.dropout(x.transpose(1, 2).relu(), 0.5) * 2, 0.5),
    "taken apart": lambda m, x: F.dropout(x.transpose(1, 2).unflatten(1, (2, 3)) + 1, 0.5),
    "in part": lambda m, x: F.dropout(x.transpose(1, 2)[:, 1:] + 1, 0.5),
    "a part": lambda m, x: F.dropout(x.transpose(1, 2)[:, 1:], 0.5),
    "expanded": lambda m, x: F.dropout(x[:, :1].transpose(1, 2).expand(-1, -1, 5), 0.5),
    "reduced": lambda m, x: F.dropout(F.softmax(x.transpose(1, 2), -1), 0.5),
    "in place": lambda m, x: F.dropout((x.transpose(1, 2) * 2 + 1).tanh(), 0.5, inplace=True) * 3,
    "another's": lambda m, x: torch.rand_like(x.transpose(1, 2) * 2) * x.transpose(1, 2),
}


@pytest.mark.parametrize("name", TURNED)
def test_draws_are_made_in_the_order_of_memory(name: str) -> None:
    """As eager makes them: whether the axes of what they are for are turned there, or in the plan."""
    check_model(Of(TURNED[name]), (torch.randn(3, 4, 6),))


# The plan does not depend on hashing, and repeats ------------------------------------------------


def test_plans_repeat() -> None:
    model = Of(lambda m, x: (F.softmax(x * 2, -1).sum(0), F.layer_norm(x, (6,)).relu(), x.amax(-1) + x.mean(-1)))
    graph = capture(model, (torch.randn(4, 6),))
    first, second = make_plan(graph, graph), make_plan(graph, graph)
    assert [getattr(s, "kernel", None) for s in first.steps] == [getattr(s, "kernel", None) for s in second.steps]
    assert [getattr(s, "name", "") for s in first.steps] == [getattr(s, "name", "") for s in second.steps]


@pytest.mark.parametrize(("narrow", "wide", "stored"), [("bfloat16", "float32", "bfloat16"),
                                                        ("float32", "float64", "float64")])
def test_what_several_read_is_stored_as_narrow_as_the_model_rounds_it(narrow: str, wide: str, stored: str) -> None:
    """A type of more digits that is ours keeps them."""
    x = leaf("x0", 64, 64, dtype=narrow)
    for number in range(1, 6):
        x = make("add", x, leaf(f"x{number}", 64, 64, dtype=narrow))
    value = cast(x, wide)
    plan = check_graph(graph_of(reduce("sum", value, (0,)), reduce("sum", value, (1,)), make("tanh", value)), 1e-2)
    assert [n.dtype for s in plan.kernels for n in s.outputs if n.op in ("add", "cast")] == [stored]


# Contractions that stay with the library ----------------------------------------------------------


class Fire(nn.Module):
    """Convolutions with biases whose readers fuse: one reader of one, and one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.squeeze, self.one = nn.Conv2d(6, 4, 1), nn.Conv2d(4, 8, 1)
        self.three = nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.one(x)), torch.relu(self.three(x))], 1) * 0.5


@pytest.mark.parametrize("last", [False, True])
def test_the_bias_of_a_library_call_joins_the_kernels_that_read_it(last):
    """Measured or not, the library's product is all that the reason speaks of."""
    model, x = Fire(), torch.randn(2, 6, 9, 9)
    graph = capture(model, (x,))
    convolutions = [n for n in graph.nodes() if n.op == "convolution"]

    def planned(kept: dict[Node, str]) -> Plan:
        plan = make_plan(graph, graph, kept, move_bias=True, channels_last=frozenset(convolutions if last else ()))
        check_order(plan)
        double, given = Fire().double(), x.double()
        double.load_state_dict(model.state_dict())
        found, _ = run_plan(plan, values_of(double, graph, (given,)))
        assert_same(found[0], eager(double, (given,))[0], 1e-9)
        return plan

    free = planned({})
    plan = planned({n: LibraryCall("it was not measured") for n in convolutions})
    assert kinds(plan) == kinds(free) and "add" not in kinds(plan)
    assert {n for step in plan.kernels for n in step.covers} >= set(convolutions)
    assert set(plan.kept) == set(convolutions) and not plan.kept_whole
    whole = planned(dict.fromkeys(convolutions, "a kernel of its bias failed"))
    assert kinds(whole).count("add") == 2 and whole.kept_whole >= set(convolutions)


def test_a_bias_that_no_kernel_takes_along_stays_with_its_library_call():
    graph = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveMaxPool2d(2)), (torch.randn(1, 3, 9, 9),))
    node = next(n for n in graph.nodes() if n.op == "convolution")
    plan = make_plan(graph, graph, {node: LibraryCall("it was not measured")}, move_bias=True)
    assert not plan.kernels and plan.kept == {node: "it was not measured"}


@pytest.mark.breaks
def test_a_bias_whose_kernel_fails_stays_with_its_library_call(monkeypatch):
    """What is given up for a fault of ours is given up whole, or the same kernel would be planned for ever."""
    graph = capture(Fire(), (torch.randn(2, 6, 9, 9),))
    convolutions = [n for n in graph.nodes() if n.op == "convolution"]
    compiled = planner.compile_group

    def fails(group: Any, *others: Any) -> Any:
        if any(n.op == "add" for n in walk(group.nodes)):
            raise RuntimeError("a fault of ours")
        return compiled(group, *others)

    monkeypatch.setitem(planner._COMPILERS, "loop", fails)
    plan = make_plan(graph, graph, dict.fromkeys(convolutions, LibraryCall("it was not measured")), move_bias=True)
    check_order(plan)
    assert plan.kept_whole >= set(convolutions) and all("a fault of ours" in plan.kept[n] for n in convolutions)
