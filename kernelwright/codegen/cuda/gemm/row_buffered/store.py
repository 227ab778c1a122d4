"""What a thread of a core that goes down strips does with its sums: stores of positions.

`row_buffered.epilogue` says what a thread has. Four lanes have 8 neighbouring positions of a channel, 32 bytes;
they exchange every second such block with the lanes of the next channel, so that eight lanes store a run of 64 bytes of
one. A store is whole sectors of memory, wherever lines begin: lanes whose pair lies in the run before theirs store the
pair that they had a run ago. Beside totals, and where lines share sectors, a run is what four lanes have. Lines that
begin at odd places are stored element by element.

What an epilogue takes of a channel alone (scales, biases, a norm's factors) a thread reads once for each strip.
"""

from __future__ import annotations

import re

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION
from kernelwright.codegen.cuda.gemm.epilogue.collective import every_sum, shuffled
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import operand_pointers
from kernelwright.codegen.cuda.gemm.points import (
    as_float,
    emitter_of,
    entry_type,
    lies_at_multiples,
    ordinary_stores,
    straight,
)
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.precision.truncation_bias import UNIT, added, factor
from kernelwright.codegen.cuda.gemm.row_buffered.problem import Strips
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.kernels import Store

#: Neighbours of a thread, of which four lanes have a sector.
PAIR = 2
#: The share of a sum that is cut off where a product is added to it (`precision.truncation_bias`): here all low
#: terms come before all high ones, as in the column "6, 1" of that table, where weights of both signs lose 12.2e-8 with
#: a share of 3.5. What is made up for too much stands in each element of a total: of 45e-9 7.5e-8 in variances (H100).
_LOSS = 35e-9


def channel(numbers: Strips, half: str) -> str:
    """The channel of a thread's half, 0 or 1; where halves are phases, of both."""
    halves = {"half": half} if numbers.interleaved == 1 else {}
    return f"first_channel + {numbers.layout.text(CHANNEL, warp='thread / 32', row='lane / 4', **halves)}"


def line_of(numbers: Strips) -> str:
    """Which of the stacked lines is a thread's."""
    return f"thread / {numbers.layout.thread_count // numbers.stacked}"


def made_up(numbers: Strips) -> float:
    """The factor that adds to sums what tensor cores have cut off them; 0 where that is left (`stretch_share`, of sums
    whose low terms come first). Products by zeros, of other stacked lines or phases, cut nothing off."""
    sums = numbers.stacked * numbers.interleaved
    taken = sum(any(entries[i] is not None for _, entries in product.halves)
                for product in numbers.products for i in range(sums))
    share = _LOSS * (taken / sums + 1) / 2
    if numbers.terms != 2 or (share < added(UNIT / 2) and not numbers.kernel.totals):
        return 0.0
    return factor(share)


class Writer:
    """The statements of ``NAME_finish``."""

    def __init__(self, numbers: Strips, names: tuple[str, ...]) -> None:
        self.numbers, self.kernel, self.names = numbers, numbers.kernel, names
        self.stores = ordinary_stores(self.kernel)
        last = len(names) - 1
        roots = [total.expression for total in self.kernel.totals]
        self.emitter = emitter_of(self.kernel, self.kernel.domain, names, roots, self.stores, walked=(last - 1, last),
                                  lane_axis=last, lanes=PAIR)
        self.emitter.reduced[0, 0] = "sum[v]"
        self.paired = [self._is_even(store) for store in self.stores]
        self.aligned = {f"out{store.buffer}" for store, even in zip(self.stores, self.paired, strict=True) if even}
        for number, (store, even) in enumerate(zip(self.stores, self.paired, strict=True)):
            text = as_float(self.emitter, store.expression)
            self.emitter.used.add(f"out{store.buffer}")
            if even:
                self.emitter.lane_lines.append(f"both{number}[block][v] = {text};")
            else:
                place = self.emitter.site.base(store.index)
                there = "there && is_channel" if self.ragged else "there"
                self.emitter.lane_lines.append(f"if ({there}) out{store.buffer}[{place} + v] = {text};")
        # Lanes of two channels exchange what they have where that pays (8 channels, 3 x 3): with a hardswish 0.192 ms
        # for 0.200 (H200), behind a batch norm 0.264 for 0.282 (H100); not beside totals, which need the registers,
        # where it takes 1.03 for 0.88 (H200).
        self.channels_of = 1 if self.kernel.totals else 2

    @property
    def ragged(self) -> bool:
        """Whether the last block of channels has fewer than others."""
        return self.kernel.out_channels % self.numbers.tiling.columns > 0

    @property
    def ragged_lines(self) -> bool:
        """Whether the last stacked lines are fewer than others."""
        return self.kernel.pooled_domain[-2] % self.numbers.stacked > 0

    @property
    def halves(self) -> int:
        """Channels of a thread."""
        return 2 // self.numbers.interleaved

    @property
    def position_of_sum(self) -> str:
        """The position of sum ``e`` of four in block ``j``."""
        return f"first_position + {self.numbers.layout.text(POSITION, block='j', quad='quad', pair='e % 2')}"

    @property
    def vectors(self) -> set[str]:
        """Inputs and outputs that are to be aligned to 16 bytes."""
        return self.emitter.vectors | self.aligned

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes besides, of an item's windows: nothing."""
        return []

    @property
    def kept(self) -> str:
        """What an item keeps from line to line of its windows: nothing."""
        return ""

    def _is_even(self, store: Store) -> bool:
        """Whether pairs of a store lie at multiples of 8 bytes."""
        return lies_at_multiples(store.index, self.kernel.domain, PAIR)

    def starts(self, each: list[str]) -> list[str]:
        """Define what a line's values of a channel are taken to, ``each`` of which begins so: nothing."""
        return []

    def ends(self) -> list[str]:
        """Take what a line gave: nothing."""
        return []

    @property
    def held(self) -> dict[str, str]:
        """Values of a channel that its elements take, and their types."""
        text = " ".join(straight(self.emitter))
        return {name: kind for name, kind in self.emitter.fixed_types.items() if re.search(rf"\b{name}\b", text)}

    def functions(self, name: str, parameters: list[str]) -> list[str]:
        """Device functions beside ``NAME_finish``, of which some take all that it reads and writes: none."""
        return []

    def struct(self, name: str) -> str:
        """What a thread has of its two channels and a strip."""
        values = [f"  {kind} {value}[{self.halves}];" for value, kind in self.held.items()]
        return "\n".join([
            "// Of a thread's two channels: factors of sums, and whether they may be applied in one step; values.",
            f"struct {name}_channels {{", "  bool usual;", f"  float scale[{self.halves}];", *values, "};", ""])

    def image(self) -> list[str]:
        """Define where a strip is."""
        places, image = [], "image"
        for a, axis in reversed(list(enumerate(self.numbers.outer))):
            places.append(f"const int p{a} = {image} % {axis.out_size};")
            image = f"{image} / {axis.out_size}"
        return ["constexpr int g = 0;", f"const {entry_type(self.kernel)} n = {image};", *places]

    def _line(self) -> list[str]:
        """Define a thread's line, and whether there is one: a strip's last item may have fewer than others."""
        name = self.names[-2]
        if self.numbers.stacked == 1:
            return [f"const int {name} = first_line;"]
        own, last = f"first_line + {line_of(self.numbers)}", self.kernel.pooled_domain[-2] - 1
        if not self.ragged_lines:
            return [f"const int {name} = {own};"]
        return [f"const bool is_line = {own} <= {last};", f"const int {name} = min({own}, {last});"]

    def prepare(self, name: str) -> list[str]:
        """The statements of ``NAME_prepare``."""
        return [
            *self.image(), "const int lane = thread % 32;",
            f"const float row_scale = {row_scale_text(self.numbers)};", "channels.usual = true;",
            "#pragma unroll", f"for (int h = 0; h < {self.halves}; ++h) {{", *indent([
                f"const int o = {self.inside(channel(self.numbers, 'h'))};",
                f"const float column_scale = {column_scale_text(self.numbers)};",
                f"channels.usual = channels.usual && {name}_usual(row_scale) && {name}_usual(column_scale);",
                "channels.scale[h] = row_scale * column_scale;", *self.emitter.fixed_lines,
                *(f"channels.{value}[h] = {value};" for value in self.held)]), "}"]

    def body(self, name: str) -> list[str]:
        """The statements of ``NAME_finish``."""
        numbers, kernel = self.numbers, self.kernel
        last, size = self.names[-1], numbers.positions.out_size
        points = ", ".join([*operand_pointers(kernel), "next[0]", "row_scale", column_scale_text(numbers),
                            *self.names])
        quads = numbers.tiling.rows // 8
        return [
            *self.image(), "const int lane = thread % 32;", *self._line(), "const int quad = lane % 4;",
            f"float scales[{self.halves}] = {{{', '.join(f'channels.scale[{h}]' for h in range(self.halves))}}};",
            "if (!channels.usual) {  // With care, in place: all sums move round.", *indent([
                f"const float row_scale = {row_scale_text(numbers)};",
                *every_sum(0, 4 * quads, "j", [], [
                    f"const int o = {channel(self.numbers, '(e / 2)')};",
                    f"const int {last} = {self.position_of_sum};", "float value = next[0];",
                    f"if (o < {kernel.out_channels} && {last} < {size}) value = {name}_careful({points});"], keep=True),
                f"{' = '.join(f'scales[{h}]' for h in range(self.halves))} = 1.0f;"]), "}",
            *self.channels(quads)]

    def of_channel(self) -> list[str]:
        """Define what sums of channel ``o`` are multiplied by, and what its elements take."""
        return ["const float scale = scales[h];",
                *(f"const {kind} {value} = channels.{value}[h];" for value, kind in self.held.items())]

    def channels(self, quads: int) -> list[str]:
        """What a thread does with what it has of its two channels, ``quads`` sums of each and of each neighbour."""
        own = channel(self.numbers, "h")
        is_channel = [f"const bool is_channel = {own} < {self.kernel.out_channels};"]
        lines = ["constexpr bool odd = false;", "const int own = quad * 2;  // of a run of four lanes"]
        if self.channels_of > 1:
            lines = ["const bool odd = lane / 4 % 2;  // of two channels whose lanes store together",
                     f"const int own = (odd ? {SECTOR} : 0) + quad * 2;  // of a run of theirs"]
        lines = lines if any(self.paired) else []
        return [*lines, "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
            f"const int o = {self.inside(own)};", *is_channel * (self.ragged and not all(self.paired)),
            *self._channel(quads)]), "}"]

    def inside(self, channel: str) -> str:
        """A channel that there is."""
        return f"min({channel}, {self.kernel.out_channels - 1})" if self.ragged else channel

    def _channel(self, quads: int) -> list[str]:
        """What a thread does with its sums of channel ``o``."""
        numbers, size = self.numbers, self.numbers.pooled
        each, inner = self.pair(), straight(self.emitter)
        beyond = f"8 * j + 8 <= {numbers.least_positions}"
        there = f"{beyond} || first_position + 8 * j + quad * 2 < {size}"
        there = f"const bool there = {f'is_line && ({there})' if self.ragged_lines else there};"
        each += [there] * bool(self.kernel.totals or not all(self.paired))
        pairs = [k for k, even in enumerate(self.paired) if even]
        lines = [*self.of_channel(), *self.starts(each), *(line for k in pairs for line in self._begin(k))]
        if not pairs:
            lines += ["#pragma unroll", f"for (int j = 0; j < {quads}; ++j) {{", *indent([*each, *inner]), "}"]
            return lines + self.ends()
        count = self.channels_of
        lines += ["#pragma unroll", f"for (int run = 0; run <= {-(-quads // count)}; ++run) {{", *indent([
            *(f"float both{k}[{count}][2] = {{}};  // of blocks of {SECTOR} positions" for k in pairs),
            "#pragma unroll", f"for (int block = 0; block < {count}; ++block) {{", *indent([
                f"const int j = {count} * run + block;", f"if (j >= {quads}) continue;", *each, *inner]), "}",
            *(line for k in pairs for line in self._store(k))]), "}"]
        return lines + self.ends()

    def pair(self) -> list[str]:
        """Define the place of a pair of neighbours, and ``sum``. Of pairs behind the last position the sums are those
        of no position, and what is read with them is not."""
        more, last = made_up(self.numbers), self.names[-1]
        scaled = "sums[4 * j + 2 * h + {0}] * scale"
        both = [f"fmaf({s}, {more:.3e}f, {s})" if more else s for s in (scaled.format(0), scaled.format(1))]
        clamped = f"min(first_position + 8 * j + quad * 2, {self.numbers.pooled - PAIR})"
        return [f"const int {last} = 8 * j + 8 <= {self.numbers.least_positions} ? first_position + 8 * j + quad * 2 : "
                f"{clamped};", f"const float sum[2] = {{{both[0]}, {both[1]}}};"]

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
        there = " && ".join([f"(run > 0 || late{k}[c] == 0)",
                             f"first_position + {run} * run + own - late{k}[c] < {self.numbers.pooled}",
                             f"{run} * run + own - late{k}[c] < {self.numbers.tiling.rows}"])
        sure = f"(run > 0 && {run} * run + {run} <= {self.numbers.least_positions}) || ({there})"
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
