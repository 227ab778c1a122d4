"""What is accepted where any precision is: what fewer digits of operands do to this model, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernelwright.judge.check.precision import (
    ANY_PRECISION,
    HALF,
    HALF_UNIT,
    TF32,
    TF32_UNIT,
    any_precision,
    precision_class,
)
from kernelwright.verify import certify
from kernelwright.verify.certificate import Certificate, Plan
from kernelwright.verify.tolerance import Tolerance

DEPTH = 1024
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Centered(nn.Module):
    """A product of numbers around one, less the mean of its rows: little of it is left."""

    product: Product = staticmethod(torch.matmul)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = self.product(a, b)
        return y - y.mean(1, keepdim=True)


def certified(product: Product, tolerance: Tolerance, spread: float = 0.05) -> Certificate:
    """``spread``: by how much the numbers differ from one."""
    candidate = type("Candidate", (Centered,), {"product": staticmethod(product)})

    def inputs(seed: int = 0) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [1 + spread * torch.randn(64, DEPTH), 1 + spread * torch.randn(DEPTH, 64)]

    return certify(Centered, candidate, inputs, plan=Plan(tolerance=tolerance, budget_seconds=60.0))


def tf32(x: torch.Tensor) -> torch.Tensor:
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def bfloat16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def other_tile(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The first tile has the first sixteen terms left out."""
    y = a @ b
    y[:16, :16] = a[:16, 16:] @ b[16:, :16]
    return y


@pytest.mark.parametrize(("rounded", "unit", "spread"), [(tf32, TF32_UNIT, 0.05), (bfloat16, HALF_UNIT, 0.2)])
def test_operands_of_fewer_digits_are_accepted_where_their_sums_cancel(
        rounded: Callable[[torch.Tensor], torch.Tensor], unit: float, spread: float) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return rounded(a) @ rounded(b)

    assert not certified(product, ANY_PRECISION, spread).passed, "the tolerance by itself does not do"
    found = certified(product, replace(ANY_PRECISION, unit=unit), spread)
    assert found.passed, found.why


@pytest.mark.parametrize("wrong", [lambda a, b: a[:, DEPTH // 100:] @ b[DEPTH // 100:], other_tile,
                                   lambda a, b: 1.03 * (a @ b)], ids=["a hundredth", "a tile", "a factor"])
def test_what_is_wrong_is_refused_all_the_same(wrong: Product) -> None:
    """One term in a hundred is left out, one tile of sixteen is another, all is 3 % too large: where numbers are around
    one that is as much as 16 bits may do to a single trial, and on others it is not."""
    assert not certified(wrong, replace(ANY_PRECISION, unit=HALF_UNIT)).passed
    assert not certified(lambda a, b: wrong(bfloat16(a), bfloat16(b)), replace(ANY_PRECISION, unit=HALF_UNIT)).passed


def test_the_error_says_how_many_digits_count() -> None:
    by_half = certified(lambda a, b: bfloat16(a) @ bfloat16(b), ANY_PRECISION)
    assert precision_class(by_half) == HALF and any_precision(HALF).unit == HALF_UNIT
    assert any_precision(TF32).unit == any_precision(None).unit == TF32_UNIT
