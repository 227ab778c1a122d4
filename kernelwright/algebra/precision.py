"""Rounding late: small values that were computed in float64 stay so until they meet something large.

What is left of a collapsed operator has few elements, and what follows often subtracts two of them
(a batch norm's mean, for one). PyTorch's own result averages many rounded values, so rounding each sum to
float32 at once would be less accurate than the original.
"""

from __future__ import annotations

from kernelwright.algebra.collapse import cast
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make
from kernelwright.ir.scalar import FUNCTIONS

_MOST_ELEMENTS = 1 << 20
# A jump turns a rounding into a whole step: these see what PyTorch's see.
_JUMPS = ("floor", "ceil", "round", "trunc", "sign", "eq", "ne", "lt", "le", "gt", "ge")


def _rounded(node: Node) -> bool:
    return node.op == "cast" and node.dtype == "float32" and node.inputs[0].dtype == "float64"


@rule("round late", *(name for name in FUNCTIONS if name not in _JUMPS), "sum", "mean", "amax", "amin", "logsumexp",
      "reshape", "permute",
      law="f(round(x)) = round(f(x)) up to the rounding of x", condition="x is small, and f does not make it larger",
      exactness=Exactness.ROUNDING)
def round_late(node: Node, context: Context) -> Node | None:
    rounded = [i for i in node.inputs if _rounded(i)]
    if not rounded or node.dtype != "float32" or node.size > min(_MOST_ELEMENTS, max(i.size for i in rounded)):
        return None
    if any(i.dtype not in ("float32", "float64", "bool", "scalar") for i in node.inputs):
        return None
    inputs = (i.inputs[0] if i in rounded else i for i in node.inputs)
    result = make(node.op, *inputs, origin=node.origin, **dict(node.attributes))
    return cast(result, "float32") if result.dtype == "float64" else None


PRECISION: tuple[Rule, ...] = (round_late,)
