"""The kernel that multiplies x with itself, moved by each shift, on float64 tensor cores.

A product of these takes 16 rows by 4 positions and 4 positions by 8 columns. Lane 4 c + p has x[c, p] of either side,
and of the rows' side that of two times 8 channels: its own value and one that is moved give 8 x 8 results of one shift,
two of either side those of two. A warp takes 4 neighbouring positions and goes down the lines of an item. At each line
it reads x once for each shift beyond and aside; what it read of its own positions at the lines that it went past is
still in its registers, so that all shifts ahead need nothing else: of 3 x 3 taps 7 products take 5 values. Values that
stand aside come from neighbouring lanes. Lines are read two ahead, and the registers that a line's values are in go
round.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.codegen.cuda.gemm.points import (
    device_function,
    entry_type,
    operands,
    parameter_texts,
    pointers_of,
    value_call,
    wrapped,
)
from kernelwright.codegen.cuda.gram.problem import CHANNELS, LINES, POSITIONS, WARPS, Batch, Correlation, Shift
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus, times

#: Products of a warp, and lines ahead, for which there are registers where four blocks share a multiprocessor.
_MANY_PRODUCTS, _MANY_LINES = 7, 2
#: Lines whose values are in registers at least: one that is multiplied, two that are on their way.
_LEAST_TURNS = 3
_THREADS = 32 * WARPS

Place = tuple[Shift, int]
"""A shift beyond and one aside."""


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of tensor cores, of one shift or two: of one place and two shifts ahead (``own_rows``: the lane's own
    values are the rows), or of two places and one shift ahead."""

    shifts: tuple[Shift, ...]
    own_rows: bool


def _products(batch: Batch) -> list[_Product]:
    """The products of a batch, of two shifts as far as there are two."""
    result, left = [], {}
    for beyond, aside in batch.moved:
        for a in aside:
            some = sorted((d for d in batch.shifts if (d[:-2], d[-1]) == (beyond, a)), key=lambda d: -d[-2])
            result += [_Product(pair, True) for pair in zip(some[::2], some[1::2], strict=False)]
            if len(some) % 2:
                left.setdefault(some[-1][-2], []).append(some[-1])
    return result + [_Product(tuple(some[n:n + 2]), False) for some in left.values() for n in range(0, len(some), 2)]


def products(numbers: Correlation, name: str) -> tuple[str, str]:
    """``NAME_products`` and its launch. Raises ValueError where the grid would exceed 2**31 - 1 blocks."""
    kernel, groups = numbers.kernel, numbers.kernel.groups
    blocks = kernel.batch * groups * len(numbers.slots) * len(numbers.batches) * numbers.blocks**2
    if blocks >= 2**31:
        raise ValueError(f"{name}: {blocks} blocks exceed a grid")
    pointers = parameter_texts(kernel, set(pointers_of(kernel.left)))
    width = CHANNELS**2 * max(len(batch.shifts) for batch in numbers.batches) + CHANNELS
    several = len(numbers.batches) > 1
    slot = f"({times(f'(n * {groups}LL + g)', len(numbers.slots))} + slot[0])"
    cell = plus(times(slot, numbers.blocks**2), times("left", numbers.blocks), "right")
    body = ["unsigned rest = blockIdx.x;", *_taken("g", groups),
            f"const {entry_type(kernel)} n = rest % {kernel.batch}u;", f"rest /= {kernel.batch}u;",
            *_taken("right", numbers.blocks), *_taken("left", numbers.blocks),
            *(_taken("batch", len(numbers.batches)) if several else []),
            f"const int* const slot = {name}_slots[rest];",
            f"__shared__ double met[{WARPS} * {width}];",
            f"double* const result = cells + {times(f'({cell})', numbers.results)};"]
    done = 0
    for number, batch in enumerate(numbers.batches):
        arguments = ", ".join([*(p for _, p in pointers), "n", "g", "left", "right", "slot + 1", "met",
                               f"result + {done}" if done else "result"])
        body.append(f"{f'if (batch == {number}) ' if several else ''}{name}_products{number}({arguments});")
        done += CHANNELS**2 * len(batch.shifts)
    # Those with most to do come first.
    order = sorted(range(len(numbers.slots)), key=lambda number: -numbers.work(numbers.slots[number]))
    slots = [[number, *(end for ends in numbers.cells[slot.cell] for end in ends), slot.first, slot.last]
             for number, slot in zip(order, map(numbers.slots.__getitem__, order), strict=True)]
    few = max(len(_products(batch)) for batch in numbers.batches) <= _MANY_PRODUCTS and numbers.lines <= _MANY_LINES
    text = "\n".join([
        "// Of each slot its number, its cell (positions along each axis from one up to another), some of its items.",
        f"static __device__ const int {name}_slots[][{len(slots[0])}] = {{",
        *(f"  {{{', '.join(map(str, row))}}}," for row in slots), "};",
        *(_BatchText(numbers, batch).text(f"{name}_products{number}", name)
          for number, batch in enumerate(numbers.batches)),
        "// Products of x with itself, moved by each shift, added up in each slot.",
        f"static __global__ void __launch_bounds__({_THREADS}, {4 if few else 3}) {name}_products(",
        f"    {', '.join([*(' '.join(p) for p in pointers), 'double* __restrict__ cells'])}) {{",
        *wrapped(indent(body)), "}", ""])
    arguments = ", ".join([str(blocks), str(_THREADS), "0", "stream", *(p for _, p in pointers), "cells"])
    return text, f'KW_LAUNCH("{name}", {name}_products, {arguments});'


def _taken(name: str, count: int) -> list[str]:
    """Define one of the numbers that a block's number is made of."""
    if count == 1:
        return [f"constexpr int {name} = 0;"]
    return [f"const int {name} = rest % {count}u;", f"rest /= {count}u;"]


class _BatchText:
    """The function that a block takes a batch of shifts with.

    registers: what a lane reads of a line, each the place beyond and aside of 4 neighbours for its channel. reads:
    where the value of each place is, a register and how far aside of it; places that lie closer together than 4
    positions share registers of neighbouring fours. own: the same for the value at no shift, in a register of its own
    where it is of other channels (``apart``).
    """

    def __init__(self, numbers: Correlation, batch: Batch) -> None:
        self.numbers, self.batch, self.kernel = numbers, batch, numbers.kernel
        self.axes, self.outer = len(numbers.axes), len(numbers.axes) - 2
        self.turns = max(_LEAST_TURNS, numbers.lines + 1)
        self.products = _products(batch)
        self.registers: list[Place] = []
        self.reads: dict[Place, tuple[int, int]] = {}
        home: Place = ((0,) * self.outer, 0)
        self.apart = numbers.blocks > 1
        for beyond, aside in batch.moved:
            some = sorted({*aside, 0} if beyond == home[0] and not self.apart else aside)
            first, count = len(self.registers), -(-(some[-1] - some[0] + POSITIONS) // POSITIONS)
            if count < len(some):
                self.registers += [(beyond, some[0] + POSITIONS * n) for n in range(count)]
            else:
                self.registers += [(beyond, a) for a in some]
            for n, a in enumerate(some):
                by = (a - some[0]) if count < len(some) else POSITIONS * n
                self.reads[beyond, a] = first + by // POSITIONS, by % POSITIONS
        if self.apart or home not in self.reads:
            self.own = len(self.registers), 0
            self.registers.append(home)
        else:
            self.own = self.reads[home]

    def text(self, function: str, name: str) -> str:
        """The function's text. name: the kernel's."""
        kernel, batch, axes = self.kernel, self.batch, self.axes
        count, every = len(self.products), CHANNELS**2 * len(batch.shifts)
        sums = every + CHANNELS * self._totals
        line, position = (f"(range[{2 * axis + 1}] - range[{2 * axis}]" for axis in (axes - 2, axes - 1))
        body = [
            "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = lane % 4;",
            f"const int channel = right * {CHANNELS} + lane / 4;",
            *([f"const int own_channel = left * {CHANNELS} + lane / 4;"] if self.apart else []),
            f"const int chunks = {line} + {LINES - 1}) / {LINES};",
            f"const int groups = {position} + {POSITIONS - 1}) / {POSITIONS};",
            f"double products[{count}][4] = {{}};", *(["double total = 0.0;"] if self._totals else []),
            "// What stands so many positions aside, of registers of neighbouring fours.",
            "const auto aside = [&](float near, float next, int by) {",
            "  return __shfl_sync(0xffffffffu, place >= by ? near : next, lane - place + (place + by) % 4);", "};",
            f"for (int item = range[{2 * axes}] + warp; item < range[{2 * axes + 1}]; item += {WARPS}) {{",
            *indent([*self._item(), *self._load(name), *self._take(), *self._walk()]), "}",
            f"double* const own_met = met + warp * {every + CHANNELS};",
            *self._results()]
        to = "e"
        if self._totals:
            body += ["total += __shfl_xor_sync(0xffffffffu, total, 1);",
                     "total += __shfl_xor_sync(0xffffffffu, total, 2);",
                     f"if (place == 0) own_met[{every} + lane / 4] = total;"]
            before = self.numbers.shifts.index(batch.shifts[0])
            behind = CHANNELS**2 * (len(self.numbers.shifts) - before - len(batch.shifts))
            to = f"e < {every} ? e : e + {behind}" if behind else "e"
        body += ["__syncthreads();", f"for (int e = threadIdx.x; e < {sums}; e += {_THREADS}) {{",
                 "  double value = met[e];",
                 f"  for (int w = 1; w < {WARPS}; ++w) value += met[w * {every + CHANNELS} + e];",
                 f"  result[{to}] = value;", "}"]
        pointers = parameter_texts(kernel, set(pointers_of(kernel.left)))
        parameters = [*(" ".join(p) for p in pointers), f"{entry_type(kernel)} n", "int g", "int left", "int right",
                      "const int* range", "double* met", "double* result"]
        said = "; ".join(", ".join(map(str, d[-len(kernel.axes):])) for d in batch.shifts)
        return device_function("\n".join(["The products of a slot, in which one side is moved by", f"{said}."]),
                               "void", function, parameters, body)

    @property
    def _totals(self) -> bool:
        """Whether the batch adds up x itself, too: the one that has it beside x."""
        return (0,) * self.axes in self.batch.shifts

    def _item(self) -> list[str]:
        """Where an item is: places along the axes before lines, lines from one up to another, a lane's position."""
        ends = [f"range[{n}]" for n in range(2 * self.axes)]
        lines = ["int rest = item;", f"const int position = {ends[-2]} + rest % groups * {POSITIONS} + place;",
                 f"const bool inside = position < {ends[-1]};", "rest /= groups;",
                 f"const int first = {ends[-4]} + rest % chunks * {LINES}, last = min(first + {LINES}, {ends[-3]});",
                 *(["rest /= chunks;"] if self.outer else [])]
        for axis in reversed(range(self.outer)):
            size = f"({ends[2 * axis + 1]} - {ends[2 * axis]})"
            lines += [f"const int z{axis} = {ends[2 * axis]} + rest{f' % {size}' if axis else ''};",
                      *([f"rest /= {size};"] if axis else [])]
        return lines

    def _load(self, name: str) -> list[str]:
        """``load(values, line)``: what a lane reads of a line, zeros where no tap reads x and behind the item."""
        numbers, kernel = self.numbers, self.kernel
        left = operands(kernel)[0]
        reads = []
        for number, (beyond, aside) in enumerate(self.registers):
            position = _plus("position", aside)
            outer = [_plus(f"z{axis}", beyond[axis]) for axis in range(self.outer)]
            conditions = ["there", *(_within(z, numbers.read[axis]) for axis, z in enumerate(outer) if beyond[axis]),
                          _within(position, numbers.read[-1])]
            own = self.apart and number == self.own[0]
            channel = "own_channel" if own else "channel"
            if kernel.in_channels % CHANNELS:
                conditions.append(f"{channel} < {kernel.in_channels}")
            place = [*outer, "line", position][-len(kernel.axes):]
            call = value_call(left, name, c=channel, **{f"q{axis}": text for axis, text in enumerate(place)})
            reads.append(f"values[{number}] = {' && '.join(conditions)} ? {call} : 0.0f;")
        far = f" + {numbers.lines}" if numbers.lines else ""
        return [f"const auto load = [&](float (&values)[{len(reads)}], int line) {{",
                f"  const bool there = line < last{far} && {_within('line', numbers.read[-2])};",
                *indent(reads), "};"]

    def _take(self) -> list[str]:
        """``take(line, values, later, own, before1, ...)``: the products of what a line is the moved side of, with the
        lane's own values there and at the lines before."""
        batch, far = self.batch, self.numbers.lines
        names = {place: f"x{n}" for n, place in enumerate((b, a) for b, aside in batch.moved for a in aside)}
        lines = [f"if (line >= last{f' + {far}' * (far > 0)}) return;", "load(later, line + 2);",
                 f"const double here = held({_value(*self.own)});",
                 *(f"const double {x} = held({_value(*self.reads[place])});" for place, x in names.items())]
        lines += ["own = line < last ? here : 0.0;", *(["total += own;"] if self._totals else [])]
        together: dict[str, list[str]] = {}
        for number, product in enumerate(self.products):
            aheads = [d[-2] for d in product.shifts]
            olds = [f"before{ahead}" if ahead else "own" for ahead in aheads]
            moved = [names[d[:-2], d[-1]] for d in product.shifts]
            rows, column = (olds, moved[0]) if product.own_rows else (moved, olds[0])
            some = [*([f"line >= first + {min(aheads)}"] if min(aheads) else []),
                    *([f"line < last{f' + {max(aheads)}' * (max(aheads) > 0)}"] if max(aheads) < far else [])]
            together.setdefault(" && ".join(some), []).append(
                f"kw_mma_float64(products[{number}], {rows[0]}, {rows[1] if len(rows) > 1 else '0.0'}, {column});")
        for condition, calls in together.items():
            lines += [f"if ({condition}) {{", *indent(calls), "}"] if condition else calls
        count = len(self.registers)
        parameters = ["int line", f"const float (&values)[{count}]", f"float (&later)[{count}]", "double& own",
                      *(f"double before{n}" for n in range(1, far + 1))]
        return ["// A lane beyond the cell adds nothing.",
                "const auto held = [&](float value) { return inside ? double(value) : 0.0; };",
                f"const auto take = [&]({', '.join(parameters)}) {{", *indent(lines), "};"]

    def _results(self) -> list[str]:
        """A warp's results to ``own_met``, by shift, own channel and moved one."""
        lines = []
        for number, product in enumerate(self.products):
            for half, shift in enumerate(product.shifts):
                at = CHANNELS**2 * self.batch.shifts.index(shift)
                place, step = ("2 * lane", 1) if product.own_rows else (f"{2 * CHANNELS} * place + lane / 4", CHANNELS)
                lines += [f"own_met[{_plus(place, at + step * i)}] = products[{number}][{2 * half + i}];"
                          for i in (0, 1)]
        return lines

    def _walk(self) -> list[str]:
        """Down the lines of an item."""
        far, turns = self.numbers.lines, self.turns
        calls = [", ".join([_plus("line", turn), f"values{turn}", f"values{(turn + 2) % turns}", f"own{turn}",
                            *(f"own{(turn - n) % turns}" for n in range(1, far + 1))]) for turn in range(turns)]
        return [f"float {', '.join(f'values{turn}[{len(self.registers)}]' for turn in range(turns))};",
                f"double {', '.join(f'own{turn} = 0.0' for turn in range(turns))};",
                "load(values0, first);", "load(values1, first + 1);", "#pragma unroll 1",
                f"for (int line = first; line < last{f' + {far}' * (far > 0)}; line += {turns}) {{",
                *(f"  take({arguments});" for arguments in calls), "}"]


def _value(register: int, by: int) -> str:
    return f"aside(values[{register}], values[{register + 1}], {by})" if by else f"values[{register}]"


def _within(position: str, ends: tuple[int, int]) -> str:
    """Whether a position is one that taps read."""
    return f"unsigned({position}{f' - {ends[0]}' * (ends[0] > 0)}) < {ends[1] - ends[0]}u"


def _plus(name: str, number: int) -> str:
    return name if not number else f"{name} {'+' if number > 0 else '-'} {abs(number)}"
