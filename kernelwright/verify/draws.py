"""Random numbers of a model's float64 copy: those that the model draws in float32.

PyTorch draws other numbers in float64 than in float32 (on a GPU even the same generator's bits go to other elements).
A copy that dropped other elements would be no reference. So what draws is called in float32, and its result widened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

#: Functions that leave out elements, those that make tensors, those like a given one, and methods that fill one.
_DROPOUTS = frozenset({"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout",
                       "feature_dropout_"})
_MAKERS = frozenset({"rand", "randn", "rand_like", "randn_like"})
_FILLERS = frozenset({"uniform_", "normal_", "bernoulli_", "exponential_"})


def drawn_in_float32(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What ``func`` gives in float64 with the random numbers of float32; NotImplemented for what does not draw so."""
    name = getattr(func, "__name__", "")
    if name in _MAKERS:
        if kwargs.get("dtype") in (None, torch.float32, torch.float64):
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
    elif name in _FILLERS:
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
            single = torch.empty_like(args[0], dtype=torch.float32, requires_grad=False)
            func(single, *map(_narrow, args[1:]), **{key: _narrow(value) for key, value in kwargs.items()})
            return args[0].copy_(single)
    elif name in _DROPOUTS and args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
        return _dropped(func, name, args[0], args[1:], dict(kwargs))
    return NotImplemented


def _dropped(func: Callable[..., Any], name: str, x: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``x`` without the elements that float32 drops, the others divided by the share that is kept."""
    share = kwargs.get("p", args[0] if args else 0.5)
    in_place = name.endswith("_") or kwargs.pop("inplace", False) or (len(args) > 2 and bool(args[2]))
    kept = func(torch.ones_like(x, dtype=torch.float32, requires_grad=False), *args[:2], **kwargs)
    trains = kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else True))
    scale = (kept != 0).double().mul_(1.0 / (1.0 - share) if trains and share < 1.0 else 1.0)
    return x.mul_(scale) if in_place else x * scale


def _narrow(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value
