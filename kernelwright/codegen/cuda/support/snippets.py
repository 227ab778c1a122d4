"""Text shared by the generated CUDA kernels: the checking macros and small device helpers."""

from __future__ import annotations

from collections.abc import Iterable

from kernelwright.codegen.cuda.ptx.sm80 import MMA_SNIPPETS
from kernelwright.codegen.cuda.ptx.sm90 import TENSOR_NEEDS, TENSOR_SNIPPETS
from kernelwright.codegen.source import text_beside

# In the order in which the texts appear in a file: each after the snippets it uses.
SNIPPETS: dict[str, str] = {
    **{name: text_beside(__file__, f"{name}.cuh") for name in (
        "check", "thread_rank", "warp_sum", "block_sum", "maximum", "warp_max", "block_max")},
    **TENSOR_SNIPPETS,
    **MMA_SNIPPETS,
}
"""Snippet texts by name.

``check`` defines ``KW_CHECK``, ``KW_LAUNCH`` and ``KW_DYNAMIC_SHARED``; the others define device
functions named ``kw_`` plus the snippet's name: ``T kw_warp_sum(T)``, ``T kw_block_sum(T)``,
``T kw_warp_max(T)``, ``T kw_block_max(T)`` (T float or double), ``T kw_maximum(T, T)`` and
``unsigned kw_thread_rank()``.
"""

_NEEDS: dict[str, tuple[str, ...]] = {
    "block_sum": ("thread_rank", "warp_sum"),
    "warp_max": ("maximum",),
    "block_max": ("thread_rank", "warp_max"),
    **TENSOR_NEEDS,
}


def snippets(names: Iterable[str] = ()) -> str:
    """Text of the named snippets and of those they use, each once, in a fixed order, ``check`` always first.

    Raises ValueError for a name that ``SNIPPETS`` lacks.
    """
    wanted = {"check"}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in SNIPPETS:
            raise ValueError(f"unknown CUDA snippet {name!r}; there are {', '.join(SNIPPETS)}")
        if name not in wanted:
            wanted.add(name)
            pending.extend(_NEEDS.get(name, ()))
    return "\n".join(text for name, text in SNIPPETS.items() if name in wanted)
