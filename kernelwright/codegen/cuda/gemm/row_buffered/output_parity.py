"""Stores of both output phases of a transposed convolution by the row-buffered GEMM, from registers.

It has one channel, and of pairs of neighbouring positions of x both output phases: four neighbours of the output, which
it stores at once where lines begin at multiples of 16 bytes. Four lanes store 64 bytes.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.points import as_float, lies_at_multiples, ordinary_stores, straight
from kernelwright.codegen.cuda.gemm.row_buffered.operation import PAIR, RowBufferedOperation, channel, compensation
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus
from kernelwright.plan.kernels import Store

#: Neighbours of a thread.
_FOUR = 4


class InterleavedStore(RowBufferedOperation):
    """The statements of ``NAME_finish``."""

    neighbours = _FOUR
    position_of_sum = "2 * (first_position + 8 * j + quad * 2 + e % 2) + e / 2"

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        self.stores = ordinary_stores(numbers.kernel)
        super().__init__(numbers, names, (), self.stores)
        for number, store in enumerate(self.stores):
            text = as_float(self.emitter, store.expression)
            self.emitter.used.add(f"out{store.buffer}")
            self.emitter.lane_lines.append(f"four{number}[v] = {text};")
            if self._at_once(store) > 1:
                self.aligned.add(f"out{store.buffer}")

    def _at_once(self, store: Store) -> int:
        """Neighbours that are stored together."""
        return next(count for count in (_FOUR, PAIR, 1) if lies_at_multiples(store.index, self.kernel.domain, count))

    def of_sums(self, quads: int) -> list[str]:
        """What a thread does with what it has of its channel."""
        numbers, last = self.numbers, self.names[-1]
        more = compensation(numbers)
        scaled = [f"sums[{plus('4 * j', i)}] * scale" for i in (0, 2, 1, 3)]
        sums = ", ".join(f"fmaf({s}, {more:.3e}f, {s})" if more else s for s in scaled)
        place = "first_position + 8 * j + quad * 2"
        all_in_bounds = f"8 * j + 8 <= {numbers.least_positions}"
        in_bounds = [*[f"{channel(numbers, '0')} < {self.kernel.out_channels}"] * self.ragged,
                     *["is_line"] * self.ragged_lines, f"({all_in_bounds} || {place} < {numbers.pooled})"]
        return ["constexpr int h = 0;", f"const int o = {self.clamped(channel(numbers, '0'))};", *self.of_channel(),
                "#pragma unroll", f"for (int j = 0; j < {quads}; ++j) {{", *indent([
                    f"const int {last} = 2 * ({all_in_bounds} ? {place} : min({place}, {numbers.pooled - PAIR}));",
                    f"const float sum[4] = {{{sums}}};", *(f"float four{k}[4];" for k in range(len(self.stores))),
                    *straight(self.emitter), f"if ({' && '.join(in_bounds)}) {{", *indent([
                        line for number, store in enumerate(self.stores) for line in self._stored(number, store)]),
                    "}"]), "}"]

    def _stored(self, number: int, store: Store) -> list[str]:
        """Store a thread's neighbours."""
        out, place, own = f"out{store.buffer}", self.emitter.site.base(store.index), f"four{number}"
        count = self._at_once(store)
        if count == 1:
            return [f"{out}[{place} + {v}] = {own}[{v}];" for v in range(_FOUR)]
        return [f"*reinterpret_cast<float{count}*>({out} + ({place}{f' + {v}' * (v > 0)})) = "
                f"make_float{count}({', '.join(f'{own}[{v + i}]' for i in range(count))});"
                for v in range(0, _FOUR, count)]
