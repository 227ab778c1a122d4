"""torch.compile with kernelwright as its backend: what eager gives, with kernels where no gradient is recorded."""

from __future__ import annotations

import copy
import gc
import logging
import os
import threading
import tomllib
import weakref
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import torch
import torch._dynamo
from clocks import CLOCKS_DROP_NOTHING
from emitted_tools import assert_like, short_budgets
from forks import Forked
from machine import knows_the_machine
from places import ROOT
from torch import nn

import kernelwright
from kernelwright.dynamo import backend, kept, served
from kernelwright.errors import InvalidOption, UnknownOption

if "kernelwright" not in torch._dynamo.list_backends(exclude_tags=()):  # a clone that is not installed
    torch._dynamo.register_backend(name="kernelwright")(backend)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[None]:
    """Nothing that another test compiled is there."""
    short_budgets(monkeypatch)
    monkeypatch.setattr(kept, "folder", lambda: tmp_path / "graphs")
    monkeypatch.setattr(served, "_modules", {})
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often kernels' programs have run, and how many files were made by the pipeline."""
    counts, found, written = [0, 0], served.Served._found_or_made, served.Served._written

    def counted(self: served.Served, name: str, inputs: Any) -> Any:
        module = found(self, name, inputs)
        if module is not None:
            run = module._kernelwright_run

            def counting(*arguments: Any) -> Any:
                counts[0] += 1
                return run(*arguments)

            module._kernelwright_run = counting
        return module

    def counted_written(self: served.Served, inputs: Any) -> str:
        counts[1] += 1
        return written(self, inputs)

    monkeypatch.setattr(served.Served, "_found_or_made", counted)
    monkeypatch.setattr(served.Served, "_written", counted_written)
    return counts


def compiled(model: Any, **how: Any) -> Any:
    return torch.compile(model, backend="kernelwright", **how)


def runs(count: list[int], call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call gives, and how many programs of kernels it ran."""
    before = count[0]
    result = call()
    return result, count[0] - before


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8), nn.Softmax(-1))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Conv2d(8, 8, 3))


class Encoder(nn.Module):
    """A transformer's block, written out: PyTorch's own is one call of its own in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.first, self.second = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))


MODELS = {"mlp": (mlp, lambda: torch.randn(5, 16)),
          "double": (lambda: mlp().double(), lambda: torch.randn(5, 16).double()),
          "rows of a slice": (mlp, lambda: torch.randn(5, 20)[:, 2:18]),
          "convolutions": (convolutions, lambda: torch.randn(2, 3, 8, 8)),
          "channels last": (convolutions, lambda: torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)),
          "encoder": (Encoder, lambda: torch.randn(2, 6, 16))}


@pytest.mark.parametrize("name", MODELS)
def test_values_strides_and_gradients(name, count):
    make, inputs = MODELS[name]
    model, x = make().eval(), inputs()
    fast = compiled(model)
    with torch.no_grad():
        expected = model(x)
        for _ in range(2):
            found, ran = runs(count, lambda: fast(x))
            assert_like(found, expected, 1e-5)
            assert found.stride() == expected.stride() and not found.requires_grad and ran == 1
    with torch.inference_mode():
        given = inputs()
        found, ran = runs(count, lambda: fast(given))
        assert found.is_inference() and ran == 1
        assert_like(found, model(given), 1e-5)
    assert count[1] == 1, "one file for both"
    given = x.clone().requires_grad_()
    wanted = torch.autograd.grad(model(given).square().sum(), [given, *model.parameters()])
    loss, ran = runs(count, lambda: fast(given).square().sum())
    assert_like(list(torch.autograd.grad(loss, [given, *model.parameters()])), list(wanted), 1e-5)
    assert ran == 0, "calls with gradients are PyTorch's"


def test_graph_break(count, capsys):
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.sigmoid(self.first(x)) * 2
            print("between")
            if x.sum() > 0:
                x = x + 1
            return torch.tanh(self.second(x)) * 3

    model, x = Breaks(), torch.randn(4, 8)
    fast = compiled(model)
    with torch.no_grad():
        found, ran = runs(count, lambda: fast(x))
        assert_like(found, model(x))
    assert ran >= 2 and capsys.readouterr().out == "between\n" * 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes(dynamic, count, monkeypatch):
    """A size that comes again has kernels; no more than so many sizes do."""
    monkeypatch.setattr(served, "MOST_SIZES", 2)
    model = mlp()
    fast = compiled(model, dynamic=dynamic)
    ran = []
    with torch.no_grad():
        for size in (4, 4, 6, 6, 7, 7, 9, 9, 4):
            x = torch.randn(size, 16)
            found, times = runs(count, lambda x=x: fast(x))
            assert_like(found, model(x))
            ran.append(times)
    if dynamic:
        assert ran == [0, 1, 0, 1, 0, 0, 0, 0, 1] and count[1] == 2
    else:  # the first size has a graph of its own, until there is one for all
        assert ran == [1, 1, 0, 1, 0, 1, 0, 0, 0] and count[1] == 3


def test_a_number_that_changes(count):
    """A float is a tensor to the graph where it changes: it is asked for its value, and each value is another model."""
    def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.sigmoid(x * factor) * 2

    fast, x = compiled(scaled), torch.randn(4, 8)
    ran = []
    for factor in (0.5, 1.5, 2.5, 2.5, 1.5):
        found, times = runs(count, lambda f=factor: fast(x, f))
        assert_like(found, scaled(x, factor))
        ran.append(times)
    assert ran == [1, 0, 0, 1, 1]


def test_autocast(count):
    model, x = mlp(), torch.randn(5, 16)
    fast = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, ran = runs(count, lambda: fast(x))
        assert_like(found, model(x), 1e-2)
        assert ran == 1
    with torch.no_grad():
        found, ran = runs(count, lambda: fast(x))
        assert_like(found, model(x))
        assert ran == 1


def test_what_becomes_of_a_model_later(count):
    """Changed, loaded, copied, cast: values are read at each call."""
    model, x = mlp(), torch.randn(5, 16)
    fast = compiled(model)
    with torch.no_grad():
        fast(x)
        model[0].weight.mul_(2)
        model[3].bias.data = torch.randn(8)
        assert runs(count, lambda: assert_like(fast(x), model(x)))[1] == 1
        model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()})
        assert runs(count, lambda: assert_like(fast(x), model(x)))[1] == 1
        model[0].weight = nn.Parameter(torch.randn(32, 16))
        assert runs(count, lambda: assert_like(fast(x), model(x)))[1] == 1
        other = copy.deepcopy(fast)
        other._orig_mod[0].weight.mul_(0.5)
        assert runs(count, lambda: assert_like(other(x), other._orig_mod(x)))[1] == 1
        assert runs(count, lambda: assert_like(fast(x), model(x)))[1] == 1
        assert count[1] == 1, "one file for all of these"
        model.double()
        assert_like(fast(x.double()), model(x.double()))


def test_a_model_that_is_gone_takes_its_tensors_along(count):
    def called() -> weakref.ref:
        model, x = mlp(), torch.randn(5, 16)
        with torch.no_grad():
            assert runs(count, lambda: compiled(model)(x))[1] == 1
        return weakref.ref(model[0].weight)

    gone = called()
    gc.collect()
    assert gone() is None


def test_training_without_gradients_updates_buffers(count):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Sigmoid(), nn.Dropout(0.5))
    old = copy.deepcopy(model)
    fast = compiled(model)
    with torch.no_grad():
        for seed in range(3):
            x = torch.randn(16, 8)
            torch.manual_seed(seed)
            expected = old(x)
            torch.manual_seed(seed)
            found, ran = runs(count, lambda x=x: fast(x))
            assert_like(found, expected)
            assert_like(dict(model.state_dict()), dict(old.state_dict()))
            assert ran == 1


def test_training(count):
    """Steps with an optimizer, which are PyTorch's own, and an evaluation between them."""
    model = mlp()
    old = copy.deepcopy(model)
    fast = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, old)]
    for step in range(3):
        x = torch.randn(5, 16)
        for called, optimizer in zip((fast, old), optimizers, strict=True):
            optimizer.zero_grad()
            called(x).square().sum().backward()
            optimizer.step()
        with torch.no_grad():
            assert_like(fast(x), old(x))
        assert count[0] == step + 1


def test_inputs_that_change_and_results_that_are_inputs():
    def changes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.sigmoid(x) * 2

    def gives(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t(), torch.sigmoid(x) * 2, x

    x = torch.randn(4, 8)
    y = x.clone()
    assert_like(compiled(changes)(x), changes(y))
    assert torch.equal(x, y)
    turned, _, same = compiled(gives)(x)
    assert turned.data_ptr() == x.data_ptr() and turned.stride() == x.t().stride() and same is x


def test_scopes_inside(count):
    """What switches gradients and autocast inside of the model."""
    class Scopes(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            with torch.no_grad():
                y = torch.sigmoid(x) * 2
            with torch.autocast("cpu", torch.bfloat16):
                z = torch.tanh(x @ x.t()) * 2
            return y, z + 1

    model, x = Scopes(), torch.randn(8, 8)
    found, ran = runs(count, lambda: compiled(model)(x))
    assert_like(found, model(x), 1e-2)
    assert ran == 1
    given = x.clone().requires_grad_()
    y, z = compiled(model)(given)
    assert not y.requires_grad and z.requires_grad


@pytest.mark.parametrize("function", [
    lambda x: x, lambda x: torch.ones(3) * x.shape[0], lambda x: torch.nonzero(x > 0).sum(),
    lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), lambda x: (x.to_sparse() @ x.t(), x * 2)[1],
    lambda x: torch.unique(x), lambda x: (x > 0).nonzero(), lambda x: {"a": x + 1, "b": [x * 2, None, 3]}])
def test_what_has_no_kernels_runs(function):
    x = torch.randn(4, 4)
    assert_like(compiled(function)(x), function(x))


@pytest.mark.breaks
def test_a_failure_of_ours_costs_kernels_alone(monkeypatch, caplog):
    def fails(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a fault")

    monkeypatch.setattr(served, "optimize", fails)
    model, x = mlp(), torch.randn(5, 16)
    fast = compiled(model)
    with torch.no_grad(), caplog.at_level(logging.INFO, logger="kernelwright"):
        assert_like(fast(x), model(x))
        assert_like(fast(x), model(x))
    assert [record.levelname for record in caplog.records] == ["WARNING"] and "a fault" in caplog.text


def test_threads(count):
    model = mlp()
    fast, wrong = compiled(model), []
    inputs = [torch.randn(5, 16) for _ in range(4)]
    with torch.no_grad():
        fast(inputs[0])

    def work(x: torch.Tensor) -> None:
        try:
            with torch.no_grad():
                for _ in range(20):
                    assert_like(fast(x), model(x))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and count[0] == 81


def test_options(count):
    model, x = mlp(), torch.randn(5, 16)
    with pytest.raises(UnknownOption) as caught:
        kernelwright.compile(model, speed=3)
    assert caught.value.code == "KW404" and "effort, budget" in caught.value.why
    with pytest.raises(InvalidOption):
        kernelwright.compile(model, effort="slow")
    for how in ({"options": {"speed": 3}}, {"mode": "max-autotune"}, {"options": {"budget": -1}}):
        with pytest.raises(Exception, match=r"KW40[34]"), torch.no_grad():
            compiled(model, **how)(x)
    with torch.no_grad():
        fast = compiled(model, options={"effort": "quick", "budget": 1000})
        assert runs(count, lambda: assert_like(fast(x), model(x)))[1] == 1
        ours = kernelwright.compile(model, budget=1000)
        assert runs(count, lambda: assert_like(ours(x), model(x)))[1] == 1

    @kernelwright.compile(fullgraph=True, budget=1000)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2

    assert runs(count, lambda: assert_like(decorated(x), torch.sigmoid(x) * 2))[1] == 1


def test_entry_point():
    """The name under which an installed package is found."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch_dynamo_backends"]
    assert EntryPoint("kernelwright", table["kernelwright"], "torch_dynamo_backends").load() is backend


def test_a_kept_file_that_is_broken(count, tmp_path):
    model, x = mlp(), torch.randn(5, 16)
    with torch.no_grad():
        assert_like(compiled(model)(x), model(x))
        (path,) = (tmp_path / "graphs").glob("*.py")
        path.write_text(path.read_text()[:-100])
        served._modules.clear()
        torch._dynamo.reset()
        assert runs(count, lambda: assert_like(compiled(model)(x), model(x)))[1] == 1
    assert count[1] == 2


SCRIPT = CLOCKS_DROP_NOTHING + """
import torch
import kernelwright
from kernelwright.dynamo import served
made, written = [], served.Served._written
served.Served._written = lambda self, inputs: (made.append(1), written(self, inputs))[1]
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Sigmoid())
x = torch.randn(4, 8)
with torch.no_grad():
    torch.testing.assert_close(kernelwright.compile(model)(x), model(x), atol=1e-5, rtol=1e-5)
assert [m for m in served._modules.values() if m is not None]
print(len(made))
"""


@pytest.mark.slow
def test_processes(tmp_path):
    """Of two at once one makes the file, and the other one finds it, as one does that comes later."""
    cache = knows_the_machine(tmp_path / "cache")
    environment = {**os.environ, "KERNELWRIGHT_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    started = [Forked(SCRIPT, environment=environment) for _ in range(2)]
    done = [process.communicate() for process in started]
    assert sorted(out for out, _ in done) == ["0\n", "1\n"], done
    again = Forked(SCRIPT, environment=environment).communicate()
    assert again[0] == "0\n", again
    folder = tmp_path / "cache" / "graphs"
    assert len(list(folder.glob("*.py"))) == 1 and not list(folder.glob("*.part"))
