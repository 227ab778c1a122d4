"""Packing of rows: of x, and of the weight of a product without a window."""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.gemm.operands.prepack_parts import FILLED, SKIPPED, WARPS, Packer, Part, quotient, rest
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import (
    Operand,
    as_float,
    coordinates,
    emitter_of,
    straight,
    type_of_rows,
    value_call,
)
from kernelwright.codegen.cuda.gemm.precision.scales import entry_place
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.loops.site import indent

#: Rows of a warp that reads along channels, and steps of a thread whose values it keeps between two passes.
_TALL, _KEPT = 8, 4
#: Blocks from which each finds the scales of its rows by itself.
_ENOUGH = 96
#: Such a block is alone on its multiprocessor as a rule: 1024 rows of 8192 took 49 us so, 55 with two (H100).
_UNROLL = "#pragma unroll 4"
_VALUES = f"float x[{CHUNK}];"
_TAKE = ("#pragma unroll",
         f"for (int e = 0; e < {CHUNK}; ++e) greatest = max(greatest, __float_as_uint(x[e]) & 0x7fffffffu);")


class RowPacker(Packer):
    """Packs x, or the weight of a product without a window: rows are (n, u), or output channels o."""

    def __init__(self, geometry: Geometry, name: str, operand: Operand) -> None:
        super().__init__(geometry, name, operand)
        left = operand.side == "left"
        self.rows = geometry.rows if left else self.kernel.out_channels
        self.row_type = type_of_rows(self.lines)
        strides = operand.largest.strides
        # The axis along which neighbouring rows lie: the last spatial one, else n, or o.
        along = strides[-1 if left and self.kernel.axes else 0 if left else 1]
        channels = operand.domain[2] > 1 and strides[2] and (abs(strides[2]) < abs(along) or along == 0)
        self.tall = _TALL if channels else 32  # rows of a warp
        slots = 32 // self.tall
        chunks = geometry.chunks
        whole = ceil(self.rows / self.tall) * self.kernel.groups
        single = not left or self.kernel.is_matrix
        self.along = single and self.tall == 32  # neighbouring rows have scales of their own
        enough = whole >= _ENOUGH or chunks <= 2 * WARPS * slots
        self.owns = geometry.scaled and single and enough and not self.guessed
        self.step = slots * (WARPS if self.owns else 1)  # chunks of a block at once
        self.block_rows = self.tall * (1 if self.owns else WARPS)
        self.tiles = ceil(self.rows / self.block_rows)
        steps = ceil(chunks / self.step)
        parts = 1 if self.owns else min(steps, max(1, ceil(FILLED / (self.tiles * self.kernel.groups))))
        self.steps = ceil(steps / parts)
        self.parts = ceil(steps / self.steps)
        self.blocks = self.tiles * self.parts * self.kernel.groups
        # Whole chunks are read by vectors where the lanes of a row allow it.
        self.whole = self.kernel.in_channels // CHUNK * CHUNK if channels else 0
        self.emitter = emitter_of(self.kernel, operand.domain, operand.names, [operand.expression], lane_axis=2,
                                  lanes=CHUNK)
        self.value = as_float(self.emitter, operand.expression)
        if not self.whole or not self.emitter.vectors:
            self.whole, self.emitter.vectors = 0, set()

    def pack(self) -> Part:
        """The function that packs rows, behind the search or, where it owns them, with it."""
        geometry, left = self.geometry, self.operand.side == "left"
        body = self._row(self.tiles, self.parts, self.block_rows, [
            *([] if self.owns else [f"warp * {self.tall}"]), f"lane % {self.tall}" if self.tall < 32 else "lane"])
        slots = 32 // self.tall
        slot = [*([f"lane / {self.tall}"] if slots > 1 else []),
                *([f"warp * {slots}" if slots > 1 else "warp"] if self.owns else []),
                *([rest("block", self.parts, self.steps * self.step)] if self.parts > 1 else [])]
        body.append(f"const int first = {' + '.join(slot) or '0'};  // chunk")
        body += self._coordinates()
        place = self._scale_place()
        chunk = [f"const int c = chunk * {CHUNK};", *self._values()]
        loop = f"for (int chunk = first; chunk < {self._end()}; chunk += {self.step})"
        entry = f"(g * {self.entries} + phase)" if self.entries > 1 else "g"
        at = self.place(entry)
        body.append(self.line("row"))
        if self.owns:
            body += self._owned(chunk, loop, place, at)
        else:
            body += self.multiplier(place, "row_in_bounds") if geometry.scaled else []
            step = [_VALUES, *chunk, *self.checked(), *self.write(at, "row_in_bounds")]
            loop_lines = ["#pragma unroll 2", f"{loop} {{", *indent(step), "}"]
            if not left:
                body += [*self._in_bounds(), *loop_lines]
            elif self.entries > 1:
                body += [f"for (int phase = 0; phase < {self.entries}; ++phase) {{",
                         *indent([*define_in_bounds(geometry), *loop_lines]), "}"]
            else:
                body += [*define_in_bounds(geometry), *loop_lines]
            body += self.marked(place)
        how = "along rows" if self.tall == 32 else f"along channels, {self.tall} rows a warp"
        how += ", with the scales of its rows" * self.owns
        return self.function("pack", f"Packs {self.what}: reads {how}.", body, self.emitter.vectors)

    def search(self) -> Part:
        """As of any packer; a lane takes a row where neighbouring rows have scales of their own."""
        if not self.along:
            return super().search()
        kernel, chunks = self.kernel, self.geometry.chunks
        tiles = ceil(self.rows / 32)
        parts = max(1, min(chunks // (2 * WARPS * SKIPPED), ceil(FILLED / (tiles * kernel.groups))))
        part = ceil(chunks / parts)
        parts = ceil(chunks / part)
        begin, end = ("0", str(chunks)) if parts == 1 else \
            (rest("block", parts, part), f"min(first + {part}, {chunks})")
        step_by = str(WARPS)
        body = [*self._row(tiles, parts, 32, ["lane"]), *self._coordinates(), *self._places(),
                f"unsigned* const scale = reinterpret_cast<unsigned*>({self.scales}) + {self._scale_place()};"]
        if self.guessed:
            body += ["const bool in_bounds = row_in_bounds && (!second_run || *scale >= 0x80000000u);",
                     self.stride(step_by)]
            step_by = "step"
        else:
            body.append("const bool in_bounds = row_in_bounds;")
        return self.search_part([
            *body, "__shared__ unsigned rows_greatest[32];", "if (warp == 0) rows_greatest[lane] = 0;",
            "__syncthreads();", f"const int first = {begin};", f"const int last = {end};", "unsigned greatest = 0;",
            "#pragma unroll 2", f"for (int chunk = first + warp; chunk < last; chunk += {step_by}) {{",
            *indent([_VALUES, f"const int c = chunk * {CHUNK};", *self._values(), *_TAKE]), "}",
            "atomicMax(&rows_greatest[lane], greatest);", "__syncthreads();", "if (warp != 0 || !in_bounds) return;",
            *self.found("rows_greatest[lane]"), "atomicMax(scale, found);"], self.emitter.vectors,
            tiles * parts * kernel.groups, parts)

    def _row(self, tiles: int, parts: int, rows: int, within: list[str]) -> list[str]:
        """Define a thread's ``lane`` and ``warp``, and the ``row`` of group ``g`` that it takes: ``within`` says which
        of its tile of ``rows``. Blocks are the parts of the tiles of the groups."""
        cast = "int" if self.row_type == "int" else "(long long)"
        first = [f"{cast}({quotient('block', parts)} % {tiles}u) * {rows}"] if tiles > 1 else []
        return ["const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
                f"const {self.row_type} row = {' + '.join([*first, *within])};",
                f"const int g = {quotient('block', parts * tiles)};" if self.kernel.groups > 1 else "const int g = 0;",
                f"const bool row_in_bounds = row < {self.rows};"]

    def _coordinates(self) -> list[str]:
        """Define the coordinates of a row."""
        return coordinates(self.geometry, self.row_type) if self.operand.side == "left" else ["const int o = row;"]

    def _places(self) -> list[str]:
        """Define the coordinates of the operand's only place of a row along spatial axes."""
        axes = range(len(self.kernel.axes))
        return [f"const int q{a} = u{a};" for a in axes] if self.operand.side == "left" else \
            [f"const int k{a} = 0;" for a in axes]

    def _in_bounds(self) -> list[str]:
        """The same, and ``in_bounds``, whether the operand has the row."""
        return [*self._places(), "const bool in_bounds = row_in_bounds;"]

    def _scale_place(self) -> str:
        """The place of a row's scale, by its coordinates."""
        if self.operand.side == "right":
            return f"g * {self.kernel.out_channels} + o"
        return entry_place(self.geometry, "u")

    def _end(self) -> str:
        """The text of the chunk at which a block ends."""
        if self.parts == 1:
            return str(self.geometry.chunks)
        many = self.steps * self.step
        end = f"({rest('block', self.parts)} + 1) * {many}" if many > 1 else f"{rest('block', self.parts)} + 1"
        return f"min({self.geometry.chunks}, {end})"

    def _values(self) -> list[str]:
        """Fill ``x`` with the 8 values from channel ``c``, zeros outside of the operand."""
        call = value_call(self.operand, self.name, c="c + e")
        single = ["#pragma unroll", f"for (int e = 0; e < {CHUNK}; ++e)",
                  f"  x[e] = in_bounds && c + e < {self.kernel.in_channels} ? {call} : 0.0f;"]
        if not self.whole:
            return single
        lines = [*self.emitter.fixed_lines, *straight(self.emitter), "#pragma unroll",
                 f"for (int v = 0; v < {CHUNK}; ++v) x[v] = {self.value};"]
        return [f"if (in_bounds && c < {self.whole}) {{", *indent(lines), "} else {", *indent(single), "}"]

    def _owned(self, chunk: list[str], loop: str, place: str, at: str) -> list[str]:
        """Find the greatest magnitudes of the block's rows, then pack them."""
        steps = ceil(self.geometry.chunks / self.step)
        kept = steps <= _KEPT
        body = [*self._in_bounds(), f"__shared__ unsigned rows_greatest[{self.tall}];",
                f"if (threadIdx.x < {self.tall}) rows_greatest[threadIdx.x] = 0;", "__syncthreads();",
                "unsigned greatest = 0;"]
        number = f"const int chunk = first + k * {self.step};"
        full = self.geometry.chunks % self.step == 0
        if kept:
            body += [f"float kept[{steps}][{CHUNK}];  // what the second pass packs", "#pragma unroll",
                     f"for (int k = 0; k < {steps}; ++k) {{",
                     *indent([number, f"float (&x)[{CHUNK}] = kept[k];", *chunk, *_TAKE]), "}"]
        else:
            body += [_UNROLL, f"{loop} {{", *indent([_VALUES, *chunk, *_TAKE]), "}"]
        body += [*(["#pragma unroll", f"for (int offset = {self.tall}; offset < 32; offset *= 2)",
                    "  greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));"]
                   if self.tall < 32 else []),
                 f"{f'if (lane < {self.tall}) ' if self.tall < 32 else ''}atomicMax(&rows_greatest[lane], greatest);",
                 "__syncthreads();",
                 f"float factor = __uint_as_float({self.name}_scale(rows_greatest[lane % {self.tall}]));",
                 "if (factor == 0.0f) factor = 1.0f;  // nothing but zeros",
                 f"if (row_in_bounds && threadIdx.x < {self.tall}) {self.scales}[{place}] = factor;",
                 f"const float scale = {self.name}_inverse(factor);"]
        if kept:
            guard = "row_in_bounds" if full else f"row_in_bounds && chunk < {self.geometry.chunks}"
            return [*body, "#pragma unroll", f"for (int k = 0; k < {steps}; ++k) {{",
                    *indent([number, f"const float (&x)[{CHUNK}] = kept[k];", *self.write(at, guard)]), "}"]
        return [*body, _UNROLL, f"{loop} {{", *indent([_VALUES, *chunk, *self.write(at, "row_in_bounds")]), "}"]


def define_in_bounds(geometry: Geometry) -> list[str]:
    """Define the input's coordinates q0, q1, ... of a row in ``phase``, and whether the input has them."""
    lines, conditions = [], ["row_in_bounds"]
    for a, (axis, lead) in enumerate(zip(geometry.kernel.axes, geometry.leads, strict=True)):
        within = prod(geometry.input_phases[a + 1:])
        text = f"u{a} - {lead}" if lead else f"u{a}"
        if axis.in_stride > 1:
            phase = f"phase / {within}" if within > 1 else "phase"
            text = f"({text})" if lead else text
            text += f" * {axis.in_stride} + {phase}" + (f" % {axis.in_stride}" if a else "")
        lines.append(f"const int q{a} = {text};")
        conditions.append(f"unsigned(q{a}) < {axis.in_size}u")
    return [*lines, f"const bool in_bounds = {' && '.join(conditions)};"]
