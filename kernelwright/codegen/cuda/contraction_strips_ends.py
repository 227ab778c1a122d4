"""What a thread of a core that goes down strips does where neighbouring lines share sectors of memory: each is stored
once.

A line whose results are no multiple of 8 ends within a sector, which the next one begins in. Stored in two parts such a
sector takes a device as long as five others (an H200: 50 and 9 ps; docs/contractions.md, "How results go to
memory"): of lines of 126 positions 3 in 4 have one for 15 others. So a team first finishes what lies in its line's last
sector, up to six results of each channel, and leaves that in shared memory, where the team that has the next line takes
it from, for a store of the whole. A strip's first line begins without, and its last one stores its own end.

Nobody waits long: an end is written before the rest of its line is stored. The team that has line number i of a block's
items, of so many teams T and channel blocks B, writes to place i modulo T + B, as does who has i + T + B: the team that
has read it, by its own order.
"""

from __future__ import annotations

from kernelwright.codegen.contraction_strips import Strips
from kernelwright.codegen.contraction_strips_items import ROWS
from kernelwright.codegen.contraction_strips_kinds import SECTOR
from kernelwright.codegen.cuda.contraction_points import straight
from kernelwright.codegen.cuda.contraction_strips_stores import Writer, channel
from kernelwright.codegen.cuda.loops_site import indent


class EndWriter(Writer):
    """The statements of ``NAME_finish``; there is one store, of pairs, in runs that four lanes have."""

    def __init__(self, numbers: Strips, names: tuple[str, ...]) -> None:
        super().__init__(numbers, names)
        # Eight lanes with runs of 64 bytes, which pay elsewhere, do not here: 64 to 128 channels, 126 wide, 0.737 for
        # 0.705 ms, of 64 images 0.399 for 0.392 (H100).
        self.channels_of = 1
        self.size = numbers.pooled
        if not all(self.paired):
            raise ValueError(f"no pairs of results that lines could share: {numbers.tiling}")

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes besides: ends of lines, the item's number, whether lines are beside its own."""
        return ["float* ends", "unsigned ended", "int number", "bool follows", "bool followed"]

    def channels(self, quads: int) -> list[str]:
        """As of any writer, once the line's end is where the next one finds it, and the end of the one before there."""
        count, own = self.numbers.ends, f"number % {self.numbers.ends}"
        before = f"(number - {self.numbers.channel_blocks})"
        first, last = (self.size - SECTOR + 2) // SECTOR, (self.size - 1) // SECTOR
        return [
            f"float* const end = ends + {own} * {SECTOR * ROWS};",
            "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
                f"const int o = {self.inside(channel(self.numbers, 'h'))};", *self.of_channel(),
                f"const int left = {self._beyond('o', str(self.size))};  // results in the line's last sector",
                "#pragma unroll", f"for (int j = {first}; j <= {last}; ++j) {{", *indent([
                    "constexpr int block = 0;", "float both0[1][2];", *self.pair(), *straight(self.emitter),
                    f"const int at = 8 * j + quad * 2 - ({self.size} - left);",
                    f"if (at >= 0 && 8 * j + quad * 2 < {self.size})",
                    f"  *reinterpret_cast<float2*>(end + {self._row('h')} * {SECTOR} + at) = "
                    "make_float2(both0[0][0], both0[0][1]);"]), "}"]), "}",
            "__syncwarp();", f"if (lane == 0) kw_barrier_arrive(ended + 8 * ({own}));",
            f"if (follows) kw_barrier_wait(ended + 8 * ({before} % {count}), {before} / {count} & 1);", "__syncwarp();",
            f"const float* const before = ends + ({before} + {count}) % {count} * {SECTOR * ROWS};",
            *super().channels(quads)]

    def _row(self, half: str) -> str:
        """The row of a thread's channel among those of an item."""
        return f"(thread / 32 * 16 + lane / 4 + {half} * 8)"

    def _beyond(self, o: str, position: str) -> str:
        """How far behind the beginning of a sector a position of channel ``o`` lies."""
        place = self.emitter.site.base(self.stores[0].index)
        beyond = f"return static_cast<int>({place} & {SECTOR - 1});"
        return f"[&](int o, int {self.names[-1]}) {{ {beyond} }}({o}, {position})"

    def _begin(self, k: int) -> list[str]:
        """Also where lines before and behind have their parts, of each channel."""
        count = self.channels_of
        return [*super()._begin(k), f"int begun[{count}], until[{count}];  // results of the line before; position",
                "#pragma unroll", f"for (int c = 0; c < {count}; ++c) {{", *indent([
                    f"const int o = {channel(self.numbers, 'h')} - odd + c;",
                    f"begun[c] = follows ? {self._beyond('o', '0')} : 0;",
                    f"until[c] = followed ? {self.size} - {self._beyond('o', str(self.size))} : {self.size};"]), "}"]

    def _condition(self, k: int, condition: str) -> str:
        """Under which a pair is stored: not where the next line does, but where the line before has left it."""
        at = f"{self.channels_of * SECTOR} * run + own - late{k}[c]"
        ragged = f"{channel(self.numbers, 'h')} - odd + c < {self.kernel.out_channels} && " * self.ragged
        return f"({condition} && {at} < until[c]) || ({ragged}run == 0 && {at} < 0 && {at} >= -begun[c])"

    def _late(self, k: int) -> str:
        """What a lane stores that is a run late: of the first run what the line before has left."""
        place = f"({self._row('h')} - odd + c) * {SECTOR} + own - late{k}[c] + begun[c]"
        return f"run == 0 ? *reinterpret_cast<const float2*>(before + {place}) : {super()._late(k)}"
