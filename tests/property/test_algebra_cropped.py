"""Only what is read is computed: slices move up through what gives each entry by itself, and through nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graph_tools import Context, assert_same, evaluate, examples, filled, rewritten, values_of
from hypothesis import given
from hypothesis import strategies as st
from plan_tools import Of
from torch import Tensor, nn

from kernelwright.algebra.engine import rewrite_with
from kernelwright.capture.export import capture
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import walk

NAME = "what is read"
SDPA = F.scaled_dot_product_attention


def crop(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], **parts: object) -> tuple[Graph, list[str]]:
    """The rewritten graph of a function, checked against eager in float64, and the rules that were applied."""
    model = Of(function, **parts).double()
    graph = capture(model, inputs)
    result, applied = rewrite_with(graph, Context())
    with torch.no_grad():
        expected = model(*inputs)
    found = filled(result.structure, evaluate(result.outputs, values_of(model, graph, inputs)))
    assert_same(found, expected, 1e-9)
    return result, [a.rule.name for a in applied]


def largest(graph: Graph) -> int:
    """Elements of the largest result that is computed."""
    return max(n.size for n in walk(graph.outputs) if n.kind not in ("leaf", "view"))


def x(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


LINEAR = {"weight": x(24, 16, seed=1), "bias": x(24, seed=2)}
#: Functions of a tensor of (4, 6, 16), of which 6 or 16 are cut, each with the most elements that are to be computed.
CROPS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "pointwise": (lambda m, a: (a.tanh() * 2 + a.square())[:, -1], 64),
    "broadcast": (lambda m, a: (a * a[0, :1, :].sigmoid() + 1)[:, 2:3], 64),
    "linear, rows": (lambda m, a: F.linear(a, m.weight, m.bias)[:, 0].relu(), 96),
    "linear, features": (lambda m, a: F.linear(a, m.weight, m.bias)[..., 3:7], 96),
    "merged rows": (lambda m, a: F.linear(a.reshape(24, 16), m.weight, m.bias).reshape(4, 6, 24)[:, 5].tanh(), 96),
    "merged before": (lambda m, a: F.linear(a.reshape(24, 16), m.weight).reshape(2, 2, 6, 24)[:, 1].tanh(), 288),
    "norm": (lambda m, a: F.layer_norm(a, (16,))[:, 1:3], 128),
    "norm by squares": (lambda m, a: F.rms_norm(a, (16,), eps=1e-6)[:, 1:3], 128),
    "softmax": (lambda m, a: a.softmax(-1)[:, ::3], 128),
    "products, rows": (lambda m, a: (a @ m.weight.T)[:, -1], 96),
    "products, columns": (lambda m, a: (a @ m.weight.T)[..., :5], 120),
    "products, batch": (lambda m, a: (a @ a.mT)[1:2], 36),
    "einsum": (lambda m, a: torch.einsum("bti,oi->bot", a, m.weight)[:, :, 0], 96),
    "sums": (lambda m, a: a.exp().sum(-1)[:, 0], 64), "sums kept": (lambda m, a: a.exp().mean(0, True)[:, 3], 64),
    "turned": (lambda m, a: a.exp().transpose(1, 2).contiguous().cos()[:, :, 0], 64),
    "running": (lambda m, a: a.cumsum(-1)[:, 4], 64),
    "joined": (lambda m, a: torch.cat([a.exp(), a.cos()], -1)[:, 0], 128),
    "one piece": (lambda m, a: (torch.cat([m.weight[:1].expand(4, 1, 16), a], 1).exp() * 2)[:, 0], 64),
    "of a piece": (lambda m, a: torch.cat([a.exp(), a.cos()], 1)[:, 7:9], 128),
    "padded from nothing": (lambda m, a: F.pad(a[:, :0].exp().reshape(4, 0, 16), (0, 0, 1, 0)).add(a)[:2], 192),
    "padded": (lambda m, a: F.pad(a.exp(), (1, 2))[:, 0], 76),
    "convolution, entries": (lambda m, a: F.conv1d(a, m.kernel)[2:3], 70),
    "convolution, channels": (lambda m, a: F.conv1d(a, m.kernel)[:, :2], 112),
    "attention, queries": (lambda m, a: SDPA(a[:, None], a[:, None] * 2, a[:, None].cos())[:, :, 0], 384),
    "attention, masked": (lambda m, a: SDPA(*(a[None] * n for n in (1, 2, 3)), m.mask)[:, :, 4], 384),
    "attention, the last": (lambda m, a: SDPA(*(a[None] * n for n in (1, 2, 3)), is_causal=True)[:, :, -1], 384),
    "attention, batch": (lambda m, a: SDPA(a[:, None].sin(), a[:, None], a[:, None].cos())[1:2], 96),
    "steps": (lambda m, a: (a.exp() + 1)[:, :, ::4], 96),
}
PARTS = {**LINEAR, "kernel": x(5, 6, 3, seed=3), "mask": x(6, 6, seed=4)}


@pytest.mark.parametrize("name", CROPS)
def test_what_is_not_read_is_not_computed(name):
    function, most = CROPS[name]
    graph, applied = crop(function, (x(4, 6, 16),), **PARTS)
    assert NAME in applied and largest(graph) <= most, [repr(n) for n in walk(graph.outputs)]


STAYS: dict[str, Callable[..., Tensor]] = {
    "read by others": lambda m, a: (a.exp()[:, 0], a.exp().sum()),
    "read twice": lambda m, a: torch.cat([F.linear(a, m.weight)[:, :2] * 2, F.linear(a, m.weight)[:, 3:]], 1),
    "along a softmax": lambda m, a: a.softmax(1)[:, 0], "along a norm": lambda m, a: F.layer_norm(a, (6, 16))[:, 0],
    "along a scan": lambda m, a: a.cumsum(1)[:, -1], "across a reshape": lambda m, a: a.exp().reshape(4, 96)[:, 5:9],
    "a causal query": lambda m, a: SDPA(*(a[None] * n for n in (1, 2, 3)), is_causal=True)[:, :, 2],
    "hardly less": lambda m, a: a.exp()[..., :15], "no operator": lambda m, a: a[:, 0],
    "behind a product that is whole": lambda m, a: F.conv1d(a, m.kernel).tanh()[..., ::4],
    "features that do not stand together": lambda m, a: F.linear(a, m.weight)[..., ::4],
    "positions of a convolution": lambda m, a: F.conv1d(a, m.kernel)[..., :3],
}


@pytest.mark.parametrize("name", STAYS)
def test_the_rest_stays_whole(name):
    assert NAME not in crop(STAYS[name], (x(4, 6, 16),), **PARTS)[1]


@examples(60)
@given(st.data())
def test_any_slice_of_a_block(data):
    """A block of a transformer, and a slice of any of its axes: the same values, and never more work."""
    batch, tokens = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    axis = data.draw(st.integers(0, 2))
    size = (batch, tokens, 8)[axis]
    start = data.draw(st.integers(0, size - 1))
    stop, step = data.draw(st.integers(start + 1, size)), data.draw(st.integers(1, 3))
    causal, merged = data.draw(st.booleans()), data.draw(st.booleans())

    def block(m: nn.Module, a: Tensor) -> Tensor:
        rows = a.reshape(-1, 8) if merged else a
        q, k, v = F.linear(F.layer_norm(rows, (8,)), m.qkv).reshape(batch, tokens, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = a + F.linear(SDPA(q, k, v, is_causal=causal).transpose(1, 2).reshape(batch, tokens, 8), m.out)
        a = a + F.linear(F.gelu(F.linear(F.layer_norm(a, (8,)), m.up)), m.out.repeat(1, 2))
        return a[tuple(slice(start, stop, step) if n == axis else slice(None) for n in range(3))] * 2

    parts = {"qkv": x(24, 8, seed=5), "out": x(8, 8, seed=6), "up": x(16, 8, seed=7)}
    given_ = (x(batch, tokens, 8),)
    graph, _ = crop(block, given_, **parts)
    before = capture(Of(block, **parts).double(), given_)
    assert sum(n.operator.operations(n) for n in walk(graph.outputs)) <= sum(
        n.operator.operations(n) for n in walk(before.outputs))


def test_draws_keep_the_order_of_memory():
    """Numbers are drawn for what lies in memory as it did."""
    graph = capture(Of(lambda m, a: F.dropout(a.exp()[:, 0], 0.5)).train(), (x(4, 6, 16),))
    assert NAME not in [a.rule.name for a in rewritten(graph)[1]]


def test_what_a_torch_call_updates_keeps_its_place():
    """A graph that is walked more than once, of which a call updates buffers by itself."""
    model = nn.Sequential(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)).train()
    graph = capture(Of(lambda m, a: m.model(a.exp()).tanh()[1:2].reshape(8, 14), model=model), (x(4, 6, 16).float(),))
    result, _ = rewrite_with(graph, Context())
    known = set(graph.nodes()) | set(walk([e.value for e in graph.effects]))
    assert graph.effects and all(old in known for nodes in result.replaces.values() for old in nodes)


def test_each_operator_stands_for_its_own():
    """For the user's lines above a kernel, however many operators one slice moves up through."""
    def layers(m: nn.Module, a: Tensor) -> Tensor:
        for number in range(3):
            a = F.layer_norm(F.linear(a, m.square) * (number + 2), (16,))
        return a[:, 0].tanh()

    graph = capture(Of(layers, square=x(16, 16)).double(), (x(4, 6, 16),))
    result, _ = rewrite_with(graph, Context())
    for op in ("linear", "mul", "layer_norm"):
        before, after = ([n for n in walk(g.outputs) if n.op == op] for g in (graph, result))
        assert [[old for old in result.replaces[n] if old.op in ("linear", "mul", "layer_norm")] for n in after] == [
            [old] for old in before]


def test_what_other_rules_have_left_is_as_it_is():
    """A clamp that never acts goes, and with it what a slice would move up through: nothing is put in its place."""
    def clamped(m: nn.Module, a: Tensor) -> tuple[Tensor, Tensor]:
        gate = a.sigmoid()
        return gate.relu()[:, :1], gate.sum(1)

    graph = capture(Of(clamped).double(), (x(4, 6, 16),))
    result, applied = rewrite_with(graph, Context())
    assert NAME not in [a.rule.name for a in applied] and not any(n.op == "relu" for n in result.nodes())
