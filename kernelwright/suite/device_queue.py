"""A device of a suite: its workers, and the queue of those that want to measure on it.

A worker asks to have its device to itself (``device_lock.py``). Requests are served in their order. Before
one is granted, every other process that may use the device is stopped: on a GPU the main process of each worker, unless
it said that it does not use the device for now; on the CPU everything that other workers started. Whoever is
stopped holds no lock that the measuring one could need, because caches that lock are each worker's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelwright.suite import processes
from kernelwright.suite.rooms import Rooms
from kernelwright.suite.worker_process import Attempt, WorkerProcess

#: A signal to stop takes effect when a process leaves the kernel: milliseconds, rarely longer. What it had queued on a
#: GPU is waited for by the process that measures (``device_lock.wait_until_idle``).
STOPPED_WITHIN_SECONDS = 0.25


@dataclass(slots=True)
class DeviceQueue:
    """One device: its workers, and who has it to itself."""

    name: str
    """``cuda:0`` as the machine counts, or ``cpu``."""
    environment: dict[str, str]
    stops_groups: bool
    """On the CPU everything that a process started competes; on a GPU only the process that holds a context."""
    workers: list[WorkerProcess] = field(default_factory=list)
    holder: WorkerProcess | None = None
    asking: list[WorkerProcess] = field(default_factory=list)
    retries: list[Attempt] = field(default_factory=list)
    prepared: bool = False
    device: str = ""
    slots: list[int] = field(default_factory=list)
    """Numbers of cache folders that are free."""
    rooms: Rooms[WorkerProcess] = field(default_factory=Rooms)
    """Who has how much of its memory."""

    def serve(self) -> None:
        """Grant the next request if nobody measures; stop and let go on whom that concerns."""
        for worker in self.rooms.grant():
            worker.go()
        if self.holder is None and self.asking:
            self._grant(self.asking.pop(0))
        if self.holder is None:
            for worker in self.workers:
                worker.resume()
                if worker.waiting is not None and worker.waiting[0] == "return":
                    worker.off_device = False
                    worker.go()
        else:
            for worker in self.workers:
                if self.must_rest(worker):
                    worker.stop(group=self.stops_groups)
                else:
                    worker.resume()

    def must_rest(self, worker: WorkerProcess) -> bool:
        """Whether a worker may not run while the holder measures. One that imports ahead may start a context."""
        return worker is not self.holder and (self.stops_groups or not worker.off_device)

    def leave(self, worker: WorkerProcess) -> None:
        """The worker measures no longer, or takes its request back."""
        self.asking = [other for other in self.asking if other is not worker]
        if self.holder is worker:
            self.holder = None

    def _grant(self, worker: WorkerProcess) -> None:
        self.holder = worker
        worker.resume()
        resting = [other for other in self.workers if self.must_rest(other)]
        for other in resting:
            other.stop(group=self.stops_groups)
        processes.wait_until_stopped([p for other in resting for p in other.stopped_processes], STOPPED_WITHIN_SECONDS)
        worker.go()
