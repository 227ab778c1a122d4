"""Plain attributes in which calls leave tensors, for the calls after them or for whoever looks.

A trace gets the tensors that they hold as further arguments, and gives what the call leaves in them as further results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export.graph_signature import InputKind

from kernelwright.capture.values import NotCapturable
from kernelwright.containers import entries, restored, structure_of

_MISSING = object()
#: Ends the name of an attribute whose list or dictionary is changed, and not exchanged.
IN_PLACE = "[:]"


class Carries(NotCapturable):
    """Calls leave tensors in plain attributes, of these names, which a trace has to be told.

    later: whether the attributes have to be looked at as a first call leaves them: before it they hold no tensors, or
    others.
    """

    def __init__(self, names: Sequence[str], *, later: bool = False) -> None:
        super().__init__(f"it leaves tensors in the attribute(s) {', '.join(names)}")
        self.names, self.later = tuple(names), later


class Carried:
    """The attributes ``names`` of the modules of ``model`` while it is traced.

    ``held`` are those of them that hold a tensor, or a list, tuple or dictionary of tensors, before a call, as
    structures with numbers for the ``tensors``, which stand there by names such as "state[0]". ``read`` are those that
    the forward asked for what they held; ``refused`` says why no graph can stand for what it leaves in one.
    """

    def __init__(self, model: torch.nn.Module, names: Sequence[str] = ()) -> None:
        self.homes: dict[str, tuple[torch.nn.Module, str]] = {}
        self.held: dict[str, Any] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.read: set[str] = set()
        self.refused = ""
        for name in names:
            path, _, key = name.rpartition(".")
            module = model.get_submodule(path)
            self.homes[name] = module, key
            if parts := _parts(vars(module).get(key), name):
                numbers = itertools.count(len(self.tensors))
                self.held[name] = structure_of(vars(module)[key], lambda _, numbers=numbers: next(numbers))
                self.tensors |= parts
            kind = type(module)
            if kind.__setattr__ is not torch.nn.Module.__setattr__ or \
                    kind.__getattribute__ is not object.__getattribute__:
                self.refused = f"what has its attribute {name} reads or assigns attributes in a way of its own"
        self._before: dict[str, Any] = {}
        self._entered: dict[str, Any] = {}
        self._parts: dict[str, dict[str, int]] = {}

    def given(self) -> list[torch.Tensor]:
        """The tensors that are held, as a trace is given them: one is another tensor than all others."""
        return [tensor.detach().clone() for tensor in self.tensors.values()]

    def enter(self, tensors: Sequence[torch.Tensor]) -> None:
        """Put a trace's ``tensors`` in place of those that are held, before the forward."""
        self._before = {name: vars(module).get(key, _MISSING) for name, (module, key) in self.homes.items()}
        for name, structure in self.held.items():
            module, key = self.homes[name]
            vars(module)[key] = restored(structure, tensors)
        self._entered = {name: vars(module).get(key, _MISSING) for name, (module, key) in self.homes.items()}
        self._parts = {name: _identities(value) for name, value in self._entered.items()}

    def leave(self) -> dict[str, Any]:
        """What the forward has assigned, by name, and what it has changed in a list or dictionary, by the name and
        `IN_PLACE`; the attributes are then as before."""
        left: dict[str, Any] = {}
        for name, (module, key) in self.homes.items():
            value, before = vars(module).get(key, _MISSING), self._entered[name]
            if value is not before and _parts(value, name):
                left[name] = value
            elif value is before and isinstance(value, (list, dict)) and _identities(value) != self._parts[name]:
                left[name + IN_PLACE] = value
                if any(not isinstance(part, torch.Tensor) for _, part in entries(value) or ()):
                    self.refused = self.refused or f"it changes what the attribute {name} holds"
            elif value is not before and not _is_equal(value, before):
                what = "nothing" if value is _MISSING else f"a {type(value).__name__}" + (
                    " that holds more than tensors" if isinstance(value, (list, tuple, dict)) else "")
                self.refused = self.refused or f"it leaves {what} in the attribute {name}"
            if self._before[name] is _MISSING:
                vars(module).pop(key, None)
            else:
                vars(module)[key] = self._before[name]
        return left

    def check(self, left: Mapping[str, Any], tensors: Sequence[torch.Tensor], *, after_a_call: bool) -> None:
        """Raise NotCapturable, or Carries, where what a trace leaves in an attribute is not what the next call may
        find there. left: by name what it leaves, with numbers for the ``tensors``. after_a_call: whether the attributes
        are as a call leaves them."""
        if self.refused:
            raise NotCapturable(self.refused, _owner(self.homes))
        ends = {name.removesuffix(IN_PLACE): restored(structure, tensors) for name, structure in left.items()}
        others = [name for name in self.homes if name in self.read and (
            name not in self.held
            or (name in ends and _kinds(ends[name]) != _kinds(self._at_first(name))))]
        if others and after_a_call:
            raise NotCapturable("calls leave other shapes, types or strides each time in the attribute(s) "
                                + ", ".join(others), _owner(others))
        if others:
            raise Carries(others, later=True)

    @property
    def read_tensors(self) -> set[str]:
        """The names of tensors in attributes that are read."""
        return {part for name in self.read & self.held.keys() for part in _parts(self._at_first(name), name) or ()}

    def _at_first(self, name: str) -> Any:
        return restored(self.held[name], list(self.tensors.values()))

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


def _parts(value: Any, name: str) -> dict[str, torch.Tensor] | None:
    """The tensors of a plain list, tuple or dictionary, or the one tensor, by names that begin with ``name``; None of
    what holds anything else, or nothing."""
    if isinstance(value, torch.Tensor):
        return None if isinstance(value, torch.nn.Parameter) else {name: value}
    found: dict[str, torch.Tensor] = {}
    for key, part in (entries(value) or ()) if type(value) in (list, tuple, dict) else ():
        inner = _parts(part, f"{name}[{key!r}]") if type(key) is int or (type(key) is str and key.isidentifier()) \
            else None
        if inner is None:
            return None
        found |= inner
    return found or None


def _identities(value: Any) -> dict[str, int]:
    """Which objects are the parts of a list or dictionary, by their keys."""
    return {repr(key): id(part) for key, part in (entries(value) or ()) if isinstance(value, (list, dict))}


def _kinds(value: Any) -> Any:
    """The kinds of the tensors in a container, or of one tensor, in the same containers."""
    return structure_of(value, lambda tensor: repr(_kind(tensor)))


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
