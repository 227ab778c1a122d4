"""What calls of PyTorch's want of the memory of their operands.

A model that asks for contiguous memory between a view and a call does so for that call: capture keeps of it that the
values are the same, and views go to calls as they lie.
"""

from __future__ import annotations

from kernelwright.algebra.views import chain_below, laid_out
from kernelwright.ir.node import Node, make, rebuild

# Fused attention takes operands, masks too, whose last axis is dense; without that all of its scores are stored.
_DENSE_LAST = ("aten.scaled_dot_product_attention",)


def with_dense_operands(node: Node) -> Node:
    """The call with a copy of each view in whose memory the neighbours of the last axis lie apart."""
    if node.op != "opaque" or not node["target"].startswith(_DENSE_LAST):
        return node
    inputs = tuple(make("copy", i, origin=node.origin) if _is_apart(i) else i for i in node.inputs)
    return rebuild(node, inputs) if inputs != node.inputs else node


def _is_apart(node: Node) -> bool:
    if node.kind != "view" or not node.rank or node.shape[-1] == 1:
        return False
    strides, _ = laid_out(*chain_below(node))
    return strides[-1] > 1
