"""The node: one immutable class, and identical nodes are the same object.

A node is an operator applied to nodes, with attributes and an inferred type. Building a node that
exists already (same operator, same inputs, same attributes) returns the existing object, so
common subexpressions are one node and equality is identity. The origin (where in the user's model
a node came from) is carried along and takes no part in identity.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import prod
from threading import Lock
from typing import Any

from kernelwright.ir import registry


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a node came from: the path of the module in the model and the user's source line."""

    module: str = ""
    file: str = ""
    line: int = 0
    text: str = ""


class Node:
    """An operator applied to inputs.

    op: name of a row of :data:`kernelwright.ir.registry.OPERATORS`.
    inputs: nodes, in the operator's order.
    attributes: sorted (name, value) pairs; values are hashable.
    run: in which run (`begin_run`) its origin was noted.
    shape, dtype: of the (single) output; dtype is torch's name without the prefix. An operator
        with several outputs (only opaque ones) has shape ``()`` and dtype "tuple"; ``item`` nodes
        pick from it.
    """

    __slots__ = ("op", "inputs", "attributes", "shape", "dtype", "origin", "run", "_attributes", "__weakref__")

    op: str
    inputs: tuple[Node, ...]
    attributes: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...]
    dtype: str
    origin: Origin | None
    run: int
    _attributes: dict[str, Any]

    def __getitem__(self, attribute: str) -> Any:
        """The value of an attribute."""
        return self._attributes[attribute]

    def get(self, attribute: str, default: Any = None) -> Any:
        """The value of an attribute, or ``default``."""
        return self._attributes.get(attribute, default)

    @property
    def operator(self) -> registry.Operator:
        """The declaration of this node's operator."""
        return registry.OPERATORS[self.op]

    @property
    def kind(self) -> str:
        """The kind of this node's operator (see :class:`registry.Operator`)."""
        return self.operator.kind

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of the output in memory (0 for Python scalars)."""
        return self.size * registry.ITEM_BYTES.get(self.dtype, 4) if self.op != "constant" else 0

    def __repr__(self) -> str:
        attributes = "".join(f", {name}={value!r}" for name, value in self.attributes)
        inputs = ", ".join(f"{i.op}{list(i.shape)}" for i in self.inputs)
        return f"{self.op}({inputs}{attributes}) -> {self.dtype}{list(self.shape)}"


_origin: ContextVar[Origin | None] = ContextVar("origin", default=None)
_run = 0  # whose nodes are made; those of earlier runs may be there until somebody looks for cycles


def begin_run() -> None:
    """Nodes come from where they are made from now on, also those that an earlier run has left behind: what a process
    writes does not depend on what it wrote before."""
    global _run
    _run += 1


@contextmanager
def made_for(origin: Origin | None) -> Iterator[None]:
    """Nodes made inside come from ``origin`` unless they are told otherwise."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


_interned: weakref.WeakValueDictionary[tuple, Node] = weakref.WeakValueDictionary()
_interning = Lock()


def _origin_of(inputs: Sequence[Node], origin: Origin | None) -> Origin | None:
    return origin or _origin.get() or next((i.origin for i in inputs if i.origin), None)


def make(op: str, *inputs: Node, origin: Origin | None = None, **attributes: Any) -> Node:
    """The node of an operator applied to inputs; its type is inferred.

    Raises ValueError where the operator refuses the inputs.
    """
    pairs = tuple(sorted(attributes.items()))
    # 1, 1.0 and True (0.0 and -0.0) are equal keys in Python; as operands they differ, at any depth.
    key = (op, tuple(map(id, inputs)), tuple((n, repr(v)) for n, v in pairs))
    found = _interned.get(key)
    if found is not None:
        where = origin or _origin.get()
        other_file = where is not None and found.origin is not None and where.file != found.origin.file
        if found.run != _run or other_file:  # it was a node of another model's graph, which somebody still holds
            found.run, found.origin = _run, _origin_of(inputs, origin)
        return found
    node = Node.__new__(Node)
    node.op, node.inputs, node.attributes = op, inputs, pairs
    node._attributes = attributes
    node.run, node.origin = _run, _origin_of(inputs, origin)
    node.shape, node.dtype = registry.infer(node)
    with _interning:  # another thread may have made it meanwhile
        return _interned.setdefault(key, node)


def constant(value: float | int | bool) -> Node:
    """A Python scalar."""
    return make("constant", value=value)


def number_of(node: Node) -> float | int | bool | None:
    """The number that a scalar is, or that a literal is filled with; None of everything else."""
    if node.op not in ("constant", "literal") or isinstance(node["value"], (tuple, complex)):
        return None
    return node["value"]


def walk(roots: Iterable[Node]) -> Iterator[Node]:
    """Every node below the roots, inputs before users, each once, in a fixed order."""
    seen: set[int] = set()
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if ready:
                yield node
            elif id(node) not in seen:
                seen.add(id(node))
                stack.append((node, True))
                stack.extend((i, False) for i in reversed(node.inputs) if id(i) not in seen)


def users(roots: Iterable[Node]) -> dict[Node, list[Node]]:
    """For every node below the roots, the nodes that read it, in order, without repetition."""
    result: dict[Node, list[Node]] = {}
    for node in walk(roots):
        result.setdefault(node, [])
        for source in dict.fromkeys(node.inputs):
            result[source].append(node)
    return result


def rebuild(node: Node, inputs: tuple[Node, ...]) -> Node:
    """The same operator and attributes on other inputs; the node itself where nothing changed."""
    if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
        return node
    return make(node.op, *inputs, origin=node.origin, **dict(node.attributes))
