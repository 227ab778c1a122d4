"""``bench --propose``: the options' file, a problem's settings, scores and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import propose_tools
import pytest
from propose_tools import MODEL, answer, candidate
from test_propose_loop import better_each_round

from kernelwright import errors
from kernelwright.propose import run as propose_run
from kernelwright.settings import Settings
from kernelwright.suite import proposals, propose_worker
from kernelwright.suite.options import SuiteOptions
from kernelwright.suite.runner import SuiteResult, render_text


def toml(folder: Path, text: str) -> Path:
    (folder / "propose.toml").write_text(text)
    return folder / "propose.toml"


def test_the_options_file(tmp_path: Path) -> None:
    found = proposals.read_options(toml(tmp_path, 'from = "answers"\nprices = "p.toml"\ncandidates = 3\n'))
    assert found == {"from": str(tmp_path / "answers"), "prices": str(tmp_path / "p.toml"), "candidates": 3}
    kept = SuiteOptions(propose=found, settings=Settings(target="cpp")).kept_settings()
    assert kept["propose"] == found and "propose" not in SuiteOptions().kept_settings()
    assert SuiteOptions(propose=found, runner="ray").propose == found


@pytest.mark.parametrize("text", ["", "candidates = 3", 'from = "a"\nendpoint = "http://b"', 'from = "a"\nnothing = 1',
                                  'from = "a"\ncandidates = true', 'from = "a"\ncandidates = "3"', "["], ids=str)
def test_options_that_are_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(errors.InvalidOption, match="--propose"):
        proposals.read_options(toml(tmp_path, text))
    with pytest.raises(errors.InvalidOption):
        proposals.read_options(tmp_path / "none.toml")


def task(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    path = folder / f"{name}.py"
    path.write_text(MODEL)
    settings = {**Settings(target="cpp").as_json(), "propose": options}
    return {"problem": name, "path": str(path), "emitted": str(folder / "out" / f"{name}_new.py"),
            "logs": str(folder / "logs"), "settings": settings}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(propose_run, "Tools", lambda: propose_tools.tools(better_each_round))
    return tmp_path


def record(given: dict[str, Any], outcome: dict[str, Any]) -> dict[str, Any]:
    return {"problem": given["problem"], "state": outcome["state"], "error": outcome["error"],
            "propose": outcome.get("propose"), "result": None, "seconds": 1.0}


def test_a_problem_of_a_suite(work: Path) -> None:
    (work / "answers" / "one").mkdir(parents=True)
    (work / "answers" / "one" / "a.md").write_text(answer(candidate(1.0)))
    (work / "answers" / "one" / "b.md").write_text(answer(candidate(fault="tail")))
    (work / "answers" / "two.md").write_text(answer(candidate(fault="tail")))
    outcomes = []
    for name in ("one", "two", "three"):
        given = task(work, name, **{"from": str(work / "answers")})
        outcomes.append(record(given, propose_worker.propose_problem(given, propose_run.Progress())))
    asked = task(work, "four", endpoint="http://localhost:1/v1", model="m", candidates=4, rounds=3)
    outcomes.append(record(asked, propose_worker.propose_problem(asked, propose_run.Progress())))
    assert [o["state"] for o in outcomes] == ["verified", "verified", "error", "verified"]
    assert outcomes[2]["error"]["code"] == "KW802" and (work / "out" / "one_new.py").exists()
    json.dumps(outcomes, allow_nan=False)
    scores = proposals.score_all(outcomes)
    assert [(p.right, p.candidates, p.best, p.chosen) for p in scores.problems][:3] == [
        (1, 2, 10.0, "a.md"), (0, 1, None, "ours"), (0, 0, None, "")]
    assert scores.correct == 0.5 and scores.fast == (0.5, 0.5, 0.5, 0.5) and scores.timed == 2 and scores.taken == 2
    assert [c.number for c in scores.curve] == [1, 2, 3] and scores.curve[0].correct == 0.25
    assert scores.curve[-1].correct == 0.5
    assert scores.mean is not None and scores.mean > 10
    for text in (proposals.render_proposals(outcomes), proposals.markdown(outcomes)):
        for word in ("fast_1.5", "geometric mean", "a.md", "By round", "tokens a problem", "50%"):
            assert word in text
    result = SuiteResult(work, tuple(outcomes), 4, 2.0, True)
    assert proposals.FILE in render_text(result, colour=False, width=100)
    assert result.as_json()["page"] == proposals.FILE and result.exit_status == 1


def test_a_run_that_a_limit_ended_goes_on(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = task(work, "one", endpoint="http://localhost:1/v1", model="m", candidates=4, rounds=2)

    class Ended(Exception):
        pass

    def ends(name: str, piece: int, messages: Any) -> str:
        if name == "r2c1":
            raise Ended
        return better_each_round(name, piece, messages)

    monkeypatch.setattr(propose_run, "Tools", lambda: propose_tools.tools(ends))
    assert propose_worker.propose_problem(given, propose_run.Progress())["state"] == "crashed"
    tools = propose_tools.tools(better_each_round)
    monkeypatch.setattr(propose_run, "Tools", lambda: tools)
    assert propose_worker.propose_problem(given, propose_run.Progress())["state"] == "verified"
    assert {call[0] for call in tools.endpoint.asked} == {"r2c1"}  # pyrefly: ignore
    again = propose_tools.tools(better_each_round)
    monkeypatch.setattr(propose_run, "Tools", lambda: again)
    propose_worker.propose_problem(given, propose_run.Progress())
    assert len(again.endpoint.asked) == 8  # a finished run is made anew

