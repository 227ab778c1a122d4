"""Regions are measured where they stand in the running program; those that lose are given back, the others stay."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch
from emitted_tools import short_budgets
from plan_tools import Of
from torch import nn
from torch.nn import functional as F

import kernelwright
from kernelwright import processors
from kernelwright.capture.export import capture
from kernelwright.codegen.reference.plan import values_of
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import TorchStep, Unrolled
from kernelwright.report.text import render_text
from kernelwright.tune import in_place, regions

CPU = torch.device("cpu")


class Blocks(nn.Module):
    """Blocks alike with a norm and an activation each, a convolution whose bias moves, with a buffer, and a table that
    is written out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.batch = nn.BatchNorm1d(8)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(4))
        self.places = nn.Embedding(12, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.batch(self.conv(x))) + self.places(torch.ones(8).to(x.device, torch.int64))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x)) * 2)
        return x.transpose(1, 2) * 3 + 1


def placed(model: nn.Module, x: torch.Tensor, *, move_bias: bool):
    """A model's plan, its leaves, and its regions with what was built of them."""
    graph = capture(model, (x,))
    plan = make_plan(graph, graph, move_bias=move_bias)
    found = regions.regions(plan)
    forms = {regions._form(steps, plan): steps for steps in found}
    built = dict(zip(forms, regions._built(list(forms.values()), "cpp"), strict=True))
    assert len(built) < len(found)
    return plan, values_of(model, graph, (x,)), [(steps, built[regions._form(steps, plan)]) for steps in found]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("move_bias", [False, True])
def test_both_programs_compute_what_the_model_does(training, move_bias):
    """What is measured is the model's computation: regions alike run one kernel on the tensors of each place."""
    torch.manual_seed(0)
    model, x = Blocks().train(training), torch.randn(4, 8, 64)
    plan, tensors, found = placed(model, x, move_bias=move_bias)
    leaves = in_place._leaves(plan, tensors, CPU)
    buffers = {name: buffer.clone() for name, buffer in tensors.items()}
    programs = {"plan": (in_place._of_plan(plan, buffers, found, leaves, CPU), plan.results),
                "graph": (in_place._of_graph(plan, found, leaves, CPU), plan.graph.outputs)}
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.no_grad():
        expected = model(x)
        for entries, (result,) in programs.values():
            memory = dict(leaves)
            for entry in entries:
                entry.run(memory)
                for node in entry.last:
                    memory.pop(node, None)
            torch.testing.assert_close(memory[result], expected, atol=1e-5, rtol=1e-5)
            assert len(memory) < len(entries) / 2 + len(leaves)  # what nobody reads again is gone
            assert {entry.region for entry in entries} >= set(range(len(found)))
    assert all(torch.equal(tensors[name], value) for name, value in state.items())


def test_what_pytorch_computes_of_a_channels_last_plan_lies_so():
    """Else a region is held against calls on another memory order than they would have in the program."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Sigmoid()).eval()
    x = torch.randn(2, 8, 12, 12)
    graph = capture(model, (x,))
    first = make_plan(graph, graph, move_bias=True)
    convolutions = frozenset(n for n in graph.nodes() if n.op == "convolution")
    last = make_plan(graph, graph, move_bias=True, channels_last=convolutions)
    given: dict[str, list[bool]] = {}
    for name, plan in (("first", first), ("last", last)):
        found = regions.regions(plan)
        leaves = memory = in_place._leaves(plan, values_of(model, graph, (x,)), CPU)
        given[name] = []
        for entry in in_place._of_graph(plan, [(steps, ([], {}, None)) for steps in found], leaves, CPU):
            entry.run(memory)
            given[name] += [memory[n].is_contiguous(memory_format=torch.channels_last) for n in plan.graph.nodes()
                            if n in memory and n.kind != "leaf" and n.rank == 4]
        with torch.no_grad():
            torch.testing.assert_close(memory[plan.graph.outputs[0]], model(x), atol=1e-5, rtol=1e-5)
    assert not any(given["first"]) and all(given["last"]) and len(given["last"]) > 5
    both = [{regions._form(steps, plan) for steps in regions.regions(plan)} for plan in (first, last)]
    assert both[0].isdisjoint(both[1])


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("asked", [slice(0), slice(1), slice(1, 3)])
def test_kernels_of_which_nobody_asks_the_time_are_evaluated(training, asked):
    """Those, too, that write the statistics of a norm: what these are made of is read nowhere else."""
    torch.manual_seed(0)
    model, x = Blocks().train(training), torch.randn(4, 8, 64)
    plan, tensors, found = placed(model, x, move_bias=True)
    memory = in_place._leaves(plan, tensors, CPU)
    entries = in_place._of_plan(plan, {n: t.clone() for n, t in tensors.items()}, found[asked], memory, CPU)
    with torch.no_grad():
        for entry in entries:
            entry.run(memory)
        torch.testing.assert_close(memory[plan.results[0]], model(x), atol=1e-5, rtol=1e-5)
    assert {entry.region for entry in entries} - {None} == set(range(len(found[asked])))


def test_every_region_has_both_times(monkeypatch):
    """Also where a convolution stays, of which a region has the bias: its time is on both sides."""
    model, x = Blocks().eval(), torch.randn(4, 8, 64)
    plan, tensors, found = placed(model, x, move_bias=True)
    clock = iter(range(10**6))
    monkeypatch.setattr(in_place._Clock, "_now", lambda self: float(next(clock)))
    monkeypatch.setattr(processors, "waits", dict)
    times = in_place.seconds_in_place(plan, tensors, found, CPU, 0.0).regions
    assert all(set(t) == {"kernels", "torch"} and min(t.values()) >= 1.0 for t in times)
    biased = next(number for number, (steps, _) in enumerate(found) if any(
        n.op == "convolution" for s in steps for n in s.covers))
    entries = in_place._of_plan(plan, tensors, found, in_place._leaves(plan, tensors, CPU), CPU)
    assert sum(entry.region == biased for entry in entries) >= 2


@pytest.mark.parametrize(("took", "runs"), [(0.001, in_place.MOST_RUNS), (2.0, in_place.LEAST_RUNS), (20.0, 1)])
def test_how_often_programs_run(monkeypatch, took, runs):
    """As often as there is time for, and no more than once after warming up where that takes longer than all may."""
    now, ran = [100.0], []

    def run(entries, leaves, device, delay, *_):
        now[0] += took / 2
        ran.append(entries)
        return {}, 0.0

    monkeypatch.setattr(in_place, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(in_place, "_run", run)
    monkeypatch.setattr(processors, "waits", dict)
    graph = capture(nn.Linear(6, 5), (torch.randn(2, 6),))
    in_place.seconds_in_place(make_plan(graph, graph), {}, [], CPU, 5.0)
    assert len(ran) == 2 * (1 + runs)


class Two(nn.Module):
    """Two regions between products: an activation, and a norm of a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.second(F.gelu(self.first(x)) * 2)) @ self.first.weight


def run(monkeypatch, tmp_path, times, slower, *, of_a_thread=False):
    """The result of a run in which regions with these operators take so many times PyTorch's time, and programs are
    slower than eager as ``slower`` says of the names of their kernels. of_a_thread: as a busy machine tells."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))

    def measured(plan, tensors, found, device, budget):
        ratios = [next(r for op, r in times.items() if any(n.op == op for s in steps for n in s.covers))
                  for steps, _ in found]
        return in_place.InPlace([{"kernels": ratio, "torch": 1.0} for ratio in ratios], of_a_thread)

    kernels = []

    def candidate(emitted, problem, mode, settings):
        kernels.append({n.op for s in mode.plan.kernels for n in s.covers})
        return made(emitted, problem, mode, settings)

    from kernelwright import selection
    made = selection.candidate_of
    monkeypatch.setattr(selection, "candidate_of", candidate)
    monkeypatch.setattr(selection, "is_slower", lambda timing: slower(kernels[-1]))
    monkeypatch.setattr(regions, "seconds_in_place", measured)
    short_budgets(monkeypatch)
    torch.manual_seed(0)
    return kernelwright.optimize(Two().eval(), (torch.randn(8, 64),), effort="quick", target="cpp", baselines="none")



def test_a_region_that_loses_is_left_and_the_others_stay(monkeypatch, tmp_path, clocks_decide):
    result = run(monkeypatch, tmp_path, {"gelu_erf": 1.62, "layer_norm": 0.5}, lambda kernels: "gelu_erf" in kernels)
    assert result.modes[0].kernels and all("gelu" not in str(k) for m in result.modes for k in m.kernels)
    report = " ".join(render_text(result).split())
    assert "PyTorch is as fast or faster: kernels take 1.6x as long" in report
    for mode in result.modes:  # and the result has what was measured of those that stayed
        assert mode.regions and {(r.seconds, r.torch_seconds) for r in mode.regions} == {(0.5, 1.0)}
        assert {name for r in mode.regions for name in r.kernels} <= {kernel.name for kernel in mode.kernels}


def test_on_a_busy_machine_a_region_goes_that_clearly_loses_on_one_thread(monkeypatch, tmp_path, clocks_decide):
    """What others leave of a processor to one thread is no time of a call: little of a loss is none, nothing is kept
    for further runs, and the report has no seconds of it."""
    result = run(monkeypatch, tmp_path, {"gelu_erf": 1.62, "layer_norm": 1.1}, lambda kernels: False, of_a_thread=True)
    assert {n for k in result.modes[0].kernels for n in k.covers if "layer_norm" in n}
    assert any("kernels take 1.6x as long" in kept.reason for kept in result.modes[0].kept)
    assert any(note.startswith("Busy machine: ") for note in result.notes) and not result.modes[0].regions
    assert not list((tmp_path / "regions").glob("*"))


def test_where_other_programs_have_the_processors_one_thread_is_timed(monkeypatch):
    model, x = Blocks().eval(), torch.randn(4, 8, 64)
    plan, tensors, found = placed(model, x, move_bias=True)
    asked, threads = [0.0], []

    def waits():
        asked[0] += 1e3
        return {"7": asked[0]}

    def thread_time():
        threads.append(torch.get_num_threads())
        return float(len(threads))

    monkeypatch.setattr(processors, "waits", waits)
    monkeypatch.setattr(in_place, "time", SimpleNamespace(perf_counter=time.perf_counter, thread_time=thread_time))
    before = torch.get_num_threads()
    times = in_place.seconds_in_place(plan, tensors, found, CPU, 0.0)
    assert times.of_a_thread and len(times.regions) == len(found)
    assert all(set(t) == {"kernels", "torch"} and min(t.values()) >= 1.0 for t in times.regions)
    assert set(threads) == {1} and torch.get_num_threads() == before


def test_where_the_whole_loses_the_clear_winners_are_tried_before_it_is_given_up(monkeypatch, tmp_path, clocks_decide):
    result = run(monkeypatch, tmp_path, {"gelu_erf": 0.9, "layer_norm": 0.5}, lambda kernels: "gelu_erf" in kernels)
    assert result.modes[0].kernels and all("gelu" not in str(k) for m in result.modes for k in m.kernels)
    assert all(mode.certificate.passed for mode in result.modes)


def test_a_mode_goes_to_pytorch_where_nothing_wins(monkeypatch, tmp_path):
    """Steps of training do not either."""
    monkeypatch.setattr("kernelwright.training.steps.is_slower", lambda timing: True)
    result = run(monkeypatch, tmp_path, {"gelu_erf": 0.9, "layer_norm": 0.5}, lambda kernels: True)
    assert not any(mode.kernels or mode.regions for mode in result.modes)


def test_a_region_without_a_call_of_pytorchs_is_no_loser():
    """What planning alone has made stands in no graph: nothing is known of it, and it stays."""
    both, alone = {"kernels": 2.0, "torch": 1.0}, {"kernels": 2.0}
    assert regions._means(["a", "b", "a"], [both, alone, {"kernels": 4.0, "torch": 3.0}]) == {
        "a": {"kernels": 3.0, "torch": 2.0}}


class Steps(nn.Module):
    """A loop whose steps are one recurrence, and what reads its states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, found = (x.new_zeros(4, 8), x.new_zeros(4, 8)), []
        for step in x:
            states = self.cell(step, states)
            found.append(states[0])
        return self.head(torch.stack(found)).sigmoid() * 2 - 1


def test_a_loop_is_measured_with_the_products_that_it_leaves_to_pytorch():
    """Both programs compute what the model does; a loop that does not win by much is planned step by step."""
    torch.manual_seed(0)
    model, x = Steps().eval(), torch.randn(5, 4, 6)
    graph = capture(model, (x,))
    plan = make_plan(graph, graph)
    loop = next(steps for steps in regions.regions(plan) if any(s.rolls for s in steps))
    step = next(s for s in loop if s.rolls)
    assert [n.op for n in step.beside] == ["linear"] and len(step.covers) == 6  # with what puts states side by side
    found = [(loop, regions._built([loop], "cpp")[0])]
    tensors = values_of(model, graph, (x,))
    leaves = in_place._leaves(plan, tensors, CPU)
    for entries, result in ((in_place._of_plan(plan, tensors, found, leaves, CPU), plan.results[0]),
                            (in_place._of_graph(plan, found, leaves, CPU), plan.graph.outputs[0])):
        memory = dict(leaves)
        with torch.no_grad():
            for entry in entries:
                entry.run(memory)
            torch.testing.assert_close(memory[result], model(x), atol=1e-5, rtol=1e-5)
        assert sum(entry.region == 0 for entry in entries) >= 2
    form = regions._form(loop, plan)
    assert not regions.losing_regions(plan, {form: {"kernels": 0.7, "torch": 1.0}})
    lost = regions.losing_regions(plan, {form: {"kernels": 0.9, "torch": 1.0}})
    assert set(lost) == set(step.covers) and all(isinstance(reason, Unrolled) for reason in lost.values())
    again = make_plan(graph, graph, lost)
    assert not any(s.rolls for s in again.kernels) and again.unrolled == set(lost)


def test_tables_are_made_where_kernels_read_them() -> None:
    """What depends on no input is made on the device, once or, where it is large, in each call: kernels get its
    address."""
    model, x = Of(lambda m, x: F.interpolate(F.pad(x, (1, 2), mode="reflect"), scale_factor=1.7, mode="linear") * 2), \
        torch.randn(2, 3, 8)
    graph = capture(model, (x,))
    plan, meta = make_plan(graph, graph), torch.device("meta")
    once: in_place.Memory = {}
    in_place._of_plan(plan, {}, [], once, meta)
    each: in_place.Memory = {}
    for step in plan.steps:
        if isinstance(step, TorchStep) and not step.node.inputs:
            in_place._call(step.node, meta)(each)
    for made in (once, each):
        assert len(made) > 2 and {t.device.type for t in made.values()} == {"meta"}
