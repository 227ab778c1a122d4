"""Adjoints of linear maps, which are linear maps: products as products, convolutions and pools by PyTorch's own
backward operators, sums over regions by what each position is summed into."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from kernelwright.adjoint.table import (
    NoAdjoint,
    add,
    adjoint,
    apply,
    broadcast,
    call,
    calls,
    listed,
    mul,
    neg,
    summed_to,
    where,
)
from kernelwright.algebra.build import plus_zero, reduce, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, make

Found = Sequence[Node | None]


def _turned(x: Node) -> Node:
    """Matrices with rows and columns exchanged."""
    return make("permute", x, axes=(*range(x.rank - 2), x.rank - 1, x.rank - 2))


def _rows(x: Node) -> Node:
    """All rows of matrices, as those of one."""
    return reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


@adjoint("linear")
def _linear(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, weight, *bias = node.inputs
    if weight.rank != 2 or not x.rank or not node.rank:
        raise NoAdjoint("a linear layer of one feature")
    of_x = make("matmul", g, weight) if wanted[0] else None
    of_weight = make("matmul", _turned(_rows(g)), _rows(x)) if wanted[1] else None
    return (of_x, of_weight, *([summed_to(g, bias[0].shape) if wanted[2] else None] if bias else []))


@adjoint("matmul")
def _matmul(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    a, b = node.inputs
    if b.rank == 1 or (a.rank == 1 and b.rank > 2):  # products with a vector: no sum, whose zeros were +0
        return _with_vector(a, b, g, wanted)
    left = reshape(a, (1, a.size)) if a.rank == 1 else a
    if a.rank == 1:
        g = reshape(g, (1, g.size))
    of_a = of_b = None
    if wanted[0]:
        product = make("matmul", g, _turned(b))
        of_a = reshape(summed_to(product, left.shape), a.shape)
    if wanted[1]:
        product = make("matmul", _turned(_rows(left)), _rows(g)) if b.rank == 2 \
            and left.shape[:-1] == g.shape[:-1] else make("matmul", _turned(left), g)
        of_b = summed_to(product, b.shape)
    return of_a, of_b


def _with_vector(a: Node, b: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Of vectors x and y and matrices A: g y and g x of x y, g x^T and A^T g of A x, the same of A turned of x A."""
    if a.rank == b.rank == 1:
        return mul(g, b), mul(g, a)
    matrices, vector = (a, b) if b.rank == 1 else (_turned(b), a)
    of_matrices = of_vector = None
    if wanted[0 if b.rank == 1 else 1]:
        of_matrices = mul(reshape(g, (*g.shape, 1)), vector)
        of_matrices = of_matrices if b.rank == 1 else _turned(of_matrices)
    if wanted[1 if b.rank == 1 else 0]:
        product = make("matmul", _turned(_rows(matrices)), reshape(g, (g.size, 1)))
        of_vector = reshape(product, vector.shape)
    return (of_matrices, of_vector) if b.rank == 1 else (of_vector, of_matrices)


@adjoint("contract")
def _contract(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """sum_j a_ij b_jk = c_ik: of a it is g_ik b_jk summed over k."""
    terms, result = node["equation"].split("->")
    first, second = terms.split(",")
    sizes: dict[str, int] = {}
    for term, operand in zip((first, second), node.inputs, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            if sizes.setdefault(letter, size) != size or term.count(letter) > 1:
                raise NoAdjoint("a contraction that broadcasts, or takes a diagonal")
    found: list[Node | None] = []
    for place, (own, other) in enumerate(((first, second), (second, first))):
        if not wanted[place]:
            found.append(None)
        elif not set(own) <= {*other, *result}:
            raise NoAdjoint("a contraction that sums one operand alone")
        else:
            found.append(make("contract", g, node.inputs[1 - place], equation=f"{result},{other}->{own}"))
    return found


def _kind(x: Node) -> tuple[tuple[int, ...], str]:
    return x.shape, x.dtype


@adjoint("convolution")
def _convolution(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, weight, *bias = node.inputs
    mask = (*wanted[:2], bool(bias) and wanted[2])
    template = (("input", 0), ("input", 1), ("input", 2), listed(bias[0].shape) if bias else None,
                *(listed(node[name]) for name in ("stride", "padding", "dilation")), node["transposed"],
                listed(node["output_padding"]), node["groups"], listed(mask))
    like = [_kind(part) if asked else None for part, asked in zip((x, weight, *(bias or [weight])), mask, strict=True)]
    found = calls("aten.convolution_backward.default", (g, x, weight), template, like)
    return found if bias else found[:2]


def _flat(x: Node, rank: int) -> Node:
    """x with an axis of size one before a single spatial one, as PyTorch has it."""
    return reshape(x, (*x.shape[:-1], 1, x.shape[-1])) if rank == 1 else x


def _to_maxima(node: Node, g: Node) -> Node:
    """The gradients of windows that lie side by side, each at its window's maximum: the first of equal ones, and of NaN
    the last, which is what a walk finds that takes what is greater, or NaN."""
    x, kernel, sizes = node.inputs[0], node["kernel"], node.shape[-len(node["kernel"]):]
    rank = len(kernel)
    lead = x.shape[:x.rank - rank]
    rest = [x.shape[x.rank - rank + a] - sizes[a] * kernel[a] for a in range(rank)]
    whole = x.shape
    for a in range(rank):
        if rest[a]:
            x = make("slice", x, axis=len(lead) + a, start=0, stop=sizes[a] * kernel[a], step=1)
    windows = reshape(x, (*lead, *(n for pair in zip(sizes, kernel, strict=True) for n in pair)))
    axes = tuple(len(lead) + 2 * a + 1 for a in range(rank))
    number: Node | None = None
    for a, axis in enumerate(axes):
        along = reshape(make("places", count=kernel[a]), tuple(kernel[a] if n == axis else 1
                                                               for n in range(windows.rank)))
        along = mul(cast(along, "float32"), float(prod(kernel[a + 1:])))
        number = along if number is None else add(number, along)
    assert number is not None
    greatest = apply("eq", windows, reduce("amax", windows, axes))
    place = where(greatest, number, where(apply("ne", windows, windows), neg(number), float(prod(kernel))))
    chosen = apply("eq", place, reduce("amin", place, axes))
    shape = tuple(1 if n in axes else size for n, size in enumerate(windows.shape))
    found = reshape(where(chosen, reshape(plus_zero(g), shape), 0.0), x.shape)  # PyTorch adds them to zeros
    if any(rest):
        found = make("pad", found, amounts=(*((0, 0) for _ in lead), *((0, n) for n in rest)), value=0.0)
    assert found.shape == whole
    return found


@adjoint("max_pool")
def _max_pool(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """To the place of each window's maximum, which PyTorch's own operator finds where windows overlap."""
    rank = len(node["kernel"])
    if node["kernel"] == node["stride"] and not any(node["padding"]) and all(d == 1 for d in node["dilation"]) and all(
            n * k <= size for n, k, size in zip(node.shape[-rank:], node["kernel"], node.inputs[0].shape[-rank:],
                                                strict=True)):
        return (_to_maxima(node, g),)
    x, before = _flat(node.inputs[0], rank), (1,) if rank == 1 else ()
    two = max(rank, 2)
    geometry = (*(listed((*(0 if name == "padding" else 1,) * len(before), *node[name]))
                  for name in ("kernel", "stride", "padding", "dilation")), node["ceil"])
    shape = (*node.shape[:-1], 1, node.shape[-1]) if rank == 1 else node.shape
    _, places = calls(f"aten.max_pool{two}d_with_indices.default", (x,), (("input", 0), *geometry),
                      ((shape, x.dtype), (shape, "int64")))
    assert places is not None
    found = call(f"aten.max_pool{two}d_with_indices_backward.default", (_flat(g, rank), x, places),
                 (("input", 0), ("input", 1), *geometry, ("input", 2)), x.shape, x.dtype)
    return (reshape(found, node.inputs[0].shape),)


@adjoint("average_pool")
def _average_pool(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    rank = len(node["kernel"])
    x, before = _flat(node.inputs[0], rank), (1,) if rank == 1 else ()
    geometry = tuple(listed((*(0 if name == "padding" else 1,) * len(before), *node[name]))
                     for name in ("kernel", "stride", "padding"))
    found = call(f"aten.avg_pool{max(rank, 2)}d_backward.default", (_flat(g, rank), x),
                 (("input", 0), ("input", 1), *geometry, node["ceil"], node["include_padding"], node["divisor"]),
                 x.shape, x.dtype)
    return (reshape(found, node.inputs[0].shape),)


@adjoint("adaptive_average_pool")
def _adaptive_average_pool(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    x, size = node.inputs[0], node["size"]
    spatial = x.shape[x.rank - len(size):]
    if any(n % s for n, s in zip(spatial, size, strict=True)):
        raise NoAdjoint("an adaptive pool of windows of several sizes")
    kernel = tuple(n // s for n, s in zip(spatial, size, strict=True))
    lead = x.shape[:x.rank - len(size)]
    g = reshape(g, (*lead, *(n for s in size for n in (s, 1))))
    g = make("expand", g, shape=(*lead, *(n for s, k in zip(size, kernel, strict=True) for n in (s, k))))
    found = reshape(apply("div", g, float(prod(kernel))), x.shape)
    return (found if prod(size) == 1 else plus_zero(found),)  # one window is a mean, more are added to zeros


@adjoint("region_sum")
def _region_sum(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Along each axis a position gets the gradients of all classes that it is summed into."""
    x = node.inputs[0]
    for axis, classes in enumerate(node["classes"]):
        if classes is None:
            continue
        size = x.shape[axis]
        places = reshape(make("places", count=size), tuple(size if a == axis else 1 for a in range(x.rank)))
        total: Node | None = None
        for number, progressions in enumerate(classes):
            own = make("slice", g, axis=axis, start=number, stop=number + 1, step=1)
            for start, stop, step in progressions:
                if start >= stop:
                    continue
                term = own
                if (start, step) != (0, 1) or stop < size:
                    held = apply("logical_and", apply("ge", places, start), apply("lt", places, stop))
                    if step > 1:
                        rest = apply("remainder", apply("sub", places, start), step)
                        held = apply("logical_and", held, apply("eq", rest, 0))
                    term = where(held, own, 0.0)
                total = term if total is None else add(total, term)
        shape = (*g.shape[:axis], size, *g.shape[axis + 1:])
        g = make("literal", value=0.0, shape=shape, dtype=g.dtype) if total is None else broadcast(total, shape)
    g = mul(g, node["scale"]) if node["scale"] != 1.0 else g
    return (cast(g, x.dtype),)


@adjoint("class_entry")
def _class_entry(node: Node, g: Node, wanted: Sequence[bool]) -> Found:
    """Each gradient to the class that its target names; nothing to a class that is ignored, of which no loss reads the
    entry."""
    x, target = node.inputs
    axis = node["axis"]

    def beside(value: Node) -> Node:
        return reshape(value, (*x.shape[:axis], 1, *x.shape[axis + 1:]))

    if 0 <= node["ignore"] < x.shape[axis]:
        none = make("literal", value=-1, shape=target.shape, dtype="int64")
        target = where(apply("eq", target, node["ignore"]), none, target)
    places = make("cast", make("places", count=x.shape[axis]), to="int64", shape=(x.shape[axis],), dtype="int64")
    places = reshape(places, tuple(x.shape[axis] if a == axis else 1 for a in range(x.rank)))
    return (where(apply("eq", places, beside(target)), beside(g), 0.0), None)
