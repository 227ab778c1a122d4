"""What a forward hands its backward: the cheapest of all choices, and gradients that read it stay what they are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
import torch
from graph_tools import examples
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.adjoint import saved
from kernelwright.adjoint.graph import Gradients, gradients
from kernelwright.adjoint.saved import chosen
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, make, walk
from kernelwright.roofline.devices import GENERIC_CPU

ROWS, WIDTH = 64, 32


def leaf(name: str, *shape: int, op: str = "parameter") -> Node:
    return make(op, name=name, shape=shape, dtype="float32")


X = leaf("x", ROWS, WIDTH, op="input")


def graph_of(*outputs: Node) -> Graph:
    return Graph((X,), outputs, 0, (), True)


def gradients_of(graph: Graph) -> Gradients:
    names = {n["name"] for n in graph.nodes() if n.op == "parameter"}
    return gradients(graph, range(len(graph.outputs)), {0, *names})


def saved_of(graph: Graph) -> tuple[Node, ...]:
    found = gradients_of(graph)
    return chosen(found.graph.outputs, found.incoming, found.stands_for, graph, graph, GENERIC_CPU)


def layer(x: Node, name: str, width: int = 4 * WIDTH) -> Node:
    return make("linear", x, leaf(name, width, x.shape[-1]))


def test_results_of_products_are_handed_over_and_operands_that_are_stored_anyway():
    first = layer(X, "first")
    active = make("gelu_erf", first)
    graph = graph_of(layer(active, "second", WIDTH))
    assert set(saved_of(graph)) == {first, active}


def test_operands_are_seen_below_views():
    """A weight's gradient reads the rows of all batch entries as those of one matrix."""
    x = make("reshape", X, shape=(4, ROWS // 4, WIDTH))
    first = layer(x, "first")
    active = make("gelu_erf", first)
    graph = graph_of(layer(active, "second", WIDTH))
    assert set(saved_of(graph)) == {first, active}


def test_pointwise_work_is_done_again():
    graph = graph_of(make("tanh", make("mul", make("gelu_erf", X), make("sigmoid", X))))
    assert saved_of(graph) == ()


def test_a_norm_is_computed_again_but_where_a_product_reads_it():
    product = layer(X, "first")
    norm = make("layer_norm", product, axes=1, eps=1e-5, affine="none")
    assert saved_of(graph_of(make("relu", norm))) == (product,)
    active = make("relu", norm)
    assert set(saved_of(graph_of(layer(active, "second")))) == {product, active}


def test_what_follows_an_operator_that_is_differentiated_in_another_form_is_handed_over():
    loss = make("l1_loss", layer(X, "first"), leaf("target", ROWS, 4 * WIDTH, op="input"), reduction="none")
    second = layer(loss, "second")
    graph = Graph((X,), (make("gelu_erf", second),), 0, (), True)
    found = gradients_of(graph)
    assert second not in set(walk(found.graph.outputs)), "of another form it is another node"
    assert second in saved_of(graph) and layer(X, "first") in saved_of(graph)
    reading = found.reading(saved_of(graph))
    assert second in reading.saved
    assert [n for n in walk(reading.graph.outputs) if n.op == "linear"] == []


def test_an_extremum_is_found_again_beside_the_values_that_it_is_one_of():
    product = layer(X, "weight")
    graph = graph_of(make("amax", product, axes=(1,), keepdim=False))
    assert saved_of(graph) == (product,)


def test_random_numbers_are_handed_over():
    """A backward that drew them again would draw others."""
    drawn = make("opaque", layer(X, "weight"), target="aten.dropout.default", template=(("input", 0), 0.5, True),
                 keywords=(), shape=(ROWS, 4 * WIDTH), dtype="float32", types=None, serial=0)
    forward = graph_of(make("gelu_erf", drawn))
    direction = leaf("g", ROWS, 4 * WIDTH, op="input")
    roots = (make("mul", direction, make("sigmoid", drawn)),)
    assert chosen(roots, (direction,), {drawn: drawn}, forward, forward, GENERIC_CPU) == (drawn,)


def test_a_result_that_eager_keeps_is_handed_over_as_it_is():
    """The copy of another costs a write, so that what it is made of is handed over in its place."""
    product = layer(X, "weight")
    result = make("softmax", product, axis=1)
    assert saved_of(graph_of(result)) == (result,)
    shifted = make("silu", product)
    assert saved_of(graph_of(make("square", shifted), shifted)) == (product,)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs of products, pointwise operators and sums, with several readers of what they make."""
    made = [X]
    for number in range(draw(st.integers(2, 6))):
        x = draw(st.sampled_from(made))
        kind = draw(st.sampled_from(("linear", "gelu_erf", "tanh", "mul", "softmax", "square", "layer_norm")))
        if kind == "linear":
            made.append(layer(x, f"w{number}", WIDTH))
        elif kind == "mul":
            made.append(make("mul", x, draw(st.sampled_from(made))))
        elif kind == "layer_norm":
            made.append(make("layer_norm", x, axes=1, eps=1e-5, affine="none"))
        elif kind == "softmax":
            made.append(make("softmax", x, axis=1))
        else:
            made.append(make(kind, x))
    return graph_of(*dict.fromkeys([made[-1], draw(st.sampled_from(made[1:]))]))


def cost(handed: Iterable[Node], found: Gradients, graph: Graph) -> float:
    """Seconds of a choice, found by going from what gradients read down to what is there."""
    handed, order = set(handed), list(walk(found.graph.outputs))
    later = set(found.incoming)
    later.update(n for n in order if not later.isdisjoint(n.inputs))
    stored = saved._stored(graph, graph)
    total, seen, waiting = 0.0, set[Node](), [i for n in later for i in n.inputs if i not in later]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        readers = [n for n in later if node in n.inputs]
        if node in handed or node.kind == "leaf":
            total += saved._bytes(node) / GENERIC_CPU.read
            total += saved._bytes(node) / GENERIC_CPU.copy if node.kind != "leaf" and node not in stored else 0.0
            continue
        total += saved._seconds_again(node, GENERIC_CPU)
        if node.kind in ("pointwise", "norm") and any(
                r.kind not in ("pointwise", "view", "norm", "reduction", "row") for r in readers):
            total += saved._bytes(node) / GENERIC_CPU.copy
        waiting += node.inputs
    return total


@examples(40)
@given(graphs())
def test_no_other_choice_costs_less(graph):
    found = gradients_of(graph)
    best = cost(saved_of(graph), found, graph)
    offered = [n for n in walk(graph.outputs) if n in saved._offered(graph)]
    every = (some for count in range(len(offered) + 1) for some in combinations(offered, count))
    assert best <= min(cost(some, found, graph) for some in every) * (1 + 1e-9) + 1e-12


@examples(30)
@given(graphs(), st.integers(0, 100))
def test_gradients_that_read_it_are_the_same(graph, seed):
    found = gradients_of(graph)
    handed = saved_of(graph)
    reading = found.reading(handed)
    assert set(reading.saved) <= set(handed)
    torch.manual_seed(seed)
    values = {n["name"]: torch.randn(n.shape, dtype=torch.float64) * 0.3
              for n in walk([*found.graph.outputs, *graph.outputs]) if n.op in ("input", "parameter")}
    expected = evaluate(found.graph.outputs, values)
    leaves = reading.graph.inputs[len(reading.graph.inputs) - len(reading.saved):]
    values |= {n["name"]: value for n, value in zip(leaves, evaluate(reading.saved, values), strict=True)}
    for one, other in zip(evaluate(reading.graph.outputs, values), expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("op", ["relu", "tanh", "sigmoid", "exp"])
def test_eager_refuses_that_kept_results_are_written_into(op):
    assert op in saved._READ_IN_BACKWARD
    x = torch.rand(4, requires_grad=True)
    result = getattr(torch, op)(x)
    result.detach().mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
