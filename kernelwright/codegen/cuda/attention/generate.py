"""Attention for CUDA: a :class:`kernelwright.plan.kernels.Attention` to two launches, or to one.

The first one splits queries, keys and values into two float16 terms each, the second multiplies them on tensor cores:
three products of terms have the accuracy of float32. Where a block has all rows and columns it splits them itself.
Weights stay in registers, where the results of one product lie as the next one takes its operand, and the sum of a row
goes on from tile to tile (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867;
T. Dao et al., "FlashAttention", arXiv 2205.14135; J. Shah et al., "FlashAttention-3", arXiv 2407.08608, section 3.1).
Tensor cores cut what they add, so that sums over all columns would drift: they have those of one tile, which are added
up in float32, where they are scaled anyway.

A tile of 64 rows and 64 columns takes 12 products of 64 x 64 x 16 for each 64 elements of queries and for each 64 of
values, 384 cycles of a multiprocessor's tensor cores either; its weights take 4,096 powers of two (256 cycles) and some
seven instructions each (220 cycles of four schedulers), which other warpgroups can use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernelwright.codegen.cuda.attention.layout import Layout, choose
from kernelwright.codegen.cuda.expressions import C_TYPES, affine_text, literal
from kernelwright.codegen.cuda.gemm.points import as_float, device_function, emitter_of, loads_of, straight, wrapped
from kernelwright.codegen.cuda.host import alignment_check, ask_processors, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource, Unsuitable, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.expressions import Apply, Constant, Expression, Reduced
from kernelwright.plan.kernels import Attention

_LOG2E = 1.4426950408889634
#: Weights are at most two to the power of this, so that their terms, which are multiples of 2^-24, have errors of
#: 2^-37 of the greatest weight, or of their own 23rd bit.
_ROOM = 12
_PRODUCT = Reduced(0)
_UNITS = """\
// The exponent of a row's greatest weight, and what undoes the power of two by which its weights are multiplied.
static __device__ __forceinline__ unsigned weight_exponent(float greatest) {
  return max(min(__float_as_uint(greatest) >> 23, 254u), 15u);
}
static __device__ __forceinline__ float weight_unit(float greatest) {
  return __uint_as_float((weight_exponent(greatest) - 14u) << 23);
}

"""


# Scores of any size: differences come first, as large ones have no digits to lose, and nothing is fused into them: the
# greatest score less itself is zero.
_DIFFERENCES = """\
        // A row without weights so far has no greatest score.
        const float base = most == -INFINITY ? 0.0f : most;
        kept[h] = kw_quick_exp2((top[h] - base) * @LOG2E@);
"""
# Scores that are multiples of products: one multiply-add each. What is added is a number that all scores of a tile and
# what was summed up before have in common, whatever was lost when it was rounded.
_SHIFTS = f"""\
        const bool none = most == -INFINITY;  // a row without weights so far
        const float shift = none ? {_ROOM}.0f : {_ROOM}.0f - most;
        kept[h] = kw_quick_exp2(shift - shift_before[h]);
        shift_before[h] = none ? INFINITY : shift;
        far = far || fabsf(shift) >= 0x1p23f;  // its rounding would matter
"""


class _Way(NamedTuple):
    """How operands come to shared memory: parts of the text."""

    how: str
    places: str
    arrivals: str
    more_shared: str
    pack_kernel: str
    own: str
    producer: str
    factors: str
    key_factor: str
    value_factor: str
    wrong: str


_EXACTLY = """\
      exactly(@EXACT_ARGUMENTS@own_row, own_row + 16 < ROWS ? own_row + 16 : ROWS, begin);
"""
_PACKED = _Way(
    """\
// Operands are split into two float16 terms first (@NAME@_pack), as tiles that bulk copies bring to shared memory: of
// queries for @GROUPS@ warpgroups, 64 rows each, and of @TILE_COLUMNS@ columns of keys and values at a time. What a
// warpgroup has of scores and weights stays in its registers.""",
    """\
// Where what is packed begins: operands, what undoes their scales, and whether they are split at all; and the number of
// the next piece of work that no block has.
constexpr long long QUERY_TILES = 1LL * BATCH * ROW_TILES, KEY_TILES = 1LL * BATCH * TILES;
constexpr long long VALUE_TILES = KEY_TILES * PARTS, KEYS = QUERY_TILES * QUERY_BYTES;
constexpr long long VALUES = KEYS + KEY_TILES * KEY_BYTES, FACTORS = VALUES + VALUE_TILES * VALUE_BYTES;
constexpr long long FLAGS = FACTORS + 4 * (QUERY_TILES + KEY_TILES + VALUE_TILES), COUNTER = FLAGS + 4 * BATCH;
constexpr long long PACKED_BYTES = COUNTER + 4;
""", "1", "", text_beside(__file__, "packed.cuh"),
    "  const unsigned* const flags = reinterpret_cast<const unsigned*>(packed + FLAGS);\n",
    text_beside(__file__, "producer_of_packed.cuh"),
    f"""\
    if (flags[point] != 0u) {{
{_EXACTLY}      if (lane == 0) kw_barrier_arrive(queries_read);
      continue;
    }}
    const int row_tile = row_block * GROUPS + group;
    const float* const factors = reinterpret_cast<const float*>(packed + FACTORS);
    const float query_factor = factors[1LL * point * ROW_TILES + (row_tile < ROW_TILES ? row_tile : ROW_TILES - 1)];
    const float* const key_factors = factors + QUERY_TILES + 1LL * point * TILES;
    const float* const value_factors = factors + QUERY_TILES + KEY_TILES + 1LL * point * TILES * PARTS + part;
""", "key_factors[tile]", "value_factors[tile * PARTS]", "")
_CONVERTING = _Way(
    """\
// A warpgroup splits operands into two float16 terms as it brings them to shared memory: queries for @GROUPS@ other
// warpgroups, 64 rows each, and @TILE_COLUMNS@ columns of keys and values at a time. What a warpgroup has of scores and
// weights stays in its registers.""",
    """\
constexpr long long COUNTER = 0, PACKED_BYTES = 4;  // the number of the next piece of work that no block has
""", "PACKERS / 32", " + 4 * (GROUPS + 2 * STAGES + 2 + PACKERS / 8)", "",
    """\
  volatile int* const following = next_work + 1;
  // What undoes the scales of queries, and of keys and values of each stage; whether operands are split at all, of this
  // piece of work and of the one before; and the extremes of each warp.
  float* const own_factors = reinterpret_cast<float*>(shared + OPERAND_BYTES + 8 * BARRIERS + 8);
  unsigned* const own_flags = reinterpret_cast<unsigned*>(own_factors + GROUPS + 2 * STAGES);
""", text_beside(__file__, "producer_that_converts.cuh"),
    "    const float query_factor = own_factors[group];\n", "own_factors[GROUPS + stage]",
    "own_factors[GROUPS + STAGES + stage]",
    f"""\
    if (own_flags[number % 2] != 0u) {{
{_EXACTLY}      continue;
    }}
""")


class _Function(NamedTuple):
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


def generate(kernel: Attention, name: str, layout: Layout | None = None) -> KernelSource:
    """The text of the kernels and of their host function ``name``. ``layout`` replaces the chosen one.

    Raises Unsuitable where queries or values are too long.
    """
    layout = layout or choose(kernel)
    if layout is None:
        raise Unsuitable(f"queries of {kernel.depth} elements need more than a multiprocessor holds")
    if kernel.batch * -(-kernel.rows // (64 * layout.groups)) * -(-kernel.width // layout.wide) >= 2**31 - 2**20:
        raise Unsuitable("more rows than 31 bits count")
    return _Text(kernel, name, layout).source()


class _Text:
    """The text of one kernel."""

    def __init__(self, kernel: Attention, name: str, layout: Layout) -> None:
        self.kernel, self.name, self.layout = kernel, name, layout
        self.outer = [f"n{n}" for n in range(len(kernel.outer))]
        self.names = [*self.outer, "i", "j", "k", "p"]
        self.vectors: set[str] = set()  # pointers that must be aligned to 16 bytes
        self.functions = {word: self._function(word, expression) for word, expression in (
            ("query", kernel.query), ("key", kernel.key), ("value", kernel.value), ("score", kernel.score))}
        self.eights = {word: self._eight(word, expression, axis) for word, expression, axis in (
            ("query", kernel.query, "k"), ("key", kernel.key, "k"), ("value", kernel.value, "j"))}

    def _function(self, word: str, expression: Expression) -> _Function:
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
        return _Function(text, word, [f"in{b}" for b in buffers], axes, expression.reduced)

    def _eight(self, word: str, expression: Expression, axis: str) -> str:
        """The function that gives an operand's values at 8 neighbouring points along an axis."""
        kernel, function = self.kernel, self.functions[word]
        size, number = (kernel.depth if axis == "k" else kernel.columns), self.names.index(axis)
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

    def source(self) -> KernelSource:
        kernel, layout, name = self.kernel, self.layout, self.name
        calls = {word: function.call() for word, function in self.functions.items()}
        packed = [p for word in ("query", "key", "value") for p in self.functions[word].pointers]
        pack_pointers, pointers = self._pointers(packed), self._pointers([*packed, *self.functions["score"].pointers])
        fewer, more = layout.registers
        functions, workspace = self.functions, _packed_bytes(kernel, layout)
        way = _CONVERTING if layout.converts else _PACKED
        weights = self._weights()
        text = text_beside(__file__, "attention.cuh").replace("@FAR@", weights.pop("FAR"))
        for word, part in zip(_Way._fields, way, strict=True):
            text = text.replace(f"@{word.upper()}@", part)
        for word, part in (("PACK", text_beside(__file__, "pack.cuh")), ("EXACT", text_beside(__file__, "exactly.cuh")),
                           ("WEIGHTS", text_beside(__file__, "softmax.cuh" if kernel.softmax else "weights.cuh"))):
            text = text.replace(f"@{word}@", part)
        text = fill(text, {
            "NAME": name, "COMMENT": f"Attention of {kernel.batch} times {kernel.rows} queries of {kernel.depth} "
                                     f"elements to {kernel.columns} values of {kernel.width}.",
            "BATCH": kernel.batch, "ROWS": kernel.rows, "COLUMNS": kernel.columns, "DEPTH": kernel.depth,
            "WIDTH": kernel.width, "PACKERS": layout.packers, "GROUPS": layout.groups, "STAGES": layout.stages,
            "TILE_COLUMNS": layout.tile_columns, "DEEP": layout.deep, "WIDE": layout.wide, "WORKSPACE": workspace,
            "THREADS": layout.threads, "BLOCKS": layout.blocks, "FEWER": fewer, "MORE": more,
            "UNITS": "" if kernel.softmax else _UNITS, "MAGNITUDE": "x" if kernel.softmax else "fabsf(x)",
            "VALUES": "\n".join([*(function.text for function in functions.values()), *self.eights.values()]),
            "COLUMNS_OF": self._columns_of(),
            **({"POINT_OF_WORK": self._point("score", 6, all_axes=True)} if layout.converts else {
                "PACK_PARAMETERS": ", ".join(self._declared(pack_pointers)),
                "POINT_OF_QUERY": self._point("query", 4), "POINT_OF_KEY": self._point("key", 4),
                "POINT_OF_VALUE": self._point("value", 2)}),
            "PARAMETERS": ", ".join([*self._declared(pointers), "float* __restrict__ out0"]),
            "POINT": self._point("score", 4, all_axes=True),
            "TAKE_QUERY": self._taken("query", "k", i="first + row"), "QUERY_ALONG": self._along("query"),
            "TAKE_KEY": self._taken("key", "k", j="first + row"), "KEY_ALONG": self._along("key"),
            "TAKE_VALUE": self._taken("value", "j", p="begin + row", j="first + k"),
            "VALUE_ALONG": self._along("value"),
            "QUERY_AT": calls["query"], "KEY_AT": calls["key"], "VALUE_AT": calls["value"], "SCORE_AT": calls["score"],
            "EXACT_PARAMETERS": "".join(f"{part}, " for part in [
                *self._declared(pointers), "float* __restrict__ out0", *(f"int {axis}" for axis in self.outer)]),
            "EXACT_ARGUMENTS": "".join(f"{part}, " for part in [*pointers, "out0", *self.outer]),
            **weights, "STORE": self._stored("sums[n / 2 * 4 + 2 * h + n % 2] * scale", i="row"),
            "EXACT_STORE": self._stored("sums[n] * scale"),
            "HEAD": head(name, kernel.input_dtypes, kernel.output_dtypes),
            "LAUNCH": "\n".join(f"  {line}" for line in self._launch(pack_pointers, pointers))})
        text = "\n".join(wrapped(text.split("\n")))
        return KernelSource(name, text, workspace, ("check", "tensor_core", f"wgmma_f16_{layout.tile_columns}",
                                                    f"wgmma_f16_{layout.wide}_own", *sorted(snippets_of(text))))

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
                "FAR": f"    if (__any_sync(0xffffffffu, far)) {{\n{_EXACTLY}      continue;\n    }}\n",
                "EXACT_WHOLE": "    const float scale = 1.0f;",
                "WHOLE": "      const float scale = weight_unit(top[h]);"}
        if slope is not None:  # scores are multiples of products: the greatest is found first, and multiplied
            values |= {
                # The factor is a power of two, so that products of all tiles are rounded alike.
                "SLOPE": "      // Not so little that infinity times it is none.\n      const float slope = "
                         f"fmaxf(factor, 0x1p-100f) * {literal(slope * _LOG2E, 'float')};\n",
                "BASE": _SHIFTS, "STATE": ", shift_before[2] = {INFINITY, INFINITY};\n    bool far = false",
                "MOST": "-INFINITY", "MOST_AFTER": "        most = fmaxf(most * slope, top[h]);\n",
                "FAR": f"    if (__any_sync(0xffffffffu, far)) {{\n{_EXACTLY}      continue;\n    }}\n",
                "ROW": "", "LIMIT": "        const int columns = columns_of(i + 8 * h) - column;\n",
                "SCORE": "          if (!whole && n / 2 * 8 + n % 2 >= columns) x = -INFINITY;"}
        else:
            call = score.call("x * factor", i="row", j="column + n / 2 * 8 + n % 2")
            hidden = "-INFINITY" if self.kernel.softmax else "0.0f"
            values |= {
                "SLOPE": "", "MOST": "top[h]", "MOST_AFTER": "",
                **({"STATE": "", "FAR": ""} if self.kernel.softmax else {}),
                "ROW": "        const int row = i + 8 * h < ROWS ? i + 8 * h : ROWS - 1;\n",
                "LIMIT": "        const int columns = columns_of(row) - column;\n",
                "SCORE": f"          x = whole || n / 2 * 8 + n % 2 < columns ? {call} : {hidden};"}
        if self.kernel.softmax:
            log2e = literal(_LOG2E, "float")
            values |= {"BASE": _DIFFERENCES.replace("@LOG2E@", log2e)} if slope is None else {}
            values["EXPONENT"] = "fmaf(x, slope, shift)" if slope is not None else \
                f"fmaf(__fsub_rn(x, base), {log2e}, {_ROOM}.0f)"
        return values

    def _launch(self, pack_pointers: Sequence[str], pointers: Sequence[str]) -> list[str]:
        name = self.name
        zeroed = "packed + COUNTER, 0, 4" if self.layout.converts else "packed + FLAGS, 0, 4 * (BATCH + 1)"
        lines = [*alignment_check(name, sorted(self.vectors)), f"using namespace {name}_detail;",
                 "auto* packed = static_cast<unsigned char*>(workspace);",
                 f'KW_CHECK("{name}", cudaMemsetAsync({zeroed}, stream));',
                 *ask_processors(name), f"const int blocks = WORKS < {self.layout.blocks} * processors ? WORKS : "
                                        f"{self.layout.blocks} * processors;",
                 ]
        if not self.layout.converts:
            lines.append(f'KW_LAUNCH("{name}", {name}_pack, QUERY_TILES + KEY_TILES + VALUE_TILES, PACKERS, 0, stream, '
                         f"{', '.join([*pack_pointers, 'packed'])});")
        if self.layout.shared_bytes > 48 * 1024:
            lines.append(f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, '
                         "cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));")
        return [*lines, f'KW_LAUNCH("{name}", {name}_core, blocks, THREADS, SHARED_BYTES, '
                        f"stream, {', '.join(['packed', *pointers, 'out0'])});"]


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


def _packed_bytes(kernel: Attention, layout: Layout) -> int:
    """Bytes of what is packed, and of the number of the next piece of work; see the constants of the text."""
    if layout.converts:
        return 4
    batch, tile = kernel.batch, layout.tile_columns
    queries, keys = batch * -(-kernel.rows // 64), batch * -(-kernel.columns // tile)
    values = keys * -(-kernel.width // layout.wide)
    operands = queries * 64 * layout.deep + keys * tile * layout.deep + values * tile * layout.wide
    return 4 * (operands + queries + keys + values + batch + 1)
