"""Scans from the end and exclusive ones, which PyTorch writes with flips and shifts."""

from __future__ import annotations

from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, make
from kernelwright.ir.ops.scans import SCANS

_FILLS = {"zeros_like": 0.0, "zeros": 0.0, "new_zeros": 0.0, "ones_like": 1.0, "ones": 1.0, "new_ones": 1.0}


def fill_of(node: Node) -> float | None:
    """The value that all elements of a tensor share, where that is known."""
    while node.op in ("reshape", "expand", "permute", "slice", "flip", "copy", "cast"):
        node = node.inputs[0]
    if node.op == "constant":
        return float(node["value"])
    if node.op == "opaque":
        name = node["target"].removeprefix("aten.").split(".")[0]
        value = _FILLS.get(name, node["template"][1] if name in ("full", "full_like") else None)
        return float(value) if isinstance(value, (int, float)) else None
    return None


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


def _filled_first(node: Node) -> tuple[float, Node, bool] | None:
    """Of a concatenation: the value of its one first (or last) entry, the rest, and whether it comes first."""
    if node.op != "concatenate" or len(node.inputs) != 2:
        return None
    axis = node["axis"]
    for first, (entry, rest) in ((True, node.inputs), (False, node.inputs[::-1])):
        value = fill_of(entry)
        if entry.shape[axis] == 1 and value is not None and entry.dtype == rest.dtype:
            return value, rest, first
    return None


@rule("scan shifted by one", "concatenate", law="(nothing, scan(x without its last)) = exclusive scan of x",
      condition="the first entry is the combination of nothing", exactness=Exactness.BITWISE)
def shifted_scan(node: Node, context: Context) -> Node | None:
    found = _filled_first(node)
    if found is None:
        return None
    value, scan, first = found
    if scan.op not in SCANS or scan["axis"] != node["axis"] or scan["exclusive"] or scan["reverse"] == first:
        return None
    x = _without_last(scan.inputs[0], node["axis"], node.shape[node["axis"]], first)
    if x is None or value != SCANS[scan.op][1]:
        return None
    return make(scan.op, x, axis=scan["axis"], reverse=scan["reverse"], exclusive=True)


@rule("scan of a tensor shifted by one", *SCANS, law="scan(nothing, x without its last) = exclusive scan of x",
      condition="the first entry is the combination of nothing", exactness=Exactness.BITWISE)
def scan_of_shifted(node: Node, context: Context) -> Node | None:
    found = _filled_first(node.inputs[0])
    if found is None or node["exclusive"]:
        return None
    value, rest, first = found
    if node.inputs[0]["axis"] != node["axis"] or node["reverse"] == first or value != SCANS[node.op][1]:
        return None
    x = _without_last(rest, node["axis"], node.shape[node["axis"]], first)
    return None if x is None else make(node.op, x, axis=node["axis"], reverse=node["reverse"], exclusive=True)


SCAN_RULES: tuple[Rule, ...] = (flip_twice, between_flips, shifted_scan, scan_of_shifted)
