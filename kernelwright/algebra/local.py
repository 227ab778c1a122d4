"""Which linear operators to collapse, decided one by one, each by the nodes that appear and disappear with it.

A graph of many blocks has as many operators that could collapse. To rewrite all of it for each of them would take the
square of their number, and what one saves would be weighed against the whole. So the source graph is rewritten once
without permission, and it is noted where rules asked for which operator; an attempt rewrites those places alone, with
what rules see through between them and what absorbed their results, on top of what is known of everything else. Whoever
else reads a result costs the same whatever it is made of, and keeps the form that it had.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.algebra.identities import TRANSPARENT
from kernelwright.algebra.rule import Context
from kernelwright.ir.node import Node, rebuild, users, walk
from kernelwright.roofline.cost import node_seconds
from kernelwright.roofline.devices import Device

#: What an attempt rewrites at most, in nodes of the source graph.
_MOST_NODES = 256

#: What the first rule that applies makes of a node whose inputs are in normal form; None where none does.
Rewrite = Callable[[Node, Context], Node | None]


class NoFixpoint(RuntimeError):
    """The rules did not come to an end."""


@dataclass
class Decisions:
    """The normal forms of a source graph under what was decided so far.

    roots: of the source graph. rewrite: the rules. gain: what appears must take less than this share of the time of
    what disappears. most: steps of the rules at one node.
    """

    roots: Sequence[Node]
    rewrite: Rewrite
    device: Device
    dropped: frozenset = frozenset()
    gain: float = 0.97
    most: int = 10_000
    allowed: frozenset[int] = frozenset()
    forms: dict[Node, Node] = field(default_factory=dict)  # of nodes of the source graph, and of what rules made
    made: dict[Node, frozenset[int]] = field(default_factory=dict)  # of what rules made, for whom they asked
    made_for: dict[int, list[Node]] = field(default_factory=dict)  # the other way round
    asked: dict[int, set[Node]] = field(default_factory=dict)  # for each operator, nodes of the source graph
    final: set[Node] = field(default_factory=set)  # normal forms of nodes of the source graph
    absorbs: set[Node] = field(default_factory=set)  # nodes of the source graph to which rules were applied
    count: dict[Node, int] = field(default_factory=dict)  # how many readers a normal form has
    moved: dict[Node, Node] = field(default_factory=dict)  # what is read in place of a form that disappeared

    def decide(self) -> frozenset[int]:
        """The origins of the operators that may be collapsed."""
        self.order = list(walk(self.roots))
        self.place = {n: place for place, n in enumerate(self.order)}
        self.readers, self.demanded = users(self.roots), set(self.roots)
        self.known = set(self.order)
        first: dict[int, int] = {}
        for place, node in enumerate(self.order):
            first.setdefault(id(node.origin), place)
            self._note(node, *self._normal(node, Context(dropped=self.dropped), {}, set()))
        roots = list(dict.fromkeys(self.forms[r] for r in self.roots))
        self.count = {n: len(found) for n, found in users(roots).items()}
        for root in roots:
            self.count[root] += 1
        self.sharing: dict[Node, int] = {}
        for node in self.order:
            self.sharing[self.forms[node]] = self.sharing.get(self.forms[node], 0) + 1
        waiting = [(first[origin], origin) for origin in self.asked if origin in first]
        heapq.heapify(waiting)
        tried = set(self.asked)
        while waiting:
            _, origin = heapq.heappop(waiting)
            for other in self._attempt(origin):
                if other not in tried and other in first:
                    tried.add(other)
                    heapq.heappush(waiting, (first[other], other))
        return self.allowed

    def _attempt(self, origin: int) -> set[int]:
        """Allow an operator where that pays: the operators that rules then asked for."""
        context = Context(self.allowed | {origin}, dropped=self.dropped)
        region = self._region(origin)
        stale, overlay = set(region), dict[Node, Node]()
        found = {n: self._normal(n, context, overlay, stale) for n in region}
        appears, disappears = self._changes(region, stale, {n: form for n, (form, *_) in found.items()})
        if sum(self._seconds(appears)) >= self.gain * sum(self._seconds(disappears)):
            return set()
        self.allowed = context.allowed
        self._pay(appears, disappears, {self.forms[n]: found[n][0] for n in region})
        for node in self.made_for.pop(origin, ()):
            self.forms.pop(node, None)
            self.made.pop(node, None)
        for node in region:
            self.sharing[self.forms[node]] -= 1
            self._note(node, *found[node])
            self.sharing[self.forms[node]] = self.sharing.get(self.forms[node], 0) + 1
        return context.used

    def _seconds(self, nodes: Iterable[Node]) -> list[float]:
        return [node_seconds(n, self.device) for n in nodes]

    # Rewriting ---------------------------------------------------------------------------------------

    def _normal(self, root: Node, context: Context, overlay: dict[Node, Node], stale: set[Node]
                ) -> tuple[Node, dict[Node, Node], set[int], bool]:
        """The normal form of a node whose inputs have theirs; what rules made on the way, with its own; for whom they
        asked; and whether any applied. overlay: what this attempt has found. stale: nodes whose known form is not of
        this attempt."""
        before, context.used = context.used, set()
        known_asked: set[int] = set()
        mine: dict[Node, Node] = {}
        replaced: dict[Node, Node] = {}
        steps = 0
        stack = [root]

        def form(node: Node) -> Node | None:
            if node in overlay:
                return overlay[node]
            if node in stale or (found := self.forms.get(node)) is None:
                return None
            asked = self.made.get(node, frozenset())
            if asked & context.allowed - self.allowed:
                return None
            if node not in self.final:  # a term, whatever it is made of: rules that see through it ask themselves
                known_asked.update(asked)
            return found

        while stack:
            node = stack[-1]
            needed = node.inputs if node not in replaced else (replaced[node],)
            parts = {n: found for n in needed if (found := form(n)) is not None}
            missing = [n for n in needed if n not in parts]
            if node in mine:
                stack.pop()
            elif missing:
                stack.extend(reversed(missing))
                if any(n in replaced for n in missing) or steps > self.most:
                    raise NoFixpoint(repr(node))
            elif node in replaced:
                mine[node] = overlay[node] = parts[replaced.pop(node)]
                stack.pop()
            else:
                built = rebuild(node, tuple(parts[i] for i in node.inputs))
                replacement = self.rewrite(built, context)
                if replacement is not None:
                    replaced[node] = replacement
                    steps += 1
                else:
                    mine[node] = overlay[node] = built
                    if form(built) is None:
                        mine[built] = overlay[built] = built
                    stack.pop()
        asked, context.used = context.used | known_asked, before | context.used
        return mine[root], mine, asked, steps > 0

    def _note(self, node: Node, form: Node, made: dict[Node, Node], asked: set[int], applied: bool) -> None:
        """Keep the normal form of a node of the source graph."""
        for other, its in made.items():
            self.forms[other] = its
            if asked and other not in self.known:
                self.made[other] = frozenset(asked)
                for origin in asked:
                    self.made_for.setdefault(origin, []).append(other)
        for origin in asked:
            self.asked.setdefault(origin, set()).add(node)
        self.final.add(form)
        if applied:
            self.absorbs.add(node)

    def _region(self, origin: int) -> list[Node]:
        """Where rules asked for an operator, what they see through between these places, and what absorbs their
        results."""
        askers = self.asked[origin]
        last = max(self.place[n] for n in askers)
        result: list[Node] = []
        waiting = [self.place[n] for n in askers]
        heapq.heapify(waiting)
        seen = set(waiting)
        while waiting and len(result) < max(_MOST_NODES, len(askers)):
            place = heapq.heappop(waiting)
            node = self.order[place]
            result.append(node)
            for reader in self.readers[node]:
                there = self.place[reader]
                between = there <= last and reader.op in TRANSPARENT
                if there not in seen and (between or reader.kind == "view" or reader in self.absorbs):
                    seen.add(there)
                    heapq.heappush(waiting, there)
        return result

    # What it costs -----------------------------------------------------------------------------------

    def _changes(self, region: Sequence[Node], stale: set[Node], forms: dict[Node, Node]
                 ) -> tuple[list[Node], list[Node]]:
        """The nodes of normal forms that appear, and those that disappear, with other forms of a region."""
        edge = [n for n in region if n in self.demanded or any(r not in stale for r in self.readers[n])]
        changed = [n for n in edge if forms[n] is not self.forms[n]]
        held: dict[Node, int] = {}  # readers beyond those that are counted
        appears: dict[Node, None] = {}
        stack = [self._now(forms[n]) for n in edge]
        for node in stack:
            held[node] = held.get(node, 0) + 1
        while stack:
            node = stack.pop()
            if node in appears or self.count.get(node, 0) or node.kind == "leaf":
                continue
            appears[node] = None
            for needed in self._read(node):
                held[needed] = held.get(needed, 0) + 1
                stack.append(needed)
        # Whoever reads a form that changed reads the other one, but where a node elsewhere has the same form.
        having: dict[Node, int] = {}
        for node in region:
            having[self.forms[node]] = having.get(self.forms[node], 0) + 1
        gone = [old for old in dict.fromkeys(self.forms[n] for n in changed) if having[old] == self.sharing.get(old, 0)]
        for old in gone:
            held[old] = held.get(old, 0) - self.count.get(old, 0)
        disappears: dict[Node, None] = {}
        while gone:
            node = gone.pop()
            if node in disappears or not self.count.get(node) or self.count[node] + held.get(node, 0) > 0:
                continue
            disappears[node] = None
            for needed in self._read(node):
                held[needed] = held.get(needed, 0) - 1
                gone.append(needed)
        return list(appears), list(disappears)

    def _now(self, node: Node) -> Node:
        """What is read in place of a normal form."""
        while node in self.moved:
            node = self.moved[node]
        return node

    def _read(self, node: Node) -> Iterable[Node]:
        """What a normal form reads."""
        return dict.fromkeys(map(self._now, node.inputs))

    def _pay(self, appears: Sequence[Node], disappears: Sequence[Node], changed: Mapping[Node, Node]) -> None:
        """Count the readers of normal forms anew. changed: forms of the region, by those before them."""
        for node in appears:
            for needed in self._read(node):
                self.count[needed] = self.count.get(needed, 0) + 1
        for node in disappears:
            for needed in self._read(node):
                self.count[needed] = max(0, self.count.get(needed, 0) - 1)
        for old in disappears:
            readers, self.count[old] = self.count[old], 0
            new = self._now(changed.get(old, old))
            if new is not old:
                self.moved[old] = new
                self.count[new] = self.count.get(new, 0) + readers
