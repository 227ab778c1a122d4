"""Dropout that drops: a tensor times what dropout makes of ones, which has the same bits, and is drawn from the same
random numbers. So kernels multiply, and the factors are there for gradients.

PyTorch's CPU multiplies by factors of 0 and 1 / (1 - p) that it draws in the order of the operand's memory; its GPU by
0 or 1 and then by 1 / (1 - p), which is the same but for 16 bits, where the factors would be rounded. Whole channels
are dropped by one factor for each, on all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelwright.capture.values import memory_order
from kernelwright.ir.node import Node, make
from kernelwright.ir.registry import torch_dtype

_WHOLE_CHANNELS = "feature_dropout.default"
DROPOUTS = ("dropout.default", _WHOLE_CHANNELS)


def dropped(target: str, arguments: dict[str, Any], traced: torch.Tensor,
            call: Callable[[dict[str, Any], torch.Tensor], Node]) -> Node | None:
    """What a call of dropout gives; None where it is to stay a call. traced: its operand in the trace. call: makes a
    call of the operator with other arguments, whose result is like a tensor."""
    x = arguments["input"]
    if not arguments["train"] or not 0 < arguments["p"] < 1 or not x.size or "float" not in x.dtype:
        return None
    order = tuple(range(x.rank)) if traced.is_contiguous() else memory_order(traced)
    if target == _WHOLE_CHANNELS:
        if x.rank < 2:
            return None  # it raises
        order, shape = tuple(range(x.rank)), (*x.shape[:2], *(1 for _ in x.shape[2:]))
    elif order is None or x.dtype not in ("float32", "float64"):
        return None
    else:
        shape = tuple(x.shape[axis] for axis in order)
    like = torch.empty(shape, dtype=torch_dtype(x.dtype), device=traced.device)
    factors = call({**arguments, "input": make("literal", value=1.0, shape=shape, dtype=x.dtype)}, like)
    if order != tuple(range(x.rank)):
        factors = make("permute", factors, axes=tuple(map(order.index, range(x.rank))))
    return make("mul", x, factors)
