"""Whether every output depends on each batch entry separately, so that a few entries can be checked alone."""

from __future__ import annotations

from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.evaluate import logical_shape
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node


class _Mixed(Exception):
    """The batch entries meet here, or nothing is known."""


def batch_independent(graph: Graph) -> bool:
    """True only where it is proved: axis 0 of every output is the inputs' axis 0, entry by entry."""
    tensors = [i for i in graph.inputs if i is not None]
    if not tensors or tensors[0].rank == 0 or graph.effects:
        return False
    size = logical_shape(tensors[0])[0]
    axes: dict[Node, int | None] = {}
    try:
        for node in graph.nodes():
            axes[node] = _axis(node, axes, size)
    except _Mixed:
        return False
    return all(axes[o] == 0 and o.shape[0] == size for o in graph.outputs)


def _axis(node: Node, axes: dict[Node, int | None], size: int) -> int | None:
    """The axis of a node along which batch entries lie; None where it doesn't depend on them."""
    if node.op == "input":
        if node.rank == 0 or logical_shape(node)[0] != size:
            raise _Mixed
        return node.get("order", (0,)).index(0)
    batched = [(i, place) for i in node.inputs if (place := axes[i]) is not None]
    if not batched:
        if node.get("serial", -1) >= 0:
            raise _Mixed
        return None
    first, axis = batched[0]
    if node.kind == "pointwise" or node.op == "matmul":
        return _aligned(node, batched)
    if len(batched) > 1 and node.op != "concatenate":
        raise _Mixed
    if node.kind == "reduction":
        if axis in node["axes"]:
            raise _Mixed
        return axis if node["keepdim"] else axis - sum(a < axis for a in node["axes"])
    if node.kind == "row" and axis != node["axis"]:
        return axis
    if node.op in ("layer_norm", "rms_norm") and axis < node.rank - node["axes"]:
        return axis
    if node.op in ("group_norm", "instance_norm", "batch_norm_inference") and axis == 0 and first is node.inputs[0]:
        return 0
    # Without a batch axis (rank below the weight's), axis 0 is the channels.
    if node.op == "convolution" and axis == 0 and first is node.inputs[0] and first.rank == node.inputs[1].rank:
        return 0
    if node.op == "linear" and first is node.inputs[0] and axis < first.rank - 1:
        return axis
    if node.kind == "window" and axis < node.rank - len(node.get("kernel") or node["size"]):
        return axis
    if node.op == "cast":
        return axis
    return _through_view(node, first, axis, axes)


def _aligned(node: Node, batched: list[tuple[Node, int]]) -> int:
    places = {node.rank - i.rank + a for i, a in batched}
    place = places.pop()
    if places:
        raise _Mixed
    if node.op == "matmul":
        left, right = node.inputs
        if left.rank < 2 or right.rank < 2 or (place == node.rank - 2 and batched != [(left, left.rank - 2)]) \
                or place == node.rank - 1:
            raise _Mixed
    if any(i.shape[a] != node.shape[place] for i, a in batched):
        raise _Mixed
    return place


def _through_view(node: Node, x: Node, axis: int, axes: dict[Node, int | None]) -> int:
    if node.op == "permute":
        return node["axes"].index(axis)
    if node.op == "expand":
        return axis + node.rank - x.rank
    if node.op == "slice" and node["axis"] != axis:
        return axis
    if node.op == "flip" and axis not in node["axes"]:
        return axis
    if node.op == "concatenate" and node["axis"] != axis and all(axes[i] == axis for i in node.inputs):
        return axis
    if node.op == "reshape":
        for left, right in axis_groups(x.shape, node.shape) or []:
            if axis in left:
                wide = [a for a in right if node.shape[a] != 1]
                if [a for a in left if x.shape[a] != 1] == [axis] and len(wide) == 1:
                    return wide[0]
    raise _Mixed
