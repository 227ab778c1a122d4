"""Hypotheses about normalisations: their statistics, one step of their formula, weight and bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
import torch.nn.functional as F

from kernelwright.ir.node import Node, make
from kernelwright.judge.diagnose.change import Change, attribute, on_input
from kernelwright.judge.diagnose.changes_pointwise import about, along, misread
from kernelwright.judge.diagnose.changes_reduction import TILES
from kernelwright.judge.diagnose.graph_values import Get, recomputed
from kernelwright.judge.diagnose.naming import told

_NORMS = ("batch_norm_training", "batch_norm_inference", "layer_norm", "rms_norm", "group_norm", "instance_norm")
#: Their statistics are of the last axes, and so are their weight and bias.
_OF_ROWS = ("layer_norm", "rms_norm")


def norms(node: Node) -> Iterator[Change]:
    """All changes of one normalisation."""
    if node.op not in _NORMS:
        return
    here = about(node)
    plain = 3 if node.op == "batch_norm_inference" else 1
    own, affine = node.inputs[:plain], node.inputs[plain:]
    if affine:
        if len(affine) > 1:
            yield Change("affine-ignored", f"without the weight and bias of {told(node)}",
                         "multiply by the weight and add the bias", 0.5,
                         {node: lambda get: recomputed(node, get, *map(get, own), affine=False)}, here)
        yield Change("missing-weight", f"without the weight of {told(node)}", "multiply by the weight", 0.6,
                     {node: on_input(node, plain, torch.ones_like)}, here)
        if len(affine) > 1:
            yield Change("missing-bias", f"without the bias of {told(node)}", "add the bias", 0.6,
                         {node: on_input(node, plain + 1, torch.zeros_like)}, here)
            yield Change("bias-subtracted", f"with the bias of {told(node)} subtracted", "add the bias", 1.2,
                         {node: on_input(node, plain + 1, torch.neg)}, here)
    if node.op == "batch_norm_inference":
        yield Change("batch-statistics", f"with the batch's own statistics in {told(node)}",
                     "in inference mode use the running statistics", 0.6,
                     {node: lambda get: F.batch_norm(get(own[0]), None, None, *_affine(get, affine), True, 0.0,
                                                     node["eps"])}, here)
        yield Change("missing-root", f"with the variance in place of its root in {told(node)}",
                     "divide by sqrt(variance + eps)", 1.2,
                     {node: on_input(node, 2, lambda v: (v + node["eps"]).square() - node["eps"])}, here)
        yield Change("mean-not-subtracted", f"without subtracting the mean in {told(node)}", "subtract the mean", 1.0,
                     {node: on_input(node, 1, torch.zeros_like)}, here)
        for index, word, neutral in ((1, "mean", torch.zeros_like), (2, "variance", torch.ones_like)):
            yield Change("statistics-ignored", f"with the initial {word} in place of the running one in {told(node)}",
                         f"read the running {word}", 1.0, {node: on_input(node, index, neutral)}, here)
        return
    if node.op == "batch_norm_training" and node["running"]:
        yield from _running(node, affine)
    yield from _changed(node, affine, _of_squares(node) if node.op == "rms_norm" else _formulas(node))
    yield from _misread(node, affine)
    if node.op == "group_norm":
        for groups in sorted({1, node["groups"] * 2, node["groups"] // 2, node.shape[1]} - {0, node["groups"]}):
            if node.shape[1] % groups == 0:
                yield Change("groups", f"with {groups} groups in {told(node)}", f"use {node['groups']} groups", 1.2,
                             {node: attribute(node, groups=groups)}, here)


def _affine(get: Get, affine: tuple[Node, ...]) -> tuple[Any, Any]:
    parts = [get(n) for n in affine]
    return parts[0] if parts else None, parts[1] if len(parts) > 1 else None


def _running(node: Node, affine: tuple[Node, ...]) -> Iterator[Change]:
    mean, variance = (make("buffer", name=n, shape=(node.shape[1],), dtype=node.dtype) for n in node["running"])
    yield Change("eval-for-training", f"with running statistics in place of the batch's in {told(node)}",
                 "in training mode use the batch's own mean and variance", 0.4,
                 {node: lambda get: F.batch_norm(get(node.inputs[0]), get(mean), get(variance), *_affine(get, affine),
                                                 False,
                                                 0.0, node["eps"])}, about(node))


def _statistics(node: Node) -> tuple[Callable[[Any], Any], tuple[int, ...], Callable[[Any], Any]]:
    """(a view with the statistics' axes apart, these axes, the view's inverse)."""
    shape = node.shape
    if node.op in _OF_ROWS:
        return (lambda x: x), tuple(range(len(shape) - node["axes"], len(shape))), (lambda x: x)
    if node.op == "batch_norm_training":
        return (lambda x: x), (0, *range(2, len(shape))), (lambda x: x)
    if node.op == "instance_norm":
        return (lambda x: x), tuple(range(2, len(shape))), (lambda x: x)
    groups = node["groups"]
    grouped = (shape[0], groups, shape[1] // groups, *shape[2:])
    return (lambda x: x.reshape(grouped)), tuple(range(2, len(grouped))), (lambda x: x.reshape(shape))


#: Kind, words, what would mend it, how likely it is, and the norm before its weight.
_Formula = tuple[str, str, str, float, Callable[[Any], Any]]


def _changed(node: Node, affine: tuple[Node, ...], formulas: list[_Formula]) -> Iterator[Change]:
    """The normalisation by other formulas, its weight and bias as they are."""
    apart, _, back = _statistics(node)
    for kind, words, fix, prior, function in formulas:
        def compute(get: Get, function: Callable[[Any], Any] = function) -> Any:
            result = back(function(apart(get(node.inputs[0]))))
            weight, bias = (None if p is None else _along(node, p) for p in _affine(get, affine))
            result = result if weight is None else result * weight
            return result if bias is None else result + bias

        yield Change(kind, words.format(told(node)), fix, prior, {node: compute}, about(node))


def _of_squares(node: Node) -> list[_Formula]:
    """A norm by the mean square with one step of its formula changed."""
    _, axes, _ = _statistics(node)
    eps, axis, size = node["eps"], axes[-1], node.shape[-1]
    whole = f"divide the sum of squares by N, for all {prod(node.shape[a] for a in axes)} positions"

    def mean(v: Any) -> Any:
        return v.square().mean(axes, keepdim=True)

    found: list[_Formula] = [
        ("mean-subtracted", "with the mean subtracted first in {}", "divide by the root of the mean square alone", 0.9,
         lambda v: (v - v.mean(axes, keepdim=True)) * torch.rsqrt(v.var(axes, correction=0, keepdim=True) + eps)),
        ("mean-subtracted", "with the deviation in place of the root of the mean square in {}",
         "divide by the root of the mean square", 1.0,
         lambda v: v * torch.rsqrt(v.var(axes, correction=0, keepdim=True) + eps)),
        ("eps", "without eps in {}", "add eps to the mean square", 1.0, lambda v: v * torch.rsqrt(mean(v))),
        ("eps", "with eps added to the root instead of the mean square in {}", "eps belongs inside the root", 0.9,
         lambda v: v / (mean(v).sqrt() + eps)),
        ("missing-root", "with the mean square in place of its root in {}", "divide by sqrt(mean square + eps)", 1.2,
         lambda v: v / (mean(v) + eps)),
        ("variance-ignored", "without dividing by the root of the mean square in {}",
         "divide by sqrt(mean square + eps)", 1.2, lambda v: v),
        ("sum-for-mean", "with the sum in place of the mean of squares in {}", whole, 0.9,
         lambda v: v * torch.rsqrt(v.square().sum(axes, keepdim=True) + eps)),
        ("wrong-summand", "with the mean of absolute values in place of the root of the mean square in {}",
         "take the root of the mean square", 1.5, lambda v: v / (v.abs().mean(axes, keepdim=True) + eps)),
        ("wrong-index", "with the mean square of the entry before in {}", "use each entry's own mean square", 2.2,
         lambda v: v * torch.rsqrt(mean(v).roll(1, 0) + eps)),
        ("not-reset", "with the squares of {} carried from one entry into the next", "set the sums to 0 for every one",
         1.5, lambda v: v * torch.rsqrt(mean(v).flatten().cumsum(0).view(mean(v).shape) + eps)),
    ]
    for limit, words in _limits(size).items():
        for by, mean_words in ((1.0, "mean"), (limit / size, "sum for the mean")):
            found.append(("reduction-cut", f"with the {mean_words} of squares in {{}} leaving out {words}", whole, 1.4,
                          lambda v, n=limit, by=by: v * torch.rsqrt(mean(v.narrow(axis, 0, n)) * by + eps)))
    for some in [(a,) for a in range(node.rank)] + [tuple(range(1, node.rank)), tuple(range(node.rank))]:
        if some and some != axes:
            found.append(("wrong-axis", f"with the mean square of {{}} over axes {', '.join(map(str, some))}",
                          f"take it over {', '.join(map(str, axes))}", 1.3,
                          lambda v, s=some: v * torch.rsqrt(v.square().mean(s, keepdim=True) + eps)))
    return found


def _formulas(node: Node) -> list[_Formula]:
    """A normalisation by mean and variance with one step of its formula changed."""
    _, axes, _ = _statistics(node)
    eps = node["eps"]

    def mean(v: Any) -> Any:
        return v.mean(axes, keepdim=True)

    def variance(v: Any) -> Any:
        return v.var(axes, correction=0, keepdim=True)

    def around(v: Any, m: Any) -> Any:
        return (v - m) * torch.rsqrt(mean((v - m).square()) + eps)

    formulas: list[_Formula] = [
        ("biased-variance", "with the unbiased variance (N - 1) in {}", "divide by N", 0.7,
         lambda v: (v - mean(v)) * torch.rsqrt(v.var(axes, correction=1, keepdim=True) + eps)),
        ("mean-not-subtracted", "without subtracting the mean in {}", "subtract the mean", 1.0,
         lambda v: v * torch.rsqrt(variance(v) + eps)),
        ("mean-not-subtracted", "with the mean of squares in place of the variance in {}", "subtract the mean", 1.0,
         lambda v: v * torch.rsqrt(mean(v.square()) + eps)),
        ("mean-not-subtracted", "with the mean of squares in place of the variance (the mean itself subtracted) in {}",
         "subtract the mean before squaring", 1.2, lambda v: (v - mean(v)) * torch.rsqrt(mean(v.square()) + eps)),
        ("sign", "with the mean added instead of subtracted in {}", "subtract the mean", 1.2,
         lambda v: (v + mean(v)) * torch.rsqrt(variance(v) + eps)),
        ("eps", "without eps in {}", "add eps to the variance", 1.0,
         lambda v: (v - mean(v)) * torch.rsqrt(variance(v))),
        ("variance-ignored", "without dividing by the deviation in {}", "divide by sqrt(variance + eps)", 1.2,
         lambda v: v - mean(v)),
        ("missing-root", "with the variance in place of its root in {}", "divide by sqrt(variance + eps)", 1.2,
         lambda v: (v - mean(v)) / (variance(v) + eps)),
        ("eps", "with eps added to the deviation instead of the variance in {}", "eps belongs inside the root", 0.9,
         lambda v: (v - mean(v)) / (variance(v).sqrt() + eps)),
        ("wrong-index", "with the mean of the entry before in {}", "use each entry's own mean", 2.2,
         lambda v: around(v, mean(v).roll(1, 0))),
        ("not-reset", "with the squares of {} carried from one entry into the next", "set the sums to 0 for every one",
         1.5,
         lambda v: (v - mean(v)) * torch.rsqrt(variance(v).flatten().cumsum(0).view(variance(v).shape) + eps)),
        ("one-pass-variance", "with the variance as mean of squares minus square of mean in {}",
         "subtract the mean before squaring (two passes, or Welford's update)", 2.0,
         lambda v: (v - mean(v)) * torch.rsqrt(mean(v.square()) - mean(v).square() + eps)),
    ]
    formulas += _cuts(node, axes, around, mean, variance)
    formulas.append(("sum-for-mean", "with the sum in place of the mean in {}", "divide the sum by N", 1.2,
                     lambda v: (v - v.sum(axes, keepdim=True)) * torch.rsqrt(variance(v) + eps)))
    for by in (1, -1):
        def scaled(v: Any, by: int = by) -> float:
            count = prod(v.shape[a] for a in axes)
            return count / (count + by)

        fix = "divide by N, the number of positions"
        formulas += [("wrong-divisor", f"with the mean of {{}} divided by N {by:+d}", fix, 1.6,
                      lambda v, s=scaled: around(v, mean(v) * s(v))),
                     ("wrong-divisor", f"with the mean of {{}} divided by N {by:+d} (the variance is right)", fix, 1.6,
                      lambda v, s=scaled: (v - mean(v) * s(v)) * torch.rsqrt(variance(v) + eps)),
                     ("wrong-divisor", f"with the variance of {{}} divided by N {by:+d}", fix, 1.6,
                      lambda v, s=scaled: (v - mean(v)) * torch.rsqrt(variance(v) * s(v) + eps))]
    for other in (a for a in range(node.rank) if (a,) != axes and node.op != "group_norm"):
        formulas.append(("wrong-axis", f"with the statistics of {{}} over axis {other}", "take the statistics over "
                         f"{', '.join(map(str, axes))}", 1.3,
                         lambda v, a=other: (v - v.mean(a, keepdim=True)) * torch.rsqrt(
                             v.var(a, correction=0, keepdim=True) + eps)))
        formulas += [
            ("wrong-axis", f"with the mean of {{}} over axis {other} (the variance is right)", "take the mean over "
             f"{', '.join(map(str, axes))}", 1.6,
             lambda v, a=other: (v - v.mean(a, keepdim=True)) * torch.rsqrt(variance(v) + eps)),
            ("wrong-axis", f"with the variance of {{}} over axis {other} (the mean is right)", "take the variance over "
             f"{', '.join(map(str, axes))}", 1.6,
             lambda v, a=other: (v - mean(v)) * torch.rsqrt(v.var(a, correction=0, keepdim=True) + eps))]
    for some in ((0, *axes), tuple(axes[:-1]), tuple(range(1, node.rank)), tuple(range(node.rank))):
        if some and some != axes and len(set(some)) == len(some) and node.op != "group_norm":
            formulas.append(("wrong-axis", f"with the statistics of {{}} over axes {', '.join(map(str, some))}",
                             f"take the statistics over {', '.join(map(str, axes))}", 1.3,
                             lambda v, s=some: (v - v.mean(s, keepdim=True)) * torch.rsqrt(
                                 v.var(s, correction=0, keepdim=True) + eps)))
    return formulas


def _limits(size: int) -> dict[int, str]:
    """Where a sum over so many positions may end too early, with the words for what it leaves out."""
    limits = {size - 1: "the last position", size // 2: "the second half"}
    limits |= {size // t * t: f"what is left after full tiles of {t}" for t in TILES if size % t > 1}
    return {limit: words for limit, words in limits.items() if 0 < limit < size}


def _cuts(node: Node, axes: tuple[int, ...], around: Callable[[Any, Any], Any], mean: Callable[[Any], Any],
          variance: Callable[[Any], Any]) -> list[_Formula]:
    """Statistics of a part of the positions: the mean alone, or both; divided by the count of the part or of all."""
    axis, eps = axes[-1], node["eps"]
    size = node.shape[-1] if node.op != "group_norm" or node.rank > 2 else node.shape[1] // node["groups"]
    found: list[_Formula] = []
    for limit, words in _limits(size).items():
        def only_mean(v: Any, n: int = limit, by: float = 1.0) -> Any:
            return around(v, mean(v.narrow(axis, 0, n)) * by)

        def both(v: Any, n: int = limit) -> Any:
            part = v.narrow(axis, 0, n)
            return (v - mean(part)) * torch.rsqrt(variance(part) + eps)

        def squares(v: Any, n: int = limit) -> Any:
            part = (v - mean(v)).narrow(axis, 0, n)
            return (v - mean(v)) * torch.rsqrt(mean(part.square()) * (n / size) + eps)

        fix = f"sum over all {size} positions"
        found += [("reduction-cut", f"with the mean of {{}} leaving out {words}", fix, 1.4, only_mean),
                  ("reduction-cut", f"with the sum for the mean of {{}} leaving out {words}", fix, 1.4,
                   lambda v, f=only_mean, b=limit / size: f(v, by=b)),
                  ("reduction-cut", f"with the statistics of {{}} leaving out {words}", fix, 1.4, both),
                  ("reduction-cut", f"with the sum for the variance of {{}} leaving out {words}", fix, 1.4, squares)]
    outer = axes[0]
    length = node.shape[outer] if node.op != "group_norm" else 0
    for words, start, stop in (("its last part along axis {} alone", length - 1, length),
                               ("all but its last part along axis {}", 0, length - 1)):
        if length < 2:
            continue

        def sum_of(v: Any, begin: int = start, end: int = stop) -> Any:
            return mean(v.narrow(outer, begin, end - begin)) * ((end - begin) / length)

        told_words, fix = words.format(outer), "add what each part gives to the sum of those before it"
        found += [("reduction-cut", f"with the sum for the mean of {{}} over {told_words}", fix, 1.7,
                   lambda v, s=sum_of: around(v, s(v))),
                  ("reduction-cut", f"with the sum for the variance of {{}} over {told_words}", fix, 1.7,
                   lambda v, s=sum_of: (v - mean(v)) * torch.rsqrt(s((v - mean(v)).square()) + eps))]
    return found


def _misread(node: Node, affine: tuple[Node, ...]) -> Iterator[Change]:
    """The weight or the bias read at another index."""
    if node.op in _OF_ROWS and node["axes"] > 1:
        return
    own = node.rank - 1 if node.op in _OF_ROWS else 1
    for position, leaf in enumerate(affine):
        kind = ("weight", "bias")[position]
        for number, (words, _) in enumerate(misread(torch.zeros(leaf.size), own, node.shape)):
            def compute(get: Get, position: int = position, n: int = number) -> Any:
                parts = [along(get(p), own, node.rank) for p in affine]
                parts[position] = list(misread(get(affine[position]), own, node.shape))[n][1]
                result = recomputed(node, get, get(node.inputs[0]), affine=False) * parts[0]
                return result + parts[1] if len(parts) > 1 else result

            yield Change(f"{kind}-wrong-axis" if words.startswith("by axis") else f"{kind}-index",
                         f"with the {kind} of {told(node)} read {words}", f"index the {kind} by axis {own}", 1.5,
                         {node: compute}, {**about(node), "parameter": leaf.get("name")})


def _along(node: Node, vector: torch.Tensor) -> torch.Tensor:
    return vector if node.op in _OF_ROWS else vector.reshape(-1, *(1,) * (node.rank - 2))


def roots(node: Node) -> Iterator[Change]:
    """All changes of a square root: left out; its guard against zero added to it instead of to what is under it."""
    if node.op not in ("sqrt", "rsqrt"):
        return
    inside = node.inputs[0]
    if node.op == "rsqrt":
        yield Change("missing-root", f"with the reciprocal in place of {told(node)}", "take the root, too", 1.0,
                     {node: lambda get: get(inside).reciprocal()}, about(node))
    if inside.op != "add":
        return
    index = next((i for i, n in enumerate(inside.inputs) if n.op == "constant" and 0 < n["value"] < 0.1), None)
    if index is None:
        return
    guard, power = inside.inputs[index]["value"], 1 if node.op == "sqrt" else -1
    yield Change("eps", f"with {guard:.6g} added to the root instead of to what is under it in {told(node)}",
                 f"add {guard:.6g} first, then take the root", 1.2,
                 {node: lambda get: (get(inside.inputs[1 - index]).sqrt() + guard) ** power}, about(node))
