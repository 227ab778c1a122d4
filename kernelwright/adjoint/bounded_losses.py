"""Adjoints of losses of the gap to a target: squares, and what is a square near it and a line far from it, which has a
slope between bounds. That of their formula would be that of both branches, of which the one that is not taken may be
infinite. PyTorch has the gradient of a target as that of an input whose target is the other: where they are equal, both
gaps are +0."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.adjoint.table import adjoint, apply, div, mul, sub, summed_to
from kernelwright.algebra.build import NARROW
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node


@adjoint("smooth_l1_loss", "huber_loss", "mse_loss")
def _of_gap(node: Node, g: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    """With d = x - t: g clamp(d, -delta, delta), g clamp(d / beta, -1, 1) and 2 g d; of t the same of t - x."""
    given = [cast(i, "float32") if i.dtype in NARROW else i for i in node.inputs]
    found: list[Node | None] = []
    for i, own, other, want in zip(node.inputs, given, reversed(given), wanted, strict=True):
        if not want:
            found.append(None)
            continue
        slope = _slope(node, sub(own, other))
        g = cast(g, slope.dtype)
        term = mul(div(g, float(slope.size)) if node["reduction"] == "mean" else g, slope)
        found.append(cast(summed_to(term, i.shape), i.dtype))
    return found


def _slope(node: Node, gap: Node) -> Node:
    if node.op == "mse_loss":
        return mul(gap, 2.0)
    if node.op == "huber_loss":
        return apply("clamp_max", apply("clamp_min", gap, -node["delta"]), node["delta"])
    if node["beta"] == 0:
        return apply("sign", gap)
    return apply("clamp_max", apply("clamp_min", div(gap, node["beta"]), -1.0), 1.0)
