"""Libraries that are compiled while something else goes on."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch
from clocks import PATIENCE
from emitted_tools import write_problem

import kernelwright
from kernelwright import processors, tuned
from kernelwright.build import library
from kernelwright.build.library import BuiltAhead, build_libraries, spare_processors
from kernelwright.build.module import BuildFailed
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import H200
from kernelwright.settings import Settings
from kernelwright.tune.budget import budget_of

SOURCE = """
extern "C" const char* {name}(void* const* tensors, void* stream) {{
  static_cast<float*>(tensors[0])[0] = {value}.0f;
  return nullptr;
}}
"""


def test_what_was_built_ahead_is_there(tmp_path, monkeypatch):
    """Its text is not compiled again; one that does not compile is told to who asks for it."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    texts = [SOURCE.format(name="ahead_of_it", value=7), "no C++ at all", SOURCE.format(name="ahead_too", value=8)]
    names = ["ahead_of_it", "ahead_broken", "ahead_too"]
    ahead = BuiltAhead(zip(texts, names, strict=True), "cpp", workers=1)
    for thread in ahead._threads:
        thread.join()
    assert set(ahead.there) == {"ahead_of_it", "ahead_too"} and all(took > 0.0 for took in ahead.there.values())
    before = time.perf_counter()
    first, broken, second = build_libraries(texts, "cpp", names)
    assert not isinstance(first, BuildFailed), str(first)
    assert time.perf_counter() - before < 60 and isinstance(broken, BuildFailed)
    assert first.ahead_of_it and second.ahead_too
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}
    build_libraries(texts, "cpp", names)
    assert made and made == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")}


def test_nothing_begins_after_the_end(monkeypatch):
    begun, go = [], threading.Event()
    monkeypatch.setattr(library, "build_library", lambda source, target, name: (begun.append(name), go.wait(PATIENCE)))
    ahead = BuiltAhead((("a", f"n{i}") for i in range(9)), "cpp", workers=2)
    while len(begun) < 2:
        time.sleep(0.001)
    threading.Timer(0.05, go.set).start()
    ahead.finish()
    assert sorted(begun) == ["n0", "n1"] and not any(thread.is_alive() for thread in ahead._threads)
    BuiltAhead([], "cpp").finish()


def test_a_text_is_written_when_it_can_be_compiled(monkeypatch):
    """Whoever begins to build ahead waits for none of them, and one that cannot be written ends it."""
    begun, go = [], threading.Event()
    monkeypatch.setattr(library, "build_library", lambda source, target, name: (begun.append(name), go.wait(PATIENCE)))
    written: list[str] = []

    def texts():
        for number in range(4):
            written.append(f"n{number}")
            yield "a", f"n{number}"
        raise ValueError("no text")

    ahead = BuiltAhead(texts(), "cpp", workers=2)
    while len(begun) < 2:
        time.sleep(0.001)
    assert written == ["n0", "n1"]
    go.set()
    for thread in ahead._threads:
        thread.join(PATIENCE)
    assert written == sorted(begun) == sorted(ahead.there) == ["n0", "n1", "n2", "n3"]


def test_what_is_being_compiled_is_waited_for(monkeypatch):
    """It counts as there, and is not compiled twice; what did not compile is not there."""
    compiled, go = [], threading.Event()

    def build(source, target, name):
        compiled.append(name)
        if name == "broken":
            raise BuildFailed("no")
        if name == "long" and compiled.count(name) == 1:
            assert go.wait(PATIENCE)
        return name

    monkeypatch.setattr(library, "build_library", build)
    ahead = BuiltAhead([("a", "broken"), ("a", "short"), ("a", "long")], "cpp", workers=1)
    while "long" not in compiled:
        time.sleep(0.001)
    ahead.stop()
    assert set(ahead.there) == {"short", "long"}
    threading.Timer(0.2, go.set).start()
    begun = time.perf_counter()
    assert ahead.build(["a", "b"], "cpp", ["long", "other"]) == ["long", "other"]
    assert time.perf_counter() - begun > 0.1 and go.is_set()
    assert ahead.there["long"] > 0.1
    assert ahead.build(["a"], "cpp", ["other"]) == ["other"]
    ahead.finish()


def test_few_processors_are_left_alone(monkeypatch):
    monkeypatch.setattr(library, "share_of_processors", lambda: 2)
    monkeypatch.setattr(library, "build_library", lambda *given: pytest.fail("it was built"))
    ahead = BuiltAhead([("a", "n")], "cpp")
    ahead.finish()
    assert ahead._threads == []


def test_builds_at_the_same_time_find_their_architecture(monkeypatch):
    """The first sets it, the last one restores what stood there, whichever of them ends first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    for before in ("8.0", ""):
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", before)
        if not before:
            monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
        first, second = library._architecture("cuda"), library._architecture("cuda")
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert library.os.environ["TORCH_CUDA_ARCH_LIST"] == "9.0a"
        second.__exit__(None, None, None)
        assert library.os.environ.get("TORCH_CUDA_ARCH_LIST", "") == before


def test_a_share_of_the_processors_is_what_a_process_keeps_busy(monkeypatch):
    monkeypatch.setattr(processors, "processors", lambda: 16)
    monkeypatch.delenv(processors.SHARE, raising=False)
    assert (processors.share_of_processors(), spare_processors()) == (16, 8)
    for given, found in (("4", (4, 2)), ("2", (2, 0)), ("64", (16, 8)), ("0", (1, 0)), ("many", (16, 8))):
        monkeypatch.setenv(processors.SHARE, given)
        assert (processors.share_of_processors(), spare_processors()) == found


MODEL = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def get_inputs():
    return [torch.rand(512, 256)]


def get_init_inputs():
    return []
"""


def test_what_there_was_no_time_for_is_compiled_ahead(tmp_path, monkeypatch):
    """Contractions that no earlier run measured are those of the plan in which there was no time for them, too."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    monkeypatch.setattr(tuned, "spare_processors", lambda: 4)
    keys: list[list[str]] = []
    monkeypatch.setattr(tuned, "TextsAhead", lambda calls, plans, count: keys.append(list(calls)))
    monkeypatch.setattr(tuned, "BuiltAhead", lambda found, target: None)
    problem = load_problem(write_problem(tmp_path, "model", MODEL), device="cpu")
    settings = Settings(target="cuda", contractions="measured")
    stages = Stages(Progress(), budget_of("quick", baselines="none"))
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, H200, settings, stages, predict=False)
    tuning = tuned.Tuning(problem, example, "cuda", H200, settings, stages)
    monkeypatch.setattr(tuned, "recall", lambda kind, key: {"chosen": 0})  # an earlier run had time for some of them
    late = tuning._with_contractions(modes, 0.0)
    assert any(reason == tuned.contractions.LATE for mode in late for reason in mode.plan.kept.values())
    tuning.build_ahead(modes)
    tuning.build_ahead(late)
    assert len(keys[0]) >= 2 and keys[0] == keys[1]


def test_what_no_run_had_time_for_is_not_asked_for(tmp_path, monkeypatch):
    """Without time, and without a run that had some, there is nothing to find: what might be gained is told."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    problem = load_problem(write_problem(tmp_path, "model", MODEL.replace("rand(512", "rand(8192")), device="cpu")
    settings = Settings(target="cuda", contractions="measured")
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, H200, settings, Stages(Progress()), predict=False)
    tuning = tuned.Tuning(problem, example, "cuda", H200, settings,
                          Stages(Progress(), budget_of("quick", baselines="none")))
    asked = []
    monkeypatch.setattr(tuned.contractions, "choose", lambda *_, seconds, **__: (asked.append(seconds), ({}, {}))[1])
    assert [m.plan for m in tuning._with_contractions(modes, 0.0)] == [m.plan for m in modes] and not asked
    assert "of the contractions" in tuning.untried[0]
    tuning._with_contractions(modes, 5.0)
    tuning._with_contractions(modes, 0.0)
    assert len(asked) == 2 and asked[0] > 4.0 and not asked[1]


def test_in_a_hurry_what_clearly_gains_is_a_kernel_without_a_measurement(tmp_path, monkeypatch):
    """By the prediction; what it may be wrong about, as PyTorch may round it, waits. So does what choosing left."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    problem = load_problem(write_problem(tmp_path, "model", MODEL.replace("rand(512", "rand(8192")), device="cpu")
    settings = Settings(target="cuda", contractions="measured")
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, H200, settings, Stages(Progress()), predict=False)

    def tuned_in(seconds, *, predicts=True):
        tuning = tuned.Tuning(problem, example, "cuda", H200, settings,
                              Stages(Progress(), budget_of("quick", baselines="none")), predicts=predicts)
        return tuning._with_contractions(modes, seconds), tuning.untried

    assert not any(mode.plan.contractions for mode in tuned_in(0.0, predicts=False)[0])
    first, told = tuned_in(0.0)
    for mode in first:
        assert [config.scheme for config in mode.plan.contractions.values()] == ["fp16x3"] * 2
        assert all(config.tiling and not config.measurement for config in mode.plan.contractions.values())
    assert len(told) == 1 and "2 of the contractions, which are kernels by prediction" in told[0]
    late = tuned.contractions.LibraryCall(tuned.contractions.LATE)

    def choose(graph, *_, **__):
        one, two = (n for n in graph.nodes() if n.op == "linear")
        return {}, {one: late, two: tuned.contractions.LibraryCall("measured on this device: cuBLAS is as fast")}

    monkeypatch.setattr(tuned.contractions, "choose", choose)
    assert [len(mode.plan.contractions) for mode in tuned_in(5.0)[0]] == [1, 1]
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert not any(mode.plan.contractions for mode in tuned_in(0.0)[0])
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="nothing tells which compilers a thread has begun")
def test_the_end_of_a_run_waits_for_no_compiler(monkeypatch):
    begun = threading.Event()

    def compiles(source, target, name):
        with subprocess.Popen(["sleep", "600"]) as compiler:
            begun.set()
            if compiler.wait():
                raise BuildFailed("ended")

    monkeypatch.setattr(library, "build_library", compiles)
    ahead = BuiltAhead([("a", "first"), ("b", "second")], "cpp", workers=1)
    assert begun.wait(PATIENCE) and ahead.goes_on()
    ahead.abandon()
    for thread in ahead._threads:
        thread.join(PATIENCE)
    assert not ahead.goes_on() and not ahead.there


def test_contractions_are_compiled_ahead_where_time_is_left_for_them(tmp_path, monkeypatch):
    """With less, nothing of them would be measured, and the first file would wait for their compilers."""
    path = write_problem(tmp_path, "product", """
        class Model(nn.Module):
            def forward(self, x, y):
                return torch.tanh(x @ y)

        def get_inputs():
            return [torch.randn(512, 512), torch.randn(512, 512)]
    """)
    problem = load_problem(path)
    example = list(problem.make_inputs(0))
    settings = Settings(target="cuda", contractions="measured")
    monkeypatch.setattr(tuned, "spare_processors", lambda: 2)
    monkeypatch.setattr(tuned, "BuiltAhead", lambda texts, target: texts)
    for spent, predicts, ahead in ((0.0, False, True), (25.0, False, False), (0.0, True, False)):
        stages = Stages(Progress(), budget_of("quick", baselines="none", spent=spent))
        modes = understand(problem, example, H200, settings, Stages(Progress()))[0]
        tuning = tuned.Tuning(problem, example, "cuda", H200, settings, stages, predicts=predicts)
        tuning.build_ahead(modes)
        assert (tuning.ahead is not None) is ahead
        if tuning.found is not None:
            tuning.found.stop()


@pytest.mark.parametrize("without_time", [False, True])
def test_what_was_not_measured_by_the_end_is_predicted(without_time, tmp_path, monkeypatch):
    """Once a first file has passed its check, a run hurries: what there was no time to measure is asked for as in one
    that had none from the start, also where nothing is measured at all."""
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path))
    asked, modes = [], tuned.Tuning.modes
    monkeypatch.setattr(tuned.Tuning, "modes", lambda self, given, seconds: (
        asked.append((self.predicts, seconds > 0)), modes(self, given, seconds))[1])
    if without_time:
        monkeypatch.setattr("kernelwright.selection.tuning_seconds", lambda budget, took: 0.0)
    kernelwright.optimize(write_problem(tmp_path, "model", MODEL), target="cpp", effort="thorough", baselines="none")
    assert asked[0] == (False, False) and asked[1] == (True, not without_time)
