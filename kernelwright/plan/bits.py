"""Sets of nodes as bits of whole numbers: where every node of a graph has one, sets of their own would take room and
time with the square of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernelwright.ir.node import Node


class Bits:
    """Some nodes, in order, each with its bit.

    of: the bit of each node. every: all of them.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._nodes = list(dict.fromkeys(nodes))
        self.of = {node: 1 << number for number, node in enumerate(self._nodes)}
        self.every = (1 << len(self._nodes)) - 1

    def some(self, nodes: Iterable[Node]) -> int:
        """The set of these nodes."""
        result = 0
        for node in nodes:
            result |= self.of[node]
        return result

    def members(self, bits: int) -> Iterator[Node]:
        """The nodes of a set, in order."""
        while bits:
            lowest = bits & -bits
            yield self._nodes[lowest.bit_length() - 1]
            bits ^= lowest


def union(sets: dict[Node, int], nodes: Iterable[Node]) -> int:
    """What is in the set of any of ``nodes``."""
    result = 0
    for node in nodes:
        result |= sets[node]
    return result
