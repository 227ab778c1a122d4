"""From a group around a contraction to a Contraction record: its operands, its sums, and what is stored of them.

The group's first node is the anchor (see :mod:`kernelwright.plan.contraction.products`); the others are pointwise
results that live on its output, in its shape or another one that shows the same elements. Operands are pulled down to
loads over the domains of the record, so views and pointwise operators below them are read through.

A row of a matrix product may be several axes, which a view around it moves apart: they become a batch axis and axes
without a window.

Reductions of the group are over the record's output channels, or over its positions; pointwise results may live on
what they leave (:mod:`kernelwright.plan.contraction.stores`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from kernelwright.ir.node import Node
from kernelwright.plan.compile.loops import Apart
from kernelwright.plan.contraction.axes import FineDomain, axis_of, joined, unit_axis
from kernelwright.plan.contraction.products import TYPES
from kernelwright.plan.contraction.record import Contraction, ContractionAxis, in_groups
from kernelwright.plan.contraction.stores import Stores, narrowed
from kernelwright.plan.expressions import Expression, Index, Load, Reduced, walk
from kernelwright.plan.groups import Group
from kernelwright.plan.kernels import Store
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, strides_of
from kernelwright.plan.records import KernelConfig

_TYPES = {*TYPES, "bool", "scalar"}
#: Axes beside batch, groups and channels, at most.
_MOST_AXES = 3


@dataclass(frozen=True, slots=True)
class ContractionLoop:
    """A compiled group, before it is known which results others read. ``split`` counts axes split off the batch."""

    record: Contraction
    split: int
    values: dict[Node, Expression]
    places: dict[Node, Index]
    inputs: tuple[Node, ...]

    def kernel(self, outputs: tuple[Node, ...]) -> Contraction:
        """The kernel that stores ``outputs``."""
        stores = tuple(Store(n, self.places[output], self.values[output]) for n, output in enumerate(outputs))
        kernel = joined(replace(self.record, stores=stores, output_dtypes=tuple(n.dtype for n in outputs)), self.split)
        axes = list(kernel.axes)
        for number in range(len(axes) - len(kernel.pool_window) * bool(kernel.pools), len(axes) - 1):
            axes[number] = axes[number] if axes[number].out_stride > 1 else in_groups(axes[number])
        return replace(kernel, axes=tuple(axes))


@dataclass(frozen=True, slots=True)
class _Form:
    """An anchor's sizes, and the positions of its operands and result at points of the record's domains."""

    batch: int
    groups: int
    in_channels: int
    out_channels: int
    axes: tuple[ContractionAxis, ...]
    left: Callable[[Affine, Affine, Affine, Position], Position]
    right: Callable[[Affine, Affine, Affine, Position], Position]
    result: Callable[[Affine, Affine, Affine, Position], Position]


def _matmul(node: Node) -> _Form:
    a, b = node.inputs
    groups = a.shape[0] if node.rank == 3 else 1
    lead = node.rank == 3
    return _Form(a.shape[-2], groups, a.shape[-1], b.shape[-1], (),
                 lambda n, g, c, _: (g, n, c) if lead else (n, c),
                 lambda g, o, c, _: (g, c, o) if lead else (c, o),
                 lambda n, g, o, _: (g, n, o) if lead else (n, o))


def _convolution(node: Node) -> _Form:
    x, weight = node.inputs
    groups, transposed = node["groups"], node["transposed"]
    ins = x.shape[1] // groups
    outs = node.shape[1] // groups
    axes = tuple(axis_of(transposed, *sizes) for sizes in zip(
        x.shape[2:], node.shape[2:], weight.shape[2:], node["stride"], node["padding"], node["dilation"], strict=True))
    return _Form(x.shape[0], groups, ins, outs, axes,
                 lambda n, g, c, q: (n, g.scaled(ins) + c, *q),
                 lambda g, o, c, k: (g.scaled(ins) + c, o, *k) if transposed else (g.scaled(outs) + o, c, *k),
                 lambda n, g, o, p: (n, g.scaled(outs) + o, *p))


_FORMS = {"matmul": _matmul, "convolution": _convolution}


def compile_contraction(group: Group, stored: Callable[[Node], bool], configs: Mapping[Node, KernelConfig]
                        ) -> ContractionLoop:
    """Compile a group around an anchor. ``stored`` tells whether a node's value can be read from memory.

    Raises MustStore or Apart where the grouping has to change.
    """
    form = _FORMS[group.nodes[0].op](group.nodes[0])
    rows = [form.batch]
    while True:
        compiler = _Compiler(group, stored, form, rows)
        try:
            return compiler.compile(configs[group.nodes[0]])
        except SplitAxis as split:
            # Only rows can become several axes, and none that would count among the positions that are reduced.
            place = 0 if split.axis == 0 else split.axis - 2
            if split.axis in (1, 2) or place >= len(rows) or len(rows) + len(form.axes) > _MOST_AXES or \
                    group.over in ("positions", "windows"):
                raise compiler.refusal() from split
            rows[place:place + 1] = [rows[place] // split.inner, split.inner]


class _Compiler:
    """One attempt to compile a group, with the batch as the axes ``rows``."""

    def __init__(self, group: Group, stored: Callable[[Node], bool], form: _Form, rows: list[int]) -> None:
        self.group, self.stored, self.form, self.rows = group, stored, form, rows
        self.anchor = group.nodes[0]
        self.axes = (*(unit_axis(size) for size in rows[1:]), *form.axes)
        self.inputs: list[Node] = []
        self.current: tuple[str, Node] = ("operand", self.anchor.inputs[0])

    def refusal(self) -> MustStore | Apart:
        """What is asked of the grouping where what is being pulled has no affine form."""
        kind, node = self.current
        return MustStore(node) if kind == "operand" else Apart(node)

    def compile(self, config: KernelConfig) -> ContractionLoop:
        """The compiled group. Raises MustStore, Apart, or SplitAxis for an axis of the record's domain."""
        form = self.form
        record = Contraction(self.rows[0], form.groups, form.in_channels, form.out_channels, self.axes, Reduced(0),
                             Reduced(0), (), (), (), config.scheme, config.tiling,
                             exact_functions=config.exact_functions)
        left = self._operand(0, record.left_domain, config)
        try:
            right = self._operand(1, record.right_domain, config)
        except SplitAxis as split:  # a weight has no rows
            raise self.refusal() from split
        stores = Stores(self.group, record.domain, self._place, self.stored, self._buffer)
        values, places = self._stores(stores)
        record = replace(stores.reduced(record), left=left, right=right,
                         input_dtypes=tuple(n.dtype for n in self.inputs))
        return ContractionLoop(record, len(self.rows) - 1, values, places, tuple(self.inputs))

    def _operand(self, number: int, sizes: tuple[int, ...], config: KernelConfig) -> Expression:
        node = self.anchor.inputs[number]
        self.current = ("operand", node)
        if not self.stored(node) and not self._types([node]) <= _TYPES:
            raise MustStore(node)
        domain = FineDomain(sizes)
        while True:
            place = [domain.variable(axis) for axis in range(len(sizes))]
            spatial = tuple(place[2 + len(self.rows):])
            position = self.form.left(self._row(domain), place[1], place[2], spatial) if number == 0 else \
                self.form.right(place[0], place[1], place[2], spatial)
            try:
                puller = Puller(domain.sizes, lambda *_: None, self._buffer, fuses=True,
                                settled=self.group.settled)
                value = puller.pull(node, narrowed(position, node))
                break
            except SplitAxis as split:
                domain.split(split.axis, split.inner)
        # 16-bit operands are packed as they lie in memory, in their one type.
        if config.scheme == "native" and any(isinstance(e, Load) and self.inputs[e.buffer].dtype != node.dtype
                                             for e in walk(value)):
            raise MustStore(node)
        return domain.whole(value, Index((0,) * len(domain.sizes)))[0]

    def _row(self, domain: FineDomain) -> Affine:
        """The number of a row, or of a batch's entry, by the axes that it was split into."""
        row = Affine((0,) * len(domain.sizes))
        for part, stride in enumerate(strides_of(tuple(self.rows))):
            row = row + domain.variable(part + 2 if part else 0).scaled(stride)
        return row

    def _stores(self, stores: Stores) -> tuple[dict[Node, Expression], dict[Node, Index]]:
        values: dict[Node, Expression] = {}
        places: dict[Node, Index] = {}
        for node in self.group.nodes:
            self.current = ("store", node)
            if not self._types([node]) <= _TYPES:
                raise Apart(node)
            values[node], places[node] = stores.store(node)
        return values, places

    def _place(self, domain: FineDomain) -> Position:
        """Where the anchor has the element of a point of a record's domain."""
        spatial = (domain.variable(axis) for axis in range(2 + len(self.rows), len(domain.parts)))
        return self.form.result(self._row(domain), domain.variable(1), domain.variable(2), tuple(spatial))

    def _buffer(self, node: Node) -> int | None:
        if node in self.group.nodes or not self.stored(node):
            return None
        if node not in self.inputs:
            self.inputs.append(node)
        return self.inputs.index(node)

    def _types(self, roots: Iterable[Node]) -> set[str]:
        """The types of what is read and computed for ``roots``."""
        result: set[str] = set()
        seen: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            result.add(node.dtype)
            if node is not self.anchor and (node in self.group.nodes or not self.stored(node)):
                stack += node.inputs
        return result
