"""Which programs a file runs as CUDA graphs. What these give is compared in tests/gpu/test_graphs_gpu.py."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plan_tools import Of
from torch import nn

import kernelwright
from kernelwright import selection
from kernelwright.build.module import load_text
from kernelwright.launching import Direct, as_measured, graphs_wanted, in_one_launch, runs_as_graph, with_graph
from kernelwright.modes import ModeProgram, unknown
from kernelwright.problem import Problem, load_problem
from kernelwright.programs import Stages, emitted_text, new_model, understand
from kernelwright.progress import Progress
from kernelwright.report.measured import launch_sentence
from kernelwright.report.text import render_text
from kernelwright.roofline.devices import GENERIC_CPU, H200
from kernelwright.settings import Settings
from kernelwright.timing import Times, Timing


def source(model: nn.Module, x: torch.Tensor, **options: Any) -> str:
    return kernelwright.explain(model, [x], **{"target": "cuda", "launch": "graph"} | options).source


def plain(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(m.a(x)).sum(-1) * 2


def clamping(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = torch.tanh(m.a(x)) / x
    return (y if torch.isfinite(y).all() else y.clamp(-9, 9)).sum(-1) * 2


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


def test_what_is_decided_by_values_is_asked_of_a_graph_after_its_launch() -> None:
    """Unless the program changes something: then the original computation would change it once more."""
    x = torch.randn(4, 8)
    text = source(Of(clamping, a=nn.Linear(8, 8)), x)
    assert '"graph": True' in text and "self.required" in text and "_kernelwright_require(" in text
    assert "self.required" not in source(Of(plain, a=nn.Linear(8, 8)), x)
    counting = nn.Sequential(Of(clamping, a=nn.Linear(8, 8)), nn.Unflatten(0, (2, 2)), nn.BatchNorm1d(2))
    assert '"graph": True' not in source(counting, x).split('"training": False')[0]


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


class Recurrent(nn.Module):
    """Launches by the hundred, and no kernel of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.average, self.last = nn.LSTM(8, 6, 2, batch_first=True), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        states, (last, _) = self.cells(x)
        return {"result": self.last(self.average(states[:, -1])) * scale, "last": last}


def understood(model: nn.Module, inputs: Any) -> tuple[Problem, list[Any], list[ModeProgram]]:
    problem = load_problem(model, inputs)
    example = problem.make_inputs(0)
    return problem, example, understand(problem, example, H200, Settings(), Stages(Progress()))[0]


@pytest.mark.parametrize("training", [False, True])
def test_calls_of_pytorch_alone_are_a_program(training: bool) -> None:
    """Without anything to build, for calls that record no gradients; others are the original's."""
    torch.manual_seed(0)
    model, inputs = Recurrent(), [[torch.randn(4, 5, 8)], {"scale": torch.rand(3)}]
    problem, example, modes = understood(model, inputs)
    launched = [in_one_launch(mode, H200, "nothing pays") for mode in modes]
    found = [(m.runs, m.launched, m.plan.kernels) for m in launched if m is not None]
    assert found == [(True, "graph", ())] * len(modes)
    for target, device in (("cuda", H200), ("cpp", GENERIC_CPU)):
        text, _ = emitted_text(problem, [m for m in launched if m is not None], example, target, device)
        assert "launched as one CUDA graph" in text and "load_inline" not in text
        assert "_KERNELWRIGHT_SOURCE" not in text and "_kernelwright_library" not in text
    emitted = load_text(text, "recurrent")
    eager, own = copy.deepcopy(model).train(training), new_model(emitted, problem, 0).train(training)
    for _ in range(3):
        x, scale = torch.randn(4, 5, 8), torch.rand(3)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            expected, given_back = eager(x, scale=scale), own(x, scale=scale)
        assert expected.keys() == given_back.keys() and all(torch.equal(expected[k], given_back[k]) for k in expected)
        assert all(map(torch.equal, eager.buffers(), own.buffers()))
    assert emitted._kernelwright_bindings[own], "it ran the original"
    given, other = (torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in "12")
    for called, x in ((eager, given), (own, other)):
        called(x, scale=torch.ones(3))["result"].sum().backward()
    assert given.grad is not None and other.grad is not None and torch.equal(given.grad, other.grad)


def test_what_no_graph_can_be_made_of_stays_the_original() -> None:
    modes = understood(Of(plain, a=Hooked()), [torch.randn(4, 8)])[2]
    assert [in_one_launch(mode, H200, "nothing pays") for mode in modes] == [None] * len(modes)
    modes = understood(Of(drawing, a=nn.Linear(8, 8)), [torch.randn(4, 8)])[2]
    assert all(in_one_launch(mode, H200, "nothing pays") for mode in modes), "eager's calls draw eager's numbers"
    assert in_one_launch(unknown("inference", nn.Linear(2, 2)), H200, "nothing pays") is None
    recorded = replace(understood(Of(plain, a=nn.Linear(8, 8)), [torch.randn(4, 8)])[2][0], recordings=(True,))
    assert in_one_launch(recorded, H200, "nothing pays") is None


@pytest.mark.parametrize("pays", [False, True])
def test_one_launch_is_kept_where_it_pays(pays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where launches matter; what is given up leaves the file as it was."""
    for name, value in (("graphs_wanted", True), ("graph_promises", True), ("is_slower", True), ("graph_pays", pays)):
        monkeypatch.setattr(f"kernelwright.selection.{name}", lambda *_, value=value: value)
    monkeypatch.setattr("kernelwright.selection.with_graph", lambda timing, *_: replace(timing, graph_bytes=1))
    monkeypatch.setattr("kernelwright.selection.SHARE_OF_FIRST", 0.0)  # a busy machine has time to try it, too
    given = [[torch.randn(4, 5, 8)], {"scale": torch.rand(3)}]
    result = kernelwright.optimize(Recurrent().eval(), given, target="cpp", effort="quick", baselines="none")
    modes = {mode.name: mode for mode in result.modes}
    assert modes["inference"].launched == ("graph" if pays else "") and modes["inference"].runs == pays
    assert ("_kernelwright_inference" in result.source) == pays
    if pays:
        assert modes["inference"].certificate.passed and "candidate" in modes["inference"].timing.entries
        assert "launched as one CUDA graph where a call asks for no gradient" in " ".join(render_text(result).split())
        expected, found = Recurrent().eval(), result.module
        assert found is not None
        expected.load_state_dict(found.state_dict())
        with torch.no_grad():
            x = torch.randn(4, 5, 8)
            assert torch.equal(expected(x, scale=torch.ones(3))["last"], found(x, scale=torch.ones(3))["last"])


@pytest.mark.breaks
def test_an_attempt_at_one_launch_costs_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails under the clock, is not recorded, or has no memory, leaves the modes as they are."""
    mode = replace(unknown("inference", nn.Linear(2, 2)), one_launch=True, graph=True)

    def tried(timed: Any) -> Any:
        monkeypatch.setattr(selection, "certified_modes", lambda *_: ([mode], "", None, {"inference": "passed"}))
        monkeypatch.setattr(selection, "_timed", timed)
        others: Any = SimpleNamespace(after=None, say=lambda line: None)
        return selection._faster_in_one_launch(others, [mode], [], "cuda", H200, Settings(), others, others, others)

    def raises(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    recorded = SimpleNamespace(graph_bytes=7)
    assert tried(lambda *_, **__: ({}, {"inference": recorded})) == (
        {"inference": mode}, {"inference": "passed"}, {"inference": recorded})
    for timed in (raises, lambda *_, **__: ({mode.program: "it failed"}, {}),
                  lambda *_, **__: ({}, {"inference": SimpleNamespace(graph_bytes=None)})):
        assert tried(timed) == ({}, {}, {})


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
