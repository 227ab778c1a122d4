"""Products that one kernel takes with what stands around them: as single nodes, each with a form, a graph of its own.

Below a form stand its operands. Views and copies above those are index arithmetic; pointwise operators that nobody else
reads are computed where operands are read, unless they are dear and asked for at more points than they have elements.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from kernelwright.ir.node import Node, make, number_of, rebuild, users, walk
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.reading.pieces import can_read_through
from kernelwright.plan.rolling.roll import Rolled, after

PRODUCTS = ("matmul", "contract")
#: A dearer function is computed once, and stored, where it is asked for at more points than it has elements.
_DEAR = 10
#: Types that forms are made of.
TYPES = ("float32", "bool", "int64", "scalar")


def searched(search: type[Forms], roots: Iterable[Node], apart: Collection[Node], rolled: Rolled | None
             ) -> Rolled | None:
    """The graph below ``roots``, or what ``rolled`` has made of it, with what a search finds as single nodes; as it is
    given where there is nothing. apart: nodes of the graph that are in none."""
    roots = list(roots)
    moved = {n: n for n in (*roots, *apart)} if rolled is None else rolled.moved
    found = search([moved[r] for r in roots], {moved[n] for n in apart if n in moved}).found()
    return rolled if found is None else found if rolled is None else after(rolled, found)


class Forms(ABC):
    """The forms of a graph. taken: by the last node that each does the work of, its form, the operands, and all that it
    does the work of."""

    def __init__(self, roots: list[Node], apart: Collection[Node]) -> None:
        self.roots, self.apart = roots, apart
        self.order, self.readers = list(walk(roots)), users(roots)
        self.shown = set(roots)
        self.taken: dict[Node, tuple[Any, list[Node], list[Node]]] = {}

    @abstractmethod
    def found(self) -> Rolled | None:
        """What becomes of the graph; None where there is no form."""

    def rolled(self, op: str) -> Rolled | None:
        """The graph with a node ``op`` in place of each form; None where it has none."""
        if not self.taken:
            return None
        known: dict[Node, Node] = {}
        for node in self.order:
            if node in self.taken:
                form, operands, _ = self.taken[node]
                known[node] = make(op, *(known[o] for o in operands), form=form, origin=node.origin)
            else:
                known[node] = rebuild(node, tuple(known[i] for i in node.inputs))
        present = set(walk(known[r] for r in self.roots))
        moved = {n: new for n, new in known.items() if new in present}
        source: dict[Node, Node] = {}
        for node, new in moved.items():
            source.setdefault(new, node)
        place = {node: number for number, node in enumerate(self.order)}
        covers = {last: tuple(n for n in sorted(covered, key=place.__getitem__)
                              if n.kind != "view" and (n is last or known[n] not in present))
                  for last, (_, _, covered) in self.taken.items()}
        return Rolled(moved, source, covers)

    def is_inner(self, node: Node) -> bool:
        """Whether one node alone reads a value, and nobody sees it."""
        return node not in self.apart and node not in self.shown and len(self.readers[node]) == 1

    def gone(self, body: Collection[Node], covered: Collection[Node]) -> list[Node]:
        """What of ``body``, beside ``covered``, is read by nothing else: a form does its work."""
        whole = set(body)
        return [n for n in body if n not in covered and n in self.readers and whole.issuperset(self._behind_views(n))
                and n not in self.shown]

    def belongs(self, node: Node, body: Collection[Node], points: int, bearable: float = 0.0,
                types: Collection[str] = TYPES) -> bool:
        """Whether an operator is computed inside of the kernel, at so many points; at none where operands are as they
        are. bearable: multiply-adds that a dear function may take at all points."""
        if node in body or node.op == "constant" or (node.op == "literal" and number_of(node) is not None) \
                or node not in self.readers:  # made for the form
            return True
        if node in self.apart or node.kind == "leaf" or node in self.shown or node in self.taken:
            return False
        if node.kind == "view" or (can_read_through(node) and points):
            return True
        cost = FUNCTIONS[node.op].cost if node.op in FUNCTIONS else 1
        cheap = cost < _DEAR or node.size >= points or cost * points <= bearable
        return node.kind == "pointwise" and points > 0 and cheap and node.dtype in types \
            and all(reader in body for reader in self._behind_views(node))

    def _behind_views(self, node: Node) -> Iterator[Node]:
        """What reads a node, or views of it."""
        stack = list(self.readers[node])
        while stack:
            reader = stack.pop()
            if (reader.kind == "view" or can_read_through(reader)) and reader not in self.shown:
                stack += self.readers[reader]
            else:
                yield reader


class Entering:
    """A form in the making: nodes of the graph that are computed inside of it, with their images, and leaves in place
    of others. body: what the form does the work of, to which pointwise operators and copies are added. known: images by
    node."""

    def __init__(self, forms: Forms, body: Collection[Node], known: dict[Node, Node], *, absorbs: bool = True,
                 bearable: float = 0.0, types: Collection[str] = TYPES) -> None:
        self.forms, self.body, self.known, self.absorbs = forms, dict.fromkeys(body), known, absorbs
        self.bearable, self.types = bearable, types
        self.operands: dict[Node, Node] = {}  # with the leaf of each

    def enter(self, root: Node, points: int) -> Node:
        """A node of the form that is evaluated at so many points, or the leaf in its place."""
        seen: set[Node] = set()
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                self.known[node] = rebuild(node, tuple(self.known[i] for i in node.inputs))
            elif node in self.known or node in seen:
                continue
            elif self.forms.belongs(node, self.body, points if self.absorbs else 0, self.bearable, self.types):
                seen.add(node)
                if node.kind == "pointwise" or can_read_through(node):
                    self.body[node] = None
                stack += [(node, True), *((i, False) for i in reversed(node.inputs))]
            else:
                self.operands[node] = self.known[node] = leaf_of(node, len(self.operands))
        return self.known[root]


def leaf_of(node: Node, number: int) -> Node:
    """A leaf in place of a node."""
    return make("input", name=f"operand{number}", shape=node.shape, dtype=node.dtype)
