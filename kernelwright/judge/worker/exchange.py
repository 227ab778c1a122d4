"""The memory through which judge and worker exchange tensors: what goes where, and what of it lies on the device."""

from __future__ import annotations

import os
from typing import Any

import torch

from kernelwright.judge.inside.tensors import Packer
from kernelwright.judge.worker import protocol
from kernelwright.judge.worker.device_memory import KEEP_BYTES, memory_of
from kernelwright.judge.worker.protocol import Broken
from kernelwright.judge.worker.shared_memory import SharedMemory

#: The longest that anything takes in a worker that runs no candidate.
START_SECONDS = 120.0


class Exchange:
    """The memory that a worker on ``device`` shares, for inputs and for outputs, and what of it the worker is told."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.inputs, self.outputs = (SharedMemory(name, memory_of(device)) for name in ("inputs", "outputs"))

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
        """Have at least so many bytes of device memory for the two, as far as there can be some; elsewhere
        tensors go through the files. Raises WorkerFailure."""
        for shared, size in ((self.inputs, inputs), (self.outputs, outputs)):
            if shared.device_memory is not None and shared.device_memory.reserve(size):
                self._map(shared)

    def share_first(self) -> str:
        """Have a page of device memory for both, of a worker that has run no code of a candidate: what does not
        go now is not tried again. Words on what does not, to be appended to others. Raises WorkerFailure."""
        words = ""
        for shared in (self.inputs, self.outputs):
            if shared.device_memory is not None:
                shared.device_memory.close()  # a process that did not start has had it
        self.share(inputs=1, outputs=1)
        for shared in (self.inputs, self.outputs):
            if shared.device_memory is not None and not shared.device_memory.bytes:
                words += f"; the {shared.name} go through host memory ({shared.device_memory.refusal})"
                shared.device_memory = None
        return words

    def rest(self, *, empty: bool = False) -> None:
        """Give large device memory back until it is needed again; with ``empty`` the worker gives back all that its
        allocator keeps for later, too. Raises WorkerFailure."""
        for shared in (self.inputs, self.outputs):
            if shared.device_memory is not None and shared.device_memory.bytes > KEEP_BYTES:
                shared.device_memory.close()
                self._map(shared, empty)

    def unshare(self) -> None:
        """Give all device memory back, for good. Raises WorkerFailure."""
        for shared in (self.inputs, self.outputs):
            if shared.device_memory is not None:
                shared.device_memory.close()
                self._map(shared, empty=True)
                shared.device_memory = None

    def _map(self, shared: SharedMemory, empty: bool = False) -> None:
        """Tell the worker of the present device memory. What it cannot map is given up."""
        memory = shared.device_memory
        assert memory is not None  # there is nothing to tell of otherwise
        descriptor = memory.take_descriptor()
        payload = {"memory": shared.name, "bytes": memory.bytes, "empty": empty}
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
