"""From a graph to that of its gradients: reverse mode.

The result computes, from what the forward was given and the gradients of its outputs, those of chosen inputs and
parameters. It holds the forward's own nodes as far as gradients need their values: a plan of it recomputes them inside
of the kernels that read them, but for what the forward hands over (:mod:`kernelwright.adjoint.saved`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernelwright.adjoint import (  # noqa: F401  (fills the table)
    bounded_losses,
    distances,
    linear,
    lookups,
    moves,
    pointwise,
    reductions,
)
from kernelwright.adjoint.composites import FORMS, form_of
from kernelwright.adjoint.saved import with_leaves
from kernelwright.adjoint.table import ADJOINTS, FLOATS, NoAdjoint, add, named
from kernelwright.ir.graph import Given, Graph, in_own_order
from kernelwright.ir.node import Node, made_for, make, rebuild, walk

#: How leaves are called for the gradients of outputs.
GRADIENT = "gradient_of_output"
#: What cuts a tensor into parts whose gradients PyTorch puts beside each other, and what takes a part by itself, whose
#: gradient is added to zeros. Both are slices in a graph.
_CUTTING = frozenset(("chunk.default", "split.Tensor", "split.sizes", "split_with_sizes.default", "unbind.int",
                      "glu.default"))
_TAKING = frozenset(("slice.Tensor", "select.int", "narrow.default", "diff.default"))


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a graph as a graph.

    graph: its inputs are those of the forward, then the gradients of ``of``, and then leaves for ``saved``; its outputs
    are those of ``gives``. of: numbers of the forward's outputs. gives: the tensors whose gradients they are, each the
    place of an input or the name of a parameter. saved: the forward's nodes of which it reads the values. stands_for:
    by the nodes that are differentiated, which may be another form, the forward's own.
    """

    graph: Graph
    of: tuple[int, ...]
    gives: tuple[Given, ...]
    saved: tuple[Node, ...] = ()
    stands_for: Mapping[Node, Node] = field(default_factory=dict, compare=False, repr=False)

    @property
    def incoming(self) -> tuple[Node, ...]:
        """The leaves for the gradients of outputs."""
        end = len(self.graph.inputs) - len(self.saved)
        return tuple(leaf for leaf in self.graph.inputs[end - len(self.of):end] if leaf is not None)

    def reading(self, saved: Collection[Node]) -> Gradients:
        """The same gradients of what a forward hands over, as far as they read it. Of gradients that compute it."""
        forms = {own: node for node, own in self.stands_for.items()}
        outputs, leaves = with_leaves(self.graph.outputs, [forms[node] for node in saved if node in forms])
        read = set(walk(outputs))
        used = {node: leaf for node, leaf in leaves.items() if leaf in read}
        graph = replace(self.graph, inputs=(*self.graph.inputs, *used.values()), outputs=outputs)
        return replace(self, graph=graph, saved=tuple(self.stands_for[node] for node in used))


def gradients(graph: Graph, of: Sequence[int], wanted: Collection[Given]) -> Gradients:
    """The graph of the gradients of those of ``wanted`` that outputs ``of`` reach.

    Raises NoAdjoint where an operator on the way has no adjoint, and where nothing is reached.
    """
    formed = _formed([graph.outputs[number] for number in of])
    outputs = [formed[graph.outputs[number]] for number in of]
    leaves = _leaves(graph, outputs, wanted)
    names = {i["name"] for i in graph.inputs if i is not None}
    given = []
    for number, output in zip(of, outputs, strict=True):
        if output.dtype not in FLOATS:
            raise NoAdjoint(f"an output of type {output.dtype}")
        name = f"{GRADIENT}_{number}"
        while name in names:
            name += "_"
        given.append(make("input", name=name, shape=output.shape, dtype=output.dtype))
    in_parts = bool(_CUTTING & graph.calls) and not _TAKING & graph.calls
    found = pulled_back(outputs, given, leaves.values(), in_parts=in_parts)
    gives = tuple(who for who, leaf in leaves.items() if leaf in found)
    if not gives:
        raise NoAdjoint("no input and no parameter is reached")
    results = tuple(in_own_order_of(leaves[who], found[leaves[who]]) for who in gives)
    return Gradients(Graph((*graph.inputs, *given), results, tuple(range(len(results))), (), graph.training),
                     tuple(of), gives, stands_for={form: node for node, form in reversed(formed.items())})


def in_own_order_of(leaf: Node, gradient: Node) -> Node:
    """The gradient of a leaf, which has the axes in the order of memory, with those of the model's own tensor."""
    turned = in_own_order(leaf)
    return gradient if turned is leaf else make("permute", gradient, axes=turned["axes"])


def _leaves(graph: Graph, outputs: Iterable[Node], wanted: Collection[Given]) -> dict[Given, Node]:
    """Those of ``wanted`` that are leaves below outputs."""
    below = set(walk(outputs))
    found: dict[Given, Node] = {place: leaf for place, leaf in enumerate(graph.inputs)
                                if leaf is not None and place in wanted and leaf in below}
    found |= {leaf["name"]: leaf for leaf in walk(outputs) if leaf.op == "parameter" and leaf["name"] in wanted}
    return {who: leaf for who, leaf in found.items() if leaf.dtype in FLOATS}


def _formed(roots: Iterable[Node]) -> dict[Node, Node]:
    """For every node below roots the same with composites in the forms that are differentiated."""
    found: dict[Node, Node] = {}

    def form(node: Node) -> Node:
        made = form_of(node)
        if made is node:
            return node
        inner: dict[Node, Node] = {i: i for i in node.inputs}
        for part in walk([made]):
            if part not in inner:
                built = rebuild(part, tuple(inner[i] for i in part.inputs))
                inner[part] = form(built) if built.op in FORMS else built
        return inner[made]

    for node in walk(roots):
        with made_for(node.origin):
            found[node] = form(rebuild(node, tuple(found[i] for i in node.inputs)))
    return found


def pulled_back(outputs: Sequence[Node], given: Sequence[Node], leaves: Iterable[Node], *, in_parts: bool = False
                ) -> Mapping[Node, Node]:
    """The gradients of those leaves that outputs, whose gradients are ``given``, depend on. in_parts: slices are parts
    of tensors that were cut, whose gradients stand beside each other.

    Raises NoAdjoint.
    """
    leaves = set(leaves)
    order = list(walk(outputs))
    active: set[Node] = set()
    for node in order:
        if node.dtype in (*FLOATS, "tuple") and (node in leaves or not active.isdisjoint(node.inputs)):
            active.add(node)
    found: dict[Node, Node] = {}
    parts: dict[Node, list[tuple[Node, Node]]] = {}

    def reached(node: Node, g: Node) -> None:
        found[node] = add(found[node], g) if node in found else g

    for output, g in zip(outputs, given, strict=True):
        if output in active:
            reached(output, g)
    for node in reversed(order):
        if node in parts:  # all that reads it was met before
            with made_for(node.origin):
                for g in _beside(node, parts.pop(node)):
                    reached(node, g)
        if node not in active or node in leaves or node not in found:
            continue
        if in_parts and node.op == "slice" and node["step"] == 1:
            parts.setdefault(node.inputs[0], []).append((node, found[node]))
            continue
        rule = ADJOINTS.get(node.op)
        if rule is None:
            raise NoAdjoint(named(node))
        with made_for(node.origin):
            terms = rule(node, found[node], [i in active for i in node.inputs])
            for source, term in zip(node.inputs, terms, strict=True):
                if term is not None and source in active:
                    assert (term.shape, term.dtype) == (source.shape, source.dtype), (node, source, term)
                    reached(source, term)
    return {leaf: found[leaf] for leaf in leaves if leaf in found}


def _beside(source: Node, parts: Sequence[tuple[Node, Node]]) -> list[Node]:
    """The gradient of a tensor from those of slices of it: one, with zeros where none is; or one for each slice, where
    they overlap or are along several axes."""
    axis, size = parts[0][0]["axis"], source.shape[parts[0][0]["axis"]]
    ordered = sorted(parts, key=lambda part: part[0]["start"])
    pieces: list[Node] = []
    end = 0

    def apart(stop: int) -> None:
        if stop > end:
            shape = tuple(stop - end if a == axis else s for a, s in enumerate(source.shape))
            pieces.append(make("literal", value=0.0, shape=shape, dtype=source.dtype))

    for node, g in ordered:
        if len(parts) == 1 or node["axis"] != axis or node["start"] < end:
            return [term for part, own in parts for term in ADJOINTS["slice"](part, own, (True,)) if term is not None]
        apart(node["start"])
        pieces.append(g)
        end = node["start"] + g.shape[axis]
    apart(size)
    return [make("concatenate", *pieces, axis=axis) if len(pieces) > 1 else pieces[0]]
