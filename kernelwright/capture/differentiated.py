"""What graphs that are differentiated tell apart, and graphs of values do not: tensors through which no gradient goes,
and calls of one function with the same operands.

Such a tensor (of ``detach``, or made where gradients are not recorded) is a node of its own, ``detached``.

Of calls with the same operands a graph holds one. Eager multiplies the gradient of each by the derivative, and adds
then: a graph that has one node for both adds first. Where a derivative is infinite that is something else: at zero,
two calls of a square root have the gradients 0 / 0 and g / 0, whose sum is NaN, and (0 + g) / 0 is infinite. So each
further call of a function whose derivative has no bound gets its operands as nodes of their own, ``again``, which are
the operands' values.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from kernelwright.capture.tracing import RECORDS
from kernelwright.ir.node import Node, make

#: Functions with derivatives beyond all bounds at values that a model may meet, by PyTorch's names.
_UNBOUNDED = frozenset((
    *(f"{name}.default" for name in (
        "sqrt", "rsqrt", "reciprocal", "log", "log1p", "log2", "log10", "asin", "acos", "acosh", "atanh", "arcsin",
        "arccos", "arccosh", "arctanh", "hypot", "addcdiv")),
    "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "div.Tensor", "divide.Tensor", "true_divide.Tensor",
    "xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self"))


def recorded(node: torch.fx.Node, value: Any) -> Any:
    """The value of a node of a trace, as gradients see it."""
    if isinstance(value, Node) and "float" in value.dtype and not node.meta.get(RECORDS, True):
        return make("detached", value)
    return value


def is_detached(node: torch.fx.Node) -> bool:
    """Whether gradients do not go through a node of a trace."""
    return node.target is torch.ops.aten.detach.default or not node.meta.get(RECORDS, True)


class Repeated:
    """Which calls there were so far. any: whether one was made again. marks: whether such a call gets operands of its
    own."""

    def __init__(self, *, marks: bool) -> None:
        self.any, self._marks, self._calls = False, marks, Counter[tuple[Node, ...]]()

    def operands(self, target: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call, by their names, as a graph has them."""
        if target.replace("_.", ".") not in _UNBOUNDED or _is_smooth(arguments.get("exponent")):
            return arguments
        # By the operands alone: functions of several names (div, true_divide; sqrt, pow) may be one node.
        given = tuple(value for value in arguments.values() if isinstance(value, Node))
        number = self._calls[given]
        self._calls[given] += 1
        if not number:
            return arguments
        self.any = True
        return arguments if not self._marks else {
            name: make("again", value, number=number) if isinstance(value, Node) and "float" in value.dtype else value
            for name, value in arguments.items()}


def _is_smooth(exponent: Any) -> bool:
    """Whether it is a number by which powers have a derivative everywhere."""
    return isinstance(exponent, (int, float)) and exponent >= 1
