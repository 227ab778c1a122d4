"""Stage 5, PLAN: cut a lowered graph into groups that become kernels.

A group has a domain (the shape it walks) and the axes that its reductions share. Reductions with the
same domain and axes join; pointwise results that live on the domain, or on what is left of it,
join as stores. Pointwise operators in between are computed on the fly by whoever reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import inf, prod

from kernelwright.algebra.views import chain_below, contiguous, laid_out
from kernelwright.ir.node import Node, number_of, users, walk
from kernelwright.ir.scalar import FUNCTIONS
from kernelwright.plan.fusion.epilogue import ends_sums, joining
from kernelwright.plan.reading.access import widens
from kernelwright.plan.reading.pieces import COPIES
from kernelwright.plan.reading.settled import settled
from kernelwright.plan.records import KernelConfig
from kernelwright.plan.roles import PLACES, roles_of

#: Calls of PyTorch's whose results are contiguous, whatever their operands are.
_CONTIGUOUS = ("linear", "matmul")
# An expression as dear as this is stored rather than computed again for every reader or repetition.
_DEAR = 30
#: What one kernel computes and reads at most, in nodes of the graph. The time that compilers take grows faster than the
#: text of a function, and a GPU's kernel takes no more than some hundred pointers: what is longer is stored in between.
MOST_NODES = 400
# Results that more evaluations than this compute again are stored where computing them takes more nodes than that: each
# step of a long loop whose steps are all stored, each block on a residual stream would else compute all before it.
_MOST_REPEATED, _OFTEN_EVALUATED = 4, 32
# A contraction that packs its operands evaluates them once; one that does not evaluates them so often or more.
_DIRECT_REPEATS = 4
# Parts of an evaluation that are looked at for whether it is the only one that reads a value.
_MOST_READ_ONCE = 64
# Rows up to this many bytes stay on chip (the last part of the longest in the cache) between a row's reductions and
# its stores; those that are not short only where there are rows enough to fill a device with one of them per block.
_ROW_BYTES = 320 * 1024
_SHORT_ROW_BYTES = 16 * 1024
_FEW_ROWS = 64
# A shorter row is not worth a loop of its own.
_LEAST_ROW = 32


def wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes other than one."""
    return tuple(s for s in shape if s != 1)


def _drawing_in_order(roots: list[Node]) -> list[Node]:
    """Every node, inputs before users, and those that draw random numbers in the program's order."""
    drawing = [n for n in walk(roots) if n.get("serial", -1) >= 0]
    return list(walk([*sorted(drawing, key=lambda n: n["serial"]), *roots]))


def base(node: Node) -> Node:
    """The node below reshapes: the same memory, as everything that is stored is contiguous."""
    while node.op == "reshape":
        node = node.inputs[0]
    return node


@dataclass(slots=True, eq=False)
class Group:
    """A future kernel or torch call.

    kind: loop, place, scan, contraction, special or torch. domain and axes: of the first four. nodes: what it
    computes for others or for its own stores, in order. over: what a contraction's reductions are over (channels,
    positions or windows). number: its place among all groups. below: the groups that it needs, directly or not, as bits
    by number. evaluated: what it computes and reads to compute its nodes. settled: what it rounds as PyTorch does.
    """

    kind: str
    domain: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    nodes: list[Node] = field(default_factory=list)
    reads: dict[Group, None] = field(default_factory=dict)
    readers: list[Group] = field(default_factory=list)
    over: str = ""
    number: int = -1
    below: int = 0
    evaluated: set[Node] = field(default_factory=set)
    settled: Collection[Node] = ()

    @property
    def outer(self) -> tuple[int, ...]:
        return tuple(s for a, s in enumerate(self.domain) if a not in self.axes)

    @property
    def row(self) -> tuple[int, ...]:
        return tuple(s for a, s in enumerate(self.domain) if a in self.axes)


class Grouping:
    """The groups of a lowered graph.

    roots: nodes whose values must exist in memory; kept: stay torch calls; stored: pointwise nodes
    that must be stored because no affine access to them exists; apart: nodes that can't join the
    reductions they read; products: contractions that become kernels, and how. before: a grouping of the same graph that
    differs in what is stored and apart alone, of which the rest is taken over.
    """

    def __init__(self, roots: Iterable[Node], kept: set[Node], stored: set[Node], apart: set[Node],
                 products: Mapping[Node, KernelConfig] | None = None, before: Grouping | None = None) -> None:
        self.apart = apart
        self.products = products or {}
        if before is None:
            self.roots = list(dict.fromkeys(roots))
            self.demanded = set(self.roots)
            self.order = _drawing_in_order(self.roots)
            self.readers = users(self.roots)
            self.roles = roles_of(self.order, kept, self.products)
            self.settled = settled(self.order, self.roles, self.readers)
            for node in self.order:
                if node.op in COPIES and self.roles[node] == "view" and any(map(self._only_for_one, node.inputs)):
                    self.roles[node] = "pointwise"  # a kernel may compute what it copies
        else:
            self.roots, self.demanded, self.order = before.roots, before.demanded, before.order
            self.readers, self.roles, self.settled = before.readers, before.roles, before.settled
        self.joined = joining(self.order, self.roles, self.readers, self.demanded, self.products, apart)
        self.stored = set(stored)
        self.in_memory = self._in_memory(self.stored)
        self._cut(lambda node: MOST_NODES)
        often = self._often_computed()
        self._cut(lambda node: _OFTEN_EVALUATED if node in often else MOST_NODES)
        self.known_shown: dict[Node, bool] = {}
        self.known_sources: dict[Node, frozenset[Node]] = {}
        self.readers_of: dict[Node, int] = {}  # groups, as bits
        self.home: dict[Node, Group] = {}
        self.groups: list[Group] = []
        self.places: dict[Hashable, Group] = {}
        self.last_draw: Group | None = None
        for node in self.order:
            self._place(node)

    def is_loaded(self, node: Node) -> bool:
        """Whether kernels load a node from memory. They read through a view that the caller gets, or PyTorch in another
        order than the contiguous one: as a view it shows what is stored already."""
        return node in self.in_memory and not (self.roles[node] == "view" and node not in self.stored and (
            node in self.demanded or self._shows_stored(node)))

    def _shows_stored(self, view: Node) -> bool:
        """Whether a view shows contiguous memory in another order, so that kernels would need a copy of it."""
        if view not in self.known_shown:
            source, chain = chain_below(view)
            stored = self.roles[source] in ("leaf", "pointwise", "reduction", "contraction", "scan") or \
                source.op in _CONTIGUOUS
            strides, copying = laid_out(source, chain)
            moved = any(stride != wanted and size > 1 for stride, wanted, size in
                        zip(strides, contiguous(view.shape), view.shape, strict=True))
            self.known_shown[view] = stored and moved and not copying
        return self.known_shown[view]

    def surroundings(self, group: Group) -> set[Node]:
        """What a group computes and what of that other groups compute it reads."""
        return {n for n in (*group.nodes, *group.evaluated) if self.roles[n] not in ("leaf", "number")}

    def _only_for_one(self, node: Node) -> bool:
        """Whether one reader alone needs this pointwise result."""
        return self.roles[node] == "pointwise" and node.op != "constant" and len(self.readers[node]) == 1 and \
            node not in self.demanded

    def _cut(self, most: Callable[[Node], int]) -> None:
        """Store more pointwise results, so that no evaluation of a node takes more nodes than ``most`` of it."""
        ends, cut = set(self.in_memory), set[Node]()
        bounds: dict[Node, int] = {}  # of what an evaluation takes, as if nothing were shared; 1 of what is in memory
        for node in self.order:
            bounds[node] = 1
            if node in ends or self.roles[node] not in ("pointwise", "view"):
                continue
            bounds[node] += sum(bounds[i] for i in node.inputs)
            limit = most(node)
            if bounds[node] >= limit:
                bounds[node] = len(self._evaluation(node, ends, MOST_NODES))
            if bounds[node] >= limit and self.roles[node] == "pointwise" and node.op != "constant":
                ends.add(node)
                cut.add(node)
                bounds[node] = 1
        if cut:
            self.stored |= cut
            self.in_memory = self._in_memory(self.stored)

    def _often_computed(self) -> set[Node]:
        """The pointwise results and views that more than `_MOST_REPEATED` evaluations compute again."""
        result: set[Node] = set()
        evaluations: dict[Node, set[Node]] = {}  # that compute a node, these or more
        for node in reversed(self.order):
            found = evaluations[node] = set()
            for reader in self.readers[node]:
                if reader not in self.in_memory:
                    found |= evaluations[reader]
                elif self.roles[reader] in ("pointwise", "reduction"):
                    found.add(reader)
                if len(found) > _MOST_REPEATED:
                    break
            if len(found) > _MOST_REPEATED and node not in self.in_memory:
                result.add(node)
        return result

    def _evaluation(self, node: Node, stored: Collection[Node], most: int) -> set[Node]:
        """What an evaluation of ``node`` computes and reads; as soon as these are ``most``, no more of them."""
        seen: set[Node] = set()
        stack = [node]
        while stack and len(seen) < most:
            current = stack.pop()
            if current not in seen:
                seen.add(current)
                if current is node or (self.roles[current] in ("pointwise", "view") and current not in stored):
                    stack += current.inputs
        return seen

    def _in_memory(self, stored: set[Node]) -> set[Node]:
        """Leaves, what is no pointwise operator and no view, and pointwise results that are stored; numbers where
        somebody else than a kernel reads them."""
        result = {n for n in self.order if self.roles[n] not in ("number", "pointwise", "view")}
        narrower: set[Node] = set()  # than what is worth storing, and of the same values, as the model rounds there
        for node in reversed(self.order):
            kind = self.roles[node]
            if kind not in ("number", "pointwise", "view") or node.op == "constant":
                continue
            demanded = node in self.demanded or node in stored or node in narrower or any(
                self.roles[r] == "torch" or (self.roles[r] == "special" and node.op != "reshape")
                or (self.roles[r] == "view" and (r in result or self._read_through(r)))
                for r in self.readers[node])
            if kind == "view":
                if demanded and node.op != "windows":
                    result.add(node)
            elif kind == "number":
                if demanded:
                    result.add(node)
            elif demanded or (self.products and ends_sums(node, self.roles, self.readers, self.demanded, self.joined)):
                result.add(node)
            elif self._worth_storing(node, result):
                if node.op == "cast" and widens(node) and self.roles[node.inputs[0]] == "pointwise":
                    narrower.add(node.inputs[0])
                else:
                    result.add(node)
        return result

    def _read_through(self, view: Node) -> bool:
        """Whether a special kernel reads what lies below this reshape."""
        return view.op == "reshape" and any(
            self.roles[r] == "special" or self._read_through(r) for r in self.readers[view])

    def _worth_storing(self, node: Node, stored: set[Node]) -> bool:
        """Several evaluations that read it, or readers that repeat a dear expression."""
        # A contraction that is recomputed reads what it read before.
        readers = [r for r in self.readers[node] if r.op != "constant" and not r.get("recompute")]
        several = len(readers) > 1 and node.size > 1024 and not self._is_read_once(node, stored)
        repeats = max((self._domain_size(r) / max(node.size, 1) for r in readers if r not in self.products), default=1)
        if any(r in self.products and self.products[r].scheme == "float32" for r in readers):
            repeats = max(repeats, _DIRECT_REPEATS)
        most_bytes = 1.5 * node.bytes if several else inf
        return (several or repeats >= 4) and self._is_dear(node, most_bytes, self.stored)

    def _is_read_once(self, node: Node, stored: set[Node]) -> bool:
        """Whether all readers are parts of one evaluation, which has each element of ``node`` at one place: pointwise
        ones of its shape, up to the one that is ``stored``, or reduced."""
        seen, ends, stack = {node}, set[Node](), [node]
        while stack and len(ends) < 2 and len(seen) <= _MOST_READ_ONCE:
            for reader in self.readers[stack.pop()]:
                if self.roles[reader] != "pointwise" or reader in stored or reader.shape != node.shape:
                    ends.add(reader)
                elif reader not in seen:
                    seen.add(reader)
                    stack.append(reader)
        return not stack and len(ends) < 2

    def _domain_size(self, reader: Node) -> int:
        return reader.inputs[0].size if self.roles[reader] in ("reduction", "place") else reader.size

    def _is_dear(self, node: Node, most_bytes: float, stored: Collection[Node]) -> bool:
        """Whether an on-the-fly evaluation down to what is ``stored`` computes what is dear, or loads more bytes than
        these. It is looked at no further than that takes."""
        cost, loads, seen, stack = 0, 0, set(), [node]
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if self.roles[current] == "pointwise" and (current is node or current not in stored):
                cost += FUNCTIONS[current.op].cost if current.op in FUNCTIONS else 0
            elif self.roles[current] != "view" and number_of(current) is None:
                loads += current.bytes
            if cost > _DEAR or loads > most_bytes:
                return True
            if self.roles[current] in ("pointwise", "view") and (current is node or current not in stored):
                stack += current.inputs
        return False

    def _needs(self, node: Node) -> dict[Group, None]:
        """Groups whose results the evaluation of ``node`` reads."""
        result: dict[Group, None] = {}
        seen: set[Node] = set()
        stack = list(node.inputs)
        while stack:
            current = stack.pop()
            if current in seen:
                continue
            seen.add(current)
            if current in self.home:
                result[self.home[current]] = None
            else:
                stack += current.inputs
        return result

    def _place(self, node: Node) -> None:
        kind = self.roles[node]
        if kind == "leaf" or node not in self.in_memory:
            return
        needs = self._needs(node)
        if kind == "special":
            self._add_special(node, needs)
            return
        if kind in ("torch", "view", "number"):
            self._add(Group("torch"), node, needs)
            return
        if kind == "contraction":
            self._add(Group("contraction", node.shape), node, needs)
            return
        if kind == "scan":
            self._add(Group("scan", node.shape, (node["axis"],)), node, needs)
            return
        if kind == "place":
            self._add_place(node, needs)
            return
        anchor = self.joined.anchor(node)
        near = [self.home[anchor]] if anchor is not None else []
        needed = 0  # by what the node needs, and hence no groups to join
        for other in needs:
            needed |= other.below
        candidates = 0
        for source in self._sources(node):
            candidates |= self.readers_of.get(source, 0)
        for other in needs:
            candidates |= 1 << other.number
        for group in chain(near, self._latest_first(candidates & ~needed)):
            if group.kind not in ("torch", "special") and not needed >> group.number & 1 \
                    and self._fits(node, kind, group, needs) and self._has_room(group, node):
                if kind == "reduction" and not group.axes and group.kind == "loop":
                    group.axes = node["axes"]
                self._extend(group, node, needs)
                if group in near:
                    group.over = self.joined.over(node)
                return
        if kind == "reduction":
            self._add(Group("loop", node.inputs[0].shape, node["axes"]), node, needs)
        else:
            self._add(Group("loop", node.shape), node, needs)

    def _latest_first(self, numbers: int) -> Iterator[Group]:
        """The groups of a set of numbers."""
        while numbers:
            last = numbers.bit_length() - 1
            yield self.groups[last]
            numbers ^= 1 << last

    def _add_place(self, node: Node, needs: dict[Group, None]) -> None:
        """A value joins its place, or the other way round; they need the same."""
        extremum = PLACES.get(node.op, node.op), node.inputs, node["axes"]
        if extremum in self.places:
            self._extend(self.places[extremum], node, needs)
            return
        self.places[extremum] = Group("place", node.inputs[0].shape, node["axes"])
        self._add(self.places[extremum], node, needs)

    def _add_special(self, node: Node, needs: dict[Group, None]) -> None:
        """One kernel has all results of a recurrence; they need the same."""
        recurrence = node.op, node.inputs, node.get("cell")
        if node.op == "recurrence" and recurrence in self.places:
            self._extend(self.places[recurrence], node, needs)
            return
        group = Group("special")
        if node.op == "recurrence":
            self.places[recurrence] = group
        self._add(group, node, needs)

    def _add(self, group: Group, node: Node, needs: dict[Group, None]) -> None:
        group.number, group.settled = len(self.groups), self.settled
        self.groups.append(group)
        draws = group.kind == "torch" and node.get("serial", -1) >= 0
        if draws and self.last_draw is not None:
            needs = {**needs, self.last_draw: None}
        self._extend(group, node, needs)
        if draws:
            self.last_draw = group

    def _extend(self, group: Group, node: Node, needs: dict[Group, None]) -> None:
        group.nodes.append(node)
        self.home[node] = group
        below = 0
        for other in needs:
            if other is not group:
                below |= other.below | 1 << other.number
                if other not in group.reads:
                    group.reads[other] = None
                    other.readers.append(group)
        stack = [group]
        while stack:
            current = stack.pop()
            if below & ~current.below:
                current.below |= below
                stack += current.readers
        if group.kind not in ("torch", "special"):
            group.evaluated |= self._evaluation(node, self.in_memory, MOST_NODES)
        if group.kind == "loop":
            for source in self._sources(node):
                self.readers_of[source] = self.readers_of.get(source, 0) | 1 << group.number

    def _has_room(self, group: Group, node: Node) -> bool:
        """Whether a kernel may evaluate the node besides what it has."""
        own = self._evaluation(node, self.in_memory, MOST_NODES)
        return len(group.evaluated) + len(own) <= MOST_NODES or len(group.evaluated | own) <= MOST_NODES

    def _fits(self, node: Node, kind: str, group: Group, needs: dict[Group, None]) -> bool:
        """Whether ``node`` may be computed by ``group``, as far as shapes and operands go."""
        if group.kind != "loop" and self._looks_up(node, group):
            return False
        if group.kind == "place":
            return kind == "pointwise" and group in needs and node not in self.apart and \
                wide(node.shape) == wide(group.outer)
        if group.kind in ("scan", "contraction"):
            anchor = group.nodes[0]
            if kind == "reduction":
                return group in needs and self.joined.anchor(node) is anchor
            # A reshape of the domain, or of what reductions leave of it: see whether it maps (else Apart).
            sizes = [n.size for n in group.nodes if self.joined.anchor(n) is anchor]
            if not self.joined.is_beyond(node, anchor):  # reductions over positions alone compute no position
                sizes.append(prod(group.domain))
            return kind == "pointwise" and group in needs and node.size in sizes and node not in self.apart
        if kind == "reduction":
            if not group.axes:
                return group in needs and node not in self.apart and self._becomes_rows(node, group)
            same = node.inputs[0].shape == group.domain and node["axes"] == group.axes
            return same and (node not in self.apart if group in needs else self._share(node, group))
        if not group.axes:
            # Results of the same shape that read the same tensors: one pass. A pointwise result that
            # is stored is not read again inside its own kernel.
            return group not in needs and node.shape == group.domain and self._share(node, group)
        if group not in needs:
            return False
        if node in self.apart:
            return False
        if wide(node.shape) == wide(group.outer):
            return True
        row = prod(group.row) * 4
        on_chip = row <= _SHORT_ROW_BYTES or (row <= _ROW_BYTES and prod(group.outer) >= _FEW_ROWS)
        # A norm over groups of channels gives the domain in another shape: see whether it maps (else Apart).
        return on_chip and (node.shape == group.domain or node.size == prod(group.domain))

    def _looks_up(self, node: Node, group: Group) -> bool:
        """Whether ``node`` is an element chosen by indices, which kernels of loops alone read, or computes one from
        what ``group`` makes; others are stored first."""
        if node.op == "lookup":
            return True
        chosen = [n for n in self._evaluation(node, self.in_memory, MOST_NODES) if n.op == "lookup"]
        return any(not self._evaluation(n, self.in_memory, MOST_NODES).isdisjoint(group.nodes) for n in chosen)

    def _becomes_rows(self, node: Node, group: Group) -> bool:
        """Whether the kernel that stores what a reduction reads may go row by row and reduce it at once, as of a sum
        that goes on beside its norm: rows are short and contiguous, and to compute them again is cheap."""
        axes, domain = node["axes"], group.domain
        if node.inputs[0].shape != domain or axes != tuple(range(len(domain) - len(axes), len(domain))):
            return False
        if not self.apart.isdisjoint(group.nodes):  # these cannot be stored row by row
            return False
        return _LEAST_ROW <= prod(domain[a] for a in axes) <= _SHORT_ROW_BYTES // 4 and \
            not any(self._is_dear(n, inf, self.in_memory) for n in group.nodes)

    def _share(self, node: Node, group: Group) -> bool:
        mine = self._sources(node)
        return any(not mine.isdisjoint(self._sources(member)) for member in group.nodes)

    def _sources(self, node: Node) -> frozenset[Node]:
        """Large stored operands of an on-the-fly evaluation; a contraction in place of its reductions over positions
        and pools."""
        if node not in self.known_sources:
            positions, pools = self.joined.positions, self.joined.pools
            self.known_sources[node] = frozenset(
                positions.get(load) or pools.get(load, load) for load in self._loads(node))
        return self.known_sources[node]

    def _loads(self, node: Node) -> list[Node]:
        """Large stored operands of an on-the-fly evaluation."""
        result, seen, stack = [], set(), list(node.inputs)
        while stack:
            current = stack.pop()
            if current in seen or current.op == "constant":
                continue
            seen.add(current)
            if current in self.in_memory:
                if current.size * 4 >= max(i.size for i in node.inputs):
                    result.append(current)
            else:
                stack += current.inputs
        return result
