"""Attention with the accuracy of float32, as two launches, or as one.

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

from kernelwright.codegen.cuda.attention.layout import Layout
from kernelwright.codegen.cuda.attention.text import EXACTLY, Text
from kernelwright.codegen.cuda.gemm.points import wrapped
from kernelwright.codegen.cuda.host import alignment_check, ask_processors, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.kernels import Attention

#: Weights are at most two to the power of this, so that their terms, which are multiples of 2^-24, have errors of
#: 2^-37 of the greatest weight, or of their own 23rd bit.
_ROOM = 12
_UNITS = """\
// The exponent of a row's greatest weight, and what undoes the power of two by which its weights are multiplied.
static __device__ __forceinline__ unsigned weight_exponent(float greatest) {
  return max(min(__float_as_uint(greatest) >> 23, 254u), 15u);
}
static __device__ __forceinline__ float weight_unit(float greatest) {
  return __uint_as_float((weight_exponent(greatest) - 14u) << 23);
}

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
{EXACTLY}      if (lane == 0) kw_barrier_arrive(queries_read);
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
{EXACTLY}      continue;
    }}
""")


class ThreeTerms(Text):
    """The text of one kernel."""

    room = _ROOM
    product = "x * factor"

    def __init__(self, kernel: Attention, name: str, layout: Layout) -> None:
        super().__init__(kernel, name)
        self.layout = layout

    def sloped(self, slope: str) -> str:
        # The factor is a power of two, so that products of all tiles are rounded alike.
        return "      // Not so little that infinity times it is none.\n" \
               f"      const float slope = fmaxf(factor, 0x1p-100f) * {slope};\n"

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
        for word, part in (("PACK", text_beside(__file__, "pack.cuh")), ("WORK", text_beside(__file__, "work.cuh")),
                           ("EXACT", text_beside(__file__, "exactly.cuh")),
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



def _packed_bytes(kernel: Attention, layout: Layout) -> int:
    """Bytes of what is packed, and of the number of the next piece of work; see the constants of the text."""
    if layout.converts:
        return 4
    batch, tile = kernel.batch, layout.tile_columns
    queries, keys = batch * -(-kernel.rows // 64), batch * -(-kernel.columns // tile)
    values = keys * -(-kernel.width // layout.wide)
    operands = queries * 64 * layout.deep + keys * tile * layout.deep + values * tile * layout.wide
    return 4 * (operands + queries + keys + values + batch + 1)
