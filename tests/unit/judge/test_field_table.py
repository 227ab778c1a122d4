"""The table of published kernels (benchmarks/field.py): which of a candidate's records holds, and what is told."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

from kernelwright.judge.records import ByRules, CandidateResult, CandidateTiming, Finding
from kernelwright.timing.statistics import Ratio

SECRET = "a line of somebody's kernel"
CLAIMS = {name: {"id": name, "system": name[0].upper(), "level": 1, "claimed_speedup": 4.0, "claimed_on": "H100"}
          for name in ("a/1", "a/2", "a/3", "b/1", "b/2")}


@pytest.fixture(scope="module")
def field() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "field.py"))


def record(name: str, verdict: str, rules: bool | None = True, speedup: float | None = None) -> dict[str, Any]:
    """A record as `judge --set` writes it, as far as the table reads it."""
    timing = None if speedup is None else CandidateTiming(
        1e-3, (1e-3, 1e-3), 1e-3, None, (1e-3,), Ratio("eager", "it", speedup, 0.9 * speedup, 1.1 * speedup, 8))
    result = CandidateResult("x.py", verdict, SECRET, findings=(Finding("kind", SECRET, text=SECRET),), timing=timing,
                             by_rules=(ByRules("kernelbench", "KernelBench", rules, ""),
                                       ByRules("kernelbench-2025", "KernelBench 2025", rules, "")))
    return {"id": name, "verdict": verdict, "result": result.to_json(), "problem_sha256": "p", "candidate_sha256": "c",
            "device": "H200", "versions": {"torch": "2.11"}, "judged": "2026-11-30T20:00:00+00:00"}


def test_a_time_stays_beside_a_later_verdict_and_what_says_nothing_replaces_nothing(field):
    lines = [record("a/1", "OK", speedup=2.0), record("a/1", "OK-BUT"), record("a/2", "WRONG-NUMERIC"),
             record("a/2", "JUDGE-BUSY"), record("a/3", "OK", speedup=2.0), record("a/3", "CHEAT-STALE"),
             {"schema": 1, "candidates": 3}]
    found = field["newest"](lines)
    assert {name: one["verdict"] for name, one in found.items()} == {
        "a/1": "OK-BUT", "a/2": "WRONG-NUMERIC", "a/3": "CHEAT-STALE"}
    assert found["a/1"]["timing"]["speedup"]["value"] == 2.0 and found["a/3"]["timing"] is None


def test_what_is_left(field, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "set.jsonl").write_text("".join(json.dumps({"id": name, "candidate": "c"}) + "\n" for name in CLAIMS))
    records = [record("a/1", "OK"), record("a/2", "JUDGE-ERROR"), record("a/3", "OK", speedup=2.0),
               record("b/1", "WRONG-NUMERIC")]
    (tmp_path / "r.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records) + '{"id": "b/2", "verd')
    given = ["left", str(tmp_path / "set.jsonl"), str(tmp_path / "r.jsonl")]
    for options, names in (([], ["a/2", "b/2"]), (["--right"], ["a/1"])):
        assert field["main"]([*given, *options]) == 0
        assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == names


def test_the_table_counts_by_system(field):
    records = [record("a/1", "OK", speedup=2.0), record("a/2", "WRONG-DISTRIBUTION"), record("a/3", "PROBLEM-TRIVIAL"),
               record("b/1", "BUILD-COMPILE", rules=False), record("b/2", "OK-BUT", rules=False, speedup=0.5)]
    found = field["newest"](records)
    text = field["render"]([field["compact"](found[name], claim) for name, claim in CLAIMS.items()], CLAIMS)
    verdicts, _, rest = text.partition("**Verdicts**")
    # published, judged, built, by KernelBench's rules of 2025 and of today, by ours, trivial, not judged
    assert "| A | 3 | 3 | 2 | 2 of 2 (100%) | 2 of 2 (100%) | 1 of 2 (50%) | 1 | 0 |" in verdicts
    assert "| B | 2 | 2 | 1 | 0 of 2 (0%) | 0 of 2 (0%) | 1 of 2 (50%) | 0 | 0 |" in verdicts
    counted, _, rest = rest.partition("wrong by ours: why**")
    assert "| OK | 1 |  |" in counted and "| BUILD-COMPILE |  | 1 |" in counted
    why, _, speeds = rest.partition("**Speed over eager")
    assert "| WRONG-DISTRIBUTION | 1 |  |" in why and "PROBLEM" not in why and "BUILD" not in why
    assert "| A | 1 | 4.00x | 2.00x | 2.00x | 2.00x to 2.00x | 0 | 1 of 1 (100%) | H100 |" in speeds
    assert "| B | 1 | 4.00x | 0.50x | 0.50x | 0.50x to 0.50x | 1 | 0 of 1 (0%) | H100 |" in speeds


def test_what_is_kept_holds_no_text_of_others(field):
    found = field["newest"]([record("a/1", "WRONG-NUMERIC")])
    row = field["compact"](found["a/1"], CLAIMS["a/1"])
    assert SECRET not in json.dumps(row) and row["verdict"] == "WRONG-NUMERIC"
    assert row["rules"] == {"kernelbench": True, "kernelbench-2025": True}
