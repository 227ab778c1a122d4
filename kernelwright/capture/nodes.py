"""Nodes of a trace, whose targets and arguments may be anything, as those that they are where the operator is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


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


def first_names(model: torch.nn.Module) -> Callable[[str], str]:
    """What gives for a name of a parameter or buffer the one by the first path of its module, which may stand in
    several places; of a parameter that several modules share the first one's."""
    paths = {module: path for path, module in model.named_modules()}
    shared = {id(parameter): name for name, parameter in model.named_parameters()}

    def first(name: str) -> str:
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        return shared.get(id(getattr(module, own))) or f"{paths[module]}.{own}".lstrip(".")

    return first


def told_of(node: torch.fx.Node, target: str, used: frozenset[int] = frozenset()) -> dict[str, Any]:
    """What converters get beside an operator's arguments: its name, which results are used, and on what it runs."""
    tensors = (t for t in pytree.tree_leaves(node.meta["val"]) if isinstance(t, torch.Tensor))
    return {"operator": target, "results_used": used, "runs_on": next((t.device.type for t in tensors), "")}
