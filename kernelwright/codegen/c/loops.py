"""Loop kernels as C11: the axes in normal form, one loop each; a row is walked once for what it reduces, and again.

Sums and products are in float64, as are the first and second moments, relative to a first element; the exponentials of
a logsumexp are relative to the largest. A reduction that needs another's result takes a later walk.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.c.expressions import Scope
from kernelwright.codegen.c.text import braces, definition, over, sizes_text, store_lines
from kernelwright.codegen.loops.normal_form import normalise, passes
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.expressions import Expression, Reduced, varies
from kernelwright.plan.kernels import LoopKernel

_TWO_WALKS = ("moments", "logsumexp")


def generate(kernel: LoopKernel, name: str) -> KernelSource:
    """The C text of ``kernel`` as the host function ``name``.

    Raises ValueError for a reduction or KeyError for a function or dtype that is not known.
    """
    if 0 not in kernel.outer + kernel.row:
        kernel = normalise(kernel)
    kinds = ", ".join(reduction.kind for reduction in kernel.reductions)
    comment = f"Pointwise over {sizes_text(kernel.outer)}."
    if kernel.row or kernel.reductions:
        comment = f"Rows of {sizes_text(kernel.row)} for each of {sizes_text(kernel.outer)}: {kinds or 'stores'}."
    return definition(kernel, name, comment, _Rows(kernel).body())


class _Rows:
    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel
        self.outer = [f"i{n}" for n in range(len(kernel.outer))]
        self.row = [f"r{n}" for n in range(len(kernel.row))]
        self.row_axes = range(len(kernel.outer), len(kernel.outer + kernel.row))

    def body(self) -> list[str]:
        kernel = self.kernel
        scope = Scope("c", kernel.input_dtypes, kernel.compute, [*self.outer, *self.row])
        lines: list[str] = []
        for numbers in passes(kernel.reductions):
            lines += self._reduce(numbers, scope)
        if kernel.row_stores:
            roots = [store.expression for store in kernel.row_stores]
            lines += self._fixed(roots, scope)
            inner = scope.nested("s")
            lines += over(kernel.row, self.row, [*inner.define(roots), *store_lines(kernel.row_stores, kernel, inner)])
        lines += scope.define([store.expression for store in kernel.outer_stores])
        lines += store_lines(kernel.outer_stores, kernel, scope)
        return over(kernel.outer, self.outer, lines)

    def _fixed(self, roots: list[Expression], scope: Scope) -> list[str]:
        """Definitions of what is the same at every point of a row, of which there is one or more."""
        if 0 in self.kernel.row:
            return []
        return scope.define(roots, lambda node: not varies(node, self.row_axes))

    def _reduce(self, numbers: list[int], scope: Scope) -> list[str]:
        """The walks of a row that end in the results of some reductions, to which ``scope`` then gives names."""
        reductions = {n: self.kernel.reductions[n] for n in numbers}
        roots = [r.expression for r in reductions.values()]
        lines = [line for n, r in reductions.items() for line in _start(r.kind, n)]
        lines += self._fixed(roots, scope)
        first, second = scope.nested("v"), scope.nested("w")
        body = first.define(roots)
        for n, r in reductions.items():
            body += _update(r.kind, n, first.text(r.expression), self.kernel.compute)
        lines += over(self.kernel.row, self.row, body)
        count = f"{prod(self.kernel.row)}.0"
        again = {n: r for n, r in reductions.items() if r.kind in _TWO_WALKS}
        for n, r in again.items():
            lines += [f"const double mean{n} = (double)origin{n} + total{n} / {count};"] if r.kind == "moments" else \
                [f"const real origin{n} = isfinite(best{n}) ? best{n} : 0;"]
        if again:
            body = second.define([r.expression for r in again.values()])
            for n, r in again.items():
                body += _update_again(r.kind, n, second.text(r.expression), self.kernel.compute)
            lines += over(self.kernel.row, self.row, body)
        for n, r in reductions.items():
            for component, value in enumerate(_values(r.kind, n, count, self.kernel.compute)):
                lines.append(f"const real reduced{n}_{component} = {value};")
                lines.append(f"(void)reduced{n}_{component};")
                scope.bound[Reduced(n, component)] = f"reduced{n}_{component}"
        return lines


def _start(kind: str, n: int) -> list[str]:
    """The accumulators of reduction number ``n``. Raises ValueError for a kind that is not known."""
    match kind:
        case "sum":
            return [f"double total{n} = 0;"]
        case "product":
            return [f"double product{n} = 1;"]
        case "max" | "min":
            return [f"real best{n} = {'-' if kind == 'max' else ''}(real)INFINITY;"]
        case "logsumexp":
            return [f"real best{n} = -(real)INFINITY;", f"double total{n} = 0;"]
        case "moments":
            return [f"bool begun{n} = false;", f"real origin{n} = 0;",
                    f"double total{n} = 0, rest{n} = 0, squares{n} = 0;"]
    raise ValueError(f"unknown reduction {kind!r}")


def _update(kind: str, n: int, x: str, compute: str) -> list[str]:
    """What an element does in the first walk."""
    real = {"float32": "float", "float64": "double"}[compute]
    match kind:
        case "sum":
            return [f"total{n} += (double){x};"]
        case "product":
            return [f"product{n} *= (double){x};"]
        case "moments":
            begin = [f"begun{n} = true;", f"origin{n} = isfinite({x}) ? {x} : 0;"]
            return [*braces(f"if (!begun{n})", begin), f"total{n} += (double){x} - (double)origin{n};"]
    return [f"best{n} = kw_{'minimum' if kind == 'min' else 'maximum'}_{real}({x}, best{n});"]


def _update_again(kind: str, n: int, x: str, compute: str) -> list[str]:
    """What an element does in the second walk."""
    real = {"float32": "float", "float64": "double"}[compute]
    if kind == "logsumexp":
        return [f"total{n} += (double)kw_exp_{real}({x} - origin{n});"]
    return [*braces("", [f"const double gap = (double){x} - mean{n};",
                         f"rest{n} += gap;", f"squares{n} += gap * gap;"])]


def _values(kind: str, n: int, count: str, compute: str) -> list[str]:
    """The components of a result."""
    real = {"float32": "float", "float64": "double"}[compute]
    match kind:
        case "sum":
            return [f"(real)total{n}"]
        case "product":
            return [f"(real)product{n}"]
        case "max" | "min":
            return [f"best{n}"]
        case "logsumexp":
            return [f"origin{n} + kw_log_{real}((real)total{n})"]
    spread = f"kw_spread(rest{n}, squares{n}, {count})"
    return [f"(real)mean{n}", f"(real){spread}", f"(real)sqrt({spread})"]
