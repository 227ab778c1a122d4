"""The table of operators: each declared once, in ``ir/ops/``, and found here.

A declaration gives the torch reference (which is also the type rule: it runs on meta tensors),
the text of the torch call, the cost, and the algebraic facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}

KINDS = ("leaf", "pointwise", "reduction", "row", "view", "window", "linear", "norm", "loss", "special",
         "opaque")


class Applied(Protocol):
    """An operator applied to inputs, as far as the table asks: a :class:`kernelwright.ir.node.Node`, whose module
    imports this one."""

    @property
    def op(self) -> str: ...

    @property
    def inputs(self) -> tuple[Applied, ...]: ...

    @property
    def attributes(self) -> tuple[tuple[str, Any], ...]: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def __getitem__(self, attribute: str) -> Any: ...

    def get(self, attribute: str, default: Any = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    name: full word, unique.
    kind: leaf, pointwise (one scalar function per element, inputs broadcast), reduction (over
        attribute ``axes``, with ``keepdim``), row (softmax-like: reductions and a pointwise result
        over the same row), view (moves elements, computes nothing), window (pooling), linear
        (contractions, convolutions), norm, loss, special (introduced by rules; needs its own
        skeleton), opaque.
    reference: computes the result from tensors and Python scalars in the inputs' order, with the
        attributes as keywords; any floating dtype, any device. Run on meta tensors it is the type rule.
    code: the text of the torch call, from the texts of the inputs and the node.
    operations: floating-point operations of a node (a multiply-add counts as 2).
    linear_in: inputs in which the operator is linear, the others held fixed.
    """

    name: str
    kind: str
    reference: Callable[..., Any]
    code: Callable[[list[str], Applied], str]
    operations: Callable[[Applied], int]
    linear_in: tuple[int, ...] = ()


OPERATORS: dict[str, Operator] = {}


def declare(name: str, kind: str, reference: Callable[..., Any], code: Callable[[list[str], Applied], str] | str, *,
            operations: Callable[[Applied], int] | None = None, linear_in: tuple[int, ...] = ()) -> None:
    """Add an operator to the table. A string ``code`` is a format of {0}, {1}, ... and attributes."""
    if name in OPERATORS or kind not in KINDS:
        raise ValueError(f"operator {name!r} of kind {kind!r}: declared already, or no such kind")
    if isinstance(code, str):
        template = code

        def code(inputs: list[str], node: Applied) -> str:
            return template.format(*inputs, **dict(node.attributes))
    if operations is None:
        def operations(node: Applied) -> int:
            return 0 if kind in ("leaf", "view") else max([node.size, *(i.size for i in node.inputs)])
    OPERATORS[name] = Operator(name, kind, reference, code, operations, linear_in)


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name such as "float32"."""
    return getattr(torch, name)


def as_meta(node: Applied) -> Any:
    """A meta tensor of the node's type; the Python value of a constant."""
    if node.op == "constant":
        return node["value"]
    return torch.empty(node.shape, dtype=torch_dtype(node.dtype), device="meta")


#: Types that were inferred, by all that they depend on: a network repeats its blocks.
_inferred: dict[tuple, tuple[tuple[int, ...], str]] = {}
_MOST_INFERRED = 1 << 16


def infer(node: Applied) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a node under construction.

    Raises ValueError where the reference refuses the types.
    """
    operator = OPERATORS.get(node.op)
    if operator is None:
        raise ValueError(f"no operator {node.op!r}")
    if operator.kind == "leaf":
        return ((), "scalar") if node.op == "constant" else (tuple(node["shape"]), node["dtype"])
    if operator.kind == "opaque" and node.get("dtype") is not None:
        return tuple(node["shape"]), node["dtype"]
    key = (node.op, tuple((i.shape, i.dtype, repr(i["value"]) if i.op == "constant" else "") for i in node.inputs),
           repr(node.attributes), torch.get_default_dtype())
    if key in _inferred:
        return _inferred[key]
    try:
        with torch.no_grad():
            result = operator.reference(*map(as_meta, node.inputs), **dict(node.attributes))
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(f"{node.op} of {[list(i.shape) for i in node.inputs]}: {error}") from error
    if len(_inferred) >= _MOST_INFERRED:
        _inferred.clear()
    _inferred[key] = tuple(result.shape), str(result.dtype).removeprefix("torch.")
    return _inferred[key]


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape."""
    return prod(shape)
