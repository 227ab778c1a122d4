"""What the kernels of attention have in common, whatever their operands are split into: as text for CUDA."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from kernelwright.codegen.cuda.expressions import C_TYPES, affine_text, literal
from kernelwright.codegen.cuda.gemm.points import as_float, device_function, emitter_of, loads_of, straight
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Apply, Constant, Expression, Reduced
from kernelwright.plan.kernels import Attention

_LOG2E = 1.4426950408889634
_PRODUCT = Reduced(0)


# Scores of any size: differences come first, as large ones have no digits to lose, and nothing is fused into them: the
# greatest score less itself is zero.
_DIFFERENCES = """\
        // A row without weights so far has no greatest score.
        const float base = most == -INFINITY ? 0.0f : most;
        kept[h] = kw_quick_exp2((top[h] - base) * @LOG2E@);
"""
# Scores that are multiples of products: one multiply-add each. What is added is a number that all scores of a tile and
# what was summed up before have in common, whatever was lost when it was rounded.
_SHIFTS = """\
        const bool none = most == -INFINITY;  // a row without weights so far
        const float shift = none ? @ROOM@.0f : @ROOM@.0f - most;
        kept[h] = kw_quick_exp2(shift - shift_before[h]);
        shift_before[h] = none ? INFINITY : shift;
        far = far || fabsf(shift) >= 0x1p23f;  // its rounding would matter
"""
EXACTLY = """\
      exactly(@EXACT_ARGUMENTS@own_row, own_row + 16 < ROWS ? own_row + 16 : ROWS, begin);
"""


class Function(NamedTuple):
    """A device function of one point: its text, and how it is called."""

    text: str
    name: str
    pointers: list[str]
    axes: list[str]
    reduced: bool

    def call(self, product: str = "product", **places: str) -> str:
        """Its call, with texts for some of the axes."""
        given = [product] if self.reduced else []
        return f"{self.name}({', '.join([*given, *self.pointers, *(places.get(a, a) for a in self.axes)])})"


class Text(ABC):
    """The text of one kernel. room: weights are at most two to the power of this. product: the text of a product, of
    which ``x`` is what tensor cores give. value_axis: along which 8 neighbouring elements of a value are taken."""

    room = 0
    product = "x"
    value_axis = "j"

    def __init__(self, kernel: Attention, name: str) -> None:
        self.kernel, self.name = kernel, name
        self.outer = [f"n{n}" for n in range(len(kernel.outer))]
        self.names = [*self.outer, "i", "j", "k", "p"]
        self.vectors: set[str] = set()  # pointers that must be aligned to 16 bytes
        self.functions = {word: self._function(word, expression) for word, expression in (
            ("query", kernel.query), ("key", kernel.key), ("value", kernel.value), ("score", kernel.score))}
        self.eights = {word: self._eight(word, expression, axis) for word, expression, axis in (
            ("query", kernel.query, "k"), ("key", kernel.key, "k"), ("value", kernel.value, self.value_axis))}

    def _function(self, word: str, expression: Expression) -> Function:
        emitter = emitter_of(self.kernel, self.kernel.domain, tuple(self.names), [expression])
        emitter.reduced[0, 0] = "product"
        result = as_float(emitter, expression)
        buffers = sorted({load.buffer for load in loads_of([expression])})
        axes = [name for n, name in enumerate(self.names) if expression.axes >> n & 1]
        parameters = [*(["float product"] if expression.reduced else []),
                      *(f"const {C_TYPES[self.kernel.input_dtypes[b]]}* __restrict__ in{b}" for b in buffers),
                      *(f"int {axis}" for axis in axes)]
        text = device_function(f"The {word} at one point.", "float", word, parameters,
                               [*emitter.fixed_lines, *straight(emitter), f"return {result};"])
        return Function(text, word, [f"in{b}" for b in buffers], axes, expression.reduced)

    def _eight(self, word: str, expression: Expression, axis: str) -> str:
        """The function that gives an operand's values at 8 neighbouring points along an axis."""
        kernel, function = self.kernel, self.functions[word]
        number = self.names.index(axis)
        size = kernel.domain[number]
        emitter = emitter_of(kernel, kernel.domain, tuple(self.names), [expression], lane_axis=number, lanes=8)
        value = as_float(emitter, expression)
        lines = [*emitter.fixed_lines, *straight(emitter), "#pragma unroll",
                 f"for (int v = 0; v < 8; ++v) x[v] = {value};"]
        if size % 8 == 0:
            body = [f"if ({axis} < {size}) {{", *(f"  {line}" for line in lines), "}"]
            self.vectors |= emitter.vectors
        else:  # the last neighbours are not all there
            body = ["#pragma unroll", f"for (int v = 0; v < 8; ++v) x[v] = {axis} + v < {size} ? "
                                      f"{function.call(**{axis: f'{axis} + v'})} : 0.0f;"]
        types = self.kernel.input_dtypes
        parameters = ["float (&x)[8]", *(f"const {C_TYPES[types[int(p.removeprefix('in'))]]}* __restrict__ {p}"
                                         for p in function.pointers),
                      *(f"int {name}" for name in (*[a for a in function.axes if a != axis], axis))]
        return device_function(f"The {word} at 8 neighbouring points.", "void", f"{word}_eight", parameters, body)

    def _taken(self, word: str, axis: str, **places: str) -> str:
        """The call that takes 8 neighbouring values of an operand from ``k`` on."""
        function = self.functions[word]
        given = {axis: "k"} | places
        axes = [*(a for a in function.axes if a != axis), axis]
        return f"{word}_eight({', '.join(['x', *function.pointers, *(given.get(a, a) for a in axes)])})"

    def _along(self, word: str) -> str:
        """Whether neighbours along a row are neighbours in memory."""
        expression = {"query": self.kernel.query, "key": self.kernel.key, "value": self.kernel.value}[word]
        axis = self.names.index("j" if word == "value" else "k")
        return "true" if any(abs(load.index.strides[axis]) == 1 for load in loads_of([expression])) else "false"

    @abstractmethod
    def source(self) -> KernelSource:
        """The kernel's text."""

    def sloped(self, slope: str) -> str:
        """The line that defines what a product is multiplied by. slope: the number of the score's own."""
        return f"    const float slope = {slope};\n"

    def _pointers(self, names: Sequence[str]) -> list[str]:
        return sorted(set(names), key=lambda pointer: int(pointer.removeprefix("in")))

    def _declared(self, pointers: Sequence[str]) -> list[str]:
        types = self.kernel.input_dtypes
        return [f"const {C_TYPES[types[int(p.removeprefix('in'))]]}* __restrict__ {p}" for p in pointers]

    def _columns_of(self) -> str:
        if not self.kernel.causal:
            return "(void)i, COLUMNS"
        end = self.kernel.shift + 1
        return f"min(max(i + {end}, 0), COLUMNS)" if end >= 0 else f"min(max(i - {-end}, 0), COLUMNS)"

    def _point(self, word: str, indent: int, all_axes: bool = False) -> str:
        """Lines that define the outer axes of ``point``, those alone that a function asks for."""
        lines, pitch = [], 1
        for axis, size in zip(reversed(self.outer), reversed(self.kernel.outer), strict=True):
            quotient = f"point / {pitch}" if pitch > 1 else "point"
            text = f"{quotient} % {size}" if pitch * size < self.kernel.batch else quotient
            if all_axes or axis in self.functions[word].axes:
                lines.append(f"const int {axis} = {text};" + (f"\n{' ' * indent}(void){axis};" if all_axes else ""))
            pitch *= size
        return "\n".join(" " * indent + line for line in reversed(lines))

    def _stored(self, value: str, **places: str) -> str:
        emitter = emitter_of(self.kernel, self.kernel.domain, tuple(self.names), [], [self.kernel.store])
        names = [places.get(axis, axis) for axis in self.names]
        index = self.kernel.store.index
        return f"out0[{affine_text(index.strides, names, index.offset, emitter.site.long)}] = {value};"

    def _score_or(self, hidden: str, score: str) -> str:
        """The statement that makes a score ``x`` of a product, and ``hidden`` in columns that a row does not have."""
        return f"          x = whole || n / 2 * 8 + n % 2 < columns ? {score} : {hidden};"

    def _weights(self) -> dict[str, str]:
        """What stands for the names around weights."""
        slope = _slope(self.kernel.score) if self.kernel.softmax else None
        score = self.functions["score"]
        scale = "whole == 0.0f ? 0.0f : 1.0f / whole" if self.kernel.empty_rows else "1.0f / whole"
        if self.kernel.softmax:
            values = {
                "TOP": "-INFINITY", "EXACT_STATE": ", total = 0.0f, top = -INFINITY",
                "EXACT_TOP": "\n".join([
                    "#pragma unroll 1", "    for (int j = lane; j < columns; j += 32) top = fmaxf(top, score_at(j));",
                    "#pragma unroll", "    for (int lanes = 16; lanes > 0; lanes /= 2)",
                    "      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lanes));",
                    "    const float base = top == -INFINITY ? 0.0f : top;"]),
                "EXACT_WEIGHT": "expf(__fsub_rn(score_at(own), base))", "EXACT_TOTAL": "      total += weight;",
                "EXACT_WHOLE": "\n".join([
                    "#pragma unroll", "    for (int lanes = 16; lanes > 0; lanes /= 2)",
                    "      total += __shfl_xor_sync(0xffffffffu, total, lanes);",
                    "    const float whole = total;", f"    const float scale = {scale};"]),
                "WHOLE": "\n".join([
                    "      float whole = total[h] + __shfl_xor_sync(0xffffffffu, total[h], 1);",
                    "      whole += __shfl_xor_sync(0xffffffffu, whole, 2);", f"      const float scale = {scale};"])}
        else:
            values = {
                "TOP": "0.0f", "EXACT_STATE": "", "EXACT_TOP": "", "EXACT_WEIGHT": "score_at(own)", "EXACT_TOTAL": "",
                "STATE": ";\n    bool far = false",  # a weight that is not finite
                "FAR": f"    if (__any_sync(0xffffffffu, far)) {{\n{EXACTLY}      continue;\n    }}\n",
                "EXACT_WHOLE": "    const float scale = 1.0f;",
                "WHOLE": "      const float scale = weight_unit(top[h]);"}
        if slope is not None:  # scores are multiples of products: the greatest is found first, and multiplied
            values |= {
                "SLOPE": self.sloped(literal(slope * _LOG2E, "float")),
                "BASE": _SHIFTS.replace("@ROOM@", str(self.room)),
                "STATE": ", shift_before[2] = {INFINITY, INFINITY};\n    bool far = false",
                "MOST": "-INFINITY", "MOST_AFTER": "        most = fmaxf(most * slope, top[h]);\n",
                "FAR": f"    if (__any_sync(0xffffffffu, far)) {{\n{EXACTLY}      continue;\n    }}\n",
                "ROW": "", "LIMIT": "        const int columns = columns_of(i + 8 * h) - column;\n",
                "SCORE": "          if (!whole && n / 2 * 8 + n % 2 >= columns) x = -INFINITY;"}
        else:
            call = score.call(self.product, i="row", j="column + n / 2 * 8 + n % 2")
            hidden = "-INFINITY" if self.kernel.softmax else "0.0f"
            values |= {
                "SLOPE": "", "MOST": "top[h]", "MOST_AFTER": "",
                **({"STATE": "", "FAR": ""} if self.kernel.softmax else {}),
                "ROW": "        const int row = i + 8 * h < ROWS ? i + 8 * h : ROWS - 1;\n",
                "LIMIT": "        const int columns = columns_of(row) - column;\n",
                "SCORE": self._score_or(hidden, call)}
        if self.kernel.softmax:
            log2e = literal(_LOG2E, "float")
            values |= {"BASE": _DIFFERENCES.replace("@LOG2E@", log2e)} if slope is None else {}
            values["EXPONENT"] = "fmaf(x, slope, shift)" if slope is not None else \
                f"fmaf(__fsub_rn(x, base), {log2e}, {self.room}.0f)"
        return values


def _slope(score: Expression) -> float | None:
    """The number by which a score multiplies the product, if that is all, and it is positive."""
    if score is _PRODUCT:
        return 1.0
    match score:
        case Apply(function="mul", arguments=(a, Constant(value=float(number)))) if a is _PRODUCT:
            return number if number > 0 else None
        case Apply(function="mul", arguments=(Constant(value=float(number)), a)) if a is _PRODUCT:
            return number if number > 0 else None
        case Apply(function="div", arguments=(a, Constant(value=float(number)))) if a is _PRODUCT:
            return 1 / number if number > 0 else None
    return None


