"""Snippets of C++ that generated kernels share: vectorisable scalar functions and accumulators.

Every ``kw_`` function exists for ``float`` and ``double``. The ``float`` forms are branch-free, so
g++ vectorises the ``#pragma omp simd`` loops that call them; the ``double`` forms use the C
library. Text for values (16-bit floats, choices) is in :mod:`kernelwright.codegen.cpp.support.values`, for scalar
functions in :mod:`kernelwright.codegen.cpp.support.math` and :mod:`kernelwright.codegen.cpp.support.elementary`, for
accumulators in :mod:`kernelwright.codegen.cpp.support.rows`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelwright.codegen.cpp.support.elementary import ELEMENTARY_SNIPPETS
from kernelwright.codegen.cpp.support.math import FUNCTION_SNIPPETS
from kernelwright.codegen.cpp.support.rows import ROW_SNIPPETS
from kernelwright.codegen.cpp.support.scans import SCAN_SNIPPETS
from kernelwright.codegen.cpp.support.values import VALUE_SNIPPETS

HEADERS = (
    "#include <cmath>\n#include <cstdint>\n#include <cstring>\n#include <limits>\n#include <type_traits>\n"
)

SNIPPETS: dict[str, str] = {
    **VALUE_SNIPPETS, **FUNCTION_SNIPPETS, **ELEMENTARY_SNIPPETS, **ROW_SNIPPETS, **SCAN_SNIPPETS}
"""Name to text. A snippet uses only snippets that precede it."""

_NAME = re.compile(r"\bkw_\w+")
_ALIASES = {"kw_arc_sine": "kw_arc", "kw_origin": "kw_rescale", "kw_unfused_sub": "kw_unfused_add",
            "kw_near": "kw_far", "kw_reach": "kw_far",
            "kw_unfused_neg": "kw_unfused_add", "kw_quotient": "kw_divisor"}


def used_snippets(text: str) -> tuple[str, ...]:
    """The names of the snippets that ``text`` mentions, in the order of SNIPPETS."""
    mentioned = {_ALIASES.get(name, name) for name in _NAME.findall(text)}
    return tuple(name for name in SNIPPETS if name in mentioned)


def snippets(names: Iterable[str]) -> str:
    """The headers, then the snippets ``names`` and all they use, each once, in a valid order.

    Raises KeyError for an unknown name.
    """
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending.extend(used_snippets(SNIPPETS[name]))
    return "\n".join([HEADERS, *(SNIPPETS[name] for name in SNIPPETS if name in needed)])
