"""One file for several floating-point types: as eager is in each of them, with kernels, and without them elsewhere."""

from __future__ import annotations

import copy
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from emitted_tools import assert_like, gradients, kernels_run, original_runs, short_budgets
from test_embedded import labels
from torch import nn

import kernelwright
from kernelwright.build.module import load_text
from kernelwright.dtypes import converted, own_dtype
from kernelwright.errors import DtypesInvalid
from kernelwright.problem import load_problem
from kernelwright.verified import as_kernels

TYPES = (torch.float32, torch.bfloat16, torch.float16)
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}


class Scaled(nn.Module):
    """A norm, a product and a softmax; a mask that no conversion touches, and a buffer that training updates."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(48), nn.Linear(48, 48)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 48))

    def forward(self, x, keep):
        return torch.softmax(F.gelu(self.linear(self.norm(x))) * self.scale * keep, -1)


class Tokens(nn.Module):
    """Only parameters say of which type a call is."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 32)

    def forward(self, ids):
        return torch.softmax(self.table(ids) * 2, -1) + 1


class Counts(nn.Module):
    def forward(self, x):
        return x.cumsum(0) + x


class Truncates(nn.Module):
    """It has no forward in bfloat16."""

    def forward(self, x):
        return torch.linalg.svdvals(x) * torch.sigmoid(x.sum(-1))[:, None]


def example():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(24, 48, generator=generator), torch.arange(48) % 3 > 0]


def loss(result):
    return (result.float() * torch.linspace(-1, 1, 48)).sum()


def optimized(model, inputs, **options):
    with pytest.MonkeyPatch.context() as patch:
        short_budgets(patch)
        return kernelwright.optimize(model, inputs=inputs, effort="quick", baselines="none",
                                     **{"target": "cpp"} | options)


@pytest.fixture(scope="module")
def found():
    torch.manual_seed(1)
    return optimized(Scaled(), example(), dtypes="bfloat16,float16", embed="x86-64")


def pair(found):
    """The model and a ModelNew of their own, with the same parameters, and the module of the latter."""
    module = load_text(found.source, "typed")
    old, new = Scaled(), module.ModelNew()
    new.load_state_dict(old.state_dict())
    return old, new, module


def test_each_type_has_kernels_and_a_certificate(found):
    names = [mode.name for mode in found.modes]
    assert names == [f"{dtype}{mode}" for dtype in ("", "bfloat16_", "float16_") for mode in ("training", "inference")]
    assert all(mode.kernels and mode.certificate.passed for mode in found.modes)
    errors = {mode.name: mode.certificate.candidate_error for mode in found.modes}
    assert errors["inference"] < 1e-5 < errors["float16_inference"] < errors["bfloat16_inference"]
    assert any(note.startswith("The file serves float32, bfloat16 and float16") for note in found.notes)
    assert "(torch.bfloat16, False, True)" in found.source and "It has kernels for float32, bfloat16" in found.source
    assert "bfloat16 inference" in found.report(width=200)
    assert found.module(*example()).dtype is torch.float32 and found.module.why() == {}
    assert [label["for"] for label in labels(found.source)] == ["x86-64"]


@pytest.mark.parametrize("training", [False, True])
def test_a_model_goes_from_type_to_type(found, training):
    """One ModelNew in float32, bfloat16, float16 and back: kernels run, as eager does, with gradients, and buffers."""
    old, new, module = pair(found)
    old.train(training)
    as_kernels(new, module).train(training)
    for dtype in (*TYPES, torch.float32):
        old.to(dtype)
        new.to(dtype)
        inputs = [value.to(dtype) if value.is_floating_point() else value for value in example()]
        with kernels_run(module), torch.no_grad():
            result = new(*inputs)
        wanted = old(*inputs)
        assert result.dtype is dtype
        torch.testing.assert_close(result, wanted, atol=CLOSE[dtype], rtol=CLOSE[dtype])
        # What it was in bfloat16 before stays in it.
        torch.testing.assert_close(new.norm.running_var, old.norm.running_var, atol=4e-2, rtol=4e-2)
        with kernels_run(module):
            ours = gradients(new, inputs, loss)
        assert_like(ours, gradients(old, inputs, loss), CLOSE[dtype])
    assert new.why() == {}


def test_a_state_dict_of_one_type_goes_into_another(found):
    old, new, module = pair(found)
    new.bfloat16().load_state_dict(old.bfloat16().state_dict())
    inputs = [example()[0].bfloat16(), example()[1]]
    with torch.no_grad(), kernels_run(module):
        torch.testing.assert_close(new.eval()(*inputs), old.eval()(*inputs), atol=4e-2, rtol=4e-2)


def test_other_types_run_the_original_and_say_so(found):
    old, new, module = pair(found)
    inputs = [example()[0].double(), example()[1]]
    with torch.no_grad(), original_runs(module, "floating-point type is torch.float64; there are kernels for"):
        result = new.double().eval()(*inputs)
    assert torch.equal(result, old.double().eval()(*inputs).detach())
    with pytest.raises(RuntimeError), warnings.catch_warnings():  # eager, too, refuses inputs of another type
        warnings.simplefilter("ignore")
        new.bfloat16()(*example())


def test_parameters_alone_may_say_which_type():
    model = Tokens()
    ids = torch.arange(40).reshape(4, 10) % 11
    found = optimized(model, (ids,), dtypes=(torch.bfloat16,))
    for dtype in (torch.bfloat16, torch.float32):
        with torch.no_grad(), kernels_run(sys.modules[type(found.module).__module__]):
            torch.testing.assert_close(found.module.to(dtype)(ids), model.to(dtype)(ids), atol=4e-2, rtol=4e-2)


def test_a_type_that_the_model_does_not_run_in_is_left_out():
    found = optimized(Truncates(), (torch.rand(6, 6),), dtypes="bfloat16")
    assert not any("bfloat16" in mode.name for mode in found.modes)
    assert any(note.startswith("There are no kernels for bfloat16: ") for note in found.notes)
    assert found.module(torch.rand(6, 6)).dtype is torch.float32
    assert "_KERNELWRIGHT_DTYPES" not in found.source


def test_what_cannot_be_asked():
    with pytest.raises(DtypesInvalid, match="neither the model nor its inputs"):
        optimized(Counts(), (torch.arange(3),), dtypes="float16")


def test_types_and_sizes_in_one_file():
    """Each type has its kernels at each size; the gradients, too; beyond the sizes, and in other types, nothing has."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Softmax(-1))
    found = optimized(model, (torch.rand(6, 8),), dtypes="bfloat16", dynamic="input:0=2..9", target="c")
    assert {mode.name.startswith("bfloat16") for mode in found.modes if mode.runs} == {True, False}
    assert all(mode.certificate.passed for mode in found.modes)
    emitted = sys.modules[type(found.module).__module__]
    as_kernels(found.module, emitted)
    for dtype in (torch.float32, torch.bfloat16):
        new, old = found.module.to(dtype), copy.deepcopy(model).to(dtype)
        for size in (2, 5, 9):
            x = torch.rand(size, 8).to(dtype)
            with kernels_run(emitted):
                torch.testing.assert_close(new(x), old(x), atol=CLOSE[dtype], rtol=CLOSE[dtype])
            torch.testing.assert_close(gradients(new, [x], torch.sum), gradients(old, [x], torch.sum),
                                       atol=CLOSE[dtype], rtol=CLOSE[dtype])
    with pytest.warns(match="has 11 elements, not 2 to 9"):
        new(torch.rand(11, 8).bfloat16())
    with pytest.warns(match="is torch.float64"):
        new.double()(torch.rand(5, 8).double())


def test_conversion_is_that_of_pytorch():
    """Parameters, buffers and tensors within containers, as they lie in memory; whole numbers stay."""
    class Model(nn.Module):
        def forward(self, given, mask):
            return given["x"] * mask

    x = torch.rand(3, 4).t().requires_grad_()
    problem = load_problem(Model(), [{"x": x}, torch.arange(3)])
    other = converted(problem, "float64")
    given, mask = other.make_inputs(0)
    assert given["x"].dtype is torch.float64 and given["x"].stride() == x.stride() and given["x"].requires_grad
    assert mask.dtype is torch.int64 and own_dtype(problem.make_model(0), problem.make_inputs(0)) == "float32"
    assert converted(load_problem(nn.BatchNorm1d(3), [x]), "float16").make_model(0).running_mean.dtype is torch.float16
