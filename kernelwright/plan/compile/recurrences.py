"""From the nodes of a recurrence to its record: the graph of a step as expressions of loads, states and gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.recurrence import Cell
from kernelwright.plan.expressions import Apply, Expression, Index, Load, Reduced, replaced
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.kernels import Recurrence, Store, Weight
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear, strides_of
from kernelwright.plan.roles import role

#: What a kernel computes and reads in a step at most, in nodes: its states stay in registers.
MOST_NODES = 200
#: Gates of a step, whose sums stay in registers, too.
MOST_GATES = 7
_TYPES = ("float32", "bool", "scalar")


class NoForm(Exception):
    """A cell is none that a kernel computes: it has products of several states, or of what is no state, or reductions;
    or an operand that no affine index finds."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A linear layer of a state in a step: where its gates begin, and how many it has."""

    state: Node
    weight: Node
    first: int
    gates: int


def compile_recurrence(nodes: Sequence[Node], buffers: Sequence[int]) -> Recurrence:
    """The record of a kernel whose outputs are ``nodes``, the results of one recurrence. buffers: the number of the
    kernel's input that each operand is. Raises NoForm."""
    try:
        return _Compiler(nodes[0]["cell"], nodes[0].inputs, buffers).record(nodes)
    except (MustStore, SplitAxis) as problem:
        raise NoForm(str(problem)) from problem


class _Compiler:
    """The expressions of one cell. Axes of indices are t, then those of the states' shape."""

    def __init__(self, cell: Cell, operands: Sequence[Node], buffers: Sequence[int]) -> None:
        self.cell, self.buffers = cell, buffers
        self.domain = (cell.steps, *cell.shape)
        self.operands = {o.leaf: n for n, o in enumerate(cell.operands)}
        self.shapes = [o.shape for o in operands]
        body, shown = list(walk((*cell.initial, *cell.updates, *cell.values))), (*cell.updates, *cell.values)
        if len(body) > MOST_NODES or any(n.dtype not in _TYPES for n in body) \
                or any(n.shape != cell.shape or n.dtype != "float32" for n in (*cell.states, *shown)):
            raise NoForm("a cell of too many operators, or of other types and shapes")
        self.products = self._products(body)
        known = {*cell.states, *self.operands, *self.products}
        if any(n not in known and role(n, frozenset()) not in ("pointwise", "view", "number", "leaf") for n in body) \
                or any(n.kind == "leaf" and n not in known and n.op not in ("constant", "literal") for n in body):
            raise NoForm("a cell with operators that no element of its states has alone")
        first = {p.state for p in self.products.values()}
        self.order = sorted(range(len(cell.states)), key=lambda s: cell.states[s] not in first)
        self.states = {cell.states[s]: Reduced(0, n) for n, s in enumerate(self.order)}
        self.puller = Puller(self.domain, self._resolve, lambda node: None, fuses=bool(self.products))

    def _products(self, body: Sequence[Node]) -> dict[Node, _Product]:
        """The linear layers of a step, all of one state."""
        found: dict[Node, _Product] = {}
        first: dict[Node, int] = {}  # gate of a weight
        gates, hidden = 0, self.cell.shape[-1] if self.cell.shape else 1
        for node in body:
            if node.op != "linear":
                continue
            state, weight, *bias = node.inputs
            if state not in self.cell.states or any(self._moves(i) for i in (weight, *bias)) \
                    or weight.shape[0] % hidden or any(p.state is not state for p in found.values()):
                raise NoForm("products that are not of one state, with weights of its elements")
            if weight not in first:
                first[weight] = gates
                gates += weight.shape[0] // hidden
                if gates > MOST_GATES:
                    raise NoForm("more gates than registers hold sums of")
            found[node] = _Product(state, weight, first[weight], weight.shape[0] // hidden)
        return found

    def _moves(self, leaf: Node) -> bool:
        """Whether a node is no operand, or one that differs from step to step."""
        return leaf not in self.operands or self.cell.operands[self.operands[leaf]].axis is not None

    def _axis(self, axis: int, stride: int = 1) -> Affine:
        return Affine(tuple(stride * (a == axis) for a in range(len(self.domain))))

    def _resolve(self, node: Node, position: Position) -> Expression | None:
        if node in self.states:
            if any(p != self._axis(a + 1) for a, p in enumerate(position) if node.shape[a] != 1):
                raise MustStore(node)
            return self.states[node]
        if node in self.operands:
            number = self.operands[node]
            operand = self.cell.operands[number]
            if operand.axis is not None:
                along = self._axis(0, operand.stride).shifted(operand.start)
                position = (*position[:operand.axis], along, *position[operand.axis:])
            flat = linear(position, self.shapes[number], len(self.domain))
            return Load(self.buffers[number], Index(flat.coefficients, flat.constant))
        if node not in self.products:
            return None
        product, hidden = self.products[node], self.cell.shape[-1]
        unit = Affine((*(0,) * (len(self.domain) - 1), int(hidden > 1)))
        gate, rest = divmod(position[-1].constant, hidden)
        if rest or replace(position[-1], constant=0) != unit or gate >= product.gates or any(
                p != self._axis(a + 1) for a, p in enumerate(position[:-1]) if node.shape[a] != 1):
            raise MustStore(node)
        value: Expression = Reduced(1, product.first + gate)
        if len(node.inputs) == 3:
            value = Apply("add", (value, self.puller.pull(node.inputs[2], position[-1:])))
        return value

    def record(self, nodes: Sequence[Node]) -> Recurrence:
        """The kernel that stores these results. Raises MustStore and SplitAxis."""
        cell = self.cell
        def pulled(node: Node) -> Expression:
            lead = len(cell.shape) - node.rank  # an initial state may be one for all rows
            return self.puller.pull(node, tuple(self.puller.zero() if size == 1 else self._axis(lead + axis + 1)
                                                for axis, size in enumerate(node.shape)))

        initial = tuple(pulled(cell.initial[s]) for s in self.order)
        updates = tuple(pulled(cell.updates[s]) for s in self.order)
        stores = tuple(Store(n, self._place(node), pulled(cell.values[node["value"]])) for n, node in enumerate(nodes))
        weights = {p.first: Weight(self.buffers[self.operands[p.weight]], p.gates) for p in self.products.values()}
        types = ("float32",) * len(set(self.buffers)), ("float32",) * len(nodes)
        record = Recurrence(cell.steps, cell.shape, tuple(weights[first] for first in sorted(weights)), initial,
                            updates, stores, *types)
        if any(isinstance(e, Load) and e.guards for e in _expressions(record)):
            raise NoForm("operands that are put together from pieces")
        return _merged(record)

    def _place(self, node: Node) -> Index:
        """Where a result has what it shows of a point."""
        shape, steps = self.cell.shape, self.cell.steps
        if node["axis"] is None:
            return Index((0, *strides_of(shape)))
        axis, strides = node["axis"], strides_of(node.shape)
        stride = -strides[axis] if node["reverse"] else strides[axis]
        return Index((stride, *strides[:axis], *strides[axis + 1:]), strides[axis] * (steps - 1) * node["reverse"])


def _expressions(record: Recurrence) -> list[Expression]:
    roots = (*record.initial, *record.updates, *(s.expression for s in record.stores))
    return list(walk_expression(*roots))


def _merged(record: Recurrence) -> Recurrence:
    """Neighbouring axes joined wherever all indices pass from one to the next contiguously: with weights all but the
    last, which become one. Raises NoForm where they do not."""
    indices = [s.index for s in record.stores]
    indices += [e.index for e in _expressions(record) if isinstance(e, Load)]
    rank, groups = len(record.shape), list[list[int]]()
    for axis, size in enumerate(record.shape):
        if record.weights and axis == rank - 1:
            groups = [*(groups or [[]]), [axis]]
        elif size != 1 and groups and all(i.strides[groups[-1][-1] + 1] == i.strides[axis + 1] * size for i in indices):
            groups[-1].append(axis)
        elif size != 1:
            groups.append([axis])
    groups = groups or [[]]
    if record.weights and len(groups) != 2:
        raise NoForm("a batch of several axes that are not one")

    def change(index: Index) -> Index:
        return Index((index.strides[0], *(index.strides[g[-1] + 1] if g else 0 for g in groups)), index.offset)

    def moved(node: Expression) -> Expression | None:
        return replace(node, index=change(node.index)) if isinstance(node, Load) else None

    memo: dict[Expression, Expression] = {}
    return replace(
        record, shape=tuple(prod(record.shape[a] for a in g) for g in groups),
        initial=tuple(replaced(e, moved, memo) for e in record.initial),
        updates=tuple(replaced(e, moved, memo) for e in record.updates),
        stores=tuple(Store(s.buffer, change(s.index), replaced(s.expression, moved, memo)) for s in record.stores))
