"""A candidate's state on the judge's side: modules with the same parameters, buffers and plain tensor attributes."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
from torch import nn

from kernelwright.judge.inside.tensors import Packer
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.handover import encoded
from kernelwright.judge.worker.protocol import Broken
from kernelwright.verify.flatten import tensors_of

_MOST_PLACES, _LONGEST_PATH = 65536, 1000


class Mirror:
    """The state of ``module``, as the candidate told it, and what of it was written here since the candidate had it.

    Everything stands in the tables of nn.Module itself, by whatever name: no attribute of a class can be in its way.
    """

    def __init__(self, module: nn.Module) -> None:
        # The module has this mirror: it would otherwise live, with all of the state, until Python looks for cycles.
        self.module = cast(nn.Module, weakref.proxy(module))
        self.places: list[tuple[str, str, nn.Module, str]] = []
        """(kind, path, owner, name): "p" a parameter, "b" a buffer, "a" an attribute."""
        self._sent: dict[tuple[str, str], list[tuple[torch.Tensor, int]]] = {}
        self._shown: dict[str, str] = {}

    def show_buffers_as(self, names: Mapping[str, str]) -> None:
        """From now on have the buffers at these paths stand at others, as here: their owners and names alone change."""
        self._shown = dict(names)
        for number, (kind, path, owner, name) in enumerate(self.places):
            if kind == "b" and path in names:
                value, persists = owner._buffers.pop(name), name not in owner._non_persistent_buffers_set
                owner._non_persistent_buffers_set.discard(name)
                self.places[number] = (kind, path, *self._put(names[path], value, persists))

    def take(self, told: Any, found: list[torch.Tensor]) -> None:
        """Be what the candidate tells; ``found`` are the tensors that it names. Raises Broken."""
        if type(told) is not list or len(told) > _MOST_PLACES:
            raise Broken("sent a state that is none")
        self._clear()
        tied: dict[int, nn.Parameter] = {}
        for entry in told:
            if type(entry) is not dict:
                raise Broken("sent a state that is none")
            kind, path = protocol.field(entry, "kind", str), protocol.field(entry, "path", str)
            value = protocol.value(entry.get("value"), found)
            prefix, _, name = path.rpartition(".")
            if not name or len(path) > _LONGEST_PATH:
                raise Broken("sent a state without a name")
            owner = self._owner(prefix)
            if kind == "a":
                owner.__dict__[name] = value
            elif not isinstance(value, torch.Tensor):
                continue  # no plain tensor: there is nothing to show for it
            elif kind == "p":
                differentiable = value.dtype.is_floating_point or value.dtype.is_complex
                tied.setdefault(id(value), nn.Parameter(
                    value, requires_grad=differentiable and protocol.field(entry, "grad", bool)))
                owner._parameters[name] = tied[id(value)]
            elif kind == "b":
                owner, name = self._put(self._shown.get(path, path), value, protocol.field(entry, "persistent", bool))
            self.places.append((kind, path, owner, name))
            self._sent[kind, path] = self._versions(kind, owner, name)

    def forget(self) -> None:
        """What the candidate holds is not known: all of it is to be sent."""
        self._sent.clear()

    def changed(self, packer: Packer) -> list[dict[str, Any]]:
        """The entries that were written here since; their tensors go into ``packer``."""
        changed = []
        for kind, path, owner, name in self.places:
            versions, sent = self._versions(kind, owner, name), self._sent.get((kind, path))
            if sent is None or len(sent) != len(versions) or any(
                    a is not b or m != n for (a, m), (b, n) in zip(versions, sent, strict=True)):
                changed.append({"kind": kind, "path": path, "value": encoded(self._value(kind, owner, name), packer)})
                self._sent[kind, path] = versions
        return changed

    def storage(self, told: dict[str, Any]) -> torch.UntypedStorage:
        """The memory of one tensor of the state, by kind, path and number of the leaf. Raises Broken."""
        for kind, path, owner, name in self.places:
            if kind == told.get("kind") and path == told.get("path"):
                return protocol.item(tensors_of(self._value(kind, owner, name)), told.get("leaf")).untyped_storage()
        raise Broken("named a state that it does not have")

    def tensors(self) -> Iterator[tuple[str, str, torch.Tensor]]:
        """Kind, path and the tensors themselves of all that is there; what is written into them is sent."""
        for kind, path, owner, name in self.places:
            for tensor in tensors_of(self._value(kind, owner, name)):
                yield kind, path, tensor

    def bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.untyped_storage().nbytes() for kind, _, owner, name in self.places
                   for t in tensors_of(self._value(kind, owner, name)))

    def parameters(self) -> list[nn.Parameter]:
        """The parameters in the order in which the candidate told them, each once."""
        found = {id(owner._parameters[name]): owner._parameters[name]
                 for kind, _, owner, name in self.places if kind == "p"}
        return [parameter for parameter in found.values() if parameter is not None]

    def _clear(self) -> None:
        for kind, _, owner, name in self.places:
            (owner.__dict__ if kind == "a" else owner._parameters if kind == "p" else owner._buffers).pop(name, None)
        self.module._modules.clear()
        self.module._non_persistent_buffers_set.clear()
        self.places.clear()
        self._sent.clear()

    def _put(self, path: str, buffer: torch.Tensor | None, persists: bool) -> tuple[nn.Module, str]:
        """Have a buffer stand at a path: its owner and its name there."""
        prefix, _, name = path.rpartition(".")
        owner = self._owner(prefix)
        owner._buffers[name] = buffer
        if not persists:
            owner._non_persistent_buffers_set.add(name)
        return owner, name

    def _owner(self, prefix: str) -> nn.Module:
        owner = self.module
        for name in filter(None, prefix.split(".")):
            below = owner._modules.setdefault(name, nn.Module())
            assert below is not None  # they are this function's own
            owner = below
        return owner

    @staticmethod
    def _value(kind: str, owner: nn.Module, name: str) -> Any:
        if kind == "a":
            return owner.__dict__.get(name)
        value = (owner._parameters if kind == "p" else owner._buffers).get(name)
        return None if value is None else value.detach()

    @staticmethod
    def _versions(kind: str, owner: nn.Module, name: str) -> list[tuple[torch.Tensor, int]]:
        """The tensors themselves with their counts of changes; holding them keeps another from looking like them."""
        table = owner.__dict__ if kind == "a" else owner._parameters if kind == "p" else owner._buffers
        return [(tensor, tensor._version) for tensor in tensors_of(table.get(name))]
