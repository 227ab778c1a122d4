"""Tensors at other positions than their own: resampling to another size, and samples where a grid says.

Where the elements of one axis of a resampled tensor come from depends on no input: such tables are made once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernelwright.ir.registry import Applied, declare

#: Keys' parameter of cubic convolution, as PyTorch has it (R. Keys, Cubic convolution interpolation for digital image
#: processing, IEEE Transactions on Acoustics, Speech, and Signal Processing 29 (1981), 1153).
CUBIC = -0.75


def resampled(x: torch.Tensor, *, mode: str, size: tuple[int, ...] | None, scales: tuple[float, ...] | None,
              aligned: bool | None, device: str) -> torch.Tensor:
    """x at other positions of its axes behind the second, to a size or by scales, as F.interpolate has it. device: the
    kind on which eager does it, which decides what becomes of axes that stay as long as they are."""
    return F.interpolate(x, size and list(size), scales and list(scales), mode, aligned)


def _resampled_code(inputs: list[str], node: Applied) -> str:
    how = f"size={list(node['size'])}" if node["size"] else f"scale_factor={list(node['scales'])}"
    corners = f", align_corners={node['aligned']}" if node["aligned"] is not None else ""
    return f"F.interpolate({inputs[0]}, {how}, mode={node['mode']!r}{corners})"


def nearest_places(*, count: int, size: int, mode: str) -> torch.Tensor:
    """For every element of an axis of ``size`` elements the nearest of ``count``."""
    return F.interpolate(torch.arange(count, dtype=torch.float32)[None, None], size, mode=mode).int()[0, 0]


def between(*, part: str, dtype_of: str, count: int, size: int, scale: float | None, aligned: bool,
            stays: bool) -> torch.Tensor:
    """For every element of an axis of ``size`` elements, lying between two of ``count`` as PyTorch computes it: the
    one ("low"), the other ("high"), or what is taken of either ("rest" of the one and "share" of the other). stays:
    whether both are the element itself, which has all weight."""
    if stays:
        return torch.arange(size).int() if part in ("low", "high") else \
            torch.full((size,), float(part == "rest"), dtype=getattr(torch, dtype_of))
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
    if node["stays"]:
        return f"torch.arange({node['size']}, device=_device).int()" if node["part"] in ("low", "high") else \
            f"torch.full(({node['size']},), {float(node['part'] == 'rest')}, dtype=torch.{node['dtype_of']}, " \
            "device=_device)"
    at = f"torch.arange({node['size']}, dtype=torch.{node['dtype_of']}, device=_device)"
    ratio, last = _ratio(node["count"], node["size"], node["scale"], node["aligned"]), node["count"] - 1
    place = f"({at} * {ratio!r})" if node["aligned"] else f"(({at} + 0.5) * {ratio!r} - 0.5).clamp_min(0)"
    low = f"{place}.floor().clamp_max({last})"
    share = f"({place} - {low}).clamp_max(1)"
    return {"low": f"{low}.int()", "high": f"({low} + 1).clamp_max({last}).int()", "share": share,
            "rest": f"1 - {share}"}[node["part"]]


def cubic_place(*, tap: int, dtype_of: str, count: int, size: int, scale: float | None, aligned: bool) -> torch.Tensor:
    """For every element of an axis of ``size`` elements one of the four of ``count`` around it, as F.interpolate has
    it: number ``tap`` less one from that before its place. Those beyond either end are that end."""
    return (_before(dtype_of, count, size, scale, aligned)[1] + (tap - 1)).clamp(0, count - 1).int()


def cubic_weight(*, tap: int, dtype_of: str, count: int, size: int, scale: float | None, aligned: bool) -> torch.Tensor:
    """By what that element is multiplied."""
    place, low = _before(dtype_of, count, size, scale, aligned)
    return _cubic(((place - low).clamp(0, 1) - (tap - 1)).abs(), inner=tap in (1, 2))


def _before(dtype_of: str, count: int, size: int, scale: float | None, aligned: bool
            ) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.arange(size, dtype=getattr(torch, dtype_of))
    ratio = _ratio(count, size, scale, aligned)
    place = at * ratio if aligned else (at + 0.5) * ratio - 0.5
    return place, place.floor().clamp_max(count - 1)


def _cubic(gap: torch.Tensor, *, inner: bool) -> torch.Tensor:
    """The weight of an element at a distance, of up to one (inner) or two."""
    if inner:
        return ((CUBIC + 2) * gap - (CUBIC + 3)) * gap * gap + 1
    return ((CUBIC * gap - 5 * CUBIC) * gap + 8 * CUBIC) * gap - 4 * CUBIC


def _cubic_code(_: list[str], node: Applied) -> str:
    at = f"torch.arange({node['size']}, dtype=torch.{node['dtype_of']}, device=_device)"
    ratio = _ratio(node["count"], node["size"], node["scale"], node["aligned"])
    last, tap = node["count"] - 1, node["tap"]
    place = f"({at} * {ratio!r})" if node["aligned"] else f"(({at} + 0.5) * {ratio!r} - 0.5)"
    low = f"{place}.floor().clamp_max({last})"
    if node.op == "cubic_place":
        return f"({low} + {tap - 1}).clamp(0, {last}).int()"
    gap = f"(({place} - {low}).clamp(0, 1) - {tap - 1}).abs()"
    if tap in (1, 2):
        return f"(lambda gap: ({CUBIC + 2} * gap - {CUBIC + 3}) * gap * gap + 1)({gap})"
    return f"(lambda gap: (({CUBIC} * gap + {-5 * CUBIC}) * gap + {8 * CUBIC}) * gap + {-4 * CUBIC})({gap})"


def sampled(x: torch.Tensor, grid: torch.Tensor, *, mode: str, padding: str, aligned: bool, device: str
            ) -> torch.Tensor:
    """x (batch, channels, height, width) where ``grid`` (batch, rows, columns, 2) says, as F.grid_sample has it.
    device: the kind on which eager does it, whose formulas differ in rounding and in what is not finite."""
    return F.grid_sample(x, grid, mode, padding, aligned)


declare("resampled", "opaque", resampled, _resampled_code, operations=lambda node: node.size)
declare("sampled", "opaque", sampled, "F.grid_sample({0}, {1}, mode={mode!r}, padding_mode={padding!r}, "
        "align_corners={aligned})", operations=lambda node: 8 * node.size)
declare("nearest_places", "opaque", nearest_places,
        "F.interpolate(torch.arange({count}, dtype=torch.float32, device=_device)[None, None], {size}, "
        "mode={mode!r}).int()[0, 0]", operations=lambda node: 0)
declare("between", "opaque", between, _between_code, operations=lambda node: 0)
declare("cubic_place", "opaque", cubic_place, _cubic_code, operations=lambda node: 0)
declare("cubic_weight", "opaque", cubic_weight, _cubic_code, operations=lambda node: 0)
