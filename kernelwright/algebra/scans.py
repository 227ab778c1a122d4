"""Scans from the end and exclusive ones, which PyTorch writes with flips and shifts."""

from __future__ import annotations

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make
from kernelwright.ir.ops.scans import SCANS


@rule("flip of a flip", "flip", law="flip(flip(x)) = x", condition="the same axes", exactness=Exactness.BITWISE)
def flip_twice(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    return x.inputs[0] if x.op == "flip" and x["axes"] == node["axes"] else None


@rule("scan between flips", "flip", law="flip(scan(flip(x))) = scan of x from its other end",
      condition="both flip the scanned axis alone", exactness=Exactness.REASSOCIATES)
def between_flips(node: Node, context: Context) -> Node | None:
    x = node.inputs[0]
    if x.op not in SCANS or x.inputs[0].op != "flip":
        return None
    if node["axes"] != (x["axis"],) or x.inputs[0]["axes"] != node["axes"]:
        return None
    return make(x.op, x.inputs[0].inputs[0], axis=x["axis"], reverse=not x["reverse"], exclusive=x["exclusive"])


def _without_last(x: Node, axis: int, length: int, at_end: bool) -> Node | None:
    """The tensor of ``length`` of which x is all but the last entry along an axis (the first, unless ``at_end``)."""
    if x.op != "slice" or x["axis"] != axis or x["step"] != 1 or x.inputs[0].shape[axis] != length:
        return None
    return x.inputs[0] if (x["start"], x["stop"]) == ((0, length - 1) if at_end else (1, length)) else None


def _filled_first(node: Node) -> tuple[float, Node, int, bool] | None:
    """Of a tensor with one entry more along an axis, which is a number (a concatenation with one becomes a pad): the
    number, the tensor, the axis, and whether the entry comes first."""
    if node.op != "pad":
        return None
    wide = [axis for axis, amounts in enumerate(node["amounts"]) if any(amounts)]
    if len(wide) != 1 or node["amounts"][wide[0]] not in ((1, 0), (0, 1)):
        return None
    return node["value"], node.inputs[0], wide[0], node["amounts"][wide[0]] == (1, 0)


@rule("scan shifted by one", "pad", law="(nothing, scan(x without its last)) = exclusive scan of x",
      condition="the first entry is the combination of nothing", exactness=Exactness.BITWISE)
def shifted_scan(node: Node, context: Context) -> Node | None:
    found = _filled_first(node)
    if found is None:
        return None
    value, scan, axis, first = found
    if scan.op not in SCANS or scan["axis"] != axis or scan["exclusive"] or scan["reverse"] == first:
        return None
    x = _without_last(scan.inputs[0], axis, node.shape[axis], first)
    if x is None or repr(value) != repr(SCANS[scan.op][1]):
        return None
    return make(scan.op, x, axis=scan["axis"], reverse=scan["reverse"], exclusive=True)


@rule("scan of a tensor shifted by one", *SCANS, law="scan(nothing, x without its last) = exclusive scan of x",
      condition="the first entry is the combination of nothing", exactness=Exactness.BITWISE)
def scan_of_shifted(node: Node, context: Context) -> Node | None:
    found = _filled_first(node.inputs[0])
    if found is None or node["exclusive"]:
        return None
    value, rest, axis, first = found
    if axis != node["axis"] or node["reverse"] == first or repr(value) != repr(SCANS[node.op][1]):
        return None
    x = _without_last(rest, node["axis"], node.shape[node["axis"]], first)
    return None if x is None else make(node.op, x, axis=node["axis"], reverse=node["reverse"], exclusive=True)


SCAN_RULES: tuple[Rule, ...] = (flip_twice, between_flips, shifted_scan, scan_of_shifted)
