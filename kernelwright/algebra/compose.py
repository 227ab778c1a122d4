"""Compose: linear operators that follow each other, of which one is an average pool, become one.

An average pool is uniform where it divides every window by one number: then it is a convolution of each channel with
one weight for all of its taps. Per spatial axis, with output position p, taps k of the convolution and i of the pool:

    convolution of a pool    q = ((p sc + k dc - pc) sp + i) - pp
    pool of a convolution    q = ((p sp + i) sc + k dc) - pc

Both are a convolution with stride sc sp, whose taps lie at k a + i b for steps a and b. Its weight at a tap is the sum
of the weights of all k that meet there, over the divisor: taken in float64, and rounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod

from kernelwright.algebra.build import reshape
from kernelwright.algebra.collapse import Classes, cast, runs_of
from kernelwright.algebra.rule import Context, Exactness, Rule, rule
from kernelwright.ir.node import Node, constant, make, rebuild
from kernelwright.roofline.cost import node_work

_FLOATS = ("float32", "float64")
#: Terms of one sum that stands in place of a sum of sums, and elements of a window. Libraries add them one by one, and
#: the roundings of a long chain count for more than those of short ones, whose mean is taken.
_MOST_TERMS, _MOST_WINDOW = 48, 16
_POOLS = ("average_pool", "adaptive_average_pool")


@dataclass(frozen=True, slots=True)
class _Pool:
    """A uniform average pool over the last axes: per axis its kernel, stride and padding; and its divisor."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    divisor: int

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def sums_to_one(self) -> bool:
        """Whether the weights of every window do."""
        return not any(self.padding) and self.divisor == prod(self.kernel)

    def of(self, x: Node) -> Node:
        """The pool of x."""
        divisor = None if self.divisor == prod(self.kernel) else self.divisor
        return make("average_pool", x, kernel=self.kernel, stride=self.stride, padding=self.padding, ceil=False,
                    include_padding=True, divisor=divisor)


def uniform_pool(node: Node) -> _Pool | None:
    """The pool that a node is; None where it is none, or divides its windows by several numbers."""
    if node.op not in _POOLS or node.dtype not in _FLOATS or 0 in node.shape:
        return None
    if node.op == "adaptive_average_pool":
        sizes = tuple(zip(node.inputs[0].shape[-len(node["size"]):], node.shape[-len(node["size"]):], strict=True))
        if any(length % outputs for length, outputs in sizes):
            return None
        kernel = tuple(length // outputs for length, outputs in sizes)
        return _Pool(kernel, kernel, (0,) * len(kernel), prod(kernel))
    kernel, stride, padding = node["kernel"], node["stride"], node["padding"]
    rank = len(kernel)
    if any(padding) and not node["include_padding"] and not node["divisor"]:
        return None
    for length, outputs, k, s, p in zip(node.inputs[0].shape[-rank:], node.shape[-rank:], kernel, stride, padding,
                                        strict=True):
        if (outputs - 1) * s + k > length + 2 * p:
            return None  # a window that is cut
    return _Pool(kernel, stride, padding, node["divisor"] or prod(kernel))


def _is_plain(y: Node) -> bool:
    """Whether a node is a convolution that can be composed with a pool."""
    return y.op == "convolution" and not y["transposed"] and y.dtype in _FLOATS and 0 not in y.shape and \
        all(i.dtype == y.dtype for i in y.inputs)


def axis_taps(kernel: int, step: int, window: int, step_in: int) -> tuple[Classes, int]:
    """The classes of taps that meet at each tap of a composition, and its dilation: tap t is at t times the dilation,
    and has all k < kernel with k * step + i * step_in there for an i < window."""
    dilation = gcd(step if kernel > 1 else 0, step_in if window > 1 else 0) or 1
    count = ((kernel - 1) * step + (window - 1) * step_in) // dilation + 1
    met: list[list[int]] = [[] for _ in range(count)]
    for k in range(kernel):
        for i in range(window):
            met[(k * step + i * step_in) // dilation].append(k)
    return tuple(runs_of(ks) for ks in met), dilation


def _composed(y: Node, x: Node, pool: _Pool, steps: tuple[tuple[int, int], ...], padding: tuple[int, ...],
              bias: Node | None) -> Node | None:
    """The convolution of x with the weight of y and a pool; None where its sums are too long, or have terms that the
    two have not. steps: of the taps of y and of the pool, per axis."""
    classes: list[Classes] = []
    dilations: list[int] = []
    weight = y.inputs[1]
    for kernel, window, (step, step_in) in zip(weight.shape[2:], pool.kernel, steps, strict=True):
        taps, dilation = axis_taps(kernel, step, window, step_in)
        if not all(taps):  # between windows lies what nothing reads: zero times NaN would be NaN
            return None
        classes.append(taps)
        dilations.append(dilation)
    if weight.shape[1] * prod(map(len, classes)) > _MOST_TERMS:
        return None
    taps = make("region_sum", weight, classes=(None, None, *classes), scale=1.0 / pool.divisor, dtype="float64")
    stride = tuple(s * t for s, t in zip(y["stride"], pool.stride, strict=True))
    attributes = {**dict(y.attributes), "stride": stride, "padding": padding, "dilation": tuple(dilations),
                  "exact": True}
    return make("convolution", x, cast(taps, y.dtype), *(() if bias is None else (bias,)), origin=y.origin,
                **attributes)


def _bias(y: Node) -> Node | None:
    return y.inputs[2] if len(y.inputs) > 2 else None


def _scaled(bias: Node | None, factor: float) -> Node | None:
    """A bias times a number, rounded once."""
    if bias is None or factor == 1.0:
        return bias
    return cast(make("mul", cast(bias, "float64"), constant(factor)), bias.dtype)


@rule("pool before a pointwise convolution", *_POOLS, law="avg_pool(w x + b) = w avg_pool(x) + b",
      condition="kernel and stride one, no padding; the pool's weights sum to one, or there is no bias; windows of few "
                "elements, and fewer operations; not of 16-bit values", exactness=Exactness.FINITE)
def pool_first(node: Node, context: Context) -> Node | None:
    y = node.inputs[0]
    spatial = node["size"] if node.op == "adaptive_average_pool" else node["kernel"]
    if not _is_plain(y) or 0 in node.shape or len(spatial) != y.rank - 2:
        return None
    x = y.inputs[0]
    if {*y.inputs[1].shape[2:], *y["stride"]} != {1} or any(y["padding"]) or (len(y.inputs) > 2 and not _is_mean(node)):
        return None
    window = prod(node["kernel"]) if node.op == "average_pool" else x.size // (node.size // node.shape[1] * x.shape[1])
    if window > _MOST_WINDOW:
        return None
    pooled = rebuild(node, (x,))
    result = make("convolution", pooled, *y.inputs[1:], origin=y.origin, **{**dict(y.attributes), "exact": True})
    before, after = (sum(node_work(n).operations for n in nodes) for nodes in ((y, node), (pooled, result)))
    return result if after < before and context.may_collapse(y) else None


def _is_mean(node: Node) -> bool:
    """Whether the weights of every window of a pool sum to one, whatever their number."""
    if node.op == "adaptive_average_pool":
        return True
    if node["divisor"] is None:
        return not any(node["padding"]) or not node["include_padding"]
    pool = uniform_pool(node)
    return pool is not None and pool.sums_to_one


@rule("convolution of an average pool", "convolution", law="conv(avg_pool(x), w) = conv(x, sums of w / divisor)",
      condition="the pool divides all windows by one number; where the convolution reads its padding, the pool would "
                "have nothing there; no gaps between taps; sums of few terms; not of 16-bit values",
      exactness=Exactness.FINITE)
def convolution_of_pool(node: Node, context: Context) -> Node | None:
    if not _is_plain(node):
        return None
    inner = node.inputs[0]
    pool = uniform_pool(inner)
    if pool is None or pool.rank != node.rank - 2 or inner.dtype != inner.inputs[0].dtype:
        return None
    x = inner.inputs[0]
    for axis in range(pool.rank):
        length, pooled, outputs = (n.shape[2 + axis] for n in (x, inner, node))
        kernel, stride, padding, dilation = (node.inputs[1].shape[2 + axis], node["stride"][axis],
                                             node["padding"][axis], node["dilation"][axis])
        # Windows of the pool before its first and after its last position: beside all of x.
        if padding and pool.kernel[axis] > pool.stride[axis] + pool.padding[axis]:
            return None
        last = (outputs - 1) * stride + (kernel - 1) * dilation - padding
        if last >= pooled and pooled * pool.stride[axis] - pool.padding[axis] < length:
            return None
    steps = tuple((d * s, 1) for d, s in zip(node["dilation"], pool.stride, strict=True))
    padding = tuple(p * s + q for p, s, q in zip(node["padding"], pool.stride, pool.padding, strict=True))
    result = _composed(node, x, pool, steps, padding, _bias(node))
    return result if result is not None and context.may_collapse(inner) else None


@rule("average pool of a convolution", *_POOLS, law="avg_pool(conv(x, w) + b) = conv(x, sums of w / divisor) + b'",
      condition="not transposed; the pool has no padding and divides all windows by one number; no gaps between taps; "
                "sums of few terms; not of 16-bit values", exactness=Exactness.FINITE)
def pool_of_convolution(node: Node, context: Context) -> Node | None:
    y, pool = node.inputs[0], uniform_pool(node)
    if pool is None or any(pool.padding) or not _is_plain(y) or pool.rank != y.rank - 2:
        return None
    steps = tuple(zip(y["dilation"], y["stride"], strict=True))
    bias = _scaled(_bias(y), prod(pool.kernel) / pool.divisor)
    result = _composed(y, y.inputs[0], pool, steps, y["padding"], bias)
    return result if result is not None and context.may_collapse(y) else None


@rule("average pool of an average pool", *_POOLS, law="avg_pool(avg_pool(x)) = avg_pool(x) of windows of windows",
      condition="both divide all windows by one number, the outer one has no padding; per axis the inner windows touch "
                "and do not overlap, or the outer ones have one element; of few elements; not of 16-bit values",
      exactness=Exactness.REASSOCIATES)
def pool_of_pool(node: Node, context: Context) -> Node | None:
    inner, outer = uniform_pool(node.inputs[0]), uniform_pool(node)
    if inner is None or outer is None or any(outer.padding) or inner.rank != outer.rank:
        return None
    axes = list(zip(inner.kernel, inner.stride, outer.kernel, strict=True))
    if any(k != s and window != 1 for k, s, window in axes):
        return None
    kernel = tuple(k * window for k, _, window in axes)
    divisor = inner.divisor * outer.divisor
    x = node.inputs[0].inputs[0]
    # PyTorch's pools over three axes take no windows that padding alone makes room for.
    if prod(kernel) > _MOST_WINDOW or any(k > length for k, length in zip(kernel, x.shape[-inner.rank:], strict=True)):
        return None
    stride = tuple(s * t for s, t in zip(inner.stride, outer.stride, strict=True))
    result = _Pool(kernel, stride, inner.padding, divisor).of(x)
    return result if result.shape == node.shape and context.may_collapse(node.inputs[0]) else None


@rule("average pool of a linear layer", *_POOLS,
      law="avg_pool(x W^T + b) = avg_pool over positions(x) avg_pool over features(W)^T + avg_pool(b)",
      condition="the pool has no padding and divides all windows by one number; through a reshape, of features alone; "
                "not of 16-bit values", exactness=Exactness.FINITE)
def pool_of_linear(node: Node, context: Context) -> Node | None:
    pool = uniform_pool(node)
    if pool is None or any(pool.padding):
        return None
    y, positions = node.inputs[0], (*pool.kernel[:-1], *pool.stride[:-1])
    if y.op == "reshape" and set(positions) <= {1} and y.inputs[0].shape[-1:] == y.shape[-1:]:
        y = y.inputs[0]
    if y.op != "linear" or y.dtype not in _FLOATS or any(i.dtype != y.dtype for i in y.inputs) or 0 in y.shape:
        return None
    x, weight = y.inputs[:2]
    if weight.rank != 2 or (pool.kernel[-1], pool.stride[-1]) == (1, 1) or not context.may_collapse(y):
        return None
    # Of positions means are taken; all else that the pool does is done to the weight.
    if set(positions) - {1}:
        kernel = (*pool.kernel[:-1], 1)
        x = _Pool(kernel, (*pool.stride[:-1], 1), pool.padding, prod(kernel)).of(x)
    first = range(0, node.shape[-1] * pool.stride[-1], pool.stride[-1])
    windows = tuple(((start, start + pool.kernel[-1], 1),) for start in first)
    scale = prod(pool.kernel[:-1]) / pool.divisor

    def of_features(t: Node) -> Node:
        classes = (windows, *(None,) * (t.rank - 1))
        return cast(make("region_sum", t, classes=classes, scale=scale, dtype="float64"), t.dtype)

    result = make("linear", x, *map(of_features, y.inputs[1:]), origin=y.origin)
    return reshape(result, node.shape)


COMPOSE: tuple[Rule, ...] = (pool_first, convolution_of_pool, pool_of_convolution, pool_of_pool, pool_of_linear)

__all__ = ["COMPOSE", "axis_taps", "uniform_pool"]
