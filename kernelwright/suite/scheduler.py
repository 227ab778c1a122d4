"""Workers on devices: which problem starts where, whose turn it is to measure, and what has gone on for too long.

One thread, one step after the other: :meth:`Scheduler.step` hears what workers say, ends what exceeds its limits, and
hands out problems and turns. Nothing here waits for a worker, so that none can hold up another: who measures
is ended with its limit, and who waits for a turn is not charged for it.
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
from kernelwright.suite.jobs import Job
from kernelwright.suite.lanes import Lane
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


class Scheduler:
    """Runs jobs on ``lanes``; ``finished`` gets each record, once per job. ``folder`` receives files, ``scratch`` is
    the scheduler's own and is removed at the end."""

    def __init__(self, lanes: Sequence[Lane], options: SuiteOptions, folder: Path, scratch: Path, per_lane: int,
                 finished: Callable[[dict[str, Any]], None]) -> None:
        self.lanes = list(lanes)
        self.options = options
        self.folder = folder
        self.scratch = scratch
        self.per_lane = per_lane
        self.finished = finished
        self.jobs: deque[Attempt] = deque()
        self.last: deque[Attempt] = deque()  # alone on the machine
        self.selector = selectors.DefaultSelector()
        self.failed_starts = 0
        self.memory_looked_at = 0.0
        self.memory_reserve = _reserve()
        for lane in self.lanes:
            lane.prepared = options.work != DEFAULT_WORK
            lane.slots = list(range(per_lane + _spare(lane), 0, -1))

    def add(self, jobs: Iterable[Job]) -> None:
        """Take on more jobs, to be started in this order."""
        self.jobs.extend(Attempt(job) for job in jobs)

    @property
    def open(self) -> int:
        """Jobs without a record yet."""
        return len(self.jobs) + len(self.last) + sum(
            len(lane.retries) + sum(w.attempt is not None for w in lane.workers) for lane in self.lanes)

    def step(self, timeout: float = 0.05) -> None:
        """Do what there is to do; wait at most ``timeout`` seconds for something to happen."""
        for lane in self.lanes:
            self._start_workers(lane)
            self._hand_out(lane)
        for key, _ in self.selector.select(timeout):
            self._hear(*key.data)
        for lane in self.lanes:
            for worker in list(lane.workers):
                self._look_after(lane, worker)
        if time.monotonic() - self.memory_looked_at > MEMORY_INTERVAL_SECONDS:
            self._look_at_memory()
        for lane in self.lanes:
            lane.take_turns()

    def close(self) -> None:
        """End every process, and take away what unfinished problems left."""
        for lane in self.lanes:
            for worker in list(lane.workers):
                self._forget(lane, worker)
                if worker.attempt is not None:
                    (self.folder / worker.attempt.job.emitted).unlink(missing_ok=True)
        self.selector.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    # ---- starting ----------------------------------------------------------------------------------

    def _start_workers(self, lane: Lane) -> None:
        if lane.holder is not None and lane.stops_groups:
            return
        left = len(self.jobs) + len(lane.retries) + len(self.last)
        busy = sum(worker.busy for worker in lane.workers)
        wanted = min(self.per_lane + _spare(lane), busy + left) if left else busy
        if len(lane.workers) < wanted and lane.slots:
            slot = lane.slots.pop()
            cache = self.scratch / f"{lane.name.replace(':', '')}-{slot}"
            for part in ("inductor", "triton", "cuda"):
                (cache / part).mkdir(parents=True, exist_ok=True)
            # Caches that lock their files are nobody else's. They stay when the next problem's process takes over.
            environment = {**lane.environment, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
                           "TRITON_CACHE_DIR": str(cache / "triton"), "CUDA_CACHE_PATH": str(cache / "cuda")}
            worker = WorkerProcess(self.options.work, environment, self.scratch, slot, cache)
            lane.workers.append(worker)
            self.selector.register(worker.line, selectors.EVENT_READ, (lane, worker))

    def _hand_out(self, lane: Lane) -> None:
        if lane.holder is not None:
            return
        for worker in [w for w in lane.workers if w.ready and w.attempt is None and not w.preparing]:
            if not lane.prepared:
                if not any(w.preparing for w in lane.workers):
                    worker.prepare({"settings": self.options.kept_settings()})
                return
            attempt = self._next(lane)
            if attempt is None:
                return
            self._give(lane, worker, attempt)

    def _next(self, lane: Lane) -> Attempt | None:
        """What may start on ``lane`` now. Problems that must be alone come last, so that nobody waits for them."""
        here = [w.attempt for w in lane.workers if w.attempt is not None]
        everywhere = [w.attempt for other in self.lanes for w in other.workers if w.attempt is not None]
        if any(attempt.alone for attempt in here) or any(attempt.alone == "machine" for attempt in everywhere):
            return None
        if self.jobs:
            return self.jobs.popleft() if len(here) < self.per_lane else None
        if lane.retries and not here:
            return lane.retries.pop(0)
        if self.last and not everywhere:
            return self.last.popleft()
        return None

    def _give(self, lane: Lane, worker: WorkerProcess, attempt: Attempt) -> None:
        emitted = self.folder / attempt.job.emitted
        emitted.parent.mkdir(parents=True, exist_ok=True)
        emitted.unlink(missing_ok=True)
        worker.give(attempt, {"problem": attempt.job.problem, "path": attempt.job.path, "emitted": str(emitted),
                              "logs": str(self.folder / LOGS), "settings": self.options.kept_settings()})
        running = [w for other in self.lanes for w in other.workers if w.busy]
        if len(running) > 1:
            for other in running:
                other.beside_others = True

    # ---- hearing -----------------------------------------------------------------------------------

    def _hear(self, lane: Lane, worker: WorkerProcess) -> None:
        for message in worker.messages():
            match message.get("say"):
                case "ready":
                    worker.ready, worker.versions = True, message["versions"]
                    self.failed_starts = 0
                case "stage":
                    worker.stage = message["stage"]
                case "away":
                    worker.away = True
                case "back":
                    worker.waiting = ("back", message["number"])
                case "ask":
                    worker.waiting = ("ask", message["number"])
                    lane.asking.append(worker)
                case "release":
                    worker.waiting = None
                    lane.leave(worker)
                case "noisy":
                    worker.noisy = True
                case "result":
                    worker.outcome = message["outcome"]
                    self._finish(lane, worker)
                    return
            worker.note_pause(time.monotonic())
        if worker.line_ended and worker.line in self.selector.get_map():
            self.selector.unregister(worker.line)

    def _finish(self, lane: Lane, worker: WorkerProcess) -> None:
        """The worker has an outcome, has ended, or must end."""
        status = self._forget(lane, worker)
        if worker.preparing:
            lane.prepared = True  # where it failed, each problem says so itself
            lane.device = (worker.outcome or {}).get("device") or ""
        elif worker.attempt is None:
            self.failed_starts += 1
            if self.failed_starts >= MOST_FAILED_STARTS:
                raise RuntimeError(f"worker processes do not start (status {status}): {worker.printed(2000)}")
        else:
            record = make_record(worker, lane, self.options, status)
            retry = retry_of(worker, record)
            if retry is None:
                leave(worker, record, self.folder)
                self.finished(record)
            elif retry.alone == "machine":
                self.last.append(retry)
            else:
                lane.retries.append(retry)
        worker.clean()

    def _forget(self, lane: Lane, worker: WorkerProcess) -> int:
        """End the worker's processes and its part in the lane; its exit status."""
        if worker.line in self.selector.get_map():
            self.selector.unregister(worker.line)
        status = worker.end()
        lane.workers.remove(worker)
        lane.leave(worker)
        lane.slots.append(worker.slot)
        if worker.outcome is None:  # it may have been in the middle of writing to its caches
            shutil.rmtree(worker.cache, ignore_errors=True)
        return status

    # ---- limits ------------------------------------------------------------------------------------

    def _look_after(self, lane: Lane, worker: WorkerProcess) -> None:
        if worker.has_ended():
            self._hear(lane, worker)  # its last words may be the result
            if worker in lane.workers:
                self._finish(lane, worker)
            return
        if not worker.ready and time.monotonic() - worker.born > START_SECONDS and worker.stopped_since is None:
            self._finish(lane, worker)
        elif worker.busy and worker.active_seconds() > self.options.limit:
            if worker.dumped_at is None:
                worker.dumped_at = time.monotonic()
                processes.send(worker.pid, signal.SIGUSR1)
            elif time.monotonic() - worker.dumped_at > DUMP_SECONDS:
                worker.killed = ("timeout", "")
                self._finish(lane, worker)

    def _look_at_memory(self) -> None:
        """Note what each worker uses; end the one that uses too much, or the largest where the machine runs short."""
        self.memory_looked_at = time.monotonic()
        sessions = processes.sessions()
        used: list[tuple[int, Lane, WorkerProcess]] = []
        for lane in self.lanes:
            for worker in (w for w in lane.workers if w.busy and w.stopped_since is None):
                size = processes.resident_bytes(sessions.get(worker.pid, ()))
                worker.peak_bytes = max(worker.peak_bytes, size)
            used += [(worker.peak_bytes, lane, worker) for worker in lane.workers if worker.attempt is not None]
        limit = self.options.memory
        for size, lane, worker in used:
            if limit is not None and size > limit * 2**30:
                self._end_for_memory(lane, worker, f"A problem may use {limit:g} GiB.")
        free = processes.available_bytes()
        if limit is None and used and free is not None and free < self.memory_reserve:
            size, lane, worker = max(used, key=lambda entry: entry[0])
            if size > self.memory_reserve:  # otherwise it is not a problem of ours that fills the machine
                self._end_for_memory(lane, worker, f"Only {free / 2**30:.1f} GiB were free.")

    def _end_for_memory(self, lane: Lane, worker: WorkerProcess, words: str) -> None:
        worker.killed = ("memory", words)
        if self.options.memory is not None:
            worker.beside_others = False  # the limit is the same for one that runs alone
        self._finish(lane, worker)


def _spare(lane: Lane) -> int:
    return SPARE_ON_CPU if lane.stops_groups else SPARE_ON_GPU


def _reserve() -> int:
    """Bytes of memory that must stay free: a twentieth of the machine's, at most 2 GiB."""
    return min(2 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 20)
