"""Quotients by numbers of a position in a contraction's epilogue that reduces channels, without a branch.

The float division of CUDA calls a function for rare operands, and the unrolled steps of a walk cannot run beside each
other across such calls (`math`). A softmax divides all channels of a position by one number. So its reciprocal is found
before the walk, and each quotient is mended by what it leaves of its numerator, which gives the quotient as a division
rounds it (Markstein, IBM Journal of Research and Development 34(1), 1990): six instructions.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.contraction_points import PointEmitter, device_function
from kernelwright.codegen.cuda.loops_emitter import Buffer
from kernelwright.codegen.cuda.loops_site import Site
from kernelwright.plan.expressions import Apply, Constant


class QuotientEmitter(PointEmitter):
    """A PointEmitter of walks over channels that divides by what `quotient_functions` prepare, where it can.

    ``divides``: the name of the kernel whose functions these are, once they are called.
    """

    def __init__(self, site: Site, buffers: Sequence[Buffer]) -> None:
        super().__init__(site, buffers)
        self.name = ""
        self.divides = False
        self._divisors: dict[str, str] = {}

    def _define(self, node: Apply, row: bool, lane: bool) -> str:
        if node.function != "div" or not row or lane or isinstance(node.arguments[1], Constant) \
                or any(self.depends(node.arguments[1])):
            return super()._define(node, row, lane)
        numerator, divisor = (self.value(argument) for argument in node.arguments)
        if divisor not in self._divisors:
            self._divisors[divisor] = self.fresh("d")
            self.fixed_lines.append(f"const {self.name}_divisor {self._divisors[divisor]} = "
                                    f"{self.name}_divisor_of({divisor});")
        self.divides = True
        result = self.fresh("t")
        self.row_lines.append(f"const float {result} = {self.name}_quotient({numerator}, {self._divisors[divisor]});")
        return result


def quotient_functions(name: str) -> list[str]:
    """``NAME_divisor``, ``NAME_divisor_of`` and ``NAME_quotient``.

    Of a divisor below 2^-64 or beyond 2^64 a power of two is taken off both, so that neither it nor its reciprocal
    leaves the usual numbers.
    """
    kind = f"{name}_divisor"
    return [
        "// What numbers are divided by (0 for an infinite one) and its reciprocal, and what both are multiplied by.\n"
        f"struct {kind} {{ float scaled, inverse, scale; }};\n",
        device_function("For NAME_quotient.".replace("NAME", name), kind, f"{kind}_of", ["float d"], [
            "const float size = fabsf(d), scale = size < 0x1p-64f ? 0x1p64f : size > 0x1p64f ? 0x1p-64f : 1.0f;",
            "return {size == INFINITY ? 0.0f : d * scale, 1.0f / (d * scale), scale};"]),
        device_function("The quotient: one that is not finite needs no mending.", "float", f"{name}_quotient",
                        ["float numerator", f"const {kind}& d"], [
            "const float n = numerator * d.scale, q = n * d.inverse;",
            "const float mended = fmaf(fmaf(-q, d.scaled, n), d.inverse, q);",
            "return fabsf(q) < INFINITY ? mended : q;"])]
