"""``--runner ray``: the problems of a suite on all devices of a Ray cluster.

One actor per device (``ray_actor.py``) runs the same scheduler as on one machine and hands its finished problems to the
driver, which alone writes results. A problem counts as done when the driver has its record: what an actor that dies had
not handed over runs again elsewhere, and a record that comes twice is dropped. Ray itself is only imported here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Sequence
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


def run_on_ray(jobs: Sequence[Job], options: SuiteOptions, finished: Finished, progress: Progress,
               part: Part = nobody_asks) -> None:
    """Run ``jobs`` on a Ray cluster; ``finished`` gets each record, once per job, and ``part`` what jobs say before.

    Raises RunnerMissing (KW608) without Ray, a reachable cluster or a device in it, and where every actor is lost;
    InvalidOption (KW403) for numbers of GPUs, which are Ray's to give.
    """
    if any(name != "cpu" for name in options.devices):
        raise InvalidOption(option="--devices", value=repr(",".join(options.devices)),
                            choices="cpu, or nothing, with --runner ray: Ray gives the devices", default="all GPUs")
    try:
        import ray
    except ImportError as error:
        raise RunnerMissing(found=f"the package ray is not installed ({error})") from error
    own = not ray.is_initialized()
    if own:
        _connect(ray, options.address)
    try:
        places = find_places(ray.nodes(), options)
        if not places:
            raise RunnerMissing(found="the cluster has no node with such a device")
        progress.say(f"{len(jobs)} problems on {len(places)} devices of a Ray cluster: "
                     f"{', '.join(sorted({place.address for place in places}))}")
        _Driver(ray, places, options, finished, progress, part).run(jobs)
    finally:
        if own:
            ray.shutdown()


def find_places(nodes: Sequence[dict[str, Any]], options: SuiteOptions) -> list[Place]:
    """The devices of the nodes that ``ray.nodes()`` lists: all GPUs; without any, or if asked for, each node's CPU."""
    alive = [node for node in nodes if node["Alive"]]
    gpus = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in alive}
    if device_kind(options.settings.target) == HOST or options.devices == (HOST,) or not any(gpus.values()):
        return [Place(node["NodeID"], node["NodeManagerAddress"], False, 1) for node in alive]
    return [Place(node["NodeID"], node["NodeManagerAddress"], True, gpus[node["NodeID"]])
            for node in alive for _ in range(gpus[node["NodeID"]])]


def _connect(ray: Any, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address=address, **quiet)
            return
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:  # this machine belongs to none
            ray.init(address="local", include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise RunnerMissing(found=str(error).splitlines()[0] if str(error) else type(error).__name__) from error


@dataclass(slots=True)
class _Device:
    """An actor as the driver sees it."""

    place: Place
    actor: Any
    starts: int = 1
    room: int = 0
    """Problems that it wants at once; 0 until it has said so."""
    has: dict[str, Job] = field(default_factory=dict)
    call: Any = None
    called: float = 0.0


class _Driver:
    """Gives jobs to actors, and takes their results, until every job has its record."""

    def __init__(self, ray: Any, places: Sequence[Place], options: SuiteOptions,
                 finished: Finished, progress: Progress, part: Part = nobody_asks) -> None:
        self.ray = ray
        self.options = options
        self.finished, self.part = finished, part
        self.progress = progress
        self.waiting: deque[Job] = deque()
        self.losses: dict[str, int] = {}
        self.open: set[str] = set()
        self.devices = [self._start(place) for place in places]

    def run(self, jobs: Sequence[Job]) -> None:
        """Raises RunnerMissing (KW608) when no actor is left; what is finished is with ``finished`` then."""
        self.waiting.extend(jobs)
        self.open = {job.problem for job in jobs}
        try:
            while self.open:
                if not self.devices:
                    raise RunnerMissing(found=f"every device is lost, with {len(self.open)} problems to go")
                self._step()
        finally:
            self._close()

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

    @staticmethod
    def _call(device: _Device, call: Any) -> None:
        device.call, device.called = call, time.monotonic()

    def _step(self) -> None:
        calls = {device.call: device for device in self.devices}
        ready, _ = self.ray.wait(list(calls), num_returns=1, timeout=PATIENCE_SECONDS)
        for call in ready:
            device = calls[call]
            try:
                answer = self.ray.get(call)
            except self.ray.exceptions.RayError as error:
                self._lost(device, _reason(error))
                continue
            if device.room == 0:
                version, device.room = answer
                if version != VERSION:
                    raise RunnerMissing(found=f"{device.place.address} has kernelwright {version}, this machine "
                                        f"{VERSION}")
            else:
                parts, records = answer
                for name, part in parts:
                    if name in device.has:  # else it runs elsewhere by now
                        self.part(name, part)
                for each in records:
                    self._take(device, each)
            self._exchange(device)
        for device in list(self.devices):
            # Starting an actor may have to wait for its node; an exchange always answers soon.
            if device.room and time.monotonic() - device.called > SILENCE_SECONDS:
                self._lost(device, f"no answer for {SILENCE_SECONDS:.0f} s")

    def _exchange(self, device: _Device) -> None:
        given = []
        while self.waiting and len(device.has) < device.room:
            job = self.waiting.popleft()
            device.has[job.problem] = job
            propose = self.options.propose
            parcel = (parcels.for_node(job.problem, propose, self.options.output) if propose is not None else
                      parcels.of_candidates(job.problem, job.given) if job.given else None)
            given.append(Shipped(job, Path(job.path).read_bytes(), parcel))
        self._call(device, device.actor.exchange.remote(given))

    def _take(self, device: _Device, result: ray_actor.Finished) -> None:
        name = result.record["problem"]
        job = device.has.pop(name, None)
        if job is None or name not in self.open:
            return
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
        self.open.discard(record["problem"])
        more = list(self.finished(record) or ())
        self.open.update(job.problem for job in more)
        self.waiting.extend(more)

    def _lost(self, device: _Device, why: str) -> None:
        """An actor or its node is gone: what it had goes first to others, and it is started again if its node lives."""
        self.progress.say(f"a device of {device.place.address} is lost: {why}")
        self.devices.remove(device)
        self._kill(device)
        for job in reversed(device.has.values()):
            self.losses[job.problem] = self.losses.get(job.problem, 0) + 1
            if self.losses[job.problem] >= MOST_STARTS:
                self._close_job(self._lost_record(job, device, why))
            else:
                self.waiting.appendleft(job)
        alive = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        if device.starts < MOST_STARTS and device.place.node in alive:
            self.devices.append(self._start(device.place, device.starts + 1))

    def _lost_record(self, job: Job, device: _Device, why: str) -> dict[str, Any]:
        """The record of a problem whose actors died, time after time."""
        error = ProblemCrashed(problem=job.problem, ending=f"was lost with its node {MOST_STARTS} times",
                               stage="unknown", output=why, log=log_name(job.problem))
        _write(self.options.output / log_name(job.problem), why + "\n")
        job.take_away(self.options.output)
        record: Record = {
            "schema": SCHEMA, "problem": job.problem, "level": job.level, "sha256": job.sha256, "state": "crashed",
            "error": error.as_json(), "result": None, "propose": None, "emitted": None, "page": None,
            "log": log_name(job.problem), "stage": "",
            "seconds": 0.0, "stopped_seconds": 0.0, "attempts": MOST_STARTS, "alone": False,
            "peak_memory_bytes": None, "peak_host_bytes": None, "device": device.place.address,
            "lane": device.place.address, "worker": None, "device_was_quiet": True, "versions": {},
            "settings": self.options.kept_settings(), "limit": self.options.limit, "started": ""}
        return {**record}

    def _close(self) -> None:
        calls = [device.actor.close.remote() for device in self.devices if device.room]
        if calls:
            self.ray.wait(calls, num_returns=len(calls), timeout=30.0)
        for device in self.devices:
            self._kill(device)

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
