"""Which contractions become kernels: predicted, measured, remembered."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields, replace
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clocks import PATIENCE
from test_contractions_plan import contractions
from torch import nn

from kernelwright.algebra.engine import rewrite
from kernelwright.build.module import BuildFailed
from kernelwright.capture.export import capture
from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.gemm import generate as contraction
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.reference.plan import values_of
from kernelwright.errors import DeviceLost
from kernelwright.ir.evaluate import as_stored
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import Node
from kernelwright.plan.contraction.products import can_contract
from kernelwright.plan.contraction.record import Contraction
from kernelwright.plan.describe import tiling_words
from kernelwright.plan.planner import make_plan
from kernelwright.plan.records import KernelConfig, LibraryCall, Measurement
from kernelwright.roofline.devices import GENERIC_CUDA, H200
from kernelwright.tune import accuracy, contraction_memory, contraction_rounds
from kernelwright.tune import contraction_trials as trials
from kernelwright.tune import contractions as tune
from kernelwright.tune.accuracy import Error
from kernelwright.tune.budget import Budget
from kernelwright.tune.contraction_ahead import TextsAhead
from kernelwright.tune.contraction_candidates import candidates
from kernelwright.tune.contraction_memory import Measured, Trial, attempt, fatal, recall, remember
from kernelwright.tune.contraction_trials import Built, Case, words
from kernelwright.tune.contraction_words import line, line_recompute
from kernelwright.tune.memory import generator_digest

CPU = torch.device("cpu")
TILING = Tiling("mma", 64, 16, 32, 4, promote=1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))


# Decisions ----------------------------------------------------------------------------------------


def a_case(model: nn.Module | None = None, shape: tuple[int, ...] = (4, 6),
           some: tuple[KernelConfig, ...] = (KernelConfig("x"),)
           ) -> Case:
    graph = capture(model or nn.Linear(6, 5), (torch.randn(shape),))
    plan = make_plan(graph, graph, contractions={n: KernelConfig("fp16x3") for n in graph.nodes() if can_contract(n)})
    return Case(plan.kernels[0], some)


def trial(seconds: float, *errors: float, scheme: str = "fp16x3") -> Trial:
    return Trial(KernelConfig(scheme, TILING), seconds, tuple(Error(e, 3 * e) for e in errors))


def test_operands_are_numbers_where_other_kernels_found_their_scales():
    """A norm's variance is not negative: rows of NaN would be timed on the path that sums them again."""
    graph = capture(nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 32)), (torch.randn(16, 48),))
    rewritten = rewrite(graph, H200).graph
    plan = make_plan(rewritten, graph, contractions={n: KernelConfig("fp16x3") for n in rewritten.nodes()
                                                     if can_contract(n)})
    step = next(s for s in plan.kernels if isinstance(s.kernel, Contraction))
    scales = tune.scales(step)
    assert {n.op for n in scales} >= {"mean"} and all(n.kind != "leaf" for n in scales)
    for distribution in accuracy.DISTRIBUTIONS:
        values = accuracy.operands(step.inputs, {}, distribution, torch.device("cpu"), scales)
        x = accuracy._whole(step.kernel.left, step.kernel.left_domain, values, torch.float32)
        assert x.isfinite().all(), distribution
    # What the operand itself is, and what is added to results as large as they are, has both signs.
    both = a_case(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 6))).step
    assert not tune.scales(both)


def test_the_fastest_of_the_accurate_ones():
    case = a_case()
    torch_errors = (Error(2e-7, 6e-7), Error(1e-7, 3e-7))
    measured = Measured((trial(1.0, 1e-4, 1e-4, scheme="fp16"), trial(2.0, 1e-7, 1e-7), trial(1.5, 1e-7, 2e-7),
                         trial(2.5, 1e-7, 1e-7)), (), 3.0, torch_errors)
    choice, reason = tune.decide(case, measured)
    assert choice == KernelConfig("fp16x3", TILING, Measurement(2.0, 3.0, 1e-7, 2e-7), reduces=False) and not reason
    assert tune.decide(case, replace(measured, seconds=2.1)) == (None, "measured on this device: cuBLAS is as fast")
    faster = measured.seconds - 2.1  # in another memory order
    assert tune.decide(case, measured, faster) == (None, "measured on this device: cuBLAS is as fast")
    assert tune.decide(case, replace(measured, errors=(Error(1e-9, 1e-9),) * 2)) == (
        None, "measured on this device: no kernel of ours is as accurate as cuBLAS: its error is 100 times as large, "
        "the largest 300 times")
    fused = a_case(nn.Sequential(nn.Linear(6, 5), nn.GELU()))
    assert tune.decide(fused, replace(measured, seconds=2.1))[0] is not None  # what fuses needs less of a margin
    nothing = replace(measured, trials=(), failures=("fp16x3: it failed",))
    assert tune.decide(case, nothing) == (None, "no kernel of ours ran: fp16x3: it failed")
    assert "memory" in tune.decide(case, None)[1]
    assert "sizes" in tune.decide(replace(case, candidates=()), None)[1]
    conv = a_case(nn.Conv1d(6, 5, 3), (2, 6, 8))
    assert tune.decide(conv, replace(measured, seconds=2.0))[1] == "measured on this device: cuDNN is as fast"


def test_what_is_granted_besides():
    """An error that is larger than the torch call's, but not than what its elements' errors may leave."""
    case, good, bad = a_case(), Error(1e-7, 3e-7), Error(3e-7, 9e-7)
    count = len(accuracy.DISTRIBUTIONS)
    tried = Trial(KernelConfig("fp16x3", TILING), 1.0, (bad,) * count)
    measured = Measured((tried,), (), 3.0, (good,) * count)
    assert tune.decide(case, measured)[0] is None
    assert tune.decide(case, replace(measured, granted=(bad,) * count))[0] is not None
    choice, reason = tune.decide(case, replace(measured, granted=(good, *(bad,) * (count - 1))))
    assert choice is None and "3 times as large" in reason


def test_each_result_counts():
    """A form is refused for one of them, and the measurement are the largest on operands as given."""
    case, good, bad = a_case(), Error(1e-7, 3e-7), Error(3e-7, 9e-7)
    torch_errors = (good, bad) * len(accuracy.DISTRIBUTIONS)
    right = Trial(KernelConfig("fp16x3", TILING), 2.0, torch_errors)
    measured = Measured((right, replace(right, seconds=1.0, errors=(bad, *torch_errors[1:]))), (), 3.0, torch_errors)
    assert measured.accurate == [right]
    choice, _ = tune.decide(case, measured)
    assert choice.measurement == Measurement(2.0, 3.0, 3e-7, 3e-7)


def test_the_faster_of_a_kernel_with_reductions_and_one_without(monkeypatch):
    """What remains to be done beside the kernel without them is taken to be one pass."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Softmax(-1))
    graph = capture(model, (torch.randn(4, 6),))
    (node,) = (n for n in graph.nodes() if n.op == "linear")
    one_pass = 2 * node.bytes / H200.copy + H200.launch_seconds
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=2)

    def chosen_at(joined: float | None, apart: float | None) -> KernelConfig | None:
        def try_out(case, *rest, **options):
            seconds = joined if case.kernel.reductions else apart
            return Measured(() if seconds is None else (trial(seconds, 1e-7),), (), 1.0, (Error(1e-7, 3e-7),))

        monkeypatch.setattr(contraction_rounds, "try_out", try_out)
        monkeypatch.setattr(tune, "recall", lambda key: None)
        picked, left = tune.choose(graph, graph, {}, {}, CPU, H200, budget, strict=False, say=lambda line: None,
                                   build_all=lambda texts, target, names: [BuildFailed("no")] * len(texts))
        assert set(picked) | set(left) == {node} and not set(picked) & set(left)
        return picked.get(node)

    assert chosen_at(0.5, 0.5 - 0.9 * one_pass).reduces
    assert not chosen_at(0.5, 0.5 - 1.1 * one_pass).reduces
    assert chosen_at(0.5, None).reduces and chosen_at(0.5, 2.0).reduces
    assert not chosen_at(None, 0.5).reduces and chosen_at(None, None) is None
    plan = make_plan(graph, graph, contractions={node: chosen_at(None, 0.5)})
    assert not contractions(plan)[0].reductions


def test_a_form_that_ended_the_process_is_not_tried_again(monkeypatch, tmp_path):
    """What raises counts as tried; what loses the device, or never returns, is left out from then on."""
    with attempt("key", "one"):
        assert fatal("key") == set(), "it may end well yet"
    with pytest.raises(RuntimeError), attempt("key", "two"):
        raise RuntimeError("refused")
    assert fatal("key") == set() and not list((tmp_path / "contractions").iterdir())
    lose("key", "three")
    script = textwrap.dedent("""
        import os
        from kernelwright.tune.contraction_memory import attempt
        with attempt("key", "four"):
            os.kill(os.getpid(), 9)
    """)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert fatal("key") == {"three", "four"} and fatal("other") == set()

    case = a_case(nn.Linear(8, 8), (8, 8), (KernelConfig("fp16x3", TILING), KernelConfig("fp16", TILING)))
    launched = []

    def first_call(call, name, device):
        launched.append(name)
        raise RuntimeError("refused")

    monkeypatch.setattr(trials, "first_call", first_call)
    built = [Built(form, SimpleNamespace(workspace_bytes=0, arguments=(), name="f"), SimpleNamespace(f=None))
             for form in case.candidates]
    lose("case", trials.words(case.candidates[0]))
    found = trials.try_out(case, "case", built, [], {n: torch.randn(n.shape) for n in case.step.inputs}, CPU, H200,
                           strict=False, budget_seconds=0.01)
    assert launched == [trials.words(case.candidates[1])] and not found.trials
    assert "ended the process" in found.failures[0] and "refused" in found.failures[1]


def test_processes_that_try_forms_at_the_same_time(tmp_path):
    """What one of them is at is not fatal for others, and what ended one stays so whatever the others do."""
    script = textwrap.dedent("""
        import sys
        from kernelwright.tune.contraction_memory import attempt
        with attempt("key", sys.argv[1]):
            print("begun", flush=True)
            sys.stdin.readline()
    """)
    start = lambda form: subprocess.Popen([sys.executable, "-c", script, form], stdin=subprocess.PIPE,  # noqa: E731
                                          stdout=subprocess.PIPE, text=True)
    with start("ends well") as well, start("ends it") as ended, start("ends it, too") as too:
        try:
            for process in (well, ended, too):
                assert process.stdout.readline() == "begun\n"
            assert fatal("key") == set()
            ended.kill()
            ended.wait()
            assert fatal("key") == {"ends it"}
            with attempt("key", "here"):
                too.kill()
                too.wait()
                assert fatal("key") == {"ends it", "ends it, too"}
            assert well.communicate("\n", timeout=PATIENCE)[0] == "" and well.returncode == 0
        finally:
            for process in (well, ended, too):
                process.kill()
    assert fatal("key") == {"ends it", "ends it, too"} and fatal("other") == set()
    assert len(list((tmp_path / "contractions").iterdir())) == 2


def test_whoever_looks_while_forms_end_well_finds_none_fatal():
    attempts = 400

    def try_some() -> None:
        for number in range(attempts):
            with attempt("key", f"form {number}"):
                pass

    looks = []
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(try_some) for _ in range(2)]
        while not all(other.done() for other in others):
            looks.append(fatal("key"))
        for other in others:
            other.result()
    assert looks and set().union(*looks) == set()


def test_without_locks_nothing_is_fatal(monkeypatch, tmp_path):
    def no_locks(file, operation):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    lose("key", "lost")
    assert fatal("key") == {"lost"}
    monkeypatch.setattr(contraction_memory.fcntl, "flock", no_locks)
    lose("key", "another")
    assert fatal("key") == set() and len(list((tmp_path / "contractions").iterdir())) == 1
    monkeypatch.undo()
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    assert fatal("key") == {"lost"}


def test_marks_that_nobody_asks_for_go(tmp_path):
    lose("key", "asked for")
    lose("gone", "of a generator that is gone")
    folder = tmp_path / "contractions"
    (folder / ".left.part").touch()
    for path in folder.iterdir():
        os.utime(path, (0.0, time.time() - 40 * 86400))
    assert fatal("key") == {"asked for"}
    remember("key", Measured((), (), 1.0, ()))
    assert fatal("key") == {"asked for"} and fatal("gone") == set()
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".tried"]


def lose(key: str, form: str) -> None:
    """An attempt at the form that loses the device."""
    with pytest.raises(DeviceLost), attempt(key, form):
        raise DeviceLost(kernel=form, message="an illegal address", folder="somewhere")


def test_forms():
    kernel = a_case(nn.Linear(64, 48), (70, 64)).kernel
    hopper = candidates(kernel, "float32", (9, 0), rounds=False, most=12)
    assert {c.scheme for c in hopper} == {"fp16x3"}
    assert {c.tiling.core for c in hopper[:2]} == {"wgmma", "mma"} and len(set(hopper)) == len(hopper)
    assert sum(c.tiling.core == "mma" for c in hopper) == 1
    assert {c.tiling.core for c in candidates(kernel, "float32", (8, 6), rounds=False, most=12)} == {"mma"}
    assert {c.scheme for c in candidates(kernel, "float32", (9, 0), rounds=True, most=12)} == {"fp16x3", "fp16"}
    assert {c.scheme for c in candidates(kernel, "bfloat16", (10, 0), rounds=True, most=12)} == {"native"}
    assert candidates(kernel, "float32", (7, 5), rounds=True, most=12) == []
    few = a_case(nn.Conv2d(3, 16, 3), (2, 3, 20, 20)).kernel
    depthwise = a_case(nn.Conv2d(8, 8, 3, groups=8), (2, 8, 20, 20)).kernel
    assert {c.scheme for c in candidates(depthwise, "float32", (9, 0), rounds=True, most=12)} == {"float32"}
    assert candidates(few, "float32", (9, 0), rounds=True, most=12)[0] == KernelConfig("float32", 0)
    assert len(candidates(few, "float32", (9, 0), rounds=True, most=2)) == 2


# Without a device ---------------------------------------------------------------------------------


def test_the_roofline_model_decides_without_a_device(monkeypatch):
    with torch.device("meta"):
        model, x = nn.Linear(4096, 4096), torch.randn(2048, 4096)
    graph = capture(model.to_empty(device="cpu"), (torch.empty(x.shape),))
    (choice,) = tune.predicted(graph, graph, H200).values()
    assert choice.scheme == "fp16x3" and choice.tiling.core == "wgmma" and choice.measurement is None
    assert next(iter(tune.predicted(graph, graph, GENERIC_CUDA).values())).tiling.core == "mma"
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4096, 192), nn.Softmax(-1))
    graph = capture(model.to_empty(device="cpu"), (torch.empty(4096, 4096),))
    (choice,) = tune.predicted(graph, graph, H200).values()
    assert choice.reduces and choice.tiling.columns == 192
    monkeypatch.setattr(tune, "tilings", lambda kernel, core: [] if kernel.reductions else [TILING])
    assert tune.predicted(graph, graph, H200) == {n: KernelConfig("fp16x3", TILING, reduces=False)
                                                  for n in graph.nodes()
                                                  if n.op == "linear"}
    small = capture(nn.Linear(16, 16), (torch.randn(4, 16),))
    assert tune.predicted(small, small, H200) == {}


# Measured -----------------------------------------------------------------------------------------


def emulated(texts, target, names):
    assert target == "cuda" and len(set(names)) == len(texts)
    return [compile_emulated(text) for text in texts]


def own_values(model: nn.Module, graph: Graph, *inputs: torch.Tensor) -> dict[Node, torch.Tensor]:
    values = values_of(model, graph, inputs)
    return {n: as_stored(n, values[n["name"]]) for n in graph.nodes() if n.kind == "leaf" and n.get("name") in values}


def chosen(model: nn.Module, x: torch.Tensor, build_all: Any = emulated, budget: Budget | None = None) -> tuple:
    graph, lines = capture(model, (x,)), []
    budget = budget or Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=2)
    result = tune.choose(graph, graph, {}, own_values(model, graph, x), CPU, H200, budget, strict=False,
                         say=lines.append, build_all=build_all)
    return *result, lines


def test_what_is_built_ahead_is_what_is_built(monkeypatch):
    """The texts are those of the candidates that are measured, best of each contraction first; known ones are not among
    them. What was found is not looked for again."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    model = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 40), nn.GELU())
    x = torch.randn(70, 24)
    graph, plans = capture(model, (x,)), tune.Plans()
    budget = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=3, contraction_kernels=6)
    calls = tune.to_try(graph, graph, {}, CPU, H200, budget, plans, strict=False)
    # One copy, as two may come in any order; nobody asks for a text before all of them are there.
    ahead = TextsAhead(calls, plans, 1)
    ahead._reader.join(PATIENCE)
    ahead = list(ahead)
    built: list[list[str]] = []

    def build_all(texts, target, names):
        built.append(texts)
        return emulated(texts, target, names)

    assert plans.candidates == {key: call() for key, call in calls.items()}
    monkeypatch.setattr(tune, "candidates", lambda *given, **named: pytest.fail("it was looked for again"))
    tune.choose(graph, graph, {}, own_values(model, graph, x), CPU, H200, budget, strict=False, say=lambda line: None,
                build_all=build_all, plans=plans)
    assert len(built) == 1 and len(ahead) == 6 and sorted(text for text, _ in ahead) == sorted(built[0])
    kernels = [f"_{built[0].index(text) // 3}_{built[0].index(text) % 3}" for text, _ in ahead]
    assert kernels == ["_0_0", "_1_0", "_0_1", "_1_1", "_0_2", "_1_2"]
    assert all(f"{name}(" in text for text, name in ahead)
    assert tune.to_try(graph, graph, {}, CPU, H200, budget, tune.Plans(), strict=False) == {}


class Blocks(nn.Module):
    """Equal blocks, with what joins products: activations, a norm, a softmax, a residual, a convolution and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
                                    for _ in range(2))
        self.last = nn.Linear(16, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(torch.relu(self.conv(x)), 2).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = x + block(x)
        return torch.softmax(self.last(x), -1)


@pytest.mark.parametrize("order", [1, -1])
def test_plans_that_share_what_they_compiled_are_what_each_is_alone(order):
    graph = capture(Blocks().eval(), (torch.randn(2, 3, 16, 16),))
    graph = rewrite(graph, H200).graph
    products = [n for n in graph.nodes() if can_contract(n)]
    assert len(products) >= 5
    operators = [n for n in graph.nodes() if n.kind not in ("leaf", "view") and n not in products]
    asked: list[tuple[dict[Node, str], dict[Node, KernelConfig]]] = []
    for scheme in ("fp16x3", "fp16"):
        choice = KernelConfig(scheme)
        asked += [({}, dict.fromkeys(products, choice)), ({}, dict.fromkeys(products, replace(choice, reduces=False))),
                  (dict.fromkeys(operators[::3], "asked"), dict.fromkeys(products[::2], choice)),
                  ({}, dict.fromkeys(products, replace(choice, exact_functions=True)))]
    plans = tune.Plans()
    for kept, choices in [({}, {}), *asked][::order]:
        shared = plans.of(graph, graph, kept, choices)
        alone = make_plan(graph, graph, dict(kept), move_bias=True, contractions=choices)
        assert shared.steps == alone.steps and shared.results == alone.results and shared.kept == alone.kept


def test_a_plan_that_was_made_is_not_made_again(monkeypatch):
    """What is built ahead, what is known of earlier runs and what is measured ask for the same plans."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    graph = capture(nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 40), nn.Softmax(-1)),
                    (torch.randn(70, 24),))
    made = []
    monkeypatch.setattr(tune, "make_plan", lambda *given, **named: (made.append(named), make_plan(*given, **named))[1])
    budget, plans = Budget(1000.0, contraction_candidates=3, contraction_kernels=6), tune.Plans()
    tune.to_try(graph, graph, {}, CPU, H200, budget, plans, strict=False)
    count = len(made)
    tune.to_try(graph, graph, {}, CPU, H200, budget, plans, strict=False)
    assert len(made) == count > 0
    assert len({tuple(named["contractions"].items()) for named in made}) == count
    one = plans.of(graph, graph, {}, {})
    for number in range(tune._PLANS):
        plans.of(graph, graph, {node: str(number) for node in graph.nodes()}, {})
    assert plans.of(graph, graph, {}, {}) is not one, "no more than a few are kept"


def test_choice_by_measurement(monkeypatch):
    """Under the emulation a kernel never wins: the clock is told otherwise."""
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    model = nn.Sequential(nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU())
    x = torch.randn(70, 24)
    picked, left, lines = chosen(model, x)
    # How exact a processor's own product of 24 terms is decides which reason comes first.
    reasons = ("measured on this device: cuBLAS is as fast",
               "measured on this device: no kernel of ours is as accurate as cuBLAS: its error is ")
    assert not picked and all(reason.startswith(reasons) for reason in left.values())
    assert len(left) == 2 and len(lines) == 1  # they are alike
    assert all(isinstance(reason, LibraryCall) for reason in left.values())
    assert "torch" in lines[0] and "TFLOP/s" in lines[0]

    def untouched(texts, target, names):
        assert not texts, "measured again"
        return []

    monkeypatch.setattr(tune, "_WIN", 1e9)
    monkeypatch.setattr(accuracy, "_RMS_NOISE", 2.0)
    monkeypatch.setattr(accuracy, "_MAX_NOISE", 2.0)
    picked, left, again = chosen(model, x, untouched)
    assert len(picked) == 2 and not left and len(again) == 1
    assert all(c.measurement.seconds > 0 and 0 < c.measurement.error < 1e-6 for c in picked.values())
    graph = capture(model, (x,))
    plan = make_plan(graph, graph, contractions=picked)
    assert [k.scheme for k in contractions(plan)] == [c.scheme for c in picked.values()]


def test_reductions_are_measured_both_ways(monkeypatch):
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    monkeypatch.setattr(tune, "_WIN", 1e9)
    monkeypatch.setattr(tune, "_WIN_ALONE", 1e9)
    monkeypatch.setattr(accuracy, "_RMS_NOISE", 4.0)
    monkeypatch.setattr(accuracy, "_MAX_NOISE", 4.0)
    model, x = nn.Sequential(nn.Conv2d(16, 20, 3), nn.Softmax(1)), torch.randn(2, 16, 7, 6)
    picked, left, lines = chosen(model, x)
    assert len(lines) == 2 and sum("its channels reduced" in line for line in lines) == 1 and not left
    (choice,) = picked.values()
    plan = make_plan(capture(model, (x,)), capture(model, (x,)), contractions=picked)
    assert bool(contractions(plan)[0].reductions) == choice.reduces


def test_the_largest_come_first(monkeypatch):
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 20), nn.Linear(20, 30))
    failing = Budget(1000.0, contraction_seconds=0.05, contraction_candidates=1, contraction_kernels=2)
    _, left, lines = chosen(model, torch.randn(4, 6), lambda texts, target, names: [BuildFailed("no")] * len(texts),
                            failing)
    assert len(lines) == 2 and "20 by 30x20" in lines[0].replace("4x20", "20")
    assert sorted(n.shape[1] for n, reason in left.items() if reason == tune.UNTRIED) == [5]
    assert all(isinstance(reason, LibraryCall) for reason in left.values())


def test_what_does_not_build_or_run_is_told(monkeypatch):
    monkeypatch.setattr(tune, "_LEAST_OPERATIONS", 0)
    picked, left, lines = chosen(nn.Linear(40, 24), torch.randn(70, 40),
                                 lambda texts, target, names: [BuildFailed("no such\ncompiler")] * len(texts))
    assert not picked and "does not compile: no such" in next(iter(left.values())) and "no such" in lines[0]

    def refuse(kernel, name, target):
        raise ValueError("too large")

    monkeypatch.setattr("kernelwright.tune.contraction_trials.generate_kernel", refuse)
    _, left, _ = chosen(nn.Linear(41, 24), torch.randn(70, 41))
    assert "too large" in next(iter(left.values()))


# Memory -------------------------------------------------------------------------------------------


def test_measurements_come_back(tmp_path):
    measured = Measured((trial(1.0, 1e-7), Trial(KernelConfig("float32", 3), 2.0, (Error(inf, inf),))), ("why",), 3.0,
                        (Error(1e-7, 2e-7),))
    assert recall("key") is None
    remember("key", measured)
    assert recall("key") == measured and recall("another key") is None
    (path,) = (tmp_path / "contractions").glob("*.json")
    document = json.loads(path.read_text())
    for broken in ("", "[]", "{", json.dumps({**document, "key": "other"}), json.dumps({**document, "trials": 3}),
                   json.dumps({**document, "trials": [{"config": {"scheme": "x", "tiling": {"no": 1}}}]})):
        path.write_text(broken)
        assert recall("key") is None
    remember("key", measured)
    assert recall("key") == measured


def test_a_folder_that_cannot_be_written(monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE", "/proc/nothing")
    remember("key", Measured((), (), 1.0, ()))
    lose("key", "lost")
    assert recall("key") is None and fatal("key") == set()


def test_the_digest_is_of_the_generator():
    assert generator_digest() == generator_digest()
    assert len(generator_digest()) == 24


def test_words():
    assert words(KernelConfig("float32", 2)) == "float32 schedule 2"
    assert words(KernelConfig("fp16x3", TILING)) == "fp16x3 mma 64x16x32, 4 stages, promote 1"
    assert words(KernelConfig("native", Tiling("wgmma", 128, 64, 16, 3, 2, pingpong=2, converts_left=True,
                                               folded_taps=3))) \
        == "native wgmma 128x64x16, 3 stages, cluster 2, pingpong 2, converts_left True, folded_taps 3"


def test_what_is_unusual_about_a_form_is_said_with_its_reason():
    """Each feature of a tiling alone; a tiling without any has nothing to explain."""
    assert TILING.reasons == [] and tiling_words(2) == "schedule 2" and tiling_words(None) == ""
    assert tiling_words(TILING) == "mma 64x16x32: tiles of 64 rows by 16 channels, 32 input channels a step"
    assert "two entries of the window" in tiling_words(replace(TILING, depth=8))
    features = {"parities": (2, "both output-parity"), "overlap": (12, "overlap by 12 rows"),
                "pingpong": (3, "3 consumer warpgroups"), "converts_left": (True, "x is read where it lies"),
                "packs_concurrently": (True, "while others multiply"),
                "converts_right": (True, "the weight is read where it lies"),
                "split_k": (5, "5 blocks share the steps"), "cluster": (2, "2 blocks share what they read"),
                "sector_aligned": (True, "at whole sectors of memory"),
                "from_registers": (True, "straight from registers"),
                "folded_taps": (2, "2 neighbouring taps of a line")}
    assert {field.name for field in fields(Tiling) if field.default is not MISSING} == {*features, "promote"}
    for name, (value, said) in features.items():
        (reason,) = replace(TILING, **{name: value}).reasons
        assert said in reason
    everything = replace(TILING, **{name: value for name, (value, _) in features.items()})
    assert all(said in tiling_words(everything) for _, said in features.values())


def test_progress_says_why_a_form_is_as_it_is():
    case = a_case(nn.Conv2d(16, 24, 3, padding=1), (2, 16, 9, 9))
    chosen = KernelConfig("fp16x3", replace(TILING, core="wgmma", pingpong=3, overlap=12))
    measured = Measured((Trial(chosen, 1e-3, (Error(1e-7, 1e-7),)),), (), 2e-3, (Error(1e-7, 1e-7),))
    said = line(case, measured, chosen, "")
    assert "overlap by 12 rows" in said and "3 consumer warpgroups" in said
    assert "overlap by" not in line(case, measured, None, "the library is faster")
    plain = KernelConfig("fp16x3", TILING)
    said = line_recompute(case.node, replace(chosen, recompute=plain), 1e-3, 2e-3)
    assert "for its statistics and then with what follows" in said and "3 consumer warpgroups" in said
    assert said.count("mma 64") == 2


def test_the_generator_takes_every_form():
    case = a_case(nn.Conv2d(16, 24, 3, padding=1), (2, 16, 9, 9))
    for form in candidates(case.kernel, "float32", (9, 0), rounds=True, most=12):
        kernel = replace(case.kernel, scheme=form.scheme, tiling=form.tiling)
        assert contraction.generate(kernel, "name").definition
