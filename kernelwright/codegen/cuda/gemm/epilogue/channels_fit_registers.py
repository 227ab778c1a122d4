"""Whether a contraction's epilogue can reduce its output channels in registers
(`epilogue.reduce_channels_in_registers`)."""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.column_table import ColumnTable, table_room
from kernelwright.codegen.cuda.gemm.epilogue.thread_mapping import reduced_channels_fastest
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import REGISTERS, Layout
from kernelwright.codegen.cuda.gemm.points import TWICE, loads_of
from kernelwright.codegen.cuda.gemm.problem import SLAB_ROWS, Geometry

#: Registers that walks over sums in registers need beside these: ptxas spills with less.
_NEEDED_REGISTERS = 72
#: Of more walks ptxas spills, too, where each of them is over more sums.
_MOST_WALKS, _MANY_SUMS = 2, 64


def folds(geometry: Geometry) -> bool:
    """Whether channels can be reduced in registers: on wgmma, where nothing that is reduced depends on a position but
    by its sum, positions are neighbours in what is stored, and there are registers for it."""
    kernel, tiling = geometry.kernel, geometry.tiling
    if not kernel.reductions or not kernel.axes or kernel.pools or kernel.totals or tiling.core != "wgmma" \
            or tiling.split > 1 or tiling.overlap or tiling.aligned or reduced_channels_fastest(kernel):
        return False
    walks = sum(2 if reduction.kind in TWICE else 1 for reduction in kernel.reductions)
    if (walks > _MOST_WALKS and tiling.phases * tiling.columns // 2 > _MANY_SUMS) \
            or _spare_registers(geometry) < _NEEDED_REGISTERS:
        return False
    table = folded_table(geometry, "")
    return not loads_of([table.without(reduction.expression) for reduction in kernel.reductions])


def slab_floats(geometry: Geometry) -> int:
    """Floats of such a slab, of 64 rows of all phases."""
    return SLAB_ROWS * geometry.tiling.phases * (geometry.tiling.columns + 4)


def _spare_registers(geometry: Geometry) -> int:
    """Registers of a thread that has the sums of its tile."""
    try:
        layout = Layout(geometry, slab_floats(geometry) + table_room(geometry))
    except ValueError:
        return 0
    registers = layout.moved_registers or REGISTERS // (layout.blocks * layout.threads) // 8 * 8
    return registers - layout.products * geometry.tiling.phases * geometry.tiling.columns // 2


def folded_table(geometry: Geometry, name: str) -> ColumnTable:
    """The table of columns of such an epilogue."""
    roots = [*geometry.kernel.reductions, *geometry.kernel.stores]
    return ColumnTable(geometry, name, tuple(root.expression for root in roots), finite=True)
