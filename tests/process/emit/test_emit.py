"""The emitted file: same class to the outside, kernels where they fit, the original computation elsewhere."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import os
import pickle
import platform
import re
import subprocess
import sys
import textwrap
import threading
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from emitted_tools import (
    PROBLEMS,
    assert_like,
    assert_same_state,
    emit,
    gradients,
    import_text,
    kernels_run,
    models,
    original_runs,
    write_problem,
)
from forks import Forked, ran
from places import ROOT
from torch import nn
from torch.utils import _pytree as pytree

import kernelwright
from kernelwright.emit.assembly import folded
from kernelwright.emit.runtime import IMPORTS
from kernelwright.emit.runtime_call import CALL
from kernelwright.roofline.devices import GENERIC_CPU
from kernelwright.verified import as_kernels


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A function from a problem's name to its original module, emitted module and text; each is built once."""
    folder, made = tmp_path_factory.mktemp("emitted"), {}

    def get(name):
        if name not in made:
            made[name] = emit(folder, name)
        return made[name]

    return get


@pytest.fixture
def norm(built):
    """Model and ModelNew of "norm" with the same parameters, an input, and the emitted module."""
    original, emitted, _ = built("norm")
    old, new, (x,) = models(original, emitted)
    return old, new, x, emitted


@pytest.fixture
def attributes(built):
    """As ``norm``, for "attributes"."""
    original, emitted, _ = built("attributes")
    old, new, (x,) = models(original, emitted)
    return old, new, x, emitted


# To the outside ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROBLEMS)
def test_same_parameters_and_results(built, name):
    original, emitted, _ = built(name)
    old, new, inputs = models(original, emitted, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(old.state_dict().values(), new.state_dict().values(), strict=True))
    old.load_state_dict(new.state_dict(), strict=True)
    new.load_state_dict(old.state_dict(), strict=True)
    with torch.no_grad(), kernels_run(emitted, 2):
        for _ in range(2):
            result = new(*inputs)
            assert_like(result, old(*inputs))
    assert_same_state(new, old)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_file_defines_the_class_and_no_inputs(built, name):
    original, emitted, text = built(name)
    assert inspect.signature(emitted.ModelNew.__init__) == inspect.signature(original.Model.__init__)
    assert not hasattr(emitted, "get_inputs") and not hasattr(emitted, "get_init_inputs")
    assert not hasattr(emitted, "Model")
    imported = {line.split()[1].split(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"torch"}


def test_needs_pytorch_only(built, tmp_path):
    """In a process without kernelwright on its path, also as a pickled model's home."""
    _, _, text = built("norm")
    (tmp_path / "norm_new.py").write_text(text)
    script = ("import sys, warnings; warnings.simplefilter('error'); sys.modules['kernelwright'] = None\n"
              "import torch, norm_new, pickle; m = norm_new.ModelNew(8, 2.0).eval(); x = torch.rand(4, 3, 8, 8)\n"
              "with torch.no_grad(): a, b = m(x), m._original_forward(x)\n"
              "torch.testing.assert_close(a, b); m2 = pickle.loads(pickle.dumps(m))\n"
              "assert torch.equal(m2(x), a) and norm_new._kernelwright_library is not None; print('fine')")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_text_is_deterministic(tmp_path):
    """The same bytes in another process with another hash seed."""
    path = write_problem(tmp_path, "attributes")
    script = ("import sys; import kernelwright; from kernelwright.roofline.devices import GENERIC_CPU\n"
              "print(kernelwright.explain(sys.argv[1], target='cpp', device=GENERIC_CPU).source)")
    other = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True,
                           env={**os.environ, "PYTHONHASHSEED": "4242"}, cwd=ROOT).stdout
    assert other == kernelwright.explain(path, target="cpp", device=GENERIC_CPU).source + "\n"


# Calls that do not fit ---------------------------------------------------------------------------

MISFITS = {
    "batch size": lambda x: torch.rand(2, 3, 8, 8), "shape": lambda x: torch.rand(4, 3, 10, 9),
    "a subclass": lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})),
}
LAYOUTS = {
    "not contiguous": lambda x: x.transpose(2, 3), "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "misaligned": lambda x: torch.rand(x.numel() + 1)[1:].view(x.shape), "expanded": lambda x: x[:1].expand(4, 3, 8, 8),
    "sliced": lambda x: torch.rand(4, 3, 8, 16)[..., ::2], "negative": lambda x: torch._neg_view(x.neg()),
}


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("training", [True, False])
def test_inputs_that_do_not_fit(norm, kind, training):
    old, new, x, emitted = norm
    given = MISFITS[kind](x)
    old.train(training), new.train(training)
    with torch.no_grad(), original_runs(emitted, "x "):
        for _ in range(3):  # one warning for all of them
            assert_like(new(given), old(given))
    assert_same_state(new, old)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))
    assert_same_state(new, old)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_inputs_of_another_layout_are_copied(norm, kind, training):
    old, new, x, emitted = norm
    given = LAYOUTS[kind](x)
    old.train(training), new.train(training)
    for first in (given, LAYOUTS["channels last"](x)):  # eager's results are looked at once
        assert_like(new(first), old(first))
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(given), old(given))
    assert_same_state(new, old)
    if kind != "negative":
        ours, theirs = given.detach().clone().requires_grad_(), given.detach().clone().requires_grad_()
        with kernels_run(emitted, 1):
            new(LAYOUTS["channels last"](ours)).sum().backward()
        old(theirs).sum().backward()
        assert_like(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_dtypes(norm, dtype):
    old, new, x, emitted = norm
    old.to(dtype).eval(), new.to(dtype).eval()
    with torch.no_grad(), original_runs(emitted, str(dtype)):
        assert torch.equal(new(x.to(dtype)), old(x.to(dtype)))


def test_other_shapes_warn_once(norm):
    _, new, _, emitted = norm
    with torch.no_grad(), original_runs(emitted, times=1):
        for batch in (1, 2, 3, 5):
            new(torch.rand(batch, 3, 8, 8))


def test_errors_are_those_of_the_original(norm):
    old, new, x, _ = norm
    for arguments in ((x[0, 0],), (x, x), ()):
        with warnings.catch_warnings(), pytest.raises(Exception) as theirs:
            old(*arguments)
        with warnings.catch_warnings(), pytest.raises(type(theirs.value)) as ours:
            warnings.simplefilter("ignore")
            new(*arguments)
        assert ours.value.__context__ is None
    with pytest.raises(TypeError):
        new(y=x)


def test_keyword_arguments(built, norm):
    old, new, x, emitted = norm
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x=x), old(x=x))
    original, emitted, _ = built("nested")
    old, new, (x, weight, factor) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 3):
        assert_like(new(x, factor=factor, weight=weight), old(x, weight, factor))
        assert_like(new(x, weight, factor, exponent=2), old(x, weight, factor))
        assert_like(new(x, weight, factor, 2), old(x, weight, factor))
    with torch.no_grad(), original_runs(emitted, times=2):
        assert_like(new(x, weight, factor, exponent=3), old(x, weight, factor, 3))
        assert_like(new(x, weight, 2.5), old(x, weight, 2.5))
        assert_like(new(x, weight, 2.5), old(x, weight, 2.5))


def test_nested_arguments(built):
    original, emitted, _ = built("lists")
    old, new, (xs, options) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(xs, options), old(xs, options))
    with torch.no_grad(), original_runs(emitted, times=2):
        assert_like(new(tuple(xs), options), old(tuple(xs), options))
        assert_like(new([*xs, xs[0]], options), old(xs, options))
        assert_like(new(xs, [3.0, 0.5]), old(xs, [3.0, 0.5]))
    given = [[x.clone().requires_grad_() for x in xs] for _ in range(2)]
    for model, inputs in ((old, given[0]), (new, given[1])):
        (model(inputs, options)[1] ** 2).sum().backward()
    assert_like([x.grad for x in given[1]], [x.grad for x in given[0]])


# Models that changed -----------------------------------------------------------------------------


def _gate_slope(model):
    type(model.gate).slope = 3.0


def _tensor_in_place(model):
    model.offset += 1.0


CHANGES = {
    "number": lambda m: setattr(m, "_shift", 3.0), "kind of number": lambda m: setattr(m, "_shift", 2),
    "dictionary": lambda m: m.config.update(factor=3.0), "list in a dictionary": lambda m: m.config["levels"].append(1),
    "item of a list": lambda m: m.config["levels"].__setitem__(1, 5.0),
    "object": lambda m: setattr(m.scale, "value", 2.0),
    "function": lambda m: setattr(m.gate, "act", torch.nn.functional.gelu),
    "submodule": lambda m: setattr(m, "gate", nn.Sigmoid()),
    "one of a sequence": lambda m: m.stages.__setitem__(0, nn.ReLU()),
    "one more in a sequence": lambda m: m.stages.append(nn.Softmax(dim=1)),
    "bias appears": lambda m: setattr(m.first, "bias", nn.Parameter(torch.ones(3))),
    "weights apart": lambda m: setattr(m.second, "weight", nn.Parameter(torch.rand(3, 3, 3, 3))),
    "stride": lambda m: setattr(m.first, "stride", (2, 2)),
    "hook": lambda m: m.gate.register_forward_hook(lambda module, i, o: o + 1.0) and None,
    "pre-hook": lambda m: m.gate.register_forward_pre_hook(lambda module, i: (i[0] * 2,)) and None,
    "own forward": lambda m: setattr(m.gate, "forward", lambda x: x * 2),
    "instance attribute over the class's": lambda m: setattr(m.gate, "slope", 3.0),
    "class attribute": _gate_slope,
    "half in evaluation": lambda m: m.gate.eval() and None,
}


@pytest.mark.parametrize("late", [0, 1, 2], ids=["at first", "after a call", "of a PyTorch that tells less"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_models(attributes, change, late, monkeypatch):
    old, new, x, emitted = attributes
    if late == 2:
        monkeypatch.setattr(emitted, "_kernelwright_version", None)
        monkeypatch.setattr(emitted, "_kernelwright_tensors", None)
    slopes = type(old.gate).slope, type(new.gate).slope
    try:
        with torch.no_grad():
            if late:
                with kernels_run(emitted, 2):
                    new(x)
                    new(x)
            for model in (old, new):
                torch.manual_seed(1)
                CHANGES[change](model)
            with original_runs(emitted, times=1):
                for _ in range(2):
                    assert_like(new(x), old(x))
    finally:
        type(old.gate).slope, type(new.gate).slope = slopes


def _tie_another(model):
    model.first.weight = nn.Parameter(torch.rand(3, 3, 3, 3))
    model.second.weight = model.first.weight


def _back(model):
    model._shift = 3.0
    model._shift = 1.5


FITTING = {
    "tensor attribute": lambda m: setattr(m, "offset", torch.full((3, 1, 1), 4.0)),
    "tensor attribute in place": _tensor_in_place,
    "parameter in place": lambda m: m.first.weight.data.mul_(2.0),
    "parameter's data": lambda m: setattr(m.first.weight, "data", torch.rand(3, 3, 3, 3)),
    "frozen": lambda m: m.requires_grad_(False) and None,
    "tied to another": _tie_another, "number and back": _back,
    "attribute of a library's module that it does not know": lambda m: setattr(m.first, "note", "mine"),
}


@pytest.mark.parametrize("change", FITTING)
def test_changes_that_fit(attributes, change):
    old, new, x, emitted = attributes
    with torch.no_grad(), kernels_run(emitted, 2):
        new(x)
        for model in (old, new):
            torch.manual_seed(1)
            FITTING[change](model)
        assert_like(new(x), old(x))


OTHER_DATA = {
    "shape": lambda t: t[:, :, :1], "order of axes": lambda t: t.transpose(2, 3), "type": lambda t: t.double(),
    "layout": lambda t: t.to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("quick", [True, False], ids=["", "of a PyTorch that tells less"])
@pytest.mark.parametrize("change", OTHER_DATA)
def test_a_parameter_that_gets_other_data(attributes, change, quick, monkeypatch):
    """The very parameter, in which nothing but its data is another."""
    _, new, x, emitted = attributes
    if not quick:
        monkeypatch.setattr(emitted, "_kernelwright_tensors", None)
    with torch.no_grad():
        with kernels_run(emitted, 3):
            wanted, *_ = [new(x) for _ in range(3)]
        binding, = emitted._kernelwright_bindings[new].values()
        assert (binding.same is None) == (emitted._kernelwright_tensors is None)
        before = new.first.weight.data
        new.first.weight.data = OTHER_DATA[change](before)
        with original_runs(emitted), contextlib.suppress(RuntimeError):  # which some of these raise
            new(x)
        new.first.weight.data = before
        with kernels_run(emitted, 2):
            assert_like([new(x), new(x)], [wanted, wanted])


def test_resized_parameters(norm):
    old, new, x, emitted = norm
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))
    for model in (old, new):
        torch.manual_seed(1)
        model.conv.weight = nn.Parameter(torch.rand(3, 8, 5, 5))
        model.conv.kernel_size = (5, 5)
    with torch.no_grad(), original_runs(emitted):
        assert_like(new(x), old(x))
    for model in (old, new):
        model.conv.weight.data = model.conv.weight.data[:, :, :4, :4]
    with torch.no_grad(), original_runs(emitted, times=0):
        assert_like(new(x), old(x))
    assert_same_state(new, old)


def test_attribute_eps_and_constructor(built, norm):
    old, new, x, emitted = norm
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))
    for model in (old, new):
        model.multiplier = 3
    with torch.no_grad(), original_runs(emitted, "multiplier"):
        assert_like(new(x), old(x))
    for model in (old, new):
        model.multiplier, model.norm.eps = 2.0, 0.5
    with torch.no_grad(), original_runs(emitted, "norm.eps"):
        assert_like(new(x), old(x))
    assert_same_state(new, old)
    for arguments in ((4, 2.0), (8, -1.0)):
        torch.manual_seed(0)
        old = built("norm")[0].Model(*arguments)
        torch.manual_seed(0)
        new = emitted.ModelNew(*arguments)
        with torch.no_grad(), original_runs(emitted):
            assert_like(new(x), old(x))
        assert_same_state(new, old)


def test_hook_on_the_model_itself_runs(norm):
    old, new, x, emitted = norm
    for model in (old, new):
        model.register_forward_hook(lambda module, i, o: o * 3)
    with torch.no_grad(), kernels_run(emitted, 1):
        assert_like(new(x), old(x))


def test_shared_statistics(norm):
    """A buffer that is another tensor's memory, too."""
    old, new, x, emitted = norm
    for model in (old, new):
        model.norm.running_mean = model.norm.running_var
    with torch.no_grad(), original_runs(emitted, "shares"):
        assert_like(new(x), old(x))
    assert_same_state(new, old)


# Buffers and modes -------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])
def test_buffers_over_steps_and_modes(norm, grad):
    old, new, x, emitted = norm
    with torch.set_grad_enabled(grad), kernels_run(emitted, 8):
        for training in (True, True, False, True, False, False, True, True):
            old.train(training), new.train(training)
            assert_like(new(x), old(x))
            assert_same_state(new, old)
    assert new.norm.num_batches_tracked == 5


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_momentum_changed(norm, momentum):
    old, new, x, emitted = norm
    old.norm.momentum = new.norm.momentum = momentum
    with torch.no_grad(), original_runs(emitted, "momentum"):
        for _ in range(3):
            assert_like(new(x), old(x))
    assert_same_state(new, old)


def test_inference_mode(norm):
    old, new, x, emitted = norm
    with torch.inference_mode(), kernels_run(emitted, 2):
        assert_like(new(x), old(x))
        assert_like(new.eval()(x), old.eval()(x))
    assert_same_state(new, old)


# Gradients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_training_steps(norm, training):
    old, new, x, emitted = norm
    old.train(training), as_kernels(new, emitted).train(training)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1) for m in (old, new)]
    for step in range(4):
        found = []
        for model, optimizer in zip((old, new), optimizers, strict=True):
            with kernels_run(emitted, 1 if model is new else 0):
                found.append(gradients(model, [x + step],
                                       lambda y: (y * torch.arange(8.0).view(8, 1, 1)).square().mean()))
            optimizer.step()
        assert_like(found[1], found[0], 1e-4)
        assert_same_state(new, old, 1e-4)


@pytest.mark.parametrize("name", ["attributes", "nested"])
def test_gradients_of_others(built, name):
    original, emitted, _ = built(name)
    old, new, inputs = models(original, emitted)

    def loss(result):
        tensors = [result]
        if isinstance(result, dict):
            tensors = [result["pair"][0], result["pair"][1][0], result["x"]]
        return sum((t * torch.linspace(0.5, 2.0, t.numel()).view(t.shape)).sum() for t in tensors)

    with kernels_run(emitted, 1):
        found = gradients(new, inputs, loss)
    assert_like(found, gradients(old, inputs, loss), 1e-4)


def test_partial_gradients(norm):
    """Frozen parameters, gradients of the input alone, one of several outputs, no graph where none is wanted."""
    old, new, x, emitted = norm
    for model in (old, new):
        model.conv.requires_grad_(False)
    with kernels_run(emitted):
        assert_like(gradients(new, [x], torch.sum), gradients(old, [x], torch.sum), 1e-4)
        old.requires_grad_(False), new.requires_grad_(False)
        assert not new(x).requires_grad
        assert not old(x).requires_grad
        old.requires_grad_(), new.requires_grad_()
        with torch.no_grad():
            assert new(x).grad_fn is None
            old(x)
    assert_same_state(new, old)


def test_double_backward(norm):
    old, new, x, emitted = norm

    def penalty(model):
        given = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
        model.zero_grad()
        slope.square().sum().backward()
        return [slope.detach(), given.grad, *[p.grad for p in model.parameters()]]

    with kernels_run(emitted, 2):
        for training in (True, False):
            old.train(training), new.train(training)
            found = penalty(new)
            assert_like(found, penalty(old), 1e-4)
    assert_same_state(new, old)


def test_one_tensor_twice(built):
    """The same tensor as two arguments, first and second derivatives."""
    original, emitted, _ = built("lists")
    found = []
    for model, runs in ((original.Model(), 0), (emitted.ModelNew(), 1)):
        torch.manual_seed(0)
        x = torch.rand(8, 16, requires_grad=True)
        with kernels_run(emitted, runs):
            y = model([x, x], [2.0, 0.5])[1]
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append([slope.detach(), x.grad])
    assert_like(found[1], found[0], 1e-4)


@pytest.mark.parametrize("what", ["input", "weight"])
def test_in_place_change_before_backward_is_detected(norm, what):
    for model in norm[:2]:
        x = norm[2].clone()
        y = model(x).sum()
        with torch.no_grad():
            (x if what == "input" else model.conv.weight).add_(1.0)
        with pytest.raises(RuntimeError, match="inplace operation"):
            y.backward()


def test_changes_before_backward(norm):
    """Mode, attributes, replaced parameters and further forwards do not touch a pending backward."""
    old, new, x, emitted = norm
    found = []
    for model, runs in ((old, 0), (new, 2)):
        with kernels_run(emitted, runs):
            loss = model(x).square().sum() + model(x * 2).square().sum()
        parameters = list(model.parameters())
        model.eval()
        model.multiplier = 17.0
        model.norm.weight = nn.Parameter(torch.zeros(8))
        loss.backward()
        found.append([p.grad for p in parameters])
    assert_like(found[1], found[0], 1e-4)
    assert_same_state(new, old)


def test_functional_call(norm):
    old, new, x, emitted = norm
    state = {n: torch.rand_like(p).requires_grad_() for n, p in old.named_parameters()}
    found = []
    for model, runs in ((old, 0), (new, 1)):
        with kernels_run(emitted, runs):
            y = torch.func.functional_call(model, state, (x,))
        found.append([y.detach(), *torch.autograd.grad(y.square().sum(), list(state.values()))])
    assert_like(found[1], found[0], 1e-4)
    assert_same_state(new, old)


# Copies and other places -------------------------------------------------------------------------


def test_copies(norm):
    old, new, x, emitted = norm
    with kernels_run(emitted):
        new(x), old(x)  # bound, with a twin
        stream = io.BytesIO()
        torch.save(new, stream)
        stream.seek(0)
        for duplicate in (copy.deepcopy(new), pickle.loads(pickle.dumps(new)), torch.load(stream, weights_only=False)):
            assert_same_state(duplicate, new)
            reference = copy.deepcopy(old)
            assert_like(duplicate(x), reference(x))
            assert_same_state(duplicate, reference)
    assert_same_state(new, old)


def test_threads(norm):
    """One model in evaluation mode from four threads, each with gradients of its own."""
    old, new, x, emitted = norm
    old.eval(), as_kernels(new, emitted).eval()
    inputs = [x + i for i in range(4)]
    expected = []
    for given in inputs:
        leaf = given.clone().requires_grad_()
        expected.append(torch.autograd.grad(old(leaf).square().sum(), leaf)[0])
    wrong = []

    def work(given, gradient):
        try:
            for _ in range(20):
                leaf = given.clone().requires_grad_()
                found = torch.autograd.grad(new(leaf).square().sum(), leaf)[0]
                torch.testing.assert_close(found, gradient, atol=1e-4, rtol=1e-4)
                with torch.no_grad():
                    torch.testing.assert_close(new(given), old(given), atol=1e-5, rtol=1e-5)
        except BaseException as error:
            wrong.append(error)

    with kernels_run(emitted, 160):
        threads = [threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong, wrong


def test_transforms_and_modes(norm):
    from torch._subclasses.fake_tensor import FakeTensorMode

    old, new, x, emitted = norm
    old.eval(), new.eval()
    with original_runs(emitted, "this call"):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert new(mode.from_tensor(x)).shape == (4, 8, 1, 1)
            assert new(x).shape == (4, 8, 1, 1)
        xs = torch.stack([x, x + 1])
        with torch.no_grad():
            assert_like(torch.func.vmap(new)(xs), torch.func.vmap(old)(xs))
        assert_like(torch.func.grad(lambda x: new(x).sum())(x), torch.func.grad(lambda x: old(x).sum())(x))
        tangent = torch.rand_like(x)
        assert_like(torch.func.jvp(new, (x,), (tangent,)), torch.func.jvp(old, (x,), (tangent,)))
        with torch.no_grad(), torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, tangent)
            assert_like(torch.autograd.forward_ad.unpack_dual(new(dual)).tangent,
                        torch.autograd.forward_ad.unpack_dual(old(dual)).tangent)
    traced = torch.jit.trace(new, (x,), check_trace=False)
    with torch.no_grad():
        assert_like(traced(x + 1), old(x + 1))


def test_autocast(norm):
    old, new, x, emitted = norm
    old.eval(), new.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), original_runs(emitted, "autocast"):
        assert_like(new(x), old(x))
    leaf = x.clone().requires_grad_()
    with kernels_run(emitted, 1):
        y = new(leaf).sum()
    with torch.autocast("cpu", torch.bfloat16):  # a backward under autocast is the float32 backward
        assert_like(torch.autograd.grad(y, leaf), torch.autograd.grad(old(leaf).sum(), leaf), 1e-1)


def test_default_device_is_no_obstacle(norm):
    old, new, x, emitted = norm
    with torch.no_grad(), torch.device("cpu"), kernels_run(emitted, 1):
        assert_like(new(x), old(x))


# Trouble -----------------------------------------------------------------------------------------


USE = ("import warnings, torch, norm_new\n"
       "m = norm_new.ModelNew(8, 2.0).eval(); x = torch.rand(4, 3, 8, 8)\n"
       "with torch.no_grad(), warnings.catch_warnings(record=True) as caught:\n"
       "    warnings.simplefilter('always'); a, b = m(x), m(x); c = m._original_forward(x)\n"
       "torch.testing.assert_close(a, c, atol=1e-5, rtol=1e-5)\n"
       "print(norm_new._kernelwright_library is not None, *[w.message for w in caught])")


def test_no_compiler(built, tmp_path):
    (tmp_path / "norm_new.py").write_text(built("norm")[2])
    (tmp_path / "bin").mkdir()
    done = ran(USE, folder=tmp_path, PATH=str(tmp_path / "bin"), KERNELWRIGHT_CACHE=str(tmp_path / "cache"), CXX=None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False ModelNew runs the original computation: this machine can't run"), done.stdout
    assert done.stdout.count("ModelNew") == 1


def test_two_processes_at_once_and_a_cache_that_cannot_be_written(built, tmp_path):
    (tmp_path / "norm_new.py").write_text(built("norm")[2])
    environment = {**os.environ, "KERNELWRIGHT_CACHE": str(tmp_path / "cache")}
    running = [Forked(USE, environment=environment, folder=tmp_path) for _ in range(2)]
    for process in running:
        out, problem = process.communicate()
        assert out == "True\n", out + problem
    assert len(list((tmp_path / "cache" / "libraries").iterdir())) == 1, "one library and no leftovers"
    (tmp_path / "file").write_text("")
    done = ran(USE, folder=tmp_path, KERNELWRIGHT_CACHE=str(tmp_path / "file"))
    assert done.stdout == "True\n", done.stdout + done.stderr


def test_kernel_failure_names_the_kernel(built, tmp_path):
    """A kernel that reports a failure, as one that has no memory does."""
    text = built("norm")[2]
    name = re.search(r"const char\* failure = (k\w+)\(", text)[1]
    start = text.index(f"const char* {name}(")
    opening = text.index("{", start) + 1
    broken = text[:opening] + f'\n    return "{name}: no memory";' + text[opening:]
    emitted = import_text(broken, tmp_path, "broken")
    with pytest.raises(RuntimeError, match=f"{name}: no memory"), torch.no_grad():
        emitted.ModelNew(8, 2.0)(torch.rand(4, 3, 8, 8))


@pytest.mark.parametrize(("failure", "together", "raised"), [
    (b"k0: kw_launch_together(k0_core) failed: too many blocks in cooperative launch", True, "RuntimeError"),
    (b"k0: kw_launch_together(k0_core) failed: too many blocks in cooperative launch", False, "_KernelwrightFailure"),
    (b"k0: out of memory", True, "_KernelwrightFailure")])
def test_a_kernel_without_room_for_its_blocks_is_no_failure(failure, together, raised):
    """Any other error of a call makes the original run."""
    names = {"_KERNELWRIGHT_LAUNCHERS": {"launcher": ["k0"]},
             "_kernelwright_library": SimpleNamespace(launcher=lambda addresses, stream: failure)}
    exec(IMPORTS + folded(CALL, {"TOGETHER": together, "TURNABLE": False, "SIZED": False}), names)
    with pytest.raises(RuntimeError) as found:
        names["_kernelwright_launch"]("launcher", None, torch.rand(1))
    assert type(found.value).__name__ == raised


def test_warning_points_at_the_caller(norm):
    _, new, x, _ = norm
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="ModelNew runs the original") as caught:
        new(x[:2])
    assert caught[0].filename == __file__


def test_names_of_the_runtime_are_private_where_they_clash(tmp_path: Path) -> None:
    """A file may call its own things copy, types or operator, or import all of a module."""
    path = tmp_path / "clash.py"
    path.write_text(textwrap.dedent('''
        from math import *
        import torch
        import torch.nn as nn

        copy, types, struct, weakref = 2.0, (3,), 1, 4

        def operator(x):
            return x * copy

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = types[0] * floor(1.5)

            def forward(self, x):
                return torch.softmax(torch.tanh(operator(x)) * self.scale + struct + weakref, 1)

        def get_inputs():
            return [torch.rand(64, 96)]
    '''))
    source = kernelwright.explain(path, target="cpp").source
    assert "_kernelwright_module_copy" in source and source.count("import torch\n") == 1
    target = tmp_path / "clash_new.py"
    target.write_text(source)
    code = ("import sys, torch, warnings; sys.path.insert(0, sys.argv[1]); import clash, clash_new\n"
            "warnings.simplefilter('error'); x = torch.rand(64, 96)\n"
            "print(float((clash.Model()(x) - clash_new.ModelNew()(x)).abs().max()))")
    done = ran(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-6


def test_kernels_of_a_large_file_are_compiled_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    original, emitted, _ = emit(tmp_path, "large", """
        class Model(nn.Module):
            def forward(self, x):
                return [torch.softmax(x[:, : 7 + i], 1).mul(i + 2).cumsum(1).sin() + i for i in range(6)]

        def get_inputs():
            return [torch.randn(9, 40)]
    """)
    units = emitted._kernelwright_units(4)
    assert 2 < len(units) <= 5 and all(len(unit) < len(emitted._KERNELWRIGHT_SOURCE) for unit in units)
    (x,) = original.get_inputs()
    with torch.no_grad(), kernels_run(emitted):
        torch.testing.assert_close(emitted.ModelNew()(x), original.Model()(x))


@pytest.mark.parametrize("drawn", [
    "F.alpha_dropout(x.transpose(0, 2), 0.3, self.training) * 2 + torch.tanh(x.transpose(0, 2))",
    "F.dropout(torch.tanh(x), 0.3, self.training, inplace=True) * 2",
    "F.dropout(torch.tanh(x).transpose(0, 1), 0.3, self.training, inplace=True) * 2 + F.dropout(x + 1).transpose(0, 1)",
    "torch.tanh(x).mul(2).bernoulli_(0.3) + F.dropout(torch.sigmoid(x), 0.9, inplace=True)",
])
def test_numbers_are_drawn_as_eager_draws_them(drawn: str, tmp_path: Path) -> None:
    """In the order of memory, also of what kernels read as well, and in place where eager does."""
    original, emitted, source = emit(tmp_path, "drawn", f"""
        class Model(nn.Module):
            def forward(self, x):
                return {drawn}

        def get_inputs():
            return [torch.randn(5, 6, 7)]
    """)
    (x,) = original.get_inputs()
    results = []
    for model in (original.Model(), emitted.ModelNew()):
        torch.manual_seed(5)
        with torch.no_grad():
            results.append((model(x), torch.rand(3)))
    torch.testing.assert_close(*results)
    assert "_kernelwright_launch(" in source


def test_views_of_what_kernels_read_as_well_lie_as_eagers_do(tmp_path: Path) -> None:
    """The memory of a softmax is a library's, of which the kernel reads a copy of a part."""
    original, emitted, source = emit(tmp_path, "shown_views", """
        class Model(nn.Module):
            def forward(self, x, y):
                last = x.softmax(1)[:, -1:]
                return last - 1.5 * y, last.flatten(1)

        def get_inputs():
            return [torch.randn(7, 6, 3, 2).half(), torch.randn(1, 1, 3, 1).half()]
    """)
    with torch.no_grad():
        results = [model(*original.get_inputs()) for model in (original.Model(), emitted.ModelNew())]
    assert [r.stride() for r in results[0]] == [r.stride() for r in results[1]] == [(6, 6, 2, 1), (36, 1)]
    assert "_kernelwright_launch(" in source


def test_statements_of_any_length(tmp_path: Path) -> None:
    """Many tensors that are made once, many arguments and results, and one with a long name: a line ends where a
    statement goes on."""
    name = "positions_" * 12
    text = f"""
        class Model(nn.Module):
            def forward(self, {name}):
                tables = [torch.arange(8).roll(i) * 1.5 for i in range(30)]
                return [torch.tanh({name} * t) + t for t in tables], torch.erf({name})

        def get_inputs():
            return [torch.randn(4, 8)]
    """
    original, emitted, source = emit(tmp_path, "many", text)
    assert "= _kernelwright_once(" in source and re.search(r"    return \(\w+_k\d", source)
    (x,) = original.get_inputs()
    with torch.no_grad(), kernels_run(emitted):
        torch.testing.assert_close(emitted.ModelNew()(x), original.Model()(x), atol=1e-6, rtol=1e-6)


def test_memory_of_what_nobody_reads_again_is_for_what_comes_next(tmp_path, monkeypatch):
    """However long a program is, no more of its values live at once than eager's do."""
    text = '''
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(9))

            def forward(self, x):
                for layer in self.layers:
                    x = torch.tanh(layer(x) * 2 + 1)
                return x

        def get_inputs():
            return [torch.randn(64, 16)]
    '''
    original, emitted, _ = emit(tmp_path, "long", text)
    old, new, (x,) = models(original, emitted)
    made, alive, linear = [], [], nn.functional.linear

    def watched(*arguments):
        for tensor in (result := linear(*arguments)), arguments[0]:
            made.append(weakref.ref(tensor))
        alive.append(len({id(t) for found in made if (t := found()) is not None}))
        return result

    monkeypatch.setattr(nn.functional, "linear", watched)
    with torch.no_grad(), kernels_run(emitted, 1):
        found = new.eval()(x)
    monkeypatch.undo()
    with torch.no_grad():
        assert_like(found, old.eval()(x))
    assert len(alive) == 9 and max(alive[1:]) <= 3, alive


SHARED = """
    class Config:
        def __init__(self):
            self.slope, self.levels = 0.5, {"some": [1.0, 2.0]}

    class Block(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config = config

        def forward(self, x):
            return torch.tanh(x) * self.config.slope + self.config.levels["some"][1]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            config = Config()
            self.blocks = nn.ModuleList(Block(config) for _ in range(6))

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def get_inputs():
        return [torch.rand(4, 8)]

    def get_init_inputs():
        return []
"""


def test_an_object_that_modules_share_is_compared_once_a_call(tmp_path):
    """Models of one family give each of their modules the same configuration."""
    original, emitted, _ = emit(tmp_path, "shared", SHARED)
    old, new, inputs = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 2):
        for _ in range(2):
            assert_like(new(*inputs), old(*inputs))
    binding, = emitted._kernelwright_bindings[new].values()
    assert [type(value).__name__ for value, _ in binding.special] == ["Config"]
    for model in (old, new):
        model.blocks[3].config.levels["some"][1] = 3.0
    with torch.no_grad(), original_runs(emitted, times=1):
        assert_like(new(*inputs), old(*inputs))


_TURNED = """
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.rand(6))

        def forward(self, x, y):
            shown = torch.tanh(x) * self.gain + y
            return {results}

    def get_inputs():
        return [torch.randn(4, 5, 6), torch.randn(4, 5, 6)]
"""


@pytest.mark.parametrize(("results", "shows"), [
    ("shown", True), ("torch.softmax(shown, -1)", False),
    ("(shown.sum(1), [shown * 2, x], torch.softmax(shown, -1))", True),
    ("{'last': torch.softmax(shown, -1) * 2, 'first': shown.amax((1, 2))}", False)])
def test_results_lie_as_eager_has_them_in_whatever_order_inputs_lie(tmp_path: Path, results: str, shows: bool) -> None:
    """Where they show the order of an input's axes in memory kernels do not run; elsewhere a copy of it serves."""
    original, emitted, _ = emit(tmp_path, "turned", _TURNED.format(results=results))
    old, new, _ = models(original, emitted)
    x, y = torch.randn(4, 5, 6), torch.randn(4, 5, 6)
    turned = x.transpose(0, 2).contiguous().transpose(0, 2)
    sliced = torch.stack((x, x), -1)[..., 0]
    seen = False
    for grad in (False, True):
        for given, kernels in ((sliced, True), (turned, seen and not shows), (turned, not shows),
                               (x, True)):
            with torch.set_grad_enabled(grad), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                before = sum(new.why().values())
                found, expected = pytree.tree_leaves(new(given, y)), pytree.tree_leaves(old(given, y))
                # A result that is an input itself is no copy of it.
                assert (sum(new.why().values()) == before) == (kernels and (given is x or "x]" not in results))
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other, check_stride=True)
                assert one.requires_grad == other.requires_grad
        seen = True


def test_an_example_whose_axes_lie_in_another_order_with_gaps(tmp_path: Path) -> None:
    """No order of axes makes it contiguous: it is copied, and its results lie as eager has them at once."""
    text = _TURNED.format(results="torch.softmax(shown, -1), shown * 2").replace(
        "[torch.randn(4, 5, 6), torch", "[torch.randn(6, 5, 8)[..., ::2].transpose(0, 2), torch")
    original, emitted, _ = emit(tmp_path, "gaps", text)
    old, new, (x, y) = models(original, emitted)
    with torch.no_grad(), kernels_run(emitted, 2):
        for _ in range(2):
            for one, other in zip(new(x, y), old(x, y), strict=True):
                torch.testing.assert_close(one, other, check_stride=True)
