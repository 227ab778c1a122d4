"""The sweep over a collection: what one problem may cost, and what the table says."""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest
from clocks import PATIENCE
from places import ROOT

TOOL = ROOT / "tools" / "judge_sweep.py"
specification = importlib.util.spec_from_file_location("judge_sweep", TOOL)
judge_sweep = importlib.util.module_from_spec(specification)
specification.loader.exec_module(judge_sweep)

#: Stands for a process that judges: what it does is its problem's name.
STAND_IN = """
    import json, os, sys, time
    for number, line in enumerate(sys.stdin):
        name = json.loads(line)["problem"]
        if name == "crash":
            os.abort()
        if name == "hang":
            time.sleep(60)
        record = {"problem": name, "seconds": 0.1, "verdicts": {}, "process": os.getpid()}
        if name == "large" and json.loads(line)["together"] > 1:
            del record["verdicts"]
            record["error"] = "NotEnoughMemory: KW115: There is not enough memory on cuda:0 for the inputs."
        print(json.dumps({"record": record, "ends": name == "broken"}), flush=True)
"""


@pytest.fixture
def judge(monkeypatch):
    command = [sys.executable, "-c", textwrap.dedent(STAND_IN)]
    monkeypatch.setattr(judge_sweep.Judge, "_started", lambda self: subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    made = judge_sweep.Judge(None, None, 2.0)
    yield made
    made.close()


def test_one_problem_costs_itself(judge):
    """A crash, a hang and a lost context end their own process, and the next problem gets another."""
    first, second = (judge.record({"problem": name}) for name in ("a", "b"))
    assert first["process"] == second["process"]
    assert judge.record({"problem": "crash"})["error"] == "its process ended with status -6"
    third = judge.record({"problem": "c"})
    assert third["process"] != first["process"]
    assert judge.record({"problem": "hang"})["error"] == "took more than 2 s"
    fourth = judge.record({"problem": "broken"})
    assert fourth["process"] != third["process"] and judge.process is None
    assert judge.record({"problem": "d"})["process"] != fourth["process"]


def test_the_table_names_what_is_wrong(tmp_path):
    entry = lambda verdict: {"verdict": verdict, "reason": "Why.", "isolation": ""}  # noqa: E731
    rows = [{"problem": "one", "seconds": 1.0, "trivial": [], "verdicts": {"zeros": entry("WRONG-NUMERIC")}},
            {"problem": "two", "seconds": 3.0, "trivial": ["zeros"], "verdicts": {
                "zeros": entry("PROBLEM-TRIVIAL"), "replay": entry("OK-BUT")}},
            {"problem": "three", "seconds": 2.0, "trivial": [], "verdicts": {"own": {
                **entry("WRONG-STATE"), "isolation": "all; the inputs go through host memory (too old)"}}},
            {"problem": "four", "seconds": 9.0, "error": "took more than 9 s"},
            {"problem": "five", "seconds": 2.0, "trivial": [], "verdicts": {"own": entry("JUDGE-ERROR")}}]
    file = tmp_path / "sweep.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    said = judge_sweep.table([file])
    assert said.startswith("5 problems, 5 candidates.")
    assert "False accepts: 1.\n- two: replay is OK-BUT" in said
    assert "False refusals: 1.\n- three: WRONG-STATE: Why." in said
    assert "Not judged: 2.\n- four: took more than 9 s\n- five: own: Why." in said
    assert "median 2.0, largest 9.0 (four), 17 in all" in said
    assert "Through host memory: too old." in said
    assert "| zeros | 0 | 0 | 1 | 1 | 0 |" in said


PROBLEM = """
    import os
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x):
            {}
            return torch.relu(x)

    def get_inputs():
        return [torch.randn(8, 8)]

    def get_init_inputs():
        return []
"""


def test_a_sweep(tmp_path):
    """Two processes in turn, over a problem that is judged, one that fails and one that ends its process; a second run
    has nothing to do."""
    folder, output = tmp_path / "problems", tmp_path / "sweep.jsonl"
    folder.mkdir()
    for name, body in (("good", "pass"), ("fails", "raise ValueError('no')"), ("aborts", "os.abort()")):
        (folder / f"{name}.py").write_text(textwrap.dedent(PROBLEM.format(body)))
    command = [sys.executable, str(TOOL), str(folder), "--output", str(output), "--together", "2"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    found = {record["problem"]: record for record in judge_sweep.records([output])}
    assert set(found) == {"good", "fails", "aborts"} and "[3/3]" in said
    verdicts = {kind: entry["verdict"] for kind, entry in found["good"]["verdicts"].items()}
    assert set(verdicts) == {"zeros", "constant", "identity", "replay"}
    assert all(verdict.startswith("WRONG") for verdict in verdicts.values())
    assert "KW114" in found["fails"]["error"] and "status -6" in found["aborts"]["error"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout == ""
    assert len(list(judge_sweep.records([output]))) == 3


def test_what_needs_all_of_the_memory_comes_again_alone(judge, tmp_path, monkeypatch):
    folder, output = tmp_path / "problems", tmp_path / "sweep.jsonl"
    folder.mkdir()
    for name in ("large", "small", "other"):
        (folder / f"{name}.py").write_text(textwrap.dedent(PROBLEM.format("pass")))
    given = {"folder": str(folder), "output": str(output), "filter": [], "shard": "0/1", "candidates": None,
             "devices": None, "together": 2, "limit": 20.0, "tiny": False}
    judge_sweep.sweep(argparse.Namespace(**given))
    found = {record["problem"]: record for record in judge_sweep.records([output])}
    assert set(found) == {"large", "small", "other"} and "error" not in found["large"]
    assert len(list(judge_sweep.records([output]))) == 3
    short = {"verdicts": {"zeros": {"verdict": "JUDGE-ERROR", "reason": "KW115: There is not enough memory."}}}
    assert judge_sweep.short_of_memory(short)
    assert judge_sweep.short_of_memory({"verdicts": {"own": {"verdict": "CRASH-MEMORY", "reason": ""}}})
    assert judge_sweep.short_of_memory({"error": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"})
    assert not judge_sweep.short_of_memory({"verdicts": {"zeros": {"verdict": "WRONG-NUMERIC", "reason": "out of it"}}})
