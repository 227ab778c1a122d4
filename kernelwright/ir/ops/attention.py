"""Attention: a product whose results, after a function of each and perhaps a softmax, multiply another operand.

Only planning introduces it, of PyTorch's own operator and of what models write out
(:mod:`kernelwright.plan.lowering.attention`); it has no torch call and needs its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.recurrence import evaluated
from kernelwright.ir.ops.special import not_torch
from kernelwright.ir.registry import Applied, declare, torch_dtype


@dataclass(frozen=True, slots=True, repr=False)
class Form:
    """An attention as a graph of its own.

    operands: a leaf for each input. product: the product of queries and keys, of operands. score: what is made of it.
    weights: a leaf for the softmax of the score along ``axis``, or for the score itself where that is None; one of 16
    bits is rounded to its type, and so are operands of the products, which are float32 up to there. result: the product
    of the weights with values, and shown: that, permuted and reshaped. causal: the score's last two axes are
    rows and columns, the result is a matmul, and columns behind a row's own number are not there: they have no weight,
    whatever stands in them. empty_rows: a row whose scores are all -inf has the result 0.
    """

    operands: tuple[Node, ...]
    product: Node
    score: Node
    weights: Node
    result: Node
    shown: Node
    axis: int | None
    causal: bool = False
    empty_rows: bool = False

    def __repr__(self) -> str:
        """All that tells this form from others: every node by its number."""
        words = {leaf: f"operand{n}" for n, leaf in enumerate(self.operands)} | {self.weights: "weights"}
        numbers: dict[Node, int] = {}
        parts = []
        for node in walk((*words, self.score, self.shown)):
            numbers[node] = len(numbers)
            shown = words.get(node) or f"{node.op}{[numbers[i] for i in node.inputs]}{node.attributes}"
            parts.append(f"{shown} {node.dtype}{list(node.shape)}")
        ends = [numbers[n] for n in (self.product, self.score, self.result, self.shown)]
        return f"Form<{'; '.join(parts)}; {ends} {self.axis} {self.causal} {self.empty_rows}>"


def attention(*inputs: torch.Tensor, form: Form) -> torch.Tensor:
    """The result of a form whose operands are ``inputs``."""
    first = inputs[0]
    if first.is_meta:
        return first.new_empty(form.shown.shape, dtype=torch_dtype(form.shown.dtype))
    leaves = dict(zip(form.operands, inputs, strict=True))
    (score,) = evaluated([form.score], leaves, first.device)
    if form.causal:
        shown = torch.ones(score.shape[-2:], dtype=torch.bool, device=score.device).tril()
        score = score.masked_fill(~shown, 0.0 if form.axis is None else -torch.inf)
    if form.axis is not None:
        empty = torch.isneginf(score).all(form.axis, keepdim=True)
        score = torch.softmax(score, form.axis)
        if form.empty_rows:
            score = score.masked_fill(empty, 0.0)
    leaves[form.weights] = score if score.dtype == torch.float64 else score.to(torch_dtype(form.weights.dtype))
    if form.causal:
        weights, values = evaluated(form.result.inputs, leaves, first.device)
        leaves[form.result] = causal_product(weights, values)
    (result,) = evaluated([form.shown], leaves, first.device)
    return result


def causal_product(weights: torch.Tensor, values: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """The matrix product of weights with values, of which row i has the first i + 1 + ``shift`` columns alone: what is
    not finite elsewhere reaches nothing. Weights of other columns are 0, or NaN in a row that has no columns."""
    if bool(values.isfinite().all()):
        return weights @ values
    rows, columns = weights.shape[-2:]
    ends = [min(max(i + 1 + shift, 0), columns) for i in range(rows)]
    sums = [weights[..., i:i + 1, :end] @ values[..., :end, :] if end else
            weights[..., i:i + 1, :1] @ torch.ones_like(values[..., :1, :]) for i, end in enumerate(ends)]
    return torch.cat(sums, -2)


def _operations(node: Applied) -> int:
    form: Form = node["form"]
    return sum(n.operator.operations(n) for n in walk((form.score, form.shown)))


declare("attention", "special", attention, not_torch, operations=_operations)

__all__ = ["Form", "attention", "causal_product"]
