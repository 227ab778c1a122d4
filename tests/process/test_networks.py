"""Whole networks of public packages in their tiny sizes (`benchmarks/network_lists/`), as far as these are installed.

Nothing is compiled here: a network is captured and planned, and its plan evaluated in float64 against the model.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
import torch
from emitted_tools import write_problem
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from network_lists import SETS
from network_lists.declaration import DTYPES, Network
from network_lists.planned import plan_all, planned
from network_lists.table import table
from network_lists.times import times

ALL = [pytest.param(network, id=network.name) for networks in SETS.values() for network in networks]


@pytest.mark.slow
@pytest.mark.parametrize("network", ALL)
def test_a_network_is_served_and_right(network: Network, tmp_path: Path) -> None:
    """Its plan gives what it gives, and what is not planned has a reason."""
    if missing := network.missing():
        pytest.skip(missing)
    file = tmp_path / f"{network.name}.py"
    file.write_text(network.text())
    record = planned(file, tiny=True)
    assert record["state"] == "planned", record["error"]
    assert not any("kernelwright failed" in note for note in record["notes"]), record["notes"]
    for mode, facts in record["modes"].items():
        assert facts["operators"] or record["notes"], f"{mode} mode is PyTorch's without a reason"


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_declaration_is_a_problem_file(dtype: str) -> None:
    """Names differ, tiny values take the place of others, and no file names what is not there."""
    networks = [network for networks in SETS.values() for network in networks]
    assert len({network.name for network in networks}) == len(networks) > 200
    for network in networks:
        tree = ast.parse(network.text(dtype))
        assert set(network.tiny) <= set(network.full), network.name
        assert network.tiny, network.name
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id.isupper()}
        assert names <= {*network.full, "FLOAT", "TINY"}, network.name


def test_sizes_of_kernelbench() -> None:
    """Twenty problems of seven models, by the names and sizes that they have there."""
    networks = SETS["kernelbench_level4"]
    assert len(networks) == 20
    for number, network in enumerate(networks, 1):
        assert network.name.startswith(f"{number}_")
        assert network.name.endswith(f"_bs{network.full['BATCH']}_seq{network.full['LENGTH']}")


def the_file(folder: Path, name: str, result: str, given: str = "return [torch.rand(4, 8)]") -> Path:
    """A problem file: what its forward returns, and the body of its get_inputs."""
    return write_problem(folder, name, f"""
import os, time

class Model(nn.Module):
    def forward(self, x):
        return {result}

def get_inputs():
    {given}
""")


def test_records_and_their_table(tmp_path: Path) -> None:
    """Each network runs in a process of its own; one that ends it, or hangs, is a row like the others."""
    folder, records = tmp_path / "own", tmp_path / "records.jsonl"
    folder.mkdir()
    plan_all([the_file(folder, "whole", "torch.tanh(x) * 2"),
              the_file(folder, "decides", "x * 2 if x.sum() > 0 else x * 3"),
              the_file(folder, "ends", "x", "os._exit(3)")], records, 300.0, tiny=False)
    plan_all([the_file(folder, "hangs", "x", "time.sleep(1000)")], records, 3.0, tiny=False)
    states = {json.loads(line)["problem"]: json.loads(line)["state"] for line in records.read_text().splitlines()}
    assert states == {"own/whole": "planned", "own/ends": "crashed", "own/hangs": "timeout", "own/decides": "refused"}
    text = table([records])
    assert "| own | 4 | 1 | 0 | 0 | 1 | 0 | 2 |" in text
    assert "| decides | refused |" in text and "KW201" in text
    size = records.stat().st_size
    plan_all(sorted(folder.glob("*.py")), records, 3.0, tiny=False)
    assert records.stat().st_size == size, "what has a record is not done again"


def test_the_table_of_a_bench_shows_both_ratios(tmp_path: Path) -> None:
    ratios = {"eager": {"value": 1.5}, "torch.compile": {"value": 1.25}}
    mode = {"name": "inference", "kernels": ["k0"], "timing": {"ratios": ratios}}
    record = {"problem": "own/net", "state": "verified", "seconds": 7.0, "result": {"modes": [mode]}}
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    assert "| net | whole | inference 1 | 7 | 1.50x | 1.25x |" in table([tmp_path / "records.jsonl"])


def test_the_times_of_a_bench(tmp_path: Path) -> None:
    """Beside every baseline that any network has, by both clocks; a file without kernels is eager."""
    first = {"eager": {"median": 4e-3, "waited_seconds": 8e-3}, "torch.compile": {"median": 1e-3},
             "CUDA graph of eager": {"median": 3e-3, "waited_seconds": 4e-3},
             "candidate": {"median": 2e-3, "waited_seconds": 4e-3}}
    second = {"eager": {"median": 1e-3, "waited_seconds": None}, "candidate": {"median": 2e-3}}  # which was given up
    modes = [{"operators": 9, "replaced": n, "kernels": n * ["k"], "launched": launch,
              "timing": {"entries": entries, "launch": "direct"}}
             for n, entries, launch in ((5, first, "graph"), (0, second, ""))]
    records = [{"problem": f"own/{name}", "seconds": 9.0, "stopped_seconds": 2.0, "result": {"modes": [mode]}}
               for name, mode in zip(("one", "two"), modes, strict=True)]
    records.append({"problem": "own/three", "seconds": 1.0, "state": "crash", "result": None})
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    lines = times([tmp_path / "records.jsonl"]).splitlines()
    assert "2 networks." in lines and not any("three" in line for line in lines)
    for line in ("| over eager | 1.41x | 2 | 0 | 2.00x | 1 | 0 |",
                 "| over eager's graph | 1.50x | 1 | 0 | 1.00x | 1 | 0 |",
                 "| over compile | 0.50x | 1 | 1 |  | 0 | 0 |",
                 "| over the best of all | 0.71x | 2 | 1 | 1.00x | 1 | 0 |",
                 "| one | 5 of 9 | 4 | 3 | 1 | 2 | 8 | 4 |  | 4 | graph | 2.00x | 0.50x | 7 |",
                 "| two | 0 of 9 | 1 |  |  | 1 |  |  |  |  |  | 1.00x | 1.00x | 7 |"):
        assert line in lines, "\n".join(lines)


def test_a_plan_that_is_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = the_file(tmp_path, "wrong", "torch.tanh(x) * 2")
    assert planned(file, tiny=False)["state"] == "planned"
    monkeypatch.setattr("kernelwright.codegen.reference.plan.run_plan",
                        lambda plan, values: ([torch.zeros(4, 8)], {}))
    assert planned(file, tiny=False)["state"] == "wrong"
