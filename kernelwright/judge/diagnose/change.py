"""One change of the model that a candidate may have made: the record that all generators of hypotheses yield."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.graph_values import Compute, Get, recomputed


@dataclass(frozen=True, slots=True)
class Change:
    """A model with some nodes computed otherwise.

    ``words`` complete "the output is what the model gives ..." ("without the ReLU"). ``prior`` orders changes before
    they are tried and among those that explain equally much: 0 is what goes wrong most often, 9 hardly ever.
    """

    kind: str
    words: str
    fix: str
    prior: float
    changes: dict[Node, Compute]
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the model that a candidate may have got wrong. ``change(value)`` is the model with another one."""

    name: str
    value: float
    prior: float
    change: Callable[[float], Change]


Generator = Callable[[Node], Iterator[Change]]


def attribute(node: Node, **changed: Any) -> Compute:
    """The node with other attributes."""
    return lambda get: recomputed(node, get, **changed)


def applied(node: Node, function: Callable[..., Any]) -> Compute:
    """``function`` of the values of the node's inputs instead of its operator."""
    return lambda get: function(*(get(i) for i in node.inputs))


def after(node: Node, function: Callable[[Any], Any]) -> Compute:
    """``function`` of the node's own result."""
    return lambda get: function(recomputed(node, get))


def on_input(node: Node, index: int, function: Callable[[Any], Any]) -> Compute:
    """The node's operator with ``function`` of one of its inputs."""

    def compute(get: Get) -> Any:
        values = [get(i) for i in node.inputs]
        values[index] = function(values[index])
        return recomputed(node, get, *values)

    return compute
