"""Judge candidates that do not compute, or files of ours, for every problem of a folder; one JSON line per problem.

    python tools/judge_sweep.py KernelBench --output sweep.jsonl --devices 0,1,2,3 [--together 3] [--filter level1/]
    python tools/judge_sweep.py KernelBench --candidates bench_results --output own.jsonl --devices 0,1,2,3
    python tools/judge_sweep.py --table sweep.jsonl [MORE.jsonl ...]

Without ``--candidates``: zeros, a constant, the input and a replayed first result (judge/check/trivial.py), of which
none may be accepted. With it: FOLDER/NAME_new.py for the problem NAME, of which none may be refused. Results that are
there are kept, so that a sweep goes on where it was cut. Checks only: no self-test, diagnosis or clock, and the first
failing trial of a candidate ends its check.

Problems are dealt to processes of their own, ``--together`` of them on each device, of which one at a time has the
device while the others build. Those for which a device's memory is too small beside others come again at the end, one
at a time. One that crashes, breaks its context or takes longer than ``--limit`` seconds costs its problem alone.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import os
import queue
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelwright.judge.verdicts import VERDICTS
from kernelwright.problem.memory import says_out_of_device_memory
from kernelwright.suite.jobs import Job, find_jobs

SEED = 20
#: Seconds for a problem's profile and for what a check need not do.
PROFILE_SECONDS, CHECK_SECONDS = 2, 1


class DeviceLock:
    """The lock on a device, which one process at a time has; without a file, everybody has it. ``waited``: seconds."""

    def __init__(self, file: str | None) -> None:
        self._file = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600) if file else None
        self.waited, self._depth = 0.0, 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A block that has the device; what it leaves there unused is given back."""
        import torch

        if self._file is not None and not self._depth:
            started = time.monotonic()
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.waited += time.monotonic() - started
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._file is not None and not self._depth:
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                fcntl.flock(self._file, fcntl.LOCK_UN)


def judged(path: Path, folder: Path, candidate: Path | None, tiny: bool, lock: DeviceLock, together: int = 1
           ) -> dict[str, Any]:
    """Verdicts by candidate for a problem, and what its profile says. ``together``: processes that share the device."""
    from kernelwright.judge.check.candidate import Checker
    from kernelwright.judge.check.kept_profiles import kept_for
    from kernelwright.judge.check.problem_profile import make_profile
    from kernelwright.judge.check.trivial import trivial_candidates
    from kernelwright.judge.efforts import Budget
    from kernelwright.judge.sandbox.limits import Limits
    from kernelwright.judge.settings import JudgeSettings
    from kernelwright.problem.load import load_problem

    class LockingChecker(Checker):
        """Checks with the lock; processes start and build without it."""

        def _certified(self, *arguments: Any, **named: Any) -> Any:
            with lock.held():
                return super()._certified(*arguments, **named)

    budget = Budget(profile=PROFILE_SECONDS, check=CHECK_SECONDS, variants=0, diagnose=0, time=0, sanitize=0)
    settings = JudgeSettings(effort="quick", time=False, seed=SEED, tiny=tiny)
    with lock.held():
        problem = load_problem(path, device=settings.place(), tiny=tiny)
        kept = kept_for(problem)
        kept.most_bytes //= together
        profile = make_profile(problem, SEED, budget.profile, kept=kept)
        texts = trivial_candidates(problem, SEED) if candidate is None else {}
    checker = LockingChecker(problem, profile, settings, Limits(), budget, kept)
    files = {kind: folder / f"{kind}.py" for kind in texts} if candidate is None else {"own": candidate}
    for kind, text in texts.items():
        files[kind].write_text(text, encoding="utf-8")
    found = {}
    for kind, file in files.items():
        result, worker = checker.check(file)
        if worker is not None:
            worker.close()
        found[kind] = {"verdict": result.verdict, "reason": result.reason[:300], "limits": result.limits,
                       "seconds": result.seconds, "isolation": result.isolation}
    return {"trivial": profile.trivial, "telling": profile.telling, "profile_seconds": profile.seconds,
            "verdicts": found}


def serve(lock_file: str | None) -> None:
    """Judge what comes in, a problem a line, and answer each with a line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process above ends this one
    import torch

    lock = DeviceLock(lock_file)
    for line in sys.stdin:
        order = json.loads(line)
        started, lock.waited = time.monotonic(), 0.0
        with tempfile.TemporaryDirectory(prefix="kernelwright_sweep_") as folder:
            try:
                candidate = Path(order["candidate"]) if order["candidate"] else None
                found = judged(Path(order["path"]), Path(folder), candidate, order["tiny"], lock, order["together"])
            except Exception as error:  # one problem's failure is its record
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
        gc.collect()
        broken = False
        if torch.cuda.is_available():
            try:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
            except RuntimeError as error:
                broken = True
                found.setdefault("error", f"the judge's own context is lost: {error}"[:500])
        record = {"problem": order["problem"], "seconds": time.monotonic() - started - lock.waited,
                  "waited": lock.waited, **found}
        print(json.dumps({"record": record, "ends": broken}), file=answers, flush=True)
        if broken:
            os._exit(1)


class Judge:
    """A process that serves, started when it is needed; another one after a problem that it did not survive."""

    def __init__(self, device: str | None, lock_file: str | None, limit: float) -> None:
        self.device, self.lock_file, self.limit = device, lock_file, limit
        self.process: subprocess.Popen[bytes] | None = None

    def record(self, order: dict[str, Any]) -> dict[str, Any]:
        """The record of one problem."""
        started = time.monotonic()
        process = self.process = self.process or self._started()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            line, deadline = b"", time.monotonic() + self.limit
            while not line.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    raise TimeoutError(f"took more than {self.limit:g} s")
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise EOFError(f"its process ended with status {process.wait()}")
                line += piece
            answer = json.loads(line)
            if answer["ends"]:
                self.close()
            return answer["record"]
        except (EOFError, OSError, ValueError) as error:
            self.close()
            return {"problem": order["problem"], "seconds": time.monotonic() - started, "error": str(error)}

    def _started(self) -> subprocess.Popen[bytes]:
        variables = {**os.environ, **({"CUDA_VISIBLE_DEVICES": self.device} if self.device is not None else {})}
        command = [sys.executable, __file__, "--serve", *(["--lock", self.lock_file] if self.lock_file else [])]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)

    def close(self) -> None:
        """End the process; what it started ends with it."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self.process = None


def sweep(options: argparse.Namespace) -> None:
    """Judge what has no result yet, one line as soon as it is there."""
    output = Path(options.output)
    done = {record["problem"] for record in records([output])} if output.exists() else set()
    part, parts = (int(n) for n in options.shard.split("/"))
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in find_jobs(Path(options.folder), options.filter)[part::parts]:
        if job.problem not in done and (not options.candidates or _candidate(options, job).exists()):
            waiting.put(job)
    count, writing, stopping = waiting.qsize(), threading.Lock(), threading.Event()
    devices = options.devices.split(",") if options.devices else [None]
    alone: queue.SimpleQueue[Job] = queue.SimpleQueue()  # those for which there was no room beside others

    def work(judge: Judge, jobs: queue.SimpleQueue[Job], together: int) -> None:
        while True:
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                return judge.close()
            record = judge.record({"problem": job.problem, "path": job.path, "tiny": options.tiny,
                                   "together": together, "candidate":
                                   str(_candidate(options, job)) if options.candidates else None})
            if stopping.is_set():
                return None
            if together > 1 and short_of_memory(record):
                alone.put(job)
                continue
            with writing, output.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
                said = record.get("error") or " ".join(f"{kind}: {entry['verdict']}" for kind, entry
                                                       in record["verdicts"].items())
                left = waiting.qsize() + alone.qsize()
                print(f"[{count - left}/{count}] {job.problem} {record['seconds']:.1f} s {said}", flush=True)

    with tempfile.TemporaryDirectory(prefix="kernelwright_sweep_") as folder:
        judges: list[Judge] = []

        def judged(jobs: queue.SimpleQueue[Job], together: int) -> None:
            judges[:] = [Judge(device, f"{folder}/{device}" if together > 1 else None, options.limit)
                         for device in devices for _ in range(together)]
            threads = [threading.Thread(target=work, args=(judge, jobs, together), daemon=True) for judge in judges]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        try:
            judged(waiting, options.together)
            if not alone.empty():
                judged(alone, 1)
        finally:
            stopping.set()
            for judge in judges:
                judge.close()


def short_of_memory(record: dict[str, Any]) -> bool:
    """Whether a device's memory did not suffice, for the problem or for a candidate."""
    reasons = [record.get("error", "")]
    for entry in record.get("verdicts", {}).values():
        if entry["verdict"] == "CRASH-MEMORY":
            return True
        if VERDICTS[entry["verdict"]].family == "JUDGE":
            reasons.append(entry["reason"])
    return any("KW115" in reason or says_out_of_device_memory(reason) for reason in reasons)


def _candidate(options: argparse.Namespace, job: Job) -> Path:
    return (Path(options.candidates) / f"{job.problem}_new.py").resolve()


def records(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """The records of several files."""
    for path in paths:
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)


def table(paths: list[Path]) -> str:
    """Verdicts by candidate, what was accepted or refused wrongly or could not be judged, and how long it took."""
    found = list({record["problem"]: record for record in records(paths)}.values())
    counts: dict[str, Counter[str]] = {}
    wrong: dict[str, list[str]] = {"False accepts": [], "False refusals": []}
    for record in found:
        for kind, entry in record.get("verdicts", {}).items():
            verdict = entry["verdict"]
            counts.setdefault(kind, Counter())[verdict] += 1
            passed, family = VERDICTS[verdict].passed, VERDICTS[verdict].family
            if kind != "own" and passed:
                wrong["False accepts"].append(f"{record['problem']}: {kind} is {verdict}")
            if kind == "own" and not passed and family not in ("JUDGE", "PROBLEM"):
                wrong["False refusals"].append(f"{record['problem']}: {verdict}: {entry['reason']}")
    codes = sorted({code for counter in counts.values() for code in counter})
    judged_candidates = sum(counter.total() for counter in counts.values())
    lines = [f"{len(found)} problems, {judged_candidates} candidates.", "",
             f"| candidate | {' | '.join(codes)} |", "| --- |" + " --- |" * len(codes)]
    lines += [f"| {kind} | {' | '.join(str(counter[code]) for code in codes)} |" for kind, counter in counts.items()]
    for what, names in wrong.items():
        lines += ["", f"{what}: {len(names)}.", *(f"- {name}" for name in names)]
    trivial = sorted(record["problem"] for record in found if record.get("trivial"))
    lines += ["", f"PROBLEM-TRIVIAL by the profile: {len(trivial)}: {', '.join(trivial) or 'none'}."]
    failed = [f"{record['problem']}: {record['error']}" for record in found if "error" in record]
    failed += [f"{record['problem']}: {kind}: {entry['reason']}" for record in found
               for kind, entry in record.get("verdicts", {}).items() if VERDICTS[entry["verdict"]].family == "JUDGE"]
    lines += ["", f"Not judged: {len(failed)}.", *(f"- {line}" for line in failed)]
    seconds = [record["seconds"] for record in found]
    if seconds:
        longest = max(found, key=lambda record: record["seconds"])
        lines += ["", f"Seconds a problem: median {statistics.median(seconds):.1f}, largest {max(seconds):.1f} "
                  f"({longest['problem']}), {sum(seconds):.0f} in all."]
    slow = sorted({entry["isolation"].partition("go through host memory")[2].strip(" ()") for record in found
                   for entry in record.get("verdicts", {}).values()
                   if "go through host memory" in entry.get("isolation", "")})
    return "\n".join([*lines, *(f"Through host memory: {why}." for why in slow)])


def main() -> None:
    """Sweep, or print the table of sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--output", default="sweep.jsonl")
    parser.add_argument("--filter", action="append", default=[])
    parser.add_argument("--shard", default="0/1", metavar="N/M", help="every M-th problem, from the N-th on")
    parser.add_argument("--devices", metavar="LIST", help="GPUs, as CUDA_VISIBLE_DEVICES names them: 0,1,2,3")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="processes on each device")
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS", help="for one problem")
    parser.add_argument("--candidates", metavar="FOLDER")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--table", nargs="+", metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--lock", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.lock)
    elif options.table:
        print(table([Path(name) for name in options.table]))
    elif options.folder:
        sweep(options)
    else:
        parser.error("give a folder, or --table")


if __name__ == "__main__":
    sys.exit(main())
