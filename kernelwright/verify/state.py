"""The state of a module: parameters, buffers and plain tensor attributes; copying, re-drawing, float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kernelwright.ir import grouped
from kernelwright.verify.draws import drawn_in_float32, draws
from kernelwright.verify.flatten import clone, map_tensors, tensors_of

_MODULE_FIELDS = frozenset(vars(nn.Module()))
#: Methods that cast.
_CASTS = frozenset({"float", "to", "type", "type_as", "double", "half", "bfloat16"})
_FILLED = object()
#: Types of 16 bits, to which a model rounds on its way.
_HALVES = (torch.float16, torch.bfloat16)
#: What a tensor is asked for that is no result: bits as another type has them, and attributes.
_ASKED = frozenset({"view", "__get__", "element_size"})
#: What answers for a tensor's type.
_TYPE = torch.Tensor.dtype


def plain_attributes(module: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Yield (owner, attribute, path) of the attributes that hold tensors without being registered.

    What holds nothing but the module's own parameters and buffers (the list of weights that a recurrent layer hands to
    its function) is no state of its own: a copy in its place would no longer change with them.
    """
    registered = {id(t) for t in (*module.parameters(), *module.buffers())}
    for prefix, owner in module.named_modules():
        for name, value in vars(owner).items():
            if name in _MODULE_FIELDS or not isinstance(value, (torch.Tensor, list, tuple, dict)):
                continue
            if any(id(t) not in registered for t in tensors_of(value)):
                yield owner, name, f"{prefix}.{name}" if prefix else name


def apart(outputs: Any, module: nn.Module) -> Any:
    """``outputs`` with copies of those that lie in parameters or buffers of ``module``, which later trials change."""
    own = {t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers())
           if t.layout is torch.strided and t.numel()}

    def shared(tensor: torch.Tensor) -> bool:
        return tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() in own

    if not any(map(shared, tensors_of(outputs))):
        return outputs
    return map_tensors(outputs, lambda t: clone(t) if shared(t) else t)


@dataclass
class State:
    """A copy of a module's state by path. Parameters are left out where ``parameters=False`` was asked.

    ``others`` are plain attributes without tensors: None and containers as they are, all else as `_FILLED`. ``kind`` is
    the module's class.
    """

    parameters: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    kind: type | None = None

    @classmethod
    def of(cls, module: nn.Module, *, parameters: bool = True, owned: bool = True) -> State:
        """Take ``module``'s state; with ``owned`` the tensors are copies, otherwise the module's own."""
        take = (lambda t: t.detach().clone()) if owned else (lambda t: t.detach())
        state = cls(
            {name: take(p) for name, p in module.named_parameters()} if parameters else {},
            {name: take(b) for name, b in module.named_buffers()},
            kind=type(module),
        )
        for owner, name, path in plain_attributes(module):
            value = getattr(owner, name)
            state.attributes[path] = _cloned(value) if owned else value
        for prefix, owner in module.named_modules():
            for name, value in vars(owner).items():
                path = f"{prefix}.{name}" if prefix else name
                if name not in _MODULE_FIELDS and path not in state.attributes:
                    state.others[path] = copy.copy(value) if type(value) in (list, tuple, dict, type(None)) else _FILLED
        return state

    def names(self) -> set[str]:
        """All paths of parameters and buffers."""
        return set(self.parameters) | set(self.buffers)

    @torch.no_grad()
    def apply(self, module: nn.Module) -> tuple[str, ...]:
        """Write this state into ``module`` by path, in place, converting dtypes and devices.

        Returns a sentence for each parameter or buffer that ``module`` lacks or has in another shape. Plain
        attributes are set only where ``module`` has them already, be it empty; those in which a call left the first
        tensors are as before it.
        """
        problems = []
        targets = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, value in (*self.parameters.items(), *self.buffers.items()):
            target = targets.get(name)
            if target is None:
                problems.append(f"{name} does not exist")
            elif target.shape != value.shape:
                problems.append(f"{name} has shape {tuple(target.shape)} instead of {tuple(value.shape)}")
            else:
                if target.grad_fn is not None and not target._is_view():
                    target.detach_()  # a buffer to which a call with gradients wrote
                target.copy_(value)
        there = list(plain_attributes(module))
        is_wide = any(tensor.dtype is torch.float64 for tensor in targets.values())
        for path in self.attributes.keys() - {path for *_, path in there}:
            prefix, _, name = path.rpartition(".")
            owner = dict(module.named_modules()).get(prefix)
            present = _FILLED if owner is None else vars(owner).get(name, _FILLED)
            if present is None or (type(present) in (list, tuple, dict) and not present):
                setattr(owner, name, map_tensors(_cloned(self.attributes[path]), lambda t: t.double() if is_wide
                                                 and t.dtype.is_floating_point else t))
        for owner, name, path in there:
            if path in self.attributes:
                setattr(owner, name, _like(getattr(owner, name), self.attributes[path]))
            elif self.others.get(path, _FILLED) is not _FILLED:
                setattr(owner, name, copy.copy(self.others[path]))
            elif path not in self.others and type(module) is self.kind:
                delattr(owner, name)
        return tuple(problems)

    def tracked(self) -> dict[str, Any]:
        """Buffers and plain attributes by path: what a forward call may update."""
        return {**self.buffers, **self.attributes}


def _cloned(value: Any) -> Any:
    return map_tensors(value, lambda t: t.detach().clone().requires_grad_(t.requires_grad and t.is_leaf))


def _like(present: Any, value: Any) -> Any:
    """A copy of ``value`` in the floating dtype and on the device of what is there now."""
    there = tensors_of(present)
    if not there:
        return _cloned(value)

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        model = there[0]
        both_float = tensor.dtype.is_floating_point and model.dtype.is_floating_point
        return tensor.detach().to(device=model.device, dtype=model.dtype if both_float else None, copy=True)

    return map_tensors(value, convert)


@torch.no_grad()
def redraw(module: nn.Module, seed: int) -> None:
    """Draw other parameters in place, deterministically for ``seed``, near the scale of the present ones.

    Each parameter moves by normal noise of half its own deviation; constant ones (a norm's weight of ones, a
    bias of zeros) by a quarter of their magnitude, or of 1 where they are zero, so that a candidate that
    assumes the constructor's values is found. Running means and variances change likewise; variances stay
    positive. Other buffers (masks, tables) are left.
    """
    generators: dict[torch.device, torch.Generator] = {}

    def noise(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device not in generators:
            generators[tensor.device] = torch.Generator(tensor.device).manual_seed(seed)
        return torch.empty_like(tensor).normal_(generator=generators[tensor.device])

    for _, parameter in sorted(module.named_parameters()):
        if parameter.dtype.is_floating_point and parameter.numel():
            deviation = float(parameter.std(correction=0))
            size = float(parameter.abs().mean())
            step = 0.5 * deviation if deviation > 1e-6 * size else 0.25 * (size or 1.0)
            if math.isfinite(step):
                parameter.add_(noise(parameter), alpha=step)
    for name, buffer in sorted(module.named_buffers()):
        if name.rpartition(".")[2] == "running_mean" and buffer.dtype.is_floating_point:
            buffer.add_(noise(buffer), alpha=0.25)
        elif name.rpartition(".")[2] == "running_var" and buffer.dtype.is_floating_point:
            buffer.mul_(noise(buffer).mul_(0.25).exp_())


class _InFloat64(TorchFunctionMode):
    """Turns requests for float32 into requests for float64, so that no step of a float64 copy is narrower, but for
    random numbers (`draws`).

    A model may say ``x.float()``, ``dtype=torch.float32`` or hold a float32 constant; each would throw half
    of the digits away that the reference is there for. Casts of what is float64 in the model itself (``own``) round, as
    they are steps of the model. So do all casts to 16 bits, and whatever else makes a tensor of them: what they give is
    wide again, lest what follows be computed in 16 bits, or a product refuse it beside float64.

    It also answers in place of ``torch.finfo``: a model that asks for the limits of its tensors' type means the type
    that they have without us, which is float32 where ``own`` does not know it. What it decides by a tensor's type it
    decides by that type, too, and what is no cast without us is none.
    """

    def __init__(self, own: OwnTypes) -> None:
        super().__init__()
        self.own, self.casts, self.asked, self.types = own, 0, 0, 0

    def limits(self, dtype: torch.dtype | None = None) -> torch.finfo:
        self.asked += 1
        if self.asked <= len(self.own.limits):
            dtype = self.own.limits[self.asked - 1]
        elif dtype is None or dtype == torch.float64:
            dtype = torch.float32
        return _finfo(dtype)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS:
            self.casts += 1
            if self.casts in self.own.casts:
                return args[0].to(torch.float32).to(args[0].dtype)
            if self.casts in self.own.no_casts:
                return args[0]
        if _asks_for_type(func, args):
            self.types += 1
            if self.types <= len(self.own.types):
                return self.own.types[self.types - 1]
        if func is torch.Tensor.float:
            return args[0].double()
        if _asks_for_eps(name, args, kwargs):  # that of the type in which the norm is computed
            kwargs = {**(kwargs or {}), "eps": max(self.limits(), _finfo(torch.float32), key=lambda f: f.bits).eps}
        drawn = drawn_in_float32(func, args, kwargs or {})
        if drawn is not NotImplemented:
            return drawn
        if name in grouped.NAMES:
            func = grouped.grouped_products  # PyTorch has none in float64
        in_place = name.startswith("__set") or (name.endswith("_") and not name.endswith("__"))
        narrow: tuple[torch.dtype, ...] = ()
        if not in_place and name not in ("double", "to", "__get__"):
            narrow = (torch.float32,) if name in _CASTS | _ASKED or draws(name) else (torch.float32, *_HALVES)
        result = func(*(_widened(a, narrow) for a in args),
                      **{k: _widened(v, narrow) for k, v in (kwargs or {}).items()})
        return result if in_place or name in _ASKED else _wide_again(result)


def _wide_again(result: Any) -> Any:
    """What a function gives, with float64 for tensors of 16 bits."""
    if isinstance(result, torch.Tensor):
        return result.double() if result.dtype in _HALVES and result.layout == torch.strided else result
    return type(result)(map(_wide_again, result)) if type(result) in (list, tuple) else result


@dataclass(frozen=True)
class OwnTypes:
    """What a call of a model in its own types tells about them, which its float64 copy cannot.

    casts: those, numbered from 1 in their order, that make float32 of what is float64; no_casts: those that give what
    they are given. limits: the types whose limits (``torch.finfo``, eps of an RMS norm) are asked for, in that order;
    types: those of floating tensors that are asked for theirs.
    """

    casts: frozenset[int] = frozenset()
    limits: tuple[torch.dtype, ...] = ()
    no_casts: frozenset[int] = frozenset()
    types: tuple[torch.dtype, ...] = ()

    def __bool__(self) -> bool:
        """Whether a float64 copy that knows of them may compute something else."""
        return bool(self.casts or self.types) or any(dtype != torch.float32 for dtype in self.limits)


class _Noting(TorchFunctionMode):
    """Notes what `OwnTypes` tells."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.casts, self.no_casts = 0, set[int](), set[int]()
        self.asked, self.types = list[torch.dtype](), list[torch.dtype]()

    def limits(self, dtype: torch.dtype | None = None) -> torch.finfo:
        self.asked.append(dtype if dtype is not None else torch.get_default_dtype())
        return _finfo(self.asked[-1])

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if _asks_for_eps(name, args, kwargs):
            self.asked.append(args[0].dtype)
        result = func(*args, **(kwargs or {}))
        if name in _CASTS:
            self.count += 1
            if isinstance(result, torch.Tensor) and result.dtype is torch.float32 and args[0].dtype is torch.float64:
                self.casts.add(self.count)
            if result is args[0]:
                self.no_casts.add(self.count)
        if _asks_for_type(func, args):
            self.types.append(result)
        return result


def _asks_for_type(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    return getattr(func, "__self__", None) is _TYPE and args[0].is_floating_point()


def own_types(call: Callable[[], Any]) -> tuple[Any, OwnTypes]:
    """What ``call`` gives, and what it tells about the types of the model that it calls. Raises what ``call`` does."""
    noting = _Noting()
    with noting, _seen_by(noting):
        result = call()
    return result, OwnTypes(frozenset(noting.casts), tuple(noting.asked), frozenset(noting.no_casts),
                            tuple(noting.types))


@contextmanager
def _seen_by(mode: _Noting | _InFloat64) -> Iterator[None]:
    """A mode also answers for the limits of types, and sees what attention calls: attention of many heads would be one
    call for a mode, which then sees none of what is cast or drawn in it."""
    asks = nn.functional.has_torch_function  # pyrefly: ignore[missing-attribute]  # the stubs leave out what it imports
    torch.finfo = mode.limits  # pyrefly: ignore[bad-assignment]  # in place of a class
    nn.functional.has_torch_function = _no_mode_looks  # pyrefly: ignore[missing-attribute]  # as above
    try:
        yield
    finally:
        torch.finfo = _finfo
        nn.functional.has_torch_function = asks  # pyrefly: ignore[missing-attribute]  # as above


def _asks_for_eps(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
    return name == "rms_norm" and len(args) < 4 and (kwargs or {}).get("eps") is None


def _widened(value: Any, narrow: Collection[torch.dtype]) -> Any:
    """``value`` with float64 for the type float32, and for tensors of the types ``narrow``."""
    if value is torch.float32:
        return torch.float64
    if isinstance(value, torch.Tensor) and value.dtype in narrow:
        return value.double()
    if type(value) in (list, tuple):
        return type(value)(_widened(item, narrow) for item in value)
    return value


def float64_copy(module: nn.Module) -> nn.Module:
    """Return a deep copy with float64 parameters, buffers and plain floating attributes, same mode.

    Raises what ``copy.deepcopy`` raises for modules that cannot be copied.
    """
    return to_float64(copy.deepcopy(module))


def to_float64(module: nn.Module) -> nn.Module:
    """``module`` itself with float64 parameters, buffers and plain floating attributes."""
    module.double()
    for owner, name, _ in list(plain_attributes(module)):
        widened = map_tensors(getattr(owner, name), lambda t: t.double() if t.dtype.is_floating_point else t)
        setattr(owner, name, widened)
    return module


def widened(arguments: Any) -> Any:
    """Return float64 copies of the floating tensors in ``arguments`` and clones of the others."""
    return map_tensors(
        arguments, lambda t: t.detach().to(torch.float64 if t.dtype.is_floating_point else t.dtype, copy=True)
    )


def call_in_float64(module: nn.Module, arguments: Any, *, own: OwnTypes = OwnTypes(), as_is: bool = False) -> Any:
    """Call a float64 module on ``arguments`` (from `widened`) with float64 as the default dtype.

    own: what is known of the types that the model has without us (`own_types`). as_is: nothing is done about casts to
    float32 and random numbers, and PyTorch takes the fast paths that it takes for eager: they are closed where somebody
    looks at its functions. The caller chooses the gradient mode. Raises what the module raises.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        if as_is:
            return module(*arguments)
        mode = _InFloat64(own)
        with mode, _seen_by(mode):
            return module(*arguments)
    finally:
        torch.set_default_dtype(default)


def _no_mode_looks(operands: Any) -> bool:
    """Of tensors that nobody's class overrides, that no mode does either."""
    return any(type(t) not in (torch.Tensor, nn.Parameter, type(None)) for t in operands)


_finfo = torch.finfo
