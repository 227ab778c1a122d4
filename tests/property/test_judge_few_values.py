"""Diagnosis where an output is one number, or one number everywhere: several inputs tell what one would not."""

from __future__ import annotations

import types
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.judge.diagnose.evidence import collect, on_other_inputs, says_little
from kernelwright.judge.diagnose.hypotheses import explain
from kernelwright.judge.diagnose.patterns import find_patterns
from kernelwright.judge.diagnose.words import merge, reason
from kernelwright.verify.records import TrialPlan


class Loss(nn.Module):
    def forward(self, x, target):
        return F.mse_loss(x, target) + 0.1 * x.abs().mean()

    @staticmethod
    def inputs(generator):
        return [torch.rand(8, 20, generator=generator), torch.rand(8, 20, generator=generator)]


class Divergence(nn.Module):
    def forward(self, x, target):
        return F.kl_div(torch.log_softmax(x, 1), torch.softmax(target, 1), reduction="batchmean")

    inputs = Loss.inputs


class Rectified(nn.Module):
    """On numbers in [0, 1) the whole part of everything is zero."""

    def forward(self, x):
        return torch.relu(x) * 2

    @staticmethod
    def inputs(generator):
        return [torch.rand(16, 24, generator=generator)]


def reason_of(kind, forward, *, others=True):
    """The first finding for a faulty forward, with patterns and hypotheses merged as the judge does."""
    def made():
        torch.manual_seed(0)
        return kind().train()

    candidate = made()
    candidate.forward = types.MethodType(forward, candidate)

    def inputs(seed):
        return kind.inputs(torch.Generator().manual_seed(seed))

    evidence = collect(made, candidate, inputs, TrialPlan(3))
    assert says_little(evidence)
    if others:
        evidence = on_other_inputs(evidence, made, candidate, inputs)
        assert len(evidence.others) == 4
    found = merge([*find_patterns(evidence), *explain(made(), evidence, 20.0)])
    return found[0], found


@pytest.mark.parametrize(("kind", "forward", "wanted", "words"), [
    pytest.param(Loss, lambda s, x, t: F.mse_loss(x, t, reduction="sum") + 0.1 * x.abs().mean(),
                 ("mean-for-sum", "sum-for-mean"), "sum", id="sum in place of mean"),
    pytest.param(Loss, lambda s, x, t: F.mse_loss(x, t), ("missing-addend",), "0.1", id="a term is missing"),
    pytest.param(Loss, lambda s, x, t: F.mse_loss(x, t) + x.abs().mean(), ("missing-factor", "wrong-constant"), "0.1",
                 id="a factor is missing"),
    pytest.param(Loss, lambda s, x, t: F.mse_loss(x, t) + 0.3 * x.abs().mean(), ("wrong-constant",), "0.3",
                 id="another factor, found by fitting"),
    pytest.param(Loss, lambda s, x, t: 3 * Loss.forward(s, x, t), ("factor",), "3 times", id="three times as much"),
    pytest.param(Loss, lambda s, x, t: Loss.forward(s, x, t) + 0.25, ("offset",), "0.25", id="always more"),
    pytest.param(Loss, lambda s, x, t: -Loss.forward(s, x, t), ("sign",), "sign", id="negative"),
    pytest.param(Divergence, lambda s, x, t: F.kl_div(torch.log_softmax(x, 1), torch.softmax(t, 1), reduction="mean"),
                 ("factor", "mean-for-sum", "wrong-divisor", "sum-for-mean"), "", id="another reduction"),
    pytest.param(Loss, lambda s, x, t: torch.zeros(()), ("zeros",), "all zero, as on all 5 inputs", id="zero"),
    pytest.param(Loss, lambda s, x, t: torch.tensor(0.37), ("constant",), "0.37", id="a constant"),
    pytest.param(Rectified, lambda s, x: torch.zeros_like(x), ("zeros",), "all zero, as on all 5 inputs",
                 id="zeros everywhere"),
    pytest.param(Rectified, lambda s, x: torch.full_like(x, 2.0), ("constant",), "all 2, as on all 5 inputs",
                 id="a constant everywhere"),
])
def test_what_several_inputs_tell(kind, forward, wanted, words):
    first, found = reason_of(kind, forward)
    assert first.kind in wanted and words in first.sentence, [(f.kind, f.sentence) for f in found]


def test_one_number_is_met_by_chance_and_several_are_not():
    """The mean absolute error is no variant of the squared one: what meets one value of it is not handed on."""
    def forward(self, x, target):
        return (x - target).abs().mean().sqrt() * 0.7

    _, alone = reason_of(Loss, forward, others=False)
    _, several = reason_of(Loss, forward)
    exact = [f for f in several if f.evidence.get("exact", 0) == 1]
    assert not exact, [f.sentence for f in exact]
    assert several[0].kind == "wrong-values" and alone[0].kind != several[0].kind, [f.kind for f in alone]


def test_nearly_a_factor_is_none():
    """Of many values a relation may leave a little; of a few numbers it must hold to rounding."""
    first, found = reason_of(Loss, lambda s, x, t: 2 * Loss.forward(s, x, t) + 0.01 * (x[0, 0] - 0.5))
    assert first.kind != "factor", [f.sentence for f in found]


def test_digits_that_a_sum_loses_are_no_factor():
    """One after the other in float32, where PyTorch adds in blocks: other errors for each input."""
    class Large(nn.Module):
        def forward(self, x):
            return x.square().mean()

        @staticmethod
        def inputs(generator):
            return [torch.rand(60000, generator=generator)]

    first, found = reason_of(Large, lambda s, x: _one_by_one(x.square()) / 60000)
    assert first.kind == "precision", [(f.kind, f.sentence) for f in found]


def _one_by_one(values):
    return torch.from_numpy(values.detach().numpy().cumsum(dtype="float32"))[-1]


def test_zeros_that_a_hypothesis_explains_on_all_inputs():
    """Both are said: nothing was computed, or the minimum for the maximum."""
    class Highest(nn.Module):
        def forward(self, x):
            return torch.relu(x).amax(1)

        @staticmethod
        def inputs(generator):
            return [torch.randn(16, 24, generator=generator)]

    first, found = reason_of(Highest, lambda s, x: torch.zeros(16))
    said, _ = reason("WRONG-NUMERIC", SimpleNamespace(trials=()), found)
    assert first.kind == "zeros" and "nothing wrote them" in said
    assert "(Or the output is what the model gives with the minimum in place of" in said


def test_zeros_that_the_whole_part_would_explain_are_zeros():
    _, found = reason_of(Rectified, lambda s, x: torch.zeros_like(x))
    assert all("trunc" not in f.sentence and "whole" not in f.sentence for f in found), [f.sentence for f in found]
