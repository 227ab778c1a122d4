"""The connection between the judge and one constructed candidate: calls, and requests of other kinds."""

from __future__ import annotations

import secrets
import warnings
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from kernelwright.judge.inside.tensors import ALIGNMENT, Packer, aligned
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.handover import encoded
from kernelwright.judge.worker.machine import free_bytes
from kernelwright.judge.worker.mirror import Mirror
from kernelwright.judge.worker.process import Worker
from kernelwright.judge.worker.protocol import Broken, Foreign
from kernelwright.verify.flatten import flatten, tensors_of

#: A candidate's outputs and changes may have this many times the bytes of the model's, and more.
SLACK_FACTOR, SLACK_BYTES = 4, 64 << 20
#: Where the model's outputs are not known: this many times the bytes of inputs and state, and more.
UNKNOWN_FACTOR, UNKNOWN_BYTES = 16, 1 << 30
#: Bytes of state that a candidate may have at first, and the share of free memory that it may need here.
STATE_BYTES, STATE_SHARE = 16 << 30, 0.25
#: Device memory through which a state may come, and what a call gets beside the expected outputs' for what it changes.
STATE_ON_DEVICE, MORE_ON_DEVICE = 512 << 20, 64 << 20
#: What poisoned memory is full of: NaN in every floating type, and large finite numbers.
PATTERNS = (0xFF, 0x6B)
#: Seconds after a call in which its outputs must not change; waited for after the first calls, then one in so many.
GRACE_SECONDS, GRACE_ALWAYS, GRACE_ONE_IN = 0.05, 2, 4
#: Where less than this share of a device's memory is free, a worker holds nothing for later.
CROWDED_SHARE = 0.25
#: As many earlier calls' outputs stay alive in the worker; here only those that somebody has.
KEPT_CALLS = 2


class CandidateRaised(Exception):
    """The candidate raised. The class of what is raised is derived from this one and has the name of its exception.

    ``error``: request (load, construct, call, ...), type, message, line (in the candidate's file, from 1, or None),
    traceback, memory (whether there was too little), and own: None, or a word where the worker itself says what is
    wrong ("no-class", "too-large", "too-complex").
    """

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"] or error["type"])
        self.error = error


@dataclass(frozen=True, slots=True)
class Last:
    """Facts of a call as the worker tells them.

    ``late``: outputs changed after the call had returned. ``launch_error``: the name of a CUDA error that a launch left
    and nobody read. ``foreign``: path and type of each returned object that is no plain tensor, number or container.
    ``seconds`` to the end of the device's work, ``returned_seconds`` to the return; ``threads`` is PyTorch's number.
    """

    late: bool = False
    launch_error: str | None = None
    foreign: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    returned_seconds: float = 0.0
    threads: int = 0
    warnings: tuple[str, ...] = ()


class Link:
    """The connection of a `RemoteCandidate` with its worker, and everything about it that is not state."""

    def __init__(self, worker: Worker, device: torch.device, module: nn.Module) -> None:
        self.worker, self.device = worker, device
        self.mirror = Mirror(module)
        self.expected: list[int] | None = None
        self.poisons = self.keeps_inputs = False
        self.calls = 0
        self.last, self.ever_late = Last(), False
        self.launch_errors: tuple[str, ...] = ()
        self.attribute_names: tuple[str, ...] = ()
        self.raised: CandidateRaised | None = None
        self._earlier: deque[list[StorageWeakRef | None]] = deque(maxlen=KEPT_CALLS)

    @property
    def itself(self) -> Link:
        """The link."""
        return self

    def ask(self, kind: str, payload: dict[str, Any], stage: str, seconds: float | None = None) -> dict[str, Any]:
        """A request's reply, which is ``ok``. Raises CandidateRaised, torch.OutOfMemoryError and WorkerFailure."""
        worker = self.worker
        limit = worker.limits.build_seconds if stage == "build" else worker.limits.run_seconds
        reply = worker.request(kind, payload, seconds=limit if seconds is None else seconds, stage=stage)
        if reply["ok"]:
            return reply
        self.mirror.forget()
        try:
            error = protocol.error_of(reply)
        except Broken as broken:
            raise worker.breach(str(broken), stage) from None
        if reply.get("broken") is True:
            raise worker.lost_device(error["message"], stage)
        if protocol.lacked_device_memory(error):
            raise torch.OutOfMemoryError(error["message"])
        raised = type(error["type"], (CandidateRaised,), {})
        # Kept is another than is raised: that holds every frame that it passes, and so the tensors of whoever called.
        self.raised = raised({**error, "request": kind})
        raise raised(self.raised.error)

    def exchange(self, kind: str, payload: dict[str, Any], value: Any = None, *, limit: int, stage: str = "run",
                 seconds: float | None = None) -> tuple[dict[str, Any], list[torch.Tensor]]:
        """A request with tensors both ways: those in ``value`` go with it as ``storages``, ``tensors``, ``value``, and
        those of the reply's ``memory`` come back, ``limit`` bytes at most. Raises as `ask` does."""
        packer = Packer()
        message = {**payload, "value": encoded(value, packer), "limit": limit} | self.worker.pack(packer)
        self._reserve(limit, 0)
        reply = self.ask(kind, message, stage, seconds)
        try:
            found, _ = protocol.tensors(reply.get("memory"), self.worker.outputs, self.device, limit, _nothing)
        except Broken as error:
            raise self.worker.breach(str(error), stage) from None
        self.worker.inputs.release()
        self.worker.outputs.release()
        return reply, found

    def construct(self, arguments: str, seed: int, training: bool, keywords: bool, dtype: torch.dtype | None) -> None:
        """Have ModelNew constructed, cast to ``dtype`` if there is one, and mirror its state; with ``keywords`` the
        last argument of every call is a dictionary of what is given by keyword. Raises as `ask` does."""
        limit = min(STATE_BYTES, int(STATE_SHARE * free_bytes()))
        self._reserve(limit, 0, on_device=STATE_ON_DEVICE)
        payload = {"arguments": arguments, "seed": seed, "training": training, "limit": limit, "keywords": keywords,
                   "dtype": str(dtype).removeprefix("torch.") if dtype is not None else None}
        reply = self.ask("construct", payload, "build")
        try:
            found, _ = protocol.tensors(reply.get("effects"), self.worker.outputs, self.device, limit, _nothing)
            self.mirror.take(reply.get("state"), found)
            self.attribute_names = tuple(protocol.texts(reply, "attributes"))
        except Broken as error:
            raise self.worker.breach(str(error), "build") from None
        self.worker.outputs.release()

    def limit(self, own: int = 0) -> int:
        """Bytes that a reply may bring, where ``own`` are those that the request brings."""
        state = self.mirror.bytes()
        if self.expected is None:
            return UNKNOWN_FACTOR * (own + state) + UNKNOWN_BYTES
        return SLACK_FACTOR * (sum(self.expected) + own + state) + SLACK_BYTES

    def call(self, module: nn.Module, arguments: Sequence[Any], *, gradients: bool) -> tuple[Any, dict[str, Any]]:
        """One call: the outputs and the reply. Raises as `ask` does."""
        poisons, keeps = self.poisons, self.keeps_inputs
        payload, inputs = self._call_payload(module, arguments, gradients)
        try:
            reply = self.ask("call", payload, "run")
        except torch.OutOfMemoryError:
            if self.device.type != "cuda":
                raise
            # What the judge holds of the device may be what the candidate lacks: once more, with all that can be given.
            self.worker.unshare()
            torch.cuda.empty_cache()
            self.poisons, self.keeps_inputs = poisons, keeps
            payload, inputs = self._call_payload(module, arguments, gradients)
            reply = self.ask("call", payload, "run")
        try:
            outputs = self._received(reply, payload["limit"], inputs)
        except Broken as error:
            raise self.worker.breach(str(error), "run") from None
        self.worker.inputs.release()
        self.worker.outputs.release()
        if self.device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.device)
            if free < CROWDED_SHARE * total:  # the judge's next step, the model in float64, takes the most
                self.worker.rest(empty=True)
        for text in self.last.warnings:
            warnings.warn(text, stacklevel=3)
        return outputs, reply

    def _call_payload(self, module: nn.Module, arguments: Sequence[Any], gradients: bool
                      ) -> tuple[dict[str, Any], list[torch.UntypedStorage]]:
        """What a call's request says, with everything that it brings in its place, and the arguments' storages."""
        packer = Packer()
        payload: dict[str, Any] = {"inputs": encoded(list(arguments), packer)}
        inputs = list(packer.storages)
        flags = [gradients and t.requires_grad for t in tensors_of(list(arguments))]
        payload["state"] = self.mirror.changed(packer)
        payload["random"] = [packer.add(state) for state in self._random_state()]
        payload["seed"] = torch.initial_seed()  # from which a trial seeds the generators that are not PyTorch's
        own = sum(storage.nbytes() for storage in packer.storages)
        limit = self.limit(own)
        self._reserve(limit, own + self.mirror.bytes() + ALIGNMENT * 8 * len(packer.storages),
                      on_device=sum(map(aligned, self.expected or ())) + MORE_ON_DEVICE)
        payload |= self.worker.pack(packer)
        for entry, flag in zip(payload["tensors"], flags, strict=False):
            entry["grad"] = flag
        payload |= {"training": module.training, "grad": gradients, "limit": limit, "poison": self._poison(),
                    "grace": self._grace(), "keep_inputs": self.keeps_inputs}
        self.keeps_inputs = False
        return payload, inputs

    def _received(self, reply: dict[str, Any], limit: int, inputs: list[torch.UntypedStorage]) -> Any:
        """Do here what the call did there; its outputs. Raises Broken."""
        storages: list[torch.UntypedStorage] = []

        def local(told: dict[str, Any]) -> torch.UntypedStorage | None:
            kind = told.get("of")
            if kind == "state":
                return self.mirror.storage(told)
            if kind == "input" or kind == "output":
                return protocol.item(inputs if kind == "input" else storages, told.get("index"))
            return self._memory_of_earlier(told, limit) if "earlier" in told else None

        found, storages = protocol.tensors(reply.get("memory"), self.worker.outputs, self.device, limit, local)
        changed, _ = protocol.tensors(reply.get("effects"), self.worker.outputs, self.device, limit, local)
        outputs = protocol.value(reply.get("outputs"), found)
        if reply.get("state") is not None:
            self.mirror.take(reply["state"], changed)
        random = protocol.field(reply, "random", list, type(None))
        if random is not None:
            self._set_random_state([protocol.item(changed, number) for number in random])
        self._remember(reply["memory"]["storages"], storages)
        launch_error = protocol.field(reply, "launch_error", str, type(None))
        seconds, returned = (float(protocol.field(reply, name, float, int)) for name in ("seconds", "returned_seconds"))
        self.last = Last(
            protocol.field(reply, "late", bool), launch_error[:100] if launch_error else None,
            tuple((path, type(leaf).__name__) for path, leaf in flatten(outputs).items() if isinstance(leaf, Foreign)),
            seconds, returned, protocol.field(reply, "threads", int), tuple(protocol.texts(reply, "warnings", 20)))
        self.calls += 1
        self.ever_late = self.ever_late or self.last.late
        if self.last.launch_error:
            self.launch_errors = tuple(dict.fromkeys((*self.launch_errors, self.last.launch_error)))
        return outputs

    def _remember(self, told: list[dict[str, Any]], storages: list[torch.UntypedStorage]) -> None:
        """Note what memory a call's outputs have here, without keeping it: outputs may be gigabytes, and nobody sees
        whether one that nobody has changes with a later one."""
        now = [StorageWeakRef(storage) if each.get("of") == "new" else None
               for each, storage in zip(told, storages, strict=True)]
        for each, reference in zip(told, now, strict=True):
            if reference is not None and "earlier" in each:  # other memory where the earlier output's is gone
                back, number = each["earlier"]
                self._earlier[back][number] = reference
        self._earlier.appendleft(now)

    def _memory_of_earlier(self, told: dict[str, Any], limit: int) -> torch.UntypedStorage | None:
        """The memory of an earlier call's output that this call's covers again, None where nobody has that any more; it
        grows to what is covered now. Raises Broken."""
        back, size = told["earlier"], protocol.field(told, "bytes", int)
        if type(back) is not list or len(back) != 2 or size > limit:
            raise Broken("named something that does not exist")
        reference = protocol.item(protocol.item(self._earlier, back[0]), back[1])
        if reference is None:
            raise Broken("named something that does not exist")
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is not None and storage.nbytes() < size:
            storage.resize_(size)
        return storage

    def _reserve(self, limit: int, more: int, on_device: int = 0) -> None:
        """Room for what a reply may bring twice, as outputs and as changes; pages that nobody writes cost nothing.
        Device memory does: there is room for what is expected, and more goes by way of the file."""
        self.worker.outputs.reserve(2 * limit + more + ALIGNMENT * 65536)
        self.worker.share(outputs=min(limit, on_device))

    def _poison(self) -> dict[str, Any] | None:
        """How the next call's memory is poisoned: patterns take turns; in every second call torch.empty fills, too."""
        if not self.poisons:
            return None
        self.poisons = False
        turn = self.calls % 2
        return {"sizes": self.expected or [], "pattern": PATTERNS[turn], "empties": turn == 1}

    def _grace(self) -> float | None:
        waits = self.calls < GRACE_ALWAYS or secrets.randbelow(GRACE_ONE_IN) == 0
        return GRACE_SECONDS if waits else None

    def _random_state(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else states

    def _set_random_state(self, states: list[torch.Tensor]) -> None:
        if [(s.dtype, s.shape) for s in states] != [(s.dtype, s.shape) for s in self._random_state()]:
            raise Broken("sent a random state of another form")
        try:
            torch.set_rng_state(states[0])
            if len(states) > 1:
                torch.cuda.set_rng_state(states[1], self.device)
        except RuntimeError:
            raise Broken("sent a random state that is none") from None


def _nothing(told: dict[str, Any]) -> None:
    """No storage is known here."""
