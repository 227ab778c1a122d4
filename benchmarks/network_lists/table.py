"""The table of networks: which are served whole, which in part, which not, and why."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.timing.baselines import COMPILED, EAGER

_STAYS = re.compile(r"^(.*?) (?:stays with PyTorch|mode stays as it is)\b")
OUTCOMES = {"whole": "whole", "in part": "in part", "PyTorch's": "the file is PyTorch's", "refused": "refused",
            "wrong": "wrong", "failed": "crashed, hung or ended in an error of ours"}


_PREFACE = """whole: every mode has kernels, and nothing is left to PyTorch for want of a graph (operators without
kernels of ours stay torch calls in it). in part: submodules, or a mode, stay with PyTorch. seconds: processor time of a
plan, wall time of a whole run."""


@dataclass(frozen=True)
class Row:
    """A network: its set and name, the outcome (a key of `OUTCOMES`), why it is not whole, and what was measured."""

    group: str
    name: str
    outcome: str
    reasons: tuple[str, ...]
    kernels: str
    seconds: float
    ratios: tuple[str, ...] = ()


def table(records: Sequence[Path]) -> str:
    """Markdown: counts by set, then a row for each network, from records of `plan` or of `kernelwright bench`. Of
    several records of one network the last counts."""
    found = {}
    for file in records:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            found[record["problem"]] = record
    rows = [_row(record) for _, record in sorted(found.items())]
    timed = any(row.ratios for row in rows)
    groups = list(dict.fromkeys(row.group for row in rows))
    lines = [_PREFACE, "", "| set | networks | " + " | ".join(OUTCOMES.values()) + " |",
             "| --- " * (len(OUTCOMES) + 2) + "|"]
    for group in (*groups, "all"):
        own = [row for row in rows if group in (row.group, "all")]
        counts = [sum(row.outcome == outcome for row in own) for outcome in OUTCOMES]
        lines.append(f"| {group} | {len(own)} | " + " | ".join(map(str, counts)) + " |")
    lines += ["", "| network | outcome | kernels by mode | seconds |" + " over eager | over torch.compile |" * timed
              + " what is not served, and why |", "| --- " * (7 if timed else 5) + "|"]
    for row in rows:
        ratios = "".join(f" {r} |" for r in (*row.ratios, "", "")[:2]) if timed else ""
        lines.append(f"| {row.name} | {row.outcome} | {row.kernels} | {row.seconds:.0f} |{ratios} "
                     f"{'; '.join(row.reasons)} |")
    return "\n".join(lines)


def _row(record: dict[str, Any]) -> Row:
    group, _, name = record["problem"].rpartition("/")
    result = record.get("result") or record
    modes = result.get("modes") or {}
    modes = modes if isinstance(modes, dict) else {m["name"]: {**m, "kernels": len(m["kernels"])} for m in modes}
    kernels = ", ".join(f"{mode} {facts['kernels']}" for mode, facts in modes.items())
    reasons = tuple(_shortened(note) for note in result.get("notes") or () if _STAYS.match(note))
    state = record["state"]
    if state in ("planned", "verified"):
        served = any(facts["kernels"] for facts in modes.values())
        outcome = "PyTorch's" if not served else "in part" if reasons else "whole"
    else:
        error = record.get("error")
        coded = isinstance(error, dict)
        reasons = (_shortened(f"{error['code']}: {error['what']}" if coded else str(error)),)
        is_refused = state == "refused" or (state == "error" and coded)
        outcome = "wrong" if state in ("wrong", "failed") else "refused" if is_refused else "failed"
    unseen = dict.fromkeys(f"the plan was not evaluated: {_shortened(facts['evaluated'])}" for facts in modes.values()
                           if facts.get("evaluated"))
    return Row(group, name, outcome, (*_by_block(reasons), *unseen), kernels, record.get("seconds") or 0.0,
               _ratios(result))


def _shortened(text: str) -> str:
    """A reason in one line, without the folders of files and with little of their lines."""
    text = " ".join(text.split()).replace("|", "/")
    return re.sub(r"\S*/(\w+\.py)", r"\1", text)[:240].rstrip(".")


def _by_block(reasons: Iterable[str]) -> tuple[str, ...]:
    """Reasons, those of alike blocks and of both modes once, with the number of them."""
    counts: dict[str, int] = {}
    for reason in reasons:
        plain = re.sub(r"\.\d+(?=[. ])", ".*", re.sub(r" in \w[\w ]*? mode:", ":", reason))
        counts[plain] = counts.get(plain, 0) + 1
    return tuple(f"{reason} ({count} times)" if count > 1 else reason for reason, count in counts.items())


def _ratios(result: dict[str, Any]) -> tuple[str, ...]:
    """How much faster than eager and than torch.compile the first mode was, where it was timed."""
    modes = result.get("modes") or ()
    found = ((modes[0].get("timing") or {}).get("ratios") or {}) if isinstance(modes, list) and modes else {}
    return tuple(f"{found[name]['value']:.2f}x" if name in found else "" for name in (EAGER, COMPILED)) if found \
        else ()
