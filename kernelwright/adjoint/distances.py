"""Adjoints of distances and of losses of probabilities, in the formulas of PyTorch's own backward functions: those of
their values would be others where a logarithm or a length is bounded."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.adjoint.table import (
    OPAQUE,
    NoAdjoint,
    add,
    adjoint,
    apply,
    call,
    div,
    mul,
    neg,
    sub,
    summed_to,
    where,
)
from kernelwright.algebra.build import NARROW
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make
from kernelwright.ir.ops.leaves import fill

Found = Sequence[Node | None]


def _wide(x: Node) -> Node:
    return cast(x, "float32") if x.dtype in NARROW else x


def _shared(g: Node, reduction: str, size: int) -> Node:
    """What each element's loss gets of the gradient of the loss of all."""
    return div(g, float(size)) if reduction == "mean" else g


@adjoint("binary_cross_entropy")
def _binary_cross_entropy(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """g (x - t) / max((1 - x) x, 1e-12), and g (log(1 - x) - log x)."""
    x, t, *weight = (_wide(i) for i in node.inputs)
    if weight and wanted[2]:
        raise NoAdjoint("a binary cross entropy whose weights require gradients")
    g = _shared(_wide(g), node["reduction"], x.size)
    g = mul(g, weight[0]) if weight else g
    slopes = (div(sub(x, t), apply("clamp_min", mul(sub(1.0, x), x), 1e-12)),
              sub(apply("log", sub(1.0, x)), apply("log", x)))
    found = [cast(summed_to(mul(g, slope), i.shape), i.dtype) if want else None
             for i, slope, want in zip(node.inputs, slopes, wanted, strict=False)]
    return [*found, *(None for _ in weight)]


@adjoint("kl_div")
def _kl_div(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """-t g, and (log t + t / t - x) g, of which the logarithm is 0 where t is; -exp(t) g and exp(t) (t + 1 - x) g."""
    x, t = (_wide(i) for i in node.inputs)
    size = make("add", x, t).size
    g = _shared(_wide(g), node["reduction"], size)
    probability = apply("exp", t) if node["log_target"] else t
    terms = [neg(mul(g, probability))]
    if node["log_target"]:
        terms.append(mul(g, mul(probability, add(sub(t, x), 1.0))))
    else:
        logarithm = where(apply("eq", t, 0.0), 0.0, apply("log", t))
        terms.append(mul(g, sub(add(logarithm, div(t, t)), x)))
    return [cast(summed_to(term, i.shape), i.dtype) if want else None
            for i, want, term in zip(node.inputs, wanted, terms, strict=True)]


@adjoint("cosine_similarity")
def _cosine_similarity(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Of u v, the products of u = x / max(|x|, eps) with v: (v - (u v) x / |x|) g / max(|x|, eps), as PyTorch takes
    the larger one without looking at it; x / |x| is 0 where |x| is."""
    axis = node["axis"] % max(i.rank for i in node.inputs)
    shape = make("mul", *node.inputs).shape
    kept = tuple(1 if a == axis else s for a, s in enumerate(shape))
    g = make("reshape", _wide(g), shape=kept)
    result = make("reshape", _wide(node), shape=kept)
    full = [x if x.shape == shape else make("expand", x, shape=shape) for x in map(_wide, node.inputs)]
    lengths = [make("vector_norm", x, ord=2.0, axes=(axis,), keepdim=True) for x in full]
    bounded = [apply("clamp_min", length, node["eps"]) for length in lengths]
    units = [div(x, bound) for x, bound in zip(full, bounded, strict=True)]
    found: list[Node | None] = []
    for place, (x, length, bound) in enumerate(zip(full, lengths, bounded, strict=True)):
        if not wanted[place]:
            found.append(None)
            continue
        own = where(apply("eq", length, 0.0), 0.0, div(x, length))
        term = mul(div(g, bound), sub(units[1 - place], mul(result, own)))
        found.append(cast(summed_to(term, node.inputs[place].shape), node.inputs[place].dtype))
    return found


@adjoint("soft_margin_loss")
def _soft_margin(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """-t z g / (1 + z), z = exp(-t x)."""
    x, t = (_wide(i) for i in node.inputs)
    if wanted[1] or node.inputs[0].shape != node.inputs[1].shape:
        raise NoAdjoint("a soft margin loss whose targets require gradients, or are broadcast")
    z = apply("exp", mul(neg(t), x))
    found = mul(div(mul(neg(t), z), add(z, 1.0)), _shared(_wide(g), node["reduction"], x.size))
    return cast(found, node.inputs[0].dtype), None


def _all_pairs(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Distances of all pairs of rows, by PyTorch's own backward of either operand."""
    template = node["template"]
    x, y = fill(template[:2], node.inputs)
    order = dict(node["keywords"]).get("p", template[2] if len(template) > 2 else 2.0)
    if x.shape[:-2] != y.shape[:-2] or x.dtype not in ("float32", "float64"):
        raise NoAdjoint("distances of pairs whose batches are broadcast, or in 16 bits")
    found: dict[Node, Node] = {}
    for own, other, turns in ((x, y, False), (y, x, True)):
        given, distances = (make("contiguous", n, axes=(*range(n.rank - 2), n.rank - 1, n.rank - 2)) if turns else n
                            for n in (g, node))
        term = call("aten._cdist_backward.default", (given, own, other, distances), (
            ("input", 0), ("input", 1), ("input", 2), float(order), ("input", 3)), own.shape, own.dtype)
        found[own] = add(found[own], term) if own in found else term  # the two may be one tensor
    return [found[i] if want else None for i, want in zip(node.inputs, wanted, strict=True)]


OPAQUE["aten.cdist.default"] = _all_pairs
