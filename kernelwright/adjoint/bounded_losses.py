"""Adjoints of losses that are squares near their target and lines far from it: a slope between bounds. That of their
formula would be that of both branches, of which the one that is not taken may be infinite."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.adjoint.table import adjoint, apply, div, mul, neg, sub, summed_to
from kernelwright.algebra.build import NARROW
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node


@adjoint("smooth_l1_loss", "huber_loss")
def _bounded(node: Node, g: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    """g clamp(x - t, -delta, delta), and g clamp((x - t) / beta, -1, 1)."""
    x, target = (cast(i, "float32") if i.dtype in NARROW else i for i in node.inputs)
    gap = sub(x, target)
    if node.op == "huber_loss":
        slope = apply("clamp_max", apply("clamp_min", gap, -node["delta"]), node["delta"])
    elif node["beta"] == 0:
        slope = apply("sign", gap)
    else:
        slope = apply("clamp_max", apply("clamp_min", div(gap, node["beta"]), -1.0), 1.0)
    g = cast(g, slope.dtype)
    term = mul(div(g, float(slope.size)) if node["reduction"] == "mean" else g, slope)
    return [cast(summed_to(term if sign > 0 else neg(term), i.shape), i.dtype) if want else None
            for i, want, sign in zip(node.inputs, wanted, (1, -1), strict=True)]
