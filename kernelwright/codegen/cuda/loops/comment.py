"""The meaning of a loop kernel as comment lines."""

from __future__ import annotations

from kernelwright.codegen.cuda.loops.accumulators import RESULT_NAMES
from kernelwright.codegen.cuda.loops.device import Buffers
from kernelwright.plan.expressions import Apply, Constant, Expression, Load, Reduced
from kernelwright.plan.kernels import LoopKernel, Reduction, Store


def describe(kernel: LoopKernel, buffers: Buffers, only: tuple[int, ...] | None = None) -> str:
    """The meaning of a kernel as comment lines."""

    def text(node: Expression, depth: int = 0) -> str:
        match node:
            case Load(buffer=buffer):
                return buffers.inputs[buffer].name
            case Constant(value=value):
                return f"{value:g}"
            case Reduced(reduction=n, component=c):
                return f"{RESULT_NAMES[kernel.reductions[n].kind][c]}{n}"
            case Apply(function=function, arguments=arguments):
                return (
                    "..." if depth > 7 else f"{function}({', '.join(text(a, depth + 1) for a in arguments)})"
                )
        raise TypeError(f"not an expression: {node!r}")

    def reduction(n: int, r: Reduction) -> str:
        names = "/".join(f"{name}{n}" for name in RESULT_NAMES[r.kind])
        return f"{names} = {r.kind}({text(r.expression)})"

    def stores(which: tuple[Store, ...]) -> list[str]:
        return [f"{buffers.outputs[s.buffer].name} = {text(s.expression)}" for s in which]

    lines = [f"outer {kernel.outer}, row {kernel.row}" if kernel.row else f"points {kernel.outer}"]
    lines += [reduction(n, r) for n, r in enumerate(kernel.reductions) if only is None or n in only]
    if only is None:
        lines += stores(kernel.row_stores) + stores(kernel.outer_stores)
    return "\n".join(lines)
