"""Memory of a GPU that the judge shares with one worker: the part of the shared memory in which tensors there travel.

Nothing else of the judge's can be reached through it: a block is memory of its own in whole pages, and is overwritten
before a worker gets it, as what was freed here may have held expected results. The worker may write into it at any
time. No verdict can change by that more than by what a worker says anyway: the judge writes inputs there and never
reads them back, copies outputs from there into memory of its own once, after the answer, and looks at that copy alone.
"""

from __future__ import annotations

import functools
import os

import torch

from kernelwright.judge.inside.driver import Block, Driver, DriverError

#: Share of a device's memory that one block may take, and how many times its bytes must be free: worker and judge need
#: room for the same tensors.
MOST_SHARE, ROOM = 0.125, 4
#: Blocks of at most this many bytes are kept when there is a pause.
KEEP_BYTES = 64 << 20


@functools.cache
def driver() -> Driver:
    """This process's driver. Raises DriverError where there is none."""
    return Driver()


class DeviceMemory:
    """The device memory beside one file of shared memory: none at first, another block when more is needed.

    ``bytes`` counts the present block's, ``descriptor`` is for the worker (-1: it was taken, or there is no block).
    ``refusal`` says in words why there was none when it was last asked for, and is empty otherwise.
    """

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda and device.index is None else device
        self.bytes, self.descriptor, self.refusal = 0, -1, ""
        self._driver: Driver | None = None
        self._block: Block | None = None
        self._memory: torch.Tensor | None = None
        self._too_much: int | None = None

    def reserve(self, size: int) -> bool:
        """Have a block of at least ``size`` bytes, or none where that does not go. Whether there is another now."""
        if size <= self.bytes or (self._too_much is not None and size >= self._too_much):
            return False
        had = bool(self.bytes)
        self.refusal = self._lack(size)
        if not self.refusal:
            self.close()
            try:
                self._make(size)
            except (DriverError, RuntimeError) as error:
                self.close()
                self.refusal = str(error).splitlines()[0]
        if self.refusal:
            self._too_much = size
        return not self.refusal or (had and not self.bytes)

    def take_descriptor(self) -> int:
        """The descriptor of the present block, which the caller closes; -1 where there is none."""
        descriptor, self.descriptor = self.descriptor, -1
        return descriptor

    def part(self, at: int, size: int) -> torch.Tensor:
        """``size`` bytes from ``at`` on, shared with the worker. Raises EOFError where there are not as many."""
        if self._memory is None or at + size > self.bytes:
            raise EOFError("the shared memory has not as much device memory as is asked for")
        return self._memory[at:at + size]

    def settle(self) -> None:
        """Wait until what was copied to or from here is there."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def give_up(self, refusal: str) -> None:
        """Have no block as large as the present one: the worker could not map it."""
        self._too_much, self.refusal = max(1, self.bytes), refusal
        self.close()

    def close(self) -> None:
        """Give the memory back; the worker's own mapping keeps it alive until that is gone, too."""
        if self.descriptor >= 0:
            os.close(self.take_descriptor())
        if self._block is not None and self._driver is not None:
            self.settle()
            self._memory = None
            self._driver.unmap(self._block)
        self._block, self.bytes = None, 0

    def _make(self, size: int) -> None:
        self.settle()  # which also makes the device's context this thread's
        self._driver = driver()
        self._block, self.descriptor = self._driver.create(self.device.index or 0, size)
        self._memory = self._block.tensor(self.device)
        self._memory.zero_()
        self.settle()
        self.bytes = self._block.bytes

    def _lack(self, size: int) -> str:
        """Why so much would leave too little for everything else, or ""."""
        if self.device.type != "cuda":
            return ""
        free, total = torch.cuda.mem_get_info(self.device)
        if ROOM * size > free:
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info(self.device)[0]
        if size <= MOST_SHARE * total and ROOM * size <= free:
            return ""
        return f"{size / 2**30:.1f} GiB are too much for a device that has {free / 2**30:.1f} GiB free"


def memory_of(device: torch.device) -> DeviceMemory | None:
    """The device memory that a worker on ``device`` shares; None on a CPU."""
    return DeviceMemory(device) if device.type == "cuda" else None
