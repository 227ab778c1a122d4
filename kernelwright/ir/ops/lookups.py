"""Elements that stand elsewhere than at an affine place: embeddings, rows by number, gathers, borders; resampling has a
module of its own (:mod:`kernelwright.ir.ops.resampling`).

These are what models write; PyTorch refuses indices that are none (:mod:`kernelwright.capture.checks`). ``lookup`` is
what kernels read of them: they compute the number of an element from indices, and from positions, which they get as a
tensor that counts (``places``), so that an element's number is an expression of loads like any other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def taken(x: torch.Tensor, *indices: torch.Tensor, axes: tuple[int, ...], wraps: bool,
          gradient: tuple[int, bool, bool] = (-1, False, False)) -> torch.Tensor:
    """x at numbers along axes, one index for each, broadcast together. Their axes stand in the place of those, and come
    first where other axes of x are between them. wraps: whether negative numbers count from the end; of one axis if
    not. gradient: of an embedding the row that gets none (-1: each gets its own), whether rows that are taken more
    often get less, and whether gradients are sparse."""
    if wraps:
        chosen = dict(zip(axes, indices, strict=True))
        return x[tuple(chosen.get(axis, slice(None)) for axis in range(max(axes) + 1))]
    (axis,), (index,) = axes, indices
    rows = x.index_select(axis, index.reshape(-1))
    return rows.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1:])


def first_taken(axes: tuple[int, ...]) -> int:
    """Where the axes of indices stand in a result."""
    return axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0


def _taken_code(inputs: list[str], node: Applied) -> str:
    x, index, *_ = node.inputs
    axes = node["axes"]
    if not node["wraps"] and not axes[0] and x.rank == 2:
        return f"F.embedding({inputs[1]}, {inputs[0]})"
    if not node["wraps"] and index.rank == 1:
        return f"torch.index_select({inputs[0]}, {axes[0]}, {inputs[1]})"
    chosen = dict(zip(axes, inputs[1:], strict=True))
    return f"{inputs[0]}[{', '.join(chosen.get(axis, ':') for axis in range(max(axes) + 1))}]"


def lookup(x: torch.Tensor, places: torch.Tensor, *indices: torch.Tensor, axes: tuple[int, ...],
           along: tuple[int, ...], shape: tuple[int, ...], wraps: bool = False, within: bool = False) -> torch.Tensor:
    """Of x the element that each index (broadcast to ``shape``) gives along its axis of ``axes``, and that has along
    every other axis the position of the result along axis ``along[axis]``. Indices beyond either end are those of its
    end; within: there are none."""
    chosen = dict(zip(axes, indices, strict=True))
    at = []
    for axis, to in enumerate(along):
        size = x.shape[axis]
        if axis in chosen:
            number = chosen[axis]
            number = torch.where(number < 0, number + size, number) if wraps else number
            at.append(number.clamp(0, size - 1).long())
        else:
            at.append(places[:shape[to]].long().reshape([-1 if a == to else 1 for a in range(len(shape))]))
    return x[tuple(at)].expand(shape)


def _lookup_code(inputs: list[str], node: Applied) -> str:
    at = []
    for axis, (size, to) in enumerate(zip(node.inputs[0].shape, node["along"], strict=True)):
        if axis in node["axes"]:
            number = inputs[2 + node["axes"].index(axis)]
            number = f"torch.where({number} < 0, {number} + {size}, {number})" if node["wraps"] else number
            at.append(f"{number}.clamp(0, {size - 1}).long()")
        else:
            axes = [-1 if a == to else 1 for a in range(len(node["shape"]))]
            at.append(f"{inputs[1]}[:{node['shape'][to]}].long().reshape({axes})")
    return f"{inputs[0]}[{', '.join(at)}].expand({list(node['shape'])})"


def scattered(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int, adds: bool) -> torch.Tensor:
    """x with the elements of ``source`` at the numbers of ``index``, which is broadcast to it, along an axis: added, or
    in place of x's own, of several for one place the last. Along other axes all three are as long as each other."""
    return (torch.scatter_add if adds else torch.scatter)(x, axis, index.expand(source.shape), source)


def _scattered_code(inputs: list[str], node: Applied) -> str:
    index = inputs[1] if node.inputs[1].shape == node.inputs[2].shape else \
        f"{inputs[1]}.expand({list(node.inputs[2].shape)})"
    return f"torch.{'scatter_add' if node['adds'] else 'scatter'}({inputs[0]}, {node['axis']}, {index}, {inputs[2]})"


def border(x: torch.Tensor, *, amounts: tuple[tuple[int, int], ...], mode: str) -> torch.Tensor:
    """x with some of its own elements around it, as F.pad has them. amounts: (before, after) of the last axes, as
    many of these as the mode takes, none negative."""
    return F.pad(x, _widths(amounts), mode=mode)


def _widths(amounts: tuple[tuple[int, int], ...]) -> list[int]:
    return [amount for pair in reversed(amounts) for amount in pair]


#: What says where kernels find elements.
TABLES = ("places", "border_places", "nearest_places", "between", "cubic_place", "cubic_weight",
          "window_counts", "fold_places", "adaptive_places")
# What does not depend on any input is made once: what counts, and where the elements of one axis of a border come from.
# PyTorch says it itself, of a tensor that counts.
declare("places", "opaque", lambda *, count: torch.arange(count, dtype=torch.int32),
        "torch.arange({count}, dtype=torch.int32, device=_device)", operations=lambda node: 0)


def border_places(*, count: int, amounts: tuple[int, int], mode: str) -> torch.Tensor:
    """For every element of an axis with its border the element that it is."""
    return F.pad(torch.arange(count, dtype=torch.float64)[None, None], amounts, mode=mode).int()[0, 0]


declare("taken", "opaque", taken, _taken_code, operations=lambda node: node.size)
declare("gather", "opaque", lambda x, index, *, axis: torch.gather(x, axis, index), "torch.gather({0}, {axis}, {1})",
        operations=lambda node: node.size)
declare("scattered", "opaque", scattered, _scattered_code, operations=lambda node: node.inputs[2].size)
declare("one_hot", "opaque", lambda index, *, count: F.one_hot(index, count), "F.one_hot({0}, {count})",
        operations=lambda node: node.size)
declare("border", "opaque", border,
        lambda inputs, node: f"F.pad({inputs[0]}, {_widths(node['amounts'])}, mode={node['mode']!r})",
        operations=lambda node: node.size)
declare("lookup", "opaque", lookup, _lookup_code, operations=lambda node: node.size)
declare("border_places", "opaque", border_places,
        "F.pad(torch.arange({count}, dtype=torch.float64, device=_device)[None, None], {amounts}, "
        "mode={mode!r}).int()[0, 0]", operations=lambda node: 0)
