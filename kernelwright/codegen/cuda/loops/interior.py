"""Windows that lie inside their tensor: one test per thread in place of one per element."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.codegen.cuda.expressions import affine_text, reach
from kernelwright.codegen.cuda.loops.normal_form import loads
from kernelwright.codegen.cuda.loops.site import Site
from kernelwright.plan.expressions import Expression, Guard, Index, Load, replaced
from kernelwright.plan.kernels import LoopKernel

#: A walk is written twice, with and without guards, for rows up to this long.
MOST_ELEMENTS = 128


def interior(kernel: LoopKernel, site: Site) -> str:
    """Text of a test that every guard holds in all of a thread's elements; "" where there is none worth its text."""
    if not site.window > 1 or prod(kernel.row) > MOST_ELEMENTS:
        return ""
    guards = dict.fromkeys(guard for load in loads(kernel) for guard in load.guards)
    tests = [_test(guard, site) for guard in guards]
    return " && ".join(tests) if all(tests) else ""


def _test(guard: Guard, site: Site) -> str:
    """``0 <= index < size`` over the row and the lanes, in one unsigned comparison; "" if it can't hold."""
    split, index = len(site.outer), guard.index
    lane = sum(index.strides[a] for a in site.lane_axes)
    low, high = reach(Index((*index.strides[split:], lane)), (*site.row, site.lanes))
    room = guard.size - (high - low)
    if room <= 0:
        return ""
    first = affine_text(index.strides[:split], site.names[:split], index.offset + low, site.long)
    return f"(unsigned long long)({first}) < {room}ULL" if site.long else f"(unsigned)({first}) < {room}u"


def unguarded(expression: Expression) -> Expression:
    """The expression where all guards hold."""
    return replaced(
        expression, lambda node: replace(node, guards=()) if isinstance(node, Load) and node.guards else None
    )
