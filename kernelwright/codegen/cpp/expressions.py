"""Scalar expressions as C++: one named constant per distinct subexpression."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from math import frexp, isinf, isnan

from kernelwright.codegen.loops.indices import guard_text, index_text
from kernelwright.ir.scalar import KERNEL_FUNCTIONS, UNFUSED
from kernelwright.plan.expressions import Apply, Constant, Element, Expression, Load, Reduced, is_whole, walk

TYPES = {
    "float32": "float", "float64": "double", "float16": "kw_float16", "bfloat16": "kw_bfloat16",
    "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t",
    "bool": "uint8_t",  # g++ vectorises no loop that converts a bool
}

# "origin" comes from this target's transformations; the others have texts here that vectorise.
_EXTRA = {
    "origin": "kw_origin({0})",
    "softplus": "kw_softplus({0}, {1}, {2})",
    "elu": "kw_elu({0}, {1})",
    "celu": "kw_celu({0}, {1})",
    "where": "kw_select({0} != real(0), {1}, {2})",
    "relu": "kw_select({0} < real(0), real(0), {0})",
    "leaky_relu": "kw_select({0} > real(0), {0}, {0} * {1})",
    "prelu": "kw_select({0} > real(0), {0}, {0} * {1})",
    "threshold": "kw_select({0} <= {1}, {2}, {0})",
    "clamp_min": "kw_select({0} < {1}, {1}, {0})",
    "clamp_max": "kw_select({0} > {1}, {1}, {0})",
    "softshrink": "kw_select({0} > {1}, {0} - {1}, kw_select({0} < -{1}, {0} + {1}, "
                  "kw_select({0} == {0}, real(0), {0})))",
    "hardshrink": "kw_select(({0} >= -{1}) & ({0} <= {1}), real(0), {0})",
    "fmax": "kw_select(({1} != {1}) | ({0} >= {1}), {0}, {1})",
    "fmin": "kw_select(({1} != {1}) | ({0} <= {1}), {0}, {1})",
    "heaviside": "kw_select({0} == real(0), {1}, real({0} > real(0)))",
    "nan_to_num": "kw_select({0} != {0}, {1}, kw_select({0} == real(INFINITY), {2}, "
                  "kw_select({0} == -real(INFINITY), {3}, {0})))",
    "xlogy": "kw_select(({0} == real(0)) & ({1} == {1}), real(0), {0} * kw_log({1}))",
    "logical_and": "real(({0} != real(0)) & ({1} != real(0)))",
    "logical_or": "real(({0} != real(0)) | ({1} != real(0)))",
}

_EXTRA |= {
    "whole_where": "kw_choose({0} != real(0), {1}, {2})",
    "whole_abs": "kw_choose({0} < 0, whole(-uwhole({0})), {0})",
    "whole_relu": "kw_choose({0} < 0, whole(0), {0})",
    "whole_maximum": "kw_choose({0} > {1}, {0}, {1})",
    "whole_minimum": "kw_choose({0} < {1}, {0}, {1})",
    "whole_clamp_min": "kw_choose({0} < {1}, {1}, {0})",
    "whole_clamp_max": "kw_choose({0} > {1}, {1}, {0})",
}
#: Functions of angles, which take another path for those that are far.
ANGULAR = ("sin", "cos", "tan")
#: Largest whole power that is made of products.
MOST_PRODUCTS = 16
#: Between these sizes ``kw_divisor`` calls a divisor usual.
USUAL_DIVISORS = (2.0**-24, 2.0**24)
_UNFUSED = frozenset(function.name for function in UNFUSED.values())
_WHOLE_TYPES = {"whole": "int64_t", "uwhole": "uint64_t"}

LoadText = Callable[[Load], str]


def literal(value: float) -> str:
    """``value`` as an expression of type real, or of an integer as one of 64 bits."""
    if isinstance(value, int):
        return f"int64_t({value}LL)" if value > -(2**63) else "INT64_MIN"
    if isnan(value):
        return "real(NAN)"
    if isinf(value):
        return "real(INFINITY)" if value > 0 else "(-real(INFINITY))"
    return f"real({value!r})" if value >= 0 and repr(value)[0] != "-" else f"(-real({-value!r}))"


def element_text(load: Load, names: Sequence[str]) -> str:
    """The element that ``load`` reads, converted to real or int64_t, without its guards."""
    place = index_text(load.index, names)
    return f"{value_type(load)}({place if load.counts else f'in{load.buffer}[{place}]'})"


def value_type(node: Expression) -> str:
    """The C++ type of a value."""
    return "int64_t" if is_whole(node) else "real"


def otherwise_text(load: Load) -> str:
    """What a load gives where a guard fails."""
    return literal(int(load.otherwise) if load.whole else load.otherwise)


def guarded_text(load: Load, names: Sequence[str]) -> str:
    """The value of ``load`` with its guards tested where it stands."""
    if not load.guards:
        return element_text(load, names)
    return f"({guard_text(load.guards, names)}) ? {element_text(load, names)} : {otherwise_text(load)}"


class Scope:
    """The expressions that have a name at one place of the generated text.

    ``prefix`` starts the names; a nested scope must use another one. ``far`` is the text that tells sines, cosines and
    tangents whether an angle may be far, where that is known. ``quotients`` has the texts of quotients by some
    divisors, with ``{0}`` for what is divided.
    """

    def __init__(self, prefix: str, bound: dict[Expression, str] | None = None, far: str = "",
                 quotients: dict[Expression, str] | None = None) -> None:
        self.prefix = prefix
        self.bound: dict[Expression, str] = dict(bound or {})
        self.far = far
        self.quotients = quotients or {}
        self._count = 0

    def nested(self, prefix: str, far: str = "") -> Scope:
        """A scope inside this one."""
        return Scope(prefix, self.bound, far, self.quotients)

    def dividing(self, quotients: dict[Expression, str]) -> Scope:
        """The same scope with texts of quotients, for scopes inside it."""
        return Scope(self.prefix, self.bound, self.far, quotients)

    def define(
        self,
        roots: Iterable[Expression],
        load_text: LoadText,
        only: Callable[[Expression], bool] = lambda node: True,
    ) -> list[str]:
        """Definitions of every unnamed subexpression of ``roots`` for which ``only`` holds."""
        lines: list[str] = []
        for node in walk(*roots, into=lambda node: node not in self.bound):
            if node in self.bound or isinstance(node, (Constant, Reduced)) or not only(node):
                continue
            name = f"{self.prefix}{self._count}"
            self._count += 1
            text = load_text(node) if isinstance(node, Load) else self._apply(node)
            lines.append(f"const {value_type(node)} {name} = {_bare(text)};")
            self.bound[node] = name
        return lines

    def _apply(self, node: Apply) -> str:
        names = [self.text(argument) for argument in node.arguments]
        if isinstance(node, Element):
            return f"{value_type(node)}(in{node.buffer}[{names[0]}])"
        text = "kw_unfused_neg({0})" if _is_negated_sum(node) else _power(node) or self._quotient(node) or \
            _EXTRA.get(node.function) or KERNEL_FUNCTIONS[node.function].text
        if self.far and node.function in ANGULAR:
            names[-1] += f", {self.far}"
        text = text.format(*names)
        return re.sub(r"\bu?whole\b", lambda found: _WHOLE_TYPES[found[0]], text)

    def _quotient(self, node: Apply) -> str:
        """The text of a quotient by one of the divisors of `quotients`; empty for all else."""
        return self.quotients.get(node.arguments[1], "") if node.function == "div" else ""

    def text(self, node: Expression) -> str:
        """The name or literal of ``node``."""
        return literal(node.value) if isinstance(node, Constant) else self.bound[node]


def _power(node: Apply) -> str:
    """The text of a power by a whole constant that products give; empty for all else."""
    match node:
        case Apply("pow", (_, Constant(value))) if value in range(2, MOST_PRODUCTS + 1):
            return f"kw_power<{int(value)}>({{0}})"
    return ""


def _is_negated_sum(node: Apply) -> bool:
    """Whether a value is the negative of one of `UNFUSED`: g++ negates what these are within them, and in another way
    where they are zero."""
    minus = [isinstance(argument, Constant) and argument.value == -1 for argument in node.arguments]
    match node.function:
        case "neg":
            value = node.arguments[0]
        case "mul" | "div" if minus[1]:
            value = node.arguments[0]
        case "mul" if minus[0]:
            value = node.arguments[1]
        case _:
            return False
    return isinstance(value, Apply) and value.function in _UNFUSED


def _bare(text: str) -> str:
    """``text`` without one pair of parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1]


def angles(roots: Iterable[Expression], bound: dict[Expression, str]) -> list[Expression]:
    """The distinct angles of which evaluating ``roots`` still takes a sine, a cosine or a tangent."""
    result: dict[Expression, None] = {}
    for node in walk(*roots, into=lambda node: node not in bound):
        if isinstance(node, Apply) and node.function in ANGULAR and node not in bound:
            result[node.arguments[0]] = None
    return list(result)


def fixed_divisors(roots: Iterable[Expression], bound: dict[Expression, str], variable: str) -> list[Expression]:
    """The distinct divisors of which evaluating ``roots`` still takes quotients, as far as they are one number for all
    values of the loop variable ``variable``. Not those by which g++ makes a product of the quotient."""
    result: dict[Expression, None] = {}
    for node in walk(*roots, into=lambda node: node not in bound):
        if isinstance(node, Apply) and node.function == "div" and node not in bound:
            divisor = node.arguments[1]
            if isinstance(divisor, Constant):
                size = abs(divisor.value)
                fixed = USUAL_DIVISORS[0] < size < USUAL_DIVISORS[1] and frexp(size)[0] != 0.5
            else:
                fixed = divisor in bound and not re.search(rf"\b{variable}\b", bound[divisor])
            if fixed:
                result[divisor] = None
    return list(result)


def unnamed_loads(roots: Iterable[Expression], bound: dict[Expression, str]) -> list[Load]:
    """The distinct loads that evaluating ``roots`` still has to do."""
    return [n for n in walk(*roots, into=lambda node: node not in bound) if isinstance(n, Load) and n not in bound]


def cost(roots: Iterable[Expression], named: Collection[Expression] = ()) -> int:
    """Operations of one evaluation of ``roots``, in multiply-adds; a load counts 1. named: what has been evaluated."""
    nodes = [n for n in walk(*roots, into=lambda n: n not in named) if n not in named]
    applied = sum(
        KERNEL_FUNCTIONS[n.function].cost
        for n in nodes
        if isinstance(n, Apply) and n.function in KERNEL_FUNCTIONS
    )
    return applied + sum(isinstance(node, (Load, Element)) for node in nodes)
