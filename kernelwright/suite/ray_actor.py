"""The part of the Ray runner that runs beside a device: an actor around the scheduler of one machine."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.suite import parcels
from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.devices import cpu_queue, share_cores, workers_per_device
from kernelwright.suite.jobs import Job
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.scheduler import Scheduler
from kernelwright.version import VERSION

#: The longest time that an actor waits for something to hand over.
PATIENCE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A device of the cluster: the node, its kind, and how many devices share the node's cores."""

    node: str
    address: str
    gpu: bool
    devices: int


@dataclass(frozen=True, slots=True)
class Shipped:
    """A job with its file's content, for nodes that do not see the file."""

    job: Job
    content: bytes
    parcel: bytes | None = None
    """What candidates of the problem come from (:func:`kernelwright.suite.parcels.for_node`)."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A record with what belongs into the output folder: texts, and the packed folder of a run of ``propose``."""

    record: dict[str, Any]
    emitted: str | None
    page: str | None
    log: str | None
    run: bytes | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """What an actor hands over: what was said of parts of jobs, by their names; what is finished; the stage that each
    job is at which a process has; and the bytes that are free on its disks."""

    parts: tuple[tuple[str, dict[str, Any]], ...]
    finished: tuple[Finished, ...]
    stages: dict[str, str]
    free: int


class DeviceRunner:
    """The actor: a scheduler for one device in a thread. Methods are called by the driver, one after the other."""

    def __init__(self, options: SuiteOptions, place: Place, environment: dict[str, str]) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to the actor's CPUs; timing wants the machine's
        os.environ.update(environment)
        self.place = place
        self.base = tempfile.TemporaryDirectory(prefix="kernelwright_ray_")
        self.folder, self.files = Path(self.base.name) / parcels.OUTPUT, Path(self.base.name) / "files"
        if options.propose is not None:
            options = dataclasses.replace(options, propose=parcels.at_node(options.propose, Path(self.base.name)))
        scratch = Path(self.base.name) / "scratch"
        for folder in (self.folder, self.files, scratch):
            folder.mkdir()
        # Ray shows an actor of a GPU that GPU only.
        name = f"cuda:{os.environ.get('CUDA_VISIBLE_DEVICES', '0')}"
        queue = DeviceQueue(name, {}, stops_groups=False) if place.gpu else cpu_queue()
        self.per_device = workers_per_device(options, [queue], place.devices)
        share_cores(options, [queue], self.per_device, place.devices)
        self.changed = threading.Condition()
        self.arrived: list[Job] = []
        self.withdrawn: list[str] = []
        self.stages: dict[str, str] = {}
        self.done: list[dict[str, Any]] = []
        self.parts: list[tuple[str, dict[str, Any]]] = []
        self.failure: BaseException | None = None
        self.closing = False
        self.arguments = (queue, options, scratch)
        # The thread that starts workers must live as long as they: they end with it.
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def describe(self) -> tuple[str, int]:
        """Version of kernelwright, and how many processes it has."""
        return VERSION, self.per_device

    def exchange(self, shipped: Sequence[Shipped], withdrawn: Sequence[str] = ()) -> Told:
        """Take on jobs, end those that are ``withdrawn``, and hand over what there is, waiting a little if that is
        nothing.

        Raises what ended the thread.
        """
        with self.changed:
            self.arrived += [self._unpacked(each) for each in shipped]
            self.withdrawn += withdrawn
            self.changed.wait_for(lambda: self.done or self.parts or self.failure, PATIENCE_SECONDS)
            if self.failure is not None:
                raise self.failure
            records, self.done = self.done, []
            parts, self.parts = self.parts, []
            stages = dict(self.stages)
        return Told(tuple(parts), tuple(self._packed(record) for record in records), stages, self._free())

    def close(self) -> None:
        """End every process."""
        self.closing = True
        self.thread.join(timeout=30.0)
        self.base.cleanup()

    def _work(self) -> None:
        queue, options, scratch = self.arguments
        scheduler = Scheduler([queue], options, self.folder, scratch, self.per_device, self._finished, self._said)
        scheduler.on_machine = self.per_device * self.place.devices
        try:
            while not self.closing:
                with self.changed:
                    arrived, self.arrived = self.arrived, []
                    withdrawn, self.withdrawn = self.withdrawn, []
                scheduler.add(arrived)
                for job in withdrawn:
                    scheduler.withdraw(job)
                    self._take_away(job)
                scheduler.step()
                self.stages = scheduler.stages()
        except BaseException as failure:
            with self.changed:
                self.failure = failure
                self.changed.notify_all()
        finally:
            scheduler.close()

    def _finished(self, record: dict[str, Any]) -> None:
        with self.changed:
            self.done.append(record | {"lane": f"{self.place.address}/{record['lane']}"})
            self.changed.notify_all()

    def _said(self, job: str, part: dict[str, Any]) -> None:
        # Where files lie on this node is nobody's, and what its disks have decides whether a failure says anything.
        inside = rf"{re.escape(self.base.name)}/(?:{parcels.CANDIDATES}/{re.escape(job)}/\d+/|files/{re.escape(job)}/)?"
        told = json.loads(re.sub(inside, "", json.dumps(part)))
        with self.changed:
            self.parts.append((job, {**told, "free": self._free()}))
            self.changed.notify_all()

    def _free(self) -> int:
        return shutil.disk_usage(self.base.name).free

    def _take_away(self, job: str) -> None:
        """Remove what a job was given."""
        parcels.removed(job, Path(self.base.name))
        shutil.rmtree(self.files / job, ignore_errors=True)

    def _unpacked(self, shipped: Shipped) -> Job:
        """The job with its file on this node: the original where it is seen, with what stands beside it, or a copy."""
        job = shipped.job
        if shipped.parcel is not None:
            parcels.unpacked(shipped.parcel, Path(self.base.name))
            job = dataclasses.replace(job, given=parcels.given_at_node(job.given, job.problem, Path(self.base.name)))
        path = Path(job.path)
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == job.sha256:
            return job
        copy = self.files / job.problem / path.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(shipped.content)
        return dataclasses.replace(job, path=str(copy))

    def _packed(self, record: dict[str, Any]) -> Finished:
        files = [self.folder / record[key] if record[key] else None for key in ("emitted", "page", "log")]
        texts = [file.read_text(encoding="utf-8") if file else None for file in files]
        for file in filter(None, files):  # an actor may live for long
            file.unlink()
        self._take_away(record["problem"])
        run = parcels.run_folder(record["problem"], self.folder)
        if not run.is_dir():
            return Finished(record, *texts)
        content = parcels.packed({run.name: run})
        shutil.rmtree(run)
        return Finished(record, *texts, run=content)
