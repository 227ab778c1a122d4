"""The suite on a Ray cluster: nothing is lost or doubled when an actor dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from propose_tools import MODEL
from ray_tools import cluster

from kernelwright import errors
from kernelwright.judge.settings import JudgeSettings
from kernelwright.settings import Settings
from kernelwright.suite import judge_runner
from kernelwright.suite.jobs import find_jobs
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.parcels import OUTPUT, at_node, for_node, run_folder, unpacked
from kernelwright.suite.proposals import answers_of
from kernelwright.suite.ray_cluster import Cluster, find_places
from kernelwright.suite.ray_runner import run_on_ray
from kernelwright.suite.results import FILE, Results, read_results
from kernelwright.suite.runner import run_suite

__all__ = ["cluster"]


class _Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


def node(name: str, gpus: int = 0, alive: bool = True) -> dict:
    """A node as ray.nodes() describes it."""
    return {"NodeID": name, "NodeManagerAddress": f"10.0.0.{name}", "Alive": alive, "Resources": {"GPU": gpus} if gpus
            else {}}


def test_devices_of_a_cluster():
    nodes = [node("1", 2), node("2"), node("3", 4, alive=False)]
    assert [(p.node, p.gpu, p.devices) for p in find_places(nodes, SuiteOptions())] == [("1", True, 2)] * 2
    assert [(p.node, p.gpu) for p in find_places(nodes, SuiteOptions(devices=("cpu",)))] == [("1", False), ("2", False)]
    assert [(p.node, p.gpu) for p in find_places(nodes[1:], SuiteOptions())] == [("2", False)]


def test_without_ray_or_with_numbers_of_gpus_it_is_a_coded_error(monkeypatch):
    with pytest.raises(errors.InvalidOption, match="--devices"):
        run_on_ray([], SuiteOptions(devices=("0",)), print, _Said())
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(errors.RunnerMissing, match="not installed"):
        run_on_ray([], SuiteOptions(), print, _Said())


def test_an_actor_that_dies_loses_no_result(cluster, tmp_path):
    problems, notes = tmp_path / "p", tmp_path / "p" / "journal.txt"
    problems.mkdir()
    gone = tmp_path / "gone"
    for number in range(8):
        # The later ones are not over before an actor has died.
        text = "import os\nnote(f'actor {os.getppid()}')\n" + ("os.abort()\n" if number == 3 else "") + (
            f"while not os.path.exists({str(gone)!r}): time.sleep(0.02)\n" if number > 3 else "")
        (problems / f"{number}.py").write_text(text)
    options = SuiteOptions(output=tmp_path / "out", work="suite_work:run", devices=("cpu",), workers=1, runner="ray")
    results = Results(options.output)
    killed: list[int] = []

    def kill() -> None:
        """End the actor that works on one of the later ones, when both have begun."""
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not killed:
            lines = notes.read_text().splitlines() if notes.exists() else []
            begun = [(int(line.split()[1]), int(line.split()[-1])) for line in lines if line.count(" ") == 3]
            if len({actor for _, actor in begun}) == 2 and begun[-1][0] > 3:
                killed.append(begun[-1][1])
                os.kill(begun[-1][1], signal.SIGKILL)
            time.sleep(0.02)
        gone.touch()

    thread = threading.Thread(target=kill)
    thread.start()
    said = _Said()
    place = find_places(cluster.nodes(), options)
    assert len(place) == 1
    jobs = find_jobs(problems)
    count: list[str] = []

    def finished(record: dict) -> None:
        results.add(record)
        count.append(record["problem"])

    Cluster(cluster, options, finished, said, places=place * 2).run(jobs)
    thread.join()
    results.close()
    assert killed and any("is lost" in line for line in said.lines)
    assert sorted(count) == [str(number) for number in range(8)], "each problem has one record"
    records = read_results(options.output / FILE)
    assert {name: record["state"] for name, record in records.items()} == {
        str(number): "crashed" if number == 3 else "verified" for number in range(8)}
    for ending in ("py", "html"):
        there = sorted(p.name for p in options.output.glob(f"*_new.{ending}"))
        assert there == [f"{n}_new.{ending}" for n in range(8) if n != 3]
    assert records["3"]["error"]["code"] == "KW604" and (options.output / "logs" / "3.log").exists()
    # The one that was being worked on when its actor died ran twice.
    begun = [line.split()[1] for line in notes.read_text().splitlines() if "actor" in line]
    assert len(begun) > 8 and set(begun) == set(count)


def test_candidates_on_a_cluster(cluster, tmp_path):
    """Runs of ``propose`` beside a device: their folders come back, and records have the driver's settings."""
    folder = tmp_path / "problems"
    (folder / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (folder / f"{name}.py").write_text(MODEL)
    propose = {"endpoint": "http://localhost:1/v1", "model": "m", "candidates": 2, "rounds": 1}
    options = SuiteOptions(settings=Settings(target="cpp"), output=tmp_path / "out", devices=("cpu",), workers=1,
                           limit=600.0, runner="ray", work="suite_propose_work:run", propose=propose)
    result = run_suite(folder, options)
    assert result.exit_status == 0, [r["error"] for r in result.records]
    for name, record in read_results(options.output / FILE).items():
        assert record["propose"]["chosen"] == "r1c1" and record["settings"] == options.kept_settings()
        assert (options.output / f"{name}_new.py").exists()
        assert (options.output / f"{name}_propose" / "result.json").exists()


def test_what_goes_to_a_node(tmp_path):
    """Answers of the problem alone, prices, and the folder of a run that was not finished."""
    given, output, node = tmp_path / "answers", tmp_path / "out", tmp_path / "node"
    (given / "deep" / "two").mkdir(parents=True)
    (given / "deep" / "two" / "a.md").write_text("an answer")
    (given / "one.md").write_text("another one")
    (tmp_path / "prices.toml").write_text("m = 1")
    for name, file in (("deep/two", "run.json"), ("one", "result.json")):
        (output / f"{name}_propose").mkdir(parents=True)
        (output / f"{name}_propose" / file).write_text("{}")
    propose = {"from": str(given), "prices": str(tmp_path / "prices.toml"), "rounds": 2}
    there = at_node(propose, node)
    unpacked(for_node("deep/two", propose, output), node)
    assert answers_of(Path(there["from"]), "deep/two").joinpath("a.md").read_text() == "an answer"
    assert not answers_of(Path(there["from"]), "one").exists() and there["rounds"] == 2
    assert Path(there["prices"]).read_text() == "m = 1"
    assert (run_folder("deep/two", node / OUTPUT) / "run.json").exists()
    unpacked(for_node("one", propose, output), node)
    assert answers_of(Path(there["from"]), "one").read_text() == "another one"
    assert not run_folder("one", node / OUTPUT).exists(), "what is finished stays where it is"


def test_candidates_of_a_set_are_judged_once_each(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(judge_runner, "WORK", "suite_work:judge")
    problem = tmp_path / "set" / "p"
    problem.mkdir(parents=True)
    texts = {"problem": "m = 1", "a": "x = 1", "b": "verdict = 'WRONG-NUMERIC'", "dies": "import os; os._exit(7)"}
    for name, text in texts.items():
        (problem / f"{name}.py").write_text(text)
    options = SuiteOptions(output=tmp_path / "out", devices=("cpu",), workers=1, runner="ray")
    result = judge_runner.judge_set(tmp_path / "set", JudgeSettings(target="cpp"), options)
    assert [(r["id"], r["verdict"]) for r in result.records] == [
        ("p/a", "OK"), ("p/b", "WRONG-NUMERIC"), ("p/dies", "JUDGE-ERROR")]
    assert [r["result"]["reason"] for r in result.records[:2]] == ["a", "b"], "a node's copy has the candidate's name"
    assert result.records[0]["result"]["file"] == str(problem / "a.py")
    begun = (problem / "journal.txt").read_text().split()
    assert {name: begun.count(name) for name in texts if name != "problem"} == {
        "a": 1, "b": 1, "dies": judge_runner.MOST_ATTEMPTS}
    assert judge_runner.judge_set(tmp_path / "set", JudgeSettings(target="cpp"), options).judged == 1
