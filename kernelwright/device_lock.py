"""The lock on a device that several processes share: nothing else runs on it while one of them measures.

In a suite, one process per problem works on each device, and a scheduler holds a line to each. A block under
:func:`locked_device` has the device to itself: the scheduler stops every other process that may use it, and lets them
go on afterwards. A block under :func:`without_device` promises not to use the device (a compiler runs, say), so that
its process is not stopped on a GPU. :func:`room_on_device` waits until there is as much of the device's memory as is
needed, beside what others were given. Outside of a suite there is nobody to wait for, and all three do nothing.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

#: Probes that must agree before a GPU counts as idle. They stand in its queue together, longer than the slices of some
#: 2 ms in which a GPU works for several processes in turn, so that work left by a stopped one lengthens some of them.
#: One that is waited for before the next is launched begins a slice of its own, and never shows anybody.
PROBES = 10
PROBE_CYCLES = 2_000_000  # about 1 ms
#: Probes agree if the longest takes at most this much of the shortest.
AGREEMENT = 1.15
#: The longest wait for an idle GPU: what a stopped process has queued (a reference in float64, say) ends by itself, if
#: in seconds; a stranger's work need not.
IDLE_WITHIN_SECONDS = 10.0


class DeviceLock:
    """One process's line to the scheduler: JSON objects, one a line, in both directions.

    Said: ``leave`` and ``return`` (around a block without the device), ``lock`` and ``unlock`` (around one that has it
    to itself), and ``room`` (for memory of the device). ``return``, ``lock`` and ``room`` carry a number and wait for
    ``go`` with it. ``paused`` is a file of eight bytes
    in which the scheduler keeps the seconds (float64) that this process has been stopped.
    """

    def __init__(self, line: socket.socket, paused: int | None = None) -> None:
        self.line = line
        self.reader = line.makefile("r", encoding="utf-8")
        self.memory = mmap.mmap(paused, 8, prot=mmap.PROT_READ) if paused is not None else None
        self.process = os.getpid()
        self.number = 0
        self.waited = 0.0
        self.off_device = self.held = False

    def say(self, **message: Any) -> None:
        """Send one message. Raises OSError where the scheduler is gone."""
        self.line.sendall((json.dumps(message, allow_nan=False) + "\n").encode())

    def hear(self) -> dict[str, Any]:
        """Wait for the next message. Raises ConnectionError where the scheduler is gone."""
        text = self.reader.readline()
        if not text:
            raise ConnectionError("the scheduler of this suite has ended")
        return json.loads(text)

    def paused_seconds(self) -> float:
        """Seconds that this process was stopped, or waited for the device, so far."""
        stopped = struct.unpack_from("d", self.memory)[0] if self.memory is not None else 0.0
        return stopped + self.waited

    def moment(self) -> tuple[float, float]:
        """The time by the monotonic clock, and `paused_seconds` then: a stop between the two would count twice."""
        while True:
            paused, now = self.paused_seconds(), time.monotonic()
            if self.paused_seconds() == paused:
                return now, paused

    @contextmanager
    def locked_device(self) -> Iterator[None]:
        """See :func:`locked_device`."""
        if self.held:
            yield
            return
        try:
            self._wait_for("lock")
            self.held = True
            if not wait_until_idle():
                self.say(say="noisy")
            yield
        finally:
            self.held = False
            self.say(say="unlock")

    @contextmanager
    def without_device(self) -> Iterator[None]:
        """See :func:`without_device`."""
        if self.off_device or self.held:
            yield
            return
        _synchronize()
        self.say(say="leave")
        self.off_device = True
        try:
            yield
        finally:
            self.off_device = False
            self._wait_for("return")

    def room_on_device(self, needed: int | None, total: int) -> None:
        """See :func:`room_on_device`."""
        self._wait_for("room", bytes=needed, total=total)

    def _wait_for(self, request: str, **told: int | None) -> None:
        """Make a request and wait for its ``go``. Answers to requests that an exception cut short are skipped.

        Nobody comes back to the device early: an exception (of an alarm, say) while waiting for that is raised later.
        """
        self.number += 1
        started, before = self.moment()
        interruption: BaseException | None = None
        try:
            self.say(say=request, number=self.number, **told)
            while True:
                try:
                    if self.hear().get("go") == self.number:
                        break
                except ConnectionError:
                    raise
                except BaseException as exception:
                    if request != "return":
                        raise
                    interruption = interruption or exception
        finally:
            # Whoever waits may be stopped on top of it: that time is counted once.
            ended, paused = self.moment()
            self.waited += max(0.0, ended - started - (paused - before))
        if interruption is not None:
            raise interruption


_lock: DeviceLock | None = None


def connect(lock: DeviceLock | None) -> None:
    """Make ``lock`` the one of this process; None takes it away."""
    global _lock
    _lock = lock


def _own_lock() -> DeviceLock | None:
    # A forked child has its parent's line in memory and no business on it.
    return _lock if _lock is not None and _lock.process == os.getpid() else None


@contextmanager
def locked_device() -> Iterator[None]:
    """The block has its device to itself: for everything that is measured. May be nested."""
    lock = _own_lock()
    if lock is None:
        yield
        return
    with lock.locked_device():
        yield


@contextmanager
def without_device() -> Iterator[None]:
    """The block does not use the device: for compilers and the like. May be nested; no effect in a block that has the
    device to itself.

    What the process had queued on a GPU is waited for first. After the block, the process waits while another has
    the device to itself.
    """
    lock = _own_lock()
    if lock is None:
        yield
        return
    with lock.without_device():
        yield


def room_on_device(needed: int | None, total: int) -> None:
    """Wait until this process may use ``needed`` bytes of its device, which has ``total``; with None all of it, so that
    no other process that asks has any. It holds until the process ends or asks again, which gives back what it had."""
    lock = _own_lock()
    if lock is not None:
        lock.room_on_device(needed, total)


def was_noisy() -> None:
    """What was measured here was not alone: others took processors meanwhile."""
    lock = _own_lock()
    if lock is not None:
        lock.say(say="noisy")


def paused_seconds() -> float:
    """Seconds that this process was stopped or waited for the device since it started; 0 outside of a suite."""
    lock = _own_lock()
    return lock.paused_seconds() if lock is not None else 0.0


def clock() -> float:
    """A clock in seconds that stands still while this process is stopped or waits for the device."""
    lock = _own_lock()
    if lock is None:
        return time.monotonic()
    now, paused = lock.moment()
    return now - paused


def wait_until_idle(limit_seconds: float = IDLE_WITHIN_SECONDS) -> bool:
    """Wait until nothing else runs on the current GPU; whether that was seen. True at once where CUDA is not in use.

    A stopped process has left kernels in its queue. While they run, the GPU works for two processes in turn, and
    kernels of equal lengths take different times: probes are repeated until they agree.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    events = [torch.cuda.Event(enable_timing=True) for _ in range(PROBES + 1)]
    torch.cuda.synchronize()
    deadline = time.monotonic() + limit_seconds
    while time.monotonic() < deadline:
        torch.cuda._sleep(PROBE_CYCLES)  # while it runs the others are launched, so that none waits for its launch
        events[0].record()
        for event in events[1:]:
            torch.cuda._sleep(PROBE_CYCLES)
            event.record()
        events[-1].synchronize()
        taken = [first.elapsed_time(second) for first, second in pairwise(events)]
        if max(taken) <= AGREEMENT * min(taken):
            return True
    return False


def _synchronize() -> None:
    """Wait for what this process has queued. A broken CUDA context has nothing queued, and shows where it is used."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.synchronize()
