"""Converters of operators that make a tensor filled with one number (see :mod:`kernelwright.capture.converters.table`).

Each becomes a literal with a number in place of elements, which kernels write where they would read it.
"""

from __future__ import annotations

import torch

from kernelwright.capture.converters.table import Arguments, NotConvertible, converts
from kernelwright.capture.values import dtype_name
from kernelwright.ir.node import Node, make
from kernelwright.ir.registry import ITEM_BYTES, torch_dtype

_NUMBERS = {"ones": 1, "zeros": 0}


@converts("full.default", "ones.default", "zeros.default", "scalar_tensor.default",
          *(f"{name}_like.default" for name in ("full", "ones", "zeros")),
          *(f"new_{name}.default" for name in ("full", "ones", "zeros")))
def _filled(a: Arguments) -> Node:
    operator = a["operator"].split(".")[0]
    like = a.get("self")
    number = a["s"] if operator == "scalar_tensor" else a.get("fill_value", 0)
    number = next((n for name, n in _NUMBERS.items() if name in operator), number)
    shape = like.shape if like is not None and operator.endswith("_like") else tuple(a.get("size", ()))
    if not isinstance(number, (bool, int, float)) or not all(isinstance(size, int) for size in shape) \
            or a.get("layout") not in (None, torch.strided):
        raise NotConvertible(f"a tensor filled with {number!r}")
    if a["dtype"] is not None:
        dtype = dtype_name(a["dtype"])
    elif like is not None:
        dtype = like.dtype
    else:  # a full takes its number's type, everything else the default one
        typed = torch.tensor(number if operator == "full" else 0.0)
        dtype = dtype_name(typed.dtype)
    if dtype not in ITEM_BYTES or dtype.startswith("complex"):
        raise NotConvertible(f"a tensor of {dtype}")
    value = torch.full((), number, dtype=torch_dtype(dtype)).item()
    return make("literal", value=value, shape=shape, dtype=dtype)
