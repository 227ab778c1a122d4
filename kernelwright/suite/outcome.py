"""What became of an attempt: its record, and what it leaves in the output folder."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from kernelwright.errors import ProblemCrashed, ProblemOutOfMemory, ProblemTimedOut
from kernelwright.suite import processes
from kernelwright.suite.device_queue import DeviceQueue
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import SCHEMA, VERIFIED, Record
from kernelwright.suite.worker_process import Attempt, WorkerProcess

LOGS = "logs"
#: How lines begin by which C++ and Python tell what ends a process, and what stands above the place in Python.
_FATAL, _INNERMOST = ("terminate called", "what():", "Fatal Python error"), "(most recent call first)"


def log_name(problem: str) -> str:
    """Path of a problem's log below the output folder."""
    return f"{LOGS}/{problem}.log"


def make_record(worker: WorkerProcess, queue: DeviceQueue, options: SuiteOptions, status: int) -> dict[str, Any]:
    """The record of a worker's attempt; ``status`` is how its process ended."""
    attempt = worker.attempt
    assert attempt is not None
    outcome = worker.outcome or _without_outcome(worker, options, status)
    result = outcome.get("result")
    record: Record = {
        "schema": SCHEMA,
        "problem": attempt.job.problem,
        "level": attempt.job.level,
        "sha256": attempt.job.sha256,
        "state": outcome["state"],
        "error": outcome.get("error"),
        "result": result,
        "propose": outcome.get("propose"),
        "emitted": attempt.job.emitted if outcome["state"] == VERIFIED and options.judge is None else None,
        "page": attempt.job.page if outcome["state"] == VERIFIED and outcome.get("page") else None,
        "log": log_name(attempt.job.problem) if outcome["state"] != VERIFIED else None,
        "stage": worker.stage,
        "seconds": round(worker.seconds(), 3),
        "stopped_seconds": round(worker.paused_seconds(), 3),
        "attempts": attempt.number,
        "alone": bool(attempt.alone),
        "peak_memory_bytes": outcome.get("peak_memory_bytes"),
        "peak_host_bytes": worker.peak_bytes or None,
        "device": (result or {}).get("device") or queue.device or queue.name,
        "lane": queue.name,
        "worker": worker.pid,
        "device_was_quiet": not worker.noisy,
        "versions": worker.versions,
        "settings": options.kept_settings(),
        "limit": options.limit,
        "started": worker.started_at,
    }
    return {**record}


def retry_of(worker: WorkerProcess, record: dict[str, Any]) -> Attempt | None:
    """The attempt, alone, that an attempt short of memory beside others deserves; None where there is none."""
    attempt = worker.attempt
    assert attempt is not None
    if attempt.job.given:  # parts of it are done: who gave it knows what is left
        return None
    short = record["state"] == "memory" or (worker.outcome or {}).get("short_of_memory", False)
    if not short or not worker.beside_others or attempt.alone == "machine":
        return None
    # What ends a process, or is free on the CPU, is the machine's memory, which other devices' workers use, too.
    machine = worker.outcome is None or " on cpu" in ((record["error"] or {}).get("what") or "")
    if attempt.alone == "device" and not machine:
        return None
    return Attempt(attempt.job, attempt.number + 1, "machine" if machine else "device")


def leave(worker: WorkerProcess, record: dict[str, Any], folder: Path) -> None:
    """Write the log of what is not verified, and take away an emitted file that is not."""
    attempt = worker.attempt
    assert attempt is not None
    log = folder / log_name(attempt.job.problem)
    if record["state"] == VERIFIED:
        log.unlink(missing_ok=True)
        return
    attempt.job.take_away(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(worker.printed(), encoding="utf-8")


def _without_outcome(worker: WorkerProcess, options: SuiteOptions, status: int) -> dict[str, Any]:
    attempt = worker.attempt
    assert attempt is not None
    problem, stage, log = attempt.job.problem, worker.stage, log_name(attempt.job.problem)
    state, found = worker.killed or ("crashed", "")
    if state == "crashed" and status == -signal.SIGKILL and processes.ended_for_memory() > worker.memory_kills:
        state, found = "memory", "The system ended it because no memory was left."
    if state == "timeout":
        seconds = f"{worker.lap_seconds():.0f}"
        return {"state": state, "error": ProblemTimedOut(problem=problem, seconds=seconds, stage=stage,
                                                         limit=f"{options.limit:g}", log=log).as_json()}
    if state == "memory":
        used = f"{worker.peak_bytes / 2**30:.1f} GiB"
        return {"state": state, "error": ProblemOutOfMemory(problem=problem, stage=stage, used=used,
                                                            found=found).as_json()}
    error = ProblemCrashed(problem=problem, stage=stage, ending=_ending(status), log=log,
                           output=_last_words(worker.printed()))
    return {"state": state, "error": error.as_json()}


def _last_words(printed: str) -> str:
    """What a process said when it ended, in a sentence: what was fatal and where, if it says so, else its last line."""
    lines = [line for line in printed.splitlines() if line.strip()]
    fatal = [n for n, line in enumerate(lines) if line.lstrip().startswith(_FATAL)]
    if not fatal:
        return f"It printed last: {lines[-1][:300]}" if lines else "It printed nothing."
    said = [lines[n].strip()[:200] for n in fatal[-3:]]
    places = [n for n, line in enumerate(lines) if n > fatal[-1] and _INNERMOST in line]
    said += [line.strip()[:200] for n in places[:1] for line in lines[n + 1:n + 3]]
    return f"It printed: {'; '.join(said)}"


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with status {status} and without a result"
    try:
        return f"was ended by signal {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
