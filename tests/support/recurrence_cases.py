"""Recurrences to try kernels on: the layers of torch.nn, and cells that are written out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kernelwright.ir.node import Node, make
from kernelwright.ir.ops.recurrence import Cell, Operand, recurrence
from kernelwright.plan.compile.recurrences import compile_recurrence
from kernelwright.plan.kernels import Recurrence
from kernelwright.plan.lowering.recurrent import cell_of, leaf

KINDS = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


@dataclass(frozen=True)
class Case:
    """A recurrence and its results, as (value, axis, reverse); ``shapes``: of its inputs."""

    name: str
    cell: Cell
    shapes: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, int | None, bool], ...]

    @property
    def nodes(self) -> list[Node]:
        inputs = [leaf(f"in{n}", shape) for n, shape in enumerate(self.shapes)]
        return [make("recurrence", *inputs, cell=self.cell, value=value, axis=axis, reverse=reverse)
                for value, axis, reverse in self.results]

    @property
    def kernel(self) -> Recurrence:
        return compile_recurrence(self.nodes, range(len(self.shapes)))


def layer(kind: str, steps: int, batch: int, hidden: int, *, reverse: bool = False, batch_first: bool = False,
          given: Sequence[str] = ("bias", "state", "memory"), results: Sequence[str] = ("states", "memory")) -> Case:
    """A recurrence of a layer of torch.nn; one without memory is given none and has none."""
    remembers, width = kind == "lstm", KINDS[kind] * hidden
    gates = leaf("gates", (batch, steps, width) if batch_first else (steps, batch, width))
    weight, bias = leaf("weight", (width, hidden)), [leaf("bias", (width,))] if "bias" in given else []
    initial = [leaf(name, (batch, hidden)) if name in given else None
               for name in (("state", "memory") if remembers else ("state",))]
    cell, operands = cell_of(f"aten.{kind}.input", gates, batch_first, reverse, weight, bias, initial)
    found = {"states": (0, 0, reverse), "memory": (1, None, False)}
    return Case(kind, cell, tuple(o.shape for o in operands),
                tuple(found[r] for r in results if r == "states" or remembers))


def cell(name: str, steps: int, shape: tuple[int, ...], operands: Sequence[tuple],
         step: Callable[..., tuple[Sequence[Node], Sequence[Node]]], initial: Sequence[int | float],
         results: Sequence[tuple[int, int | None, bool]]) -> Case:
    """A cell written out. operands: shape, then axis, start and stride where it has steps. step: gets the states and
    the leaves, and gives updates and other values; initial: numbers of operands, or numbers."""
    leaves = [leaf(f"operand{n}", tuple(s for a, s in enumerate(o[0]) if len(o) == 1 or a != o[1]))
              for n, o in enumerate(operands)]
    states = [leaf(f"state{n}", shape) for n in range(len(initial))]
    updates, values = step(*states, *leaves)
    begin = tuple(leaves[i] if isinstance(i, int) else make("literal", value=i, shape=shape, dtype="float32")
                  for i in initial)
    made = Cell(steps, tuple(Operand(x, *o[1:]) for x, o in zip(leaves, operands, strict=True)), tuple(states), begin,
                tuple(updates), (*updates, *values))
    return Case(name, made, tuple(o[0] for o in operands), tuple(results))


def tensors(case: Case) -> list[torch.Tensor]:
    """What a kernel reads, drawn so that gates are neither all open nor all shut."""
    generator = torch.Generator().manual_seed(case.cell.steps + sum(map(sum, case.shapes)))
    return [torch.randn(shape, generator=generator) / (shape[-1] ** 0.5 if shape[-2:] == (shape[-1],) * 2 or n == 1
                                                       else 1.0) for n, shape in enumerate(case.shapes)]


def expected(case: Case, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [recurrence(*(t.double() for t in inputs), **dict(node.attributes)) for node in case.nodes]
