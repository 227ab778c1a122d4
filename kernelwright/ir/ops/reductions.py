"""Reductions over ``axes`` (sorted, non-negative), and the operators that normalise over a row."""

from __future__ import annotations

import torch

from kernelwright.ir.registry import Applied, declare

_CALLS = {
    "sum": "{0}.sum({axes}, keepdim={keepdim})",
    "mean": "{0}.mean({axes}, keepdim={keepdim})",
    "amax": "torch.amax({0}, {axes}, keepdim={keepdim})",
    "amin": "torch.amin({0}, {axes}, keepdim={keepdim})",
    "logsumexp": "torch.logsumexp({0}, {axes}, keepdim={keepdim})",
}
for _name, _function, _linear in (("sum", torch.sum, (0,)), ("mean", torch.mean, (0,)), ("amax", torch.amax, ()),
                                  ("amin", torch.amin, ()), ("logsumexp", torch.logsumexp, ())):
    declare(_name, "reduction", lambda x, *, axes, keepdim, function=_function: function(x, axes, keepdim=keepdim),
            _CALLS[_name], operations=lambda node, cost=10 if _name == "logsumexp" else 1: cost * node.inputs[0].size,
            linear_in=_linear)


def product(x: torch.Tensor, *, axes: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    """Products, of integers and truth values in int64. PyTorch takes one axis or all of them."""
    if not axes:
        return x.prod()
    for axis in reversed(axes):
        x = x.prod(axis, keepdim)
    return x


def _product_code(inputs: list[str], node: Applied) -> str:
    if len(node["axes"]) == node.inputs[0].rank and not node["keepdim"]:
        return f"{inputs[0]}.prod()"
    return inputs[0] + "".join(f".prod({axis}, {node['keepdim']})" for axis in reversed(node["axes"]))


declare("prod", "reduction", product, _product_code, operations=lambda node: node.inputs[0].size)
for _name, _function in (("var", torch.var), ("std", torch.std)):
    # The deviation is in range where the variance, whose root it is, is not.
    declare(_name, "reduction",
            lambda x, *, axes, keepdim, correction, function=_function: function(x, axes, correction=correction,
                                                                                keepdim=keepdim),
            f"torch.{_name}({{0}}, {{axes}}, correction={{correction}}, keepdim={{keepdim}})",
            operations=lambda node: 4 * node.inputs[0].size)
for _name, _function in (("argmax", torch.argmax), ("argmin", torch.argmin)):
    # Over the one axis in ``axes``: the place of the first extremum, NaN before numbers.
    declare(_name, "reduction", lambda x, *, axes, keepdim, function=_function: function(x, axes[0], keepdim),
            lambda inputs, node: f"torch.{node.op}({inputs[0]}, {node['axes'][0]}, keepdim={node['keepdim']})",
            operations=lambda node: node.inputs[0].size)
declare("softmax", "row", lambda x, *, axis: torch.softmax(x, axis), "torch.softmax({0}, {axis})",
        operations=lambda node: 14 * node.size)
declare("log_softmax", "row", lambda x, *, axis: torch.log_softmax(x, axis), "torch.log_softmax({0}, {axis})",
        operations=lambda node: 14 * node.size)
