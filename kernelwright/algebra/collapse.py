"""Collapse: a sum or mean over output positions of a linear map is a small contraction of sums of its input.

Convolution, per spatial axis, with output position p, tap k and input position q:
    convolution              q = p s + k d - pad        (0 <= p < P, 0 <= q < L)
    transposed convolution   p = q s + k d - pad
Summed over p, tap k sees the input positions of one arithmetic progression. Taps with the same
progression share a class; there are few classes (the interior, minus borders; or residues), so

    sum_p y[n,o,p] = sum_{c, classes u} X[n,c,u] W[o,c,u] + P b[o]
    X = sums of x over the classes' positions,  W = sums of w over the classes' taps.
"""

from __future__ import annotations

from math import prod
from typing import Any

from kernelwright.algebra.build import NARROW, SUMS, narrow, reduce, reshape
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.ops.special import Progression

Classes = tuple[tuple[Progression, ...], ...]
_FLOATS = ("float32", "float64", *NARROW)
_MOST_TAPS = 32
_MOST_TAP_OPERATIONS = 1 << 24


def tap_positions(tap: int, length: int, outputs: int, *, stride: int, padding: int, dilation: int,
                  transposed: bool) -> Progression:
    """The input positions that tap number ``tap`` reads when every output position is summed."""
    shift = tap * dilation - padding
    if transposed:
        first, last = max(0, -(shift // stride)), min(length - 1, (outputs - 1 - shift) // stride)
        start, stop, step = first, last + 1, 1
    else:
        first, last = max(0, -(shift // stride)), min(outputs - 1, (length - 1 - shift) // stride)
        start, stop, step = first * stride + shift, last * stride + shift + 1, stride
    if last < first:
        return (0, 0, 1)
    return (start, stop, 1 if last == first else step)


def axis_classes(kernel: int, length: int, outputs: int, *, stride: int, padding: int, dilation: int,
                 transposed: bool) -> tuple[Classes, Classes]:
    """The classes of one axis: of input positions, and of the taps that read them (same order)."""
    taps: dict[Progression, list[int]] = {}
    for tap in range(kernel):
        positions = tap_positions(tap, length, outputs, stride=stride, padding=padding, dilation=dilation,
                                  transposed=transposed)
        if positions[1] > positions[0]:
            taps.setdefault(positions, []).append(tap)
    if not taps:
        return ((),), ((),)
    return tuple((p,) for p in taps), tuple(runs_of(ks) for ks in taps.values())


def runs_of(numbers: list[int]) -> tuple[Progression, ...]:
    """Ascending numbers as maximal runs of neighbours."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return tuple((start, stop, 1) for start, stop in runs)


def _everything(size: int) -> Classes:
    return (((0, size, 1),),)


def _region_sum(x: Node, classes: tuple[Classes | None, ...], dtype: str) -> Node:
    """The sums over classes; without any reduced axis of size above one, x itself."""
    if all(c is None or (s == 1 and c == _everything(1)) for s, c in zip(x.shape, classes, strict=True)):
        return x
    return make("region_sum", x, classes=classes, scale=1.0, dtype=dtype)


def _whole_axes(x: Node, axes: tuple[int, ...]) -> Node:
    """Sums over whole axes, kept with size one, in float64."""
    return _region_sum(x, tuple(_everything(s) if a in axes else None for a, s in enumerate(x.shape)), "float64")


def wide(x: Node) -> Node:
    """x in float64. What is left of a collapsed operator is small, and its terms may cancel."""
    return x if x.dtype == "float64" else cast(x, "float64")


def cast(x: Node, dtype: str) -> Node:
    """x in another floating type; x itself where it has it. Between float32 and float64 this is not the model's cast:
    it is there for more digits, and no part of what the model means."""
    if x.dtype == dtype:
        return x
    ours: dict[str, Any] = {"precise": True} if {x.dtype, dtype} == {"float32", "float64"} else {}
    return make("cast", x, to=dtype, shape=x.shape, dtype=dtype, **ours)


def _split_weight(node: Node) -> tuple[Node, int, int]:
    """The weight as (groups, a, b, *kernel), with the axes of the out and in channels per group."""
    weight, groups = node.inputs[1], node["groups"]
    shape = (groups, weight.shape[0] // groups, *weight.shape[1:])
    out_axis, in_axis = (2, 1) if node["transposed"] else (1, 2)
    return reshape(weight, shape), out_axis, in_axis


def _taps_apart(node: Node) -> bool:
    """Whether to contract over taps instead of classes of taps: no pass over the weight, but longer rows."""
    taps = prod(node.inputs[1].shape[2:])
    return taps <= _MOST_TAPS and 2 * node.shape[0] * node.inputs[1].size <= _MOST_TAP_OPERATIONS


def sum_of_convolution(node: Node, axes: tuple[int, ...]) -> Node:
    """sum of a convolution over ``axes`` (any of batch, channel, space), axes kept."""
    x, rank = node.inputs[0], node.rank - 2
    spatial = [a - 2 for a in axes if a >= 2]
    kept = [i for i in range(rank) if i not in spatial]
    groups = node["groups"]
    # Where every spatial axis is summed, the sums per sample are small and often wanted elsewhere.
    batch_now = 0 in axes and bool(kept)
    apart = not kept and 1 not in axes and _taps_apart(node)
    x_classes: list[Classes | None] = [_everything(x.shape[0]) if batch_now else None, None]
    w_classes: list[Classes | None] = []
    for i in range(rank):
        if i in kept:
            x_classes.append(None)
            w_classes.append(None)
            continue
        geometry = {"stride": node["stride"][i], "padding": node["padding"][i], "dilation": node["dilation"][i],
                    "transposed": node["transposed"]}
        sizes = (node.inputs[1].shape[2 + i], x.shape[2 + i], node.shape[2 + i])
        positions, taps = axis_classes(*sizes, **geometry)
        seen = sum(stop - start for runs in taps for start, stop, _ in runs)
        if apart and (len(positions) > 1 or seen < sizes[0]):
            by_tap = [tap_positions(k, *sizes[1:], **geometry) for k in range(sizes[0])]
            positions = tuple((p,) if p[1] > p[0] else () for p in by_tap)
        x_classes.append(positions)
        w_classes.append(None if apart else taps)
    weight, out_axis, in_axis = _split_weight(node)
    lead: list[Classes | None] = [None, None, None]
    if 1 in axes:
        lead[out_axis] = _everything(weight.shape[out_axis])
    # PyTorch sums many results, each with a rounding of its own, which average out; here every term of a result is
    # the sum of many, and its rounding would count as often.
    dtype = "float32" if kept and narrow(x) else "float64"
    sums = _region_sum(x, tuple(x_classes), dtype)
    if 0 in axes and not batch_now:
        sums = reduce("sum", wide(sums), (0,))
    taps = _region_sum(weight, (*lead, *w_classes), dtype)
    if kept:
        terms = _convolve(node, cast(sums, dtype), cast(taps, dtype), out_axis, in_axis, spatial, kept)
    else:
        terms = _contract(node, wide(sums), wide(taps), out_axis, in_axis)
    if 1 in axes and groups > 1:
        terms = reduce("sum", terms, (1,))
    if len(node.inputs) < 3:
        return terms
    count = prod(node.shape[a] for a in axes if a != 1)
    bias = cast(node.inputs[2], dtype)
    bias = reduce("sum", bias, (0,)) if 1 in axes else bias
    bias = reshape(bias, (1, bias.size, *(1,) * rank))
    return make("add", terms, make("mul", bias, constant(float(count))) if count != 1 else bias)


def _sum_of_channels(node: Node) -> Node:
    """The sum of a convolution over its channels, kept with size one: each channel of x with the sum of its weights.

    PyTorch sums many results, whose roundings average out. One result of all channels would have the rounding of its
    own long chain of terms; those of single channels are short, and are summed in float64.
    """
    x, (weight, out_axis, _) = node.inputs[0], _split_weight(node)
    lead: list[Classes | None] = [None] * weight.rank
    lead[out_axis] = _everything(weight.shape[out_axis])
    summed = _region_sum(weight, tuple(lead), node.dtype)
    attributes = {**dict(node.attributes), "groups": x.shape[1], "exact": True}
    summed = reshape(summed, (x.shape[1], 1, *weight.shape[3:]))
    terms = make("convolution", x, summed, origin=node.origin, **attributes)
    result = reduce("sum", wide(terms), (1,))
    if len(node.inputs) < 3:
        return result
    return make("add", result, reshape(reduce("sum", wide(node.inputs[2]), (0,)), (1,) * node.rank))


def _contract(node: Node, sums: Node, taps: Node, out_axis: int, in_axis: int) -> Node:
    """Every spatial axis is summed: a contraction over in channels and classes."""
    groups, classes = node["groups"], sums.shape[2:]
    letters = "uvw"[:len(classes)]
    left = reshape(sums, (sums.shape[0], groups, sums.shape[1] // groups, *classes))
    out_channels = taps.shape[out_axis]
    weight_letters = {0: "g", out_axis: "o", in_axis: "c"}
    right = "".join(weight_letters[a] for a in range(3)) + letters
    product = make("contract", left, taps, equation=f"ngc{letters},{right}->ngo")
    return reshape(product, (sums.shape[0], groups * out_channels, *(1,) * len(classes)))


def _convolve(node: Node, sums: Node, taps: Node, out_axis: int, in_axis: int, spatial: list[int], kept: list[int]
              ) -> Node:
    """Some spatial axes remain: a convolution over them with in channels times classes."""
    groups, rank = node["groups"], node.rank - 2
    order = (0, 1, *(2 + i for i in spatial), *(2 + i for i in kept))
    x = make("permute", sums, axes=order) if order != tuple(range(rank + 2)) else sums
    classes = prod(sums.shape[2 + i] for i in spatial)
    x = reshape(x, (x.shape[0], x.shape[1] * classes, *(sums.shape[2 + i] for i in kept)))
    kernel = tuple(taps.shape[3 + i] for i in kept)
    per_group = (0, in_axis, *(3 + i for i in spatial), out_axis) if node["transposed"] else \
        (0, out_axis, in_axis, *(3 + i for i in spatial))
    weight = make("permute", taps, axes=(*per_group, *(3 + i for i in kept)))
    if node["transposed"]:
        weight = reshape(weight, (x.shape[1], taps.shape[out_axis], *kernel))
    else:
        weight = reshape(weight, (groups * taps.shape[out_axis], taps.shape[in_axis] * classes, *kernel))
    pick = {name: tuple(node[name][i] for i in kept) for name in ("stride", "padding", "dilation", "output_padding")}
    y = make("convolution", x, weight, groups=groups, transposed=node["transposed"], exact=True, origin=node.origin,
             **pick)
    return reshape(y, (*y.shape[:2], *(1 if i in spatial else node.shape[2 + i] for i in range(rank))))


@rule("sum of a convolution", *SUMS,
      law="sum_p conv(x, w)[p] = contraction of (sums of x over the positions each tap sees) with (sums of taps)",
      condition="convolution or transposed convolution; any axes of its output but only the channels alone",
      exactness=Exactness.FINITE)
def of_convolution(node: Node, context: Context) -> Node | None:
    y = _below_widening(node.inputs[0])
    if y.op != "convolution" or not node["keepdim"] or 0 in y.shape or y.dtype not in _FLOATS:
        return None
    if not context.may_collapse(y):
        return None
    axes = node["axes"]
    if axes == (1,) and narrow(y):
        return None  # the sums of weights would be rounded to 16 bits, or all of x converted
    if axes == (1,):
        result = _sum_of_channels(y)
    else:
        result = sum_of_convolution(y, axes)
    if node.op == "mean":
        result = make("mul", result, constant(1.0 / prod(y.shape[a] for a in axes)))
    return cast(result, node.dtype) if result.shape == node.shape else None


def _below_widening(x: Node) -> Node:
    """The 16-bit value below a conversion to a wider type: what it rounded is not computed at all."""
    return x.inputs[0] if x.op == "cast" and narrow(x.inputs[0]) and not narrow(x) else x


@rule("sum of a linear layer", *SUMS,
      law="sum_o (x W^T + b)_o = x . sum_o W_o + sum b;  sum_n (x_n W^T + b) = (sum_n x_n) W^T + N b",
      condition="any axes of the output", exactness=Exactness.FINITE)
def of_linear(node: Node, context: Context) -> Node | None:
    y = _below_widening(node.inputs[0])
    if y.op != "linear" or not node["keepdim"] or not context.may_collapse(y):
        return None
    x, weight = y.inputs[:2]
    if weight.rank != 2 or y.dtype not in _FLOATS or 0 in (*y.shape, *weight.shape):
        return None
    bias = wide(y.inputs[2]) if len(y.inputs) > 2 else None
    axes, last = node["axes"], y.rank - 1
    lead = tuple(a for a in axes if a != last)
    rows = prod(y.shape[a] for a in lead)
    x = _whole_axes(x, lead)
    if last in axes:
        weight = _whole_axes(weight, (0,))
        bias = reduce("sum", bias, (0,)) if bias is not None else None
    rows_left = x.size // x.shape[-1]
    flat = make("contract", wide(reshape(x, (rows_left, x.shape[-1]))), wide(weight), equation="rk,ok->ro")
    result = reshape(flat, (*x.shape[:-1], weight.shape[0]))
    if bias is not None:
        result = make("add", result, make("mul", bias, constant(float(rows))) if rows != 1 else bias)
    if node.op == "mean":
        result = make("mul", result, constant(1.0 / prod(y.shape[a] for a in axes)))
    return cast(result, node.dtype)


@rule("sum of a matrix product", *SUMS, law="sum_i (A B)_ij = (sum_i A_i) B;  sum_j (A B)_ij = A (sum_j B_j)",
      condition="rows or columns of the product, not its batch axes; not of 16-bit values", exactness=Exactness.FINITE)
def of_matmul(node: Node, context: Context) -> Node | None:
    y = node.inputs[0]
    if y.op != "matmul" or not node["keepdim"] or y.rank < 2 or narrow(y) or 0 in y.shape:
        return None
    left, right = y.inputs
    if left.rank < 2 or right.rank < 2 or y.rank > 10 or not set(node["axes"]) <= {y.rank - 2, y.rank - 1}:
        return None
    if not context.may_collapse(y):
        return None
    if y.rank - 2 in node["axes"]:
        left = _whole_axes(left, (left.rank - 2,))
    if y.rank - 1 in node["axes"]:
        right = _whole_axes(right, (right.rank - 1,))
    batch = "abcdefgh"[:y.rank - 2]
    terms = (batch[len(batch) - left.rank + 2:] + "rk", batch[len(batch) - right.rank + 2:] + "ko")
    result = make("contract", wide(left), wide(right), equation=f"{','.join(terms)}->{batch}ro")
    if node.op == "mean":
        result = make("mul", result, constant(1.0 / prod(y.shape[a] for a in node["axes"])))
    return cast(result, node.dtype)


COLLAPSE: tuple[Rule, ...] = (of_convolution, of_linear, of_matmul)

__all__ = ["COLLAPSE", "axis_classes", "sum_of_convolution", "tap_positions"]
