"""Records as functions of sizes: plans of the same model for several sizes, taken together field by field.

What is the same in all of them stays, whole numbers that differ become formulas, and a difference of another kind says
that there is no one record for all of these sizes. Nodes and expressions are visited in the order in which they are
built, however deep they lie, so that what several users share stays shared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from kernelwright.dynamic.formulas import Sizes, fit, fit_real
from kernelwright.ir.node import Node, make
from kernelwright.plan.expressions import Apply

_Make = Callable[[Sequence[Any]], Any]


class Differs(Exception):
    """Records of several sizes have no common form; the message says where."""


class Template:
    """Records of the same kind at several points, as one record of any sizes: :meth:`at`.

    spare: how many points more than unknowns a formula must have been found from. Raises Differs.
    """

    def __init__(self, points: Sequence[Sizes], records: Sequence[Any], *, spare: int = 1) -> None:
        self._points, self._spare = list(points), spare
        self._steps: list[tuple[Callable[[Sizes, list[Any]], Any], bool]] = []  # how, and whether sizes matter
        self._known: dict[tuple[int, ...], int] = {}
        self._alive: list[Any] = [records]  # while identities stand for them
        self._root = self._part(tuple(records), "")
        self._alive = []

    def at(self, sizes: Sizes) -> Any:
        """The record for these sizes."""
        made: list[Any] = []
        for how, _ in self._steps:
            made.append(how(sizes, made))
        return made[self._root]

    def _add(self, how: Callable[[Sizes, list[Any]], Any], moves: bool) -> int:
        self._steps.append((how, moves))
        return len(self._steps) - 1

    def _same(self, value: Any) -> int:
        return self._add(lambda sizes, made: value, moves=False)

    def _built(self, own: Any, parts: Sequence[int], build: _Make) -> int:
        """A record of parts; the very first one where no part differs."""
        if not any(self._steps[part][1] for part in parts):
            return self._same(own)
        return self._add(lambda sizes, made: build([made[part] for part in parts]), moves=True)

    def _part(self, values: tuple[Any, ...], where: str) -> int:
        """The number of the step that makes one part of the records."""
        first = values[0]
        if all(value is first for value in values):
            return self._same(first)
        key = tuple(map(id, values))
        if key in self._known:
            return self._known[key]
        if isinstance(first, (Node, Apply)):
            return self._deep(values, where)
        found = self._shallow(values, where)
        self._alive.append(values)
        self._known[key] = found
        return found

    def _deep(self, values: tuple[Any, ...], where: str) -> int:
        """Nodes or expressions: what is below comes first."""
        stack = [values]
        while stack:
            current = stack[-1]
            key = tuple(map(id, current))
            if key in self._known:
                stack.pop()
                continue
            below = [_below(value) for value in current]
            if any(type(v) is not type(current[0]) or len(b) != len(below[0])
                   for v, b in zip(current, below, strict=True)):
                raise Differs(f"{where}: other operators")
            waiting = [some for some in zip(*below, strict=True)
                       if isinstance(some[0], (Node, Apply)) and not all(s is some[0] for s in some)
                       and tuple(map(id, some)) not in self._known]
            if waiting:
                stack.extend(reversed(waiting))
                continue
            self._alive.append(current)
            self._known[key] = self._node(current, where) if isinstance(current[0], Node) \
                else self._shallow(current, where)
            stack.pop()
        return self._known[tuple(map(id, values))]

    def _node(self, nodes: tuple[Node, ...], where: str) -> int:
        first = nodes[0]
        names = [name for name, _ in first.attributes]
        if any(n.op != first.op or [name for name, _ in n.attributes] != names for n in nodes):
            raise Differs(f"{where}: {' or '.join(sorted({n.op for n in nodes}))}")
        inputs = [self._part(some, first.op) for some in zip(*(n.inputs for n in nodes), strict=True)]
        attributes = [self._part(tuple(n[name] for n in nodes), f"{first.op}, {name}") for name in names]
        count, op, origin = len(inputs), first.op, first.origin

        def build(parts: Sequence[Any]) -> Node:
            return make(op, *parts[:count], origin=origin, **dict(zip(names, parts[count:], strict=True)))

        return self._built(first, [*inputs, *attributes], build)

    def _shallow(self, values: tuple[Any, ...], where: str) -> int:
        first = values[0]
        kind = type(first)
        if any(type(value) is not kind for value in values):
            raise Differs(f"{where}: {', '.join(sorted({type(v).__name__ for v in values}))}")
        if kind is int:
            return self._number(values, where)
        if kind is float:
            if len(set(map(repr, values))) == 1:
                return self._same(first)
            real = fit_real(self._points, values, spare=self._spare)
            if real is None:
                raise Differs(f"{where}: the numbers {', '.join(map(repr, values[:3]))}")
            return self._add(lambda sizes, made: real.at(sizes), moves=True)
        if isinstance(first, Node):
            return self._deep(values, where)
        if isinstance(first, (tuple, list)):
            if any(len(value) != len(first) for value in values):
                raise Differs(f"{where}: other numbers of parts")
            parts = [self._part(some, where) for some in zip(*values, strict=True)]
            if hasattr(first, "_fields"):
                return self._built(first, parts, lambda found: kind(*found))
            return self._built(first, parts, kind)
        if isinstance(first, Mapping):
            if any(len(value) != len(first) for value in values):
                raise Differs(f"{where}: other numbers of entries")
            keys = [self._part(some, where) for some in zip(*values, strict=True)]
            items = [self._part(some, where) for some in zip(*(v.values() for v in values), strict=True)]
            count = len(keys)
            return self._built(first, [*keys, *items],
                               lambda found: dict(zip(found[:count], found[count:], strict=True)))
        if isinstance(first, frozenset):
            return self._set(values, where)
        if is_dataclass(first):
            names = [f.name for f in fields(first) if f.init]
            parts = [self._part(tuple(getattr(v, name) for v in values), f"{kind.__name__}, {name}") for name in names]
            return self._built(first, parts, lambda found: kind(**dict(zip(names, found, strict=True))))
        if all(value == first for value in values):
            return self._same(first)
        raise Differs(f"{where}: {', '.join(dict.fromkeys(map(str, values)))}"[:200])

    def _number(self, values: tuple[int, ...], where: str) -> int:
        formula = fit(self._points, values, spare=self._spare)
        if formula is None:
            raise Differs(f"{where}: the numbers {', '.join(map(str, values[:5]))}")
        if formula.is_constant:
            return self._same(values[0])
        return self._add(lambda sizes, made: formula.at(sizes), moves=True)

    def _set(self, values: tuple[frozenset[Any], ...], where: str) -> int:
        """A set: its elements are those that were seen together elsewhere."""
        if all(value == values[0] for value in values):
            return self._same(values[0])
        together = {key[0]: key for key in self._known}
        parts = []
        for element in sorted(values[0], key=repr):
            key = together.get(id(element))
            if key is None or not all(any(id(e) == k for e in value) for value, k in zip(values, key, strict=True)):
                raise Differs(f"{where}: other elements")
            parts.append(self._known[key])
        if any(len(value) != len(values[0]) for value in values):
            raise Differs(f"{where}: other numbers of elements")
        return self._built(values[0], parts, frozenset)


def _below(value: Any) -> tuple[Any, ...]:
    return value.inputs if isinstance(value, Node) else value.arguments if isinstance(value, Apply) else ()
