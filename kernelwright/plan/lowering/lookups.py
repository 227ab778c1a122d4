"""Elements that stand elsewhere than at an affine place, as kernels read them: one lookup, with the positions that it
counts and the indices that choose."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from kernelwright.algebra.build import NARROW, reshape
from kernelwright.algebra.collapse import cast
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.ops.lookups import first_taken
from kernelwright.ir.ops.windows import most_windows


def looked_up(x: Node, indices: Mapping[int, Node], along: tuple[int, ...], shape: tuple[int, ...], *,
              wraps: bool = False, within: bool = False) -> Node:
    """The elements of x whose numbers indices give along axes (see :func:`kernelwright.ir.ops.lookups.lookup`)."""
    # Not the largest of them, which of sizes that differ from call to call is now one, now another.
    count = max(1, sum(s for axis, s in enumerate(x.shape) if axis not in indices))
    return make("lookup", x, make("places", count=count), *indices.values(), axes=tuple(indices), along=along,
                shape=shape, wraps=wraps, within=within)


def of_axis(table: Node, axis: int, rank: int) -> Node:
    """A tensor of one axis as one of several, along one of these."""
    return reshape(table, tuple(table.size if a == axis else 1 for a in range(rank)))


def taken(node: Node) -> Node:
    """Indices in the place of axes."""
    x, *indices = node.inputs
    axes, first = node["axes"], first_taken(node["axes"])
    others = [a for a in range(x.rank) if a not in axes]
    broadcast = node.rank - len(others)
    along = {a: place if place < first else place + broadcast for place, a in enumerate(others)}
    behind = (1,) * (len(others) - first)
    chosen = {axis: reshape(index, index.shape + behind) for axis, index in zip(axes, indices, strict=True)}
    return looked_up(x, chosen, tuple(along.get(a, first) for a in range(x.rank)), node.shape, wraps=node["wraps"])


def gather(node: Node) -> Node:
    """An index for every element."""
    x, index = node.inputs
    return looked_up(x, {node["axis"]: index}, tuple(range(x.rank)), node.shape)


def one_hot(node: Node) -> Node:
    """Whether an index is each of the numbers."""
    index, = node.inputs
    same = make("eq", reshape(index, (*index.shape, 1)), cast(make("places", count=node["count"]), index.dtype))
    return cast(same, node.dtype)


def scattered(node: Node) -> Node:
    """For each element whether one of the few indices after the other is its number: of several for one element the sum
    is in their order, and the last one stays, as on a CPU."""
    x, index, source = node.inputs
    axis = node["axis"]
    number = cast(of_axis(make("places", count=x.shape[axis]), axis, x.rank), index.dtype)
    result = x
    for place in range(index.shape[axis]):
        own, new = (make("slice", n, axis=axis, start=place, stop=place + 1, step=1) for n in (index, source))
        new = make("add", result, new) if node["adds"] else new
        result = make("where", make("eq", own, number), new, result)
    return result


def border(node: Node) -> Node:
    """The elements that the positions of each axis with a border are."""
    x, = node.inputs
    first = x.rank - len(node["amounts"])
    tables = {axis: make("border_places", count=x.shape[axis], amounts=amounts, mode=node["mode"])
              for axis, amounts in enumerate(node["amounts"], first) if any(amounts)}
    indices = {axis: of_axis(table, axis, x.rank) for axis, table in tables.items()}
    return looked_up(x, indices, tuple(range(x.rank)), node.shape, within=True)


def fold(node: Node) -> Node:
    """The sum of the elements that windows have at each place: of each axis the few windows that may have it."""
    x, = node.inputs
    batch, channels, *kernel, rows, columns = x.shape
    sizes, most, tables = node["size"], [], []
    for axis, blocks in enumerate((rows, columns)):
        how = {name: node[name][axis] for name in ("stride", "padding", "dilation")}
        most.append(most_windows(kernel[axis], how["stride"], how["dilation"]))
        shape = [1, 1, 1, 1]
        shape[axis], shape[axis + 2] = sizes[axis], most[axis]
        tables.append({part: reshape(make("fold_places", part=part, size=sizes[axis], kernel=kernel[axis],
                                          blocks=blocks, **how), tuple(shape)) for part in ("tap", "block", "inside")})
    shape = (batch, channels, *sizes, *most)
    indices = {2: tables[0]["tap"], 3: tables[1]["tap"], 4: tables[0]["block"], 5: tables[1]["block"]}
    value = looked_up(x, indices, tuple(range(6)), shape, within=True)
    value = make("where", make("logical_and", tables[0]["inside"], tables[1]["inside"]), value, constant(0.0))
    wide = "float32" if x.dtype in NARROW else x.dtype
    return cast(make("sum", cast(value, wide), axes=(4, 5), keepdim=False), x.dtype)


LOWERINGS = {"fold": fold, "scattered": scattered,
             "taken": taken, "gather": gather, "one_hot": one_hot, "border": border}


def has_form(node: Node) -> bool:
    """Whether kernels may look the elements up: there are some, whose numbers and indices kernels know."""
    known = all(i.dtype in ("int64", "int32") for i in node.inputs[1:2])
    some = all(prod(n.shape) for n in (node, *node.inputs))
    return known and some and (node.inputs[0].rank > 0 or node.op == "one_hot")
