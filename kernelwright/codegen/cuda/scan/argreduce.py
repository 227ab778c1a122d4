"""The CUDA skeleton of :class:`Extremum`: the first place of a maximum or minimum, and its value.

Meaning, in PyTorch, over ``outer`` x ``length``::

    extremum, place = expression.max(-1)      (min)

Every thread keeps the best of its elements with its place; of equal ones the lower place wins, so that the order
in which threads meet does not matter. Parts of long rows are merged by a second kernel.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.scan.elements import Points, indent, loads_of, moves
from kernelwright.codegen.cuda.scan.walk import AxisWalk, Launch, Schedule, choose, decode, source
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Reduced
from kernelwright.plan.kernels import Extremum

_STATES = {Reduced(0, 0): "best", Reduced(0, 1): "place"}


def generate(kernel: Extremum, name: str, schedule: Schedule | None = None) -> KernelSource:
    """The CUDA text of an extremum with its place, whose host function is ``name``.

    Pointers must be aligned to 16 bytes where four elements are read at once (see `scan.walk`).
    Raises ValueError for a kind that is not known, where the axis is empty and outer points are not, and where a
    grid would exceed 2**31 - 1 blocks.
    """
    if kernel.kind not in ("max", "min") or (kernel.length == 0 and prod(kernel.outer)):
        raise ValueError(f"no {kernel.kind} of {kernel.length} elements")
    writer = _Writer(kernel, name, schedule or choose(kernel)) if prod(kernel.outer) else None
    return source(kernel, name, writer)


class _Writer(AxisWalk[Extremum]):
    """The device kernels of one extremum."""

    def __init__(self, kernel: Extremum, name: str, schedule: Schedule) -> None:
        super().__init__(kernel, name, schedule)
        if schedule.parts > 1:
            self.workspace_bytes = prod(kernel.outer) * schedule.parts * 16

    def device_kernels(self) -> list[Launch]:
        """The kernels, in order."""
        return [self._walk(), self._finish()] if self.schedule.parts > 1 else [self._walk()]

    def _start(self) -> list[str]:
        sign = "-" if self.kernel.kind == "max" else ""
        last = "9223372036854775807LL" if self.position == "long long" else "2147483647"
        return [f"{self.real} best = {self.real}({sign}INFINITY);", f"{self.position} place = {last};"]

    def _take(self, value: str, place: str) -> str:
        return f"kw_take_{self.kernel.kind}(best, place, {value}, {place});"

    def _butterfly(self, width: int) -> list[str]:
        """The best of every ``width`` lanes, in each."""
        return ["#pragma unroll", f"for (int offset = {width // 2}; offset > 0; offset /= 2) {{",
                f"  const {self.real} other = __shfl_xor_sync(0xffffffffu, best, offset);",
                f"  const {self.position} where = __shfl_xor_sync(0xffffffffu, place, offset);",
                f"  {self._take('other', 'where')}", "}"]

    def _walk(self) -> Launch:
        """Each group walks its row, column or part."""
        kernel, plan = self.kernel, self.schedule
        names = [f"i{n}" for n in range(len(kernel.outer))]
        points = Points(kernel, plan.lanes, plan.pieces, self.long, names, states=_STATES)
        body = self.place(names)
        loads = loads_of([kernel.expression])
        body += points.declare([x for x in loads if not moves(x)])
        chunk = [*points.declare(loads), *self.piece(points.read(loads))]
        lines: list[str] = []
        text = points.value(kernel.expression, {}, lines, "u")
        at = "p + v" if plan.lanes > 1 else "p"
        chunk += self.piece(points.per_lane([*lines, self._take(text, at)]))
        body += [*self._start(), f"for ({self.position} base = first; base < last; base += {plan.chunk}) {{",
                 *indent(chunk), "}", *self._merge()]
        where = f"{kernel.length} positions for each of {kernel.outer or 'one point'}, {plan.along}"
        if plan.parts > 1:
            target = self.total_at("part").removeprefix("partial")
            store = [f"partial{target} = best;", f"places{target} = place;"]
            count = prod(kernel.outer) * plan.parts
            body += [f"long long* places = reinterpret_cast<long long*>(partial + {count}LL);",
                     f"if ({self.active}t == 0) {{", *indent(store), "}"]
            comment = f"Place of the {kernel.kind} of {plan.parts} parts of each of {where}."
            return self.launch(0, points, comment, body, self.groups * plan.parts, partial="double")
        body += [f"if ({self.active}t == 0) {{", *indent(self._stores(points)), "}"]
        return self.launch(0, points, f"Place of the {kernel.kind} along {where}.", body, self.groups)

    def _merge(self) -> list[str]:
        """The best of a group, in its first thread."""
        plan = self.schedule
        if plan.group == 1:
            return []
        if self.rows:
            lines = self._butterfly(min(plan.group, 32))
            if plan.group <= 32:
                return lines
            return [*lines, f"__shared__ {self.real} bests[{self.warps}];",
                    f"__shared__ {self.position} where_best[{self.warps}];",
                    "if (t % 32u == 0) bests[t / 32u] = best, where_best[t / 32u] = place;", "__syncthreads();",
                    f"if (t == 0) for (int w = 1; w < {self.warps}; ++w) {self._take('bests[w]', 'where_best[w]')}"]
        cell = f"q * {self.width}u + threadIdx.x"
        return [f"__shared__ {self.real} bests[{plan.threads}];",
                f"__shared__ {self.position} where_best[{plan.threads}];",
                "bests[threadIdx.x] = best, where_best[threadIdx.x] = place;", "__syncthreads();",
                f"if (t == 0) for (unsigned q = 1; q < {plan.group}u; ++q) "
                f"{self._take(f'bests[{cell}]', f'where_best[{cell}]')}"]

    def _stores(self, points: Points) -> list[str]:
        """What is written once per outer point."""
        single = Points(self.kernel, 1, 1, self.long, points.names, points.used, points.vectors, states=_STATES)
        lines = single.declare(loads_of([s.expression for s in self.kernel.stores]))
        declared, computed, late = single.write()
        return [*lines, *declared, *computed, *late]

    def _finish(self) -> Launch:
        """A warp for each row or column merges its parts."""
        kernel, plan = self.kernel, self.schedule
        outer, warps = prod(kernel.outer), plan.threads // 32
        names = [f"i{n}" for n in range(len(kernel.outer))]
        points = Points(kernel, 1, 1, self.long, names, states=_STATES)
        group = "o" if self.rows else f"o / {self.columns}"
        index = f"[((long long)({group}) * {plan.parts} + q) * {self.columns} + o % {self.columns}]"
        index = f"[(long long)o * {plan.parts} + q]" if self.rows else index
        body = [f"const int o = blockIdx.x * {warps} + threadIdx.x / 32, t = threadIdx.x % 32;",
                f"if (o >= {outer}) return;", *decode("o", kernel.outer, names, "int"),
                f"const long long* places = reinterpret_cast<const long long*>(partial + {outer * plan.parts}LL);",
                *self._start(),
                f"for (int q = t; q < {plan.parts}; q += 32) "
                + self._take(f"{self.real}(partial{index})", f"{self.position}(places{index})"),
                *self._butterfly(32), "if (t == 0) {", *indent(self._stores(points)), "}"]
        return self.launch(1, points, "Merge of the parts.", body, -(-outer // warps), partial="const double")
