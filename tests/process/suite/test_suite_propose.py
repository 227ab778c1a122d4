"""``bench --propose`` through the scheduler: a process for each problem, records, tables."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from places import ROOT, TESTS
from propose_tools import MODEL
from schemas import assert_fits

from kernelwright.settings import Settings
from kernelwright.suite import proposals
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.results import read_results
from kernelwright.suite.runner import run_suite


def test_problems_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(TESTS / "support"), *filter(None, sys.path)]))
    folder = tmp_path / "problems"
    (folder / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (folder / f"{name}.py").write_text(MODEL)
    options = SuiteOptions(
        settings=Settings(target="cpp"), output=tmp_path / "out", devices=("cpu",), workers=2, limit=600.0,
        work="suite_propose_work:run",
        propose={"endpoint": "http://localhost:1/v1", "model": "m", "candidates": 2, "rounds": 2})
    result = run_suite(folder, options)
    assert result.exit_status == 0, [r["error"] for r in result.records]
    for name, record in read_results(tmp_path / "out" / "results.jsonl").items():
        assert_fits(record, "results")
        assert record["propose"]["chosen"] == "r1c1" and len(record["propose"]["candidates"]) == 4
        assert (tmp_path / "out" / f"{name}_new.py").exists()
        assert (tmp_path / "out" / f"{name}_propose" / "events.jsonl").exists()
    page = (tmp_path / "out" / proposals.FILE).read_text()
    assert "deep/two" in page and "| correct | 100% |" in page
