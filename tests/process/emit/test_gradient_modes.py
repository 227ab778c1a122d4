"""What an emitted model gives beside values, as eager gives it: gradients, objects, memory, in every gradient mode."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from emitted_tools import emit, import_text, kernels_run, models, original_runs, write_problem
from torch.utils import _pytree as pytree

from kernelwright.capture.export import NotCapturable, capture
from kernelwright.capture.observed import observe
from kernelwright.modes import laid_out
from kernelwright.problem import load_problem
from kernelwright.programs import Stages, emitted_text, understand
from kernelwright.progress import Progress
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.selection import with_strides_of_eager
from kernelwright.settings import Settings

PROBLEMS = {
    "functions around submodules": '''
        from functools import partial

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second, self.third, self.fourth, self.fifth = (nn.Linear(32, 32) for _ in range(5))
                layers = [self.first]
                inner = lambda x: torch.tanh(layers[0](x))
                self.mixed = lambda x: inner(x) * torch.sigmoid(self.second(x))
                self.scaled = [lambda x, layer=self.third: layer(x) * 0.5]
                self.named = {"bound": self.fourth.forward, "partial": partial(lambda layer, x: layer(x), self.fifth)}

            def forward(self, x):
                y = self.mixed(x) * 2.0 + torch.relu(self.scaled[0](x))
                return torch.tanh(self.named["bound"](x)) * y + torch.sigmoid(self.named["partial"](x))

        def get_inputs():
            return [torch.randn(8, 32)]
    ''',
    "asks for the gradient mode": '''
        class Scale(nn.Module):
            def forward(self, x):
                return x * 3.0 if torch.is_grad_enabled() else x

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = Scale()
                self.gain = nn.Parameter(torch.rand(32))
                self.norm = nn.BatchNorm1d(32)

            def forward(self, x):
                y = self.norm(torch.tanh(self.scale(x) * self.gain))
                with torch.no_grad():
                    centre = torch.sigmoid(y).mean(0)
                return y - centre, centre

        def get_inputs():
            return [torch.randn(16, 32)]
    ''',
    "results without gradients": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.rand(6))
                self.other = nn.Parameter(torch.rand(6))
                self.register_buffer("offset", torch.rand(6))

            def forward(self, x, z):
                y = torch.tanh(x * self.gain) + self.offset
                return {"y": y, "detached": y.detach(), "again": y, "view": y[1:], "whole": (y * 9).long(),
                        "sign": y > 0, "other": torch.sigmoid(z * self.other) * 2, "input": torch.exp(x) - 1,
                        "place": torch.sigmoid(x).argmax(1), "spectrum": torch.fft.rfft(torch.tanh(z) * 2)}

        def get_inputs():
            return [torch.randn(5, 6), torch.randn(5, 6)]
    ''',
    "memory": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.rand(4, 6))
                self.register_buffer("offset", torch.rand(6))

            def forward(self, x, image):
                y = torch.tanh(x * self.gain) + self.offset
                channels = torch.sigmoid(image) * 2
                return (y, y.t(), y.t().relu() + 1, y[:, ::2], y[0].expand(3, 6), x, x.t(), x[1:], x.detach(), image,
                        self.gain, self.gain.t(), self.offset, channels, channels.permute(0, 2, 3, 1),
                        channels.mean((2, 3), keepdim=True), torch.exp(image.permute(0, 2, 3, 1)) + 1)

        def get_inputs():
            return [torch.randn(4, 6), torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)]
    ''',
    "views of an input": '''
        class Model(nn.Module):
            def forward(self, x):
                first, second = torch.split(x, 2, 1)
                return torch.sigmoid(x) * 2, first, first.detach(), second, second[:]

        def get_inputs():
            return [torch.randn(5, 3, 4).transpose(1, 2)]
    ''',
    "an expanded input": '''
        class Model(nn.Module):
            def forward(self, x):
                return torch.sigmoid(x) * 2 - torch.exp(x)

        def get_inputs():
            return [torch.randn(5, 1, 4).expand(5, 3, 4)]
    ''',
    "asks what requires gradients": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.rand(32))

            def forward(self, x):
                y = torch.sigmoid(x * self.gain) + 1
                return y * 2 if x.requires_grad or not self.gain.requires_grad else y

        def get_inputs():
            return [torch.randn(16, 32)]
    ''',
    "a loss of given targets and weights": '''
        class Model(nn.Module):
            def forward(self, x, target, weight):
                return F.soft_margin_loss(x * 2, target), F.binary_cross_entropy(torch.sigmoid(x), target, weight)

        def get_inputs():
            return [torch.randn(16, 32), torch.rand(16, 32), torch.rand(16, 32)]
    ''',
    "buffers": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.gain = nn.Parameter(torch.rand(6))
                self.register_buffer("mean", torch.zeros(6))
                self.register_buffer("calls", torch.zeros((), dtype=torch.long))

            def forward(self, x):
                y = torch.tanh(x * self.gain) * 2
                before = self.mean * 3
                self.mean.mul_(0.9).add_(y.detach().mean(0))
                self.calls += 1
                return y, self.mean, before, self.calls, self.mean * 2

        def get_inputs():
            return [torch.randn(4, 6)]
    ''',
    "lists of views": '''
        class Model(nn.Module):
            def forward(self, x, y):
                scaled = x * 2
                wide, other = torch.broadcast_tensors(scaled, y)
                scaled.add_(1)
                rows, columns = torch.meshgrid(y[0], x[:, 0], indexing="ij")
                return torch.tanh(wide) + other, other, rows, columns * 1.5

        def get_inputs():
            return [torch.randn(3, 4), torch.randn(1, 4)]
    ''',
    "views of transposed values": '''
        class Model(nn.Module):
            def forward(self, x, y):
                wide = F.silu(torch.tanh(x)) * 2
                first, second = torch.split(wide, [2, 2], 3)
                flat, thin = torch.exp(x * 0.1), F.softplus(y) - 1
                return (first, second, F.dropout(second, 0.5, False)[:, 1:], flat[1], flat.transpose(0, 2)[:, 2],
                        thin.transpose(0, 3), thin)

        def get_inputs():
            return [torch.randn(3, 4, 8, 4).transpose(1, 3),
                    torch.randn(1, 7, 3, 2, 4).to(memory_format=torch.channels_last_3d)]
    ''',
    "knows of compilers": '''
        class Model(nn.Module):
            def forward(self, x):
                y = torch.sigmoid(x) * 3 - torch.exp(-x)
                return y + 1 if torch.compiler.is_compiling() or torch.compiler.is_exporting() else y

        def get_inputs():
            return [torch.randn(16, 32)]
    ''',
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Emits a problem of PROBLEMS once, of a folder with PyTorch's name: what is there is the user's all the same."""
    known: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in known:
            folder = tmp_path_factory.mktemp("modes") / "torch" / "nn"
            folder.mkdir(parents=True)
            known[name] = emit(folder, name.replace(" ", "_"), PROBLEMS[name])
        return known[name]

    return get


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _described(results: list[torch.Tensor], given: list[torch.Tensor]) -> list[dict[str, Any]]:
    """Of each result: all that eager says of it but its values."""
    def same(result: torch.Tensor, others: list[torch.Tensor]) -> list[int]:
        return [i for i, o in enumerate(others) if o is result]

    def shares(result: torch.Tensor, others: list[torch.Tensor]) -> list[int]:
        address = result.untyped_storage().data_ptr()
        return [i for i, o in enumerate(others) if o.untyped_storage().data_ptr() == address]

    return [{"dtype": r.dtype, "shape": r.shape, "requires_grad": r.requires_grad, "is_leaf": r.is_leaf,
             "strides": [s for s, size in zip(r.stride(), r.shape, strict=True) if size > 1],
             "is given": same(r, given), "is result": same(r, results), "memory given": shares(r, given),
             "memory of results": shares(r, results)} for r in results]


def _results(model: torch.nn.Module, inputs: list[Any], recording: bool, required: bool
             ) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Results of a call, what was given to it (inputs, parameters, buffers), and what gradients are asked of."""
    inputs = [x.detach().requires_grad_(required) for x in inputs]
    with torch.set_grad_enabled(recording):
        results = _leaves(model(*inputs))
    given = [*inputs, *model.parameters(), *model.buffers()]
    return results, given, [t for t in given if t.requires_grad]


def _gradients(results: list[torch.Tensor], wanted: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of every result by itself, and of all together."""
    recorded = [r for r in results if r.requires_grad]
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(r.shape, generator=generator, dtype=r.dtype) for r in recorded]
    found = []
    for chosen in (*([i] for i in range(len(recorded))), list(range(len(recorded)))):
        found += torch.autograd.grad([recorded[i] for i in chosen], wanted, [weights[i] for i in chosen],
                                     retain_graph=True, allow_unused=True) if chosen and wanted else []
    return found


CALLS = [(recording, required, frozen) for recording, required, frozen in itertools.product([False, True], repeat=3)
         if recording or not (required or frozen)]


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", ["asks for the gradient mode", "results without gradients", "memory", "buffers",
                                  "lists of views", "views of transposed values",
                                  "views of an input", "an expanded input", "knows of compilers",
                                  "functions around submodules"])
@pytest.mark.parametrize(("recording", "required", "frozen"), CALLS)
def test_results_are_those_of_eager(built: Any, name: str, training: bool, recording: bool, required: bool,
                                    frozen: bool) -> None:
    original, emitted, _ = built(name)
    old, new, inputs = models(original, emitted)
    for model in (old, new):
        model.train(training).requires_grad_(not frozen)
    expected, expected_given, expected_wanted = _results(old, inputs, recording, required)
    with kernels_run(emitted):
        found, given, wanted = _results(new, inputs, recording, required)
    for place, (a, b) in enumerate(zip(_described(found, given), _described(expected, expected_given), strict=True)):
        assert a == b, f"result {place}"
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    if not recording:
        return
    for a, b in zip(_gradients(found, wanted), _gradients(expected, expected_wanted), strict=True):
        assert (a is None) == (b is None)
        if a is not None:  # of sums that cancel, eager's are as far from float64's
            torch.testing.assert_close(a, b, rtol=1e-5, atol=3e-5 * max(1.0, float(b.detach().abs().max())))


def test_who_writes_into_a_result_writes_where_eager_does(built: Any) -> None:
    original, emitted, _ = built("memory")
    old, new, inputs = models(original, emitted)
    for place in range(17):
        values = []
        for model in (old, new):
            given = [x.clone(memory_format=torch.preserve_format) for x in inputs]
            with torch.no_grad():
                results = model(*given)
                if place != 4:  # expanded
                    results[place].zero_()
            values.append([t.detach().clone() for t in (*results, *given)])
            with torch.no_grad():
                model.gain.fill_(0.5), model.offset.fill_(0.25)
        torch.testing.assert_close(values[1], values[0])


def test_other_tensors_that_require_gradients_are_told_where_the_model_asks(built: Any) -> None:
    original, emitted, _ = built("asks what requires gradients")
    old, new, (x,) = models(original, emitted)
    with kernels_run(emitted), torch.no_grad():
        torch.testing.assert_close(new(x), old(x))
    with kernels_run(emitted):
        torch.testing.assert_close(new(x), old(x))
    with original_runs(emitted, "has other tensors that require gradients"):
        torch.testing.assert_close(new(x.clone().requires_grad_()), old(x.clone().requires_grad_()))
    for model in (old, new):
        model.requires_grad_(False)
    with original_runs(emitted, times=0):  # said before
        torch.testing.assert_close(new(x), old(x))


@pytest.mark.parametrize(("place", "words"), [(0, ""), (1, "soft_margin_loss"), (2, "binary_cross_entropy")])
def test_gradients_that_a_loss_refuses(built: Any, place: int, words: str) -> None:
    """PyTorch refuses targets and weights that require gradients; of predictions there are some."""
    original, emitted, _ = built("a loss of given targets and weights")
    old, new, inputs = models(original, emitted)
    inputs = [x.detach().requires_grad_(i == place) for i, x in enumerate(inputs)]
    if words:
        with pytest.raises(RuntimeError, match=f"'{words}' is not differentiable"):
            new(*inputs)
        return
    with kernels_run(emitted):
        torch.testing.assert_close(new(*inputs), old(*inputs))
    with kernels_run(emitted), torch.no_grad():
        torch.testing.assert_close(new(*inputs), old(*inputs))


def test_another_default_type_runs_the_original(built: Any) -> None:
    original, emitted, _ = built("results without gradients")
    _, new, inputs = models(original, emitted)
    torch.set_default_dtype(torch.float64)
    try:
        with original_runs(emitted, "is under another default type than torch.float32"):
            new(*inputs)
    finally:
        torch.set_default_dtype(torch.float32)
    with kernels_run(emitted):
        new(*inputs)


def test_modes_that_no_question_tells_apart_share_a_program(built: Any) -> None:
    text = built("results without gradients")[2]
    assert "_with_gradients" not in text and text.count("(True, False): _KERNELWRIGHT_TRAINING") == 1
    text = built("asks for the gradient mode")[2]
    assert "(True, True): _KERNELWRIGHT_TRAINING_WITH_GRADIENTS" in text and "Training with gradients mode" in text


def test_strides_of_eager_may_depend_on_the_gradient_mode(tmp_path: Path) -> None:
    """As those of a recurrent layer do on a CPU."""
    path = write_problem(tmp_path, "linear", '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(6, 4)

            def forward(self, x):
                return torch.tanh(self.linear(torch.sigmoid(x) * 2)) + 1

        def get_inputs():
            return [torch.randn(5, 6)]
    ''')
    problem = load_problem(path)
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, GENERIC_CPU, Settings(), Stages(Progress()))
    assert [m.name for m in laid_out(modes[0], {False: [(4, 1)], True: [(4, 1)]}, GENERIC_CPU)] == ["training"]
    parts = laid_out(modes[0], {False: [(1, 5)], True: [(8, 1)]}, GENERIC_CPU)
    assert [(m.name, m.recordings) for m in parts] == [("training", (False,)), ("training_with_gradients", (True,))]
    module = import_text(emitted_text(problem, parts, example, "cpp", GENERIC_CPU)[0], tmp_path, "linear")
    model, new = problem.make_model(0), problem.make_model(0, module.ModelNew)
    for recording, strides in ((False, (1, 5)), (True, (8, 1))):
        with kernels_run(module), torch.set_grad_enabled(recording):
            found = new(*example)
        assert found.stride() == strides
        torch.testing.assert_close(found, model(*example))


def test_strides_that_a_trace_does_not_know(tmp_path: Path) -> None:
    """Batch norm stores contiguously what has its axes in another order; tensors without data keep the order."""
    problem = load_problem(write_problem(tmp_path, "turned", '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.BatchNorm1d(6)

            def forward(self, x):
                return torch.tanh(self.norm(x)) + 1

        def get_inputs():
            return [torch.randn(6, 4).t()]
    '''))
    example = problem.make_inputs(0)
    modes, _ = understand(problem, example, GENERIC_CPU, Settings(), Stages(Progress()))
    parts = [part for mode in modes for part in with_strides_of_eager(problem, mode, example, GENERIC_CPU, Settings())]
    module = import_text(emitted_text(problem, parts, example, "cpp", GENERIC_CPU)[0], tmp_path, "turned")
    for training in (True, False):
        model, new = (made.train(training) for made in (problem.make_model(0), problem.make_model(0, module.ModelNew)))
        with torch.no_grad(), kernels_run(module):
            found = new(*example)
        with torch.no_grad():
            assert found.stride() == model(*example).stride(), training


class _Scopes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        with torch.no_grad():
            z = torch.tanh(y)
            with torch.enable_grad():
                a, b = torch.chunk(z + y, 2)
        return y + torch.cat([b, a])


@pytest.mark.parametrize("recording", [False, True])
def test_scopes_of_gradients_are_parts_like_others(recording: bool) -> None:
    graph = capture(_Scopes(), (torch.randn(4, 3),), recording=recording)
    assert {"tanh", "concatenate"} <= {n.op for n in graph.nodes()} and all(n.op != "opaque" for n in graph.nodes())


class _Keeps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.hidden = torch.ones(3, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.hidden


def test_gradients_of_a_tensor_that_is_no_parameter_stay_with_the_original() -> None:
    with pytest.raises(NotCapturable, match="neither an input nor a parameter"):
        capture(_Keeps(), (torch.randn(2, 3),), recording=True)
    assert capture(_Keeps(), (torch.randn(2, 3),)).outputs


def test_observing_leaves_requires_grad_as_it_was(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    model[0].weight.requires_grad_(False)
    (result,), asks = observe(model, [torch.randn(5, 3)], {}, {}, recording=True, as_they_are=False)
    everything = {0, "0.weight", "0.bias", "1.weight", "1.bias"}
    assert asks == set() and result.reaches == everything and not model[0].weight.requires_grad
    (result,), asks = observe(model, [torch.randn(5, 3)], {}, {}, recording=True, as_they_are=True)
    assert asks == everything and result.reaches == {"0.bias", "1.weight", "1.bias"}


_RECOMPUTED = """
    from torch.utils.checkpoint import checkpoint

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, layer):
            ctx.save_for_backward(x)
            ctx.layer = layer
            return x * layer.bias

        @staticmethod
        def backward(ctx, gradient):
            x, = ctx.saved_tensors
            return gradient * ctx.layer.bias, None

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
            self.second.weight = self.first.weight

        def forward(self, x):
            y = checkpoint(lambda t: torch.tanh(self.first(t)) * t, x, use_reentrant=False)
            return torch.sigmoid(checkpoint(self.second, y, use_reentrant=False)) * y {also}

    def get_inputs():
        return [torch.randn(4, 24)]
"""


@pytest.mark.parametrize("also", ["+ 1.0", "+ Scaled.apply(y, self.second)"])
@pytest.mark.parametrize("twice", [False, True])
def test_what_a_backward_computes_again_reads_what_its_forward_read(tmp_path: Path, also: str, twice: bool) -> None:
    """torch.utils.checkpoint, and functions that read a module in their backward; where gradients have a graph, too."""
    old, new, (x,) = models(*emit(tmp_path, f"recomputed{twice}", _RECOMPUTED.format(also=also))[:2])

    def gradients(model: Any) -> list[Any]:
        given = x.clone().requires_grad_()
        loss = model(given).square().sum()
        if twice:
            (slope,) = torch.autograd.grad(loss, given, create_graph=True)
            loss = slope.square().sum()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data = parameter.data * 1.0  # the forward's are other tensors by now
        loss.backward()
        return [given.grad, *(p.grad for p in model.parameters())]

    for found, expected in zip(gradients(new), gradients(old), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert not new.why()
