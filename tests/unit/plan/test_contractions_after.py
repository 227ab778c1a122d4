"""What is left to do after a contraction, in a plan that reduces in its kernel and in one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_contractions_plan import Of
from torch import nn

from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.loops.generate import chosen_schedule
from kernelwright.ir.node import Node, make
from kernelwright.modes import saving_plan
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.expressions import Apply, Index, Load, Reduced
from kernelwright.plan.kernels import LoopKernel, Reduction, Store
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, KernelStep, Plan, TorchStep
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import H200
from kernelwright.settings import Settings
from kernelwright.training import with_backward
from kernelwright.tune import contraction_rounds
from kernelwright.tune import contractions as tune
from kernelwright.tune.accuracy import Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_after import Reading, seconds_after, step_seconds
from kernelwright.tune.contraction_fit import fitting, generates
from kernelwright.tune.contraction_memory import Measured, Trial
from kernelwright.tune.contraction_recompute import contraction_of as recorded
from kernelwright.tune.contraction_recompute import reduces
from kernelwright.tune.contraction_trials import Case, _fused_seconds
from kernelwright.tune.layouts import channels_last_plan

CHANNELS = 6
LAUNCH, BYTE = H200.launch_seconds, 1 / H200.copy


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


def plan_of(function: Callable[[Any, torch.Tensor], Any], size: tuple[int, int], **parts: nn.Module) -> Plan:
    """The plan of what follows a convolution's output of ``size``, its reductions apart."""
    parts.setdefault("a", nn.Conv2d(4, CHANNELS, 3, padding=1))
    with torch.device("meta"):
        model, x = Of(lambda m, x: function(m, m.a(x)), **parts), torch.empty(2, 4, *size)
    graph = capture(model.to_empty(device="cpu"), (torch.empty(x.shape),))
    return make_plan(graph, graph, move_bias=True, contractions={
        n: KernelConfig("fp16x3", reduces=False) for n in graph.nodes() if can_contract(n)})


def contraction_of(plan: Plan) -> KernelStep:
    return next(s for s in plan.kernels if isinstance(s.kernel, Contraction))


def joined(plan: Plan, outputs: tuple[Node, ...]) -> Plan:
    """The plan whose contraction stores ``outputs``, without the steps that computed them."""
    step = contraction_of(plan)
    others = [s for s in plan.steps if s is not step and not set(outputs) & set(
        s.outputs if isinstance(s, KernelStep) else (s.node,))]
    return replace(plan, steps=(replace(step, outputs=outputs), *others))


def both(apart: Plan, whole: Plan) -> tuple[float, float]:
    one, other = Reading(apart), Reading(whole)
    return seconds_after([contraction_of(apart)], one, [other], H200), seconds_after(
        [contraction_of(whole)], other, [one], H200)


@pytest.mark.parametrize("size", [(30, 40), (1100, 1200)])
def test_a_mean_reads_the_whole_output(size):
    """Whether it is a torch call (the smaller one) or a kernel."""
    apart = plan_of(lambda m, y: y.relu().mean((2, 3)), size)
    (y,), mean = contraction_of(apart).outputs, apart.results[0]
    step = next(s for s in apart.steps if mean in (s.outputs if isinstance(s, KernelStep) else (s.node,)))
    assert isinstance(step, TorchStep) == (size[0] < 100)
    rest, nothing = both(apart, joined(apart, (mean,)))
    assert rest == pytest.approx((y.bytes + mean.bytes) * BYTE + LAUNCH) and nothing == 0.0


def test_a_norm_with_totals_reads_once_less():
    apart = plan_of(lambda m, y: F.instance_norm(y), (200, 300))
    step, (statistics, result) = apart.steps[0], [s for s in apart.kernels[1:]]
    (y,) = step.outputs
    assert y in result.inputs and set(statistics.outputs) <= set(result.inputs)
    small = sum(n.bytes for n in statistics.outputs)
    whole = joined(apart, (y, *statistics.outputs))
    rest, nothing = both(apart, whole)
    assert rest == pytest.approx((y.bytes + small) * BYTE + LAUNCH) and nothing == 0.0
    unlike = replace(whole, steps=(whole.steps[0], replace(result, inputs=(*result.inputs, y)), *whole.steps[2:]))
    more, once = both(apart, unlike)
    assert once == pytest.approx(step_seconds(unlike.steps[1], H200))
    assert more == pytest.approx(rest + step_seconds(result, H200))  # through the small results, and directly


@pytest.mark.parametrize(("size", "reads"), [((30, 40), 1), ((300, 400), 2)])
def test_rows_that_do_not_stay_on_the_chip_are_read_for_each_walk(size, reads):
    """What only the last walk needs is read once."""
    y, residual = (make("input", name=name, shape=(2, CHANNELS, *size), dtype="float32") for name in ("y", "residual"))
    count = size[0] * size[1]
    place = Index((count, 1))
    value = Apply("add", (Apply("sub", (Load(0, place), Reduced(0))), Load(1, place)))
    kernel = LoopKernel((2 * CHANNELS,), (count,), (Reduction("sum", Load(0, place)),), (Store(0, place, value),), (),
                        ("float32", "float32"), ("float32",))
    assert bool(chosen_schedule(kernel).keep) == (reads == 1)
    step = KernelStep("norm", kernel, (y, residual), (make("add", y, residual),), ())
    assert step_seconds(step, H200) == pytest.approx((reads + 2) * y.bytes * BYTE + LAUNCH)


def test_a_second_kernel_of_a_pool_reads_half():
    apart = plan_of(lambda m, y: F.max_pool2d(y, 2), (64, 96))
    stages = plan_of(lambda m, y: F.max_pool2d(F.max_pool2d(y, (1, 2)), (2, 1)), (64, 96))
    (y,), first = contraction_of(apart).outputs, stages.kernels[1]
    (half,) = first.outputs
    whole = joined(stages, (half,))
    assert half.size * 2 == y.size and len(whole.kernels) == 2
    all_of_it, half_of_it = both(apart, whole)
    assert all_of_it == pytest.approx((y.bytes + y.bytes / 4) * BYTE + LAUNCH)
    assert half_of_it == pytest.approx((half.bytes + y.bytes / 4) * BYTE + LAUNCH)


def test_other_contractions_end_it():
    """What stands behind another contraction, and steps that have nothing to do with this one, do not count."""
    apart = plan_of(lambda m, y: (m.b(y).mean((2, 3)), m.c.sum((1, 2)), y.mean((2, 3))), (1100, 1200),
                    b=nn.Conv2d(CHANNELS, 3, 1), c=nn.Parameter(torch.empty(6, 1100, 1200)))
    y = contraction_of(apart).outputs[0]
    mean = apart.results[2]
    rest, _ = both(apart, replace(apart, steps=(contraction_of(apart),)))
    assert rest == pytest.approx((y.bytes + mean.bytes) * BYTE + LAUNCH)


def test_parts_of_an_input_are_read():
    plan = plan_of(lambda m, y: (y, torch.exp(y[:, 2:4] * 2)), (64, 96))
    step = next(s for s in plan.kernels if isinstance(s.kernel, LoopKernel))
    assert step_seconds(step, H200) == pytest.approx(2 * step.outputs[0].bytes * BYTE + LAUNCH)
    assert step.outputs[0].bytes < step.inputs[0].bytes


@pytest.mark.parametrize("field", ["reductions", "position_reductions", "pools"])
def test_each_kind_counts_as_a_reduction(field):
    plan = plan_of(lambda m, y: y, (8, 8))
    step = contraction_of(plan)
    assert not reduces(step)
    assert reduces(replace(step, kernel=replace(step.kernel, **{field: (Reduction("sum", Reduced(0)),)})))


def test_the_faster_of_a_kernel_with_a_mean_and_one_without(monkeypatch):
    """The plan without it pays a walk over all of the output, and the torch call is taken to be followed by that."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    with torch.device("meta"):
        model = Of(lambda m, x: m.a(x).mean((2, 3)), a=nn.Conv2d(4, CHANNELS, 3, padding=1, bias=False))
    graph = capture(model.to_empty(device="cpu"), (torch.empty(2, 4, 1100, 1200),))
    (node,) = (n for n in graph.nodes() if n.op == "convolution")
    separate = make_plan(graph, graph, move_bias=True, contractions={node: KernelConfig("fp16x3", reduces=False)})
    mean = separate.results[0]
    kernel = contraction_of(separate).kernel
    place = Index((CHANNELS, 0, 1, 0, 0))
    kernel = replace(kernel, position_reductions=(Reduction("sum", Reduced(0)),), stores=(Store(0, place, Reduced(1)),))
    together = joined(separate, (mean,))
    together = replace(together, steps=(replace(together.steps[0], kernel=kernel), *together.steps[1:]))
    one_pass = (node.bytes + mean.bytes) * BYTE + LAUNCH
    cases: dict[bool, Case] = {}
    monkeypatch.setattr(tune, "make_plan", lambda *a, contractions, **k: together if contractions[node].reduces
                        else separate)
    monkeypatch.setattr(tune, "recall", lambda key: None)

    def chosen_at(with_mean: float, without: float) -> bool:
        def try_out(case, *rest, **options):
            cases[bool(case.kernel.position_reductions)] = case
            seconds = with_mean if case.kernel.position_reductions else without
            return Measured((Trial(KernelConfig("fp16x3"), seconds, (Error(1e-7, 3e-7),)),), (), 1.0,
                            (Error(1e-7, 3e-7),))

        monkeypatch.setattr(contraction_rounds, "try_out", try_out)
        budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=2)
        lines: list[str] = []
        picked, _ = tune.choose(graph, graph, {}, {}, torch.device("cpu"), H200, budget, strict=False,
                                say=lines.append, build_all=lambda texts, *rest: [object() for _ in texts])
        assert sum("its positions reduced" in line for line in lines) == 1
        return picked[node].reduces

    monkeypatch.setattr(contraction_rounds, "build", lambda cases, build_all: [([], []) for _ in cases])
    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    assert chosen_at(0.5, 0.5 - 0.9 * one_pass) and not chosen_at(0.5, 0.5 - 1.1 * one_pass)
    assert cases[True].saved_seconds == pytest.approx(one_pass)
    assert _fused_seconds(cases[True], H200) == pytest.approx(one_pass)
    assert _fused_seconds(cases[False], H200) == 0.0  # the sums by themselves are what the torch call stores


def test_a_form_has_room_for_what_another_contraction_leaves():
    """Where a contraction stays a torch call, the reductions that it would have had join one that has its own."""
    def forward(m, x):
        y = m.a(x)
        z = m.b(x) + y
        return F.relu(y).mean((2, 3)), z.tanh().var((2, 3)), z.amax((2, 3)), z.exp().mean((2, 3)), y

    model = Of(forward, a=nn.Conv2d(16, 128, 3), b=nn.Conv2d(16, 128, 3))
    graph = capture(model, (torch.zeros(1, 16, 12, 12),))
    first, second = (n for n in graph.nodes() if can_contract(n))
    narrow = Tiling("wgmma", 64, 64, 16, 2, cluster=2, promote=2)
    wide = Tiling("wgmma", 64, 128, 16, 4, cluster=2, promote=2, pingpong=2)

    def plan_of(chosen):
        return make_plan(graph, graph, {}, move_bias=True, contractions=chosen)

    for tiling, has_room in ((narrow, True), (wide, False)):
        together = {first: KernelConfig("fp16x3", tiling), second: KernelConfig("fp16x3", narrow)}
        assert fitting(plan_of, together) == together
        alone = {first: together[first]}
        assert fitting(plan_of, alone) == {first: replace(alone[first], reduces=has_room)}


def test_a_form_fits_the_order_in_which_its_results_are_stored():
    """What a channels-last convolution reads is stored with its channels side by side, where no tiles overlap."""
    model = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
    graph = capture(model, (torch.zeros(2, 8, 32, 32),))
    first, second = (n for n in graph.nodes() if can_contract(n))
    for tiling in (Tiling("wgmma", 64, 64, 16, 4, cluster=2, pingpong=2, overlap=12),
                   Tiling("wgmma", 64, 64, 8, 4, pingpong=3, overlap=12)):
        plan = make_plan(graph, graph, {second: "slower"}, contractions={first: KernelConfig("fp16", tiling)})
        assert any(step.kernel.tiling == tiling and generates(step.kernel) for step in contractions(plan))
        laid_out = channels_last_plan(plan, graph, {second: (1.0, 0.5)}, H200)
        assert laid_out is not None and laid_out.channels_last == {second}
        assert laid_out.contractions[first] == KernelConfig("fp16", replace(tiling, overlap=0))
        steps = contractions(laid_out)
        assert len(steps) == 1 and generates(steps[0].kernel)
        kernel = replace(steps[0].kernel, tiling=tiling)
        assert not generates(kernel)  # and it has been the order that made the difference


def contractions(plan):
    return [step for step in plan.kernels if isinstance(step.kernel, Contraction)]


class Pooled(nn.Module):
    """A convolution whose pool its kernel makes, in a step of training."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.convolution(x)), 2, 2).tanh()


def test_a_form_has_room_for_what_a_call_hands_its_backward():
    """What the backward reads is stored whole, so that the kernel does not make the pool, as which it was measured."""
    example = [torch.randn(8, 4, 32, 32, requires_grad=True)]
    problem = load_problem(Pooled().train(), example)
    stages = Stages(Progress())
    mode = understand(problem, example, H200, Settings(target="cuda"), stages)[0][0]
    (node,) = (n for n in mode.plan.graph.nodes() if n.op == "convolution")

    def with_config(config: KernelConfig) -> Plan:
        return make_plan(mode.plan.graph, mode.captured, {}, move_bias=True, contractions={node: config})

    config = KernelConfig("fp16x3", lines=True)
    step = contraction_of(with_config(config))
    tiling = next(t for t in tilings(recorded(step), "wgmma") if t.parities == 2)
    measured = with_config(replace(config, tiling=tiling))
    assert reduces(contraction_of(measured)) and generates(recorded(contraction_of(measured)))
    mode = with_backward(replace(mode, plan=measured), example, H200, stages)
    saving = saving_plan(mode, H200)
    assert saving is not None
    own = contraction_of(saving)
    assert not reduces(own) and generates(recorded(own)) and recorded(own).scheme == "fp16x3"
