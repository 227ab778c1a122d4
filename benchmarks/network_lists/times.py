"""The times of networks: of the device and of calls that are waited for, for every baseline, and what a file gains."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from kernelwright.suite.scores import BASELINES
from kernelwright.suite.table import SHORT
from kernelwright.timing.baselines import CANDIDATE, EAGER

_PREFACE = """Milliseconds, medians, of the first mode. device: on a cold cache, the host ahead. waited for: a call from
its beginning until its results are there, on warm caches. gain: of the file over eager, and over the best of all that
were timed; a file without kernels is eager. s: of the whole run, without what it waited for others."""


def times(records: Sequence[Path]) -> str:
    """Markdown from records of `kernelwright bench`: geometric means, then a row for each network. Of several records
    of one network the last counts; what was not timed is left out."""
    found: dict[str, dict[str, Any]] = {}
    for file in records:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            found[record["problem"]] = record
    rows = {name: record for name, record in sorted(found.items()) if _timing(record)}
    baselines = [name for name in BASELINES if any(name in _timing(record)["entries"] for record in rows.values())]
    lines = [_PREFACE, "", f"{len(rows)} networks.", "", "| geometric mean of the gain | of the device | networks "
             "| below 1 | waited for | networks | below 1 |", "| --- " * 7 + "|"]
    for against in (*([name] for name in baselines), baselines):
        cells = []
        for value in ("median", "waited_seconds"):
            gains = [gain for record in rows.values() if (gain := _gain(_mode(record), against, value))]
            cells += [f"{geometric_mean(gains):.2f}x" if gains else "", str(len(gains)), str(sum(g < 1 for g in gains))]
        title = f"over {SHORT[against[0]]}" if len(against) == 1 else "over the best of all"
        lines.append(f"| {title} | {' | '.join(cells)} |")
    heads = [f"{kind}: {name}" if not place else name for kind in ("device", "waited for")
             for place, name in enumerate((*map(SHORT.__getitem__, baselines), "ours"))]
    lines += ["", f"| network | replaced | {' | '.join(heads)} | launched | gain | over the best | s |",
              "| --- " * (len(heads) + 6) + "|"]
    for name, record in rows.items():
        mode = _mode(record)
        cells = [_milliseconds(_own(mode) if entry == CANDIDATE else mode["timing"]["entries"].get(entry), value)
                 for value in ("median", "waited_seconds") for entry in (*baselines, CANDIDATE)]
        gains = [_gain(mode, against, "median") for against in ([EAGER], baselines)]
        seconds = record["seconds"] - (record.get("stopped_seconds") or 0.0)
        lines.append(f"| {name.split('/')[-1]} | {mode['replaced']} of {mode['operators']} | {' | '.join(cells)} "
                     f"| {_launched(mode)} | {' | '.join(f'{g:.2f}x' for g in gains)} | {seconds:.0f} |")
    return "\n".join(lines)


def _mode(record: dict[str, Any]) -> dict[str, Any]:
    """A record's first mode; empty where it has none."""
    return ((record.get("result") or {}).get("modes") or [{}])[0]


def _timing(record: dict[str, Any]) -> dict[str, Any]:
    """The timing of a record's first mode; empty where it has none."""
    return _mode(record).get("timing") or {}


def _launched(mode: dict[str, Any]) -> str:
    """How the file launches the mode's program; in records that do not say so, what its timing says of a choice."""
    found = mode.get("launched")
    return found if found is not None else mode["timing"].get("launch") or ""


def _own(mode: dict[str, Any]) -> dict[str, Any]:
    """The file's times: eager's where it has no program, whatever one that was given up took."""
    entries = mode["timing"]["entries"]
    runs = mode.get("kernels") or mode.get("launched")
    return entries[CANDIDATE] if runs and CANDIDATE in entries else entries[EAGER]


def _gain(mode: dict[str, Any], against: Iterable[str], value: str) -> float:
    """How many times faster the file is than the fastest of some entries; 0 where one of the two has no time."""
    entries = mode["timing"]["entries"]
    others = [entry[value] for name in against if (entry := entries.get(name)) and entry.get(value)]
    own = _own(mode).get(value)
    return min(others) / own if others and own else 0.0


def _milliseconds(entry: dict[str, Any] | None, value: str) -> str:
    return f"{1e3 * entry[value]:.3g}" if entry and entry.get(value) else ""
