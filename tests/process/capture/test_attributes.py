"""A forward that keeps tensors in plain attributes: ModelNew beside eager, call after call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from attribute_forms import FORMS, INPUTS
from emitted_tools import assert_like, emit, kernels_run, models, write_problem
from torch import nn

import kernelwright
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.verify.certificate import Plan, certify, default_trials
from kernelwright.verify.flatten import flatten, map_tensors
from kernelwright.verify.state import State, plain_attributes

#: What makes a model beside its ModelNew; the emitted module; the first calls that run the original computation.
Form = tuple[Callable[[], Any], Any, int]


def attributes(model: nn.Module) -> dict[str, Any]:
    """The tensors in plain attributes, and in containers there, by path."""
    return {name: leaf for path, value in State.of(model, owned=False).attributes.items()
            for name, leaf in flatten(value, path).items()}


def assert_same_attributes(new: nn.Module, old: nn.Module, results: tuple[Any, Any], given: list[torch.Tensor]) -> None:
    """Equal tensors in attributes, which are the same tensors, and show the same memory, among attributes, results and
    arguments."""
    own, right = attributes(new), attributes(old)
    assert list(own) == list(right)
    for name, tensor in right.items():
        torch.testing.assert_close(own[name], tensor, atol=1e-5, rtol=1e-5)
        assert own[name].stride() == tensor.stride(), name
        assert (own[name].requires_grad, own[name].is_leaf) == (tensor.requires_grad, tensor.is_leaf), name
    every = [[*found.values(), *(result if isinstance(result, tuple) else [result]), *given]
             for found, result in zip((own, right), results, strict=True)]
    for number in range(len(every[0])):
        for other in range(number):
            pairs = [(tensors[number], tensors[other]) for tensors in every]
            assert len({a is b for a, b in pairs}) == 1, (number, other)
            shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a, b in pairs]
            assert shared[0] == shared[1], (number, other)


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Form:
    """One of the forms, emitted."""
    text, first = FORMS[request.param]
    original, emitted, _ = emit(tmp_path_factory.mktemp("form"), "problem", text + INPUTS)
    return lambda: models(original, emitted)[:2], emitted, first


@pytest.mark.parametrize("training", [True, False])
def test_calls_in_a_row(form: Form, training: bool) -> None:
    make, emitted, first = form
    old, new = (model.train(training) for model in make())
    for turn in range(first + 3):
        x = torch.randn(8, 16)
        with torch.no_grad():
            right = old(x)
            if turn < first:
                found = new(x)
            else:
                with kernels_run(emitted, 1):
                    found = new(x)
        assert_like(found, right)
        assert_same_attributes(new, old, (found, right), [x])
    assert len(new.why()) == (first > 0), new.why()


@pytest.mark.parametrize("training", [True, False])
def test_calls_that_record_gradients(form: Form, training: bool) -> None:
    """Attributes keep the graph where eager's do; what reads them then is the original computation."""
    make, _, _ = form
    old, new = (model.train(training) for model in make())
    for _ in range(3):
        x = torch.randn(8, 16)
        given = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        found, right = new(given[0] * 1), old(given[1] * 1)
        assert_like(found, right)
        own, kept = attributes(new), attributes(old)
        losses = []
        for results, state in ((found, own), (right, kept)):
            results = [*(results if isinstance(results, tuple) else [results]), *state.values()]
            losses.append(sum((r * (n + 1)).sum() for n, r in enumerate(results) if r.requires_grad))
        for name, tensor in kept.items():
            assert own[name].requires_grad == tensor.requires_grad, name
        gradients = []
        for model, tensor, loss in zip((new, old), given, losses, strict=True):
            leaves = [tensor, *model.parameters()]
            gradients.append(torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True))
        for mine, theirs in zip(*gradients, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor + 1).mT.contiguous().mT if tensor.ndim > 1 else tensor


def test_what_is_assigned_between_calls_is_read(form: Form) -> None:
    """Other values, copies of the model; other strides and types, which are for the original computation."""
    make, emitted, first = form
    old, new = make()

    def both(times: int = 1) -> None:
        x = torch.randn(8, 16)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with kernels_run(emitted, times) if times else nullcontext():
                found = new(x)
            right = old(x)
        assert_like(found, right)
        assert_same_attributes(new, old, (found, right), [x])

    for _ in range(first):
        both(0)
    both()
    copies = copy.deepcopy((old, new))
    for change, times in ((lambda t: t.clone(), 1), (lambda t: t + 1, 1), (_strided, 0), (lambda t: t.double(), 0)):
        for model in (old, new):
            for owner, key, _ in list(plain_attributes(model)):
                setattr(owner, key, map_tensors(getattr(owner, key), change))
        both(times)
        both(times)
    old, new = copies
    both()
    old.state_dict(), new.state_dict()
    assert list(old.state_dict()) == list(new.state_dict())


def test_certificates(form: Form) -> None:
    make, _, first = form

    def made(number: int) -> nn.Module:
        model = make()[number]
        for _ in range(first):
            with torch.no_grad():
                model(torch.zeros(8, 16))
        return model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = certify(lambda: made(0), lambda: made(1),
                        lambda seed: [torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))],
                        plan=Plan(trials=default_trials(0)[:3], repeats=1, budget_seconds=60.0))
    assert found.passed, found.why


# The form of recurrent cells that public benchmarks have: an optional state, written into the one that is kept.
CELL = '''
        class Model(nn.Module):
            def __init__(self, inputs, hidden, outputs):
                super().__init__()
                self.hidden = torch.randn((8, hidden))
                self.i2h = nn.Linear(inputs + hidden, hidden)
                self.h2o = nn.Linear(hidden, outputs)
                self.tanh = nn.Tanh()

            def forward(self, x, initial_hidden=None):
                if initial_hidden is not None:
                    self.hidden.copy_(initial_hidden)
                self.hidden = self.hidden.to(x.device)
                combined = torch.cat((x, self.hidden), dim=1)
                self.hidden = self.tanh(self.i2h(combined))
                return self.h2o(self.hidden)

        def get_inputs():
            return [torch.rand(8, 16), torch.rand(8, 32)]

        def get_init_inputs():
            return [16, 32, 8]
'''


@pytest.mark.parametrize("given", [True, False])
def test_a_cell_that_is_given_a_state_or_none(tmp_path: Path, given: bool) -> None:
    """What is written into the old state is seen by who holds it."""
    text = CELL if given else CELL.replace(", torch.rand(8, 32)]", "]")
    original, emitted, _ = emit(tmp_path, "cell", text)
    old, new, _ = models(original, emitted)
    for _ in range(3):
        inputs, held = original.get_inputs(), (old.hidden, new.hidden)
        with torch.no_grad(), kernels_run(emitted, 1):
            found = new(*inputs)
        with torch.no_grad():
            right = old(*inputs)
        assert_like(found, right)
        assert_like(held[1], held[0])
        assert_same_attributes(new, old, (found, right), inputs)
        assert (held[1] is new.hidden) == (held[0] is old.hidden)
    assert list(new.state_dict()) == list(old.state_dict())


@pytest.mark.skipif(torch.cuda.is_available(), reason="the file is run on the device")
def test_a_cell_under_the_emulation(tmp_path: Path) -> None:
    path = write_problem(tmp_path, "cell", CELL)
    result = kernelwright.optimize(path, target="cuda", effort="quick", baselines="none", output=tmp_path / "new.py")
    assert [note for note in result.notes if "emulation" in note and "Passed" in note], result.notes
    assert result.modes[0].kernels and "hidden" in result.source


REFUSED = {
    "grows": ("self.kept = torch.cat([self.kept, x])\nreturn torch.tanh(x) * self.kept.sum(0) + torch.sigmoid(x)",
              "torch.zeros(1, 16)", "calls leave other shapes, types or strides each time in the attribute(s) kept"),
    "object": ("self.kept = Box(torch.tanh(x))\nreturn torch.tanh(x) * torch.sigmoid(x)", "None",
               "it leaves a Box in the attribute kept"),
    "mixture": ("self.kept = (torch.tanh(x), None)\nreturn torch.tanh(x) * torch.sigmoid(x)", "None",
                "it leaves a tuple that holds more than tensors in the attribute kept"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_graph_holds_is_refused_in_plain_words(case: str, tmp_path: Path) -> None:
    forward, start, words = REFUSED[case]
    lines = "\n".join(f"        {line}" for line in forward.splitlines())
    text = "class Box:\n    def __init__(self, value):\n        self.value = value\n\n\nclass Model(nn.Module):\n" \
        f"    def __init__(self):\n        super().__init__()\n        self.kept = {start}\n\n" \
        f"    def forward(self, x):\n{lines}\n\n\ndef get_inputs():\n    return [torch.randn(8, 16)]\n"
    result = kernelwright.explain(write_problem(tmp_path, case, text), target="cpp", device=GENERIC_CPU)
    assert any(words in note for note in result.notes), result.notes
    assert "_KERNELWRIGHT_SOURCE" not in result.source


def test_a_part_whose_state_grows_stays_with_pytorch(tmp_path: Path) -> None:
    original, emitted, _ = emit(tmp_path, "part", '''
        class Part(nn.Module):
            def __init__(self):
                super().__init__()
                self.seen = torch.zeros(1, 16)

            def forward(self, x):
                self.seen = torch.cat([self.seen, x])
                return self.seen.sum(0)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = Part()
                self.last = None

            def forward(self, x):
                y = torch.tanh(x) * self.part(x) + torch.sigmoid(x)
                self.last = y
                return torch.tanh(y) * torch.sigmoid(y)
    ''' + INPUTS)
    old, new, _ = models(original, emitted)
    for _ in range(3):
        x = torch.randn(8, 16)
        with torch.no_grad(), kernels_run(emitted, 1):
            found = new(x)
        with torch.no_grad():
            right = old(x)
        assert_like(found, right)
        assert_same_attributes(new, old, (found, right), [x])
