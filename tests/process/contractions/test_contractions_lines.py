"""Windows of two lines in a contraction's kernel: when they are chosen, and what becomes of them otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graph_tools import examples
from hypothesis import event, given
from hypothesis import strategies as st
from plan_tools import Of, contractions, planned
from test_contractions_tune import chosen as chosen_under_emulation
from test_contractions_twice_tune import BYTE, CPU, LAUNCH, captured, measured
from torch import nn

from kernelwright.build.module import BuildFailed
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, Plan
from kernelwright.roofline.devices import GENERIC_CUDA, H200
from kernelwright.tune import accuracy, contraction_fit, contraction_rounds
from kernelwright.tune import contractions as tune
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_memory import Measured
from kernelwright.tune.contraction_recompute import alternatives
from kernelwright.tune.contraction_trials import Case


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)


def a_pool(*, norm: bool = False) -> tuple[Graph, Node]:
    """A convolution's results, pooled in windows of 2 x 2; none of its tensors is made."""
    model = Of(lambda m, x: F.max_pool2d((F.instance_norm(m.a(x)) if norm else m.a(x)).relu(), 2),
               a=nn.Conv2d(64, 64, 3, padding=1, bias=False))
    graph = captured(model, 64, 64, 128, 128)
    (node,) = (n for n in graph.nodes() if can_contract(n))
    return graph, node


def way(case: Case) -> str:
    kernel = case.kernel
    if case.step.pass_number:
        return "pass 2" if kernel.pools else f"pass {case.step.pass_number}"
    return "lines" if kernel.pool_lines > 1 else "windows" if kernel.pools else "apart"


def chosen(graph: Graph, monkeypatch: pytest.MonkeyPatch, found: dict[str, Measured]
           ) -> tuple[dict[Node, KernelConfig], dict[str, Case]]:
    """What is chosen where each case is measured as its way says; and the cases."""
    cases: dict[str, Case] = {}

    def try_out(case: Case, *_: Any, **__: Any) -> Measured:
        cases[way(case)] = case
        return found[way(case)]

    monkeypatch.setattr(contraction_rounds, "try_out", try_out)
    monkeypatch.setattr(contraction_rounds, "build", lambda some, build_all: [([], []) for _ in some])
    monkeypatch.setattr(contraction_rounds, "split_candidates", lambda case, *rest: (case.candidates, ()))
    monkeypatch.setattr(tune, "recall", lambda key: None)
    monkeypatch.setattr(contraction_fit, "generates", lambda kernel: True)
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=8)
    picked, _ = tune.choose(graph, graph, {}, {}, CPU, H200, budget, strict=False, say=lambda line: None,
                            build_all=lambda texts, *rest: [BuildFailed("no")] * len(texts))
    return picked, cases


def plan_with(graph: Graph, choices: Mapping[Node, KernelConfig]) -> Plan:
    return make_plan(graph, graph, move_bias=True, contractions=choices)


def test_the_fastest_of_three_ways(monkeypatch):
    """Each with what its plan does behind it: nothing, a pass over half of the results, or one over all of them."""
    graph, node = a_pool()
    of_lines = (node.bytes // 2 + node.bytes // 4) * BYTE + LAUNCH
    of_windows = (node.bytes + node.bytes // 4) * BYTE + LAUNCH

    def at(lines: float, windows: float, apart: float) -> KernelConfig:
        picked, cases = chosen(graph, monkeypatch, {
            "lines": measured(lines, number=1), "windows": measured(windows, number=2),
            "apart": measured(apart, number=3)})
        assert cases.keys() == {"lines", "windows", "apart"}
        assert cases["lines"].saved_seconds == pytest.approx(of_windows)
        assert cases["windows"].saved_seconds == pytest.approx(of_windows - of_lines)
        (kernel,) = contractions(plan_with(graph, picked))
        assert kernel.tiling == picked[node].tiling
        return picked[node]

    assert at(0.3, 0.3 - 0.9 * of_lines, 0.3 - 0.9 * of_windows).tiling == 1
    windows = at(0.3, 0.3 - 1.1 * of_lines, 0.3 - 0.9 * of_windows)
    assert windows.tiling == 2 and windows.reduces and not windows.lines
    apart = at(0.3, 0.3 - 0.9 * of_lines, 0.3 - 1.1 * of_windows)
    assert apart.tiling == 3 and not apart.reduces


def test_behind_a_norm(monkeypatch):
    """The second of two kernels takes lines."""
    graph, node = a_pool(norm=True)
    slow = measured(0.9, torch_seconds=1.0)
    picked, cases = chosen(graph, monkeypatch, {"pass 1": measured(0.1, number=1), "pass 2": measured(0.1, number=2),
                                                "joined": slow, "apart": slow, "lines": slow, "windows": slow})
    assert cases["pass 2"].kernel.pool_lines == 2 and picked[node].recompute.lines
    assert [k.pool_lines for k in contractions(plan_with(graph, picked))] == [1, 2]


def test_they_are_measured_and_told(monkeypatch):
    monkeypatch.setattr(tune, "_WIN", 1e9)
    monkeypatch.setattr(accuracy, "_RMS_NOISE", 4.0)
    monkeypatch.setattr(accuracy, "_MAX_NOISE", 4.0)
    model = nn.Sequential(nn.Conv2d(16, 20, 3), nn.ReLU(), nn.MaxPool2d(2))
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=3)
    picked, left, lines = chosen_under_emulation(model, torch.randn(2, 16, 8, 10), budget=budget)
    assert len(lines) == 3 and not left and len(picked) == 1
    assert sum("its windows of two lines reduced" in line for line in lines) == 1
    assert sum("its windows reduced" in line for line in lines) == 1


def test_without_a_device(monkeypatch):
    """Where the portable core is all there is, it takes windows of the last axis."""
    graph, _ = a_pool()
    monkeypatch.setattr(tune, "node_seconds", lambda node, row: 1.0)  # a library that is slow
    for row, lines in ((H200, 2), (GENERIC_CUDA, 1)):
        picked = tune.predicted(graph, graph, row)
        (kernel,) = contractions(plan_with(graph, picked))
        assert kernel.pools and kernel.pool_lines == lines and isinstance(kernel.tiling, Tiling)


def test_a_form_without_room_for_lines_takes_windows():
    graph, node = a_pool()
    one_phase = KernelConfig("fp16x3", Tiling("wgmma", rows=64, columns=64, depth=16, stages=3, promote=2))

    def kernel_of(choice: KernelConfig) -> Contraction:
        picked = contraction_fit.fitting(lambda choices: plan_with(graph, choices), {node: choice})
        (kernel,) = contractions(plan_with(graph, picked))
        return kernel

    kernel = kernel_of(one_phase)
    assert kernel.pools and kernel.pool_lines == 1 and kernel.tiling == one_phase.tiling


@examples(80)
@given(st.data())
def test_any_pool_behind_any_convolution(data):
    """Whatever joins the kernel: the plan gives what PyTorch does, in float64."""
    rank, draw = data.draw(st.integers(2, 3)), data.draw
    transposed, groups = draw(st.booleans()), draw(st.sampled_from((1, 1, 2)))
    stride = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    options = {"stride": stride, "padding": draw(st.integers(0, 1)), "groups": groups, "bias": draw(st.booleans())}
    kind = {(2, False): nn.Conv2d, (2, True): nn.ConvTranspose2d, (3, False): nn.Conv3d,
            (3, True): nn.ConvTranspose3d}[rank, transposed]
    layer = kind(4, 6, draw(st.integers(1, 3)), **options)
    x = torch.randn(2, 4, *(draw(st.integers(5, 9)) for _ in range(rank)))
    spatial = layer(x).shape[2:]
    window = tuple(min(draw(st.sampled_from((2, 2, 2, 4, 3, 1))), size) for size in spatial)
    step = draw(st.sampled_from((window, window, window, (1,) * rank)))
    rounded_up, greatest, residual = draw(st.integers(0, 4)) == 4, draw(st.booleans()), draw(st.booleans())
    pool = {(2, True): F.max_pool2d, (2, False): F.avg_pool2d, (3, True): F.max_pool3d,
            (3, False): F.avg_pool3d}[rank, greatest]
    r = torch.randn(1, 6, *spatial) if residual else torch.randn(6, *(1,) * rank)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(pool(F.leaky_relu(m.a(x) * 1.5 + m.r), window, step, ceil_mode=rounded_up)) * 2

    kernels = contractions(planned(Of(forward, a=layer, r=r), (x,), lines=draw(st.booleans())))
    assert len(kernels) == 1
    event(f"windows of {kernels[0].pool_window if kernels[0].pools else ()}")


# Windows that are output phases -------------------------------------------------------------------


@pytest.mark.parametrize("norm", [False, True], ids=["alone", "behind a norm"])
@pytest.mark.parametrize(("channels", "window"), [(3, (1, 2, 2)), (64, (1, 1, 2))])
def test_windows_of_phases_are_lines_where_a_kernel_takes_them(norm, channels, window):
    """Where no kernel does, since multiply-adds alone could and are slow, windows of the last axis are left."""
    space = 3 if window[1] == 1 else 2
    convolution, pool = ((nn.ConvTranspose3d, F.max_pool3d) if space == 3 else (nn.ConvTranspose2d, F.max_pool2d))
    model = Of(lambda m, x: pool(m.n(m.a(x)) if norm else m.a(x), 2),
               a=convolution(channels, 64, 3, stride=2, padding=1, output_padding=1),
               n=(nn.BatchNorm3d if space == 3 else nn.BatchNorm2d)(64))
    graph = captured(model, 4, channels, *(16,) * space)
    choices = {node: KernelConfig("fp16x3") for node in graph.nodes() if can_contract(node)}
    steps, _, pairs = alternatives(lambda some: plan_with(graph, some), choices, H200)
    first, *_ = (s.kernel for s in steps if s.kernel.pools)
    assert (first.pool_planes, first.pool_lines, first.pool_size) == window
    assert len(pairs) == norm and (not norm or [s.pass_number for s in steps if s.kernel.pools] == [2])
    everything, _, _ = alternatives(lambda some: plan_with(graph, some), choices, H200, lambda kernel: True)
    assert max(s.kernel.pool_lines for s in everything) == 2
