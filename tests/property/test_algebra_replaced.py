"""Stage 4, REWRITE: what rules make stands for what they replaced.

That nothing is left out is held for the graphs of all tests of rules (``check_replaced`` in ``graph_tools``). Here it
is held for single rules what stands where.
"""

from __future__ import annotations

import pytest
from graph_tools import anchor, check_replaced, graph_of, leaf, rewritten
from test_algebra_compose import convolution, pool

from kernelwright.algebra import compose
from kernelwright.algebra.replaced import _NEAR
from kernelwright.ir.node import Node, constant, make, walk


def standing(*outputs: Node) -> dict[str, set[Node]]:
    """What nodes of the rewritten graph stand for, by their operators."""
    result, _ = rewritten(graph_of(*outputs))
    found: dict[str, set[Node]] = {}
    for node, nodes in result.replaces.items():
        found.setdefault(node.op, set()).update(nodes)
    return found


def means(x: Node) -> Node:
    return make("mean", x, axes=(2, 3), keepdim=True)


def test_a_collapse_stands_for_all_that_it_collapsed() -> None:
    y = convolution(leaf("x", 2, 3, 8, 8), (3, 3))
    scaled = make("mul", y, constant(0.5))
    mean = means(scaled)
    found = standing(make("exp", mean))
    assert found["region_sum"] == {y, scaled, mean}


def test_what_follows_a_collapse_does_not_stand_in_it() -> None:
    y = convolution(make("sin", leaf("x", 2, 3, 8, 8)), (3, 3))
    mean = means(y)
    biased = make("add", mean, leaf("b", 1, 4, 1, 1, op="parameter"))
    last = make("logsumexp", biased, axes=(1,), keepdim=True)
    found = standing(last)
    assert found["region_sum"] == {y, mean} and found["sin"] == {y.inputs[0]} and last in found["logsumexp"]
    assert biased in found["add"] | found["logsumexp"]


def test_an_identity_stands_where_its_operand_is_computed() -> None:
    x = leaf("x", 4, 4)
    below = make("exp", x)
    same, last = make("relu", below), make("tanh", make("relu", below))
    assert standing(last) == {"exp": {below, same}, "tanh": {last}}
    of_input = make("sum", leaf("y", 1, 4), axes=(0,), keepdim=True)  # who reads it does its work
    assert of_input in set().union(*standing(make("tanh", of_input)).values())


def test_a_reduction_over_nothing_stands_below_its_view() -> None:
    below = make("exp", leaf("x", 4, 1))
    largest = make("amax", below, axes=(1,), keepdim=False)
    found = standing(largest)
    assert found["exp"] == {below, largest}


def test_chains_of_views_stand_for_their_views() -> None:
    x = leaf("x", 2, 3, 4)
    first = make("permute", x, axes=(1, 0, 2))
    second = make("permute", first, axes=(0, 2, 1))
    found = standing(make("exp", second))
    assert found["permute"] == {first, second}


def test_what_is_composed_stands_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compose, "_MOST_WINDOW", 1 << 20)  # how long sums may be is no matter here
    first = pool(leaf("x", 2, 4, 12, 12), (2, 2))
    second = pool(first, (3, 3))
    result, applications = rewritten(graph_of(second))
    assert applications and result.replaces[result.outputs[0]] == (first, second)


def test_a_sum_of_a_linear_layer_stands_for_both() -> None:
    x = leaf("x", 5, 4)
    y = anchor("linear", x, leaf("w", 6, 4, op="parameter"))
    total = make("sum", y, axes=(0,), keepdim=False)
    result, applications = rewritten(graph_of(total))
    assert applications and any({y, total} <= set(nodes) for nodes in result.replaces.values())


def test_a_long_chain_that_one_rule_after_the_other_takes_away() -> None:
    below = make("exp", leaf("x", 4))
    node = below
    for _ in range(3 * _NEAR):
        node = make("relu", make("relu", node))
    result, _ = rewritten(graph_of(node))
    check_replaced(graph_of(node), result)
    assert {n for nodes in result.replaces.values() for n in nodes} == {n for n in walk([node]) if n.kind != "leaf"}
