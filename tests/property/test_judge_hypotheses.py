"""Hypotheses: the one change of a model that makes it give what a wrong candidate gives, found and named."""

from __future__ import annotations

import inspect
import types

import pytest
import torch
import torch.nn.functional as F
from hypothesis_cases import CASES, Attention, Convolution, Head, Perceptron, Pool, RootMeanSquare, head
from torch import nn

from kernelwright.judge.diagnose.evidence import collect
from kernelwright.judge.diagnose.graph_values import GraphValues
from kernelwright.judge.diagnose.hypotheses import explain, find_hypotheses
from kernelwright.judge.diagnose.patterns import find_patterns
from kernelwright.judge.diagnose.words import merge
from kernelwright.problem import load_problem
from kernelwright.verify.observe import identical
from kernelwright.verify.records import TrialPlan


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def made(kind):
    torch.manual_seed(0)
    return kind().train()


def evidence_of(kind, forward, *, redrawn=True):
    candidate = made(kind)
    candidate.forward = types.MethodType(forward, candidate)

    def inputs(seed):
        generator = torch.Generator().manual_seed(seed)
        return kind.inputs(lambda *shape: torch.randn(*shape, generator=generator))

    return collect(lambda: made(kind), candidate, inputs, TrialPlan(3, "as given", redrawn))


@pytest.mark.parametrize("case", range(len(CASES)),
                         ids=lambda i: f"{CASES[i][0].__name__}-{CASES[i][1].split()[0]}-{i}")
def test_the_change_is_named_first(case):
    kind, wanted, words, forward = CASES[case]
    evidence = evidence_of(kind, forward)
    found = merge([*find_patterns(evidence), *explain(made(kind), evidence, 30.0, file=inspect.getfile(kind))])
    assert found[0].kind in wanted.split(), [(f.kind, f.sentence) for f in found]
    assert words in found[0].sentence and found[0].fix
    if found[0].evidence.get("model_line"):
        assert "hypothesis_cases.py:" in found[0].sentence


def test_a_guard_outside_of_its_root():
    class Small(RootMeanSquare):
        @staticmethod
        def inputs(random):
            return [1e-2 * random(8, 64)]

    evidence = evidence_of(Small, lambda s, x: x / (x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-5) * s.weight)
    found = merge([*find_patterns(evidence), *explain(made(Small), evidence, 20.0)])
    assert found[0].kind == "eps" and "added to the root" in found[0].sentence, [f.sentence for f in found]


def test_an_initial_value_in_place_of_a_parameter():
    def forward(self, x):
        return F.max_pool2d(F.leaky_relu(F.batch_norm(self.conv(x), None, None, self.norm.weight, None, True), 0.1),
                            3, 2, 1)

    found = explain(made(Convolution), evidence_of(Convolution, forward), 20.0)
    assert found[0].kind in ("parameter-ignored", "missing-bias"), [f.sentence for f in found]
    assert "norm.bias at its initial 0" in " ".join(f.sentence for f in found)


def test_state_that_is_used_before_it_is_updated():
    class Largest(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.full((), 2.0))

        def forward(self, x):
            self.largest.copy_(torch.maximum(self.largest, x.abs().amax()))
            return x / self.largest

        @staticmethod
        def inputs(random):
            return [5 * random(8, 20)]

    found = explain(made(Largest), evidence_of(Largest, lambda s, x: x / s.largest, redrawn=False), 20.0)
    assert found[0].kind == "state-not-updated" and "largest as it was" in found[0].sentence


def test_a_right_candidate_needs_no_hypothesis():
    evidence = evidence_of(Head, lambda s, x: Head.forward(s, x))
    assert explain(made(Head), evidence, 10.0) == [] == find_patterns(evidence)


def test_parameters_kept_from_the_constructor():
    kept = made(Perceptron)

    def forward(self, x):
        return kept(x)

    found = explain(made(Perceptron), evidence_of(Perceptron, forward), 10.0)
    assert found[0].kind == "parameters-as-constructed" and found[0].evidence["exact"] == 1.0
    assert explain(made(Perceptron), evidence_of(Perceptron, forward, redrawn=False), 10.0) == []


def test_overflow_is_traced_to_the_maximum_that_is_not_subtracted():
    class Large(Attention):
        @staticmethod
        def inputs(random):
            return [50 * random(2, 8, 64), random(2, 8, 64), random(2, 8, 64)]

    def forward(self, q, k, v):
        e = torch.exp(q @ k.mT / 8)
        return e / e.sum(-1, keepdim=True) @ v

    evidence = evidence_of(Large, forward)
    found = merge([*find_patterns(evidence), *explain(made(Large), evidence, 20.0)])
    assert found[0].kind == "max-not-subtracted", [f.sentence for f in found]


def test_a_wrong_update_of_running_statistics():
    def forward(self, x):
        self.norm.momentum = 0.2
        return Convolution.forward(self, x)

    evidence = evidence_of(Convolution, forward)
    found = merge([*find_patterns(evidence), *explain(made(Convolution), evidence, 20.0)])
    assert "running" in found[0].sentence and found[0].evidence["output"].endswith(("running_mean", "running_var"))


def test_what_has_no_graph_has_no_hypotheses_but_patterns():
    class Branching(nn.Module):
        def forward(self, x):
            return x * 2 if float(x.sum()) > 0 else x * 3

        @staticmethod
        def inputs(random):
            return [random(4, 8)]

    evidence = evidence_of(Branching, lambda s, x: Branching.forward(s, x) * -1)
    assert explain(made(Branching), evidence, 5.0) == []
    assert find_patterns(evidence)[0].kind == "sign"


def test_no_time_means_no_hypotheses():
    evidence = evidence_of(Pool, lambda s, x: F.avg_pool2d(x, 3, 2, 1))
    assert explain(made(Pool), evidence, 0.0) == []


def test_a_problem_is_explained_with_its_own_model():
    torch.manual_seed(0)
    problem = load_problem(made(Head), inputs=[torch.randn(3, 4, 9, 9)], device="cpu")
    evidence = evidence_of(Head, lambda s, x: head(s, x, "sum"))
    assert find_hypotheses(problem, evidence, 20.0)[0].kind == "sum-for-mean"


def test_the_graph_gives_what_the_model_gives():
    evidence = evidence_of(Convolution, lambda s, x: s.end(s.conv(x)) * 2)
    values = GraphValues(made(Convolution), evidence)
    output = values.outputs["output"]
    assert torch.allclose(values.get(output), evidence.eager, atol=1e-5)
    unchanged = values.changed({output: lambda get: get(output)}, [output])[0]
    assert identical(unchanged, values.get(output))
