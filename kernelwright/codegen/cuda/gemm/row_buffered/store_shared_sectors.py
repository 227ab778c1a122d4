"""Stores by the row-buffered GEMM of lines that share sectors of memory: each sector is stored once.

A line whose results are no multiple of 8 ends within a sector, which the next one begins in. Stored in two parts such a
sector takes a device as long as five others (an H200: 50 and 9 ps; benchmarks/notes/contractions.md, "How results go to
memory"): of lines of 126 positions 3 in 4 have one for 15 others. So a warpgroup first finishes what lies in its work
tile's last sector, up to six results of each channel, and leaves that in shared memory, where the warpgroup that has
what follows takes it from, for a store of the whole. A strip's first line begins without, and its last one stores its
own end.

What follows a work tile is the one as many further as there are channel blocks: the next line, or where a line has
several work tiles its next segment. Of stacked lines the first one of a work tile follows the last one of the work tile
before, the others the one above them in their own, which other warps of the warpgroup have.

Nobody waits long: an end is written before the rest of its work tile is stored. The warpgroup that has work tile number
i of a block, of so many warpgroups T and channel blocks B, writes to place i modulo T + B, as does who has i + T + B:
the warpgroup that has read it, by its own order, and of that warpgroup the same warps.

Of stacked lines warps read what others of their warpgroup write, so that all of a warpgroup wait until each has left
its ends. There is one place more: as warpgroups multiply in turns, who has work tile i + T + B + 1 knows that all warps
of the warpgroup before have come to i + T + B and are done with i + B, which has read the last line's end of i, and
that so are those of i, which have read the others. A warpgroup that is alone takes no turns: its warps wait for each
other, stacked or not.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.points import straight
from kernelwright.codegen.cuda.gemm.row_buffered.operation import channel, line_of
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.store import RowBufferedStore
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.gemm.row_buffered.work_tile import ROWS
from kernelwright.codegen.cuda.loops.site import indent


class StoreSharedSectors(RowBufferedStore):
    """The statements of ``NAME_finish``; there is one store, of pairs, in runs that four lanes have."""

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        super().__init__(numbers, names)
        # Eight lanes with runs of 64 bytes, which pay elsewhere, do not here: 64 to 128 channels, 126 wide, 0.737 for
        # 0.705 ms, of 64 images 0.399 for 0.392 (H100).
        self.channels_of = 1
        self.size = "size" if numbers.segments > 1 else str(numbers.pooled)
        if not all(self.paired):
            raise ValueError(f"no pairs of results that lines could share: {numbers.tiling}")

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes besides: ends of work tiles, the work tile's number, whether others are beside its
        own."""
        return ["float* ends", "unsigned ended", "int number", "bool follows", "bool followed"]

    def of_sums(self, quads: int) -> list[str]:
        """As ever, once the work tile's end is where the next one finds it, and the end of the one before there."""
        numbers, several = self.numbers, self.numbers.segments > 1
        rows, pooled = numbers.tiling.rows, numbers.pooled
        sizes = {rows, numbers.least_positions} if several else {pooled}
        blocks = sorted({j for size in sizes for j in range((size - SECTOR + 2) // SECTOR, (size - 1) // SECTOR + 1)})
        return [
            *[f"const int size = min({rows}, {pooled} - first_position);  // positions of the work tile"] * several,
            f"float* const end = ends + {self._place('number')} * {SECTOR * ROWS};",
            "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
                f"const int o = {self.clamped(channel(numbers, 'h'))};", *self.of_channel(),
                f"const int left = {self._beyond(self._behind)};  // results in the work tile's last sector",
                f"constexpr int BLOCK[] = {{{', '.join(map(str, blocks))}}};  // of 8 positions, which may have some",
                "#pragma unroll", f"for (int i = 0; i < {len(blocks)}; ++i) {{", *indent([
                    "const int j = BLOCK[i];",
                    *[f"if (8 * j >= size || 8 * j + {2 * SECTOR - 2} <= size) continue;"] * several,
                    "constexpr int block = 0;", "float both0[1][2];", *self.pair(), *straight(self.emitter),
                    f"const int at = 8 * j + quad * 2 - ({self.size} - left);",
                    f"if (at >= 0 && 8 * j + quad * 2 < {self.size})",
                    f"  *reinterpret_cast<float2*>(end + {self._row('h')} * {SECTOR} + at) = "
                    "make_float2(both0[0][0], both0[0][1]);"]), "}"]), "}",
            "__syncwarp();", f"if (lane == 0) kw_barrier_arrive(ended + 8 * {self._place('number')});",
            *self._meet(), *super().of_sums(quads)]

    def _meet(self) -> list[str]:
        """Wait for the end of what a thread's line follows, and define where that is, ``before``."""
        numbers, count = self.numbers, self.numbers.ends
        work_tile, whole = f"(number - {numbers.channel_blocks})", SECTOR * ROWS
        wait = f"kw_barrier_wait(ended + 8 * {self._place(work_tile)}, {work_tile} / {count} & 1);"
        # Of the first work tile, which follows none, a place that is not read.
        last = f"ends + {self._place(f'({work_tile} + {count})')} * {whole}"
        together = [f"kw_barrier_wait(ended + 8 * {self._place('number')}, number / {count} & 1);  // for all warps"]
        if numbers.stacked == 1:
            return [*together * (numbers.tiling.pingpong == 1), f"if (follows) {wait}", "__syncwarp();",
                    f"const float* const before = {last};"]
        line, lines = self.names[-2], self.kernel.pooled_domain[-2]
        below = f"{line} + 1 < {lines}" if self.ragged_lines else "true"
        return [f"const int slot = {line_of(numbers)};  // of stacked lines",
                *together, f"if (slot == 0 && follows) {wait}", "__syncwarp();",
                f"const float* const before = (slot > 0 ? end : {last} + {whole}) - {SECTOR * numbers.tiling.columns};",
                f"follows = follows || slot > 0, followed = slot < {numbers.stacked - 1} ? {below} : followed;"]

    def _place(self, number: str) -> str:
        """The place of a work tile's ends."""
        return f"({number} % {self.numbers.ends})"

    def _row(self, half: str) -> str:
        """The row of a thread's channel among those of a work tile."""
        return f"(thread / 32 * 16 + lane / 4 + {half} * 8)"

    @property
    def _behind(self) -> str:
        """The position behind those of the work tile."""
        return f"first_position + {self.size}"

    def _beyond(self, position: str) -> str:
        """How far behind the beginning of a sector a position of channel ``o`` lies."""
        place = self.emitter.site.base(self.stores[0].index)
        return f"[&](int {self.names[-1]}) {{ return static_cast<int>({place} & {SECTOR - 1}); }}({position})"

    def _begin(self, k: int) -> list[str]:
        """Also where work tiles before and behind have their parts, of each channel."""
        count = self.channels_of
        return [*super()._begin(k),
                f"int begun[{count}], until[{count}];  // results of the work tile before; position",
                "#pragma unroll", f"for (int c = 0; c < {count}; ++c) {{", *indent([
                    f"const int o = {channel(self.numbers, 'h')} - odd + c;",
                    f"begun[c] = follows ? {self._beyond('first_position')} : 0;",
                    f"until[c] = followed ? {self.size} - {self._beyond(self._behind)} : {self.size};"]), "}"]

    def _condition(self, k: int, condition: str) -> str:
        """Under which a pair is stored: not where the next work tile does, but where the work tile before has left
        it."""
        at = f"{self.channels_of * SECTOR} * run + own - late{k}[c]"
        ragged = f"{channel(self.numbers, 'h')} - odd + c < {self.kernel.out_channels} && " * self.ragged
        ragged += "is_line && " * self.ragged_lines
        # Whole sectors of a work tile, the first part of a condition without raggedness, go by without a look at
        # `until`.
        return f"({condition} && {at} < until[c]) || ({ragged}run == 0 && {at} < 0 && {at} >= -begun[c])"

    def _pair(self, place: str, pair: str) -> list[str]:
        """Store a pair, past what the second-level cache keeps: no other store is to complete its sector there (H100, 8
        to 64 channels, 0.258 ms for 0.2615)."""
        return [f"__stcs(reinterpret_cast<float2*>({place}), {pair});"]

    def _late(self, k: int) -> str:
        """What a lane stores that is a run late: of the first run what the work tile before has left."""
        place = f"({self._row('h')} - odd + c) * {SECTOR} + own - late{k}[c] + begun[c]"
        return f"run == 0 ? *reinterpret_cast<const float2*>(before + {place}) : {super()._late(k)}"
