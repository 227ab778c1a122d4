"""What becomes of each node of a lowered graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kernelwright.algebra.build import MOMENTS, REDUCTIONS
from kernelwright.ir.node import Node, number_of
from kernelwright.ir.ops.scans import SCANS
from kernelwright.ir.scalar import INTEGERS
from kernelwright.plan.lowering.lower import FLOATS
from kernelwright.plan.reading.pieces import can_read_through
from kernelwright.plan.reading.typed import computable, sum_type

PLACES = {"argmax": "amax", "argmin": "amin"}
"""Operators that give the place of an extremum, and those that give its value."""
_KERNEL_TYPES = (*FLOATS, *INTEGERS, "bool", "scalar")


def role(node: Node, kept: frozenset[Node] | set[Node]) -> str:
    """leaf, number (in every place the same one), pointwise, view, reduction, place, scan, special, or torch (stays a
    torch call)."""
    if node.op == "literal":
        return "number" if number_of(node) is not None and node.dtype in _KERNEL_TYPES and node not in kept else "torch"
    if node.kind == "leaf":
        return "leaf"
    if node.op in ("reordered", "contiguous"):
        return "torch"
    if node.op in PLACES and node not in kept:
        return "place" if node.inputs[0].dtype in FLOATS and 0 not in node.inputs[0].shape else "torch"
    if node in kept or node.dtype not in _KERNEL_TYPES or 0 in node.shape or any(0 in i.shape for i in node.inputs):
        return "torch"
    typed = all(i.dtype in _KERNEL_TYPES for i in node.inputs)
    if node.op in ("cast", "lookup"):  # of a lookup kernels compute which element it is
        return "pointwise" if typed else "torch"
    if node.kind == "pointwise":
        return "pointwise" if typed and computable(node) else "torch"
    if node.op in REDUCTIONS:
        biased = node.op not in MOMENTS or node["correction"] == 0
        exact = node.inputs[0].dtype in FLOATS or sum_type(node) is not None
        return "reduction" if typed and biased and exact and node["axes"] else "torch"
    if node.op in SCANS:
        return "scan" if typed and node.inputs[0].dtype in FLOATS and node.rank else "torch"
    if node.kind == "view":
        return "view"
    if can_read_through(node):
        return "view" if typed and node.dtype in (*FLOATS, "bool") else "torch"
    return "special" if node.kind == "special" else "torch"


def roles_of(order: Iterable[Node], kept: frozenset[Node] | set[Node], products: Collection[Node]) -> dict[Node, str]:
    """The role of every node; "contraction" of ``products``."""
    result = {n: "contraction" if n in products else role(n, kept) for n in order}
    placed = {(PLACES[n.op], n.inputs[0], n["axes"]) for n, kind in result.items() if kind == "place"}
    for node, kind in result.items():  # the value comes with the place
        if kind == "reduction" and (node.op, node.inputs[0], node["axes"]) in placed:
            result[node] = "place"
    return result
