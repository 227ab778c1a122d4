"""A file whose programs run as CUDA graphs, on a GPU: each call gives what eager gives, whatever moves meanwhile."""

from __future__ import annotations

import copy
import gc
import importlib.util
import threading
import warnings
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import kernelwright
from kernelwright.timing.graphed import graph_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")]

PROBLEM = '''
import torch
from torch import nn


class Model(nn.Module):
    """Two results share their memory; training changes buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 64)
        self.norm, self.average = nn.LayerNorm(64), nn.BatchNorm1d(128)

    def forward(self, x, scale):
        hidden = torch.nn.functional.gelu(self.average(self.first(x)))
        result = self.norm(self.second(hidden) + x) * scale
        return result, result[:, 0], hidden.sum(-1)


def get_inputs():
    return [torch.randn(32, 64), torch.rand(64)]


def get_init_inputs():
    return []
'''


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "problem.py").write_text(PROBLEM)
    result = kernelwright.optimize(folder / "problem.py", effort="quick", baselines="none", launch="graph",
                                   output=folder / "made.py")
    assert '"graph": True' in result.source, result.notes
    return imported(folder / "made.py")


def imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(emitted: ModuleType, *, training: bool = False) -> nn.Module:
    return emitted.ModelNew().cuda().train(training)


def inputs(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(32, 64, device="cuda", generator=generator), torch.rand(64, device="cuda", generator=generator)]


def graphs(emitted: ModuleType, model: nn.Module) -> list[Any]:
    return [b.graph for b in emitted._kernelwright_bindings.get(model, {}).values() if b.graph is not None]


def agrees(model: nn.Module, seed: int) -> tuple[torch.Tensor, ...]:
    given = inputs(seed)
    with torch.no_grad():
        found = model(*given)
        torch.testing.assert_close(found, copy.deepcopy(model)._original_forward(*given), rtol=2e-3, atol=2e-3)
    return found


def test_results_of_earlier_calls_stay(emitted: ModuleType) -> None:
    model = made(emitted)
    found = [agrees(model, seed) for seed in range(6)]
    kept = [[part.clone() for part in parts] for parts in found]
    assert len(graphs(emitted, model)) == 1
    found += [agrees(model, seed) for seed in range(6, 9)]
    for parts, copies in zip(found, kept, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(parts, copies, strict=True))
    assert len({parts[0].data_ptr() for parts in found}) == len(found)


def test_views_share_memory_as_eagers_do(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(4):
        result, column, _ = agrees(model, seed)
        assert column.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()
        assert column.stride() == (64,)
        result.zero_()
        assert not column.any()


def test_parameters_change_and_move(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    first = graphs(emitted, model)[0]
    with torch.no_grad():
        model.first.weight.mul_(2)
        agrees(model, 3)
        other = made(emitted)
        for parameter in other.parameters():
            parameter.add_(0.1)
    model.load_state_dict(other.state_dict())
    agrees(model, 4)
    assert graphs(emitted, model) == [first]  # nothing has moved
    model.load_state_dict({name: t.clone() for name, t in other.state_dict().items()}, assign=True)
    for seed in range(4):
        agrees(model, seed)
    model.second.weight = nn.Parameter(torch.randn_like(model.second.weight))
    for seed in range(4):
        agrees(model, seed)
    assert graphs(emitted, model) != [first]
    model.cpu().cuda()
    for seed in range(4):
        agrees(model, seed)


def test_the_graph_is_launched_before_the_questions(emitted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that was as before; what the questions find decides all the same, and what is another model is not
    launched again and again."""
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    told: list[str] = []
    replay, fit = torch.cuda.CUDAGraph.replay, emitted._kernelwright_fit
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (told.append("launched"), replay(graph))[1])
    monkeypatch.setattr(emitted, "_kernelwright_fit", lambda *given: (told.append("asked"), fit(*given))[1])

    def seen(seed: int) -> list[str]:
        told.clear()
        agrees(model, seed)
        return [*told]

    assert seen(3) == ["launched"]  # and compared with what it was
    with torch.no_grad():
        model.first.weight.mul_(2)  # in place
    assert seen(4) == ["launched"]
    doubles = model.first.register_forward_hook(lambda module, given, result: 2 * result)
    with pytest.warns(RuntimeWarning, match="has a hook"):
        assert seen(5) == ["launched", "asked"]
    assert seen(6) == ["asked"]  # once is enough
    doubles.remove()
    assert seen(7) == ["asked", "launched"]  # nobody knew that it would fit again
    assert seen(8) == ["launched"]
    model.second.weight = nn.Parameter(model.second.weight.detach() + 1)
    assert "launched" not in seen(9)  # the graph has the old one's address
    agrees(model, 10)
    assert seen(11) == ["launched"]
    model.norm = nn.Identity()
    with pytest.warns(RuntimeWarning, match="a submodule is not what it was"):
        agrees(model, 12)


def test_what_is_launched_ahead_is_of_these_inputs(emitted: ModuleType) -> None:
    """Others run the original computation, or are copied, as without a graph."""
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    x, scale = inputs(4)
    with torch.no_grad():
        for given in ((x[:8], scale), (x.double().float().t().contiguous().t(), scale), (x[1:].clone(), scale),
                      (x.expand(32, 64), scale), (-x, scale.flip(0))):
            wanted = copy.deepcopy(model)._original_forward(*given)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = model(*given)
            torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            wanted = copy.deepcopy(model)._original_forward(x, scale)
            torch.testing.assert_close(model(x, scale), wanted)
    x.requires_grad_()
    found = torch.autograd.grad(model(x, scale)[0].sum(), x)[0]
    wanted = torch.autograd.grad(copy.deepcopy(model)._original_forward(x, scale)[0].sum(), x)[0]
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def test_training_is_not_launched_ahead(emitted: ModuleType) -> None:
    """A call changes buffers, so that one which does not count must not be."""
    plans = {facts["training"]: facts["ahead"] for facts in emitted._KERNELWRIGHT_PLANS.values() if facts["graph"]}
    assert plans == {False: True, True: False}, plans


def test_tensors_that_move_again_and_again_are_not_recorded_for_ever(emitted: ModuleType) -> None:
    model = made(emitted)
    for _ in range(emitted._KERNELWRIGHT_RECORDINGS + 3):
        model.first.weight = nn.Parameter(model.first.weight.detach().clone())
        for seed in range(3):
            agrees(model, seed)
    assert not graphs(emitted, model)


def test_training_changes_buffers(emitted: ModuleType) -> None:
    model, twin = made(emitted, training=True), made(emitted, training=True)
    twin.load_state_dict(model.state_dict())
    for seed in range(5):
        given = inputs(seed)
        before = model.average.running_mean._version
        with torch.no_grad():
            torch.testing.assert_close(model(*given), twin._original_forward(*given), rtol=2e-3, atol=2e-3)
        assert model.average.running_mean._version > before
        for one, other in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    model.eval()
    for seed in range(3):
        agrees(model, seed)


def test_gradients(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    given = inputs(5)
    model(*given)[0].square().sum().backward()
    found = model.first.weight.grad.clone()
    model.zero_grad()
    model._original_forward(*given)[0].square().sum().backward()
    torch.testing.assert_close(found, model.first.weight.grad, rtol=1e-2, atol=1e-2)
    agrees(model, 6)


def test_inference_mode_and_what_follows(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(4):
        with torch.inference_mode():
            given = inputs(seed)
            assert all(part.is_inference() for part in model(*given))
        agrees(model, seed)


def test_streams_and_threads(emitted: ModuleType) -> None:
    model = made(emitted)
    wanted = {seed: [part.clone() for part in agrees(model, seed)] for seed in range(8)}
    wrong: list[Any] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for turn in range(50):
                seed = (number + turn) % 8
                found = model(*inputs(seed))
                stream.synchronize()
                wrong.extend(seed for a, b in zip(found, wanted[seed], strict=True) if not torch.equal(a, b))

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_copies_and_instances(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.second.bias.add_(1)
    for seed in range(4):
        agrees(other, seed)
        agrees(model, seed)
    assert graphs(emitted, other)[0] is not graphs(emitted, model)[0]


def test_within_another_capture(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    given = inputs(11)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = model(*given)
    for value, fresh in zip(given, inputs(12), strict=True):
        value.copy_(fresh)
    graph.replay()
    torch.testing.assert_close(found, agrees(model, 12))


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("there is no memory"), RuntimeError("no graph")])
def test_what_cannot_be_recorded_is_launched_directly(emitted: ModuleType, error: Exception,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(emitted)

    def end(graph: Any) -> None:
        real(graph)
        raise error

    real = torch.cuda.CUDAGraph.capture_end
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", end)
    with pytest.warns(RuntimeWarning, match="launches its kernels one by one"):
        for seed in range(4):
            agrees(model, seed)
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(model, 5)
    assert not graphs(emitted, model)


def test_a_call_that_waits_while_it_is_recorded(emitted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an operator does that asks the device for a value: CUDA refuses, and the next calls go on."""
    model = made(emitted)
    agrees(model, 0)
    facts = next(f for f in emitted._KERNELWRIGHT_PLANS.values() if not f["training"])
    run = facts["run"]

    def waits(*arguments: Any) -> Any:
        found = run(*arguments)
        found[0].sum().item()
        return found

    monkeypatch.setitem(facts, "run", waits)
    with pytest.warns(RuntimeWarning, match="one by one"):
        agrees(model, 1)
    nothing_is_recorded()
    for seed in range(2, 5):
        agrees(model, seed)
    monkeypatch.undo()
    other = made(emitted)
    for seed in range(4):
        agrees(other, seed)
    assert graphs(emitted, other)


def nothing_is_recorded() -> None:
    """PyTorch's random numbers and its memory are those of calls outside of a graph."""
    torch.manual_seed(3)
    first = torch.rand(100, device="cuda")
    torch.manual_seed(3)
    assert torch.equal(first, torch.rand(100, device="cuda"))
    assert not torch.equal(first, torch.nn.functional.dropout(torch.ones(100, device="cuda")))
    # Within a recording the allocator does not ask whether other streams have ended with what was freed.
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    taken = torch.empty(1 << 20, device="cuda")
    taken.record_stream(torch.cuda.Stream())
    del taken
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == before


def test_a_graph_of_eager_that_cannot_be_recorded_leaves_pytorch_as_it_was() -> None:
    class Decides(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.dropout(x, 0.5) if x.sum() > 0 else x

    x = torch.rand(64, 64, device="cuda")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            graph_of(Decides(), [x])
        nothing_is_recorded()
    launched = graph_of(lambda x: F.dropout(x, 0.5), [x])
    assert not torch.equal(launched().clone(), launched())


def test_memory_goes_with_the_model(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    assert graphs(emitted, model)[0].bytes > 0
    kept = weakref.ref(graphs(emitted, model)[0])
    del model
    gc.collect()
    assert kept() is None


def test_inputs_of_any_layout(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(4):
        x, scale = inputs(seed)
        wide = torch.cat([x, x], -1)
        for given in (wide[:, :64], x.t().contiguous().t(), wide[:, 1:65]):
            with torch.no_grad():
                torch.testing.assert_close(model(given, scale), model._original_forward(given, scale), rtol=2e-3,
                                           atol=2e-3)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one device")
def test_devices(emitted: ModuleType) -> None:
    model = made(emitted)
    for seed in range(3):
        agrees(model, seed)
    other = copy.deepcopy(model).to("cuda:1")
    for seed in range(4):
        given = [value.to("cuda:1") for value in inputs(seed)]
        with torch.no_grad():
            torch.testing.assert_close(other(*given), other._original_forward(*given), rtol=2e-3, atol=2e-3)
        agrees(model, seed)
    assert graphs(emitted, other)


def test_measured_choice(tmp_path: Path) -> None:
    """A small model waits for its launches: measured, its file runs as a graph, and says what that gains and keeps."""
    (tmp_path / "problem.py").write_text(PROBLEM)
    result = kernelwright.optimize(tmp_path / "problem.py", effort="quick", baselines="none")
    timing = result.modes[0].timing
    assert set(timing.launches) == {"graph", "direct"}
    assert timing.launch in timing.launches and timing.entries["candidate"] == timing.launches[timing.launch]
    assert ('"graph": True' in result.source) == any(m.timing.launch == "graph" for m in result.modes)


RECURRENT = '''
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.LSTM(128, 256, 6, batch_first=True, proj_size=64), nn.Linear(64, 10)

    def forward(self, x, h, c):
        states, (h, c) = self.cells(x, (h, c))
        return self.last(states[:, -1]), h


def get_inputs():
    return [torch.randn(10, 512, 128), torch.randn(6, 10, 64), torch.randn(6, 10, 256)]


def get_init_inputs():
    return []
'''


def test_calls_of_pytorch_alone_in_one_launch(tmp_path: Path) -> None:
    """The library's recurrent layer with projections, of hundreds of launches, which no kernel of ours replaces."""
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    result = kernelwright.optimize(tmp_path / "recurrent.py", effort="quick", baselines="none",
                                   output=tmp_path / "made.py")
    first = result.modes[0]
    assert first.launched == "graph" and not first.kernels and first.certificate.passed, result.notes
    assert "load_inline" not in result.source
    problem, emitted = imported(tmp_path / "recurrent.py"), imported(tmp_path / "made.py")
    eager, own = problem.Model().cuda(), emitted.ModelNew().cuda()
    own.load_state_dict(eager.state_dict())
    kept = []
    for seed in range(4):
        torch.manual_seed(seed)
        given = [value.cuda() for value in problem.get_inputs()]
        with torch.no_grad():
            if seed == 3:  # in place: the graph reads it where it lies
                for model in (eager, own):
                    model.last.bias += 1.0
            kept.append((eager(*given), own(*given)))
    for expected, found in kept:
        for one, other in zip(expected, found, strict=True):
            torch.testing.assert_close(other, one)
    assert any(b.graph is not None for b in emitted._kernelwright_bindings[own].values()), "nothing was recorded"
    gradients = []
    for model in (eager, own):
        given = [value.detach().clone().requires_grad_() for value in given]
        sum(result.sum() for result in model(*given)).backward()
        gradients.append([value.grad for value in given])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(other, one)


def test_a_graph_that_supposes_finite_numbers(tmp_path: Path) -> None:
    """It is asked after its launch, and where it is wrong the original computation runs."""
    path = tmp_path / "clamps.py"
    path.write_text('''
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x) * 2) / x.abs()
            if not torch.isfinite(x).all():
                x = torch.nan_to_num(x, nan=3.0).clamp(-9, 9)
        return x


def get_inputs():
    return [torch.rand(32, 64) + 0.5]
''')
    result = kernelwright.optimize(path, effort="quick", baselines="none", launch="graph", output=tmp_path / "made.py")
    assert result.modes[0].kernels and "self.required" in result.source
    emitted = imported(tmp_path / "made.py")
    model = made(emitted)
    for seed in range(6):
        torch.manual_seed(seed)
        x = torch.rand(32, 64, device="cuda") + 0.5
        if seed in (3, 4):
            x[1, 1] = 0.0
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore" if seed in (3, 4) else "error")
            torch.testing.assert_close(model(x), model._original_forward(x), rtol=1e-3, atol=1e-3)
    assert graphs(emitted, model)
