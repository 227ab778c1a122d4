"""What is given up of a program that fails: less and less exactly what pays, at last everything."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.rule import Exactness
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import run_plan, values_of
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.kernels import LoopKernel, RegionSum
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.way_back.culprits import Culprits
from kernelwright.way_back.fallback import steps_back, without_kind


class Collapsing(nn.Module):
    """A convolution that collapses, a norm, and pointwise operators."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 32, 3)
        self.norm = nn.LayerNorm(32)
        self.linear = nn.Linear(32, 5)

    def forward(self, x):
        return torch.tanh(self.linear(self.norm(self.conv(x).mean((2, 3)))) * 2 + 1)


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    model = Collapsing()
    x = torch.randn(4, 16, 48, 48)
    graph = capture(model, (x,))
    rewriting = rewrite(graph, GENERIC_CPU)
    return model, x, graph, rewriting, make_plan(rewriting.graph, graph, move_bias=True)


def test_every_step_computes_the_same_with_less_given_away(program):
    model, x, graph, rewriting, plan = program
    assert any(a.rule.exactness is Exactness.FINITE for a in rewriting.applications)
    steps = list(steps_back(graph, GENERIC_CPU, "it failed", rewriting, plan))
    assert [s.whole for s in steps] == [False] * (len(steps) - 1) + [True]
    assert "sum of a convolution" in steps[0].without
    exactness = [{a.rule.exactness for a in s.rewriting.applications} for s in steps]
    assert Exactness.FINITE not in exactness[0] and exactness[-2] <= {Exactness.BITWISE}
    kernels, expected = [], copy.deepcopy(model).double()(x.double()).detach()
    for step in steps:
        made = step.plan(graph, GENERIC_CPU)
        kernels.append({n.op for k in made.kernels for n in k.covers})
        (result,), _ = run_plan(made, values_of(model, graph, [x]))
        torch.testing.assert_close(result, expected, rtol=1e-9, atol=1e-12)
    assert "layer_norm" in kernels[0] and "layer_norm" not in kernels[-2] and "tanh" in kernels[-2] and not kernels[-1]


def test_without_a_plan_or_a_rewriting(program):
    """What is not known is not asked for: rules go, then the mode."""
    _, _, graph, rewriting, _ = program
    for known in ((None, None), (rewriting, None)):
        steps = list(steps_back(graph, GENERIC_CPU, "it failed", *known))
        assert len(steps) >= 3 and steps[-1].whole and steps[0].plan(graph, GENERIC_CPU).kernels


def test_culprits_and_contractions_go_before_rules(program):
    """A kernel in favour of a more exact form, else of what it was before a rule, else of PyTorch's call."""
    *_, graph, rewriting, _ = program
    (linear,) = (n for n in rewriting.graph.nodes() if n.op == "linear")
    contracting = make_plan(rewriting.graph, graph, contractions={linear: KernelConfig("fp16")})
    last, sums = contracting.kernels[-1], contracting.kernels[0]
    assert linear in last.covers and sums.outputs[0].op == "region_sum"
    steps = list(steps_back(graph, GENERIC_CPU, "it failed", rewriting, contracting, Culprits(kernels=(last,))))
    assert last.name in steps[0].without and steps[0].contractions[linear].exact_functions and not steps[0].kept
    exact = make_plan(rewriting.graph, graph, contractions=steps[0].contractions)
    last = exact.kernels[-1]
    (step, *_) = steps_back(graph, GENERIC_CPU, "it failed", rewriting, exact, Culprits(kernels=(last,)))
    assert step.without == f"the kernel {last.name}" and step.kept[linear] == "it failed" and not step.contractions
    (step, *_) = steps_back(graph, GENERIC_CPU, "it failed", rewriting, contracting, Culprits(kernels=(sums,)))
    assert "sum of a convolution" in step.without and sums.name in step.without
    assert [n.op for n in step.contractions] == ["linear"]
    assert all(n.op != "region_sum" for n in step.rewriting.graph.nodes()) and not step.kept
    (use,) = {a.use for a in rewriting.applications if a.rule.name == "sum of a convolution"}
    (step, *more) = steps_back(graph, GENERIC_CPU, "it failed", rewriting, contracting, Culprits(rules=(use,)))
    assert str(use) in step.without and all(a.use != use for s in [step, *more] for a in s.rewriting.applications)
    steps = list(steps_back(graph, GENERIC_CPU, "it failed", rewriting, contracting))
    kept = [{n.op for n in s.kept} for s in steps]
    assert steps[0].contractions[linear].exact_functions and not steps[1].contractions and "linear" in kept[1]
    assert steps[1].kept[linear] == "it failed" and "rules" in steps[2].without
    others = replace(contracting, channels_last=frozenset({linear}), contractions={})
    assert "channels-last" in next(steps_back(graph, GENERIC_CPU, "it failed", rewriting, others)).without


def test_kinds_that_a_target_lacks(program):
    """Rules that made operators without a torch call go; else operators are PyTorch's, without what is fused with them;
    the rest stays as it is."""
    model, x, graph, rewriting, _ = program
    (linear,) = (n for n in rewriting.graph.nodes() if n.op == "linear")
    plan = make_plan(rewriting.graph, graph, contractions={linear: KernelConfig("fp16")})
    step = without_kind(graph, GENERIC_CPU, "it lacks them", rewriting, plan, RegionSum)
    assert step.without == "the rule sum of a convolution" and not step.kept
    assert [n.op for n in step.contractions] == ["linear"]
    less = step.plan(graph, GENERIC_CPU)
    assert not any(isinstance(s.kernel, RegionSum) for s in less.kernels)
    step = without_kind(graph, GENERIC_CPU, "it lacks them", step.rewriting, less, Contraction)
    assert {n.op: reason for n, reason in step.kept.items() if n.op == "linear"} == {"linear": "it lacks them"}
    least = step.plan(graph, GENERIC_CPU)
    assert {type(s.kernel) for s in least.kernels} == {LoopKernel} and not least.contractions
    assert {"layer_norm", "tanh"} <= {n.op for k in least.kernels for n in k.covers}
    (result,), _ = run_plan(least, values_of(model, graph, [x]))
    torch.testing.assert_close(result, copy.deepcopy(model).double()(x.double()).detach(), rtol=1e-9, atol=1e-12)
