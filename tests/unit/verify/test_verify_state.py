"""VERIFY copies, redraws and restores what a module holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kernelwright.verify.draws import drawn_in_float32
from kernelwright.verify.kept import ByModel
from kernelwright.verify.memory import FINITE_POISON, poisoned_empty
from kernelwright.verify.observe import call, random_state, seed_all
from kernelwright.verify.reference import reference_of
from kernelwright.verify.state import State, call_in_float64, float64_copy, own_types, redraw, widened


class Narrowing(nn.Module):
    """Asks for float32 in every way that a model may."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.rand(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x).float() + self.table
        z = torch.zeros(y.shape, dtype=torch.float32)
        z[:] = y.to(torch.float32)
        return torch.sin(z) * torch.tensor(0.1)


def test_the_float64_copy_stays_float64() -> None:
    model = Narrowing()
    x = torch.rand(4, 6)
    with torch.no_grad():
        out = call_in_float64(float64_copy(model), widened([x]))
        exact = (
            torch.sin(
                torch.nn.functional.linear(
                    x.double(), model.linear.weight.double(), model.linear.bias.double()
                )
                + model.table.double()
            )
            * 0.1
        )
    assert out.dtype is torch.float64
    assert float((out - exact).abs().max()) < 1e-9  # float32 anywhere would leave 1e-8; 0.1 itself is float64
    assert torch.get_default_dtype() is torch.float32


_TABLE = torch.arange(1, 37).reshape(6, 6).to(torch.bfloat16)


@pytest.mark.parametrize(("half", "rounds"), [
    (lambda x: x.to(torch.bfloat16), True), (lambda x: x.bfloat16(), True), (lambda x: x.type(torch.bfloat16), True),
    (lambda x: x.type_as(_TABLE), True), (lambda x: x.to(_TABLE), True), (lambda x: x.to(dtype=torch.bfloat16), True),
    (lambda x: torch.softmax(x, -1, dtype=torch.bfloat16), False),
    (lambda x: torch.zeros(4, 6, dtype=torch.bfloat16).copy_(x.round()), False),
    (lambda x: torch.stack([x.to(torch.bfloat16), x.to(torch.bfloat16)]).unbind()[1], True),
    (lambda x: (x > 0).to(torch.bfloat16), False), (lambda x: x.long().to(torch.bfloat16), False),
    (lambda x: _TABLE[:4], False)])
def test_what_is_rounded_to_16_bits_is_wide_afterwards(half, rounds) -> None:
    """A cast is a step of the model; what follows it is none, and products take no two types."""
    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6).to(torch.bfloat16))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = half(x)
            return y, torch.sin(y @ self.weight @ _TABLE)

    model, x = Halving(), torch.randn(4, 6).mul_(3)
    with torch.no_grad():
        model(x)
        y, z = call_in_float64(float64_copy(model), widened([x]))
    assert y.dtype is z.dtype is torch.float64
    if rounds:
        assert torch.equal(y, x.to(torch.bfloat16).double())
    torch.testing.assert_close(z, torch.sin(y @ model.weight.double() @ _TABLE.double()), rtol=1e-12, atol=1e-12)


def test_what_a_model_draws_in_16_bits_it_draws_in_float64_too() -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.rand(4, 6, dtype=torch.bfloat16) + torch.rand_like(_TABLE)[:4] + x

    x = torch.zeros(4, 6)
    results = []
    for model, given, run in ((Drawing(), x, lambda m, v: m(v)), (Drawing(), x.double(),
                                                                  lambda m, v: call_in_float64(m, [v]))):
        torch.manual_seed(3)
        results.append(run(model, given).double())
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("layer", [nn.GRU(4, 6, 2), nn.LSTM(4, 6), nn.RNN(4, 6, bidirectional=True)])
def test_lists_of_a_module_s_own_weights_are_no_state(layer):
    """A recurrent layer computes with a list of its parameters: copies in their place would not change with them."""
    assert State.of(layer).attributes == {}
    other = type(layer)(4, 6, num_layers=layer.num_layers, bidirectional=layer.bidirectional)
    x = torch.randn(5, 3, 4)
    for seed in (None, 3):
        if seed is not None:
            redraw(layer, seed)
        assert State.of(layer).apply(other) == ()
        assert torch.equal(layer(x)[0], other(x)[0])
    layer.extra = [next(layer.parameters()), torch.ones(2)]  # with something of its own
    assert list(State.of(layer).attributes) == ["extra"]


def test_redrawn_parameters_are_others_and_state_comes_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    original = State.of(model)
    redraw(model, 5)
    assert not torch.equal(model[1].weight, torch.ones(4)) and not torch.equal(model[1].bias, torch.zeros(4))
    assert bool((model[1].running_var > 0).all())
    first = {n: p.clone() for n, p in model.named_parameters()}
    assert original.apply(model) == ()
    assert torch.equal(model[1].weight, torch.ones(4))
    redraw(model, 5)
    assert all(torch.equal(first[n], p) for n, p in model.named_parameters())


def test_poisoned_empty() -> None:
    with poisoned_empty():
        assert bool(torch.empty(5).isnan().all()) and bool(torch.empty_like(torch.ones(3)).isnan().all())
    with poisoned_empty(finite=True):
        assert bool((torch.empty(5) == FINITE_POISON).all()) and not bool(torch.empty(3, dtype=torch.bool).any())
    x = torch.rand(3)
    with poisoned_empty():
        assert torch.equal(x + 1, x.add(1))


class _AsksForLimits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.clamp_min(torch.finfo(x.dtype).eps), self.norm(x * 1e-4)


def test_limits_of_a_type_are_those_of_the_models_own() -> None:
    """The reference widens precision and never meaning: eps of a float32 model stays that of float32."""
    model, x = _AsksForLimits(), torch.tensor([[1e-30, 1e-9, 0.5, 1.0]])
    found = call_in_float64(float64_copy(model), [x.double()])
    for value, expected in zip(found, model(x), strict=True):
        torch.testing.assert_close(value.float(), expected)
    assert torch.finfo(torch.float64).eps < 1e-15


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_limits_of_a_type_are_those_that_eager_asked_for(dtype) -> None:
    """A copy of a model of another type than float32 is told, as it cannot know."""
    model, x = _AsksForLimits().to(dtype), torch.tensor([[1e-30, 1e-9, 0.5, 1e-4]], dtype=dtype)
    expected, own = own_types(lambda: model(x))
    assert own and own.limits == (dtype, dtype) and torch.finfo(torch.float64).eps < 1e-15
    for value, wanted in zip(call_in_float64(float64_copy(model), [x.double()], own=own), expected, strict=True):
        torch.testing.assert_close(value.to(dtype), wanted, rtol=2e-3, atol=1e-4)
    model.float()
    _, own = own_types(lambda: model(torch.rand(2, 4)))
    assert not replace(own, types=())


class _AsksForTypes(nn.Module):
    """As language models do: what hides a score is as low as the type allows, and what is wide already is not cast."""

    def __init__(self, random: bool) -> None:
        super().__init__()
        self.random = random
        self.register_buffer("low", torch.tensor(-1e9))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = torch.tensor(-1e4, dtype=x.dtype) if x.dtype == torch.float16 else self.low
        scores = torch.where(x > 2, x, low)
        noise = torch.rand(x.shape) if self.random else 0.0
        return (torch.softmax(scores - scores.amax(-1, keepdim=True), -1) + noise).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_decided_by_a_type_is_decided_by_the_models_own(dtype) -> None:
    model, x = _AsksForTypes(False).to(dtype), torch.linspace(0, 1, 8, dtype=dtype).reshape(2, 4)
    expected, own = own_types(lambda: model(x))
    assert set(own.types) == {dtype} and own.no_casts == {1}
    found = call_in_float64(float64_copy(model), [x.double()], own=own)
    assert found.dtype == torch.float64 and not bool(found.isnan().any())
    torch.testing.assert_close(found.to(dtype), expected)


@pytest.mark.parametrize("random", [False, True])
def test_a_truth_that_is_lost_where_eager_is_not_is_none(random: bool) -> None:
    """-1e9 is infinite in float16, which a copy in float64 chose for its type: all its results were NaN, and of some
    entries of a batch whose numbers are random nothing else was known."""
    model, inputs = _AsksForTypes(random).half(), [torch.rand(8, 64).half()]
    before, state = State.of(model), seed_all(3)
    given = ByModel(inputs, before, inputs, call(model, inputs), state, random_state())
    assert given.uses_randomness == random
    for entries in (None, torch.tensor([0, 5])):
        found = reference_of(given, model, float64_copy(model), 3, entries, [True])
        assert not bool(found.outputs.isnan().any()) and (random or found.words.startswith("float64"))


def test_dropout_in_place_draws_in_place() -> None:
    """On a GPU it draws from another stream than dropout that makes a tensor does."""
    x = torch.rand(5, 7, dtype=torch.float64) + 1
    calls: list[tuple[tuple, dict]] = []

    def dropout(*args: object, **kwargs: object) -> torch.Tensor:
        calls.append((args[1:], kwargs))
        return nn.functional.dropout(*args, **kwargs)  # type: ignore[arg-type]

    for args, kwargs in (((0.5, True, True), {}), ((), {"p": 0.5, "training": True, "inplace": True})):
        given = x.clone()
        result = drawn_in_float32(dropout, (given, *args), kwargs)
        assert result is given and calls.pop() == (args, kwargs)
        assert torch.equal(result, torch.where(result == 0, 0.0, 2 * x)) and (result == 0).any()
    outside = drawn_in_float32(dropout, (x, 0.5), {})
    assert outside is not x and calls.pop() == ((0.5,), {})


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device")])])
@pytest.mark.parametrize("layer", [nn.Dropout(0.4), nn.Dropout(0.4, inplace=True), nn.Dropout2d(0.4, inplace=True),
                                   nn.AlphaDropout(0.4), nn.AlphaDropout(0.2, inplace=True),
                                   nn.FeatureAlphaDropout(0.7)], ids=str)
def test_float64_drops_what_float32_drops(layer: nn.Module, device: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), layer).to(device)
    x = torch.rand(3, 4, 6, device=device)
    torch.manual_seed(7)
    single = model(x)
    torch.manual_seed(7)
    double = call_in_float64(float64_copy(model), [x.double()])
    assert torch.allclose(single.double(), double, rtol=1e-5, atol=1e-6)
