"""Gradients of what is not read: +0 where it is not computed, so it is left out where eager has +0 there, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.adjoint.backward import make_backward
from kernelwright.algebra.engine import rewrite
from kernelwright.algebra.rule import KINKS
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.roofline.devices import GENERIC_CPU

ROWS, OTHER = torch.randn(2, 8, 640, generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(8, 16, 16, generator=torch.Generator().manual_seed(2))
WEIGHT = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))


def _attended(x: torch.Tensor, projected: torch.Tensor) -> torch.Tensor:
    """The first token of an activation of x plus attention with its projections."""
    queries, keys = projected[..., :8], projected[..., 8:]
    return (F.gelu(x) + torch.softmax(queries @ keys.mT, -1) @ projected)[:, 0].tanh()


#: Functions with their operands, and whether what is not read is left out where they are differentiated.
CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], bool]] = {
    "a product": (lambda x, y: (x * y - 1)[:, :3].exp(), (ROWS, OTHER), False),
    "a difference": (lambda x, y: (x - y)[:, 0].exp(), (ROWS, OTHER), False),
    "a quotient": (lambda x, y: (x / y)[:, 0].exp(), (ROWS, OTHER), False),
    "an activation": (lambda x: F.gelu(x)[:, 0] * 2, (ROWS,), False),
    "a sum of negatives": (lambda x: (x * -2.0).sum(2)[:, 0].exp(), (IMAGES,), False),
    "a layer of an activation": (lambda x, w: F.linear(F.gelu(x), w)[:, 0].exp(), (IMAGES, WEIGHT), False),
    "two parts": (lambda x, y: (x - y)[:, ::7].relu().sum() + (x / y)[3:5].sum(1), (ROWS, OTHER), False),
    "what only adds": (lambda x: (F.relu(x) + 1)[:, 0].exp(), (ROWS,), True),
    "what rises": (lambda x: torch.tanh(x)[:, 0] * 1.5, (ROWS,), True),
    "a softmax": (lambda x: torch.softmax(x, -1)[:, 0].exp(), (IMAGES,), True),
    "negatives of a layer": (lambda x, w: (F.linear(x, w) * -2)[:, 0].exp(), (IMAGES, WEIGHT), True),
    "an activation between layers": (
        lambda x, w: F.linear(F.gelu(F.linear(x, w)), w)[:, 0].tanh(), (IMAGES, WEIGHT), True),
    "queries of one token": (lambda x, w: _attended(x, F.linear(x, w)), (IMAGES, WEIGHT), True),
    "what others read": (
        lambda x, w: (F.gelu(y := F.linear(x, w).tanh())[:, 0] - y.sum(1)).exp(), (IMAGES, WEIGHT), True),
}


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_what_is_not_read_have_eagers_zeros(name: str) -> None:
    function, given, is_left_out = CASES[name]
    graph = capture(Of(function), list(given), recording=True)
    for dropped, expected in ((frozenset(), True), (frozenset({KINKS}), is_left_out)):
        used = {application.rule.name for application in rewrite(graph, GENERIC_CPU, dropped).applications}
        assert ("what is read" in used) == expected
    backward = make_backward(graph, GENERIC_CPU)[-1].gradients.graph
    leaves = [x.clone().requires_grad_() for x in given]
    result = function(*leaves)
    g = torch.randn(result.shape, generator=torch.Generator().manual_seed(4))
    names = [i["name"] for i in backward.inputs if i is not None]
    own = evaluate(backward.outputs, dict(zip(names, (*given, g), strict=True)))
    for value, right in zip(own, torch.autograd.grad(result, leaves, g), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-3, atol=1e-3)
        assert not ((value == 0) & (right == 0) & (value.signbit() != right.signbit())).any()
