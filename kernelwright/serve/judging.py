"""The judge's side of a service: a thread that takes what waits, has it judged, and keeps what comes of it.

The scheduler and the processes are those of ``judge --set``. One job is some submissions of one client that have the
same problem and options, so that they share a self-test and a profile; each has a candidate's process of its own.
"""

from __future__ import annotations

import errno
import json
import secrets
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.codegen.device_kind import HOST
from kernelwright.errors import KernelwrightError, ServiceFull, describe
from kernelwright.judge.settings import SEED_BITS
from kernelwright.judge.verdicts import VERDICTS
from kernelwright.progress import Progress
from kernelwright.serve.settings import ServeSettings
from kernelwright.serve.store import Store
from kernelwright.settings import HOST_TARGET, Settings
from kernelwright.suite.devices import find_queues, share_cores, workers_per_device
from kernelwright.suite.jobs import Job
from kernelwright.suite.judge_runner import MOST_IN_A_JOB
from kernelwright.suite.judge_worker import BEGUN, JUDGED
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.ray_cluster import Cluster, connect
from kernelwright.suite.scheduler import Scheduler

#: How often a submission gets a process that does not live to judge it.
MOST_ATTEMPTS = 2
#: Bytes that have to be free for anything to begin: compilers and candidates write, too, and a full disk would be
#: taken for their fault.
LEAST_FREE = 256 << 20
#: Seconds between attempts at what the system does not do now, and between looks at the disk.
PAUSE_SECONDS, DISK_SECONDS = 2.0, 1.0
WORK_FOLDER = "work"


@dataclass(slots=True)
class _Job:
    """Submissions that one process has."""

    folder: Path
    seed: int
    left: list[str]
    """Ids of those without a verdict, in their order."""
    began: set[str] = field(default_factory=set)
    at: str | None = None
    """The one that began last."""


class Judging:
    """Judges what waits in ``store`` until it is stopped, on the devices of this machine or of a Ray cluster. Raises
    NoCudaDevice (KW302); of a cluster RunnerMissing (KW608) and InvalidOption (KW403)."""

    def __init__(self, store: Store, settings: ServeSettings, progress: Progress) -> None:
        self.store, self.progress = store, progress
        target = HOST_TARGET if settings.devices == (HOST,) and settings.target == "auto" else settings.target
        self.options = SuiteOptions(
            output=store.folder, devices=settings.devices, workers=settings.workers, limit=settings.limit, judge={},
            work=settings.work, settings=Settings(target=target, threads=settings.threads), runner=settings.runner,
            address=settings.address)
        self.trouble = ""
        """What keeps submissions from being judged, or ""."""
        self.stages: dict[str, str] = {}
        """By id, what the judge is at."""
        self._ray, self._own_ray = connect(self.options) if settings.runner == "ray" else (None, False)
        self._queues = find_queues(self.options) if self._ray is None else []
        self._jobs: dict[str, _Job] = {}
        self._unsaved: deque[Callable[[], Any]] = deque()
        self._cancelled: deque[str] = deque()
        self._ended: deque[float] = deque(maxlen=20)
        self._awake, self._stopping = threading.Event(), threading.Event()
        self._free_looked_at, self._free = 0.0, 0
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="judging")

    def start(self) -> None:
        """Begin to judge."""
        self._thread.start()

    def stop(self) -> None:
        """End all processes, and have what they were at wait again. Returns when that is done."""
        self._stopping.set()
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._own_ray and self._ray is not None:
            self._ray.shutdown()

    def wake(self) -> None:
        """Say that something waits."""
        self._awake.set()

    def cancel(self, name: str) -> None:
        """End the process that has a submission, which is no longer to be judged."""
        self._cancelled.append(name)
        self._awake.set()

    def has_room(self, elsewhere: float = float("inf")) -> bool:
        """Whether the disks of the folder and of temporary files take what judging writes. elsewhere: bytes that are
        free on the machine that judged."""
        if time.monotonic() - self._free_looked_at > DISK_SECONDS:
            self._free_looked_at = time.monotonic()
            self._free = min(shutil.disk_usage(folder).free for folder in (self.store.folder, tempfile.gettempdir()))
        return min(self._free, elsewhere) >= LEAST_FREE

    def pace(self) -> float:
        """Seconds from one verdict to the next, lately; ten where nothing is known."""
        ended = list(self._ended)
        return (ended[-1] - ended[0]) / (len(ended) - 1) if len(ended) > 1 else 10.0

    # ---- the thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._judge()
            except Exception as error:
                # Nothing here is a submission's fault: what runs waits again, and all begins anew.
                self.trouble = describe(error)
                self.progress.say(f"judging is interrupted: {self.trouble}")
                if not isinstance(error, KernelwrightError) and not _is_full(error):
                    traceback.print_exc(file=sys.stderr)
                self._stopping.wait(PAUSE_SECONDS)

    def _judge(self) -> None:
        shutil.rmtree(self.store.folder / WORK_FOLDER, ignore_errors=True)
        scheduler = self._scheduler()
        try:
            while not self._stopping.is_set():
                self._step(scheduler)
        finally:
            scheduler.close()
            while self._jobs:
                self._leave(next(iter(self._jobs)))
            self._save()

    def _scheduler(self) -> Scheduler | Cluster:
        """What runs jobs: on this machine's devices, or on those of a cluster. There a job whose actor is gone is not
        begun again as it was: what it had judged stands, and what is left begins anew. So none waits there, where it
        would count as begun."""
        if self._ray is not None:
            return Cluster(self._ray, self.options, self._finished, self.progress, self._part, losses=1, watches=True,
                           least_free=LEAST_FREE, ahead=0)
        queues, self._queues = self._queues or find_queues(self.options), []
        per_device = workers_per_device(self.options, queues)
        share_cores(self.options, queues, per_device)
        scratch = Path(tempfile.mkdtemp(prefix="kernelwright_serve_"))
        return Scheduler(queues, self.options, self.store.folder.resolve(), scratch, per_device, self._finished,
                         self._part)

    def _step(self, scheduler: Scheduler | Cluster) -> None:
        self._awake.clear()
        while self._cancelled:
            self._withdraw(scheduler, self._cancelled.popleft())
        if self._save():
            try:
                if not self.has_room() or (isinstance(scheduler, Cluster) and scheduler.full):
                    raise ServiceFull
                while (left := scheduler.capacity - scheduler.open) > 0 and (
                        rows := self.store.claim(left, MOST_IN_A_JOB)):
                    self._begin(scheduler, rows)
                self.trouble = ""
            except (ServiceFull, OSError) as error:  # what runs goes on
                if not _is_full(error):
                    raise
                self.trouble = ServiceFull().what
        if not scheduler.open:
            self._awake.wait(PAUSE_SECONDS)
        scheduler.step(0.05 if scheduler.open else 0.0)
        self._tell_stages(scheduler)

    def _begin(self, scheduler: Scheduler | Cluster, rows: list[Any]) -> None:
        """Have submissions of one problem judged in a process."""
        names = [row["id"] for row in rows]
        for name in names:
            self._withdraw(scheduler, name)  # one that was cancelled and submitted again at once
        first = rows[0]
        self._number += 1
        job = f"{first['id'][:12]}.{self._number}"
        seed = secrets.randbits(SEED_BITS) if first["asked_seed"] is None else first["asked_seed"]
        made = self._jobs[job] = _Job(self.store.folder.resolve() / WORK_FOLDER / job, seed, names)
        paths = {row["id"]: made.folder / "candidates" / f"{row['id']}.py" for row in rows}
        problem = made.folder / "problem.py"
        try:
            (made.folder / "candidates").mkdir(parents=True)
            for path, text in ((problem, first["problem"]), *((paths[row["id"]], row["candidate"]) for row in rows)):
                path.write_text(text, encoding="utf-8", newline="")
        except OSError:
            self._leave(job)
            raise
        candidates = [{"key": name, "path": str(path)} for name, path in paths.items()]
        given = {"candidates": candidates, "seed": seed, "settings": json.loads(first["settings"]),
                 "profiles": str(made.folder / "profiles")}
        scheduler.add([Job(job, "", str(problem), "", problem.stat().st_size, given)])

    def _tell_stages(self, scheduler: Scheduler | Cluster) -> None:
        """Note the stage of the submission that each process is at; before it is at one, of all that it has."""
        found: dict[str, str] = {}
        for job, stage in scheduler.stages().items():
            has = self._jobs.get(job)
            if has is not None:
                found |= {name: stage for name in has.left if has.at is None or name == has.at}
        before, self.stages = self.stages, found
        for name in {*found, *before}:
            if found.get(name) != before.get(name):
                self.store.changes.tell(name)

    # ---- what processes say --------------------------------------------------------------------------

    def _part(self, job: str, told: Mapping[str, Any]) -> None:
        found, name = self._jobs.get(job), told["key"]
        if found is None or name not in found.left:
            return
        if told["kind"] == BEGUN:
            found.at = name
            found.began.add(name)
        elif told["kind"] == JUDGED:
            found.left.remove(name)
            result = {**_without(found.folder, told["result"]), "file": "candidate.py"}
            room = self.has_room(told.get("free", float("inf")))
            if not VERDICTS[result["verdict"]].passed and not room:  # that may be why
                self._lost([name], ServiceFull().as_json())
                return
            self._ended.append(time.monotonic())
            seed, device, versions = found.seed, told["device"], told["versions"]
            self._keep(lambda: self.store.finish(name, result, seed, device, versions))
            self.progress.say(f"{name}: {result['verdict']}")

    def _finished(self, record: Mapping[str, Any]) -> Iterable[Job]:
        """Take the end of a job: what it leaves waits again, by itself where it may have been the reason."""
        job = self._jobs[record["problem"]]
        error = _without(job.folder, record["error"] or {})
        if not job.left:
            pass
        elif record["state"] == "error":  # the problem cannot be used, by any attempt
            for name in job.left:
                self._keep(lambda name=name: self.store.fail(name, error))
            job.left.clear()
        else:
            self.progress.say(f"a process ended before it had judged {len(job.left)} submissions: "
                              f"{error.get('what', 'it ended')}")
            # While times are taken it may have been any of those that began; before any began, the problem.
            together = record["stage"] == "time" or job.at is None
            suspects = [name for name in job.left
                        if (together and (name in job.began or job.at is None)) or name == job.at]
            job.left = [name for name in job.left if name not in suspects]
            self._lost(suspects, error)
        self._leave(record["problem"])
        return ()

    def _lost(self, names: list[str], error: Mapping[str, Any]) -> None:
        """Have those whose process was lost judged once more, or say that they are not."""
        for name in names:
            self._keep(lambda name=name: self.store.lose(name, MOST_ATTEMPTS, error))

    def _withdraw(self, scheduler: Scheduler | Cluster, name: str) -> None:
        """End the job that has ``name`` and was not to judge it any more; its others wait again."""
        for job, found in list(self._jobs.items()):
            if name in found.left:
                scheduler.withdraw(job)
                found.left.remove(name)
                self._leave(job)

    def _leave(self, name: str) -> None:
        """Have what a job leaves wait again, as if it had not begun, and take away its files."""
        job = self._jobs.pop(name)
        left = list(job.left)
        if left:
            self._keep(lambda: self.store.put_back(left, counted=False))
        shutil.rmtree(job.folder, ignore_errors=True)

    # ---- what is kept --------------------------------------------------------------------------------

    def _keep(self, write: Callable[[], Any]) -> None:
        """Write to the store, now or when there is room again, in the order of calls."""
        self._unsaved.append(write)
        self._save()

    def _save(self) -> bool:
        """Write what is to be written; whether all of it is."""
        while self._unsaved:
            try:
                self._unsaved[0]()
            except ServiceFull as error:
                self.trouble = error.what
                return False
            self._unsaved.popleft()
        return True


def _without(folder: Path, told: Any) -> dict[str, Any]:
    """What was told, without the places where files of the service lie."""
    return json.loads(json.dumps(told).replace(f"{folder}/", ""))


def _is_full(error: BaseException) -> bool:
    return isinstance(error, ServiceFull) or (isinstance(error, OSError) and error.errno in (
        errno.ENOSPC, errno.EDQUOT))
