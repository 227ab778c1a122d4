"""Nodes of a trace, whose targets and arguments may be anything, as those that they are where the operator is known."""

from __future__ import annotations

import torch


def operator_of(node: torch.fx.Node) -> torch._ops.OpOverload:
    """The operator that a node calls, where it calls one."""
    assert isinstance(node.target, torch._ops.OpOverload), node.target
    return node.target


def operand_of(node: torch.fx.Node, place: int) -> torch.fx.Node:
    """The argument at a place, where that is another node."""
    operand = node.args[place]
    assert isinstance(operand, torch.fx.Node), operand
    return operand


def item_of(node: torch.fx.Node) -> tuple[torch.fx.Node, int]:
    """Of which node's results a node picks one, and which."""
    index = node.args[1]
    assert isinstance(index, int), index
    return operand_of(node, 0), index
