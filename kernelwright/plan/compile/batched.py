"""From a batched product's node to its record: operands and what is stored as expressions over one domain.

Axes of the domain are the letters of the product, each as one axis or as several: where views split or join axes, their
parts are axes of their own, so that whatever order memory has is index arithmetic and no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from kernelwright.algebra.build import reshape
from kernelwright.ir.node import Node, make, walk
from kernelwright.ir.ops.batched import ProductForm
from kernelwright.plan.compile.letters import letters_of
from kernelwright.plan.compile.recurrences import NoForm
from kernelwright.plan.expressions import Expression, Index, Load, Reduced, replaced
from kernelwright.plan.expressions import walk as walk_expression
from kernelwright.plan.kernels import BatchedProduct, Store
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear

_SUM, _SHOWN = Reduced(0), Reduced(1)


def compile_batched(node: Node, buffers: Sequence[int]) -> BatchedProduct:
    """The record of a kernel that computes a batched product. buffers: the number of the kernel's input that each
    operand is. Raises NoForm."""
    compiler = _Compiler(node["form"], buffers)
    while True:
        try:
            return in_order(compiler.record())
        except SplitAxis as split:
            compiler.split(split.axis, split.inner)
        except MustStore as problem:
            raise NoForm(str(problem)) from problem


def path_of(form: ProductForm) -> list[Node]:
    """The nodes from the product to the result, each of which reads the one before. Raises NoForm where some operator
    is not of single elements, or the result is made of the product by several ways."""
    above: dict[Node, Node] = {}
    dependent = {form.product}
    for node in walk([form.result]):
        found = [i for i in node.inputs if i in dependent]
        if not found or node is form.product:
            continue
        if len(found) > 1 or found[0] in above:
            raise NoForm("a product that is read twice")
        if not (node.op in ("permute", "reshape") or (
                node.kind == "pointwise" and node.op != "cast" and node.shape == found[0].shape)):
            raise NoForm(f"a {node.op} of a product")
        above[found[0]] = node
        dependent.add(node)
    path = [form.product]
    while path[-1] in above:
        path.append(above[path[-1]])
    if path[-1] is not form.result:
        raise NoForm("a result that is not made of the product")
    return path


class _Compiler:
    """The domain in the making: its letters by kind, each with the sizes of its axes."""

    def __init__(self, form: ProductForm, buffers: Sequence[int]) -> None:
        self.form, self.buffers = form, buffers
        self.places = {leaf: number for number, leaf in enumerate(form.operands)}
        self.path = path_of(form)
        self.letters = letters_of(form.product)
        left, right, shown = self.letters.axes_of(0), self.letters.axes_of(1), self.letters.result
        if not {*shown} <= left | right or not (left | right) - {*shown} <= left & right:
            raise NoForm("an axis that only one operand has is summed")
        kinds = ([c for c in shown if c in left and c in right], [c for c in shown if c not in right],
                 [c for c in shown if c not in left], sorted((left & right) - {*shown}))
        self.kinds = [{letter: [self.letters.sizes[letter]] for letter in kind} for kind in kinds]

    def split(self, axis: int, inner: int) -> None:
        """Let an axis of the domain be two."""
        for kind in self.kinds:
            for sizes in kind.values():
                if axis < len(sizes):
                    sizes[axis:axis + 1] = [sizes[axis] // inner, inner]
                    return
                axis -= len(sizes)
        raise AssertionError("an axis that the domain lacks")

    def record(self) -> BatchedProduct:
        """The record. Raises NoForm, MustStore, and SplitAxis where the domain must be finer."""
        form = self.form
        outer, rows, columns, depth = (tuple(size for sizes in kind.values() for size in sizes) for kind in self.kinds)
        self.domain = (*outer, *rows, *columns, *depth)
        self.shown: Position | None = None
        self.puller = Puller(self.domain, self._resolve, self._buffer, fuses=True)
        place: dict[str, Affine] = {"": self.puller.zero()}
        axis = 0
        for letter, sizes in ((letter, sizes) for kind in self.kinds for letter, sizes in kind.items()):
            own = {axis + n: prod(sizes[n + 1:]) for n in range(len(sizes)) if sizes[n] > 1}
            place[letter] = Affine(tuple(own.get(n, 0) for n in range(len(self.domain))))
            axis += len(sizes)
        self.product = tuple(place[letter] for letter in self.letters.result)
        left, right = (self.puller.pull(operand, tuple(place[letter] for letter in term))
                       for operand, term in zip(form.product.inputs, self.letters.operands, strict=True))
        if left.reduced or right.reduced:
            raise NoForm("an operand made of the product")
        self.puller.pull(self._inverse(), self.product)
        assert self.shown is not None
        value = self.puller.pull(form.result, self.shown)
        if not value.reduced:
            raise NoForm("a result without the product")
        where = linear(self.shown, form.result.shape, len(self.domain))
        types = {self.buffers[number]: leaf.dtype for leaf, number in self.places.items()}
        store = Store(0, Index(where.coefficients, where.constant), value)
        return BatchedProduct(outer, rows, columns, depth, left, right, store,
                              tuple(types[n] for n in range(len(types))), (form.result.dtype,))

    def _inverse(self) -> Node:
        """The product's results by their place in what is shown."""
        found = self._place()
        for node, below in zip(reversed(self.path[1:]), reversed(self.path[:-1]), strict=True):
            if node.op == "permute":
                axes = sorted(range(node.rank), key=lambda axis, node=node: node["axes"][axis])
                found = make("permute", found, axes=tuple(axes))
            elif node.op == "reshape":
                found = reshape(found, below.shape)
        return found

    def _place(self) -> Node:
        """A leaf for where results are shown."""
        return make("input", name="shown", shape=self.form.result.shape, dtype="float32")

    def _resolve(self, node: Node, position: Position) -> Expression | None:
        if node is self.form.product:
            if position != self.product:
                raise NoForm("results of a product that other points read")
            return _SUM
        if node is self._place():
            self.shown = position
            return _SHOWN
        return None

    def _buffer(self, node: Node) -> int | None:
        return self.buffers[self.places[node]] if node in self.places else None


def in_order(kernel: BatchedProduct) -> BatchedProduct:
    """The same kernel with the axes of each kind in the order in which memory has them: rows and columns as they are
    stored, depth as the larger operand has it, and outer axes as the largest tensor has them."""
    def largest(*roots: Expression) -> Index:
        loads = [part for part in walk_expression(*roots) if isinstance(part, Load)]
        return max((load.index for load in loads), key=lambda index: prod(
            size for size, stride in zip(kernel.domain, index.strides, strict=True) if stride),
            default=kernel.store.index)

    rows, columns, depth = len(kernel.rows), len(kernel.columns), len(kernel.depth)
    count = len(kernel.outer)
    order: list[int] = []
    for first, length, index in ((0, count, largest(kernel.left, kernel.right)), (count, rows, kernel.store.index),
                                 (count + rows, columns, kernel.store.index),
                                 (count + rows + columns, depth, largest(kernel.left, kernel.right))):
        order += sorted(range(first, first + length), key=lambda axis, index=index: (-abs(index.strides[axis]), axis))
    if order == sorted(order):
        return kernel
    memo: dict[Expression, Expression] = {}

    def moved(index: Index) -> Index:
        return Index(tuple(index.strides[axis] for axis in order), index.offset)

    def change(part: Expression) -> Expression | None:
        if not isinstance(part, Load):
            return None
        guards = tuple(type(guard)(moved(guard.index), guard.size) for guard in part.guards)
        return Load(part.buffer, moved(part.index), guards, part.otherwise, part.whole)

    sizes = tuple(kernel.domain[axis] for axis in order)
    return replace(
        kernel, outer=sizes[:count], rows=sizes[count:count + rows],
        columns=sizes[count + rows:count + rows + columns], depth=sizes[count + rows + columns:],
        left=replaced(kernel.left, change, memo), right=replaced(kernel.right, change, memo),
        store=Store(0, moved(kernel.store.index), replaced(kernel.store.expression, change, memo)))
