"""Losses, distances and vector norms in primitives, by the formulas that PyTorch computes.

Sources: aten/src/ATen/native/Loss.cpp, Distance.cpp and ReduceOps.cpp, and the kernels that they call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log, pi

from kernelwright.algebra.build import reduce, reshape
from kernelwright.ir.node import Node, constant, make

Operand = Node | float


def _make(op: str, *operands: Operand) -> Node:
    return make(op, *(o if isinstance(o, Node) else constant(float(o)) for o in operands))


def _add(a: Operand, b: Operand) -> Node:
    return _make("add", a, b)


def _sub(a: Operand, b: Operand) -> Node:
    return _make("sub", a, b)


def _mul(a: Operand, b: Operand) -> Node:
    return _make("mul", a, b)


def _apply(function: str, x: Node) -> Node:
    return make(function, x)


def reduced(value: Node, reduction: str) -> Node:
    """The loss of all elements' losses."""
    if reduction == "none" or not value.rank:
        return value
    return make(reduction, value, axes=tuple(range(value.rank)), keepdim=False)


def mse(node: Node) -> Node:
    """(x - t)^2."""
    return reduced(_apply("square", _sub(*node.inputs)), node["reduction"])


def absolute(node: Node) -> Node:
    """|x - t|."""
    return reduced(_apply("abs", _sub(*node.inputs)), node["reduction"])


def smooth_l1(node: Node) -> Node:
    """d^2 / (2 beta) below beta, d - beta / 2 from there, d = |x - t|."""
    beta = node["beta"]
    if beta == 0:
        return absolute(node)
    d = _apply("abs", _sub(*node.inputs))
    value = _make("where", _make("lt", d, beta), _make("div", _mul(_mul(d, 0.5), d), beta), _sub(d, 0.5 * beta))
    return reduced(value, node["reduction"])


def huber(node: Node) -> Node:
    """d^2 / 2 up to delta, delta (d - delta / 2) from there."""
    delta = node["delta"]
    d = _apply("abs", _sub(*node.inputs))
    value = _make("where", _make("lt", d, delta), _mul(_mul(d, 0.5), d), _mul(_sub(d, 0.5 * delta), delta))
    return reduced(value, node["reduction"])


def kl_div(node: Node) -> Node:
    """t log t - t x with 0 log 0 = 0, or exp(t) (t - x)."""
    x, t = node.inputs
    if node["log_target"]:
        value = _mul(_apply("exp", t), _sub(t, x))
    else:
        entropy = _make("where", _make("eq", t, 0.0), 0.0, _mul(t, _apply("log", t)))
        value = _sub(entropy, _mul(t, x))
    return reduced(value, node["reduction"])


def _optionals(node: Node, first: int = 2) -> dict[str, Node]:
    return dict(zip(node["optionals"], node.inputs[first:], strict=True))


def binary_cross_entropy(node: Node) -> Node:
    """(t - 1) log1p(-x) - t log x, logarithms at least -100."""
    x, t = node.inputs[:2]
    rest = _make("clamp_min", _apply("log1p", _apply("neg", x)), -100.0)
    value = _sub(_mul(_sub(t, 1.0), rest), _mul(t, _make("clamp_min", _apply("log", x), -100.0)))
    weight = _optionals(node).get("weight")
    return reduced(value if weight is None else _mul(value, weight), node["reduction"])


def binary_cross_entropy_with_logits(node: Node) -> Node:
    """(1 - t) x - (1 + (p - 1) t) log(sigmoid(x))."""
    x, t = node.inputs[:2]
    given = _optionals(node)
    logarithm = _apply("logsigmoid", x)
    if "pos_weight" in given:
        logarithm = _mul(_add(_mul(_sub(given["pos_weight"], 1.0), t), 1.0), logarithm)
    value = _sub(_mul(_sub(1.0, t), x), logarithm)
    return reduced(_mul(value, given["weight"]) if "weight" in given else value, node["reduction"])


def hinge_embedding(node: Node) -> Node:
    """max(0, margin - x) unless t = 1, plus x unless t = -1."""
    x, t = node.inputs
    far = _make("where", _make("ne", t, 1.0), _make("clamp_min", _sub(node["margin"], x), 0.0), 0.0)
    return reduced(_add(far, _make("where", _make("ne", t, -1.0), x, 0.0)), node["reduction"])


def margin_ranking(node: Node) -> Node:
    """max(0, margin - t (x - y))."""
    x, y, t = node.inputs
    return reduced(_make("clamp_min", _add(_mul(_apply("neg", t), _sub(x, y)), node["margin"]), 0.0),
                   node["reduction"])


def _dot(x: Node, y: Node, axis: int) -> Node:
    return make("sum", make("mul", x, y), axes=(axis,), keepdim=False)


def cosine_embedding(node: Node) -> Node:
    """1 - cos where t = 1, max(0, cos - margin) where t = -1."""
    x, y, t = node.inputs
    axis = t.rank  # 1 beside a batch of labels, 0 beside a single one
    magnitudes = [_add(_dot(a, a, axis), 1e-12) for a in (x, y)]
    cosine = _make("div", _dot(x, y, axis), _apply("sqrt", _mul(*magnitudes)))
    near = _make("where", _make("eq", t, 1.0), _sub(1.0, cosine), 0.0)
    far = _make("where", _make("eq", t, -1.0), _make("clamp_min", _sub(cosine, node["margin"]), 0.0), 0.0)
    return reduced(_add(near, far), node["reduction"])


def cosine_similarity(node: Node) -> Node:
    """(x / max(|x|, eps)) (y / max(|y|, eps)). Each vector is divided first, as PyTorch does: products of the elements
    themselves leave the range where those of unit vectors do not."""
    x, y = node.inputs
    axis = node["axis"] % max(x.rank, y.rank)
    units = []
    for vector in (x, y):
        lead = max(x.rank, y.rank) - vector.rank
        if axis < lead or vector.shape[axis - lead] != result_size(node, axis):
            vector = make("expand", vector, shape=_broadcast(x, y))
            lead = 0
        norm = _norm(vector, 2.0, (axis - lead,), keepdim=True)
        units.append(make("div", vector, _make("clamp_min", norm, node["eps"])))
    first, second = units
    return _dot(first, second, axis)


def _broadcast(x: Node, y: Node) -> tuple[int, ...]:
    return make("mul", x, y).shape


def result_size(node: Node, axis: int) -> int:
    """The size of an axis of both inputs, broadcast."""
    return _broadcast(*node.inputs)[axis]


def soft_margin(node: Node) -> Node:
    """log1p(exp(-t x))."""
    x, t = node.inputs
    return reduced(_apply("log1p", _apply("exp", _mul(_apply("neg", x), t))), node["reduction"])


def poisson_nll(node: Node) -> Node:
    """exp(x) - t x, or x - t log(x + eps); ``full`` adds t log t - t + log(2 pi t) / 2 where t > 1."""
    x, t = node.inputs
    if node["log_input"]:
        value = _sub(_apply("exp", x), _mul(t, x))
    else:
        value = _sub(x, _mul(t, _apply("log", _add(x, node["eps"]))))
    if node["full"]:
        half = _mul(_add(_apply("log", t), log(2 * pi)), 0.5)
        stirling = _add(_sub(_mul(t, _apply("log", t)), t), half)
        value = _add(value, _make("where", _make("le", t, 1.0), 0.0, stirling))
    return reduced(value, node["reduction"])


def _norm(x: Node, order: float, axes: tuple[int, ...], keepdim: bool) -> Node:
    def over(op: str, value: Node) -> Node:
        return make(op, value, axes=axes, keepdim=keepdim)

    if order and all(x.shape[a] == 1 for a in axes):  # of one element, whose square may leave the range
        return over("amax", _apply("abs", x))
    if order == 2:
        return _apply("sqrt", over("sum", _apply("square", x)))
    size = _apply("abs", x)
    if order == 1:
        return over("sum", size)
    if abs(order) == inf:
        return over("amax" if order > 0 else "amin", size)
    return _make("pow", over("sum", _make("pow", size, order)), 1.0 / order)


def vector_norm(node: Node) -> Node:
    """(sum |x|^ord)^(1 / ord)."""
    return _norm(node.inputs[0], node["ord"], node["axes"], node["keepdim"])


def _distance(x: Node, y: Node, order: float, eps: float, keepdim: bool = False) -> Node:
    gap = _add(_sub(x, y), eps)
    return _norm(gap, order, (gap.rank - 1,), keepdim)


def pairwise_distance(node: Node) -> Node:
    """The norm of x - y + eps over the last axis."""
    x, y = node.inputs
    return _distance(x, y, node["p"], node["eps"], node["keepdim"])


def triplet_margin(node: Node) -> Node:
    """max(0, margin + |a - p| - |a - n|), with the nearer of |a - n| and |p - n| where ``swap``."""
    anchor, positive, negative = node.inputs
    near = _distance(anchor, positive, node["p"], node["eps"])
    far = _distance(anchor, negative, node["p"], node["eps"])
    if node["swap"]:
        far = _make("minimum", far, _distance(positive, negative, node["p"], node["eps"]))
    return reduced(_make("clamp_min", _sub(_add(near, node["margin"]), far), 0.0), node["reduction"])


def class_axis(x: Node) -> int:
    """The axis of the classes: 1, or 0 of a single sample."""
    return min(1, x.rank - 1)


def cross_entropy(node: Node) -> Node:
    """-sum over classes of log softmax(x) times smoothed probabilities times weights; or of the target's class."""
    x, t = node.inputs[:2]
    axis = class_axis(x)
    count = x.shape[axis]
    weight = _optionals(node).get("weight")
    if weight is not None:
        weight = reshape(weight, tuple(count if a == axis else 1 for a in range(x.rank)))
    if t.dtype == "int64":
        return _class_cross_entropy(node, weight)
    if node["smoothing"] > 0:
        t = _add(_mul(t, 1.0 - node["smoothing"]), node["smoothing"] / count)
    value = _mul(make("log_softmax", x, axis=axis), t)
    if weight is not None:
        value = _mul(value, weight)
    if node["reduction"] == "none":
        return _apply("neg", make("sum", value, axes=(axis,), keepdim=False))
    total = _apply("neg", make("sum", value, axes=tuple(range(x.rank)), keepdim=False))
    return _make("div", total, x.size / count) if node["reduction"] == "mean" else total


def _class_cross_entropy(node: Node, weight: Node | None) -> Node:
    """-((x[target] - m) - log sum exp(x - m)), m the maximum; the entry itself is PyTorch's gather, which also refuses
    targets that are no classes. Smoothing adds the mean over all classes."""
    x, t = node.inputs[:2]
    axis, smoothing = class_axis(x), node["smoothing"]
    top = reduce("amax", x, (axis,))
    shifted = _sub(x, top)
    scale = _apply("log", reduce("sum", _apply("exp", shifted), (axis,)))
    entry = reshape(make("class_entry", x, t, axis=axis, ignore=node["ignore"]), top.shape)
    smooth = None
    if smoothing > 0:
        terms = _sub(scale, shifted)
        smooth = reshape(reduce("sum", terms if weight is None else _mul(terms, weight), (axis,)), t.shape)
    return _of_classes(node, reshape(_apply("neg", _sub(_sub(entry, top), scale)), t.shape), smooth)


def smoothed_cross_entropy(node: Node) -> Node:
    """The same of classes as PyTorch composes it, of logarithms of a softmax, which has the derivative."""
    x, t = node.inputs[:2]
    axis = class_axis(x)
    value = make("log_softmax", x, axis=axis)
    weight = _optionals(node).get("weight")
    terms = value if weight is None else \
        _mul(value, reshape(weight, tuple(x.shape[axis] if a == axis else 1 for a in range(x.rank))))
    smooth = _apply("neg", make("sum", terms, axes=(axis,), keepdim=False))
    return _of_classes(node, _apply("neg", make("class_entry", value, t, axis=axis, ignore=node["ignore"])), smooth)


def nll(node: Node) -> Node:
    """-x[target]."""
    x, t = node.inputs[:2]
    return _of_classes(node, _apply("neg", make("class_entry", x, t, axis=class_axis(x), ignore=node["ignore"])), None)


def _of_classes(node: Node, value: Node, smooth: Node | None) -> Node:
    """The loss from ``value``, that of each target's class, and ``smooth``, the (weighted) sum of all classes'. The
    mean is over the weights of the targets that are not ignored."""
    x, t = node.inputs[:2]
    weight = _optionals(node).get("weight")
    counted = make("ne", t, constant(node["ignore"]))
    if weight is not None:
        weight = make("class_weight", weight, t, ignore=node["ignore"])
        value = _mul(value, weight)
    if smooth is not None:
        share = node["smoothing"]
        value = _add(_mul(value, 1.0 - share), _mul(smooth, share / x.shape[class_axis(x)]))
    value = _make("where", counted, value, 0.0)
    if node["reduction"] != "mean":
        return reduced(value, node["reduction"])
    parts = _make("where", counted, 1.0 if weight is None else weight, 0.0)
    return _make("div", reduced(value, "sum"), reduced(parts, "sum"))


LOWERINGS: dict[str, Callable[[Node], Node]] = {
    "mse_loss": mse, "l1_loss": absolute, "smooth_l1_loss": smooth_l1, "huber_loss": huber, "kl_div": kl_div,
    "binary_cross_entropy": binary_cross_entropy, "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "hinge_embedding_loss": hinge_embedding, "margin_ranking_loss": margin_ranking,
    "cosine_embedding_loss": cosine_embedding, "cosine_similarity": cosine_similarity,
    "soft_margin_loss": soft_margin, "poisson_nll_loss": poisson_nll, "vector_norm": vector_norm,
    "pairwise_distance": pairwise_distance, "triplet_margin_loss": triplet_margin, "cross_entropy_loss": cross_entropy,
    "nll_loss": nll,
}


OF_CLASSES = ("cross_entropy_loss", "nll_loss")
"""Losses whose target may hold the numbers of classes."""


def has_form(node: Node) -> bool:
    """Whether a loss (of floating operands, but for targets) has a form in primitives, for its attributes."""
    order = node.get("ord", node.get("p"))
    if order is not None and order == 0:  # a count
        return False
    if node.op == "cosine_embedding_loss":
        return all(i.rank == node.inputs[2].rank + 1 for i in node.inputs[:2])
    return True
