"""Loops by their structure: chains of values each of which is made of the one before in the same way.

Two nodes are taken for the same value of two neighbouring steps, and the graph below both is gone through in step: what
is one node in both stays the same in all steps; what are two places of one tensor is an operand that moves; what was
met before as the partner of another node is the state that this one becomes. All else must be the same operator of
such pairs. What is found so is the template of a step, which is then held against the steps before for as long as they
are like it.

A node is looked at by how it came about and not by where it stands, and each at most a few times: what did not match
once is not tried again, so that the work is near linear in the number of nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch

from kernelwright.algebra.repeated import Part
from kernelwright.ir.node import Node, number_of
from kernelwright.ir.registry import torch_dtype
from kernelwright.plan.rolling.steps import step_of

#: Fewer steps than these are no loop.
LEAST_STEPS = 4
#: A step has no more nodes than these.
MOST_NODES = 200
#: A value is held against so many others like it before it, at most: loops side by side may share their weights.
_MOST_TRIED = 4

Step = dict[Node, Node]
"""The nodes of one step by those of the template that they are like; what is the same in all steps is left out."""


@dataclass(slots=True)
class Template:
    """A step of a loop, as the last one has it.

    roles: of each node: "same" in all steps, an operand that "moves", a "state" before the step, or "made" in it.
    updates: for each state before the step what it becomes. parts, strides: of what moves, where it is in the last step
    and how far it moves in a step.
    """

    roles: dict[Node, str] = field(default_factory=dict)
    updates: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, Part] = field(default_factory=dict)
    strides: dict[Node, int] = field(default_factory=dict)

    @property
    def made(self) -> list[Node]:
        """What a step computes."""
        return [n for n, role in self.roles.items() if role == "made"]


@dataclass(slots=True)
class Loop:
    """A loop: its template, its steps in the order of time, the values of states before them (a number where that is
    known), by the template's states."""

    template: Template
    steps: list[Step]
    initial: dict[Node, Node | float]

    def made(self, step: Step) -> list[Node]:
        """What is computed in one of its steps."""
        return [own for n, own in step.items() if self.template.roles[n] == "made"]


class Matcher:
    """The loops of a graph.

    order: its nodes, inputs before users. apart: those that no loop may have.
    """

    def __init__(self, order: Iterable[Node], apart: Collection[Node]) -> None:
        self.apart = apart
        self.index = {n: place for place, n in enumerate(order)}
        self.signs: dict[Node, Hashable] = {}
        self.known_parts: dict[Node, Part | None] = {}
        alike: dict[Hashable, list[Node]] = {}
        for node in self.index:
            alike.setdefault((self._sign(node), *map(self._likeness, node.inputs)), []).append(node)
        self.before: dict[Node, list[Node]] = {}
        for some in alike.values():
            first = some[0]
            begins = first.kind in ("pointwise", "linear") or first.op == "cast"
            if len(some) >= LEAST_STEPS - 1 and begins and first.dtype == "float32":
                for place, node in enumerate(some):
                    self.before[node] = some[max(0, place - _MOST_TRIED):place][::-1]

    def loops(self) -> Iterator[tuple[Loop, set[Node]]]:
        """Each loop, the latest first, and a set to which who takes it adds its nodes: none of another loop then. Who
        does not take it leaves the set as it is."""
        done: set[Node] = set()
        for node in reversed(self.index):
            if node in done or node in self.apart:
                continue
            for earlier in self.before.get(node, ()):
                template = self.template(node, earlier) if earlier not in done else None
                if template is None:
                    continue
                loop, before = self._loop(template), len(done)
                own = (n for step in loop.steps for n in loop.made(step))
                if len(loop.steps) >= LEAST_STEPS and done.isdisjoint(own):
                    yield loop, done
                if len(done) == before:  # the same value of another step would be the same loop
                    done.update(step[node] for step in loop.steps if node in step)
                break

    def _sign(self, node: Node) -> Hashable:
        """Equal for the same operator on inputs of any origin."""
        if node not in self.signs:
            self.signs[node] = (node.op, repr(node.attributes), node.shape, node.dtype, len(node.inputs))
        return self.signs[node]

    def _likeness(self, node: Node) -> Hashable:
        """Equal for operands that may be the same in two steps."""
        part = self._part(node)
        return id(node) if node.kind == "leaf" else self._sign(node) if part is None else part[:2]

    def _part(self, node: Node) -> Part | None:
        if node not in self.known_parts:
            self.known_parts[node] = step_of(node)
        return self.known_parts[node]

    def template(self, last: Node, earlier: Node) -> Template | None:
        """The template of which ``last`` and ``earlier`` are the same value in two neighbouring steps."""
        found, partners, images = Template(), dict[Node, Node](), dict[Node, Node]()
        waiting: list[tuple[int, Node]] = []

        def pair(x: Node, y: Node) -> bool:
            if x in partners:
                return partners[x] is y
            partners[x] = y
            if x is y:
                found.roles[x] = "same"
                return True
            if x.kind == "leaf" or (y in images and images[y] is not x):
                return False
            images[y] = x
            heapq.heappush(waiting, (-self.index[x], x))
            return True

        pair(last, earlier)
        while waiting:
            # What has made a node comes after it: of the nodes that a state becomes, all have been seen.
            _, x = heapq.heappop(waiting)
            y = partners[x]
            part, other = self._part(x), self._part(y)
            if part is not None and other is not None and part[:2] == other[:2]:
                found.roles[x] = "moves"
                found.parts[x], found.strides[x] = part, part.place - other.place
                continue
            if x in images:
                found.roles[x] = "state"
                found.updates[x] = images[x]
                continue
            if self._sign(x) != self._sign(y) or len(found.roles) >= MOST_NODES or not self._may_be_made(x) \
                    or not all(pair(a, b) for a, b in zip(x.inputs, y.inputs, strict=True)):
                return None
            found.roles[x] = "made"
        return found if found.roles.get(earlier) == "state" else None

    def _may_be_made(self, node: Node) -> bool:
        return node not in self.apart and node.get("serial", -1) < 0 and node.kind != "leaf"

    def _loop(self, template: Template) -> Loop:
        """The loop of a template, with all the steps that are like it."""
        steps: list[Step] = []
        after = {update: update for update in template.updates.values()}
        while True:
            step = self._like(template, after, len(steps))
            if step is None:
                break
            steps.append(step)
            after = {update: step[state] for state, update in template.updates.items()}
        initial: dict[Node, Node | float] = {state: steps[-1][state] for state in template.updates}
        numbers = self._from_numbers(template, after, len(steps))
        if numbers is not None:
            step, known = numbers
            steps.append(step)
            initial = dict(known)
        return Loop(template, steps[::-1], initial)

    def _like(self, template: Template, after: Mapping[Node, Node], back: int) -> Step | None:
        """The step so many steps before the last one, where it is like the template. after: its states, by updates."""
        step: Step = {}
        stack = list(after.items())
        while stack:
            node, own = stack.pop()
            if node in step:
                if step[node] is not own:
                    return None
                continue
            role = template.roles[node]
            if role == "same":
                if own is not node:
                    return None
                continue
            step[node] = own
            if role == "moves" and not self._is_at(template, node, own, back):
                return None
            if role == "made":
                if own in self.apart or self._sign(own) != self._sign(node):
                    return None
                stack += zip(node.inputs, own.inputs, strict=True)
        return step

    def _is_at(self, template: Template, node: Node, own: Node, back: int) -> bool:
        part, found = template.parts[node], self._part(own)
        return found is not None and found == part._replace(place=part.place - back * template.strides[node])

    def _from_numbers(self, template: Template, after: Mapping[Node, Node], back: int
                      ) -> tuple[Step, dict[Node, float]] | None:
        """The first step of a loop that begins with numbers, which operators of it may have become, and these: zeros,
        where nothing of them is left. after: the states after it, by updates."""
        step: Step = {}
        known: dict[Node, float] = {}
        computed: list[tuple[Node, float]] = []
        stack = list(after.items())
        while stack:
            node, own = stack.pop()
            if node in step:
                if step[node] is not own:
                    return None
                continue
            role, number = template.roles[node], number_of(own)
            if role == "same":
                if own is not node:
                    return None
            elif role == "state":
                if number is None or repr(known.setdefault(node, float(number))) != repr(float(number)):
                    return None
            elif role == "moves":
                if not self._is_at(template, node, own, back):
                    return None
                step[node] = own
            elif number is not None:
                computed.append((node, float(number)))
            elif own in self.apart or self._sign(own) != self._sign(node):
                return None
            else:
                step[node] = own
                stack += zip(node.inputs, own.inputs, strict=True)
        for node, part in template.parts.items():
            if not 0 <= part.place - back * template.strides[node] < part.whole.shape[part.axis]:
                return None
        initial = {state: known.get(state, 0.0) for state in template.updates}
        if not step or any(repr(_computed(node, initial)) != repr(number) for node, number in computed):
            return None
        return step, initial


def _computed(root: Node, states: Mapping[Node, float]) -> float | None:
    """The number that an operator of a step is where states are numbers; None where it is made of other things."""
    values: dict[Node, torch.Tensor | float] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        if node in values:
            stack.pop()
        elif node in states:
            values[node] = torch.tensor(states[node], dtype=torch.float32)
        elif (number := number_of(node)) is not None:
            values[node] = number if node.op == "constant" else torch.tensor(number, dtype=torch_dtype(node.dtype))
        elif (node.kind != "pointwise" and node.op != "cast") or not node.inputs:
            return None
        elif missing := [i for i in node.inputs if i not in values]:
            stack += missing
        else:
            found = node.operator.reference(*(values[i] for i in node.inputs), **dict(node.attributes))
            values[node] = found if isinstance(found, torch.Tensor) else torch.tensor(found)
    value = values[root]
    return float(value)
