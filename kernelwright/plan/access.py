"""Pull: from a point of a kernel's domain down through views and pointwise operators to loads.

Positions along the axes of a node are affine in the domain's loop variables. A reshape that splits
an axis needs the loop variable behind it split as well: :class:`SplitAxis` asks for that, and the
compilation starts again with the finer domain. Where no affine form exists the operand must be
stored first: :class:`MustStore`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.node import Node
from kernelwright.plan.expressions import Apply, Constant, Expression, Guard, Index, Load


class SplitAxis(Exception):
    """The domain's axis number ``axis`` must become two, the inner one of size ``inner``."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(f"axis {axis} by {inner}")
        self.axis, self.inner = axis, inner


class MustStore(Exception):
    """``node`` can't be computed on the fly at this place."""

    def __init__(self, node: Node) -> None:
        super().__init__(repr(node))
        self.node = node


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + sum of coefficient * loop variable; coefficients of all variables, in order."""

    coefficients: tuple[int, ...]
    constant: int = 0

    def __add__(self, other: Affine) -> Affine:
        return Affine(tuple(a + b for a, b in zip(self.coefficients, other.coefficients, strict=True)),
                      self.constant + other.constant)

    def scaled(self, factor: int) -> Affine:
        return Affine(tuple(a * factor for a in self.coefficients), self.constant * factor)

    def shifted(self, offset: int) -> Affine:
        return Affine(self.coefficients, self.constant + offset)


Position = tuple[Affine, ...]


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(prod(shape[i + 1:]) for i in range(len(shape)))


def linear(position: Position, shape: tuple[int, ...], axes: int) -> Affine:
    """The element number of a position in a contiguous tensor."""
    total = Affine((0,) * axes)
    for part, stride, size in zip(position, strides_of(shape), shape, strict=True):
        if size != 1:
            total = total + part.scaled(stride)
    return total


class Puller:
    """Pulls expressions for one kernel.

    domain: sizes of the loop variables, outer then row.
    resolve: gives the expression of a node that this kernel must not compute through (a reduction of
        its own, or None where the node is to be computed), at a position.
    buffer: gives the number of the input buffer of a stored node, or None where it isn't stored.
    """

    def __init__(self, domain: tuple[int, ...], resolve: Callable[[Node, Position], Expression | None],
                 buffer: Callable[[Node], int | None]) -> None:
        self.domain = domain
        self.resolve = resolve
        self.buffer = buffer
        self.memory: dict[tuple[Node, Position], Expression] = {}

    def zero(self) -> Affine:
        return Affine((0,) * len(self.domain))

    def pull(self, node: Node, position: Position, guards: tuple[Guard, ...] = (), fill: float = 0.0) -> Expression:
        """The expression of ``node`` at ``position``."""
        key = (node, position)
        if not guards and key in self.memory:
            return self.memory[key]
        result = self._pull(node, position, guards, fill)
        if not guards:
            self.memory[key] = result
        return result

    def _pull(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float) -> Expression:
        if node.op == "constant":
            return Constant(float(node["value"]))
        known = self.resolve(node, position)
        if known is not None:
            return known
        number = self.buffer(node)
        if number is not None:
            flat = linear(position, node.shape, len(self.domain))
            return Load(number, Index(flat.coefficients, flat.constant), guards, fill)
        if node.kind == "view":
            return self._through_view(node, position, guards, fill)
        if guards:
            raise MustStore(node)
        if node.op == "cast":
            return self.pull(node.inputs[0], position)
        arguments = tuple(self.pull(i, self._broadcast(i, position, node)) for i in node.inputs)
        return Apply(node.op, arguments)

    def _broadcast(self, operand: Node, position: Position, node: Node) -> Position:
        lead = node.rank - operand.rank
        return tuple(self.zero() if size == 1 else position[lead + axis] for axis, size in enumerate(operand.shape))

    def _through_view(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float) -> Expression:
        x = node.inputs[0]
        if node.op == "permute":
            moved: list[Affine] = [self.zero()] * x.rank
            for axis, source in enumerate(node["axes"]):
                moved[source] = position[axis]
            return self.pull(x, tuple(moved), guards, fill)
        if node.op == "expand":
            lead = node.rank - x.rank
            moved = [self.zero() if s == 1 else position[lead + a] for a, s in enumerate(x.shape)]
            return self.pull(x, tuple(moved), guards, fill)
        if node.op == "slice":
            axis = node["axis"]
            moved = list(position)
            moved[axis] = position[axis].scaled(node["step"]).shifted(node["start"])
            return self.pull(x, tuple(moved), guards, fill)
        if node.op == "windows":
            return self._through_windows(node, position)
        return self._through_reshape(node, position, guards, fill)

    def _through_windows(self, node: Node, position: Position) -> Expression:
        x, rank = node.inputs[0], len(node["kernel"])
        first = x.rank - rank
        moved, guards = list(position[:first]), []
        for i in range(rank):
            at = position[first + i].scaled(node["stride"][i]) + position[x.rank + i].scaled(node["dilation"][i])
            at = at.shifted(-node["padding"][i])
            if node["padding"][i]:
                guards.append(Guard(Index(at.coefficients, at.constant), x.shape[first + i]))
            moved.append(at)
        return self.pull(x, tuple(moved), tuple(guards), node["fill"])

    def _through_reshape(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float) -> Expression:
        x = node.inputs[0]
        if self.buffer(x) is not None and self.resolve(x, position) is None:
            flat = linear(position, node.shape, len(self.domain))
            return Load(self.buffer(x), Index(flat.coefficients, flat.constant), guards, fill)
        return self.pull(x, self.reshaped(position, node.shape, x), guards, fill)

    def reshaped(self, position: Position, shape: tuple[int, ...], x: Node) -> Position:
        """The position in ``x`` of an element that stands at ``position`` in a reshape of x to ``shape``.

        Raises MustStore(x) where it is not affine, SplitAxis where it is on a finer domain.
        """
        groups = axis_groups(x.shape, shape)
        if groups is None:
            raise MustStore(x)
        moved = [self.zero()] * x.rank
        for left, right in groups:
            wide = [a for a in left if x.shape[a] != 1]
            if not wide:
                continue
            sizes = tuple(shape[a] for a in right)
            flat = linear(tuple(position[a] for a in right), sizes, len(self.domain))
            digits = self._digits(flat, tuple(x.shape[a] for a in wide), x)
            for axis, digit in zip(wide, digits, strict=True):
                moved[axis] = digit
        return tuple(moved)

    def _digits(self, value: Affine, sizes: tuple[int, ...], node: Node) -> list[Affine]:
        """``value`` as a mixed-radix number: one affine digit per size, most significant first."""
        if len(sizes) == 1:
            return [value]
        if value.constant:
            raise MustStore(node)
        strides = strides_of(sizes)
        digits = [[0] * len(self.domain) for _ in sizes]
        for axis, coefficient in enumerate(value.coefficients):
            if coefficient == 0 or self.domain[axis] == 1:
                continue
            place = next((i for i, s in enumerate(strides) if coefficient % s == 0 and coefficient >= s), None)
            if coefficient < 0 or place is None:
                raise MustStore(node)
            inner = strides[place] * sizes[place] // coefficient
            if inner < self.domain[axis]:
                if inner <= 1 or self.domain[axis] % inner:
                    raise MustStore(node)
                raise SplitAxis(axis, inner)
            digits[place][axis] = coefficient // strides[place]
        for digit, size in zip(digits, sizes, strict=True):
            if sum(c * (self.domain[a] - 1) for a, c in enumerate(digit)) >= size:
                raise MustStore(node)
        return [Affine(tuple(d)) for d in digits]
