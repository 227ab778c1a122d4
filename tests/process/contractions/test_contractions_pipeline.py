"""Contractions from a model to an emitted file whose kernels run under the emulation."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kernelwright
from kernelwright import emulated, selection, verified
from kernelwright.algebra.engine import Rewriting
from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.gemm.generate import tilings
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.errors import VerificationFailed
from kernelwright.modes import ModeProgram
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig
from kernelwright.programs import Stages
from kernelwright.progress import Progress
from kernelwright.report import as_json, render_text
from kernelwright.roofline.devices import H200
from kernelwright.settings import Settings
from kernelwright.tune import contractions as tune
from kernelwright.tuned import Tuning


class Network(nn.Module):
    """A convolution with its bias, a residual, an activation, a transposed convolution and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 8, 3, padding=1)
        self.second = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Linear(4 * 10 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(x) + x)
        return torch.tanh(self.last(F.gelu(self.second(x)).flatten(1)))


@pytest.fixture
def everything_pays(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    monkeypatch.setattr(tune, "_WIN_ALONE", 1e9)
    monkeypatch.setattr(emulated, "find_cuda_compiler", lambda: None)
    torch.manual_seed(0)


def test_an_emitted_file_without_a_device(everything_pays):
    result = kernelwright.optimize(Network(), (torch.randn(4, 8, 5, 4),), target="cuda",
                                   contractions="measured")
    assert sum("Checked by emulation" in note for note in result.notes) == 2, result.notes
    mode = result.modes[0]
    assert [k.kind for k in mode.kernels] == ["contraction"] * 3 and mode.replaced == mode.operators and not mode.kept
    assert all(k.contraction.scheme == "fp16x3" and k.contraction.operations > 0 for k in mode.kernels)
    assert "fp16x3 on tensor cores (float32 operands split into two float16 terms" in " ".join(result.source.split())
    assert "fp16x3 on tensor cores" in render_text(result)
    assert as_json(result)["modes"][0]["kernels"][0]["contraction"]["scheme"] == "fp16x3"


def test_by_default_only_a_device_makes_kernels_of_contractions(everything_pays):
    """What nobody can measure stays with the library, unless it is asked for."""
    result = kernelwright.optimize(Network(), (torch.randn(4, 8, 5, 4),), target="cuda")
    assert all(kernel.contraction is None for mode in result.modes for kernel in mode.kernels)


class Reducing(nn.Module):
    """Softmax over the channels of a convolution, a norm of a product's, and what is left of another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 12, 3, padding=1)
        self.second = nn.Linear(12 * 10, 20)
        self.norm = nn.LayerNorm(20)
        self.last = nn.Linear(20, 30)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.second(torch.softmax(self.first(x), 1).flatten(1)))
        return torch.tanh(y), torch.logsumexp(self.last(y), -1)


def test_reductions_of_channels_in_an_emitted_file(everything_pays):
    result = kernelwright.optimize(Reducing(), (torch.randn(6, 8, 5, 2),), target="cuda", contractions="measured")
    assert sum("Checked by emulation" in note for note in result.notes) == 2, result.notes
    mode = result.modes[0]
    assert [k.kind for k in mode.kernels] == ["contraction"] * 3 and not mode.kept
    texts = [k.meaning for k in mode.kernels]
    assert ["max, sum over" in t or "moments over" in t or "logsumexp over" in t for t in texts] == [True] * 3, texts


class Upsampled(nn.Module):
    """Softmax over the channels of a transposed convolution with a chain behind it, log-sum-exp over another's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, output_padding=1)
        self.second = nn.ConvTranspose3d(3, 16, 3, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(12, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.logsumexp(self.second(x.unflatten(1, (3, 4))[..., :5, :6]), 1, keepdim=True)
        return torch.sigmoid((torch.softmax(self.first(x[:, :8]), 1) + self.bias) * 2.0), F.hardtanh(F.hardswish(y))


def test_channels_are_reduced_in_tiles_of_both_phases(everything_pays, monkeypatch):
    """As the device for which wgmma's tilings are taken would have them."""
    first = {}

    def hopper(kernel: Contraction, core: str) -> list[Tiling]:
        found = tilings(kernel, "wgmma")
        first[kernel.out_channels] = found[0]
        return found

    monkeypatch.setattr(tune, "tilings", hopper)
    result = kernelwright.optimize(Upsampled(), (torch.randn(3, 12, 7, 9),), target="cuda", contractions="measured")
    assert sum("Checked by emulation" in note for note in result.notes) == 2, result.notes
    kernels = [k for k in result.modes[0].kernels if k.contraction is not None]
    meanings = " ".join(k.meaning for k in kernels)
    assert len(kernels) == 2 and "max, sum over" in meanings and "logsumexp over" in meanings, meanings
    assert {channels: tiling.parities for channels, tiling in first.items()} == {12: 2, 16: 2}
    assert "wgmma_f16" in result.source and "_quotient(" in result.source


class OverPositions(nn.Module):
    """A mean over positions, a norm of groups, and pools of a convolution's and a transposed convolution's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(8, 6, 3, padding=1)
        self.norm = nn.GroupNorm(3, 6)
        self.second = nn.Conv2d(6, 8, 3)
        self.third = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.fourth = nn.Conv2d(6, 5, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = F.relu(self.norm(torch.tanh(self.first(x))))
        return F.gelu(self.second(y)).mean((2, 3)), F.max_pool2d(F.gelu(self.third(y)), 2), \
            F.avg_pool2d(torch.sigmoid(self.fourth(y)), (3, 4))


def test_reductions_of_positions_in_an_emitted_file(everything_pays):
    result = kernelwright.optimize(OverPositions(), (torch.randn(3, 8, 9, 10),), target="cuda",
                                   contractions="measured")
    assert sum("Checked by emulation" in note for note in result.notes) == 2, result.notes
    kernels = [k for k in result.modes[0].kernels if k.contraction is not None]
    meanings = " ".join(k.meaning for k in kernels)
    assert len(kernels) == 4 and "moments over the 90 positions of each channel" in meanings, meanings
    assert "sum over each 4 positions along the last axis" in meanings, meanings
    # Both phases of a transposed convolution's last axis are in a tile of wgmma alone.
    assert "max over" not in meanings, meanings


def test_what_is_too_much_for_the_emulation_is_told(everything_pays, monkeypatch):
    monkeypatch.setattr(emulated, "_EMULATED_OPERATIONS", 10_000)
    result = kernelwright.optimize(Network(), (torch.randn(4, 8, 5, 4),), target="cuda",
                                   contractions="measured")
    assert any("3 contractions were not run" in note for note in result.notes), result.notes
    assert any("Checked by emulation" in note for note in result.notes)
    assert len(result.modes[0].kernels) == 3


@pytest.mark.parametrize(("scheme", "passes"), [("fp16x3", "none"), ("fp16", "none"), ("fp16", "exact")])
def test_a_program_that_fails_its_checks_gives_its_contractions_back(monkeypatch, scheme, passes):
    """Where operands are rounded, exact functions behind them are tried before."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    graph = capture(model, (torch.randn(4, 6),))
    (node,) = (n for n in graph.nodes() if n.op == "linear")
    mode = ModeProgram("training", model, graph, Rewriting(graph, (), 0.0, 0.0), make_plan(graph, graph))
    chosen = replace(mode, plan=make_plan(graph, graph, contractions={node: KernelConfig(scheme)}))
    judged = []

    failed = SimpleNamespace(passed=False, recorded=None, recording=False, is_other_computation=False, trials=(),
                             sentence=lambda: "Failed: an error of 1")

    def certified(problem, mode, *rest, **_):
        plan = mode.plan
        judged.append(plan)
        fails = plan.contractions and not (passes == "exact" and plan.contractions[node].exact_functions)
        return failed if fails else SimpleNamespace(passed=True)

    monkeypatch.setattr(Tuning, "modes", lambda *_: [chosen])
    monkeypatch.setattr(Tuning, "after", lambda tuning, mode, step: mode)
    monkeypatch.setattr(selection, "with_strides_of_eager", lambda problem, mode, *_: [mode])
    monkeypatch.setattr(verified, "written", lambda problem, modes, *_: (modes, "", ()))
    monkeypatch.setattr(verified, "built", lambda problem, modes, *_: (modes, "", None))
    monkeypatch.setattr(verified, "misfit", lambda *_: "")
    monkeypatch.setattr(verified, "given_by_model", lambda *_, recording: None)
    monkeypatch.setattr(verified, "certificate_of", certified)
    monkeypatch.setattr(selection, "_timed", lambda *_, **__: ({}, {}))
    for module in (selection, verified):
        monkeypatch.setattr(module, "new_model", lambda *_: nn.Sequential(nn.Linear(6, 5), nn.Tanh()))
    problem = SimpleNamespace(device=torch.device("cpu"), class_name="Model", source=None)
    rest = ([], "cuda", H200, Settings(), Stages(Progress()))
    _, (result,), *_ = selection.select(problem, [mode], *rest)
    exact = [k.kernel.exact_functions for plan in judged for k in plan.kernels if isinstance(k.kernel, Contraction)]
    assert exact == [False, True][:1 if scheme == "fp16x3" else 2] and judged[-1] is result.plan
    if passes == "exact":
        assert node not in result.plan.kept
        return
    assert len(judged) == len(exact) + 1 and result.plan.kept[node] == f"{verified.REFUSED}: an error of 1"
    monkeypatch.setattr(verified, "certificate_of", lambda *_, **__: failed)
    with pytest.raises(VerificationFailed):
        selection.select(problem, [mode], *rest)
