"""The memory through which judge and worker exchange tensors: what goes where, and what of it lies on the device."""

from __future__ import annotations

import os
from typing import Any

import torch

from kernelwright.judge.inside.tensors import Packer
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.device_memory import KEEP_BYTES, memory_of
from kernelwright.judge.worker.protocol import Broken
from kernelwright.judge.worker.shared_memory import Arena

#: The longest that anything takes in a worker that runs no candidate.
START_SECONDS = 120.0


class Exchange:
    """The two arenas of a worker on ``device``, with what of them the worker must be told."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.inputs, self.outputs = (Arena(name, memory_of(device)) for name in ("inputs", "outputs"))

    def request(self, kind: str, payload: dict[str, Any], *, seconds: float, stage: str,
                descriptors: list[int] | None = None) -> dict[str, Any]:
        """A request's reply. Raises WorkerFailure."""
        raise NotImplementedError

    def lost_device(self, message: str, stage: str) -> Exception:
        """The failure of a worker whose device runs nothing any more."""
        raise NotImplementedError

    def breach(self, sentence: str, stage: str) -> Exception:
        """The failure of a worker that said what no worker says."""
        raise NotImplementedError

    def share(self, inputs: int = 0, outputs: int = 0) -> None:
        """Have at least so many bytes of device memory in the two arenas, as far as there can be some; elsewhere
        tensors go through the arenas' files. Raises WorkerFailure."""
        for arena, size in ((self.inputs, inputs), (self.outputs, outputs)):
            if arena.device_memory is not None and arena.device_memory.reserve(size):
                self._map(arena)

    def share_first(self) -> str:
        """Have a page of device memory in both arenas, of a worker that has run no code of a candidate: what does not
        go now is not tried again. Words on what does not, to be appended to others. Raises WorkerFailure."""
        words = ""
        for arena in (self.inputs, self.outputs):
            if arena.device_memory is not None:
                arena.device_memory.close()  # a process that did not start has had it
        self.share(inputs=1, outputs=1)
        for arena in (self.inputs, self.outputs):
            if arena.device_memory is not None and not arena.device_memory.bytes:
                words += f"; the {arena.name} go through host memory ({arena.device_memory.refusal})"
                arena.device_memory = None
        return words

    def rest(self, *, empty: bool = False) -> None:
        """Give large device memory back until it is needed again; with ``empty`` the worker gives back all that its
        allocator keeps for later, too. Raises WorkerFailure."""
        for arena in (self.inputs, self.outputs):
            if arena.device_memory is not None and arena.device_memory.bytes > KEEP_BYTES:
                arena.device_memory.close()
                self._map(arena, empty)

    def unshare(self) -> None:
        """Give all device memory back, for good. Raises WorkerFailure."""
        for arena in (self.inputs, self.outputs):
            if arena.device_memory is not None:
                arena.device_memory.close()
                self._map(arena, empty=True)
                arena.device_memory = None

    def _map(self, arena: Arena, empty: bool = False) -> None:
        """Tell the worker of an arena's present device memory. What it cannot map, the arena loses."""
        memory = arena.device_memory
        descriptor = memory.take_descriptor()
        payload = {"arena": arena.name, "bytes": memory.bytes, "empty": empty}
        try:
            reply = self.request("map", payload, seconds=START_SECONDS, stage="run",
                                 descriptors=[descriptor] if descriptor >= 0 else [])
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        if not reply["ok"]:
            try:
                said = protocol.error_of(reply)["message"]
            except Broken as broken:
                raise self.breach(str(broken), "run") from None
            if reply.get("broken") is True:
                raise self.lost_device(said, "run")
            memory.give_up((said.splitlines() or [""])[0][:200])

    def pack(self, packer: Packer) -> dict[str, Any]:
        """Put the packer's storages where the worker finds them; what a request says of them. Raises WorkerFailure."""
        self.share(inputs=self.inputs.device_bytes(packer))
        places = self.inputs.pack(packer)
        return {"storages": [[*place, storage.device.type != "cpu"]
                             for place, storage in zip(places, packer.storages, strict=True)],
                "tensors": packer.entries}
