"""Converters of products and other linear maps (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from typing import Any

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    converts,
    float_only,
    permuted,
    reshape,
    spread,
)
from kernelwright.ir.node import Node, constant, make

# Matrices and convolutions ------------------------------------------------------------------------


@converts("linear.default")
def _linear(a: Arguments) -> Node:
    return make("linear", a["input"], a["weight"], *([a["bias"]] if a["bias"] is not None else []))


@converts("matmul.default", "mm.default", "bmm.default")
def _matmul(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    return make("matmul", float_only(left), right)


def _convolution_node(a: Arguments, *, transposed: bool, padding: tuple[int, ...],
                      output_padding: tuple[int, ...] | None = None) -> Node:
    x = a["input"]
    rank = a["weight"].rank - 2
    squeeze = x.rank == rank + 1
    if squeeze:
        x = make("reshape", x, shape=(1, *x.shape))
    node = make("convolution", x, a["weight"], *([a["bias"]] if a["bias"] is not None else []),
                stride=spread(a["stride"], rank), padding=padding, dilation=spread(a["dilation"], rank),
                groups=a["groups"], transposed=transposed, output_padding=output_padding or (0,) * rank)
    return make("reshape", node, shape=node.shape[1:]) if squeeze else node


@converts("conv1d.default", "conv2d.default", "conv3d.default")
def _convolution(a: Arguments) -> Node:
    return _convolution_node(a, transposed=False, padding=spread(a["padding"], a["weight"].rank - 2))


@converts("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution_same(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    if a["padding"] == "valid":
        return _convolution_node(a, transposed=False, padding=(0,) * rank)
    total = [d * (k - 1) for d, k in zip(spread(a["dilation"], rank), a["weight"].shape[2:], strict=True)]
    if any(t % 2 for t in total):
        raise NotConvertible("uneven padding")
    return _convolution_node(a, transposed=False, padding=tuple(t // 2 for t in total))


@converts("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _convolution_transposed(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    return _convolution_node(a, transposed=True, padding=spread(a["padding"], rank),
                             output_padding=spread(a["output_padding"], rank))


@converts("convolution.default")
def _convolution_general(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    return _convolution_node(a, transposed=a["transposed"], padding=spread(a["padding"], rank),
                             output_padding=spread(a["output_padding"], rank))


# Einsum and its relatives -------------------------------------------------------------------------


@converts("einsum.default")
def _einsum(a: Arguments) -> Node:
    """As PyTorch computes it: two operands at a time, in the order of the path that it was given, or from the first
    one on, summing over axes that no other operand and no result has."""
    equation, operands = a["equation"].replace(" ", ""), list(a["tensors"])
    if len(operands) < 2 or "->" not in equation or "." in equation:
        raise NotConvertible("einsum of one operand, or with axes that are not named")
    terms, result = equation.split("->")
    sizes: dict[str, int] = {}
    rest = list(zip(terms.split(","), operands, strict=True))
    for term, operand in rest:
        float_only(operand)
        for letter, size in zip(term, operand.shape, strict=True):
            if len(set(term)) != len(term) or sizes.setdefault(letter, size) != size:
                raise NotConvertible("a diagonal or a broadcast axis")
    given = list(a.get("path") or ())
    path = given or [0, 1] * (len(operands) - 1)
    if len(path) != 2 * (len(operands) - 1):
        raise NotConvertible("a path of other than pairs")
    for first, second in zip(path[::2], path[1::2], strict=True):
        pair = rest[first], rest[second]
        rest = [part for n, part in enumerate(rest) if n not in (first, second)]
        kept = {c for term, _ in pair for c in term if c in result or any(c in other for other, _ in rest)}
        wanted = "".join(c for c in result if c in kept) + "".join(sorted(kept - set(result)))  # as PyTorch has axes
        rest.insert(len(rest) if given else 0, (wanted, _product_of_two(*pair, wanted, sizes)))
    return rest[0][1]


def _product_of_two(one: tuple[str, Node], other: tuple[str, Node], result: str, sizes: dict[str, int]) -> Node:
    """An einsum of two operands, each with its letters, as one batched matrix product, of a batch of one where they
    share no axis that stays, with axes in its order. Where all axes of the right operand alone come before those of the
    left one it multiplies the other way round (sumproduct_pair in ATen/native/Linear.cpp), as libraries may add the
    terms of a transposed product in another order."""
    of_right = [at for at, c in enumerate(result) if c not in one[0] or sizes[c] == 1]
    of_left = [at for at, c in enumerate(result) if c not in other[0] and sizes[c] > 1]
    if of_left and of_right and of_right[-1] < of_left[0]:
        one, other = other, one
    (left, _), (right, _) = one, other
    batch = [c for c in result if c in left and c in right]
    summed = sorted(c for c in left if c in right and c not in result)
    rows, columns = [c for c in result if c not in right], [c for c in result if c not in left]
    if len(batch + summed + rows + columns) < len({*left, *right}) or 0 in sizes.values():
        raise NotConvertible("an axis that only one operand has is summed")

    def arranged(operand: Node, term: str, *groups: list[str]) -> Node:
        moved = permuted(operand, tuple(term.index(c) for group in groups for c in group))
        return reshape(moved, tuple(sizes[c] for c in groups[0]) + tuple(_count(g, sizes) for g in groups[1:]))

    first = arranged(one[1], left, batch, rows, summed)
    second = arranged(other[1], right, batch, summed, columns)
    # Where nothing but axes of one element is summed, eager multiplies: a product may be -0, a sum starts at 0.
    if _count(summed, sizes) > 1:
        flags: dict[str, Any] = {} if batch else {"batch": True}
        product = make("matmul", first, second, **flags)
    else:
        product = make("mul", first, second)
    order = batch + rows + columns
    product = reshape(product, tuple(sizes[c] for c in order))
    return permuted(product, tuple(order.index(c) for c in result))


def _count(letters: list[str], sizes: dict[str, int]) -> int:
    total = 1
    for letter in letters:
        total *= sizes[letter]
    return total


@converts("mv.default", "dot.default", "vdot.default", "inner.default")
def _vector_product(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    if right.rank != 1 or left.rank not in (1, 2):
        raise NotConvertible("inner product of matrices")
    return make("matmul", float_only(left), right)


@converts("outer.default", "ger.default")
def _outer(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    return make("mul", reshape(float_only(left), (left.size, 1)), reshape(float_only(right), (1, right.size)))


@converts("baddbmm.default", "addmm.default", "addmv.default")
def _scaled_product(a: Arguments) -> Node:
    start, left, right = list(a.values())[:3]
    if a["beta"] == 0:  # then NaN of the start does not count
        raise NotConvertible("no start")
    product = make("matmul", float_only(left), right)
    if a["alpha"] != 1:
        product = make("mul", product, constant(a["alpha"]))
    return make("add", product, start if a["beta"] == 1 else make("mul", start, constant(a["beta"])))
