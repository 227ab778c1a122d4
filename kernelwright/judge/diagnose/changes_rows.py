"""Hypotheses about softmax-like rows, scans, losses and norms of vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernelwright.ir.node import Node
from kernelwright.judge.diagnose.change import Change, after, applied, attribute, on_input
from kernelwright.judge.diagnose.changes_pointwise import about
from kernelwright.judge.diagnose.changes_reduction import TILES, cut, other_axes
from kernelwright.judge.diagnose.graph_values import recomputed
from kernelwright.judge.diagnose.naming import told

#: Scans that are taken for one another.
_OTHER: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "cummax": ("minimum", lambda v, axis: torch.cummin(v, axis).values),
    "cummin": ("maximum", lambda v, axis: torch.cummax(v, axis).values),
    "cumsum": ("product", torch.cumprod), "cumprod": ("sum", torch.cumsum)}


def rows(node: Node) -> Iterator[Change]:
    """Softmax, log-softmax and scans."""
    if node.kind != "row":
        return
    x, axis, here = node.inputs[0], node["axis"], about(node)
    for other in range(x.rank):
        if other != axis:
            yield Change("wrong-axis", f"with {told(node)} over axis {other} instead", f"work along axis {axis}", 0.8,
                         {node: attribute(node, axis=other)}, {**here, "axes": [other]})
    if node.op in ("softmax", "log_softmax"):
        yield from _softmax(node, axis)
        return
    if node.op in _OTHER and not node.get("reverse") and not node.get("exclusive"):
        word, other = _OTHER[node.op]
        yield Change("other-extremum" if node.op in ("cummax", "cummin") else "wrong-reduction",
                     f"with the cumulative {word} in place of {told(node)}", "accumulate as the model does", 1.0,
                     {node: applied(node, lambda v: other(v, axis))}, here)
    if node.op.startswith(("cum", "logcum")):
        for name_, kind in (("reverse", "reversed"), ("exclusive", "exclusive-scan")):
            how = "from the other end" if name_ == "reverse" else "without the own element"
            yield Change(kind, f"without {name_} in {told(node)}" if node.get(name_) else f"with {told(node)} {how}",
                         "scan from the first to the last position, the own element included", 0.8,
                         {node: attribute(node, **{name_: not node.get(name_, False)})}, here)
        for block in (8, 16, 32, 64, 128, 256, 512, 1024, 2048):
            if block < x.shape[axis]:
                yield Change("scan-not-carried", f"with {told(node)} beginning anew every {block} positions",
                             f"carry the total of each block of {block} into the next", 1.0,
                             {node: lambda get, b=block: torch.cat(
                                 [recomputed(node, get, part) for part in get(x).split(b, axis)], axis)},
                             {**here, "block": block})


def _softmax(node: Node, axis: int) -> Iterator[Change]:
    log = node.op == "log_softmax"
    end = torch.log if log else (lambda v: v)
    shifted: Callable[[Any], Any] = lambda v: v - v.amax(axis, keepdim=True)  # noqa: E731
    formulas: list[tuple[str, str, str, float, Callable[[Any], Any]]] = [
        ("max-not-subtracted", "without subtracting the maximum in {}", "subtract the row's maximum before exp", 0.5,
         lambda v: end(v.exp() / v.exp().sum(axis, keepdim=True))),
        ("not-normalised", "without the division by the sum in {}", "divide by the row's sum", 0.8,
         lambda v: end(shifted(v).exp())),
        ("not-normalised", "without the division by the sum and without the maximum in {}", "divide by the row's sum",
         1.0,
         lambda v: end(v.exp())),
        ("missing-log" if log else "log-too-many",
         "without the logarithm in {}" if log else "with a logarithm after {}",
         "take the logarithm" if log else "leave the logarithm out", 1.0,
         (lambda v: v.softmax(axis)) if log else (lambda v: v.log_softmax(axis))),
        ("logarithm-base", "with powers of 2 in place of e in {}", "use exp", 1.5,
         lambda v: end(torch.softmax(v * 0.6931471805599453, axis))),
        ("wrong-axis", "with {} over everything", f"work along axis {axis}", 1.5,
         lambda v: end(torch.softmax(v.flatten(), 0).view(v.shape))),
        ("max-not-subtracted", "with the maximum of everything, not of the row, subtracted in {}",
         "subtract the row's own maximum", 1.5,
         lambda v: end((v - v.amax()).exp() / (v - v.amax()).exp().sum(axis, keepdim=True))),
        ("sum-start", "with the sum in {} starting at 1", "start at 0", 1.8,
         lambda v: end(shifted(v).exp() / (1 + shifted(v).exp().sum(axis, keepdim=True)))),
        ("sign", "with the sign of the argument of {} reversed", "correct the sign", 2.5,
         lambda v: end((-v).softmax(axis))),
    ]
    formulas += [("wrong-axis", f"with the sum of {{}} over axis {other}", f"sum over axis {axis}", 1.4,
                  lambda v, a=other: end(shifted(v).exp() / shifted(v).exp().sum(a, keepdim=True)))
                 for other in range(node.rank) if other != axis]
    formulas += [("wrong-axis", f"with the maximum of {{}} over axis {other} subtracted", f"subtract the maximum over "
                  f"axis {axis}", 1.4, lambda v, a=other: end(torch.softmax(v - v.amax(a, keepdim=True), axis)))
                 for other in range(node.rank) if other != axis]
    if log:
        formulas.append(("mean-for-sum", "with the mean in place of the sum in {}", "take the sum of the exponentials",
                         1.2, lambda v: v.log_softmax(axis) + math.log(v.shape[axis])))
    for kind, words, fix, prior, function in formulas:
        yield Change(kind, words.format(told(node)), fix, prior, {node: applied(node, function)}, about(node))
    size = node.shape[axis]
    yield Change("not-reset", f"with the sum of {told(node)} carried from one row into the next",
                 "set the sum to 0 for every row", 1.3, {node: applied(node,
                                                                       lambda v: end(_carried(shifted(v).exp(),
                                                                                              axis)))},
                 about(node))
    for tile in (t for t in TILES if t < size):
        def last_tile(v: torch.Tensor, first: int = (size - 1) // tile * tile) -> torch.Tensor:
            e = shifted(v).exp()
            return end(e / e.narrow(axis, first, size - first).sum(axis, keepdim=True))

        yield Change("reduction-cut", f"with the sum of {told(node)} over its last tile of "
                     f"{size - (size - 1) // tile * tile} alone", "add what each tile gives to the sum of those before "
                     "it", 1.4, {node: applied(node, last_tile)}, {**about(node), "size": size, "tile": tile})
    for words, limit in (("the last position", size - 1), ("its second half", size // 2),
                         *((f"all but the first {n}", n) for n in (32, 64, 128, 256, 512, 1024)),
                         *((f"what is left after full tiles of {t}", size // t * t) for t in TILES if size % t > 1)):
        if 0 < limit < size:
            def partial(v: torch.Tensor, n: int = limit) -> torch.Tensor:
                e = shifted(v).exp()
                return end(e / e.narrow(axis, 0, n).sum(axis, keepdim=True))

            yield Change("reduction-cut", f"with the sum of {told(node)} leaving out {words}",
                         f"sum over all {size} positions", 1.2, {node: applied(node, partial)},
                         {**about(node), "size": size, "kept": [0, limit]})


def _carried(exponentials: torch.Tensor, axis: int) -> torch.Tensor:
    """Divided by running sums over the rows instead of by each row's own."""
    sums = exponentials.sum(axis, keepdim=True)
    return exponentials / sums.flatten().cumsum(0).view(sums.shape)


def _formulas(node: Node) -> Iterator[Change]:
    """Losses with one step of their formula changed: for each element, from its operands."""
    if len(node.inputs) != 2 or node.inputs[0].shape != node.inputs[1].shape:
        return
    formulas: dict[str, Callable[[Any, Any], Any]] = {}
    if node.op in ("smooth_l1_loss", "huber_loss"):
        width = node["beta" if node.op == "smooth_l1_loss" else "delta"]
        scale = 1.0 if node.op == "smooth_l1_loss" else width
        near: Callable[[Any], Any] = lambda d: 0.5 * d * d / width * scale  # noqa: E731
        far: Callable[[Any], Any] = lambda d: (d.abs() - 0.5 * width) * scale  # noqa: E731

        def parts(inside: Callable[[Any], Any], outside: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
            return lambda x, t: torch.where((x - t).abs() < width, inside(x - t), outside(x - t))

        formulas = {
            "with the two branches of {} exchanged": parts(far, near),
            "without the factor 1/2 of the square in {}": parts(lambda d: 2 * near(d), far),
            "without the division of the square in {}": parts(lambda d: near(d) * width, far),
            "without what {} subtracts from the absolute value": parts(near, lambda d: d.abs() * scale),
            "with what {} subtracts from the absolute value twice": parts(near, lambda d: (d.abs() - width) * scale),
            "with the square everywhere in {}": lambda x, t: near(x - t),
            "with the absolute value everywhere in {}": lambda x, t: far(x - t)}
    elif node.op == "binary_cross_entropy_with_logits":
        tail: Callable[[Any], Any] = lambda x: torch.log1p(torch.exp(-x.abs()))  # noqa: E731
        formulas = {
            "without the logarithm's part log(1 + exp(-|x|)) of {}": lambda x, t: x.relu() - x * t,
            "with x in place of max(x, 0) in {}": lambda x, t: x - x * t + tail(x),
            "without max(x, 0) in {}": lambda x, t: tail(x) - x * t,
            "without the product of scores and targets in {}": lambda x, t: x.relu() + tail(x),
            "with the product of scores and targets added in {}": lambda x, t: x.relu() + x * t + tail(x),
            "without the absolute value in {}": lambda x, t: x.relu() - x * t + torch.log1p(torch.exp(-x)),
            "with exp(-|x|) in place of log(1 + exp(-|x|)) in {}": lambda x, t: x.relu() - x * t + torch.exp(-x.abs()),
            "with the targets' part alone in {}": lambda x, t: -t * torch.nn.functional.logsigmoid(x)}
    reduce = {"mean": torch.mean, "sum": torch.sum, "none": lambda v: v}[node.get("reduction") or "none"]
    for words, function in formulas.items():
        yield Change("loss-formula", words.format(told(node)), f"compute {told(node)} as PyTorch defines it", 1.5,
                     {node: applied(node, lambda x, t, f=function: reduce(f(x, t)))}, about(node))


def losses(node: Node) -> Iterator[Change]:
    """Losses and vector norms: their reduction, their operands, their options."""
    if node.kind not in ("loss", "norm"):
        return
    here = about(node)
    if node.get("reduction") in ("mean", "sum", "none"):
        for other in ("mean", "sum", "none"):
            if other != node["reduction"]:
                kind = {"mean": "sum-for-mean", "sum": "mean-for-sum"}.get(node["reduction"], "wrong-reduction")
                yield Change(kind if other != "none" else "wrong-reduction",
                             f'with reduction="{other}" in {told(node)}',
                             f'reduce by "{node["reduction"]}"', 0.6, {node: attribute(node, reduction=other)}, here)
        if node["reduction"] == "mean" and node.inputs[0].rank:
            batch, whole = node.inputs[0].shape[0], node.inputs[0].size
            for count, word in ((whole / max(1, batch), "the batch's size"), (batch / max(1, whole), "every element")):
                if count != 1:
                    yield Change("wrong-divisor", f"with {told(node)} divided by {word}",
                                 "divide as the model's loss does",
                                 1.5, {node: after(node, lambda v, f=count: v * f)}, here)
    if node.kind == "loss" and len(node.inputs) > 1 and node.inputs[0].shape == node.inputs[1].shape:
        yield Change("operands-exchanged", f"with input and target of {told(node)} exchanged", "exchange them", 1.0,
                     {node: lambda get: recomputed(node, get, get(node.inputs[1]), get(node.inputs[0]),
                                                   *map(get, node.inputs[2:]))}, here)
    yield from _formulas(node)
    if node.op == "vector_norm":
        yield from other_axes(node)
        yield Change("missing-root", f"without the root of {told(node)}", "take the root of the sum", 0.8,
                     {node: after(node, lambda v: v ** node["ord"])}, here)
        for order in (1.0, 2.0, float("inf")):
            if order != node["ord"]:
                yield Change("wrong-norm", f"with the {order:g}-norm in place of {told(node)}",
                             f"take the {node['ord']:g}-norm",
                             1.0, {node: attribute(node, ord=order)}, here)
        yield from cut(node, node.inputs[0], node["axes"], lambda part: on_input(node, 0, part))
