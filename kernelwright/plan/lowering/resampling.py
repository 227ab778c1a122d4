"""Tensors at other positions than their own, as kernels compute them: lookups of the elements beside each position,
weighed by how near they are."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

from kernelwright.algebra.build import reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, constant, make
from kernelwright.plan.lowering.lookups import looked_up, of_axis

#: The elements that each one of a resampled tensor is made of along an axis, with the tables of where and how much.
_LINEAR = tuple((("between", {"part": where}), ("between", {"part": much}))
                for where, much in (("low", "rest"), ("high", "share")))
_CUBIC = tuple((("cubic_place", {"tap": tap}), ("cubic_weight", {"tap": tap})) for tap in range(4))
_WEIGHED = {"linear": _LINEAR, "bilinear": _LINEAR, "trilinear": _LINEAR, "bicubic": _CUBIC}


def resampled(node: Node) -> Node:
    """The nearest element, or the sum of those beside a place along each axis, weighed by how near they are. Where an
    axis stays as long as it is, a CPU weighs its own elements; a device copies them where all axes do."""
    x, = node.inputs
    scales = node["scales"] or (None,) * (x.rank - 2)
    moved = {axis: {"count": x.shape[axis], "size": node.shape[axis], "scale": scales[axis - 2]}
             for axis in range(2, x.rank)}
    if node["mode"] not in _WEIGHED:
        indices = {axis: of_axis(make("nearest_places", mode=node["mode"], count=x.shape[axis], size=node.shape[axis]),
                                 axis, x.rank) for axis in moved}
        return looked_up(x, indices, tuple(range(x.rank)), node.shape, within=True)
    on_cpu = node["device"] == "cpu"
    if not on_cpu and x.shape == node.shape:
        return x
    wide = "float64" if x.dtype == "float64" else "float32"

    def table(axis: int, of: tuple[str, dict]) -> Node:
        how: dict[str, Any] = {**of[1], **moved[axis], "dtype_of": wide, "aligned": bool(node["aligned"])}
        if of[0] == "between":
            how["stays"] = on_cpu and x.shape[axis] == node.shape[axis]
        return of_axis(make(of[0], **how), axis, x.rank)

    taps = _WEIGHED[node["mode"]]
    parts = {axis: [(table(axis, where), table(axis, much)) for where, much in taps] for axis in moved}

    def along(axes: tuple[int, ...], indices: dict[int, Node]) -> Node:
        if not axes:
            return cast(looked_up(x, indices, tuple(range(x.rank)), node.shape, within=True), wide)
        axis, *others = axes
        terms = (make("mul", along(tuple(others), {**indices, axis: where}), much) for where, much in parts[axis])
        return reduce(lambda one, other: make("add", one, other), terms)

    return cast(along(tuple(moved), {}), x.dtype)


# Samples at places that a tensor gives ----------------------------------------------------------------------------


def sampled(node: Node) -> Node:
    """The elements beside each place of a grid, which is computed as eager computes it on its device: which element is
    the nearest one, and what becomes of what is no number, is decided by its rounding."""
    grid = node.inputs[1]
    places = {axis: _place(node, axis, reshape(make("slice", grid, axis=3, start=3 - axis, stop=4 - axis, step=1),
                                               (grid.shape[0], 1, *grid.shape[1:3]))) for axis in (3, 2)}
    if node["mode"] == "nearest":
        return _element(node, {axis: (make("round", place), True) for axis, place in places.items()})
    corners = {}
    for axis, place in places.items():
        low = make("floor", place)
        share = make("sub", place, low)
        one = make("sub", constant(1.0), share)
        corners[axis] = ((low, True, one), (make("add", low, constant(1.0)), False, share))
    terms = (make("mul", _element(node, {2: (below, is_low), 3: (across, is_left)}), make("mul", over, down))
             for below, is_low, down in corners[2] for across, is_left, over in corners[3])
    return reduce(lambda one, other: make("add", one, other), terms)


def _element(node: Node, numbers: dict[int, tuple[Node, bool]]) -> Node:
    """The element with numbers of a floating type along the last axes, or zero where it is none of x. Each number comes
    with whether it is the first of its place, which a padding by elements keeps inside."""
    x = node.inputs[0]
    indices = {axis: cast(number, "int64") for axis, (number, _) in numbers.items()}
    value = looked_up(x, indices, (0, 1, 2, 3), node.shape)
    conditions = []
    for axis, (number, is_first) in numbers.items():
        if node["padding"] == "zeros":
            conditions.append(make("ge", number, constant(0.0)))
        if node["padding"] == "zeros" or not is_first:
            conditions.append(make("le", number, constant(float(x.shape[axis] - 1))))
    if not conditions:
        return value
    inside, *more = conditions
    for condition in more:
        inside = make("logical_and", inside, condition)
    return make("where", inside, value, constant(0.0))


def _place(node: Node, axis: int, at: Node) -> Node:
    """The place along an axis of what a grid gives between -1 and 1. PyTorch's compilers make one operation of a
    product and the difference behind it, which decides between two elements that are as near."""
    size, on_device = node.inputs[0].shape[axis], node["device"] != "cpu"
    moved = make("add", at, constant(1.0))
    if on_device and node["aligned"]:
        place = make("mul", make("mul", moved, constant(0.5)), constant(float(size - 1)))
    elif on_device:
        place = make("mul", make("multiply_add", moved, constant(float(size)), constant(-1.0)), constant(0.5))
    elif node["aligned"]:
        place = make("mul", moved, constant((size - 1) / 2))
    else:
        place = make("multiply_add", moved, constant(size / 2), constant(-0.5))
    if node["padding"] == "reflection":
        place = _reflected(node, size, place, on_device)
    if node["padding"] != "zeros":  # what is no number is the first place
        place = make("where", make("eq", place, place), place, constant(0.0))
        place = make("clamp_max", make("clamp_min", place, constant(0.0)), constant(float(size - 1)))
    elif on_device:  # what is no place of a whole number is none of the tensor
        usual = make("lt", make("abs", place), constant(2147483646.0))
        place = make("where", usual, place, constant(-100.0))
    return place


def _reflected(node: Node, size: int, place: Node, on_device: bool) -> Node:
    """A place thrown back at the first and last elements, or half an element beyond them."""
    span, least = (size - 1, 0.0) if node["aligned"] else (size, -0.5)
    if not span:
        return make("mul", place, constant(0.0))
    size_of = make("abs", make("sub", place, constant(least)) if least else place)
    if on_device:
        rest = make("fmod", size_of, constant(float(span)))
        turns = make("floor", make("div", size_of, constant(float(span))))
        even = make("eq", make("remainder", turns, constant(2.0)), constant(0.0))
        folded = make("where", even, rest, make("sub", constant(float(span)), rest))
    else:
        turns = make("trunc", make("div", size_of, constant(2.0 * span)))
        rest = make("sub", size_of, make("mul", turns, constant(2.0 * span)))
        folded = make("minimum", rest, make("sub", constant(2.0 * span), rest))
    return make("add", folded, constant(least)) if least else folded


LOWERINGS = {"resampled": resampled, "sampled": sampled}


def has_form(node: Node) -> bool:
    """Whether there are elements."""
    return all(prod(n.shape) for n in (node, *node.inputs))
