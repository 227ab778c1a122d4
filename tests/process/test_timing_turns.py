"""Whether a GPU is idle, as probes find out: on a simulated one that works for two processes in slices of time."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from kernelwright import device_lock

SLICE, PROBE = 2.0, 1.0  # milliseconds


class Gpu:
    """A GPU with a queue of ours. ``others_until``: the millisecond at which another process's work ends.

    While that lasts, whoever has work begins a slice when the other's ends, or has nothing to do: ours is the shorter
    work, so we wait for a slice whenever our queue was empty.
    """

    def __init__(self, others_until: float) -> None:
        self.now, self.others_until = 0.0, others_until
        self.ours: float | None = None  # when our slice ends; None while our queue is empty
        self.queued: list[Event | None] = []
        self.shared_slices = 0

    def run(self) -> None:
        """Work until our queue is empty."""
        for item in self.queued:
            if isinstance(item, Event):
                item.at = self.now
                continue
            left = PROBE
            while left > 0:
                busy = self.now < self.others_until
                if busy and (self.ours is None or self.now >= self.ours):
                    self.now += SLICE
                    self.ours = self.now + SLICE
                    self.shared_slices += 1
                step = min(left, self.ours - self.now) if busy else left
                self.now += step
                left -= step
        self.queued, self.ours = [], None


class Event:
    """A CUDA event on the simulated GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.gpu.queued.append(self)

    def synchronize(self) -> None:
        self.gpu.run()

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


@pytest.fixture
def simulated(monkeypatch):
    """A function that puts a `Gpu` in PyTorch's place; its milliseconds are those of the clock."""
    def install(others_until: float) -> Gpu:
        gpu = Gpu(others_until)
        cuda = SimpleNamespace(is_initialized=lambda: True, synchronize=gpu.run, Event=lambda enable_timing: Event(gpu),
                               _sleep=lambda cycles: gpu.queued.append(None))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(device_lock.time, "monotonic", lambda: gpu.now / 1000)
        return gpu

    return install


def test_a_gpu_of_our_own_is_idle(simulated):
    gpu = simulated(0.0)
    assert device_lock.wait_until_idle()
    assert gpu.now < 20


def test_work_of_others_is_waited_for(simulated):
    gpu = simulated(700.0)
    assert device_lock.wait_until_idle()
    assert gpu.now >= 700 and gpu.shared_slices > 10


def test_endless_work_of_others_is_noticed(simulated):
    gpu = simulated(float("inf"))
    assert not device_lock.wait_until_idle(0.5)
    assert 500 <= gpu.now < 600
