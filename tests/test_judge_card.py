"""The problem card: what it finds about a problem, and that its trials refuse candidates that do not compute."""

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
from kernelwright.judge import probes
from kernelwright.judge.card import UNUSUAL_VALUES, Card, make_card, required, trials, wanted
from kernelwright.judge.trivial import trivial_candidates
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
def card_of(problem_of):
    @cache
    def make(name: str) -> Card:
        return make_card(problem_of(name), SEED, 60.0)

    return make


def certified(problem: Problem, card: Card, candidate: nn.Module, budget: float = 0.0):
    """The certificate of a candidate with as little time as possible: only what must run does."""
    plan = Plan(trials=trials(card), required=required(card), budget_seconds=budget, repeats=1)
    return certify(lambda: problem.make_model(SEED), lambda: candidate, problem.make_inputs, plan=plan)


def test_global_random_state_is_left_alone(problem_of):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    make_card(problem_of("Dropped"), SEED, 5.0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", NAMES)
def test_candidates_that_do_not_compute_are_refused_or_the_problem_is_trivial(problem_of, card_of, name):
    problem, card = problem_of(name), card_of(name)
    assert set(card.trivial) == TRIVIAL.get(name, set())
    assert card.is_trivial == (name in TRIVIAL)
    texts = trivial_candidates(problem, SEED)
    assert {"zeros", "constant", "replay"} <= set(texts)
    for kind, text in texts.items():
        candidate = problem.make_model(SEED, load_text(text, f"{kind}_{name.lower()}").ModelNew)
        found = certified(problem, card, candidate)
        assert found.passed == (kind in card.trivial), (kind, found.sentence())
        assert found.state_copied, found.state_problems


@pytest.mark.parametrize("name", NAMES)
def test_the_model_itself_passes_all_trials(problem_of, card_of, name):
    problem, card = problem_of(name), card_of(name)
    found = certified(problem, card, problem.make_model(SEED), budget=60.0)
    assert found.passed, found.sentence()
    assert not found.skipped


@pytest.mark.parametrize("name", NAMES)
def test_trials_begin_with_the_problems_own_inputs_and_those_that_tell(card_of, name):
    card = card_of(name)
    plans = trials(card)
    assert plans[0].distribution == "as given" and not plans[0].redrawn_parameters
    assert len(set(plans)) == len(plans) >= 15
    assert set(card.needed) <= set(plans[:required(card)])
    telling = [p.plan for p in card.probes if p.telling]
    assert sum(plan in telling for plan in plans[:required(card)]) >= min(2, len(telling))


@pytest.mark.parametrize("name", NAMES)
def test_unusual_values_come_next(card_of, name):
    card = card_of(name)
    plans = trials(card)
    assert {"large", "small", "with NaN"} <= {plan.distribution for plan in plans[:wanted(card)]}
    rest = set(plans[1:wanted(card)]) - set(card.needed)
    assert all(plan.distribution in UNUSUAL_VALUES for plan in rest) and wanted(card) <= required(card) + 3


@pytest.mark.parametrize("name, own, others", [("Honest", True, True), ("ZeroHere", False, True),
                                               ("DeepNarrow", False, True), ("AlwaysZero", False, False),
                                               ("OwnToken", False, False)])
def test_a_stored_result_of_another_draw_shows_with_varying_inputs(problem_of, card_of, name, own, others):
    problem, card = problem_of(name), card_of(name)
    assert ("as given" in card.varying) == own
    assert bool(card.varying) == others
    if others:
        kind, model = DISTRIBUTIONS[card.varying[0]], problem.make_model(SEED)
        first, second = (model(*kind.apply(problem.make_inputs(seed), seed)) for seed in (21, 22))
        assert not torch.allclose(first, second, rtol=1e-4, atol=0)


def test_a_probe_of_parameters_is_made_where_they_matter(problem_of, card_of):
    """Weights are seen only with large inputs, so the card asks for large inputs with other parameters."""
    problem, card = problem_of("ZeroHere"), card_of("ZeroHere")

    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.model, self.linear = [problem.make_model(SEED)], nn.Linear(16, 32)

        def forward(self, x):
            return self.model[0](x)

    assert any(t.distribution == "large" and t.redrawn_parameters for t in card.needed)
    assert not certified(problem, card, Frozen()).passed


def test_facts(card_of):
    two, running, dropped, honest = (card_of(n) for n in ("TwoInputs", "Running", "Dropped", "Honest"))
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

    odd = make_card(load_problem(Odd, [torch.rand(5, 5)], device="cpu"), SEED, 5.0)
    assert odd.random and odd.random_by_values and odd.changed_inputs == (0,)
    drifting = make_card(load_problem(Drifting, [torch.rand(5, 5)], device="cpu"), SEED, 5.0)
    assert not drifting.deterministic
    assert any("other bits" in sentence for sentence in drifting.words)


def test_a_model_that_cannot_be_captured_has_a_floor(card_of):
    class Deciding(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x, y):
            return self.linear(x) if x.sum() > 0 else -x

    card = make_card(load_problem(Deciding, [torch.rand(4, 8), torch.rand(100, 8)], device="cpu"), SEED, 5.0)
    assert card.roof.operations is None and "not captured" in card.roof.words
    assert card.unused_inputs == (1,)
    assert card.roof.least_bytes == 4 * (4 * 8 + 64 + 8 + 4 * 8)


def test_a_model_that_fails_is_an_error():
    class Failing(nn.Module):
        def forward(self, x):
            return x @ x

    with pytest.raises(ForwardRaised):
        make_card(load_problem(Failing, [torch.rand(4, 8)], device="cpu"), SEED, 5.0)


def test_little_time_leaves_trials_out_and_says_so(problem_of):
    assert not make_card(problem_of("Honest"), SEED, 0.0).complete
    assert not make_card(problem_of("DeepNarrow"), SEED, 0.0).is_trivial


def test_trivial_rests_on_many_trials_whatever_the_budget(problem_of):
    card = make_card(problem_of("AlwaysZero"), SEED, 0.0)
    assert card.is_trivial and not card.complete and len(card.probes) == probes.ENOUGH
    assert f"all of {probes.ENOUGH} trials of the model (as given" in card.words[0] and "large" in card.words[0]
    # Fewer, say because memory did not suffice, are a doubt and no verdict.
    few = dataclasses.replace(card, probes=card.probes[:3])
    assert not few.is_trivial and "zeros" in few.doubt and "3 trials" in few.doubt and not card.doubt


def test_a_replay_is_refused_where_there_was_no_time_for_a_second_probe(problem_of):
    problem = problem_of("Honest")
    card = make_card(problem, SEED, 0.0)
    assert len(card.probes) == 1 and card.probes[0].telling
    text = trivial_candidates(problem, SEED)["replay"]
    candidate = problem.make_model(SEED, load_text(text, "replay_in_no_time").ModelNew)
    assert not certified(problem, card, candidate).passed


def test_the_card_is_plain_data_and_its_words_say_what_is_weak(card_of):
    document = json.loads(json.dumps(card_of("Relu").to_json()))
    assert document["telling"] and document["probes"][0]["passed"] == ["identity"]
    assert any("an input as it is" in s for s in card_of("Relu").words)
    assert any("zeros" in s and s.startswith("No inputs tell") for s in card_of("AlwaysZero").words)
    assert any("parameters alone" in s for s in card_of("OwnToken").words)
    assert card_of("Honest").words == ()


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
