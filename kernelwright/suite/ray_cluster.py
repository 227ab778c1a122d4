"""The devices of a Ray cluster, to which jobs are given as `Scheduler` gives them to those of a machine.

One actor per device (``ray_actor.py``) runs the same scheduler as on one machine and hands over what its processes say
and what is finished to the driver, which alone keeps results. A job counts as done when the driver has its record: what
an actor that dies had not handed over is told as lost, or runs again elsewhere, and what comes twice is dropped. Ray
itself is only imported by `connect`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelwright.codegen.device_kind import HOST, device_kind
from kernelwright.errors import InvalidOption, ProblemCrashed, RunnerMissing
from kernelwright.progress import Progress
from kernelwright.settings import API_KEY
from kernelwright.suite import parcels, ray_actor
from kernelwright.suite.jobs import Job
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.outcome import log_name
from kernelwright.suite.ray_actor import PATIENCE_SECONDS, DeviceRunner, Place, Shipped
from kernelwright.suite.results import SCHEMA, Record
from kernelwright.suite.scheduler import Finished, Part, nobody_asks
from kernelwright.version import VERSION

#: An actor that says nothing for this long is gone.
SILENCE_SECONDS = 60.0
#: How often a device's actor is started again, and a problem whose actor died is tried.
MOST_STARTS = 3
#: How often nodes that have joined are looked for, and how long a device rests whose actors died time after time.
NODES_SECONDS, REST_SECONDS = 10.0, 60.0


def connect(options: SuiteOptions) -> tuple[Any, bool]:
    """Ray, connected to the cluster of ``options``, and whether that was done here, so that `Ray.shutdown` is ours.

    Raises RunnerMissing (KW608) without Ray or a reachable cluster; InvalidOption (KW403) for numbers of GPUs, which
    are Ray's to give.
    """
    if any(name != HOST for name in options.devices):
        raise InvalidOption(option="--devices", value=repr(",".join(options.devices)),
                            choices="cpu, or nothing, with --runner ray: Ray gives the devices", default="all GPUs")
    try:
        import ray
    except ImportError as error:
        raise RunnerMissing(found=f"the package ray is not installed ({error})") from error
    if ray.is_initialized():
        return ray, False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if options.address:
            ray.init(address=options.address, **quiet)
            return ray, True
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:  # this machine belongs to none
            ray.init(address="local", include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunnerMissing(found=str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    return ray, True


def find_places(nodes: Sequence[dict[str, Any]], options: SuiteOptions) -> list[Place]:
    """The devices of the nodes that ``ray.nodes()`` lists: all GPUs; without any, or if asked for, each node's CPU."""
    alive = [node for node in nodes if node["Alive"]]
    gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in alive}
    if device_kind(options.settings.target) == HOST or options.devices == (HOST,) or not any(gpus.values()):
        return [Place(node["NodeID"], node["NodeManagerAddress"], False, 1) for node in alive]
    return [Place(node["NodeID"], node["NodeManagerAddress"], True, gpus[node["NodeID"]])
            for node in alive for _ in range(gpus[node["NodeID"]])]


@dataclass(slots=True)
class _Device:
    """An actor as the driver sees it."""

    place: Place
    actor: Any
    starts: int = 1
    room: int = 0
    """Problems that it wants at once; 0 until it has said so."""
    has: dict[str, Job] = field(default_factory=dict)
    withdrawn: list[str] = field(default_factory=list)
    """Names of jobs that it is to end, and has not been told."""
    stages: dict[str, str] = field(default_factory=dict)
    """By job, the stage that it is at."""
    free: float = float("inf")
    """Bytes that are free on its disks."""
    call: Any = None
    called: float = 0.0


class Cluster:
    """Gives jobs to actors and takes what comes of them; what stands in both is as in `Scheduler`.

    ``losses``: how many actors a job may lose before its record says so. ``watches``: nodes that join later are used,
    and a device whose actors died is tried again after a rest. ``least_free``: bytes that must be free on a node's
    disks for it to be given anything. ``ahead``: jobs that wait at each device, so that none is waited for. ``places``:
    the devices; None: all of the cluster.

    Raises RunnerMissing (KW608) where there is no device.
    """

    def __init__(self, ray: Any, options: SuiteOptions, finished: Finished, progress: Progress,
                 part: Part = nobody_asks, *, places: Sequence[Place] | None = None, losses: int = MOST_STARTS,
                 watches: bool = False, least_free: int = 0, ahead: int = 1) -> None:
        self.ray, self.options, self.progress = ray, options, progress
        self.finished, self.part = finished, part
        self.losses, self.watches, self.least_free, self.ahead = losses, watches, least_free, ahead
        self.waiting: deque[Job] = deque()
        self.lost: Counter[str] = Counter()
        self._open: set[str] = set()
        self._resting: dict[str, float] = {}
        self._looked_at = time.monotonic()
        places = find_places(ray.nodes(), options) if places is None else places
        if not places:
            raise RunnerMissing(found="the cluster has no node with such a device")
        self.devices = [self._start(place) for place in places]

    @property
    def addresses(self) -> list[str]:
        """Where the devices are."""
        return sorted({device.place.address for device in self.devices})

    @property
    def open(self) -> int:
        """Jobs without a record yet."""
        return len(self._open)

    @property
    def capacity(self) -> int:
        """How many jobs the devices want at once, as far as they have said it and have room on their disks."""
        return sum(device.room for device in self.devices if device.free >= self.least_free)

    @property
    def full(self) -> bool:
        """Whether no device gets anything, as the disks of all that have answered are full."""
        answered = [device for device in self.devices if device.room]
        return bool(answered) and all(device.free < self.least_free for device in answered)

    def add(self, jobs: Iterable[Job]) -> None:
        """Take on more jobs, to be started in this order."""
        jobs = list(jobs)
        self._open.update(job.problem for job in jobs)
        self.waiting.extend(jobs)

    def withdraw(self, job: str) -> None:
        """Have nothing more to do with a job: what it runs is ended when its actor hears of it, and no record comes."""
        self._open.discard(job)
        self.waiting = deque(other for other in self.waiting if other.problem != job)
        for device in self.devices:
            if device.has.pop(job, None) is not None:
                device.withdrawn.append(job)

    def stages(self) -> dict[str, str]:
        """The stage that each job is at which a worker has, by the job's name."""
        return {job: stage for device in self.devices for job, stage in device.stages.items() if job in device.has}

    def run(self, jobs: Sequence[Job]) -> None:
        """Run ``jobs`` and end all actors. Raises RunnerMissing (KW608) when no actor is left; what is finished is with
        ``finished`` then."""
        self.add(jobs)
        try:
            while self._open:
                self.step(PATIENCE_SECONDS)
        finally:
            self.close()

    def step(self, timeout: float) -> None:
        """Do what there is to do; wait at most ``timeout`` seconds for an actor. Raises RunnerMissing (KW608) where no
        device is left, or all have another version."""
        if self.watches and time.monotonic() - self._looked_at > NODES_SECONDS:
            self._look_for_nodes()
        if not self.devices:
            raise RunnerMissing(found=f"every device is lost, with {len(self._open)} problems to go")
        calls = {device.call: device for device in self.devices}
        ready, _ = self.ray.wait(list(calls), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = self.ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in ready:
            self._hear(calls[call], call)
        for device in list(self.devices):
            # Starting an actor may have to wait for its node; an exchange always answers soon.
            if device.room and time.monotonic() - device.called > SILENCE_SECONDS:
                self._lost(device, f"no answer for {SILENCE_SECONDS:.0f} s")

    def close(self) -> None:
        """End all actors with everything that they run."""
        calls = [device.actor.close.remote() for device in self.devices if device.room]
        if calls:
            self.ray.wait(calls, num_returns=len(calls), timeout=30.0)
        for device in self.devices:
            self._kill(device)
        self.devices = []

    def _start(self, place: Place, starts: int = 1) -> _Device:
        strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(place.node, soft=False)
        remote = self.ray.remote(DeviceRunner).options(num_cpus=0, num_gpus=1 if place.gpu else 0,
                                                       scheduling_strategy=strategy, max_restarts=0)
        environment = {name: os.environ[name] for name in ("OMP_NUM_THREADS",) if name in os.environ}
        if self.options.propose is not None and "endpoint" in self.options.propose:
            from kernelwright.propose.endpoint import find_key

            environment[API_KEY.name] = find_key(self.options.propose["endpoint"])
        actor = remote.remote(self.options, place, environment)
        device = _Device(place, actor, starts)
        self._call(device, actor.describe.remote())
        return device

    def _look_for_nodes(self) -> None:
        """Start actors on devices that have none and do not rest."""
        self._looked_at = time.monotonic()
        there = Counter(device.place for device in self.devices)
        for place in find_places(self.ray.nodes(), self.options):
            there[place] -= 1
            if there[place] < 0 and self._resting.get(place.node, 0.0) < self._looked_at:
                self.progress.say(f"a device of {place.address} is used from now on")
                self.devices.append(self._start(place))

    @staticmethod
    def _call(device: _Device, call: Any) -> None:
        device.call, device.called = call, time.monotonic()

    def _hear(self, device: _Device, call: Any) -> None:
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            self._lost(device, _reason(error))
            return
        if device.room == 0:
            version, workers = answer
            device.room = workers + self.ahead
            if version != VERSION:
                raise RunnerMissing(found=f"{device.place.address} has kernelwright {version}, this machine {VERSION}")
        else:
            device.stages, device.free = answer.stages, answer.free
            for name, part in answer.parts:
                if name in device.has:  # else it runs elsewhere by now, or is withdrawn
                    self.part(name, part)
            for each in answer.finished:
                self._take(device, each)
        self._exchange(device)

    def _exchange(self, device: _Device) -> None:
        given = []
        while self.waiting and len(device.has) < device.room and device.free >= self.least_free:
            job = self.waiting.popleft()
            device.has[job.problem] = job
            propose = self.options.propose
            parcel = (parcels.for_node(job.problem, propose, self.options.output) if propose is not None else
                      parcels.of_candidates(job.problem, job.given) if job.given else None)
            given.append(Shipped(job, Path(job.path).read_bytes(), parcel))
        withdrawn, device.withdrawn = device.withdrawn, []
        self._call(device, device.actor.exchange.remote(given, withdrawn))

    def _take(self, device: _Device, result: ray_actor.Finished) -> None:
        name = result.record["problem"]
        job = device.has.pop(name, None)
        if job is None or name not in self._open:
            return
        device.starts = 1
        for text, key in ((result.emitted, "emitted"), (result.page, "page"), (result.log, "log")):
            if text is not None:
                _write(self.options.output / result.record[key], text)
        if result.emitted is None:
            job.take_away(self.options.output)
        if result.run is not None:
            run = parcels.run_folder(name, self.options.output)
            shutil.rmtree(run, ignore_errors=True)
            parcels.unpacked(result.run, run.parent)
        # The node's own paths are nobody's.
        self._close_job({**result.record, "settings": self.options.kept_settings()})

    def _close_job(self, record: dict[str, Any]) -> None:
        self._open.discard(record["problem"])
        self.add(self.finished(record) or ())

    def _lost(self, device: _Device, why: str) -> None:
        """An actor or its node is gone: what it had goes first to others, or is told as lost, and it is started again
        if its node lives."""
        self.progress.say(f"a device of {device.place.address} is lost: {why}")
        self.devices.remove(device)
        self._kill(device)
        for job in reversed(device.has.values()):
            self.lost[job.problem] += 1
            if self.lost[job.problem] >= self.losses:
                self._close_job(self._lost_record(job, device, why))
            else:
                self.waiting.appendleft(job)
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        if device.starts < MOST_STARTS and device.place.node in alive:
            self.devices.append(self._start(device.place, device.starts + 1))
        else:
            self._resting[device.place.node] = time.monotonic() + REST_SECONDS

    def _lost_record(self, job: Job, device: _Device, why: str) -> dict[str, Any]:
        """The record of a problem whose actors died, as often as may be."""
        times = f" {self.losses} times" if self.losses > 1 else ""
        error = ProblemCrashed(problem=job.problem, ending=f"was lost with its node{times}", stage="unknown",
                               output=why, log=log_name(job.problem))
        _write(self.options.output / log_name(job.problem), why + "\n")
        job.take_away(self.options.output)
        record: Record = {
            "schema": SCHEMA, "problem": job.problem, "level": job.level, "sha256": job.sha256, "state": "crashed",
            "error": error.as_json(), "result": None, "propose": None, "emitted": None, "page": None,
            "log": log_name(job.problem), "stage": device.stages.get(job.problem, ""),
            "seconds": 0.0, "stopped_seconds": 0.0, "attempts": self.losses, "alone": False,
            "peak_memory_bytes": None, "peak_host_bytes": None, "device": device.place.address,
            "lane": device.place.address, "worker": None, "device_was_quiet": True, "versions": {},
            "settings": self.options.kept_settings(), "limit": self.options.limit, "started": ""}
        return {**record}

    def _kill(self, device: _Device) -> None:
        try:
            self.ray.kill(device.actor)
        except self.ray.exceptions.RayError:
            return


def _reason(error: BaseException) -> str:
    """The last line of a remote failure, which is what was raised there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, file)
