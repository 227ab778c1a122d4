"""The CUDA skeleton of :class:`Scan`, deterministic, with one read and one write of memory wherever it can.

Meaning, in PyTorch, over ``outer`` x ``length``::

    state = torch.cumsum(expression, -1)      (cumprod, cummax, ...; one position late where exclusive)
    out.flatten()[index over outer x length] = expression of state      for each store

Along rows each thread scans vectors of four, shuffles combine the threads of a warp, and one exchange through shared
memory the warps of a chunk; along columns shared memory combines the threads of a column. Where rows are cut into
parts, a first kernel takes the totals of the parts, so that the second can start in the middle (reduce-then-scan;
look-back, after D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016, would
add in an order that differs from run to run).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.codegen.cuda.expressions import literal
from kernelwright.codegen.cuda.scan.elements import Points, indent, loads_of
from kernelwright.codegen.cuda.scan.walk import AxisWalk, Launch, Schedule, choose, source
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.ops.scans import SCANS
from kernelwright.plan.kernels import Scan

NOTHING = {kind: nothing for kind, nothing, _ in SCANS.values()}
_TEXTS = {"sum": "{0} + {1}", "product": "{0} * {1}", "max": "kw_maximum({0}, {1})", "min": "kw_minimum({0}, {1})",
          "logsumexp": "kw_logaddexp({0}, {1})"}


def generate(kernel: Scan, name: str, schedule: Schedule | None = None) -> KernelSource:
    """The CUDA text of a scan whose host function is ``name``. ``schedule`` replaces the chosen one.

    Pointers must be aligned to 16 bytes where four elements are read or written at once; the host function says
    so, and launches nothing, where one is not.
    Raises ValueError for a kind that is not known, and where a grid would exceed 2**31 - 1 blocks.
    """
    if kernel.kind not in _TEXTS:
        raise ValueError(f"unknown scan {kernel.kind!r}")
    writer = _Writer(kernel, name, schedule or choose(kernel)) if prod((*kernel.outer, kernel.length)) else None
    return source(kernel, name, writer)


class _Writer(AxisWalk[Scan]):
    """The device kernels of one scan."""

    def __init__(self, kernel: Scan, name: str, schedule: Schedule) -> None:
        super().__init__(kernel, name, schedule)
        # Products leave the range of float where the whole does not; carried sums keep their digits.
        self.inner = "double" if kernel.kind == "product" else self.real
        self.carry = "double" if kernel.kind in ("sum", "product") else self.real
        self.nothing = literal(NOTHING[kernel.kind], self.inner)
        if schedule.parts > 1:
            self.workspace_bytes = prod(kernel.outer) * schedule.parts * 8

    def device_kernels(self) -> list[Launch]:
        """The kernels, in order."""
        made = [self._kernel(totals=True)] if self.schedule.parts > 1 else []
        return [*made, self._kernel(totals=False)]

    def op(self, a: str, b: str) -> str:
        """The combination of two texts."""
        return _TEXTS[self.kernel.kind].format(a, b)

    def _kernel(self, totals: bool) -> Launch:
        kernel, plan = self.kernel, self.schedule
        names = [f"i{n}" for n in range(len(kernel.outer))]
        points = Points(kernel, plan.lanes, plan.pieces, self.long, names)
        body = [*self.place(names)]
        first = loads_of([kernel.expression])
        second = [] if totals else loads_of([s.expression for s in kernel.stores])
        body += points.declare([x for x in (*first, *second) if not x.index.strides[-1] and not any(
            g.index.strides[-1] for g in x.guards)])
        body += [f"{self.carry} carry = {literal(NOTHING[kernel.kind], self.carry)};"]
        if plan.parts > 1 and not totals:
            body += self._carry_of_parts()
        if not totals and self._exchanges:
            size = plan.pieces * self.warps if self.rows else plan.threads
            body.insert(0, f"__shared__ {self.inner} totals[2][{size}];")
            body.append("unsigned turn = 0;")
        chunk = self._chunk(points, first, second, totals)
        bounds = f"{self.position} base = first; base < last; base += {plan.chunk}"
        body += [f"for ({bounds}) {{", *indent(chunk), "}"]
        if totals:
            body += self._store_total()
        partial = ("double" if totals else "const double") if plan.parts > 1 else ""
        return self.launch(int(plan.parts > 1 and not totals), points, self._comment(totals), body,
                           self.groups * plan.parts, partial=partial)

    @property
    def _exchanges(self) -> bool:
        return self.schedule.group > (32 if self.rows else 1)

    def _comment(self, totals: bool) -> str:
        kernel, plan = self.kernel, self.schedule
        what = f"running {kernel.kind}{' of what comes before' * kernel.exclusive}"
        where = f"{kernel.length} positions for each of {kernel.outer or 'one point'}, {plan.along}"
        if totals:
            return f"Totals of {plan.parts} parts of every {plan.along[:-1]}, for a {what} along {where}."
        after = f", from the totals of {plan.parts} parts" if plan.parts > 1 else ""
        return f"{what.capitalize()} along {where}{after}."

    def _carry_of_parts(self) -> list[str]:
        """The combination of the totals of the parts before; every warp (or thread of a column) takes them alike."""
        total = f"{self.carry}({self.total_at('q')})"
        add = f"carry = {self.op('carry', total)};"
        if not self.rows:
            return ["#pragma unroll 8", f"for (int q = 0; q < part; ++q) {add}"]
        other = "__shfl_xor_sync(0xffffffffu, carry, offset)"
        return [f"for (int q = threadIdx.x % 32; q < part; q += 32) {add}", "#pragma unroll",
                f"for (int offset = 16; offset > 0; offset /= 2) carry = {self.op('carry', other)};"]

    def _chunk(self, points: Points, first: Sequence, second: Sequence, totals: bool) -> list[str]:
        kernel, plan = self.kernel, self.schedule
        lanes = f"[{plan.lanes}]" if plan.lanes > 1 else ""
        value = f"value[k]{'[v]' if plan.lanes > 1 else ''}"
        lines = points.declare([*first, *second])
        lines += self.piece(points.read(list(dict.fromkeys([*first, *second]))))
        body: list[str] = []
        text = points.value(kernel.expression, {}, body, "u")
        convert = text if self.inner == self.real else f"{self.inner}({text})"
        lines += [f"{self.inner} value[{plan.pieces}]{lanes};", "#pragma unroll",
                  f"for (int k = 0; k < {plan.pieces}; ++k) {{",
                  *indent(points.per_lane([f"{value} = {self.nothing};"])),
                  "}", *self.piece(points.per_lane([*body, f"{value} = {convert};"]))]
        if totals:
            return [*lines, f"{self.inner} whole = {self.nothing};", "#pragma unroll",
                    f"for (int k = 0; k < {plan.pieces}; ++k) {{",
                    *indent(points.per_lane([f"whole = {self.op('whole', value)};"])), "}",
                    f"carry = {self.op('carry', 'whole')};"]
        lines += self._prefixes(points) if self.rows else self._column_prefixes()
        declared, computed, late = points.write()
        state = "state_before" if kernel.exclusive else "running"
        step = [f"const {self.inner} state_before = running;"] if kernel.exclusive else []
        # Sums add the large part last: one rounding of its size for each element.
        apart = self.rows and kernel.kind == "sum"
        result = self.op("before[k]", state) if apart else state
        step += [f"running = {self.op('running', value)};",
                 f"const {self.real} state = {self.real}({result});" if self.inner != self.real
                 else f"const {self.real} state = {result};", *computed]
        start = [f"{self.inner} running = {self.nothing if apart else 'before[k]'};"] if self.rows else []
        lines += self.piece([*start, *declared, *points.per_lane(step), *late])
        return [*lines, f"carry = {self.op('carry', 'whole')};"]

    def _prefixes(self, points: Points) -> list[str]:
        """Rows: before[k], what stands before each vector of this thread, and whole, the chunk's total."""
        plan, inner = self.schedule, self.inner
        width = min(plan.group, 32)
        steps = [1 << n for n in range(width.bit_length() - 1)]

        def shuffle(name: str, by: int, lane: str) -> list[str]:
            return [f"{{ const {inner} other = __shfl_up_sync(0xffffffffu, {name}, {by}, {width}); "
                    f"if ({lane} >= {by}) {name} = {self.op('other', name)}; }}"]

        def prefixes(name: str, lane: str, count: list[int]) -> list[str]:
            return [line for by in count for line in shuffle(name, by, lane)]

        lane = "t" if plan.group <= 32 else "lane"
        lines = [] if plan.group <= 32 else ["const unsigned lane = t % 32u, warp = t / 32u;"]
        add = points.per_lane([f"total = {self.op('total', 'value[k]' + ('[v]' if plan.lanes > 1 else ''))};"])
        lines += [f"{inner} before[{plan.pieces}], all[{plan.pieces}];", "#pragma unroll",
                  f"for (int k = 0; k < {plan.pieces}; ++k) {{", f"  {inner} total = {self.nothing};", *indent(add),
                  *indent(prefixes("total", lane, steps))]
        if plan.group == 1:
            lines += [f"  before[k] = {self.nothing};", "  all[k] = total;", "}"]
        else:
            lines += [f"  before[k] = __shfl_up_sync(0xffffffffu, total, 1, {width});",
                      f"  if ({lane} == 0) before[k] = {self.nothing};",
                      f"  all[k] = __shfl_sync(0xffffffffu, total, {width - 1}, {width});", "}"]
        lines.append(f"{inner} whole;")
        if plan.group <= 32:
            lines += [f"{self.carry} up_to = carry;", f"whole = {self.nothing};", "#pragma unroll",
                      f"for (int k = 0; k < {plan.pieces}; ++k) {{",
                      f"  before[k] = {inner}({self.op('up_to', 'before[k]')});",
                      f"  up_to = {self.op('up_to', 'all[k]')};",
                      f"  whole = {self.op('whole', 'all[k]')};", "}"]
            return lines
        count = plan.pieces * self.warps  # at most 32 warps of pieces: one warp's shuffles combine them
        lines += [f"if (lane == 0) for (int k = 0; k < {plan.pieces}; ++k) totals[turn][k * {self.warps} + warp] = "
                  "all[k];", "__syncthreads();",
                  f"{inner} part_total = lane < {count} ? totals[turn][lane] : {self.nothing};", "turn ^= 1;",
                  *prefixes("part_total", "lane", [1, 2, 4, 8, 16]),
                  f"whole = __shfl_sync(0xffffffffu, part_total, {count - 1});", "#pragma unroll",
                  f"for (int k = 0; k < {plan.pieces}; ++k) {{",
                  f"  const int place = k * {self.warps} + warp;",
                  f"  {inner} earlier = __shfl_sync(0xffffffffu, part_total, place > 0 ? place - 1 : 0);",
                  f"  if (place == 0) earlier = {self.nothing};",
                  f"  before[k] = {inner}({self.op(self.op('carry', 'earlier'), 'before[k]')});", "}"]
        return lines

    def _column_prefixes(self) -> list[str]:
        """Columns: running, what stands before this thread's positions, and whole, the chunk's total."""
        plan, inner = self.schedule, self.inner
        lines = [f"{inner} whole = {self.nothing};", "#pragma unroll",
                 f"for (int k = 0; k < {plan.pieces}; ++k) whole = {self.op('whole', 'value[k]')};",
                 f"{inner} running = {inner}(carry);"]
        if plan.group == 1:
            return lines
        return [*lines, "totals[turn][threadIdx.x] = whole;", "__syncthreads();", f"whole = {self.nothing};",
                "#pragma unroll", f"for (unsigned q = 0; q < {plan.group}u; ++q) {{",
                f"  const {inner} other = totals[turn][q * {self.width}u + threadIdx.x % {self.width}u];",
                f"  if (q < t) running = {self.op('running', 'other')};",
                f"  whole = {self.op('whole', 'other')};", "}", "turn ^= 1;"]

    def _store_total(self) -> list[str]:
        """The part's total from the threads of the group, through shared memory, in a fixed order."""
        plan = self.schedule
        place = "threadIdx.x"
        lines = [f"__shared__ {self.carry} totals[{plan.threads}];", f"totals[{place}] = carry;"]
        lines += [f"for (unsigned half = {plan.group // 2}; half > 0; half /= 2) {{", "  __syncthreads();",
                  f"  if (t < half) totals[{place}] = "
                  f"{self.op(f'totals[{place}]', f'totals[{place} + half * {1 if self.rows else self.width}u]')};",
                  "}"] if plan.group > 1 else []
        target = f"{self.total_at('part')} = double(totals[{place}]);"
        return [*lines, f"if ({self.active}t == 0) {target}"]
