"""What PyTorch refuses by value: conditions that a graph checks, so that the original computation raises its error.

A call that stays with PyTorch refuses by itself. A kernel computes something of any values: for the operators that
may become kernels, the condition under which PyTorch takes the values becomes a part of the graph, one truth value,
which the kernel that reads the tensor anyway can compute on the way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kernelwright.ir.graph import Check
from kernelwright.ir.node import Node, constant, make, walk
from kernelwright.ir.scalar import INTEGERS

#: Operators that may raise an error for values of a tensor, where nobody reads what they give, too.
_REFUSING = re.compile(r"embedding|gather|index|take|scatter|nll_loss|cross_entropy_loss|binary_cross_entropy\.|one_hot"
                       r"|multinomial|bernoulli|linalg_|cholesky|inverse|multi_margin|multilabel_margin|ctc_loss"
                       r"|floor_divide|remainder|fmod|repeat_interleave|bincount|max_unpool")


def may_refuse(target: str) -> bool:
    """Whether a torch operator, named as in "gather.default", may raise an error for values of its tensors."""
    return _REFUSING.match(target) is not None


def truth(value: Node) -> Node:
    """The one element of a tensor as a truth value without axes."""
    value = value if value.dtype == "bool" else make("ne", value, constant(0))
    return value if not value.rank else make("reshape", value, shape=())


def _all(truths: Node) -> Node:
    return truths if not truths.rank else make("amin", truths, axes=tuple(range(truths.rank)), keepdim=False)


def _within_unit(x: Node) -> Node:
    """Whether all of x is between 0 and 1, which NaN is not."""
    inside = make("logical_and", make("ge", x, constant(0.0)), make("le", x, constant(1.0)))
    return _all(inside)


def _of_probabilities(node: Node) -> list[Node]:
    return [_within_unit(x) for x in node.inputs[:2] if x.size]


def _by_no_zero(node: Node) -> list[Node]:
    by = node.inputs[1]
    whole = node.dtype in INTEGERS and by.op != "constant" and by.size > 0
    return [_all(make("ne", by, constant(0)))] if whole else []


def _of_its_axis(node: Node) -> list[Node]:
    """That indices are numbers of elements, or of classes."""
    x, *indices = node.inputs
    if node.op == "one_hot":
        return _below(x, node["count"])
    axes = node["axes"] if node.op == "taken" else (node["axis"],)
    return [n for axis, index in zip(axes, indices[:len(axes)], strict=True)
            for n in _below(index, x.shape[axis], wraps=node.get("wraps", False))]


def _below(index: Node, size: int, *, wraps: bool = False) -> list[Node]:
    if not index.size:
        return []
    least = make("ge", index, constant(-size if wraps else 0))
    return [_all(make("logical_and", least, make("lt", index, constant(size))))]


_DIVISIONS = ("floor_divide", "trunc_divide", "remainder", "fmod")
#: Operators of ours that may become kernels, with what PyTorch asks of their values.
_CONDITIONS: dict[str, Callable[[Node], list[Node]]] = {
    "binary_cross_entropy": _of_probabilities,
    **dict.fromkeys(_DIVISIONS, _by_no_zero),
    **dict.fromkeys(("taken", "gather", "scattered", "one_hot"), _of_its_axis),
}


def conditions_of(node: Node) -> list[Node]:
    """The truth values that hold where PyTorch does not refuse the values of one operator."""
    return _CONDITIONS[node.op](node) if node.op in _CONDITIONS else []


def checks(roots: Iterable[Node], device: str) -> list[Check]:
    """What holds where PyTorch refuses nothing that is computed for ``roots`` on a kind of device.

    On a CPU alone it refuses to divide whole numbers by zero. A file that is written there for another device waits for
    the answer, so that nothing fails on that device that would not.
    """
    result = []
    for node in walk(roots):
        divides = node.op in _DIVISIONS
        if not divides or device == "cpu":
            result += [Check(condition, waited=divides) for condition in conditions_of(node)]
    return result
