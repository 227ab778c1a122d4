"""Composite operators that are differentiated in a form of other operators: PyTorch's own composition, or a formula
whose derivative is PyTorch's, at kinks, too."""

from __future__ import annotations

from collections.abc import Callable

from kernelwright.ir.node import Node, make
from kernelwright.plan.lowering import losses


def _cross_entropy(node: Node) -> Node | None:
    """The negative log-likelihood of log_softmax; with probabilities as targets the sum of products."""
    x, target, *rest = node.inputs
    if target.dtype != "int64":
        return losses.cross_entropy(node)
    if node["smoothing"] > 0:
        return None
    return make("nll_loss", make("log_softmax", x, axis=losses.class_axis(x)), target, *rest,
                optionals=node["optionals"], reduction=node["reduction"], ignore=node["ignore"])


FORMS: dict[str, Callable[[Node], Node | None]] = {
    "mse_loss": losses.mse, "l1_loss": losses.absolute,
    "binary_cross_entropy_with_logits": losses.binary_cross_entropy_with_logits,
    "cross_entropy_loss": _cross_entropy, "nll_loss": losses.nll,
}


def form_of(node: Node) -> Node:
    """The node, or the form in which it is differentiated, which may hold composites."""
    form = FORMS[node.op](node) if node.op in FORMS else None
    return node if form is None else form
