"""The command ``kernelwright fuzz``: its work and its words."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from kernelwright.errors import FileMissing, InvalidOption
from kernelwright.fuzz.oracles import Outcome
from kernelwright.fuzz.runner import Report, Worker, run
from kernelwright.progress import Progress
from kernelwright.settings import HOST_TARGET, TARGET_NAMES

_USUAL_COUNT = 200
CHOICES = {"level": ("kernels", "graph"),
           "target": (HOST_TARGET, *(name for name in TARGET_NAMES if name != HOST_TARGET))}


def fuzz(*, path: Path | None, seed: int, count: int | None, seconds: float | None, level: str, target: str,
         output: Path | None, progress: Progress, model: str | None = None) -> tuple[str, dict[str, Any], bool]:
    """Fuzz, or judge the one file ``path`` (its class ``model``): the text, the JSON document, and whether all is well.

    Raises InvalidOption (KW403).
    """
    for option, value in (("level", level), ("target", target)):
        if value not in CHOICES[option]:
            raise InvalidOption(option=f"--{option}", value=repr(value), choices=" or ".join(CHOICES[option]),
                                default=CHOICES[option][0])
    if path is not None:
        return _one(path, seed, level, target, model)
    if seed < 0 or (count is not None and count < 1):
        raise InvalidOption(option="--seed" if seed < 0 else "--count", value=seed if seed < 0 else count,
                            choices="a whole number that is not negative", default=0)
    if count is None and seconds is None:
        count = _USUAL_COUNT
    seeds = itertools.count(seed) if count is None else range(seed, seed + count)
    with progress.stage("fuzz"):
        report = run(seeds, level=level, target=target, seconds=seconds, output=output, say=progress.say)
    return _words(report, seed), _document(report, seed), not report.findings


def _one(path: Path, seed: int, level: str, target: str, model: str | None) -> tuple[str, dict[str, Any], bool]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileMissing(path=path, folder=Path.cwd()) from error
    if model:
        text += f"\n\nModel = {model}\n"
    with Worker() as worker:
        outcome = worker.check(text, level, target, seed)
    return f"{path}: {_sentence(outcome)}\n", {"schema": 1, "path": str(path), **outcome.as_json()}, \
        outcome.status != "wrong"


def _sentence(outcome: Outcome) -> str:
    return outcome.status + (f": {outcome.stage}: {outcome.kind}: {outcome.message}" if outcome.stage else "")


def _words(report: Report, seed: int) -> str:
    lines = [f"{report.models} random models from seed {seed} on, level {report.level}, target {report.target}: "
             f"{len(report.findings)} wrong, {len(report.unclear)} unclear, {len(report.refused)} refused, "
             f"in {report.seconds:.0f} s."]
    for finding in report.findings:
        lines += ["", f"seed {finding.seed}: {_sentence(finding.outcome)}"]
        lines += [f"  {line}" for line in finding.sketch.text().splitlines()]
        if finding.file is not None:
            lines.append(f"reproduce: kernelwright fuzz {finding.file} --level {report.level} "
                         f"--target {report.target} --seed {finding.seed}")
    for name, seeds in (("unclear", report.unclear), ("refused", report.refused)):
        lines += [f"{name}: seed {number}: {message[:200]}" for number, message in seeds.items()]
    lines += [f"{times} modes not captured or without kernels: {note}" for note, times in report.notes.most_common(12)]
    return "\n".join(lines) + "\n"


def _document(report: Report, seed: int) -> dict[str, Any]:
    return {"schema": 1, "level": report.level, "target": report.target, "seed": seed, "models": report.models,
            "seconds": round(report.seconds, 1), "unclear": report.unclear, "refused": report.refused,
            "notes": dict(report.notes),
            "findings": [{"seed": f.seed, **f.outcome.as_json(), "model": f.sketch.text(),
                          "file": str(f.file) if f.file else None} for f in report.findings]}
