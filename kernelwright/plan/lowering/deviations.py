"""Roots of variances, as kernels take them: from the standard deviation, which is in range wherever the data are.

A variance leaves the range of float32 where the data are beyond 1e19 or below 1e-19, and so does its square root if it
is taken of the rounded variance. Moments are summed in float64 and give the deviation, too; it stands in place of
every root of a variance, with or without factors and an epsilon, as in norms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import sqrt

from kernelwright.ir.node import Node, constant, make, rebuild, walk

# Beyond this deviation an epsilon is less than the rounding of the variance, which is still in range.
_LARGE = 1e15
_MOST_EPSILON = 1.0


def from_deviations(roots: Iterable[Node], roles: Mapping[Node, str], anchors: Collection[Node]) -> dict[Node, Node]:
    """For every node below ``roots`` the one of its value in a graph that takes roots of variances from deviations.

    roles: what each node becomes (:func:`kernelwright.plan.roles.roles_of`). anchors: contractions that become
    kernels: they may take a variance of their results along, and no deviation.
    """
    moved: dict[Node, Node] = {}
    variances: set[Node] = set()
    for node in walk(roots):
        built = rebuild(node, tuple(moved[i] for i in node.inputs))
        if node.op in ("sqrt", "rsqrt") and roles[node] == "pointwise":
            built = _in_range(built, variances)
        moved[node] = built
        if node.op == "var" and roles[node] == "reduction" and not reads(node.inputs[0], anchors):
            variances.add(built)
    return moved


def reads(node: Node, anchors: Collection[Node]) -> bool:
    """Whether a value is computed from an anchor by pointwise operators and views."""
    stack, seen = [node] if anchors else [], {node}
    while stack:
        current = stack.pop()
        if current in anchors:
            return True
        if current.kind in ("pointwise", "view"):
            stack += [i for i in current.inputs if i not in seen]
            seen.update(current.inputs)
    return False


def _in_range(node: Node, variances: Collection[Node]) -> Node:
    """A root of variance + epsilon, or of a variance alone, from the deviation; any other root as it is."""
    (inner,) = node.inputs
    if (deviation := _deviation(inner, variances)) is not None:
        return deviation if node.op == "sqrt" else make("reciprocal", deviation, origin=node.origin)
    for variance, epsilon in (inner.inputs, inner.inputs[::-1]) if inner.op == "add" else ():
        if epsilon.op == "constant" and 0 <= epsilon["value"] <= _MOST_EPSILON and (
                deviation := _deviation(variance, variances)) is not None:
            alone = deviation if node.op == "sqrt" else make("reciprocal", deviation, origin=node.origin)
            return make("where", make("lt", deviation, constant(_LARGE)), node, alone, origin=node.origin)
    return node


def _deviation(node: Node, variances: Collection[Node]) -> Node | None:
    """The root of a variance, also of its views and with constants and squares as factors; None of anything else."""
    if node in variances:
        return make("std", node.inputs[0], origin=node.origin, **dict(node.attributes))
    if node.kind == "view" and len(node.inputs) == 1:
        deviation = _deviation(node.inputs[0], variances)
        return None if deviation is None else rebuild(node, (deviation,))
    for variance, other in {"mul": (node.inputs, node.inputs[::-1]), "div": (node.inputs,)}.get(node.op, ()):
        factor = _root(other)
        if factor is not None and (deviation := _deviation(variance, variances)) is not None:
            return make(node.op, deviation, factor, origin=node.origin)
    return None


def _root(node: Node) -> Node | None:
    """The root of a positive constant or of a square."""
    if node.op == "constant":
        return constant(sqrt(node["value"])) if node["value"] > 0 else None
    return make("abs", *node.inputs) if node.op == "square" else None
