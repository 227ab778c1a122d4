"""Hypotheses about reductions: another axis, another one, a part left out or counted twice, another start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

import torch

from kernelwright.algebra.build import MOMENTS
from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.change import Change, after, applied, attribute, on_input
from kernelwright.judge.diagnose.changes_pointwise import about
from kernelwright.judge.diagnose.graph_values import Get, recomputed
from kernelwright.judge.diagnose.naming import name, told

#: Tiles whose remainder may be left out of a reduction.
TILES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SWAPS = ("sum", "mean", "amax", "amin")
_LIKE = {"sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin, "logsumexp": torch.logsumexp}


def reductions(node: Node) -> Iterator[Change]:
    """All changes of one reduction."""
    if node.kind != "reduction":
        return
    x, axes, keep = node.inputs[0], node["axes"], node["keepdim"]
    here = about(node)
    if node.op in _LIKE:
        for other in _LIKE:
            if other != node.op:
                kind = {("mean", "sum"): "sum-for-mean", ("sum", "mean"): "mean-for-sum"}.get((node.op, other),
                                                                                             "wrong-reduction")
                yield Change(kind, f"with the {_word(other)} in place of {told(node)}", f"take the {name(node)}",
                             0.6 if kind != "wrong-reduction" else 2.0 + (other not in _SWAPS),
                             {node: applied(node, lambda v, f=_LIKE[other]: f(v, axes, keepdim=keep))}, here)
    yield from other_axes(node)
    yield from cut(node, x, axes, lambda part: on_input(node, 0, part))
    if node.op == "mean":
        for change in cut(node, x, axes, lambda part: (lambda get: _over_all(node, get, part, axes)), 1.1):
            yield replace(change, words=f"{change.words}, divided by the count of all")
        count = prod(x.shape[a] for a in axes)
        for wrong in dict.fromkeys((count - 1, count + 1, *x.shape, prod(x.shape))):
            if wrong > 0 and wrong != count:
                yield Change("wrong-divisor", f"with {told(node)} divided by {wrong} instead of {count}",
                             f"divide by {count}", 1.5,
                             {node: after(node, lambda v, f=count / wrong: v * f)}, {**here, "divisor": wrong})
    if node.op in MOMENTS:
        root: Callable[[Any], Any] = torch.sqrt if node.op == "std" else torch.Tensor.clone
        count = prod(x.shape[a] for a in axes) - node["correction"]
        squares: Callable[[Get], Any] = lambda get: (get(x) - get(x).mean(axes, keepdim=True)).square()  # noqa: E731
        for change in cut(node, x, axes, lambda part: (
                lambda get: root(part(squares(get)).sum(axes, keepdim=keep) / count)), 1.2, summed=True):
            yield replace(change, words=f"{change.words}, of the squares alone")
        yield Change("biased-variance", f"with the other divisor (N - 1 for N, or N for N - 1) in {told(node)}",
                     "divide by N - 1" if node["correction"] else "divide by N (unbiased=False)", 0.5,
                     {node: attribute(node, correction=1 - node["correction"])}, here)
        yield Change("mean-not-subtracted", f"with the mean of squares in place of {told(node)}", "subtract the mean",
                     1.0,
                     {node: applied(node, lambda v: root(v.square().mean(axes, keepdim=keep)))}, here)
        yield Change("one-pass-variance", f"with {told(node)} as mean of squares minus square of mean",
                     "subtract the mean before squaring (two passes, or Welford's update)", 2.0,
                     {node: applied(node, lambda v: root(v.square().mean(axes, keepdim=keep)
                                                         - v.mean(axes, keepdim=keep).square()))}, here)
    if node.op in ("amax", "amin"):
        bound = "clamp_min" if node.op == "amax" else "clamp_max"
        yield Change("extremum-start", f"with {told(node)} starting at 0",
                     "start at -infinity" if node.op == "amax" else
                     "start at +infinity", 0.8, {node: after(node, lambda v: getattr(v, bound)(0.0))}, here)
        yield Change("absolute", f"with {told(node)} of absolute values", "compare the values themselves", 2.0,
                     {node: on_input(node, 0, torch.abs)}, here)
        yield Change("nan-swallowed", f"with NaN left out of {told(node)}", "NaN must win: x > m || isnan(x)", 1.0,
                     {node: on_input(node, 0, lambda v: v.nan_to_num(
                         -torch.inf if node.op == "amax" else torch.inf, torch.inf, -torch.inf))}, here)
    if node.op == "logsumexp":
        yield from _logsumexp(node, axes, keep)
    if node.op in ("argmax", "argmin"):
        yield from _places(node, axes[0], keep)
    if node.op in ("sum", "mean"):
        yield from _summed(node, x, axes)
    if node.op == "sum":
        yield Change("sum-start", f"with {told(node)} starting at 1", "start at 0", 3.0,
                     {node: after(node, lambda v: v + 1)},
                     here)


def _over_all(node: Node, get: Get, part: Callable[[Any], Any], axes: tuple[int, ...]) -> Any:
    """The mean of a part, as it is where the sum of the part is divided by the count of all."""
    whole = get(node.inputs[0])
    kept = part(whole)
    return recomputed(node, get, kept) * prod(kept.shape[a] / whole.shape[a] for a in axes)


def _summed(node: Node, x: Node, axes: tuple[int, ...]) -> Iterator[Change]:
    """Sums of something else, with an element twice, or carried from one result into the next."""
    here = about(node)
    for words, function in (("absolute values", torch.abs), ("squares", torch.square), ("positive parts", torch.relu),
                            ("whole parts", torch.trunc)):
        yield Change("wrong-summand", f"with {words} summed in {told(node)}", "sum the values themselves", 2.0,
                     {node: on_input(node, 0, function)}, here)
    for axis in axes:
        last = x.shape[axis] - 1
        for words, place in (("last", last), ("first", 0)):
            yield Change("counted-twice", f"with the {words} position of axis {axis} counted twice in {told(node)}",
                         f"visit each of the {last + 1} positions once: look at where tail and full tiles meet", 1.3,
                         {node: lambda get, a=axis, p=place: recomputed(node, get) + recomputed(
                             node, get, get(x).narrow(a, p, 1)) / (1 if node.op == "sum" else x.shape[a])},
                         {**here, "axis": axis})
    if node.size > 1:
        yield Change("not-reset", f"with {told(node)} carried from one result into the next",
                     "set the sum to 0 for every result", 1.3,
                     {node: after(node, lambda v: v.flatten().cumsum(0).view(v.shape))}, here)


def _word(op: str) -> str:
    return {"amax": "maximum", "amin": "minimum", "logsumexp": "log-sum-exp"}.get(op, op)


def other_axes(node: Node) -> Iterator[Change]:
    axes, rank = node["axes"], node.inputs[0].rank
    for count in dict.fromkeys((len(axes), len(axes) - 1, len(axes) + 1)):
        for other in combinations(range(rank), count) if count > 0 else ():
            if other == axes or (node.op.startswith("arg") and len(other) > 1):
                continue
            words = f"with {told(node)} over ax{'is' if count == 1 else 'es'} {', '.join(map(str, other))} instead"

            def compute(get: Get, other: tuple[int, ...] = other) -> Any:
                result = recomputed(node, get, axes=other)
                if result.shape == node.shape:
                    return result
                # The same numbers in the shape that the rest expects, where there are as many.
                return result.reshape(node.shape) if result.numel() == node.size else result

            yield Change("wrong-axis", words, f"reduce over {', '.join(map(str, axes))}",
                         1.0 if count == len(axes) else 2.2, {node: compute}, {**about(node), "axes": list(other)})
    yield Change("keepdim", f"with keepdim={not node['keepdim']} in {told(node)}", f"keepdim={node['keepdim']}", 2.0,
                 {node: attribute(node, keepdim=not node["keepdim"])}, about(node))


def cut(node: Node, x: Node, axes: tuple[int, ...], changed: Callable[[Callable[[Any], Any]], Any], prior: float = 1.0,
        summed: bool = False) -> Iterator[Change]:
    """A contraction over axes of ``x`` that misses the first or last positions, or all behind the last full tile;
    ``changed`` makes the computation from a function of x. ``summed``: what is left out may as well be zero."""
    for axis in axes:
        size = x.shape[axis]
        where = f"axis {axis} of {told(node)}"
        starts = {0: size - 1} if size > 1 else {}
        parts = [("the last position", 0, size - 1), ("the first position", 1, size - 1)] if starts else []
        parts += [(f"what is left after full tiles of {tile}", 0, size // tile * tile) for tile in TILES
                  if tile < size and size % tile not in (0, 1)]
        parts += [("its second half", 0, size // 2), ("its first half", size // 2,
                                                      size - size // 2)] if size > 3 else []
        parts += [(f"all but the first {lanes}", 0, lanes) for lanes in (32, 64, 128, 256, 512, 1024) if lanes < size
                  and lanes not in (size - 1, size // 2)]
        parts += [("all but the last position", size - 1, 1)] if size > 2 and node.op not in MOMENTS else []
        parts += [(f"all but the last tile of {tile}", (size - 1) // tile * tile, size - (size - 1) // tile * tile)
                  for tile in TILES if tile < size and size % tile != 1]
        for words, start, length in parts:
            yield Change("reduction-cut", f"with {where} leaving out {words}",
                         f"run the loop over all {size} positions: look at its bounds, and at the tail of the tiles",
                         prior, {node: changed(lambda v, a=axis, s=start, n=length: v.narrow(a, s, n))},
                         {**about(node), "axis": axis, "kept": [start, start + length], "size": size})
        for step in (2, 4):
            if size >= 2 * step:
                yield Change("reduction-cut",
                             f"with {where} taking only every {step}{'nd' if step == 2 else 'th'} position",
                             f"visit all {size} positions", prior + 1.0,
                             {node: changed(lambda v, a=axis, s=step: v[(slice(None),) * a + (slice(0, None, s),)])},
                             {**about(node), "axis": axis, "step": step, "size": size})
        for tile in (t for t in TILES if 2 * t <= size):
            kept = [p for p in range(size) if p // tile % 2 == 0]
            yield Change("reduction-cut", f"with {where} leaving out every second tile of {tile}",
                         f"visit all {size} positions", prior + 1.0,
                         {node: changed(lambda v, a=axis, k=kept: v.index_select(a, torch.tensor(k, device=v.device)))},
                         {**about(node), "axis": axis, "tile": tile, "size": size})
    if len(axes) > 1:
        yield from _cut_flat(node, x, axes, changed, prior) if summed or node.op in ("sum", "mean") else ()


def _cut_flat(node: Node, x: Node, axes: tuple[int, ...], changed: Callable[[Callable[[Any], Any]], Any], prior: float
              ) -> Iterator[Change]:
    """Several reduced axes as one, of sums: zeros in place of the last elements."""
    count = prod(x.shape[a] for a in axes)

    def kept(v: torch.Tensor, limit: int, first: int = 0, tile: int | None = None) -> torch.Tensor:
        shape = [v.shape[a] if a in axes else 1 for a in range(v.dim())]
        place = torch.arange(count, device=v.device)
        inside = (place >= first) & (place < limit)
        return v * (inside if tile is None else place // tile % 2 == 0).reshape(shape)

    for tile in (1, *TILES):
        limit = count - 1 if tile == 1 else count // tile * tile
        if 0 < limit < count and (tile == 1 or limit != count - 1):
            words = "the last element" if tile == 1 else f"what is left after full tiles of {tile} elements"
            yield Change("reduction-cut", f"with {told(node)} leaving out {words}",
                         f"run the loop over all {count} elements", prior + 0.5,
                         {node: changed(lambda v, n=limit: kept(v, n))},
                         {**about(node), "size": count, "kept": [0, limit]})
        if 1 < tile <= count // 2:
            yield Change("reduction-cut", f"with {told(node)} leaving out every second tile of {tile} elements",
                         f"visit all {count} elements", prior + 0.9,
                         {node: changed(lambda v, t=tile: kept(v, count, tile=t))},
                         {**about(node), "size": count, "tile": tile})
        last = (count - 1) // tile * tile
        if last > 0:
            yield Change("reduction-cut", f"with {told(node)} keeping its last tile of {count - last} elements alone",
                         "add each tile to what the tiles before it gave", prior + 0.8,
                         {node: changed(lambda v, f=last: kept(v, count, f))},
                         {**about(node), "size": count, "kept": [last, count]})


def _logsumexp(node: Node, axes: tuple[int, ...], keep: bool) -> Iterator[Change]:
    here = about(node)
    formulas: list[tuple[str, str, str, float, Callable[[Any], Any]]] = [
        ("max-not-subtracted", "without subtracting the maximum in {}", "subtract the maximum before exp, add it back "
         "after the logarithm", 0.5, lambda v: v.exp().sum(axes, keepdim=keep).log()),
        ("max-not-added", "without adding the maximum back in {}", "add the maximum after the logarithm", 0.8,
         lambda v: torch.logsumexp(v, axes, keepdim=keep) - v.amax(axes, keepdim=keep)),
        ("missing-log", "without the logarithm in {}", "take the logarithm of the sum", 1.0,
         lambda v: torch.logsumexp(v, axes, keepdim=keep).exp()),
        ("sum-start", "with the sum of {} starting at 1", "start at 0", 1.5,
         lambda v: torch.logsumexp(torch.cat((v, torch.zeros_like(v.narrow(axes[0], 0, 1))), axes[0]), axes,
                                   keepdim=keep)),
        ("logarithm-base", "with the logarithm to base 2 in {}", "take the natural logarithm", 1.5,
         lambda v: (v - v.amax(axes, keepdim=True)).exp().sum(axes, keepdim=keep).log2() + v.amax(axes, keepdim=keep)),
        ("wrong-divisor", "with the mean in place of the sum in {}", "take the sum of the exponentials", 1.5,
         lambda v: (v - v.amax(axes, keepdim=True)).exp().mean(axes, keepdim=keep).log() + v.amax(axes, keepdim=keep)),
    ]
    for kind, words, fix, prior, function in formulas:
        yield Change(kind, words.format(told(node)), fix, prior, {node: applied(node, function)}, here)


def _places(node: Node, axis: int, keep: bool) -> Iterator[Change]:
    function = torch.argmax if node.op == "argmax" else torch.argmin
    other = torch.argmin if node.op == "argmax" else torch.argmax
    here = about(node)
    yield Change("ties", f"with the last instead of the first place in {told(node)}", "among equal values take the "
                 "smallest index", 0.8, {node: applied(node, lambda v: v.shape[axis] - 1 - function(v.flip(axis), axis,
                                                                                                    keep))},
                 here)
    yield Change("other-extremum", f"with the other extremum in {told(node)}", "compare the other way", 1.0,
                 {node: applied(node, lambda v: other(v, axis, keep))}, here)
    yield Change("absolute", f"with absolute values in {told(node)}", "compare the values themselves", 2.0,
                 {node: on_input(node, 0, torch.abs)}, here)
