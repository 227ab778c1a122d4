"""What arithmetic costs and what it leaves open: in 16 bits matrix units are fastest, and who sums decides a sign."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright import truths
from kernelwright.capture.export import capture
from kernelwright.ir.node import walk
from kernelwright.plan.planner import make_plan
from kernelwright.roofline.cost import arithmetic_seconds, floor, multiplied_type
from kernelwright.roofline.devices import H200


class Product(nn.Module):
    """Of matrices that are in a type, or are cast to another first."""

    def __init__(self, cast: torch.dtype | None = None) -> None:
        super().__init__()
        self.weight, self.cast = nn.Parameter(torch.zeros(2048, 2048)), cast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight if self.cast is None else x.to(self.cast) @ self.weight.to(self.cast)


@pytest.mark.parametrize(("dtype", "cast", "multiplied"), [
    (torch.float32, None, torch.float32), (torch.bfloat16, None, torch.bfloat16),
    (torch.float16, None, torch.float16), (torch.float64, None, torch.float64),
    (torch.bfloat16, torch.float32, torch.bfloat16), (torch.float32, torch.float16, torch.float16),
    (torch.float32, torch.float64, torch.float64), (torch.bfloat16, torch.float64, torch.float64)])
def test_a_product_has_the_units_of_the_numbers_that_it_multiplies(dtype, cast, multiplied) -> None:
    """Float32 takes three products of 16 bits each, so a model of 16 bits was said to be below its floor."""
    graph = capture(Product(cast).to(dtype), [torch.zeros(4096, 2048, dtype=dtype)])
    (product,) = (n for n in walk(graph.outputs) if n.kind == "linear")
    assert multiplied_type(product) is multiplied
    operations = 2 * 4096 * 2048 * 2048
    least, _ = floor([product], H200)
    assert least == pytest.approx(operations / H200.best_arithmetic(multiplied), rel=1e-6)
    if cast is None:
        assert arithmetic_seconds(product, H200) >= least


@pytest.mark.parametrize(("function", "adds"), [
    (lambda x: x.mean(1), True), (lambda x: F.layer_norm(x, (64,)), True), (lambda x: torch.softmax(x, 1), True),
    (lambda x: x.amax(1), False), (lambda x: torch.tanh(x * 1e-30), False), (lambda x: x.prod(1), False)])
def test_whose_sums_may_vanish_with_either_sign(function, adds: bool) -> None:
    class Of(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x * 0.5) * 3

    graph = capture(Of(), [torch.rand(32, 64)])
    plan = make_plan(graph, graph)
    assert plan.kernels and any(truths._adds(step.kernel) for step in plan.kernels) == adds
