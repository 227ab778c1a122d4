"""What each node of a rewritten graph stands for in the graph that it was made from.

Rules do not say what they replace: that is seen from outside, by what is no longer below a node once a rule was applied
to it. What a rule makes stands for what it removed, and so for what that stood for. Only where a rule makes many
operators, one by one of others, it tells which of which: each would stand for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping

from kernelwright.ir.graph import memory
from kernelwright.ir.node import Node, users, walk

# How many nodes below one are looked at, nearest first: rules change what is near. What none of them was seen to
# replace is found at the end.
_NEAR = 64
_NONE: frozenset[Node] = frozenset()


class Replaced:
    """What nodes stand for while a graph is rewritten. roots: of the graph."""

    def __init__(self, roots: Iterable[Node]) -> None:
        self.readers = users(roots)
        self.stands = {node: frozenset((node,)) for node in self.readers if node.kind != "leaf"}

    def becomes(self, node: Node, form: Node) -> None:
        """A node has become another, whose value is the same."""
        if form is not node and form.kind != "leaf" and (mine := self.stands.get(node)):
            self.stands[form] = self.stands.get(form, _NONE) | mine

    def applied(self, built: Node, made: Node, known: Container[Node], forms: Mapping[Node, Node]) -> None:
        """A rule was applied. known: nodes that were there before it. forms: of nodes that were made of one, that."""
        if made in forms:
            self.becomes(built, made)
            waiting, seen = [made], {made}
            while waiting:
                form = waiting.pop()
                self.becomes(forms[form], form)
                fresh = [i for i in form.inputs if i in forms and i not in known and i not in seen]
                seen.update(fresh)
                waiting += fresh
            return
        new, waiting = {made: None}, [made]
        while waiting:
            fresh = [n for n in waiting.pop().inputs if n not in known and n not in new]
            new.update(dict.fromkeys(fresh))
            waiting += fresh
        left = _near(made, ())
        removed = frozenset[Node]().union(*(self.stands.get(n, _NONE) for n in _near(built, left)))
        for node in new:
            if node.kind != "leaf":
                self.stands[node] = self.stands.get(node, _NONE) | removed

    def result(self, roots: Iterable[Node]) -> dict[Node, tuple[Node, ...]]:
        """For each node below ``roots``, which are what came of the graph, the nodes of the graph that it stands for,
        in their order. A node of the graph for which none stands is part of what its readers do."""
        found = {n: set(self.stands[n]) for n in walk(roots) if n in self.stands}
        standing = set[Node]().union(*found.values())
        places: dict[Node, list[Node]] = {}
        for form, nodes in found.items():
            for node in nodes:
                places.setdefault(node, []).append(form)
        for node in reversed(self.readers):  # users before inputs
            if node.kind != "leaf" and node not in standing:
                places[node] = list(dict.fromkeys(form for r in self.readers[node] for form in places.get(r, ())))
                for form in places[node]:
                    found[form].add(node)
        for form in [form for form in found if form.kind == "view"]:
            # What is more than a view stands beside what the view shows, if that is computed.
            base = memory(form)
            if base in found:
                more = {n for n in found[form] if n.kind != "view"}
                found[base] |= more
                found[form] -= more
        place = {node: number for number, node in enumerate(self.readers)}
        return {form: tuple(sorted(nodes, key=place.__getitem__)) for form, nodes in found.items()}


def _near(node: Node, ends: Container[Node]) -> set[Node]:
    """A node and those below it, without ``ends`` and what is below these, as far as they are near."""
    seen, waiting = {node}, deque([node])
    while waiting and len(seen) < _NEAR:
        fresh = [n for n in waiting.popleft().inputs if n not in seen and n not in ends]
        seen.update(fresh)
        waiting += fresh
    return seen
