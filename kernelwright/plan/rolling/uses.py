"""What is read of a loop from outside of it, and as which results of its recurrence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernelwright.algebra.build import reshape
from kernelwright.ir.node import Node, make
from kernelwright.plan.rolling.matching import Loop


@dataclass(frozen=True, slots=True)
class Result:
    """A value of a loop's template as a result of its recurrence: of all steps along an axis, perhaps backwards, or of
    the last step, where there is no axis."""

    value: Node
    axis: int | None
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring inputs of a concatenation that are a value of neighbouring steps, from number ``begin`` to ``end``
    of them; ``first``: the place of the first one in the result."""

    joined: Node
    begin: int
    end: int
    first: int
    result: Result

    def shown(self, node: Node) -> Node:
        """What they are side by side. node: the result."""
        axis, count = self.joined["axis"], self.end - self.begin
        if count != node.shape[axis]:
            node = make("slice", node, axis=axis, start=self.first, stop=self.first + count, step=1)
        width = sum(x.shape[axis] for x in self.joined.inputs[self.begin:self.end])
        return reshape(node, (*self.joined.shape[:axis], width, *self.joined.shape[axis + 1:]))


@dataclass(slots=True)
class Uses:
    """The results that are read of a loop, the runs of them, and for values that are read by themselves their steps."""

    results: dict[Result, None] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    alone: dict[Node, list[int]] = field(default_factory=dict)

    @property
    def values(self) -> list[Node]:
        """The values of the template that are results."""
        return list(dict.fromkeys(result.value for result in self.results))

    def of(self, value: Node) -> Result:
        """The result in which single steps of a value are looked up."""
        return next(r for r in self.results if r.value is value)


def uses_of(loop: Loop, made: Collection[Node], readers: Mapping[Node, Sequence[Node]], shown: Collection[Node]
            ) -> Uses:
    """What is read of a loop, whose steps compute ``made``. readers: of the graph's nodes; shown: its results.

    Of what is no state that is what all steps are read of: the rest is computed once more from the states.
    """
    template, found = loop.template, Uses()
    updates, states = set(template.updates.values()), set(template.updates)
    shape = next(iter(states)).shape
    handed_on = _handed_on(loop)
    for value in template.made:
        own = [step.get(value) for step in loop.steps]
        read = [n for n, x in enumerate(own) if x is not None and (
            x in shown or any(r not in made for r in readers[x]))]
        all_read = len(read) == len(own) and value.dtype == "float32" and value.shape == shape
        if not read or value not in handed_on or not (value in updates or all_read):
            continue
        places = {x: n for n, x in enumerate(own) if x is not None}
        runs = [run for joined in _joins(places, readers) for run in _runs(joined, value, places, len(own))]
        found.runs += runs
        found.results |= dict.fromkeys(run.result for run in runs)
        covered = {(run.joined, place) for run in runs for place in range(run.begin, run.end)}
        alone = [n for x, n in places.items() if _is_read_alone(x, made, readers, shown, covered)]
        if alone:
            found.alone[value] = alone
            if not runs:
                found.results[Result(value, None if alone == [len(own) - 1] else 0)] = None
    return found


def _handed_on(loop: Loop) -> set[Node]:
    """The nodes of a template that a state is below, or that a state becomes."""
    found = set(loop.template.updates)
    for node in reversed(loop.template.made):  # a heap gave them, users first
        if any(i in found for i in node.inputs):
            found.add(node)
    return found | set(loop.template.updates.values())


def _joins(places: Mapping[Node, int], readers: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Who puts values of steps side by side, them or reshapes of them."""
    found: dict[Node, None] = {}
    for x in places:
        for reader in readers[x]:
            for joined in readers[reader] if reader.op == "reshape" else (reader,):
                if joined.op == "concatenate":
                    found[joined] = None
    return list(found)


def _runs(joined: Node, value: Node, places: Mapping[Node, int], steps: int) -> Iterator[Run]:
    """The longest runs of two steps or more."""
    axis = joined["axis"]
    numbers = [_place(x, axis, places) for x in joined.inputs]
    begin = 0
    while begin < len(numbers):
        end, one = begin + 1, numbers[begin]
        if one is not None and end < len(numbers) and (other := numbers[end]) is not None \
                and other[1] == one[1] and abs(other[0] - one[0]) == 1:
            stride = other[0] - one[0]
            while end < len(numbers) and numbers[end] == (one[0] + stride * (end - begin), one[1]):
                end += 1
            first = one[0] if stride > 0 else steps - 1 - one[0]
            yield Run(joined, begin, end, first, Result(value, axis, stride < 0))
        begin = end


def _place(x: Node, axis: int, places: Mapping[Node, int]) -> tuple[int, bool] | None:
    """The step whose value an input of a concatenation is, and whether with a new axis, along which it is joined."""
    if x in places:
        return (places[x], False)
    if x.op != "reshape" or x.inputs[0] not in places:
        return None
    inner = x.inputs[0].shape
    return (places[x.inputs[0]], True) if x.shape == (*inner[:axis], 1, *inner[axis:]) else None


def _is_read_alone(x: Node, made: Collection[Node], readers: Mapping[Node, Sequence[Node]], shown: Collection[Node],
                   covered: Collection[tuple[Node, int]]) -> bool:
    """Whether anybody outside of a loop reads a value but in a run."""

    def outside(node: Node, reader: Node) -> bool:
        return any(i is node and (reader, place) not in covered for place, i in enumerate(reader.inputs))

    if x in shown:
        return True
    for reader in readers[x]:
        if reader in made:
            continue
        if reader.op == "reshape" and reader not in shown:
            if any(outside(reader, r) for r in readers[reader]):
                return True
        elif outside(x, reader):
            return True
    return False
