"""Parts of tensors that stand side by side: a part of one of them alone is read there.

A program that writes into parts of a tensor is a chain of such tensors, in which every write, and whatever is read
between two of them, is of a part of what the write before it gave. ``y[a] *= b`` even writes twice.
"""

from __future__ import annotations

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make


@rule("part of one of several", "slice", law="concatenate(.., x, ..)[i:j] = x[k:l]; pad(x, c)[i:j] = x[k:l], or c",
      condition="the part is of one operand, and the whole is read in parts alone", exactness=Exactness.BITWISE)
def of_one_operand(node: Node, context: Context) -> Node | None:
    root = context.original.get(node)
    if root is None or node["step"] != 1 or not node.size:
        return None
    whole = root.inputs[0]
    if whole in context.roots or any(reader.op != "slice" for reader in context.readers.get(whole, ())):
        return None
    return _read_there(node.inputs[0], node["axis"], node["start"], node["start"] + node.shape[node["axis"]])


def _read_there(x: Node, axis: int, start: int, stop: int) -> Node | None:
    """The part from ``start`` to ``stop`` of x along an axis, of the operand of x of which it is; None where it is of
    several, or x has none."""
    found = None
    if x.op == "concatenate" and x["axis"] == axis:
        before = 0
        for piece in x.inputs:
            if before <= start and stop <= before + piece.shape[axis]:
                found, start, stop = piece, start - before, stop - before
                break
            before += piece.shape[axis]
    elif x.op == "pad" and [a for a, amounts in enumerate(x["amounts"]) if any(amounts)] == [axis] \
            and min(x["amounts"][axis]) >= 0:
        before, inner = x["amounts"][axis][0], x.inputs[0].shape[axis]
        if stop <= before or start >= before + inner:
            return make("literal", value=x["value"], dtype=x.dtype,
                        shape=(*x.shape[:axis], stop - start, *x.shape[axis + 1:]))
        if before <= start and stop <= before + inner:
            found, start, stop = x.inputs[0], start - before, stop - before
    if found is None:
        return None
    while found.op == "slice" and (found["axis"], found["step"]) == (axis, 1):
        start, stop, found = start + found["start"], stop + found["start"], found.inputs[0]
    further = _read_there(found, axis, start, stop)
    if further is not None:
        return further
    if stop - start == found.shape[axis]:
        return found
    return make("slice", found, axis=axis, start=start, stop=stop, step=1)


PART_RULES: tuple[Rule, ...] = (of_one_operand,)
