"""The stores of a direct contraction that pools windows of neighbouring positions.

In normal form a window's positions are output phases of one cell (`direct_conv.normal_form`), and a thread has all
phases of its cells: so it has the whole of a window in registers, whatever its planes, lines and positions are, and
stores one value of it. Neighbouring threads have neighbouring windows.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.direct_conv.layout import Layout
from kernelwright.codegen.cuda.direct_conv.store import (
    SumEmitter,
    conditional,
    needed,
    nested,
    own_conditions,
    pair_lines,
    phase_text,
    positions,
    steps,
    sums,
)
from kernelwright.codegen.cuda.gemm.points import STARTS, TAKES, NamedSite, as_float
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import Site
from kernelwright.codegen.reference.contraction import uses_reductions
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Expression, Reduced, walk


class _WindowEmitter(SumEmitter):
    """An emitter of stores, for which every pool has a value of its own at each window. Its names differ from those
    that the emitter of positions gives."""

    def depends(self, node: Expression) -> tuple[bool, bool]:
        row, lane = super().depends(node)
        return row or node.reduced, lane

    def fresh(self, prefix: str) -> str:
        return super().fresh(f"w{prefix}")


def pools_whole_windows(kernel: Contraction) -> bool:
    """Whether a kernel's pools are ones that a thread has the windows of, and whether nothing else is stored."""
    window = kernel.pool_window
    if len(window) > len(kernel.axes) or kernel.reductions or kernel.position_reductions:
        return False
    if any(size % axis.out_stride for size, axis in zip(window, kernel.axes[-len(window):], strict=True)):
        return False
    return all(pool.kind in STARTS and not uses_reductions(pool.expression) for pool in kernel.pools) and \
        all(uses_reductions(s.expression) and Reduced(0) not in walk(s.expression) for s in kernel.stores)


def pooling_lines(layout: Layout, buffers: tuple[list[Buffer], list[Buffer]], long: bool, whole: str
                  ) -> tuple[list[str], set[str]]:
    """Statements that follow the sums, and the pointers they use; arguments as of `store_lines`."""
    kernel, plan, axes = layout.kernel, layout.schedule, len(layout.lines)
    first = axes - len(kernel.pool_window)
    walked = tuple(range(3, 3 + axes))
    of_sums = SumEmitter(Site(kernel.domain, (), "float", long, walked), buffers[0])
    of_sums.reduced[0, 0] = "value"
    labels = ("i0", "i1", "i2", *(f"i{3 + n}" if n < first else f"window{n}" for n in range(axes)))
    of_windows = _WindowEmitter(NamedSite(kernel.pooled_domain, (), "float", long, walked, labels=labels), buffers[0])
    takes = []
    for number, pool in enumerate(kernel.pools, 1):
        value = as_float(of_sums, pool.expression)
        takes.append(f"pool{number} = {TAKES[pool.kind].format(f'pool{number}', value)};")
        of_windows.reduced[number, 0] = f"pool{number}"
    for store in kernel.stores:
        of_windows.store(buffers[1][store.buffer], store.index, store.expression)
    own, pooled = _levels(layout, first)
    each = needed(positions(layout, whole), [f"const float value = {sums(layout)}[{phase_text(layout)}][r][o];",
                                             *of_sums.statements(), *takes])
    inside = [f"{labels[3 + n]} < {kernel.pooled_domain[3 + n]}" for n, line in enumerate(layout.lines) if line.guarded]
    body = [*(f"float pool{n} = {STARTS[pool.kind]};" for n, pool in enumerate(kernel.pools, 1)),
            *nested(pooled, each), *of_windows.statements()]
    places = [*positions(layout, whole)[:first], *_windows(layout, whole, first)]
    lines = nested(own, needed(places, conditional(inside, body)))
    lines = [*of_sums.take_fixed(), *of_windows.take_fixed(), *lines]
    channels = [f"i2 < {kernel.out_channels}"] if kernel.out_channels % layout.columns else []
    lines = conditional([*own_conditions(layout), *channels], lines)
    channel = layout.affine((1, plan.channels), ("channel", "channel_group"))
    lines = needed([f"const int i2 = {f'{channel} + o' if channel != '0' else 'o'};"], lines)
    lines = nested([("o", plan.channels, True)], lines)
    return ["// The windows, each of which a thread has all of, and the stores.",
            *needed(pair_lines(layout, "own_pair", whole), lines)], of_sums.used | of_windows.used


def _levels(layout: Layout, first: int) -> tuple[list[tuple[str, int, bool]], list[tuple[str, int, bool]]]:
    """Loops over a thread's windows of one channel, and over a window's positions."""
    levels = steps(layout)
    names = {f"p{n}" for n in range(first, len(layout.lines))}
    return [level for level in levels if level[0] not in names], [level for level in levels if level[0] in names]


def _windows(layout: Layout, whole: str, first: int) -> list[str]:
    """Definitions of the coordinates of windows: those of cells."""
    lines = []
    for n in range(first, len(layout.lines)):
        line = layout.lines[n]
        step = 0 if n != layout.schedule.run_axis else line.threads if line.last else 1
        at = layout.affine((1, 1, step), (f"cell{n}", f"own{n}", "r"))
        lines.append(f"const {whole} window{n} = {at};")
    return lines
