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


def evaluate(roots: Iterable[Node], values: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None,
             device: torch.device | None = None) -> list[Any]:
    """The values of ``roots``. ``values`` binds leaves by name; floating ones are cast to ``dtype`` if given. device:
    where tensors are made that a graph makes on the device of its model."""
    roots = list(roots)
    results: dict[Node, Any] = {}
    for node in walk(roots):
        if node.op == "constant":
            results[node] = node["value"]
        elif node.op == "literal":
            results[node] = literal_tensor(node, device)
        elif node.kind == "leaf":
            value = as_stored(node, values[node["name"]])
            results[node] = value.to(dtype) if dtype is not None and value.is_floating_point() else value
        else:
            attributes = dict(node.attributes)
            if device is not None and node.op == "opaque":
                attributes = {name: _on(value, device) if name in ("template", "keywords") else value
                              for name, value in attributes.items()}
            results[node] = node.operator.reference(*(results[i] for i in node.inputs), **attributes)
    return [results[root] for root in roots]


def _on(template: Any, device: torch.device) -> Any:
    """A call's template that names ``device`` wherever it names one."""
    if not isinstance(template, tuple):
        return template
    is_device = len(template) == 2 and template[0] == "device" and isinstance(template[1], str)
    return ("device", str(device)) if is_device else tuple(_on(part, device) for part in template)
