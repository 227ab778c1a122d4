"""The tensors that a kernel reads, numbered as it first reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from kernelwright.ir.node import Node


class InputBuffers:
    """Numbers of what a group's kernel loads from memory, for a puller.

    own: the group's nodes, which the kernel computes. is_stored: whether another node's value lies in memory.
    """

    def __init__(self, own: Collection[Node], is_stored: Callable[[Node], bool]) -> None:
        self._own, self._is_stored = own, is_stored
        self._numbers: dict[Node, int] = {}

    def __call__(self, node: Node) -> int | None:
        """The number of a node's buffer; None where the kernel computes it, or nothing stores it."""
        if node in self._own or not self._is_stored(node):
            return None
        return self._numbers.setdefault(node, len(self._numbers))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those that were asked for, in the order of their numbers."""
        return tuple(self._numbers)
