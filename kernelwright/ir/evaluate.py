"""Evaluate a graph with the operators' torch references: the meaning that everything is checked against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kernelwright.ir import ops as _ops  # noqa: F401  (fills the registry)
from kernelwright.ir.node import Node, walk


def evaluate(roots: Iterable[Node], values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> list[Any]:
    """The values of ``roots``. ``values`` binds leaves by name; floating ones are cast to ``dtype`` if given."""
    roots = list(roots)
    results: dict[Node, Any] = {}
    for node in walk(roots):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = torch.tensor(node["value"], dtype=getattr(torch, node["dtype"]))
        elif node.kind == "leaf":
            value = values[node["name"]]
            results[node] = value.to(dtype) if dtype is not None and value.is_floating_point() else value
        else:
            attributes = dict(node.attributes)
            results[node] = node.operator.reference(*(results[i] for i in node.inputs), **attributes)
    return [results[root] for root in roots]
