"""What a module holds besides its graph: copies to compare before and after a run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

# pyrefly: ignore[missing-module-attribute]  # the stubs leave it out
from torch.nn.parameter import UninitializedTensorMixin

_OWN = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_is_full_backward_hook")


def without_values(model: nn.Module) -> tuple[str, str] | None:
    """The first parameter or buffer of ``model`` that has no values, and why: (name, words); None where all have."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, UninitializedTensorMixin):
            return name, "which has no shape before the first call (a lazy module)"
        if tensor.device.type == "meta":
            return name, "which is on the meta device"
    return None


def not_plain(model: nn.Module) -> tuple[str, str] | None:
    """The first parameter or buffer of ``model`` that is more than strided memory, and what: (name, words); or None."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout is not torch.strided or tensor.is_nested:
            return name, f"{'nested' if tensor.is_nested else str(tensor.layout).removeprefix('torch.')}"
        if tensor.is_quantized:
            return name, "quantized"
    return None


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Whether each of a model's modules is in training, by path: a constructor may leave some in the other mode."""
    return {path: module.training for path, module in model.named_modules()}


def classes_of(model: nn.Module) -> dict[str, str]:
    """The name of each submodule's class, by path: an emitted file has classes of its own of the same names."""
    return {path: type(module).__qualname__ for path, module in model.named_modules() if path}


def attribute_of(model: nn.Module, name: str) -> Any:
    """What a plain attribute holds, by its path; of a container also a part, as in "cell.state[0]['k']"."""
    path, _, inside = name.partition("[")
    module, _, key = path.rpartition(".")
    value = vars(model.get_submodule(module))[key]
    for part in re.findall(r"\[(\d+|'\w*')\]", f"[{inside}" if inside else ""):
        value = value[int(part) if part.isdigit() else part[1:-1]]
    return value


def tensors_kept(model: nn.Module) -> dict[str, Any]:
    """Shape, strides, dtype and device of the tensors that the plain attributes of modules hold, or containers there,
    by path."""
    found = {f"{path}.{key}": _kinds_kept(value) for path, module in model.named_modules()
             for key, value in vars(module).items() if key not in _OWN}
    return {path: kinds for path, kinds in found.items() if kinds}


def _kinds_kept(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return tuple(value.shape), strides, value.dtype, value.device
    if type(value) not in (list, tuple, dict) or depth > 3:
        return None
    parts = dict(value if isinstance(value, dict) else enumerate(value))
    return {key: kinds for key, part in parts.items() if (kinds := _kinds_kept(part, depth + 1))}


def set_modes(model: nn.Module, modes: Mapping[str, bool]) -> nn.Module:
    """``model`` with its modules in the modes of the same paths. Nothing is told to one whose modules are in them: what
    a module does when it is told, beside changing its mode, would undo what a constructor left."""
    if modes_of(model) == modes:
        return model
    model.train(modes[""])
    for path, module in model.named_modules():
        module.training = modes.get(path, module.training)
    return model


def in_mode_of(model: nn.Module, other: nn.Module) -> nn.Module:
    """``model`` with its modules in the modes of those of ``other``."""
    return set_modes(model, modes_of(other))


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters and buffers by state_dict name; those not yet initialized are left out."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named
            if not isinstance(tensor, UninitializedTensorMixin)}


def plain_attributes(model: nn.Module) -> dict[str, Any]:
    """Copies of every module's attributes besides parameters, buffers, submodules and hooks."""
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OWN and "_hooks" not in name:
                found[f"{prefix}.{name}" if prefix else name] = _frozen(value, 0)
    return found


def _frozen(value: Any, depth: int) -> Any:
    """``value`` copied as far as tensors, numbers and containers go; other objects by identity."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if depth < 4:
        if isinstance(value, dict):
            return "dict", {key: _frozen(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return type(value).__name__, [_frozen(item, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return value
    # Holding the object itself keeps its identity from being reused by another.
    return "object", _Identity(value)


class _Identity:
    def __init__(self, value: Any) -> None:
        self.value = value


def is_opaque(value: Any) -> bool:
    """Whether a value of :func:`plain_attributes` is known by its identity only."""
    return isinstance(value, tuple) and len(value) == 2 and value[0] == "object" and isinstance(value[1], _Identity)


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of the two has, sorted."""
    missing = object()
    return sorted(name for name in {**before, **after}
                  if not same(before.get(name, missing), after.get(name, missing)))


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal bit for bit as far as this file copies them; NaN equals NaN."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype is not b.dtype or a.device != b.device:
            return False
        if a.layout is not torch.strided or a.device.type == "meta":
            return True
        return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())  # NaN stays NaN
    if isinstance(a, _Identity) and isinstance(b, _Identity):
        # An unknown object that was made anew may well be a cache: only another type is a difference.
        return type(a.value) is type(b.value)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b))


def told_modes(model: nn.Module) -> set[str]:
    """Paths of modules that do something of their own when they are put into a mode."""
    return {path for path, module in model.named_modules() if type(module).train is not nn.Module.train
            or type(module).eval is not nn.Module.eval}


def taken_into(model: nn.Module, other: nn.Module) -> bool:
    """Put ``model`` into the mode of ``other``, and say whether it then is as that one, but for parameters and buffers:
    a module may do something of its own when it is told a mode."""
    in_mode_of(model, other)
    return classes_of(model) == classes_of(other) and modes_of(model) == modes_of(other) and \
        not differences(plain_attributes(model), plain_attributes(other))


def kinds_of(value: Any) -> Any:
    """A value of :func:`plain_attributes` with types in place of tensors: equal where only their elements differ."""
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(value.shape), value.dtype, value.device
    if isinstance(value, dict):
        return {key: kinds_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [kinds_of(item) for item in value]
    return type(value.value) if isinstance(value, _Identity) else value


def spoil(model: nn.Module, name: str) -> None:
    """Put NaN, or the complement of integers, in place of every tensor that a plain attribute holds."""
    path, _, attribute = name.rpartition(".")
    own = vars(model.get_submodule(path))
    if attribute in own:
        own[attribute] = _spoiled(own[attribute])


def _spoiled(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, math.nan) if value.is_floating_point() or value.is_complex() else ~value
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _spoiled(item)
        return value
    if isinstance(value, list):
        value[:] = map(_spoiled, value)
        return value
    return tuple(map(_spoiled, value)) if type(value) is tuple else value
