"""Converters of views (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from math import prod

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    axes_of,
    axis_of,
    converts,
    part,
    permuted,
    reshape,
)
from kernelwright.ir.node import Node, make


@converts("view.default", "reshape.default", "_unsafe_view.default")
def _reshape(a: Arguments) -> Node:
    x, shape = list(a.values())[:2]
    known = prod(s for s in shape if s != -1)
    return reshape(x, tuple(x.size // known if s == -1 else s for s in shape))


@converts("flatten.using_ints")
def _flatten(a: Arguments) -> Node:
    x = a["self"]
    first, last = axis_of(a["start_dim"], x.rank), axis_of(a["end_dim"], x.rank)
    return reshape(x, (*x.shape[:first], prod(x.shape[first:last + 1]), *x.shape[last + 1:]))


@converts("unflatten.int")
def _unflatten(a: Arguments) -> Node:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    known = prod(s for s in a["sizes"] if s != -1)
    sizes = tuple(x.shape[axis] // known if s == -1 else s for s in a["sizes"])
    return reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1:]))


@converts("unsqueeze.default")
def _unsqueeze(a: Arguments) -> Node:
    x = a["self"]
    axis = a["dim"] % (x.rank + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@converts("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(a: Arguments) -> Node:
    x = a["self"]
    axes = axes_of(a.get("dim"), x.rank)
    return reshape(x, tuple(s for i, s in enumerate(x.shape) if not (i in axes and s == 1)))


@converts("permute.default")
def _permute(a: Arguments) -> Node:
    axes = tuple(axis_of(d, a["self"].rank) for d in a["dims"])
    return permuted(a["self"], axes)


@converts("transpose.int", "t.default", "numpy_T.default", "mT.default")
def _transpose(a: Arguments) -> Node:
    x = a["self"]
    axes = list(range(x.rank))
    if a["operator"] == "numpy_T.default":
        axes.reverse()
    elif x.rank >= 2:
        pair = (a["dim0"], a["dim1"]) if "dim0" in a else (-2, -1)
        first, second = (axis_of(p, x.rank) for p in pair)
        axes[first], axes[second] = axes[second], axes[first]
    return permuted(x, tuple(axes))


@converts("expand.default", "expand_as.default")
def _expand(a: Arguments) -> Node:
    x = a["self"]
    shape = a["other"].shape if "other" in a else a["size"]
    lead = len(shape) - x.rank
    sizes = tuple(x.shape[i - lead] if s == -1 else s for i, s in enumerate(shape))
    return x if sizes == x.shape else make("expand", x, shape=sizes)


@converts("slice.Tensor")
def _slice(a: Arguments) -> Node:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    start, stop, step = slice(a["start"], a["end"], a["step"]).indices(x.shape[axis])
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    return make("slice", x, axis=axis, start=start, stop=max(stop, start), step=step)


@converts("select.int")
def _select(a: Arguments) -> Node:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    index = a["index"] % x.shape[axis]
    return reshape(part(x, axis, index, index + 1), (*x.shape[:axis], *x.shape[axis + 1:]))


@converts("split.Tensor", "split_with_sizes.default", "chunk.default", "split.sizes")
def _split(a: Arguments) -> tuple[Node, ...]:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    length = x.shape[axis]
    if a["operator"] == "chunk.default":
        size = -(-length // a["chunks"])
        sizes = [size] * (length // size) + ([length % size] if length % size else [])
    else:
        given = a.get("split_sizes", a.get("split_size"))
        sizes = list(given) if isinstance(given, (list, tuple)) else \
            [given] * (length // given) + ([length % given] if length % given else [])
    parts, start = [], 0
    for size in sizes:
        parts.append(part(x, axis, start, start + size))
        start += size
    return tuple(parts)


@converts("unbind.int")
def _unbind(a: Arguments) -> tuple[Node, ...]:
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    shape = (*x.shape[:axis], *x.shape[axis + 1:])
    return tuple(reshape(part(x, axis, i, i + 1), shape) for i in range(x.shape[axis]))


@converts("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(a: Arguments) -> Node:
    x = a["self"]
    given = [[v] if isinstance(v, int) else list(v) for v in (a["source"], a["destination"])]
    sources, targets = ([axis_of(v, x.rank) for v in values] for values in given)
    rest = iter(i for i in range(x.rank) if i not in sources)
    return permuted(x, tuple(sources[targets.index(i)] if i in targets else next(rest) for i in range(x.rank)))


@converts("swapaxes.default", "swapdims.default")
def _swap(a: Arguments) -> Node:
    x = a["self"]
    first, second = (axis_of(v, x.rank) for v in list(a.values())[1:3])
    axes = list(range(x.rank))
    axes[first], axes[second] = second, first
    return permuted(x, tuple(axes))


@converts("view_as.default", "reshape_as.default")
def _reshape_as(a: Arguments) -> Node:
    return reshape(a["self"], a["other"].shape)


@converts("ravel.default")
def _ravel(a: Arguments) -> Node:
    return reshape(a["self"], (a["self"].size,))


@converts("unfold.default")
def _unfold(a: Arguments) -> Node:
    x = a["self"]
    if x.rank == 0:
        raise NotConvertible("windows of a number")
    return make("unfold", x, axis=axis_of(a["dimension"], x.rank), size=a["size"], step=a["step"])


@converts("diagonal.default")
def _diagonal(a: Arguments) -> Node:
    x = a["self"]
    return make("diagonal", x, offset=a["offset"], axes=(axis_of(a["dim1"], x.rank), axis_of(a["dim2"], x.rank)))
