"""Attention for C++/OpenMP: a :class:`kernelwright.plan.kernels.Attention` to the text of one host function.

Both products take ``2 * (depth + width)`` operations for each pair of a row and a column, in vectors whose lanes are
rows; weights take some twenty more, and nothing of a pair leaves a core's nearest cache. A row's sums are in the order
of columns whatever threads there are, so that results do not depend on their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeGuard

from kernelwright.codegen.cpp.expressions import TYPES, Scope, guarded_text, index_text
from kernelwright.codegen.cpp.loops.text import SERIAL_WORK, braces, decode, indented
from kernelwright.codegen.cpp.support.snippets import used_snippets
from kernelwright.codegen.source import KernelSource, Unsuitable, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.expressions import Element, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Attention

#: Elements of a query and of a value, of which a thread has some vectors on its stack.
_MOST_ELEMENTS = 1024
#: Fewer rows leave so many lanes empty that PyTorch's products, which read keys and values once, are faster.
_LEAST_ROWS = 16
#: Parts of a score that are turned, at most.
_MOST_TURNED = 4


def generate(kernel: Attention, name: str) -> KernelSource:
    """The text of the kernel's host function, with its constants in ``namespace NAME_detail``::

        static const char* NAME(const T0* in0, ..., float* out0, void* workspace)

    Raises Unsuitable where queries or values are too long, or rows too few, and in 16 bits.
    """
    if kernel.compute != "float32":
        raise Unsuitable(f"attention in {kernel.compute} is PyTorch's on a processor")
    if kernel.rows < _LEAST_ROWS:
        raise Unsuitable(f"vectors have a row in each lane, and {kernel.rows} leave most of them empty")
    if kernel.depth + kernel.width > _MOST_ELEMENTS:
        raise Unsuitable(f"queries of {kernel.depth} and values of {kernel.width} elements need more memory than a "
                         "thread has on its stack")
    return _Text(kernel, name).source()


class _Operand(NamedTuple):
    """How keys or values are read: ``place`` is the index of an element by its column and its place within that,
    ``memory`` defines an array for a tile of them, ``lines`` a pointer to one, and ``function`` what fills it."""

    place: str
    memory: list[str]
    lines: list[str]
    function: list[str]


class _Text:
    """The text of one kernel. Axes are named n0, n1, ... for the outer ones, then i, j, k and p."""

    def __init__(self, kernel: Attention, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.outer = [f"n{n}" for n in range(len(kernel.outer))]
        self.names = [*self.outer, "i", "j", "k", "p"]

    def source(self) -> KernelSource:
        kernel = self.kernel
        members = {f"in{n}": f"const {TYPES[dtype]}* " for n, dtype in enumerate(kernel.input_dtypes)}
        members |= {f"out{n}": f"{TYPES[dtype]}* " for n, dtype in enumerate(kernel.output_dtypes)}
        keys, values = self._operand("key", kernel.key, "k"), self._operand("value", kernel.value, "p")
        store = self._defined("int64_t", "result", ["int64_t i", "int64_t p"], self._moving(kernel.store.index),
                              [f"return {index_text(kernel.store.index, self.names)};"])
        turned = {e: f"turned{n}" for n, e in enumerate(self._turned())}
        functions = [self._function("query", kernel.query, ["int64_t i", "int64_t k"]), *keys.function,
                     *values.function, *(self._function(name, e, ["int64_t i", "int64_t j"])
                                         for e, name in turned.items()),
                     self._function("score", kernel.score, ["int64_t i", "int64_t j", *(
                         f"real {name}" for name in turned.values()), "real product"], turned), *store]
        point = decode("point", kernel.outer, self.outer)
        work = kernel.batch * kernel.pairs * (kernel.depth + kernel.width)
        rows_matter = any(e.axes >> len(self.outer) & 1 for e in walk(
            kernel.score, into=lambda e: e not in turned) if isinstance(e, Load) and e not in turned)
        text = fill(text_beside(__file__, "attention.hpp"), {
            "NAME": self.name, "COMMENT": f"attention of {kernel.batch} times {kernel.rows} queries of {kernel.depth} "
                                          f"elements to {kernel.columns} values of {kernel.width}.",
            "BATCH": kernel.batch, "ROWS": kernel.rows, "COLUMNS": kernel.columns, "DEPTH": kernel.depth,
            "WIDTH": kernel.width, "SOFTMAX": _truth(kernel.softmax), "CAUSAL": _truth(kernel.causal),
            "EMPTY_ROWS": _truth(kernel.softmax and kernel.empty_rows),
            "MEMBERS": "\n".join(f"  {kind}{member};" for member, kind in members.items()),
            "AXES": "\n".join(f"  int64_t {axis};" for axis in self.outer),
            "FUNCTIONS": "\n".join(functions), "COLUMNS_OF": self._columns_of(),
            "FIRST_WITH": f"j - {kernel.shift}" if kernel.causal else "(void)j, 0",
            "KEY_PLACE": keys.place.format("c", "k"), "KEY_BEGIN": keys.place.format("j", "first"),
            "VALUE_PLACE": values.place.format("j", "c"), "VALUE_BEGIN": values.place.format("0", "p"),
            "SHOWN_PLACE": values.place.format("j", "p"),
            "MEMORY": "\n".join(f"  {line}" for line in (*keys.memory, *values.memory, *(
                f"alignas(64) float {name}[TILE * PITCH];" for name in turned.values()))),
            "TURN": "\n".join(line for e, name in turned.items() for line in indented(self._turn(name, e), 3)),
            "TURNED_PARAMETERS": "".join(f", const float* {name}" for name in turned.values()),
            "TURNED_VALUES": "".join(f", {name}[u]" for name in turned.values()),
            "TURNED_BEGIN": "".join(f", {name} + j * PITCH" for name in turned.values()),
            "KEYS": "\n".join(indented(keys.lines, 3)), "VALUES": "\n".join(indented(values.lines, 3)),
            "SCORED": "rows" if rows_matter else "PITCH",
            "PARAMETERS": ", ".join(f"{kind}__restrict__ {member}" for member, kind in members.items()),
            "POINTERS": ", ".join(members), "POINT": "\n".join(indented(point, 2)), "OUTER": ", ".join(self.outer),
            "IF": "" if work >= SERIAL_WORK else " if (false)",
        })
        return KernelSource(self.name, text, 0, used_snippets(text))

    def _operand(self, word: str, expression: Expression, axis: str) -> _Operand:
        """Keys or values: read in their place where neighbours there are neighbours in memory, else put into an array
        tile by tile."""
        size = "DEPTH" if axis == "k" else "WIDTH"
        lane, column = self.names.index(axis), len(self.outer) + 1
        if self._lies(expression, lane):
            strides = expression.index.strides
            place = index_text(Index((strides[column], strides[lane])), ["{0}", "{1}"])
            names = ["begin" if name == "j" else "0" if name == axis else name for name in self.names]
            along = [f"at.{name}" if name in self.outer else name for name in names]
            begin = index_text(expression.index, along)
            return _Operand(place, [], [f"const float* const {word}s = call.in{expression.buffer} + {begin};"], [])
        lines = braces("for (int64_t j = 0; j < columns; ++j)", [
            "#pragma omp simd",
            f"for (int64_t {axis} = 0; {axis} < {size}; ++{axis})",
            f"  {word}s[j * {size} + {axis}] = {word}_at(call, at, begin + j, {axis});"])
        return _Operand(f"{{0}} * {size} + {{1}}", [f"alignas(64) float {word}s[TILE * {size}];"], lines,
                        [self._function(word, expression, ["int64_t j", f"int64_t {axis}"])])

    def _turned(self) -> list[Expression]:
        """Parts of the score that move along rows and columns and do not have the product, as large as there are: they
        are read row by row, as they mostly lie, and put into the order of tiles. None where they lie so already, or are
        too many for the nearest cache."""
        both = 3 << len(self.outer)

        def is_part(e: Expression) -> bool:
            return not e.reduced and e.axes & both == both and not is_whole(e)

        found = [e for e in walk(self.kernel.score, into=lambda e: not is_part(e)) if is_part(e)]
        rows = len(self.outer)
        lie_so = all(abs(e.index.strides[rows]) < 2 for e in walk(*found) if isinstance(e, Load))
        return [] if lie_so or len(found) > _MOST_TURNED else found

    def _turn(self, name: str, expression: Expression) -> list[str]:
        """Lines that put a part of the score for all rows and the columns of a tile into an array: from where it lies,
        if it is nothing else and there are all of a vector's rows and columns."""
        where = f"{name} + j * PITCH + first, PITCH"
        whole, rows = [], len(self.outer)
        if self._lies(expression, rows + 1) and expression.index.strides[rows + 1] == 1:
            names = [f"at.{axis}" for axis in self.outer] + ["row + first", "begin + j", "0", "0"]
            begin = index_text(expression.index, [f"({n})" if " " in n else n for n in names])
            whole = ["if (first + LANES <= rows)",
                     "  for (; j + LANES <= columns; j += LANES)",
                     f"    turn(call.in{expression.buffer} + {begin}, {expression.index.strides[rows]}, {where});"]
        return braces("for (int64_t first = 0; first < PITCH; first += LANES)", [
            "int64_t j = 0;", *whole, "const int64_t left = j;",
            "for (int64_t u = 0; u < LANES && first + u < rows; ++u)",
            "  #pragma omp simd",
            f"  for (int64_t n = left; n < columns; ++n) some[u * TILE + n] = "
            f"{name}_at(call, at, row + first + u, begin + n);",
            f"for (; j < columns; j += LANES) turn(some + j, TILE, {where});"])

    def _lies(self, expression: Expression, axis: int) -> TypeGuard[Load]:
        """Whether an expression is an element of a float32 input, and neighbours along an axis are in memory."""
        return isinstance(expression, Load) and not (expression.guards or expression.whole or expression.counts) \
            and self.kernel.input_dtypes[expression.buffer] == "float32" and abs(expression.index.strides[axis]) == 1

    def _function(self, word: str, expression: Expression, parameters: Sequence[str],
                  known: Mapping[Expression, str] = MappingProxyType({})) -> str:
        """The function of a query, a key, a value or a score at one point. known: parts that it is given."""
        scope = Scope("v", {Reduced(0): "product", **known})
        lines = scope.define([expression], lambda load: guarded_text(load, self.names))
        buffers = sorted({e.buffer for e in walk(expression, into=lambda e: e not in known)
                          if isinstance(e, (Load, Element)) and e not in known})
        pointers = [f"const {TYPES[self.kernel.input_dtypes[b]]}* const in{b} = call.in{b};" for b in buffers]
        return self._defined("real", word, parameters, expression.axes,
                             [*pointers, *lines, f"return {scope.text(expression)};"])[0]

    def _defined(self, result: str, word: str, parameters: Sequence[str], axes: int, lines: Sequence[str]) -> list[str]:
        """A function of a call, of a point of the outer axes, and of other places."""
        point = [f"const int64_t {axis} = at.{axis};" for n, axis in enumerate(self.outer) if axes >> n & 1]
        given = ", ".join(["const Call& call", "const Point& at", *parameters])
        head = f"__attribute__((always_inline)) static inline {result} {word}_at({given})"
        return ["\n".join(braces(head, [*point, *lines])) + "\n"]

    @staticmethod
    def _moving(index: Index) -> int:
        """The axes along which an index moves, as bits."""
        return sum(bool(stride) << n for n, stride in enumerate(index.strides))

    def _columns_of(self) -> str:
        if not self.kernel.causal:
            return "  (void)i;\n  return COLUMNS;"
        return f"  const int64_t end = i + {self.kernel.shift + 1};\n" \
               "  return end < 0 ? 0 : end < COLUMNS ? end : COLUMNS;"


def _truth(value: bool) -> str:
    return "true" if value else "false"
