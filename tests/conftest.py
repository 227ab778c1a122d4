"""Fixtures that several modules ask for, and what holds of all tests."""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Threads that wait for each other sleep. Where several processes share processors, waiting by turning takes the time
# of those that are waited for. Read when PyTorch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from clocks import drop_nothing
from hypothesis import settings

from kernelwright.timing.rounds import MOST_ROUNDS

# No clock decides about an example, on no machine; what a test says itself comes on top (`graph_tools.examples`).
settings.register_profile("kernelwright", deadline=None, database=None)
settings.load_profile("kernelwright")

# PyTorch traces what it compiles, with stacks and graphs as text, for whoever listens: pytest listens to all loggers
# that keep to themselves, as this one does again after each command (`torch._logging.set_logs`). The package has loaded
# it by now.
_trace = logging.getLogger("torch.__trace")
_trace.handlers.clear()
_trace.addHandler = lambda handler: None

_numbers = itertools.count()


#: The folders whose modules take longest: where small ones come last, processes that share them end together.
_FIRST = ("process", "emulation", "property", "unit/plan", "unit/verify", "unit/propose", "unit/capture")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first."""
    def rank(item: pytest.Item) -> int:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        return next((n for n, folder in enumerate(_FIRST) if place.startswith(f"{folder}/")), len(_FIRST))

    ranks = {path: rank(item) for path, item in {item.path: item for item in items}.items()}
    items.sort(key=lambda item: ranks[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """While modules are imported and tests made of them, nothing is looked through for what can go: all of it stays.
    Each process that runs tests makes all of them, and looking took a third of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported, and the tests themselves, stay until the end: a collection need not look at these 800,000
    objects, which takes it half a second. Each measurement begins with one. Others come less often: of what a capture
    makes, most goes by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(autouse=True)
def nothing_measured_before(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Times that another test, or an earlier run, has measured decide nothing."""
    from kernelwright.tune import memory

    folder = tmp_path_factory.getbasetemp() / f"times-{next(_numbers)}"
    monkeypatch.setattr(memory, "folder", lambda: folder)


@pytest.fixture(scope="module", autouse=True)
def what_a_module_loads_goes_with_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Problem files and emitted ones that its tests have imported. They are some thousands in the end: each capture
    looks through what modules hold, and each change of `nn.Module` goes through all its subclasses."""
    from kernelwright.problem.importing import PROBLEM_MODULE

    before, written = set(sys.modules), str(tmp_path_factory.getbasetemp())
    yield
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name.startswith((PROBLEM_MODULE, "_kernelwright_emitted_")) or file.startswith(written):
            sys.modules.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def clocks_drop_nothing() -> Iterator[None]:
    """Tests that say what follows from a clock ask for one (`clocks_decide`), or tell it what it sees."""
    patch = drop_nothing()
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def the_machine_is_measured_once() -> Iterator[None]:
    """As a cache folder would have it, for all cache folders: many tests have one of their own. What is measured again
    (`refresh`), or by a stand-in, is."""
    from kernelwright.roofline import peaks
    from kernelwright.roofline.devices import Device

    known: dict[str, Device] = {}
    cached, measure_cpu = peaks._cached, peaks.measure_cpu

    def once(key: str, refresh: bool, measure: Callable[[], Device]) -> Device:
        if refresh or not key.startswith("cpu|") or peaks.measure_cpu is not measure_cpu:
            return cached(key, refresh, measure)
        return cached(key, refresh, lambda: known[key] if key in known else known.setdefault(key, measure()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peaks, "_cached", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def the_judge_tries_itself_once() -> Iterator[None]:
    """As processes of one run do (`kept_self_test`): what a test says of self-tests it says of its own."""
    from kernelwright.judge import run
    from kernelwright.judge.selftest import SelfTest

    passed: dict[tuple[Any, ...], SelfTest] = {}
    tried = run.self_test

    def once(*how: Any) -> SelfTest:
        found = passed.get(how) or tried(*how)
        if found.passed:
            passed[how] = found
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "self_test", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def results_are_made_anew() -> Iterator[None]:
    """What an earlier run, or another test, has made of a model answers no other one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kernelwright.pipeline.name_of", lambda *facts: "")
        yield


_failed: list[str] = []


@pytest.fixture(scope="session", autouse=True)
def failures_are_noted() -> Iterator[None]:
    """What fails of ours costs a kernel, and the rest is right: results alone do not show it."""
    from kernelwright import failures

    def noted(error: BaseException, folder: Path) -> Path | None:
        _failed.append(f"{type(error).__name__}: {error}")
        return keep(error, folder)

    keep = failures.keep_traceback
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failures, "keep_traceback", noted)
        yield


@pytest.fixture(autouse=True)
def nothing_of_ours_fails(request: pytest.FixtureRequest) -> Iterator[None]:
    """But where a test makes it fail, and says so."""
    yield
    failed = tuple(_failed)
    _failed.clear()
    assert not failed or any(request.node.iter_markers("breaks")), failed


@pytest.fixture
def clocks_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do: for tests that say what takes how long."""
    from kernelwright.timing.baselines import is_slower
    from kernelwright.tune.regions import losing_regions

    for module in ("selection", "training.steps"):
        monkeypatch.setattr(f"kernelwright.{module}.is_slower", is_slower)
    monkeypatch.setattr("kernelwright.tuned.losing_regions", losing_regions)


@pytest.fixture(autouse=True)
def clocks_of_idle_machines(request: pytest.FixtureRequest) -> None:
    """They do where a test has a machine to itself, or a device."""
    if {"gpu", "clocked"} & {mark.name for mark in request.node.iter_markers()}:
        request.getfixturevalue("clocks_decide")
        request.getfixturevalue("monkeypatch").setattr("kernelwright.timing.rounds.MOST_ROUNDS", MOST_ROUNDS)


@pytest.fixture
def few_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated device has two multiprocessors, so that blocks have several tiles, one after the other."""
    monkeypatch.setenv("KERNELWRIGHT_EMULATION_PROCESSORS", "2")


@pytest.fixture(params=["rows on chip", "rows on chip unless crossed", "rows apart"])
def on_chip(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan small tensors all ways: rows stay on chip between reductions and stores, with those that are read across how
    they are stored or without, or they are as long as those that do not, and what is dear and read more than once is
    stored."""
    if request.param == "rows apart":
        monkeypatch.setattr("kernelwright.plan.groups._ROW_BYTES", 0)
        monkeypatch.setattr("kernelwright.plan.groups._SHORT_ROW_BYTES", 0)
        monkeypatch.setattr("kernelwright.plan.groups._DEAR", 12)
    else:
        monkeypatch.setattr("kernelwright.plan.groups._ROW_BYTES", 1 << 30)
        monkeypatch.setattr("kernelwright.plan.groups._FEW_ROWS", 1)
    if request.param == "rows on chip unless crossed":
        monkeypatch.setattr("kernelwright.plan.groups._LEAST_ROW", 1)
        monkeypatch.setattr("kernelwright.plan.compile.loops._CROSSED_ROW", 1)
