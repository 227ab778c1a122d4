"""Adjoints of what moves elements: each gradient goes back to where its element came from."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.adjoint.table import OPAQUE, NoAdjoint, adjoint, named, summed_to
from kernelwright.algebra.build import reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make

Found = Sequence[Node | None]


@adjoint("reshape")
def _reshape(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (reshape(g, node.inputs[0].shape),)


@adjoint("permute", "reordered", "contiguous")
def _permute(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    axes = node["axes"]
    return (make("permute", g, axes=tuple(axes.index(a) for a in range(len(axes)))),)


@adjoint("expand")
def _expand(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (summed_to(g, node.inputs[0].shape),)


@adjoint("flip")
def _flip(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (make("flip", g, axes=node["axes"]),)


def padded(g: Node, axis: int, before: int, after: int) -> Node:
    """g between zeros along an axis."""
    if not before and not after:
        return g
    return make("pad", g, amounts=tuple((before, after) if a == axis else (0, 0) for a in range(g.rank)), value=0.0)


def cut(x: Node, axis: int, start: int, stop: int) -> Node:
    """Part of x along an axis."""
    return x if (start, stop) == (0, x.shape[axis]) else make("slice", x, axis=axis, start=start, stop=stop, step=1)


@adjoint("slice")
def _slice(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Zeros where no element was taken from."""
    size, axis, step = node.inputs[0].shape[node["axis"]], node["axis"], node["step"]
    start = min(node["start"], size)
    if step > 1:  # each element before its step's zeros
        apart = reshape(g, (*g.shape[:axis + 1], 1, *g.shape[axis + 1:]))
        g = reshape(padded(apart, axis + 1, 0, step - 1), (*g.shape[:axis], g.shape[axis] * step, *g.shape[axis + 1:]))
        g = cut(g, axis, 0, min(g.shape[axis], size - start))
    return (padded(g, axis, start, size - start - g.shape[axis]),)


@adjoint("concatenate")
def _concatenate(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    found: list[Node | None] = []
    start = 0
    for x, want in zip(node.inputs, wanted, strict=True):
        if x.shape == (0,) and node.rank != 1:  # PyTorch skips it
            found.append(None)
            continue
        stop = start + x.shape[node["axis"]]
        found.append(cast(cut(g, node["axis"], start, stop), x.dtype) if want else None)
        start = stop
    return found


@adjoint("pad")
def _pad(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    for axis, ((before, _), size) in enumerate(zip(node["amounts"], node.inputs[0].shape, strict=True)):
        g = cut(g, axis, before, before + size)
    return (g,)


@adjoint("roll")
def _roll(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (make("roll", g, shifts=tuple(-s for s in node["shifts"]), axes=node["axes"]),)


@adjoint("triangle")
def _triangle(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (make("triangle", g, lower=node["lower"], diagonal=node["diagonal"]),)


@adjoint("upsample_nearest")
def _upsample_nearest(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """The sums of all copies of an element."""
    x, factors = node.inputs[0], node["factors"]
    first = x.rank - len(factors)
    apart = tuple(n for s, f in zip(x.shape[first:], factors, strict=True) for n in (s, f))
    copies = tuple(first + 2 * i + 1 for i in range(len(factors)))
    return (make("sum", reshape(g, (*x.shape[:first], *apart)), axes=copies, keepdim=False),)


@adjoint("opaque")
def _opaque(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """A call that stays one."""
    rule = OPAQUE.get(node["target"])
    if rule is None:
        raise NoAdjoint(named(node))
    return rule(node, g, wanted)


#: A copy, which eager's results are where they would share memory.
OPAQUE["aten.clone.default"] = lambda node, g, wanted: (g,)


@adjoint("detached")
def _detached(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (None,)


@adjoint("again")
def _again(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (g,)


@adjoint("cast")
def _cast(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    return (cast(g, node.inputs[0].dtype),)
