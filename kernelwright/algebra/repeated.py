"""One product in place of the many that a loop over steps computes with the same weights.

Who writes a recurrence as a loop calls its layers once a step, on one step of the inputs, alone or beside the state.
What does not depend on the state can be computed for all steps at once, and so can what nothing but the result reads.
What stays in the loop is the recurrence itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from kernelwright.algebra.build import reshape
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make

#: Fewer steps than these are no loop.
_LEAST_STEPS = 4
#: A product that reads and writes no more than this takes about as long as its launch.
_SMALL_BYTES = 1 << 20
_FLOATS = ("float32", "float64")


class Part(NamedTuple):
    """What ``whole`` has at one place of an axis, which is left out."""

    whole: Node
    axis: int
    place: int


def part_of(x: Node) -> Part | None:
    """What x is one step of, where it is that."""
    piece = x.inputs[0] if x.op == "reshape" else x
    if piece.op != "slice" or x is piece or piece["step"] != 1:
        return None
    axis, whole = piece["axis"], piece.inputs[0]
    if whole.rank < 2 or piece.shape[axis] != 1 or x.shape != piece.shape[:axis] + piece.shape[axis + 1:]:
        return None
    return Part(whole, axis, piece["start"])


def _steps(whole: Node, axis: int, context: Context) -> Iterator[tuple[Node, int]]:
    """The steps of a tensor along an axis, with their places."""
    for piece in context.readers.get(whole, ()):
        if piece.op == "slice" and piece["axis"] == axis:
            for x in context.readers.get(piece, ()):
                found = part_of(x)
                if found is not None:
                    yield x, found.place


def _offset(joined: Node, x: Node) -> int | None:
    """Where x begins along the last axis of a concatenation along it, where it is read there once."""
    if joined.op != "concatenate" or joined["axis"] != joined.rank - 1 or joined.inputs.count(x) != 1:
        return None
    return sum(other.shape[-1] for other in joined.inputs[:joined.inputs.index(x)])


def _covers(layer: Node, x: Node, context: Context) -> bool:
    """Whether all steps of what x is one step of are read by layers like this one: with its weights, and beside other
    values at the same place, where x is one of several values that it reads. Of the graph that is rewritten."""
    part = part_of(x)
    if part is None:
        return False
    place = None if layer.inputs[0] is x else _offset(layer.inputs[0], x)
    key: Hashable = ("steps", part.whole, part.axis, layer.inputs[1:], place, x.shape)
    if key not in context.known:
        read = set()
        for value, step in _steps(part.whole, part.axis, context):
            for reader in context.readers.get(value, ()):
                if place is None:
                    layers = [reader] if reader.op == "linear" and reader.inputs[0] is value else []
                else:
                    layers = context.readers.get(reader, []) if _offset(reader, value) == place else []
                if any(other.op == "linear" and other.inputs[1:] == layer.inputs[1:] for other in layers):
                    read.add(step)
        context.known[key] = len(read) == part.whole.shape[part.axis] >= _LEAST_STEPS
    return context.known[key]


def _of_all(x: Node, *weights: Node) -> Node | None:
    """A linear layer of x as one of the steps of what it makes of all that x is a step of. These are results of one
    call, which lie one after the other: kernels that read them are the same kernel for all steps."""
    part = part_of(x)
    if part is None:
        return None
    whole, axis = part.whole, part.axis
    if axis:
        whole = make("permute", whole, axes=(axis, *(a for a in range(whole.rank) if a != axis)))
    wide = make("linear", whole, *weights)
    steps = make("opaque", wide, target="aten.unbind.int", template=(("input", 0), 0), keywords=(), shape=(),
                 dtype="tuple", serial=-1)
    return make("item", steps, index=part.place, shape=wide.shape[1:], dtype=wide.dtype)


def _is_shown(node: Node, context: Context) -> bool:
    """Whether a node of the graph that is rewritten, or a view of it, is a result: which has memory of its own then."""
    stack = [node]
    while stack:
        value = stack.pop()
        if value in context.roots:
            return True
        stack += [reader for reader in context.readers.get(value, ()) if reader.kind == "view"]
    return False


def _is_small(layer: Node) -> bool:
    return 0 < layer.bytes + layer.inputs[0].bytes <= _SMALL_BYTES and layer.inputs[0].rank >= 2


@rule("linear layer of each step", "linear", law="linear(x_t) = linear(x)_t for steps x_t of x",
      condition="layers with the same weights read all steps of x, four or more; each is small and no result",
      exactness=Exactness.REASSOCIATES)
def layer_of_steps(node: Node, context: Context) -> Node | None:
    original = context.original.get(node)
    if original is None or not _is_small(node) or not _covers(original, original.inputs[0], context) \
            or _is_shown(original, context):
        return None
    return _of_all(node.inputs[0], *node.inputs[1:])


@rule("linear layer of a step beside a state", "linear",
      law="linear(x_t, h) = linear_x(x)_t + linear_h(h) for steps x_t of x, with the columns of the weights for each",
      condition="layers with the same weights read all steps of x, four or more, before or after other values in "
                "float32 or float64, and each is small",
      exactness=Exactness.REASSOCIATES)
def layer_beside_state(node: Node, context: Context) -> Node | None:
    original, joined = context.original.get(node), node.inputs[0]
    if original is None or joined.op != "concatenate" or joined["axis"] != joined.rank - 1 or not _is_small(node):
        return None
    before = original.inputs[0]
    if node.dtype not in _FLOATS or any(i.dtype != node.dtype for i in (*joined.inputs, *node.inputs[1:])) \
            or before.op != "concatenate" or len(before.inputs) != len(joined.inputs) or len(joined.inputs) < 2 \
            or len(context.readers.get(before, ())) != 1 or before in context.roots:
        return None
    for place in (0, -1):
        if not _covers(original, before.inputs[place], context):
            continue
        x, weight = joined.inputs[place], node.inputs[1]
        rest = joined.inputs[1:] if place == 0 else joined.inputs[:-1]
        width, all_columns = x.shape[-1], joined.shape[-1]
        cut = width if place == 0 else all_columns - width
        columns = [make("slice", weight, axis=1, start=start, stop=stop, step=1)
                   for start, stop in ((0, cut), (cut, all_columns))]
        own, others = columns if place == 0 else columns[::-1]
        found = _of_all(x, own, *node.inputs[2:])
        if found is not None:
            return make("add", found, make("linear", _joined(rest, joined.rank - 1), others))
    return None


def _joined(values: tuple[Node, ...], axis: int) -> Node:
    """Values along an axis; one alone is itself."""
    if len(values) == 1:
        return values[0]
    first = values[0]
    shape = (*first.shape[:axis], sum(v.shape[axis] for v in values), *first.shape[axis + 1:])
    return make("concatenate", *values, axis=axis, dtype=first.dtype, shape=shape)


def _layers(node: Node) -> list[Node] | None:
    """The linear layers of which a concatenation along rows is made, with one axis of size one more or as they are."""
    layers = []
    for value in node.inputs:
        layer = value.inputs[0] if value.op == "reshape" else value
        if layer.op != "linear" or layer.inputs[1:] != (layers or [layer])[0].inputs[1:]:
            return None
        if value is not layer and value.shape != (*layer.shape[:node["axis"]], 1, *layer.shape[node["axis"]:]):
            return None
        layers.append(layer)
    return layers


@rule("linear layers side by side", "concatenate", law="(linear(h_1), linear(h_2), ...) = linear((h_1, h_2, ...))",
      condition="four or more, with the same weights, each small and read by nothing else",
      exactness=Exactness.REASSOCIATES)
def layers_side_by_side(node: Node, context: Context) -> Node | None:
    axis, original = node["axis"], context.original.get(node)
    if original is None or original.op != "concatenate" or axis >= node.rank - 1 or len(node.inputs) < _LEAST_STEPS:
        return None
    layers, before = _layers(node), _layers(original)
    if layers is None or before is None or not all(map(_is_small, layers)) \
            or len(set(original.inputs)) < len(original.inputs):
        return None
    if len({layer.inputs[0].dtype for layer in layers}) > 1 or layers[0].dtype != layers[0].inputs[0].dtype:
        return None
    for value, layer in zip(original.inputs, before, strict=True):
        alone = [value] if value is layer else [value, layer]
        if any(n in context.roots or len(context.readers.get(n, ())) != 1 for n in alone):
            return None
    if len({value is layer for value, layer in zip(node.inputs, layers, strict=True)}) > 1:
        return None
    # A new axis is split off the one in whose place it stands: one view, and not one of each step.
    rows = _joined(tuple(layer.inputs[0] for layer in layers), axis)
    rows = reshape(rows, (*node.shape[:-1], layers[0].inputs[0].shape[-1]))
    return make("linear", rows, *layers[0].inputs[1:])


REPEATED: tuple[Rule, ...] = (layer_of_steps, layer_beside_state, layers_side_by_side)
