"""The text of one device kernel of a direct contraction: staging, sums, stores."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

from kernelwright.codegen.cuda.direct_conv.cells import Line, progression
from kernelwright.codegen.cuda.direct_conv.layout import Layout
from kernelwright.codegen.cuda.direct_conv.pool import pooling_lines
from kernelwright.codegen.cuda.direct_conv.store import needed, nested, pair_lines, store_lines
from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.loops.emitter import Buffer, Emitter
from kernelwright.codegen.cuda.loops.site import Site, indent, loops
from kernelwright.codegen.terms import grouped, plus
from kernelwright.plan.expressions import Expression, Index, Load, walk
from kernelwright.plan.kernels import LoopKernel, Store

#: Multiply-adds that a trip of the loop over channels has at least, where channels are many.
_TRIP = 192
#: Inputs that a thread reads before it stores the first, at most.
_IN_FLIGHT = 8


def main_load(expression: Expression) -> Load | None:
    """The load that moves along most axes."""
    loads = [n for n in walk(expression) if isinstance(n, Load)]
    return max(loads, key=lambda n: sum(map(bool, n.index.strides)), default=None)


class DeviceText:
    """Text of a device kernel. After `text`, ``used`` are its pointers and ``vectors`` those read four at a time."""

    def __init__(self, layout: Layout) -> None:
        kernel = layout.kernel
        self.layout, self.kernel, self.plan = layout, kernel, layout.schedule
        self.inputs = [Buffer(f"in{n}", C_TYPES[t]) for n, t in enumerate(kernel.input_dtypes)]
        self.outputs = [Buffer(f"out{n}", C_TYPES[t]) for n, t in enumerate(kernel.output_dtypes)]
        roots = [(kernel.left_domain, kernel.left), (kernel.right_domain, kernel.right)]
        parts = [LoopKernel(domain, (), (), (), (Store(0, Index((0,) * len(domain)), root),), (), ())
                 for domain, root in roots]
        self.long = [is_long(p) for p in (*parts, self._sums_loop())]
        sizes = [layout.total_pairs, *(s for a in kernel.axes for s in (a.in_size, a.out_size))]
        self.whole = "long long" if max(sizes) >= 2**30 else "int"
        self.vectors: set[str] = set()
        self.used: set[str] = set()

    def _sums_loop(self) -> LoopKernel:
        """A pointwise kernel with every index of what follows the sums."""
        kernel = self.kernel
        read = tuple(Store(0, Index((0,) * len(kernel.domain)), r.expression) for r in kernel.all_reductions)
        return LoopKernel(kernel.domain, (), (), (), (*kernel.stores, *read), (), ())

    def text(self, name: str, comment: str) -> str:
        """The __global__ function ``name``."""
        finish = pooling_lines if self.kernel.pools else store_lines
        stores, used = finish(self.layout, (self.inputs, self.outputs), self.long[2], self.whole)
        body = [*self._places(), *self._chunks(), *stores]
        self.used |= used
        ordered = [b for b in (*self.inputs, *self.outputs) if b.name in self.used]
        parameters = [f"{'const ' if b in self.inputs else ''}{b.c_type}* __restrict__ {b.name}" for b in ordered]
        bounds = f"__launch_bounds__({self.layout.threads}, {self.layout.resident})"
        return "\n".join([*(f"// {line}" for line in comment.split("\n")), f"static __global__ void {bounds} {name}(",
                          "    " + ", ".join(parameters) + ") {", *indent(body), "}", ""])

    # Where blocks and threads are.

    def _places(self) -> list[str]:
        layout, plan = self.layout, self.plan
        lines = [f"constexpr int threads = {layout.threads}, depth = {plan.depth};  // channels staged at once",
                 f"constexpr int plane = {layout.plane};  // staged inputs of a channel, rows of {layout.row_pitch}",
                 f"constexpr int window = {layout.staged_window}, pitch = {layout.column_pitch};  // staged weights: "
                 "entries of a channel, and places of each"]
        for n, line in enumerate(layout.lines):
            for what in ("shift", "entry", "phase"):
                values = self._values(what, line)
                if values and progression(values) is None:
                    lines.append(f"constexpr int {what}{n}[] = {{{', '.join(map(str, values))}}};")
        lines += [f"__shared__ __align__(16) float shared[{layout.shared_floats}];", "float* const tile = shared;",
                  f"float* const weights = shared + {layout.tile_floats};",
                  "// Of the block: first output channel, first cells, first pair (n, g)."]
        names = ["pair", *(f"cell{n}" for n in range(len(layout.lines))), "channel"]
        steps = [plan.pairs, *plan.tile, layout.columns]
        rest = "blockIdx.x"
        for name, count, step in reversed(list(zip(names, layout.grid, steps, strict=True))):
            if count > 1:
                number = f"{rest} % {count}u" if name != "pair" else rest
                cast = "int" if self.whole == "int" else f"({self.whole})"
                lines.append(f"const {self.whole} {name} = {cast}({number}){f' * {step}' if step > 1 else ''};")
                rest = f"{rest} / {count}u"
        lines += [f"const bool active = threadIdx.x < {layout.cell_threads * plan.channel_groups};",
                  "const int thread = active ? threadIdx.x : 0;"] if layout.idle \
            else ["const int thread = threadIdx.x;"]
        lines.insert(-1 - layout.idle, "// Of the thread: its place in these.")
        rest = "thread"
        for n in range(len(layout.lines) - 1, -1, -1):
            line = layout.lines[n]
            if line.threads > 1:
                step = f" * {line.run}" if line.run > 1 and not line.last else ""
                lines.append(f"const int own{n} = {rest} % {line.threads}{step};")
                rest = f"{rest} / {line.threads}"
        if plan.pairs > 1:
            lines.append(f"const int own_pair = {rest} % {plan.pairs};")
        if plan.channel_groups > 1:
            lines.append(f"const int channel_group = thread / {layout.cell_threads};")
        return lines

    # Operands to shared memory.

    def _chunks(self) -> list[str]:
        layout, plan, kernel = self.layout, self.plan, self.kernel
        dims = "".join(f"[{n}]" for n in (layout.phase_count, plan.run, plan.channels))
        if not layout.chunks:
            return [f"const float sum{dims} = {{}};  // no tap reaches these outputs"]
        body = [*self._stage_inputs(), *self._stage_weights(), "__syncthreads();", *self._sums()]
        meant = "  // [phase][cell of the run][output channel]"
        lines = [f"float {'total' if layout.blocks > 1 else 'sum'}{dims} = {{}};{meant}"]
        if layout.chunks == 1:
            return [*lines, *body]
        body.insert(0, "if (first > 0) __syncthreads();  // the operands of the step before are no longer read")
        if layout.two_levels and layout.blocks == 1:
            lines.append(f"float total{dims} = {{}};  // sums of steps: no chain of additions gets long")
            body += self._moved(["sum[p][r][o] = 0.0f;"])
        lines += ["#pragma unroll 1", f"for (int first = 0; first < {kernel.in_channels}; first += depth) {{",
                  *indent(body), "}"]
        return lines

    def _moved(self, after: Sequence[str] = ()) -> list[str]:
        """Sums to the second level, of phases that have taps."""
        sizes = zip("pro", (self.layout.phase_count, self.plan.run, self.plan.channels), strict=True)
        met, every = self.layout.met, all(self.layout.met)
        table = [] if every else [f"constexpr bool met[] = {{{', '.join(str(m).lower() for m in met)}}};"]
        add = f"{'' if every else 'if (met[p]) '}total[p][r][o] += sum[p][r][o];"
        return [*table, *nested([(name, size, True) for name, size in sizes], [add, *after])]

    def _stage(self, expression: Expression, domain: tuple[int, ...], long: bool, lanes: int,
               radices: Sequence[tuple[str, int, int]], places: Sequence[str], conditions: Sequence[str],
               target: str, said: str) -> list[str]:
        """A loop that evaluates an operand at the block's elements. radices: (name, size, stride in memory)."""
        site = Site(domain, (), "float", long, tuple(range(len(domain))), len(domain) - 1 if lanes > 1 else None, lanes)
        emitter = Emitter(site, self.inputs)
        value = emitter.value(expression)
        declared = [f"{s.c_type} {s.name}{f'[{s.count}]' if s.place else ''};" for s in emitter.row_loads]
        reads = [line for s in emitter.row_loads for line in s.lines]
        to = "value[v]" if lanes > 1 else "value"
        compute = [*declared, *reads, *emitter.row_lines,
                   *loops(site, [*emitter.lane_lines, f"{to} = {value};"], window=False)]
        self.used |= emitter.used
        self.vectors |= emitter.vectors
        if conditions:
            compute = [f"if ({' && '.join(conditions)}) {{", *indent(compute), "}"]
        # What lies close in memory is read by neighbouring threads.
        ordered = sorted((r for r in radices if r[1] > 1), key=lambda r: (r[2] == 0, r[2]))
        rest, total, decode = "e", prod(size for _, size, _ in radices), []
        for name, size, _ in ordered:
            decode.append(f"const int {name} = {rest if name == ordered[-1][0] else f'{rest} % {size}'};")
            rest = f"{rest} / {size}"
        body = needed([*decode, *places],
                      [f"float value{f'[{lanes}] = {{}}' if lanes > 1 else ' = 0.0f'};", *compute, target])
        threads = self.layout.threads
        if total % threads:
            body = [f"if (e < {total}) {{", *indent(body), "}"]
        count = ceil(total / threads)
        # A loop that is unrolled as a whole would keep its places in registers from step to step of the channels.
        together = ceil(count / max(ceil(count / _IN_FLIGHT), 2 if self.layout.chunks > 1 else 1))
        step = [f"#pragma unroll {together}", f"for (int k = 0; k < {count}; ++k) {{",
                "  const int e = k * threads + threadIdx.x;", *indent(body), "}"]
        return [f"// {said}", "{", *indent([*emitter.fixed_lines, *step]), "}"]

    def _stage_inputs(self) -> list[str]:
        layout, plan, kernel = self.layout, self.plan, self.kernel
        load = main_load(kernel.left)
        strides = [abs(s) for s in load.index.strides] if load else [0] * len(kernel.left_domain)
        radices, places, conditions = [], [], []
        for n in range(len(layout.lines) - 1, -1, -1):
            line = layout.lines[n]
            unit = line.lanes
            radices.append((f"q{n}", line.span // unit, strides[3 + n]))
            at = layout.affine((line.axis.in_stride, unit), (f"cell{n}", f"q{n}"), line.from_input)
            places.append(f"const {self.whole} i{3 + n} = {at};")
            kind = "unsigned" if self.whole == "int" else "(unsigned long long)"
            if line.from_input < 0 or line.axis.in_stride * line.tile * (line.tiles - 1) + line.from_input \
                    + line.span > line.axis.in_size:
                conditions.append(f"{kind}(i{3 + n}) < {line.axis.in_size}u")
        radices.append(("c", plan.depth, strides[2]))
        places.append(f"const int i2 = {layout.affine((1, 1), ('first', 'c'))};")
        if kernel.in_channels % plan.depth:
            conditions.append(f"i2 < {kernel.in_channels}")
        radices.append(("p", plan.pairs, strides[1] if kernel.groups > 1 else strides[0]))
        places += pair_lines(layout, "p", self.whole)
        if layout.total_pairs % plan.pairs:
            conditions.append(f"{layout.affine((1, 1), ('pair', 'p'))} < {layout.total_pairs}")
        last, number = layout.lines[-1], len(layout.lines) - 1
        rows = layout.affine((plan.depth * layout.plane, layout.plane, *layout.pitches()[1:-1]),
                             ("p", "c", *(f"q{n}" for n in range(number))))
        base = f"{rows} + " if rows != "0" else ""
        if last.lanes == 1:
            target = f"tile[{base}{last.place(f'q{number}' if f'q{number}' not in layout.still else '0')}] = value;"
        elif last.apart == 1:
            target = f"kw_write4(tile + ({base}{layout.affine((4,), (f'q{number}',))}), value);"
        else:
            at = last.place(f"({layout.affine((4,), (f'q{number}',))} + v)")
            target = f"for (int v = 0; v < 4; ++v) tile[{base}{at}] = value[v];"
        return self._stage(kernel.left, kernel.left_domain, self.long[0], last.lanes, radices, places, conditions,
                           target, "Inputs of the tile, with those around it that taps reach; zero outside.")

    def _stage_weights(self) -> list[str]:
        layout, plan, kernel = self.layout, self.plan, self.kernel
        load = main_load(kernel.right)
        strides = [abs(s) for s in load.index.strides] if load else [0] * len(kernel.right_domain)
        pairs = plan.pairs if kernel.groups > 1 else 1
        radices, places, conditions = [], [], []
        for n in range(len(layout.lines) - 1, -1, -1):
            (start, step), count = layout.entries[n]
            radices.append((f"j{n}", count, strides[3 + n]))
            places.append(f"const int i{3 + n} = {layout.affine((step,), (f'j{n}',), start)};")
        radices += [("c", plan.depth, strides[2]), ("o", layout.columns, strides[1]), ("p", pairs, strides[0])]
        first = layout.affine((1, 1 if pairs > 1 else 0), ("pair", "p"))
        places += [f"const {self.whole} i0 = {f'({first}) % {kernel.groups}' if kernel.groups > 1 else '0'};",
                   f"const int i1 = {layout.affine((1, 1), ('channel', 'o'))};",
                   f"const int i2 = {layout.affine((1, 1), ('first', 'c'))};"]
        if kernel.out_channels % layout.columns:
            conditions.append(f"i1 < {kernel.out_channels}")
        if kernel.in_channels % plan.depth:
            conditions.append(f"i2 < {kernel.in_channels}")
        size = layout.staged_window * layout.column_pitch
        strides = (plan.depth * size if kernel.groups > 1 else 0, size,
                   *(e * layout.column_pitch for e in self._entry_strides()), 1)
        at = layout.affine(strides, ("p", "c", *(f"j{n}" for n in range(len(layout.lines))), "o"))
        target = f"weights[{at}] = value;"
        return self._stage(kernel.right, kernel.right_domain, self.long[1], 1, radices, places, conditions, target,
                           "Weights of the block's output channels, these side by side.")

    # Sums.

    def _sums(self) -> list[str]:
        layout, plan = self.layout, self.plan
        pitches, run_axis = layout.pitches()[1:], plan.run_axis
        own = [f"own{n}" for n in range(len(layout.lines))]
        strides = [p * line.cell_step for p, line in zip(pitches, layout.lines, strict=True)]
        at = layout.affine((plan.depth * layout.plane, *strides), ("own_pair", *own))
        size = plan.depth * layout.staged_window * layout.column_pitch if self.kernel.groups > 1 else 0
        of = layout.affine((size, plan.channels), ("own_pair", "channel_group"))
        lines = [f"const float* const x_own = {plus('tile', grouped(at))};",
                 f"const float* const w_own = {plus('weights', grouped(of))};"]
        column, order, rolled = layout.in_column, layout.order, layout.rolled[0]
        at = [self._term("shift", n, pitches[n]) for n in order if not (column and n == run_axis)]
        at = " + ".join(a for a in at if a != "0") or "0"
        body = self._products(column)
        for n in reversed(order):
            if column and n == run_axis:
                count, step = layout.run_line.column, pitches[n]
                body = [f"float column[{count}];", "#pragma unroll",
                        f"for (int e = 0; e < {count}; ++e) column[e] = x[{plus(at, f'e * {step}')}];",
                        *nested([(f"j{n}", len(layout.lines[n].taps), True)], body)]
            else:
                if n == order[-1]:
                    far = layout.run_line.run_step * pitches[run_axis]
                    body = [f"float value[{plan.run}];", "#pragma unroll",
                            f"for (int r = 0; r < {plan.run}; ++r) value[r] = x[{plus(at, f'r * {far}')}];", *body]
                body = nested([(f"j{n}", len(layout.lines[n].taps), n not in rolled)], body)
        work, several = layout.window * plan.run * plan.channels, layout.blocks > 1
        unroll = plan.block if layout.block_unrolled else 1 if rolled or several \
            else max(1, min(plan.depth, _TRIP // work))
        first, end = ("block", f"block + {plan.block}") if several else ("0", "depth")
        channels = [f"#pragma unroll {unroll}", f"for (int c = {first}; c < {end}; ++c) {{",
                    *indent(["const float* const x = x_own + c * plane;",
                             "const float* const w = w_own + c * window * pitch;", *body]), "}"]
        if not several:
            return [*lines, *channels]
        dims = "".join(f"[{n}]" for n in (layout.phase_count, plan.run, plan.channels))
        return [*lines, "#pragma unroll 1", f"for (int block = 0; block < depth; block += {plan.block}) {{",
                *indent([f"float sum{dims} = {{}};  // of a block of channels: no chain of additions gets long",
                         *channels, *self._moved()]), "}"]

    @staticmethod
    def _values(what: str, line: Line) -> list[int]:
        """Of every tap: its number ("entry"), place ("shift") or the place of its phase among the line's."""
        return [{"shift": line.shift(t), "entry": t.number, "phase": line.phases.index(t.phase)}[what]
                for t in line.taps]

    def _term(self, what: str, n: int, factor: int = 1) -> str:
        """Text of such a value of tap j of an axis, times a factor."""
        values = self._values(what, self.layout.lines[n])
        found = progression(values)
        if found is None:
            return f"{what}{n}[j{n}]" + (f" * {factor}" if factor != 1 else "")
        return self.layout.affine((found[1] * factor,), (f"j{n}",), found[0] * factor)

    def _entry_strides(self) -> list[int]:
        counts = [count for _, count in self.layout.entries]
        return [prod(counts[n + 1:]) for n in range(len(counts))]

    def _products(self, column: bool) -> list[str]:
        """The products of one combination of taps."""
        layout, plan = self.layout, self.plan
        entries, phases = [], []
        for n, (line, stride) in enumerate(zip(layout.lines, self._entry_strides(), strict=True)):
            at = stride * layout.column_pitch
            listed = progression(self._values("entry", line)) is not None
            entries.append(layout.affine((at,), (f"j{n}",)) if listed else self._term("entry", n, at))
            if len(line.phases) > 1:
                phases.append(self._term("phase", n, prod(map(len, layout.phases[n + 1:]))))
        at = plus("w", grouped(plus(*entries)))
        if plan.channels % 4:
            read = f"for (int o = 0; o < {plan.channels}; ++o) weight[o] = {grouped(at)}[o];"
        else:
            read = f"for (int o = 0; o < {plan.channels}; o += 4) kw_read4(weight + o, {at} + o);"
        value = "value[r]"
        if column:
            moved = self._term("shift", plan.run_axis)
            value = " + ".join(part for part in (layout.affine((layout.run_line.axis.in_stride,), ("r",)), moved)
                               if part != "0")
            value = f"column[{value or '0'}]"
        phase = " + ".join(p for p in phases if p != "0") or "0"
        return [f"float weight[{plan.channels}];", "#pragma unroll", read, f"const int p = {phase};",
                *nested([("r", plan.run, True), ("o", plan.channels, True)],
                        [f"sum[p][r][o] = fmaf({value}, weight[o], sum[p][r][o]);"])]
