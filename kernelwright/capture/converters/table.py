"""From an exported program's operators to ours: one converter per torch operator.

A converter gets the operator's arguments by their schema names (defaults filled in; tensors are
nodes) and returns the node, or a tuple of nodes for several results. What has no converter becomes
an opaque node, which stays a torch call. This module has the table and what converters share; they stand in one
module for each family of operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelwright.algebra.build import NARROW
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.registry import torch_dtype

Arguments = dict[str, Any]
CONVERTERS: dict[str, Callable[[Arguments], Any]] = {}


def converts(*names: str) -> Callable[[Callable[[Arguments], Any]], Callable[[Arguments], Any]]:
    """Register a converter for torch operators, named as in "conv2d.default"."""

    def register(function: Callable[[Arguments], Any]) -> Callable[[Arguments], Any]:
        for name in names:
            CONVERTERS[name] = function
        return function

    return register


class NotConvertible(Exception):
    """These arguments have no counterpart here; the operator becomes opaque."""


#: The names of arguments that are axes.
_AXES = frozenset(("dim", "dims", "dim0", "dim1", "source", "destination", "dimension"))


def converted(converter: Callable[[Arguments], Any], arguments: Arguments, meaning: Any) -> Any:
    """What a converter makes of an operator's arguments. meaning: what the trace gives, tensors without values.

    PyTorch takes axis 0 or -1 of a tensor without axes as if it had one, of one element. Converters get it with that
    axis, so that none has to think of this, and their results lose it.
    """
    bare = {name: value for name, value in arguments.items() if isinstance(value, Node) and value.rank == 0}
    if not bare or _AXES.isdisjoint(arguments):
        return converter(arguments)
    result = converter({**arguments, **{name: reshape(value, (1,)) for name, value in bare.items()}})
    if isinstance(result, Node):
        return _as_traced(result, meaning)
    return type(result)(map(_as_traced, result, meaning))


def _as_traced(result: Any, meaning: Any) -> Any:
    if isinstance(result, Node) and hasattr(meaning, "shape") and result.size == meaning.numel():
        return reshape(result, tuple(meaning.shape))
    return result


def as_node(value: Any) -> Node:
    """A node for a tensor argument or a Python scalar."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (int, float, bool)):
        return constant(value)
    raise NotConvertible(f"operand {value!r}")


def held(number: float, dtype: str) -> float:
    """A number as PyTorch converts it where it gives it as a result of 16 bits: 1e-12 is zero in float16."""
    return torch.tensor(float(number)).to(torch_dtype(dtype)).item() if dtype in NARROW else number


def axes_of(value: int | list[int] | None, rank: int) -> tuple[int, ...]:
    """Axes from 0, in order; all of them where none are given."""
    if value is None or value == []:
        return tuple(range(rank))
    axes = [value] if isinstance(value, int) else list(value)
    return tuple(sorted(a % rank if rank else 0 for a in axes))


def axis_of(value: int, rank: int) -> int:
    """An axis from 0."""
    return value % rank if rank else 0


def spread(value: int | list[int], rank: int) -> tuple[int, ...]:
    """One entry per spatial axis, from an int or a list of one or ``rank`` entries."""
    entries = [value] if isinstance(value, int) else list(value)
    return tuple(entries * rank if len(entries) == 1 else entries)


def float_only(node: Node) -> Node:
    """Kernels compute in floating point: functions of integers stay torch calls."""
    if node.dtype not in ("float32", "float64", "float16", "bfloat16"):
        raise NotConvertible(f"operand of type {node.dtype}")
    return node


def reshape(x: Node, shape: tuple[int, ...]) -> Node:
    """A reshape, or the node itself where the shape stays."""
    return x if x.shape == shape else make("reshape", x, shape=shape)


def permuted(x: Node, axes: tuple[int, ...]) -> Node:
    """x with its axes in another order, or itself."""
    return x if axes == tuple(range(x.rank)) else make("permute", x, axes=axes)


def part(x: Node, axis: int, start: int, stop: int) -> Node:
    """The elements from ``start`` to ``stop`` along an axis, or x where these are all."""
    return x if stop - start == x.shape[axis] else make("slice", x, axis=axis, start=start, stop=stop, step=1)
