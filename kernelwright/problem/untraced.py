"""Dispatch modes that leave PyTorch's tracer where it is: not imported, until something is traced."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from torch.utils._python_dispatch import TorchDispatchMode

#: The module that holds most of what a trace imports.
TRACER = "torch._dynamo"
Mode = TypeVar("Mode", bound=type[TorchDispatchMode])


def without_tracer(mode: Mode) -> Mode:
    """The class of a dispatch mode, whose calls no longer import the tracer.

    PyTorch has it told to leave these calls alone, and imports it for that at the first of them, which takes about as
    long as its own import. Where nobody has imported it, nobody traces.
    """
    told = mode.__dict__["__torch_dispatch__"]
    plain = getattr(told, "__wrapped__", told)

    def dispatch(self: Any, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return (told if TRACER in sys.modules else plain)(self, func, types, args, kwargs)

    mode.__torch_dispatch__ = dispatch
    return mode
