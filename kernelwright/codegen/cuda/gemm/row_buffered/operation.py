"""What all epilogue operations of the row-buffered GEMM share: what a thread holds of a work tile, and what is computed
once for its channels and a strip.

The layout is that of wgmma with A and B swapped (`epilogue.accumulator_layout.wgmma_stacked`): a thread has two output
channels, 8 rows of a product apart, or both output phases of one, and of each pairs of neighbouring positions, 8 apart;
four lanes together have 8 neighbours. ``sums[4 * j + 2 * h + e]`` is that of pair ``j``, half ``h`` and neighbour
``e``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION
from kernelwright.codegen.cuda.gemm.epilogue.collective import every_sum
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import operand_pointers
from kernelwright.codegen.cuda.gemm.points import emitter_of, entry_type, straight
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.precision.truncation_bias import UNIT, added, factor
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import Store

#: Neighbours of a thread, of which four lanes have a sector.
PAIR = 2
#: The share of a sum that is cut off where a product is added to it (`precision.truncation_bias`): here all low
#: terms come before all high ones, as in the column "6, 1" of that table, where weights of both signs lose 12.2e-8 with
#: a share of 3.5. What is compensated too much stands in each element of a total: of 45e-9 7.5e-8 in variances (H100).
_LOSS = 35e-9


def channel(numbers: RowBuffered, half: str) -> str:
    """The channel of a thread's half, 0 or 1; where halves are phases, of both."""
    halves = {"half": half} if numbers.interleaved == 1 else {}
    return f"first_channel + {numbers.layout.text(CHANNEL, warp='thread / 32', row='lane / 4', **halves)}"


def line_of(numbers: RowBuffered) -> str:
    """Which of the stacked lines is a thread's."""
    return f"thread / {numbers.layout.thread_count // numbers.stacked}"


def compensation(numbers: RowBuffered) -> float:
    """The factor that adds to sums what tensor cores have cut off them (`interval_share`, of sums whose low terms come
    first); 0 where that is left. Products by zeros, of other stacked lines or phases, cut nothing off."""
    sums = numbers.stacked * numbers.interleaved
    taken = sum(any(entries[i] is not None for _, entries in product.halves)
                for product in numbers.products for i in range(sums))
    share = _LOSS * (taken / sums + 1) / 2
    if numbers.terms != 2 or (share < added(UNIT / 2) and not numbers.kernel.position_reductions):
        return 0.0
    return factor(share)


class RowBufferedOperation:
    """The statements of ``NAME_finish``. ``neighbours``: positions of a thread that follow each other; ``aligned``:
    outputs that are to be aligned to 16 bytes; roots, stores: what its emitter computes and stores of positions."""

    neighbours = PAIR

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...], roots: Sequence[Expression],
                 stores: Sequence[Store] = ()) -> None:
        self.numbers, self.kernel, self.names = numbers, numbers.kernel, names
        self.aligned: set[str] = set()
        last = len(names) - 1
        self.emitter = emitter_of(self.kernel, self.kernel.domain, names, roots, stores, walked=(last - 1, last),
                                  lane_axis=last, lanes=self.neighbours)
        self.emitter.reduced[0, 0] = "sum[v]"

    def of_sums(self, quads: int) -> list[str]:
        """What a thread does with its sums, ``quads`` of each channel and each neighbour."""
        raise NotImplementedError

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
        """What ``NAME_finish`` takes besides, of a work tile's windows: nothing."""
        return []

    @property
    def kept(self) -> str:
        """What a work tile keeps from line to line of its windows: nothing."""
        return ""

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
            f"struct {name}_channels {{", "  bool fast;", f"  float scale[{self.halves}];", *values, "};", ""])

    def image(self) -> list[str]:
        """Define where a strip is."""
        places, image = [], "image"
        for a, axis in reversed(list(enumerate(self.numbers.outer))):
            places.append(f"const int p{a} = {image} % {axis.out_size};")
            image = f"{image} / {axis.out_size}"
        return ["constexpr int g = 0;", f"const {entry_type(self.kernel)} n = {image};", *places]

    def _line(self) -> list[str]:
        """Define a thread's line, and whether there is one: a strip's last work tile may have fewer than others."""
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
            f"const float row_scale = {row_scale_text(self.numbers)};", "channels.fast = true;",
            "#pragma unroll", f"for (int h = 0; h < {self.halves}; ++h) {{", *indent([
                f"const int o = {self.clamped(channel(self.numbers, 'h'))};",
                f"const float column_scale = {column_scale_text(self.numbers)};",
                f"channels.fast = channels.fast && {name}_is_fast(row_scale) && {name}_is_fast(column_scale);",
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
            "if (!channels.fast) {  // Rescaled, in place: all sums move round.", *indent([
                f"const float row_scale = {row_scale_text(numbers)};",
                *every_sum(0, 4 * quads, "j", [], [
                    f"const int o = {channel(self.numbers, '(e / 2)')};",
                    f"const int {last} = {self.position_of_sum};", "float value = next[0];",
                    f"if (o < {kernel.out_channels} && {last} < {size}) value = {name}_rescaled({points});"],
                           keep=True),
                f"{' = '.join(f'scales[{h}]' for h in range(self.halves))} = 1.0f;"]), "}",
            *self.of_sums(quads)]

    def of_channel(self) -> list[str]:
        """Define what sums of channel ``o`` are multiplied by, and what its elements take."""
        return ["const float scale = scales[h];",
                *(f"const {kind} {value} = channels.{value}[h];" for value, kind in self.held.items())]

    def clamped(self, channel: str) -> str:
        """A channel that there is."""
        return f"min({channel}, {self.kernel.out_channels - 1})" if self.ragged else channel

    def pair(self) -> list[str]:
        """Define the place of a pair of neighbours, and ``sum``. Of pairs behind the last position the sums are those
        of no position, and what is read with them is not."""
        more, last = compensation(self.numbers), self.names[-1]
        scaled = [f"sums[4 * j + 2 * h{more}] * scale" for more in ("", " + 1")]
        both = [f"fmaf({s}, {more:.3e}f, {s})" if more else s for s in scaled]
        clamped = f"min(first_position + 8 * j + quad * 2, {self.numbers.pooled - PAIR})"
        return [f"const int {last} = 8 * j + 8 <= {self.numbers.least_positions} ? first_position + 8 * j + quad * 2 : "
                f"{clamped};", f"const float sum[2] = {{{both[0]}, {both[1]}}};"]
