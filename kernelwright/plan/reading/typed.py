"""Types inside kernels: which values are floating and which are whole, and the conversions between them.

A value of an integer type is whole: 64 bits wide, and wrapped to its own type after every operator that may leave it,
as PyTorch computes it. Every other value is of the kernel's floating type; truth values are 0 and 1 in it.
"""

from __future__ import annotations

from math import inf, prod

import torch

from kernelwright.algebra.build import NARROW
from kernelwright.ir.node import Node
from kernelwright.ir.registry import ITEM_BYTES, torch_dtype
from kernelwright.ir.scalar import INTEGERS, JUMPS, ROUNDINGS, WHOLE_FUNCTIONS
from kernelwright.plan.expressions import Apply, Constant, Expression, Whole

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_LOGIC = ("logical_and", "logical_or", "logical_not")
# Of two values in the range, the result is in it.
_STAY_IN_RANGE = ("where", "maximum", "minimum", "clamp_min", "clamp_max", "relu", "sign", "bitwise_and", "bitwise_or",
                  "bitwise_xor", "remainder")
_LARGEST = {"bool": 1, "uint8": 255, "int8": 128, "int16": 1 << 15, "int32": 1 << 31}


def operand_type(node: Node) -> str:
    """The floating type to which PyTorch converts what a pointwise operator on floats reads: that of its tensors with
    axes, if any of them has one."""
    for operands in ([i for i in node.inputs if i.rank], node.inputs):
        types = {i.dtype for i in operands if i.dtype in (*ROUNDINGS, "float64")}
        if {"float16", "bfloat16"} <= types:
            types.add("float32")
        if types:
            return max(types, key=ITEM_BYTES.__getitem__)
    return node.dtype if node.dtype in (*ROUNDINGS, "float64") else str(torch.get_default_dtype()).split(".")[1]


def number_type(node: Node) -> str:
    """The type to which PyTorch converts numbers and tensors without axes: it compares in the type of the tensors with
    axes, and computes in float32 or wider."""
    dtype = operand_type(node)
    return "float32" if ITEM_BYTES[dtype] == 2 and node.op not in JUMPS else dtype


def leaves_range(node: Node) -> bool:
    """Whether a pointwise operator on 16 bits takes a number that its type does not hold as a usual one: as a rule its
    result is not held, either, and is zero or infinite in PyTorch."""
    if node.dtype not in NARROW:
        return False
    limits = torch.finfo(torch_dtype(node.dtype))
    numbers = (abs(float(i["value"])) for i in node.inputs if i.op == "constant")
    return any(limits.max < number < inf or 0 < number < limits.tiny for number in numbers)


def applied(node: Node, values: tuple[Expression, ...], compute: str) -> Expression:
    """A pointwise operator on the values of its inputs, with the conversions that PyTorch's type rules ask for.

    compute: the type of the kernel's arithmetic.
    """
    types = [i.dtype for i in node.inputs]
    if not any(t in INTEGERS for t in (node.dtype, *types)):
        return Apply(node.op, values)
    pairs = list(zip(node.inputs, values, strict=True))
    if node.op in _LOGIC:
        return Apply(node.op, tuple(_as_truth(i, v) for i, v in pairs))
    if node.op == "where" and node.dtype in INTEGERS:
        return Apply("whole_where", (_as_truth(*pairs[0]), *(_as_whole(i, v) for i, v in pairs[1:])))
    if node.dtype in INTEGERS or (node.op in _COMPARISONS and all(map(_integral, node.inputs))):
        value = Apply(f"whole_{node.op}", tuple(_as_whole(i, v) for i, v in pairs))
        return value if node.op in _STAY_IN_RANGE or node.dtype == "bool" else wrapped(value, node.dtype)
    return Apply(node.op, tuple(as_real(i, v, operand_type(node), compute) for i, v in pairs))


def converted(node: Node, value: Expression, compute: str) -> Expression:
    """A cast of its input's value, where either type is no floating one. compute: the type of the kernel's arithmetic.
    """
    source = node.inputs[0].dtype
    if node.dtype in INTEGERS:
        return wrapped(value, node.dtype) if source in INTEGERS else Apply(f"to_{node.dtype}", (value,))
    if node.dtype == "bool":
        return value if source == "bool" else _as_truth(node.inputs[0], value)
    return as_real(node.inputs[0], value, node.dtype, compute)


def wrapped(value: Expression, dtype: str) -> Expression:
    """A whole value in the range of an integer type."""
    return value if dtype == "int64" else Apply(f"wrap_{dtype}", (value,))


def as_real(node: Node, value: Expression, dtype: str = "float64", compute: str = "float32") -> Expression:
    """The value of a node in the kernel's floating type, ``compute``; an integer is rounded to ``dtype``."""
    if node.dtype not in INTEGERS:
        return value
    return Apply(f"to_{dtype}" if ITEM_BYTES[dtype] < ITEM_BYTES[compute] else "to_real", (value,))


def _integral(node: Node) -> bool:
    return node.dtype in (*INTEGERS, "bool") or (node.op == "constant" and isinstance(node["value"], int))


def _as_whole(node: Node, value: Expression) -> Expression:
    if node.op == "constant":
        return Whole(int(node["value"]))
    return value if node.dtype in INTEGERS else Apply("to_whole", (value,))


def _as_truth(node: Node, value: Expression) -> Expression:
    if node.dtype in INTEGERS:
        return Apply("whole_ne", (value, Whole(0)))
    return value if node.dtype == "bool" else Apply("ne", (value, Constant(0.0)))


def computable(node: Node) -> bool:
    """Whether kernels know a pointwise operator for its types."""
    return node.dtype not in INTEGERS or node.op in WHOLE_FUNCTIONS


def sum_type(node: Node) -> str | None:
    """The floating type in which a reduction of integers or truth values is exact, or None where none is."""
    if node.op in ("amax", "amin") and node.dtype == "bool":
        return "float32"
    if node.op not in ("sum", "amax", "amin", "prod"):
        return None
    x = node.inputs[0]
    largest = _LARGEST.get((x.inputs[0] if x.op == "cast" else x).dtype, _LARGEST.get(x.dtype))
    if largest is None:
        return None
    count = prod(x.shape[a] for a in node["axes"])
    if node.op == "prod":
        most = largest**count if count <= 53 else 1 << 54
    else:
        most = count * largest if node.op == "sum" else largest
    return "float32" if most <= 1 << 24 else "float64" if most <= 1 << 53 else None
