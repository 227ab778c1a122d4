"""A graph with recurrences in place of the loops that were written out in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod

from kernelwright.ir.node import Node, make, rebuild, users, walk
from kernelwright.ir.ops.leaves import fill
from kernelwright.plan.compile.recurrences import NoForm, compile_recurrence
from kernelwright.plan.lowering.recurrent import lstm
from kernelwright.plan.rolling.cells import cell_of
from kernelwright.plan.rolling.matching import Loop, Matcher
from kernelwright.plan.rolling.uses import Run, Uses, uses_of

#: Loops that read what other loops give are found where these are recurrences; so often.
_MOST_ROUNDS = 8
#: A step whose products take more is the library's: all else of it is too little for one kernel to be much faster.
_MOST_OPERATIONS = 1 << 26


@dataclass(frozen=True, slots=True)
class Rolled:
    """A graph in which loops are recurrences.

    moved: for each node of the graph before, the one that has its value, where there still is one. source: for each
    node, the one of the graph before that it stands for; of what was made for a loop that is the loop's last value.
    covers: by such values, all that their recurrence computes.
    """

    moved: dict[Node, Node]
    source: dict[Node, Node]
    covers: dict[Node, tuple[Node, ...]]


def roll(roots: Iterable[Node], apart: Collection[Node]) -> Rolled | None:
    """The graph below ``roots`` with its loops as recurrences; None where it has none. apart: nodes of no loop."""
    roots, whole = list(roots), None
    for _ in range(_MOST_ROUNDS):
        moved = {n: n for n in (*roots, *apart)} if whole is None else whole.moved
        found = _Round([moved[r] for r in roots], {moved[n] for n in apart if n in moved}).rolled()
        if found is None:
            break
        whole = found if whole is None else after(whole, found)
    return whole


def after(first: Rolled, second: Rolled) -> Rolled:
    """Two rounds as one."""
    covers = {first.source[last]: tuple(dict.fromkeys(first.source[n] for n in nodes))
              for last, nodes in second.covers.items()}
    return Rolled({n: second.moved[m] for n, m in first.moved.items() if m in second.moved},
                  {n: first.source[m] for n, m in second.source.items()}, first.covers | covers)


class _Round:
    """The loops of one graph that do not read what others of it give step by step.

    It is looked at with the cells of two states written out, which are one call each; of those that are no loop the
    calls stay. ``expanded``: of its nodes, and ``before`` the other way round.
    """

    def __init__(self, roots: list[Node], apart: Collection[Node]) -> None:
        self.roots = roots
        self.expanded: dict[Node, Node] = {}
        self.before: dict[Node, Node] = {}
        self.calls: dict[Node, Node] = {}  # by what their results are written out as
        for node in walk(roots):
            inputs = tuple(self.expanded[i] for i in node.inputs)
            own = _written_out(node, inputs)
            if own is None:
                own = rebuild(node, inputs)
            else:
                self.calls[own] = inputs[0]
            self.expanded[node] = own
            self.before.setdefault(own, node)
        ends = [self.expanded[r] for r in roots]
        self.order, self.readers, self.shown = list(walk(ends)), users(ends), set(ends)
        self.apart = {self.expanded[n] for n in self.expanded
                      if n in apart or (n.op == "item" and n.inputs[0] in apart)}
        self.replaced: dict[Node, Node] = {}  # what stands in place of values of loops
        self.runs: dict[Node, list[tuple[Run, Node]]] = {}  # by concatenations, with what they are
        self.loops: dict[Node, list[Node]] = {}  # by last values of loops, all that their steps compute
        self.made: dict[Node, Node] = {}  # for a loop, by its last value

    def rolled(self) -> Rolled | None:
        """The graph with its loops as recurrences; None where it has none."""
        for loop, done in Matcher(self.order, self.apart).loops():
            made = {own for step in loop.steps for own in loop.made(step)}
            if self._take(loop, made):
                done |= made
        known = self._substituted() if self.loops else None
        if known is None:
            return None
        moved = {n: known[own] for n, own in self.expanded.items() if own in known}
        present = set(walk(moved[r] for r in self.roots))
        source: dict[Node, Node] = {}
        for own, last in self.made.items():
            if own in known:
                source.setdefault(known[own], self.before[last])
        for own, new in known.items():
            if own in self.before and own not in self.replaced:
                source.setdefault(new, self.before[own])
        covers = {}
        for last, nodes in self.loops.items():
            gone = (self.before[n] for n in nodes if n in self.before and (
                n in self.replaced or n in self.runs or known.get(n) not in present))
            calls = dict.fromkeys(n.inputs[0] if n.op == "item" else n for n in gone)
            covers[self.before[last]] = tuple(n for n in calls if n.kind not in ("leaf", "view"))
        return Rolled({n: new for n, new in moved.items() if new in present},
                      {new: source[new] for new in present if new in source}, covers)

    def _take(self, loop: Loop, made: set[Node]) -> bool:
        """Put a recurrence in place of a loop, if a kernel has a form for it and it pays; whether it was done."""
        template, last = loop.template, loop.steps[-1][next(iter(loop.template.updates.values()))]
        uses = uses_of(loop, made, self.readers, self.shown)
        try:
            if not uses.results or last not in self.before:
                return False
            values = uses.values
            cell, operands = cell_of(loop, values)
            results = {r: make("recurrence", *operands, cell=cell, value=values.index(r.value), axis=r.axis,
                               reverse=r.reverse, origin=last.origin) for r in uses.results}
            kernel = compile_recurrence(list(results.values()), range(len(operands)))
        except NoForm:
            return False
        if 2 * prod(kernel.shape) * kernel.gates * kernel.hidden > _MOST_OPERATIONS:
            return False
        still = not any(role == "moves" for role in template.roles.values())
        if not kernel.weights and still and all(r.axis is None for r in uses.results):
            return False  # a kernel of pointwise operators keeps all that in registers
        values_of = {own for step in loop.steps for value in values if (own := step.get(value)) is not None}
        if not values_of.isdisjoint(walk(operands)):
            return False
        self._replace(loop, uses, results)
        whole = [run.joined for run in uses.runs if run.end - run.begin == len(run.joined.inputs)]
        self.loops[last] = [*(own for step in loop.steps for own in loop.made(step)), *whole]
        for node in walk([*operands, *results.values(), *self.replaced.values(),
                          *(x for some in self.runs.values() for _, x in some)]):
            if node not in self.before:
                self.made.setdefault(node, last)
        return True

    def _replace(self, loop: Loop, uses: Uses, results: dict) -> None:
        count = len(loop.steps)
        for value, places in uses.alone.items():
            result = uses.of(value)
            node = results[result]
            for place in places:
                own = loop.steps[place][value]
                if result.axis is not None:
                    at = count - 1 - place if result.reverse else place
                    part = make("slice", node, axis=result.axis, start=at, stop=at + 1, step=1)
                    self.replaced[own] = make("reshape", part, shape=own.shape)
                else:
                    self.replaced[own] = node
        for run in uses.runs:
            self.runs.setdefault(run.joined, []).append((run, run.shown(results[run.result])))

    def _joined(self, node: Node) -> Node:
        """A concatenation with runs of steps as what they are side by side."""
        parts: list[Node] = []
        done = 0
        for run, shown in sorted(self.runs[node], key=lambda pair: pair[0].begin):
            parts += [*node.inputs[done:run.begin], shown]
            done = run.end
        parts += node.inputs[done:]
        return parts[0] if len(parts) == 1 else make("concatenate", *parts, origin=node.origin, **dict(node.attributes))

    def _substituted(self) -> dict[Node, Node] | None:
        """The new nodes of all that the roots need, by those of the expanded graph and what was made of them; None
        where loops wait for each other."""
        known: dict[Node, Node] = {}
        opened: set[Node] = set()
        stack = [self.expanded[r] for r in self.roots]
        while stack:
            node = stack[-1]
            if node in known:
                stack.pop()
                continue
            for_it: Sequence[Node] = node.inputs
            if node in self.replaced:
                for_it = (self.replaced[node],)
            elif node in self.runs:
                for_it = (self._joined(node),)
            elif node in self.calls:
                for_it = (self.calls[node],)
            missing = [n for n in for_it if n not in known]
            if missing:
                if node in opened and not opened.isdisjoint(missing):
                    return None
                opened.add(node)
                stack += missing
                continue
            if node in self.replaced or node in self.runs:
                known[node] = known[for_it[0]]
            elif node in self.calls:
                known[node] = rebuild(self.before[node], (known[for_it[0]],))
            else:
                known[node] = rebuild(node, tuple(known[n] for n in for_it))
        return known


def _written_out(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """A result of a cell of two states as operators, in float32; None of everything else. inputs: of the node."""
    call = inputs[0] if node.op == "item" else node
    if node.op != "item" or call.op != "opaque" or call["target"] != "aten.lstm_cell.default" or call["keywords"]:
        return None
    x, states, inner, own, *biases = fill(call["template"], call.inputs)
    state, memory = states
    biases = [b for b in biases if b is not None]
    if any(n.dtype != "float32" or n.rank != 2 for n in (x, state, memory)) or len(biases) not in (0, 2):
        return None
    hidden = state.shape[1]
    layers = (make("linear", value, weight, *biases[n:n + 1], origin=call.origin)
              for n, (value, weight) in enumerate(((x, inner), (state, own))))
    of_input, of_state = ([make("slice", layer, axis=1, start=gate * hidden, stop=(gate + 1) * hidden, step=1)
                           for gate in range(4)] for layer in layers)
    return lstm(of_input, of_state, (state, memory))[node["index"]]
