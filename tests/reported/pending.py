"""What is known to be wrong with models of the tables: each leaves this list with what mends it."""

from __future__ import annotations

#: Names of models by what is wrong with them.
_KNOWN: dict[str, tuple[str, ...]] = {
    "does not take PyTorch's fast path": ("attention: a bias of attention",),
    "gives up kernels for the sign of a tie of zeros, which PyTorch chooses by place": (
        "gradients: more of where functions turn",
        "signs: bounds of both zeros",
    ),
    "is called another computation than in float64": (
        "dtypes: log probabilities of bfloat16", "norms: layer norm at the end of the range",
        "norms: lengths of huge and tiny vectors",
    ),
    "has infinities where PyTorch's vectors have NaN": ("signs: functions at their ends",),
}
PENDING: dict[str, str] = {name: words for words, names in _KNOWN.items() for name in names}
