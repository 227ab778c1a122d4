"""Which axes of the model's tensors an axis of a value is made of: where arrives what is drawn along an input's axis.

An axis of a value comes from an axis of an input or parameter where positions along the one are positions along the
other: through what computes element by element, through views, and beside what products and reductions sum over. Where
a reshape splits or joins axes, each part comes from the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.ir.ops.lookups import first_taken

#: A leaf and one of its axes, as the model has them.
Origin = tuple[Node, int]
#: For each axis of a value where it comes from.
Axes = tuple[frozenset[Origin], ...]

_NOWHERE: frozenset[Origin] = frozenset()


def axis_origins(graph: Graph) -> dict[Node, Axes]:
    """For every value of a graph, of each of its axes the axes of inputs, parameters and buffers that it comes from."""
    found: dict[Node, Axes] = {}
    for node in graph.nodes():
        axes = _axes(node, found)
        found[node] = axes if len(axes) == node.rank else (_NOWHERE,) * node.rank
    return found


def meetings(found: Mapping[Node, Axes]) -> Iterator[frozenset[Origin]]:
    """Axes of the model's tensors that go along one axis together: in a value, or where a product sums over both."""
    for node, axes in found.items():
        yield from axes
        if node.op == "matmul" and min(i.rank for i in node.inputs) > 1:
            yield found[node.inputs[0]][-1] | found[node.inputs[1]][-2]
        elif _equation(node):
            yield from _letters(node, found).values()


def operand(node: Node, place: int) -> Node | None:
    """The tensor that a call of PyTorch's gets as its argument ``place``; None where it gets none."""
    written = node["template"][place] if place < len(node["template"]) else None
    return node.inputs[written[1]] if isinstance(written, tuple) and written[0] == "input" else None


def _axes(node: Node, found: Mapping[Node, Axes]) -> Axes:
    if node.kind == "leaf":
        named = node.op not in ("constant", "literal")
        return tuple(frozenset({(node, a)}) if named else _NOWHERE for a in node.get("order", range(node.rank)))
    if not node.inputs:
        return (_NOWHERE,) * node.rank
    first = node.inputs[0]
    own = found[first]
    if node.op in ("permute", "reordered", "contiguous"):
        return tuple(own[a] for a in node["axes"])
    if node.op == "reshape":
        return _reshaped(first, node, own)
    if node.kind == "reduction" or node.op == "vector_norm":
        return tuple(_NOWHERE if a in node["axes"] else o for a, o in enumerate(own)
                     if node["keepdim"] or a not in node["axes"])
    if node.op == "linear":
        return (*own[:-1], found[node.inputs[1]][0])
    if node.op == "matmul" and first.rank > 1 and node.inputs[1].rank > 1:
        return (*_aligned(node, found)[:-2], own[-2], found[node.inputs[1]][-1])
    if _equation(node):
        return _contracted(node, found)
    if node.op == "taken":  # indices in the place of axes
        return _chosen(node, found)
    if node.op == "item" or node.kind == "opaque":
        return _called(node, found)
    same = first.rank == node.rank and first.shape != node.shape
    return own if same and node.op != "concatenate" and node.kind != "pointwise" else _aligned(node, found)


def _aligned(node: Node, found: Mapping[Node, Axes]) -> Axes:
    """Axes of operands that are as long as the value's and stand at the same place from the right; those along which
    operands are concatenated, too."""
    joined = node["axis"] if node.op == "concatenate" else None
    axes = []
    for axis, size in enumerate(node.shape):
        comes = _NOWHERE
        for value in node.inputs:
            place = axis - node.rank + value.rank
            if place >= 0 and (value.shape[place] == size or axis == joined):
                comes |= found[value][place]
        axes.append(comes)
    return tuple(axes)


def _chosen(node: Node, found: Mapping[Node, Axes]) -> Axes:
    x, *indices = node.inputs
    others = [own for axis, own in enumerate(found[x]) if axis not in node["axes"]]
    first, axes = first_taken(node["axes"]), [_NOWHERE] * (node.rank - len(others))
    for index in indices:
        for place, comes in enumerate(found[index], len(axes) - index.rank):
            axes[place] |= comes
    return (*others[:first], *axes, *others[first:])


def _reshaped(before: Node, after: Node, own: Axes) -> Axes:
    axes = [_NOWHERE] * after.rank
    for left, right in axis_groups(before.shape, after.shape) or []:
        comes = frozenset().union(*(own[a] for a in left if before.shape[a] != 1))
        for axis in right:
            axes[axis] = comes if after.shape[axis] != 1 else _NOWHERE
    return tuple(axes)


def _equation(node: Node) -> str:
    """The equation of a contraction, also of many tensors; "" for what is none, and where an equation leaves axes open.
    """
    if node.op == "contract":
        return node["equation"].replace(" ", "")
    called = node.op == "opaque" and node["target"] == "aten.einsum.default"
    written = node["template"][0][1].replace(" ", "") if called and node["template"][0][0] == "str" else ""
    return written if "->" in written and "." not in written else ""


def _operands(node: Node) -> tuple[Node, ...]:
    if node.op == "contract":
        return node.inputs
    return tuple(node.inputs[written[1]] for written in node["template"][1][1:])


def _letters(node: Node, found: Mapping[Node, Axes]) -> dict[str, frozenset[Origin]]:
    """Where the axes of a contraction come from, by the letters of its equation."""
    comes: dict[str, frozenset[Origin]] = {}
    for term, value in zip(_equation(node).split("->")[0].split(","), _operands(node), strict=True):
        for letter, origins in zip(term, found[value], strict=True):
            comes[letter] = comes.get(letter, _NOWHERE) | origins
    return comes


def _contracted(node: Node, found: Mapping[Node, Axes]) -> Axes:
    comes = _letters(node, found)
    return tuple(comes.get(letter, _NOWHERE) for letter in _equation(node).split("->")[1])


def _called(node: Node, found: Mapping[Node, Axes]) -> Axes:
    """Axes of what a call of PyTorch's gives, or of one of its results."""
    call = node.inputs[0] if node.op == "item" else node
    target = call.get("target", "")
    if "embedding" in target and (table := operand(call, 0)) is not None and (rows := operand(call, 1)) is not None \
            and node.rank == rows.rank + 1:
        return (*found[rows], found[table][-1])
    if "attention" in target and node.rank > 1 and (query := operand(call, 0)) is not None \
            and (value := operand(call, 2)) is not None:
        return (*found[query][:-1], found[value][-1])
    if not call.inputs:
        return (_NOWHERE,) * node.rank
    first = call.inputs[0]
    if first.rank == node.rank and call.op == "opaque":
        return tuple(o if first.shape[a] == node.shape[a] else _NOWHERE for a, o in enumerate(found[first]))
    return _aligned(node, found) if call is node else (_NOWHERE,) * node.rank
