"""What tells a candidate from a model by calling both: every kind of difference is seen, rounding is none."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.fuzz.alike import CHANGES, SETTINGS, differences


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class Plain(nn.Module):
    """A module whose forward is a function of (module, x)."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.linspace(-1, 1, 4))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        return self.function(self, x)


def found(model: Callable[..., Any], candidate: Callable[..., Any], x: Callable[[], torch.Tensor] | None = None,
          **options: Any) -> list:
    def make() -> list[torch.Tensor]:
        return [x() if x is not None else torch.randn(3, 4, generator=torch.Generator().manual_seed(0))]

    return differences(lambda: Plain(model), lambda: Plain(candidate), make, **options)


def _update(module: Plain, x: torch.Tensor) -> torch.Tensor:
    module.mean.add_(x.detach().mean(0))
    return x * module.weight


def _raises(module: Plain, x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 1e9:
        raise ValueError("too much")
    return x * module.weight


#: Kind of difference, the model, a candidate that differs so. Each candidate is right but for that.
KINDS: tuple[tuple[str, Callable[..., Any], Callable[..., Any]], ...] = (
    ("value", lambda m, x: x * m.weight, lambda m, x: x * m.weight * 1.001),
    ("value", lambda m, x: (x > 0).long(), lambda m, x: (x >= 0.5).long()),
    ("value", lambda m, x: (x.sum(), 3), lambda m, x: (x.sum(), 4)),
    ("value", lambda m, x: x.half() * 2, lambda m, x: x.half() * 2.05),
    ("value", lambda m, x: F.gelu(x.bfloat16()), lambda m, x: F.gelu(x.bfloat16()) * 1.1),
    ("sign-of-zero", lambda m, x: x * 0.0, lambda m, x: x * -0.0),
    ("nonfinite", lambda m, x: 1 / (x * 0.0), lambda m, x: 1 / (x * -0.0)),
    ("nonfinite", lambda m, x: x.log(), lambda m, x: x.abs().log()),
    ("dtype", lambda m, x: x > 0, lambda m, x: (x > 0).long()),
    ("shape", lambda m, x: x.sum(), lambda m, x: x.sum()[None]),
    ("strides", lambda m, x: (x * m.weight).t(), lambda m, x: (x * m.weight).t().contiguous()),
    ("alias", lambda m, x: x, lambda m, x: x.clone()),
    ("alias", lambda m, x: x * 2, lambda m, x: x.mul_(2)),
    ("alias", lambda m, x: (x * 2,) * 2, lambda m, x: (x * 2, x * 2)),
    ("alias", lambda m, x: m.mean, lambda m, x: m.mean.clone()),
    ("alias", lambda m, x: x[1:], lambda m, x: x[:2]),
    ("requires-grad", lambda m, x: (x * m.weight).detach(), lambda m, x: x * m.weight),
    ("requires-grad", lambda m, x: x * m.weight, lambda m, x: (x * m.weight).detach()),
    ("grad-fn", lambda m, x: m.weight, lambda m, x: m.weight.view(4)),
    ("gradient", lambda m, x: x * m.weight, lambda m, x: x.detach() * m.weight),
    ("value", lambda m, x: x.relu() * m.weight, lambda m, x: x.clamp(min=0) * m.weight + (x - x.detach())),
    ("value", lambda m, x: torch.complex(x, x * 2), lambda m, x: torch.complex(x, x * 2).conj().resolve_conj()),
    ("state", lambda m, x: (x * m.weight), lambda m, x: (setattr(m, "mean", m.mean + 1), x * m.weight)[1]),
    ("value", _update, lambda m, x: x * m.weight),
    ("value", lambda m, x: (x.mul_(2), x.sum())[1], lambda m, x: (x * 2).sum()),
    ("random-state", lambda m, x: x * m.weight, lambda m, x: (torch.rand(1), x * m.weight)[1]),
    ("value", lambda m, x: torch.rand_like(x), lambda m, x: torch.rand_like(x).flip(0)),
    ("value", lambda m, x: Pair(x * 2, x + 1), lambda m, x: (x * 2, x + 1)),
    ("value", lambda m, x: [x * 2], lambda m, x: [x * 2, x]),
    ("value", lambda m, x: x * 2 if torch.is_grad_enabled() else x + 2, lambda m, x: x + 2),
    ("value", lambda m, x: x * 2 if m.training else x + 2, lambda m, x: x + 2),
)


@pytest.mark.parametrize(("kind", "model", "candidate"), KINDS, ids=[f"{k}{i}" for i, (k, *_) in enumerate(KINDS)])
def test_each_kind_is_seen(kind, model, candidate):
    assert kind in {d.kind for d in found(model, candidate)} - {"missing"} or kind == "state", found(model, candidate)
    assert found(model, candidate)
    assert not found(model, model) and not found(candidate, candidate)


def test_what_is_raised():
    large = lambda: torch.full((3, 4), 1e9)  # noqa: E731
    assert {d.kind for d in found(_raises, lambda m, x: x * m.weight, large)} == {"raises"}
    assert {d.kind for d in found(lambda m, x: x * m.weight, _raises, large)} == {"raises"}
    assert not found(_raises, _raises, large) and not found(_raises, lambda m, x: x * m.weight)


def test_arguments_by_name():
    class Positional(Plain):
        def forward(self, *given):
            return given[0] * self.weight

    x = torch.randn(3, 4)
    kinds = [(d.kind, d.where) for d in differences(lambda: Plain(lambda m, x: x * m.weight), lambda: Positional(None),
                                                    lambda: [x.clone()])]
    assert kinds == [("raises", "inference under no_grad, arguments by name")]


def _half_norm(m: Plain, x: torch.Tensor) -> torch.Tensor:
    return torch.layer_norm(x.bfloat16()[..., None], (1,))


#: Pairs that differ by rounding alone, and where nobody has a digit.
def _cancelling(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([k * 1e15 + x.double().flatten()[0] + k / 3 for k in (7, -9, 1.3, 3, -2.1)])


ROUNDED: tuple[tuple[Callable[..., Any], Callable[..., Any]], ...] = (
    (lambda m, x: (x * 3).sum(-1), lambda m, x: x.sum(-1) * 3),
    (lambda m, x: (x * 0.1 + x * 0.2 - x * 0.3).sign(), lambda m, x: (x * (0.1 + 0.2) - x * 0.3).sign()),
    (lambda m, x: torch.layer_norm(x * 0.1 + x * 0.2 - x * 0.3, (4,)), lambda m, x: torch.layer_norm(
        x * 0.3 - x * 0.1 - x * 0.2, (4,)).neg()),
    (lambda m, x: x.softmax(-1).log(), lambda m, x: x.log_softmax(-1)),
    (lambda m, x: x.half() * 3 + 1, lambda m, x: (x.half().float() * 3 + 1).half()),
    (lambda m, x: (x.double().sum(), x.flatten().cumsum(0)), lambda m, x: (x.double().flip(0).sum(), x.double().flatten(
        ).cumsum(0).float())),
    # What an operator rounds within itself, or a narrow type on the way, is all that some results are.
    (_half_norm, lambda m, x: _half_norm(m, x) * 0.0),
    (lambda m, x: F.gelu(x - 9), lambda m, x: (x - 9) * 0.5 * torch.erfc((9 - x) / 2**0.5)),
    # Sums that cancel, of which another order leaves another fraction.
    (lambda m, x: torch.frac(_cancelling(x).sum(0)), lambda m, x: torch.frac(_cancelling(x).flip(0).sum(0))),
    (lambda m, x: F.tanhshrink(x.bfloat16() * 0.03), lambda m, x: F.tanhshrink(x.bfloat16().float() * 0.03).bfloat16()),
)


@pytest.mark.parametrize(("model", "candidate"), ROUNDED)
def test_rounding_is_none(model, candidate):
    assert not found(model, candidate, exact=False)


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().sum(-1, True).sqrt()


def _centred(x: torch.Tensor) -> torch.Tensor:
    return (x - x.mean(-1, True)).mean(-1)


@pytest.mark.parametrize(("model", "candidate", "wrong"), [
    (lambda m, x: _unit(x).argmax(-1), lambda m, x: x.argmax(-1), lambda m, x: (x.argmax(-1) + 1) % 4),
    (lambda m, x: _unit(x) > 0, lambda m, x: x > 0, lambda m, x: x < 0),
    (lambda m, x: x * x - (x * x).exp(), lambda m, x: torch.full_like(x, -inf), lambda m, x: torch.full_like(x, inf)),
    # What cancels is zero for eager, which has lost its terms, almost zero in float64, and rounding for all others.
    (lambda m, x: _centred(_unit(x)), lambda m, x: _centred(_unit(x * 1e-25)),
     lambda m, x: _centred(_unit(x * 1e-25)) + 1e-5),
])
def test_what_a_type_has_lost_may_be_what_float64_has(model, candidate, wrong):
    def seen(candidate: Callable[..., Any]) -> list:
        def large() -> torch.Tensor:
            return torch.randn(32, 4, generator=torch.Generator().manual_seed(0)) * 1e25

        return found(model, candidate, large, settings=SETTINGS[:1], extreme=True)

    assert not seen(candidate) and seen(wrong)


@pytest.mark.parametrize(("other", "right"), [
    (lambda x: torch.full((3, 3), inf), False),  # a sum of terms of one sign has that one's infinity
    (lambda x: torch.tensor([[inf, nan, 0], [-inf, inf, 0], [0, 0, 0]]) + 0 * (x @ x.mT).nan_to_num(), True),
    (lambda x: torch.tensor([[inf, 0, 0], [0, inf, 0], [0, 0, 0]]), False),
    (lambda x: torch.tensor([[-inf, nan, 0], [nan, inf, 0], [0, 0, 0]]), False),
])
def test_the_infinity_of_a_sum_that_overflows_both_ways_is_free(other, right):
    """Of ``x @ x.mT`` the diagonal is +Inf in any order; beside it +Inf, -Inf and NaN are those of some order."""
    def large() -> torch.Tensor:
        return torch.tensor([[1.0, 2, 1, 3], [1, -2, 3, -1], [0, 0, 0, 0]]) * 1e25

    seen = found(lambda m, x: torch.einsum("ij,kj->ik", x, x), lambda m, x: other(x), large, settings=SETTINGS[:1],
                 extreme=True)
    assert (not seen) == right, seen


@pytest.mark.parametrize(("other", "right"), [
    (lambda x: torch.full((2,), inf), True), (lambda x: torch.full((2,), nan), True), (lambda x: x[0, :2] * 0, False)])
def test_what_overflows_first_decides_of_products_that_are_added(other, right):
    """A product that is added without being rounded leaves the infinity that stood there before."""
    def large() -> torch.Tensor:
        return torch.tensor([[1.0, 2], [1, -2]]) * 1e25

    def added(m: Plain, x: torch.Tensor) -> torch.Tensor:
        return (x * x.flip(-1) * torch.tensor([1.0, -2.0])).sum(-1)

    seen = found(added, lambda m, x: other(x), large, settings=SETTINGS[:1], extreme=True)
    assert (not seen) == right, seen


def test_an_infinity_that_is_given_is_none_that_overflowed():
    def given() -> torch.Tensor:
        return torch.tensor([[inf, -inf, 1, 2]])

    assert found(lambda m, x: x.sum(-1), lambda m, x: torch.full((1,), inf), given, settings=SETTINGS[:1])


def test_signs_that_eager_chooses_by_place_are_free():
    def shrunk(m: Plain, x: torch.Tensor) -> torch.Tensor:
        return F.softshrink(x, 9.0)

    def seen(candidate: Callable[..., Any]) -> list:
        return found(shrunk, candidate, settings=SETTINGS[:1])

    assert not seen(lambda m, x: x * 0.0) and not seen(lambda m, x: torch.zeros_like(x))
    assert seen(lambda m, x: x.abs() * -0.0)


@pytest.mark.parametrize(("change", "model", "candidate"), [
    ("times 1e-25", lambda m, x: x.std(-1), lambda m, x: (x - x.mean(-1, True)).square().sum(-1).div(3).sqrt()),
    ("times 1e25", lambda m, x: x.std(-1), lambda m, x: (x - x.mean(-1, True)).square().sum(-1).div(3).sqrt()),
    ("plus 1e6", lambda m, x: x.var(-1), lambda m, x: (x.square().mean(-1) - x.mean(-1).square()) * 4 / 3),
    ("times 1e16", lambda m, x: x.sin(), lambda m, x: torch.where(x.abs() > 1e15, 0.0, x).sin()),
    ("zeros of both signs", lambda m, x: x + 0.0, lambda m, x: x * 1.0),
])
def test_what_other_values_show(change, model, candidate):
    """Right on usual values, wrong on others."""
    usual = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)) - 0.4
    assert not found(model, candidate, lambda: usual.clone())
    assert found(model, candidate, lambda: CHANGES[change](usual))
    assert not found(model, model, lambda: CHANGES[change](usual))
