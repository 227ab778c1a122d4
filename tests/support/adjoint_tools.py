"""Helpers for the tests of gradients: those of a graph beside those of PyTorch's autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from graph_tools import graph_of

from kernelwright.adjoint.graph import gradients
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.node import Node


def by_pytorch(node: Node, values: dict[str, torch.Tensor], g: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of an operator's torch call."""
    leaves = {i["name"]: values[i["name"]].clone().requires_grad_(i.op == "input" and i.dtype.startswith(("f", "b"))
                                                                  and i.dtype != "bool")
              for i in node.inputs if i.op != "constant"}
    texts = [repr(i["value"]) if i.op == "constant" else f"_values[{i['name']!r}]" for i in node.inputs]
    try:
        text = node.operator.code(texts, node)
    except ValueError:  # it has none: its meaning is what it is differentiated by
        result = node.operator.reference(*leaves.values(), **dict(node.attributes))
    else:
        result = eval(text, {"torch": torch, "F": F, "_values": leaves})
    floating = [v for v in leaves.values() if v.requires_grad]
    found = torch.autograd.grad(result, floating, g)
    return dict(zip([n for n, v in leaves.items() if v.requires_grad], found, strict=True))


def check(node: Node, values: dict[str, torch.Tensor], g: torch.Tensor, tolerance: float = 1e-12) -> None:
    """The gradients by rules are those of PyTorch."""
    graph = graph_of(node)
    places = {i["name"]: n for n, i in enumerate(graph.inputs) if i is not None}
    found = gradients(graph, (0,), range(len(graph.inputs)))
    name = found.graph.inputs[-1]["name"]
    own = evaluate(found.graph.outputs, {**values, name: g})
    expected = by_pytorch(node, values, g)
    for place, value in zip(found.gives, own, strict=True):
        wanted = expected[next(n for n, p in places.items() if p == place)]
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert len(own) == len(expected)
