"""Converters of scans, flips, parts and places of extrema (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from typing import Any

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    axes_of,
    converts,
    float_only,
    part,
    reshape,
)
from kernelwright.ir.node import Node, make


@converts("flip.default", "fliplr.default", "flipud.default")
def _flip(a: Arguments) -> Node:
    x = a["self"]
    given = a["dims"] if "dims" in a else (1,) if a["operator"] == "fliplr.default" else (0,)
    axes = axes_of(list(given), x.rank) if given else ()
    moved = tuple(axis for axis in axes if x.shape[axis] != 1)
    return make("flip", x, axes=moved) if moved else x


@converts("narrow.default")
def _narrow(a: Arguments) -> Node:
    x, axis = a["self"], axes_of(a["dim"], a["self"].rank)[0]
    start, length = a["start"], a["length"]
    if not isinstance(start, int) or not isinstance(length, int):
        raise NotConvertible("a part that a tensor chooses")
    start += x.shape[axis] * (start < 0)
    return part(x, axis, start, start + length)


@converts("cumsum.default", "cumprod.default", "logcumsumexp.default", "cummax.default", "cummin.default")
def _scan(a: Arguments) -> Any:
    x = float_only(a["self"])
    name = a["operator"].split(".")[0]
    pair = name in ("cummax", "cummin")
    if a.get("dtype") is not None and str(a["dtype"]) != f"torch.{x.dtype}":
        raise NotConvertible("scan into another type")
    if not x.rank or 0 in x.shape or (pair and a["results_used"] != {0}):
        raise NotConvertible("a scan of nothing, or one whose indices are used")
    node = make(name, x, axis=axes_of(a["dim"], x.rank)[0], reverse=False, exclusive=False)
    return (node, None) if pair else node


@converts("argmax.default", "argmin.default")
def _place(a: Arguments) -> Node:
    x = float_only(a["self"])
    if not x.size or not x.rank:
        raise NotConvertible("the place of an extremum of nothing, or of a number")
    name, keepdim = a["operator"].split(".")[0], bool(a["keepdim"])
    if a["dim"] is not None:
        return make(name, x, axes=axes_of(a["dim"], x.rank), keepdim=keepdim)
    place = make(name, reshape(x, (x.size,)), axes=(0,), keepdim=False)
    return reshape(place, (1,) * x.rank) if keepdim else place


@converts("max.dim", "min.dim")
def _extremum(a: Arguments) -> Any:
    x = float_only(a["self"])
    if not x.size or not x.rank:
        raise NotConvertible("an extremum of nothing, or of a number")
    name, axes = a["operator"].split(".")[0], axes_of(a["dim"], x.rank)
    value = make(f"a{name}", x, axes=axes, keepdim=a["keepdim"])
    return value, make(f"arg{name}", x, axes=axes, keepdim=a["keepdim"]) if 1 in a["results_used"] else None
