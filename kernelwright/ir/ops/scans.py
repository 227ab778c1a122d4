"""Scans: every element becomes the combination of those up to it along ``axis``.

``reverse`` scans from the end; ``exclusive`` leaves the element itself out (the first becomes the combination of
nothing). PyTorch has neither: rules find them in flips and shifts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch

from kernelwright.ir.registry import declare

#: By operator: how elements combine (see :class:`kernelwright.plan.kernels.Scan`), the combination of nothing, cost.
SCANS: dict[str, tuple[str, float, int]] = {
    "cumsum": ("sum", 0.0, 1), "cumprod": ("product", 1.0, 1), "cummax": ("max", -inf, 1), "cummin": ("min", inf, 1),
    "logcumsumexp": ("logsumexp", -inf, 24),
}
_FUNCTIONS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "cumsum": torch.cumsum, "cumprod": torch.cumprod, "cummax": lambda x, axis: torch.cummax(x, axis).values,
    "cummin": lambda x, axis: torch.cummin(x, axis).values, "logcumsumexp": torch.logcumsumexp,
}


def _reference(name: str) -> Callable[..., torch.Tensor]:
    def scan(x: torch.Tensor, *, axis: int, reverse: bool = False, exclusive: bool = False) -> torch.Tensor:
        x = x.flip(axis) if reverse else x
        if exclusive:
            x = torch.cat((torch.full_like(x.narrow(axis, 0, 1), SCANS[name][1]),
                           x.narrow(axis, 0, x.shape[axis] - 1)), axis)
        result = _FUNCTIONS[name](x, axis)
        return result.flip(axis) if reverse else result

    return scan


def _code(inputs: list[str], node: Any) -> str:
    x, axis = inputs[0], node["axis"]
    flip = f".flip({axis})" if node.get("reverse") else ""
    x += flip
    if node.get("exclusive"):
        nothing = f'float("{SCANS[node.op][1]}")' if abs(SCANS[node.op][1]) == inf else SCANS[node.op][1]
        x = (f"torch.cat((torch.full_like({x}.narrow({axis}, 0, 1), {nothing}), "
             f"{x}.narrow({axis}, 0, {node.shape[axis] - 1})), {axis})")
    values = ".values" if node.op in ("cummax", "cummin") else ""
    return f"torch.{node.op}({x}, {axis}){values}{flip}"


for _name, (_, _, _cost) in SCANS.items():
    declare(_name, "row", _reference(_name), _code, operations=lambda node, cost=_cost: cost * node.size,
            linear_in=(0,) if _name == "cumsum" else ())
