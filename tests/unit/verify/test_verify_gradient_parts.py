"""VERIFY, gradients where float64 is dear: a few batch entries at a time are the truth, and not eager."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
import torch
from torch import nn

from kernelwright.verify import Plan, TrialPlan, certify
from kernelwright.verify.certificate import Certificate
from kernelwright.verify.gradient_parts import Parts
from kernelwright.verify.gradients import check_gradients
from kernelwright.verify.state import State, float64_copy


class Losing(torch.autograd.Function):
    """The identity. Of float32 its gradient loses what a long sum of equal terms would: all are off by one share."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] if gradients[0].dtype is torch.float64 else gradients[0] * 1.004


class Eager(nn.Module):
    """Values and squares of a layer, whose bias has a gradient that is 0.4 % off in float32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear, self.bias = nn.Linear(24, 8, bias=False), nn.Parameter(torch.randn(8))

    def own_bias(self) -> torch.Tensor:
        return Losing.apply(self.bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(self.linear(x) + self.own_bias())
        return y, y.square().sum(1, keepdim=True)


class Exact(Eager):
    def own_bias(self) -> torch.Tensor:
        return self.bias


class Scaled(Exact):
    """Gradients of the layer's weights are 0.1 % off."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.linear.weight
        y = torch.tanh(nn.functional.linear(x, weight + 0.001 * (weight - weight.detach())) + self.bias)
        return y, y.square().sum(1, keepdim=True)


class Forgetful(Exact):
    """The last entry adds to no parameter's gradient."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fixed = nn.functional.linear(x[-1:], self.linear.weight.detach()) + self.bias.detach()
        y = torch.tanh(torch.cat([self.linear(x[:-1]) + self.bias, fixed]))
        return y, y.square().sum(1, keepdim=True)


def rows(seed: int) -> list[torch.Tensor]:
    return [torch.randn(13, 24, generator=torch.Generator().manual_seed(seed))]


def certified(candidate: type[nn.Module], seconds: float = 1e9) -> Certificate:
    return certify(Eager, candidate, rows, plan=Plan(
        trials=(TrialPlan(0), TrialPlan(1, "normal", True)), recording=True, sample_axis0=True, parameters_alone=True,
        budget_seconds=seconds))


def test_gradients_that_are_more_accurate_than_eagers_pass() -> None:
    found = certified(Exact)
    assert found.passed, found.why
    assert found.gradients is not None
    of_bias = [o for o in found.gradients.outputs if "bias" in o.path]
    assert len(of_bias) == 7  # all outputs and each alone, parameters alone, too, and with other parameters
    for output in of_bias:
        assert output.relative < 1e-6 and output.eager_relative == pytest.approx(0.004, rel=0.01), output


@pytest.mark.parametrize("candidate", [Scaled, Forgetful])
def test_wrong_gradients_do_not(candidate: type[nn.Module]) -> None:
    found = certified(candidate)
    assert not found.passed and any("gradient" in words for words in found.why), found.why


def checked(candidate: nn.Module, seconds: float, inputs: list[torch.Tensor] | None = None) -> Any:
    """A comparison in which each part takes a second, of so many that all may take."""
    model, given = Eager(), inputs or rows(0)
    ticks = iter(range(1000))
    return check_gradients(model, candidate, float64_copy(model), given, State.of(model),
                           parts=Parts([True], torch.tensor([4, 9]), seconds, lambda: float(next(ticks))))


def test_a_certificate_says_how_good_gradients_are_where_float64_ran() -> None:
    found = certified(Exact, seconds=0.0)
    assert found.passed, found.why
    assert "of gradients" in found.sentence() and "(PyTorch's own: 0.004)" in found.sentence()
    own = float(found.sentence().partition("of gradients ")[2].split()[0])
    assert own < 1e-6


@pytest.mark.parametrize("seconds", [6.5, 7.0])
def test_where_time_does_not_do_for_all_entries_some_are_the_truth_of_what_they_add(seconds: float) -> None:
    is_part = seconds < 7  # of two entries, of which there are 13
    found = checked(Exact(), seconds)
    assert found.passed, found.sentence()
    by_part = [o for o in found.outputs if "by those entries that float64 ran" in o.path]
    assert len(by_part) == (9 if is_part else 0)
    of_all = [o for o in found.outputs if o.path == "gradient['bias']"]
    assert (of_all[0].relative > 0.003) is is_part  # eager's are beside it then
    assert all(o.relative < 1e-6 and o.eager_relative == pytest.approx(0.004, rel=0.01)
               for o in by_part if "bias" in o.path)
    for wrong in (Scaled(), Forgetful()):
        assert not checked(wrong, seconds).passed


def test_what_is_wrong_in_the_part_alone_is_found_there() -> None:
    class Wrong(Exact):
        """Gradients of one entry's input are 0.1 % off: as much as eager may be off anywhere."""

        def forward(self, x: torch.Tensor) -> Any:
            factor = torch.ones(len(x), 1)
            factor[4] = 1.001
            return super().forward(x.detach() + factor * (x - x.detach()))

    found = checked(Wrong(), 0.0)
    assert [o.path for o in found.outputs if not o.passed and "by those entries" in o.path], found.sentence()


def test_parts_add_up_to_the_gradients_of_the_whole() -> None:
    model = Exact()
    whole = check_gradients(model, Scaled(), float64_copy(model), rows(0), State.of(model))
    parts = check_gradients(model, Scaled(), float64_copy(model), rows(0), State.of(model),
                            parts=Parts([True], torch.tensor([7, 0, 3]), inf, lambda: 0.0))
    assert whole is not None and parts is not None and len(whole.outputs) == len(parts.outputs)
    for one, other in zip(whole.outputs, parts.outputs, strict=True):
        assert (one.path, one.passed) == (other.path, other.passed)
        assert one.relative == pytest.approx(other.relative, rel=1e-6)
        assert one.reference_rms == pytest.approx(other.reference_rms, rel=1e-12)
