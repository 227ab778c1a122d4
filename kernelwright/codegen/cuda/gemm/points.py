"""Operands and stores of contractions at points of their domains, as CUDA text: what packing and epilogue share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter
from kernelwright.codegen.cuda.loops.site import Site, indent
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Attention, BatchedProduct, LoopKernel, Reduction, Store

#: Elements of one scale and bytes of all from which scales are guessed: of a convolution's x, and of a matrix, whose
#: blocks may find the scales of their rows as they pack them.
LEAST_SHARED, LEAST_BYTES = 1 << 16, 1 << 25
LEAST_DEPTH, LEAST_MATRIX_BYTES = 1 << 12, 1 << 26
#: Entries of a batch, or rows of a matrix, that 31 bits do not count.
LEAST_LONG = 2**31


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a contraction: its ``expression`` over ``domain``, whose axes are called ``names``.

    ``side`` is "left" or "right". Axis 2 are the channels, which are summed; elements share a scale that do not differ
    along the axes ``apart``, in whose order the scales are.
    """

    side: str
    expression: Expression
    domain: tuple[int, ...]
    names: tuple[str, ...]
    apart: tuple[int, ...] = (0, 1)

    @property
    def shared(self) -> int:
        """Elements that share a scale."""
        return prod(self.domain) // prod(self.domain[axis] for axis in self.apart)

    @property
    def largest(self) -> Index:
        """The index of the load that touches the most elements."""
        def elements(load: Load) -> int:
            return prod(size for size, stride in zip(self.domain, load.index.strides, strict=True) if stride)

        loads = loads_of([self.expression])
        return max(loads, key=elements).index if loads else Index((0,) * len(self.domain))


def operands(kernel: Contraction) -> tuple[Operand, Operand]:
    """The left and the right operand."""
    spatial = range(len(kernel.axes))
    apart = (0, *(3 + axis for axis in range(kernel.entry_axes)), 1)
    return (Operand("left", kernel.left, kernel.left_domain, ("n", "g", "c", *(f"q{a}" for a in spatial)), apart),
            Operand("right", kernel.right, kernel.right_domain, ("g", "o", "c", *(f"k{a}" for a in spatial))))


def guessed(geometry: Geometry, side: str) -> bool:
    """Whether scales of an operand are guessed from a part of its elements, and marked by a sign where they were wrong.

    It pays where many elements share a scale and the operand is large: to look at all of 33 MB took an H200 17
    microseconds, two launches more take 5. Not for weights with a window, which are small.
    """
    kernel = geometry.kernel
    if not geometry.scaled or (side == "left" and geometry.splits_left) \
            or (side == "right" and (geometry.tiling.converts_right or geometry.entries > 1)):
        return False
    operand = operands(kernel)[side == "right"]
    image = side == "left" and not kernel.is_matrix
    least, least_bytes = (LEAST_SHARED, LEAST_BYTES) if image else (LEAST_DEPTH, LEAST_MATRIX_BYTES)
    return operand.shared >= least and 4 * prod(operand.domain) >= least_bytes


def loads_of(roots: Sequence[Expression]) -> list[Load]:
    """The distinct loads below the roots, in order."""
    return [n for n in walk(*roots) if isinstance(n, Load)]


@dataclass(frozen=True, slots=True)
class NamedSite(Site):
    """A Site whose axes have names of their own."""

    labels: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the axes."""
        return list(self.labels)


class PointEmitter(Emitter):
    """An Emitter in which ``Reduced(0)`` is a sum, one for each point: it changes with every step and lane. So do
    values of columns from a table, ``Reduced(-1, number)``."""

    def depends(self, node: Expression) -> tuple[bool, bool]:
        """The level of a node: whether it depends on the row, and on the lane."""
        row, lane = super().depends(node)
        if node.reduced and any(isinstance(part, Reduced) and part.reduction <= 0 for part in walk(node)):
            return True, self.site.lanes > 1
        return row, lane


def emitter_of(kernel: Contraction | Attention | BatchedProduct, domain: tuple[int, ...], names: tuple[str, ...],
               roots: Sequence[Expression], stores: Sequence[Store] = (), walked: tuple[int, ...] = (),
               lane_axis: int | None = None, lanes: int = 1, kind: type[PointEmitter] = PointEmitter,
               long: bool | None = None) -> PointEmitter:
    """An emitter over a domain, with 64-bit offsets where ``roots``, ``stores`` or the number of points need them;
    or as ``long`` says."""
    zero = Index((0,) * len(domain))
    every = (*stores, *(Store(0, zero, root) for root in roots))
    if long is None:
        long = is_long(LoopKernel(domain, (), (), (), every, kernel.input_dtypes, kernel.output_dtypes))
    site = NamedSite(domain, (), "float", long, walked, lane_axis if lanes > 1 else None, lanes, labels=names)
    return kind(site, [Buffer(f"in{n}", C_TYPES[t]) for n, t in enumerate(kernel.input_dtypes)])


def straight(emitter: Emitter) -> list[str]:
    """The statements of a step, in order, without those that come before the loop."""
    lines = [f"{s.c_type} {s.name}{f'[{s.count}]' if s.place else ''};" for s in emitter.row_loads]
    lines += [line for stored in emitter.row_loads for line in stored.lines] + emitter.row_lines
    if emitter.lane_lines:
        lanes = emitter.site.lanes
        lines += emitter.lane_lines if lanes == 1 else \
            ["#pragma unroll", f"for (int v = 0; v < {lanes}; ++v) {{", *indent(emitter.lane_lines), "}"]
    return lines + emitter.late_lines


def as_float(emitter: Emitter, node: Expression) -> str:
    """The text of a value as a float."""
    text = emitter.value(node)
    return f"float({text})" if is_whole(node) else text


#: What a reduction starts with, and how it takes a value.
STARTS = {"sum": "0.0f", "max": "-INFINITY", "min": "INFINITY"}
TAKES = {"sum": "{0} + {1}", "max": "kw_maximum({0}, {1})", "min": "kw_minimum({0}, {1})"}

#: Reductions that take two passes.
TWO_PASS = ("moments", "logsumexp")


def reduced_lines(emitter: Emitter, number: int, reduction: Reduction, channels: int,
                  fold: Callable[[str, str, str], list[str]], rows: int = 0) -> list[str]:
    """Statements that define the results of reduction ``number`` over output channels, whose names the emitter is told.

    ``fold(kind, result, term)`` gives those that define ``result`` as the sum, maximum or minimum of ``term``, in which
    {0} stands for the reduction's expression. With ``rows`` results are arrays of so many rows, and ``fold`` says what
    becomes of number ``row``.
    """
    name, at = f"r{number}", "[row]" * (rows > 0)

    def defined(result: str, text: str) -> list[str]:
        if not rows:
            return [f"const float {result} = {text};"]
        return [f"float {result}[{rows}];", f"for (int row = 0; row < {rows}; ++row) {result}[row] = {text};"]

    if reduction.kind == "moments":
        count = f"{channels}.0f"
        lines = [*fold("sum", f"{name}_total", "{0}"), *defined(name, f"{name}_total{at} / {count}"),
                 *fold("sum", f"{name}_squares", f"({{0}} - {name}{at}) * ({{0}} - {name}{at})"),
                 *defined(f"{name}_variance", f"{name}_squares{at} / {count}")]
        emitter.reduced[number, 1] = f"{name}_variance{at}"
    elif reduction.kind == "logsumexp":
        # Beside an infinite maximum the exponentials are no numbers, and no matter; beside any other, one of them is 1,
        # so that those below 2^-126 may be zeros.
        top = f"{name}_top{at}"
        lines = [*fold("max", f"{name}_top", "{0}"),
                 *fold("sum", f"{name}_exponentials", f"kw_decay({{0}} - {top})"),
                 *defined(name, f"fabsf({top}) == INFINITY ? {top} : {top} + logf({name}_exponentials{at})")]
    else:
        lines = fold(reduction.kind, name, "{0}")
    emitter.reduced[number, 0] = name + at
    return lines


def ordinary_stores(kernel: Contraction) -> tuple[Store, ...]:
    """The stores of a kernel but those of its reductions over positions, of which there is one for all positions."""
    return tuple(s for s in kernel.stores if not (kernel.position_reductions and uses_reductions(s.expression)))


def lies_at_multiples(index: Index, sizes: Sequence[int], count: int) -> bool:
    """Whether an index over axes of such sizes is a multiple of ``count`` wherever its last axis is at 0."""
    *strides, _ = index.strides
    return index.offset % count == 0 and all(
        stride % count == 0 or size == 1 for stride, size in zip(strides, sizes, strict=False))


def parameter_texts(kernel: Contraction, used: set[str]) -> list[tuple[str, str]]:
    """Types and names of the pointers among ``used``, in the order of the host function's parameters."""
    pairs = [(f"const {C_TYPES[t]}* __restrict__", f"in{n}") for n, t in enumerate(kernel.input_dtypes)]
    pairs += [(f"{C_TYPES[t]}* __restrict__", f"out{n}") for n, t in enumerate(kernel.output_dtypes)]
    return [pair for pair in pairs if pair[1] in used]


def pointers_of(expression: Expression) -> list[str]:
    """The names of the inputs that an expression reads, in order."""
    return [f"in{b}" for b in sorted({load.buffer for load in loads_of([expression])})]


def entry_type(kernel: Contraction) -> str:
    """The type of n, the number of an entry of the batch or of a matrix's row."""
    return "long long" if kernel.batch >= LEAST_LONG else "int"


def typed_axes(kernel: Contraction, names: Sequence[str]) -> list[str]:
    """Parameters for the axes of a domain."""
    return [f"{entry_type(kernel) if axis == 'n' else 'int'} {axis}" for axis in names]


def value_function(kernel: Contraction, operand: Operand, name: str) -> str:
    """``NAME_left`` or ``NAME_right``: an operand's value at one point of its domain."""
    emitter = emitter_of(kernel, operand.domain, operand.names, [operand.expression])
    result = as_float(emitter, operand.expression)
    types = [" ".join(pair) for pair in parameter_texts(kernel, set(pointers_of(operand.expression)))]
    types += typed_axes(kernel, operand.names)
    what = "x" if operand.side == "left" else "w"
    return device_function(f"{what} at one point of its domain.", "float", f"{name}_{operand.side}", types,
                           [*emitter.fixed_lines, *straight(emitter), f"return {result};"])


def value_call(operand: Operand, name: str, **places: str) -> str:
    """The call of an operand's function, with texts for some of its axes."""
    axes = [places.get(axis, axis) for axis in operand.names]
    return f"{name}_{operand.side}({', '.join([*pointers_of(operand.expression), *axes])})"


def device_function(comment: str, result: str, name: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    """The text of a device function."""
    head = f"static __device__ __forceinline__ {result} {name}({', '.join(parameters)}) {{"
    notes = [f"// {line}" for line in comment.split("\n")]
    return "\n".join([*notes, *wrapped([head, *indent(body)]), "}", ""])


def coordinates(geometry: Geometry, kind: str) -> list[str]:
    """Define n and u0, u1, ... of ``row``."""
    lines = []
    sizes = (geometry.kernel.batch, *geometry.extents)
    unsigned = "unsigned" if kind == "int" else "(unsigned long long)"
    for axis, (pitch, size) in enumerate(zip(geometry.pitches, sizes, strict=True)):
        text = f"{unsigned}(row) / {pitch}u" if pitch > 1 else f"{unsigned}(row)"
        lines.append(f"const int u{axis - 1} = {text} % {size}u;" if axis else
                     f"const {entry_type(geometry.kernel)} n = {text};")
    return lines


def type_of_rows(rows: int) -> str:
    """The C type of a row's number, of ``rows`` in memory: a block's may pass them, by less than 2**20."""
    return "long long" if rows >= 2**31 - 2**20 else "int"


def wrapped(lines: Sequence[str]) -> list[str]:
    """The lines, those cut behind commas and operators that are longer than 120 characters."""
    result = []
    for line in lines:
        margin = " " * (len(line) - len(line.lstrip()) + 4)
        while len(line) > 120 and not line.lstrip().startswith("//"):
            cut = max(line.rfind(mark, len(margin) + 1, 119) + len(mark) for mark in (", ", " | ", " && ", " = "))
            if cut <= len(margin) + 4:
                break
            result.append(line[:cut].rstrip())
            line = margin + line[cut:]
        result.append(line)
    return result
