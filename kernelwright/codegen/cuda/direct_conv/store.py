"""The text that stores the sums of a direct contraction, its epilogue applied."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

from kernelwright.codegen.cuda.direct_conv.layout import Layout
from kernelwright.codegen.cuda.gemm.points import STARTS, TAKES, as_float, reduced_lines
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter
from kernelwright.codegen.cuda.loops.site import Site, indent
from kernelwright.codegen.terms import grouped
from kernelwright.plan.expressions import Expression, Reduced, walk
from kernelwright.plan.kernels import Reduction


class SumEmitter(Emitter):
    """Sums of products differ from step to step of every walk; what reductions give does not."""

    def depends(self, node: Expression) -> tuple[bool, bool]:
        row, lane = super().depends(node)
        return row or any(isinstance(part, Reduced) and not part.reduction for part in walk(node)), lane

    def statements(self) -> list[str]:
        """The statements of a step, which has no lanes."""
        declared = [f"{s.c_type} {s.name}{f'[{s.count}]' if s.place else ''};" for s in self.row_loads]
        return [*declared, *(line for s in self.row_loads for line in s.lines), *self.row_lines, *self.lane_lines,
                *self.late_lines]

    def take_fixed(self) -> list[str]:
        """The statements before a walk."""
        lines, self.fixed_lines = self.fixed_lines, []
        return lines


def store_lines(layout: Layout, buffers: tuple[list[Buffer], list[Buffer]], long: bool, whole: str
                ) -> tuple[list[str], set[str]]:
    """Statements that follow the sums, and the pointers they use.

    buffers: inputs and outputs. long: whether store positions need 64 bits; whole: the C type of coordinates.
    """
    if layout.kernel.reductions:
        return _reducing_lines(layout, buffers, long, whole)
    kernel, plan, last = layout.kernel, layout.schedule, len(layout.lines) - 1
    emitter = SumEmitter(Site(kernel.domain, (), "float", long, tuple(range(3, len(kernel.domain)))), buffers[0])
    emitter.reduced[0, 0] = "value"
    traded = _Traded(layout) if layout.trades else None
    value = traded.value if traded else f"{sums(layout)}[{phase_text(layout)}][r][o]"
    after: list[str] = []
    for number, store in enumerate(kernel.stores):
        buffer = buffers[1][store.buffer]
        if layout.pairs:
            emitter.lane_lines.append(f"pair{number}[p{last}] = {emitter.value(store.expression)};")
            emitter.used.add(buffer.name)
            at = emitter.site.base(store.index)
            after.append(f"*reinterpret_cast<float2*>({buffer.name} + {grouped(at)}) = "
                         f"make_float2(pair{number}[0], pair{number}[1]);")
        else:
            emitter.store(buffer, store.index, store.expression)
    write = [f"const float value = {value};", *emitter.statements()]
    inside = [f"i{3 + n} < {line.axis.out_size}" for n, line in enumerate(layout.lines) if line.guarded]
    if layout.pairs:
        # Both of a pair are inside or outside of the output.
        both = [f"float pair{n}[2];" for n in range(len(kernel.stores))]
        first = nested([(f"p{last}", 2, True)], needed(positions(layout, whole), write))
        body = needed(positions(layout, whole), conditional(inside, [*both, *first, *after]))
        lines = nested(steps(layout)[:-1], [f"constexpr int p{last} = 0;", *body])
    else:
        lines = nested(steps(layout), needed(positions(layout, whole), conditional(inside, write)))
    lines = [*emitter.fixed_lines, *lines]
    channels = [f"i2 < {kernel.out_channels}"] if kernel.out_channels % layout.columns else []
    lines = conditional([*own_conditions(layout), *channels], lines)
    head = ["// The stores."]
    if traded:
        head = ["// The stores. Threads of a row trade sums first, so that neighbours write neighbouring outputs.",
                *traded.before]
        lines = [*traded.trade, *lines]
    channel = layout.affine((1, plan.channels), ("channel", "channel_group"))
    lines = needed([f"const int i2 = {f'{channel} + o' if channel != '0' else 'o'};"], lines)
    lines = nested([("o", plan.channels, True)], lines)
    return [*head, *needed(pair_lines(layout, "own_pair", whole), lines)], emitter.used


def _reducing_lines(layout: Layout, buffers: tuple[list[Buffer], list[Buffer]], long: bool, whole: str
                    ) -> tuple[list[str], set[str]]:
    """The same where output channels are reduced: a thread has all of them of its positions, in registers."""
    kernel = layout.kernel
    emitter = SumEmitter(Site(kernel.domain, (), "float", long, (2,)), buffers[0])
    emitter.reduced[0, 0] = "value"
    value = f"const float value = {sums(layout)}[{phase_text(layout)}][r][i2];"
    lines: list[str] = []

    def each_channel(step: list[str]) -> list[str]:
        return nested([("i2", kernel.out_channels, True)], [value, *step])

    def folded(reduction: Reduction) -> Callable[[str, str, str], list[str]]:
        def fold(kind: str, result: str, term: str) -> list[str]:
            emitter.start_walk("")
            value = as_float(emitter, reduction.expression)
            step = [*emitter.statements(), f"{result} = {TAKES[kind].format(result, term.format(value))};"]
            return [*emitter.take_fixed(), f"float {result} = {STARTS[kind]};", *each_channel(step)]

        return fold

    for number, reduction in enumerate(kernel.reductions, 1):
        lines += reduced_lines(emitter, number, reduction, kernel.out_channels, folded(reduction))
    for along in (True, False):
        stores = [s for s in kernel.stores if bool(s.index.strides[2]) == along]
        emitter.start_walk("")
        for store in stores:
            emitter.store(buffers[1][store.buffer], store.index, store.expression)
        step = emitter.statements()
        lines += [*emitter.take_fixed(), *(each_channel(step) if stores and (along or kernel.out_channels == 1)
                                           else step)]
    inside = [f"i{3 + n} < {line.axis.out_size}" for n, line in enumerate(layout.lines) if line.guarded]
    body = nested(steps(layout), needed(positions(layout, whole), conditional(inside, lines)))
    body = needed(pair_lines(layout, "own_pair", whole), conditional(own_conditions(layout), body))
    return ["// The channels of each position, reduced, and the stores.", *body], emitter.used


def own_conditions(layout: Layout) -> list[str]:
    """What holds where a thread's pair (n, g) is one."""
    conditions = ["active"] if layout.idle else []
    if layout.total_pairs % layout.schedule.pairs:
        conditions.append(f"{layout.affine((1, 1), ('pair', 'own_pair'))} < {layout.total_pairs}")
    return conditions


def pair_lines(layout: Layout, own: str, whole: str) -> list[str]:
    """Definitions of n and g, called i0 and i1, from the block's first pair and the place ``own`` among its pairs."""
    groups, pair = layout.kernel.groups, layout.affine((1, 1), ("pair", own))
    bracketed = f"({pair})" if " " in pair else pair
    if groups == 1 or layout.total_pairs == 1:
        return [f"const {whole} i0 = {pair};"]
    return [f"const {whole} i0 = {bracketed} / {groups};", f"const {whole} i1 = {bracketed} % {groups};"]


def needed(definitions: Sequence[str], body: Sequence[str]) -> list[str]:
    """The definitions that a body, or a later one of them, uses, and the body."""
    lines = list(body)
    for line in reversed(definitions):
        defined = re.search(r"(\w+) = ", line)
        assert defined is not None, line
        if any(re.search(rf"\b{defined[1]}\b", other) for other in lines):
            lines.insert(0, line)
    return lines


def nested(levels: Sequence[tuple[str, int, bool]], body: Sequence[str]) -> list[str]:
    """``body`` in loops, outermost first: (name, count, whether to unroll). Names of single steps are constants."""
    single = [f"{name} = 0" for name, count, _ in levels if count == 1]
    lines = [f"constexpr int {', '.join(single)};", *body] if single else list(body)
    looped = [level for level in levels if level[1] > 1]
    for name, count, unrolled in reversed(looped):
        lines = ["#pragma unroll" if unrolled else "#pragma unroll 1",
                 f"for (int {name} = 0; {name} < {count}; ++{name}) {{", *indent(lines), "}"]
    return lines if looped or not single else ["{", *indent(lines), "}"]


def phase_text(layout: Layout) -> str:
    """Text of a phase's number from p0, p1, ... of the axes that have several."""
    strides = [prod(map(len, layout.phases[n + 1:])) for n in range(len(layout.phases))]
    several = [s if len(p) > 1 else 0 for s, p in zip(strides, layout.phases, strict=True)]
    return layout.affine(several, [f"p{n}" for n in range(len(several))])


def conditional(conditions: Sequence[str], body: Sequence[str]) -> list[str]:
    """The body where all conditions hold."""
    return [f"if ({' && '.join(conditions)}) {{", *indent(body), "}"] if conditions else list(body)


def sums(layout: Layout) -> str:
    """The array with a thread's sums."""
    return "total" if layout.two_levels else "sum"


def steps(layout: Layout) -> list[tuple[str, int, bool]]:
    """Loops over a thread's outputs of one channel."""
    traded, last = layout.trades, len(layout.lines) - 1
    levels = [] if traded and layout.run_line.last else [("r", layout.schedule.run, True)]
    levels += [(f"p{n}", len(p), True) for n, p in enumerate(layout.phases)
               if len(p) > 1 and not (traded and n == last)]
    return levels + ([("j", len(layout.phases[-1]) * layout.lines[-1].run, True)] if traded else [])


def positions(layout: Layout, whole: str) -> list[str]:
    """Definitions of the output coordinates."""
    lines = []
    for n, line in enumerate(layout.lines):
        stride = line.axis.out_stride
        if line.last and layout.trades:
            strides, names, offset = (stride, 1, line.threads), (f"cell{n}", f"own{n}", "j"), 0
        else:
            step = 0 if n != layout.schedule.run_axis else line.threads * stride if line.last else stride
            several = len(line.phases) > 1
            strides, names = (stride, stride, step, int(several)), (f"cell{n}", f"own{n}", "r", f"p{n}")
            offset = 0 if several else line.phases[0]
        lines.append(f"const {whole} i{3 + n} = {layout.affine(strides, names, offset)};")
    return lines


class _Traded:
    """Sums of one output channel in shared memory, as rows of neighbouring outputs.

    before: statements ahead of all channels; trade: of each channel; value: where a thread then finds its outputs.
    """

    def __init__(self, layout: Layout) -> None:
        line, plan, last = layout.lines[-1], layout.schedule, len(layout.lines) - 1
        phases = len(line.phases)
        others = layout.phase_count // phases
        runs = 1 if line.run > 1 else plan.run
        length = line.tile * phases
        # A row of threads within one warp needs no barrier of the block.
        barrier = "__syncwarp();" if 32 % line.threads == 0 else "__syncthreads();"
        row = [f"p / {phases} * {length}" if others > 1 else "", f"r * {others * length}" if runs > 1 else ""]
        along = layout.affine((phases, line.threads * phases if line.run > 1 else 0), (f"own{last}", "r"))
        to = " + ".join(part for part in (*row, along, f"p % {phases}") if part)
        own = [length * prod(map(len, layout.phases[n + 1:-1])) if len(p) > 1 else 0
               for n, p in enumerate(layout.phases[:-1])]
        at = layout.affine((*own, others * length if runs > 1 else 0, 1, line.threads),
                           (*(f"p{n}" for n in range(last)), "r", f"own{last}", "j"))
        self.value = f"traded[{at}]"
        self.before = ["__syncthreads();  // the operands are no longer read",
                       f"float* const traded = shared + thread / {line.threads} * {runs * others * length};"]
        write = nested([("p", layout.phase_count, True), ("r", plan.run, True)],
                       [f"traded[{to}] = {sums(layout)}[p][r][o];"])
        self.trade = [*([f"if (o > 0) {barrier}"] if plan.channels > 1 else []),
                      *conditional(["active"] if layout.idle else [], write), barrier]
