"""Judge candidates that do not compute, or files of ours, for every problem of a folder; one JSON line per problem.

    python tools/judge_sweep.py KernelBench --output sweep.jsonl [--filter level1/] [--shard 0/4]
    python tools/judge_sweep.py KernelBench --candidates bench_results --output own.jsonl
    python tools/judge_sweep.py --table sweep.jsonl [MORE.jsonl ...]

Without ``--candidates``: zeros, a constant, the input and a replayed first result (judge/trivial.py), of which none may
be accepted. With it: FOLDER/NAME_new.py for the problem NAME, of which none may be refused. Results that are there are
kept, so that a sweep goes on where it was cut. Checks only: no self-test, diagnosis or clock.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kernelwright.judge.card import make_card
from kernelwright.judge.check import Checker
from kernelwright.judge.efforts import Budget
from kernelwright.judge.limits import Limits
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.trivial import trivial_candidates
from kernelwright.problem.load import load_problem
from kernelwright.suite.jobs import find_jobs
from kernelwright.timing.turns import clock

BUDGET = Budget(card=4, check=1, variants=0, diagnose=0, time=0)


def judged(path: Path, folder: Path, candidates: Path | None, name: str, tiny: bool) -> dict[str, Any]:
    """Verdicts by candidate for one problem, and what its card says."""
    settings = JudgeSettings(effort="quick", time=False, seed=20, tiny=tiny)
    problem = load_problem(path, device=settings.place(), tiny=tiny)
    card = make_card(problem, settings.seed, BUDGET.card)
    checker = Checker(problem, card, settings, Limits(), BUDGET)
    if candidates is not None:
        files = {"own": candidates / f"{name}_new.py"}
    else:
        texts = trivial_candidates(problem, settings.seed)
        files = {kind: folder / f"{kind}.py" for kind in texts}
        for kind, file in files.items():
            file.write_text(texts[kind], encoding="utf-8")
    found = {}
    for kind, file in files.items():
        result, worker = checker.check(file)
        if worker is not None:
            worker.close()
        found[kind] = {"verdict": result.verdict, "reason": result.reason[:300], "limits": result.limits}
    return {"trivial": card.trivial, "telling": card.telling, "card_seconds": card.seconds, "verdicts": found}


def sweep(options: argparse.Namespace) -> None:
    """Judge what has no result yet, one line as soon as it is there."""
    output = Path(options.output)
    done = {record["problem"] for record in records([output])} if output.exists() else set()
    part, parts = (int(n) for n in options.shard.split("/"))
    jobs = [job for job in find_jobs(Path(options.folder), options.filter)][part::parts]
    for job in jobs:
        candidates = Path(options.candidates) if options.candidates else None
        if job.problem in done or (candidates and not (candidates / f"{job.problem}_new.py").exists()):
            continue
        started = clock()
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = judged(Path(job.path), Path(folder), candidates, job.problem, options.tiny)
            except Exception as error:  # one problem's failure is its record
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
        with output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"problem": job.problem, "seconds": clock() - started, **found}) + "\n")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def records(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """The records of several files."""
    for path in paths:
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line)


def table(paths: list[Path]) -> str:
    """Verdicts by candidate, and what was accepted or could not be judged."""
    found = list({record["problem"]: record for record in records(paths)}.values())
    counts: dict[str, Counter[str]] = {}
    for record in found:
        for kind, entry in record.get("verdicts", {}).items():
            counts.setdefault(kind, Counter())[entry["verdict"]] += 1
    codes = sorted({code for counter in counts.values() for code in counter})
    lines = [f"{len(found)} problems.", "", f"| candidate | {' | '.join(codes)} |", "| --- |" + " --- |" * len(codes)]
    lines += [f"| {kind} | {' | '.join(str(counter[code]) for code in codes)} |" for kind, counter in counts.items()]
    trivial = sorted(record["problem"] for record in found if record.get("trivial"))
    lines += ["", f"PROBLEM-TRIVIAL by the card: {len(trivial)}: {', '.join(trivial) or 'none'}."]
    failed = [f"{record['problem']}: {record['error']}" for record in found if "error" in record]
    lines += ["", f"Not judged: {len(failed)}.", *(f"- {line}" for line in failed)]
    return "\n".join(lines)


def main() -> None:
    """Sweep, or print the table of sweeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--output", default="sweep.jsonl")
    parser.add_argument("--filter", action="append", default=[])
    parser.add_argument("--shard", default="0/1", metavar="N/M")
    parser.add_argument("--candidates", metavar="FOLDER")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--table", nargs="+", metavar="FILE")
    options = parser.parse_args()
    if options.table:
        print(table([Path(name) for name in options.table]))
    elif options.folder:
        sweep(options)
    else:
        parser.error("give a folder, or --table")


if __name__ == "__main__":
    sys.exit(main())
