"""What is known to be wrong with models of the tables: each leaves this list with what mends it."""

from __future__ import annotations

#: Names of models by what is wrong with them.
_KNOWN: dict[str, tuple[str, ...]] = {
    "has infinities where PyTorch's vectors have NaN": ("signs: functions at their ends",),
}
PENDING: dict[str, str] = {name: words for words, names in _KNOWN.items() for name in names}
