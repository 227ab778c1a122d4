"""Converters of operators on integers and truth values (see :mod:`kernelwright.capture.converters.table`).

They stand before the converters of the same names, which take floating operands only. Where PyTorch divides by a tensor
that holds a zero, it raises an error on a CPU: the graph asks for none (:mod:`kernelwright.capture.checks`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelwright.capture.converters import pointwise as _pointwise  # noqa: F401  (its converters come first)
from kernelwright.capture.converters import reductions as _reductions  # noqa: F401  (likewise)
from kernelwright.capture.converters.table import CONVERTERS, Arguments, NotConvertible, as_node, axes_of, converts
from kernelwright.capture.values import cast
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.scalar import INTEGERS

_UNARY = ("neg", "abs", "sign", "square", "relu", "bitwise_not")
_BINARY = {
    **{f"{name}.{kind}": name for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
       for kind in ("Tensor", "Scalar")},
    "maximum.default": "maximum", "minimum.default": "minimum", "max.other": "maximum", "min.other": "minimum",
    "logical_and.default": "logical_and", "logical_or.default": "logical_or",
    **{f"{prefix}{name}{suffix}.{kind}": f"bitwise_{name}" for name in ("and", "or", "xor")
       for prefix, suffix in (("__", "__"), ("bitwise_", "")) for kind in ("Tensor", "Scalar")},
}


def _before(name: str, convert: Callable[[Arguments], Any]) -> None:
    """Let ``convert`` answer for operands of integer types, and the converter that was there for others."""
    previous = CONVERTERS.get(name)

    def chosen(a: Arguments) -> Any:
        if any(isinstance(v, Node) and v.dtype in INTEGERS for v in a.values()):
            return convert(a)
        if previous is None:
            raise NotConvertible(f"{name} of these types")
        return previous(a)

    CONVERTERS[name] = chosen


def _operands(a: Arguments, count: int = 2) -> list[Node]:
    """The first operands as nodes; numbers must be of the tensors' own type."""
    nodes = [as_node(v) for v in list(a.values())[:count]]
    types = [n.dtype for n in nodes if n.op != "constant"]
    if any(t.startswith("complex") for t in types):
        raise NotConvertible("complex numbers")
    for node in nodes:
        if node.op == "constant" and isinstance(node["value"], int) and all(t in INTEGERS for t in types):
            limits = torch.iinfo(getattr(torch, types[0]))
            if not limits.min <= node["value"] <= limits.max:
                raise NotConvertible("a number outside of the tensor's type")
    return nodes


for _name in _UNARY:
    _before(f"{_name}.default", lambda a, name=_name: make(name, a["self"]))
_before("logical_not.default", lambda a: make("eq", a["self"], constant(0)))
for _torch_name, _name in _BINARY.items():
    if not _name.startswith(("add", "sub")):
        _before(_torch_name, lambda a, name=_name: make(name, *_operands(a)))


def _add(a: Arguments) -> Node:
    left, right = _operands(a)
    if a["alpha"] != 1:
        right = make("mul", right, constant(a["alpha"]))
    name = a["operator"].split(".")[0]
    return make("sub", right, left) if name == "rsub" else make(name, left, right)


for _name in ("add", "sub", "rsub"):
    for _kind in ("Tensor", "Scalar"):
        _before(f"{_name}.{_kind}", _add)


def _clamp(a: Arguments) -> Node:
    x = a["self"]
    for name, bound in (("clamp_min", a.get("min")), ("clamp_max", a.get("max"))):
        if bound is None:
            continue
        if x.dtype not in INTEGERS or not (isinstance(bound, int) or getattr(bound, "dtype", None) == x.dtype):
            raise NotConvertible("bounds of another type")
        x = make(name, x, _operands({"x": x, "bound": bound})[1])
    return x


for _name in ("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default"):
    _before(_name, _clamp)


def _where(a: Arguments) -> Node:
    if a["condition"].dtype != "bool":
        raise NotConvertible("a condition of integers")
    return make("where", a["condition"], *_operands({"self": a["self"], "other": a["other"]}))


for _name in ("where.self", "where.ScalarOther", "where.ScalarSelf"):
    _before(_name, _where)


def _masked_fill(a: Arguments) -> Node:
    x, value = a["self"], a["value"]
    if a["mask"].dtype != "bool" or x.dtype not in INTEGERS or not isinstance(value, int):
        raise NotConvertible("filling integers with another type")
    return make("where", a["mask"], *reversed(_operands({"self": x, "value": value})))


_before("masked_fill.Scalar", _masked_fill)


def _divide(a: Arguments) -> Node:
    x, by = _operands(a)
    if any(n.dtype not in INTEGERS and not (n.op == "constant" and type(n["value"]) is int) for n in (x, by)) or (
            by.op == "constant" and by["value"] == 0):
        raise NotConvertible("a division other than of integers, or by zero")
    name = a["operator"].split(".")[0]
    if name == "div":
        name = {"floor": "floor_divide", "trunc": "trunc_divide", None: "div"}[a["rounding_mode"]]
    return make(name, x, by)


for _name in ("floor_divide.default", "floor_divide.Scalar", "remainder.Scalar", "remainder.Tensor", "fmod.Scalar",
              "fmod.Tensor", "div.Tensor_mode", "div.Scalar_mode"):
    _before(_name, _divide)
_before("nan_to_num.default", lambda a: a["self"])


def _reduce(a: Arguments) -> Node:
    name, x = a["operator"].split(".")[0], a["self"]
    if a.get("dtype") not in (None, torch.int64):
        raise NotConvertible("a sum into another type")
    return make(name, x, axes=axes_of(a.get("dim"), x.rank), keepdim=bool(a.get("keepdim", False)))


def _counts(name: str, convert: Callable[[Arguments], Any] = _reduce) -> None:
    """Let ``convert`` answer for integers and truth values."""
    previous = CONVERTERS[name]
    CONVERTERS[name] = lambda a: convert(a) if a["self"].dtype in (*INTEGERS, "bool") else previous(a)


def _product(a: Arguments) -> Node:
    """A product of truth values is whether all are true."""
    x = a["self"]
    if a["dtype"] not in (None, torch.int64):
        raise NotConvertible("a product into another type")
    if not x.rank or not x.size:
        raise NotConvertible("a product of nothing, or of a number")
    axes, keepdim = axes_of(a.get("dim"), x.rank), bool(a.get("keepdim", False))
    if x.dtype == "bool":
        return cast(make("amin", x, axes=axes, keepdim=keepdim), "int64")
    return make("prod", x, axes=axes, keepdim=keepdim)


for _name in ("prod.default", "prod.dim_int"):
    _counts(_name, _product)
for _name in ("sum.dim_IntList", "sum.default", "amax.default", "amin.default"):
    _counts(_name)


@converts("count_nonzero.default", "count_nonzero.dim_IntList")
def _count(a: Arguments) -> Node:
    x = a["self"]
    if x.dtype.startswith("complex"):
        raise NotConvertible("complex numbers")
    other = x if x.dtype == "bool" else make("ne", x, constant(0))
    return make("sum", other, axes=axes_of(a["dim"], x.rank), keepdim=False)


@converts("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _truth(a: Arguments) -> Node:
    """Whether any or all elements differ from zero: the extremum of truth values."""
    x = a["self"]
    if not x.rank or not x.size or x.dtype == "uint8" or x.dtype.startswith("complex"):
        raise NotConvertible("a truth value of these")
    x = x if x.dtype == "bool" else make("ne", x, constant(0))
    axes = axes_of(a.get("dim"), x.rank)
    return make("amax" if a["operator"].startswith("any") else "amin", x, axes=axes,
                keepdim=bool(a.get("keepdim", False)))
