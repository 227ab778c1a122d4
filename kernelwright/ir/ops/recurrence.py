"""The recurrence of a loop: what its states become, step by step.

Only lowering introduces it, of the layers of ``torch.nn`` (:mod:`kernelwright.plan.lowering.recurrent`) and of loops
that are written out; it has no torch call and needs its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import literal_tensor
from kernelwright.ir.ops.special import not_torch
from kernelwright.ir.registry import Applied, declare


@dataclass(frozen=True, slots=True)
class Operand:
    """A leaf that stands in a step for an input of the recurrence: for all of it, or where it has an ``axis`` of steps,
    for what it has there at place ``start + t * stride`` in step t, without that axis."""

    leaf: Node
    axis: int | None = None
    start: int = 0
    stride: int = 0

    def at(self, tensor: torch.Tensor, step: int) -> torch.Tensor:
        """The leaf's value in a step."""
        return tensor if self.axis is None else tensor.select(self.axis, self.start + step * self.stride)


@dataclass(frozen=True, slots=True, repr=False)
class Cell:
    """What a loop computes in a step, as a graph of its own, whose leaves are ``states`` and those of ``operands``.

    operands: one for each input of the recurrence. initial: the states before the first step, of operands without an
    axis of steps. updates: the states after a step. values: what results may be of a step.
    """

    steps: int
    operands: tuple[Operand, ...]
    states: tuple[Node, ...]
    initial: tuple[Node, ...]
    updates: tuple[Node, ...]
    values: tuple[Node, ...]

    def __repr__(self) -> str:
        """All that tells this cell from others: every node by its number."""
        leaves = [(o.leaf, f"operand{n} {o.axis, o.start, o.stride}") for n, o in enumerate(self.operands)]
        words = dict([*leaves, *((state, f"state{n}") for n, state in enumerate(self.states))])
        numbers: dict[Node, int] = {}
        parts = []
        for node in walk((*words, *self.initial, *self.updates, *self.values)):
            numbers[node] = len(numbers)
            shown = words.get(node) or f"{node.op}{[numbers[i] for i in node.inputs]}{node.attributes}"
            parts.append(f"{shown} {node.dtype}{list(node.shape)}")
        ends = [[numbers[n] for n in nodes] for nodes in (self.initial, self.updates, self.values)]
        return f"Cell<{self.steps} steps; {'; '.join(parts)}; {ends}>"

    @property
    def shape(self) -> tuple[int, ...]:
        """The states' shape."""
        return self.states[0].shape


def evaluated(roots: Sequence[Node], leaves: dict[Node, torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """What nodes of a cell are where its leaves have these values."""
    found: dict[Node, torch.Tensor] = dict(leaves)
    for node in walk(roots):
        if node in found:
            continue
        if node.op == "constant":
            found[node] = node["value"]
        elif node.op == "literal":
            found[node] = literal_tensor(node, device)
        else:
            found[node] = node.operator.reference(*(found[i] for i in node.inputs), **dict(node.attributes))
    return [found[root] for root in roots]


def recurrence(*inputs: torch.Tensor, cell: Cell, value: int, axis: int | None, reverse: bool) -> torch.Tensor:
    """Value number ``value`` of the cell: of the last step where ``axis`` is None, else of all steps along this axis of
    the result, those of later steps first where ``reverse``."""
    shown, first = cell.values[value], inputs[0]
    shape = shown.shape if axis is None else (*shown.shape[:axis], cell.steps, *shown.shape[axis:])
    if first.is_meta:  # its type, without a walk over the steps
        return first.new_empty(shape)
    pairs = list(zip(cell.operands, inputs, strict=True))
    still = {o.leaf: tensor for o, tensor in pairs if o.axis is None}
    states = [s.to(first.dtype).expand(cell.shape) for s in evaluated(cell.initial, still, first.device)]
    found: list[torch.Tensor] = []
    for step in range(cell.steps):
        leaves = {o.leaf: o.at(tensor, step) for o, tensor in pairs} | dict(zip(cell.states, states, strict=True))
        one, *states = evaluated((shown, *cell.updates), leaves, first.device)
        found.append(one)
    return found[-1] if axis is None else torch.stack(found[::-1] if reverse else found, axis)


def _operations(node: Applied) -> int:
    cell: Cell = node["cell"]
    return cell.steps * sum(n.operator.operations(n) for n in walk((*cell.updates, *cell.values)))


declare("recurrence", "special", recurrence, not_torch, operations=_operations)
