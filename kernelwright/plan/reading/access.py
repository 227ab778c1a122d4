"""Pull: from a point of a kernel's domain down through views and pointwise operators to loads.

Positions along the axes of a node are affine in the domain's loop variables. A reshape that splits
an axis needs the loop variable behind it split as well: :class:`SplitAxis` asks for that, and the
compilation starts again with the finer domain. Where no affine form exists the operand must be
stored first: :class:`MustStore`.

Rounding. PyTorch computes each operator on float16 and bfloat16 in float32 and rounds its result; a kernel keeps
what it fuses in float32, which is never less accurate, and rounds where it stores and where the model converts.
Where a rounding decides a whole step (a comparison, a floor, a conversion to integers: ``JUMPS``) more digits are
no gain: x == x.half().float() must not depend on what is fused. What such an operator sees is therefore computed
again with every operator's result rounded, so that it sees what PyTorch's sees. The same holds where the model goes
on in a wider type, whose digits show every rounding before, of what an extremum is taken of (`reading.settled`), and
beside numbers that leave the range of 16 bits: sin(x * 1e6) is NaN in float16.
Casts round wherever a model asks for fewer digits than its values have, and where a model mixes float64 with narrower
types each operator's result is rounded to its own type: float32 overflows where float64 does not. Compilers fuse no
product into a sum or a difference, which would then see a product that is not rounded: a b - b a is zero, and 10 x - 1
is where 10 x rounds to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod

import torch

from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.node import Node, number_of
from kernelwright.ir.ops.windows import reaches_beyond
from kernelwright.ir.recursion import Task, run
from kernelwright.ir.registry import ITEM_BYTES, torch_dtype
from kernelwright.ir.scalar import INTEGERS, JUMPS, ROUNDINGS, UNFUSED
from kernelwright.plan.expressions import (
    Apply,
    Constant,
    Expression,
    Guard,
    Index,
    Load,
    Whole,
    element,
    ends_in_product,
)
from kernelwright.plan.reading.activations import as_one_function
from kernelwright.plan.reading.pieces import COPIES, operand_fills, pieces
from kernelwright.plan.reading.settled import is_jump
from kernelwright.plan.reading.typed import applied, converted, leaves_range, number_type


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


def _load(node: Node, number: int, flat: Affine, guards: tuple[Guard, ...], fill: float) -> Load:
    return Load(number, Index(flat.coefficients, flat.constant), guards, fill, node.dtype in INTEGERS)


class Puller:
    """Pulls expressions for one kernel.

    domain: sizes of the loop variables, outer then row.
    resolve: gives the expression of a node that this kernel must not compute through (a reduction of
        its own, or None where the node is to be computed), at a position.
    buffer: gives the number of the input buffer of a stored node, or None where it isn't stored.
    compute: the type of the kernel's arithmetic.
    strict: whether the model itself computes in that type and in narrower ones.
    fuses: whether compilers may fuse products into sums: where either is a contraction's anyway.
    settled: results that are rounded as PyTorch rounds them, with all that they are computed from on the fly.
    looks_up: whether the kernel may compute which element of a buffer it reads.
    """

    def __init__(self, domain: tuple[int, ...], resolve: Callable[[Node, Position], Expression | None],
                 buffer: Callable[[Node], int | None], compute: str = "float32", strict: bool = False,
                 fuses: bool = False, settled: Collection[Node] = (),
                 looks_up: bool = False) -> None:
        self.domain = domain
        self.resolve = resolve
        self.buffer = buffer
        self.compute = compute
        self.strict = strict
        self.fuses = fuses
        self.settled = settled
        self.looks_up = looks_up
        self.rounding = False  # whether every operator's result is rounded, as a jump above asks for
        self.guarded: Node | None = None  # the pointwise operator that is being computed under guards, if any
        self.copied: Node | None = None  # the copy whose pieces are being read, if any
        self.memory: dict[tuple, Expression] = {}

    def zero(self) -> Affine:
        return Affine((0,) * len(self.domain))

    def pull(self, node: Node, position: Position) -> Expression:
        """The expression of ``node`` at ``position``. Raises MustStore and SplitAxis."""
        return run(self._pull(node, position))

    def _pull(self, node: Node, position: Position, guards: tuple[Guard, ...] = (), fill: float = 0.0
              ) -> Task[Expression]:
        """The expression of ``node`` at ``position``, or ``fill`` where a guard fails."""
        key = (node, position, guards, repr(fill), self.rounding, self.guarded, self.copied)
        if key not in self.memory:
            self.memory[key] = yield self._pulled(node, position, guards, fill)
        return self.memory[key]

    def _pulled(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float
                ) -> Task[Expression]:
        if node.op == "constant":
            return Constant(float(node["value"]))
        known = self.resolve(node, position)
        if known is not None:
            if self.guarded is not None:
                raise MustStore(self.guarded)
            if guards and self.copied is not None:  # a result of this kernel has no guards: the copy is made
                raise MustStore(self.copied)
            return self._rounded(known, node) if self.rounding or self.strict or node in self.settled else known
        if node.op == "literal" and number_of(node) is not None and not guards:
            value = Whole(int(node["value"])) if node.dtype in INTEGERS else Constant(float(node["value"]))
            return self._rounded(value, node) if self.rounding or self.strict else value
        number = self.buffer(node)
        if number is not None:
            flat = linear(position, node.shape, len(self.domain))
            return _load(node, number, flat, guards, fill)
        if node.kind == "view":
            return (yield self._through_view(node, position, guards, fill))
        if node.op in COPIES:
            return (yield self._through_copy(node, position, guards, fill))
        if node.op == "literal":
            raise MustStore(node)
        if node.op == "lookup":
            if guards or not self.looks_up:
                raise MustStore(self.guarded or node)
            return (yield self._looked_up(node, position))
        if guards:
            return (yield self._under_guards(node, position, guards, fill))
        if node.op == "copy":
            return (yield self._pull(node.inputs[0], position))
        exactly = is_jump(node) or widens(node) or node in self.settled
        before, self.rounding = self.rounding, self.rounding or exactly
        try:
            if node.op == "cast":
                value = converted(node, (yield self._pull(node.inputs[0], position)), self.compute)
                return self._rounded(value, node) if self.rounding or _narrows(node) else value
            arguments = []
            for operand in node.inputs:
                arguments.append((yield self._operand(operand, position, node)))
            value = applied(node, tuple(arguments), self.compute)
            exactly = self.rounding or self.strict or leaves_range(node)
            if not exactly or ITEM_BYTES[node.dtype] >= ITEM_BYTES[self.compute]:
                one = node.op in ("mul", "div", "reciprocal")
                return as_one_function(value, self.compute) if one else self._unfused(value)
            return self._rounded(self._unfused(value), node)
        finally:
            self.rounding = before

    def _unfused(self, value: Expression) -> Expression:
        """``value``, into which compilers fuse no product."""
        if self.fuses or not isinstance(value, Apply) or value.function not in UNFUSED \
                or not any(map(ends_in_product, value.arguments)):
            return value
        return Apply(UNFUSED[value.function].name, value.arguments)

    def _under_guards(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float
                      ) -> Task[Expression]:
        """A pointwise operator of loads that are guarded so that the result is ``fill`` where a guard fails."""
        outermost = self.guarded or node
        whole = any(i.dtype in INTEGERS for i in (node, *node.inputs))
        narrowed = any(_is_narrowed(i, node) for i in node.inputs) or leaves_range(node)
        exactly = self.rounding or node.op in JUMPS or node in self.settled
        fills = None if exactly or whole or narrowed else \
            (fill,) if node.op == "cast" and node.dtype.startswith(("float", "bfloat")) else operand_fills(node, fill)
        if fills is None:
            raise MustStore(outermost)
        before, self.guarded = self.guarded, outermost
        try:
            arguments = []
            for operand, value in zip(node.inputs, fills, strict=True):
                arguments.append((yield self._pull(operand, self._broadcast(operand, position, node),
                                                   guards if number_of(operand) is None else (), value)))
        finally:
            self.guarded = before
        if node.op != "cast":
            value = self._unfused(Apply(node.op, tuple(arguments)))
            return self._rounded(value, node) if self.strict else value
        return self._rounded(arguments[0], node) if _narrows(node) else arguments[0]

    def _looked_up(self, node: Node, position: Position) -> Task[Expression]:
        """The element of a stored tensor whose numbers indices give along some axes."""
        x, places, *indices = node.inputs
        number = self.buffer(x)
        if number is None:
            raise MustStore(x)
        place: Expression | None = None
        for axis, (size, stride, to) in enumerate(zip(x.shape, strides_of(x.shape), node["along"], strict=True)):
            if size == 1:
                continue
            if axis in node["axes"]:
                index = indices[node["axes"].index(axis)]
                part = yield self._pull(index, self._broadcast(index, position, node))
                part = part if node["within"] else _within(size, part, node["wraps"])
            elif (counted := self.buffer(places)) is not None:
                at = Index(position[to].coefficients, position[to].constant)
                part = Load(counted, at, whole=True, counts=True)
            else:
                raise MustStore(places)
            part = part if stride == 1 else Apply("whole_mul", (part, Whole(stride)))
            place = part if place is None else Apply("whole_add", (place, part))
        return element(number, Whole(0) if place is None else place, node.dtype in INTEGERS)

    def _operand(self, operand: Node, position: Position, node: Node) -> Task[Expression]:
        value = yield self._pull(operand, self._broadcast(operand, position, node))
        dtype = number_type(node)
        if ITEM_BYTES[dtype] >= ITEM_BYTES[self.compute]:
            return value
        if type(value) is Constant:
            seen = node.op in JUMPS or self.rounding or self.strict
            return Constant(torch.tensor(value.value, dtype=torch_dtype(dtype)).item()) if seen else value
        return Apply(f"round_{dtype}", (value,)) if _is_narrowed(operand, node) else value

    def _rounded(self, value: Expression, node: Node) -> Expression:
        """``value`` rounded to the node's type, where the kernel's arithmetic is finer."""
        if not node.dtype.startswith(("float", "bfloat")) or ITEM_BYTES[node.dtype] >= ITEM_BYTES[self.compute] \
                or (isinstance(value, Load) and node.op != "cast"):
            return value
        name = f"round_{node.dtype}"
        return value if isinstance(value, Apply) and value.function == name else Apply(name, (value,))

    def _broadcast(self, operand: Node, position: Position, node: Node) -> Position:
        lead = node.rank - operand.rank
        return tuple(self.zero() if size == 1 else position[lead + axis] for axis, size in enumerate(operand.shape))

    def _through_view(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float
                      ) -> Task[Expression]:
        x = node.inputs[0]
        if node.op == "permute":
            moved: list[Affine] = [self.zero()] * x.rank
            for axis, source in enumerate(node["axes"]):
                moved[source] = position[axis]
            return self._pull(x, tuple(moved), guards, fill)
        if node.op == "expand":
            lead = node.rank - x.rank
            moved = [self.zero() if s == 1 else position[lead + a] for a, s in enumerate(x.shape)]
            return self._pull(x, tuple(moved), guards, fill)
        if node.op == "flip":
            moved = list(position)
            for axis in node["axes"]:
                moved[axis] = position[axis].scaled(-1).shifted(x.shape[axis] - 1)
            return self._pull(x, tuple(moved), guards, fill)
        if node.op == "slice":
            axis = node["axis"]
            moved = list(position)
            moved[axis] = position[axis].scaled(node["step"]).shifted(node["start"])
            return self._pull(x, tuple(moved), guards, fill)
        if node.op == "windows":
            return self._through_windows(node, position)
        if node.op == "unfold":
            moved = list(position[:-1])
            moved[node["axis"]] = moved[node["axis"]].scaled(node["step"]) + position[-1]
            return self._pull(x, tuple(moved), guards, fill)
        if node.op == "diagonal":
            first, second = node["axes"]
            moved = list(position[:-1])
            for axis, shift in sorted(((first, max(-node["offset"], 0)), (second, max(node["offset"], 0)))):
                moved.insert(axis, position[-1].shifted(shift))
            return self._pull(x, tuple(moved), guards, fill)
        return self._through_reshape(node, position, guards, fill)

    def _through_copy(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float
                      ) -> Task[Expression]:
        if node.op == "upsample_nearest":
            moved = list(position)
            for axis, factor in enumerate(node["factors"], node.rank - len(node["factors"])):
                if factor != 1:
                    moved[axis] = self._digits(position[axis], (node.inputs[0].shape[axis], factor), node)[0]
            return (yield self._pull(node.inputs[0], tuple(moved), guards, fill))
        if guards:
            raise MustStore(self.guarded or node)
        before, self.copied = self.copied, node
        try:
            parts = []
            for piece in pieces(node, position):
                parts.append((yield self._pull(piece.source, piece.position, piece.guards, piece.fill)))
        finally:
            self.copied = before
        result = parts[0]
        for part in parts[1:]:
            result = Apply("add", (result, part))
        return result

    def _through_windows(self, node: Node, position: Position) -> Task[Expression]:
        x, rank = node.inputs[0], len(node["kernel"])
        first = x.rank - rank
        moved, guards = list(position[:first]), []
        for i in range(rank):
            at = position[first + i].scaled(node["stride"][i]) + position[x.rank + i].scaled(node["dilation"][i])
            at = at.shifted(-node["padding"][i])
            if reaches_beyond(node, i):
                guards.append(Guard(Index(at.coefficients, at.constant), x.shape[first + i]))
            moved.append(at)
        return self._pull(x, tuple(moved), tuple(guards), node["fill"])

    def _through_reshape(self, node: Node, position: Position, guards: tuple[Guard, ...], fill: float
                         ) -> Task[Expression]:
        x = node.inputs[0]
        number = self.buffer(x)
        if number is not None and self.resolve(x, position) is None:
            flat = linear(position, node.shape, len(self.domain))
            return _load(x, number, flat, guards, fill)
        return (yield self._pull(x, self.reshaped(position, node.shape, x), guards, fill))

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


def _within(size: int, number: Expression, wraps: bool) -> Expression:
    """The number of an element along an axis, from what may be any number: a kernel reads nothing beyond its inputs.
    wraps: whether negative ones count from the end."""
    if wraps:
        from_end = Apply("whole_add", (number, Whole(size)))
        number = Apply("whole_where", (Apply("whole_lt", (number, Whole(0))), from_end, number))
    return Apply("whole_minimum", (Apply("whole_maximum", (number, Whole(0))), Whole(size - 1)))


def widens(node: Node) -> bool:
    """Whether a model computes operands in a floating type and goes on in a wider one."""
    return node.dtype in ("float32", "float64") and not node.get("precise") and any(
        i.dtype in ROUNDINGS and ITEM_BYTES[i.dtype] < ITEM_BYTES[node.dtype] for i in node.inputs)


def _narrows(node: Node) -> bool:
    """Whether a cast to a floating type rounds: any to 16 bits, and those to float32 that the model asks for."""
    return node.dtype in ROUNDINGS and not node.get("precise")


def _is_narrowed(operand: Node, node: Node) -> bool:
    """Whether a pointwise operator converts one of its operands, which has no axes, to a narrower type."""
    return node.kind == "pointwise" and not operand.rank and operand.dtype in (*ROUNDINGS, "float64") and \
        ITEM_BYTES[operand.dtype] > ITEM_BYTES[number_type(node)]
