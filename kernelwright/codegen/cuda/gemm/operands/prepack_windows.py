"""Packing of weights with a window, through a tile: it is read in the order of memory, where windows lie innermost."""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.gemm.operands.prepack_parts import THREADS, WARPS, Packer, Part, quotient, rest
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import Operand, value_call
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.cuda.loops.walk import axis_lines
from kernelwright.codegen.terms import modulo, over
from kernelwright.roofline.multiprocessors import HOPPER

#: Tile of a window: output channels, channels, and entries at once.
_TILE_COLUMNS, _TILE_CHANNELS, _TILE_ENTRIES = 8, 32, 32
#: Blocks up to which each takes fewer entries of the window: of a small weight a block would wait for memory as often
#: as it takes entries (24 of them: 40 microseconds), and who reads every so many elements reads them from a cache.
_FEW_BLOCKS = HOPPER.count


class WindowPacker(Packer):
    """Packs a weight with a window: 8 output channels x 32 channels x entries of it through a tile.

    A block takes all entries, ``at_once`` at a time, or where there are few blocks one of ``entry_runs`` such runs.
    """

    def __init__(self, geometry: Geometry, name: str, operand: Operand) -> None:
        super().__init__(geometry, name, operand)
        self.channels = min(_TILE_CHANNELS, geometry.chunks * CHUNK)
        self.tiles = ceil(self.kernel.out_channels / _TILE_COLUMNS)
        self.parts = ceil(geometry.chunks * CHUNK / _TILE_CHANNELS)
        self.blocks = self.tiles * self.parts * self.kernel.groups
        self.at_once, self.entry_runs = min(self.entries, _TILE_ENTRIES), 1
        if self.blocks < _FEW_BLOCKS:
            self.at_once = min(self.at_once, ceil(self.entries * self.blocks / _FEW_BLOCKS))
            self.entry_runs = ceil(self.entries / self.at_once)
            self.blocks *= self.entry_runs

    def pack(self) -> Part:
        """The function that packs windows, behind the search."""
        geometry, operand, kernel = self.geometry, self.operand, self.kernel
        window, own = self.entries, prod(geometry.window)  # what follows the window's own entries are zeros
        entries = self.at_once
        tiles, parts = self.tiles, self.parts
        # Neighbouring entries fall into neighbouring banks, channels 9 apart: reads of 8 x 4 chunks meet no conflict.
        pitch = self.channels * (_TILE_COLUMNS + 1) + 1
        strides = operand.largest.strides
        sizes = [("column", _TILE_COLUMNS, strides[1]), ("channel", self.channels, strides[2]),
                 ("entry", entries, strides[-1])]
        sizes.sort(key=lambda axis: -abs(axis[2]))  # neighbouring threads read neighbours
        names, extents = [s[0] for s in sizes], [s[1] for s in sizes]
        places = {"o": "first_column + column", "c": "first_channel + channel"}
        within, entry = own, "(first_entry + entry)" if window > entries else "entry"
        for a, size in enumerate(geometry.window):
            within //= size
            text = over(entry, within)
            places[f"k{a}"] = modulo(text, size) if a else text
        conditions = [f"{places['o']} < {kernel.out_channels}", f"{places['c']} < {kernel.in_channels}"]
        if window % entries or own < window:
            conditions.append(f"{entry.strip('()')} < {own}")
        fill = [*axis_lines(names, extents, "f", False, names),
                f"tile[entry * {pitch} + channel * {_TILE_COLUMNS + 1} + column] =",
                f"    {' && '.join(conditions)}",
                f"        ? {value_call(operand, self.name, **places)} : 0.0f;"]
        values = [f"float x[{CHUNK}];", "#pragma unroll", f"for (int e = 0; e < {CHUNK}; ++e)",
                  f"  x[e] = tile[entry * {pitch} + (lane / 8 * {CHUNK} + e) * {_TILE_COLUMNS + 1} + lane % 8];"]
        at = self.place(f"(g * {window} + {entry.strip('()')})")
        guard = f"row_in_bounds && chunk < {geometry.chunks}"
        if self.channels < _TILE_CHANNELS:  # lanes behind the tile
            values = [f"if (!({guard})) break;", *values]
        if window % entries:
            guard += f" && first_entry + entry < {window}"
        total, run = prod(extents), quotient("block", self.entry_runs)
        body = [f"__shared__ float tile[{entries * pitch}];",
                "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;",
                *([f"const int first_entry = {rest('block', self.entry_runs, entries)};"] if self.entry_runs > 1
                  else []),
                f"const int first_channel = {rest(run, parts, _TILE_CHANNELS)};",
                f"const int first_column = {rest(quotient('block', self.entry_runs * parts), tiles, _TILE_COLUMNS)};",
                f"const int g = {quotient('block', self.entry_runs * parts * tiles)};" if kernel.groups > 1
                else "const int g = 0;",
                "const int o = first_column + lane % 8, chunk = first_channel / 8 + lane / 8;",
                f"const bool row_in_bounds = o < {kernel.out_channels};", self.line("o"),
                *(self.multiplier(f"g * {kernel.out_channels} + o", "row_in_bounds") if geometry.scaled else [])]
        loop_lines = ["#pragma unroll 4", f"for (int f = threadIdx.x; f < {total}; f += {THREADS}) {{", *indent(fill),
                      "}",
                      "__syncthreads();",
                      f"for (int entry = warp; entry < {entries}; entry += {WARPS}) {{",
                      *indent([*values, *self.write(at, guard)]), "}"]
        if window > entries and self.entry_runs == 1:
            body += [f"for (int first_entry = 0; first_entry < {window}; first_entry += {entries}) {{",
                     *indent([*loop_lines, "__syncthreads();"]), "}"]
        else:
            body += loop_lines
        behind = ", and zeros behind them" if own < window else ""
        return self.function("pack", f"Packs w: windows of {own} entries through a tile{behind}.", body, set())
