"""Which programs a file runs as CUDA graphs. What these give is compared in tests/gpu/test_graphs_gpu.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plan_tools import Of
from torch import nn

import kernelwright
from kernelwright.launching import Direct, as_measured, graphs_wanted, runs_as_graph, with_graph
from kernelwright.modes import unknown
from kernelwright.report.measured import launch_sentence
from kernelwright.settings import Settings
from kernelwright.timing import Times, Timing


def source(model: nn.Module, x: torch.Tensor, **options: Any) -> str:
    return kernelwright.explain(model, [x], **{"target": "cuda", "launch": "graph"} | options).source


def plain(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(m.a(x)).sum(-1) * 2


def drawing(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(m.a(x)) + torch.rand(4, 8, device=x.device)).sum(-1)


class Hooked(nn.Linear):
    """A layer that stays Python's."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_forward_hook(lambda module, inputs, output: output * len(str(inputs[0].shape)))


def test_graphs_are_for_programs_that_can_be_recorded() -> None:
    x = torch.randn(4, 8)
    text = source(Of(plain, a=nn.Linear(8, 8)), x)
    assert '"graph": True' in text and "class _KernelwrightGraph" in text and "import gc" in text
    for other in (source(Of(plain, a=nn.Linear(8, 8)), x, launch="direct"),
                  source(Of(plain, a=nn.Linear(8, 8)), x, target="cpp"), source(Of(drawing, a=nn.Linear(8, 8)), x),
                  source(Of(plain, a=Hooked()), x)):
        assert "_kernelwright_call" in other and "Graph" not in other and '"graph"' not in other
        assert "import gc" not in other


def test_a_file_for_a_graph_runs_under_the_emulation() -> None:
    """There it has tensors of the processor, and launches its kernels one by one."""
    result = kernelwright.optimize(Of(plain, a=nn.Linear(8, 8)), [torch.randn(4, 8)], target="cuda", effort="quick",
                                   launch="graph")
    assert '"graph": True' in result.source and result.modes[0].kernels and not any("fail" in n for n in result.notes)


@pytest.mark.parametrize(("launch", "target", "there", "wanted"), [
    ("auto", "cuda", True, True), ("auto", "cuda", False, False), ("graph", "cuda", False, True),
    ("direct", "cuda", True, False), ("auto", "cpp", True, False), ("graph", "cpp", True, False)])
def test_wanted(launch: str, target: str, there: bool, wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelwright.launching.is_here", lambda target: there)
    assert graphs_wanted(Settings(launch=launch), target) == wanted


def test_the_measured_launch_is_every_modes_of_a_program() -> None:
    model = nn.Linear(2, 2)
    first = replace(unknown("inference", model), graph=True)
    modes = [first, first.in_mode("training", nn.Linear(2, 2))]
    for launch, kept in (("direct", False), ("graph", True), ("", True)):
        timings = {"inference": SimpleNamespace(launch=launch)}
        assert [m.graph for m in as_measured(modes, timings)] == [kept, kept]
    assert as_measured(modes, {}) == modes


def test_a_model_without_its_graph() -> None:
    inference, training = {"graph": True, "training": False}, {"graph": False, "training": True}
    seen: list[bool] = []

    class Model(nn.Module):
        def forward(self, fails: bool) -> None:
            seen.append(inference["graph"])
            assert not fails

    emitted: Any = SimpleNamespace(_KERNELWRIGHT_PLANS={(False, False): inference, (True, False): (training,)})
    model = Model()
    direct = Direct(model, emitted)
    direct(False)
    with pytest.raises(AssertionError):
        direct(True)
    model(False)
    assert seen == [False, False, True] and not training["graph"]
    mode = unknown("inference", nn.Linear(2, 2).eval())
    assert runs_as_graph(emitted, mode) and not runs_as_graph(emitted, mode.in_mode("training", nn.Linear(2, 2)))


def test_what_was_not_recorded_was_not_compared() -> None:
    """Two times of one way of launching are no choice, and no gain."""
    model = nn.Linear(2, 2)
    some = (1.0,) * 5
    times = Times("any", some, some, 1.0, 1.0, 1.0, 1.0, (1.0, 1.0), 5, 1, 1.0, None, 0, 0.0)
    timing = Timing({"eager": times, "candidate": times}, {}, launch="graph",
                    launches={"graph": times, "direct": times})
    emitted: Any = SimpleNamespace(_kernelwright_bindings={model: {0: SimpleNamespace(graph=None)}})
    found = with_graph(timing, emitted, model)
    assert (found.launch, found.launches, found.graph_bytes) == ("direct", {}, None)
    assert launch_sentence(found) == ""
    emitted._kernelwright_bindings[model][1] = SimpleNamespace(graph=SimpleNamespace(bytes=7))
    found = with_graph(timing, emitted, model)
    assert found.launch == "graph" and found.graph_bytes == 7 and "keeps 7" in launch_sentence(found)
    asked = with_graph(Timing({"eager": times}, {}), SimpleNamespace(), model)  # no choice was asked for
    assert asked.launch == "" and asked.graph_bytes is None
