"""Converters of losses, distances and vector norms (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from typing import Any

import torch

from kernelwright.capture.converters.table import Arguments, NotConvertible, axes_of, converts, float_only, held
from kernelwright.ir.node import Node, make
from kernelwright.ir.ops.losses import REDUCTIONS


def _loss(a: Arguments, inputs: tuple[str, ...], **attributes: Any) -> Node:
    """A loss of floating inputs, named after its torch operator."""
    nodes = [float_only(a[name]) for name in inputs]
    if len({n.dtype for n in nodes}) != 1:  # PyTorch's own rules for the result's type contradict each other
        raise NotConvertible("operands of several types")
    return make(a["operator"].split(".")[0], *nodes, reduction=REDUCTIONS[a["reduction"]], **attributes)


def _least(a: Arguments, *names: str) -> float:
    """The number that keeps a denominator or a logarithm from zero, as the operands' type holds it: where that takes it
    for zero, eager divides by zero."""
    kinds = {a[name].dtype for name in names}
    return held(float(a["eps"]), kinds.pop()) if len(kinds) == 1 else float(a["eps"])


def _optionals(a: Arguments, names: tuple[str, ...]) -> tuple[tuple[str, ...], list[Node]]:
    present = tuple(n for n in names if a[n] is not None)
    return present, [float_only(a[n]) for n in present]


@converts("broadcast_tensors.default")
def _broadcast_tensors(a: Arguments) -> tuple[Node, ...]:
    shape = tuple(torch.broadcast_shapes(*(t.shape for t in a["tensors"])))
    return tuple(t if t.shape == shape else make("expand", t, shape=shape) for t in a["tensors"])


@converts("mse_loss.default", "l1_loss.default", "soft_margin_loss.default")
def _plain(a: Arguments) -> Node:
    return _loss(a, ("self", "target"))


@converts("smooth_l1_loss.default")
def _smooth_l1(a: Arguments) -> Node:
    return _loss(a, ("self", "target"), beta=float(a["beta"]))


@converts("huber_loss.default")
def _huber(a: Arguments) -> Node:
    return _loss(a, ("self", "target"), delta=float(a["delta"]))


@converts("kl_div.default")
def _kl_div(a: Arguments) -> Node:
    return _loss(a, ("self", "target"), log_target=a["log_target"])


@converts("hinge_embedding_loss.default")
def _hinge_embedding(a: Arguments) -> Node:
    return _loss(a, ("self", "target"), margin=float(a["margin"]))


@converts("margin_ranking_loss.default", "cosine_embedding_loss.default")
def _of_three(a: Arguments) -> Node:
    return _loss(a, ("input1", "input2", "target"), margin=float(a["margin"]))


@converts("triplet_margin_loss.default")
def _triplet_margin(a: Arguments) -> Node:
    return _loss(a, ("anchor", "positive", "negative"), margin=float(a["margin"]), p=float(a["p"]),
                 eps=_least(a, "anchor", "positive", "negative"), swap=a["swap"])


@converts("poisson_nll_loss.default")
def _poisson_nll(a: Arguments) -> Node:
    return _loss(a, ("input", "target"), log_input=a["log_input"], full=a["full"], eps=_least(a, "input"))


@converts("binary_cross_entropy.default", "binary_cross_entropy_with_logits.default")
def _binary_cross_entropy(a: Arguments) -> Node:
    given, rest = _optionals(a, tuple(n for n in ("weight", "pos_weight") if n in a))
    nodes = [float_only(a["self"]), float_only(a["target"]), *rest]
    return make(a["operator"].split(".")[0], *nodes, optionals=given, reduction=REDUCTIONS[a["reduction"]])


@converts("cross_entropy_loss.default")
def _cross_entropy(a: Arguments) -> Node:
    given, rest = _optionals(a, ("weight",))
    return make("cross_entropy_loss", float_only(a["self"]), a["target"], *rest, optionals=given,
                reduction=REDUCTIONS[a["reduction"]], ignore=a["ignore_index"], smoothing=float(a["label_smoothing"]))


@converts("nll_loss.default", "nll_loss_nd.default", "nll_loss2d.default")
def _nll(a: Arguments) -> Node:
    given, rest = _optionals(a, ("weight",))
    return make("nll_loss", float_only(a["self"]), a["target"], *rest, optionals=given,
                reduction=REDUCTIONS[a["reduction"]], ignore=a["ignore_index"])


@converts("cosine_similarity.default")
def _cosine_similarity(a: Arguments) -> Node:
    return make("cosine_similarity", float_only(a["x1"]), float_only(a["x2"]), axis=a["dim"],
                eps=_least(a, "x1", "x2"))


@converts("pairwise_distance.default")
def _pairwise_distance(a: Arguments) -> Node:
    return make("pairwise_distance", float_only(a["x1"]), float_only(a["x2"]), p=float(a["p"]),
                eps=_least(a, "x1", "x2"), keepdim=a["keepdim"])


@converts("linalg_vector_norm.default", "linalg_norm.default", "norm.Scalar", "norm.ScalarOpt_dim")
def _vector_norm(a: Arguments) -> Node:
    x = float_only(next(iter(a.values())))
    if a.get("dtype") is not None:
        raise NotConvertible("norm in another type")
    order, over = a.get("ord", a.get("p")), a.get("dim")
    matrix = a["operator"].startswith("linalg_norm") and order is not None and len(axes_of(over, x.rank)) == 2
    if matrix or x.rank == 0:
        raise NotConvertible("a norm of a matrix")
    return make("vector_norm", x, ord=2.0 if order is None else float(order), axes=axes_of(over, x.rank),
                keepdim=bool(a.get("keepdim", False)))
