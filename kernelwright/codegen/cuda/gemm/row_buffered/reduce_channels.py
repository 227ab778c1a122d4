"""Reductions over output channels by the row-buffered GEMM, in registers.

A thread has two channels of a product, at pairs of positions: it takes both together, and where there are more than 64
channels, product after product of the same positions. Then eight lanes have 16 channels of the same positions. In three
steps they exchange halves of what they have, so that each ends with an eighth of the positions (28 exchanges of 32
values, where each lane keeping all would take 96). Four warps meet in shared memory, where 128 threads take what they
have of a position each, and store neighbours.

A log-sum-exp is a pair, the greatest value and the sum of exponentials over its own. To put two together takes one
exponential, so that n values take n - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL
from kernelwright.codegen.cuda.gemm.epilogue.collective import reduce_scatter
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    as_float,
    device_function,
    emitter_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.row_buffered.operation import RowBufferedOperation, channel
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.template import fill, fill_some
from kernelwright.codegen.terms import grouped, plus, times

_MERGE = """
  const bool less = top < other_top;
  const float least = less ? top : other_top, most = kw_maximum(top, other_top);
  const float factor = least == most ? 1.0f : kw_decay(least - most);
  scaled = less ? fmaf(scaled, factor, other_scaled) : fmaf(other_scaled, factor, scaled);
  top = most;"""


class RowBufferedReduceChannels(RowBufferedOperation):
    """The statements of ``NAME_finish`` of one product's channels, and of ``NAME_reduce`` behind the last one's."""

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        super().__init__(numbers, names, [reduction.expression for reduction in numbers.kernel.reductions])
        kernel = self.kernel
        for number, reduction in enumerate(kernel.reductions):
            self.emitter.lane_lines.append(f"value{number}[h][v] = {as_float(self.emitter, reduction.expression)};")
        self.results = emitter_of(kernel, kernel.domain, names, (), kernel.stores)
        for number in range(len(kernel.reductions)):
            self.results.reduced[number + 1, 0] = f"result{number}"
        for store in kernel.stores:
            self.results.store(Buffer(f"out{store.buffer}", C_TYPES[kernel.output_dtypes[store.buffer]]), store.index,
                               store.expression)
        self.emitter.used |= self.results.used

    @property
    def vectors(self) -> set[str]:
        """Inputs and outputs that are to be aligned to 16 bytes."""
        return super().vectors | self.results.vectors

    @property
    def blocks(self) -> int:
        """Blocks of 8 positions that lanes share, whether a work tile has them or not."""
        return self.numbers.shared_blocks

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes of a work tile's products."""
        return [f"float (&kept)[{self.numbers.kept_values}][{2 * self.blocks}]", "int part"]

    @property
    def kept(self) -> str:
        """What a work tile keeps from product to product."""
        return f"\n        float kept[{self.numbers.kept_values}][{2 * self.blocks}];"

    def of_sums(self, quads: int) -> list[str]:
        """Take a product's channels."""
        both, takes = [], []
        for number, reduction in enumerate(self.kernel.reductions):
            both.append(f"float value{number}[2][2];")
            takes += self._taken(number, reduction.kind)
        own = [f"const int o = {self.clamped(channel(self.numbers, 'h'))};", *self.of_channel(), *self.pair(),
               *straight(self.emitter)]
        lines = ["#pragma unroll", f"for (int j = 0; j < {quads}; ++j) {{", *indent([
            *both, "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent(own), "}",
            "#pragma unroll", "for (int v = 0; v < 2; ++v) {", *indent(takes), "}"]), "}"]
        if self.blocks > quads:
            starts = [f"kept[{place}][i] = {start};" for place, start in enumerate(self._starts_of_all())]
            lines += ["#pragma unroll", f"for (int i = {2 * quads}; i < {2 * self.blocks}; ++i) {{", *indent(starts),
                      "}"]
        return lines

    def _starts_of_all(self) -> list[str]:
        """What stands for no channel, of each value that is kept."""
        starts = []
        for reduction in self.kernel.reductions:
            starts += ["-INFINITY", "0.0f"] if reduction.kind == "logsumexp" else [STARTS[reduction.kind]]
        return starts

    def place(self, number: int) -> int:
        """Where values of a reduction are among those that are kept."""
        return sum(2 if reduction.kind == "logsumexp" else 1 for reduction in self.kernel.reductions[:number])

    def _taken(self, number: int, kind: str) -> list[str]:
        """Take both channels' values of position ``v`` of block ``j``."""
        at, value, place = "2 * j + v", f"value{number}", self.place(number)
        in_bounds = [f"{channel(self.numbers, str(h))} < {self.kernel.out_channels}" for h in range(2)] \
            if self.ragged else []
        start = "-INFINITY" if kind == "logsumexp" else STARTS[kind]
        lines = [f"if (!({condition})) {value}[{h}][v] = {start};" for h, condition in enumerate(in_bounds)]
        if kind != "logsumexp":
            own = TAKES[kind].format(f"{value}[0][v]", f"{value}[1][v]")
            kept = f"kept[{place}][{at}]"
            more = TAKES[kind].format(kept, f"own{number}")
            return [*lines, f"const float own{number} = {own};",
                    f"{kept} = {f'part == 0 ? own{number} : {more}' if self.numbers.folded > 1 else f'own{number}'};"]
        counts = [f"float({condition})" for condition in in_bounds] or ["1.0f", "1.0f"]
        kept = f"kept[{place}][{at}], kept[{place + 1}][{at}]"
        own = f"top{number}, scaled{number}"
        return [*lines, f"float top{number} = {value}[0][v], scaled{number} = {counts[0]};",
                f"@NAME@_merge({own}, {value}[1][v], {counts[1]});",
                *[f"if (part > 0) @NAME@_merge({own}, {kept});"] * (self.numbers.folded > 1),
                f"kept[{place}][{at}] = top{number}, kept[{place + 1}][{at}] = scaled{number};"]

    def functions(self, name: str, parameters: list[str]) -> list[str]:
        """``NAME_merge``, where it is needed, and ``NAME_reduce``."""
        texts = []
        if any(reduction.kind == "logsumexp" for reduction in self.kernel.reductions):
            texts.append(device_function(
                "Puts two log-sum-exps together: the sum of exponentials is exp(top) * scaled.", "void",
                f"{name}_merge", ["float& top", "float& scaled", "float other_top", "float other_scaled"],
                _MERGE.strip("\n").replace("\n  ", "\n").strip().split("\n")))
        heads = [*parameters, self.heads[0], "float* results", "unsigned warpgroup", "int image", "int first_line",
                 "int first_position", "int thread"]
        texts.append(device_function(
            "Puts together what the threads of a warpgroup have of all channels, and stores what becomes of it.",
            "void",
            f"{name}_reduce", heads, [fill(line, {"NAME": name}, spare=("NAME",)) for line in self._reduce()]))
        return texts

    def body(self, name: str) -> list[str]:
        """The statements of ``NAME_finish``."""
        return [fill_some(line, {"NAME": name}, spare=("NAME",)) for line in super().body(name)]

    def _reduce(self) -> list[str]:
        """The statements of ``NAME_reduce``."""
        numbers, blocks = self.numbers, self.blocks
        lines = ["const int lane = thread % 32, warp = thread / 32, quad = lane % 4;"]
        bits = numbers.layout.lane_bits(CHANNEL)
        lines += reduce_scatter([f"kept[{k}]" for k in range(numbers.kept_values)], 2 * blocks, bits, self._together)
        mine = " + ".join(f"(upper{step} ? {blocks >> (step + 1)} : 0)" for step in range(len(bits)))
        warps = [grouped(plus(4 * k, "warp")) for k in range(numbers.kept_values)]
        lines += [f"const int first_block = {mine};  // of 8 positions", "#pragma unroll",
                  f"for (int i = 0; i < {blocks // (1 << len(bits))}; ++i) {{", *indent([
                      "const int place = 8 * (first_block + i) + quad * 2;",
                      *(f"*reinterpret_cast<float2*>(results + {warps[k]} * {8 * blocks} + place) = "
                        f"make_float2(kept[{k}][2 * i], kept[{k}][2 * i + 1]);" for k in range(numbers.kept_values))]),
                  "}", "kw_part_sync(1 + warpgroup, 128);"]
        return [*lines, *self._store_all()]

    def _together(self, own: Sequence[str], given: Sequence[str]) -> list[str]:
        """Put values that are given to a thread's own, of each reduction."""
        places = [self.place(number) for number in range(len(self.kernel.reductions))]
        return [self._merged(reduction.kind, own[k:k + 2], given[k:k + 2])
                for k, reduction in zip(places, self.kernel.reductions, strict=True)]

    @staticmethod
    def _merged(kind: str, own: Sequence[str], given: Sequence[str]) -> str:
        if kind == "logsumexp":
            return f"@NAME@_merge({', '.join((*own, *given))});"
        return f"{own[0]} = {TAKES[kind].format(own[0], given[0])};"

    def _store_all(self) -> list[str]:
        """Put together what warps have of each position, and store it."""
        numbers, kernel, rows = self.numbers, self.kernel, self.numbers.tiling.rows
        outputs, line, last = numbers.stacked * rows, self.names[-2], self.names[-1]
        warps = numbers.layout.warps(CHANNEL)
        reads = []
        for number, reduction in enumerate(kernel.reductions):
            k = self.place(number)
            names = [f"value{k}", f"value{k + 1}"][:2 if reduction.kind == "logsumexp" else 1]
            for offset, name in enumerate(names):
                reads.append(f"float {name} = from[{4 * (k + offset) * 8 * self.blocks}];")
            for warp in range(1, warps):
                others = [f"from[{(4 * (k + offset) + warp) * 8 * self.blocks}]" for offset in range(len(names))]
                reads.append(self._merged(reduction.kind, names, others))
            value = names[0] if reduction.kind != "logsumexp" else \
                f"fabsf({names[0]}) == INFINITY ? {names[0]} : {names[0]} + logf({names[1]})"
            reads.append(f"const float result{number} = {value};")
        which = f"e / {rows}" if numbers.stacked > 1 else "0"
        own_line = f"first_line + {which}" if numbers.stacked > 1 else "first_line"
        outside = [f"e >= {outputs}"] * (outputs % 128 > 0) + [f"{line} >= {kernel.domain[-2]}"] * self.ragged_lines \
            + [f"{last} >= {numbers.positions.out_size}"]
        of_line = times(f"({which}) * {warps}", 8 * self.blocks) if numbers.stacked > 1 else 0
        return [*self.image(), "constexpr int o = 0;  // nothing depends on it", "#pragma unroll",
                f"for (int e = thread; e < {-(-outputs // 128) * 128}; e += 128) {{", *indent([
                    f"const int {line} = {own_line}, {last} = first_position + e % {rows};",
                    f"if ({' || '.join(outside)}) continue;",
                    f"const float* const from = {plus('results', of_line, f'e % {rows}')};",
                    *reads, *self.results.fixed_lines, *straight(self.results)]), "}"]
