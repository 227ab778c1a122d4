"""Pools of the row-buffered GEMM: reductions over windows of neighbouring positions, in registers.

A thread has pairs of neighbours, and four lanes 8: it pools its pairs, over the lines of a window one after the other,
then lanes exchange what they have where windows are wider. So a lane has a window of each block of 8 positions, or one
of several blocks, and four lanes 4 neighbouring windows. Lanes of a channel and of the next one exchange halves of what
they have, so that 8 lanes store 8 windows of one channel: a whole sector of memory, wherever lines begin, as lanes
whose window lies in the sector before store what they had 8 windows ago.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import POSITION
from kernelwright.codegen.cuda.gemm.epilogue.collective import all_reduce, shuffled
from kernelwright.codegen.cuda.gemm.epilogue.pool import WindowEmitter
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    as_float,
    emitter_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.row_buffered.operation import PAIR, RowBufferedOperation, channel
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.loops.site import indent

#: Windows that four lanes have together, positions of a block.
_FOUR, _BLOCK = 4, 8


class RowBufferedPool(RowBufferedOperation):
    """The statements of ``NAME_finish`` of one line of a work tile's windows; of the last one they store."""

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        super().__init__(numbers, names, [pool.expression for pool in numbers.kernel.pools])
        kernel, last = self.kernel, len(names) - 1
        self.blocks = -(-numbers.tiling.rows // _BLOCK)
        for number, pool in enumerate(kernel.pools):
            value = as_float(self.emitter, pool.expression)
            self.emitter.lane_lines.append(f"pool{number} = {TAKES[pool.kind].format(f'pool{number}', value)};")
        windows = (*names[:-1], "j") if kernel.pool_lines == 1 else (*names[:-2], "i", "j")
        self.windows = emitter_of(kernel, kernel.pooled_domain, windows, (), kernel.stores, walked=(2, last),
                                  kind=WindowEmitter)
        for number in range(1, len(kernel.pools) + 1):
            self.windows.reduced[number, 0] = f"value{number - 1}"
        for store in kernel.stores:
            text = as_float(self.windows, store.expression)
            self.windows.late_lines.append(f"out{store.buffer}[{self.windows.site.base(store.index)}] = {text};")
            self.emitter.used.add(f"out{store.buffer}")
        self.emitter.used |= self.windows.used

    @property
    def heads(self) -> list[str]:
        """What ``NAME_finish`` takes of a work tile's windows."""
        return [f"float (&pooled)[{len(self.kernel.pools)}][2][{self.blocks}]"]

    @property
    def kept(self) -> str:
        """What a work tile keeps from line to line."""
        return f"\n        float pooled[{len(self.kernel.pools)}][2][{self.blocks}];"

    def of_sums(self, quads: int) -> list[str]:
        """Pool a line, and behind a window's last one store."""
        kernel, line = self.kernel, self.names[-2]
        first = f"{line} % {kernel.pool_lines} == 0"
        takes = []
        for k, pool in enumerate(kernel.pools):
            own = f"pooled[{k}][h][j]"
            taken = TAKES[pool.kind].format(own, f"pool{k}")
            takes.append(f"{own} = {f'{first} ? pool{k} : {taken}' if kernel.pool_lines > 1 else f'pool{k}'};")
        starts = [f"float pool{k} = {STARTS[pool.kind]};" for k, pool in enumerate(kernel.pools)]
        lines = ["#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
            f"const int o = {self.clamped(channel(self.numbers, 'h'))};", *self.of_channel(), "#pragma unroll",
            f"for (int j = 0; j < {quads}; ++j) {{", *indent([
                *starts, *self.pair(), *straight(self.emitter), *takes]), "}"]), "}"]
        if kernel.pool_lines > 1:
            lines += [f"if ({line} % {kernel.pool_lines} != {kernel.pool_lines - 1}) return;",
                      f"const int i = {line} / {kernel.pool_lines};"]
        return [*lines, *self._store_pools()]

    def _store_pools(self) -> list[str]:
        """Exchange what lanes have, and store it."""
        kernel, size = self.kernel, self.kernel.pool_size
        fours = -(-self.blocks * _BLOCK // size // _FOUR)
        mine = {2: "quad", 4: "quad % 2 * 2 + quad / 2", 8: "quad"}[size]
        lines = []
        if size > PAIR:
            lines += ["// Windows of several lanes.", "#pragma unroll",
                      f"for (int e = 0; e < {2 * self.blocks}; ++e) {{"]
            for k, pool in enumerate(kernel.pools):
                own = f"pooled[{k}][e % 2][e / 2]"
                bits = self.numbers.layout.lane_bits(POSITION)[:size.bit_length() - 2]
                lines += [f"  {all_reduce(pool.kind, own, 1 << bit)}" for bit in bits]
            lines.append("}")
        windows = kernel.pooled_domain[-1]
        pick = [f"const float four{k}[2] = {{{self._four(k, '2 * s')}, {self._four(k, '2 * s + 1')}}};"
                for k in range(len(kernel.pools))]
        exchange = []
        for k in range(len(kernel.pools)):
            exchange += [f"const float given{k} = {shuffled(f'odd ? four{k}[0] : four{k}[1]', 4)};",
                         f"const float now{k}[2] = {{odd ? given{k} : four{k}[0], odd ? four{k}[1] : given{k}}};"]
        place = self.windows.site.base(kernel.stores[0].index)
        kind = "long long" if self.windows.site.long else "int"
        late = [f"int late[2];  // of both channels: {SECTOR} where a lane is a sector late", "#pragma unroll",
                "for (int c = 0; c < 2; ++c) {", *indent([
                    "const int o = first_of_two + c, j = first_window;", f"const {kind} place = {place};",
                    f"late[c] = static_cast<int>(place & {SECTOR - 1}) + own >= {SECTOR} ? {SECTOR} : 0;"]), "}"]
        step = [*pick, *exchange, "#pragma unroll", "for (int c = 0; c < 2; ++c) {", *indent([
            f"const int o = first_of_two + c, j = first_window + own + {SECTOR} * s - late[c];",
            *(f"const float value{k} = late[c] ? before[{k}][c] : now{k}[c];" for k in range(len(kernel.pools))),
            *(f"before[{k}][c] = now{k}[c];" for k in range(len(kernel.pools))),
            f"if ({'is_line && ' * self.ragged_lines}o < {kernel.out_channels} && j < {windows} && "
            f"(s > 0 || late[c] == 0) && j - first_window < {self.numbers.tiling.rows // size}) {{",
            *indent([*self.windows.fixed_lines, *straight(self.windows)]), "}"]), "}"]
        return [*lines, "const bool odd = lane / 4 % 2;", f"const int own = (odd ? {_FOUR} : 0) + {mine};",
                f"const int first_window = unsigned(first_position) / {size}u;", "#pragma unroll",
                "for (int h = 0; h < 2; ++h) {", *indent([
                    f"const int first_of_two = {channel(self.numbers, 'h')} - odd;", *late,
                    f"float before[{len(kernel.pools)}][2] = {{}};", "#pragma unroll",
                    f"for (int s = 0; s <= {-(-fours // 2)}; ++s) {{", *indent(step), "}"]), "}"]

    def _four(self, k: int, group: str) -> str:
        """A lane's window of four: number ``group`` of such fours."""
        size, last = self.kernel.pool_size, self.blocks - 1

        def block(number: str) -> str:
            return f"({number} <= {last} ? pooled[{k}][h][{number} <= {last} ? {number} : 0] : 0.0f)"

        if size == PAIR:
            return block(f"({group})")
        if size == _FOUR:
            return f"(quad % 2 ? {block(f'(2 * ({group}) + 1)')} : {block(f'(2 * ({group}))')})"
        fours = [block(f"(4 * ({group}) + {q})") for q in range(4)]
        return f"(quad < 2 ? (quad ? {fours[1]} : {fours[0]}) : (quad == 2 ? {fours[2]} : {fours[3]}))"
