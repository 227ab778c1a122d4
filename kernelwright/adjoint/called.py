"""A captured graph in operators that have the derivatives of those that the model calls.

A graph is of values, and some operators of PyTorch have the values of others, but not their derivatives: a hardtanh has
none at its bounds, where a clamp has one, and of equal maxima ``max`` along an axis chooses one, where ``amax`` shares
the gradient among them. What a model calls tells which it is, where it does not call both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from math import prod

from kernelwright.adjoint.table import FLOATS, NoAdjoint, apply, where
from kernelwright.algebra.build import reshape
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node, made_for, make, rebuild, walk

#: What stands for its operand in graphs that are differentiated.
DETACHED, AGAIN = "detached", "again"
#: What stops at its bounds, and what has their values and does not.
STOPPING = frozenset(("hardtanh.default", "relu6.default"))
_CLAMPS = frozenset(("clamp.default", "clamp_min.default", "clamp_max.default", "clip.default"))
#: What chooses one of equal extrema, the first, and what shares gradients among them.
CHOOSING = {"amax": frozenset(("max.dim", "adaptive_max_pool1d.default", "adaptive_max_pool2d.default",
                               "adaptive_max_pool3d.default")), "amin": frozenset(("min.dim",))}
_SHARING = {"amax": frozenset(("amax.default", "max.default")), "amin": frozenset(("amin.default", "min.default"))}
#: What a fraction is without, which hands gradients on as they are: of these they are zeros, of which the sum with one
#: of -0 is +0.
_TRUNCATING = frozenset(("trunc.default", "fix.default"))
#: What a comparison that chooses a bound, and one that chooses a place, stand for.
_CLAMPED = {"le": "clamp_min", "ge": "clamp_max"}
_EXTREMUM = {"argmax": "amax", "argmin": "amin"}


def as_called(graph: Graph) -> Graph:
    """The captured graph with the derivatives of the operators that were called, and with nodes for what is detached
    and called again (`without`). Raises NoAdjoint where it holds both an operator and another one of the same values.
    """
    if graph.differentiated is not None:
        graph = replace(graph, outputs=graph.differentiated.outputs)
    calls = {name.replace("_.", ".") for name in graph.calls}
    turned: dict[str, Callable[[Node], Node]] = {}
    if STOPPING & calls:
        _alone(calls, STOPPING, _CLAMPS)
        turned |= {"clamp_min": partial(_stopped, "le"), "clamp_max": partial(_stopped, "ge")}
    if "frac.default" in calls and calls.isdisjoint(_TRUNCATING):
        turned["trunc"] = partial(make, DETACHED)
    for name, places in (("amax", "argmax"), ("amin", "argmin")):
        if CHOOSING[name] & calls:
            _alone(calls, CHOOSING[name], _SHARING[name])
            turned[name] = partial(_chosen, places)
    if not turned:
        return graph
    found: dict[Node, Node] = {}
    for node in walk(graph.outputs):
        with made_for(node.origin):
            own = rebuild(node, tuple(found[i] for i in node.inputs))
            found[node] = turned[own.op](own) if own.op in turned else own
    return replace(graph, outputs=tuple(found[n] for n in graph.outputs))


def as_computed(graph: Graph) -> dict[Node, Node]:
    """By the nodes of a graph that `as_called` has made, maybe rewritten since, those that compute the same values in
    the forward; where a form is not found again, a node that no forward computes."""
    found: dict[Node, Node] = {}
    for node in walk(graph.outputs):
        with made_for(node.origin):
            found[node] = _computed(node, tuple(found[i] for i in node.inputs))
    return found


def _computed(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The node that a forward has for one of a differentiated graph, of the forward's inputs."""
    if node.op in (DETACHED, AGAIN):
        return inputs[0]
    if node.op == "where":
        compared, bound, x = node.inputs
        if compared.op in _CLAMPED and compared.inputs == (x, bound):
            return make(_CLAMPED[compared.op], inputs[2], inputs[1])
    taken = node.inputs[0] if node.op == "reshape" else node
    if taken.op == "gather" and taken.inputs[1].op in _EXTREMUM:
        x, places = taken.inputs
        if places.inputs == (x,) and places["axes"] == (taken["axis"],) and places["keepdim"]:
            whole = inputs[0].inputs[0] if taken is not node else inputs[0]
            extremum = make(_EXTREMUM[places.op], whole, axes=places["axes"], keepdim=node.rank == x.rank)
            return reshape(extremum, node.shape)  # of several axes in a row, or with what follows in one
    return rebuild(node, inputs)


def without(operator: str, roots: Iterable[Node]) -> dict[Node, Node]:
    """For each node below roots the same one, where what an operator gives is its operand."""
    found: dict[Node, Node] = {}
    for node in walk(roots):
        own = tuple(found[i] for i in node.inputs)
        with made_for(node.origin):
            found[node] = own[0] if node.op == operator else rebuild(node, own)
    return found


def _alone(calls: Collection[str], one: Collection[str], other: Collection[str]) -> None:
    if not set(other).isdisjoint(calls):
        first, second = (sorted(set(names) & set(calls))[0] for names in (one, other))
        raise NoAdjoint(f"{first} beside {second}, whose values are of one kind and whose gradients are not,")


def _stopped(compares: str, node: Node) -> Node:
    """The bound itself where x is there or beyond, which has no gradient."""
    x, bound = node.inputs
    return where(apply(compares, x, bound), bound, x)


def _chosen(places: str, node: Node) -> Node:
    """An extremum as the first element that has it."""
    x, axes = node.inputs[0], node["axes"]
    if node.dtype not in FLOATS:
        return node
    if len(axes) == 1:
        axis, = axes
        return reshape(make("gather", x, make(places, x, axes=axes, keepdim=True), axis=axis), node.shape)
    front = tuple(a for a in range(x.rank) if a not in axes)
    turned = make("permute", x, axes=(*front, *axes))
    rows = reshape(turned, (*(x.shape[a] for a in front), prod(x.shape[a] for a in axes)))
    axis = len(front)
    return reshape(make("gather", rows, make(places, rows, axes=(axis,), keepdim=True), axis=axis), node.shape)
