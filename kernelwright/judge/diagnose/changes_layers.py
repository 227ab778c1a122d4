"""Hypotheses about pools, operators that move elements, and numbers among the attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.change import Change, Number, applied, attribute, on_input
from kernelwright.judge.diagnose.changes_linear import fitted
from kernelwright.judge.diagnose.changes_pointwise import about
from kernelwright.judge.diagnose.changes_reduction import cut
from kernelwright.judge.diagnose.graph_values import Get, recomputed
from kernelwright.judge.diagnose.naming import told


def pools(node: Node) -> Iterator[Change]:
    """All changes of one pooling."""
    if node.kind != "window":
        return
    here = about(node)
    if node.op == "adaptive_average_pool":
        if prod(node["size"]) == 1:
            yield Change("sum-for-mean", f"with the sum in place of the mean in {told(node)}", "divide by the count",
                         0.6,
                         {node: applied(node, lambda v: v.sum(tuple(range(v.dim() - len(node["size"]), v.dim())),
                                                              keepdim=True))},
                         here)
            yield Change("wrong-operator", f"with the maximum in {told(node)}", "take the mean", 1.0,
                         {node: applied(node, lambda v: v.amax(tuple(range(v.dim() - len(node["size"]), v.dim())),
                                                               keepdim=True))},
                         here)
            x = node.inputs[0]
            yield from cut(node, x, tuple(range(x.rank - len(node["size"]), x.rank)),
                           lambda part: on_input(node, 0, part))
            yield from cut(node, x, tuple(range(x.rank - len(node["size"]), x.rank)), lambda part: (
                lambda get: _over_all(node, get(x), part)))
        return
    rank = len(node["kernel"])
    tried: dict[str, set[Any]] = {
        "padding": {(0,) * rank}, "ceil": {not node["ceil"]}, "stride": {(1,) * rank, node["kernel"]},
        "kernel": {tuple(max(1, k - 1) for k in node["kernel"]), tuple(k + 1 for k in node["kernel"])}}
    if node.op == "max_pool":
        tried["dilation"] = {(1,) * rank}
    else:
        tried["include_padding"] = {not node["include_padding"]}
    for which, options in tried.items():
        for option in sorted(options - {node[which]}):
            kind = {"include_padding": "count-include-pad", "ceil": "ceil-mode"}.get(which, which)
            words = f"with {which} {option} instead of {node[which]} in {told(node)}"
            compute = attribute(node, **{which: option})
            yield Change(kind, words, f"use {which} {node[which]}", 0.8, {node: compute}, here)
            yield Change(kind, words, f"use {which} {node[which]}", 0.9,
                         {node: lambda get, c=compute: fitted(c(get), node)}, here)
    for axis in range(rank):
        for by in (1, -1):
            yield Change("padding",
                         f"with the windows of {told(node)} shifted by {by} along axis {node.rank - rank + axis}",
                         f"window i begins at i * {node['stride'][axis]} - {node['padding'][axis]}", 1.2,
                         {node: on_input(node, 0, lambda v, a=axis, s=by: _moved(v, v.dim() - rank + a, s))}, here)
    yield from _window_cuts(node, rank)
    amounts = [p for pad in reversed(node["padding"]) for p in (pad, pad)]
    if node.op == "max_pool":
        if any(amounts):
            yield Change("padding-value", f"with zeros in place of -infinity in the padding of {told(node)}",
                         "padding must never win: pad with -infinity, or leave it out", 0.7,
                         {node: lambda get: recomputed(node, get, F.pad(get(node.inputs[0]), amounts), padding=(0,
                                                       ) * rank)},
                         here)
        yield from _extremum_windows(node, rank)
        yield Change("extremum-start", f"with {told(node)} starting at 0", "start at -infinity", 0.8,
                     {node: lambda get: recomputed(node, get).clamp_min(0)}, here)
        yield Change("wrong-operator", f"with the mean in place of the maximum in {told(node)}", "take the maximum",
                     1.2,
                     {node: applied(node, lambda v: _average(v, node))}, here)
    else:
        count = prod(node["kernel"])
        yield Change("sum-for-mean", f"with the sum in place of the mean in {told(node)}", f"divide by {count}", 0.7,
                     {node: lambda get: recomputed(node, get) * count}, here)
        yield from _average_windows(node)
        yield Change("wrong-operator", f"with the maximum in place of the mean in {told(node)}", "take the mean", 1.2,
                     {node: applied(node, lambda v: (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1](
                         v, node["kernel"], node["stride"], node["padding"], 1, node["ceil"]))}, here)


def _over_all(node: Node, whole: torch.Tensor, part: Callable[[Any], Any]) -> torch.Tensor:
    """The mean of a part, as it is where the sum of the part is divided by the count of all."""
    axes = tuple(range(whole.dim() - len(node["size"]), whole.dim()))
    kept = part(whole)
    return kept.mean(axes, keepdim=True) * prod(kept.shape[a] / whole.shape[a] for a in axes)


def _window_cuts(node: Node, rank: int) -> Iterator[Change]:
    """Windows that miss their last or first position along some axes."""
    for axes in [*((a,) for a in range(rank)), *([tuple(range(rank))] if rank > 1 else [])]:
        if any(node["kernel"][a] < 2 for a in axes):
            continue
        kernel = tuple(k - (a in axes) for a, k in enumerate(node["kernel"]))
        padding = tuple(min(p, k // 2) for p, k in zip(node["padding"], kernel, strict=True))
        if padding != node["padding"]:
            continue
        for words, by in (("last", 0), ("first", 1)):
            def compute(get: Get, kernel: tuple[int, ...] = kernel, axes: tuple[int, ...] = axes, by: int = by) -> Any:
                x = get(node.inputs[0])
                for axis in axes if by else ():
                    x = x.narrow(x.dim() - rank + axis, 1, x.shape[x.dim() - rank + axis] - 1)
                result = fitted(recomputed(node, get, x, kernel=kernel), node)
                return result * (prod(kernel) / prod(node["kernel"])) if node.op == "average_pool" else result

            yield Change("reduction-cut", f"with the {words} position along ax{'is' if len(axes) == 1 else 'es'} "
                         f"{', '.join(str(node.rank - rank + a) for a in axes)} missing from {told(node)}",
                         f"visit {' x '.join(map(str, node['kernel']))} positions", 1.2, {node: compute}, about(node))


def _extremum_windows(node: Node, rank: int) -> Iterator[Change]:
    """Max pooling of windows that begin elsewhere, or miss their first position; nothing lies outside."""
    stride, spread = node["stride"], node["dilation"]
    for axis in range(rank):
        for kind, words, by, shorter, fix in (
                ("padding", "shifted by 1", 1, 0, "window i begins at i * {s} - {p}"),
                ("padding", "shifted by -1", -1, 0, "window i begins at i * {s} - {p}"),
                ("reduction-cut", "without their first position", spread[axis], 1, "visit {k} positions")):
            def compute(get: Get, axis: int = axis, by: int = by, shorter: int = shorter) -> Any:
                x = get(node.inputs[0])
                flat = [part for a in reversed(range(rank)) for part in (
                    node["padding"][a] - (by if a == axis else 0), node["padding"][a] + stride[a] + abs(by))]
                kernel = tuple(k - (shorter if a == axis else 0) for a, k in enumerate(node["kernel"]))
                return fitted(recomputed(node, get, F.pad(x, flat, value=-torch.inf), padding=(0,) * rank,
                                         kernel=kernel), node)

            if node["kernel"][axis] > shorter:
                yield Change(kind, f"with the windows of {told(node)} {words} along axis {node.rank - rank + axis}, "
                             "and nothing outside", fix.format(s=stride[axis], p=node["padding"][axis],
                                                           k=node["kernel"][axis]), 1.2, {node: compute}, about(node))


def _average_windows(node: Node) -> Iterator[Change]:
    """Average pooling by windows of its own: shifted, or divided by another count."""
    here, rank = about(node), len(node["kernel"])
    how = "the places inside" if not node["include_padding"] else "all places"
    for by in (1, -1):
        yield Change("wrong-divisor", f"with the windows of {told(node)} divided by their count {by:+d}",
                     f"divide by the number of {how} of each window", 1.5,
                     {node: lambda get, b=by: _by_windows(get(node.inputs[0]), node, more=b)}, here)
        for axis in range(rank):
            yield Change("padding", f"with the windows of {told(node)} shifted by {by} along axis "
                         f"{node.rank - rank + axis}, without what is outside", f"window i begins at i * "
                         f"{node['stride'][axis]} - {node['padding'][axis]}", 1.3,
                         {node: lambda get, a=axis, b=by: _by_windows(get(node.inputs[0]), node, axis=a, by=b)}, here)
    if not node["include_padding"]:
        yield Change("sum-for-mean", f"with the sum of each window in {told(node)}, which nothing divides",
                     "divide by the number of places inside", 0.8,
                     {node: lambda get: _by_windows(get(node.inputs[0]), node, whole=True) * prod(node["kernel"])},
                     here)
        yield Change("count-include-pad", f"with every window of {told(node)} divided by {prod(node['kernel'])}",
                     "leave the padding out of the count", 1.0,
                     {node: lambda get: _by_windows(get(node.inputs[0]), node, whole=True)}, here)


def _by_windows(v: torch.Tensor, node: Node, axis: int = 0, by: int = 0, more: int = 0, whole: bool = False
                ) -> torch.Tensor:
    """Sums of windows that begin ``by`` further along an axis, over their counts plus ``more``; over the kernel's size
    with ``whole``."""
    kernel, rank = node["kernel"], len(node["kernel"])
    amounts = [(p - (by if a == axis else 0), p + kernel[a] + node["stride"][a]) for a, p in enumerate(node["padding"])]
    flat = [part for pair in reversed(amounts) for part in pair]
    ones = torch.ones((1, 1, *kernel), dtype=v.dtype, device=v.device)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def sums(t: torch.Tensor) -> torch.Tensor:
        found = convolve(F.pad(t.reshape(-1, 1, *v.shape[-rank:]), flat), ones, None, node["stride"])
        return found[(..., *(slice(0, s) for s in node.shape[-rank:]))].reshape(*t.shape[:-rank], *node.shape[-rank:])

    whole = whole or node["include_padding"]
    return sums(v) / ((prod(kernel) if whole else sums(torch.ones_like(v))) + more)


def _average(v: torch.Tensor, node: Node) -> torch.Tensor:
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(node["kernel"]) - 1]
    return function(v, node["kernel"], node["stride"], node["padding"], node["ceil"])


def _moved(v: torch.Tensor, axis: int, by: int) -> torch.Tensor:
    """Shifted by ``by`` positions along an axis, the border repeated."""
    index = (torch.arange(v.shape[axis], device=v.device) - by).clamp(0, v.shape[axis] - 1)
    return v.index_select(axis, index)


def moves(node: Node) -> Iterator[Change]:
    """Operators that only move elements, with another place."""
    here = about(node)
    if node.op == "slice":
        for by in (1, -1):
            if node["start"] + by >= 0:
                yield Change("slice", f"with {told(node)} {abs(by)} {'later' if by > 0 else 'earlier'}",
                             f"begin at {node['start']}", 2.0,
                             {node: applied(node, lambda v, b=by: _sliced(v, node, b))}, here)
    elif node.op == "roll":
        yield Change("roll", f"with {told(node)} the other way", "roll towards higher indices", 1.0,
                     {node: attribute(node, shifts=tuple(-s for s in node["shifts"]))}, here)
    elif half := _half(node):
        lower, diagonal = half
        keep, other = (torch.tril, torch.triu) if lower else (torch.triu, torch.tril)
        for by in (1, -1):
            yield Change("triangle", f"with the diagonal of {told(node)} {by:+d}", f"use diagonal {diagonal}", 1.0,
                         {node: applied(node, lambda v, d=diagonal + by: keep(v, d))}, here)
        yield Change("triangle", f"with the other half in {told(node)}",
                     f"keep the {'lower' if lower else 'upper'} half", 1.0,
                     {node: applied(node, lambda v: other(v, diagonal))}, here)
    elif node.op == "concatenate":
        yield Change("order-exchanged", f"with the parts of {told(node)} in reversed order", "keep the order", 1.2,
                     {node: lambda get: recomputed(node, get, *map(get, reversed(node.inputs)))}, here)
    elif node.op == "flip":
        yield Change("missing-operator", f"without {told(node)}", "reverse the axis", 0.8,
                     {node: lambda get: get(node.inputs[0])}, here)
    elif node.op == "permute" and node.inputs[0].op not in ("input", "parameter"):
        if node.inputs[0].shape == node.shape:
            yield Change("missing-operator", f"without {told(node)}", "exchange the axes", 0.9,
                         {node: lambda get: get(node.inputs[0])}, here)
        else:
            yield Change("missing-operator", f"with {told(node)} replaced by a reshape",
                         "exchange the axes, do not only "
                         "reinterpret the memory", 1.2, {node: lambda get: get(node.inputs[0]).reshape(node.shape)},
                         here)
    elif node.op == "pad" and node["value"] == 0.0:
        yield Change("padding", f"with the two sides of {told(node)} exchanged", "pad as the model does", 1.2,
                     {node: attribute(node, amounts=tuple((b, a) for a, b in node["amounts"]))}, here)
    elif node.op == "opaque" and "dropout" in node["target"] and node.inputs:
        yield Change("missing-dropout", f"without {told(node)}", "in training mode draw and apply the mask", 0.5,
                     {node: lambda get: get(node.inputs[0])}, here)
    elif node.op == "opaque" and node.inputs and (node.inputs[0].shape, node.inputs[0].dtype) == (
            node.shape, node.dtype):  # a weight's norm, say
        yield Change("missing-operator", f"without {told(node)}", f"apply {told(node)}", 1.4,
                     {node: lambda get: get(node.inputs[0])}, here)


def _sliced(v: torch.Tensor, node: Node, by: int) -> torch.Tensor:
    index = torch.arange(node["start"], node["stop"], node["step"], device=v.device) + by
    return v.index_select(node["axis"], index.clamp(0, v.shape[node["axis"]] - 1))


def _half(node: Node) -> tuple[bool, int] | None:
    """Whether a triangle is the lower one, and its diagonal; of floating numbers, or of a mask, which stays a call."""
    if node.op == "triangle":
        return node["lower"], node["diagonal"]
    if node.op != "opaque" or node["target"] not in ("aten.tril.default", "aten.triu.default"):
        return None
    diagonal = (*node["template"][1:], dict(node["keywords"]).get("diagonal", 0))[0]
    return "tril" in node["target"], diagonal


def numbers(node: Node) -> Iterator[Number]:
    """Numbers among the attributes: eps, momentum, a fill value, a margin."""
    for which, value in node.attributes:
        if not isinstance(value, float) or node.kind in ("leaf", "opaque"):
            continue

        def change(other: float, which: str = which, value: float = value) -> Change:
            kind = "eps" if which == "eps" else "wrong-constant"
            return Change(kind, f"with {which} = {other:.6g} in place of {value:.6g} in {told(node)}",
                          f"use {which} = {value:.9g}", 1.1, {node: attribute(node, **{which: other})},
                          {**about(node), "constant": value, "candidate_constant": other})

        yield Number(f"{which} of {node.op}", value, 1.1, change)
