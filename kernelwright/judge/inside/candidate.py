"""The candidate in its process: loaded, constructed, given state and inputs, called; its results told as bytes."""

from __future__ import annotations

import base64
import importlib.util
import pickle
import random
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from inside.device import Device
from inside.memory import Mapped, poisoned
from inside.outgoing import Key, Outgoing, TooLarge, key_of
from inside.state import Snapshots, build, describe, places, value_of, write
from inside.structure import TooComplex, decode, encode, numbers_in
from inside.tensors import ON_DEVICE, whole
from torch import nn

MODULE = "candidate"
#: How many earlier calls' outputs stay alive, so that memory that is handed out twice is seen.
KEPT_CALLS = 2
_storage = torch.Tensor.untyped_storage
_equal, _sleep, _clock = torch.equal, time.sleep, time.perf_counter
_grad_mode, _set_flag = torch.set_grad_enabled, torch.Tensor.requires_grad_


class Told(Exception):
    """What this side has to say itself, told apart from what the candidate raises. ``kind`` is a closed list's word."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Session:
    """One candidate."""

    def __init__(self, folder: Path, inputs: Mapped, outputs: Mapped) -> None:
        self.folder = folder
        self.inputs = inputs
        self.outputs = outputs
        self.source: Path | None = None
        self.module: ModuleType | None = None
        self.candidate: nn.Module | None = None
        self.place = Device("cpu")
        self.modes: list[tuple[nn.Module, bool]] = []
        """The candidate's modules, and whether its constructor left each in training."""
        self.snapshots = Snapshots()
        self.kept: deque[tuple[list[tuple[Key, int, int]], list[torch.Tensor]]] = deque(maxlen=KEPT_CALLS)
        self.differentiable: tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]] | None = None
        self.input_memory: list[torch.UntypedStorage] = []
        self.descriptors: list[int] = []
        """Those that came with the present request."""

    def choose_place(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Compute something on the device, before any code of the candidate runs. Raises what the device fails with."""
        self.place = Device(payload["device"])
        torch.zeros(8, device=self.place.device).sum().item()
        self.place.synchronize()
        return {}

    def load(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Import the candidate's file, which may compile for minutes, under the seed of the problem's import: tables
        that both draw while they are imported are the same."""
        self.source = self.folder / payload["source_name"]
        spec = importlib.util.spec_from_file_location(MODULE, self.source)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = module
        seeds = [torch.manual_seed, random.seed]
        seeds += [sys.modules["numpy"].random.seed] if "numpy" in sys.modules else []
        for seed in seeds:
            seed(payload["import_seed"])
        spec.loader.exec_module(module)
        self.module = module
        found = module.__dict__.get("ModelNew")
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            kind = "is missing" if found is None else f"is {type(found).__name__}, not a class derived from nn.Module"
            raise Told("no-class", f"ModelNew {kind}")
        classes = [name for name, value in module.__dict__.items() if isinstance(value, type)]
        return {"classes": [str(name)[:100] for name in classes[:100]]}

    def make(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Make ModelNew on its device."""
        assert self.module is not None
        self.snapshots, self.differentiable = Snapshots(), None
        self.kept.clear()
        arguments, named = pickle.loads(base64.b64decode(payload["arguments"]))
        torch.manual_seed(payload["seed"])
        candidate = self.module.__dict__["ModelNew"](*arguments, **named)
        if not isinstance(candidate, nn.Module):
            raise Told("no-class", f"ModelNew(...) gives a {type(candidate).__name__}, no module")
        if not isinstance(candidate.__dict__.get("_parameters"), dict):
            raise AttributeError("ModelNew.__init__ does not call super().__init__()")
        self.candidate = candidate.to(self.place.device)
        if payload["dtype"]:  # as some evaluators do
            self.candidate = candidate.to(getattr(torch, payload["dtype"]))
        self.modes = [(module, module.training) for module in self.candidate.modules()]
        self.switch(payload["training"])
        if payload["keywords"]:
            candidate.register_forward_pre_hook(_unpack_keywords, with_kwargs=True, prepend=True)
        self.place.synchronize()
        return {}

    def construct(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Make ModelNew on its device; tell its state."""
        self.make(payload)
        candidate = self.candidate
        assert candidate is not None
        outgoing = Outgoing(self.place.device, {})
        state = describe(candidate, outgoing.leaf)
        self._arrange(outgoing, payload["limit"], [])
        self.outputs.rewind()
        outgoing.take(self.outputs)
        self.place.synchronize()
        outgoing.send(self.outputs)
        return {"state": state, "effects": outgoing.manifest(),
                "attributes": [str(name)[:100] for name in list(candidate.__dict__)[:500]]}

    def call(self, payload: dict[str, Any]) -> dict[str, Any]:
        """One call with given state, random state and inputs; its outputs and everything else that it changed."""
        candidate, place = self.candidate, self.place
        assert candidate is not None
        self.differentiable = None
        if place.is_crowded():
            self.kept.clear()
        arguments, input_storages = self._prepare(payload)
        known, state_storages, signature = self._state()
        self.snapshots.keep(state_storages, fresh=bool(payload["state"]))
        input_keys = [key_of(storage) for storage in input_storages]
        known |= {key: {"of": "input", "index": index} for index, key in enumerate(input_keys) if key[1]}
        saved = _saved_inputs(input_storages, self._places(payload))
        self.outputs.rewind()
        random_before = place.random_state()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            # What is there before counts for nobody.
            place.last_error()
            place.synchronize()
            with poisoned(payload["poison"], place.device), _grad_mode(payload["grad"]):
                place.note_stream()
                started = _clock()
                result = candidate(*arguments)
                returned = _clock()
            launch_error = place.last_error()
            place.back_to_stream()
            outgoing = Outgoing(place.device, known, takes_known=True)
            plain: list[torch.Tensor] = []
            try:
                outputs = encode(result, lambda tensor: _noting(outgoing.leaf(tensor), tensor, plain))
            except TooComplex as error:
                raise Told("too-complex", f"the result has {error}") from None
            self._arrange(outgoing, payload["limit"], [covered for covered, _ in self.kept])
            outgoing.take(self.outputs)
            place.synchronize()
            finished = _clock()
        outgoing.send(self.outputs)
        late = False
        if payload["grace"] is not None:
            _sleep(payload["grace"])
            place.synchronize()
            late = outgoing.is_late()
        random_after = place.random_state()
        effects, state = self._effects(payload, outgoing, known, input_storages, input_keys, saved, signature,
                                       None if _all_equal(random_before, random_after) else random_after)
        self.kept.appendleft((outgoing.cover(), outgoing.tensors))
        told = {"outputs": outputs, "memory": outgoing.manifest(), "state": state, **effects,
                "late": late, "launch_error": launch_error, "seconds": finished - started,
                "returned_seconds": returned - started, "threads": torch.get_num_threads(),
                "warnings": [str(w.message)[:300] for w in caught[:20]]}
        if payload["grad"]:
            parameters = {id(p): p for p in (value_of(kind, owner, name) for kind, _, owner, name in places(candidate)
                                             if kind == "p") if p.requires_grad}
            self.differentiable = plain, [t for t in self._inputs if t.requires_grad], list(parameters.values())
            told["requires_grad"] = [bool(t.requires_grad) for t in plain]
        return told

    def switch(self, training: bool) -> None:
        """Bring the candidate into a mode: the one of its construction with every module as the constructor left it."""
        assert self.candidate is not None
        if self.candidate.training is not training:
            self.candidate.train(training)
            if self.modes[0][1] is training:
                for module, mode in self.modes:
                    module.training = mode

    def backward(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Gradients of the last call's differentiable inputs and parameters, from those of its outputs."""
        if self.differentiable is None:
            raise Told("no-gradient", "the last call was none with gradients")
        outputs, inputs, parameters = self.differentiable
        self.differentiable = None
        _, given = build(payload["storages"], payload["tensors"], self.inputs, self.place.device)
        chosen = [outputs[number] for number in payload["outputs"]]
        self.place.synchronize()
        found = torch.autograd.grad(chosen, [*inputs, *parameters], given, allow_unused=True)
        self.place.synchronize()
        outgoing = Outgoing(self.place.device, {})
        told = [None if gradient is None else outgoing.leaf(gradient) or {"o": "no plain tensor"} for gradient in found]
        self._arrange(outgoing, payload["limit"], [])
        self.outputs.rewind()
        outgoing.take(self.outputs)
        self.place.synchronize()
        outgoing.send(self.outputs)
        return {"gradients": told, "memory": outgoing.manifest()}

    def _prepare(self, payload: dict[str, Any]) -> tuple[list[Any], list[torch.UntypedStorage]]:
        """Write state and random state; the call's arguments and the storages that they lie in."""
        assert self.candidate is not None
        self.switch(payload["training"])
        storages, tensors = build(payload["storages"], payload["tensors"], self.inputs, self.place.device,
                                  self.input_memory if payload.get("keep_inputs") else ())
        for tensor, entry in zip(tensors, payload["tensors"], strict=True):
            if entry.get("grad"):
                _set_flag(tensor)
        values = lambda data: decode(data, tensors.__getitem__, _unpickled)  # noqa: E731
        write(self.candidate, payload["state"], values)
        self._inputs: list[torch.Tensor] = []
        with _grad_mode(payload["grad"]):
            arguments = values(payload["inputs"])
        numbers = numbers_in(payload["inputs"])
        self._inputs = [tensors[number] for number in numbers]
        used = sorted({payload["tensors"][number]["storage"] for number in numbers})
        if payload["random"]:
            self.place.set_random_state([tensors[number].clone() for number in payload["random"]])
            self.place.seed_others(payload["seed"])
        own = [storages[number] for number in used]
        self.input_memory = own if payload.get("keep_inputs") else []
        return list(arguments), own

    def _state(self) -> tuple[dict[Key, dict[str, Any]], dict[Key, torch.UntypedStorage], str]:
        """The storages of the state with the words for them, the storages, and what tells states' forms apart."""
        assert self.candidate is not None
        known: dict[Key, dict[str, Any]] = {}
        storages: dict[Key, torch.UntypedStorage] = {}
        probe = Outgoing(self.place.device, {})
        told = describe(self.candidate, probe.leaf)
        keys = [key_of(_storage(tensor)) for tensor in probe.tensors]
        for entry in told:
            for leaf, number in enumerate(numbers_in(entry["value"])):
                if keys[number][1] and keys[number] not in known:
                    known[keys[number]] = {"of": "state", "kind": entry["kind"], "path": entry["path"], "leaf": leaf}
                    storages[keys[number]] = _storage(probe.tensors[number])
        forms = [(tuple(t.shape), t.stride(), t.storage_offset(), str(t.dtype)) for t in probe.tensors]
        return known, storages, repr((told, keys, forms))

    def _effects(self, payload: dict[str, Any], outgoing: Outgoing, known: dict[Key, dict[str, Any]],
                 storages: list[torch.UntypedStorage], keys: list[Key], saved: list[torch.Tensor | None],
                 signature: str, random: list[torch.Tensor] | None
                 ) -> tuple[dict[str, Any], list[dict[str, Any]] | None]:
        """What the call changed beside its outputs: inputs, state in place, state of another form, random state."""
        known = dict(known)
        for index, told in enumerate(outgoing.storages):
            if "covers" in told:
                key, begin, stop = told["covers"]
                known.setdefault(key, {"of": "output", "index": index, "begin": begin, "end": stop})
        effects = Outgoing(self.place.device, known)
        _, after, form = self._state()
        state = None
        if form != signature:
            assert self.candidate is not None
            state = describe(self.candidate, effects.leaf)
        numbers = [effects.leaf(tensor) or {} for tensor in random] if random else []
        self._arrange(effects, payload["limit"], [])
        for storage, key, before, (at, count, _) in zip(storages, keys, saved, self._places(payload), strict=True):
            now = whole(storage)
            given = before if before is not None else self.inputs.bytes(at, count)
            if now.numel() != count:  # resized: what is left of it counts
                now = torch.cat([now[:count], now.new_zeros(max(0, count - now.numel()))])
            if count and not _same(given, now):
                effects.changed(key, now.untyped_storage())
        changed = [key for key, storage in after.items()
                   if known.get(key, {}).get("of") == "state" and self.snapshots.changed(key, storage)]
        for key in changed:
            effects.changed(key, after[key])
            self.snapshots.copies.pop(key, None)
        effects.take(self.outputs)
        self.place.synchronize()
        effects.send(self.outputs)
        return {"effects": effects.manifest(), "random": [n["t"] for n in numbers] or None}, state

    def _places(self, payload: dict[str, Any]) -> list[list[Any]]:
        used = sorted({payload["tensors"][number]["storage"] for number in numbers_in(payload["inputs"])})
        return [payload["storages"][number] for number in used]

    def _arrange(self, outgoing: Outgoing, limit: int, earlier: list[list[tuple[Key, int, int]]]) -> None:
        try:
            outgoing.arrange(limit, earlier)
        except TooLarge as error:
            raise Told("too-large", f"many times the model's size: {error}") from None


def _noting(told: dict[str, Any] | None, tensor: torch.Tensor, plain: list[torch.Tensor]) -> dict[str, Any] | None:
    """``told``; a tensor that is told is noted."""
    if told is not None and "t" in told:
        plain.append(tensor)
    return told


def _saved_inputs(storages: list[torch.UntypedStorage], places: list[list[Any]]
                  ) -> list[torch.Tensor | None]:
    """Copies on the device, where they are quick to compare with; None: shared memory has the bytes, wherever."""
    saved: list[torch.Tensor | None] = []
    for storage, (at, _, _) in zip(storages, places, strict=True):
        copy = None
        if at < ON_DEVICE and storage.device.type == "cuda" and 4 * storage.nbytes() < torch.cuda.mem_get_info()[0]:
            copy = whole(storage).clone()
        saved.append(copy)
    return saved


def _same(given: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether two tensors of bytes are equal; in pieces where they lie on different devices."""
    if given.device == now.device:
        return _equal(given, now)
    step = 64 << 20
    return all(_equal(given[at:at + step].to(now.device), now[at:at + step]) for at in range(0, now.numel(), step))


def _all_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(_equal(a, b) for a, b in zip(left, right, strict=True))


def _unpickled(text: str) -> Any:
    """An argument that is neither a tensor nor plain data; the judge pickled it."""
    return pickle.loads(base64.b64decode(text))


HANDLERS: dict[str, Callable[[Session, dict[str, Any]], dict[str, Any]]] = {
    "place": Session.choose_place, "load": Session.load, "construct": Session.construct, "call": Session.call,
    "backward": Session.backward}


def _unpack_keywords(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]
                     ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A forward pre-hook: the last argument is a dictionary of what is given by keyword."""
    *positional, keywords = arguments
    return tuple(positional), {**named, **keywords}
