"""Reading through copies that put a tensor together from pieces: concatenation, padding, rolling, triangles.

An element of such a copy is the sum over its pieces of what each has there, where a piece has its neutral value
outside of its own part. Beside one another pieces have -0.0: x + -0.0 = x for every x, NaN and both zeros included.
A load gives this value by its guards; a pointwise operator in between gives it where its operands have values that
it maps to it (:func:`operand_fills`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import copysign, isfinite
from typing import Protocol

import torch

from kernelwright.ir.node import Node, number_of
from kernelwright.ir.registry import torch_dtype
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Guard, Index

#: Copies that kernels read through; every one is declared opaque, as it costs memory traffic by itself.
COPIES = ("concatenate", "pad", "roll", "triangle", "upsample_nearest")
_NEUTRAL = -0.0
# Every element tests the guards of all pieces: beyond this many, PyTorch's copy is cheaper.
_MOST_PIECES = 4


class Place(Protocol):
    """A place along an axis, as far as guards ask: `reading.access.Affine`, whose module imports this one."""

    @property
    def coefficients(self) -> tuple[int, ...]: ...

    @property
    def constant(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What ``source`` has at ``position``, where ``guards`` hold; ``fill`` elsewhere."""

    source: Node
    position: tuple
    guards: tuple[Guard, ...]
    fill: float


def can_read_through(node: Node) -> bool:
    """Whether a kernel may read the operands of this copy in its place. A triangle of what is written out is a mask:
    made once, it is read like any tensor, also by what is read under other guards."""
    if node.op not in COPIES or (node.op == "triangle" and node.inputs[0].op == "literal"):
        return False
    pieces = len(node.inputs) if node.op == "concatenate" else 2 ** len(node["axes"]) if node.op == "roll" else 1
    return pieces <= _MOST_PIECES


def pieces(node: Node, position: tuple) -> list[Piece]:
    """The pieces of a concatenation, padded or rolled tensor, or triangle, at an affine position."""
    if node.op == "concatenate":
        return _concatenated(node, position)
    x = node.inputs[0]
    if node.op == "pad":
        moved = [p.shifted(-before) for p, (before, _) in zip(position, node["amounts"], strict=True)]
        guards = tuple(_inside(p, s) for p, s, a in zip(moved, x.shape, node["amounts"], strict=True) if any(a))
        value = torch.tensor(node["value"], dtype=torch_dtype(node.dtype)).item()
        return [Piece(x, tuple(moved), guards, float(value))]
    if node.op == "triangle":
        across, down = position[-1], position[-2]
        distance = (down + across.scaled(-1)).shifted(node["diagonal"])  # not negative in the lower triangle
        distance = distance if node["lower"] else distance.scaled(-1)
        return [Piece(x, position, (_inside(distance, sum(x.shape[-2:]) + abs(node["diagonal"]) + 1),), 0.0)]
    return _rolled(node, position)


def _concatenated(node: Node, position: tuple) -> list[Piece]:
    axis, start, result = node["axis"], 0, []
    for x in node.inputs:
        at = position[axis].shifted(-start)
        moved = (*position[:axis], at, *position[axis + 1:])
        result.append(Piece(x, moved, (_inside(at, x.shape[axis]),), _NEUTRAL))
        start += x.shape[axis]
    return result


def _rolled(node: Node, position: tuple) -> list[Piece]:
    x = node.inputs[0]
    result = []
    for wraps in product((False, True), repeat=len(node["axes"])):
        moved, guards = list(position), []
        for axis, shift, wraps_here in zip(node["axes"], node["shifts"], wraps, strict=True):
            moved[axis] = position[axis].shifted(x.shape[axis] * wraps_here - shift % max(1, x.shape[axis]))
            guards.append(_inside(moved[axis], x.shape[axis]))
        result.append(Piece(x, tuple(moved), tuple(guards), _NEUTRAL))
    return result


def _inside(position: Place, size: int) -> Guard:
    return Guard(Index(position.coefficients, position.constant), size)


def operand_fills(node: Node, fill: float) -> tuple[float, ...] | None:
    """Values of a pointwise operator's operands for which its result is exactly ``fill``; None if none is known.

    Operands that are one number keep it.
    """
    given = tuple(None if (n := number_of(i)) is None else float(n) for i in node.inputs)
    return _fills(node.op, given, repr(float(fill))) if node.op in FUNCTIONS else None


@cache
def _fills(function: str, given: tuple[float | None, ...], text: str) -> tuple[float, ...] | None:
    fill = float(text)  # as text, because 0.0 and -0.0 are one key
    candidates = [fill, -fill, 0.0, -0.0, 1.0] if isfinite(fill) else [fill, -fill, 1.0]
    for values in product(*([v] if v is not None else candidates for v in given)):
        result = float(FUNCTIONS[function].reference(*(torch.tensor(v, dtype=torch.float64) for v in values)))
        if result == fill and copysign(1.0, result) == copysign(1.0, fill):
            return values
    return None
