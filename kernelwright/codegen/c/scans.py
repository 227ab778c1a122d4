"""Scans and extrema with their places as C11: one state for every outer point, which goes along the axis."""

from __future__ import annotations

from math import prod

from kernelwright.codegen.c.expressions import TYPES, Scope, literal
from kernelwright.codegen.c.text import braces, definition, over, sizes_text, store_lines
from kernelwright.codegen.source import KernelSource
from kernelwright.ir.ops.scans import SCANS
from kernelwright.plan.expressions import Reduced
from kernelwright.plan.kernels import Extremum, Scan

_NOTHING = {kind: nothing for kind, nothing, _ in SCANS.values()}


def scan(kernel: Scan, name: str) -> KernelSource:
    """The C text of a scan. Sums and products are carried in float64. Raises KeyError for a kind that is not known."""
    comment = f"Running {kernel.kind}{' of what comes before' * kernel.exclusive} along {kernel.length} positions " \
              f"for each of {sizes_text(kernel.outer)}."
    names = [f"i{n}" for n in range(len(kernel.outer))]
    wide = "double" if kernel.kind in ("sum", "product") else "real"
    real = TYPES[kernel.compute]
    combined = {"sum": "state + {0}", "product": "state * {0}", "max": f"kw_maximum_{real}(state, {{0}})",
                "min": f"kw_minimum_{real}(state, {{0}})", "logsumexp": f"kw_logaddexp_{real}(state, {{0}})"}
    scope = Scope("c", kernel.input_dtypes, kernel.compute, [*names, "p"])
    update = [*scope.define([kernel.expression]),
              f"state = {combined[kernel.kind].format(scope.text(kernel.expression))};"]
    inner = (Scope("s", kernel.input_dtypes, kernel.compute, scope.names) if kernel.exclusive else scope.nested("s"))
    inner.bound[Reduced(0)] = "(real)state"
    store = [*inner.define([s.expression for s in kernel.stores]), *store_lines(kernel.stores, kernel, inner)]
    parts = [*store, *update] if kernel.exclusive else [*update, *store]
    lines = [f"{wide} state = {literal(_NOTHING[kernel.kind])};", *over([kernel.length], ["p"], parts)]
    return definition(kernel, name, comment, over(kernel.outer, names, lines))


def extremum(kernel: Extremum, name: str) -> KernelSource:
    """The C text of an extremum with its place.

    Raises ValueError for a kind that is not known, and where the axis is empty and outer points are not.
    """
    if kernel.kind not in ("max", "min") or (kernel.length == 0 and prod(kernel.outer)):
        raise ValueError(f"no {kernel.kind} of {kernel.length} elements")
    comment = f"Place of the {kernel.kind} along {kernel.length} positions for each of {sizes_text(kernel.outer)}."
    names = [f"i{n}" for n in range(len(kernel.outer))]
    sign, compared = ("-", ">") if kernel.kind == "max" else ("", "<")
    scope = Scope("c", kernel.input_dtypes, kernel.compute, [*names, "p"])
    inner = scope.nested("v")
    body = inner.define([kernel.expression])
    x = inner.text(kernel.expression)
    body += braces(f"if ({x} {compared} best || ({x} != {x} && best == best))", [f"best = {x};", "place = p;"])
    scope.bound |= {Reduced(0, 0): "best", Reduced(0, 1): "place"}
    lines = [f"real best = {sign}(real)INFINITY;", "int64_t place = 0;", *over([kernel.length], ["p"], body),
             *scope.define([s.expression for s in kernel.stores]), *store_lines(kernel.stores, kernel, scope)]
    return definition(kernel, name, comment, over(kernel.outer, names, lines))
