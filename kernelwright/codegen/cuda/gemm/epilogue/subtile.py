"""CUDA text that finishes a slab of a contraction's sums: positions, scales, the store expressions, the stores.

The core stages SLAB_ROWS x `slab_columns` sums in shared memory, and 128 threads call ``NAME_finish``. Where positions
lie next to each other in the output a thread takes a row, or two where rows are neighbours in pairs
(`epilogue.store_neighbours`), and walks over columns, so that a warp writes 32 or 64 neighbouring positions at a
time; where channels do, a thread takes 4 neighbouring columns and walks over rows. What a walk does not change is
computed before it.

Sums are multiplied by the scales of both operands. Where that could leave the range of float32 on the way, or an
operand is not finite (an infinite scale), the thread comes back to its elements after the walk: it multiplies with
care, or computes the sum again from the operands themselves, by float32 multiply-adds.

Where a kernel reduces its output channels a slab holds all of them (`epilogue.reduce_channels`), or what is left
of them once they have been reduced in registers (`epilogue.reduce_channels_in_registers`). Where it pools
neighbouring positions a slab holds whole windows (`epilogue.pool`). Where tiles overlap, or warps begin at
whole sectors of memory, it holds positions without the gaps between them (`epilogue.store_overlapped`,
`epilogue.store_aligned`). Where it has totals of positions, each slab writes what it
adds to them (`epilogue.reduce_positions`); where it has nothing else there may be no slab at all
(`epilogue.reduce_positions_in_registers`).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.codegen.cuda.gemm.epilogue.output_parity import PairWalk
from kernelwright.codegen.cuda.gemm.epilogue.pool import PoolWalk, refusal
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels import ReducingPairWalk, ReducingWalk
from kernelwright.codegen.cuda.gemm.epilogue.reduce_channels_in_registers import FoldingPairWalk, FoldingWalk
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions import totals_walk
from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import RegisterTotalsWalk, in_registers
from kernelwright.codegen.cuda.gemm.epilogue.store_aligned import AlignedWalk
from kernelwright.codegen.cuda.gemm.epilogue.store_from_registers import FragmentWalk
from kernelwright.codegen.cuda.gemm.epilogue.store_neighbours import PairOfRowsWalk, in_pairs
from kernelwright.codegen.cuda.gemm.epilogue.store_overlapped import DenseWalk
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import (
    SLAB_ROWS,
    ChannelWalk,
    RowWalk,
    holds_channels,
    operand_pointers,
    slab_columns,
    stores_channels,
    turns,
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
from kernelwright.codegen.cuda.gemm.precision.recompute import exact_function
from kernelwright.codegen.cuda.gemm.precision.scales import column_scale_text, row_scale_text
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.math_rounded import of_rounded
from kernelwright.plan.contraction import ROUNDED_SCHEMES, Contraction, Tiling

__all__ = ["SLAB_ROWS", "Epilogue", "careful_functions", "epilogue", "holds", "slab_columns"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """``NAME_finish`` and what it asks of its caller.

    ``definitions`` come behind those of packing, whose functions they use. ``parameters`` are (C type, name) of the
    pointers that it takes first, in this order. Element (row, column) of a slab is ``sums[row * row_stride +
    column * column_stride]``, ``floats`` is the slab's size, and it is aligned to 16 bytes. ``support`` names the
    snippets that the text uses. Inputs and outputs in ``vectors`` are aligned to 16 bytes.

    Where ``column_floats`` is not 0, what it needs of columns comes from a table of that size, aligned to 16 bytes:
    128 threads call ``NAME_columns(column_parameters, table, thread, group, first column of the tile)``, and
    ``NAME_finish`` takes the table behind the slab (`epilogue.column_table`). Where ``entry_rows``, the rows of
    an entry of the batch, is not 0, the table is of entries, too, and its last argument the one of the tile's first
    row. With ``row_scales`` it then takes ``NAME_row_scale(left_scales, thread, group, first_row)``.

    A slab has ``columns`` columns and ``height`` times SLAB_ROWS rows. With ``places`` it has them where
    ``NAME_row_place`` says (`epilogue.store_overlapped`), at ``place + column * column_stride``.

    Where the kernel has totals, ``NAME_finish`` writes to the slab, and its 128 threads meet in it at a barrier: those
    of a block whose ``threadIdx.x / 128`` is the same, which is why all of them call it equally often.

    With ``in_registers`` it takes the sums of a warpgroup's whole tile, as the core on wgmma has them, before the slab,
    which is room for what its warps say to each other (`epilogue.reduce_positions_in_registers`), or for nothing
    (`epilogue.store_from_registers`).
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
    """Whether slabs hold what the kernel reduces: all of its output channels, not of two phases where these are
    neighbours in the output, or whole windows of positions."""
    if kernel.reductions and tiling.phases == 2 and turns(kernel):
        return False
    return holds_channels(kernel, tiling) and not refusal(kernel, tiling)


def epilogue(geometry: Geometry, name: str, original: Contraction | None = None) -> Epilogue:
    """The text that finishes slabs of sums under ``geometry.tiling``. original: the kernel before taps were joined.

    Raises ValueError where a slab does not hold all channels that the kernel reduces, and for pools and totals that it
    does not take.
    """
    kernel = geometry.kernel
    if not holds_channels(kernel, geometry.tiling):
        raise ValueError(f"{name}: no reductions of {kernel.out_channels} channels in slabs of "
                         f"{slab_columns(kernel, geometry.tiling)}")
    kind = ReducingWalk if kernel.reductions else ChannelWalk if stores_channels(kernel) else \
        PairOfRowsWalk if in_pairs(geometry) else RowWalk
    if geometry.tiling.phases == 2:
        kind = ReducingPairWalk if kernel.reductions else PairWalk
    if kernel.pools:
        kind = PoolWalk
    if kernel.totals:
        kind = RegisterTotalsWalk if in_registers(geometry) else totals_walk
    runs = geometry.tiling.overlap > 0 or geometry.tiling.aligned
    if runs:
        kind = AlignedWalk if geometry.tiling.aligned else DenseWalk
    if geometry.tiling.fragments:
        kind = FragmentWalk if not kernel.reductions else \
            FoldingPairWalk if geometry.tiling.phases == 2 else FoldingWalk
    walk = kind(geometry, name)
    body = walk.body()
    used = walk.emitter.used | (walk.column_table.used if walk.column_table else set())
    again = None
    if geometry.scaled:
        used |= set(operand_pointers(kernel))
        if not kernel.all_reductions:
            again = emitter_of(kernel, kernel.domain, walk.names, (), kernel.stores)
            write_stores(again, kernel, kernel.stores)
            used |= again.used
    parameters = parameter_texts(kernel, used)
    if geometry.scaled:
        parameters += [("const float* __restrict__", "left_scales"), ("const float* __restrict__", "right_scales")]
    parameters += walk.parameters
    heads = [" ".join(p) for p in parameters]
    texts = []
    if geometry.scaled:
        own = original is not None and original is not kernel
        texts += [exact_function(original if own else kernel, name, own=own),
                  careful_functions(geometry, name, walk.names)]
    if again is not None:
        texts.append(_again(geometry, name, walk.names, again, heads))
    table, column_parameters = walk.column_table.definition if walk.column_table else ("", ())
    row_scale = walk.row_scale()
    sums = walk.heads if isinstance(walk, (RegisterTotalsWalk, FragmentWalk, FoldingWalk)) else \
        [f"{'' if kernel.all_reductions else 'const '}float* sums"]
    slab = [*sums,
            *[f"const float* {'__restrict__ ' * bool(kernel.totals)}columns"] * bool(table),
            *["float scale_of_row"] * bool(row_scale), "int thread", "int phase_class", "int group",
            "long long first_row", "int first_column"]
    height = 1
    if runs:
        assert isinstance(walk, (AlignedWalk, DenseWalk)), geometry.tiling  # fragments have no runs
        height = walk.height
    comment = f"Finishes {height * SLAB_ROWS} x {walk.columns} sums from (first_row, first_column): {walk.comment}."
    finish = _calls(body, name, [p for _, p in parameters])
    texts += [table, row_scale, *walk.tables(), *walk.helpers(),
              device_function(comment, "void", f"{name}_finish", [*heads, *slab], finish)]
    definitions = "\n".join(filter(None, texts))
    if kernel.scheme in ROUNDED_SCHEMES and not kernel.totals and not kernel.exact_functions:
        definitions = of_rounded(definitions)
    return Epilogue(definitions, tuple(parameters), *walk.strides, walk.floats,
                    snippets_of(definitions) | walk.support, frozenset(walk.emitter.vectors),
                    walk.column_table.floats if walk.column_table else 0, column_parameters, bool(row_scale),
                    walk.columns, height, runs, in_registers(geometry) or geometry.tiling.fragments,
                    walk.column_table.entry_rows if walk.column_table else 0)


def _calls(body: list[str], name: str, pointers: list[str]) -> list[str]:
    """``body`` with the pointers in its calls of ``NAME_again``."""
    return [line.replace(f"{name}_again(", f"{name}_again({', '.join(pointers)}, ") for line in body]


def careful_functions(geometry: Geometry, name: str, names: tuple[str, ...]) -> str:
    """``NAME_usual`` and ``NAME_careful``: a sum whatever the scales are."""
    kernel = geometry.kernel
    pointers = operand_pointers(kernel)
    heads = [" ".join(p) for p in parameter_texts(kernel, set(pointers))]
    usual = device_function("Whether sums may be multiplied by the product of this scale and another such one.", "bool",
                            f"{name}_usual", ["float scale"],
                            ["return __float_as_uint(scale) - 0x1a800000u <= 0x44800000u;  // 2^-74 to 2^63"])
    body = ["if (row_scale == INFINITY || column_scale == INFINITY)",
            f"  return {name}_exact({', '.join((*pointers, *names))});",
            "return ldexpf(unscaled, ilogbf(row_scale) + ilogbf(column_scale));"]
    parameters = [*heads, "float unscaled", "float row_scale", "float column_scale", *typed_axes(kernel, names)]
    return usual + "\n" + device_function("A sum that is multiplied by any scales.", "float", f"{name}_careful",
                                          parameters, body)


def _again(geometry: Geometry, name: str, names: tuple[str, ...], emitter: PointEmitter, heads: list[str]) -> str:
    """``NAME_again``: one element whose sum the walk could not scale."""
    points = ", ".join([*operand_pointers(geometry.kernel), "unscaled", "row_scale", "column_scale", *names])
    body = [f"const float row_scale = {row_scale_text(geometry)};",
            f"const float column_scale = {column_scale_text(geometry)};",
            f"if ({name}_usual(row_scale) && {name}_usual(column_scale)) return;",
            f"const float sum = {name}_careful({points});", *emitter.fixed_lines, *straight(emitter)]
    return device_function("Writes an element again whose scales are not usual.", "void", f"{name}_again",
                           [*heads, "float unscaled", *typed_axes(geometry.kernel, names)], body)
