"""Pointwise operators: every scalar function of :mod:`kernelwright.ir.scalar`, broadcast over tensors."""

from __future__ import annotations

from dataclasses import replace

from kernelwright.ir.registry import declare
from kernelwright.ir.scalar import FUNCTIONS, WHOLE_FUNCTIONS, ScalarFunction

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
          "ge": ">="}
_CALLS = {
    "gelu_erf": "F.gelu({0})", "gelu_tanh": 'F.gelu({0}, approximate="tanh")', "silu": "F.silu({0})",
    "mish": "F.mish({0})", "hardswish": "F.hardswish({0})", "hardsigmoid": "F.hardsigmoid({0})",
    "softsign": "F.softsign({0})", "logsigmoid": "F.logsigmoid({0})", "selu": "F.selu({0})",
    "leaky_relu": "F.leaky_relu({0}, {1})", "prelu": "F.prelu({0}, {1}.reshape(-1))",
    "elu": "F.elu({0}, {1})", "celu": "F.celu({0}, {1})",
    "softplus": "F.softplus({0}, {1}, {2})", "threshold": "F.threshold({0}, {1}, {2})",
    "softshrink": "F.softshrink({0}, {1})", "hardshrink": "F.hardshrink({0}, {1})", "neg": "(-{0})",
    "where": "torch.where({0}, {1}, {2})", "erfcx": "torch.special.erfcx({0})", "multiply_add": "({0} * {1} + {2})",
    "trunc_divide": 'torch.div({0}, {1}, rounding_mode="trunc")',
    "nan_to_num": "torch.nan_to_num({0}, {1}, {2}, {3})",
}
_LINEAR = {"add": (0, 1), "sub": (0, 1), "mul": (0, 1), "div": (0,), "neg": (0,)}


def _template(function: ScalarFunction) -> str:
    if function.name in _INFIX:
        return f"({{0}} {_INFIX[function.name]} {{1}})"
    if function.name in _CALLS:
        return _CALLS[function.name]
    arguments = ", ".join(f"{{{i}}}" for i in range(function.arity))
    return f"torch.{function.name}({arguments})"


for _function in FUNCTIONS.values():
    declare(_function.name, "pointwise", _function.reference, _template(_function),
            operations=lambda node, cost=_function.cost: cost * node.size, linear_in=_LINEAR.get(_function.name, ()))
# Of integers only.
for _name, _function in WHOLE_FUNCTIONS.items():
    if _name not in FUNCTIONS:
        declare(_name, "pointwise", _function.reference, _template(replace(_function, name=_name)))
