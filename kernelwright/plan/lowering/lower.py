"""Lower composite operators to primitives that kernels are made of: pointwise, reduction, view.

A composite stays whole where it is kept as a torch call, so lowering happens here and not in the
graph: what is not replaced is emitted as the user wrote it.

Composites of float16 and bfloat16 are lowered in float32 and rounded once, as PyTorch computes them: the sum
of a softmax or the mean of a norm, rounded to 16 bits in between, would lose digits or overflow.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable
from math import exp, inf, log1p, prod

from kernelwright.algebra.build import MOMENTS, NARROW, per_channel, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.algebra.moments import unbiasing
from kernelwright.algebra.norms import batch_norm_affine, shifted_by_zero
from kernelwright.algebra.ranges import value_range
from kernelwright.ir.node import Node, constant, make, number_of, rebuild, users, walk
from kernelwright.ir.ops.windows import longest_window
from kernelwright.ir.recursion import Task, run
from kernelwright.plan.contraction.products import as_product
from kernelwright.plan.lowering import lookups, losses, recurrent, resampling
from kernelwright.plan.lowering.deviations import reads

FLOATS = ("float32", "float64", *NARROW)
# The exponential of this and that of its negative are far within float32, and so are sums of 2^50 of them.
_MOST_EXPONENT = 32.0
# Above this many multiply-adds a contraction is a library's product, not a row of dot products.
MOST_CONTRACTION = 1 << 27


def _exponentials_fit(x: Node) -> bool:
    """Whether exponentials of x and sums of them are usual numbers in any case, so that no maximum need be found."""
    low, high = value_range(x)
    return low >= -_MOST_EXPONENT and high <= _MOST_EXPONENT


def softmax(node: Node) -> Node:
    """exp(x - max) / sum, or exp(x) / sum of an x that cannot be large."""
    x, axes = node.inputs[0], (node["axis"],)
    shifted = make("exp", x if _exponentials_fit(x) else make("sub", x, reduce("amax", x, axes)))
    return make("div", shifted, reduce("sum", shifted, axes))


def log_softmax(node: Node) -> Node:
    """(x - max) - log(sum(exp(x - max))), as PyTorch does: x - logsumexp(x) would lose the digits of a small
    result under a large x, and give -inf where PyTorch gives NaN (beside +inf). It is taken where neither is."""
    x, axes = node.inputs[0], (node["axis"],)
    low, high = value_range(x)
    # The smallest result is that of the highest value among others that are all the lowest.
    unshifted = _exponentials_fit(x) and 2 * log1p((x.shape[axes[0]] - 1) * exp(low - high)) >= max(abs(low), abs(high))
    shifted = x if unshifted else make("sub", x, reduce("amax", x, axes))
    return make("sub", shifted, make("log", reduce("sum", make("exp", shifted), axes)))


def _normalise(x: Node, axes: tuple[int, ...], eps: float) -> Node:
    variance = reduce("var", x, axes, correction=0)
    return make("mul", make("sub", x, reduce("mean", x, axes)), make("rsqrt", make("add", variance, constant(eps))))


def layer_norm(node: Node) -> Node:
    """Over the last axes, then scale and shift of their shape."""
    x = node.inputs[0]
    result = _normalise(x, tuple(range(x.rank - node["axes"], x.rank)), node["eps"])
    for op, extra in zip(("mul", "add"), node.inputs[1:], strict=False):
        result = make(op, result, extra)
    return result if len(node.inputs) == 3 else shifted_by_zero(result)


def rms_norm(node: Node) -> Node:
    """x / sqrt(mean(x^2) + eps) over the last axes, then the weight."""
    x = node.inputs[0]
    mean = reduce("mean", make("square", x), tuple(range(x.rank - node["axes"], x.rank)))
    result = make("mul", x, make("rsqrt", make("add", mean, constant(node["eps"]))))
    return make("mul", result, node.inputs[1]) if node.inputs[1:] else result


def instance_norm(node: Node) -> Node:
    """Over the spatial axes, then scale and shift per channel."""
    x = node.inputs[0]
    result = _affine(_normalise(x, tuple(range(2, x.rank)), node["eps"]), node.inputs[1:])
    return result if len(node.inputs) == 3 else shifted_by_zero(result)


def group_norm(node: Node) -> Node:
    """Over each group of channels and space."""
    x, groups = node.inputs[0], node["groups"]
    grouped = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    result = _normalise(grouped, tuple(range(2, grouped.rank)), node["eps"])
    shape = (1, groups, x.shape[1] // groups, *(1,) * (x.rank - 2))
    for op, extra in zip(("mul", "add"), node.inputs[1:], strict=False):
        result = make(op, result, reshape(extra, shape))
    return reshape(result, x.shape)


def _affine(x: Node, rest: tuple[Node, ...]) -> Node:
    for op, extra in zip(("mul", "add"), rest, strict=False):
        x = make(op, x, per_channel(extra, x.rank))
    return x


def contract(node: Node) -> Node:
    """A contraction as a sum of products over a domain (result letters, then summed letters)."""
    terms, result = node["equation"].split("->")
    summed = "".join(dict.fromkeys(letter for letter in terms if letter not in result + ","))
    order = result + summed
    operands = []
    for term, operand in zip(terms.split(","), node.inputs, strict=True):
        present = [letter for letter in order if letter in term]
        axes = tuple(term.index(letter) for letter in present)
        moved = operand if axes == tuple(range(len(axes))) else make("permute", operand, axes=axes)
        sizes = dict(zip(term, operand.shape, strict=True))
        operands.append(reshape(moved, tuple(sizes[letter] if letter in term else 1 for letter in order)))
    total = reduce("sum", make("mul", *operands), tuple(range(len(result), len(order))))
    return reshape(total, node.shape)


def corrected(node: Node) -> Node | None:
    """A variance or deviation with a correction, by the biased one."""
    count = prod(node.inputs[0].shape[a] for a in node["axes"])
    if node["correction"] == 0:
        return None
    biased = make(node.op, node.inputs[0], axes=node["axes"], keepdim=node["keepdim"], correction=0)
    return make("mul", biased, constant(unbiasing(node.op, count, node["correction"])))


def max_pool(node: Node) -> Node:
    """Maximum over a view of windows."""
    x = node.inputs[0]
    rank = len(node["kernel"])
    windows = make("windows", x, kernel=node["kernel"], stride=node["stride"], padding=node["padding"],
                   dilation=node["dilation"], fill=-inf, size=node.shape[x.rank - rank:])
    return reshape(reduce("amax", windows, tuple(range(x.rank, x.rank + rank))), node.shape)


def average_pool(node: Node) -> Node:
    """Sum over a view of windows, divided by the number that each counts."""
    x = node.inputs[0]
    rank = len(node["kernel"])
    windows = make("windows", x, kernel=node["kernel"], stride=node["stride"], padding=node["padding"],
                   dilation=(1,) * rank, fill=0.0, size=node.shape[x.rank - rank:])
    # Below the cast the windows are of x itself, so that their padding needs no copy of x.
    windows = cast(windows, "float32") if x.dtype in NARROW else windows
    total = reshape(reduce("sum", windows, tuple(range(x.rank, x.rank + rank))), node.shape)
    return cast(make("div", total, _divisor(node, total)), node.dtype)


def _divisor(node: Node, total: Node) -> Node:
    """By what an average pool divides the sums of its windows: one number, or along each axis as many as each window
    has there, multiplied."""
    if node["divisor"]:
        return constant(float(node["divisor"]))
    rank, whole, counts = len(node["kernel"]), 1, []
    for axis, (kernel, stride, padding) in enumerate(zip(node["kernel"], node["stride"], node["padding"], strict=True)):
        size, count = (n.shape[axis - rank] for n in (node, node.inputs[0]))
        last = stride * (size - 1) + kernel
        if last <= count + 2 * padding if node["include_padding"] else not padding and last <= count:
            whole *= kernel
        else:
            table = make("window_counts", size=size, kernel=kernel, stride=stride, padding=padding, count=count,
                         include=node["include_padding"], dtype_of=total.dtype)
            counts.append(reshape(table, tuple(size if a == axis else 1 for a in range(rank))))
    product = constant(float(whole))
    for table in counts:
        product = table if number_of(product) == 1 else make("mul", table, product)
    return product


#: What PyTorch computes for powers by these constants, to the bit, also of negative numbers, zeros, Inf and NaN.
_POWERS = {
    0.5: lambda x: make("sqrt", x),
    -0.5: lambda x: make("rsqrt", x),
    -1.0: lambda x: make("reciprocal", x),
    2.0: lambda x: make("square", x),
    -2.0: lambda x: make("reciprocal", make("square", x)),
    3.0: lambda x: make("mul", make("mul", x, x), x),
}


def power(node: Node) -> Node:
    """A power by a constant for which PyTorch does not call pow, either."""
    return _POWERS[node.inputs[1]["value"]](node.inputs[0])


def adaptive_average_pool(node: Node) -> Node:
    """The average pool whose windows are all of one size, or the sum of what windows of several sizes have."""
    rank = len(node["size"])
    if any(n % s for n, s in zip(node.inputs[0].shape[-rank:], node["size"], strict=True)):
        return _uneven_average(node)
    kernel = tuple(n // s for n, s in zip(node.inputs[0].shape[-rank:], node["size"], strict=True))
    return make("average_pool", node.inputs[0], kernel=kernel, stride=kernel, padding=(0,) * rank, ceil=False,
                include_padding=True, divisor=None)


def _uneven_average(node: Node) -> Node:
    """As many elements for each window as the longest has, of which those count that are its own."""
    x, sizes = node.inputs[0], node["size"]
    rank = len(sizes)
    lead = x.rank - rank
    most = [longest_window(size, count) for size, count in zip(sizes, x.shape[lead:], strict=True)]
    shape = (*node.shape, *most)

    def table(part: str, axis: int) -> Node:
        made = make("adaptive_places", part=part, size=sizes[axis], count=x.shape[lead + axis])
        placed = {axis: sizes[axis]} if part == "length" else {axis: sizes[axis], rank + axis: most[axis]}
        return reshape(made, tuple(placed.get(a, 1) for a in range(rank if part == "length" else 2 * rank)))

    indices = {lead + axis: table("place", axis) for axis in range(rank)}
    value = lookups.looked_up(x, indices, tuple(range(x.rank)), shape, within=True)
    uneven = [axis for axis in range(rank) if x.shape[lead + axis] % sizes[axis]]
    inside = functools.reduce(lambda one, other: make("logical_and", one, other), (table("inside", a) for a in uneven))
    value = make("where", inside, value, constant(0.0))
    total = make("sum", cast(value, "float32") if x.dtype in NARROW else value,
                 axes=tuple(range(x.rank, x.rank + rank)), keepdim=False)
    counts = functools.reduce(lambda one, other: make("mul", one, other), (table("length", a) for a in range(rank)))
    return cast(make("div", total, cast(counts, total.dtype)), node.dtype)


_LOWERINGS = {
    "adaptive_average_pool": adaptive_average_pool,
    "pow": power,
    "softmax": softmax, "log_softmax": log_softmax, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "instance_norm": instance_norm, "group_norm": group_norm, "contract": contract,
    "var": corrected, "std": corrected, "max_pool": max_pool,
    "average_pool": average_pool, "batch_norm_training": batch_norm_affine, "batch_norm_inference": batch_norm_affine,
    "item": recurrent.layers,
    **lookups.LOWERINGS, **resampling.LOWERINGS,
    **losses.LOWERINGS,
}


_POOLS = ("max_pool", "average_pool", "adaptive_average_pool")


def lowerable(node: Node) -> bool:
    """Whether a composite node has a form in primitives, for these attributes and types."""
    if node.op == "pow":
        x, exponent = node.inputs
        return x.dtype == node.dtype in FLOATS and exponent.op == "constant" and exponent["value"] in _POWERS
    if node.op == "item":
        return recurrent.has_form(node.inputs[0])
    if node.op in lookups.LOWERINGS:
        return lookups.has_form(node)
    if node.op in resampling.LOWERINGS:
        return resampling.has_form(node)
    typed = (i for i in node.inputs if not (node.op in losses.OF_CLASSES and i.dtype == "int64"))
    if node.dtype not in FLOATS or any(i.dtype not in FLOATS for i in typed) or 0 in node.inputs[0].shape:
        return False
    if node.op in losses.LOWERINGS:
        return losses.has_form(node)
    if node.op == "contract":
        return node.operator.operations(node) <= 2 * MOST_CONTRACTION
    if node.op in MOMENTS:
        return prod(node.inputs[0].shape[a] for a in node["axes"]) > node["correction"]
    if node.op == "adaptive_average_pool" and not node.size:
        return False
    return node.op in _LOWERINGS


def _without_bias(node: Node) -> Node:
    return make("convolution", *node.inputs[:2], origin=node.origin, **dict(node.attributes))


def bias_apart(node: Node) -> Node:
    """A convolution as one without bias, and the bias added by whatever kernel reads it."""
    return make("add", _without_bias(node), per_channel(node.inputs[2], node.rank), origin=node.origin)


def _bias_cancels(node: Node, readers: list[Node]) -> bool:
    """Whether all who read a convolution subtract its mean over everything but the channels, or only want moments.

    A bias does not change what they compute, and adding it first would round every element of a channel the
    same way: the mean of many values of both signs would lose digits.
    """
    others = (0, *range(2, node.rank))
    return all((r.op == "batch_norm_training" and node not in r.inputs[1:])
               or (r.op in ("mean", *MOMENTS) and r["axes"] == others) for r in readers)


def _bias_can_move(node: Node, readers: list[Node], kept: frozenset[Node]) -> bool:
    return node.op == "convolution" and len(node.inputs) == 3 and node.dtype in FLOATS and bool(readers) and all(
        r not in kept and (r.kind in ("pointwise", "reduction", "row") or lowerable(r)) for r in readers)


def call_of(node: Node) -> Node:
    """The call of which a node is one result, where such results are lowered; else the node itself."""
    return node.inputs[0] if node.op == "item" and lowerable(node) else node


def lower(roots: Iterable[Node], kept: frozenset[Node], *, move_bias: bool = False,
          products: frozenset[Node] = frozenset()) -> tuple[dict[Node, Node], dict[Node, Node]]:
    """Lower everything below ``roots`` but the nodes in ``kept``, which stay torch calls.

    move_bias: take the bias out of convolutions that only kernels read (where the library adds it in a pass
    of its own), and leave it out where a norm subtracts it again. products: contractions that become kernels, whose
    bias stands apart anyway. Returns the lowered form of every node, and for every primitive the graph's node that it
    came from.
    """
    roots = list(roots)
    lowered: dict[Node, Node] = {}
    source: dict[Node, Node] = {}
    readers = users(roots) if move_bias else {}
    cancelled: set[Node] = set()
    for node in walk(roots):
        built = rebuild(node, tuple(lowered[i] for i in node.inputs))
        if move_bias and node not in roots and _bias_can_move(node, readers[node], kept):
            cancels = _bias_cancels(node, readers[node])
            built = _without_bias(built) if cancels else built if node in products else bias_apart(built)
            cancelled |= {node} if cancels else set()
        if node.op == "mean" and node.inputs[0] in cancelled:  # mean(y + b) = mean(y) + b
            bias = lowered[node.inputs[0].inputs[2]]
            built = make("add", built, per_channel(bias, node.rank) if node["keepdim"] else bias, origin=node.origin)
        if node in products:
            built = as_product(built)
        elif node.op == "std" and node not in kept and reads(node.inputs[0], products):  # which take variances along
            variance = make("var", *built.inputs, origin=node.origin, **dict(node.attributes))
            built = make("sqrt", _primitives(variance, source), origin=node.origin)
        elif call_of(node) not in kept:
            built = _primitives(built, source)
        lowered[node] = built
        stack = [built]
        while stack:
            part = stack.pop()
            if part not in source:
                source[part] = call_of(node)
                stack += part.inputs
    return lowered, source


def _in_float32(node: Node) -> Node:
    """The composite on 16-bit operands converted to float32; pools and lookups convert what they read, if at all."""
    own = (*_POOLS, *lookups.LOWERINGS, *resampling.LOWERINGS)
    if node.op in own or not any(i.dtype in NARROW for i in node.inputs):
        return node
    inputs = (cast(i, "float32") if i.dtype in NARROW else i for i in node.inputs)
    return make(node.op, *inputs, origin=node.origin, **dict(node.attributes))


def _primitives(node: Node, below: Collection[Node]) -> Node:
    """A node in primitives, its inputs taken as they are, with all ``below`` them, as a lowering may read what a view
    among them shows. It may build composites: they follow."""
    if node.op not in _LOWERINGS or not lowerable(node):
        return node
    replaced = _LOWERINGS[node.op](_in_float32(node))
    if replaced is None:
        return node
    replaced = cast(replaced, node.dtype)
    done: dict[Node, Node] = {i: i for i in node.inputs}

    def finish(part: Node) -> Task[Node]:
        if part in below:
            return part
        if part not in done:
            inputs = []
            for operand in part.inputs:
                inputs.append((yield finish(operand)))
            done[part] = part if part.kind == "leaf" else _primitives(rebuild(part, tuple(inputs)), below)
        return done[part]

    return run(finish(replaced))
