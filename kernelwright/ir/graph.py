"""The graph of one model in one mode: outputs, effects, and where everything comes from."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelwright.containers import renumbered
from kernelwright.ir import ops as _ops  # noqa: F401  (fills the registry)
from kernelwright.ir.node import Node, make, walk
from kernelwright.ir.registry import as_meta


@dataclass(frozen=True, slots=True)
class BufferUpdate:
    """After the forward, buffer ``name`` holds ``value``; so does a tensor of a plain attribute of this name.

    ``owner`` is the node whose torch call performs the update by itself (training batch norm), or
    None where the update must be written out.
    """

    name: str
    value: Node
    owner: Node | None = None


#: A tensor that a forward was given: the position of an input among the leaves of the arguments, or the name of a
#: parameter or buffer.
Given = int | str


@dataclass(frozen=True, slots=True)
class Result:
    """What eager's result is beside its value.

    given: the tensor that it is itself; None for a new tensor, views among them.
    reaches: the tensors that its gradient could reach; None where that is not known.
    strides: of its elements in memory; None where they do not count.
    """

    given: Given | None = None
    reaches: frozenset[Given] | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A truth value without axes that holds unless the model raises an error, or a call that may raise one although
    nobody reads what it gives.

    waited: whether Python waits for the truth value, which elsewhere a GPU asserts by itself, later.
    """

    value: Node
    waited: bool = False

    @property
    def is_truth(self) -> bool:
        """Whether the value says that all is well, and is not only computed."""
        return self.value.dtype == "bool" and not self.value.rank


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured model.

    inputs: the forward's arguments in order; None where an argument is not a tensor.
    outputs: a node for each tensor among the results; ``structure`` is the returned value with indices into them.
    training: the mode in which the model was captured.
    results: what is known of each output beside its value; empty where nothing is.
    asks: the inputs and parameters of which it matters how they stand in a recorded graph, as the forward asks them or
        PyTorch refuses that they require gradients.
    checks: what tells that the model raises an error for the values that it was given.
    decided: buffers of one element, by whose values the forward decides, and these values.
    asked_of_inputs: expressions of the tensors among the ``inputs`` by whose values the forward decides, and these.
    carried: leaves for the tensors that a call finds in plain attributes, as the call before it left them, and their
        strides; like buffers otherwise.
    containers: of these attributes those that hold containers, with numbers for the ``carried`` tensors in them.
    left: the plain attributes that a call assigns, with numbers for the outputs that they then hold.
    calls: the operators of PyTorch that a captured model calls, and what it does to gradients that is no operator.
    differentiated: the same graph with a node for each tensor that is detached, through which no gradient goes, and
        with nodes of their own for what is called again with the same operands; None where nothing is.
    replaces: of a rewritten graph, for each node the nodes of the captured one whose work it does
        (:mod:`kernelwright.algebra.replaced`); a node that is not there stands for itself.
    """

    inputs: tuple[Node | None, ...]
    outputs: tuple[Node, ...]
    structure: Any
    effects: tuple[BufferUpdate, ...]
    training: bool
    results: tuple[Result, ...] = ()
    asks: frozenset[Given] = frozenset()
    checks: tuple[Check, ...] = ()
    decided: tuple[tuple[str, bool | int | float], ...] = ()
    asked_of_inputs: tuple[tuple[str, Any], ...] = ()
    carried: tuple[tuple[Node, tuple[int, ...]], ...] = ()
    containers: tuple[tuple[str, Any], ...] = ()
    left: tuple[tuple[str, Any], ...] = ()
    calls: frozenset[str] = frozenset()
    differentiated: Graph | None = field(default=None, compare=False, repr=False)
    replaces: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict, compare=False, repr=False)

    def roots(self) -> tuple[Node, ...]:
        """Everything that must be computed: outputs, buffer values that no torch call updates by itself, checks."""
        return (*self.outputs, *(e.value for e in self.effects if e.owner is None), *(c.value for c in self.checks))

    def nodes(self) -> Iterator[Node]:
        """Every node, inputs before users."""
        return walk(self.roots())

    def operators(self) -> list[Node]:
        """The nodes that compute something, in order, those of the outputs only."""
        return [n for n in walk(self.outputs) if n.kind not in ("leaf",)]


def memory(node: Node) -> Node:
    """The node whose memory a view shows; the node itself where it is no view."""
    while node.kind == "view":
        node = node.inputs[0]
    return node


def lies_as(node: Node, strides: Sequence[int]) -> bool:
    """Whether a value, whose memory is contiguous, shows its elements with these strides; axes of one
    element do not count."""
    chain = []
    while node.kind == "view":
        chain.append(node)
        node = node.inputs[0]
    shown = as_meta(node)
    for view in reversed(chain):
        shown = view.operator.reference(shown, **dict(view.attributes))
    return all(a == b for a, b, size in zip(shown.stride(), strides, shown.shape, strict=True) if size > 1)


def in_own_order(leaf: Node) -> Node:
    """A leaf with its axes as the model has them."""
    order = leaf.get("order")
    return leaf if order is None else make("permute", leaf, axes=tuple(order.index(a) for a in range(leaf.rank)))


def is_given(node: Node) -> bool:
    """Whether a node's memory is the caller's or the model's: nothing is made for it."""
    below = memory(node)
    return below.kind == "leaf" and below.op != "literal"


def copied(node: Node, number: int = 0) -> Node:
    """The node's value in memory of its own; copies of other numbers are other tensors."""
    more = {"number": number} if number else {}
    return make("opaque", node, origin=node.origin, target="aten.clone.default", template=(("input", 0),), keywords=(),
                shape=node.shape, dtype=node.dtype, types=None, serial=-1, **more)


def in_own_memory(result: Node, owner: Hashable, taken: dict[Node, Hashable]) -> Node:
    """A result, copied where its memory is taken: equal values are one node, but a caller who writes into one result
    must not find it in another.

    owner: what the model has for the result's memory; taken: the owners of earlier results' memory, which is updated.
    """
    while not is_given(result) and taken.setdefault(memory(result), owner) != owner:
        result = copied(result, len(taken))
    return result


def render(graph: Graph) -> str:
    """The graph as text, one node a line."""
    names: dict[Node, str] = {}
    lines = []
    for node in graph.nodes():
        if node.op == "constant":
            names[node] = repr(node["value"])
            continue
        if node.op == "literal":
            names[node] = f"literal {node['value']!r}" if node.rank == 0 else f"literal {list(node.shape)}"
            continue
        names[node] = node["name"] if node.op in ("input", "parameter", "buffer", "attribute") else f"%{len(names)}"
        if node.kind == "leaf":
            continue
        hidden = ("target", "template", "keywords", "shape", "dtype", "types", "serial", "number", "part")
        attributes = [f"{n}={v}" for n, v in node.attributes if node.op != "opaque" or n not in hidden]
        title = node["target"] if node.op == "opaque" else node.op
        arguments = ", ".join([names[i] for i in node.inputs] + attributes)
        lines.append(f"{names[node]}: {node.dtype}{list(node.shape)} = {title}({arguments})")
    lines += [f"buffer {e.name} <- {names[e.value]}" for e in graph.effects if e.value in names]
    lines += [f"check {names[c.value]}" for c in graph.checks]
    lines += [f"attribute {name} <- {renumbered(structure, [names[n] for n in graph.outputs])}"
              for name, structure in graph.left]
    lines.append("return " + ", ".join(names[o] for o in graph.outputs))
    return "\n".join(lines)
