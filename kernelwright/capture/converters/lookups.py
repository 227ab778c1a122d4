"""Converters of operators that choose elements by tensors of whole numbers (see
:mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from typing import Any

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    axis_of,
    converts,
    float_only,
    part,
    reshape,
)
from kernelwright.ir.node import Node, make


def _of_numbers(index: Node) -> Node:
    """Indices that are whole numbers: truth values choose another number of elements."""
    if index.dtype not in ("int64", "int32"):
        raise NotConvertible(f"indices of type {index.dtype}")
    return index


@converts("embedding.default")
def _embedding(a: Arguments) -> Node:
    """The other arguments say how its gradients are."""
    gradient = (a["padding_idx"], bool(a["scale_grad_by_freq"]), bool(a["sparse"]))
    more: dict[str, Any] = {} if gradient == (-1, False, False) else {"gradient": gradient}
    return make("taken", a["weight"], _of_numbers(a["indices"]), axes=(0,), wraps=False, **more)


@converts("embedding_bag.padding_idx", "embedding_bag.default")
def _embedding_bag(a: Arguments) -> tuple[Node | None, ...]:
    """Sums or means of rows, of bags that are as long as each other: those of an index with two axes."""
    weight, index, scales = a["weight"], _of_numbers(a["indices"]), a["per_sample_weights"]
    length = _bag_length(a["offsets"], index.size)
    if not length or a["mode"] > 1 or a["include_last_offset"] or a.get("padding_idx") is not None \
            or a["results_used"] - {0}:
        raise NotConvertible("bags of several lengths, largest ones, or with padding")
    rows = make("taken", float_only(weight), reshape(index, (index.size // length, length)), axes=(0,), wraps=False)
    if scales is not None:
        rows = make("mul", rows, reshape(float_only(scales), (*rows.shape[:2], 1)))
    return make("mean" if a["mode"] else "sum", rows, axes=(1,), keepdim=False), None, None, None


def _bag_length(offsets: Node, count: int) -> int:
    """How long bags are that begin at numbers which count from zero in steps of that; 0 of others."""
    template = offsets.get("template", ())
    if not offsets.get("target", "").startswith("aten.arange.") or len(template) != 3:
        return 0
    first, end, step = template
    regular = all(isinstance(n, int) for n in template) and first == 0 and end == count and step > 0
    return step if regular and count and not count % step else 0


@converts("index_select.default")
def _index_select(a: Arguments) -> Node:
    x, index = a["self"], _of_numbers(a["index"])
    if not x.rank or index.rank != 1:
        raise NotConvertible("numbers without an axis")
    return make("taken", x, index, axes=(axis_of(a["dim"], x.rank),), wraps=False)


@converts("index.Tensor")
def _index(a: Arguments) -> Node:
    x, chosen = a["self"], {axis: n for axis, n in enumerate(a["indices"]) if n is not None}
    if not chosen:
        raise NotConvertible("no index")
    return make("taken", x, *map(_of_numbers, chosen.values()), axes=tuple(chosen), wraps=True)


@converts("take.default")
def _take(a: Arguments) -> Node:
    """Of all elements in a row."""
    x = a["self"]
    return make("taken", reshape(x, (x.size,)), _of_numbers(a["index"]), axes=(0,), wraps=True)


@converts("gather.default")
def _gather(a: Arguments) -> Node:
    x, index = a["self"], _of_numbers(a["index"])
    if not x.rank or x.rank != index.rank:
        raise NotConvertible("numbers without an axis")
    return make("gather", x, index, axis=axis_of(a["dim"], x.rank))


@converts("take_along_dim.default")
def _take_along(a: Arguments) -> Node:
    """A gather whose operands are broadcast along the other axes; of all elements in a row without an axis."""
    x, index = a["self"], _of_numbers(a["indices"])
    if a["dim"] is None:
        return make("gather", reshape(x, (x.size,)), reshape(index, (index.size,)), axis=0)
    if not x.rank or x.rank != index.rank:
        raise NotConvertible("numbers without an axis")
    axis = axis_of(a["dim"], x.rank)
    shape = tuple(i if s == 1 else s for s, i in zip(x.shape, index.shape, strict=True))
    x, index = (_widened(n, (*shape[:axis], n.shape[axis], *shape[axis + 1:])) for n in (x, index))
    return make("gather", x, index, axis=axis)


def _widened(x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.shape == shape else make("expand", x, shape=shape)


@converts("one_hot.default")
def _one_hot(a: Arguments) -> Node:
    """Of a known number of classes: else they are those that there are."""
    index = a["self"]
    if index.dtype != "int64" or a["num_classes"] < 1:
        raise NotConvertible("as many classes as there are")
    return make("one_hot", index, count=a["num_classes"])


#: A kernel looks at all indices for each element: more of them are stored or added one after the other by PyTorch.
_MOST_SCATTERED = 8


def _scattered(a: Arguments, index: Node, source: Node, *, adds: bool) -> Node:
    """Elements of ``source`` at numbers of ``index``, which has its rank, along an axis."""
    x, axis = a["self"], axis_of(a["dim"], a["self"].rank)
    if not x.rank or index.rank != x.rank or source.rank != x.rank or source.dtype != x.dtype:
        raise NotConvertible("numbers without an axis, or another type")
    count = index.shape[axis]
    for other in range(x.rank):
        source = part(source, other, 0, count if other == axis else x.shape[other])
    wide = any(index.shape[other] not in (1, n) or source.shape[other] != n
               for other, n in enumerate(x.shape) if other != axis)
    if wide or not 0 < count <= _MOST_SCATTERED or count != source.shape[axis]:
        raise NotConvertible("many indices, or elements beside them")
    return make("scattered", x, _of_numbers(index), source, axis=axis, adds=adds)


@converts("scatter.src", "scatter_add.default")
def _scatter(a: Arguments) -> Node:
    x, index = a["self"], a["index"]
    if index.rank != x.rank or any(i != n for axis, (i, n) in enumerate(zip(index.shape, x.shape, strict=True))
                                   if axis != axis_of(a["dim"], x.rank)):
        raise NotConvertible("a part of the elements")
    return _scattered(a, index, a["src"], adds=a["operator"].startswith("scatter_add"))


@converts("index_add.default", "index_copy.default")
def _index_add(a: Arguments) -> Node:
    """Slices at numbers along an axis."""
    x, index, source = a["self"], a["index"], a["source"]
    axis = axis_of(a["dim"], x.rank)
    if a.get("alpha", 1) != 1 or index.rank != 1:
        raise NotConvertible("slices that are multiplied")
    return _scattered(a, reshape(index, tuple(index.size if other == axis else 1 for other in range(x.rank))), source,
                      adds=a["operator"].startswith("index_add"))
