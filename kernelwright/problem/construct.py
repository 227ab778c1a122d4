"""Constructing the model, and others of its kind, from the same arguments and seed."""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

# pyrefly: ignore[missing-module-attribute]  # the stubs leave it out
from torch.nn.parameter import UninitializedTensorMixin
from torch.utils._python_dispatch import TorchDispatchMode

from kernelwright.errors import ConstructorRaised, InitInputsMismatch, StateWithoutValues, describe, place, where_of
from kernelwright.problem.arguments import mismatch, signature_of, split
from kernelwright.problem.memory import available_memory, is_out_of_memory, memory_checked
from kernelwright.problem.seeds import seeded
from kernelwright.problem.state import is_opaque, plain_attributes, same, without_values
from kernelwright.problem.untraced import without_tracer

if TYPE_CHECKING:
    from kernelwright.problem.record import Problem

# Drawing this many weights takes longer than copying them. What is kept of them is limited to a share of the memory
# that is free, where the system says how much that is.
_MANY_WEIGHTS = 1 << 22
_KEPT_SHARE = 0.2
_MOST_KEPT_BYTES = 8 << 30
_DRAWS = ("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_")


@dataclass(frozen=True, slots=True)
class _Kept:
    seed: int
    tensors: dict[str, torch.Tensor]
    attributes: dict[str, Any]


class Constructor:
    """``kind(*arguments)`` under a seed, on a device; `Keywords` that stand last are its keyword arguments.

    Large weights are drawn once: further models of the same seed get copies of them, and are constructed on the device
    itself where that works. That is done only where it cannot be noticed: a constructor whose plain attributes hold
    tensors, or come out otherwise when the large draws are left out, always runs as it is.
    """

    def __init__(self, kind: type[nn.Module], arguments: tuple[Any, ...], file: Path | None,
                 device: torch.device) -> None:
        self._kind, self._arguments, self._file, self._device = kind, arguments, file, device
        self._kept: _Kept | None = None
        self._repeatable = True
        self._only_on_host = False

    def __call__(self, seed: int, kind: type[nn.Module] | None = None) -> nn.Module:
        """A new model. kind: another class with the same constructor (its ModelNew, say).

        Raises InitInputsMismatch (KW111), ConstructorRaised (KW110), NotEnoughMemory (KW115), StateWithoutValues
        (KW120).
        """
        kind = kind or self._kind
        if self._repeatable and self._kept is not None and self._kept.seed == seed:
            model = self._repeated(kind, self._kept)
            if model is not None:
                return model
            self._repeatable, self._kept = False, None
        model = self._constructed(kind, seed)
        if kind is self._kind and self._repeatable and _weights(model) >= _MANY_WEIGHTS:
            self._keep(model, seed)
        return model

    def _constructed(self, kind: type[nn.Module], seed: int, default: torch.device | None = None) -> nn.Module:
        """A new model. default: the device on which tensors are made where the constructor does not say."""
        # A constructor may keep or change a list it is given.
        given, keywords = split(copy.deepcopy(self._arguments))
        with memory_checked("the parameters", self._device, self._file):
            try:
                with seeded(seed), default or nullcontext():
                    model = kind(*given, **keywords)
            except Exception as exception:
                if is_out_of_memory(exception):
                    raise
                shown = shown_arguments(self._arguments)
                unfit = isinstance(exception, TypeError) and mismatch(self._arguments, signature_of(kind))
                where = where_of(exception, self._file)
                if unfit:
                    raise InitInputsMismatch(
                        where=where, model=kind.__name__, count=len(given) + len(keywords), arguments=shown,
                        exception=unfit, signature=inspect.signature(kind)) from exception
                raise ConstructorRaised(where=where, model=kind.__name__, arguments=shown,
                                        exception=describe(exception)) from exception
            if empty := without_values(model):
                raise StateWithoutValues(where=place(self._file), model=kind.__name__, name=empty[0], found=empty[1])
            return model.to(self._device)

    def _keep(self, model: nn.Module, seed: int) -> None:
        attributes = plain_attributes(model)
        tensors = dict(_named(model))
        free = available_memory(self._device)
        most = _MOST_KEPT_BYTES if free is None else int(_KEPT_SHARE * free)
        if _holds_tensor(attributes) or sum(t.nbytes for t in tensors.values()) > most:
            self._repeatable = False
            return
        self._kept = _Kept(seed, {name: t.detach().clone() for name, t in tensors.items()}, attributes)

    def _repeated(self, kind: type[nn.Module], kept: _Kept) -> nn.Module | None:
        """A model with the kept weights, or None where the constructor needs its draws."""
        if self._device.type != "cpu" and not self._only_on_host:
            model = self._repeated_on(self._device, kind, kept)
            if model is not None:
                return model
            self._only_on_host = True
        return self._repeated_on(None, kind, kept)

    def _repeated_on(self, default: torch.device | None, kind: type[nn.Module], kept: _Kept) -> nn.Module | None:
        try:
            with _without_large_draws():
                model = self._constructed(kind, kept.seed, default)
        except (ConstructorRaised, StateWithoutValues):
            return None
        tensors, attributes = dict(_named(model)), plain_attributes(model)
        alike = tensors.keys() == kept.tensors.keys() and all(
            t.shape == kept.tensors[name].shape and t.dtype == kept.tensors[name].dtype for name, t in tensors.items())
        if not alike or not all(name in attributes and (is_opaque(value) or same(value, attributes[name]))
                                for name, value in kept.attributes.items()):
            return None
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(kept.tensors[name])
        return model


@without_tracer
class _NoLargeDraws(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.__name__.split(".")[0]
        if name in _DRAWS and isinstance(args[0], torch.Tensor) and args[0].numel() >= _MANY_WEIGHTS // 4:
            # Finite values: what a constructor derives from them is overwritten, and must not fail before.
            return args[0].fill_(0.5)
        return func(*args, **(kwargs or {}))


@contextmanager
def _without_large_draws() -> Iterator[None]:
    with _NoLargeDraws():
        yield


def _named(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _weights(model: nn.Module) -> int:
    return sum(t.numel() for _, t in _named(model) if not isinstance(t, UninitializedTensorMixin))


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return True
    if isinstance(value, dict):
        return any(map(_holds_tensor, value.values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_tensor, value))


def shown_arguments(arguments: Sequence[Any]) -> str:
    """Arguments as a call shows them."""
    given, keywords = split(arguments)
    return ", ".join([*map(_short, given), *(f"{name}={_short(value)}" for name, value in keywords.items())])


def construction(problem: Problem) -> str:
    """How an emitted file's class is constructed, as text that can be pasted: with the arguments themselves where they
    are plain values. The file has no get_init_inputs; of an instance nobody knows the arguments."""
    if problem.is_instance:
        return f"ModelNew(...)  # as {problem.class_name} is constructed, then load_state_dict"
    given, keywords = split(problem.init_inputs)
    shown = [*map(repr, given), *(f"{name}={value!r}" for name, value in keywords.items())]
    is_plain = all(map(_can_be_pasted, (*given, *keywords.values())))
    return f"ModelNew({', '.join(shown)})" if is_plain else "ModelNew(*get_init_inputs())"


def _can_be_pasted(value: Any) -> bool:
    try:
        return ast.literal_eval(repr(value)) == value
    except (SyntaxError, ValueError):
        return False


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
