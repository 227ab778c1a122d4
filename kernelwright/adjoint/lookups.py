"""Adjoints of what chooses elements by numbers or places: each gradient is added where its element was taken, by
PyTorch's own operators where one place may have several."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.adjoint.table import (
    OPAQUE,
    NoAdjoint,
    add,
    adjoint,
    apply,
    call,
    calls,
    listed,
    named,
    where,
    zeros,
)
from kernelwright.algebra.build import reshape
from kernelwright.ir.node import Node, make

Found = Sequence[Node | None]


#: Calls that give elements of their operand and then the numbers that these have along an axis, the argument of this
#: name or place.
PICKING = {"aten.topk.default": 2, "aten.sort.default": 1, "aten.kthvalue.default": 2}


def counted(x: Node, axis: int, dtype: str) -> Node:
    """The number of each element along an axis of x, in a shape that broadcasts to that of x."""
    places = make("cast", make("places", count=x.shape[axis]), to=dtype, shape=(x.shape[axis],), dtype=dtype)
    return reshape(places, tuple(x.shape[axis] if a == axis else 1 for a in range(x.rank)))


@adjoint("taken")
def _taken(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Rows of a table as an embedding's gradients, which say what becomes of padding; else what is put is added."""
    x, *indices = node.inputs
    padding, by_frequency, sparse = node.get("gradient", (-1, False, False))
    if sparse:
        raise NoAdjoint("an embedding with sparse gradients")
    rest: Sequence[None] = (None,) * len(indices)
    if not node["wraps"] and node["axes"] == (0,) and x.rank == 2:
        template = (("input", 0), ("input", 1), x.shape[0], padding, by_frequency)
        return (call("aten.embedding_dense_backward.default", (g, indices[0]), template, x.shape, x.dtype), *rest)
    if not node["wraps"]:
        axis, = node["axes"]
        index = reshape(indices[0], (indices[0].size,))
        g = reshape(g, (*x.shape[:axis], index.size, *x.shape[axis + 1:]))
        return (call("aten.index_add.default", (zeros(x), index, g), (("input", 0), axis, ("input", 1), ("input", 2)),
                     x.shape, x.dtype), *rest)
    chosen = dict(zip(node["axes"], range(1, len(node.inputs)), strict=True))
    places = listed([("input", chosen[a]) if a in chosen else None for a in range(max(chosen) + 1)])
    return (call("aten.index_put.default", (zeros(x), *indices, g),
                 (("input", 0), places, ("input", len(node.inputs)), True), x.shape, x.dtype), *rest)


@adjoint("gather")
def _gather(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Of one number for each row a gradient or zero, as a kernel has it. Numbers of a call that sorts or chooses are
    different ones in a row: their gradients are put, not added to zeros, which would make +0 of -0."""
    x, index = node.inputs
    axis = node["axis"]
    if index.op == "item" and index.inputs[0].get("target", "") in PICKING and index.inputs[0].inputs == (x,):
        return (call("aten.scatter.src", (zeros(x), index, g), (("input", 0), axis, ("input", 1), ("input", 2)),
                     x.shape, x.dtype), None)
    if index.shape == (*x.shape[:axis], 1, *x.shape[axis + 1:]):
        return (where(apply("eq", counted(x, axis, index.dtype), index), g, 0.0), None)
    return (call("aten.scatter_add.default", (zeros(x), index, g), (("input", 0), axis, ("input", 1), ("input", 2)),
                 x.shape, x.dtype), None)


@adjoint("scattered")
def _scattered(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """What is put gets the gradients of its places; what it replaced gets none."""
    x, index, source = node.inputs
    axis = node["axis"]
    of_x = of_source = None
    wide = index if index.shape == source.shape else make("expand", index, shape=source.shape)
    if wanted[0]:
        of_x = g if node["adds"] else call("aten.scatter.value", (g, wide), (("input", 0), axis, ("input", 1), 0.0),
                                           x.shape, x.dtype)
    if wanted[2]:
        of_source = make("gather", g, wide, axis=axis)
    return of_x, None, of_source


def _zeroed(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """A number in the place of elements, which get no gradient."""
    axis, index = node["template"][1], node.inputs[1]
    if len(node.inputs) != 2 or node["keywords"]:
        raise NoAdjoint(named(node))
    return call("aten.scatter.value", (g, index), (("input", 0), axis, ("input", 1), 0.0), g.shape, g.dtype), None


def _of_diagonal(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """A matrix of a vector, or a vector of a matrix."""
    x, = node.inputs
    offset = node["template"][1] if len(node["template"]) > 1 else 0
    if x.rank == 1:
        return (make("diagonal", g, offset=offset, axes=(0, 1)),)
    return (call("aten.diagonal_backward.default", (g,), (("input", 0), listed(x.shape), offset, 0, 1), x.shape,
                 x.dtype),)


OPAQUE["aten.scatter.value"] = _zeroed
OPAQUE["aten.diag.default"] = _of_diagonal


@adjoint("diagonal")
def _diagonal(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, = node.inputs
    first, second = node["axes"]
    return (call("aten.diagonal_backward.default", (g,),
                 (("input", 0), listed(x.shape), node["offset"], first, second), x.shape, x.dtype),)


_BORDERS = {"reflect": "reflection", "replicate": "replication"}


@adjoint("border")
def _border(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The copies of an element are added to it."""
    x, = node.inputs
    amounts = node["amounts"]
    if node["mode"] in _BORDERS:
        widths = listed([amount for pair in reversed(amounts) for amount in pair])
        target = f"aten.{_BORDERS[node['mode']]}_pad{len(amounts)}d_backward.default"
        return (call(target, (g, x), (("input", 0), ("input", 1), widths), x.shape, x.dtype),)
    for axis, (before, after) in enumerate(amounts, x.rank - len(amounts)):
        size = x.shape[axis]
        inner = _cut(g, axis, before, before + size)
        for start, copied, first in ((0, before, size - before), (before + size, after, 0)):
            if copied:
                amount = tuple((first, size - first - copied) if a == axis else (0, 0) for a in range(x.rank))
                inner = add(inner, make("pad", _cut(g, axis, start, start + copied), amounts=amount, value=0.0))
        g = inner
    return (g,)


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    return x if (start, stop) == (0, x.shape[axis]) else make("slice", x, axis=axis, start=start, stop=stop, step=1)


_RESAMPLED = {"nearest": "upsample_nearest{}d", "nearest-exact": "_upsample_nearest_exact{}d",
              "linear": "upsample_linear{}d", "bilinear": "upsample_bilinear{}d",
              "trilinear": "upsample_trilinear{}d", "bicubic": "upsample_bicubic{}d"}


@adjoint("resampled")
def _resampled(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, = node.inputs
    rank = x.rank - 2
    corners = () if node["mode"].startswith("nearest") else (bool(node["aligned"]),)
    scales = node["scales"] or (None,) * rank
    return (call(f"aten.{_RESAMPLED[node['mode']].format(rank)}_backward.default", (g,),
                 (("input", 0), listed(node.shape[2:]), listed(x.shape), *corners, *scales), x.shape, x.dtype),)


@adjoint("sampled")
def _sampled(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, grid = node.inputs
    mode = ("bilinear", "nearest").index(node["mode"])
    padding = ("zeros", "border", "reflection").index(node["padding"])
    return calls("aten.grid_sampler_2d_backward.default", (g, x, grid), (
        ("input", 0), ("input", 1), ("input", 2), mode, padding, node["aligned"], listed(wanted)),
        [(i.shape, i.dtype) if want else None for i, want in zip(node.inputs, wanted, strict=True)])


@adjoint("unfold")
def _unfold(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The sums of the windows that have an element."""
    x, = node.inputs
    return (call("aten.unfold_backward.default", (g,),
                 (("input", 0), listed(x.shape), node["axis"], node["size"], node["step"]), x.shape, x.dtype),)


@adjoint("fold")
def _fold(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The windows of the gradients."""
    x, = node.inputs
    batch, channels, *kernel, rows, columns = x.shape
    found = call("aten.im2col.default", (g,), (("input", 0), listed(kernel), *(
        listed(node[name]) for name in ("dilation", "padding", "stride"))),
        (batch, channels * kernel[0] * kernel[1], rows * columns), x.dtype)
    return (reshape(found, x.shape),)
