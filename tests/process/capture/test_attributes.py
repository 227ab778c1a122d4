"""A forward that keeps tensors in plain attributes: ModelNew beside eager, call after call."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from emitted_tools import assert_like, emit, kernels_run, models
from torch import nn

#: By what a forward does with attributes: the model, and how many of its first calls run the original computation.
FORMS = {
    "a membrane": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)
                self.layer = nn.Linear(16, 16)

            def forward(self, x):
                self.mem = 0.9 * self.mem + torch.tanh(self.layer(x))
                return torch.sigmoid(self.mem) * 2 - 1
    ''', 0),
    "a membrane that a first call makes": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = None

            def forward(self, x):
                if self.mem is None:
                    self.mem = torch.zeros_like(x)
                self.mem = 0.9 * self.mem + torch.tanh(x)
                spikes = (self.mem > 0.5).float()
                self.mem = self.mem - spikes * 0.5
                return spikes, torch.sigmoid(self.mem * 2)
    ''', 1),
    "one that has no attribute yet": ('''
        class Model(nn.Module):
            def forward(self, x):
                if not hasattr(self, "mem"):
                    self.mem = x.new_zeros(16)
                self.mem = torch.tanh(self.mem + x.sum(0))
                return torch.sigmoid(x * self.mem) + 1
    ''', 1),
    "written in place": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)

            def forward(self, x):
                self.mem.mul_(0.9).add_(torch.tanh(x))
                return torch.sigmoid(self.mem * 2) + 1
    ''', 0),
    "written in place and returned": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(8, 16)

            def forward(self, x):
                self.mem.mul_(0.9).add_(torch.tanh(x))
                return self.mem, torch.sigmoid(self.mem * 2) + 1
    ''', 0),
    "a counter": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = torch.tensor(0)

            def forward(self, x):
                self.calls += 1
                return torch.tanh(x) * self.calls + torch.sigmoid(x)
    ''', 0),
    "a counter that is made anew": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.calls = torch.tensor(0.0)

            def forward(self, x):
                self.calls = self.calls + 1
                return torch.tanh(x) * self.calls + torch.sigmoid(x)
    ''', 0),
    "the result, kept": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = None

            def forward(self, x):
                self.last = torch.tanh(x) * torch.sigmoid(x)
                return self.last
    ''', 0),
    "the result, detached": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.last = None
                self.scale = nn.Parameter(torch.ones(16))

            def forward(self, x):
                y = torch.tanh(x * self.scale) * torch.sigmoid(x)
                self.last = y.detach()
                return y
    ''', 0),
    "the input, kept": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.given = None

            def forward(self, x):
                self.given = x
                return torch.tanh(x) * torch.sigmoid(x)
    ''', 0),
    "the last input, read": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.before = torch.zeros(8, 16)

            def forward(self, x):
                y = torch.tanh(x - self.before) * torch.sigmoid(x)
                self.before = x
                return y
    ''', 0),
    "two that hand on": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.now = torch.zeros(8, 16)
                self.before = torch.ones(8, 16)

            def forward(self, x):
                self.before = self.now
                self.now = torch.tanh(x + self.now) * torch.sigmoid(self.before)
                return self.now - self.before
    ''', 0),
    "a view": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.state = torch.zeros(16, 8)

            def forward(self, x):
                y = torch.tanh(x + self.state.t()) * torch.sigmoid(x)
                self.state = y.t()
                return y
    ''', 1),
    "a window of the last rows": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = torch.zeros(12, 16)

            def forward(self, x):
                self.rows = torch.cat([self.rows, torch.tanh(x)])[-12:]
                return torch.sigmoid(self.rows) * 2 - 1
    ''', 0),
    "attention weights of a submodule": ('''
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.query = nn.Linear(16, 16)
                self.weights = None

            def forward(self, x):
                weights = torch.softmax(self.query(x) @ x.t() * 0.25, dim=-1)
                self.weights = weights
                return weights @ x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = nn.ModuleList([Attention(), Attention()])
                self.norm = nn.LayerNorm(16)

            def forward(self, x):
                for block in self.blocks:
                    x = x + torch.tanh(block(x)) * 0.5
                return self.norm(x) * torch.sigmoid(x)
    ''', 0),
    "other type in the constructor": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mem = torch.zeros(1, dtype=torch.float64)

            def forward(self, x):
                self.mem = (0.9 * self.mem.to(x.dtype) + torch.tanh(x)) * torch.sigmoid(x)
                return self.mem * 2 - 1
    ''', 1),
    "under no_grad": ('''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.mean = torch.zeros(16)

            def forward(self, x):
                y = torch.tanh(x - self.mean) * torch.sigmoid(x)
                with torch.no_grad():
                    self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                return y
    ''', 0),
}
INPUTS = '''
        def get_inputs():
            return [torch.randn(8, 16)]
'''


#: What makes a model beside its ModelNew; the emitted module; the first calls that run the original computation.
Form = tuple[Callable[[], Any], Any, int]


def attributes(model: nn.Module) -> dict[str, Any]:
    """The tensors in plain attributes, by path."""
    return {f"{path}.{key}".lstrip("."): value for path, module in model.named_modules()
            for key, value in vars(module).items() if isinstance(value, torch.Tensor)}


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
    for change, times in ((lambda t: t.clone(), 1), (lambda t: t + 1, 1), (lambda t: (t + 1).t().contiguous().t(), 0),
                          (lambda t: t.double(), 0)):
        for model in (old, new):
            for path, tensor in attributes(model).items():
                owner, _, key = path.rpartition(".")
                setattr(model.get_submodule(owner), key, change(tensor))
        both(times)
        both(times)
    old, new = copies
    both()
    old.state_dict(), new.state_dict()
    assert list(old.state_dict()) == list(new.state_dict())
