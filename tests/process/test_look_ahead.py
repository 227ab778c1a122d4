"""What a file is held against is found while its kernels are compiled, and is what would have been found after it."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from emitted_tools import short_budgets, write_problem

import kernelwright
from kernelwright import truths, verified
from kernelwright.build.module import kernels_of
from kernelwright.verify import trial

MODEL = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(24)

        def forward(self, x):
            return torch.tanh(self.norm(x) * 2).cumsum(1)

    def get_inputs():
        return [torch.randn(16, 24)]
"""
#: Another module in the first call than before it.
BUILDS = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(24))
            self.last = None

        def forward(self, x):
            if self.last is None:
                self.last = nn.Softplus()
            return self.last(x * self.scale).cumsum(1)

    def get_inputs():
        return [torch.randn(16, 24)]
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    short_budgets(monkeypatch)
    monkeypatch.setenv("KERNELWRIGHT_CACHE", str(tmp_path / "cache"))


def certificates(path, monkeypatch: pytest.MonkeyPatch, spare: int):
    """The certificates of a run on a machine with so many processors to spare, without their times, and where float64
    ran: before the file was there, and after."""
    runs: dict[str, list] = {"before": [], "after": []}
    where = ["before"]
    reference_of, load_text = trial.reference_of, verified.load_text

    def counted(*arguments, **named):
        runs[where[0]].append(named["recording"])
        return reference_of(*arguments, **named)

    def loaded(*arguments):
        where[0] = "after"
        return load_text(*arguments)

    @contextmanager
    def as_long_as_it_takes(*_):
        yield lambda: True

    with monkeypatch.context() as patch:
        patch.setattr(trial, "reference_of", counted)
        patch.setattr(verified, "load_text", loaded)
        patch.setattr(verified, "spare_processors", lambda: spare)
        patch.setattr(verified, "built_meanwhile", as_long_as_it_takes)
        result = kernelwright.optimize(path, force=True, effort="quick", baselines="none")
    found = {m.name: [(t.plan, t.passed, t.reference, t.problems, t.comparison, t.state)
                      for t in m.certificate.trials[:verified.RECORDED]]
             for m in result.modes}
    assert found and all(m.certificate.passed for m in result.modes)
    return found, runs


def test_the_same_is_found_before_and_after(tmp_path, monkeypatch):
    path = write_problem(tmp_path, "looks", MODEL)
    after, runs = certificates(path, monkeypatch, 0)
    assert not runs["before"] and len(runs["after"]) >= 2 * verified.RECORDED  # two modes
    before, runs = certificates(path, monkeypatch, 2)
    assert before == after
    assert runs["before"] == [False] * (2 * verified.RECORDED)


def test_a_model_that_builds_parts(tmp_path, monkeypatch):
    path = write_problem(tmp_path, "builds", BUILDS)
    after, _ = certificates(path, monkeypatch, 0)
    before, runs = certificates(path, monkeypatch, 2)
    assert before == after and runs["before"]


def test_what_fails_is_left_to_the_certificate(tmp_path, monkeypatch):
    path = write_problem(tmp_path, "looks", MODEL)

    def fails(*_, **__):
        raise RuntimeError("not now")

    monkeypatch.setattr(truths, "look_ahead", fails)
    found, runs = certificates(path, monkeypatch, 2)
    assert found and not runs["before"] and runs["after"]


def test_the_kernels_are_compiled_once(tmp_path, monkeypatch):
    """What is compiled meanwhile is the library that the file looks for."""
    path = write_problem(tmp_path, "looks", MODEL)
    there: list[tuple[int, list]] = []
    load_text = verified.load_text

    def libraries() -> list:
        return sorted((p.name, p.stat().st_mtime_ns) for p in (tmp_path / "cache" / "libraries").glob("*.so"))

    def loaded(text, name):
        before = libraries()
        module = load_text(text, name)
        there.append((len(before), [p for p in libraries() if p not in before]))
        assert kernels_of(text) == module._KERNELWRIGHT_SOURCE
        return module

    monkeypatch.setattr(verified, "load_text", loaded)
    monkeypatch.setattr(verified, "spare_processors", lambda: 2)
    kernelwright.optimize(path, force=True, effort="quick", baselines="none")
    count, made = there[0]
    assert count == 1 and not made
    assert not kernels_of("a file without kernels")
