"""One export serves all modes of a forward that asks for none; what does ask has a graph for each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import is_grad_enabled, nn

from kernelwright.ir.graph import render
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.settings import Settings


class Of(nn.Module):
    """A layer, and something behind it."""

    def __init__(self, behind: Callable[[nn.Module, torch.Tensor], torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.behind, self.layers = behind, nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.behind(self, x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x if context.needs_input_grad[0] else 3 * x

    @staticmethod
    def backward(context, gradient):
        return 2 * gradient


class Fused(nn.Linear):
    """Another computation in evaluation, which no flag tells."""

    scale = 1.0

    def train(self, mode: bool = True) -> Fused:
        self.scale = 1.0 if mode else 2.0
        return super().train(mode)

    def forward(self, x):
        return super().forward(x) * self.scale


def by_gradients(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.is_grad_enabled() else x * 3


def by_own_name(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if is_grad_enabled() else x * 3


def by_flag(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if module.training else x * 3


def by_layer(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module.layers[0](x)


def in_scope(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.tanh()
    return x.relu() + y


def by_requires(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = module.layers[0](x)
    return y * 2 if y.requires_grad else y * 3


# This module has a function that tells the gradient mode under a name of its own: so does any forward, then.
@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(globals(), "is_grad_enabled")


@pytest.mark.parametrize(("behind", "layers", "exports", "programs"), [
    (by_layer, (nn.Linear(4, 4),), 1, 1), (in_scope, (), 1, 1), (by_layer, (nn.Dropout(0.5),), 2, 2),
    (by_layer, (nn.BatchNorm1d(4),), 2, 2), (by_flag, (), 2, 2), (by_gradients, (), 2, 2),
    (by_requires, (nn.Linear(4, 4),), 2, 2), (lambda m, x: Doubled.apply(x), (), 2, None),
    (by_layer, (Fused(4, 4),), 2, 2)])
def test_exports(behind, layers, exports, programs, monkeypatch, no_names):
    assert counted(Of(behind, *layers), monkeypatch) == (exports, programs) or programs is None


def test_a_function_under_a_name_of_its_own(monkeypatch):
    assert counted(Of(by_own_name), monkeypatch) == (2, 2)


def test_modes_in_which_the_asked_modules_are_alike_share_an_export(monkeypatch, no_names):
    """As where a constructor leaves a network inside of the model in evaluation: that is a mode beside training and
    inference, and computes what inference does."""
    mixed = Of(by_layer, nn.Dropout(0.5).eval())
    assert counted(mixed, monkeypatch) == (2, 2)


@pytest.mark.parametrize("asks", [
    lambda m, x: x * 2 if m.hidden[0].training else x, lambda m, x: m.layers[0].train(m.training)(x)])
def test_a_question_that_no_module_of_the_model_answers(asks, monkeypatch, no_names):
    model = Of(asks, nn.Dropout(0.5).eval())
    model.hidden = [nn.Identity()]
    assert counted(model, monkeypatch)[0] == 3


class Deaf(Fused):
    """Of which no flag tells what it was told."""

    def train(self, mode: bool = True) -> Deaf:
        self.scale = 1.0 if mode else 2.0
        return self


@pytest.mark.parametrize(("layer", "exports"), [(Fused(4, 4).eval(), 2), (Deaf(4, 4).eval(), 3)])
def test_modules_that_do_something_when_they_are_put_into_a_mode(layer, exports, monkeypatch, no_names):
    """A constructor that leaves them in evaluation leaves them as inference has them, if they follow."""
    assert counted(Of(by_layer, layer, nn.Dropout(0.5).eval()), monkeypatch) == (exports, 2)


def counted(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many exports there were, and how many programs came of them. Each mode computes what the model does."""
    exports = []
    export = torch.export.export
    monkeypatch.setattr(torch.export, "export", lambda *a, **o: (exports.append(1), export(*a, **o))[1])
    problem = load_problem(model, [torch.randn(3, 4)], device="cpu")
    modes, notes = understand(problem, problem.make_inputs(0), GENERIC_CPU, Settings(), Stages(Progress()))
    assert {r for m in modes for r in m.recordings} == {False, True} and not any("stays as" in n for n in notes)
    assert {m.captured.training for m in modes} == {m.model.training for m in modes} == {False, True}
    return len(exports), len({render(m.captured) for m in modes})


def test_everything_is_as_it_was_afterwards():
    """Also where a forward fails, PyTorch's own functions are in their places."""
    before = torch.is_grad_enabled, vars(torch.autograd.Function)["apply"], "training" in vars(nn.Module)
    problem = load_problem(Of(lambda module, x: x.no_such_method()), [torch.randn(3, 4)], device="cpu")
    with suppress(Exception):
        understand(problem, problem.make_inputs(0), GENERIC_CPU, Settings(), Stages(Progress()))
    assert before == (torch.is_grad_enabled, vars(torch.autograd.Function)["apply"], "training" in vars(nn.Module))
