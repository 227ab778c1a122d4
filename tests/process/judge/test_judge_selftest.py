"""The controls of every run: they pass with the judge as it is, and each is missed where it is another file."""

from __future__ import annotations

import shutil

import pytest
import torch

from kernelwright.judge import selftest
from kernelwright.judge.check.kept_profiles import FIT_SECONDS, kept_self_test


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_judge_is_fit():
    found = selftest.self_test(torch.device("cpu"))
    assert found.passed and found.sentences == ()
    assert found.calibration is not None and 0 < found.calibration[0] < selftest.NOTHING_SECONDS
    document = found.to_json()
    assert document["passed"] is True and "stale, replayed and asynchronous are refused" in document["words"]


def test_each_control_must_do_what_it_is_there_for(tmp_path):
    """Controls that change places: every one that matters is named, and the judge is unfit."""
    for file in selftest.CONTROLS.glob("*.py"):
        shutil.copy(file, tmp_path)
    for name in ("wrong", "stale", "replay", "late"):
        shutil.copy(selftest.CONTROLS / "right.py", tmp_path / f"{name}.py")
    shutil.copy(selftest.CONTROLS / "wrong.py", tmp_path / "right.py")
    found = selftest.self_test(torch.device("cpu"), controls=tmp_path)
    assert not found.passed and found.to_json()["words"] == " ".join(found.sentences)
    assert list(found.sentences) == [
        "A candidate that is right was refused.", "A candidate with one wrong element passed.",
        "The control stale passed the timed calls.", "The control replay passed the timed calls.",
        "The control late passed the timed calls."]


def test_each_control_has_one_verdict(tmp_path):
    """One that replays is none that returns memory as it finds it, nor the other way round."""
    for file in selftest.CONTROLS.glob("*.py"):
        shutil.copy(file, tmp_path)
    shutil.copy(selftest.CONTROLS / "stale.py", tmp_path / "replay.py")
    shutil.copy(selftest.CONTROLS / "replay.py", tmp_path / "stale.py")
    said = selftest.self_test(torch.device("cpu"), controls=tmp_path).sentences
    assert len(said) == 2 and "stale was refused for another reason: CHEAT-REPLAY" in said[0]
    assert "replay was refused for another reason: CHEAT-STALE" in said[1]


def test_a_control_that_does_not_start(tmp_path):
    for file in selftest.CONTROLS.glob("*.py"):
        shutil.copy(file, tmp_path)
    (tmp_path / "late.py").write_text("raise ValueError('no')\n")
    found = selftest.self_test(torch.device("cpu"), controls=tmp_path)
    assert not found.passed and found.sentences[0].startswith("The control late does not start: ")


def test_a_clock_that_is_off_is_unfit(monkeypatch):
    monkeypatch.setattr(selftest, "NOTHING_SECONDS", 1e-9)
    found = selftest.self_test(torch.device("cpu"))
    assert len(found.sentences) == 1 and found.sentences[0].startswith("The clocks are not fit")


def test_processes_of_a_run_share_what_was_passed(tmp_path):
    """Another run makes its own, and so does one that comes later; what was not passed is nobody else's."""
    made: list[str] = []

    def found(name: str, passed: bool = True, seed: int = 1, at: float = 0.0, folder=tmp_path) -> selftest.SelfTest:
        def make() -> selftest.SelfTest:
            made.append(name)
            return selftest.SelfTest(passed, () if passed else (name,))
        return kept_self_test(folder, torch.device("cpu"), seed, make, now=lambda: at)

    assert not found("unfit", passed=False).passed and found("first").passed
    assert found("second", at=FIT_SECONDS - 1) == found("third", passed=False)
    assert made == ["unfit", "first"]
    assert found("other run", seed=2).passed and not found("late", passed=False, at=FIT_SECONDS).passed
    (tmp_path / "file").touch()
    assert found("nowhere", folder=tmp_path / "file" / "below").passed
    for file in tmp_path.glob("*.selftest"):
        file.write_bytes(b"torn")
    assert not found("torn", passed=False).passed
    assert made[2:] == ["other run", "late", "nowhere", "torn"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_judge_is_fit_on_a_gpu():
    found = selftest.self_test(torch.device("cuda"))
    assert found.passed, found.sentences
