"""From an attention node to its record: operands, score and result as expressions and indices over one domain."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.algebra.build import reshape
from kernelwright.ir.node import Node, make, walk
from kernelwright.ir.ops.attention import Form
from kernelwright.plan.compile.letters import letters_of
from kernelwright.plan.compile.recurrences import NoForm
from kernelwright.plan.expressions import Expression, Index, Reduced
from kernelwright.plan.kernels import Attention, Store
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear

#: Nodes of a form at most.
MOST_NODES = 200
_PRODUCT, _WEIGHT = Reduced(0), Reduced(1)


def compile_attention(node: Node, buffers: Sequence[int]) -> Attention:
    """The record of a kernel that computes an attention. buffers: the number of the kernel's input that each operand
    is. Raises NoForm."""
    form: Form = node["form"]
    if len(list(walk((form.score, form.shown)))) > MOST_NODES:
        raise NoForm("an attention of too many operators")
    compiler = _Compiler(form, node.inputs, buffers)
    while True:
        try:
            return compiler.record()
        except SplitAxis as split:
            compiler.split(split.axis, split.inner)
        except MustStore as problem:
            raise NoForm(str(problem)) from problem


def _place(form: Form) -> Node:
    """A leaf for where results are shown."""
    return make("input", name="shown", shape=form.shown.shape, dtype=form.shown.dtype)


def _inverse(form: Form) -> Node:
    """Results by their place in what is shown."""
    views, node = [], form.shown
    while node is not form.result:
        views.append(node)
        (node,) = node.inputs
    found = _place(form)
    for view in views:
        if view.op == "permute":
            axes = sorted(range(view.rank), key=lambda axis, view=view: view["axes"][axis])
            found = make("permute", found, axes=tuple(axes))
        else:
            found = reshape(found, view.inputs[0].shape)
    return found


class _Compiler:
    """Axes of the domain are the letters that all of weights, values and result have, each as one axis or as several,
    then rows, columns, elements of queries, and elements of values."""

    def __init__(self, form: Form, operands: Sequence[Node], buffers: Sequence[int]) -> None:
        self.form, self.buffers = form, buffers
        self.places = {leaf: number for number, leaf in enumerate(form.operands)}
        self.result, self.product = letters_of(form.result), letters_of(form.product)
        weights = [n for n, operand in enumerate(form.result.inputs) if form.weights in set(walk([operand]))]
        if len(weights) != 1:
            raise NoForm("weights on both sides of a product")
        self.side = weights[0]
        own, others = self.result.axes_of(self.side), self.result.axes_of(1 - self.side)
        shown = set(self.result.result)
        (self.columns,) = self._one(own & others - shown, "columns")
        (self.width,) = self._one((others - own) & shown, "elements of values")
        alone = [letter for letter in self.result.result if letter in own - others]
        (self.rows,) = self._one(alone[-1:], "rows")
        rest = [letter for letter in self.result.result if letter not in (self.rows, self.width)]
        if own | others != {*rest, self.rows, self.columns, self.width}:
            raise NoForm("a product that sums over an axis of one operand")
        depth = self.product.axes_of(0) & self.product.axes_of(1) - set(self.product.result)
        (self.depth,) = self._one(depth, "elements of queries")
        self.outer = {letter: [self.result.sizes[letter]] for letter in rest}

    @staticmethod
    def _one(letters: Sequence[str] | set[str], what: str) -> tuple[str]:
        if len(letters) != 1:
            raise NoForm(f"{what} along other than one axis")
        return (next(iter(letters)),)

    def split(self, axis: int, inner: int) -> None:
        """Let an axis of the domain be two. Raises NoForm of one that is not an outer one."""
        for sizes in self.outer.values():
            if axis < len(sizes):
                sizes[axis:axis + 1] = [sizes[axis] // inner, inner]
                return
            axis -= len(sizes)
        raise NoForm("rows, columns or elements that lie in several axes")

    def record(self) -> Attention:
        """The record. Raises NoForm, MustStore, and SplitAxis where the domain must be finer."""
        form, sizes = self.form, self.result.sizes
        outer = tuple(size for split in self.outer.values() for size in split)
        ends = (sizes[self.rows], sizes[self.columns], self.product.sizes[self.depth], sizes[self.width])
        self.domain, self.found = (*outer, *ends), dict[str, Position]()
        self.puller = Puller(self.domain, self._resolve, self._buffer, fuses=True)
        place: dict[str, Affine] = {"": self.puller.zero()}
        axis = 0
        for letter, split in self.outer.items():
            place[letter] = Affine(self._spread(axis, split))
            axis += len(split)
        count = len(outer)
        for n, letter in enumerate((self.rows, self.columns, "", self.width)):
            if letter:
                place[letter] = self._unit(count + n)
        at = [tuple(place[letter] for letter in term) for term in self.result.operands]
        if self.puller.pull(form.result.inputs[self.side], at[self.side]) is not _WEIGHT:
            raise NoForm("weights that are changed once more")
        value = self.puller.pull(form.result.inputs[1 - self.side], at[1 - self.side])
        weights = self.found["weights"]
        if form.axis is not None and form.weights.shape[form.axis] != sizes[self.columns]:
            raise NoForm("a softmax over other columns than those of values")
        if form.axis is not None and any(
                (p != self._unit(count + 1)) if n == form.axis else p.coefficients[count + 1]
                for n, p in enumerate(weights) if form.weights.shape[n] != 1):
            raise NoForm("a softmax along another axis than the columns")
        if form.causal and weights[-2:] != (self._unit(count), self._unit(count + 1)):
            raise NoForm("rows and columns that lie otherwise")
        score = self.puller.pull(form.score, weights)
        if "product" not in self.found:
            raise NoForm("a score without a product")
        inside = dict(zip(self.product.result, self.found["product"], strict=True))
        inside |= {"": self.puller.zero(), self.depth: self._unit(count + 2)}
        left, right = (self.puller.pull(operand, tuple(inside[letter] for letter in term))
                       for operand, term in zip(form.product.inputs, self.product.operands, strict=True))
        query, key = (right, left) if left.axes >> (count + 1) & 1 else (left, right)
        for expression, never in ((query, (1, 3)), (key, (0, 3)), (value, (0, 2)), (score, (2, 3))):
            if any(expression.axes >> (count + n) & 1 for n in never) or (expression is not score
                                                                          and expression.reduced):
                raise NoForm("an operand that moves along an axis of another one")
        self.puller.pull(_inverse(form), tuple(place[letter] for letter in self.result.result))
        where = linear(self.found["shown"], form.shown.shape, len(self.domain))
        types = tuple(self._types())
        return Attention(outer, *ends, query, key, value, score, form.axis is not None, form.causal, 0, form.empty_rows,
                         Store(0, Index(where.coefficients, where.constant), Reduced(2)), types,
                         (form.shown.dtype,), form.weights.dtype)

    def _types(self) -> list[str]:
        types = {self.buffers[number]: leaf.dtype for leaf, number in self.places.items()}
        return [types[n] for n in range(len(types))]

    def _unit(self, axis: int) -> Affine:
        return Affine(tuple(int(n == axis) for n in range(len(self.domain))))

    def _spread(self, first: int, split: Sequence[int]) -> tuple[int, ...]:
        """The coefficients of a letter whose axes begin at ``first``."""
        own = {first + n: prod(split[n + 1:]) for n in range(len(split))}
        return tuple(own.get(n, 0) for n in range(len(self.domain)))

    def _resolve(self, node: Node, position: Position) -> Expression | None:
        if node is self.form.weights:
            return self._marked("weights", position, _WEIGHT)
        if node is self.form.product:
            return self._marked("product", position, _PRODUCT)
        if node is _place(self.form):
            return self._marked("shown", position, _WEIGHT)
        return None

    def _buffer(self, node: Node) -> int | None:
        return self.buffers[self.places[node]] if node in self.places else None

    def _marked(self, name: str, position: Position, value: Expression) -> Expression:
        """``value``, which is read at one place alone."""
        if self.found.setdefault(name, position) != position:
            raise NoForm("results of a product that several points read")
        return value
