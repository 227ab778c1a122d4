"""Reductions over batch and space by the row-buffered GEMM: what a thread takes of each line, and how strips and
consumer warpgroups are put together.

The kernel that ends them takes one n and output channel in a thread, in double, in a fixed order. Moments are put
together by their means (Chan, Golub and LeVeque, 1979).
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.finalize import finalize_emitter, finalize_kernel
from kernelwright.codegen.cuda.gemm.points import (
    STARTS,
    TAKES,
    as_float,
    device_function,
    emitter_of,
    parameter_texts,
    straight,
)
from kernelwright.codegen.cuda.gemm.problem import COMPONENTS, components
from kernelwright.codegen.cuda.gemm.row_buffered.operation import PAIR, channel, line_of
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.store import RowBufferedStore
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.plan.contraction.record import Contraction

_THREADS = 64
#: Blocks of 8 positions whose mean is the number that moments begin from.
_NEAR = 2


class RowBufferedReducePositions(RowBufferedStore):
    """The statements of ``NAME_finish`` that also take reductions over positions."""

    def __init__(self, numbers: RowBuffered, names: tuple[str, ...]) -> None:
        super().__init__(numbers, names)
        for number, total in enumerate(self.kernel.position_reductions):
            text, lines = as_float(self.emitter, total.expression), self.emitter.lane_lines
            if total.kind == "moments":
                lines += [f"const float off{number} = in_bounds ? {text} - about{number} : 0.0f;",
                          f"sum{number} += off{number}, squares{number} += off{number} * off{number};"]
            elif total.kind == "sum":
                lines.append(f"sum{number} += in_bounds ? {text} : 0.0f;")
            else:
                lines.append(f"if (in_bounds) sum{number} = {TAKES[total.kind].format(f'sum{number}', text)};")

    def starts(self, each: list[str]) -> list[str]:
        """Define what a line's values of a channel are taken to, ``each`` of which begins so."""
        return [*self._abouts(each), *self._taken_to()]

    def _abouts(self, each: list[str]) -> list[str]:
        """Define the numbers that moments begin from, of a thread that has none yet."""
        moments = [k for k, total in enumerate(self.kernel.position_reductions) if total.kind == "moments"]
        if not moments:
            return []
        near = emitter_of(self.kernel, self.kernel.domain, self.names,
                          [self.kernel.position_reductions[k].expression for k in moments],
                          walked=(len(self.names) - 1,), lane_axis=len(self.names) - 1, lanes=PAIR)
        near.reduced[0, 0] = "sum[v]"
        for k in moments:
            text = as_float(near, self.kernel.position_reductions[k].expression)
            near.lane_lines.append(f"if (in_bounds) near{k} += {text};")
        return [*(f"float near{k} = 0.0f;" for k in moments),
                "if (partials.count[h] == 0) {", *indent([
                    "int count = 0;", *near.fixed_lines, "#pragma unroll",
                    f"for (int j = 0; j < {min(_NEAR, self.numbers.tiling.rows // 8)}; ++j) {{", *indent([
                        *each, "count += 2 * in_bounds;", *straight(near)]), "}",
                    *(f"partials.about{k}[h] = count ? near{k} / count : 0.0f;" for k in moments)]), "}",
                *(f"const float about{k} = partials.about{k}[h];" for k in moments)]

    def _taken_to(self) -> list[str]:
        """Define what a line's values are taken to, and of moments what is left of them."""
        return [f"float sum{k} = {STARTS.get(t.kind, '0.0f')}{f', squares{k} = 0.0f' * (t.kind == 'moments')};"
                for k, t in enumerate(self.kernel.position_reductions)]

    def ends(self) -> list[str]:
        """Take what a line gave."""
        size, lines = self.numbers.pooled, []
        for k, total in enumerate(self.kernel.position_reductions):
            if total.kind in ("max", "min"):
                taken = TAKES[total.kind].format(f"partials.total{k}[h]", f"sum{k}")
                lines.append(f"partials.total{k}[h] = partials.count[h] ? {taken} : sum{k};")
            else:
                lines.append(f"partials.total{k}[h] += sum{k};")
                lines += [f"partials.squares{k}[h] += squares{k};"] * (total.kind == "moments")
        here = f"min({size} - first_position, {self.numbers.tiling.rows})"
        here = f"is_line ? {here} : 0" if self.ragged_lines else here
        rest = f"min({PAIR}, max(0, here % {SECTOR} - quad * 2))"
        return [*lines, f"const int here = {here};", f"partials.count[h] += here / {SECTOR} * {PAIR} + {rest};"]


def finalize(numbers: RowBuffered, name: str) -> tuple[str, str]:
    """``NAME_totals`` and its launch, behind all others; it reads ``position_partials`` of the workspace.

    Raises ValueError for stores that differ from position to position.
    """
    kernel, channels = numbers.kernel, numbers.kernel.out_channels
    emitter = finalize_emitter(kernel, name)
    starts, takes, results = [], [], []
    for number, (at, total) in enumerate(components(kernel), 1):
        own = [f"from[{(at + i) * channels}LL]" for i in range(COMPONENTS[total.kind])]
        if total.kind == "moments":
            starts += [f"double count{number} = 0.0, mean{number} = 0.0, apart{number} = 0.0;"]
            takes += [f"const double own{number} = __float_as_int({own[0]});",
                      f"const double all{number} = count{number} + own{number};",
                      f"const double off{number} = {own[1]} - mean{number};",
                      f"if (own{number} > 0.0) {{", *indent([
                          f"apart{number} += {own[2]} + off{number} * off{number} * (count{number} * own{number} / "
                          f"all{number});", f"mean{number} += off{number} * (own{number} / all{number});",
                          f"count{number} = all{number};"]), "}"]
            results += [f"const float r{number} = float(mean{number});",
                        f"const float r{number}_variance = float(apart{number} / count{number});"]
        else:
            start = STARTS[total.kind].replace("f", "")
            starts.append(f"double total{number} = {start};")
            taken = TAKES[total.kind].format(f"total{number}", f"double({own[0]})")
            takes.append(f"total{number} = {taken};")
            results.append(f"const float r{number} = float(total{number});")
    parameters = [("const float* __restrict__", "position_partials"), *parameter_texts(kernel, emitter.used)]
    every = kernel.batch * channels
    body = [f"const long long number = blockIdx.x * {_THREADS}LL + threadIdx.x;", f"if (number >= {every}LL) return;",
            f"const int n = number / {channels}, o = number % {channels};", "constexpr int g = 0;", *starts,
            "#pragma unroll 4", f"for (int i = 0; i < {numbers.partial_results}; ++i) {{", *indent([
                f"const float* const from = position_partials + (n * {numbers.partial_results}LL + i) * "
                f"{numbers.components * channels} + o;", *takes]), "}",
            *results, *emitter.fixed_lines, *straight(emitter)]
    return finalize_kernel(name, "Reductions over all positions of each (n, o), from those of strips.",
                           -(-every // _THREADS), _THREADS, parameters, body)


def struct(kernel: Contraction, name: str) -> str:
    """What a thread has of reductions over positions, of its two channels."""
    members = ["int count[2];  // of positions"]
    for k, total in enumerate(kernel.position_reductions):
        if total.kind == "moments":
            members += [f"float about{k}[2];", f"double total{k}[2], squares{k}[2];"]
        else:
            members.append(f"{'double' if total.kind == 'sum' else 'float'} total{k}[2];")
    return "\n".join(["// Of a thread's two channels: reductions over a strip's positions, moments about a number.",
                      f"struct {name}_partials {{", *(f"  {m}" for m in members), "};", ""])


def ending(numbers: RowBuffered, name: str) -> str:
    """``NAME_end``: four lanes put together what they have of a strip, and one writes it."""
    kernel = numbers.kernel
    lines = []
    meet: list[str] = []
    for k, total in enumerate(kernel.position_reductions):
        own = f"partials.total{k}[h]"
        if total.kind == "moments":
            lines += [f"double mean{k} = partials.about{k}[h] + (count ? {own} / count : 0.0);",
                      f"double apart{k} = count ? partials.squares{k}[h] - {own} * ({own} / count) : 0.0;"]
            meet += [f"const double mean_of{k} = __shfl_xor_sync(0xffffffffu, mean{k}, lanes);",
                     f"const double off{k} = mean_of{k} - mean{k};",
                     f"apart{k} += __shfl_xor_sync(0xffffffffu, apart{k}, lanes) + "
                     f"off{k} * off{k} * (double(count) * share);",
                     f"mean{k} = other == 0 ? mean{k} : count == 0 ? mean_of{k} : mean{k} + off{k} * share;"]
        elif total.kind == "sum":
            lines.append(f"double total{k} = {own};")
            meet.append(f"total{k} += __shfl_xor_sync(0xffffffffu, total{k}, lanes);")
        else:
            lines.append(f"float total{k} = count ? {own} : {STARTS[total.kind]};")
            taken = TAKES[total.kind].format(f"total{k}", f"__shfl_xor_sync(0xffffffffu, total{k}, lanes)")
            meet.append(f"total{k} = {taken};")
    writes = []
    for k, (at, total) in enumerate(components(kernel)):
        values = ["__int_as_float(count)", f"float(mean{k})", f"float(apart{k})"] if total.kind == "moments" else \
            [f"float(total{k})"]
        writes += [f"to[{i * kernel.out_channels}LL] = {value};" for i, value in enumerate(values, at)]
    slot = f"strip * {numbers.tiling.pingpong // numbers.channel_blocks}LL + warpgroup"
    slot = f"(({slot}) * {numbers.stacked} + {line_of(numbers)})" if numbers.stacked > 1 else f"({slot})"
    body = ["const int lane = thread % 32;", "#pragma unroll", "for (int h = 0; h < 2; ++h) {", *indent([
        f"const int o = {channel(numbers, 'h')};", "int count = partials.count[h];",
        *lines, "#pragma unroll", "for (int lanes = 1; lanes < 4; lanes *= 2) {", *indent([
            "const int other = __shfl_xor_sync(0xffffffffu, count, lanes);",
            "const double share = count + other ? double(other) / (count + other) : 0.0;", *meet, "count += other;"]),
        "}", f"if (lane % 4 == 0 && o < {kernel.out_channels}) {{",
        f"  float* const to = position_partials + {slot} * {numbers.components * kernel.out_channels}LL + o;",
        *indent(writes), "}"]), "}"]
    if not any(t.kind == "moments" for t in kernel.position_reductions):
        body = [line for line in body if "const double share" not in line]
    return device_function("Writes the partial results of a strip.", "void", f"{name}_end",
                           ["float* __restrict__ position_partials", f"const {name}_partials& partials", "int strip",
                            "int warpgroup",
                            "int first_channel", "int thread"], body)
