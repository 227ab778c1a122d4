"""Evaluate a graph with the operators' torch references: the meaning that everything is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kernelwright.ir import ops as _ops  # noqa: F401  (fills the registry)
from kernelwright.ir.node import Node, walk
from kernelwright.ir.ops.leaves import literal_tensor


def as_stored(leaf: Node, value: torch.Tensor) -> torch.Tensor:
    """The model's tensor as its leaf has it: with the axes in the order of memory."""
    order = leaf.get("order")
    return value if order is None else value.permute(order)


def logical_shape(leaf: Node) -> tuple[int, ...]:
    """The shape of the model's own tensor."""
    order = leaf.get("order")
    return leaf.shape if order is None else tuple(leaf.shape[order.index(a)] for a in range(leaf.rank))


def evaluate(roots: Iterable[Node], values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> list[Any]:
    """The values of ``roots``. ``values`` binds leaves by name; floating ones are cast to ``dtype`` if given."""
    roots = list(roots)
    results: dict[Node, Any] = {}
    for node in walk(roots):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = literal_tensor(node)
        elif node.kind == "leaf":
            value = as_stored(node, values[node["name"]])
            results[node] = value.to(dtype) if dtype is not None and value.is_floating_point() else value
        else:
            attributes = dict(node.attributes)
            results[node] = node.operator.reference(*(results[i] for i in node.inputs), **attributes)
    return [results[root] for root in roots]
