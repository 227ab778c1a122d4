"""Plain attributes in which calls leave tensors, for the calls after them or for whoever looks.

A trace gets the tensors that they hold as further arguments, and gives what the call leaves in them as further results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from kernelwright.capture.values import NotCapturable

_MISSING = object()


class Carries(NotCapturable):
    """Calls leave tensors in plain attributes, of these names, which a trace has to be told.

    later: whether the attributes have to be looked at as a first call leaves them: before it they hold no tensors, or
    others.
    """

    def __init__(self, names: Sequence[str], *, later: bool = False) -> None:
        super().__init__(f"it leaves tensors in the attribute(s) {', '.join(names)}")
        self.names, self.later = tuple(names), later


class Carried:
    """The attributes ``names`` of the modules of ``model`` while it is traced. ``held`` are those of them that hold
    tensors before a call, ``read`` those that the forward asked for what they held, and ``refused`` says why no graph
    can stand for what it leaves in one."""

    def __init__(self, model: torch.nn.Module, names: Sequence[str] = ()) -> None:
        self.homes: dict[str, tuple[torch.nn.Module, str]] = {}
        for name in names:
            path, _, key = name.rpartition(".")
            self.homes[name] = model.get_submodule(path), key
        self.held = {name: vars(module)[key] for name, (module, key) in self.homes.items()
                     if type(vars(module).get(key)) is torch.Tensor}
        self.read: set[str] = set()
        self.refused = ""
        for name, (module, _) in self.homes.items():
            kind = type(module)
            if kind.__setattr__ is not torch.nn.Module.__setattr__ or \
                    kind.__getattribute__ is not object.__getattribute__:
                self.refused = f"what has its attribute {name} reads or assigns attributes in a way of its own"
        self._before: dict[str, Any] = {}
        self._entered: dict[str, Any] = {}

    def given(self) -> list[torch.Tensor]:
        """The tensors that are held, as a trace is given them: one is another tensor than all others."""
        return [tensor.detach().clone() for tensor in self.held.values()]

    def enter(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put a trace's ``tensors`` in place of those that are held, before the forward."""
        self._before = {name: vars(module).get(key, _MISSING) for name, (module, key) in self.homes.items()}
        for name, tensor in zip(self.held, tensors, strict=True):
            module, key = self.homes[name]
            vars(module)[key] = tensor
        self._entered = {name: vars(module).get(key, _MISSING) for name, (module, key) in self.homes.items()}

    def leave(self) -> dict[str, torch.Tensor]:
        """What the forward has assigned, by name; the attributes are then as before."""
        left: dict[str, torch.Tensor] = {}
        for name, (module, key) in self.homes.items():
            value = vars(module).get(key, _MISSING)
            if value is not self._entered[name]:
                if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                    left[name] = value
                elif not _is_equal(value, self._entered[name]):
                    what = "nothing" if value is _MISSING else f"a {type(value).__name__}"
                    self.refused = self.refused or f"it leaves {what} in the attribute {name}"
            if self._before[name] is _MISSING:
                vars(module).pop(key, None)
            else:
                vars(module)[key] = self._before[name]
        return left

    def check(self, left: Mapping[str, int], tensors: Sequence[torch.Tensor], *, after_a_call: bool) -> None:
        """Raise NotCapturable, or Carries, where what a trace leaves in an attribute is not what the next call may
        find there. left: by name the numbers of the ``tensors`` that it leaves. after_a_call: whether the attributes
        are as a call leaves them."""
        if self.refused:
            raise NotCapturable(self.refused, _owner(self.homes))
        others = [name for name in self.homes if name in self.read and (
            name not in self.held or (name in left and _kind(tensors[left[name]]) != _kind(self.held[name])))]
        if others and after_a_call:
            raise NotCapturable("calls leave other shapes, types or strides each time in the attribute(s) "
                                + ", ".join(others), _owner(others))
        if others:
            raise Carries(others, later=True)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While active, notes which attributes are read while they hold what they held before the call."""
        if not self.homes:
            yield
            return
        places = {(id(module), key): name for name, (module, key) in self.homes.items()}
        usual = object.__getattribute__

        def ask(module: torch.nn.Module, key: str) -> Any:
            name = places.get((id(module), key))
            if name is not None and name in self._entered and \
                    usual(module, "__dict__").get(key, _MISSING) is self._entered[name]:
                self.read.add(name)
            return usual(module, key)

        torch.nn.Module.__getattribute__ = ask
        try:
            yield
        finally:
            del torch.nn.Module.__getattribute__




def _is_equal(value: Any, other: Any) -> bool:
    """Whether two values are one plain one."""
    return type(value) is type(other) and isinstance(value, (bool, int, float, str, type(None))) and value == other


def _owner(names: Iterable[str]) -> str:
    """The path of the one module that has all of these attributes; "" where there are several."""
    owners = {name.rpartition(".")[0] for name in names}
    return owners.pop() if len(owners) == 1 else ""


def beside_inputs(program: torch.export.ExportedProgram, names: Sequence[str]) -> dict[str, str]:
    """The attributes ``names`` by the names of a program's inputs that they are: its last ones."""
    inputs = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
    return dict(zip(inputs[len(inputs) - len(names):], names, strict=True))


def own_name(name: str, carried: Iterable[str]) -> str:
    """The name of a program's input; that of a tensor beside which attributes were given has become another."""
    own = name.removesuffix("_0")
    return own if any(other.startswith(f"{own}_1_") for other in carried) else name


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tuple(tensor.shape), tensor.dtype, tensor.device, strides
