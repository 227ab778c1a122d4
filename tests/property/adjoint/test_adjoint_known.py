"""DIFFERENTIATE, what PyTorch calls: the graphs of operators that are known have PyTorch's derivatives, at kinks, too.

A graph is of values. Where an operator has other derivatives than the graph that stands for it, it must not be known.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.adjoint.backward import make_backward
from kernelwright.adjoint.graph import gradients
from kernelwright.adjoint.known import KNOWN, check_known
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.roofline.devices import GENERIC_CPU

aten = torch.ops.aten
VALUES = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 6.0, 0.3, 25.0, -25.0, nan, inf, -inf)
POINTS = torch.tensor(VALUES, dtype=torch.float64)
NUMBERS = POINTS[~POINTS.isnan()]
PAIRS = torch.tensor(list(product(VALUES, VALUES)), dtype=torch.float64)
ONE, OTHER = PAIRS[:, 0].contiguous(), PAIRS[:, 1].contiguous()
torch.manual_seed(0)
ROWS, MATRIX = torch.randn(4, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)
IMAGE, VOLUME = torch.randn(2, 4, 6, 6, dtype=torch.float64), torch.randn(1, 2, 4, 4, 4, dtype=torch.float64)
TIES = torch.randint(-1, 2, (4, 6)).double()
WEIGHT, BIAS = torch.randn(4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
KERNEL = torch.randn(3, 4, 3, 3, dtype=torch.float64)

Case = tuple[Callable[..., Any], tuple[Any, ...]]

_PLAIN = ("neg", "negative", "abs", "absolute", "reciprocal", "square", "sqrt", "rsqrt", "sign", "sgn", "floor", "ceil",
          "trunc", "fix", "round", "exp", "exp2", "expm1", "log", "log1p", "log10", "log2", "sin", "cos", "tan", "asin",
          "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "tanh", "relu", "sigmoid", "silu", "mish",
          "gelu", "hardswish", "hardsigmoid", "selu", "deg2rad", "rad2deg")
#: Of NaN the gradients of these are one in PyTorch's vectors, and another one in the last elements, which fill none.
_OF_NUMBERS = ("hardswish", "selu")
_OF_TWO = ("maximum", "minimum", "fmax", "fmin", "hypot")


def _masked(name: str) -> Case:
    """A truth value, by which something is chosen: whatever an operator of truth values is good for."""
    function = getattr(torch, name)
    if name.startswith("logical") and name != "logical_not":
        return lambda x, y: torch.where(function(x > 0, y > 0), x, y), (ONE, OTHER)
    if name == "logical_not":
        return lambda x: torch.where(function(x > 0), x, 2 * x), (POINTS,)
    if name in ("isfinite", "isinf", "isnan"):
        return lambda x: torch.where(function(x), x, 2 * x), (POINTS,)
    return lambda x, y: torch.where(function(x, y), x, y), (ONE, OTHER)


CASES: dict[str, Case] = {
    **{f"{name}.default": (getattr(aten, name).default, (NUMBERS if name in _OF_NUMBERS else POINTS,))
       for name in _PLAIN},
    **{f"{name}.default": (getattr(aten, name).default, (ONE, OTHER)) for name in _OF_TWO},
    **{f"{name}.default": _masked(name) for name in ("isfinite", "isinf", "isnan", "logical_not", "logical_and",
                                                     "logical_or")},
    **{f"{name}.Tensor": _masked(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}.Scalar": (lambda x, f=getattr(torch, name): torch.where(f(x, 1.0), x, 2 * x), (POINTS,))
       for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{f"{name}.Tensor": (getattr(aten, name).Tensor, (ONE, OTHER)) for name in ("add", "sub", "mul", "div", "rsub")},
    **{f"{name}.Scalar": (lambda x, f=getattr(aten, name).Scalar: f(x, 3.0), (POINTS,))
       for name in ("add", "sub", "mul", "div", "rsub")},
    "leaky_relu.default": (lambda x: F.leaky_relu(x, 0.2), (POINTS,)),
    "elu.default": (lambda x: F.elu(x, 1.5), (NUMBERS,)), "celu.default": (lambda x: F.celu(x, 0.5), (NUMBERS,)),
    "softplus.default": (lambda x: F.softplus(x, 2.0, 6.0), (POINTS,)),
    "threshold.default": (lambda x: F.threshold(x, 1.0, 0.5), (POINTS,)),
    "softshrink.default": (lambda x: F.softshrink(x, 0.5), (NUMBERS,)),
    "hardshrink.default": (lambda x: F.hardshrink(x, 0.5), (NUMBERS,)),
    "log_sigmoid.default": (F.logsigmoid, (POINTS[:14],)),
    "clamp.default": (lambda x: x.clamp(-0.5, 2.0) + x.clamp(2.0, -0.5) + x.clamp(max=1.0), (POINTS,)),
    "clamp_min.default": (lambda x: x.clamp_min(0.5), (POINTS,)),
    "clamp_max.default": (lambda x: x.clamp_max(0.5), (POINTS,)),
    "glu.default": (lambda x: F.glu(x, 1), (ROWS,)),
    "prelu.default": (F.prelu, (IMAGE.round(), WEIGHT)),
    "_prelu_kernel.default": (aten._prelu_kernel.default, (IMAGE.round(), WEIGHT.reshape(1, 4, 1, 1))),
    "pow.Tensor_Scalar": (lambda x: x ** 3 + x ** 2.5 + x ** 0 + x ** 2 + x ** -1 + x ** 0.5, (POINTS,)),
    "pow.Tensor_Tensor": (torch.pow, (ONE, OTHER)), "pow.Scalar": (lambda x: 3.0 ** x, (POINTS,)),
    "where.self": (lambda x, y: torch.where(x > y, x, y), (ONE, OTHER)),
    "where.ScalarOther": (lambda x: torch.where(x > 0.0, x, 2.0), (POINTS,)),
    "where.ScalarSelf": (lambda x: torch.where(x > 0.0, 2.0, x), (POINTS,)),
    "masked_fill.Scalar": (lambda x: x.masked_fill(x > 1.0, -1.0), (POINTS,)),
    "lerp.Scalar": (lambda x, y: torch.lerp(x, y, 0.7) + torch.lerp(y, x, 0.2), (ROWS, TIES)),
    "addcmul.default": (lambda x, y: torch.addcmul(x, x, y, value=0.5), (ROWS, TIES)),
    "addcdiv.default": (lambda x, y: torch.addcdiv(x, y, x, value=0.5), (ROWS, TIES)),
    "to.dtype": (lambda x: x.to(torch.float32).exp(), (ROWS,)),
    "to.dtype_layout": (lambda x: aten.to.dtype_layout(x, dtype=torch.float32).exp(), (ROWS,)),
    "_to_copy.default": (lambda x: aten._to_copy.default(x, dtype=torch.float32).exp(), (ROWS,)),
    "type_as.default": (lambda x, y: x.type_as(y) * y, (ROWS, TIES)),
    "contiguous.default": (lambda x: x.t().contiguous().exp(), (ROWS,)),
    "clone.default": (lambda x: x.clone().exp(), (ROWS,)), "positive.default": (lambda x: (+x).exp(), (ROWS,)),
    "dropout.default": (lambda x: F.dropout(x, 0.5, False).exp(), (ROWS,)),
    "feature_dropout.default": (lambda x: F.dropout2d(x, 0.5, False).exp(), (IMAGE,)),
    "full.default": (lambda x: x * torch.full((6,), 2.0), (ROWS,)),
    "ones.default": (lambda x: x * torch.ones(6), (ROWS,)), "zeros.default": (lambda x: x + torch.zeros(6), (ROWS,)),
    "scalar_tensor.default": (lambda x: x * aten.scalar_tensor.default(2.0), (ROWS,)),
    "arange.default": (lambda x: x * torch.arange(6), (ROWS,)),
    "arange.start": (lambda x: x * torch.arange(1, 7), (ROWS,)),
    "arange.start_step": (lambda x: x * torch.arange(0, 12, 2), (ROWS,)),
    "_assert_tensor_metadata.default": (lambda x: x.to(torch.float32).exp(), (ROWS,)),
    "_assert_async.default": (lambda x: (torch._assert_async(x.max() < 1e9), x.exp())[1], (ROWS,)),
    "_assert_async.msg": (lambda x: (torch._assert_async(x.max() < 1e9, "large"), x.exp())[1], (ROWS,)),
    "sum.dim_IntList": (lambda x: x.sum(1), (ROWS,)), "sum.default": (lambda x: x.sum(), (ROWS,)),
    "mean.dim": (lambda x: x.mean((0, 1), keepdim=True), (ROWS,)), "mean.default": (lambda x: x.mean(), (ROWS,)),
    "amax.default": (lambda x: x.amax(1), (TIES,)), "amin.default": (lambda x: x.amin(0), (TIES,)),
    "max.default": (lambda x: x.max(), (TIES,)), "min.default": (lambda x: x.min(), (TIES,)),
    "logsumexp.default": (lambda x: x.logsumexp(1), (ROWS,)),
    "var.correction": (lambda x: torch.var(x, (1,), correction=1), (ROWS,)),
    "var.dim": (lambda x: aten.var.dim(x, [1]), (ROWS,)), "var.default": (lambda x: aten.var.default(x), (ROWS,)),
    "std.correction": (lambda x: torch.std(x, (1,), correction=0), (torch.cat([ROWS, torch.ones(1, 6)]),)),
    "std.dim": (lambda x: aten.std.dim(x, [1]), (ROWS,)), "std.default": (lambda x: aten.std.default(x), (ROWS,)),
    "softmax.int": (lambda x: x.softmax(1), (ROWS,)), "log_softmax.int": (lambda x: x.log_softmax(0), (ROWS,)),
    "cumsum.default": (lambda x: x.cumsum(1), (ROWS,)),
    "linalg_vector_norm.default": (lambda x: torch.linalg.vector_norm(x, 2, 1) + torch.linalg.vector_norm(x, 1, 1),
                                   (torch.cat([TIES, torch.zeros(1, 6)]),)),
    "layer_norm.default": (lambda x, b: F.layer_norm(x, (6,), b, b), (ROWS, BIAS)),
    "rms_norm.default": (lambda x, b: F.rms_norm(x, (6,), b, 1e-5), (ROWS, BIAS)),
    "group_norm.default": (lambda x, w: F.group_norm(x, 2, w, w), (IMAGE, WEIGHT)),
    "batch_norm.default": (lambda x, w: F.batch_norm(x, None, None, w, w, True), (IMAGE, WEIGHT)),
    "linear.default": (F.linear, (ROWS, MATRIX, BIAS)), "matmul.default": (torch.matmul, (ROWS, MATRIX)),
    "mm.default": (torch.mm, (ROWS, MATRIX)), "bmm.default": (torch.bmm, (ROWS[None], MATRIX[None])),
    "addmm.default": (torch.addmm, (BIAS, ROWS, MATRIX)), "mv.default": (torch.mv, (ROWS, BIAS)),
    "dot.default": (torch.dot, (BIAS, ROWS[0].clone())),
    "conv1d.default": (F.conv1d, (IMAGE[:, :, 0].contiguous(), KERNEL[..., 0].contiguous())),
    "conv2d.default": (lambda x, w: F.conv2d(x, w, None, 2, 1), (IMAGE, KERNEL)),
    "conv3d.default": (F.conv3d, (VOLUME, torch.randn(3, 2, 2, 2, 2, dtype=torch.float64))),
    "conv1d.padding": (lambda x, w: F.conv1d(x, w, padding="same"), (IMAGE[:, :, 0].contiguous(),
                                                                     KERNEL[..., 0].contiguous())),
    "conv2d.padding": (lambda x, w: F.conv2d(x, w, padding="same"), (IMAGE, KERNEL)),
    "conv3d.padding": (lambda x, w: F.conv3d(x, w, padding="valid"), (VOLUME, torch.randn(3, 2, 2, 2, 2).double())),
    "conv_transpose1d.default": (F.conv_transpose1d, (ROWS[None, :3].contiguous(), KERNEL[..., 0].contiguous())),
    "conv_transpose2d.input": (F.conv_transpose2d, (IMAGE[:, :3].contiguous(), KERNEL)),
    "conv_transpose3d.input": (F.conv_transpose3d, (VOLUME, torch.randn(2, 3, 2, 2, 2).double())),
    "convolution.default": (lambda x, w: torch.convolution(x, w, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 1),
                            (IMAGE, KERNEL)),
    "max_pool1d.default": (lambda x: F.max_pool1d(x, 2), (TIES[None],)),
    "max_pool2d.default": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE.round(),)),
    "max_pool3d.default": (lambda x: F.max_pool3d(x, 2), (VOLUME.round(),)),
    "avg_pool1d.default": (lambda x: F.avg_pool1d(x, 2), (TIES[None],)),
    "avg_pool2d.default": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (IMAGE,)),
    "avg_pool3d.default": (lambda x: F.avg_pool3d(x, 2), (VOLUME,)),
    "adaptive_avg_pool1d.default": (lambda x: F.adaptive_avg_pool1d(x, 2), (ROWS[None],)),
    "adaptive_avg_pool2d.default": (lambda x: F.adaptive_avg_pool2d(x, 2), (IMAGE,)),
    "adaptive_avg_pool3d.default": (lambda x: F.adaptive_avg_pool3d(x, 2), (VOLUME,)),
    "view.default": (lambda x: x.view(24).exp(), (ROWS,)),
    "reshape.default": (lambda x: x.reshape(2, 12).exp(), (ROWS,)),
    "_unsafe_view.default": (lambda x: aten._unsafe_view.default(x, [24]).exp(), (ROWS,)),
    "flatten.using_ints": (lambda x: x.flatten().exp(), (ROWS,)),
    "unflatten.int": (lambda x: x.unflatten(1, (2, 3)).exp(), (ROWS,)),
    "unsqueeze.default": (lambda x: x.unsqueeze(1).exp(), (ROWS,)),
    "squeeze.default": (lambda x: x[None].squeeze().exp(), (ROWS,)),
    "squeeze.dim": (lambda x: x[None].squeeze(0).exp(), (ROWS,)),
    "squeeze.dims": (lambda x: x[None].squeeze((0,)).exp(), (ROWS,)),
    "permute.default": (lambda x: x.permute(1, 0).exp(), (ROWS,)),
    "transpose.int": (lambda x: x.transpose(0, 1).exp(), (ROWS,)), "t.default": (lambda x: x.t().exp(), (ROWS,)),
    "numpy_T.default": (lambda x: x.T.exp(), (ROWS,)), "mT.default": (lambda x: x.mT.exp(), (ROWS,)),
    "expand.default": (lambda x: x.expand(3, 4, 6).exp(), (ROWS,)),
    "expand_as.default": (lambda x, y: x.expand_as(y) * y, (BIAS, ROWS)),
    "slice.Tensor": (lambda x: x[1:, ::2].exp(), (ROWS,)), "select.int": (lambda x: x[1].exp(), (ROWS,)),
    "split.Tensor": (lambda x: x.split(2)[1].exp(), (ROWS,)),
    "split_with_sizes.default": (lambda x: x.split([1, 3])[1].exp(), (ROWS,)),
    "chunk.default": (lambda x: x.chunk(2)[1].exp(), (ROWS,)), "unbind.int": (lambda x: x.unbind()[1].exp(), (ROWS,)),
    "<built-in function getitem>": (lambda x: x.unbind()[1].exp(), (ROWS,)),
    "movedim.int": (lambda x: x.movedim(0, 1).exp(), (ROWS,)),
    "movedim.intlist": (lambda x: x.movedim((0, 1), (1, 0)).exp(), (ROWS,)),
    "swapaxes.default": (lambda x: x.swapaxes(0, 1).exp(), (ROWS,)),
    "swapdims.default": (lambda x: x.swapdims(0, 1).exp(), (ROWS,)),
    "view_as.default": (lambda x, y: x.view_as(y) * y, (ROWS, TIES)),
    "reshape_as.default": (lambda x, y: x.reshape_as(y) * y, (ROWS, TIES)),
    "narrow.default": (lambda x: x.narrow(1, 2, 3).exp(), (ROWS,)),
    "flip.default": (lambda x: x.flip(1).exp(), (ROWS,)),
    "pad.default": (lambda x: F.pad(x, (1, 2), value=1.0).exp(), (ROWS,)),
    "constant_pad_nd.default": (lambda x: aten.constant_pad_nd.default(x, [1, 2], 1.0).exp(), (ROWS,)),
    "roll.default": (lambda x: x.roll(1, 1).exp(), (ROWS,)), "tril.default": (lambda x: x.tril().exp(), (ROWS,)),
    "triu.default": (lambda x: x.triu(1).exp(), (ROWS,)),
    "cat.default": (lambda x, y: torch.cat([x, y]).exp(), (ROWS, TIES)),
    "concat.default": (lambda x, y: torch.concat([x, y], 1).exp(), (ROWS, TIES)),
    "stack.default": (lambda x, y: torch.stack([x, y]).exp(), (ROWS, TIES)),
    "repeat.default": (lambda x: x.repeat(2, 3).exp(), (ROWS,)),
    "pixel_shuffle.default": (lambda x: F.pixel_shuffle(x, 2).exp(), (IMAGE,)),
    "pixel_unshuffle.default": (lambda x: F.pixel_unshuffle(x, 2).exp(), (IMAGE,)),
    "broadcast_tensors.default": (lambda x, y: torch.broadcast_tensors(x, y)[0] * y, (BIAS, ROWS)),
    "channel_shuffle.default": (lambda x: F.channel_shuffle(x, 2).exp(), (IMAGE,)),
    **{f"{name}.default": (lambda x, y, f=getattr(F, name): f(x, y), (ONE[:200], OTHER[:200]))
       for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
    "binary_cross_entropy_with_logits.default": (
        lambda x: F.binary_cross_entropy_with_logits(x, torch.full((14,), 0.25, dtype=torch.float64)), (POINTS[:14],)),
    "cross_entropy_loss.default": (lambda x: F.cross_entropy(x, torch.arange(4)), (ROWS,)),
    "nll_loss.default": (lambda x: aten.nll_loss.default(x, torch.arange(4)), (ROWS,)),
    "nll_loss_nd.default": (lambda x: F.nll_loss(x, torch.arange(4)), (ROWS,)),
    "nll_loss2d.default": (lambda x: aten.nll_loss2d.default(x, torch.ones(2, 6, 6, dtype=torch.int64)), (IMAGE,)),
}


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def test_every_known_operator_has_a_case():
    assert set(CASES) == KNOWN


@pytest.mark.parametrize("name", CASES)
def test_known_operators_have_the_derivatives_of_their_graphs(name):
    function, inputs = CASES[name]
    graph = capture(Of(function), list(inputs), recording=True)
    assert name in graph.calls
    check_known(graph.calls)
    leaves = [x.clone().requires_grad_() for x in inputs]
    result = function(*leaves)
    g = torch.linspace(0.5, 2.0, result.numel(), dtype=result.dtype).reshape(result.shape)
    expected = torch.autograd.grad(result, leaves, g)
    found = gradients(graph, (0,), range(len(inputs)))
    values = {i["name"]: v for i, v in zip(found.graph.inputs, (*inputs, g), strict=True) if i is not None}
    own = evaluate(found.graph.outputs, values)
    assert len(own) == len(expected)
    tolerance = 1e-5 if result.dtype is torch.float32 or name == "hardsigmoid.default" else 1e-12
    for value, wanted in zip(own, expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 3.0
    y.mul_(2.0).relu_()
    y = (y + 1.0).add_(1.0)
    return y * x


def test_operators_in_place_have_the_derivatives_of_the_others():
    graph = capture(Of(_written), [ROWS], recording=True)
    assert {"mul_.Tensor", "relu_.default", "add_.Tensor"} < graph.calls
    check_known(graph.calls)
    found = gradients(graph, (0,), (0,))
    names = [i["name"] for i in found.graph.inputs if i is not None]
    own, = evaluate(found.graph.outputs, dict(zip(names, (ROWS, torch.ones(4, 6).double()), strict=True)))
    x = ROWS.clone().requires_grad_()
    _written(x).sum().backward()
    torch.testing.assert_close(own, x.grad)


class Straight(torch.autograd.Function):
    """Rounds, and lets gradients through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


def _no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.exp()
    return x * y


def _hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return y * x


@pytest.mark.parametrize("function", [F.hardtanh, F.relu6, lambda x: x.detach() * x, lambda x: x.data * x, _no_grad,
                                      _hooked, Straight.apply, lambda x: Straight.apply(x), lambda x: x.max(1).values])
def test_what_changes_gradients_is_not_known(function):
    graph = capture(Of(lambda x: torch.softmax(function(x), 1)), [torch.randn(4, 6)], recording=True)
    with pytest.raises(NoAdjoint):
        make_backward(graph, GENERIC_CPU)
