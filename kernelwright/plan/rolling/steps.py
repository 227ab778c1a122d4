"""What is one step of a tensor: a place along an axis, or one of the parts of equal size that lie along it."""

from __future__ import annotations

from kernelwright.algebra.repeated import Part
from kernelwright.ir.node import Node, make


def step_of(node: Node) -> Part | None:
    """What a node is one step of, where it is that."""
    if node.op == "item":
        return _unbound(node)
    piece = node.inputs[0] if node.op == "reshape" else node
    if piece.op != "slice" or piece["step"] != 1:
        return None
    whole, axis, start = piece.inputs[0], piece["axis"], piece["start"]
    size, count = piece.shape[axis], whole.shape[axis]
    if node is not piece:
        kept = piece.shape[:axis] + piece.shape[axis + 1:]
        return Part(whole, axis, start) if size == 1 and count > 1 and node.shape == kept else None
    if size == count or not size or count % size or start % size:
        return None
    parts = (*whole.shape[:axis], count // size, size, *whole.shape[axis + 1:])
    return Part(make("reshape", whole, shape=parts), axis, start // size)


def _unbound(node: Node) -> Part | None:
    call = node.inputs[0]
    if call.op != "opaque" or call["target"] != "aten.unbind.int" or call["keywords"]:
        return None
    first, *axis = call["template"]
    place = axis[0] if axis else 0
    if first != ("input", 0) or not isinstance(place, int):
        return None
    return Part(call.inputs[0], place % call.inputs[0].rank, node["index"])
