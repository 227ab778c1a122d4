"""What the judge finds out about states that are handed on: how far back they show, and who forgets."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from torch import nn

from kernelwright.judge.check.forgotten import find_forgotten
from kernelwright.judge.check.problem_profile import ProblemProfile, make_profile, required, trials, wanted
from kernelwright.problem import Problem, load_problem
from kernelwright.verify import Plan, certify
from kernelwright.verify.along.trials import of_states

SEED, STEPS = 5, 128


@pytest.fixture(autouse=True)
def one_thread():
    """Layers of many short steps wait for threads more than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Recurrent(nn.Module):
    """All steps of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)[0].contiguous()


class Last(nn.Module):
    """What the last step knows."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


class Without(nn.Module):
    """Gates without biases: nothing is known that keeps them open."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(8, 16, batch_first=True, bias=False)

    def forward(self, x):
        return self.layer(x)[0].contiguous()


class Sums(nn.Module):
    def forward(self, x):
        return x.cumsum(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


class Window(Recurrent):
    """Tiles of 32, each after the 32 steps before it."""

    def forward(self, x):
        found = []
        for start in range(0, x.shape[1], 32):
            first = max(0, start - 32)
            found.append(super().forward(x[:, first:start + 32])[:, start - first:])
        return torch.cat(found, 1)


class Recent(Last):
    """The last 64 steps alone."""

    def forward(self, x):
        return super().forward(x[:, -64:])


class Tiled(Recurrent):
    """An honest twin: tiles that get the state of the one before."""

    def forward(self, x):
        state, found = None, []
        for tile in x.split(32, 1):
            out, state = self.layer(tile, state)
            found.append(out)
        return torch.cat(found, 1)


class Broken(Recurrent):
    """NaN from the first step on, which is no forgetting."""

    def forward(self, x):
        return super().forward(x) * torch.nan


@cache
def problem_of(kind) -> Problem:
    return load_problem(kind, [torch.randn(2, STEPS, 8)], device="cpu")


@cache
def profile_of(kind) -> ProblemProfile:
    return make_profile(problem_of(kind), SEED, 10.0)


def made(kind, like):
    candidate = kind()
    candidate.load_state_dict(problem_of(like).make_model(SEED).state_dict())
    return candidate


@pytest.mark.parametrize("kind", [Recurrent, Last, Sums])
def test_it_is_measured_how_far_back_a_state_shows(kind):
    profile = profile_of(kind)
    assert not profile.forgets
    best = max(profile.remembered, key=lambda r: r.reach)
    assert best.steps == STEPS and best.reach >= 3 / 4 * STEPS and best.influence > 0.1
    assert any(f"{best.reach} of {STEPS} steps" in words for words in profile.words)
    run = trials(profile)
    pair = [t for t in run[:required(profile)] if t.distribution in ("loud start", "quiet")]
    assert len(pair) == 2 and pair[0].seed == pair[1].seed and pair[0].opened == pair[1].opened
    assert set(profile.placed) <= set(run[:wanted(profile)])
    document = json.loads(json.dumps(profile.to_json(), allow_nan=False))
    assert document["remembered"][0]["plan"]["along"] == [["input[0]", 1]]


def test_what_no_inputs_show_is_said():
    profile = profile_of(Without)
    assert profile.remembered and not any(r.is_long for r in profile.remembered)
    assert f"more than {profile.remembered[0].reach} of {STEPS} steps" in profile.forgets
    assert any(f"{STEPS} steps" in words for words in profile.words)


def test_models_without_a_state_have_no_such_trials():
    profile = profile_of(Layer)
    assert profile.placed == profile.remembered == () and not profile.forgets


@pytest.mark.parametrize(("model", "candidate", "words"), [
    (Recurrent, Window, "up to position 63 of axis 1 and not from 64 on"),
    (Last, Recent, "does not show in the output"),
    (Recurrent, Recurrent, ""), (Recurrent, Tiled, ""), (Recurrent, Broken, ""),
])
def test_who_forgets_is_refused_without_any_time_and_told_where(model, candidate, words):
    problem, profile = problem_of(model), profile_of(model)
    plan = Plan(trials=trials(profile), required=required(profile), wanted=0, budget_seconds=0.0, repeats=0)
    found = certify(lambda: problem.make_model(SEED), lambda: made(candidate, model), problem.make_inputs, plan=plan)
    assert found.passed is (candidate in (Recurrent, Tiled)), found.why
    failed = [t.plan for t in found.trials if not t.passed]
    if words:
        assert not any(t.passed for t in found.trials if t.plan.opened)
        assert all(t.passed for t in found.trials if not t.plan.along), "ordinary inputs show nothing"
    failed = failed or of_states(profile.placed)
    forgotten = find_forgotten(lambda: problem.make_model(SEED), made(candidate, model), problem.make_inputs, failed)
    assert (forgotten is not None) is bool(words)
    assert forgotten is None or (words in forgotten.sentence and "state" in forgotten.fix)
