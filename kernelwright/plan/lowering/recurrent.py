"""The recurrent layers of ``torch.nn`` as one product of all steps for each layer and direction, and the recurrence.

The formulas and the order of the gates are those of aten/src/ATen/native/RNN.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from kernelwright.algebra.build import reshape
from kernelwright.ir.node import Node, make, number_of
from kernelwright.ir.ops.leaves import fill
from kernelwright.ir.ops.recurrence import Cell, Operand

#: States after a step, from the parts of each gate by the input and by the state, and from the states before it.
Update = Callable[[list[Node], list[Node], tuple[Node, ...]], tuple[Node, ...]]


def lstm(x: list[Node], product: list[Node], states: tuple[Node, ...]) -> tuple[Node, ...]:
    """State and memory."""
    enter, forget, new, leave = (make("add", a, b) for a, b in zip(x, product, strict=True))
    kept = make("mul", make("sigmoid", forget), states[1])
    memory = make("add", kept, make("mul", make("sigmoid", enter), make("tanh", new)))
    return make("mul", make("sigmoid", leave), make("tanh", memory)), memory


def _gru(x: list[Node], product: list[Node], states: tuple[Node, ...]) -> tuple[Node, ...]:
    reset, keep = (make("sigmoid", make("add", x[gate], product[gate])) for gate in range(2))
    new = make("tanh", make("add", x[2], make("mul", reset, product[2])))
    return (make("add", make("mul", make("sub", states[0], new), keep), new),)


def _rnn(activation: str) -> Update:
    return lambda x, product, states: (make(activation, make("add", x[0], product[0])),)


class _Form(NamedTuple):
    """The gates and states of a cell, and what a step makes of them."""

    gates: int
    states: int
    update: Update


#: By operators on padded batches.
_FORMS = {"aten.lstm.input": _Form(4, 2, lstm), "aten.gru.input": _Form(3, 1, _gru),
          "aten.rnn_tanh.input": _Form(1, 1, _rnn("tanh")), "aten.rnn_relu.input": _Form(1, 1, _rnn("relu"))}


class _Call(NamedTuple):
    """The arguments of such an operator; ``initial``: the state before the first step, of a cell that remembers the
    memory, too, each (layers * directions, batch, hidden)."""

    x: Node
    initial: tuple[Node, ...]
    parameters: list[Node]
    has_biases: bool
    layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    @property
    def each(self) -> int:
        """Parameters of a layer in one direction, if there is no projection."""
        return 4 if self.has_biases else 2


def _call(node: Node) -> _Call:
    x, initial, *rest = fill(node["template"], node.inputs)
    return _Call(x, tuple(initial) if isinstance(initial, list) else (initial,), *rest)


def has_form(node: Node) -> bool:
    """Whether a call is of a recurrent layer in float32 without projections and without dropout between its layers."""
    if node.op != "opaque" or node["target"] not in _FORMS or node["keywords"]:
        return False
    call = _call(node)
    tensors = (call.x, *call.initial, *call.parameters)
    return all(t.dtype == "float32" and prod(t.shape) for t in tensors) and call.x.rank == 3 \
        and len(call.parameters) == call.layers * call.directions * call.each \
        and not (call.dropout and call.training and call.layers > 1)


def layers(item: Node) -> Node:
    """One result of a recurrent layer: its states, the last ones of each layer and direction, or the last memories."""
    node = item.inputs[0]
    call, origin = _call(node), node.origin
    x, batch_first = call.x, call.batch_first
    last: list[Node] = []
    for layer in range(call.layers):
        states = []
        for direction in range(call.directions):
            number = layer * call.directions + direction
            inner, own, *biases = call.parameters[number * call.each:(number + 1) * call.each]
            gates, reverse = make("linear", x, inner, *biases[:1], origin=origin), bool(direction)
            initial = [None if _is_zero(i) else reshape(_slice(i, number), i.shape[1:]) for i in call.initial]
            cell, operands = cell_of(node["target"], gates, batch_first, reverse, own, biases[1:], initial)
            states.append(make("recurrence", *operands, cell=cell, value=0, axis=0, reverse=reverse, origin=origin))
            if item["index"] == 2:
                memory = make("recurrence", *operands, cell=cell, value=1, axis=None, reverse=False, origin=origin)
                last.append(reshape(memory, (1, *memory.shape)))
            elif item["index"] == 1:
                last.append(_slice(states[-1], 0 if direction else states[-1].shape[0] - 1))
        x, batch_first = _joined(states, 2, origin), False
    if item["index"]:
        return _joined(last, 0, origin)
    return make("permute", x, axes=(1, 0, 2), origin=origin) if call.batch_first else x


def cell_of(target: str, gates: Node, batch_first: bool, reverse: bool, weight: Node, biases: list[Node],
            initial: list[Node | None]) -> tuple[Cell, list[Node]]:
    """The cell of one direction of a layer, which has this operator, and the tensors of its operands. gates: the
    products with the inputs of all steps, (steps, batch, gates * hidden) or ``batch_first``; initial: None is zero."""
    form = _FORMS[target]
    steps, batch = gates.shape[1::-1] if batch_first else gates.shape[:2]
    hidden, start = weight.shape[1], steps - 1 if reverse else 0
    shapes = [(batch, gates.shape[2]), weight.shape, *(b.shape for b in biases), *(i.shape for i in initial if i)]
    x, own, *others = leaves = [leaf(f"operand{n}", shape) for n, shape in enumerate(shapes)]
    states = tuple(leaf(f"state{n}", (batch, hidden)) for n in range(form.states))
    given = iter(others[len(biases):])
    zeros = make("literal", value=0.0, shape=(batch, hidden), dtype="float32")
    product = make("linear", states[0], own, *others[:len(biases)])
    of_input, of_state = ([make("slice", value, axis=1, start=gate * hidden, stop=(gate + 1) * hidden, step=1)
                           if form.gates > 1 else value for gate in range(form.gates)] for value in (x, product))
    updates = form.update(of_input, of_state, states)
    operands = Operand(x, 1 if batch_first else 0, start, -1 if reverse else 1), *map(Operand, leaves[1:])
    cell = Cell(steps, operands, states, tuple(next(given) if i else zeros for i in initial), updates, updates)
    return cell, [gates, weight, *biases, *(i for i in initial if i)]


def leaf(name: str, shape: tuple[int, ...]) -> Node:
    """What stands for a tensor of float32 in a cell."""
    return make("input", name=name, shape=shape, dtype="float32")


def _is_zero(initial: Node) -> bool:
    number = number_of(initial)
    return number is not None and str(float(number)) == "0.0"  # and not -0.0


def _slice(x: Node, place: int) -> Node:
    """What x has at a place of its first axis."""
    return make("slice", x, axis=0, start=place, stop=place + 1, step=1)


def _joined(parts: list[Node], axis: int, origin: Any) -> Node:
    if len(parts) == 1:
        return parts[0]
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    return make("concatenate", *parts, axis=axis, dtype=parts[0].dtype, shape=tuple(shape), origin=origin)
