"""Runs many models through a worker process, survives its crashes, and shrinks what fails."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelwright.fuzz.generate import generate
from kernelwright.fuzz.oracles import Outcome
from kernelwright.fuzz.shrink import shrink
from kernelwright.fuzz.sketch import Sketch
from kernelwright.suite.processes import TOKEN, end_session, processor_seconds, sessions, state

_LIMIT_SECONDS = 120.0
#: Kinds of difference that have many causes: each is shrunk.
_KINDS = ("value", "place")
#: How often it is looked whether a worker that has not answered yet still works.
_LOOK_SECONDS = 0.5
#: Every so manieth model's file is also emitted by a process that hashes strings in another order.
_TEXT_EVERY = 8


class Worker:
    """A worker process, started when it is needed and again after a crash.

    limit_seconds: of processor time, its children's included, and of time in which none of them runs or could run. What
    waits for a busy machine uses none of it.
    """

    def __init__(self, hash_seed: str = "0", limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._hash_seed = hash_seed
        self._limit = limit_seconds
        self._token = secrets.token_hex(8)
        self._process: subprocess.Popen[str] | None = None

    def check(self, text: str, level: str, target: str, seed: int) -> Outcome:
        """Judge one model. A process that ends or hangs meanwhile is an outcome: the model is at fault."""
        process = self._process or self._start()
        request = json.dumps({"text": text, "level": level, "target": target, "seed": seed})
        assert process.stdin is not None and process.stdout is not None  # pipes
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(request + "\n")
            process.stdin.flush()
        answered = self._answers(process)
        line = process.stdout.readline() if answered else ""
        if line:
            known: dict[str, Any] = json.loads(line)
            known["notes"] = tuple(known["notes"])
            return Outcome(**known)
        self.close()
        status = process.returncode
        return Outcome("wrong", level, "crash" if answered else "hang",
                       f"the process ended with status {status}" if answered else f"no answer in {self._limit:.0f} s")

    def _answers(self, process: subprocess.Popen[str]) -> bool:
        """Wait for an answer or the end of the process: False where the limit is over before."""
        idle = 0.0
        before = used = processor_seconds(sessions().get(process.pid, ()))
        assert process.stdout is not None  # a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(_LOOK_SECONDS):
                members = sessions().get(process.pid, ())
                last, used = used, processor_seconds(members)
                if used == last and not any(state(member) in ("R", "D") for member in members):
                    idle += _LOOK_SECONDS
                if used - before + idle > self._limit:
                    return False
        return True

    def _start(self) -> subprocess.Popen[str]:
        # Threads that spin while they wait slow down everything else on a small machine.
        environment = {**os.environ, "PYTHONHASHSEED": self._hash_seed, "PYTHONWARNINGS": "ignore",
                       "OMP_WAIT_POLICY": "PASSIVE", TOKEN: self._token}
        self._process = subprocess.Popen([sys.executable, "-m", "kernelwright.fuzz.worker"], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                         env=environment, start_new_session=True)
        return self._process

    def close(self) -> None:
        """End the process, if there is one, with all that it started."""
        if self._process is not None:
            process, self._process = self._process, None
            end_session(process.pid, self._token)
            process.communicate()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Finding:
    """A model that is treated wrongly: the outcome, and the smallest file found that is treated alike."""

    seed: int
    outcome: Outcome
    sketch: Sketch
    file: Path | None = None


@dataclass(slots=True)
class Report:
    """What a run found. ``unclear`` and ``refused``: seeds with the message. ``notes``: on modes that were not captured
    or have no kernels, and how often."""

    level: str
    target: str
    models: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    unclear: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)


def run(seeds: Iterable[int], *, level: str, target: str, seconds: float | None = None, output: Path | None = None,
        say: Callable[[str], None] = lambda text: None, worker: Any = None) -> Report:
    """Check the models of ``seeds``, for at most ``seconds``, and shrink each kind of failure once.

    output: folder for the minimal files. worker: what checks (for tests); by default a process of its own.
    """
    report = Report(level, target)
    started = time.perf_counter()
    seen: set[tuple[str, str]] = set()
    with contextlib.ExitStack() as stack:
        worker = worker or stack.enter_context(Worker())
        other = stack.enter_context(Worker(hash_seed="1"))
        for seed in seeds:
            report.seconds = time.perf_counter() - started
            if seconds is not None and report.seconds >= seconds:
                break
            sketch = generate(seed)
            outcome = worker.check(sketch.text(), level, target, seed)
            if outcome.kind == "crash" and worker.check(sketch.text(), "eager", target, seed).kind == "crash":
                outcome = replace(outcome, status="refused", message=f"PyTorch's own call: {outcome.message}")
            if outcome.status == "clean" and outcome.text and report.models % _TEXT_EVERY == 0:
                outcome = _emitted_alike(outcome, other.check(sketch.text(), "text", target, seed))
            report.models += 1
            report.notes.update(note.partition(": ")[2] or note for note in outcome.notes)
            if outcome.status in ("unclear", "refused"):
                getattr(report, outcome.status)[seed] = f"{outcome.stage}: {outcome.kind}: {outcome.message}"
            elif outcome.status == "wrong":
                say(f"seed {seed} {level}: {outcome.stage}: {outcome.kind}: {outcome.message[:300]}")
                if (outcome.stage, outcome.kind) not in seen or outcome.kind in _KINDS:
                    seen.add((outcome.stage, outcome.kind))
                    sketch = _smallest(sketch, outcome, worker, level, target, seed, say)
                report.findings.append(_kept(Finding(seed, outcome, sketch), output, level))
        report.seconds = time.perf_counter() - started
    return report


def _emitted_alike(outcome: Outcome, other: Outcome) -> Outcome:
    if other.text == outcome.text:
        return outcome
    return Outcome("wrong", "emit", "text", "another process emits another file for the same model")


def _smallest(sketch: Sketch, outcome: Outcome, worker: Any, level: str, target: str, seed: int,
              say: Callable[[str], None]) -> Sketch:
    if outcome.kind in ("text", "hang"):
        return sketch

    def fails(candidate: Sketch) -> bool:
        found = worker.check(candidate.text(), level, target, seed)
        return (found.status, found.stage, found.kind) == (outcome.status, outcome.stage, outcome.kind)

    small = shrink(sketch, fails)
    say(f"  shrunk from {len(sketch.statements)} lines to {len(small.statements)}")
    return small


def _kept(finding: Finding, output: Path | None, level: str) -> Finding:
    if output is None:
        return finding
    output.mkdir(parents=True, exist_ok=True)
    path = output / f"{level}_{finding.seed}.py"
    path.write_text(finding.sketch.text(), encoding="utf-8")
    return Finding(finding.seed, finding.outcome, finding.sketch, path)
