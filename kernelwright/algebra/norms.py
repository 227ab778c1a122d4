"""Norms are affine maps once their statistics are known: a sum over positions needs the statistics only."""

from __future__ import annotations

from kernelwright.algebra.build import SUMS, narrow, per_channel, reduce
from kernelwright.algebra.identities import reaches_anchor
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, constant, make


def shifted_by_zero(x: Node) -> Node:
    """``x`` without negative zeros: where a norm has no shift, PyTorch adds a zero in its place."""
    return make("add", x, constant(0.0))


def batch_norm_affine(node: Node) -> Node:
    """Batch norm, in training or inference, as pointwise operators on its statistics."""
    x = node.inputs[0]
    training = node.op == "batch_norm_training"
    if training:
        axes = (0, *range(2, x.rank))
        mean, variance = reduce("mean", x, axes), reduce("var", x, axes, correction=0)
        rest = node.inputs[1:]
    else:
        mean, variance = (per_channel(i, x.rank) for i in node.inputs[1:3])
        rest = node.inputs[3:]
    scale = make("rsqrt", make("add", variance, constant(node["eps"])))
    if rest:
        scale = make("mul", scale, per_channel(rest[0], x.rank))
    result = make("mul", make("sub", x, mean), scale)
    return make("add", result, per_channel(rest[1], x.rank)) if rest else shifted_by_zero(result)


@rule("sum of a batch norm", *SUMS, law="sum_p ((y - m) r g + b) = ((sum_p y) - P m) r g + P b",
      condition="the channels stay apart; a linear operator below may be collapsed; not of 16-bit values",
      exactness=Exactness.REASSOCIATES)
def of_batch_norm(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op not in ("batch_norm_training", "batch_norm_inference") or 1 in node["axes"] or not node["keepdim"] \
            or narrow(node):
        return None
    if not reaches_anchor(x.inputs[0], context):
        return None
    return reduce(node.op, batch_norm_affine(x), node["axes"])


NORMS: tuple[Rule, ...] = (of_batch_norm,)
