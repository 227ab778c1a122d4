"""Attention of a model in bfloat16 or float16, as one launch: operands, weights and results are of the model's type.

Operands lie where they lie, and come to shared memory in pieces of 16 bytes, in an order that tensor cores take as
it is, keys along their elements and values across. What is computed before, as rotary positions are, is
rounded to the model's type as its own operators round it. Scores, the softmax and all sums are float32. Weights are
rounded to the model's type, as fused kernels of that type do; float16 has them between 0 and 2^12, so that those below
2^-14 keep their digits. What is not finite in the end is computed once more, in multiply-adds: a column that is hidden
reaches nothing, whatever stands in it.

What a tile of 64 rows and 128 columns takes: one product of queries and one of values, together 64 * 128 * (depth +
width) / 2048 cycles of a multiprocessor's tensor cores, 512 for heads of 64 elements and 1,024 for 128; 8,192 powers of
two, 512 cycles at 16 a cycle; and some four instructions for each weight, 256 cycles of four schedulers. So heads of 64
are bound by both alike, which must overlap, and heads of 128 by products. While a warpgroup makes weights of one tile
the values of the tile before are multiplied (J. Shah et al., "FlashAttention-3", arXiv 2407.08608, section 3.2), and
other warpgroups have products of their own. A block reads all keys and values: a tile of 128 columns and heads of 128
elements has 64 KiB for 2,048 cycles of 128 rows, 32 bytes a cycle, near what the second-level cache gives all
multiprocessors at once. Predicted for long sequences of an H200: 60 to 70 % of 989 TFLOP/s for heads of 128, 45 to 55 %
for heads of 64. The floor of short ones is memory: each operand and the result once, 2 bytes an element.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.attention.narrow_layout import NarrowLayout
from kernelwright.codegen.cuda.attention.text import Text
from kernelwright.codegen.cuda.expressions import C_TYPES, affine_text
from kernelwright.codegen.cuda.gemm.points import emitter_of, wrapped
from kernelwright.codegen.cuda.host import alignment_check, ask_processors, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.expressions import Expression, Index, Load
from kernelwright.plan.kernels import Attention

#: By type: its name in PTX, and the power of two that is its greatest weight.
_KINDS = {"bfloat16": ("bf16", 0), "float16": ("f16", 12)}
#: What has more work at its end than at its beginning is given out as blocks ask for it.
_ASKED = """\
      if (threadIdx.x == 0) next_work[1 + number % 2] = static_cast<int>(gridDim.x + atomicAdd(counter, 1u));
      kw_part_sync(1, BRINGERS);
      work = next_work[1 + number++ % 2];
"""
_MULTIPLES = """\
        float most = -INFINITY;
        if (!whole) {
#pragma unroll
          for (int n = 0; n < TILE_COLUMNS / 4; ++n)
            if (n / 2 * 8 + n % 2 >= columns) s[n / 2 * 4 + 2 * h + n % 2] = -INFINITY;
        }
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) most = fmaxf(most, s[n / 2 * 4 + 2 * h + n % 2]);
"""
_ANY_SCORES = """\
        float most = @MOST@;
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
@SCORE@
          most = fmaxf(most, x);
        }
"""
_SOFTMAX = """\
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
@MOST_AFTER@@BASE@        top[h] = most;
        float parts[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
          x = kw_quick_exp2(@EXPONENT@);
          parts[n % 2] += x;
        }
        total[h] = fmaf(total[h], kept[h], parts[0] + parts[1]);
"""
# Four lanes have two elements each of four pieces of 8: afterwards each has a piece.
_PIECES = """\
#pragma unroll
      for (int first = 0; first < WIDE / 8; first += 4) {
        unsigned words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n)
          words[n] = @PAIR@(sums[4 * (first + n) + 2 * h], sums[4 * (first + n) + 2 * h + 1]);
#pragma unroll
        for (int apart = 1; apart < 4; apart *= 2) {
          const bool upper = (lane & apart) != 0;
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const int low = apart == 1 ? 2 * n : n, high = low + apart;
            const unsigned given = __shfl_xor_sync(0xffffffffu, upper ? words[low] : words[high], apart);
            words[low] = upper ? given : words[low];
            words[high] = upper ? words[high] : given;
          }
        }
        const int p = begin + (first + lane % 4) * 8;
        if (row < ROWS && p < WIDTH)
          *reinterpret_cast<uint4*>(out0 + (@AT@)) = make_uint4(words[0], words[1], words[2], words[3]);
      }
"""
_ALONE = """\
      if (row < ROWS) {
#pragma unroll
        for (int n = 0; n < WIDE / 4; n += @TOGETHER@) {
          const int p = begin + n / 2 * 8 + lane % 4 * 2 + n % 2;
          const float* const result = sums + n / 2 * 4 + 2 * h + n % 2;
          if (p < WIDTH) @STORE@
        }
      }
"""
_NO_SOFTMAX = """\
#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
@SCORE@
        }
"""
_RESCALE = """\
#pragma unroll
        for (int n = 0; n < WIDE / 2; ++n) sums[n] *= kept[n / 2 % 2];
"""


class SixteenBits(Text):
    """The text of one kernel."""

    value_axis = "p"

    def __init__(self, kernel: Attention, name: str, layout: NarrowLayout) -> None:
        super().__init__(kernel, name)
        self.layout = layout
        self.kind, self.room = _KINDS[kernel.compute]
        self.pair = f"kw_{kernel.compute}_pair"
        self.asks = kernel.causal

    def source(self) -> KernelSource:
        """The kernel's text."""
        kernel, layout, name = self.kernel, self.layout, self.name
        pointers = self._pointers([p for function in self.functions.values() for p in function.pointers])
        fewer, more = layout.registers
        out = f"{C_TYPES[kernel.output_dtypes[0]]}* __restrict__ out0"
        puts = {"query": ("k", "i < ROWS"), "key": ("k", "j < COLUMNS"), "value": ("p", "j < COLUMNS")}
        text = fill(text_beside(__file__, "sixteen_bits.cuh"), {
            "NAME": name, "COMMENT": f"Attention of {kernel.batch} times {kernel.rows} queries of {kernel.depth} "
                                     f"elements to {kernel.columns} values of {kernel.width}, in {kernel.compute}.",
            "BATCH": kernel.batch, "ROWS": kernel.rows, "COLUMNS": kernel.columns, "DEPTH": kernel.depth,
            "WIDTH": kernel.width, "GROUPS": layout.groups, "STAGES": layout.stages,
            "TILE_COLUMNS": layout.tile_columns, "DEEP": layout.deep, "WIDE": layout.wide, "THREADS": layout.threads,
            "BLOCKS": layout.blocks, "FEWER": fewer, "MORE": more, "KIND": self.kind, "PAIR": self.pair,
            "VALUES": "\n".join([*(function.text for function in self.functions.values()),
                                 *(text for word, text in self.eights.items() if self._copied(word) is None)]),
            "WORK": text_beside(__file__, "work.cuh"), "COLUMNS_OF": self._columns_of(),
            "EXACT": text_beside(__file__, "exactly.cuh"),
            **self._turns(), "NUMBER": ", number = 0" * self.asks,
            "COUNTER_PARAMETER": "unsigned* counter, " * self.asks,
            "PARAMETERS": ", ".join([*self._declared(pointers), out]),
            "POINT_OF_WORK": self._point("score", 6, all_axes=True), "POINT": self._point("score", 4, all_axes=True),
            **{f"PUT_{word.upper()}": self._put(word, *where) for word, where in puts.items()},
            "QUERIES_ARRIVE": self._arrives("query", "queries_there"),
            "KEYS_ARRIVE": self._arrives("key", "keys_there + 8 * stage"),
            "VALUES_ARRIVE": self._arrives("value", "values_there + 8 * stage"),
            "NEXT_WORK": _ASKED if self.asks else "      work += gridDim.x;\n",
            **{f"{word.upper()}_AT": self.functions[word].call() for word in ("query", "key", "value", "score")},
            "EXACT_PARAMETERS": "".join(f"{part}, " for part in [
                *self._declared(pointers), out, *(f"int {axis}" for axis in self.outer)]),
            "EXACT_ARGUMENTS": "".join(f"{part}, " for part in [*pointers, "out0", *self.outer]),
            **self._weighed(), **self._stores(),
            "EXACT_STORE": self._stored("sums[n] * scale"),
            "HEAD": head(name, kernel.input_dtypes, kernel.output_dtypes),
            "LAUNCH": "\n".join(f"  {line}" for line in self._launch(pointers))},
            spare=("MOST", "MOST_AFTER", "SCORE", "BASE", "EXPONENT"))
        text = "\n".join(wrapped(text.split("\n")))
        return KernelSource(name, text, 4 if self.asks else 0, (
            "check", "tensor_core", f"wgmma_{self.kind}_{layout.tile_columns}",
            f"wgmma_{self.kind}_{layout.wide}_turned", *sorted(snippets_of(text))))

    def _copied(self, word: str) -> Load | None:
        """An operand's load, if its elements are of the kernel's type and lie in pieces of 16 bytes."""
        expression: Expression = getattr(self.kernel, word)
        number = self.names.index("p" if word == "value" else "k")
        if not isinstance(expression, Load) or expression.guards or expression.whole \
                or self.kernel.input_dtypes[expression.buffer] != self.kernel.compute:
            return None
        sizes = self.kernel.domain
        *others, = (stride for n, (stride, size) in enumerate(zip(expression.index.strides, sizes, strict=True))
                    if n != number and size > 1)
        fits = expression.index.strides[number] == 1 and sizes[number] % 8 == 0 and expression.index.offset % 8 == 0 \
            and all(stride % 8 == 0 for stride in others)
        return expression if fits else None

    def _put(self, word: str, axis: str, there: str) -> str:
        """The statements that bring 8 elements of an operand from ``axis`` on to the place ``to``."""
        load, indent = self._copied(word), " " * (8 if word == "query" else 10)
        number = self.names.index(axis)
        if load is not None:
            self.vectors.add(f"in{load.buffer}")
            own = ("BATCH", "ROWS", "COLUMNS", "DEPTH", "WIDTH")[number - len(self.outer) + 1]
            at = self._index(load.index, load)
            return f"{indent}kw_copy_16(to, in{load.buffer} + {at}, {there} && {axis} < {own});"
        return "\n".join(indent + line for line in (
            "float x[8] = {};", f"if ({there}) {self._taken(word, axis, k='k', p='p')};",
            f"*reinterpret_cast<uint4*>(operands + (to - queries)) = make_uint4({self.pair}(x[0], x[1]),",
            f"    {self.pair}(x[2], x[3]), {self.pair}(x[4], x[5]), {self.pair}(x[6], x[7]));"))

    def _index(self, index: Index, load: Expression, names: Sequence[str] | None = None) -> str:
        emitter = emitter_of(self.kernel, self.kernel.domain, tuple(self.names), [load])
        return affine_text(index.strides, names or self.names, index.offset, emitter.site.long)

    def _arrives(self, word: str, barrier: str) -> str:
        """The statement by which a thread says that its part of an operand is there, or will be."""
        if self._copied(word) is not None:
            return f"kw_copies_arrive({barrier});"
        return f"kw_shared_written(), kw_barrier_arrive({barrier});"

    def _stores(self) -> dict[str, str]:
        """What stands for the store of a row: in pieces of 16 bytes, two neighbours at a time, or one by one."""
        if self._lies_in(8) and self.layout.wide % 32 == 0:
            self.vectors.add("out0")
            return {"STORES": _PIECES, "AT": self._place()}
        if self._lies_in(2):
            store = f"*reinterpret_cast<unsigned*>(out0 + ({self._place()})) = {self.pair}(result[0], result[1]);"
            return {"STORES": _ALONE, "TOGETHER": "2", "STORE": store}
        return {"STORES": _ALONE, "TOGETHER": "1", "STORE": self._stored("*result", i="row")}

    def _lies_in(self, count: int) -> bool:
        """Whether so many neighbours of a result lie together in memory, at multiples of their size."""
        index, sizes = self.kernel.store.index, self.kernel.domain
        *others, last = index.strides
        return self.kernel.output_dtypes[0] == self.kernel.compute and last == 1 and self.kernel.width % count == 0 \
            and index.offset % count == 0 and all(
                stride % count == 0 for stride, size in zip(others, sizes, strict=False) if size > 1)

    def _place(self) -> str:
        """The index of a result of ``row`` at ``p``."""
        emitter = emitter_of(self.kernel, self.kernel.domain, tuple(self.names), [], [self.kernel.store])
        index = self.kernel.store.index
        names = ["row" if axis == "i" else axis for axis in self.names]
        return affine_text(index.strides, names, index.offset, emitter.site.long)

    def _score_or(self, hidden: str, score: str) -> str:
        if self.functions["score"].pointers:  # nothing is read where there is no column
            return super()._score_or(hidden, score)
        # Without a branch for each: of many of them ptxas has products wait for each other (C7512).
        return f"          x = {score};\n          if (!whole && n / 2 * 8 + n % 2 >= columns) x = {hidden};"

    def _weighed(self) -> dict[str, str]:
        """What stands for the names around weights."""
        values, softmax = self._weights(), self.kernel.softmax
        values["FAR"] = "far" if "far" in values["STATE"] and softmax else "false"
        multiples = softmax and values["ROW"] == ""
        if not softmax:
            values |= {"STATE": ";\n    (void)top, (void)total", "WHOLE": "      const float scale = 1.0f;"}
        scores = _MULTIPLES if multiples else _ANY_SCORES
        values["WEIGH"] = scores + _SOFTMAX if softmax else _NO_SOFTMAX
        values["RESCALE"] = _RESCALE if softmax else ""
        return values

    def _turns(self) -> dict[str, str]:
        """Warpgroups that begin their products in turn: while one has its products the others make weights."""
        if not self.layout.turns:
            return {"FIRST_TURN": "", "TURN": "", "TURN_OVER": ""}
        return {"FIRST_TURN": "  // Barrier 2 + n: whose turn it is to begin products.\n"
                              "  if (group == GROUPS - 1) kw_part_arrive(2, 256);\n",
                "TURN": "        kw_part_sync(2 + group, 256);\n",
                "TURN_OVER": "        kw_part_arrive(group == GROUPS - 1 ? 2 : 3 + group, 256);\n"}

    def _launch(self, pointers: Sequence[str]) -> list[str]:
        name, layout = self.name, self.layout
        lines = [*alignment_check(name, sorted(self.vectors)), f"using namespace {name}_detail;"]
        if self.asks:
            lines += ["auto* counter = static_cast<unsigned*>(workspace);",
                      f'KW_CHECK("{name}", cudaMemsetAsync(counter, 0, 4, stream));']
        else:
            lines.append("(void)workspace;")
        lines += [*ask_processors(name), f"const int blocks = WORKS < {layout.blocks} * processors ? WORKS : "
                                         f"{layout.blocks} * processors;"]
        if layout.shared_bytes > 48 * 1024:
            lines.append(f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, '
                         "cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));")
        given = [*["counter"] * self.asks, *pointers, "out0"]
        return [*lines, f'KW_LAUNCH("{name}", {name}_core, blocks, THREADS, SHARED_BYTES, stream, {", ".join(given)});']
