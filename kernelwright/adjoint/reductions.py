"""Adjoints of reductions, of what normalises over a row, of norms and of scans."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

from kernelwright.adjoint.table import (
    NoAdjoint,
    add,
    adjoint,
    apply,
    broadcast,
    call,
    div,
    kept,
    mul,
    sub,
    summed_to,
    where,
)
from kernelwright.algebra.build import NARROW, per_channel, plus_zero, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make

Found = Sequence[Node | None]


def _wide(x: Node) -> Node:
    """x in the type in which PyTorch computes a backward formula."""
    return cast(x, "float32") if x.dtype in NARROW else x


def _count(node: Node) -> int:
    return prod(node.inputs[0].shape[a] for a in node["axes"])


@adjoint("sum")
def _sum(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x = node.inputs[0]
    return (cast(broadcast(kept(g, node), x.shape), x.dtype),)


@adjoint("mean")
def _mean(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x = node.inputs[0]
    return (cast(broadcast(div(kept(g, node), float(_count(node))), x.shape), x.dtype),)


@adjoint("amax", "amin")
def _extremum(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """All places of the extremum share the gradient evenly."""
    x = node.inputs[0]
    is_there = cast(apply("eq", x, kept(node, node)), x.dtype)
    return (div(mul(kept(g, node), is_there), reduce("sum", is_there, node["axes"])),)


@adjoint("logsumexp")
def _logsumexp(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x = _wide(node.inputs[0])
    result = mul(_wide(kept(g, node)), apply("exp", sub(x, _wide(kept(node, node)))))
    return (cast(result, node.inputs[0].dtype),)


def _of_variance(x: Node, g: Node, axes: tuple[int, ...], correction: float) -> Node:
    """2 / (n - c) g (x - mean)."""
    count = prod(x.shape[a] for a in axes)
    return mul(mul(g, 2.0 / (count - correction)), sub(x, reduce("mean", x, axes)))


@adjoint("var", "std")
def _variance(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Of a deviation zero where that is zero."""
    x = _wide(node.inputs[0])
    if _count(node) <= node["correction"]:
        raise NoAdjoint("a variance has no degree of freedom")
    g = _wide(kept(g, node))
    if node.op == "std":
        root = _wide(kept(node, node))
        g = where(apply("eq", root, 0.0), 0.0, div(g, mul(2.0, root)))
    return (cast(_of_variance(x, g, node["axes"], node["correction"]), node.inputs[0].dtype),)


@adjoint("softmax")
def _softmax(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """y (g - sum g y)."""
    weighted = mul(_wide(g), y := _wide(node))
    return (cast(sub(weighted, mul(y, reduce("sum", weighted, (node["axis"],)))), node.inputs[0].dtype),)


@adjoint("log_softmax")
def _log_softmax(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """g - exp(y) sum g."""
    g = _wide(g)
    total = reduce("sum", g, (node["axis"],))
    return (cast(sub(g, mul(apply("exp", _wide(node)), total)), node.inputs[0].dtype),)


@adjoint("vector_norm")
def _vector_norm(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """g x / |x|, and g 0 where all is zero; g sign(x) of the sum of magnitudes, and of the largest an even share."""
    x, norm, g = _wide(node.inputs[0]), _wide(kept(node, node)), _wide(kept(g, node))
    if node["ord"] == 2:
        found = where(apply("eq", norm, 0.0), mul(g, 0.0), mul(x, div(g, norm)))
    elif node["ord"] == 1:
        found = mul(apply("sign", x), g)
    elif node["ord"] == inf:
        is_there = cast(apply("eq", apply("abs", x), norm), x.dtype)
        found = mul(mul(apply("sign", x), is_there), div(g, reduce("sum", is_there, node["axes"])))
    else:
        raise NoAdjoint(f"a norm of order {node['ord']}")
    return (cast(found, node.inputs[0].dtype),)


@adjoint("cumsum")
def _cumsum(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The sums from the other end."""
    return (make("cumsum", g, axis=node["axis"], reverse=not node.get("reverse", False),
                 exclusive=node.get("exclusive", False)),)


@adjoint("prod")
def _prod(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """g y / x, and where x is zero g times the product of the others; of all axes, where two are zero, +0."""
    x, = node.inputs
    if x.dtype != node.dtype:
        raise NoAdjoint("a product into another type")
    axes = tuple(a for a in node["axes"] if x.shape[a] != 1)
    shape = tuple(1 if a in node["axes"] else s for a, s in enumerate(x.shape))
    g, y = (reshape(n, shape) for n in (g, node))
    if not axes:
        return (broadcast(g, x.shape),)
    if len(axes) > 1:
        if len(axes) < sum(s != 1 for s in x.shape):
            raise NoAdjoint("products along several axes, and not along all")
        x, g, y = reshape(x, (x.size,)), reshape(g, (1,)), reshape(y, (1,))
        axes = (0,)
    found = _of_products(x, axes[0], g, y)
    if x.rank == 1:
        zeros = reduce("sum", cast(apply("eq", x, 0.0), x.dtype), (0,))
        found = where(apply("gt", zeros, 1.0), 0.0, found)
    return (reshape(found, node.inputs[0].shape),)


def _of_products(x: Node, axis: int, g: Node, y: Node) -> Node:
    before, after = (make("cumprod", x, axis=axis, reverse=reverse, exclusive=True) for reverse in (False, True))
    return where(apply("eq", x, 0.0), mul(g, mul(before, after)), div(mul(g, y), x))


@adjoint("cumprod")
def _cumprod(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """By PyTorch's own formula, which has a form of its own for zeros."""
    if node.get("reverse") or node.get("exclusive"):
        raise NoAdjoint("running products from the other end, or of those before")
    x, = node.inputs
    return (call("aten.cumprod_backward.default", (g, x, node),
                 (("input", 0), ("input", 1), node["axis"], ("input", 2)), x.shape, x.dtype),)


# Norms: y = (x - m) r w + b, r = 1 / sqrt(v + eps), over some axes of x --------------------------------------------


def _through(unit: Node, scale: Node, g: Node, axes: tuple[int, ...], *, centred: bool = True) -> Node:
    """The gradient of x from that of u = (x - m) r: r (g - mean g - u mean(g u)); without a mean r (g - u mean(g u)).
    unit: u. scale: r."""
    rest = sub(g, mul(unit, reduce("mean", mul(g, unit), axes)))
    return mul(scale, sub(rest, reduce("mean", g, axes)) if centred else rest)


def _normalised(x: Node, axes: tuple[int, ...], eps: float) -> tuple[Node, Node]:
    """u and r of x over axes."""
    scale = apply("rsqrt", add(reduce("var", x, axes, correction=0), eps))
    return mul(sub(x, reduce("mean", x, axes)), scale), scale


def _affine(unit: Node, g: Node, weights: Sequence[Node], wanted: Sequence[bool], shape: tuple[int, ...], *,
            accumulates: bool = True) -> list[Node | None]:
    """The gradients of weight and bias, which have this shape where they are multiplied. accumulates: they are sums,
    which have no -0, of a single term, too."""
    found: list[Node | None] = []
    for extra, want, term in zip(weights, wanted, (mul(g, unit), g), strict=False):
        if not want:
            found.append(None)
            continue
        total = plus_zero(term) if accumulates and term.shape == shape else summed_to(term, shape)
        found.append(cast(reshape(total, extra.shape), extra.dtype))
    return found


def _norm(node: Node, g: Node, wanted: Sequence[bool], x: Node, axes: tuple[int, ...],
          extras: Sequence[Node], shape: tuple[int, ...], *, centred: bool = True) -> Found:
    """x and g in the shape in which ``axes`` are normalised; ``shape`` is that of the weights beside them."""
    x, g = _wide(x), _wide(g)
    if centred:
        unit, scale = _normalised(x, axes, node["eps"])
    else:
        scale = apply("rsqrt", add(reduce("mean", apply("square", x), axes), node["eps"]))
        unit = mul(x, scale)
    of_x = None
    if wanted[0]:
        weight = reshape(_wide(extras[0]), shape) if extras else None
        if weight is not None and all(shape[a] == 1 for a in axes):  # one for all that is summed: sums are of g alone
            found = _through(unit, mul(scale, weight), g, axes, centred=centred)
        else:
            found = _through(unit, scale, g if weight is None else mul(g, weight), axes, centred=centred)
        of_x = cast(reshape(found, node.inputs[0].shape), node.inputs[0].dtype)
    if not centred:  # a product in PyTorch, of which nothing is summed that is as large as its result
        shape = extras[0].shape if extras else ()
    return (of_x, *_affine(unit, g, extras, wanted[1:], shape, accumulates=centred))


@adjoint("layer_norm")
def _layer_norm(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, rank = node.inputs[0], node["axes"]
    return _norm(node, g, wanted, x, tuple(range(x.rank - rank, x.rank)), node.inputs[1:],
                 (*(1,) * (x.rank - rank), *x.shape[x.rank - rank:]))


@adjoint("rms_norm")
def _rms_norm(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, rank = node.inputs[0], node["axes"]
    if node["eps"] is None:
        raise NoAdjoint("an RMS norm without an epsilon of its own")
    return _norm(node, g, wanted, x, tuple(range(x.rank - rank, x.rank)), node.inputs[1:],
                 (*(1,) * (x.rank - rank), *x.shape[x.rank - rank:]), centred=False)


@adjoint("group_norm")
def _group_norm(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, groups = node.inputs[0], node["groups"]
    grouped = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return _norm(node, reshape(g, grouped), wanted, reshape(x, grouped), tuple(range(2, len(grouped))),
                 node.inputs[1:], (1, groups, grouped[2], *(1,) * (x.rank - 2)))


@adjoint("instance_norm")
def _instance_norm(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x = node.inputs[0]
    return _norm(node, g, wanted, x, tuple(range(2, x.rank)), node.inputs[1:], (1, x.shape[1], *(1,) * (x.rank - 2)))


@adjoint("batch_norm_training")
def _batch_norm_training(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x = node.inputs[0]
    return _norm(node, g, wanted, x, (0, *range(2, x.rank)), node.inputs[1:], (1, x.shape[1], *(1,) * (x.rank - 2)))


@adjoint("batch_norm_inference")
def _batch_norm_inference(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The statistics are fixed: an affine map of each channel."""
    x, mean, variance, *extras = node.inputs
    if wanted[1] or wanted[2]:
        raise NoAdjoint("a batch norm whose statistics require gradients")
    g = _wide(g)
    scale = per_channel(apply("rsqrt", add(_wide(variance), node["eps"])), x.rank)
    own = mul(scale, per_channel(_wide(extras[0]), x.rank)) if extras else scale
    unit = mul(sub(_wide(x), per_channel(_wide(mean), x.rank)), scale)
    of_x = cast(mul(g, own), x.dtype) if wanted[0] else None
    return (of_x, None, None, *_affine(unit, g, extras, wanted[3:], (1, x.shape[1], *(1,) * (x.rank - 2))))
