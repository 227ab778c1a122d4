"""Where the nodes of a graph that was made from another one came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelwright.ir.node import Node


def traced(made: Iterable[tuple[Node, Iterable[Node]]], source: Mapping[Node, Node]) -> dict[Node, Node]:
    """The source of each new node: that of the first node it was made for.

    made: the nodes of the given graph, operands first, each with the new nodes made for it. source: what each node of
    the given graph came from.
    """
    result: dict[Node, Node] = {}
    for old, new in made:
        stack = list(new)
        while stack:
            part = stack.pop()
            if part not in result:
                result[part] = source[old]
                stack += part.inputs
    return result
