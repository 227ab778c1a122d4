"""Places and jumps that rounding decides: a kernel may decide them otherwise, but nothing else."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from kernelwright.verify import certify
from kernelwright.verify.certificate import Certificate, Plan
from kernelwright.verify.choices import CHOSEN
from kernelwright.verify.records import TrialPlan


class Given(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> object:
        return self.function(x)


def judged(model: Callable[..., object], candidate: Callable[..., object], inputs: Callable[[int], list[torch.Tensor]]
           ) -> Certificate:
    trials = tuple(TrialPlan(seed, "as given", False) for seed in range(6))
    return certify(lambda: Given(model), lambda: Given(candidate), inputs, plan=Plan(trials=trials))


def nearly_equal(seed: int) -> list[torch.Tensor]:
    """Rows of other terms, of which the first four have one sum but for rounding, and the others a smaller one."""
    rows = torch.randn(8, 4096, generator=torch.Generator().manual_seed(seed))
    rows[:, 0] -= (rows.double().sum(1) - torch.tensor([5.0] * 4 + [4.0] * 4)).float()
    return [rows]


def whole(seed: int) -> list[torch.Tensor]:
    return [torch.randint(-2, 3, (16, 12), generator=torch.Generator().manual_seed(seed)).float()]


def halves(seed: int) -> list[torch.Tensor]:
    return [torch.randint(0, 5, (40,), generator=torch.Generator().manual_seed(seed)) / 4]


def by_chunks(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(len(x))
    for part in x.flip(1).split(7, 1):
        total = total + part.sum(1)
    return total


def jump(total: torch.Tensor) -> torch.Tensor:
    """1 or 2, by what is left of a sum that is nearly another row's."""
    return torch.where(total[:4] > total[0], 1.0, 2.0)


def equal_rows(seed: int) -> list[torch.Tensor]:
    return [torch.randn(1, 300, generator=torch.Generator().manual_seed(seed)).expand(3, 300).contiguous()]


WEIGHT = torch.randn(300, 5, generator=torch.Generator().manual_seed(99))


def by_place(x: torch.Tensor) -> torch.Tensor:
    """A product of matrices in which every row is added in another order."""
    return torch.stack([sum(a @ b for a, b in zip(row.split(7 + n), WEIGHT.split(7 + n), strict=True))
                        for n, row in enumerate(x)])


def last_of_equals(x: torch.Tensor) -> torch.Tensor:
    return x.shape[1] - 1 - x.flip(1).argmax(1)


@pytest.mark.parametrize(("model", "candidate"), [
    (lambda x: x.sum(1).argmax(), lambda x: by_chunks(x).argmax()),
    (lambda x: jump(x.sum(1)), lambda x: jump(by_chunks(x))),
])
def test_what_rounding_decides_may_be_decided_otherwise(model, candidate):
    found = judged(model, candidate, nearly_equal)
    assert found.passed
    assert any(CHOSEN in trial.notes for trial in found.trials)


def test_equal_rows_of_a_product_may_differ():
    """A library adds each row in an order of its own, as a kernel does."""
    def model(x: torch.Tensor) -> torch.Tensor:
        return (x @ WEIGHT).argmax(0)

    assert judged(model, lambda x: by_place(x).argmax(0), equal_rows).passed
    assert not judged(model, lambda x: ((x @ WEIGHT).argmax(0) + 3) % 6, lambda seed: [torch.cat((
        equal_rows(seed)[0], -9 * equal_rows(seed)[0]))]).passed


@pytest.mark.parametrize(("model", "wrong", "inputs"), [
    # A place that no rounding leads to, beside those that it does.
    (lambda x: x.sum(1).argmax(), lambda x: x.sum(1).argmax() + 4, nearly_equal),
    (lambda x: jump(x.sum(1)), lambda x: jump(x.sum(1)) * 1.01, nearly_equal),
    # Equal values: the first of them is the one, also where they were rounded on the way.
    (lambda x: x.argmax(1), last_of_equals, whole),
    (lambda x: (x * 0.3).exp().argmax(1), lambda x: last_of_equals((x * 0.3).exp()), whole),
    (lambda x: x.softmax(1).max(1).indices, lambda x: last_of_equals(x.softmax(1)), whole),
    # A bound that a value meets.
    (lambda x: x > 0.5, lambda x: x >= 0.5, halves),
    (lambda x: torch.where(x * 2 - 1 > 0, x, -x), lambda x: torch.where(x * 2 - 1 >= 0, x, -x), halves),
    (lambda x: torch.nn.functional.hardshrink(x + 1, 1.5), lambda x: torch.where(x + 1 < 1.5, 0.0, x + 1), halves),
    (lambda x: (x * 4).floor(), lambda x: (x * 4 - 1e-6).floor(), halves),
    (lambda x: (x * 4).long(), lambda x: (x * 4 - 1e-6).long(), halves),
])
def test_what_it_does_not_decide_may_not(model, wrong, inputs):
    assert not judged(model, wrong, inputs).passed
    assert judged(model, model, inputs).passed


def cancelling(seed: int) -> list[torch.Tensor]:
    """Rows of terms of both signs, from 1 to 2**30: what is left of some of them is all rounding."""
    made = torch.Generator().manual_seed(seed)
    size = torch.rand(16384, 48, generator=made).mul_(30).exp2_()
    return [size.mul_(torch.rand(size.shape, generator=made).sub_(0.5).sign_())]


@pytest.mark.parametrize("after", [
    torch.relu, torch.nn.functional.leaky_relu, torch.nn.functional.hardswish, torch.tanh, torch.sign,
    lambda total: total.clamp(-1, 1)])
def test_what_is_left_of_terms_that_cancel_is_rounding(after):
    """No error of another row tells by how much, nor whether eager and float64 are on one side of zero."""
    trials = tuple(TrialPlan(seed, "as given", False) for seed in range(10))

    def found(candidate: Callable[..., object]) -> Certificate:
        plan = Plan(trials=trials, repeats=0, poison=False)
        return certify(lambda: Given(lambda x: after(x.sum(1))), lambda: Given(candidate), cancelling, plan=plan)

    right = found(lambda x: after(by_chunks(x)))
    assert right.passed, right.why
    # Not what is far from all that rounding gives, in one row of them all; nor in all rows a little.
    alone = torch.zeros(16384).index_fill_(0, torch.tensor([77]), 1.0)
    assert not found(lambda x: after(by_chunks(x) - alone * 2.0**36)).passed
    assert not found(lambda x: after(by_chunks(x)) * 1.0001).passed
