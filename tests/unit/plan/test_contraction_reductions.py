"""Reductions over positions of a contraction, whole and in windows: what the record means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contraction_cases import convolution
from torch.nn import functional

from kernelwright.codegen.reference.contraction import evaluate_contraction, sums_of_products
from kernelwright.plan.expressions import Apply, Constant, Index, Load, Reduced
from kernelwright.plan.kernels import Reduction, Store
from kernelwright.plan.reading.access import strides_of

KERNEL = convolution(2, 2, 3, 4, (5, 7), (3, 3), padding=1).kernel
DOMAIN = KERNEL.domain
WHOLE = Index(strides_of(DOMAIN))


def operands(kernel=KERNEL) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (*(torch.Size(d).numel() for d in (kernel.left_domain, kernel.right_domain)), torch.Size(DOMAIN).numel())
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]


def squared(buffer: int = 2) -> Apply:
    """The square of a sum plus what another tensor has there."""
    shifted = Apply("add", (Reduced(0), Load(buffer, WHOLE)))
    return Apply("mul", (shifted, shifted))


def test_totals_are_over_all_positions():
    per_channel = Index((8, 4, 1, 0, 0))
    stores = (Store(0, WHOLE, Reduced(0)), Store(1, per_channel, Reduced(1, 0)), Store(2, per_channel, Reduced(1, 1)),
              Store(3, per_channel, Apply("mul", (Reduced(2), Constant(0.5)))))
    kernel = replace(KERNEL, position_reductions=(Reduction("moments", squared()), Reduction("max", Reduced(0))),
                     stores=stores,
                     input_dtypes=("float32",) * 3, output_dtypes=("float32",) * 4)
    inputs = operands()
    sums = sums_of_products(kernel, inputs)
    values = (sums + inputs[2].reshape(DOMAIN)).square().flatten(3)
    found = evaluate_contraction(kernel, inputs)
    assert torch.equal(found[0], sums.flatten())
    torch.testing.assert_close(found[1], values.mean(-1).flatten())
    torch.testing.assert_close(found[2], values.var(-1, correction=0).flatten())
    torch.testing.assert_close(found[3], sums.flatten(3).amax(-1).flatten() / 2)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_pools_are_over_windows_of_the_last_axis(size: int):
    pooled = replace(KERNEL, pool_size=size).pooled_domain
    place = Index(strides_of(pooled))
    stores = (Store(0, place, Apply("add", (Reduced(1), Load(3, place)))), Store(1, WHOLE, squared()))
    kernel = replace(KERNEL, pools=(Reduction("max", squared()),), pool_size=size, stores=stores,
                     input_dtypes=("float32",) * 4, output_dtypes=("float32",) * 2)
    inputs = [*operands(), torch.randn(pooled, dtype=torch.float64)]
    values = (sums_of_products(kernel, inputs) + inputs[2].reshape(DOMAIN)).square()
    found = evaluate_contraction(kernel, inputs)
    expected = functional.max_pool2d(values.flatten(0, 2), (1, size)).flatten() + inputs[3].flatten()
    torch.testing.assert_close(found[0], expected)
    torch.testing.assert_close(found[1], values.flatten())
