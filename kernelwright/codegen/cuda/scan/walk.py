"""Kernels along one axis: how threads lie over rows or columns, where they read, and the host function.

Scans (`scan.generate`) and the places of extrema (`scan.argreduce`) share this. Along rows (the axis is contiguous) a
warp, or a part of it, or a block walks its row in chunks; along columns neighbouring threads own neighbouring
columns, and threads of one column take consecutive positions. Where there are too few rows for the device, each is
cut into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Generic, TypeVar

from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.scan.elements import Points, indent, loads_of, vectorises
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Index
from kernelwright.plan.kernels import Extremum, Scan

#: Rows (or blocks of columns) that fill a device; with fewer, they are cut into parts.
_FILLED = 264
_MOST_COLUMN_PARTS = 64
_WARP_ROW = 1024
_SMALL_PART = 8192


@dataclass(frozen=True, slots=True)
class Schedule:
    """How threads lie over a scan.

    along: "rows" or "columns". group: threads of one row or column. threads: of a block. lanes, pieces: a thread
    holds ``pieces`` vectors of ``lanes`` positions (rows), or ``pieces`` consecutive positions (columns).
    parts: blocks per row or column; part: positions of each.
    """

    along: str
    group: int
    threads: int
    lanes: int
    pieces: int
    parts: int
    part: int

    @property
    def chunk(self) -> int:
        """Positions that a group takes at once."""
        return self.group * self.lanes * self.pieces


def guide(kernel: Scan | Extremum) -> Index:
    """The access that tells how the data lie: a store of a scan, else the load that moves along most axes."""
    loads = [n.index for n in loads_of([kernel.expression])]
    indices = [s.index for s in kernel.stores] + loads if isinstance(kernel, Scan) else loads
    return max(indices, key=lambda i: sum(map(bool, i.strides)), default=kernel.stores[0].index)


def choose(kernel: Scan | Extremum) -> Schedule:
    """The schedule of a kernel without empty axes."""
    strides = guide(kernel).strides
    length = kernel.length
    if not kernel.outer or abs(strides[-1]) <= abs(strides[-2]) or kernel.outer[-1] < 4:
        lanes = 4 if vectorises(kernel) else 1
        vectors, rows = ceil(length / lanes), prod(kernel.outer)
        if length <= _WARP_ROW:
            group = min(32, 1 << (vectors - 1).bit_length())
            return Schedule("rows", group, 256, lanes, min(4, ceil(vectors / group)), 1, length)
        threads = 256 if lanes == 4 and vectors > 512 else 128
        parts, part = _cut(rows, length, _SMALL_PART)
        return Schedule("rows", threads, threads, lanes, 32 // (threads // 32), parts, part)
    columns = kernel.outer[-1]
    width = min(32, 1 << (columns - 1).bit_length())
    blocks = prod(kernel.outer[:-1]) * ceil(columns / width)
    if columns >= 128 and blocks >= 8 * 4 * _FILLED:
        width = 256  # columns enough: no exchange
    group = min(256 // width, 1 << max(0, ceil(length / 8) - 1).bit_length())
    parts, part = _cut(blocks, length, max(8 * group * 4, ceil(length / _MOST_COLUMN_PARTS)))
    return Schedule("columns", group, group * width, 1, 8, parts, part)


def _cut(rows: int, length: int, least: int) -> tuple[int, int]:
    """Parts of a row, and the positions of each (a multiple of four), of at least ``least``."""
    if rows >= _FILLED or length < 2 * least:
        return 1, length
    wanted = min(ceil(2 * _FILLED / rows), length // least)
    part = ceil(ceil(length / wanted) / 4) * 4
    return ceil(length / part), part


@dataclass(frozen=True, slots=True)
class Launch:
    """A device kernel: its text, its name, its launch and its arguments."""

    text: str
    name: str
    grid: int
    threads: int
    arguments: list[str]


def source(kernel: Scan | Extremum, name: str, writer: AxisWalk | None) -> KernelSource:
    """The definition: device kernels, then the host function, which does nothing without a ``writer``.

    Raises ValueError where a grid would exceed 2**31 - 1 blocks.
    """
    inputs = [f"in{n}" for n in range(len(kernel.input_dtypes))]
    outputs = [f"out{n}" for n in range(len(kernel.output_dtypes))]
    lines = [head(name, kernel.input_dtypes, kernel.output_dtypes)]
    texts, size = [], 0
    if writer is None:
        lines += [f"  (void){n};" for n in (*inputs, *outputs, "workspace", "stream")]
    else:
        launches = writer.device_kernels()
        vectors = [n for n in (*inputs, *outputs) if n in writer.vectors]
        lines += [f"  {line}" for line in alignment_check(name, vectors)]
        size = writer.workspace_bytes
        lines.append("  double* partial = static_cast<double*>(workspace);" if size else "  (void)workspace;")
        for launch in launches:
            if launch.grid >= 2**31:
                raise ValueError(f"{name}: {launch.grid} blocks exceed a grid")
            texts.append(launch.text)
            lines.append(f'  KW_LAUNCH("{name}", {launch.name}, {launch.grid}, {launch.threads}, 0, stream, '
                         f'{", ".join(launch.arguments)});')
    definition = "\n".join([*texts, *lines, "  return nullptr;", "}", ""])
    return KernelSource(name, definition, size, ("check", *sorted(snippets_of(definition))))


Record = TypeVar("Record", Scan, Extremum)


class AxisWalk(Generic[Record]):
    """How the threads of one kernel walk the axis. Subclasses write what they do there."""

    def __init__(self, kernel: Record, name: str, schedule: Schedule) -> None:
        self.kernel, self.name, self.schedule = kernel, name, schedule
        self.long = is_long(kernel.as_loop)
        self.vectors: set[str] = set()
        self.rows = schedule.along == "rows"
        self.real = C_TYPES[kernel.compute]
        self.others = kernel.outer if self.rows else kernel.outer[:-1]
        self.columns = 1 if self.rows else kernel.outer[-1]
        self.width = schedule.threads // schedule.group  # rows or columns of a block
        self.warps = schedule.threads // 32
        self.workspace_bytes = 0

    def device_kernels(self) -> list[Launch]:
        """The kernels, in order."""
        raise NotImplementedError

    @property
    def position(self) -> str:
        """The C type of positions along the axis."""
        return "long long" if self.long or self.kernel.length + self.schedule.chunk >= 2**31 else "int"

    @property
    def groups(self) -> int:
        """Blocks of one part."""
        rows = prod(self.others)
        return ceil(rows / self.width) if self.rows else rows * ceil(self.columns / self.width)

    def launch(self, number: int, points: Points, comment: str, body: Sequence[str], grid: int, *, partial: str = ""
               ) -> Launch:
        """A device kernel around ``body``. ``partial``: the type of its pointer to the parts' results, if it has."""
        self.vectors |= points.vectors
        arguments = sorted(points.used, key=lambda n: (n[0] == "o", int(n.removeprefix("in").removeprefix("out"))))
        types = [self._parameter(n) for n in arguments]
        if partial:
            arguments.append("partial")
            types.append(f"{partial}* __restrict__ partial")
        name, threads = f"k{number}_{self.name}", self.schedule.threads
        text = "\n".join([f"// {comment}", f"static __global__ void __launch_bounds__({threads}) {name}(",
                          "    " + ", ".join(types) + ") {", *indent(body), "}", ""])
        return Launch(text, name, grid, threads, arguments)

    def _parameter(self, name: str) -> str:
        number = int(name.removeprefix("in").removeprefix("out"))
        if name.startswith("in"):
            return f"const {C_TYPES[self.kernel.input_dtypes[number]]}* __restrict__ {name}"
        return f"{C_TYPES[self.kernel.output_dtypes[number]]}* __restrict__ {name}"

    def place(self, names: list[str]) -> list[str]:
        """Which row or column a thread works on, and where: t of its group, first and last position."""
        kernel, plan = self.kernel, self.schedule
        wide = "long long" if self.long or prod((*kernel.outer, plan.parts)) >= 2**31 - 2**20 else "int"
        position = self.position
        lines = [f"const {wide} block = blockIdx.x;"]
        group = "block"
        if plan.parts > 1:
            lines += [f"const int part = block % {plan.parts};"]
            group = f"(block / {plan.parts})"
            lines += [f"const {position} first = {position}(part) * {plan.part};",
                      f"const {position} last = first + {plan.part} < {kernel.length} ? first + {plan.part} : "
                      f"{kernel.length};"]
        else:
            lines += [f"const {position} first = 0, last = {kernel.length};"]
        if self.rows:
            lines.append(f"const unsigned t = threadIdx.x % {plan.group}u;" if self.width > 1
                         else "const unsigned t = threadIdx.x;")
            row = f"{group} * {self.width} + {wide}(threadIdx.x / {plan.group}u)" if self.width > 1 else group
            total = prod(self.others)
            if total % self.width:
                lines += [f"const bool active = {row} < {total};", f"const {wide} o = active ? {row} : 0;"]
            else:
                lines.append(f"const {wide} o = {row};")
            return [*lines, *decode("o", self.others, names, wide)]
        tiles = ceil(self.columns / self.width)
        lines += [f"const unsigned t = threadIdx.x / {self.width}u;" if plan.group > 1 else "const unsigned t = 0;",
                  f"const {wide} o = {group if tiles == 1 else f'{group} / {tiles}'};"]
        tile = f"({group} % {tiles}) * {self.width} + " if tiles > 1 else ""
        column = f"{tile}{wide}(threadIdx.x % {self.width}u)"
        if self.columns % self.width:
            lines += [f"const bool active = {column} < {self.columns};",
                      f"const {wide} {names[-1]} = active ? {column} : 0;"]
        else:
            lines.append(f"const {wide} {names[-1]} = {column};")
        if not self.others:
            lines.append("(void)o;")
        return [*lines, *decode("o", self.others, names[:-1], wide)]

    @property
    def active(self) -> str:
        """The condition of threads that have a row or column, with ' && ', or nothing."""
        count = prod(self.others) if self.rows else self.columns
        return "active && " if count % self.width else ""

    def total_at(self, part: str) -> str:
        """Where a part's total stands."""
        if self.rows:
            return f"partial[(long long)o * {self.schedule.parts} + {part}]"
        column = f"i{len(self.kernel.outer) - 1}"
        return f"partial[((long long)o * {self.schedule.parts} + {part}) * {self.columns} + {column}]"

    def piece(self, lines: Sequence[str]) -> list[str]:
        """``lines`` for every piece k that starts before ``last``, at position p."""
        plan = self.schedule
        step = f"(k * {plan.group} + t) * {plan.lanes}" if self.rows else f"t * {plan.pieces} + k"
        if plan.lanes == 1 and self.rows:
            step = f"k * {plan.group} + t"
        position = self.position
        return ["#pragma unroll", f"for (int k = 0; k < {plan.pieces}; ++k) {{",
                f"  const {position} p = base + {position}({step});",
                f"  if ({self.active}p < last) {{", *indent(lines, 4), "  }", "}"]


def decode(flat: str, sizes: Sequence[int], names: Sequence[str], c_type: str) -> list[str]:
    """Definitions of the axes' indices from a flat position."""
    lines = []
    for axis, name in enumerate(names):
        inner = prod(sizes[axis + 1:])
        text = flat if inner == 1 else f"{flat} / {inner}"
        lines.append(f"const {c_type} {name} = {text + f' % {sizes[axis]}' if axis else text};")
    return lines
