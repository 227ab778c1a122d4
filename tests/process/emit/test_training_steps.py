"""Calls that record gradients where no kernels find these: kernels compute them until a backward shows what they are
for, and the original computation from then on, so that no step but the first computes its forward twice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from emitted_tools import import_path, import_text, kernels_run, models, write_problem
from torch.utils.checkpoint import checkpoint

from kernelwright.problem import load_problem
from kernelwright.programs import Stages, emitted_text, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import Settings
from kernelwright.truths import Truths
from kernelwright.verified import after_a_step, as_kernels, certificate_of

TEXT = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.rand(24) + 0.5)
            self.norm = nn.BatchNorm1d(24)
            self.scale = 1.5

        def forward(self, x):
            return torch.softmax(torch.tanh(self.norm(x) * self.gain) * self.scale, 1) * 2.0 + torch.sigmoid(x)

    def get_inputs():
        return [torch.randn(8, 24)]
"""
WORDS = "no kernels find gradients here, and a step would compute its forward twice"
Made = tuple[ModuleType, ModuleType, Any, list[Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The original module, the emitted one, whose modes have no kernels for a backward, its problem and modes."""
    folder = tmp_path_factory.mktemp("steps")
    path = write_problem(folder, "steps", TEXT)
    problem = load_problem(path, device="cpu")
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, GENERIC_CPU, Settings(), Stages(Progress()))
    text = emitted_text(problem, modes, example, "cpp", GENERIC_CPU)[0]
    return import_path(path), import_text(text, folder, "steps"), problem, modes


@contextmanager
def counted(emitted: ModuleType, kernels: int, originals: int) -> Iterator[None]:
    """Inside, so many calls run kernels, and so many the original computation, those in a backward among them."""
    count, own = [0], emitted.ModelNew._original_forward

    def counting(model: torch.nn.Module, *inputs: Any) -> Any:
        count[0] += 1
        return own(model, *inputs)

    emitted.ModelNew._original_forward = counting
    try:
        with kernels_run(emitted, kernels):
            yield
    finally:
        emitted.ModelNew._original_forward = own
    assert count[0] == originals


def step(model: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The result of a call and its gradients."""
    given = x.clone().requires_grad_()
    result = model(given)
    wanted = [given, *model.parameters()]
    return [result.detach(), *torch.autograd.grad(result.square().sum(), wanted)]


def test_a_step_computes_its_forward_once_after_the_first(made: Made) -> None:
    old, new, (x,) = models(*made[:2])
    with counted(made[1], kernels=1, originals=1):
        torch.testing.assert_close(step(new, x), step(old, x))
    assert not new.why()
    for number in range(1, 4):
        with counted(made[1], kernels=0, originals=1):
            found = step(new, x * number)
        assert all(map(torch.equal, found, step(old, x * number)))
        assert new.why() == {WORDS: number}
    for a, b in zip(new.buffers(), old.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_calls_without_a_backward_keep_their_kernels(made: Made) -> None:
    old, new, (x,) = models(*made[:2])
    with counted(made[1], kernels=3, originals=0):
        for _ in range(3):
            torch.testing.assert_close(new(x), old(x))
    assert not new.why()


def test_other_calls_keep_theirs(made: Made) -> None:
    """Those that record nothing, those of the other mode, and those of copies and of other instances."""
    old, new, (x,) = models(*made[:2])
    step(new, x), step(old, x)
    twin, (_, other, _) = copy.deepcopy(new), models(*made[:2])
    with counted(made[1], kernels=1, originals=0), torch.no_grad():
        torch.testing.assert_close(new(x), old(x))
    for model in (twin, other):
        with counted(made[1], kernels=1, originals=1):
            step(model, x)
        with counted(made[1], kernels=0, originals=1):
            step(model, x)
    for model in (old, new):
        model.eval()
    with counted(made[1], kernels=1, originals=0):
        torch.testing.assert_close(new(x), old(x))
    with counted(made[1], kernels=1, originals=1):
        torch.testing.assert_close(step(new, x), step(old, x))
    with counted(made[1], kernels=0, originals=1):
        step(new, x)


def test_a_model_that_is_changed_is_computed_as_it_is(made: Made) -> None:
    old, new, (x,) = models(*made[:2])
    step(new, x), step(old, x)
    for model in (old, new):
        model.norm = torch.nn.Identity()
        model.scale = 0.5
    assert all(map(torch.equal, step(new, x), step(old, x)))
    for model in (old, new):  # as the kernels know it, with other tensors
        model.norm, model.scale = torch.nn.BatchNorm1d(24), 1.5
    with counted(made[1], kernels=0, originals=1):
        found = step(new, x)
    assert all(map(torch.equal, found, step(old, x)))


def test_steps_in_threads_before_and_after(made: Made) -> None:
    """Each is one or the other, as a whole."""
    old, new, (x,) = models(*made[:2])
    for model in (old, new):
        model.eval()
    scales = [0.5, 1.0, 1.5, 2.0] * 4
    expected = [step(old, x * scale) for scale in scales]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda scale: step(new, x * scale), scales))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_saves_what_its_call_saved(made: Made, reentrant: bool) -> None:
    """Two calls, whose backward passes follow each other: the first one changes nothing for the second."""
    old, new, (x,) = models(*made[:2])
    found = []
    for model in (old, new):
        given = x.clone().requires_grad_()
        y = checkpoint(model, given, use_reentrant=reentrant)
        checkpoint(model, y, use_reentrant=reentrant).square().sum().backward()
        found.append([given.grad, *(p.grad for p in model.parameters())])
    torch.testing.assert_close(found[1], found[0])


def test_who_hooks_saved_tensors_sees_those_of_eager(made: Made) -> None:
    old, new, (x,) = models(*made[:2])
    kept: list[list[torch.Tensor]] = []
    for model in (old, new):
        seen: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, seen=seen: (seen.append(t.detach()), t)[1],
                                                      lambda t: t):
            model(x.clone().requires_grad_())
        kept.append(seen)
    torch.testing.assert_close(kept[1], kept[0])


def _certificate(made: Made, name: str) -> Any:
    """That of the training mode."""
    _, emitted, problem, modes = made
    mode = next(m for m in modes if m.name == name)
    return certificate_of(problem, mode, emitted, Settings(), Stages(Progress()), Truths(problem.device), 1.0,
                          brief=True, begun=None)


def test_who_judges_kernels_has_them_in_all_calls(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, (x,) = models(*made[:2])
    as_kernels(new, made[1])
    for _ in range(3):
        with counted(made[1], kernels=1, originals=1):
            torch.testing.assert_close(step(new, x), step(old, x))
    after_a_step(new, made[1])
    with counted(made[1], kernels=0, originals=1):
        step(new, x)
    assert _certificate(made, "training").passed
    made_by, facts = made[1]._KERNELWRIGHT_TRAINING["run"], made[1]._KERNELWRIGHT_TRAINING
    calls = []

    def wrong_later(*given: Any) -> Any:
        """Right in trials without gradients, and in the first ones with."""
        calls.append(1)
        first, *rest = made_by(*given)
        return (first * 1.01, *rest) if len(calls) > total - 1 else (first, *rest)

    total = 10**9
    monkeypatch.setitem(facts, "run", wrong_later)
    assert _certificate(made, "training").passed
    total = len(calls)
    calls.clear()
    assert not _certificate(made, "training").passed, "the last call of kernels is one that is compared"


def test_what_calls_do_after_a_step_is_certified(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made[1].ModelNew._original_forward

    def off(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Another value where it stands for the kernels, and not where it finds their gradients."""
        return own(model, x) * (1.0 if type(model) is not made[1].ModelNew or model not in seen else 1.01)

    seen: list[torch.nn.Module] = []
    after = after_a_step
    monkeypatch.setattr("kernelwright.verified.after_a_step",
                        lambda model, emitted: (seen.append(model), after(model, emitted))[1])
    monkeypatch.setattr(made[1].ModelNew, "_original_forward", off)
    found = _certificate(made, "training")
    assert not found.passed and found.why[0].startswith("After a step of training: Failed"), found.why
