"""Contractions that are recomputed: the choice between that and results that are stored, and the kernels' texts."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from contraction_tools import compiled, generated, run
from plan_tools import Of, contractions
from torch import nn

import kernelwright
from kernelwright import emulated
from kernelwright.build.module import BuildFailed
from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.reference.contraction import evaluate_contraction
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.describe import contraction_use, meaning
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, KernelStep, Measurement
from kernelwright.report import render_text
from kernelwright.roofline.devices import GENERIC_CUDA, H200
from kernelwright.tune import (
    accuracy,
    contraction_candidates,
    contraction_fit,
    contraction_recompute,
    contraction_rounds,
    contraction_trials,
)
from kernelwright.tune import contractions as tune
from kernelwright.tune.accuracy import Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_memory import Measured, Trial
from kernelwright.tune.contraction_recompute import decide_recompute, pairs_of, seconds_of
from kernelwright.tune.contraction_trials import Case, _fused_seconds

CPU = torch.device("cpu")
LAUNCH, BYTE = H200.launch_seconds, 1 / H200.copy
GOOD = (Error(1e-7, 3e-7),)
#: The same kernels are asked for their tilings again and again, which takes seconds.
TILINGS = functools.cache(contraction_candidates.tilings)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)


def captured(model: nn.Module, *shape: int) -> Graph:
    """The graph of a large model, of which no tensor is made."""
    with torch.device("meta"):
        model = model.to_empty(device="meta")
    return capture(model.to_empty(device="cpu"), (torch.empty(shape),))


def a_norm(**options: Any) -> tuple[Graph, Node]:
    model = Of(lambda m, x: F.instance_norm(m.a(x)) * 2, a=nn.Conv2d(4, 6, 3, padding=1, bias=False, **options))
    graph = captured(model, 2, 4, 200, 300)
    (node,) = (n for n in graph.nodes() if can_contract(n))
    return graph, node


def way(case: Case) -> str:
    """Which kernel of a norm's contraction a case is about."""
    if case.step.pass_number:
        return f"pass {case.step.pass_number}"
    return "joined" if case.kernel.position_reductions else "apart"


def chosen(graph: Graph, monkeypatch: pytest.MonkeyPatch, found: dict[str, Measured], kernels: int = 4
           ) -> tuple[dict[Node, KernelConfig], dict[str, Case], list[str]]:
    """What is chosen where each case is measured as its way says; the cases, and the lines that were said."""
    cases: dict[str, Case] = {}

    def try_out(case, *rest, **options):
        cases[way(case)] = case
        return found[way(case)]

    monkeypatch.setattr(contraction_candidates, "tilings", TILINGS)
    monkeypatch.setattr(contraction_rounds, "try_out", try_out)
    monkeypatch.setattr(contraction_rounds, "build", lambda some, build_all: [([], []) for _ in some])
    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    monkeypatch.setattr(tune, "recall", lambda key: None)
    monkeypatch.setattr(contraction_fit, "generates", lambda kernel: True)
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=kernels)
    lines: list[str] = []
    picked, _ = tune.choose(graph, graph, {}, {}, CPU, H200, budget, strict=False, say=lines.append,
                            build_all=lambda texts, *rest: [BuildFailed("no")] * len(texts))
    return picked, cases, lines


def measured(seconds: float, scheme: str = "fp16x3", torch_seconds: float = 1.0, number: int | None = None) -> Measured:
    return Measured((Trial(KernelConfig(scheme, number), seconds, GOOD),), (), torch_seconds, GOOD)


def test_the_fastest_of_all_ways(monkeypatch):
    """Each with what its plan does behind it: a pass that normalises, one for statistics before that, or nothing."""
    graph, node = a_norm()
    small = 2 * 6 * 4
    normalise = (2 * node.bytes + 2 * small) * BYTE + LAUNCH
    statistics = (node.bytes + 2 * small) * BYTE + LAUNCH

    def at(first: float, second: float, joined: float, apart: float) -> KernelConfig:
        picked, cases, lines = chosen(graph, monkeypatch, {
            "pass 1": measured(first, number=1), "pass 2": measured(second, number=2),
            "joined": measured(joined, number=3), "apart": measured(apart, number=4)})
        assert cases.keys() == {"pass 1", "pass 2", "joined", "apart"}
        assert cases["pass 2"].saved_seconds == pytest.approx(normalise + statistics)
        assert cases["joined"].saved_seconds == pytest.approx(statistics)
        assert cases["pass 1"].saved_seconds == cases["apart"].saved_seconds == float("inf")
        assert sum("in pass 1 of two" in line for line in lines) == 1
        assert any("is recomputed" in line for line in lines) == (picked[node].recompute is not None)
        return picked[node]

    twice = at(0.1, 0.2, 0.3 - 0.9 * normalise, 0.5)
    assert twice.tiling == 1 and twice.recompute.tiling == 2 and twice.reduces and not twice.recompute.reduces
    assert seconds_of(twice) == pytest.approx(0.3) and twice.measurement.seconds == 0.1
    joined = at(0.1, 0.2, 0.3 - 1.1 * normalise, 0.5)
    assert joined.tiling == 3 and joined.reduces and joined.recompute is None
    assert at(0.1, 0.2, 0.5, 0.3 - 0.9 * (normalise + statistics)).recompute is not None
    apart = at(0.1, 0.2, 0.5, 0.3 - 1.1 * (normalise + statistics))
    assert apart.tiling == 4 and not apart.reduces and apart.recompute is None
    for choice in (twice, joined, apart):
        plan = make_plan(graph, graph, move_bias=True, contractions={node: choice})
        assert [k.tiling for k in contractions(plan)] == [
            c.tiling for c in (choice, choice.recompute) if c is not None]


def test_what_is_not_accurate_or_too_slow_is_not_computed_twice(monkeypatch):
    graph, node = a_norm()
    others = {"joined": measured(0.9, torch_seconds=0.1), "apart": measured(0.9, torch_seconds=0.1)}
    assert node not in chosen(graph, monkeypatch, {"pass 1": measured(0.3), "pass 2": measured(0.7), **others})[0]
    assert chosen(graph, monkeypatch, {"pass 1": measured(0.3), "pass 2": measured(0.6), **others})[0][node].recompute
    wrong = replace(measured(0.1), errors=(Error(1e-9, 1e-9),))
    assert node not in chosen(graph, monkeypatch, {"pass 1": wrong, "pass 2": measured(0.1), **others})[0]
    assert node not in chosen(graph, monkeypatch, {"pass 1": measured(0.1), "pass 2": wrong, **others})[0]
    two_schemes = {"pass 1": measured(0.1, "fp16"), "pass 2": measured(0.1), **others}
    assert node not in chosen(graph, monkeypatch, two_schemes)[0]


def test_both_kernels_have_one_scheme():
    graph, node = a_norm()
    choice = KernelConfig("fp16x3", recompute=KernelConfig("fp16x3"))
    (pair,) = pairs_of(make_plan(graph, graph, contractions={node: choice})).values()
    trials = {scheme: Trial(KernelConfig(scheme, number), seconds, GOOD)
              for number, (scheme, seconds) in enumerate([("fp16", 0.3), ("fp16x3", 0.1), ("float32", 0.2)])}
    first = Measured((trials["fp16"], trials["fp16x3"]), (), 1.0, GOOD)
    second = Measured((trials["float32"], trials["fp16"]), (), 2.0, GOOD)
    found = decide_recompute(pair, first, second, 0.9)
    assert found == KernelConfig("fp16", 0, Measurement(0.3, 1.0, 1e-7, 1e-7), reduces=True,
                                 recompute=KernelConfig("fp16", 0, Measurement(0.3, 2.0, 1e-7, 1e-7), reduces=False))
    assert decide_recompute(pair, first, second, 0.2) is None
    assert decide_recompute(pair, None, second, 0.9) is None and decide_recompute(pair, first, None, 0.9) is None


def test_what_forms_no_sums_goes_with_any_scheme():
    """The fastest of both kernels, where the first one has its statistics from products of x with itself."""
    graph, node = a_norm()
    choice = KernelConfig("fp16x3", recompute=KernelConfig("fp16x3"))
    (pair,) = pairs_of(make_plan(graph, graph, contractions={node: choice})).values()
    first = Measured((Trial(KernelConfig("fp16x3", 1), 0.3, GOOD), Trial(KernelConfig("correlation"), 0.1, GOOD)), (),
                     1.0, GOOD)
    second = Measured((Trial(KernelConfig("float32", 2), 0.2, GOOD), Trial(KernelConfig("fp16x3", 3), 0.3, GOOD)), (),
                      2.0, GOOD)
    found = decide_recompute(pair, first, second, 0.9)
    assert (found.scheme, found.recompute.scheme, found.recompute.tiling) == ("correlation", "float32", 2)
    slow = replace(first, trials=(first.trials[0], replace(first.trials[1], seconds=0.5)))
    found = decide_recompute(pair, slow, second, 0.9)
    assert (found.scheme, found.tiling, found.recompute.scheme) == ("fp16x3", 1, "fp16x3")


def test_exact_functions_of_either_kernel():
    """Where the first candidates no sums and the second rounds its operands, the second has them."""
    measurement = Measurement(0.1, 1.0, 1e-7, 1e-7)
    pair = KernelConfig("correlation", measurement=measurement, recompute=KernelConfig("fp16", 1, measurement))
    exact = pair.exact()
    assert exact == replace(pair, recompute=replace(pair.recompute, exact_functions=True, measurement=None))
    same = KernelConfig("correlation", measurement=measurement, recompute=KernelConfig("fp16x3", 1, measurement))
    assert same.exact() is same and KernelConfig("fp16", 1).exact().exact_functions


def test_what_forms_no_sums_is_given_up_where_they_are_stored():
    """In a plan in which a contraction is not recomputed, or has more to store, the second kernel is alone."""
    graph, node, _ = a_pair()
    again = KernelConfig("fp16x3", number_of_tilings(graph, node)[0])
    pair = KernelConfig("correlation", recompute=again)

    def plan_of(chosen, **options):
        return make_plan(graph, graph, {}, move_bias=True, contractions=chosen, **options)

    assert contraction_fit.fitting(plan_of, {node: pair}) == {node: pair}
    for choice in (replace(pair, reduces=False), KernelConfig("correlation")):
        kept = contraction_fit.fitting(plan_of, {node: choice})
        assert kept == ({node: replace(again, reduces=False, lines=False)} if choice.recompute else {})


def number_of_tilings(graph: Graph, node: Node) -> list[Any]:
    """The tilings of a contraction that stores its results."""
    (step,) = contractions(make_plan(graph, graph, move_bias=True, contractions={
        node: KernelConfig("fp16x3", reduces=False)}))
    return tilings(step, "wgmma")


def test_with_few_kernels_there_may_be_no_pair(monkeypatch):
    graph, node = a_norm()
    found = {name: measured(0.1) for name in ("pass 1", "pass 2", "joined", "apart")}
    picked, cases, _ = chosen(graph, monkeypatch, found, kernels=2)
    assert len(cases) == 2 and picked[node].recompute is None


def a_pair(recompute: KernelConfig | None = None, pool: int = 0) -> tuple[Graph, Node, Any]:
    def forward(m, x):
        y = F.relu(m.n(m.a(x)))
        return F.max_pool2d(y, (1, pool)) if pool else y

    graph = captured(Of(forward, a=nn.Conv2d(8, 16, 3, padding=1), n=nn.GroupNorm(4, 16)), 2, 8, 8, 16)
    (node,) = (n for n in graph.nodes() if can_contract(n))
    plan = make_plan(graph, graph, move_bias=True, contractions={
        node: KernelConfig("fp16x3", recompute=recompute or KernelConfig("fp16x3"))})
    return graph, node, plan


def test_what_is_kept_depends_on_the_way():
    """Measurements of the second kernel stand under what it saves, and under its pass."""
    _, node, plan = a_pair()
    pair = pairs_of(plan)[node]
    first, second = (Case(step, (), 0.5) for step in pair.steps)
    keys = {tune._key(case, CPU, 4, strict=False) for case in (
        first, second, replace(second, saved_seconds=0.25), replace(second, step=replace(pair.second, pass_number=0)))}
    assert len(keys) == 4
    # A kernel that only takes totals is the same whoever reads them.
    assert tune._key(replace(first, step=replace(pair.first, pass_number=0)), CPU, 4, strict=False) == tune._key(
        first, CPU, 4, strict=False)


def test_what_the_torch_call_is_followed_by_counts_whole():
    """No one pass does what the second kernel does."""
    _, node, plan = a_pair()
    pair = pairs_of(plan)[node]
    saved = 10 * (node.bytes * BYTE + LAUNCH)
    assert _fused_seconds(Case(pair.second, (), saved), H200) == pytest.approx(saved)
    once = (2 * node.bytes) * BYTE + LAUNCH
    assert _fused_seconds(Case(replace(pair.second, pass_number=0), (), saved), H200) == pytest.approx(once)


def test_statistics_do_not_hide_what_is_tried():
    _, node, plan = a_pair()
    pair = pairs_of(plan)[node]
    for distribution in accuracy.DISTRIBUTIONS:
        values = accuracy.operands(pair.second.inputs, {}, distribution, CPU, pair.statistics)
        for input_node, value in zip(pair.second.inputs, values, strict=True):
            inside = bool(((value >= 0.5) & (value <= 1)).all())
            assert inside == (input_node in pair.statistics) and value.shape == input_node.shape


@pytest.mark.parametrize("way", ["pass 1", "pass 2"])
def test_each_kernel_is_held_to_the_torch_call(way):
    """On its own results, with statistics as they are drawn: one that loses digits is refused."""
    _, node, plan = a_pair()
    pair = pairs_of(plan)[node]
    step = pair.first if way == "pass 1" else pair.second
    case = Case(step, (), statistics=pair.statistics if way == "pass 2" else frozenset())
    inputs = [torch.zeros(n.shape) for n in step.inputs]
    outputs = evaluate_contraction(step.kernel, inputs, torch.float32)

    def store(digits: float) -> None:
        found = evaluate_contraction(step.kernel, inputs, torch.float32)
        for output, value in zip(outputs, found, strict=True):
            output.copy_(value * (1 + digits * torch.randn(value.shape)))

    calls = {"right": lambda: store(0.0), "wrong": lambda: store(1e-3)}
    errors = contraction_trials._errors(case, calls, inputs, outputs, {}, CPU, strict=True)
    held = [(e, m) for e, m in zip(errors["wrong"], errors[contraction_trials._CALL], strict=True)]
    assert all(e.rms < 1e-6 for e in errors["right"]) and not any(e.no_worse_than(m) for e, m in held)


def test_a_form_without_room_gives_up_what_it_cannot_have(monkeypatch):
    graph, node, plan = a_pair(pool=2)
    assert contractions(plan)[1].pools
    choice = KernelConfig("fp16x3", recompute=KernelConfig("fp16x3"))

    def plan_of(chosen):
        return make_plan(graph, graph, {}, move_bias=True, contractions=chosen)

    for full, expected in ((lambda k: not k.pools, replace(choice, recompute=replace(choice.recompute, reduces=False))),
                           (lambda k: not k.position_reductions, replace(choice, reduces=False, recompute=None))):
        monkeypatch.setattr(contraction_fit, "generates", full)
        assert contraction_fit.fitting(plan_of, {node: choice}) == {node: expected}


# Without a device ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(64), nn.InstanceNorm2d(64), nn.GroupNorm(16, 64)])
def test_few_channels_are_computed_twice_without_a_device(norm):
    """The roofline model promises more of two kernels than of the library's call and what follows it."""
    few = captured(Of(lambda m, x: m.n(m.a(x)) * 2, a=nn.Conv2d(8, 64, 3), n=norm), 128, 8, 128, 128)
    for row, core in ((H200, "row_buffered"), (GENERIC_CUDA, "mma")):
        (choice,) = tune.predicted(few, few, row).values()
        assert choice.recompute is not None and choice.reduces and choice.scheme == choice.recompute.scheme == "fp16x3"
        assert choice.tiling.core == choice.recompute.tiling.core == core
        assert len(pairs_of(make_plan(few, few, move_bias=True, contractions={
            n: choice for n in few.nodes() if can_contract(n)}))) == 1


def test_many_channels_are_not_computed_twice_without_a_device():
    many = captured(Of(lambda m, x: m.n(m.a(x)), a=nn.Conv2d(256, 64, 3), n=nn.BatchNorm2d(64)), 32, 256, 128, 128)
    assert all(choice.recompute is None for choice in tune.predicted(many, many, H200).values())
    alone = captured(Of(lambda m, x: F.gelu(m.a(x)), a=nn.Conv2d(8, 64, 3)), 128, 8, 128, 128)
    assert all(choice.recompute is None for choice in tune.predicted(alone, alone, H200).values())


def test_where_the_second_kernel_cannot_reduce_there_is_no_pair():
    """Both phases of a transposed convolution's last axis are in a tile of wgmma alone, and so are windows of them."""
    model = Of(lambda m, x: F.max_pool3d(m.n(m.a(x)), 2), a=nn.ConvTranspose3d(4, 16, 3, stride=2, padding=1),
               n=nn.BatchNorm3d(16))
    graph = captured(model, 16, 4, 32, 64, 64)
    (choice,) = tune.predicted(graph, graph, H200).values()
    assert choice.recompute.reduces
    assert all(choice.recompute is None for choice in tune.predicted(graph, graph, GENERIC_CUDA).values())


def test_no_tiling_no_pair(monkeypatch):
    few = captured(Of(lambda m, x: F.instance_norm(m.a(x)), a=nn.Conv2d(8, 64, 3)), 128, 8, 128, 128)
    monkeypatch.setattr(contraction_recompute, "tilings", lambda kernel, core: [] if kernel.position_reductions
                        else [None])
    assert all(choice.recompute is None for choice in tune.predicted(few, few, H200).values())


# Texts --------------------------------------------------------------------------------------------


def log_sum(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    return torch.logsumexp(y + F.hardswish(torch.tanh(m.n(y))), 1, keepdim=True)


TEXTS = {
    "group norm": lambda m, x: F.relu(m.n(torch.sigmoid(m.a(x)))) * 2,
    "pool": lambda m, x: F.max_pool2d(m.n(m.a(x)), (1, 2)).clamp(0, 1),
    "log-sum-exp": log_sum,
}


@pytest.mark.parametrize("core", ["wgmma", "mma"])
def test_texts_of_both_kernels(core):
    """What the generated kernels store is what their records mean, to within fp16x3's rounding."""
    steps: list[KernelStep] = []
    for function in TEXTS.values():
        model = Of(function, a=nn.Conv2d(8, 16, 3, padding=1), n=nn.GroupNorm(4, 16))
        graph = capture(model, (torch.randn(2, 8, 9, 16),))
        choice = KernelConfig("fp16x3", recompute=KernelConfig("fp16x3"))
        plan = make_plan(graph, graph, move_bias=True, contractions={
            n: choice for n in graph.nodes() if can_contract(n)})
        steps += [s for pair in pairs_of(plan).values() for s in pair.steps]
    assert len(steps) == 2 * len(TEXTS)
    sources = [generated(s.kernel, next(iter(tilings(s.kernel, core))), f"k{n}") for n, s in enumerate(steps)]
    for step, (library, source) in zip(steps, compiled(sources, sanitize=False), strict=True):
        kernel = source.geometry.kernel
        inputs = [torch.randn(n.shape) for n in step.inputs]
        found, _ = run(library, source, inputs)
        for value, expected in zip(found, evaluate_contraction(kernel, inputs), strict=True):
            torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-4)


class Norms(nn.Module):
    """Convolutions with norms of each kind behind them, and what may stand behind these."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.batch = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.groups = nn.Conv2d(8, 8, 3), nn.GroupNorm(4, 8)
        self.third, self.instance = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.InstanceNorm2d(4, affine=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.batch(torch.tanh(self.first(x))) * 2
        z = self.groups(self.second(x))
        return y, torch.logsumexp(z, 1), self.instance(torch.sigmoid(self.third(x))) / 2


def test_norms_in_an_emitted_file(monkeypatch):
    """Its kernels run under the emulation, and the report says what each is for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    monkeypatch.setattr(contraction_recompute, "predicted_seconds", lambda *_: 0.0)
    result = kernelwright.optimize(Norms(), (torch.randn(3, 8, 9, 10),), target="cuda", contractions="measured")
    assert sum("Checked by emulation" in note for note in result.notes) == 2, result.notes
    kernels = [k for k in result.modes[0].kernels if k.contraction is not None]
    meanings = [k.meaning for k in kernels]
    assert sum("for statistics alone" in m for m in meanings) == sum("a second time" in m for m in meanings) == 3
    assert all("moments over" in m for m in meanings if "for statistics alone" in m)
    assert sum("for statistics alone" in " ".join(line.split()) for line in [render_text(result)]) == 1


def test_the_report_has_the_figures_of_each_kernel():
    graph, node = a_norm()
    choice = KernelConfig("fp16x3", 1, Measurement(0.1, 0.4, 1e-7, 2e-7),
                          recompute=KernelConfig("fp16x3", 2, Measurement(0.2, 0.5, 3e-7, 4e-7)))
    plan = make_plan(graph, graph, contractions={node: choice})
    uses = [contraction_use(s, plan, H200) for s in pairs_of(plan)[node].steps]
    assert [(u.seconds, u.torch_seconds, u.error) for u in uses] == [(0.1, 0.4, 1e-7), (0.2, 0.5, 3e-7)]
    first, second = (meaning(s) for s in pairs_of(plan)[node].steps)
    assert "for statistics alone" in first and "a second time" in second
    assert "moments over the 60000 positions of each channel" in first
