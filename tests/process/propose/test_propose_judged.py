"""Answers that are judged for real, by the command line: a chat window's text becomes a judged file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from places import ROOT, TESTS
from transcript_cases import EXPECTED

import kernelwright
from kernelwright import cli
from kernelwright.propose.regions import regions_of
from kernelwright.propose.run import propose
from kernelwright.propose.session import Tools
from kernelwright.propose.settings import ProposeSettings

sys.path.insert(0, str(ROOT / "tools"))

from transcript_verdicts import judged

TRANSCRIPTS = TESTS / "transcripts"


def test_recorded_verdicts_are_the_judges(tmp_path: Path) -> None:
    """A sample of the recorded verdicts, judged anew; those that build nothing."""
    names = ("04_forgets_affine.md", "03_placeholder.md", "02_no_room.md", "05_three_versions.md")
    document = judged(TRANSCRIPTS / "norm_softmax", tmp_path, only=names, time=False)
    found = {c["file"]: c for c in document["candidates"]}
    kept = json.loads((TRANSCRIPTS / "norm_softmax" / "verdicts.json").read_text())
    recorded = {c["file"]: c for c in kept["candidates"]}
    for name in names:
        assert found[name]["verdict"] in EXPECTED["norm_softmax"][name].verdicts
        assert [f["kind"] for f in found[name]["findings"]] == [f["kind"] for f in recorded[name]["findings"]]


@pytest.mark.slow
def test_from_a_chat_window_to_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = tmp_path / "model.py"
    shutil.copy(TRANSCRIPTS / "linear_norm" / "model.py", problem)
    answers = tmp_path / "answers"
    answers.mkdir()
    for name in ("16_wrong_groups.md", "19_goes_on.json", "20_gives_orders.md"):
        shutil.copy(TRANSCRIPTS / "linear_norm" / "answers" / name, answers)
    status = cli.run(["propose", str(problem), "--from", str(answers), "--target", "cpp", "--effort", "quick",
                      "--no-time", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0 and document["exit_status"] == 0
    verdicts = {c["name"]: c["verdict"]["verdict"] for c in document["candidates"]}
    for name, verdict in verdicts.items():
        assert verdict in EXPECTED["linear_norm"][name].verdicts, verdicts
    assert document["ours"]["verdict"] in ("OK", "OK-BUT") and document["chosen"] == "ours"
    text = (tmp_path / "model_new.py").read_text()
    assert text.startswith("# ModelNew, chosen by kernelwright") and "class ModelNew" in text


@pytest.mark.slow
def test_one_kernel_of_our_file_is_exchanged_and_judged_in_it(tmp_path: Path) -> None:
    """A kernel with the same work, and one that does none: our file around both."""
    problem = tmp_path / "model.py"
    shutil.copy(TRANSCRIPTS / "norm_softmax" / "model.py", problem)
    ours = kernelwright.explain(problem, target="cpp").source
    name, region = next(iter(regions_of(ours).items()))  # of the forward; those of its backward follow
    head, body = region.text.split("{\n", 1)
    for answer, line in (("right", "// the same work"), ("idle", "return nullptr;")):
        text = f"{head}{{\n  {line}\n{body}"
        (tmp_path / f"{answer}.md").write_text(f"This kernel alone:\n\n```cpp\n{text}\n```\n")
    settings = ProposeSettings(answers=(tmp_path / "right.md", tmp_path / "idle.md"), target="cpp", effort="quick",
                               time=False)
    result = propose(problem, settings, tools=Tools(
        optimize=lambda path, given, progress: given.output.write_text(ours) and None))
    verdicts = {c.name: (c.regions, c.verdict["verdict"]) for c in result.candidates}
    assert verdicts["right.md"] == ((name,), "OK"), verdicts
    assert verdicts["idle.md"][0] == (name,) and not verdicts["idle.md"][1].startswith(("OK", "JUDGE")), verdicts
    assert result.ours is not None and result.ours["verdict"] == "OK"
