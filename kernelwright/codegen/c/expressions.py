"""Scalar expressions as C11: one named constant per distinct subexpression.

C has neither templates nor overloads: a function of a kernel's type ``real`` has a name for each of the two types, and
what other C-like targets write as ``real(x)`` is a cast.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import isinf, isnan

from kernelwright.codegen.loops.indices import guard_text, index_text
from kernelwright.ir.scalar import KERNEL_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Element, Expression, Load, Reduced, is_whole, walk

#: 16-bit floats are their bits in memory: C has no type that rounds where it is assigned.
TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "int64": "int64_t",
    "int32": "int32_t", "int16": "int16_t", "int8": "int8_t", "uint8": "uint8_t", "bool": "bool",
}
SIXTEEN_BITS = ("float16", "bfloat16")
_CAST = re.compile(r"\b(real|whole|uwhole|float|u?int\d+_t)\(")
_WHOLE = {"whole": "int64_t", "uwhole": "uint64_t"}
_FUNCTION = re.compile(r"\bkw_(?!float16_|bfloat16_)(\w+)\(")


def casts(text: str, compute: str) -> str:
    """The text of a row of :mod:`kernelwright.ir.scalar` in C, for kernels that compute in a type."""
    text = _FUNCTION.sub(rf"kw_\1_{TYPES[compute]}(", text)
    return _CAST.sub(lambda found: f"({_WHOLE.get(found[1], found[1])})(", text)


def literal(value: float) -> str:
    """``value`` as an expression of type real, or of an integer as one of 64 bits."""
    if isinstance(value, int):
        return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"
    if isnan(value):
        return "(real)NAN"
    if isinf(value):
        return "(real)INFINITY" if value > 0 else "(-(real)INFINITY)"
    return f"(real){value!r}" if repr(value)[0] != "-" else f"(-(real){-value!r})"


def value_type(node: Expression) -> str:
    """The C type of a value."""
    return "int64_t" if is_whole(node) else "real"


class Scope:
    """The expressions that have a name at one place of the generated text.

    ``dtypes``: the element type of every input; ``compute``: the type of the kernel's arithmetic; ``names``: of the
    axes. ``prefix`` starts the names of values, which differ between scopes within each other.
    """

    def __init__(self, prefix: str, dtypes: Sequence[str], compute: str, names: Sequence[str],
                 bound: dict[Expression, str] | None = None) -> None:
        self.prefix, self.dtypes, self.compute, self.names = prefix, dtypes, compute, names
        self.bound = dict(bound or {})
        self._count = 0

    def nested(self, prefix: str) -> Scope:
        """A scope inside this one."""
        return Scope(prefix, self.dtypes, self.compute, self.names, self.bound)

    def define(self, roots: Iterable[Expression], only: Callable[[Expression], bool] = lambda node: True) -> list[str]:
        """Definitions of every unnamed subexpression of ``roots`` for which ``only`` holds."""
        lines, guarded = [], False
        for node in walk(*roots, into=lambda node: node not in self.bound):
            if node in self.bound or isinstance(node, (Constant, Reduced)) or not only(node):
                continue
            name = f"{self.prefix}{self._count}"
            self._count += 1
            text = self._loaded(node) if isinstance(node, Load) else self._applied(node)
            lines.append(f"const {value_type(node)} {name} = {text};")
            self.bound[node] = name
            guarded |= isinstance(node, Load) and bool(node.guards)
        if guarded:
            lines.append('__asm__ volatile("");  // not vectorised: gcc 12 loads guarded neighbours wrongly')
        return lines

    def text(self, node: Expression) -> str:
        """The name or literal of ``node``."""
        return literal(node.value) if isinstance(node, Constant) else self.bound[node]

    def _applied(self, node: Apply) -> str:
        if isinstance(node, Element):
            return self._element(node, self.text(node.arguments[0]))
        text = casts(KERNEL_FUNCTIONS[node.function].text, self.compute)
        return text.format(*(self.text(argument) for argument in node.arguments))

    def _loaded(self, load: Load) -> str:
        """The value of a load with its guards tested where it stands."""
        place = index_text(load.index, self.names)
        element = f"({value_type(load)})({place})" if load.counts else self._element(load, place)
        if not load.guards:
            return element
        otherwise = literal(int(load.otherwise) if load.whole else load.otherwise)
        return f"({guard_text(load.guards, self.names)}) ? {element} : {otherwise}"

    def _element(self, node: Load | Element, place: str) -> str:
        """An element of an input as a value."""
        element, dtype = f"in{node.buffer}[{place}]", self.dtypes[node.buffer]
        if dtype in SIXTEEN_BITS:
            element = f"kw_{dtype}_value({element})"
        return f"({value_type(node)}){element}"
