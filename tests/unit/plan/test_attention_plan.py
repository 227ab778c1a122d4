"""Attention in plans: which forms are one kernel, what its record says, and what stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import all_anchors, assert_same, eager, filled, run_plan, values_of
from test_planner import Of, check_order, kinds
from torch import nn

from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.ir.graph import Graph
from kernelwright.plan.kernels import Attention
from kernelwright.plan.lowering.fused import FUSED
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelStep, Plan, Unrolled

BATCH, HEADS, ROWS, DEPTH = 2, 4, 48, 8
sdpa = F.scaled_dot_product_attention


def agrees(plan: Plan, graph: Graph, model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """A plan gives what the model gives in float64."""
    check_order(plan)
    double = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    expected, _ = eager(deepcopy(model).double(), double)
    torch.manual_seed(0)
    with torch.no_grad():
        found, _ = run_plan(plan, values_of(deepcopy(model).double(), graph, double))
    assert_same(filled(plan.graph.structure, found), expected, 1e-9)


def attentions(plan: Plan) -> list[KernelStep]:
    return [s for s in plan.kernels if isinstance(s.kernel, Attention)]


def planned(function: Callable, inputs: tuple[torch.Tensor, ...], *, rewrite: bool = False, **parts: Any) -> Plan:
    """The plan of a function of (module, inputs...), with attention, which gives what the function gives: so do the
    plan without attention, and the one in which each attention was left for being slower."""
    model = Of(function, **parts).eval()
    graph = capture(model, inputs)
    final = rewrite_with(graph, all_anchors(graph))[0] if rewrite else graph
    plan = make_plan(final, graph, fused_products=FUSED)
    agrees(plan, graph, model, inputs)
    assert not attentions(make_plan(final, graph)) and plan.fused_products
    left: dict = {}
    for step in attentions(plan):
        assert step.kernel.input_dtypes == tuple(n.dtype for n in step.inputs)
        assert step.rolls == (len(step.covers) > 1)
        left |= step.left("slower")
    if left:
        again = make_plan(final, graph, left, fused_products=FUSED)
        assert not attentions(again)
        assert all(isinstance(reason, Unrolled) or n.op == "opaque" for n, reason in left.items())
        agrees(again, graph, model, inputs)
    return plan


def drawn(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def heads(rows: int = ROWS, columns: int | None = None, width: int = DEPTH) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values."""
    columns = columns or rows
    return drawn((BATCH, HEADS, rows, DEPTH), (BATCH, HEADS, columns, DEPTH), (BATCH, HEADS, columns, width))


def truths(*shape: int) -> torch.Tensor:
    """Truth values, of which every row has one that is true."""
    result = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    result[..., 0] = True
    return result


def apart(x: torch.Tensor, count: int = HEADS) -> torch.Tensor:
    """(batch, rows, channels) by heads."""
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def together(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions: halves of a vector, one of them negated."""
    one, other = x.chunk(2, -1)
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    return x * angles.cos() + torch.cat([-other, one], -1) * angles.sin()


# Forms that are found --------------------------------------------------------------------------------


def by_hand(m, q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), -1) @ v


def merged(m, q, k, v):
    flat = [x.reshape(-1, *x.shape[-2:]) for x in (q, k, v)]
    scores = torch.bmm(flat[0], flat[1].transpose(1, 2)).view(BATCH, HEADS, ROWS, ROWS) + m.bias
    return torch.bmm(scores.softmax(-1).view(-1, ROWS, ROWS), flat[2]).view(q.shape)


def by_letters(m, q, k, v):
    weights = torch.einsum("blhd,bshd->bhls", q, k).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", weights, v)


def transformer(m, x):
    q, k, v = (apart(part) for part in m.inside(x).chunk(3, -1))
    weights = torch.softmax(q @ k.transpose(-2, -1) * DEPTH ** -0.5, -1)
    return m.outside(m.dropout(weights @ v).transpose(1, 2).contiguous().view(x.shape))


def swin(m, x, mask):
    """Windows by heads, with a bias from a table, and a mask for each window."""
    count = mask.shape[0]
    q, k, v = m.inside(x).reshape(x.shape[0], -1, 3, HEADS, DEPTH).permute(2, 0, 3, 1, 4)
    scores = q * 0.35 @ k.transpose(-2, -1) + m.table[m.buffer_places.view(-1)].view(16, 16, -1).permute(2, 0, 1)[None]
    scores = scores.view(-1, count, HEADS, 16, 16) + mask.unsqueeze(1).unsqueeze(0)
    return together(scores.view(-1, HEADS, 16, 16).softmax(-1) @ v)


def t5(m, q, k, v):
    places = torch.arange(k.shape[-2])[None, :] - torch.arange(q.shape[-2])[:, None]
    bias = m.table(places.clamp(-8, 7) + 8).permute(2, 0, 1)[None]
    return torch.softmax(q @ k.mT + bias, -1) @ v


def cosine(m, q, k, v):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    return (scores * m.scale.clamp(max=4.6).exp()).softmax(-1) @ v


def state_space(m, c, b, decay, x):
    return torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, decay, x)


SQUARE = {"rows": ROWS, "columns": ROWS, "depth": DEPTH, "width": DEPTH, "batch": BATCH * HEADS, "softmax": True,
          "causal": False, "empty_rows": False}
MASKED = SQUARE | {"empty_rows": True}
CAUSAL = torch.ones(ROWS, ROWS, dtype=torch.bool).tril()
#: The function, its inputs, what its record has unlike SQUARE, and modules or parameters.
FOUND: dict[str, tuple] = {
    "PyTorch's": (lambda m, q, k, v: sdpa(q, k, v), heads(), SQUARE),
    "PyTorch's, causal": (lambda m, q, k, v: sdpa(q, k, v, is_causal=True), heads(), SQUARE | {"causal": True}),
    "PyTorch's, causal, more columns than rows": (
        lambda m, q, k, v: sdpa(q, k, v, is_causal=True), heads(40, 70), SQUARE | {"causal": True, "rows": 40,
                                                                                "columns": 70}),
    "PyTorch's, causal, more rows than columns": (
        lambda m, q, k, v: sdpa(q, k, v, is_causal=True), heads(70, 40), SQUARE | {"causal": True, "rows": 70,
                                                                                "columns": 40}),
    "PyTorch's, truths": (sdpa_masked := lambda m, q, k, v, mask: sdpa(q, k, v, mask),
                          (*heads(), truths(BATCH, 1, ROWS, ROWS)), MASKED),
    "PyTorch's, rows without columns": (sdpa_masked, (*heads(), truths(ROWS, ROWS) & (torch.arange(ROWS) != 5)[:, None]
                                                      ), MASKED),
    "PyTorch's, biases": (sdpa_masked, (*heads(), *drawn((HEADS, 1, ROWS))), MASKED),
    "PyTorch's, scaled": (lambda m, q, k, v: sdpa(q, k, v, scale=-0.2), heads(64, 40, 5),
                          SQUARE | {"rows": 64, "columns": 40, "width": 5}),
    "PyTorch's, groups of heads": (lambda m, q, k, v: sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), heads(), SQUARE),
    "PyTorch's, one key for all heads": (
        lambda m, q, k, v: sdpa(q, k[:, :1], v[:, :1], enable_gqa=True), heads(), SQUARE),
    "PyTorch's, three axes": (lambda m, q, k, v: sdpa(q, k, v), drawn(*[(9, 60, 4)] * 3), SQUARE | {
        "rows": 60, "columns": 60, "depth": 4, "width": 4, "batch": 9}),
    "PyTorch's, two axes": (lambda m, q, k, v: sdpa(q, k, v), drawn((150, 4), (120, 4), (120, 3)), SQUARE | {
        "rows": 150, "columns": 120, "depth": 4, "width": 3, "batch": 1}),
    "PyTorch's, five axes": (lambda m, q, k, v: sdpa(q, k, v, is_causal=True),
                             drawn(*[(2, 3, 3, 32, 4)] * 3), SQUARE | {
        "rows": 32, "columns": 32, "depth": 4, "width": 4, "batch": 18, "causal": True}),
    "by hand": (by_hand, heads(), {}),
    "by hand, unlike sizes": (by_hand, heads(72, 40, 5), {"rows": 72, "columns": 40, "width": 5}),
    "by hand, five axes": (by_hand, drawn(*[(2, 3, 3, 32, 4)] * 3), {"rows": 32, "columns": 32, "depth": 4, "width": 4,
                                                                     "batch": 18}),
    "by hand, two axes": (by_hand, drawn((150, 4), (120, 4), (120, 3)), {"rows": 150, "columns": 120, "depth": 4,
                                                                         "width": 3, "batch": 1}),
    "by hand, keys as they are multiplied": (lambda m, q, k, v: torch.softmax(q @ k, -1) @ v, (
        *drawn((BATCH, HEADS, ROWS, DEPTH), (BATCH, HEADS, DEPTH, ROWS), (BATCH, HEADS, ROWS, DEPTH)),), {}),
    "by hand, of one batch": (by_hand, drawn((BATCH, HEADS, ROWS, DEPTH), (HEADS, ROWS, DEPTH), (1, 1, ROWS, DEPTH)),
                              {}),
    "with heads merged": (merged, heads(), {}, {"bias": torch.randn(1, HEADS, 1, ROWS)}),
    "by letters": (by_letters, drawn((2, 64, 3, 8), (2, 50, 3, 8), (2, 50, 3, 5)), {
        "rows": 64, "columns": 50, "width": 5, "batch": 6}),
    "values times weights": (lambda m, q, k, v: v.mT @ torch.softmax(k @ q.mT, -2), heads(), {}),
    "filled": (lambda m, q, k, v: (q @ k.mT * 0.3).masked_fill(~CAUSAL, -math.inf).softmax(-1) @ v, heads(), {}),
    "filled by a buffer that is cut": (
        lambda m, q, k, v, mask: (q @ k.mT).masked_fill(mask[:, :, :ROWS, :ROWS] == 0, -1e9).softmax(-1) @ v,
        (*heads(), torch.ones(1, 1, 64, 64).tril()), {}),
    "biases of heads": (lambda m, q, k, v, b: (q @ k.mT + b).softmax(-1) @ v, (*heads(), *drawn((HEADS, ROWS, ROWS))),
                        {}),
    "biases of the batch": (lambda m, q, k, v, b: (q @ k.mT + b[:, None, None]).softmax(-1) @ v,
                            (*heads(), *drawn((BATCH, ROWS))), {}),
    "slopes": (lambda m, q, k, v: (q @ k.mT * 0.3 + m.slope * (torch.arange(ROWS) - torch.arange(ROWS)[:, None]).abs()
                                   ).softmax(-1) @ v, heads(), {}, {"slope": torch.rand(HEADS, 1, 1)}),
    "rectified": (lambda m, q, k, v: torch.relu(q @ k.mT * 0.3) @ v, heads(), {"softmax": False}),
    "squares of what is rectified": (lambda m, q, k, v: torch.relu(q @ k.mT / ROWS).square() @ v, heads(),
                                     {"softmax": False}),
    "sigmoids": (lambda m, q, k, v: torch.sigmoid(q @ k.mT * 0.3 - 3) @ v, heads(), {"softmax": False}),
    "causal sigmoids": (lambda m, q, k, v: torch.where(CAUSAL, torch.sigmoid(q @ k.mT), 0.0) @ v, heads(),
                        {"softmax": False}),
    "soft caps": (lambda m, q, k, v: (20 * torch.tanh(q @ k.mT / 20)).softmax(-1) @ v, heads(), {}),
    "decays": (lambda m, q, k, v, d: (q @ k.mT * d) @ v, (*heads(), *drawn((HEADS, ROWS, ROWS))), {"softmax": False}),
    "of the same tensor": (lambda m, x: by_hand(m, x, x, x), heads()[:1], {}),
    "scores of each head": (lambda m, q, k, v: (q @ k.mT * m.scale + m.shift).softmax(-1) @ v, heads(), {}, {
        "scale": torch.rand(HEADS, 1, 1), "shift": torch.randn(1, 1, ROWS, 1)}),
    "scaled operands": (lambda m, q, k, v: (q * m.scale @ (k / 3).mT).softmax(-1) @ (v + 1), heads(), {},
                        {"scale": torch.rand(DEPTH)}),
    "rotary positions": (lambda m, q, k, v: sdpa(turned(q), turned(k), v, is_causal=True), heads(), SQUARE | {
        "causal": True}),
    "cosine": (cosine, heads(), {}, {"scale": torch.randn(HEADS, 1, 1)}),
    "biases of positions": (t5, heads(), {}, {"table": nn.Embedding(16, HEADS)}),
    "from one linear layer": (transformer, drawn((BATCH, ROWS, HEADS * DEPTH)), {}, {
        "inside": nn.Linear(HEADS * DEPTH, 3 * HEADS * DEPTH), "outside": nn.Linear(HEADS * DEPTH, 6),
        "dropout": nn.Dropout(0.3)}),
    "windows": (swin, (*drawn((18, 16, HEADS * DEPTH)), torch.where(truths(9, 16, 16), 0.0, -100.0)), {
        "rows": 16, "columns": 16, "batch": 18 * HEADS}, {
        "inside": nn.Linear(HEADS * DEPTH, 3 * HEADS * DEPTH), "table": torch.randn(31, HEADS),
        "buffer_places": torch.randint(0, 31, (16, 16))}),
    "a state space model": (state_space, drawn((4, 2, 32, 3, 8), (4, 2, 32, 3, 8), (4, 3, 2, 32, 32), (4, 2, 32, 3, 6)),
                            {"rows": 32, "columns": 32, "width": 6, "batch": 24, "softmax": False}),
    "rows that are cut": (lambda m, q, k, v: (q @ k.mT).softmax(-1)[:, :, 3:63] @ v,
                          drawn((BATCH, HEADS, 96, 8), (BATCH, HEADS, 96, 8), (BATCH, HEADS, 96, 8)),
                          {"rows": 60, "columns": 96}),
    "one row": (by_hand, drawn((64, 4, 1, 8), (64, 4, 70, 8), (64, 4, 70, 8)), {"rows": 1, "columns": 70,
                                                                                "batch": 256}),
    "one element": (by_hand, drawn((BATCH, HEADS, ROWS, 1), (BATCH, HEADS, ROWS, 1), (BATCH, HEADS, ROWS, 1)),
                    {"depth": 1, "width": 1}),
    "one column": (lambda m, q, k, v: torch.sigmoid(q @ k.mT) @ v, drawn((64, 4, 70, 8), (64, 4, 1, 8), (64, 4, 1, 8)),
                   {"rows": 70, "columns": 1, "batch": 256, "softmax": False}),
}


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("name", FOUND)
def test_forms_that_are_one_kernel(name, rewrite):
    function, inputs, facts, *parts = FOUND[name]
    plan = planned(function, inputs, rewrite=rewrite, **deepcopy(dict(*parts)))
    assert kinds(plan).count("Attention") == 1, kinds(plan)
    kernel = attentions(plan)[0].kernel
    expected = SQUARE | facts
    assert {fact: getattr(kernel, fact) for fact in expected} == expected
    left = [s.node for s in plan.steps if not isinstance(s, KernelStep)]
    assert not any(n.op in ("matmul", "contract", "softmax") or "attention" in n.get("target", "") for n in left)


# Forms that are not ----------------------------------------------------------------------------------


def talking(m, q, k, v):
    scores = torch.einsum("bhls,hg->bgls", q @ k.mT, m.mix)
    return scores.softmax(-1) @ v


#: The function, its inputs, and modules or parameters.
LEFT: dict[str, tuple] = {
    "dropped weights of PyTorch's": (lambda m, q, k, v: sdpa(q, k, v, dropout_p=0.5), heads()),
    "dropped weights": (lambda m, q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.5) @ v, heads()),
    "float64": (by_hand, tuple(x.double() for x in heads())),
    "PyTorch's in float64": (lambda m, q, k, v: sdpa(q, k, v), tuple(x.double() for x in heads())),
    "few scores": (by_hand, heads(16, 16)),
    "a softmax of columns": (lambda m, q, k, v: (q @ k.mT).softmax(-2) @ v, heads()),
    "a softmax of heads": (lambda m, q, k, v: (q @ k.mT).softmax(1) @ v, heads()),
    "a softmax of the columns that are one another's rows": (
        lambda m, q, k, v: (q @ k.mT).softmax(-1).mT @ v, heads()),
    "scores that are returned": (lambda m, q, k, v: ((s := q @ k.mT).softmax(-1) @ v, s), heads()),
    "weights that are returned": (lambda m, q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w), heads()),
    "scores that are read": (lambda m, q, k, v: ((s := q @ k.mT * 2).softmax(-1) @ v, s.amax(-1)), heads()),
    "weights of two values": (lambda m, q, k, v: ((w := (q @ k.mT).softmax(-1)) @ v, w @ k), heads()),
    "no function": (lambda m, q, k, v: q @ k.mT @ v, heads()),
    "weights that are multiplied": (lambda m, q, k, v: ((q @ k.mT).softmax(-1) * m.gate) @ v, heads(), {
        "gate": torch.rand(ROWS, ROWS)}),
    "weights of which some are no more": (
        lambda m, q, k, v: (q @ k.mT).softmax(-1).masked_fill(~CAUSAL, 0.0) @ v, heads()),
    "weights of some columns": (lambda m, q, k, v: (q @ k.mT).softmax(-1)[..., :30] @ v[:, :, :30], heads()),
    "weights beside those of a sink": (lambda m, q, k, v: torch.cat((q @ k.mT, m.sink.expand(
        BATCH, HEADS, ROWS, 1)), -1).softmax(-1)[..., :-1] @ v, heads(), {"sink": torch.randn(HEADS, 1, 1)}),
    "one weight for all": (lambda m, q, k, v: (q @ k[:, :, :1].mT).softmax(-1).expand(-1, -1, -1, ROWS) @ v,
                           (*drawn(*[(BATCH, HEADS, 2100, DEPTH)] * 2), *heads()[2:])),
    "weights that are flipped": (lambda m, q, k, v: (q @ k.mT).softmax(-1).flip(-1) @ v, heads()),
    "heads that talk": (talking, heads(), {"mix": torch.randn(HEADS, HEADS)}),
    "scores of two products": (lambda m, q, k, v: (q @ k.mT + q @ m.other).softmax(-1) @ v, heads(), {
        "other": torch.randn(HEADS, DEPTH, ROWS)}),
    "weights times weights": (lambda m, q, k, v: (w := torch.relu(q @ k.mT)) @ w, heads()),
    "sums of scores": (lambda m, q, k, v: torch.relu(q @ k.mT).cumsum(-1) @ v, heads()),
    "a vector for values": (lambda m, q, k, v: torch.relu(q @ k.mT) @ v[0, 0, :, 0], heads()),
    "a kernel of a convolution": (lambda m, q, k, v: F.conv2d(torch.relu(q @ k.mT), m.weight), heads(), {
        "weight": torch.randn(2, HEADS, 1, 1)}),
}


@pytest.mark.parametrize("rewrite", [False, True])
@pytest.mark.parametrize("name", LEFT)
def test_forms_that_are_none(name, rewrite):
    function, inputs, *parts = LEFT[name]
    assert not attentions(planned(function, inputs, rewrite=rewrite, **dict(*parts)))


@pytest.mark.parametrize("function", [
    lambda m, q, k, v: (q @ k.mT).double().softmax(-1).float() @ v,
    lambda m, q, k, v: (q @ k.mT).half().softmax(-1).float() @ v,
    lambda m, q, k, v: (q.bfloat16() @ k.mT.bfloat16()).float().softmax(-1) @ v,
])
def test_other_types_are_left(function):
    graph = capture(Of(function), heads())
    assert not attentions(make_plan(graph, graph, fused_products=FUSED))


# Several, and around them ----------------------------------------------------------------------------


def test_equal_blocks_are_equal_records():
    def forward(m, x):
        for inside, outside in zip(m.inside, m.outside, strict=True):
            q, k, v = (apart(part) for part in inside(x).chunk(3, -1))
            x = x + outside(together(by_hand(m, q, k, v)))
        return x

    width = HEADS * DEPTH
    plan = planned(forward, drawn((BATCH, ROWS, width)), inside=nn.ModuleList(
        nn.Linear(width, 3 * width) for _ in range(3)), outside=nn.ModuleList(
        nn.Linear(width, width) for _ in range(3)))
    assert [kind for kind in kinds(plan) if kind != "add"] == ["linear", "Attention", "linear"] * 3
    first, *others = attentions(plan)
    assert all(step.kernel == first.kernel for step in others)
    assert [n.op for n in first.covers] == ["matmul", "div", "softmax", "matmul"]


CHAINS: dict[str, tuple[Callable, int]] = {
    "queries": (lambda m, q, k, v: by_hand(m, by_hand(m, q, k, v), k, v), 2),
    "keys": (lambda m, q, k, v: sdpa(q, sdpa(q, k, v), v), 2),
    "values": (lambda m, q, k, v: torch.relu(q @ k.mT) @ sdpa(q, k, v, is_causal=True), 2),
    "all": (lambda m, q, k, v: sdpa(x := by_hand(m, q, k, v), x * 2, x.sin()), 2),
    "biases": (lambda m, q, k, v: sdpa(q, k, v, sdpa(q, k, m.wide)), 2),
    "beside each other": (lambda m, q, k, v: by_hand(m, q, k, v) + by_hand(m, q * 3, k * 3, v), 2),
    "of the same keys": (lambda m, q, k, v: (sdpa(q, (z := k * m.scale), v), sdpa(z, z, z), z), 2),
    "twice the same": (lambda m, q, k, v: (sdpa(q, k, v), sdpa(q, k, v).exp()), 1),
}


@pytest.mark.parametrize("name", CHAINS)
def test_attentions_of_attentions(name):
    function, count = CHAINS[name]
    plan = planned(function, heads(), scale=torch.rand(DEPTH), wide=torch.randn(BATCH, HEADS, ROWS, ROWS))
    assert len(attentions(plan)) == count


def test_attention_of_what_loops_have_made():
    """Loops are found first: what attention covers are nodes of the graph all the same."""
    def forward(m, x):
        states, h = [], x[:, 0]
        for step in range(x.shape[1]):
            h = torch.tanh(m.layer(h) + x[:, step])
            states.append(h)
        layers = torch.stack(states, 1)
        return sdpa(layers, layers * 0.5, m.gru(layers)[0])

    plan = planned(forward, drawn((64, 17, DEPTH)), layer=nn.Linear(DEPTH, DEPTH), gru=nn.GRU(
        DEPTH, DEPTH, batch_first=True))
    assert kinds(plan).count("Recurrence") == 2 and len(attentions(plan)) == 1
    assert {n.op for n in attentions(plan)[0].covers} <= {"mul", "opaque"}


def test_results_are_stored_where_they_are_shown():
    x = drawn((BATCH, ROWS, HEADS * DEPTH))[0]
    plan = planned(lambda m, x: together(sdpa(apart(x), apart(x), apart(x))), (x,))
    assert kinds(plan) == ["Attention"] and attentions(plan)[0].inputs[0].shape == x.shape
    kernel = attentions(plan)[0].kernel
    assert kernel.outer == (BATCH, HEADS)
    assert kernel.store.index.strides == (ROWS * HEADS * DEPTH, DEPTH, HEADS * DEPTH, 0, 0, 1)
    assert kernel.query.index.strides == (ROWS * HEADS * DEPTH, DEPTH, HEADS * DEPTH, 0, 1, 0)
    assert kernel.value.index.strides == (ROWS * HEADS * DEPTH, DEPTH, 0, HEADS * DEPTH, 0, 1)


@pytest.mark.parametrize(("function", "ops"), [
    (lambda m, q, k, v: sdpa(q, k, v), ["opaque"]),
    (lambda m, q, k, v: sdpa(q * 2, k, v), ["mul", "opaque"]),
    (lambda m, q, k, v: sdpa(q.erf(), k, v), ["erf", "opaque"]),
    (lambda m, q, k, v: sdpa(q[:, :1].erf().expand_as(q), k, v), ["opaque"]),
    (lambda m, q, k, v: torch.relu(q @ k.mT) @ v, ["matmul", "relu", "matmul"]),
])
def test_a_kernel_covers_what_it_does_the_work_of(function, ops):
    (step,) = attentions(planned(function, heads()))
    assert [n.op for n in step.covers] == ops
    left = step.left("slower")
    assert set(left.values()) == {"slower"} and step.rolls == (len(ops) > 1)


def test_scores_are_told_apart_from_what_only_looks_like_them():
    """A form is known by all of it: other numbers are another kernel, equal ones are the same node."""
    plan = planned(lambda m, q, k, v: (sdpa(q, k, v, scale=0.3), sdpa(k, q, v, scale=0.3), sdpa(q, k, v, scale=0.4)),
                   heads())
    one, other, third = (step.kernel for step in attentions(plan))
    assert one == other != third


@pytest.mark.parametrize("name", ["PyTorch's", "PyTorch's, truths", "PyTorch's, biases", "by hand", "filled",
                                  "rectified"])
@pytest.mark.parametrize("operand", range(3))
def test_nan_reaches_what_it_reaches_in_the_model(name, operand):
    """A mask of truth values is added to scores as PyTorch's operator adds it, and replaces them where a model does."""
    function, inputs, _ = FOUND[name]
    given = [x.double() if x.is_floating_point() else x for x in inputs]
    given[operand] = given[operand].clone()
    given[operand][0, 1, 30, 2] = math.nan
    model = Of(function)
    graph = capture(model, inputs)
    plan = make_plan(graph, graph, fused_products=FUSED)
    assert attentions(plan)
    (found,), _ = run_plan(plan, values_of(model, graph, tuple(given)))
    assert torch.equal(found.isnan(), model(*given).isnan()) and found.isnan().any() and not found.isnan().all()
