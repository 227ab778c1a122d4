"""Stage 4, REWRITE: rows of linear layers in another order, where views alone read them."""

from __future__ import annotations

import torch
from graph_tools import anchor, check_rewrite, examples, graph_of, leaf, random_values, rewritten
from hypothesis import given
from hypothesis import strategies as st
from test_algebra_views import SIZES, view

from kernelwright.algebra.views import chain_below
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import Node, make, walk

NAME = "rows of a linear layer"


@st.composite
def layers(draw: st.DrawFn) -> list[Node]:
    """What reads a linear layer, or two, of views of a value, through views, and sometimes itself."""
    y = make("sin", leaf("x", *(draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(2, 4))))))
    for number in range(draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(0, 3))):
            y = draw(view(y))
        if not y.rank:
            y = make("reshape", y, shape=(1, 1))
        inputs = [y, leaf(f"w{number}", 6, y.shape[-1], op="parameter")]
        y = anchor("linear", *inputs, *([leaf(f"b{number}", 6, op="parameter")] if draw(st.booleans()) else []))
    read = []
    for _ in range(draw(st.integers(1, 3))):
        shown = y
        for _ in range(draw(st.integers(0, 4))):
            shown = draw(view(shown))
        read.append(shown if draw(st.booleans()) else make("exp", shown))
    return read


@examples(600)
@given(layers())
def test_values_stay_and_rewriting_ends(read):
    graph = graph_of(*read)
    check_rewrite(graph)
    result, _ = rewritten(graph)
    count = [sum(n.op == "linear" for n in walk(g.outputs)) for g in (graph, result)]
    assert count[1] <= count[0]


@examples(400)
@given(layers())
def test_results_lie_as_before(read):
    """A result that eager shows without a copy is shown so, or is laid out by the file."""
    graph = graph_of(*read)
    values = random_values(graph.outputs)
    result, applications = rewritten(graph)
    if NAME in {a.rule.name for a in applications}:
        for before, after in zip(evaluate(graph.outputs, values), evaluate(result.outputs, values), strict=True):
            assert torch.allclose(before, after, rtol=1e-9, atol=1e-9)


def sequence(batch: int = 3, length: int = 5, width: int = 8) -> tuple[Node, Node]:
    """A linear layer of a batch-first value whose positions stand first, and the value."""
    x = make("sin", leaf("x", batch, length, width))
    return anchor("linear", make("permute", x, axes=(1, 0, 2)), leaf("w", 6, width, op="parameter")), x


def test_permutations_around_a_layer_cancel():
    layer, x = sequence()
    result, applications = rewritten(graph_of(make("exp", make("permute", layer, axes=(1, 0, 2)))))
    assert [a.rule.name for a in applications].count(NAME) == 1
    assert result.outputs[0].inputs[0].op == "linear"
    assert result.outputs[0].inputs[0].inputs[0] is x


def test_heads_that_become_rows_are_read_as_they_lie():
    heads = make("tanh", leaf("h", 3, 4, 5, 2))
    rows = make("reshape", make("permute", heads, axes=(2, 0, 1, 3)), shape=(15, 8))
    layer = anchor("linear", rows, leaf("w", 6, 8, op="parameter"))
    back = make("permute", make("reshape", layer, shape=(5, 3, 6)), axes=(1, 0, 2))
    result, _ = rewritten(graph_of(make("exp", back)))
    source, chain = chain_below(result.outputs[0].inputs[0].inputs[0])
    assert result.outputs[0].inputs[0].op == "linear"
    assert source is heads
    assert [(n.op, n.shape) for n in chain] == [("permute", (3, 5, 4, 2)), ("reshape", (3, 5, 8))]


def test_what_kernels_fuse_with_a_layer_stays_with_it():
    """A pointwise operator reads the layer itself: its rows stay as they are."""
    layer, _ = sequence()
    for read in (make("exp", layer), make("permute", make("exp", layer), axes=(1, 0, 2)),
                 make("exp", make("reshape", layer, shape=(15, 6)))):
        result, applications = rewritten(graph_of(read))
        assert NAME not in {a.rule.name for a in applications}
        assert result.outputs == (read,)


def windows(count: int) -> list[Node]:
    """Heads of so many projections of windows of an image, as Swin reads them."""
    x = make("sin", leaf("x", 1, 2, 4, 2, 4, 8))
    rows = make("reshape", make("permute", x, axes=(0, 1, 3, 2, 4, 5)), shape=(4, 16, 8))
    layers = [anchor("linear", rows, leaf(f"w{n}", 8, 8, op="parameter")) for n in range(count)]
    return [make("permute", make("reshape", n, shape=(4, 16, 2, 4)), axes=(0, 2, 1, 3)) for n in layers]


def test_a_copy_that_several_layers_read_is_made_once():
    """Else the heads of each would be copied."""
    _, applications = rewritten(graph_of(*(make("exp", n) for n in windows(3))))
    assert NAME not in {a.rule.name for a in applications}


def test_results_stay_where_they_would_be_copied():
    layer, _ = sequence()
    shown = make("permute", layer, axes=(1, 0, 2))  # eager's has the strides of (5, 3, 6)
    _, applications = rewritten(graph_of(shown))
    assert NAME not in {a.rule.name for a in applications}


def test_numbers_are_drawn_in_the_order_of_memory():
    layer, _ = sequence()
    shown = make("permute", layer, axes=(1, 0, 2))
    drawn = make("opaque", shown, target="aten.rand_like.default", template=(("input", 0),), keywords=(),
                 shape=shown.shape, dtype=shown.dtype, types=None, serial=0)
    _, applications = rewritten(graph_of(make("mul", shown, drawn)))
    assert NAME not in {a.rule.name for a in applications}
