"""Memory of a device that processes share: who may have how much of it, and what a problem needs."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelwright.judge.check.kept_profiles import kept_profile
from kernelwright.judge.records import CandidateResult
from kernelwright.judge.settings import JudgeSettings
from kernelwright.problem import memory
from kernelwright.problem.needs import MOST_OPERATORS, most_bytes
from kernelwright.progress import Progress
from kernelwright.suite import judge_worker
from kernelwright.suite.judge_worker import JUDGED, LEAST_BYTES, TIMES
from kernelwright.suite.rooms import PASSED_BY, USABLE, Rooms

TOTAL = 1000


def rooms(**needs: int | None) -> Rooms[str]:
    made: Rooms[str] = Rooms()
    for who, needed in needs.items():
        made.ask(who, needed, TOTAL)
    return made


def test_rooms_are_given_while_there_is_memory() -> None:
    device = rooms(a=500, b=400, c=100, d=20)
    assert device.grant() == ["a", "b", "d"] and device.grant() == []
    device.leave("b")
    assert device.grant() == ["c"]


def test_all_of_a_device_is_given_when_nobody_has_any() -> None:
    device = rooms(a=10, all=None, large=TOTAL, b=10)
    assert device.grant() == ["a", "b"], "what needs more than there is gets all of it"
    device.leave("a")
    assert device.grant() == []
    device.leave("b")
    assert device.grant() == ["all"]
    device.ask("c", 1, TOTAL)
    assert device.grant() == []
    device.ask("all", 5, TOTAL)  # which gives back what it had
    assert device.grant() == ["large"]


def test_who_waits_is_passed_by_so_often_and_no_more() -> None:
    device = rooms(first=10, all=None)
    assert device.grant() == ["first"]
    passed = 0
    for number in range(3 * PASSED_BY):
        small = f"small{number}"
        device.ask(small, 1, TOTAL)
        passed += device.grant() == [small]
        device.leave(small)
    assert passed == PASSED_BY
    device.leave("first")
    assert device.grant() == ["all"]


@pytest.mark.parametrize("seed", range(5))
def test_everybody_has_its_turn_and_nobody_too_much(seed: int) -> None:
    """A simulated device: whatever is asked for, what is given fits, and all end."""
    draw = random.Random(seed)
    needs: dict[int, int | None] = {n: draw.choice([None, draw.randint(1, 300), draw.randint(1, 1500)])
                                    for n in range(40)}
    device: Rooms[int] = Rooms()
    for number, needed in needs.items():
        device.ask(number, needed, TOTAL)
    running: list[int] = []
    for _ in range(1000):
        running += device.grant()
        sizes = [needs[number] for number in running]
        if any(size is None or size >= USABLE * TOTAL for size in sizes):
            assert len(running) == 1
        else:
            assert sum(size for size in sizes if size is not None) <= USABLE * TOTAL
        if not running:
            break
        device.leave(running.pop(draw.randrange(len(running))))
    assert not running and not device.asking


# ---- what a problem needs ----------------------------------------------------------------------------------

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
    def forward(self, x):
        {forward}

def get_inputs():
    return [torch.rand(2048, 1024)]

def get_init_inputs():
    return [1024]
"""


@pytest.mark.parametrize(("forward", "mebibytes"), [
    ("return self.linear(x)", 4 + 8 + 8),
    ("return self.linear(x).relu() + 1", 4 + 8 + 8 + 8),
    ("return x.transpose(0, 1)", 4 + 8),
    ("return (x[:, None] * x[None, :256]).sum()", 4 + 8 + 2048 * 256 * 4 // 1024)])
def test_what_a_model_needs_is_said_by_its_shapes(forward: str, mebibytes: int, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(MODEL.format(forward=forward))
    assert most_bytes(file) == mebibytes << 20


@pytest.mark.parametrize("forward", ["return x * x.sum().item()", "return x[x > 0]", "raise ValueError"])
def test_nothing_is_said_where_values_decide(forward: str, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(MODEL.format(forward=forward))
    assert most_bytes(file) is None and most_bytes(tmp_path / "none.py") is None


def test_a_recurrence_is_looked_at_for_so_long(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(MODEL.format(forward=f"for _ in range({MOST_OPERATORS}): x = x + 1\n"
                                         "        return (x[:, None] * x[None, :256]).sum()"))
    assert most_bytes(file) == (4 + 3 * 8) << 20


# ---- the judge on a shared device --------------------------------------------------------------------------


class Shared:
    """A GPU that others use, too, and a judge on it: ``asked`` are the rooms asked for, ``told`` the verdicts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, judged: Callable[..., Any]) -> None:
        self.asked: list[int | None] = []
        self.told: list[tuple[str, str, bool]] = []
        (folder / "problem.py").write_text(MODEL.format(forward="return self.linear(x)"))
        for name in "abc":
            (folder / f"{name}.py").write_text(name)
        monkeypatch.setattr(JudgeSettings, "place", lambda _: torch.device("cuda", 0))
        monkeypatch.setattr(judge_worker, "device_bytes", lambda _: 100 << 30)
        monkeypatch.setattr("kernelwright.suite.judge_worker.device_lock.room_on_device",
                            lambda needed, total: self.asked.append(needed))
        monkeypatch.setattr("kernelwright.judge.check.builds.prebuild", lambda path, *_: self.built.append(path.stem))
        monkeypatch.setattr("kernelwright.judge.run.judge", self._judge)
        self.built: list[str] = []
        self.judged, self.folder = judged, folder

    def _judge(self, path: Path, candidates: list[Path], settings: Any, progress: Any, begun: Any, told: Any,
               profiles: Path) -> None:
        alone = len(self.asked) > 1
        self.judged("profile", alone)
        for number, candidate in enumerate(candidates):
            begun(number)
            verdict, reason = self.judged(candidate.stem, alone)
            told(number, CandidateResult(str(candidate), verdict, reason))

    def run(self) -> dict[str, Any]:
        def say(say: str, part: dict[str, Any] | None = None, **_: Any) -> None:
            if part is not None and part["kind"] == JUDGED:
                self.told.append((part["key"], part["result"]["verdict"], part["alone"]))

        progress = Progress()
        progress.say_line = say  # pyrefly: ignore[missing-attribute] as the suite's own progress has it
        return judge_worker.judge_candidates({
            "path": str(self.folder / "problem.py"), "seed": 1, "settings": {}, "on_machine": 1,
            "logs": str(self.folder / "logs"),
            "candidates": [{"key": name, "path": str(self.folder / f"{name}.py")} for name in "abc"]}, progress)


#: What says that a device's memory ran out: the model's own call, PyTorch's allocator, the CUDA runtime.
LACKS = [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB."),
         torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
         RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")]


def test_the_problems_file_leaves_nothing_in_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path, monkeypatch, lambda what, alone: ("OK", ""))
    (tmp_path / "problem.py").write_text("import sys\nsys.rooms_were_here = True\n" + MODEL.format(
        forward="return self.linear(x)"))
    assert shared.run()["state"] == "verified" and not hasattr(sys, "rooms_were_here")
    assert shared.asked == [TIMES * (20 << 20) + LEAST_BYTES]


def test_room_is_asked_for_when_all_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path, monkeypatch, lambda what, alone: ("OK", ""))
    assert shared.run()["state"] == "verified" and shared.built == ["a", "b", "c"]
    assert shared.asked == [TIMES * (20 << 20) + LEAST_BYTES]
    assert shared.told == [("a", "OK", False), ("b", "OK", False), ("c", "OK", False)]


@pytest.mark.parametrize("lack", LACKS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["profile", "a", "b"])
def test_what_lacks_memory_beside_others_is_judged_again_when_alone(
        where: str, lack: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(what: str, alone: bool) -> tuple[str, str]:
        if what == where and not alone:
            raise lack
        return "OK", ""

    shared = Shared(tmp_path, monkeypatch, judged)
    assert shared.run()["state"] == "verified" and len(shared.asked) == 2 and shared.asked[1] is None
    kept = ["a"] if where == "b" else []
    assert shared.told == [*((name, "OK", False) for name in kept),
                           *((name, "OK", True) for name in "abc" if name not in kept)]


@pytest.mark.parametrize(("verdict", "reason"), [
    ("JUDGE-NO-DEVICE", "No worker could be started: CUDA error: out of memory"),
    ("CRASH-MEMORY", "The device's memory does not suffice: CUDA out of memory.")])
def test_a_verdict_on_memory_counts_when_alone(verdict: str, reason: str, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(tmp_path, monkeypatch, lambda what, alone: (verdict, reason) if what == "b" else ("OK", ""))
    assert shared.run()["state"] == "verified" and shared.asked[1:] == [None]
    assert shared.told == [("a", "OK", False), ("c", "OK", False), ("b", verdict, True)]


def test_no_verdict_counts_for_which_memory_ran_out_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference that did not fit, say, was left out: what is found without it may be anything."""
    def judged(what: str, alone: bool) -> tuple[str, str]:
        if what == "b" and not alone:
            assert memory.is_out_of_memory(LACKS[0])
            return "WRONG-NUMERIC", "It is off."
        return "OK", ""

    shared = Shared(tmp_path, monkeypatch, judged)
    shared.run()
    assert shared.told == [("a", "OK", False), ("c", "OK", False), ("b", "OK", True)]


def test_a_fault_that_is_none_of_memory_is_told_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(what: str, alone: bool) -> tuple[str, str]:
        if what == "b":
            raise RuntimeError("an illegal memory access was encountered")
        return ("JUDGE-ERROR", "It could not go on.") if what == "a" else ("OK", "")

    shared = Shared(tmp_path, monkeypatch, judged)
    assert shared.run()["state"] == "crashed" and len(shared.asked) == 1
    assert shared.told == [("a", "JUDGE-ERROR", False)]


def test_a_profile_for_which_memory_ran_out_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Path] = []
    monkeypatch.setattr("kernelwright.judge.check.kept_profiles._key", lambda *_: "key")
    monkeypatch.setattr("kernelwright.judge.check.kept_profiles._keep", lambda file, content: kept.append(file))
    nothing: Any = None
    kept_profile(tmp_path, nothing, nothing, lambda: memory.is_out_of_memory(LACKS[0]) or nothing)
    assert not kept
    kept_profile(tmp_path, nothing, nothing, lambda: nothing)
    assert len(kept) == 1
