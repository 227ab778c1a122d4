"""From a loop to the cell of a recurrence: the graph of a step, and the tensors that its operands lie in.

What a step makes of its operands alone is taken out of it where it is a layer, which is one layer for all steps then;
other operators that no kernel reads through are computed step by step, and put side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelwright.ir.node import Node, constant, make, number_of, rebuild, walk
from kernelwright.ir.ops.recurrence import Cell, Operand
from kernelwright.plan.compile.recurrences import NoForm
from kernelwright.plan.lowering.recurrent import leaf
from kernelwright.plan.roles import role
from kernelwright.plan.rolling.matching import Loop

_NORMS = ("layer_norm", "rms_norm")
#: Of the operators that are applied to rows, those that are to all rows of all steps at once.
_LAYERS = ("linear", "matmul", *_NORMS)
#: Of a tensor that has so many times the steps of a loop, only those are multiplied.
_MANY_MORE = 2


@dataclass(frozen=True, slots=True)
class _Moving:
    """An operand that moves: where it is in the first step, and how far it moves in a step."""

    whole: Node
    axis: int
    start: int
    stride: int


def cell_of(loop: Loop, values: Sequence[Node]) -> tuple[Cell, list[Node]]:
    """The cell of a loop, with these ``values`` of its template, and the tensors of its operands. Raises NoForm."""
    return _Builder(loop).cell(values)


@dataclass(slots=True)
class _Builder:
    loop: Loop
    operands: dict[Node, tuple[Operand, Node]] = field(default_factory=dict)  # by leaves of the cell, with tensors
    built: dict[Node, Node | None] = field(default_factory=dict)  # by nodes of the template; None of other types
    states: dict[Node, Node] = field(default_factory=dict)
    handed_on: dict[Node, bool] = field(default_factory=dict)  # whether a state is below a node of the template

    def cell(self, values: Sequence[Node]) -> tuple[Cell, list[Node]]:
        loop, template = self.loop, self.loop.template
        if any(s.dtype != "float32" for s in template.updates):
            raise NoForm("a state of another type")
        self.states = {s: leaf(f"state{n}", s.shape) for n, s in enumerate(template.updates)}
        self.built |= self.states
        for node in walk([*template.updates.values(), *values]):
            found = template.roles.get(node)
            if found is None:
                continue
            self.handed_on[node] = found == "state" or (
                found == "made" and any(self.handed_on.get(i, False) for i in node.inputs))
        updates = [self._needed(update) for update in template.updates.values()]
        shown = [self._needed(value) for value in values]
        initial = [self._initial(state) for state in template.updates]
        used = set(walk([*initial, *updates, *shown]))
        pairs = [pair for x, pair in self.operands.items() if x in used]
        if not pairs:
            raise NoForm("a loop that reads nothing")
        cell = Cell(len(loop.steps), tuple(o for o, _ in pairs), tuple(self.states.values()), tuple(initial),
                    tuple(updates), tuple(shown))
        return cell, [tensor for _, tensor in pairs]

    def _needed(self, root: Node) -> Node:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.built:
                stack.pop()
                continue
            made = self.loop.template.roles[node] == "made"
            missing = [i for i in node.inputs if i not in self.built] if made else []
            if missing:
                stack += missing
            else:
                self.built[node] = self._built(node)
        found = self.built[root]
        if found is None or found.dtype != "float32":
            raise NoForm("a value of another type")
        return found

    def _initial(self, state: Node) -> Node:
        begins = self.loop.initial[state]
        if not isinstance(begins, Node):
            return make("literal", value=begins, shape=state.shape, dtype="float32")
        number = number_of(begins)
        if number is not None and begins.rank:
            return begins
        return self._still(begins)

    def _operand(self, tensor: Node, axis: int | None, start: int = 0, stride: int = 0) -> Node:
        shape = tensor.shape if axis is None else tensor.shape[:axis] + tensor.shape[axis + 1:]
        own = leaf(f"operand{len(self.operands)}", shape)
        self.operands[own] = Operand(own, axis, start, stride), tensor
        return own

    def _still(self, node: Node) -> Node:
        """The leaf for what is the same in all steps."""
        for own, (operand, tensor) in self.operands.items():
            if tensor is node and operand.axis is None:
                return own
        if node.dtype != "float32":
            raise NoForm("an operand of another type")
        return self._operand(node, None)

    def _built(self, node: Node) -> Node | None:
        kind = self.loop.template.roles[node]
        if kind == "same":
            if number_of(node) is not None:
                return node
            if node.dtype == "bool":
                return make("ne", self._operand(_as_numbers(node), None), constant(0.0))
            return self._still(node) if node.dtype == "float32" else None
        if kind == "moves":
            return self._moved(self._moving_part(node), node.dtype)
        inputs = [self.built[i] for i in node.inputs]
        if self.handed_on[node]:
            return self._handed_on(node, inputs)
        if node.op in _LAYERS and self._is_layer(node):
            return self._moved(self._moving(node), node.dtype)
        if all(i is not None for i in inputs) and role(node, frozenset()) in ("pointwise", "view"):
            return rebuild(node, tuple(i for i in inputs if i is not None))
        return self._moved(self._side_by_side(node), node.dtype) if node.dtype in ("float32", "bool") else None

    def _handed_on(self, node: Node, inputs: Sequence[Node | None]) -> Node:
        if any(i is None for i in inputs):
            raise NoForm("an operand of another type")
        known = tuple(i for i in inputs if i is not None)
        if node.op == "linear" and node.inputs[0].op == "concatenate" and self._is_layer(node):
            return self._apart(node, known)
        if node.op == "matmul" and self._is_layer(node):
            weight = make("permute", node.inputs[1], axes=(1, 0))
            return make("linear", known[0], self._still(weight))
        return rebuild(node, known)

    def _apart(self, node: Node, known: Sequence[Node]) -> Node:
        """A layer of values side by side as layers of each; of those without a state it is one for all steps."""
        joined, weight, *bias = node.inputs
        if joined["axis"] != joined.rank - 1:
            raise NoForm("products of rows that are put together")
        result, start = None, 0
        for value in joined.inputs:
            stop = start + value.shape[-1]
            columns = make("slice", weight, axis=1, start=start, stop=stop, step=1)
            if self.handed_on[value]:
                built = self.built[value]
                assert built is not None
                part = make("linear", built, self._still(columns), *(known[2:] if not start else ()))
            elif self.loop.template.roles[value] == "same":
                part = self._still(make("linear", value, columns, *(bias if not start else ())))
            else:
                moving = self._moving(make("linear", value, columns, *(bias if not start else ())), value)
                part = self._moved(moving, "float32")
                assert part is not None
            result, start = part if result is None else make("add", result, part), stop
        assert result is not None
        return result

    def _is_layer(self, node: Node) -> bool:
        """Whether all operands of a layer but the first one are the same in all steps."""
        roles = self.loop.template.roles
        return node.dtype == "float32" and all(i.dtype == "float32" for i in node.inputs) and \
            all(roles[i] == "same" for i in node.inputs[1:]) and (node.op in _NORMS or node.inputs[1].rank == 2)

    def _moved(self, moving: _Moving, dtype: str) -> Node | None:
        if dtype == "bool":
            own = self._operand(_as_numbers(moving.whole), moving.axis, moving.start, moving.stride)
            return make("ne", own, constant(0.0))
        return self._operand(moving.whole, moving.axis, moving.start, moving.stride) if dtype == "float32" else None

    def _moving_part(self, node: Node) -> _Moving:
        template = self.loop.template
        part, stride = template.parts[node], template.strides[node]
        return _Moving(part.whole, part.axis, part.place - stride * (len(self.loop.steps) - 1), stride)

    def _moving(self, node: Node, x: Node | None = None) -> _Moving:
        """A layer of an operand that moves, as one product for all steps. x: its operand in the template."""
        chain = [node]  # layers of layers
        x = node.inputs[0] if x is None else x
        roles = self.loop.template.roles
        while roles[x] == "made" and x.op in _LAYERS and self._is_layer(x):
            chain.append(x)
            x = x.inputs[0]
        if roles[x] == "same":
            raise NoForm("a layer of what is the same in all steps")
        found = self._moving_part(x) if roles[x] == "moves" else self._side_by_side(x)
        whole, axis, start, stride = found.whole, found.axis, found.start, found.stride
        if axis == whole.rank - 1 or (axis and any(layer.op in _NORMS for layer in chain)):
            whole, axis = make("permute", whole, axes=(axis, *range(axis))), 0
        count = (len(self.loop.steps) - 1) * abs(stride) + 1
        if whole.shape[axis] >= _MANY_MORE * count:
            first = min(start, start + (len(self.loop.steps) - 1) * stride)
            whole = make("slice", whole, axis=axis, start=first, stop=first + count, step=1)
            start -= first
        for layer in reversed(chain):
            whole = make(layer.op, whole, *layer.inputs[1:], origin=layer.origin, **dict(layer.attributes))
        return _Moving(whole, axis, start, stride)

    def _side_by_side(self, node: Node) -> _Moving:
        """What each step makes of its operands alone, as one tensor of all steps."""
        if node.dtype not in ("float32", "bool") or any(node not in step for step in self.loop.steps):
            raise NoForm("values of other types, or that a step lacks")
        shape = (1, *node.shape)
        parts = [make("reshape", step[node], shape=shape) for step in self.loop.steps]
        whole = make("concatenate", *parts, axis=0, dtype=node.dtype, shape=(len(parts), *node.shape))
        return _Moving(whole, 0, 0, 1)


def _as_numbers(node: Node) -> Node:
    """Truth values as 0 and 1."""
    return make("cast", node, to="float32", dtype="float32", shape=node.shape)

