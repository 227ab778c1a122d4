"""Random numbers of a model's float64 copy: those that the model draws in float32.

PyTorch draws other numbers in float64 than in float32 (on a GPU even the same generator's bits go to other elements).
A copy that dropped other elements would be no reference. So what draws is called in float32, and its result widened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

#: Functions that leave out elements, those that put SELU's least value there, those that make tensors, those like a
#: given one, and methods that fill one.
_DROPOUTS = frozenset({"dropout", "dropout_", "dropout1d", "dropout2d", "dropout3d", "feature_dropout",
                       "feature_dropout_"})
_ALPHA_DROPOUTS = frozenset({"alpha_dropout", "alpha_dropout_", "feature_alpha_dropout", "feature_alpha_dropout_"})
_MAKERS = frozenset({"rand", "randn", "rand_like", "randn_like"})
_FILLERS = frozenset({"uniform_", "normal_", "bernoulli_", "exponential_"})


def draws(name: str) -> bool:
    """Whether a function of this name draws other numbers for operands of another type."""
    return name in _DROPOUTS or name in _ALPHA_DROPOUTS or name in _MAKERS or name in _FILLERS or name == "bernoulli"


def drawn_in_float32(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What ``func`` gives in float64 with the random numbers of float32; NotImplemented for what does not draw so."""
    name = getattr(func, "__name__", "")
    if name in _MAKERS:
        dtype = kwargs.get("dtype")
        if dtype is None and args and isinstance(args[0], torch.Tensor):
            dtype = args[0].dtype  # of 16 bits PyTorch 2.11 draws other numbers than in float32
        if dtype in (None, torch.float32, torch.float64):
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
    elif name in _FILLERS:
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
            single = torch.empty_like(args[0], dtype=torch.float32, requires_grad=False)
            func(single, *map(_narrow, args[1:]), **{key: _narrow(value) for key, value in kwargs.items()})
            return args[0].copy_(single)
    elif name == "scaled_dot_product_attention":
        return _attention(func, _arguments_of_attention(args, kwargs))
    elif name in _DROPOUTS and args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
        return _dropped(func, name, args[0], args[1:], dict(kwargs))
    elif name in _ALPHA_DROPOUTS and args and isinstance(args[0], torch.Tensor) and args[0].dtype is torch.float64:
        return _alpha_dropped(func, name, args[0], args[1:], dict(kwargs))
    return NotImplemented


def _dropped(func: Callable[..., Any], name: str, x: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """``x`` without the elements that float32 drops, the others divided by the share that is kept. What works in place
    draws in another way on a GPU: so it does here."""
    share = kwargs.get("p", args[0] if args else 0.5)
    in_place = name.endswith("_") or kwargs.get("inplace", False) or (len(args) > 2 and bool(args[2]))
    kept = func(torch.ones_like(x, dtype=torch.float32, requires_grad=False), *args, **kwargs)
    trains = kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else True))
    scale = (kept != 0).double().mul_(1.0 / (1.0 - share) if trains and share < 1.0 else 1.0)
    return x.mul_(scale) if in_place else x * scale


def _alpha_dropped(func: Callable[..., Any], name: str, x: torch.Tensor, args: Sequence[Any], kwargs: dict[str, Any]
                   ) -> Any:
    """``x`` with SELU's least value where float32 puts it, scaled and moved to its mean and variance (Klambauer et al.,
    Self-normalizing neural networks, 2017, section 3)."""
    share = kwargs.get("p", args[0] if args else 0.5)
    trains = kwargs.get("training", kwargs.get("train", args[1] if len(args) > 1 else name.endswith("_")))
    in_place = name.endswith("_") or kwargs.get("inplace", False) or (len(args) > 2 and bool(args[2]))
    if not trains or not 0.0 < share < 1.0:
        return NotImplemented
    ones = func(torch.ones_like(x, dtype=torch.float32, requires_grad=False), *args, **kwargs)
    least = 1.7580993408473766  # its size
    scale = ((1.0 + share * least**2) * (1.0 - share)) ** -0.5
    kept, left = scale * (1.0 + least * share), scale * least * (share - 1.0)
    taken = ((ones - kept).abs() < (ones - left).abs()).double()
    factor, term = taken * scale, (1.0 - taken) * left + taken * (scale * least * share)
    return x.mul_(factor).add_(term) if in_place else x * factor + term


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def _arguments_of_attention(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    return {**defaults, **dict(zip(_ATTENTION, args, strict=False)), **kwargs}


def _attention(func: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Attention in float64 that drops the weights that float32 drops: its kernels draw in other ways than those that
    float64 has (on a GPU, a fused one, and a plain one)."""
    query, key, value = (given[name] for name in _ATTENTION[:3])
    if not given["dropout_p"] or not isinstance(query, torch.Tensor) or query.dtype is not torch.float64:
        return NotImplemented
    scores = query @ _for_heads(key, query).transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"])
    mask = given["attn_mask"]
    if given["is_causal"]:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if mask is not None and mask.dtype is torch.bool:  # PyTorch gives zeros where nothing may be attended to
        weights = weights.masked_fill(~mask.expand(weights.shape).any(-1, keepdim=True), 0.0)
    kept = _kept_weights(func, {**given, "query": query.detach(), "key": key.detach(), "value": value.detach()})
    return (weights * (kept / (1.0 - given["dropout_p"]))) @ _for_heads(value, query)


def _for_heads(tensor: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for as many heads as the queries have."""
    if tensor.dim() < 3 or tensor.shape[-3] in (1, query.shape[-3]):
        return tensor
    return tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3)


def _kept_weights(func: Callable[..., Any], given: dict[str, Any]) -> torch.Tensor:
    """1 where a call of attention in float32 keeps a weight that is not masked, else 0, in float64.

    With equal scores, and values that pick one key for each channel, the call shows as many columns of its weights as
    values have channels: so it runs with the same sizes, and the same kernel, once for each such part of the keys. All
    begin where the random stream is now; it goes on after one of them.
    """
    query, key, value = (torch.zeros_like(given[name], dtype=torch.float32) for name in _ATTENTION[:3])
    more = {name: _narrow(given[name]) for name in _ATTENTION[3:]}
    start, parts = _stream(query.device), []
    for first in range(0, key.shape[-2], value.shape[-1]):
        _set_stream(query.device, start)
        count = min(value.shape[-1], key.shape[-2] - first)
        value.zero_()[..., torch.arange(first, first + count), torch.arange(count)] = 1.0
        parts.append(func(query, key, value, **more)[..., :count])
    return (torch.cat(parts, -1) != 0).double()


def _stream(device: torch.device) -> torch.Tensor:
    """Where the generator of a device stands."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_stream(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _narrow(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype is torch.float64 else value
