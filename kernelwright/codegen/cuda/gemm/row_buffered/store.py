"""Stores of positions by the row-buffered GEMM, from registers.

Four lanes have 8 neighbouring positions of a channel, 32 bytes;
they exchange every second such block with the lanes of the next channel, so that eight lanes store a run of 64 bytes of
one. A store is whole sectors of memory, wherever lines begin: lanes whose pair lies in the run before theirs store the
pair that they had a run ago. Beside reductions over positions, and where lines share sectors, a run is what four lanes
have. Lines that begin at odd places are stored element by element.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.collective import shuffled
from kernelwright.codegen.cuda.gemm.points import as_float, lies_at_multiples, ordinary_stores, straight
from kernelwright.codegen.cuda.gemm.row_buffered.operation import PAIR, RowBufferedOperation, channel
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus, times


class RowBufferedStore(RowBufferedOperation):
    """Stores of positions, and beside reductions over positions of these."""

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        self.stores = ordinary_stores(numbers.kernel)
        super().__init__(numbers, names, [total.expression for total in numbers.kernel.position_reductions],
                         self.stores)
        self.paired = [lies_at_multiples(store.index, self.kernel.domain, PAIR) for store in self.stores]
        self.aligned = {f"out{store.buffer}" for store, even in zip(self.stores, self.paired, strict=True) if even}
        for number, (store, even) in enumerate(zip(self.stores, self.paired, strict=True)):
            text = as_float(self.emitter, store.expression)
            self.emitter.used.add(f"out{store.buffer}")
            if even:
                self.emitter.lane_lines.append(f"both{number}[block][v] = {text};")
            else:
                place = self.emitter.site.base(store.index)
                in_bounds = "in_bounds && is_channel" if self.ragged else "in_bounds"
                self.emitter.lane_lines.append(f"if ({in_bounds}) out{store.buffer}[{place} + v] = {text};")
        # Lanes of two channels exchange what they have where that pays (8 channels, 3 x 3): with a hardswish 0.192 ms
        # for 0.200 (H200), behind a batch norm 0.264 for 0.282 (H100); not beside reductions over positions, which need
        # the registers, where it takes 1.03 for 0.88 (H200).
        self.channels_of = 1 if self.kernel.position_reductions else 2

    def starts(self, each: list[str]) -> list[str]:
        """Define what a line's values of a channel are taken to, ``each`` of which begins so: nothing."""
        return []

    def ends(self) -> list[str]:
        """Take what a line gave: nothing."""
        return []

    def of_sums(self, quads: int) -> list[str]:
        """Store the sums of both channels."""
        own = channel(self.numbers, "h")
        is_channel = [f"const bool is_channel = {own} < {self.kernel.out_channels};"]
        lines = ["constexpr bool odd = false;", "const int own = quad * 2;  // of a run of four lanes"]
        if self.channels_of > 1:
            lines = ["const bool odd = lane / 4 % 2;  // of two channels whose lanes store together",
                     f"const int own = (odd ? {SECTOR} : 0) + quad * 2;  // of a run of theirs"]
        lines = lines if any(self.paired) else []
        return [*lines, "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
            f"const int o = {self.clamped(own)};", *is_channel * (self.ragged and not all(self.paired)),
            *self._channel(quads)]), "}"]

    def _channel(self, quads: int) -> list[str]:
        """What a thread does with its sums of channel ``o``."""
        numbers, size = self.numbers, self.numbers.pooled
        each, inner = self.pair(), straight(self.emitter)
        all_in_bounds = f"8 * j + 8 <= {numbers.least_positions}"
        in_bounds = f"{all_in_bounds} || first_position + 8 * j + quad * 2 < {size}"
        in_bounds = f"const bool in_bounds = {f'is_line && ({in_bounds})' if self.ragged_lines else in_bounds};"
        each += [in_bounds] * bool(self.kernel.position_reductions or not all(self.paired))
        pairs = [k for k, even in enumerate(self.paired) if even]
        lines = [*self.of_channel(), *self.starts(each), *(line for k in pairs for line in self._begin(k))]
        if not pairs:
            lines += ["#pragma unroll", f"for (int j = 0; j < {quads}; ++j) {{", *indent([*each, *inner]), "}"]
            return lines + self.ends()
        count = self.channels_of
        quad = plus(times("run", count), "block")
        lines += ["#pragma unroll", f"for (int run = 0; run <= {-(-quads // count)}; ++run) {{", *indent([
            *(f"float both{k}[{count}][2] = {{}};  // of blocks of {SECTOR} positions" for k in pairs),
            "#pragma unroll", f"for (int block = 0; block < {count}; ++block) {{", *indent([
                f"const int j = {quad};", f"if (j >= {quads}) continue;", *each, *inner]), "}",
            *(line for k in pairs for line in self._store(k))]), "}"]
        return lines + self.ends()

    def _begin(self, k: int) -> list[str]:
        """Where pairs of store ``k`` go, of each channel, and whether a lane is one of those that are a run late."""
        store, last, count = self.stores[k], self.names[-1], self.channels_of
        kind, run = "long long" if self.emitter.site.long else "int", count * SECTOR
        return [f"{kind} place{k}[{count}];", f"int late{k}[{count}];", f"float before{k}[{count}][2] = {{}};",
                "#pragma unroll", f"for (int c = 0; c < {count}; ++c) {{", *indent([
                    f"const int o = {channel(self.numbers, 'h')} - odd + c, {last} = first_position + own;",
                    f"place{k}[c] = {self.emitter.site.base(store.index)};",
                    f"late{k}[c] = static_cast<int>(place{k}[c] - own & {run - 1}) + own >= {run} ? {run} : 0;",
                    f"place{k}[c] -= late{k}[c];"]), "}"]

    def _store(self, k: int) -> list[str]:
        """Exchange a block with the lanes of the other channel, where there is one, and store a run of each."""
        count, run, both = self.channels_of, self.channels_of * SECTOR, f"both{k}[c]"
        ragged = [f"{channel(self.numbers, 'h')} - odd + c < {self.kernel.out_channels}"] * self.ragged
        in_bounds = " && ".join([f"(run > 0 || late{k}[c] == 0)",
                                 f"first_position + {run} * run + own - late{k}[c] < {self.numbers.pooled}",
                                 f"{run} * run + own - late{k}[c] < {self.numbers.tiling.rows}"])
        sure = f"(run > 0 && {run} * run + {run} <= {self.numbers.least_positions}) || ({in_bounds})"
        ragged += ["is_line"] * self.ragged_lines
        condition = " && ".join([*ragged, f"({sure})"]) if ragged else sure
        given, other = [], []
        if count > 1:
            # Not both[odd ? 0 : 1][0]: that may become a load from local memory.
            each = [shuffled(f"odd ? both{k}[0][{v}] : both{k}[1][{v}]", 4) for v in range(PAIR)]
            given = [f"const float given{k}[2] = {{{each[0]},", f"                         {each[1]}}};"]
            other = ["const bool other = odd != (c == 1);  // this channel's block came from there",
                     f"const float pair{k}[2] = {{other ? given{k}[0] : {both}[0], other ? given{k}[1] : {both}[1]}};"]
            both = f"pair{k}"
        return [*given, "#pragma unroll", f"for (int c = 0; c < {count}; ++c) {{", *indent([
            *other, f"if ({self._condition(k, condition)})",
            *indent(self._pair(f"out{self.stores[k].buffer} + place{k}[c] + {run} * run",
                               f"late{k}[c] ? {self._late(k)} : make_float2({both}[0], {both}[1])")),
            f"before{k}[c][0] = {both}[0], before{k}[c][1] = {both}[1];"]), "}"]

    def _pair(self, place: str, pair: str) -> list[str]:
        """Store a pair."""
        return [f"*reinterpret_cast<float2*>({place}) = {pair};"]

    def _condition(self, k: int, condition: str) -> str:
        """Under which a pair of store ``k`` is stored, of those that are there."""
        return condition

    def _late(self, k: int) -> str:
        """What a lane stores that is a run late."""
        return f"make_float2(before{k}[c][0], before{k}[c][1])"
