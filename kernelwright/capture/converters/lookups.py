"""Converters of operators that choose elements by tensors of whole numbers (see
:mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from kernelwright.capture.converters.table import Arguments, NotConvertible, axis_of, converts
from kernelwright.ir.node import Node, make


def _of_numbers(index: Node) -> Node:
    """Indices that are whole numbers: truth values choose another number of elements."""
    if index.dtype not in ("int64", "int32"):
        raise NotConvertible(f"indices of type {index.dtype}")
    return index


@converts("embedding.default")
def _embedding(a: Arguments) -> Node:
    """The other arguments say how its gradients are, which PyTorch computes."""
    return make("taken", a["weight"], _of_numbers(a["indices"]), axis=0, wraps=False)


@converts("index_select.default")
def _index_select(a: Arguments) -> Node:
    x, index = a["self"], _of_numbers(a["index"])
    if not x.rank or index.rank != 1:
        raise NotConvertible("numbers without an axis")
    return make("taken", x, index, axis=axis_of(a["dim"], x.rank), wraps=False)


@converts("index.Tensor")
def _index(a: Arguments) -> Node:
    x, chosen = a["self"], [(axis, n) for axis, n in enumerate(a["indices"]) if n is not None]
    if len(chosen) != 1:
        raise NotConvertible("indices along several axes")
    axis, index = chosen[0]
    return make("taken", x, _of_numbers(index), axis=axis, wraps=True)


@converts("gather.default")
def _gather(a: Arguments) -> Node:
    x, index = a["self"], _of_numbers(a["index"])
    if not x.rank or x.rank != index.rank:
        raise NotConvertible("numbers without an axis")
    return make("gather", x, index, axis=axis_of(a["dim"], x.rank))


@converts("take_along_dim.default")
def _take_along(a: Arguments) -> Node:
    """A gather whose operands are broadcast along the other axes."""
    x, index = a["self"], _of_numbers(a["indices"])
    if a["dim"] is None or not x.rank or x.rank != index.rank:
        raise NotConvertible("numbers of a flattened tensor")
    axis = axis_of(a["dim"], x.rank)
    if any(i != s for k, (i, s) in enumerate(zip(index.shape, x.shape, strict=True)) if k != axis):
        raise NotConvertible("operands that are broadcast")
    return make("gather", x, index, axis=axis)


@converts("one_hot.default")
def _one_hot(a: Arguments) -> Node:
    """Of a known number of classes: else they are those that there are."""
    index = a["self"]
    if index.dtype != "int64" or a["num_classes"] < 1:
        raise NotConvertible("as many classes as there are")
    return make("one_hot", index, count=a["num_classes"])
