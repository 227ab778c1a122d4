"""Stage 4, REWRITE: chains of views in one form show the same elements, with as few copies as there can be."""

from __future__ import annotations

from math import prod

import pytest
import torch
from graph_tools import examples, graph_of, leaf, rewritten
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.algebra.views import chain_below, chain_below_to, copies, factored, viewed
from kernelwright.ir.node import Node, make

SIZES = (1, 2, 3, 4, 6)


@st.composite
def view(draw: st.DrawFn, y: Node) -> Node:
    """y through one view that joins, splits, reorders or slices axes, or has other axes of one element."""
    kind = draw(st.sampled_from(("merge", "split", "permute", "permute", "slice", "unit", "any")))
    axis = draw(st.integers(0, y.rank - 1)) if y.rank else 0
    if kind == "permute":
        return make("permute", y, axes=tuple(draw(st.permutations(range(y.rank)))))
    if kind == "slice" and y.rank:
        start = draw(st.integers(0, y.shape[axis] - 1))
        stop = draw(st.integers(start + 1, y.shape[axis]))
        return make("slice", y, axis=axis, start=start, stop=stop, step=draw(st.sampled_from((1, 1, 1, 2, 3))))
    shape = y.shape
    if kind == "merge" and y.rank > 1:
        end = draw(st.integers(axis + 1, y.rank))
        shape = (*shape[:axis], prod(shape[axis:end]), *shape[end:])
    elif kind == "split" and y.rank:
        part = draw(st.sampled_from([p for p in range(1, shape[axis] + 1) if shape[axis] % p == 0]))
        shape = (*shape[:axis], part, shape[axis] // part, *shape[axis + 1:])
    elif kind == "unit":
        shape = (*shape[:axis], 1, *shape[axis:]) if draw(st.booleans()) else tuple(s for s in shape if s != 1)
    elif kind == "any":
        shape = tuple(draw(st.permutations(shape)))
    return make("reshape", y, shape=shape)


@st.composite
def chains(draw: st.DrawFn) -> Node:
    y = leaf("x", *(draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(1, 4)))))
    for _ in range(draw(st.integers(1, 8))):
        y = draw(view(y))
    return y


def shown(node: Node, x: torch.Tensor) -> torch.Tensor:
    """What views show of a tensor, each as PyTorch gives it."""
    for step in chain_below_to(*_below(node)):
        x = step.operator.reference(x, **dict(step.attributes))
    return x


def _below(node: Node) -> tuple[Node, Node]:
    source = node
    while source.kind == "view":
        source = source.inputs[0]
    return source, node


def own(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr()


def steps(x: torch.Tensor) -> list[int]:
    """Strides, but those of axes of one element."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@examples(1500)
@given(chains())
def test_chains_show_the_same_elements(last):
    """To the bit, and without a copy where the chain makes none."""
    source, chain = _below(last)[0], chain_below_to(*_below(last))
    x = torch.arange(source.size, dtype=torch.float64).reshape(source.shape)
    result = factored(source, chain)
    if result is None:
        return
    before, after = shown(last, x), shown(result, x)
    assert result.shape == last.shape
    assert torch.equal(before, after)
    assert own(before, x) or not own(after, x)
    assert len(copies(source, chain_below_to(source, result))) <= min(1, len(copies(source, chain)))
    if not own(before, x):
        assert [s for s, size in zip(before.stride(), before.shape, strict=True) if size > 1] \
            == [s for s, size in zip(after.stride(), after.shape, strict=True) if size > 1]
    again = factored(source, chain_below_to(source, result))
    assert again is result


@examples(800)
@given(chains())
def test_the_rule_keeps_values_and_ends(last):
    """Below an operator, and as a result, which lies as eager's if eager copied nothing."""
    for graph in (graph_of(make("sin", last)), graph_of(last)):
        result, _ = rewritten(graph)
        source = _below(last)[0]
        x = torch.randn(source.shape, dtype=torch.float64)
        given_, kept = (g.outputs[0].inputs[0] if g.outputs[0].op == "sin" else g.outputs[0] for g in (graph, result))
        before, after = shown(given_, x), shown(kept, x)
        assert torch.equal(before, after)
        assert own(before, x) or not own(after, x)
        if not own(before, x):
            assert steps(before) == steps(after)


@examples(1000)
@given(chains(), st.data())
def test_reshapes_that_copy_are_known(last, data):
    """As PyTorch decides it, for what is no more than a strided view."""
    source, chain = _below(last)[0], chain_below_to(*_below(last))
    x = torch.arange(source.size).reshape(source.shape)
    for step in chain:
        below, x = x, step.operator.reference(x, **dict(step.attributes))
        if step.op == "reshape":
            strides = viewed(below.shape, below.stride(), step.shape)
            assert (strides is None) == own(below, x)
            assert strides is None or all(
                a == b for a, b, size in zip(strides, x.stride(), x.shape, strict=True) if size > 1)


def heads(x: Node, batch: int, length: int, count: int, part: int) -> Node:
    """A third of a projection as nn.MultiheadAttention's slow path gives it to attention, length first."""
    width = x.shape[-1] // 3
    y = make("reshape", x, shape=(1, length, batch, 3, width))
    y = make("reshape", make("permute", y, axes=(3, 1, 2, 0, 4)), shape=(3, length, batch, width))
    y = make("slice", y, axis=0, start=part, stop=part + 1, step=1)
    y = make("reshape", y, shape=(length, batch * count, width // count))
    return make("reshape", make("permute", y, axes=(1, 0, 2)), shape=(batch, count, length, width // count))


@pytest.mark.parametrize("part", range(3))
def test_heads_of_attention_are_views(part):
    x = leaf("x", 5, 2, 24)
    projected = make("sin", x)
    last = heads(projected, 2, 5, 4, part)
    result, _ = rewritten(graph_of(make("sin", last), projected))  # others read it, too
    source, chain = chain_below(result.outputs[0].inputs[0])
    assert source is projected
    assert [step.op for step in chain] == ["slice", "reshape", "permute"]
    assert copies(source, chain) == []
    assert len(copies(projected, chain_below_to(projected, last))) == 1


def test_a_copy_that_several_read_stays_one():
    x = make("sin", leaf("x", 4, 6, 5))
    copied = make("reshape", make("permute", x, axes=(1, 0, 2)), shape=(24, 5))
    others = [make("sin", make("permute", make("slice", copied, axis=1, start=s, stop=s + 2, step=1), axes=(1, 0)))
              for s in (0, 2)]
    _, applications = rewritten(graph_of(*others))
    assert applications == ()


def test_a_chain_that_does_not_factor_stays():
    x = make("sin", leaf("x", 4, 3))
    last = make("reshape", make("permute", make("reshape", make("permute", x, axes=(1, 0)), shape=(2, 6)), axes=(1, 0)),
                shape=(12,))
    assert factored(x, chain_below_to(x, last)) is None
