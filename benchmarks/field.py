"""Kernels that others published, as the judge finds them: a table by system, and what is left to judge.

    python benchmarks/field.py table RESULTS.jsonl ... --claims claims.jsonl > table.md
    python benchmarks/field.py left set.jsonl RESULTS.jsonl ... [--right] > left.jsonl
    python benchmarks/field.py verdicts RESULTS.jsonl ... --claims claims.jsonl > field_h200.jsonl

RESULTS are what ``kernelwright judge --set`` writes; of several records of a candidate the last that says something
holds, and the last time. Claims are JSON lines: ``id`` as in the set, ``system``, ``level``, ``claimed_speedup`` (null
where nothing is claimed) and ``claimed_on``. ``left`` keeps the set's order; with ``--right`` it has the lines of
candidates that are right and have no time yet. ``verdicts`` keeps codes and numbers alone: a reason may repeat a line
of the candidate's text, and texts of others are not ours to publish.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RIGHT = ("OK", "OK-BUT")
#: The share of a result's size below which wrong values are near.
NEAR = 0.01
#: Sets of rules of others, by name, and how the table calls them.
RULES = {"kernelbench-2025": "KernelBench 2025 (1e-2)", "kernelbench": "KernelBench (1e-4)"}


def read_lines(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The objects of files of JSON lines; a torn last line is left out."""
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def newest(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By id the record that holds. A verdict that says nothing (``JUDGE-*``) replaces no other; a time stays beside a
    later record without one, as long as that is right, too."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        if "verdict" not in record:  # a summary
            continue
        before = found.get(record["id"])
        if before is not None and family(record) == "JUDGE" and family(before) != "JUDGE":
            continue
        timing = (record["result"] or {}).get("timing")
        kept = before["timing"] if before is not None and timing is None and record["verdict"] in RIGHT else None
        found[record["id"]] = {**record, "timing": timing or kept}
    return found


def family(record: Mapping[str, Any]) -> str:
    """The part of a verdict's code before its first hyphen, and OK for both that pass."""
    return str(record["verdict"]).partition("-")[0]


def compact(record: Mapping[str, Any], claim: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is ours: codes, numbers and hashes. Times in seconds."""
    result, timing = record["result"] or {}, record["timing"]
    return {
        "id": record["id"], "system": claim["system"], "level": claim["level"], "verdict": record["verdict"],
        "rules": {by["rules"]: by["right"] for by in result.get("by_rules") or ()},
        "claimed_speedup": claim["claimed_speedup"], "claimed_on": claim["claimed_on"],
        "speedup": timing["speedup"] if timing else None, "seconds": timing["seconds"] if timing else None,
        "share_of_floor": timing["share_of_floor"] if timing else None,
        "own_share": timing["own_share"] if timing else None, "graph": timing["graph"] if timing else None,
        "precision": result.get("precision"), "error": result.get("error"), "limits": len(result.get("limits") or ()),
        "problem_sha256": record["problem_sha256"], "candidate_sha256": record["candidate_sha256"],
        "device": record["device"], "torch": record["versions"].get("torch"), "judged": record["judged"]}


def left_of(lines: Iterable[Mapping[str, Any]], found: Mapping[str, Mapping[str, Any]], right: bool
            ) -> list[Mapping[str, Any]]:
    """Lines of the set that have no verdict yet; with ``right``, those that are right and have no time."""
    def wanted(record: Mapping[str, Any] | None) -> bool:
        if right:
            return record is not None and record["verdict"] in RIGHT and record["timing"] is None
        return record is None or family(record) == "JUDGE"
    return [line for line in lines if wanted(found.get(line["id"]))]


def geometric_mean(values: Sequence[float]) -> float | None:
    """Of positive numbers; None without any."""
    return math.exp(statistics.fmean(map(math.log, values))) if values else None


def render(rows: Sequence[Mapping[str, Any]], claims: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables in Markdown, of rows as `compact` gives them and of all that is claimed, by id."""
    systems = list(dict.fromkeys(claim["system"] for claim in claims.values()))
    by_system = {system: [row for row in rows if row["system"] == system] for system in systems}
    published = Counter(claim["system"] for claim in claims.values())
    parts = [_verdicts(by_system, published), _reasons(by_system, claimed_right=False),
             _reasons(by_system, claimed_right=True), _speeds(by_system)]
    return "\n\n".join(part for part in parts if part)


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [" | ".join(map(str, row)) for row in (header, ["---"] * len(header), *rows)]
    return "\n".join([f"**{title}**", "", *(f"| {line} |" for line in lines)])


def _verdicts(by_system: Mapping[str, Sequence[Mapping[str, Any]]], published: Mapping[str, int]) -> str:
    header = ["system", "published", "judged", "built", *RULES.values(), "ours", "problem decides nothing",
              "not judged"]
    rows = []
    for system, found in by_system.items():
        said = [row for row in found if family(row) not in ("JUDGE", "PROBLEM")]
        by_rules = [_share(sum(row["rules"].get(name) is True for row in said), len(said)) for name in RULES]
        rows.append([system, published[system], len(found), sum(family(row) != "BUILD" for row in said), *by_rules,
                     _share(sum(row["verdict"] in RIGHT for row in said), len(said)),
                     sum(family(row) == "PROBLEM" for row in found), sum(family(row) == "JUDGE" for row in found)])
    return _table("Right by whose rules", header, rows)


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "-"


def _reasons(by_system: Mapping[str, Sequence[Mapping[str, Any]]], claimed_right: bool) -> str:
    """How many candidates have each verdict; with ``claimed_right``, of those that KernelBench's rules of 2025 accept
    and ours do not."""
    def counts(found: Sequence[Mapping[str, Any]]) -> Counter[str]:
        return Counter(_code(row) for row in found if not claimed_right or (
            row["rules"].get("kernelbench-2025") is True and row["verdict"] not in RIGHT
            and family(row) not in ("JUDGE", "PROBLEM")))

    counted = {system: counts(found) for system, found in by_system.items()}
    codes = sorted({code for one in counted.values() for code in one}, key=lambda code: (code not in RIGHT, code))
    title = "Right by KernelBench's rules of 2025 and wrong by ours: why" if claimed_right else "Verdicts"
    shown = [code for code in codes if any(one[code] for one in counted.values())]
    if not shown:
        return ""
    return _table(title, ["verdict", *counted], ([code, *(one[code] or "" for one in counted.values())]
                                                 for code in shown))


def _code(row: Mapping[str, Any]) -> str:
    """A row's verdict, and of wrong values whether they are near: fewer digits, or a formula nearly the model's."""
    near = row["verdict"] == "WRONG-NUMERIC" and row["error"] is not None and 0 < row["error"]["candidate"] < NEAR
    return f"{row['verdict']}, off by less than {NEAR:.0%} of the size" if near else row["verdict"]


def _speeds(by_system: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What is claimed and measured over eager, of the candidates that are right and were timed."""
    header = ["system", "timed", "claimed: geometric mean", "measured: geometric mean", "median", "least and most",
              "slower than eager", "at least half of what is claimed", "claims on"]
    rows = []
    for system, found in by_system.items():
        timed = [(row["speedup"]["value"], row["claimed_speedup"], row) for row in found if row["speedup"]]
        if not timed:
            continue
        measured = [value for value, _, _ in timed]
        claimed = [claim for _, claim, _ in timed if claim]
        kept = sum(value >= 0.5 * claim for value, claim, _ in timed if claim)
        slower = sum(row["speedup"]["high"] < 1 for _, _, row in timed)
        places = ", ".join(dict.fromkeys(row["claimed_on"] for _, _, row in timed))
        rows.append([system, len(timed), _times(geometric_mean(claimed)), _times(geometric_mean(measured)),
                     _times(statistics.median(measured)), f"{_times(min(measured))} to {_times(max(measured))}", slower,
                     _share(kept, len(claimed)), places])
    return _table("Speed over eager of those that are right", header, rows) if rows else ""


def _times(value: float | None) -> str:
    return f"{value:.2f}x" if value is not None else "-"


def main(words: Sequence[str] | None = None) -> int:
    """Run one of the three commands; see above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("table", "left", "verdicts"))
    parser.add_argument("files", nargs="+", type=Path, help="results; of `left` the set's file before them")
    parser.add_argument("--claims", type=Path, help="what their authors say of the candidates")
    parser.add_argument("--right", action="store_true", help="of `left`: those that are right and have no time")
    given = parser.parse_args(words)
    if given.command == "left":
        lines = list(read_lines(given.files[:1]))
        for line in left_of(lines, newest(read_lines(given.files[1:])), given.right):
            sys.stdout.write(json.dumps(line) + "\n")
        return 0
    if given.claims is None:
        parser.error(f"{given.command} needs --claims")
    claims = {claim["id"]: claim for claim in read_lines([given.claims])}
    found = newest(read_lines(given.files))
    rows = [compact(found[name], claim) for name, claim in claims.items() if name in found]
    if given.command == "verdicts":
        sys.stdout.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    else:
        sys.stdout.write(render(rows, claims) + "\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads the first lines alone is no fault
    sys.exit(main())
