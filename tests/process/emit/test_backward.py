"""Backward by kernels in emitted files: right in all that autograd does with a call, and left to the original
computation where kernels are not for it."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from emitted_tools import emit, models, short_budgets, write_problem
from torch.utils.checkpoint import checkpoint

import kernelwright
from kernelwright.adjoint.table import ADJOINTS, mul
from kernelwright.codegen.generate import TARGETS
from kernelwright.roofline.devices import GENERIC_CPU

PROBLEMS = {
    "norms": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.norm = nn.LayerNorm(32)
                self.scale = nn.Parameter(torch.randn(32))

            def forward(self, x, y):
                z = torch.softmax(F.gelu(self.norm(x)) * self.scale, dim=1) * y
                return z, torch.tanh(z * self.scale).sum(1)

        def get_inputs():
            return [torch.randn(16, 32), torch.randn(16, 32)]
    ''',
    "layers": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.first = nn.Linear(32, 24)
                self.norm = nn.BatchNorm1d(24)
                self.second = nn.Linear(24, 8)

            def forward(self, x, target):
                return F.cross_entropy(self.second(F.silu(self.norm(self.first(x))) * 2.0), target)

        def get_inputs():
            return [torch.randn(16, 32), torch.arange(16) % 8]
    ''',
    "image": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 8, 3, padding=1)
                self.norm = nn.GroupNorm(2, 8)

            def forward(self, x):
                y = F.max_pool2d(F.relu(self.norm(self.conv(x))) + 0.5, 2)
                return torch.sigmoid(y[:, ::2] * 3.0).mean((2, 3)) - y[:, 1::2].amax((2, 3))

        def get_inputs():
            return [torch.randn(4, 3, 12, 12)]
    ''',
    # What algebra makes of it never computes the convolution.
    "collapsed": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1)

            def forward(self, x):
                return torch.logsumexp(self.conv(x).mean((2, 3), keepdim=True) * 2.0, 1) * 0.5

        def get_inputs():
            return [torch.randn(4, 4, 9, 9)]
    ''',
    # Tables, attention, and what chooses one of several.
    "tokens": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.table = nn.Embedding(11, 16, padding_idx=0)
                self.places = nn.Parameter(torch.randn(8, 16))
                self.qkv = nn.Linear(16, 48)
                self.last = nn.Linear(16, 11)
                self.last.weight = self.table.weight

            def forward(self, tokens, targets, rows):
                x = self.table(tokens) + self.places[rows]
                q, k, v = self.qkv(x).reshape(4, 6, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
                found = F.scaled_dot_product_attention(q, k, v, (tokens != 0)[:, None, None])
                found = found * torch.sigmoid(found).detach()
                x = F.relu6(x + found.transpose(1, 2).reshape(4, 6, 16)) * 0.5
                logits = self.last(x + x.max(1, keepdim=True).values)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
                taken = F.log_softmax(logits, -1).gather(2, targets[..., None])
                return loss, F.cosine_similarity(x, self.places[:6], dim=-1) * taken.squeeze(2)

        def get_inputs():
            tokens = torch.randint(0, 11, (4, 6))
            tokens[0] = 0
            return [tokens, torch.randint(0, 11, (4, 6)), torch.tensor([0, 3, 1, 1, 7, -1])]
    ''',
    # Eager keeps its result for the backward, too.
    "kept result": '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(32, 24)

            def forward(self, x):
                return torch.softmax(self.linear(x) * 2.0, 1)

        def get_inputs():
            return [torch.randn(16, 32)]
    ''',
    "no parameters": '''
        class Model(nn.Module):
            def forward(self, x, y):
                return torch.where(x > y, F.mish(x), y * 2.0).cumsum(1) + F.pad(x * y, (1, 2))[:, 2:-1]

        def get_inputs():
            return [torch.randn(8, 16), torch.randn(8, 16)]
    ''',
}
Emitted = tuple[ModuleType, ModuleType, str]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Emitted]]:
    folder = tmp_path_factory.mktemp("backward")
    return {name: emit(folder, name.replace(" ", "_"), text) for name, text in PROBLEMS.items()}


@contextmanager
def found_by_kernels(module: ModuleType, expected: bool | None = True, times: int = 1) -> Iterator[None]:
    """Inside, so many backward passes run, each by kernels or, where not ``expected``, by the original computation."""
    found: list[bool] = []
    run = module._kernelwright_gradients

    def noted(*arguments: Any) -> Any:
        result = run(*arguments)
        found.append(result is not None)
        return result

    module._kernelwright_gradients = noted
    try:
        yield
    finally:
        module._kernelwright_gradients = run
    assert found == [expected] * times


def prepared(inputs: list[Any], dtype: torch.dtype = torch.float32, *, required: bool = True) -> list[Any]:
    """Copies of inputs, of which floating ones require gradients."""
    return [x.to(dtype).clone().requires_grad_(required) if x.is_floating_point() else x for x in inputs]


def results(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, tuple) else [value]


def all_gradients(model: torch.nn.Module, inputs: list[Any], seed: int = 0, **how: Any) -> list[Any]:
    """Those of inputs and parameters, of a random combination of all results."""
    dtype = next((p.dtype for p in model.parameters()), how.pop("dtype", torch.float32))
    given = prepared(inputs, how.pop("dtype", dtype), **how)
    made = results(model(*given))
    torch.manual_seed(seed)
    torch.autograd.backward(made, [torch.randn(t.shape).to(t.dtype) for t in made])
    found = [x.grad for x in given if x.is_floating_point()] + [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def assert_near(found: list[Any], expected: list[Any], tolerance: float = 2e-5) -> None:
    assert [f is None for f in found] == [e is None for e in expected]
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROBLEMS)
def test_gradients_are_those_of_float64(emitted, name):
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    with found_by_kernels(made):
        found = all_gradients(new, inputs)
    expected = all_gradients(old.double(), inputs, dtype=torch.float64)
    assert_near(found, expected)
    assert all(f.dtype is torch.float32 for f in found)


@pytest.mark.parametrize("name", ["norms", "layers", "image", "collapsed"])
def test_inputs_that_require_no_gradients_get_none(emitted, name):
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    with found_by_kernels(made):
        found = all_gradients(new, inputs, required=False)
    assert_near(found, all_gradients(old, inputs, required=False))


def test_frozen_parameters_get_none(emitted):
    original, made, _ = emitted["layers"]
    old, new, inputs = models(original, made)
    for model in (old, new):
        model.first.weight.requires_grad_(False)
    with found_by_kernels(made):
        found = all_gradients(new, inputs)
    assert_near(found, all_gradients(old, inputs))


def test_parameters_that_were_frozen_are_the_originals(tmp_path):
    text = PROBLEMS["layers"].replace("self.second = nn.Linear(24, 8)", "self.second = nn.Linear(24, 8)\n"
                                      + " " * 16 + "self.first.weight.requires_grad_(False)")
    original, made, source = emit(tmp_path, "frozen", text)
    assert '"frozen": (\'first.weight\',)' in source
    old, new, inputs = models(original, made)
    with found_by_kernels(made):
        found = all_gradients(new, inputs)
    assert_near(found, all_gradients(old, inputs))
    for model in (old, new):
        model.first.weight.requires_grad_(True)
    with found_by_kernels(made, False):
        found = all_gradients(new, inputs)
    assert_near(found, all_gradients(old, inputs))


def test_gradients_of_gradients(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    found = []
    for model in (old, new):
        given = prepared(inputs)
        first, = torch.autograd.grad(model(*given)[1].sum(), given[:1], create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), [*given, *model.parameters()], allow_unused=True))
    assert_near(list(found[1]), list(found[0]), 1e-4)


@pytest.mark.parametrize("name", ["norms", "layers"])
def test_several_backward_passes(emitted, name):
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    sums = []
    for model in (old, new):
        given = prepared(inputs)
        total = sum(t.sum() for t in results(model(*given)))
        total.backward(retain_graph=True)
        total.backward()
        sums.append([x.grad for x in given if x.is_floating_point()])
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            total.backward()
    assert_near(sums[1], sums[0])


def test_one_result_alone_is_the_originals(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    found = []
    for model, expected in ((old, None), (new, False)):
        given = prepared(inputs)
        value = model(*given)[1].sum()
        with found_by_kernels(made, expected, int(expected is not None)):
            value.backward()
        found.append([x.grad for x in given] + [p.grad for p in model.parameters()])
    assert_near(found[1], found[0])


def test_incoming_gradients_of_any_layout(emitted):
    original, made, _ = emitted["image"]
    old, new, inputs = models(original, made)
    for direction in (torch.ones(()).expand(4, 4), torch.randn(4, 4).t(), torch.randn(4, 9)[:, 1::2],
                      torch.randn(33)[1:17].reshape(4, 4), torch.randn(4, 4).neg()):
        found = []
        for model in (old, new):
            given = prepared(inputs)
            model(*given).backward(direction)
            found.append([given[0].grad, *(p.grad for p in model.parameters())])
            model.zero_grad(set_to_none=True)
        assert_near(found[1], found[0])


def test_hooks_see_and_change_gradients(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    found = []
    for model in (old, new):
        given, seen = prepared(inputs), []
        handles = [model.scale.register_hook(lambda g: g * 2), given[0].register_hook(seen.append)]
        made_of = model(*given)
        made_of[0].register_hook(lambda g: g + 1)
        sum(t.sum() for t in made_of).backward()
        found.append([*seen, model.scale.grad, given[1].grad])
        for handle in handles:
            handle.remove()
    assert_near(found[1], found[0])


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["norms", "layers"])
def test_checkpoints(emitted, name, reentrant):
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    found = []
    for model in (old, new):
        given = prepared(inputs)
        sum(t.sum() for t in results(checkpoint(model, *given, use_reentrant=reentrant))).backward()
        found.append([x.grad for x in given if x.is_floating_point()] + [p.grad for p in model.parameters()])
    assert_near(found[1], found[0])


def test_what_is_changed_before_the_backward_raises(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    for model in (old, new):
        value = sum(t.sum() for t in model(*prepared(inputs)))
        with torch.no_grad():
            model.scale.add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def programs(source: str) -> dict[str, str]:
    """The run functions of a file, by their names without what all have in common."""
    parts = source.split("def _kernelwright_training")[1:]
    return {part.split("(")[0]: part.split("return (")[0] for part in parts}


@pytest.mark.parametrize(("name", "call"), [("layers", "functional.linear("), ("image", "functional.conv2d(")])
def test_products_are_not_computed_again(emitted, name, call):
    found = programs(emitted[name][2])
    assert call in found[""] and call in found["_saving"]
    assert "saved_0" in found["_backward"] and call not in found["_backward"] + found["_backward_of_parameters"]


def test_gradients_have_their_shapes_from_the_start(emitted):
    found = programs(emitted["norms"][2])
    assert "reshape" not in found["_backward"] + found["_backward_of_parameters"]


def test_what_needs_gradients_differs_from_call_to_call(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    everything = ("x", "y", "norm.weight", "norm.bias", "scale")
    wanted = [("x", "scale"), ("scale", "norm.bias"), everything, ("y",), ("x", "scale")]
    made_of: list[list[Any]] = []
    for model in (old, new):
        graphs = []
        for names in wanted:
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in names)
            given = [x.clone().requires_grad_(name in names) for x, name in zip(inputs, "xy", strict=True)]
            leaves = [t for t in (*given, *model.parameters()) if t.requires_grad]
            graphs.append((sum(t.sum() for t in results(model(*given))), leaves))
        model.requires_grad_(True)
        with found_by_kernels(made, times=len(wanted) if model is new else 0):  # when others need theirs again
            made_of.append([g for value, leaves in reversed(graphs) for g in torch.autograd.grad(value, leaves)])
    assert_near(made_of[1], made_of[0])


def test_what_is_cheap_is_computed_again(emitted):
    found = programs(emitted["no parameters"][2])
    assert "_backward" in found and "_saving" not in found


@contextmanager
def noted_copies(kept: list[torch.Tensor]) -> Iterator[None]:
    """Inside, autograd keeps copies of what a backward reads, which are noted."""
    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.detach().clone())
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def test_hooks_see_what_a_call_hands_over_and_it_is_freed(emitted):
    original, made, _ = emitted["layers"]
    old, new, inputs = models(original, made)
    found = []
    for model in (old, new):
        kept: list[torch.Tensor] = []
        given = prepared(inputs)
        with noted_copies(kept):
            value = model(*given)
        with torch.no_grad():
            first = torch.nn.functional.linear(given[0], model.first.weight, model.first.bias)
        assert any(t.shape == first.shape and torch.allclose(t, first, atol=1e-5) for t in kept)
        held = [weakref.ref(t) for t in kept]
        kept.clear()
        value.backward()
        found.append([given[0].grad, *(p.grad for p in model.parameters())])
        assert not [t for t in held if t() is not None]
    assert_near(found[1], found[0])


def test_two_calls_before_one_backward(emitted):
    original, made, _ = emitted["layers"]
    old, new, inputs = models(original, made)
    other = [torch.randn_like(inputs[0]) * 2.0, inputs[1].flip(0)]
    found = []
    for model in (old, new):
        one, two = prepared(inputs), prepared(other)
        values = [model(*one), model(*two)]
        (values[0] * 3.0 + values[1]).backward()
        found.append([one[0].grad, two[0].grad, *(p.grad for p in model.parameters())])
    assert_near(found[1], found[0])


def test_steps_in_threads(emitted):
    original, made, _ = emitted["layers"]
    _, new, inputs = models(original, made)

    def gradient(scale: float) -> torch.Tensor:
        x = (inputs[0] * scale).requires_grad_()
        return torch.autograd.grad(new(x, inputs[1]), x)[0]

    scales = [0.5, 1.0, 1.5, 2.0] * 4
    expected = [gradient(scale) for scale in scales]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(gradient, scales))
    assert_near(found, expected, 1e-6)


def test_calls_without_gradients_hand_nothing_over(emitted):
    original, made, _ = emitted["layers"]
    _, new, inputs = models(original, made)
    saving = made._KERNELWRIGHT_TRAINING["backward"]["saving"]
    run, called = saving["run"], []
    saving["run"] = lambda *given: called.append(True) or run(*given)
    try:
        with torch.no_grad():
            new(*inputs)
        for parameter in new.parameters():
            parameter.requires_grad_(False)
        new(*inputs)
        assert not called
        new(*prepared(inputs))
        assert called
    finally:
        saving["run"] = run


def test_a_result_that_eager_keeps_is_handed_over_itself(emitted):
    original, made, source = emitted["kept result"]
    assert "functional.linear(" not in programs(source)["_backward"]
    assert '"saving": {"run": _kernelwright_training, ' in source, "the program of other calls has it, too"
    for model in models(original, made)[:2]:
        x = torch.randn(16, 32, requires_grad=True)
        result = model(x)
        total = (result * 1.0).square().sum()
        result.detach().mul_(2.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


@pytest.mark.parametrize("name", PROBLEMS)
def test_who_writes_into_results_spoils_no_gradient(emitted, name):
    """Eager raises where it needs a result; kernels may have another need of it, and then raise or are right."""
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    found, refused = [], []
    for model in (old, new):
        given = prepared(inputs)
        made_of = results(model(*given))
        sums = sum((t * 1.0).sum() for t in made_of)
        with torch.no_grad():
            for result in made_of:
                result.mul_(3.0)
        try:
            sums.backward()
            refused.append(False)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            refused.append(True)
        found.append([x.grad for x in given if x.is_floating_point()] + [p.grad for p in model.parameters()])
    assert refused[0] or not refused[1]
    if not any(refused):
        assert_near(found[1], found[0])


def test_the_original_finds_what_kernels_are_not_for(emitted):
    original, made, _ = emitted["norms"]
    old, new, inputs = models(original, made)
    expected = all_gradients(old, inputs)
    with torch.autograd.set_detect_anomaly(True, check_nan=False), found_by_kernels(made, False):
        assert_near(all_gradients(new, inputs), expected)
    given = prepared(inputs)
    outputs = new(*given)
    directions = [torch.randn(3, *t.shape) for t in outputs]
    with found_by_kernels(made, False):
        batched = torch.autograd.grad(outputs, given, directions, is_grads_batched=True)
    theirs = prepared(inputs)
    assert_near(list(batched), list(torch.autograd.grad(old(*theirs), theirs, directions, is_grads_batched=True)))


def test_what_the_original_finds_once_kernels_find_again(emitted):
    original, made, _ = emitted["norms"]
    _, new, inputs = models(original, made)
    with torch.autograd.set_detect_anomaly(True, check_nan=False), found_by_kernels(made, False):
        all_gradients(new, inputs)
    with found_by_kernels(made):
        all_gradients(new, inputs)
    assert not new.why()


def test_one_tensor_in_two_places(emitted):
    original, made, _ = emitted["no parameters"]
    old, new, inputs = models(original, made)
    found = []
    for model in (old, new):
        x = inputs[0].clone().requires_grad_()
        model(x, x).sum().backward()
        found.append([x.grad])
    assert_near(found[1], found[0])


def test_gradients_are_memory_of_their_own(emitted):
    """Who adds to one gradient changes no other, and not the incoming one."""
    original, made, _ = emitted["no parameters"]
    _, new, inputs = models(original, made)
    given = prepared(inputs)
    incoming = torch.randn(8, 16)
    kept = incoming.clone()
    one, other = torch.autograd.grad(new(*given), given, incoming)
    before = other.clone()
    one.add_(1.0)
    assert torch.equal(other, before) and torch.equal(incoming, kept)


@pytest.mark.parametrize("name", ["layers", "image"])
def test_training_goes_the_same_way(emitted, name):
    original, made, _ = emitted[name]
    old, new, inputs = models(original, made)
    losses = []
    for model in (old, new):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(*inputs).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0][0] > losses[0][-1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    for a, b in zip(old.buffers(), new.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_a_mode_without_an_adjoint_says_which_operator_has_none(tmp_path):
    path = tmp_path / "hard.py"
    path.write_text("import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
                    "        return torch.softmax(torch.cummax(x, 1).values * 2.0, 1)\n\n\ndef get_inputs():\n"
                    "    return [torch.randn(8, 16)]\n")
    found = kernelwright.explain(path, target="cpp", device=GENERIC_CPU)
    assert "_kernelwright_gradients" not in found.source
    assert [s for s in found.spans if "cummax.default has no backward of kernels" in s.words] and not found.notes


def test_a_backward_that_eager_refuses_is_refused(tmp_path):
    """What is written over was needed: kernels would find the gradients, of values that are there no more."""
    text = """
        class Model(nn.Module):
            def forward(self, x):
                return torch.softmax(torch.exp(x * 2.0).relu_(), 1) * x

        def get_inputs():
            return [torch.randn(8, 16)]
    """
    original, made, source = emit(tmp_path, "refused", text)
    assert "_kernelwright_gradients" not in source
    for model in models(original, made)[:2]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            model(torch.randn(8, 16, requires_grad=True)).sum().backward()
    _, _, source = emit(tmp_path, "not_refused", text.replace("torch.exp(x * 2.0)", "(x * 2.0)"))
    assert "_kernelwright_gradients" in source


def test_a_backward_on_the_emulated_device(tmp_path):
    path = tmp_path / "layers.py"
    path.write_text("import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
                    + PROBLEMS["layers"].replace("\n        ", "\n").strip() + "\n")
    found = kernelwright.optimize(path, target="cuda", effort="quick", baselines="none")
    assert '"run": _kernelwright_training_backward' in found.source
    assert '"run": _kernelwright_training_saving' in found.source
    assert [n for n in found.notes if n.startswith("Checked by emulation") and "training mode" in n], found.notes


SMALL = PROBLEMS["norms"].replace("16, 32", "8, 16").replace("(32)", "(16)")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short_budgets(monkeypatch)
    return write_problem(tmp_path, "small", SMALL)


def test_a_step_that_loses_has_its_gradients_from_the_original(small, monkeypatch):
    monkeypatch.setattr("kernelwright.training.steps.is_slower", lambda timing: True)
    found = kernelwright.optimize(small, target="cpp", effort="quick", baselines="none")
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [n for n in found.notes if n.startswith("Training mode has no kernels for its backward: a step takes")]
    assert all(mode.certificate.passed for mode in found.modes)


def test_a_step_that_wins_says_what_it_takes(small):
    found = kernelwright.optimize(small, target="cpp", effort="quick", baselines="none")
    assert "_kernelwright_gradients" in found.source and not found.notes
    assert [s.words for s in found.spans if s.words.startswith("Training mode: a step takes")]
    paths = {output.path for mode in found.modes for output in mode.certificate.recorded.gradients.outputs}
    assert any(path.startswith("gradient of parameters alone") for path in paths)


def test_a_call_that_loses_keeps_kernels_where_a_step_wins(small, monkeypatch):
    """Calls that record nothing are the original computation then, in both modes."""
    monkeypatch.setattr("kernelwright.selection.is_slower", lambda timing: True)
    found = kernelwright.optimize(small, target="cpp", effort="quick", baselines="none")
    emitted = sys.modules[type(found.module).__module__]
    (call, facts), = emitted._KERNELWRIGHT_PLANS.items()
    assert call == (True, True) and facts["backward"] is not None
    assert [n for n in found.notes if n.startswith("Training mode has kernels in calls that record gradients alone")]
    recorded, = (mode for mode in found.modes if mode.runs)
    assert recorded.backward and recorded.certificate.passed and recorded.certificate.recorded.passed


@pytest.fixture
def far(small: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The target is asked as one of a device, whose compiler takes long: calls come before steps."""
    monkeypatch.setattr("kernelwright.selection.TARGETS", {"cpp": replace(TARGETS["cpp"], device="cuda")})
    monkeypatch.setattr("kernelwright.selection.further_seconds", lambda budget, took: 0.0)
    monkeypatch.setattr("kernelwright.selection._steps_fit", lambda budget, took: True)
    return small


def test_on_a_device_gradients_have_their_kernels_at_last(far):
    found = kernelwright.optimize(far, target="cpp", effort="normal", baselines="none")
    assert "_kernelwright_gradients" in found.source and not [n for n in found.notes if "gradients" in n]
    assert all(mode.certificate.recorded.gradients is not None for mode in found.modes if mode.backward)
    builds = [s.name for s in found.spans if s.name in ("build", "time")]
    assert builds.index("build") < builds.index("time") and builds.count("build") >= 2


def test_on_a_device_steps_that_lose_leave_calls_as_they_were(far, monkeypatch):
    monkeypatch.setattr("kernelwright.training.steps.is_slower", lambda timing: True)
    found = kernelwright.optimize(far, target="cpp", effort="normal", baselines="none")
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [n for n in found.notes if n.startswith("Training mode has no kernels for its backward: a step takes")]
    assert all(mode.certificate.passed for mode in found.modes)


@pytest.mark.breaks
def test_on_a_device_wrong_gradients_leave_calls_as_they_were(far, monkeypatch):
    rule = ADJOINTS["softmax"]
    monkeypatch.setitem(ADJOINTS, "softmax", lambda *given: [mul(rule(*given)[0], 1.001)])
    found = kernelwright.optimize(far, target="cpp", effort="normal", baselines="none")
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [n for n in found.notes if "no kernels for its backward: the program with them failed" in n], found.notes
    # The file without them is the one that had passed: it is neither built nor checked again.
    assert [s.name for s in found.spans].count("build") == 2


@pytest.mark.parametrize(("effort", "fits", "words"), [
    ("quick", True, "Quick effort makes no kernels for gradients"),
    ("normal", False, "There was no time to make kernels for gradients")])
def test_on_a_device_notes_say_why_gradients_have_no_kernels(far, monkeypatch, effort, fits, words):
    monkeypatch.setattr("kernelwright.selection._steps_fit", lambda budget, took: fits)
    found = kernelwright.optimize(far, target="cpp", effort=effort, baselines="none")
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [n for n in found.notes if n.startswith(words)], found.notes


@pytest.mark.breaks
def test_wrong_gradients_fail_the_certificate_and_go(small, monkeypatch):
    rule = ADJOINTS["softmax"]
    monkeypatch.setitem(ADJOINTS, "softmax", lambda *given: [mul(rule(*given)[0], 1.001)])
    found = kernelwright.optimize(small, target="cpp", effort="quick", baselines="none")
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [n for n in found.notes if "no kernels for its backward: the program with them failed" in n], found.notes


@pytest.mark.breaks
def test_a_rule_that_fails_costs_the_backward_alone(small, monkeypatch):
    def fail(*given: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setitem(ADJOINTS, "softmax", fail)
    found = kernelwright.explain(small, target="cpp", device=GENERIC_CPU)
    assert "_kernelwright_gradients" not in found.source and "_KERNELWRIGHT_SOURCE" in found.source
    assert [s for s in found.spans if "gradients from the original computation" in s.words and "a bug" in s.words]


UPDATES = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.register_buffer("calls", torch.ones(16))

    def forward(self, x):
        y = torch.tanh(self.norm(x)) * self.calls.clone()
        self.calls.mul_(1.5)
        return y


def get_inputs():
    return [torch.randn(8, 16)]
"""


def test_a_backward_that_computes_again_sees_what_its_call_saw(tmp_path):
    """After further calls: those buffers are kept for it on which results depend, and no update is made twice."""
    original, made, source = emit(tmp_path, "updates", UPDATES)
    assert "\"seen\": ('calls',)" in source
    old, new, (x,) = models(original, made)
    found = []
    for model in (old, new):
        inputs = [x.clone().requires_grad_(), (x * 2.0).requires_grad_()]
        results = [model(value) for value in inputs]
        first, = torch.autograd.grad(results[0].square().sum(), inputs[0], create_graph=True)  # computed again
        second, = torch.autograd.grad(first.square().sum(), inputs[0])
        found.append([*results, first, second, *model.state_dict().values()])
    for mine, right in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
