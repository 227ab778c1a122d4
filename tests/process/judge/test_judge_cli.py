"""``kernelwright judge`` as a command: what it is given, what it hands on, and what it says about bad input."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from judge_tools import judged, right
from places import ROOT

from kernelwright import cli, errors
from kernelwright.judge.candidates import MOST_BYTES, find_candidates
from kernelwright.judge.efforts import budget_of
from kernelwright.judge.records import SCHEMA, CandidateResult
from kernelwright.judge.settings import JudgeSettings
from kernelwright.judge.verdicts import VERDICTS

DOCUMENT = ROOT / "docs" / "judge.md"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model and a folder of candidates, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("model.py", "set/a10.py", "set/a9.py", "set/more/b.py", "set/_helper.py", "set/.hidden.py",
                 "set/_cache/c.py", "set/notes.txt", "other.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1\n")
    return tmp_path


@pytest.fixture
def command(files: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> SimpleNamespace:
    """Runs ``kernelwright judge`` with a judge that answers at once: ``run(*arguments)`` gives status, stdout and
    stderr; ``asked`` what the judge was given; ``answer`` makes one candidate's result of its path."""
    asked: list[tuple[Path, list[Path], JudgeSettings]] = []

    def judge(problem_path: Path, candidates: list[Path], settings: JudgeSettings, progress: object) -> object:
        asked.append((problem_path, candidates, settings))
        print("a line that the model prints")
        results = [tool.answer(str(path)) for path in candidates]
        return judged(*results, seed=settings.seed, settings=settings.as_json())

    def run(*arguments: object) -> tuple[int, str, str]:
        status = cli.run(["judge", *map(str, arguments)])
        return status, *capfd.readouterr()

    module = ModuleType("kernelwright.judge.run")
    module.judge = judge
    monkeypatch.setitem(sys.modules, "kernelwright.judge.run", module)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(files / "cache"))
    tool = SimpleNamespace(run=run, asked=asked, answer=lambda file: right(file, None))
    return tool


# ---- candidates ------------------------------------------------------------------------------------------


def test_folders_stand_for_their_files_in_natural_order(files: Path) -> None:
    found = find_candidates(Path("model.py"), [Path("other.py"), Path("set")])
    assert [path.as_posix() for path in found] == ["other.py", "set/a9.py", "set/a10.py", "set/more/b.py"]
    everything = find_candidates(Path("model.py"), [files])
    assert files / "model.py" not in everything and files / "other.py" in everything


BAD: dict[str, tuple[list[str], type[errors.KernelwrightError]]] = {
    "no model": (["nothing.py", "set"], errors.FileMissing),
    "no candidate there": (["model.py", "set/a11.py"], errors.CandidateMissing),
    "an empty folder": (["model.py", "empty"], errors.NoCandidates),
    "only the model": (["alone/model.py", "alone"], errors.NoCandidates),
    "no Python file": (["model.py", "set/notes.txt"], errors.CandidateUnreadable),
    "a device": (["model.py", "null.py"], errors.CandidateUnreadable),
    "too large": (["model.py", "large.py"], errors.CandidateUnreadable),
    "the model": (["model.py", "other.py", "./set/../model.py"], errors.CandidateIsModel),
    "the model by a link": (["model.py", "link.py"], errors.CandidateIsModel),
    "twice": (["model.py", "set/a9.py", "set"], errors.CandidateTwice),
    "twice by a link": (["model.py", "other.py", "second.py"], errors.CandidateTwice),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_a_coded_error_before_anything_runs(kind: str, files: Path, command: SimpleNamespace) -> None:
    (files / "empty").mkdir()
    (files / "alone").mkdir()
    (files / "alone" / "model.py").write_text("x = 1\n")
    (files / "null.py").symlink_to("/dev/null")
    (files / "link.py").symlink_to("model.py")
    (files / "second.py").symlink_to("other.py")
    with open(files / "large.py", "wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    arguments, expected = BAD[kind]
    status, out, err = command.run(*arguments, "--json", "--quiet")
    assert status == 2 and command.asked == []
    assert f"error {expected.code}: " in err and "  fix:   " in err and "Traceback" not in err
    assert json.loads(out)["error"]["code"] == expected.code


def test_a_file_that_may_not_be_read(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(file: object, *arguments: object) -> object:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    # The administrator may read everything, so the answer of the system is replaced here.
    monkeypatch.setattr("builtins.open", refuses)
    with pytest.raises(errors.CandidateUnreadable, match="Permission denied"):
        find_candidates(Path("model.py"), [Path("other.py")])


def test_an_empty_or_broken_file_is_no_bad_input(files: Path) -> None:
    (files / "other.py").write_bytes(b"")
    (files / "set/a9.py").write_bytes(b"\xff\x00def (")
    assert len(find_candidates(Path("model.py"), [Path("other.py"), Path("set/a9.py")])) == 2


# ---- options ---------------------------------------------------------------------------------------------


def test_options_reach_the_judge(command: SimpleNamespace) -> None:
    status, _, _ = command.run(
        "model.py", "other.py", "set", "--seed", "7", "--effort", "thorough", "--precision", "any", "--backward",
        "--own-kernels", "--rules", "all", "--target", "cpp", "--threads", "2", "--no-time", "--tiny", "--limit", "9.5",
        "--memory", "2", "--diagnose-budget", "3", "--sanitize", "on", "--quiet")
    assert status == 0
    (path, candidates, settings), = command.asked
    assert path == Path("model.py") and len(candidates) == 4
    assert settings == JudgeSettings(seed=7, effort="thorough", precision="any", backward=True, own_kernels=True,
                                     rules="all", target="cpp", threads=2, time=False, tiny=True, limit=9.5,
                                     memory=2.0, quiet=True, diagnose_budget=3.0, sanitize="on")
    limits = settings.limits()
    assert (limits.build_seconds, limits.run_seconds, limits.memory_bytes) == (9.5, 9.5, 2 << 30)
    assert JudgeSettings().limits().memory_bytes is None and JudgeSettings().limits().build_seconds > 60


def test_building_and_calling_have_limits_of_their_own(command: SimpleNamespace) -> None:
    assert command.run("model.py", "other.py", "--limit", "300,20")[0] == 0
    (_, _, settings), = command.asked
    limits = settings.limits()
    assert (limits.build_seconds, limits.run_seconds) == (300.0, 20.0) and settings.as_json()["limit"] == [300.0, 20.0]
    assert JudgeSettings(limit=settings.as_json()["limit"], seed=settings.seed) == settings
    assert JudgeSettings(limit="7,7").limit == JudgeSettings(limit=7).limit == 7.0


@pytest.mark.parametrize("option", [
    ["--target", "rocm"], ["--precision", "fast"], ["--effort", "none"], ["--seed", "-1"], ["--threads", "0"],
    ["--rules", "ours"], ["--limit", "0"], ["--limit", "nan"], ["--limit", "60,"],
    ["--limit", "1,2,3"], ["--limit", "fast"], ["--memory", "-1"], ["--output", "other.py"],
    ["--output", "result.txt"], ["--device", "-1"], ["--device", "0", "--target", "cpp"], ["--diagnose-budget", "-1"],
    ["--diagnose-budget", "5", "--verdict-only"], ["--sanitize", "always"]], ids=" ".join)
def test_values_that_options_do_not_take(option: list[str], command: SimpleNamespace) -> None:
    status, out, err = command.run("model.py", "other.py", *option, "--json", "--quiet")
    assert status == 2 and f"error KW403: {option[0]} cannot be" in err and command.asked == []
    assert json.loads(out)["error"]["code"] == "KW403"


@pytest.mark.parametrize("arguments", [[], ["model.py"], ["model.py", "other.py", "--nonsense"],
                                       ["model.py", "other.py", "--seed", "many"]], ids=" ".join)
def test_wrong_command_lines(arguments: list[str], command: SimpleNamespace) -> None:
    status, out, err = command.run(*arguments, "--json")
    assert status == 2 and err and json.loads(out)["error"]["code"] == "usage" and command.asked == []


def test_the_seed_is_drawn_anew_and_told_only_with_the_verdicts(command: SimpleNamespace) -> None:
    outputs = [command.run("model.py", "other.py") for _ in range(2)]
    seeds = [settings.seed for _, _, settings in command.asked]
    assert seeds[0] != seeds[1] and all(0 <= seed < 2**48 for seed in seeds)
    for seed, (_, out, err) in zip(seeds, outputs):
        assert f"--seed {seed}" in out and str(seed) not in err


def test_only_the_verdict_leaves_out_all_that_is_no_verdict() -> None:
    settings = JudgeSettings(verdict_only=True)
    budget, usual = budget_of(settings), budget_of(JudgeSettings())
    assert not settings.time and budget.diagnose == 0 < budget.check < usual.check and budget.profile == usual.profile
    assert JudgeSettings(verdict_only=True, time=False, diagnose_budget=0).as_json()["verdict_only"]
    assert budget_of(JudgeSettings(diagnose_budget=3.5)) == dataclasses.replace(usual, diagnose=3.5)


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert JudgeSettings().place() == JudgeSettings(target="cpp").place() == torch.device("cpu")
    for settings in (JudgeSettings(target="cuda"), JudgeSettings(device=0)):
        with pytest.raises(errors.NoCudaDevice):
            settings.place()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert JudgeSettings().place() == torch.device("cuda:0") and JudgeSettings(device=1).place().index == 1
    assert JudgeSettings(target="cpp").place() == torch.device("cpu")
    with pytest.raises(errors.NoCudaDevice, match="cuda:2"):
        JudgeSettings(device=2).place()


# ---- results ---------------------------------------------------------------------------------------------


def test_text_json_and_stdout_agree(command: SimpleNamespace) -> None:
    status, out, err = command.run("model.py", "set", "--seed", "5")
    assert status == 0 and out.startswith("convolution: 3 candidates") and "a9.py" in out
    assert "a line that the model prints" in err and "a line" not in out
    status, out, _ = command.run("model.py", "set", "--seed", "5", "--json", "--quiet")
    document = json.loads(out)
    assert status == 0 and document["schema"] == SCHEMA and document["seed"] == 5
    assert [entry["file"] for entry in document["candidates"]] == ["set/a9.py", "set/a10.py", "set/more/b.py"]
    assert document["settings"]["effort"] == "normal" and "output" not in document["settings"]


@pytest.mark.parametrize(("verdict", "expected"), [("OK-BUT", 0), ("WRONG-NUMERIC", 1), ("PROBLEM-TRIVIAL", 1),
                                                   ("JUDGE-UNFIT", 3), ("JUDGE-ERROR", 3)])
def test_exit_status(verdict: str, expected: int, command: SimpleNamespace) -> None:
    def answer(file: str) -> CandidateResult:
        return right(file, None) if "a9" in file else CandidateResult(file, verdict, "The reason.", fix="The remedy.")

    command.answer = answer
    status, out, _ = command.run("model.py", "set", "--quiet")
    assert status == expected and verdict in out


def test_a_bug_of_ours_is_told_as_one(command: SimpleNamespace) -> None:
    def answer(file: str) -> CandidateResult:
        raise ZeroDivisionError("a fault of ours")

    command.answer = answer
    status, out, err = command.run("model.py", "other.py", "--quiet", "--json")
    assert status == 70 and "internal error KW900" in err and "kernelwright judge model.py other.py" in err
    assert json.loads(out)["error"]["code"] == "KW900"


def test_the_document_is_written_whole_and_replaced_only_when_asked(files: Path, command: SimpleNamespace) -> None:
    assert command.run("model.py", "other.py", "-o", "result.json", "--quiet", "--seed", "1")[0] == 0
    written = json.loads((files / "result.json").read_text())
    assert written["seed"] == 1 and written["candidates"][0]["file"] == "other.py"
    status, _, err = command.run("model.py", "other.py", "-o", "result.json", "--quiet", "--seed", "2")
    assert status == 2 and "error KW402: " in err and len(command.asked) == 1
    assert json.loads((files / "result.json").read_text()) == written
    status, out, _ = command.run("model.py", "other.py", "-o", "result.json", "--force", "--json", "--seed", "2")
    assert status == 0 and json.loads((files / "result.json").read_text()) == json.loads(out)
    status, _, err = command.run("model.py", "other.py", "-o", "missing/result.json", "--quiet")
    assert status == 2 and "error KW401: " in err and len(command.asked) == 2
    assert not list(files.glob(".result*"))


# ---- docs/judge.md ---------------------------------------------------------------------------------------


def test_the_document_lists_every_verdict_with_its_meaning() -> None:
    rows = dict(re.findall(r"^\| `([A-Z-]+)` \| (.+) \|$", DOCUMENT.read_text(), re.MULTILINE))
    assert rows == {verdict.code: verdict.meaning for verdict in VERDICTS.values()}


def document_fields() -> dict[str, Callable[[], set[str]]]:
    return {"The document": lambda: set(judged(right("a.py")).to_json()),
            "Each candidate": lambda: set(right("a.py").to_json()),
            "A finding": lambda: {"kind", "sentence", "source", "fix", "line", "text", "evidence"},
            "A timing": lambda: {field.name for field in dataclasses.fields(right("a.py").timing)}}


@pytest.mark.parametrize("heading", document_fields())
def test_the_document_describes_every_field(heading: str) -> None:
    section = DOCUMENT.read_text().split(f"### {heading}\n")[1].split("\n#")[0]
    named = {name for row in re.findall(r"^\| (`.+?) \|", section, re.MULTILINE) for name in re.findall("`(.+?)`", row)}
    assert named == document_fields()[heading]()


def test_the_document_names_every_option(capfd: pytest.CaptureFixture[str]) -> None:
    cli.run(["judge", "--help"])
    options = set(re.findall(r"(--[a-z-]+)", capfd.readouterr().out)) - {"--help"}
    assert len(options) >= 16
    assert {option for option in options if f"`{option}" not in DOCUMENT.read_text()} == set()


MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(4)]
"""


def test_a_page_of_all_candidates(files: Path, command: SimpleNamespace) -> None:
    status, out, _ = command.run("model.py", "other.py", "set", "--report", "found.html", "--quiet")
    page = (files / "found.html").read_text()
    assert status == 0 and page.startswith(("\n", "<!doctype html>")) and "x = 1" in page and "set/more/b.py" in page
    assert "4 candidates" in out and "a10.py" in page
    status, out, _ = command.run("model.py", "other.py", "--report", "found.html", "--quiet", "--json")
    assert status == 2 and json.loads(out)["error"]["code"] == "KW402" and len(command.asked) == 1
    assert command.run("model.py", "other.py", "--report", "found.html", "--force", "--quiet")[0] == 0
    assert (files / "found.html").read_text() != page
    status, out, _ = command.run("model.py", "other.py", "--report", "found.txt", "--quiet", "--json")
    assert status == 2 and json.loads(out)["error"]["code"] == "KW403"


def test_prompts_take_the_reports_place_and_stand_in_the_document(files: Path, command: SimpleNamespace) -> None:
    (files / "model.py").write_text(MODEL)
    command.answer = lambda file: right(file, None) if file == "other.py" else CandidateResult(
        file, "WRONG-NUMERIC", "The output is doubled.", "halve it")
    arguments = ("model.py", "other.py", "set/a9.py", "--prompt", "--target", "cpp", "--quiet")
    status, out, _ = command.run(*arguments, "-o", "found.json")
    assert status == 1 and out.startswith("You write fast kernels") and "The output is doubled." in out
    assert "torch.relu(x)" in out and "candidate" not in out.splitlines()[0]
    document = json.loads((files / "found.json").read_text())
    assert [bool(c["prompt"]) for c in document["candidates"]] == [False, True]
    status, out, _ = command.run(*arguments, "--json")
    assert json.loads(out)["candidates"][1]["prompt"] == document["candidates"][1]["prompt"]
