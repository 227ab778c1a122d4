"""Elements that stand elsewhere than at an affine place: embeddings, rows by number, gathers, borders, resampling.

These are what models write; PyTorch refuses indices that are none (:mod:`kernelwright.capture.checks`). ``lookup`` is
what kernels read of them: they compute the number of an element from indices, and from positions, which they get as a
tensor that counts (``places``), so that an element's number is an expression of loads like any other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare


def taken(x: torch.Tensor, *indices: torch.Tensor, axes: tuple[int, ...], wraps: bool) -> torch.Tensor:
    """x at numbers along axes, one index for each, broadcast together. Their axes stand in the place of those, and come
    first where other axes of x are between them. wraps: whether negative numbers count from the end; of one axis if
    not."""
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


def border(x: torch.Tensor, *, amounts: tuple[tuple[int, int], ...], mode: str) -> torch.Tensor:
    """x with some of its own elements around it, as F.pad has them. amounts: (before, after) of the last axes, as
    many of these as the mode takes, none negative."""
    return F.pad(x, _widths(amounts), mode=mode)


def _widths(amounts: tuple[tuple[int, int], ...]) -> list[int]:
    return [amount for pair in reversed(amounts) for amount in pair]


def resampled(x: torch.Tensor, *, mode: str, size: tuple[int, ...] | None, scales: tuple[float, ...] | None,
              aligned: bool | None) -> torch.Tensor:
    """x at other positions of its axes behind the second, to a size or by scales, as F.interpolate has it."""
    return F.interpolate(x, size and list(size), scales and list(scales), mode, aligned)


def _resampled_code(inputs: list[str], node: Applied) -> str:
    how = f"size={list(node['size'])}" if node["size"] else f"scale_factor={list(node['scales'])}"
    corners = f", align_corners={node['aligned']}" if node["aligned"] is not None else ""
    return f"F.interpolate({inputs[0]}, {how}, mode={node['mode']!r}{corners})"


#: What says where kernels find elements.
TABLES = ("places", "border_places", "nearest_places", "between")
# What does not depend on any input is made once: what counts, and where the elements of one axis of a border or of a
# resampled tensor come from. PyTorch says it itself, of a tensor that counts.
declare("places", "opaque", lambda *, count: torch.arange(count, dtype=torch.int32),
        "torch.arange({count}, dtype=torch.int32, device=_device)", operations=lambda node: 0)


def border_places(*, count: int, amounts: tuple[int, int], mode: str) -> torch.Tensor:
    """For every element of an axis with its border the element that it is."""
    return F.pad(torch.arange(count, dtype=torch.float64)[None, None], amounts, mode=mode).int()[0, 0]


def nearest_places(*, count: int, size: int, mode: str) -> torch.Tensor:
    """For every element of an axis of ``size`` elements the nearest of ``count``."""
    return F.interpolate(torch.arange(count, dtype=torch.float32)[None, None], size, mode=mode).int()[0, 0]


def between(*, part: str, dtype_of: str, count: int, size: int, scale: float | None, aligned: bool) -> torch.Tensor:
    """For every element of an axis of ``size`` elements, lying between two of ``count`` as PyTorch computes it: the
    one ("low"), the other ("high"), or what is taken of either ("rest" of the one and "share" of the other)."""
    at = torch.arange(size, dtype=getattr(torch, dtype_of))
    ratio = _ratio(count, size, scale, aligned)
    place = at * ratio if aligned else ((at + 0.5) * ratio - 0.5).clamp_min(0)
    low = place.floor().clamp_max(count - 1)
    share = (place - low).clamp_max(1)
    whole = {"low": low, "high": (low + 1).clamp_max(count - 1)}
    return whole[part].int() if part in whole else share if part == "share" else 1 - share


def _ratio(count: int, size: int, scale: float | None, aligned: bool) -> float:
    if aligned:
        return (count - 1) / (size - 1) if size > 1 else 0.0
    return count / size if scale is None else 1 / scale


def _between_code(_: list[str], node: Applied) -> str:
    at = f"torch.arange({node['size']}, dtype=torch.{node['dtype_of']}, device=_device)"
    ratio, last = _ratio(node["count"], node["size"], node["scale"], node["aligned"]), node["count"] - 1
    place = f"({at} * {ratio!r})" if node["aligned"] else f"(({at} + 0.5) * {ratio!r} - 0.5).clamp_min(0)"
    low = f"{place}.floor().clamp_max({last})"
    share = f"({place} - {low}).clamp_max(1)"
    return {"low": f"{low}.int()", "high": f"({low} + 1).clamp_max({last}).int()", "share": share,
            "rest": f"1 - {share}"}[node["part"]]


declare("taken", "opaque", taken, _taken_code, operations=lambda node: node.size)
declare("gather", "opaque", lambda x, index, *, axis: torch.gather(x, axis, index), "torch.gather({0}, {axis}, {1})",
        operations=lambda node: node.size)
declare("one_hot", "opaque", lambda index, *, count: F.one_hot(index, count), "F.one_hot({0}, {count})",
        operations=lambda node: node.size)
declare("border", "opaque", border,
        lambda inputs, node: f"F.pad({inputs[0]}, {_widths(node['amounts'])}, mode={node['mode']!r})",
        operations=lambda node: node.size)
declare("resampled", "opaque", resampled, _resampled_code, operations=lambda node: node.size)
declare("lookup", "opaque", lookup, _lookup_code, operations=lambda node: node.size)
declare("border_places", "opaque", border_places,
        "F.pad(torch.arange({count}, dtype=torch.float64, device=_device)[None, None], {amounts}, "
        "mode={mode!r}).int()[0, 0]", operations=lambda node: 0)
declare("nearest_places", "opaque", nearest_places,
        "F.interpolate(torch.arange({count}, dtype=torch.float32, device=_device)[None, None], {size}, "
        "mode={mode!r}).int()[0, 0]", operations=lambda node: 0)
declare("between", "opaque", between, _between_code, operations=lambda node: 0)
