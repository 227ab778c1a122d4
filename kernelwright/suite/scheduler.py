"""Workers on devices: which problem starts where, who measures, and what has gone on for too long.

One thread, one step after the other: :meth:`Scheduler.step` hears what workers say, ends what exceeds its limits, and
hands out problems and devices. Nothing here waits for a worker, so that none can hold up another: who measures
is ended with its limit, and who waits for a device is not charged for it.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from kernelwright.suite import processes
from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.jobs import Job
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.outcome import LOGS, leave, make_record, retry_of
from kernelwright.suite.worker_process import Attempt, WorkerProcess

#: Workers that have imported everything and wait, so that the next problem starts at once. Importing takes about as
#: long as a GPU works on one problem; on the CPU it would only take time from the others.
SPARE_ON_GPU, SPARE_ON_CPU = 2, 1
#: Time to show a stack before the end.
DUMP_SECONDS = 0.5
#: A process that has not imported PyTorch after this long never will.
START_SECONDS = 180.0
MEMORY_INTERVAL_SECONDS = 0.5
MOST_FAILED_STARTS = 3
DEFAULT_WORK = SuiteOptions.__dataclass_fields__["work"].default
#: Gets the record of a job; returns jobs that take its place, or None.
Finished = Callable[[dict[str, Any]], Iterable[Job] | None]
#: Gets a job's name, and what its work says of a part of it.
Part = Callable[[str, dict[str, Any]], None]


def nobody_asks(job: str, part: dict[str, Any]) -> None:
    """Nobody asks."""


class Scheduler:
    """Runs jobs on ``queues``; ``finished`` gets each record, once per job, and may return further jobs; ``part`` gets
    what a job's work says while it runs. ``folder`` receives files, ``scratch`` is the scheduler's own and is removed
    at the end."""

    def __init__(self, queues: Sequence[DeviceQueue], options: SuiteOptions, folder: Path, scratch: Path,
                 per_device: int, finished: Finished, part: Part = nobody_asks) -> None:
        self.queues = list(queues)
        self.options = options
        self.folder = folder
        self.scratch = scratch
        self.per_device = per_device
        #: Processes that share the machine's memory.
        self.on_machine = per_device * len(self.queues)
        self.finished, self.part = finished, part
        self.jobs: deque[Attempt] = deque()
        self.last: deque[Attempt] = deque()  # alone on the machine
        self.selector = selectors.DefaultSelector()
        self.failed_starts = 0
        self.memory_looked_at = 0.0
        self.memory_reserve = _reserve()
        for queue in self.queues:
            queue.prepared = options.work != DEFAULT_WORK
            # A judge's candidates use the device by themselves, whatever their judge is at.
            queue.stops_groups = queue.stops_groups or options.judge is not None
            queue.slots = list(range(per_device + _spare(queue), 0, -1))

    def add(self, jobs: Iterable[Job]) -> None:
        """Take on more jobs, to be started in this order; those that must be alone come last."""
        for job in jobs:
            (self.last if job.alone else self.jobs).append(Attempt(job, alone="machine" if job.alone else ""))

    def withdraw(self, job: str) -> None:
        """Have nothing more to do with a job: what it runs is ended, and no record comes of it."""
        self.jobs = deque(attempt for attempt in self.jobs if attempt.job.problem != job)
        self.last = deque(attempt for attempt in self.last if attempt.job.problem != job)
        for queue in self.queues:
            queue.retries = [attempt for attempt in queue.retries if attempt.job.problem != job]
            for worker in list(queue.workers):
                if worker.attempt is not None and worker.attempt.job.problem == job:
                    self._forget(queue, worker)
                    worker.clean()

    def stages(self) -> dict[str, str]:
        """The stage that each job is at which a worker has, by the job's name."""
        return {worker.attempt.job.problem: worker.stage for queue in self.queues for worker in queue.workers
                if worker.attempt is not None}

    @property
    def open(self) -> int:
        """Jobs without a record yet."""
        return len(self.jobs) + len(self.last) + sum(
            len(queue.retries) + sum(w.attempt is not None for w in queue.workers) for queue in self.queues)

    @property
    def capacity(self) -> int:
        """How many jobs may run at once."""
        return self.on_machine

    def step(self, timeout: float = 0.05) -> None:
        """Do what there is to do; wait at most ``timeout`` seconds for something to happen."""
        for queue in self.queues:
            self._start_workers(queue)
            self._hand_out(queue)
        for key, _ in self.selector.select(timeout):
            self._hear(*key.data)
        for queue in self.queues:
            for worker in list(queue.workers):
                self._look_after(queue, worker)
        if time.monotonic() - self.memory_looked_at > MEMORY_INTERVAL_SECONDS:
            self._look_at_memory()
        for queue in self.queues:
            queue.serve()

    def close(self) -> None:
        """End every process, and take away what unfinished problems left."""
        for queue in self.queues:
            for worker in list(queue.workers):
                self._forget(queue, worker)
                if worker.attempt is not None:
                    worker.attempt.job.take_away(self.folder)
        self.selector.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    # ---- starting ----------------------------------------------------------------------------------

    def _start_workers(self, queue: DeviceQueue) -> None:
        if queue.holder is not None and queue.stops_groups:
            return
        left = len(self.jobs) + len(queue.retries) + len(self.last)
        busy = sum(worker.busy for worker in queue.workers)
        wanted = min(self.per_device + _spare(queue), busy + left) if left else busy
        if len(queue.workers) < wanted and queue.slots:
            slot = queue.slots.pop()
            cache = self.scratch / f"{queue.name.replace(':', '')}-{slot}"
            for part in ("inductor", "triton", "cuda"):
                (cache / part).mkdir(parents=True, exist_ok=True)
            # Caches that lock their files are nobody else's. They stay when the next problem's process takes over.
            environment = {**queue.environment, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
                           "TRITON_CACHE_DIR": str(cache / "triton"), "CUDA_CACHE_PATH": str(cache / "cuda")}
            worker = WorkerProcess(self.options.work, self.options.compiles, environment, self.scratch, slot, cache)
            queue.workers.append(worker)
            self.selector.register(worker.line, selectors.EVENT_READ, (queue, worker))

    def _hand_out(self, queue: DeviceQueue) -> None:
        if queue.holder is not None:
            return
        for worker in [w for w in queue.workers if w.ready and w.attempt is None and not w.preparing]:
            if not queue.prepared:
                if not any(w.preparing for w in queue.workers):
                    worker.prepare({"settings": self.options.kept_settings()})
                return
            attempt = self._next(queue)
            if attempt is None:
                return
            self._give(queue, worker, attempt)

    def _next(self, queue: DeviceQueue) -> Attempt | None:
        """What may start on ``queue`` now. Problems that must be alone come last, so that nobody waits for them."""
        here = [w.attempt for w in queue.workers if w.attempt is not None]
        everywhere = [w.attempt for other in self.queues for w in other.workers if w.attempt is not None]
        if any(attempt.alone for attempt in here) or any(attempt.alone == "machine" for attempt in everywhere):
            return None
        if self.jobs:
            return self.jobs.popleft() if len(here) < self.per_device else None
        if queue.retries and not here:
            return queue.retries.pop(0)
        if self.last and not everywhere:
            return self.last.popleft()
        return None

    def _give(self, queue: DeviceQueue, worker: WorkerProcess, attempt: Attempt) -> None:
        emitted = self.folder / attempt.job.emitted
        emitted.parent.mkdir(parents=True, exist_ok=True)
        attempt.job.take_away(self.folder)
        worker.give(attempt, {"problem": attempt.job.problem, "path": attempt.job.path, "emitted": str(emitted),
                              "page": str(self.folder / attempt.job.page), "logs": str(self.folder / LOGS),
                              "settings": self.options.kept_settings(), "on_machine": self.on_machine,
                              **attempt.job.given})
        running = [w for other in self.queues for w in other.workers if w.busy]
        if len(running) > 1:
            for other in running:
                other.beside_others = True

    # ---- hearing -----------------------------------------------------------------------------------

    def _hear(self, queue: DeviceQueue, worker: WorkerProcess) -> None:
        for message in worker.messages():
            match message.get("say"):
                case "ready":
                    worker.ready, worker.versions = True, message["versions"]
                    self.failed_starts = 0
                case "stage":
                    worker.stage = message["stage"]
                case "leave":
                    worker.off_device = True
                case "return":
                    worker.waiting = ("return", message["number"])
                case "lock":
                    worker.waiting = ("lock", message["number"])
                    queue.asking.append(worker)
                case "room":
                    worker.waiting = ("room", message["number"])
                    queue.rooms.ask(worker, message["bytes"], message["total"])
                case "unlock":
                    worker.waiting = None
                    queue.leave(worker)
                case "noisy":
                    worker.noisy = True
                case "part":
                    assert worker.attempt is not None
                    worker.lap = worker.active_seconds()
                    self.part(worker.attempt.job.problem, message["part"])
                case "result":
                    worker.outcome = message["outcome"]
                    self._finish(queue, worker)
                    return
            worker.note_pause(time.monotonic())
        if worker.line_ended and worker.line in self.selector.get_map():
            self.selector.unregister(worker.line)

    def _finish(self, queue: DeviceQueue, worker: WorkerProcess) -> None:
        """The worker has an outcome, has ended, or must end."""
        status = self._forget(queue, worker)
        if worker.preparing:
            queue.prepared = True  # where it failed, each problem says so itself
            queue.device = (worker.outcome or {}).get("device") or ""
        elif worker.attempt is None:
            self.failed_starts += 1
            if self.failed_starts >= MOST_FAILED_STARTS:
                raise RuntimeError(f"worker processes do not start (status {status}): {worker.printed(2000)}")
        else:
            record = make_record(worker, queue, self.options, status)
            retry = retry_of(worker, record)
            if retry is None:
                leave(worker, record, self.folder)
                self.add(self.finished(record) or ())
            elif retry.alone == "machine":
                self.last.append(retry)
            else:
                queue.retries.append(retry)
        worker.clean()

    def _forget(self, queue: DeviceQueue, worker: WorkerProcess) -> int:
        """End the worker's processes and its place in the queue; its exit status."""
        if worker.line in self.selector.get_map():
            self.selector.unregister(worker.line)
        status = worker.end()
        queue.workers.remove(worker)
        queue.leave(worker)
        queue.rooms.leave(worker)
        queue.slots.append(worker.slot)
        if worker.outcome is None:  # it may have been in the middle of writing to its caches
            shutil.rmtree(worker.cache, ignore_errors=True)
        return status

    # ---- limits ------------------------------------------------------------------------------------

    def _look_after(self, queue: DeviceQueue, worker: WorkerProcess) -> None:
        if worker.has_ended():
            self._hear(queue, worker)  # its last words may be the result
            if worker in queue.workers:
                self._finish(queue, worker)
            return
        if not worker.ready and time.monotonic() - worker.born > START_SECONDS and worker.stopped_since is None:
            self._finish(queue, worker)
        elif worker.busy and worker.lap_seconds() > self.options.limit:
            if worker.dumped_at is None:
                worker.dumped_at = time.monotonic()
                processes.send(worker.pid, signal.SIGUSR1)
            elif time.monotonic() - worker.dumped_at > DUMP_SECONDS:
                worker.killed = ("timeout", "")
                self._finish(queue, worker)

    def _look_at_memory(self) -> None:
        """Note what each worker uses; end the one that uses too much, or the largest where the machine runs short."""
        self.memory_looked_at = time.monotonic()
        sessions = processes.sessions()
        used: list[tuple[int, DeviceQueue, WorkerProcess]] = []
        for queue in self.queues:
            for worker in (w for w in queue.workers if w.busy and w.stopped_since is None):
                size = processes.resident_bytes(sessions.get(worker.pid, ()))
                worker.peak_bytes = max(worker.peak_bytes, size)
            used += [(worker.peak_bytes, queue, worker) for worker in queue.workers if worker.attempt is not None]
        limit = self.options.memory
        for size, queue, worker in used:
            if limit is not None and size > limit * 2**30:
                self._end_for_memory(queue, worker, f"A problem may use {limit:g} GiB.")
        free = processes.available_bytes()
        if limit is None and used and free is not None and free < self.memory_reserve:
            size, queue, worker = max(used, key=lambda entry: entry[0])
            if size > self.memory_reserve:  # otherwise it is not a problem of ours that fills the machine
                self._end_for_memory(queue, worker, f"Only {free / 2**30:.1f} GiB were free.")

    def _end_for_memory(self, queue: DeviceQueue, worker: WorkerProcess, words: str) -> None:
        worker.killed = ("memory", words)
        if self.options.memory is not None:
            worker.beside_others = False  # the limit is the same for one that runs alone
        self._finish(queue, worker)


def _spare(queue: DeviceQueue) -> int:
    return SPARE_ON_CPU if queue.stops_groups else SPARE_ON_GPU


def _reserve() -> int:
    """Bytes of memory that must stay free: a twentieth of the machine's, at most 2 GiB."""
    return min(2 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 20)
