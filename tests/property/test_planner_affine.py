"""Stage 5, PLAN: means over positions of a norm's output come from the totals that its statistics need."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graph_tools import assert_same, exact, examples, leaf, random_values
from hypothesis import given
from hypothesis import strategies as st
from plan_tools import Of, contractions, planned
from torch import nn

from kernelwright.ir.node import Node, constant, make, walk
from kernelwright.plan.fusion.affine_sums import affine_sums
from kernelwright.plan.kernels import LoopKernel
from kernelwright.plan.roles import roles_of

Function = Callable[[nn.Module, torch.Tensor], torch.Tensor]
ALONE: dict[str, Function] = {
    "group norm": lambda m, y: F.group_norm(F.hardswish(y), 2, m.weight, m.bias).mean((2, 3)),
    "group norm, sum": lambda m, y: F.group_norm(y, 4, m.weight, m.bias).sum((2, 3)) * 0.1,
    "batch norm": lambda m, y: F.batch_norm(y, None, None, m.weight, m.bias, True).mean((2, 3)).tanh(),
    "plain batch norm": lambda m, y: F.batch_norm(y.sigmoid(), None, None, training=True).mean((2, 3), keepdim=True),
    "scaled": lambda m, y: (3 - F.group_norm(y, 2, m.weight, m.bias) * 2).sum((2, 3)),
    "standardised": lambda m, y: ((y - y.mean((2, 3), keepdim=True)) / y.std((2, 3), keepdim=True) + 1).mean((2, 3)),
}
NOT_ALONE: dict[str, Function] = {
    "not affine": lambda m, y: F.group_norm(y, 2, m.weight, m.bias).relu().mean((2, 3)),
    "other positions": lambda m, y: F.group_norm(y, 2, m.weight, m.bias).mean(3),
    "channels": lambda m, y: F.group_norm(y, 2, m.weight, m.bias).mean(1),
    "maximum": lambda m, y: F.group_norm(y, 2, m.weight, m.bias).amax((2, 3)),
    "varies": lambda m, y: (F.group_norm(y, 2, m.weight, m.bias) * torch.arange(10.0, dtype=y.dtype)).mean((2, 3)),
}


def _model(function: Function) -> nn.Module:
    return Of(lambda m, x: function(m, m.conv(x)), conv=nn.Conv2d(3, 8, 3), weight=torch.randn(8), bias=torch.randn(8))


@pytest.mark.parametrize("name", ALONE)
def test_nothing_reads_the_results_again(name: str) -> None:
    """Neither the convolution's results nor the norm's are stored: its kernel writes totals alone."""
    plan = planned(_model(ALONE[name]), (torch.randn(2, 3, 12, 12),))
    (kernel,) = contractions(plan)
    assert len(kernel.position_reductions) == (2 if name in ("group norm, sum", "scaled", "standardised") else 1)
    assert max(step.outputs[0].size for step in plan.kernels) <= 2 * 8
    assert all(step.kernel.row in ((), (4,), (2,), (2, 4)) for step in plan.kernels
               if isinstance(step.kernel, LoopKernel)), [step.kernel for step in plan.kernels]


@pytest.mark.parametrize("name", NOT_ALONE)
def test_what_is_not_affine_reads_them(name: str) -> None:
    plan = planned(_model(NOT_ALONE[name]), (torch.randn(2, 3, 12, 12),))
    assert max(n.size for step in plan.kernels for n in step.outputs) == 2 * 8 * 10 * 10


def test_a_mean_that_is_subtracted() -> None:
    """Of the normalised values a kernel reads each once, and writes the result."""
    model = _model(lambda m, y: (lambda z: z - z.mean((2, 3), keepdim=True))(
        F.batch_norm(y, None, None, m.weight, m.bias, True)))
    plan = planned(model, (torch.randn(2, 3, 12, 12),))
    large = [i for step in plan.kernels for i in step.inputs if i.size >= 2 * 8 * 10 * 10]
    assert len(large) == 1


def test_without_totals_in_the_kernel_the_sum_stays() -> None:
    plan = planned(_model(ALONE["group norm"]), (torch.randn(2, 3, 12, 12),), reduces=False)
    assert any(isinstance(step.kernel, LoopKernel) and step.kernel.row == (10, 10) for step in plan.kernels)


_SHAPE = (2, 4, 5, 3)


@st.composite
def _affine(draw: st.DrawFn, y: Node) -> Node:
    """Something affine in ``y``, and in totals of it."""
    value = y
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(("add", "sub", "mul", "div", "neg", "reshape", "total")))
        others = [constant(draw(st.sampled_from((2.0, 0.5, -3.0)))), leaf("positive", 1, 4, 1, 1),
                  make("mean", y, axes=(2, 3), keepdim=True), make("var", y, axes=(2, 3), keepdim=True, correction=0)]
        if kind == "neg":
            value = make("neg", value)
        elif kind == "reshape":
            value = make("reshape", value, shape=(2, 2, 2, 5, 3) if value.rank == 4 else _SHAPE)
        elif value.rank == 4:
            other = others[draw(st.integers(0, 3))]
            if kind == "total":
                kind, other = "add", make("sub", others[2], others[3])
            pair = (value, other) if kind == "div" or draw(st.booleans()) else (other, value)
            value = make(kind, *pair)
    return value


@examples(150)
@given(st.data())
def test_sums_before_affine_maps(data: st.DataObject) -> None:
    """In float64, whatever is between the contraction and the sum."""
    y = make("convolution", leaf("x", 2, 3, 7, 5), leaf("w", 4, 3, 3, 3), stride=(1, 1), padding=(0, 0),
             dilation=(1, 1), groups=1, transposed=False, output_padding=(0, 0))
    value = data.draw(_affine(make("tanh", y) if data.draw(st.booleans()) else y))
    axes = tuple(range(value.rank - 2, value.rank))
    root = make(data.draw(st.sampled_from(("sum", "mean"))), value, axes=axes, keepdim=data.draw(st.booleans()))
    roles = roles_of(walk([root]), set(), [y])
    moved = affine_sums([root], roles, [y])[root]
    assert (moved.shape, moved.dtype) == (root.shape, root.dtype)
    values = random_values([root])
    assert_same(exact([moved], values)[0], exact([root], values)[0], 1e-9)
