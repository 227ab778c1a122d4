"""CUDA text of a GEMM's epilogue: ``NAME_finish``, which finishes the sums of an epilogue subtile or of a tile.

A core stages SUBTILE_ROWS x `subtile_columns` sums in shared memory, and 128 threads call ``NAME_finish``; or it calls
it with the registers that hold the sums of a warpgroup's tile. Which thread holds which element is a thread-value
layout: of registers `epilogue.accumulator_layout`, of subtiles the tables of each operation::

    operation            from a subtile                          from wgmma's registers
    store                store                                   store_from_registers
      in whole sectors   store_overlapped, store_aligned
    reduce channels      reduce_channels                         reduce_channels_in_registers
    reduce positions     reduce_positions                        reduce_positions_in_registers
    pool                 pool

`row_buffered.epilogue` has the same operations on registers whose rows are channels. What a loop over elements does not
change is computed before it, and what depends on columns alone once for a tile (`epilogue.column_table`).

Sums are multiplied by the scales of both operands: the fast path. Where that could leave the range of float32 on the
way, or an operand is not finite (an infinite scale), the thread comes back to its elements after the loop: it rescales
the sum, or computes it again from the operands themselves, by float32 multiply-adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.codegen.cuda.gemm.epilogue.pool import Pool, refusal
from kernelwright.codegen.cuda.gemm.epilogue.positions import StoreRuns
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels import ReduceChannels
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels_in_registers import ReduceChannelsInRegisters
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import ReducePositions
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import (
    ReducePositionsInRegisters,
    in_registers,
)
from kernelwright.codegen.cuda.gemm.epilogue.store import StoreChannels, StorePairs, StorePositions, in_pairs
from kernelwright.codegen.cuda.gemm.epilogue.store_aligned import StoreAligned
from kernelwright.codegen.cuda.gemm.epilogue.store_from_registers import StoreFromRegisters
from kernelwright.codegen.cuda.gemm.epilogue.store_overlapped import StoreOverlapped
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    EpilogueOperation,
    holds_channels,
    operand_pointers,
    reduced_channels_fastest,
    stores_channels,
    subtile_columns,
    write_stores,
)
from kernelwright.codegen.cuda.gemm.points import (
    PointEmitter,
    device_function,
    emitter_of,
    parameter_texts,
    straight,
    typed_axes,
)
from kernelwright.codegen.cuda.gemm.precision.recompute import recompute_function
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS, Geometry
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.math_rounded import of_rounded
from kernelwright.plan.contraction.record import ROUNDED_SCHEMES, Contraction

__all__ = ["SUBTILE_ROWS", "Epilogue", "epilogue", "holds", "rescaled_functions", "subtile_columns"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``NAME_finish`` and what it asks of its caller.

    ``definitions`` come behind those of packing, whose functions they use. ``parameters`` are (C type, name) of the
    pointers that it takes first, in this order. Element (row, column) of a subtile is ``sums[row * row_stride +
    column * column_stride]``, ``floats`` is the subtile's size, and it is aligned to 16 bytes. ``support`` names the
    snippets that the text uses. Inputs and outputs in ``vectors`` are aligned to 16 bytes.

    Where ``column_floats`` is not 0, what it needs of columns comes from a table of that size, aligned to 16 bytes:
    128 threads call ``NAME_columns(column_parameters, table, thread, group, first column of the tile)``, and
    ``NAME_finish`` takes the table behind the subtile (`epilogue.column_table`). Where ``entry_rows``, the rows of
    an entry of the batch, is not 0, the table is of entries, too, and its last argument the one of the tile's first
    row. With ``row_scales`` it then takes ``NAME_row_scale(left_scales, thread, group, first_row)``.

    A subtile has ``columns`` columns and ``height`` times SUBTILE_ROWS rows. With ``places`` it has them where
    ``NAME_row_place`` says (`epilogue.store_overlapped`), at ``place + column * column_stride``.

    Where the kernel has reductions over positions, ``NAME_finish`` writes to the subtile, and its 128 threads meet in
    it at a barrier: those of a block whose ``threadIdx.x / 128`` is the same, which is why all of them call it equally
    often.

    With ``in_registers`` it takes the sums of a warpgroup's whole tile, as the core on wgmma has them, before the
    subtile, which is room for what its warps say to each other (`epilogue.reduce_positions_in_registers`), or for
    nothing (`epilogue.store_from_registers`).
    """

    definitions: str
    parameters: tuple[tuple[str, str], ...]
    row_stride: int
    column_stride: int
    floats: int
    support: frozenset[str]
    vectors: frozenset[str]
    column_floats: int
    column_parameters: tuple[tuple[str, str], ...]
    row_scales: bool
    columns: int
    height: int = 1
    places: bool = False
    in_registers: bool = False
    entry_rows: int = 0


def holds(kernel: Contraction, tiling: Tiling) -> bool:
    """Whether subtiles hold what the kernel reduces: all of its output channels, not of two phases where these are
    neighbours in the output, or whole windows of positions; and two lines for windows alone."""
    if kernel.reductions and tiling.parities == 2 and reduced_channels_fastest(kernel):
        return False
    return holds_channels(kernel, tiling) and not refusal(kernel, tiling)


def operation(geometry: Geometry) -> type[EpilogueOperation]:
    """What finishes the sums of a tile."""
    kernel, tiling = geometry.kernel, geometry.tiling
    if tiling.from_registers:
        return ReduceChannelsInRegisters if kernel.reductions else StoreFromRegisters
    if tiling.sector_aligned:
        return StoreAligned
    if tiling.overlap:
        return StoreOverlapped
    if kernel.position_reductions:
        return ReducePositionsInRegisters if in_registers(geometry) else ReducePositions
    if kernel.pools:
        return Pool
    if kernel.reductions:
        return ReduceChannels
    if stores_channels(kernel) and tiling.parities == 1:
        return StoreChannels
    return StorePairs if in_pairs(geometry) else StorePositions


def epilogue(geometry: Geometry, name: str, original: Contraction | None = None) -> Epilogue:
    """The text that finishes subtiles of sums under ``geometry.tiling``. original: the kernel before taps were folded.

    Raises ValueError where a subtile does not hold all channels that the kernel reduces, and for pools and reductions
    over positions that it does not take.
    """
    kernel = geometry.kernel
    if not holds_channels(kernel, geometry.tiling):
        raise ValueError(f"{name}: no reductions of {kernel.out_channels} channels in subtiles of "
                         f"{subtile_columns(kernel, geometry.tiling)}")
    if why := refusal(kernel, geometry.tiling):
        raise ValueError(f"{name}: no {why}")
    done = operation(geometry)(geometry, name)
    runs = isinstance(done, StoreRuns)
    body = done.body()
    used = done.emitter.used | (done.column_table.used if done.column_table else set())
    rewriter = None
    if geometry.scaled:
        used |= set(operand_pointers(kernel))
        if not kernel.all_reductions:
            rewriter = emitter_of(kernel, kernel.domain, done.names, (), kernel.stores)
            write_stores(rewriter, kernel, kernel.stores)
            used |= rewriter.used
    parameters = parameter_texts(kernel, used)
    if geometry.scaled:
        parameters += [("const float* __restrict__", "left_scales"), ("const float* __restrict__", "right_scales")]
    parameters += done.parameters
    heads = [" ".join(p) for p in parameters]
    texts = []
    if geometry.scaled:
        own = original is not None and original is not kernel
        texts += [recompute_function(original if own else kernel, name, own=own),
                  rescaled_functions(geometry, name, done.names)]
    if rewriter is not None:
        texts.append(_rewrite(geometry, name, done.names, rewriter, heads))
    table, column_parameters = done.column_table.definition if done.column_table else ("", ())
    row_scale = done.row_scale()
    subtile = [*done.heads,
               *[f"const float* {'__restrict__ ' * bool(kernel.position_reductions)}columns"] * bool(table),
               *["float scale_of_row"] * bool(row_scale), "int thread", "int phase_class", "int group",
               "long long first_row", "int first_column"]
    height = done.height if runs else 1
    comment = f"Finishes {height * SUBTILE_ROWS} x {done.columns} sums from (first_row, first_column): {done.comment}."
    finish = _calls(body, name, [p for _, p in parameters])
    texts += [table, row_scale, *done.tables(), *done.helpers(),
              device_function(comment, "void", f"{name}_finish", [*heads, *subtile], finish)]
    definitions = "\n".join(filter(None, texts))
    if kernel.scheme in ROUNDED_SCHEMES and not kernel.position_reductions and not kernel.exact_functions:
        definitions = of_rounded(definitions)
    return Epilogue(definitions, tuple(parameters), *done.strides, done.floats,
                    snippets_of(definitions) | done.support, frozenset(done.emitter.vectors),
                    done.column_table.floats if done.column_table else 0, column_parameters, bool(row_scale),
                    done.columns, height, runs, done.in_registers,
                    done.column_table.entry_rows if done.column_table else 0)


def _calls(body: list[str], name: str, pointers: list[str]) -> list[str]:
    """``body`` with the pointers in its calls of ``NAME_rewrite``."""
    return [line.replace(f"{name}_rewrite(", f"{name}_rewrite({', '.join(pointers)}, ") for line in body]


def rescaled_functions(geometry: Geometry, name: str, names: tuple[str, ...]) -> str:
    """``NAME_is_fast`` and ``NAME_rescaled``: a sum whatever the scales are."""
    kernel = geometry.kernel
    pointers = operand_pointers(kernel)
    heads = [" ".join(p) for p in parameter_texts(kernel, set(pointers))]
    is_fast = device_function("Whether sums may be multiplied by the product of this scale and another such one.",
                              "bool",
                              f"{name}_is_fast", ["float scale"],
                              ["return __float_as_uint(scale) - 0x1a800000u <= 0x44800000u;  // 2^-74 to 2^63"])
    body = ["if (row_scale == INFINITY || column_scale == INFINITY)",
            f"  return {name}_recompute({', '.join((*pointers, *names))});",
            "return ldexpf(unscaled, ilogbf(row_scale) + ilogbf(column_scale));"]
    parameters = [*heads, "float unscaled", "float row_scale", "float column_scale", *typed_axes(kernel, names)]
    return is_fast + "\n" + device_function("A sum that is multiplied by any scales.", "float", f"{name}_rescaled",
                                            parameters, body)


def _rewrite(geometry: Geometry, name: str, names: tuple[str, ...], emitter: PointEmitter, heads: list[str]) -> str:
    """``NAME_rewrite``: one element whose sum the pass could not scale."""
    points = ", ".join([*operand_pointers(geometry.kernel), "unscaled", "row_scale", "column_scale", *names])
    body = [f"const float row_scale = {row_scale_text(geometry)};",
            f"const float column_scale = {column_scale_text(geometry)};",
            f"if ({name}_is_fast(row_scale) && {name}_is_fast(column_scale)) return;",
            f"const float sum = {name}_rescaled({points});", *emitter.fixed_lines, *straight(emitter)]
    return device_function("Rewrites an element whose scales leave the fast path.", "void", f"{name}_rewrite",
                           [*heads, "float unscaled", *typed_axes(geometry.kernel, names)], body)
