"""The CUDA skeleton of :class:`Contraction`.

On tensor cores: kernels that pack both operands into the workspace (`operands.prepack`), then one that multiplies
blocks and finishes their sums (`mainloop.sm90.core` or `mainloop.sm80.core`, with `epilogue.subtile`), or w alone is
packed and lines of x pass through a ring (`row_buffered`). Reductions over positions take one more kernel
(`epilogue.finalize`, `row_buffered.reduce_positions`). The scheme float32 multiplies and adds without packing
(`direct_conv.generate`) and has none.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.codegen.cuda.direct_conv import generate as direct_conv
from kernelwright.codegen.cuda.gemm.epilogue.finalize import finalize
from kernelwright.codegen.cuda.gemm.epilogue.subtile import epilogue
from kernelwright.codegen.cuda.gemm.mainloop.sm80 import core as sm80
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import core as sm90
from kernelwright.codegen.cuda.gemm.operands.prepack import packing
from kernelwright.codegen.cuda.gemm.operands.prepack_parts import REPACK
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.row_buffered import core as row_buffered
from kernelwright.codegen.cuda.gemm.row_buffered import reduce_positions as row_buffered_positions
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.search import tilings
from kernelwright.codegen.cuda.gemm.swap_ab import core as swap_ab
from kernelwright.codegen.cuda.gemm.swap_ab.problem import SwapAB, geometry_of
from kernelwright.codegen.cuda.gemm.tap_folding import with_folded_taps
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.gram import generate as gram
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import plus
from kernelwright.plan.contraction.record import Contraction

_TYPES = {"repack": "unsigned", "left_scales": "float", "right_scales": "float", "left": "unsigned short",
          "right": "unsigned short",
          "left_ready": "unsigned", "sums": "float", "position_partials": "float", "position_counts": "int"}


def generate(kernel: Contraction, name: str) -> KernelSource:
    """The CUDA text of a contraction, whose host function is ``name``.

    Where ``kernel.tiling`` is None, the first of :func:`tilings` for wgmma is taken. Raises ValueError for a tiling
    that does not fit a block or folds taps that cannot be, for pools and reductions over positions that nothing here
    takes (`epilogue.pool`, `epilogue.reduce_positions`), where a grid would exceed 2**31 - 1 blocks, and for tensor
    cores where an axis has more positions than 31 bits count.
    """
    if kernel.scheme == "correlation":
        return gram.generate(kernel, name)
    if kernel.position_reductions and kernel.scheme == "float32":
        raise ValueError(f"{name}: no reductions over positions in the scheme float32")
    if kernel.position_reductions and not prod(kernel.domain[3:]):
        raise ValueError(f"{name}: no reductions over no positions")
    if not prod(kernel.pooled_domain):
        return _source(kernel, name, [], [], 0, frozenset())
    if kernel.scheme == "float32":
        number = kernel.tiling if isinstance(kernel.tiling, int) else 0
        kernel = replace(kernel, tiling=None)
        schedules = direct_conv.schedules(kernel)
        return direct_conv.generate(kernel, name, schedules[number] if number < len(schedules) else None)
    if max((max(axis.in_size, axis.out_size) for axis in kernel.axes), default=0) >= 2**31 - 2**20:  # with a window
        raise ValueError(f"{name}: an axis has too many positions")
    tiling = kernel.tiling or next(iter(tilings(kernel, "wgmma")), None)
    if tiling is None:
        raise ValueError(f"{name}: no tiling takes all of the kernel's reductions")
    assert isinstance(tiling, Tiling)  # a number is one of the scheme float32
    original = kernel
    if tiling.folded_taps > 1:
        kernel, tiling = with_folded_taps(kernel, tiling.folded_taps), replace(tiling, folded_taps=1)
    if tiling.core == "row_buffered":
        return _row_buffered(kernel, name, RowBuffered(kernel, tiling), original)
    geometry = geometry_of(kernel, tiling)
    finish, packed = epilogue(geometry, name, original), packing(geometry, name, original)
    if tiling.core == "wgmma":
        core = sm90.core(geometry, finish, name, packed.second_run)
    elif isinstance(geometry, SwapAB):
        core = swap_ab.core(geometry, finish, name)
    else:
        core = sm80.core(geometry, finish, name)
    body = _places(geometry, [part for part in geometry.places if part != REPACK
                              or any(REPACK in line for line in packed.launches)])
    body += alignment_check(name, [v for v in sorted(finish.vectors) if v.startswith(("in", "out"))])
    body += [*packed.launches, *core.launches]
    parts, support = [packed.definitions, finish.definitions, core.definitions], packed.support | finish.support
    if kernel.position_reductions:
        text, launch = finalize(geometry, name)
        parts.append(text)
        body.append(launch)
        support |= snippets_of(text)
    return _source(kernel, name, parts, body, geometry.workspace_bytes, support | core.support)


def _row_buffered(kernel: Contraction, name: str, numbers: RowBuffered, original: Contraction) -> KernelSource:
    """The text of a row-buffered implicit GEMM."""
    packed = packing(numbers, name, original)
    core, finish = row_buffered.core(numbers, name, original, packed.second_run)
    parts, launches, support = [packed.definitions, core.definitions], [*packed.launches, *core.launches], core.support
    if kernel.position_reductions:
        text, launch = row_buffered_positions.finalize(numbers, name)
        parts.append(text)
        launches.append(launch)
        support |= snippets_of(text)
    body = _places(numbers, [part for part in numbers.places if any(part in line for line in launches)])
    body += alignment_check(name, sorted(v for v in finish.vectors if v.startswith(("in", "out"))))
    return _source(kernel, name, parts, [*body, *launches], numbers.workspace_bytes, support | packed.support)


def _places(geometry: Geometry, parts: list[str]) -> list[str]:
    """The host's lines that find parts of the workspace."""
    return ["unsigned char* const base = static_cast<unsigned char*>(workspace);",
            *(f"{_TYPES[part]}* const {part} = reinterpret_cast<{_TYPES[part]}*>({_at(geometry, part)});"
              for part in parts if geometry.places[part][1])]


def _at(geometry: Geometry, part: str) -> str:
    """Where a part of the workspace begins."""
    place = geometry.places[part][0]
    return plus("base", f"{place}LL" if place else 0)


def _source(kernel: Contraction, name: str, definitions: list[str], body: list[str], workspace_bytes: int,
            support: frozenset[str]) -> KernelSource:
    """The host function behind the device texts."""
    lines = [head(name, kernel.input_dtypes, kernel.output_dtypes), *(f"  {line}" for line in body),
             "  return nullptr;", "}"]
    return KernelSource(name, "\n".join([*definitions, "\n".join(lines)]), workspace_bytes, tuple(sorted(support)))
