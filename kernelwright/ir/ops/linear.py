"""Contractions: linear, matmul, convolution and transposed convolution, 1-D to 3-D."""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, stride: tuple[int, ...],
                padding: tuple[int, ...], dilation: tuple[int, ...], groups: int, transposed: bool,
                output_padding: tuple[int, ...], exact: bool = False, recompute: bool = False) -> torch.Tensor:
    """torch.convolution: weight is (out, in/groups, *kernel), or (in, out/groups, *kernel) where transposed.

    exact: in true float32 where the library would round its operands to TF32. Rules ask for it: they take
    away the averaging of many rounded values that made the original accurate. recompute: the same once more, of pass 2
    where plans recompute it.
    """
    return torch.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)


def _convolution_code(inputs: list[str], node: Applied) -> str:
    rank = len(node["stride"])
    bias = inputs[2] if len(inputs) > 2 else "None"
    shared = f"{inputs[0]}, {inputs[1]}, {bias}, {node['stride']}, {node['padding']}"
    if node["transposed"]:
        return f"F.conv_transpose{rank}d({shared}, {node['output_padding']}, {node['groups']}, {node['dilation']})"
    return f"F.conv{rank}d({shared}, {node['dilation']}, {node['groups']})"


def _convolution_operations(node: Applied) -> int:
    x, weight = node.inputs[:2]
    positions = prod(x.shape[2:]) if node["transposed"] else prod(node.shape[2:])
    return 2 * node.shape[0] * positions * weight.size


def _linear_code(inputs: list[str], node: Applied) -> str:
    return f"F.linear({', '.join(inputs)})"


declare("convolution", "linear", convolution, _convolution_code, operations=_convolution_operations, linear_in=(0, 1))
declare("linear", "linear", F.linear, _linear_code,
        operations=lambda node: 2 * node.size * node.inputs[0].shape[-1], linear_in=(0, 1))
def _matmul(a: torch.Tensor, b: torch.Tensor, *, batch: bool = False) -> torch.Tensor:
    """A product; with ``batch`` of two matrices as a batch of one, of which libraries add the terms in another order,
    in which what vanishes may get another sign."""
    return torch.bmm(a[None], b[None])[0] if batch else torch.matmul(a, b)


def _matmul_code(inputs: list[str], node: Applied) -> str:
    left, right = inputs
    return f"torch.bmm({left}[None], {right}[None])[0]" if node.get("batch") else f"torch.matmul({left}, {right})"


declare("matmul", "linear", _matmul, _matmul_code,
        operations=lambda node: 2 * node.size * node.inputs[0].shape[-1], linear_in=(0, 1))
declare("contract", "linear", lambda a, b, *, equation: torch.einsum(equation, a, b),
        'torch.einsum("{equation}", {0}, {1})', operations=lambda node: 2 * _contract_points(node), linear_in=(0, 1))


def _contract_points(node: Applied) -> int:
    """Number of multiply-adds of a contraction: the product of the sizes of all its letters."""
    terms = node["equation"].split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, node.inputs, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))  # a size of one broadcasts
    return prod(sizes.values())
