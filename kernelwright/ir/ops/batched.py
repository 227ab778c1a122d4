"""Batched products: many products of small matrices, with what operands are made of and what becomes of results.

Only planning introduces them, of products of batches (:mod:`kernelwright.plan.lowering.batched`); they have no torch
call and need their kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.recurrence import evaluated
from kernelwright.ir.ops.special import not_torch
from kernelwright.ir.registry import Applied, declare


@dataclass(frozen=True, slots=True, repr=False)
class ProductForm:
    """A product as a graph of its own.

    operands: a leaf for each input. product: the product, of what is made of operands. result: what is made of it,
    element by element, and shown by views that have each element once.
    """

    operands: tuple[Node, ...]
    product: Node
    result: Node

    def __repr__(self) -> str:
        """All that tells this form from others: every node by its number."""
        words = {leaf: f"operand{n}" for n, leaf in enumerate(self.operands)}
        numbers: dict[Node, int] = {}
        parts = []
        for node in walk((*words, self.result)):
            numbers[node] = len(numbers)
            shown = words.get(node) or f"{node.op}{[numbers[i] for i in node.inputs]}{node.attributes}"
            parts.append(f"{shown} {node.dtype}{list(node.shape)}")
        return f"ProductForm<{'; '.join(parts)}; {numbers[self.product]}>"


def batched_product(*inputs: torch.Tensor, form: ProductForm) -> torch.Tensor:
    """The result of a form whose operands are ``inputs``."""
    if inputs[0].is_meta:
        return inputs[0].new_empty(form.result.shape, dtype=getattr(torch, form.result.dtype))
    (result,) = evaluated([form.result], dict(zip(form.operands, inputs, strict=True)), inputs[0].device)
    return result


def _operations(node: Applied) -> int:
    form: ProductForm = node["form"]
    return sum(n.operator.operations(n) for n in walk((form.result,)))


declare("batched_product", "special", batched_product, not_torch, operations=_operations)

__all__ = ["ProductForm", "batched_product"]
