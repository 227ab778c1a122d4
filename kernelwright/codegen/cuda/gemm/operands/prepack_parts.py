"""What the parts of a contraction's packing share: the device functions around them, and the search for scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from kernelwright.codegen.cuda.expressions import C_TYPES, is_long
from kernelwright.codegen.cuda.gemm.points import (
    Operand,
    PointEmitter,
    as_float,
    device_function,
    guessed,
    parameter_texts,
    pointers_of,
    straight,
)
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.normal_form import arranged
from kernelwright.codegen.cuda.loops.site import Site, indent
from kernelwright.codegen.cuda.loops.walk import axis_lines
from kernelwright.plan.kernels import LoopKernel, Reduction
from kernelwright.roofline.multiprocessors import HOPPER

THREADS = 256
WARPS = THREADS // 32
#: Blocks that fill a device: parts of rows are made until there are so many.
FILLED = HOPPER.count * 8
#: Whether something has to be packed again, as a scale was wrong, or is that of nothing but zeros.
REPACK = "repack"
#: Elements of a part of one row in the search for scales, at least.
_LEAST_PART = 4096
#: Where scales are guessed: one of so many elements is looked at, fewer where that would be more than _LOOKED of all,
#: and so many powers of two are left free above the greatest of them.
SKIPPED, _LOOKED, _ROOM = 16, 1 << 21, 4


def looked_at(elements: int) -> int:
    """Of how many elements one is looked at where the scales of an operand of so many are guessed."""
    return max(SKIPPED, elements // _LOOKED)


@dataclass(frozen=True, slots=True)
class Part:
    """A device function that packs an operand, or finds its scales: ``blocks`` of THREADS threads call it with
    ``arguments`` and the block's number, and where scales are ``guessed`` with whether it is the second time. Pointers
    in ``vectors`` are aligned to 16 bytes. ``backwards``: the last blocks come first."""

    text: str
    name: str
    blocks: int
    arguments: tuple[tuple[str, str], ...]
    vectors: frozenset[str]
    guessed: bool
    backwards: bool = False


class Packer:
    """What packers of either kind share. ``owns``: whether a block finds the scales of its rows by itself; ``blocks``:
    the number of them; ``searched``: the operand among whose elements scales are looked for, of as many scales."""

    owns = False
    blocks = 0

    def __init__(self, geometry: Geometry, name: str, operand: Operand) -> None:
        self.geometry, self.name, self.operand, self.searched = geometry, name, operand, operand
        self.kernel = geometry.kernel
        self.scales = f"{operand.side}_scales"
        self.what = "x" if operand.side == "left" else "w"
        left = operand.side == "left"
        self.guessed = guessed(geometry, operand.side)
        self.term = (geometry.left_term_bytes if left else geometry.right_term_bytes) // ROW_BYTES
        self.lines = geometry.allocated_rows if left else geometry.allocated_columns
        self.together = geometry.left_block if left else geometry.right_block
        self.entries = prod(geometry.input_phases) if left else geometry.entries

    def pack(self) -> Part:
        """The function that packs."""
        raise NotImplementedError

    def function(self, task: str, comment: str, body: Sequence[str], vectors: set[str], *, blocks: int = 0) -> Part:
        """A part around ``body``, which uses ``block``. ``blocks``: of a part that does not pack."""
        pointers = parameter_texts(self.kernel, set(pointers_of(self.operand.expression)))
        if self.geometry.scaled:
            pointers.append(("float* __restrict__", self.scales))
        if not blocks:
            pointers.append(("unsigned short* __restrict__", self.operand.side))
            pointers += [("unsigned*", REPACK)] * self.guessed
        name = f"{self.name}_{self.operand.side}_{task}"
        numbers = ["unsigned block", *(["bool second_run"] if self.guessed else [])]
        text = device_function(comment, "void", name, [*(" ".join(p) for p in pointers), *numbers], body)
        # The core begins with the first rows of x: what is packed last is still in the cache.
        backwards = task == "pack" and self.operand.side == "left"
        return Part(text, name, blocks or self.blocks, tuple(pointers), frozenset(vectors), self.guessed, backwards)

    def search(self) -> Part:
        """The function that finds the greatest magnitudes of rows, cut into parts, in the order of memory."""
        kernel, operand = self.kernel, self.searched
        domain = operand.domain
        loop = LoopKernel(domain[:2], domain[2:], (Reduction("max", operand.expression),), (), (),
                          kernel.input_dtypes, ())
        strides = operand.largest.strides
        row = sorted((a for a in range(2, len(domain)) if domain[a] > 1 and a not in operand.apart),
                     key=lambda a: (-abs(strides[a]), a))
        loop = arranged(loop, [a for a in operand.apart if domain[a] > 1], row)
        lanes = 4 if loop.row and loop.row[-1] % 4 == 0 else 1
        axes = tuple(range(len(loop.outer), len(loop.outer) + len(loop.row)))
        site = Site(loop.outer, loop.row, "float", is_long(loop), axes, axes[-1] if lanes > 1 else None, lanes)
        emitter = PointEmitter(site, [Buffer(f"in{n}", C_TYPES[t]) for n, t in enumerate(kernel.input_dtypes)])
        value = as_float(emitter, loop.reductions[0].expression)
        emitter.lane_lines.append(f"greatest = max(greatest, __float_as_uint({value}) & 0x7fffffffu);")
        step = straight(emitter)
        rows, count = prod(loop.outer), prod(loop.row)
        parts = max(1, min(count // _LEAST_PART, ceil(FILLED / rows)))
        part = ceil(ceil(count / parts) / 4) * 4
        parts = ceil(count / part)
        wide, cast = ("long long", "(long long)") if count + THREADS * lanes >= 2**31 else ("int", "int")
        shift = f" * {lanes}" if lanes > 1 else ""
        names = [f"r{n}" for n in range(len(loop.row))]
        row = f"(block / {parts}u)" if parts > 1 else "block"
        outer = [f"i{n}" for n in range(len(loop.outer))]
        begin, end = ("0", str(count)) if parts == 1 else \
            (f"{cast}(block % {parts}u) * {part}", f"min(first + {part}, {cast}({count}))")
        thread, step_by = f"threadIdx.x{shift}", str(THREADS * lanes)
        body = [f"unsigned* const scale = reinterpret_cast<unsigned*>({self.scales}) + {row};"]
        if self.guessed:
            # Where a part is looked at, it is runs of a warp all over it: every channel of x has some.
            run = 32 * lanes
            apart = max(run, min(looked_at(rows * count) * run, part // WARPS // run * run))
            body += ["if (second_run && *scale < 0x80000000u) return;",
                     f"const int apart = second_run ? {run} : {apart};"]
            thread, step_by = f"threadIdx.x / 32 * apart + threadIdx.x % 32{shift}", f"{WARPS} * apart"
        body += [*axis_lines(outer, loop.outer, row, False, [*emitter.fixed_lines, *step]),
                 *emitter.fixed_lines, f"const {wide} first = {begin};", f"const {wide} last = {end};",
                 "unsigned greatest = 0;", "#pragma unroll 4",
                 f"for ({wide} p = first + {thread}; p < last; p += {step_by}) {{",
                 *indent([*axis_lines(names, loop.row, "p", wide == "long long", step), *step]), "}",
                 "#pragma unroll",
                 "for (int offset = 16; offset > 0; offset /= 2)",
                 "  greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));",
                 *self.found("greatest"), "if (threadIdx.x % 32 == 0) atomicMax(scale, found);"]
        return self.search_part(body, emitter.vectors, rows * parts, parts)

    def stride(self, step: str) -> str:
        """Define ``step``, by which a search that may look at a part goes on."""
        return f"const int step = second_run ? {step} : {step} * {SKIPPED};"

    def found(self, greatest: str) -> list[str]:
        """Define ``found``, the scale for a greatest magnitude, with room where it is a guess."""
        if not self.guessed:
            return [f"const unsigned found = {self.name}_scale({greatest});"]
        return [f"unsigned found = {self.name}_scale({greatest});", "if (second_run) found |= 0x80000000u;",
                f"else if (found != 0u && found < 0x7f800000u) found += {_ROOM}u << 23;"]

    def search_part(self, body: Sequence[str], vectors: set[str], blocks: int, parts: int) -> Part:
        """The part of a search; rows are cut into ``parts``."""
        of = "(g, o)" if self.operand.side == "right" else "(entry, g)" if self.kernel.entry_axes else "(n, g)"
        how = f", from {parts} parts of each" if parts > 1 else ""
        comment = f"Scales of {self.what} per {of}{how}."
        if self.guessed:
            comment += f"\nThe first time a part of the elements is looked at, and room is left for {1 << _ROOM} " \
                       "times as much. A scale with a\nsign was wrong: all its elements are looked at the second time."
        return self.function("greatest", comment, body, vectors, blocks=blocks)

    def multiplier(self, place: str, row_in_bounds: str) -> list[str]:
        """Define ``scale``, what this thread's elements are multiplied by: 0 for operands that are not finite."""
        if not self.guessed:
            return [f"float factor = {row_in_bounds} ? {self.scales}[{place}] : 1.0f;",
                    f"if (factor == 0.0f) {self.scales}[{place}] = factor = 1.0f;  // nothing but zeros",
                    f"const float scale = {self.name}_inverse(factor);"]
        return [f"const unsigned bits = {row_in_bounds} ? __float_as_uint({self.scales}[{place}]) : 0x3f800000u;",
                "if (second_run && bits < 0x80000000u) {  // the scale was right",
                f"  if (bits == 0u) {self.scales}[{place}] = 1.0f;  // nothing but zeros", "  return;", "}",
                "const float factor = __uint_as_float(bits & 0x7fffffffu);",
                f"const float scale = factor > 0.0f ? {self.name}_inverse(factor) : 1.0f;",
                "// The greatest magnitude that the scale is good for.",
                "const float most = fminf(factor * 0x1p15f, 0x1.fffffep127f);", "bool too_large = false;"]

    def checked(self) -> list[str]:
        """Remember whether a guessed scale was wrong for the values ``x``."""
        if not self.guessed:
            return []
        return ["#pragma unroll", "for (int e = 0; e < 8; ++e) too_large = too_large || !(fabsf(x[e]) <= most);"]

    def marked(self, place: str) -> list[str]:
        """Mark a guessed scale that was wrong, and say so where one is that of zeros, too."""
        if not self.guessed:
            return []
        return ["if (too_large && !second_run)",
                f"  atomicOr(reinterpret_cast<unsigned*>({self.scales}) + {place}, 0x80000000u);",
                f"if ((too_large || bits == 0u) && !second_run) *{REPACK} = 1u;"]

    def line(self, row: str) -> str:
        """Define ``line``, where the first chunk of a row is, from its entry on, in rows of 16 bytes."""
        if self.together == self.lines:
            return f"const long long line = {row};"
        chunks = self.geometry.chunks * self.together
        return f"const long long line = {row} / {self.together} * {chunks}LL + {row} % {self.together};"

    def place(self, entry: str) -> str:
        """Where ``chunk`` of a row is, in rows of 16 bytes, with ``line`` of the row; where two chunks are mixed, the
        first of them."""
        whole = self.geometry.chunks * self.lines
        if self.geometry.mixes:
            return f"{entry} * {whole}LL + chunk / 2 * {2 * self.together}LL + line"
        return f"{entry} * {whole}LL + chunk * {self.together}LL + line"

    def write(self, at: str, guard: str = "") -> list[str]:
        """Write the 8 values ``x`` as element ``at`` of the packed operand, by rows of 16 bytes."""
        scale = ", scale" if self.geometry.scaled else ""
        term = f", {self.term}LL" if self.geometry.terms == 2 else ""
        mixed = f", chunk % 2, {self.together}LL" * self.geometry.mixes
        call = f"{self.name}_write({self.operand.side}, {at}{term}, x{scale}{mixed});"
        return [f"if ({guard}) {call}"] if guard else [call]


def quotient(text: str, size: int) -> str:
    """``text / size`` of an unsigned number."""
    return text if size == 1 else f"{text} / {size}u"


def rest(text: str, size: int, factor: int = 1) -> str:
    """``text % size * factor`` of an unsigned number, as an int."""
    return "0" if size == 1 else f"int({text} % {size}u)" + (f" * {factor}" if factor > 1 else "")
