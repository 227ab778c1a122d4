"""The problem profile: what it finds about a problem, and that its trials refuse candidates that do not compute."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import judge_problems
import pytest
import torch
from judge_problems import PROBLEMS
from torch import nn

from kernelwright.build.module import load_text
from kernelwright.errors import ForwardRaised
from kernelwright.judge.check import probes
from kernelwright.judge.check.problem_profile import (
    UNUSUAL_VALUES,
    ProblemProfile,
    make_profile,
    required,
    trials,
    wanted,
)
from kernelwright.judge.check.trivial import trivial_candidates
from kernelwright.problem import Problem, load_problem
from kernelwright.verify import DISTRIBUTIONS, Plan, certify

SEED = 5
NAMES = [kind.__name__ for kind in PROBLEMS]
TRIVIAL = {"AlwaysZero": {"zeros", "constant", "replay"}, "MeanOfSoftmax": {"constant", "replay"}}


@pytest.fixture(scope="session")
def problem_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("problems")
    text = Path(judge_problems.__file__).read_text()

    @cache
    def load(name: str) -> Problem:
        path = folder / f"{name}.py"
        path.write_text(f"{text}\nModel = {name}\n\n\ndef get_inputs():\n    return PROBLEMS[Model]()\n")
        return load_problem(path, device="cpu")

    return load


@pytest.fixture(scope="session")
def profile_of(problem_of):
    @cache
    def make(name: str) -> ProblemProfile:
        return make_profile(problem_of(name), SEED, 60.0)

    return make


def certified(problem: Problem, profile: ProblemProfile, candidate: nn.Module, budget: float = 0.0):
    """The certificate of a candidate with as little time as possible: only what must run does."""
    plan = Plan(trials=trials(profile), required=required(profile), budget_seconds=budget, repeats=1)
    return certify(lambda: problem.make_model(SEED), lambda: candidate, problem.make_inputs, plan=plan)


def test_global_random_state_is_left_alone(problem_of):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    make_profile(problem_of("Dropped"), SEED, 5.0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
def test_candidates_that_do_not_compute_are_refused_or_the_problem_is_trivial(problem_of, profile_of, name):
    problem, profile = problem_of(name), profile_of(name)
    assert set(profile.trivial) == TRIVIAL.get(name, set())
    assert profile.is_trivial == (name in TRIVIAL)
    texts = trivial_candidates(problem, SEED)
    assert {"zeros", "constant", "replay"} <= set(texts)
    for kind, text in texts.items():
        candidate = problem.make_model(SEED, load_text(text, f"{kind}_{name.lower()}").ModelNew)
        found = certified(problem, profile, candidate)
        assert found.passed == (kind in profile.trivial), (kind, found.sentence())
        assert found.state_copied, found.state_problems


@pytest.mark.parametrize("name", NAMES)
def test_the_model_itself_passes_all_trials(problem_of, profile_of, name):
    problem, profile = problem_of(name), profile_of(name)
    found = certified(problem, profile, problem.make_model(SEED), budget=60.0)
    assert found.passed, found.sentence()
    assert not found.skipped


@pytest.mark.parametrize("name", NAMES)
def test_trials_begin_with_the_problems_own_inputs_and_those_that_tell(profile_of, name):
    profile = profile_of(name)
    plans = trials(profile)
    assert plans[0].distribution == "as given" and not plans[0].redrawn_parameters
    assert len(set(plans)) == len(plans) >= 15
    assert set(profile.needed) <= set(plans[:required(profile)])
    telling = [p.plan for p in profile.probes if p.telling]
    assert sum(plan in telling for plan in plans[:required(profile)]) >= min(2, len(telling))


@pytest.mark.parametrize("name", NAMES)
def test_unusual_values_come_next(profile_of, name):
    profile = profile_of(name)
    plans = trials(profile)
    assert {"large", "small", "with NaN"} <= {plan.distribution for plan in plans[:wanted(profile)]}
    assert set(profile.placed) <= set(plans[:wanted(profile)])  # those for what a model does along an axis
    rest = set(plans[1:wanted(profile)]) - set(profile.needed) - set(profile.placed)
    assert all(plan.distribution in UNUSUAL_VALUES for plan in rest)
    assert wanted(profile) <= required(profile) + 3 + len(profile.placed)


@pytest.mark.parametrize("name, own, others", [("Honest", True, True), ("ZeroHere", False, True),
                                               ("DeepNarrow", False, True), ("AlwaysZero", False, False),
                                               ("OwnToken", False, False)])
def test_a_stored_result_of_another_draw_shows_with_varying_inputs(problem_of, profile_of, name, own, others):
    problem, profile = problem_of(name), profile_of(name)
    assert ("as given" in profile.varying) == own
    assert bool(profile.varying) == others
    if others:
        kind, model = DISTRIBUTIONS[profile.varying[0]], problem.make_model(SEED)
        first, second = (model(*kind.apply(problem.make_inputs(seed), seed)) for seed in (21, 22))
        assert not torch.allclose(first, second, rtol=1e-4, atol=0)


def test_a_probe_of_parameters_is_made_where_they_matter(problem_of, profile_of):
    """Weights are seen only with large inputs, so the profile asks for large inputs with other parameters."""
    problem, profile = problem_of("ZeroHere"), profile_of("ZeroHere")

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.linear = [problem.make_model(SEED)], nn.Linear(16, 32)

        def forward(self, x):
            return self.model[0](x)

    assert any(t.distribution == "large" and t.redrawn_parameters for t in profile.needed)
    assert not certified(problem, profile, Frozen()).passed


def test_facts(profile_of):
    two, running, dropped, honest = (profile_of(n) for n in ("TwoInputs", "Running", "Dropped", "Honest"))
    assert two.unused_inputs == (1,) and set(two.without_effect) == {"idle.weight", "idle.bias"}
    assert [(f.path, f.shape, f.dtype) for f in two.outputs] == [
        ("output[0]", (6, 8), "torch.float32"), ("output[1]['best']", (6,), "torch.int64")]
    assert set(running.stateful) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    assert dropped.random and dropped.random_by_values is False and dropped.deterministic
    assert honest.deterministic and not honest.random and not honest.stateful and not honest.changed_inputs
    assert 0 < honest.eager_error["as set"] < 1e-6
    weights = 6 * 3 * 9 + 6
    assert honest.roof.least_bytes == 4 * (4 * 3 * 100 + 4 * 6 * 100 + weights)
    assert honest.roof.operations > 4 * 6 * 100 * 27 * 2
    assert honest.floor_seconds > 0 and honest.roof.cached
    assert honest.without_effect == ()


def test_random_numbers_by_values_and_changed_inputs_and_nondeterminism():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            x += 1
            return x + torch.rand(int(x.sum()) % 7 + 1).sum()

    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.hidden = []

        def forward(self, x):
            self.hidden.append(1)
            return x * len(self.hidden)

    odd = make_profile(load_problem(Odd, [torch.rand(5, 5)], device="cpu"), SEED, 5.0)
    assert odd.random and odd.random_by_values and odd.changed_inputs == (0,)
    drifting = make_profile(load_problem(Drifting, [torch.rand(5, 5)], device="cpu"), SEED, 5.0)
    assert not drifting.deterministic
    assert any("other bits" in sentence for sentence in drifting.words)


def test_a_model_that_cannot_be_captured_has_a_floor(profile_of):
    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, y):
            return self.linear(x) if x.sum() > 0 else -x

    profile = make_profile(load_problem(Deciding, [torch.rand(4, 8), torch.rand(100, 8)], device="cpu"), SEED, 5.0)
    assert profile.roof.operations is None and "not captured" in profile.roof.words
    assert profile.unused_inputs == (1,)
    assert profile.roof.least_bytes == 4 * (4 * 8 + 64 + 8 + 4 * 8)


def test_a_model_that_fails_is_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            return x @ x

    with pytest.raises(ForwardRaised):
        make_profile(load_problem(Failing, [torch.rand(4, 8)], device="cpu"), SEED, 5.0)


def test_little_time_leaves_trials_out_and_says_so(problem_of):
    assert not make_profile(problem_of("Honest"), SEED, 0.0).complete
    assert not make_profile(problem_of("DeepNarrow"), SEED, 0.0).is_trivial


def test_trivial_rests_on_many_trials_whatever_the_budget(problem_of):
    profile = make_profile(problem_of("AlwaysZero"), SEED, 0.0)
    assert profile.is_trivial and not profile.complete and len(profile.probes) == probes.ENOUGH
    assert f"all of {probes.ENOUGH} trials of the model (as given" in profile.words[0] and "large" in profile.words[0]
    # Fewer, say because memory did not suffice, are a doubt and no verdict.
    few = dataclasses.replace(profile, probes=profile.probes[:3])
    assert not few.is_trivial and "zeros" in few.doubt and "3 trials" in few.doubt and not profile.doubt


def test_a_replay_is_refused_where_there_was_no_time_for_a_second_probe(problem_of):
    problem = problem_of("Honest")
    profile = make_profile(problem, SEED, 0.0)
    assert len(profile.probes) == 1 and profile.probes[0].telling
    text = trivial_candidates(problem, SEED)["replay"]
    candidate = problem.make_model(SEED, load_text(text, "replay_in_no_time").ModelNew)
    assert not certified(problem, profile, candidate).passed


def test_the_profile_is_plain_data_and_its_words_say_what_is_weak(profile_of):
    document = json.loads(json.dumps(profile_of("Relu").to_json()))
    assert document["telling"] and document["probes"][0]["passed"] == ["identity"]
    assert any("an input as it is" in s for s in profile_of("Relu").words)
    assert any("zeros" in s and s.startswith("No inputs tell") for s in profile_of("AlwaysZero").words)
    assert any("parameters alone" in s for s in profile_of("OwnToken").words)
    assert profile_of("Honest").words == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_ties_and_denormals(dtype):
    given = torch.rand(64, 64).to(dtype)
    tied = DISTRIBUTIONS["tied"].apply([given], 3)[0]
    assert set(tied.double().unique().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}
    denormal = DISTRIBUTIONS["denormal"].apply([given], 3)[0]
    assert (denormal != 0).any() and (denormal.double().abs() <= torch.finfo(dtype).tiny).all()
    assert (denormal.double() < 0).any() and (denormal.double() > 0).any()
    for name in ("tied", "denormal"):
        again = DISTRIBUTIONS[name].apply([given], 3)[0]
        assert torch.equal(DISTRIBUTIONS[name].apply([given], 3)[0], again)
        assert again.dtype == dtype and not torch.equal(again, given)
