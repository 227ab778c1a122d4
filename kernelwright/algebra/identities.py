"""Identities: of reductions (unit axes, nesting, views, constants, broadcast operands), and of one position alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import prod

from kernelwright.algebra.build import (
    MOMENTS,
    REDUCTIONS,
    SUMS,
    align,
    in_one_piece,
    narrow,
    plus_zero,
    reduce,
    reduce_broadcast,
    reshape,
)
from kernelwright.algebra.rule import KINKS, Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, constant, make

#: Operators that rules see linear operators through.
TRANSPARENT = frozenset(("add", "sub", "mul", "div", "neg", "cast", "reshape", "permute", "batch_norm_inference",
                         "batch_norm_training"))
#: How many nodes below a sum are looked at for linear operators that may be collapsed.
_NEAR = 64


def _attributes(node: Node) -> dict:
    return {k: v for k, v in node.attributes if k not in ("axes", "keepdim")}


@rule("keep reduced axes", *REDUCTIONS, law="reduce(x) = reshape(reduce(x, keepdim))", condition="always",
      exactness=Exactness.BITWISE)
def keep_axes(node: Node, context: Context) -> Node | None:
    # A variance over no axis (of a scalar) is 0 or NaN, not the identity.
    if node["keepdim"] or (node.op in MOMENTS and not node["axes"]):
        return None
    if not node["axes"]:
        return _of_one(node)
    return reshape(reduce(node.op, node.inputs[0], node["axes"], **_attributes(node)), node.shape)


def _of_one(node: Node) -> Node:
    """A reduction of every element alone, in its own type: sums of truth values and of integers are wider."""
    x = node.inputs[0] if node.op in ("amax", "amin", "prod") else plus_zero(node.inputs[0])
    return x if x.dtype == node.dtype else make("cast", x, to=node.dtype, shape=x.shape, dtype=node.dtype)


@rule("pool to one is a mean", "adaptive_average_pool", law="adaptive_avg_pool(x, 1) = mean(x)",
      condition="every output size is one", exactness=Exactness.REASSOCIATES)
def pool_to_mean(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if any(s != 1 for s in node["size"]):
        return None
    return reduce("mean", x, tuple(range(x.rank - len(node["size"]), x.rank)))


@rule("reduction over a unit axis", "sum", "mean", "amax", "amin", "prod", "logsumexp",
      law="reduce over an axis of size one is the identity (log(exp(x)) = x); a sum of one zero is +0",
      condition="the axis has size one", exactness=Exactness.ROUNDING)
def unit_axis(node: Node, context: Context) -> Node | None:
    x, axes = node.inputs[0], node["axes"]
    left = tuple(a for a in axes if x.shape[a] != 1)
    if not node["keepdim"] or (left == axes and axes):
        return None
    return reduce(node.op, x, left) if left else _of_one(node)


@rule("nested reductions", *SUMS, "amax", "amin", "prod", "logsumexp",
      law="sum_a sum_b x = sum_ab x; likewise mean, max, min, product, log-sum-exp",
      condition="the same reduction, its inner one over other axes", exactness=Exactness.REASSOCIATES,
      keeps_kinks=False)  # equal maxima of maxima share a gradient otherwise than equal maxima of all
def nested(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op not in REDUCTIONS or x.op in MOMENTS or not (node["keepdim"] and x["keepdim"]):
        return None
    axes = tuple(sorted({*node["axes"], *x["axes"]}))
    if x.op == node.op:
        return reduce(node.op, x.inputs[0], axes)
    if {x.op, node.op} == set(SUMS) and not in_one_piece(node) and not set(node["axes"]) & set(x["axes"]):
        count = prod(x.inputs[0].shape[a] for a in (node if node.op == "mean" else x)["axes"])
        return make("mul", reduce("sum", x.inputs[0], axes), constant(1.0 / count))
    return None


def axis_groups(before: tuple[int, ...], after: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Pair runs of axes with equal products, as a reshape maps them; None for empty tensors."""
    if 0 in before or 0 in after:
        return None
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left, right = ([i], [j]) if i < len(before) and j < len(after) else ([], [])
        if not left:
            # Only unit axes can be left over.
            groups.append((list(range(i, len(before))), list(range(j, len(after)))))
            break
        a, b = before[i], after[j]
        i, j = i + 1, j + 1
        while a != b:
            if a < b:
                left.append(i)
                a *= before[i]
                i += 1
            else:
                right.append(j)
                b *= after[j]
                j += 1
        groups.append((left, right))
    return groups


@rule("reduction through a reshape", *SUMS, "amax", "amin", "logsumexp", *MOMENTS,
      law="reduce(reshape(x)) = reshape(reduce(x))", condition="the reduced axes are whole groups of the reshaped ones",
      exactness=Exactness.REASSOCIATES)
def through_reshape(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op != "reshape" or not node["keepdim"]:
        return None
    groups = axis_groups(x.inputs[0].shape, x.shape)
    if groups is None:
        return None
    axes: list[int] = []
    for left, right in groups:
        reduced = [a for a in right if a in node["axes"]]
        unreduced = [a for a in right if a not in node["axes"] and x.shape[a] != 1]
        if not [a for a in reduced if x.shape[a] != 1]:
            continue
        if unreduced:
            return None
        axes += left
    axes = [a for a in axes if x.inputs[0].shape[a] != 1]
    if node.op in MOMENTS and not axes:
        return None  # over unit axes: 0 or NaN, not the identity
    return reshape(reduce(node.op, x.inputs[0], tuple(axes), **_attributes(node)), node.shape)


@rule("reduction through a permutation", *SUMS, "amax", "amin", "logsumexp", *MOMENTS,
      law="reduce(permute(x)) = permute(reduce(x))", condition="always", exactness=Exactness.REASSOCIATES)
def through_permute(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op != "permute" or not node["keepdim"]:
        return None
    axes = tuple(x["axes"][a] for a in node["axes"])
    return make("permute", reduce(node.op, x.inputs[0], axes, **_attributes(node)), axes=x["axes"])


@rule("sum of a repeated value", *SUMS, law="sum of n copies of x = n x; their mean = x",
      condition="x is expanded along the reduced axes", exactness=Exactness.ROUNDING)
def through_expand(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op != "expand" or not node["keepdim"] or not (narrow(node) or not in_one_piece(node)) or not x.size:
        return None  # no copy at all has a sum of +0, whatever x is
    source = align(x.inputs[0], x.rank)
    if not any(source.shape[a] != x.shape[a] for a in node["axes"]):
        return None
    result = reduce_broadcast(node.op, source, node["axes"], dict(enumerate(x.shape)))
    if all(source.shape[a] == 1 for a in node["axes"]):  # nothing is left to be summed
        result = plus_zero(result)
    return result if result.shape == node.shape else make("expand", result, shape=node.shape)


@rule("constant factor out of a sum", *SUMS, law="sum(c x) = c sum(x)",
      condition="c does not vary along the reduced axes; there is a linear operator below; not of 16-bit values",
      exactness=Exactness.FINITE)
def through_factor(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op not in ("mul", "div", "neg") or not node["keepdim"] or in_one_piece(node) or not x.size:
        return None
    # Elsewhere it gains nothing, and sum(x) may overflow, or be +0 where a sum of -x is +0, too.
    if next(_anchors(x), None) is None:
        return None
    if x.op == "neg":
        return make("neg", reduce(node.op, x.inputs[0], node["axes"]))
    left, right = (align(i, x.rank) for i in x.inputs)
    for value, factor in ((left, right), (right, left)) if x.op == "mul" else ((left, right),):
        # Of another type (truth values, for one) the value has another sum, or none.
        if value.dtype != x.dtype or any(value.shape[a] != x.shape[a] for a in node["axes"]):
            continue
        if factor.op == "constant" or all(factor.shape[a] == 1 for a in node["axes"]):
            return make(x.op, reduce(node.op, value, node["axes"]), factor)
    return None


def reaches_anchor(node: Node, context: Context) -> bool:
    """Whether a linear operator that may be collapsed lies below, through linear pointwise operators and views."""
    return any(map(context.may_collapse, _anchors(node)))


def _anchors(node: Node) -> Iterator[Node]:
    """The linear operators below, through linear pointwise operators and views, those near first: what is far below is
    of many terms, of which others read all but the last few."""
    seen: set[Node] = {node}
    waiting = deque([node])
    visited = 0
    while waiting and visited < _NEAR:
        current = waiting.popleft()
        visited += 1
        if current.kind == "linear":
            yield current
        elif current.op in TRANSPARENT:
            for needed in current.inputs:
                if needed.kind != "leaf" and needed not in seen:
                    seen.add(needed)
                    waiting.append(needed)


@rule("sum of a sum of terms", *SUMS, law="sum(a + b) = sum(a) + sum(b)",
      condition="one term does not vary along the reduced axes, or collapses; not of 16-bit values",
      exactness=Exactness.REASSOCIATES)
def through_terms(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op not in ("add", "sub") or not node["keepdim"] or in_one_piece(node) or not x.size:
        return None
    axes, sizes = node["axes"], dict(enumerate(x.shape))
    terms = [align(i, x.rank) for i in x.inputs]
    if any(t.op != "constant" and t.dtype != x.dtype for t in terms):
        return None
    flat = [t.op == "constant" or all(t.shape[a] == 1 for a in axes) for t in terms]
    if not any(flat) and not any(reaches_anchor(t, context) for t in terms):
        return None
    parts = []
    for term, is_flat in zip(terms, flat):
        if term.op == "constant":
            count = prod(sizes[a] for a in axes) if node.op == "sum" else 1
            parts.append(constant(float(term["value"] * count)))
        elif is_flat and node.op == "mean":
            parts.append(term)
        else:
            parts.append(reduce_broadcast(node.op, term, axes, sizes))
    return make(x.op, *parts)


@rule("convolution of one position", "convolution", law="conv(x, w) = linear(x, w) where x has one position",
      condition="operand and window have one position, nothing is padded, there is one group, and no rule asked for "
                "true float32, which a user may have switched off for linear layers; in a graph that is "
                "differentiated there are several rows, as sums of one product are -0 in a linear layer's gradient",
      exactness=Exactness.REASSOCIATES)
def of_one_position(node: Node, context: Context) -> Node | None:
    """As squeeze and excitation has them. Libraries lay operands and results of convolutions out for many positions,
    which takes longer than the product of so few elements."""
    x, weight, *bias = node.inputs
    if node["transposed"] or node["groups"] != 1 or not node.size or any(node["padding"]) or node.get("exact") \
            or prod((*x.shape[2:], *weight.shape[2:])) != 1 or (KINKS in context.dropped and x.shape[0] == 1):
        return None
    rows, columns = reshape(x, x.shape[:2]), reshape(weight, weight.shape[:2])
    return reshape(make("linear", rows, columns, *bias), node.shape)


@rule("reshape of a reshape", "reshape", law="reshape(reshape(x)) = reshape(x)", condition="always",
      exactness=Exactness.BITWISE)
def reshape_twice(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op == "reshape" or x.shape == node.shape:
        return reshape(x, node.shape)
    return None


@rule("concatenation of one tensor", "concatenate", law="concatenate(x, tensors without elements) = x",
      condition="one operand has elements", exactness=Exactness.BITWISE)
def of_one_tensor(node: Node, context: Context) -> Node | None:
    """As caches of keys and values have them in the first step."""
    filled = [x for x in node.inputs if x.size]
    return filled[0] if len(filled) == 1 else None


IDENTITIES: tuple[Rule, ...] = (keep_axes, pool_to_mean, unit_axis, nested, through_reshape, through_permute,
                                through_expand, through_factor, through_terms, reshape_twice, of_one_position,
                                of_one_tensor)

__all__ = ["IDENTITIES", "TRANSPARENT", "axis_groups", "reaches_anchor"]
