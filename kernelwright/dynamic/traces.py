"""Whether a forward does the same at other sizes: the calls of PyTorch that it makes, written down, size by size.

A forward may decide by a size (``if x.shape[0] > 4``), or refuse one. Capture sees what it does at the sizes that it is
given alone. So the model runs at every size that is looked at, on tensors without data where it can, and each call of
PyTorch is written as a line: function, plain arguments, shapes of results. What is the same text but for numbers that
are formulas of the sizes is the same computation.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from kernelwright.capture.observed import on_meta, without_data
from kernelwright.containers import leaves
from kernelwright.failures import is_ours
from kernelwright.problem.arguments import split
from kernelwright.problem.memory import is_out_of_memory

#: Asked of tensors, not computed.
_ASKED = ("__get__", "size", "dim", "stride", "is_contiguous", "numel", "__len__")


class _Calls(TorchFunctionMode):
    """Writes down calls of PyTorch's functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in _ASKED:
            plain = [_written(value) for value in (*args, *sorted((kwargs or {}).items()))]
            self.lines.append(f"{resolve_name(func) or name}({', '.join(plain)}) -> {_written(result)}")
        return result


def _written(value: Any) -> str:
    """A value of a call as text: of tensors shape and type, numbers as they are."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_written, value))})"
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return repr(value)
    return type(value).__name__


def trace(model: nn.Module, arguments: Sequence[Any], *, recording: bool) -> str | None:
    """The calls that a forward makes; None where it raises. ``model`` may get another state."""
    try:
        with on_meta(model):
            positional, named = split(arguments)
            return _run(model, [_without_data(value) for value in positional],
                        {name: _without_data(value) for name, value in named.items()}, recording=recording)
    except Exception:
        pass  # values that the forward asks for, or a device that nobody knows
    try:
        positional, named = split(arguments)
        return _run(copy.deepcopy(model), positional, named, recording=recording)
    except Exception as error:
        if not is_ours(error) or is_out_of_memory(error):
            raise
        return None


def _without_data(value: Any) -> Any:
    return without_data(value) if isinstance(value, torch.Tensor) else value


def _run(model: nn.Module, positional: Sequence[Any], named: dict[str, Any], *, recording: bool) -> str:
    calls = _Calls()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.set_grad_enabled(recording), calls:
        warnings.simplefilter("ignore")
        result = model(*positional, **named)
    shapes = [_written(value) for value in leaves(result)]
    return "\n".join([*calls.lines, f"return {', '.join(shapes)}"])
