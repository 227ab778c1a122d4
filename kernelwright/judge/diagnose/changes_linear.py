"""Hypotheses about contractions: bias, weight, a part of the sum left out, padding, stride, groups, narrow operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.change import Change, attribute, on_input
from kernelwright.judge.diagnose.changes_pointwise import about, along
from kernelwright.judge.diagnose.changes_reduction import TILES
from kernelwright.judge.diagnose.graph_values import Get, recomputed
from kernelwright.judge.diagnose.naming import name, told


def linear(node: Node) -> Iterator[Change]:
    """All changes of one contraction."""
    if node.kind != "linear":
        return
    yield from _bias(node)
    yield from _weights(node)
    yield from _narrow(node)
    if node.op in ("linear", "matmul"):
        yield from _parts(node)
    if node.op == "convolution":
        yield from _taps(node)
        yield from _windows(node)
        yield from _groups(node)


def _bias(node: Node) -> Iterator[Change]:
    if len(node.inputs) < 3 or node.op == "contract":
        return
    bias, here = node.inputs[2], {**about(node), "parameter": node.inputs[2].get("name")}
    yield Change("missing-bias", f"without the {name(bias)} of {told(node)}", f"add {name(bias)}", 0.3,
                 {node: lambda get: recomputed(node, get, *map(get, node.inputs[:2]))}, here)
    for times, kind, words in ((2.0, "bias-twice", "twice"), (-1.0, "bias-subtracted", "subtracted")):
        yield Change(kind, f"with the {name(bias)} of {told(node)} {'added ' if times > 0 else ''}{words}",
                     f"add {name(bias)} once", 1.2, {node: on_input(node, 2, lambda v, t=times: t * v)}, here)
    for words, function in (("the first entry for all", lambda v: v[:1].expand_as(v)),
                            ("one further", lambda v: v.roll(-1)),
                            ("one back", lambda v: v.roll(1)), ("reversed", lambda v: v.flip(0))):
        yield Change("bias-index", f"with the {name(bias)} of {told(node)} read wrongly ({words})",
                     f"index {name(bias)} by the output's own channel", 1.8, {node: on_input(node, 2, function)}, here)
    axis = 1 if node.op == "convolution" else node.rank - 1
    for other in range(node.rank):
        if other != axis and node.shape[other] > 1:
            yield Change("bias-wrong-axis",
                         f"with the {name(bias)} of {told(node)} along axis {other} instead of {axis}",
                         f"add it along axis {axis}", 1.0,
                         {node: lambda get, a=other: recomputed(node, get, *map(get, node.inputs[:2])) + along(
                             get(bias)[torch.arange(node.shape[a], device=get(bias).device) % bias.size], a,
                             node.rank)},
                         {**here, "axis": other})


def _weights(node: Node) -> Iterator[Change]:
    here = about(node)
    for index in range(min(2, len(node.inputs))):
        weight = node.inputs[index]
        if weight.op == "constant" or weight.rank < 2:
            continue
        leaf = weight.op in ("parameter", "buffer") or index == 1
        if not leaf and node.op != "matmul":
            continue
        pairs = [(0, 1)] if node.op == "convolution" else [(weight.rank - 2, weight.rank - 1)]
        if node.op == "convolution" and weight.rank == 4:
            pairs.append((2, 3))
        for a, b in pairs:
            if weight.shape[a] == weight.shape[b] and weight.shape[a] > 1:
                yield Change("transposed-weight",
                             f"with axes {a} and {b} of the {name(weight)} exchanged in {told(node)}",
                             f"exchange the indices of {name(weight)}", 0.7 if (a, b) == pairs[0] else 1.3,
                             {node: on_input(node, index, lambda v, a=a, b=b: v.transpose(a, b))}, here)
            elif weight.shape[a] != weight.shape[b]:
                # The same memory read with the axes exchanged.
                yield Change("transposed-weight",
                             f"with the {name(weight)} of {told(node)} read as if its axes {a} and {b} "
                             "were exchanged", f"address {name(weight)} with its own strides", 1.3,
                             {node: on_input(node, index, lambda v, a=a, b=b: v.contiguous().view(
                                 _exchanged(v.shape, a, b)).transpose(a, b))}, here)
        if node.op == "convolution":
            spatial = list(range(2, weight.rank))
            for axes in [spatial, *([a] for a in spatial if len(spatial) > 1)]:
                yield Change("kernel-flipped", f"with the kernel of {told(node)} flipped along {_axes(axes)}",
                             "PyTorch's convolution is a correlation: do not flip the kernel" if not node["transposed"]
                             else "a transposed convolution scatters: output = input * stride - padding + tap", 1.0,
                             {node: on_input(node, 1, lambda v, a=tuple(axes): v.flip(a))}, here)
    if node.op == "matmul" and node.inputs[0].shape == node.inputs[1].shape:
        yield Change("operands-exchanged", f"with the operands of {told(node)} exchanged", "exchange the operands", 0.8,
                     {node: lambda get: torch.matmul(get(node.inputs[1]), get(node.inputs[0]))}, here)


def _exchanged(shape: torch.Size, a: int, b: int) -> list[int]:
    sizes = list(shape)
    sizes[a], sizes[b] = sizes[b], sizes[a]
    return sizes


def _axes(axes: list[int]) -> str:
    return f"ax{'is' if len(axes) == 1 else 'es'} {', '.join(map(str, axes))}"


def rounded(value: Any, kind: str) -> Any:
    """A float32 tensor rounded to the mantissa of ``kind`` (bfloat16, float16, tf32)."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32:
        return value
    if kind == "tf32":
        return ((value.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
    return value.to(getattr(torch, kind)).to(torch.float32)


def _narrow(node: Node) -> Iterator[Change]:
    if node.dtype != "float32":
        return
    for kind, prior in (("tf32", 2.5), ("bfloat16", 2.5), ("float16", 2.5)):
        yield Change(f"precision-{kind}", f"with the operands of {told(node)} rounded to {kind}",
                     "compute products in float32", prior,
                     {node: lambda get, k=kind: recomputed(node, get, *(
                         rounded(get(n), k) if i < 2 else get(n) for i, n in enumerate(node.inputs)))}, about(node))


def _parts(node: Node) -> Iterator[Change]:
    """The contraction stops early."""
    size = node.inputs[0].shape[-1]
    axis = -1 if node.op == "linear" or node.inputs[1].rank < 2 else -2
    limits = {n: f"all but the first {n}" for n in TILES if n < size}
    limits |= {size // t * t: f"what is left after full tiles of {t}" for t in reversed(TILES) if size % t > 1}
    limits |= {size // 2: "its second half", size - 1: "its last position"}
    for limit, words in limits.items():
        if 0 < limit < size:
            yield Change("reduction-cut", f"with the sum of {told(node)} over K = {size} leaving out {words}",
                         f"run the loop over all {size} positions: look at its bounds and at the last tile",
                         1.0 if limit == size - 1 or size % limit else 2.0,
                         {node: lambda get, n=limit: recomputed(node, get, get(node.inputs[0]).narrow(-1, 0, n), get(
                             node.inputs[1]).narrow(axis, 0, n), *map(get, node.inputs[2:]))},
                         {**about(node), "size": size, "kept": [0, limit]})
    others = {(size - 1) // t * t: [*range((size - 1) // t * t, size)] for t in TILES if t < size}
    others |= {-t: [p for p in range(size) if p // t % 2 == 0] for t in TILES if 2 * t <= size}
    for which, kept in others.items():
        words = f"every second tile of {-which}" if which < 0 else f"all but its last tile of {size - which}"
        yield Change("reduction-cut", f"with the sum of {told(node)} over K = {size} leaving out {words}",
                     "add every tile to what the tiles before it gave", 1.8,
                     {node: lambda get, k=kept: recomputed(
                         node, get, get(node.inputs[0])[..., k], get(node.inputs[1])[..., k] if axis == -1 else
                         get(node.inputs[1])[..., k, :], *map(get, node.inputs[2:]))}, {**about(node), "size": size})
    if size > 1:
        yield Change("reduction-cut", f"with the sum of {told(node)} leaving out its first position",
                     f"begin at position 0 of {size}", 1.2,
                     {node: lambda get: recomputed(node, get, get(node.inputs[0]).narrow(-1, 1, size - 1), get(
                         node.inputs[1]).narrow(axis, 1, size - 1), *map(get, node.inputs[2:]))},
                     {**about(node), "size": size, "kept": [1, size]})


def _taps(node: Node) -> Iterator[Change]:
    """A tap of the kernel, or an input channel, left out."""
    weight = node.inputs[1]
    for axis in range(weight.rank):
        size = weight.shape[axis]
        over_output = axis == (1 if node["transposed"] else 0)
        if size < 2 or over_output:
            continue
        what = "tap" if axis >= 2 else "input channel"
        places = [("last", slice(size - 1, size)), ("first", slice(0, 1))]
        if size > 3:
            places.append((f"second half of the {what}s, from the", slice(size // 2, size)))
        for tile in TILES:
            if axis < 2 and tile < size and size % tile > 1:
                places.append((f"{size % tile} left after full tiles of {tile}, the last",
                               slice(size // tile * tile, size)))
        for words, part in places:
            def without(v: torch.Tensor, a: int = axis, p: slice = part) -> torch.Tensor:
                v = v.clone()
                v[(slice(None),) * a + (p,)] = 0
                return v

            yield Change("reduction-cut",
                         f"with the {words} {what} (axis {axis} of the weight) of {told(node)} left out",
                         f"run the loop over all {size} {what}s", 1.0, {node: on_input(node, 1, without)},
                         {**about(node), "axis": axis, "size": size})


def fitted(result: torch.Tensor, node: Node) -> torch.Tensor:
    """``result`` cut, or filled up with zeros, to the node's shape."""
    if result.dim() != node.rank:
        return result
    amounts = [part for a in reversed(range(node.rank)) for part in (0, node.shape[a] - result.shape[a])]
    return F.pad(result, amounts)


def _both(kind: str, words: str, fix: str, prior: float, node: Node, compute: Callable[[Get], Any],
          told_about: dict[str, Any]) -> Iterator[Change]:
    """The change with the output size that follows from it, and with the model's."""
    yield Change(kind, words, fix, prior, {node: compute}, told_about)
    yield Change(kind, words, fix, prior + 0.1, {node: lambda get: fitted(compute(get), node)}, told_about)


def _windows(node: Node) -> Iterator[Change]:
    rank, here = len(node["stride"]), about(node)
    padding, stride = node["padding"], node["stride"]
    tried = {"padding": {(0,) * rank, *(tuple(max(0, p + s) for p in padding) for s in (1, -1))},
             "stride": {(1,) * rank, (2,) * rank}, "dilation": {(1,) * rank},
             "output_padding": {(0,) * rank, (1,) * rank}}
    for which, options in tried.items():
        if which == "output_padding" and not node["transposed"]:
            continue
        for option in sorted(options - {node[which]}):
            yield from _both(which.replace("_", "-"),
                             f"with {which} {_short(option)} instead of {_short(node[which])} in "
                             f"{told(node)}", f"use {which} {_short(node[which])}", 0.8, node,
                             attribute(node, **{which: option}), {**here, which: list(option)})
    if not node["transposed"]:
        for axes in [tuple(range(rank)), *((a,) for a in range(rank) if rank > 1)]:
            for by in sorted({1, -1, *padding, *(-p for p in padding)} - {0}):
                yield Change("padding", f"with the window of {told(node)} {abs(by)} too far to the "
                             f"{'left' if by > 0 else 'right'} along ax{'is' if len(axes) == 1 else 'es'} "
                             f"{', '.join(str(a + 2) for a in axes)}", f"the first tap of output i reads input i * "
                             f"{_short(stride)} - {_short(padding)}", 1.0,
                             {node: lambda get, a=axes, s=by: _shifted(node, get, a, s)}, {**here, "shift": by})
        if any(padding):
            for mode in ("replicate", "reflect", "circular"):
                amounts = [p for pad in reversed(padding) for p in (pad, pad)]
                yield Change("padding-mode", f"with {mode} padding in place of zeros in {told(node)}", "pad with zeros",
                             1.0,
                             {node: lambda get, m=mode, n=amounts: recomputed(
                                 node, get, F.pad(get(node.inputs[0]), n, mode=m), *map(get, node.inputs[1:]),
                                 padding=(0,) * rank)}, here)


def _shifted(node: Node, get: Get, axes: tuple[int, ...], by: int) -> Any:
    """The convolution with its input moved by ``by`` positions along spatial axes."""
    amounts = [(p + by, p - by) if a in axes else (p, p) for a, p in enumerate(node["padding"])]
    flat = [part for pair in reversed(amounts) for part in pair]
    return recomputed(node, get, F.pad(get(node.inputs[0]), flat), *map(get, node.inputs[1:]),
                      padding=(0,) * len(amounts))


def _short(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(set(values)) == 1 else str(values)


def _groups(node: Node) -> Iterator[Change]:
    groups = node["groups"]
    if groups == 1:
        return
    channels = node.inputs[0].shape[1]
    each = channels // groups
    yield Change("groups", f"with every group of {told(node)} reading the first group's channels",
                 f"group g reads input channels from g * {each}", 0.8,
                 {node: on_input(node, 0, lambda v: v.narrow(1, 0, each).repeat(1, groups, *(1,) * (v.dim() - 2)))},
                 about(node))
    if each > 1:
        yield Change("groups", f"with the channels of {told(node)} dealt out to the groups in turn",
                     f"group g reads input channels g * {each} to g * {each} + {each - 1}", 1.5,
                     {node: on_input(node, 0, lambda v: v.unflatten(1, (each, groups)).transpose(1, 2).flatten(1, 2))},
                     about(node))
