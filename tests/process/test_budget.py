"""A run has a deadline: a checked file first, then what measurements improve, and nothing measured twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emitted_tools import short_budgets, write_problem

import kernelwright
from kernelwright import selection, tuned, verified
from kernelwright.culprits import Culprits
from kernelwright.errors import InvalidOption
from kernelwright.modes import distinct
from kernelwright.plan.records import KernelConfig
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, understand
from kernelwright.progress import Progress
from kernelwright.records import LATE
from kernelwright.roofline.devices import H200
from kernelwright.settings import Settings
from kernelwright.tune import budget as budgets
from kernelwright.tune import regions
from kernelwright.tune.budget import Budget, budget_of
from kernelwright.verify.certificate import Certificate

MODEL = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

        def forward(self, x):
            for norm in (self.first, self.second):
                x = x @ x.mT @ torch.tanh(norm(x) * 2 + 1)
            return F.gelu(x * 3).cumsum(0)

    def get_inputs():
        return [torch.randn(64, 32)]
"""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(budgets, "clock", lambda: time[0])
    return time


def test_shares_are_of_what_is_left(now):
    """Whatever went before them, stages that are still to come share the rest; who is done leaves its share."""
    budget = Budget(100.0, begun=now[0])
    parts = {stage: parts for stage, (parts, _) in budgets.SHARES.items()}
    now[0] += 60.0
    assert budget.left() == 40.0
    for stage in parts:
        assert budget.share(stage) == pytest.approx(min(40.0 * parts[stage] / sum(parts.values()),
                                                        100.0 * budgets.SHARES[stage][1]))
    budget.done("tune", "baselines")
    rest = parts["verify"] + parts["time"]
    assert budget.share("verify") == pytest.approx(min(20.0, 40.0 * parts["verify"] / rest))
    assert budget.share("tune") > 0.0  # of a stage that goes on after all
    now[0] += 50.0
    assert budget.left() == 0.0 == budget.share("verify")


def test_the_effort_says_how_long_unless_one_is_told(now):
    efforts = ("quick", "normal", "thorough")
    assert [budget_of(effort).until_end() for effort in efforts] == [60.0, 120.0, 900.0]
    for nothing_compiled in ("none", "graph"):
        assert [budget_of(e, baselines=nothing_compiled).until_end() for e in efforts] == [30.0, 120.0, 900.0]
    assert [budget_of(effort, baselines="all").left() for effort in efforts] == [30.0, 90.0, 675.0]
    assert [budget_of(effort, baselines="all").until_end() for effort in efforts] == [240.0, 300.0, 1080.0]
    assert budget_of("quick", 7.5).until_end() == 7.5 and budget_of("quick").begun == now[0]
    assert budget_of("quick", spent=3.0).until_end() == 57.0
    assert budget_of("quick").coming - budget_of("quick", baselines="none").coming == {"baselines"}
    for wrong in (0, -1.0, float("inf"), float("nan"), True, "30"):
        with pytest.raises(InvalidOption, match="budget"):
            Settings(budget=wrong)


def test_what_a_command_took_before_its_run_is_part_of_it(monkeypatch):
    progress = Progress()
    assert progress.seconds_before() == 0.0
    progress.started = 5.0
    monkeypatch.setattr("kernelwright.progress.time.perf_counter", lambda: 8.5)
    assert (progress.seconds_before(), progress.seconds_before()) == (3.5, 0.0)


def test_measurements_leave_time_for_what_they_change(now):
    """Half of what the first build and check took, and the least for timing; with time enough they have their share."""
    run = budget_of("quick", baselines="none")
    share = run.share("tune")
    assert selection.tuning_seconds(run, took=6.0) == share > 3.2
    now[0] += 24.0
    assert selection.tuning_seconds(run, took=6.0) == pytest.approx(6.0 - 3.0 - 0.2) and run.share("tune") > 2.8
    now[0] += 3.0
    assert selection.tuning_seconds(run, took=6.0) == 0.0 < run.share("tune")
    now[0] += 13.0
    assert selection.tuning_seconds(run, took=0.0) == 0.0
    late = budget_of("quick", baselines="compile")
    now[0] += 32.0  # what is kept for compilers of others may be borrowed
    assert late.share("tune") == 0.0 < selection.tuning_seconds(late, took=6.0)


def test_compilers_of_others_get_what_is_kept_for_them(now):
    """Nothing that goes before takes it, and a quick run with baselines has as long for the rest as one without."""
    budget, alone = budget_of("quick"), budget_of("quick", baselines="none")
    assert budget.left() == alone.left() == 30.0 and budget.until_end() == 60.0
    now[0] += 10.0
    assert [budget.share(stage) for stage in ("tune", "verify", "time")] == \
        [10.0, 6.0, 2.5]  # of 20 seconds 4, 3 and 1 of 8 parts; of verifying at most a fifth of 30
    now[0] += 25.0  # late, for whatever reason
    budget.done("tune", "verify")
    assert budget.left() == 0.0 == budget.share("time")
    budget.baselines_begin()
    assert budget.left() == 25.0 and budget.share("baselines") == 20.0 and budget.share("time") == 3.0
    everything = budget_of("quick", baselines="all")
    everything.done("tune", "verify")
    everything.baselines_begin()
    assert everything.share("baselines") == 192.0  # of 240 seconds, one part of five for timing


def test_first_a_file_and_then_what_is_measured(monkeypatch, tmp_path):
    """The blocks alike, in both modes, are measured once, when the file of the predicted plan is there; the next run
    measures nothing of them and writes the same file, where the clock gives neither up as a whole."""
    short_budgets(monkeypatch)
    path, measured = write_problem(tmp_path, "model", MODEL), []
    seconds, times = regions.seconds_in_place, tuned.region_times

    def watched(plan, tensors, found, *rest):
        measured.extend([path.with_name("model_new.py").exists()] * len({id(built) for _, built in found}))
        return seconds(plan, tensors, found, *rest)

    def asked(plans, *rest):
        alike = {regions._form(steps, plan) for plan in plans for steps in regions.regions(plan)}
        forms.append(len(alike))
        every.append(sum(len(regions.regions(plan)) for plan in plans))
        return times(plans, *rest)

    forms: list[int] = []
    every: list[int] = []
    monkeypatch.setattr(regions, "seconds_in_place", watched)
    monkeypatch.setattr(tuned, "region_times", asked)
    first = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none")
    assert measured == [True] * max(forms) and first.certificate.passed
    assert 0 < max(forms) < max(every)
    text = first.path.read_text()
    measured.clear()
    second = kernelwright.optimize(path, target="cpp", effort="quick", baselines="none", force=True)
    assert not measured and second.path.read_text() == text
    assert not any("no time" in note for note in (*first.notes, *second.notes))


@pytest.mark.parametrize(("waiting", "rounds"), [((3, 1, 0), 3), ((3, 3, 0), 2), ((0, 3), 1)])
def test_what_waits_is_measured_in_what_is_left_of_the_run(waiting, rounds, monkeypatch, tmp_path):
    """Round by round, until nothing waits or one has measured nothing; earlier rounds are not measured again."""
    asked, modes = list[float](), tuned.Tuning.modes

    def watched(tuning, given, seconds):
        found = modes(tuning, given, seconds)
        if seconds:
            tuning.waiting = waiting[len(asked)]
            asked.append(seconds)
        return found

    monkeypatch.setattr(tuned.Tuning, "modes", watched)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=600)
    assert len(asked) == rounds and result.certificate.passed


def test_a_further_round_leaves_time_for_what_it_changes(now):
    budget = Budget(100.0, begun=now[0])
    budget.done("tune", "baselines")
    seconds = selection.further_seconds(budget, took=10.0)
    assert seconds == pytest.approx(100.0 - 10.0 - budget.share("time") - selection._LEAST_SECONDS)
    now[0] += 75.0
    assert selection.further_seconds(budget, took=10.0) == 0.0  # less than is worth a round


def test_the_first_check_is_brief_and_the_last_one_whole(monkeypatch, tmp_path):
    """Trials of a file that measurements may change take time from these; the file that is written has them all."""
    planned, certify = [], verified.certify_both

    def watched(*arguments, plan, **rest):
        planned.append(len(plan.trials))
        return certify(*arguments, plan=plan, **rest)

    monkeypatch.setattr(verified, "certify_both", watched)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=300)
    brief = next(place for place, count in enumerate(planned) if count > verified.RECORDED)
    assert brief > 0 and set(planned[:brief]) == {verified.RECORDED}
    assert result.certificate.passed and len(result.certificate.trials) > verified.RECORDED


def test_without_time_there_is_a_file_and_what_was_not_tried_is_told(monkeypatch, tmp_path):
    """What certifies is never left out; what might have been gained is."""
    path = write_problem(tmp_path, "model", MODEL)
    monkeypatch.setattr(regions, "seconds_in_place", lambda *_, **__: pytest.fail("there is no time for that"))
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=1e-3)
    assert result.path.exists() and result.modes[0].kernels
    for certificate in (result.certificate, result.certificate.recorded):
        assert certificate.passed and len(certificate.trials) >= 2
    assert result.certificate.recorded.gradients.passed
    assert any("no time to measure" in note and "as predicted" in note for note in result.notes), result.notes
    new = result.module
    x = torch.randn(64, 32)
    assert new(x).shape == x.shape


def test_a_run_is_in_a_hurry_where_checks_take_what_is_left(monkeypatch, tmp_path, now):
    """Checks of a model whose calls take a second take minutes, those of a small one are nothing."""
    problem = load_problem(write_problem(tmp_path, "model", MODEL))
    modes, _ = understand(problem, problem.make_inputs(0), H200, Settings(), Stages(Progress()))
    budget = budget_of("quick", baselines="none")
    for call, passed, hurried in ((1e-3, 0.0, False), (1e-3, 22.0, True), (0.1, 0.0, False), (0.3, 0.0, True)):
        monkeypatch.setattr(selection, "graph_seconds", lambda roots, device, call=call: call)
        now[0] = 100.0 + passed
        assert selection._is_hurried(distinct(modes), H200, budget) is hurried, (call, passed)


@pytest.mark.parametrize("changes", [False, True])
def test_what_passed_stays_where_memory_does_not_do_for_more(changes, monkeypatch, tmp_path):
    """The first file is there; neither its further trials nor those of what measurements change end the run."""
    certify = verified.certify_both

    def certified(*arguments, plan, **rest):
        if len(plan.trials) > verified.RECORDED:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.")
        return certify(*arguments, plan=plan, **rest)

    lost = iter([{}] * 2)
    if changes:
        monkeypatch.setattr(tuned, "losing_regions", lambda plan, times, **_: next(lost, None) or (
            {n: "slower" for n in plan.kernels[0].covers} if len(plan.kernels) > 1 else {}))
    monkeypatch.setattr(verified, "certify_both", certified)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=300)
    assert result.certificate.passed and result.modes[0].kernels and selection.NO_MEMORY in result.notes
    assert result.path.read_text() == result.source


@pytest.mark.parametrize("lacking", [1, 2])
def test_without_memory_for_kernels_there_is_a_file_with_fewer(lacking, monkeypatch, tmp_path):
    """In a hurry contractions that were not measured go first, as their operands are packed; then all kernels do."""
    certify, planned, tried = verified.certify_both, [], []

    def certified(*arguments, **rest):
        if len(tried) < lacking:
            tried.append(len(planned))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB.")
        return certify(*arguments, **rest)

    def first(self, modes):
        planned.append(self.predicts)
        if not self.predicts:
            return modes
        product = next(n for n in modes[0].plan.graph.nodes() if n.op == "matmul")
        return [replace(m, plan=replace(m.plan, contractions={product: KernelConfig("fp16x3")})) for m in modes]

    monkeypatch.setattr(tuned.Tuning, "first", first)
    monkeypatch.setattr(selection, "_is_hurried", lambda *_: True)
    monkeypatch.setattr(verified, "certify_both", certified)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=300)
    assert planned[:2] == [True, False] and tried == [1, 2][:lacking]
    assert result.certificate.passed and result.path.exists()
    assert bool(result.modes[0].kernels) == (lacking == 1)
    assert any(selection.NO_MEMORY_FOR_KERNELS in k.reason for k in result.modes[0].kept) == (lacking == 2)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> dict[str, list]:
    """Time goes by when the test says so; what was looked into, and what was built, is noted. Every region wins."""
    time, noted = [100.0], {"time": [], "searched": [], "built": []}
    noted["time"] = time
    for module in (budgets, verified, selection):
        monkeypatch.setattr(module, "clock", lambda: time[0])
    load = verified.load_text
    monkeypatch.setattr(verified, "culprits_of", lambda *rest: (noted["searched"].append(rest), Culprits())[1])
    monkeypatch.setattr(verified, "load_text", lambda text, name: (noted["built"].append(text), load(text, name))[1])
    monkeypatch.setattr(selection, "_timed", lambda *_, **__: ({}, {}))
    return noted


def refused(certificate: Certificate) -> Certificate:
    """The same, failed in the first trial."""
    first, *rest = certificate.trials
    trials = (replace(first, passed=False, problems=("It is wrong.",), kinds=("value",)), *rest)
    return replace(certificate, passed=False, why=("It is wrong.",), trials=trials, recorded=None)


@pytest.mark.parametrize("seconds", [1000.0, 0.0])
def test_a_mode_that_fails_late_is_pytorchs(late, monkeypatch, tmp_path, seconds):
    """With time the least exact goes first; past the deadline nothing is looked for, and one file more is built."""
    certify = verified.certify_both

    def certified(*arguments, plan, **rest):
        late["time"][0] += 1000.0 - seconds
        found = certify(*arguments, plan=plan, **rest)
        return found if plan.unchanged else refused(found)

    monkeypatch.setattr(verified, "certify_both", certified)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=1000)
    assert result.path.exists() and result.certificate.passed and not any(mode.kernels for mode in result.modes)
    said = [note for note in result.notes if "It is wrong." in note and LATE in note]
    assert bool(said) == (not seconds) == (not late["searched"])
    assert len(late["built"]) == 2 if said else len(late["built"]) > 2


def test_what_measurements_spoil_late_is_as_it_was_planned(late, monkeypatch, tmp_path):
    """The file that passed is there; past the deadline it stays, with what it was certified with."""
    certify, changed = verified.certify_both, []

    def lost(plan, times):
        changed.append(True)
        return {n: "slower" for n in plan.kernels[0].covers} if len(changed) > 2 else {}  # once there is a file

    def certified(*arguments, plan, **rest):
        found = certify(*arguments, plan=plan, **rest)
        if len(plan.trials) > verified.RECORDED:
            late["time"][0] += 1000.0
            return refused(found)
        return found

    monkeypatch.setattr(tuned, "losing_regions", lost)
    monkeypatch.setattr(verified, "certify_both", certified)
    path = write_problem(tmp_path, "model", MODEL)
    result = kernelwright.optimize(path, target="cpp", baselines="none", budget=1000)
    first, second = late["built"]
    assert result.path.read_text() == first != second and not late["searched"]
    assert result.certificate.passed and all(mode.kernels for mode in result.modes)
    assert any("stays as it was planned" in note and "It is wrong." in note for note in result.notes), result.notes
