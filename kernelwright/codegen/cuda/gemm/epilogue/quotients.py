"""Quotients by numbers of a position in a contraction's epilogue that reduces channels, without a branch.

The float division of CUDA calls a function for rare operands, and the unrolled steps of a pass cannot run beside each
other across such calls (`math`). A softmax divides all channels of a position by one number. So its reciprocal is found
before the pass, and each quotient is mended by what it leaves of its numerator, which gives the quotient as a division
rounds it (Markstein, IBM Journal of Research and Development 34(1), 1990): six instructions. Three are enough where
exponentials of what is less than its maximum are divided by their sum (`shares`): that is at least 1, and no more than
there are channels, or both are NaN. The exponentials themselves are of no more than 0, which five instructions give
instead of eight (`decaying`): below 2^-126 they are zeros, and so are the quotients, which are less. That is done where
what follows cannot tell such a number from zero, as a sigmoid cannot; a logarithm of what is stored could.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.gemm.points import PointEmitter, device_function
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.site import Site
from kernelwright.plan.expressions import Apply, Constant, Expression, Reduced, replaced, walk

#: The function of a quotient of such an exponential.
_SHARE = "share"
#: Of the exponential itself, and the functions that give the same of zero and of what is next to it.
_DECAY, _BLUNT = "decay", frozenset({"sigmoid", "exp", "cos", "softplus", "log_sigmoid"})


class QuotientEmitter(PointEmitter):
    """A PointEmitter of passes over channels that divides by what `quotient_functions` prepare, where it can.

    ``name``: of the kernel whose functions these are; ``divides``: whether they are called.
    """

    def __init__(self, site: Site, buffers: Sequence[Buffer]) -> None:
        super().__init__(site, buffers)
        self.name = ""
        self.divides = False
        self._divisors: dict[str, str] = {}

    def _define(self, node: Apply, row: bool, lane: bool) -> str:
        if node.function == _DECAY:
            result = self.fresh("t")
            self.row_lines.append(f"const float {result} = kw_decay({self.value(node.arguments[0])});")
            return result
        plain = node.function != _SHARE
        if plain and (node.function != "div" or not row or lane or isinstance(node.arguments[1], Constant)
                      or any(self.depends(node.arguments[1]))):
            return super()._define(node, row, lane)
        numerator, divisor = (self.value(argument) for argument in node.arguments)
        if divisor not in self._divisors:
            self._divisors[divisor] = self.fresh("d")
            self.fixed_lines.append(f"const {self.name}_divisor {self._divisors[divisor]} = "
                                    f"{self.name}_divisor_of({divisor});")
        self.divides = True
        result = self.fresh("t")
        function = "quotient" if plain else _SHARE
        self.row_lines.append(f"const float {result} = {self.name}_{function}({numerator}, {self._divisors[divisor]});")
        return result


def shares(expression: Expression, reductions: Sequence[tuple[str, Expression]]) -> Expression:
    """``expression`` with a function of its own for quotients that three instructions give; ``reductions``: the kind of
    each and what it reduces."""
    def change(node: Expression) -> Expression | None:
        match node:
            case Apply("div", (Apply("exp", (Apply("sub", (value, Reduced(greatest, 0))),)) as power,
                               Reduced(total, 0))) if greatest > 0 < total:
                if reductions[total - 1] == ("sum", power) and reductions[greatest - 1] == ("max", value):
                    return Apply(_SHARE, node.arguments)
        return None

    return replaced(expression, change)


def decaying(roots: Sequence[Expression], reductions: Sequence[tuple[str, Expression]]) -> list[Expression]:
    """``roots``, in which `shares` are, and then what ``reductions`` reduce, with a function of its own for the
    exponentials that are in shares and their sums alone, if a blunt function follows wherever a share is stored."""
    everything = [*roots, *(expression for _, expression in reductions)]
    found = {part for root in everything for part in walk(root) if isinstance(part, Apply) and part.function == _SHARE}
    if any(map(_tells, roots)):
        return everything
    powers = {share.arguments[0] for share in found}
    for kind, root in [*((None, root) for root in roots), *reductions]:
        if kind != "sum" or root not in powers:
            rest = replaced(root, lambda node: Constant(0.0) if node in found else None)
            powers -= set(walk(rest))

    def change(node: Expression) -> Expression | None:
        return Apply(_DECAY, node.arguments) if isinstance(node, Apply) and node in powers else None

    return [replaced(root, change) for root in everything]


def _tells(node: Expression) -> bool:
    """Whether a value may tell shares below 2^-126 from zeros."""
    return any(isinstance(part, Apply) and part.function == _SHARE
               for part in walk(node, into=lambda part: part.function not in _BLUNT))


def quotient_functions(name: str) -> list[str]:
    """``NAME_divisor``, ``NAME_divisor_of``, ``NAME_quotient`` and ``NAME_share``.

    Of a divisor below 2^-64 or beyond 2^64 a power of two is taken off both, so that neither it nor its reciprocal
    leaves the range of the fast path.
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
            "return fabsf(q) < INFINITY ? mended : q;"]),
        device_function("The quotient of a number from 0 to 1 and one from 1 on that is usual.", "float",
                        f"{name}_share", ["float n", f"const {kind}& d"], [
            "const float q = n * d.inverse;", "return fmaf(fmaf(-q, d.scaled, n), d.inverse, q);"])]
