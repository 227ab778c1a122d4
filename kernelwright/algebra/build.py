"""Small builders that rules share. All reductions here keep their axes (size one)."""

from __future__ import annotations

from math import prod
from typing import Any

from kernelwright.ir.node import Node, constant, make

SUMS = ("sum", "mean")
NARROW = ("float16", "bfloat16")
MOMENTS = ("var", "std")
REDUCTIONS = ("sum", "mean", "amax", "amin", "prod", "logsumexp", *MOMENTS)


def in_one_piece(x: Node) -> bool:
    """Whether sums of x are left as they are: of 16-bit values, and of integers, whose products with a float would
    be floats."""
    return narrow(x) or not x.dtype.startswith(("float", "complex"))


def narrow(x: Node) -> bool:
    """Whether x has 16-bit floating elements. A sum of them that meets another operator before the last one loses
    digits that PyTorch's single sum keeps, and float16 overflows at 65504: rules that leave such a sum in between
    do not apply."""
    return x.dtype in NARROW


def reduce(op: str, x: Node, axes: tuple[int, ...], **attributes: Any) -> Node:
    """``op`` over ``axes`` with the axes kept; x itself where no axis is left."""
    return make(op, x, axes=tuple(sorted(axes)), keepdim=True, **attributes) if axes else x


def reduce_broadcast(op: str, x: Node, axes: tuple[int, ...], sizes: dict[int, int]) -> Node:
    """``op`` (sum or mean) over ``axes`` of x as broadcast to ``sizes`` along them.

    Where x has size one along an axis the sum is a multiple and the mean is x.
    """
    real = tuple(a for a in axes if x.shape[a] == sizes[a])
    result = reduce(op, x, real)
    repeats = prod(sizes[a] for a in axes if x.shape[a] != sizes[a])
    return make("mul", result, constant(float(repeats))) if op == "sum" and repeats != 1 else result


def plus_zero(x: Node) -> Node:
    """What a sum of x alone is: x, but for -0, as sums start from +0. Integers have no -0."""
    return make("add", x, constant(0.0)) if x.dtype.startswith(("float", "bfloat", "complex")) else x


def reshape(x: Node, shape: tuple[int, ...]) -> Node:
    """A reshape, merged with one below it; x itself where nothing changes."""
    if x.op == "reshape":
        x = x.inputs[0]
    return x if x.shape == shape else make("reshape", x, shape=shape)


def align(x: Node, rank: int) -> Node:
    """x with leading axes of size one up to ``rank`` (as broadcasting does); scalars stay."""
    if x.op == "constant" or x.rank == rank:
        return x
    return reshape(x, (1,) * (rank - x.rank) + x.shape)


def per_channel(x: Node, rank: int) -> Node:
    """A vector over channels as (1, C, 1, ...)."""
    return reshape(x, (1, x.size, *(1,) * (rank - 2)))
