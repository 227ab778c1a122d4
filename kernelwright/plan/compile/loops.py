"""From a group to a LoopKernel: positions, loads, reductions and stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

from kernelwright.algebra.build import MOMENTS, REDUCTIONS
from kernelwright.ir.node import Node
from kernelwright.ir.scalar import INTEGERS
from kernelwright.plan.compile.buffers import InputBuffers
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced, walk
from kernelwright.plan.groups import Group, base, wide
from kernelwright.plan.kernels import LoopKernel, Reduction, Store
from kernelwright.plan.lowering.lower import FLOATS
from kernelwright.plan.reading.access import Affine, MustStore, Position, Puller, SplitAxis, linear, strides_of
from kernelwright.plan.reading.typed import as_real, sum_type

_KINDS = {"sum": "sum", "mean": "sum", "amax": "max", "amin": "min", "prod": "product",
          "logsumexp": "logsumexp", "var": "moments", "std": "moments"}
#: The component of moments that an operator is.
_COMPONENT = {"mean": 0, "var": 1, "std": 2}


# A longer row that is read along one axis and stored along another is not kept on chip: tiles of its neighbours
# do not fit. Statistics and result are then two kernels, of which the second goes tile by tile.
_CROSSED_ROW = 1024


class Apart(Exception):
    """``node`` reads a reduction of its own group elsewhere than at its own outer point, or is stored across it."""

    def __init__(self, node: Node) -> None:
        super().__init__(repr(node))
        self.node = node


@dataclass(frozen=True, slots=True)
class Loop:
    """A compiled group: its expressions, before it is known which results others read."""

    group: Group
    outer: tuple[int, ...]
    row: tuple[int, ...]
    reductions: tuple[Reduction, ...]
    values: dict[Node, Expression]
    places: dict[Node, tuple[Index, bool]]
    inputs: tuple[Node, ...]
    compute: str

    def kernel(self, outputs: tuple[Node, ...]) -> LoopKernel:
        """The kernel that stores ``outputs``."""
        row_stores, outer_stores = [], []
        for number, node in enumerate(outputs):
            index, in_row = self.places[node]
            (row_stores if in_row else outer_stores).append(Store(number, index, self.values[node]))
        types = tuple(n.dtype for n in self.inputs)
        results = tuple(n.dtype for n in outputs)
        return LoopKernel(self.outer, self.row, self.reductions, tuple(row_stores), tuple(outer_stores), types,
                          results, self.compute)


def compile_group(group: Group, stored: Callable[[Node], bool]) -> Loop:
    """Compile a loop group. ``stored`` tells whether a node's value can be read from memory.

    Raises MustStore or Apart where the grouping has to change.
    """
    splits: dict[int, list[int]] = {a: [s] for a, s in enumerate(group.domain)}
    while True:
        try:
            return _compile(group, stored, splits)
        except SplitAxis as split:
            variables = _variables(group, splits)
            axis, place = variables[split.axis]
            size = splits[axis][place]
            splits[axis][place:place + 1] = [size // split.inner, split.inner]


def _variables(group: Group, splits: dict[int, list[int]]) -> list[tuple[int, int]]:
    """The loop variables, outer then row, as (axis of the domain, place among its parts); units dropped."""
    order = [a for a in range(len(group.domain)) if a not in group.axes] + list(group.axes)
    return [(a, i) for a in order for i, size in enumerate(splits[a]) if size != 1]


def _compile(group: Group, stored: Callable[[Node], bool], splits: dict[int, list[int]]) -> Loop:
    variables = _variables(group, splits)
    sizes = tuple(splits[a][i] for a, i in variables)
    rows = sum(a in group.axes for a, _ in variables)
    count = len(variables)
    zero = Affine((0,) * count)

    def axis_position(axis: int) -> Affine:
        result = zero
        for part, stride in enumerate(strides_of(tuple(splits[axis]))):
            if splits[axis][part] != 1:
                unit = [0] * count
                unit[variables.index((axis, part))] = stride
                result = result + Affine(tuple(unit))
        return result

    full: Position = tuple(axis_position(a) for a in range(len(group.domain)))
    outer = [full[a] for a in range(len(group.domain)) if a not in group.axes and group.domain[a] != 1]
    own = {n: i for i, n in enumerate(n for n in group.nodes if n.op in REDUCTIONS)}
    inputs = InputBuffers(group.nodes, stored)
    reductions: list[Reduction] = []
    meaning: dict[Node, Expression] = {}
    target: list[Node] = []

    def resolve(node: Node, position: Position) -> Expression | None:
        if node not in own:
            return None
        if [p for p, s in zip(position, node.shape, strict=True) if s != 1] != outer or node not in meaning:
            raise Apart(target[-1])
        return meaning[node]

    compute, strict = arithmetic(group, stored)
    puller = Puller(sizes, resolve, inputs, compute, strict, settled=group.settled, looks_up=True)
    for node in own:
        target.append(node)
        try:
            value = as_real(node.inputs[0], puller.pull(node.inputs[0], full))
        except MustStore as problem:
            if problem.node in group.nodes:  # of what this kernel stores it would read other places
                raise Apart(node) from problem
            raise
        meaning[node] = reduced_value(node, value, own, reductions)
        if node.dtype in INTEGERS:
            meaning[node] = Apply("to_whole", (meaning[node],))
    values: dict[Node, Expression] = dict(meaning)
    places: dict[Node, tuple[Index, bool]] = {}
    for node in group.nodes:
        in_row = bool(group.axes) and node not in own and node.size == prod(group.domain) and rows > 0
        if node.shape == group.domain and (not group.axes or in_row):
            position: Position = full
        elif in_row:
            try:
                position = puller.reshaped(full, group.domain, node)
            except MustStore as problem:
                raise Apart(node) from problem
        else:
            if wide(node.shape) != wide(group.outer):  # a reshape of a domain whose rows have one element
                raise Apart(node)
            left = iter(outer)
            position = tuple(next(left) if s != 1 else zero for s in node.shape)
        if node not in own:
            target.append(node)
            # The store itself starts below the node: the node is in memory for everybody else.
            try:
                values[node] = puller.pull(node, position)
            except MustStore as problem:
                if problem.node in group.nodes and len(group.nodes) > 1:  # read where this kernel stores it
                    raise Apart(node) from problem
                raise
        flat = linear(position, node.shape, count)
        places[node] = (Index(flat.coefficients, flat.constant), in_row)
        if in_row and prod(sizes[count - rows:]) > _CROSSED_ROW and _crosses(places[node][0], values[node]):
            raise Apart(node)
    return Loop(group, sizes[:count - rows], sizes[count - rows:], tuple(reductions), values, places, inputs.nodes,
                compute)


def _crosses(store: Index, value: Expression) -> bool:
    """Whether most of what ``value`` loads lies along another axis than what is stored."""
    loads = [e.index for e in walk(value) if isinstance(e, Load) and any(e.index.strides)]
    widest = max(loads, key=lambda index: sum(s != 0 for s in index.strides), default=store)
    return _nearest(widest) != _nearest(store)


def _nearest(index: Index) -> int:
    return min((abs(s), a) for a, s in enumerate(index.strides) if s)[1]


def arithmetic(group: Group, stored: Callable[[Node], bool]) -> tuple[str, bool]:
    """The type of a kernel's arithmetic, and whether the model itself mixes it with others.

    A rule's float64 is not the model's: there more digits are what it is for.
    """
    nodes = _nodes_of(group, stored)
    types = {n.dtype for n in nodes} | {sum_type(n) for n in nodes if n.op in REDUCTIONS and n in group.nodes
                                        and n.inputs[0].dtype not in FLOATS}
    compute = "float64" if "float64" in types else "float32"
    return compute, compute == "float64" and not any(n.get("precise") for n in nodes)


def _nodes_of(group: Group, stored: Callable[[Node], bool]) -> set[Node]:
    """Everything that a group reads, computes or stores."""
    seen: set[Node] = set()
    stack = list(group.nodes)
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in group.nodes or not stored(node):
            stack += node.inputs
    return seen


def reduced_value(node: Node, expression: Expression, own: Iterable[Node], reductions: list[Reduction]) -> Expression:
    """Register a reduction; the expression of its result. Mean, variance and deviation of one value, of those in
    ``own``, share moments."""
    count = prod(node.inputs[0].shape[a] for a in node["axes"])
    value = base(node.inputs[0])  # of a norm over groups of channels another shape of the same
    paired = any(n.op in MOMENTS and base(n.inputs[0]) is value for n in own)
    kind = "moments" if node.op == "mean" and paired else _KINDS[node.op]
    wanted = Reduction(kind, expression)
    if wanted not in reductions:
        reductions.append(wanted)
    number = reductions.index(wanted)
    if kind == "moments":
        return Reduced(number, _COMPONENT[node.op])
    result: Expression = Reduced(number, 0)
    if node.op == "mean" and kind == "sum":  # a quotient, as in PyTorch: the mean of sevens is seven
        return Apply("div", (result, Constant(float(count))))
    return result
