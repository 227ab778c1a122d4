"""Every contraction as a matrix product or a convolution, with what stands around it apart.

A contraction that becomes a kernel is lowered to one of two anchors, of which `contraction.compile` makes a record:
``matmul`` of (rows, K) and (K, columns), both with one batch axis in front or with none, and ``convolution`` without
bias. Biases, reshapes and permutations become ordinary nodes.
"""

from __future__ import annotations

from math import prod

from kernelwright.algebra.build import per_channel, reshape
from kernelwright.ir.node import Node, make

NARROW_TYPES = ("float16", "bfloat16")
TYPES = ("float32", *NARROW_TYPES)
ANCHORS = ("matmul", "convolution")
#: Output channels that a kernel can reduce: a tile has all of them.
MOST_REDUCED = 256


def can_contract(node: Node) -> bool:
    """Whether a node is a contraction that :func:`as_product` takes."""
    if node.op not in ("linear", "matmul", "convolution", "contract") or node.dtype not in TYPES:
        return False
    if any(i.dtype != node.dtype or 0 in i.shape for i in node.inputs) or 0 in node.shape:
        return False
    if node.op == "contract":
        return _letters(node) is not None
    return node.op != "convolution" or (1 <= len(node["stride"]) <= 3 and node.rank == len(node["stride"]) + 2)


def channels_of(anchor: Node) -> int:
    """Output channels of an anchor, of each group of a convolution."""
    return anchor.shape[-1] if anchor.op == "matmul" else anchor.shape[1] // anchor["groups"]


def as_product(node: Node) -> Node:
    """The value of a contraction, by an anchor."""
    if node.op == "convolution":
        if len(node.inputs) == 2:
            return node
        product = make("convolution", *node.inputs[:2], origin=node.origin, **dict(node.attributes))
        return make("add", product, per_channel(node.inputs[2], node.rank), origin=node.origin)
    if node.op == "linear":
        x, weight = node.inputs[:2]
        product = _product(x, make("permute", weight, axes=(1, 0)), node) if weight.rank == 2 else \
            _product(x, weight, node)  # a weight of rank one gives one value for each row
        return make("add", product, node.inputs[2], origin=node.origin) if len(node.inputs) == 3 else product
    if node.op == "contract":
        return _contracted(node)
    left, right = node.inputs
    return _product(left, right, node)


def _product(a: Node, b: Node, node: Node) -> Node:
    """torch.matmul(a, b), of ``node``'s shape."""
    a = reshape(a, (1, *a.shape)) if a.rank == 1 else a
    b = reshape(b, (*b.shape, 1)) if b.rank == 1 else b
    (rows, depth), columns = a.shape[-2:], b.shape[-1]
    lead = max(a.rank, b.rank) - 2
    first, second = ((1,) * (lead + 2 - x.rank) + x.shape[:-2] for x in (a, b))
    batch = tuple(map(max, first, second))
    if prod(second) == 1:
        product = make("matmul", reshape(a, (prod(first) * rows, depth)), reshape(b, (depth, columns)),
                       origin=node.origin)
    elif prod(first) == 1:  # one matrix for every entry: it is the weight of a convolution with windows of one
        product = make("convolution", reshape(b, (prod(batch), depth, columns)), reshape(a, (rows, depth, 1)),
                       stride=(1,), padding=(0,), dilation=(1,), groups=1, transposed=False, output_padding=(0,),
                       origin=node.origin)
    else:
        product = make("matmul", *(_batched(x, batch) for x in (a, b)), origin=node.origin)
    return reshape(product, node.shape)


def _batched(x: Node, batch: tuple[int, ...]) -> Node:
    shape = (*batch, *x.shape[-2:])
    x = x if x.shape == shape else make("expand", x, shape=shape)
    return reshape(x, (prod(batch), *x.shape[-2:]))


def _letters(node: Node) -> tuple[str, str, str, str] | None:
    """The letters of batch, rows, columns and summed axes of a two-operand equation; None where it is none."""
    terms, result = node["equation"].replace(" ", "").split("->")
    if terms.count(",") != 1 or "." in terms:
        return None
    left, right = terms.split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip((left, right), node.inputs, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                return None
    batch = "".join(c for c in left if c in right and c in result)
    summed = "".join(c for c in left if c in right and c not in result)
    rows, columns = "".join(c for c in left if c not in right), "".join(c for c in right if c not in left)
    unique = all(len(set(t)) == len(t) for t in (left, right, result))
    return (batch, rows, columns, summed) if unique and summed and set(rows + columns) <= set(result) else None


def _contracted(node: Node) -> Node:
    """An einsum as one batched product."""
    found = _letters(node)
    assert found is not None
    batch, rows, columns, summed = found
    terms, result = node["equation"].replace(" ", "").split("->")
    left, right = terms.split(",")
    sizes = {c: s for t, x in zip((left, right), node.inputs, strict=True) for c, s in zip(t, x.shape, strict=True)}

    def count(letters: str) -> int:
        return prod(sizes[c] for c in letters)

    def arranged(operand: Node, term: str, *letters: str) -> Node:
        axes = tuple(term.index(c) for part in letters for c in part)
        moved = operand if axes == tuple(range(len(axes))) else make("permute", operand, axes=axes)
        return reshape(moved, (*([count(batch)] if batch else []), *(count(part) for part in letters[1:])))

    order = batch + rows + columns
    product = make("matmul", arranged(node.inputs[0], left, batch, rows, summed),
                   arranged(node.inputs[1], right, batch, summed, columns), origin=node.origin)
    product = reshape(product, tuple(sizes[c] for c in order))
    axes = tuple(order.index(c) for c in result)
    return product if axes == tuple(range(len(axes))) else make("permute", product, axes=axes)
