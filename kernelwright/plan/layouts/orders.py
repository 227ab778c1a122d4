"""Orders of axes in memory, and nodes that show a tensor stored in one order in another."""

from __future__ import annotations

from typing import Any

from kernelwright.algebra.identities import axis_groups
from kernelwright.ir.node import Node, make

Order = tuple[int, ...]


def first_order(rank: int) -> Order:
    """The order in which PyTorch stores tensors: the last axis fastest."""
    return tuple(range(rank))


def inverse(order: Order) -> Order:
    """The permutation that undoes ``order``."""
    return tuple(map(order.index, range(len(order))))


def channels_last(rank: int) -> Order:
    """The order (N, *space, C)."""
    return (0, *range(2, rank), 1)


def reshaped_order(order: Order, before: tuple[int, ...], after: tuple[int, ...]) -> Order | None:
    """The order of a reshaped tensor whose memory is that of the tensor in ``order``, or None where there is none.

    That is where the axes that become one, or come of one, stand together: (N, *space, C) split to
    (N, groups, C / groups, *space) is stored as (N, *space, groups, C / groups).
    """
    groups = axis_groups(before, after)
    if groups is None:
        return None
    left = [a for a in order if before[a] != 1]
    if left == sorted(left):
        return first_order(len(after))
    result: list[int] = []
    runs = {next(a for a in axes if before[a] != 1): (axes, made) for axes, made in groups
            if any(before[a] != 1 for a in axes)}
    while left:
        axes, made = runs.get(left[0], ([], []))
        run = [a for a in axes if before[a] != 1]
        if not run or left[:len(run)] != run:
            return None
        result += made
        left = left[len(run):]
    return (*result, *(a for a in range(len(after)) if a not in result))


def transposed(x: Node, axes: Order) -> Node:
    """x with permuted axes: merged with a permutation below, and a reshape where only unit axes move."""
    if x.op == "permute":
        axes, x = tuple(x["axes"][a] for a in axes), x.inputs[0]
    if axes == first_order(x.rank):
        return x
    wide = [a for a in axes if x.shape[a] != 1]
    if wide == sorted(wide):
        return reshaped(x, tuple(x.shape[a] for a in axes))
    return make("permute", x, axes=axes)


def reshaped(x: Node, shape: tuple[int, ...]) -> Node:
    """x with another shape: merged with a reshape below."""
    if x.op == "reshape":
        x = x.inputs[0]
    return x if x.shape == shape else make("reshape", x, shape=shape)


def in_axes_of(order: Order, attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes that name axes, or have an entry for each, for the tensor in ``order``."""
    changed: dict[str, object] = {}
    if "axis" in attributes:
        changed["axis"] = order.index(attributes["axis"])
    if "axes" in attributes:
        changed["axes"] = tuple(map(order.index, attributes["axes"]))
    for name in ("amounts", "shape"):
        if name in attributes:
            changed[name] = tuple(attributes[name][a] for a in order)
    return changed


def seen(stored: Node, order: Order) -> Node:
    """What a torch call is given for a value stored in ``order``."""
    if order == first_order(len(order)):
        return stored
    if stored.op == "contiguous" and stored["axes"] == order:
        return stored.inputs[0]
    return make("reordered", stored, axes=inverse(order))
