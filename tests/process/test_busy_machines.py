"""Times on a busy machine: what others took is seen, voids what was measured, and is no speed-up."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from clocks import PATIENCE
from places import ROOT

import kernelwright
from kernelwright import device_lock, processors
from kernelwright.processors import is_disturbed, longest_wait, scheduled
from kernelwright.processors import waits as told_by_the_kernel
from kernelwright.report import render_text
from kernelwright.timing import Times, baselines, measure, rounds, summarize
from kernelwright.timing.baselines import CANDIDATE, EAGER
from kernelwright.timing.speedup import FASTER, SLOWER, TIE, UNKNOWN, speed_up
from kernelwright.tune import memory


class Machine:
    """A simulated clock and scheduler. Calls sleep; where ``others`` has seconds for the call, thread 7, one of OpenMP,
    stands so long without a processor meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.waited = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.sleep(1e-6))
        monkeypatch.setattr(processors, "waits", lambda: {"1": 0.0, "7": self.waited})

    def sleep(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def call(self, seconds: float, others: Callable[[int], float] = lambda number: 0.0) -> Callable[[], None]:
        number = [0]

        def run() -> None:
            number[0] += 1
            taken = others(number[0])
            self.waited += taken
            self.sleep(seconds + taken)

        return run


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def times(name: str, seconds: list[float], warm: float | None = None, **changes: Any) -> Times:
    middle = sorted(seconds)[len(seconds) // 2]
    made = Times(name, tuple(seconds), tuple(seconds), middle, min(seconds), max(seconds), min(seconds),
                 (min(seconds), max(seconds)), len(seconds), 2, middle, warm, 2, 0.0)
    return dataclasses.replace(made, **changes)


def timing(eager: Times, candidate: Times) -> Any:
    return summarize({EAGER: eager, CANDIDATE: candidate}, device="cpu")


def test_what_the_kernel_tells_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All threads of the process, OpenMP's, too; the one that waited longest counts, and one that began meanwhile."""
    def write(**waited: int) -> None:
        for thread, nanoseconds in waited.items():
            folder = tmp_path / "self" / "task" / thread.removeprefix("t")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "schedstat").write_text(f"5000 {nanoseconds} 3\n")

    monkeypatch.setattr(processors, "_PROC", tmp_path)
    assert told_by_the_kernel() == {}
    write(t1=1_000_000, t2=0)
    before = told_by_the_kernel()
    write(t1=1_500_000, t2=3_000_000, t3=2_000_000)
    assert longest_wait(before, told_by_the_kernel()) == pytest.approx(3e-3)
    assert longest_wait({}, {}) == 0.0
    (tmp_path / "self" / "stat").write_text("1 (a b) " + " ".join("0123456789abc"))
    both = scheduled(["self"])  # type: ignore[list-item]
    assert both.waited == pytest.approx(6.5e-3) and both.ran == pytest.approx(15e-6) and both.faults == 9


def test_a_call_is_disturbed_by_a_share_of_it_and_not_by_waking() -> None:
    assert not is_disturbed(1e-5, 1e-5) and is_disturbed(1e-4, 3e-5)
    assert not is_disturbed(0.1, 4e-3) and is_disturbed(0.1, 6e-3)


def test_rounds_in_which_threads_waited_are_void(machine: Machine) -> None:
    """Three of four calls take fifty times as long for want of a processor, and the figures are of the fourth."""
    calls = {"slow": machine.call(0.004), "fast": machine.call(0.001, lambda n: 0.05 if n % 4 else 0.0)}
    found = measure(calls, device="cpu", budget_seconds=10.0, flush_cache=False)
    for name, seconds in (("slow", 0.004), ("fast", 0.001)):
        assert found[name].median == pytest.approx(seconds, rel=0.01) and not found[name].busy
        assert found[name].void > 10 and found[name].upper_quartile == pytest.approx(seconds, rel=0.01)
    assert speed_up(found, "slow", "fast").verdict == FASTER
    assert speed_up(found, "slow", "fast").value == pytest.approx(4, rel=0.02)


def test_of_several_calls_in_a_round_the_undisturbed_count(machine: Machine) -> None:
    calls = {"slow": machine.call(0.064), "fast": machine.call(0.001, lambda n: 0.05 if n % 2 else 0.0)}
    found = measure(calls, device="cpu", budget_seconds=3.0, flush_cache=False)
    assert not found["fast"].void and found["fast"].median == pytest.approx(0.001, rel=0.01)


def test_a_busy_machine_has_no_speed_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on two processors under load: a call of 124 us seems to take twice the time of one that takes longer."""
    said: list[bool] = []
    monkeypatch.setattr(rounds, "was_noisy", lambda: said.append(True))
    calls = {EAGER: machine.call(124e-6, lambda n: 0.06), CANDIDATE: machine.call(139e-6, lambda n: 0.03)}
    found = measure(calls, device="cpu", budget_seconds=2.0, flush_cache=False)
    assert found[EAGER].busy and found[EAGER].note.startswith("busy machine: threads waited") and said
    assert found[EAGER].back_to_back_seconds is None and found[EAGER].waited_seconds is None
    made = timing(found[EAGER], found[CANDIDATE])
    up = made.speed_up()
    assert up.verdict == UNKNOWN and up.why.startswith("busy machine") and "busy machine" in made.sentence()
    assert not baselines.is_slower(made) and not baselines.is_slower(timing(found[CANDIDATE], found[EAGER]))
    assert made.compiled_wins(replaced=True) == ""
    assert json.loads(json.dumps(made.to_json()))["entries"][EAGER]["busy"] is True


def test_a_number_of_rounds_that_was_asked_for_are_undisturbed_ones(machine: Machine) -> None:
    calls = {"a": machine.call(0.01, lambda n: 0.05 if n % 2 else 0.0)}
    found = measure(calls, device="cpu", repetitions=6, budget_seconds=1.0, flush_cache=False)["a"]
    assert found.repetitions == 6 and 5 <= found.void <= 6 and not found.busy
    always = measure({"a": machine.call(0.01, lambda n: 0.05)}, device="cpu", repetitions=6, budget_seconds=1.0,
                     flush_cache=False)["a"]
    assert always.void == 12 and always.busy


def test_the_budget_holds_on_a_busy_machine(machine: Machine) -> None:
    for others in (lambda n: 0.0, lambda n: 0.2, lambda n: 0.2 if n % 3 else 0.0):
        began = machine.now
        measure({"a": machine.call(0.01, others), "b": machine.call(0.02, others)}, device="cpu", budget_seconds=5.0,
                flush_cache=False)
        assert machine.now - began < 6.0


def test_a_call_beyond_the_budget_that_waited_is_no_time_either(machine: Machine) -> None:
    found = measure({"a": machine.call(2.0, lambda n: 1.0)}, device="cpu", budget_seconds=0.5, flush_cache=False)["a"]
    assert found.busy and "its only call" in found.note and found.repetitions == 1


@pytest.mark.parametrize(("eager", "own", "warm", "verdict", "why"), [
    ([2.0] * 6, [1.0] * 6, None, FASTER, ""), ([2.0] * 6, [1.0] * 6, (2.0, 1.0), FASTER, ""),
    ([1.0] * 6, [2.0] * 6, (1.0, 2.0), SLOWER, ""), ([1.0, 1.1, 0.9, 1.0, 1.05, 0.95], [1.0] * 6, None, TIE, ""),
    ([2.0] * 6, [1.0] * 6, (1.0, 1.2), UNKNOWN, "cold and warm times disagree: 2.00x on flushed caches, 0.83x in"),
    ([1.0] * 6, [2.0] * 6, (1.2, 1.0), UNKNOWN, "cold and warm times disagree"),
    ([1.5] * 2, [1.0] * 2, None, UNKNOWN, "only 2 rounds fitted"), ([9.0] * 2, [1.0] * 2, None, FASTER, ""),
    ([1.0] * 2, [1.5] * 2, None, UNKNOWN, "only 2 rounds"), ([1.0] * 2, [4.0] * 2, None, SLOWER, ""),
    ([1.0, 8.0, 1.0, 8.0, 1.0, 8.0, 4.0], [1.0] * 7, None, UNKNOWN, "the times spread so much")])
def test_verdicts(eager: list[float], own: list[float], warm: tuple[float, float] | None, verdict: str, why: str
                  ) -> None:
    rows = warm or (None, None)
    found = timing(times(EAGER, eager, rows[0]), times(CANDIDATE, own, rows[1]))
    up = found.speed_up()
    assert (up.verdict, up.why[:len(why)]) == (verdict, why)
    assert ("not measurable here" in found.sentence()) == (verdict == UNKNOWN)


def test_what_gives_kernels_up() -> None:
    """Slower, or no win in which cold and warm calls agree; never two runs, or times that hold nowhere."""
    def slower(eager: list[float], own: list[float], *warm: float) -> bool:
        return baselines.is_slower(timing(times(EAGER, eager, *warm[:1]), times(CANDIDATE, own, *warm[1:])))

    assert slower([1.0] * 6, [1.1] * 6) and not slower([1.1] * 6, [1.0] * 6)
    assert slower([2.0] * 6, [1.0] * 6, 1.0, 1.2) and slower([1.0] * 6, [2.0] * 6, 1.2, 1.0)
    assert not slower([1.0] * 2, [1.5] * 2) and slower([1.0] * 2, [4.0] * 2)
    assert slower([1.0] * 7, [1.2, 9.0, 1.2, 9.0, 1.2, 9.0, 4.0])  # by how much nobody knows, but slower it is


def test_kernels_that_are_not_in_the_file_are_no_entry() -> None:
    found = timing(times(EAGER, [2.0] * 6), times(CANDIDATE, [1.0] * 6)).of_original()
    assert set(found.entries) == {EAGER} and not found.ratios and found.speed_up() is None
    assert found.given_up.median == 1.0 and found.given_up_ratio.value == 2.0
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["given_up"]["median"] == 1.0 and CANDIDATE not in document["entries"]
    assert found.of_original() == found


def test_the_scheduler_of_a_suite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Line:
        process, said = device_lock.os.getpid(), []

        def say(self, **message: Any) -> None:
            self.said.append(message)

    device_lock.was_noisy()  # outside of a suite there is nobody to tell
    monkeypatch.setattr(device_lock, "_lock", Line())
    monkeypatch.setattr(processors, "waits", dict)  # a system that tells nothing: nobody saw whether it was quiet
    measure({"a": lambda: torch.ones(1)}, device="cpu", repetitions=1, flush_cache=False)
    assert Line.said == [{"say": "noisy"}]


_BESIDE_OTHERS = """
import json, os, subprocess, sys, time
place = {max(os.sched_getaffinity(0))}
os.sched_setaffinity(0, place)
import torch
from kernelwright import processors
from kernelwright.timing import measure
from kernelwright.timing.speedup import speed_up
turning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
def work():
    ends = time.thread_time() + 0.05
    while time.thread_time() < ends:
        pass
try:
    found = measure({"a": work, "b": work}, device="cpu", budget_seconds=4.0, flush_cache=False)
finally:
    for process in turning:
        process.kill()
up = speed_up(found, "a", "b")
print(json.dumps([bool(processors.waits()), found["a"].void, found["a"].busy, up.verdict, up.why]))
"""


def test_beside_spinning_processes() -> None:
    """Really: three programs turn on the one processor that this one has, whose calls need it for 50 ms each."""
    done = subprocess.run([sys.executable, "-c", _BESIDE_OTHERS], capture_output=True, text=True, timeout=PATIENCE,
                          cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    told, void, busy, verdict, why = json.loads(done.stdout.splitlines()[-1])
    if not told:
        pytest.skip("this kernel does not tell what threads wait for")
    assert void >= 2 and busy and (verdict, why[:12]) == (UNKNOWN, "busy machine")


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.tanh(x) * x + 1.0, dim=-1)


def test_what_a_busy_machine_cannot_tell_stays_as_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call waits: the kernels stay, the report has no number, and nothing of it is kept for further runs."""
    asked = [0.0]

    def waits() -> dict[str, float]:
        asked[0] += 1e3
        return {"7": asked[0]}

    monkeypatch.setattr(processors, "waits", waits)
    monkeypatch.setattr("kernelwright.selection.is_slower", baselines.is_slower)
    result = kernelwright.optimize(Model(), inputs=(torch.randn(64, 256),), target="cpp", effort="quick",
                                   baselines="none")
    assert result.modes[0].runs and result.timing.entries[CANDIDATE].busy
    text = " ".join(render_text(result).split())
    assert "not measurable here (busy machine: other programs took the processors)" in text
    assert any(note.startswith("Busy machine: ") and "stay as predicted" in note for note in result.notes)
    assert not list(memory.folder().rglob("*.json"))


def test_what_the_result_reports_is_what_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    for clock in ("selection", "training.steps"):
        monkeypatch.setattr(f"kernelwright.{clock}.is_slower", lambda timing: True)
    result = kernelwright.optimize(Model(), inputs=(torch.randn(64, 256),), target="cpp", effort="quick",
                                   baselines="none")
    assert not any(mode.runs for mode in result.modes)
    assert set(result.timing.entries) == {EAGER} and result.timing.given_up is not None and not result.timing.ratios
    text = " ".join(render_text(result).split())
    assert "are not worth it, " in text and "ModelNew  " not in text
