"""Composite operators that are differentiated in a form of other operators: PyTorch's own composition, or a formula
whose derivative is PyTorch's, at kinks, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

from kernelwright.adjoint.lookups import PICKING
from kernelwright.algebra.build import NARROW, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, constant, make
from kernelwright.plan.lowering import losses
from kernelwright.plan.lowering.attention import ATTENTION, operands_of


def _cross_entropy(node: Node) -> Node | None:
    """The negative log-likelihood of log_softmax; with probabilities as targets the sum of products."""
    x, target, *rest = node.inputs
    if target.dtype != "int64":
        return losses.cross_entropy(node)
    if node["smoothing"] > 0:
        return losses.smoothed_cross_entropy(node)
    return make("nll_loss", make("log_softmax", x, axis=losses.class_axis(x)), target, *rest,
                optionals=node["optionals"], reduction=node["reduction"], ignore=node["ignore"])


def _pairwise_distance(node: Node) -> Node:
    """The norm of x - y + eps."""
    gap = make("add", make("sub", *node.inputs), constant(node["eps"]))
    return make("vector_norm", gap, ord=node["p"], axes=(gap.rank - 1,), keepdim=node["keepdim"])


def _triplet_margin(node: Node) -> Node:
    """max(0, margin + |a - p| - |a - n|), of the nearer of |a - n| and |p - n| where they are swapped."""
    def apart(x: Node, y: Node) -> Node:
        return _pairwise_distance(make("pairwise_distance", x, y, p=node["p"], eps=node["eps"], keepdim=False))

    anchor, positive, negative = node.inputs
    far = apart(anchor, negative)
    if node["swap"]:
        far = make("minimum", far, apart(positive, negative))
    gap = make("sub", make("add", apart(anchor, positive), constant(node["margin"])), far)
    return losses.reduced(make("clamp_min", gap, constant(0.0)), node["reduction"])


def _attention(node: Node) -> Node | None:
    """Products and a softmax, those of 16 bits in float32. Rows in which a mask leaves nothing are zero, and so are
    their gradients."""
    given = operands_of(node) if node["target"] == ATTENTION else None
    if given is None:
        return None
    query, key, value = (cast(n, "float32") if n.dtype in NARROW else n for n in (given.query, given.key, given.value))
    mask = given.mask
    given = replace(given, query=query, key=key, value=value,
                    mask=cast(mask, "float32") if mask is not None and mask.dtype in NARROW else mask)
    score = given.score()
    if given.causal:
        rows, columns = (reshape(make("places", count=score.shape[a]),
                                 tuple(score.shape[a] if other == a else 1 for other in range(score.rank)))
                         for a in (score.rank - 2, score.rank - 1))
        score = make("where", make("ge", rows, columns), score, constant(-inf))
    if given.mask is None:
        weights = make("softmax", score, axis=score.rank - 1)
    else:
        is_empty = make("eq", reduce("amax", score, (score.rank - 1,)), constant(-inf))
        weights = make("softmax", make("where", is_empty, constant(0.0), score), axis=score.rank - 1)
        weights = make("where", is_empty, constant(0.0), weights)
    return cast(make("matmul", weights, given.value), node.dtype)


def _picked(node: Node) -> Node | None:
    """Elements by their numbers, to which gradients go."""
    call, = node.inputs
    place = PICKING.get(call.get("target", ""))
    if place is None or node["index"] != 0 or len(call.inputs) != 1:
        return None
    template, x = call["template"], call.inputs[0]
    axis = dict(call["keywords"]).get("dim", template[place] if place < len(template) else -1)
    if not x.rank or node.rank != x.rank:
        return None
    kinds = ((node.shape, node.dtype), (node.shape, "int64"))
    both = make("opaque", x, target=call["target"], template=template, keywords=call["keywords"], shape=(),
                dtype="tuple", types=kinds, serial=-1)
    return make("gather", x, make("item", both, index=1, shape=node.shape, dtype="int64"), axis=axis % x.rank)


FORMS: dict[str, Callable[[Node], Node | None]] = {
    "l1_loss": losses.absolute,
    "binary_cross_entropy_with_logits": losses.binary_cross_entropy_with_logits,
    "cross_entropy_loss": _cross_entropy, "nll_loss": losses.nll,
    "hinge_embedding_loss": losses.hinge_embedding, "margin_ranking_loss": losses.margin_ranking,
    "cosine_embedding_loss": losses.cosine_embedding, "poisson_nll_loss": losses.poisson_nll,
    "pairwise_distance": _pairwise_distance, "triplet_margin_loss": _triplet_margin, "opaque": _attention,
    "item": _picked,
}


def form_of(node: Node) -> Node:
    """The node, or the form in which it is differentiated, which may hold composites."""
    form = FORMS[node.op](node) if node.op in FORMS else None
    return node if form is None else form
