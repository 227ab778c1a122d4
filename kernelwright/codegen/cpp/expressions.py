"""Scalar expressions as C++: one named constant per distinct subexpression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import isinf, isnan

from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Expression, Guard, Index, Load, Reduced, walk

TYPES = {"float32": "float", "float64": "double", "int64": "int64_t", "int32": "int32_t", "bool": "bool"}

# "origin" comes from this target's transformations; the others have texts here that vectorise.
_EXTRA = {
    "origin": "kw_origin({0})",
    "softplus": "kw_softplus({0}, {1}, {2})",
    "elu": "kw_elu({0}, {1})",
    "celu": "kw_celu({0}, {1})",
    "where": "kw_select({0} != real(0), {1}, {2})",
    "relu": "kw_select({0} < real(0), real(0), {0})",
    "leaky_relu": "kw_select({0} > real(0), {0}, {0} * {1})",
    "threshold": "kw_select({0} <= {1}, {2}, {0})",
    "clamp_min": "kw_select({0} < {1}, {1}, {0})",
    "clamp_max": "kw_select({0} > {1}, {1}, {0})",
    "softshrink": "kw_select({0} > {1}, {0} - {1}, kw_select({0} < -{1}, {0} + {1}, {0} * real(0)))",
    "hardshrink": "kw_select(({0} >= -{1}) & ({0} <= {1}), real(0), {0})",
    "logical_and": "real(({0} != real(0)) & ({1} != real(0)))",
    "logical_or": "real(({0} != real(0)) | ({1} != real(0)))",
}

LoadText = Callable[[Load], str]


def literal(value: float) -> str:
    """``value`` as an expression of type real."""
    if isnan(value):
        return "real(NAN)"
    if isinf(value):
        return "real(INFINITY)" if value > 0 else "(-real(INFINITY))"
    return f"real({value!r})" if value >= 0 and repr(value)[0] != "-" else f"(-real({-value!r}))"


def index_text(index: Index, names: Sequence[str]) -> str:
    """``index`` as an integer expression of the axes' names."""
    terms = []
    for stride, name in zip(index.strides, names, strict=True):
        if stride:
            terms.append(name if stride == 1 else f"{stride} * {name}")
    if index.offset or not terms:
        terms.append(str(index.offset))
    return " + ".join(terms).replace("+ -", "- ")


def guard_text(guards: Iterable[Guard], names: Sequence[str]) -> str:
    """The condition under which a load is legal."""
    parts = []
    for guard in guards:
        position = index_text(guard.index, names)
        parts.append(f"{position} >= 0 && {position} < {guard.size}")
    return " && ".join(parts)


def element_text(load: Load, names: Sequence[str]) -> str:
    """The element that ``load`` reads, converted to real, without its guards."""
    return f"real(in{load.buffer}[{index_text(load.index, names)}])"


def guarded_text(load: Load, names: Sequence[str]) -> str:
    """The value of ``load`` with its guards tested where it stands."""
    if not load.guards:
        return element_text(load, names)
    return f"({guard_text(load.guards, names)}) ? {element_text(load, names)} : {literal(load.otherwise)}"


def varies(node: Expression, axes: Sequence[int], reduced: bool = False) -> bool:
    """Whether ``node`` changes along any of ``axes``; ``reduced``: whether Reduced does."""
    match node:
        case Load(index=index, guards=guards):
            indices = (index, *(guard.index for guard in guards))
            return any(i.strides[axis] for i in indices for axis in axes)
        case Apply(arguments=arguments):
            return any(varies(argument, axes, reduced) for argument in arguments)
        case Reduced():
            return reduced
    return False


def _power(base: str, exponent: Expression) -> str | None:
    """Powers by constants that PyTorch computes without pow."""
    if not isinstance(exponent, Constant):
        return None
    return {
        0.5: f"kw_sqrt({base})",
        -0.5: f"(real(1) / kw_sqrt({base}))",
        1.0: base,
        2.0: f"({base} * {base})",
        3.0: f"({base} * {base} * {base})",
        -1.0: f"(real(1) / {base})",
        -2.0: f"(real(1) / ({base} * {base}))",
    }.get(exponent.value)


class Scope:
    """The expressions that have a name at one place of the generated text.

    ``prefix`` starts the names; a nested scope must use another one.
    """

    def __init__(self, prefix: str, bound: dict[Expression, str] | None = None) -> None:
        self.prefix = prefix
        self.bound: dict[Expression, str] = dict(bound or {})
        self._count = 0

    def nested(self, prefix: str) -> Scope:
        """A scope inside this one."""
        return Scope(prefix, self.bound)

    def define(
        self,
        roots: Iterable[Expression],
        load_text: LoadText,
        only: Callable[[Expression], bool] = lambda node: True,
    ) -> list[str]:
        """Definitions of every unnamed subexpression of ``roots`` for which ``only`` holds."""
        lines: list[str] = []
        for root in roots:
            self._visit(root, load_text, only, lines)
        return lines

    def _visit(self, node: Expression, load_text: LoadText, only, lines: list[str]) -> None:
        if node in self.bound or isinstance(node, Constant):
            return
        if isinstance(node, Apply):
            for argument in node.arguments:
                self._visit(argument, load_text, only, lines)
        if isinstance(node, Reduced) or not only(node):
            return
        name = f"{self.prefix}{self._count}"
        self._count += 1
        text = load_text(node) if isinstance(node, Load) else self._apply(node)
        lines.append(f"const real {name} = {_bare(text)};")
        self.bound[node] = name

    def _apply(self, node: Apply) -> str:
        names = [self.text(argument) for argument in node.arguments]
        if node.function == "pow":
            power = _power(names[0], node.arguments[1])
            if power is not None:
                return power
        text = _EXTRA.get(node.function) or FUNCTIONS[node.function].text
        return text.format(*names)

    def text(self, node: Expression) -> str:
        """The name or literal of ``node``."""
        return literal(node.value) if isinstance(node, Constant) else self.bound[node]


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


def unnamed_loads(roots: Iterable[Expression], bound: dict[Expression, str]) -> list[Load]:
    """The distinct loads that evaluating ``roots`` still has to do."""
    result: dict[Load, None] = {}

    def visit(node: Expression) -> None:
        if node in bound:
            return
        if isinstance(node, Load):
            result[node] = None
        elif isinstance(node, Apply):
            for argument in node.arguments:
                visit(argument)

    for root in roots:
        visit(root)
    return list(result)


def cost(roots: Iterable[Expression]) -> int:
    """Operations of one evaluation of ``roots``, in multiply-adds; a load counts 1."""
    nodes = {node for root in roots for node in walk(root)}
    applied = sum(
        FUNCTIONS[n.function].cost for n in nodes if isinstance(n, Apply) and n.function in FUNCTIONS
    )
    return applied + sum(isinstance(node, Load) for node in nodes)
