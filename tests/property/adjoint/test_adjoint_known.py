"""DIFFERENTIATE, what PyTorch calls: the graphs of operators that are known have PyTorch's derivatives, at kinks, too.

A graph is of values. Where an operator has other derivatives than the graph that stands for it, it must not be known.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernelwright.adjoint.backward import make_backward
from kernelwright.adjoint.called import as_called, as_computed
from kernelwright.adjoint.graph import Gradients, gradients
from kernelwright.adjoint.known import KNOWN, check_known
from kernelwright.adjoint.table import NoAdjoint
from kernelwright.algebra.engine import rewrite
from kernelwright.capture.export import capture
from kernelwright.ir.evaluate import evaluate
from kernelwright.ir.graph import Graph
from kernelwright.ir.node import walk
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

SIGNS = torch.where(TIES >= 0, 1, -1)
SPECIAL = torch.cat([TIES, torch.tensor([[nan, 1.0, inf, nan, -inf, 0.0], [inf, 1.0, inf, 0.0, -inf, -inf]])]).double()
SOME_ZERO = torch.tensor([[1.0, 0.0, 2.0, 3.0, -1.0, 0.5], [0.0, 2.0, 0.0, 1.0, 1.0, 2.0],
                          [2.0, 3.0, 0.5, 1.0, -1.0, 4.0]], dtype=torch.float64)
PLACES = torch.tensor([[1, 3, 1, 0], [2, 3, 3, 1]])
PROBABILITIES = torch.tensor([0.0, 1.0, 0.3, 1e-14, 0.9], dtype=torch.float64)
SHARES = torch.tensor([0.0, 1.0, 0.5, 1.0, 0.2], dtype=torch.float32)
MASK = torch.tensor([[True, False, True, True, False, True], [False] * 6, [True] * 6, [False, True, False] * 2])

Case = tuple[Callable[..., Any], tuple[Any, ...]]

_PLAIN = ("neg", "negative", "abs", "absolute", "reciprocal", "square", "sqrt", "rsqrt", "sign", "sgn", "floor", "ceil",
          "trunc", "fix", "round", "exp", "exp2", "expm1", "log", "log1p", "log10", "log2", "sin", "cos", "tan", "asin",
          "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "tanh", "relu", "sigmoid", "silu", "mish",
          "gelu", "hardswish", "hardsigmoid", "selu", "deg2rad", "rad2deg", "arccos", "arccosh", "arcsin", "arcsinh",
          "arctan", "arctanh", "frac")
#: Of NaN the gradients of these are one in PyTorch's vectors, and another one in the last elements, which fill none.
_OF_NUMBERS = ("hardswish", "selu")
#: PyTorch has a number of their formulas in float32.
_OF_FLOAT32_NUMBERS = ("hardsigmoid.default", "binary_cross_entropy.default")
_OF_TWO = ("maximum", "minimum", "fmax", "fmin", "hypot")

#: Whose zeros have other signs here: eager has their gradients by another formula (a lerp, norms whose weights are
#: zero) or in an order of its own, puts parts beside each other (of a scatter), or they are of what is NaN.
_OTHER_ZEROS = frozenset((
    "frac.default", "softshrink.default", "hardshrink.default", "lerp.Scalar", "lerp.Tensor",
    "max.default", "min.default", "softmax.int", "layer_norm.default", "group_norm.default",
    "binary_cross_entropy_with_logits.default", "slice_scatter.default", "select_scatter.default", "hardtanh.default",
    "relu6.default", "prod.default", "cumprod.default", "kl_div.default", "triplet_margin_loss.default"))


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
    "arctan2.default": (torch.arctan2, (ONE, OTHER)), "clip.default": (lambda x: x.clip(-0.5, 2.0), (POINTS,)),
    "nan_to_num.default": (lambda x: x.nan_to_num(0.5, 2.0, -1.0), (POINTS,)),
    "any.default": (lambda x: torch.where((x > 9.0).any(), x, 2.0 * x), (ROWS,)),
    "all.default": (lambda x: torch.where((x > 9.0).all(), x, 2.0 * x), (ROWS,)),
    "any.dim": (lambda x: torch.where((x > 1.0).any(1, True), x, 2.0 * x), (ROWS,)),
    "all.dim": (lambda x: torch.where((x > -1.0).all(1, True), x, 2.0 * x), (ROWS,)),
    "logical_xor.default": (lambda x, y: torch.where((x > 0).logical_xor(y > 0), x, 2.0 * y), (ONE, OTHER)),
    "where.Scalar": (lambda x: torch.where(x > 0.0, 2.0, 3.0).double() * x, (POINTS,)),
    "masked_fill.Tensor": (lambda x, y: x.masked_fill(x > 1.0, y[0, 0]), (ROWS, TIES)),
    "lerp.Tensor": (lambda x, y, w: torch.lerp(x, y, w), (ROWS, TIES, BIAS)),
    "fmod.Scalar": (lambda x: x.fmod(1.5), (POINTS,)), "remainder.Scalar": (lambda x: x.remainder(1.5), (POINTS,)),
    "xlogy.Scalar_Other": (lambda x: torch.xlogy(x, 2.0), (POINTS,)),
    "xlogy.Scalar_Self": (lambda x: torch.xlogy(2.0, x) + torch.xlogy(0.0, x), (POINTS,)),
    **{f"{name}.Tensor": (getattr(torch, name), (ONE, OTHER)) for name in ("divide", "multiply", "subtract",
                                                                            "true_divide")},
    "norm.Scalar": (lambda x: aten.norm.Scalar(x, 2), (TIES,)),
    "linalg_norm.default": (lambda x: torch.linalg.norm(x) * torch.linalg.norm(x, dim=1), (TIES,)),
    **{f"{name}_mean.correction": (lambda x, f=getattr(torch, f"{name}_mean"): sum(f(x, 1, correction=0)), (ROWS,))
       for name in ("var", "std")},
    **{f"{name}_mean.dim": (lambda x, f=getattr(aten, f"{name}_mean").dim: sum(f(x, [1])), (ROWS,))
       for name in ("var", "std")},
    "ger.default": (torch.ger, (WEIGHT, BIAS)), "inner.default": (torch.inner, (ROWS, BIAS)),
    "vdot.default": (torch.vdot, (BIAS, ROWS[0].clone())),
    "addmv.default": (lambda x, y, z: torch.addmv(x, y, z, alpha=2.0), (WEIGHT, ROWS, BIAS)),
    "moveaxis.int": (lambda x: x.moveaxis(0, 1).exp(), (ROWS,)),
    "moveaxis.intlist": (lambda x: x.moveaxis((0, 1), (1, 0)).exp(), (ROWS,)),
    "flipud.default": (lambda x: x.flipud().exp(), (ROWS,)), "fliplr.default": (lambda x: x.fliplr().exp(), (ROWS,)),
    "ravel.default": (lambda x: x.ravel().exp(), (ROWS,)),
    "split.sizes": (lambda x: aten.split.sizes(x, [1, 3])[1].exp(), (ROWS,)),
    "unfold.default": (lambda x: x.unfold(1, 3, 2).exp(), (ROWS,)),
    "im2col.default": (lambda x: F.unfold(x, 3, 1, 1, 2).exp(), (IMAGE,)),
    "col2im.default": (lambda x: F.fold(x, (5, 4), (2, 2), 1, 1, 2).exp(), (torch.randn(2, 8, 9).double(),)),
    "diff.default": (lambda x: x.diff().exp(), (ROWS,)),
    "slice_scatter.default": (lambda x, y: x.slice_scatter(y[:, :2], 1, 1, 3).exp(), (ROWS, TIES)),
    "select_scatter.default": (lambda x, y: x.select_scatter(y[:, 0], 1, 2).exp(), (ROWS, TIES)),
    "take.default": (lambda x, i: x.take(i - 3), (ROWS, PLACES)),
    "topk.default": (lambda x: x.topk(3, 1).values.exp() + x.topk(3, dim=1, largest=False).values, (SPECIAL,)),
    "sort.default": (lambda x: x.sort(0, descending=True).values.exp(), (ROWS,)),
    "index_copy.default": (lambda x, y, i: x.index_copy(0, i[0, :2], y[:2]), (ROWS, TIES, PLACES)),
    "diag.default": (lambda x: torch.diag(x, 1).exp() + torch.diag(torch.diag(x[:3, :3])).sum(), (ROWS,)),
    "grid_sampler.default": (
        lambda x, g: F.grid_sample(x, g, align_corners=False) + F.grid_sample(
            x, g, "nearest", "reflection", align_corners=True), (IMAGE, torch.rand(2, 3, 5, 2).double() * 3 - 1.5)),
    "scatter.value": (lambda x, i: x.scatter(1, i[:1, :2].expand(4, 2), 1.0).exp(), (ROWS, PLACES)),
    "alias.default": (lambda x: aten.alias.default(x).exp(), (ROWS,)),
    "max.other": (torch.max, (ONE, OTHER)), "min.other": (torch.min, (ONE, OTHER)),
    "atan2.default": (torch.atan2, (ONE, OTHER)), "logaddexp.default": (torch.logaddexp, (ONE, OTHER)),
    "logaddexp2.default": (torch.logaddexp2, (ONE, OTHER)), "xlogy.Tensor": (torch.xlogy, (ONE, OTHER)),
    "hardtanh.default": (lambda x: F.hardtanh(x, -0.5, 2.0), (NUMBERS,)), "relu6.default": (F.relu6, (NUMBERS,)),
    "zeros_like.default": (lambda x: torch.zeros_like(x) + x.exp(), (ROWS,)),
    "ones_like.default": (lambda x: torch.ones_like(x) * x.exp(), (ROWS,)),
    "full_like.default": (lambda x: torch.full_like(x, 2.0) * x.exp(), (ROWS,)),
    "new_zeros.default": (lambda x: x.new_zeros(6) + x.exp(), (ROWS,)),
    "new_ones.default": (lambda x: x.new_ones(6) * x.exp(), (ROWS,)),
    "new_full.default": (lambda x: x.new_full((6,), 2.0) * x.exp(), (ROWS,)),
    "argmax.default": (lambda x: x * x.argmax(1, keepdim=True), (TIES,)),
    "argmin.default": (lambda x: x * x.argmin(1, keepdim=True), (TIES,)),
    "max.dim": (lambda x: x.max(1).values + 2.0 * x.max(1, keepdim=True).values.squeeze(1), (SPECIAL,)),
    "min.dim": (lambda x: x.min(0).values, (SPECIAL,)),
    "prod.default": (lambda x: (x[1:] * 1.0).prod(), (SOME_ZERO,)),
    "prod.dim_int": (lambda x: x.prod(1), (torch.cat([SOME_ZERO, TIES]),)),
    "cumprod.default": (lambda x: x.cumprod(1), (torch.cat([SOME_ZERO, TIES]),)),
    "norm.ScalarOpt_dim": (lambda x: aten.norm.ScalarOpt_dim(x, 2, [1], True), (torch.cat([TIES, 0 * ROWS[:1]]),)),
    "instance_norm.default": (lambda x, w: F.instance_norm(x, weight=w, bias=w), (IMAGE, WEIGHT)),
    **{f"adaptive_max_pool{n}d.default": (
        lambda x, f=getattr(F, f"adaptive_max_pool{n}d"): f(x, 1) + f(x, 2).sum(), (x,))
       for n, x in ((1, TIES[None]), (2, IMAGE.round()), (3, VOLUME.round()))},
    "einsum.default": (lambda x, y: torch.einsum("bi,ij,kj->bk", x, y, x), (ROWS, MATRIX)),
    "outer.default": (torch.outer, (WEIGHT, BIAS)),
    "baddbmm.default": (lambda x, y: torch.baddbmm(x[None], x[None], y[None], beta=0.5, alpha=2.0), (ROWS, MATRIX)),
    "scaled_dot_product_attention.default": (
        lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask) + F.scaled_dot_product_attention(
            q, k, v, mask.double() - 0.5, scale=0.3),
        (IMAGE[:, :, :4].contiguous(), IMAGE, IMAGE.exp(), MASK)),
    "embedding.default": (lambda w, i: F.embedding(i, w, padding_idx=-2) * F.embedding(i, w)
                          + F.embedding(i, w, scale_grad_by_freq=True), (ROWS, PLACES)),
    "index_select.default": (lambda x, i: x.index_select(1, i.flatten()), (ROWS, PLACES)),
    "index.Tensor": (lambda x, i: x[:, i] + x[i, i - 4].unsqueeze(0), (MATRIX[:4, :4].contiguous(), PLACES)),
    "gather.default": (lambda x, i: x.gather(1, i) + x.gather(1, i[:, 1:2]), (MATRIX[:2].contiguous(), PLACES)),
    "take_along_dim.default": (lambda x, i: x.take_along_dim(i[:1], 1), (ROWS, PLACES)),
    "one_hot.default": (lambda x, i: x * F.one_hot(i.flatten()[:4], 6), (ROWS, PLACES)),
    "scatter.src": (lambda x, y, i: x.scatter(1, i[:1, :2].expand(4, 2), y[:, :2]), (ROWS, TIES, PLACES)),
    "scatter_add.default": (lambda x, y, i: x.scatter_add(1, i[:1, :3].expand(4, 3), y[:, :3]), (ROWS, TIES, PLACES)),
    "index_add.default": (lambda x, y, i: x.index_add(0, i.flatten()[:4], y), (ROWS, TIES, PLACES)),
    "diagonal.default": (lambda x: x.diagonal(1).exp(), (ROWS,)),
    "repeat_interleave.self_int": (lambda x: x.repeat_interleave(3, 1).exp(), (ROWS,)),
    "tile.default": (lambda x: x.tile((2, 3)).exp(), (ROWS,)),
    "upsample_nearest1d.vec": (lambda x: F.interpolate(x, size=9), (ROWS[None],)),
    "upsample_nearest2d.vec": (
        lambda x: F.interpolate(x, size=(9, 4)).sum() + F.interpolate(x, scale_factor=2), (IMAGE,)),
    "upsample_nearest3d.vec": (lambda x: F.interpolate(x, size=(3, 5, 8)), (VOLUME,)),
    "_upsample_nearest_exact1d.vec": (lambda x: F.interpolate(x, size=9, mode="nearest-exact"), (ROWS[None],)),
    "_upsample_nearest_exact3d.vec": (lambda x: F.interpolate(x, size=(3, 5, 8), mode="nearest-exact"), (VOLUME,)),
    "_upsample_nearest_exact2d.vec": (lambda x: F.interpolate(x, size=(9, 4), mode="nearest-exact"), (IMAGE,)),
    "upsample_linear1d.vec": (lambda x: F.interpolate(x, size=9, mode="linear"), (ROWS[None],)),
    "upsample_bilinear2d.vec": (
        lambda x: F.interpolate(x, size=(9, 4), mode="bilinear").sum()
        + F.interpolate(x, scale_factor=(1.5, 2.5), mode="bilinear")
        + F.interpolate(x, (9, 15), mode="bilinear", align_corners=True), (IMAGE,)),
    "upsample_trilinear3d.vec": (lambda x: F.interpolate(x, size=(3, 5, 8), mode="trilinear"), (VOLUME,)),
    "upsample_bicubic2d.vec": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMAGE,)),
    "binary_cross_entropy.default": (
        lambda x, t: F.binary_cross_entropy(x, t.double())
        + F.binary_cross_entropy(x, t.double(), t.double(), reduction="none") + F.binary_cross_entropy(x, x * 0.5),
        (PROBABILITIES, SHARES)),
    "kl_div.default": (lambda x, t: F.kl_div(x, t, reduction="batchmean") + F.kl_div(x, t, log_target=True),
                       (ROWS, torch.cat([0 * ROWS[:1], ROWS[1:].abs()]))),
    "cosine_similarity.default": (
        lambda x, y: F.cosine_similarity(x, y) + F.cosine_similarity(x[:, None], y[None], 2).sum(),
        (torch.cat([ROWS, 0 * ROWS[:1], 1e-9 * ROWS[:1]]), torch.cat([TIES, ROWS[:2]]))),
    "cdist.default": (lambda x, y: torch.cdist(x, y) * torch.cdist(y, x, 1.0) + torch.cdist(x, x).sum(),
                      (ROWS, TIES)),
    "pairwise_distance.default": (
        lambda x, y: F.pairwise_distance(x, y) + F.pairwise_distance(x, y, 1.0), (ROWS, TIES)),
    "triplet_margin_loss.default": (
        lambda x, y: F.triplet_margin_loss(x, y, x.flip(0), reduction="none") + F.triplet_margin_loss(
            x, y, y.roll(1, 0), swap=True), (ROWS, TIES)),
    "margin_ranking_loss.default": (lambda x, y, t: F.margin_ranking_loss(x, y, t.double(), 0.5),
                                    (TIES, TIES.flip(0) * 0.5, SIGNS)),
    "hinge_embedding_loss.default": (lambda x, t: F.hinge_embedding_loss(x, t.double(), 1.0), (TIES, SIGNS)),
    "cosine_embedding_loss.default": (lambda x, y, t: F.cosine_embedding_loss(x, y, t[:, 0].double(), 0.2),
                                      (ROWS, TIES, SIGNS)),
    "soft_margin_loss.default": (
        lambda x, t: F.soft_margin_loss(x, t.double()) + F.soft_margin_loss(x * 400, t.double(), reduction="none"),
        (ROWS, SIGNS)),
    "poisson_nll_loss.default": (
        lambda x, t: F.poisson_nll_loss(x, t, full=True) + F.poisson_nll_loss(x.exp(), t, False, reduction="none"),
        (ROWS, TIES.abs() * 2)),
    "nll_loss2d.default": (lambda x: aten.nll_loss2d.default(x, torch.ones(2, 6, 6, dtype=torch.int64)), (IMAGE,)),
}


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


@cache
def differentiated(name: str) -> tuple[Graph, list[int], Gradients]:
    """A case's graph, which of its inputs have gradients, and these. No graph depends on the inputs' values."""
    function, inputs = FURTHER.get(name) or CASES[name]
    graph = capture(Of(function), list(inputs), recording=True)
    wanted = [n for n, x in enumerate(inputs) if x.dtype is torch.float64]
    return graph, wanted, gradients(as_called(graph), (0,), wanted)


def test_every_known_operator_has_a_case():
    assert set(CASES) == KNOWN


@pytest.mark.parametrize("name", CASES)
def test_known_operators_have_the_derivatives_of_their_graphs(name):
    function, inputs = CASES[name]
    graph, wanted, found = differentiated(name)
    assert name in graph.calls
    check_known(graph.calls)
    given = [x.clone().requires_grad_(n in wanted) for n, x in enumerate(inputs)]
    result = function(*given)
    g = torch.linspace(0.5, 2.0, result.numel(), dtype=result.dtype).reshape(result.shape)
    expected = torch.autograd.grad(result, [given[n] for n in wanted], g)
    values = {i["name"]: v for i, v in zip(found.graph.inputs, (*inputs, g), strict=True) if i is not None}
    own = evaluate(found.graph.outputs, values)
    assert len(own) == len(expected)
    tolerance = 1e-5 if result.dtype is torch.float32 or name in _OF_FLOAT32_NUMBERS else 1e-12
    for value, right in zip(own, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def _with_zeros(x: torch.Tensor, seed: int) -> torch.Tensor:
    """x with a third of its elements +0 and a third -0."""
    if x.dtype is not torch.float64:
        return x
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(seed))
    return torch.where(drawn < 0.33, 0.0, torch.where(drawn < 0.66, -0.0, x))


#: Operands of one axis, parts that are beside each other, taken by themselves, overlap or are of several axes, and
#: losses whose targets require gradients.
FURTHER: dict[str, Case] = {
    "vectors": (torch.matmul, (BIAS, ROWS[0].clone())), "a matrix and a vector": (torch.matmul, (ROWS, BIAS)),
    "a vector and a matrix": (torch.matmul, (WEIGHT, ROWS)), "images and a vector": (torch.matmul, (IMAGE, BIAS)),
    "a vector and images": (torch.matmul, (BIAS, IMAGE)),
    "parts": (lambda x: torch.cat([p * (n - 1.0) for n, p in enumerate(x.chunk(3, 1))]), (ROWS,)),
    "a part that nobody reads": (lambda x: x.split([1, 2, 3], 1)[0].exp() * x.split([1, 2, 3], 1)[2][:, :1], (ROWS,)),
    "rows": (lambda x: torch.stack(x.unbind(0)[:3]) * -1.0, (ROWS,)),
    "parts along two axes": (lambda x: x.chunk(2, 1)[0] - x.chunk(2)[1].repeat(2, 2)[:, :3], (ROWS,)),
    "parts of different sizes": (lambda x: x.split(2, 1)[2] - x.chunk(2, 1)[1].split([1, 2], 1)[1], (ROWS,)),
    "overlapping parts": (lambda x: x.split(2, 1)[1] - x.split([3, 2, 1], 1)[1], (ROWS,)),
    "taken by themselves": (lambda x: x[:, :3] * -1.0 - x[:, 3:], (ROWS,)),
    "gated": (lambda x: F.glu(x, 1) - F.glu(x.flip(1), 1), (ROWS,)),
    "classes that are ignored": (
        lambda x: F.cross_entropy(x, torch.tensor([1, 0, 3, 1]), ignore_index=1, reduction="none", label_smoothing=0.1)
        - F.nll_loss(x, torch.tensor([0, 0, 3, 1]), ignore_index=0, reduction="none"), (ROWS,)),
    "one row through a norm": (lambda x, w: F.layer_norm(x[:1], (6,), w, w), (ROWS, BIAS)),
    "one row through an RMS norm": (lambda x, w: F.rms_norm(x, (6,), w, 1e-5) * 2.0, (BIAS + 1.0, BIAS)),
}


@pytest.mark.parametrize("name", FURTHER)
def test_further_forms_have_eagers_gradients(name):
    function, inputs = FURTHER[name]
    given = [x.clone().requires_grad_() for x in inputs]
    result = function(*given)
    g = torch.linspace(0.5, 2.0, result.numel(), dtype=result.dtype).reshape(result.shape)
    expected = torch.autograd.grad(result, given, g)
    _, _, found = differentiated(name)
    names = [i["name"] for i in found.graph.inputs if i is not None]
    own = evaluate(found.graph.outputs, dict(zip(names, (*inputs, g), strict=True)))
    for value, right in zip(own, expected, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", [*sorted({*CASES} - _OTHER_ZEROS), *FURTHER])
def test_zeros_of_gradients_have_eagers_signs(name):
    """Of given values, and of zeros of both signs; for gradients of results with both signs, and zeros among them."""
    function, values = FURTHER.get(name) or CASES[name]
    _, wanted, found = differentiated(name)
    may_be_zero = not name.startswith("binary_cross_entropy.")
    for inputs in (list(values), [_with_zeros(x, n) for n, x in enumerate(values)])[:1 + may_be_zero]:
        given = [x.clone().requires_grad_(n in wanted) for n, x in enumerate(inputs)]
        result = function(*given)
        g = torch.linspace(-1.0, 2.0, result.numel(), dtype=result.dtype).reshape(result.shape)
        g = _with_zeros(g.double(), 9).to(g.dtype)
        expected = torch.autograd.grad(result, [given[n] for n in wanted], g)
        names = [i["name"] for i in found.graph.inputs if i is not None]
        own = evaluate(found.graph.outputs, dict(zip(names, (*inputs, g), strict=True)))
        for value, right in zip(own, expected, strict=True):
            assert not ((value == 0) & (right == 0) & (value.signbit() != right.signbit())).any()


@pytest.mark.parametrize("function", [
    lambda x: F.adaptive_max_pool3d(x, 1).exp(), lambda x: F.adaptive_max_pool3d(x, 1).mean(1, keepdim=True),
    lambda x: F.adaptive_max_pool3d(x, 1).flatten(1).exp(),
    lambda x: F.adaptive_max_pool3d(x, 1).permute(4, 3, 2, 1, 0), lambda x: F.adaptive_max_pool2d(x[0], 1).exp(),
    lambda x: F.adaptive_max_pool1d(x[0, 0], 1).exp(),
    lambda x: F.adaptive_max_pool1d(x[0, 0], 1).flatten(), lambda x: x.max(2).values.reshape(2, 4, 4, 1).exp(),
    lambda x: x.min(2, keepdim=True).values.reshape(2, 16, 1), lambda x: x.max(1).values.exp(),
    lambda x: x.reshape(32, 4).max(1, keepdim=True).values.reshape(32), lambda x: F.hardtanh(x, -0.5, 0.5).exp()])
def test_what_a_forward_computes_of_a_differentiated_graph(function) -> None:
    """Each node of the one has the shape, the type and the value of its own in the other."""
    captured = capture(Of(function), [VOLUME], recording=True)
    graph = as_called(captured)
    for form in (graph, rewrite(graph, GENERIC_CPU).graph):
        own = as_computed(form)
        assert all((n.shape, n.dtype) == (own[n].shape, own[n].dtype) for n in walk(form.outputs))
        names = [i["name"] for i in captured.inputs if i is not None]
        nodes = [n for n in own if n.op != "constant"]
        values = dict(zip(names, [VOLUME], strict=True))
        for value, right in zip(evaluate([own[n] for n in nodes], values), evaluate(nodes, values), strict=True):
            assert torch.equal(value, right)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_attention_of_any_type(dtype, causal):
    """Causal and with fewer heads of keys; what is of 16 bits is computed in float32."""
    torch.manual_seed(0)
    query, *rest = (torch.randn(2, heads, 5, 8).to(dtype) for heads in (4, 2, 2))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    graph = capture(Of(attend), [query, *rest], recording=True)
    found = gradients(graph, (0,), range(3))
    g = torch.randn(query.shape).to(dtype)
    names = [i["name"] for i in found.graph.inputs if i is not None]
    own = evaluate(found.graph.outputs, dict(zip(names, (query, *rest, g), strict=True)))
    exact = [x.double().requires_grad_() for x in (query, *rest)]
    expected = torch.autograd.grad(attend(*exact), exact, g.double())
    for value, right in zip(own, expected, strict=True):
        assert value.dtype is dtype
        scale = float(right.abs().max())
        torch.testing.assert_close(value.double(), right, rtol=0.0, atol=4 * torch.finfo(dtype).eps * scale)


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 3.0
    y.mul_(2.0).relu_()
    y = (y + 1.0).add_(1.0)
    return y * x


def test_operators_of_constants_are_none() -> None:
    """What PyTorch makes of a constant's list detaches it, of which no gradient knows."""
    graph = capture(Of(lambda x: x * torch.tensor([1.0, 2.0, 3.0]).exp().double().repeat(2)), [ROWS], recording=True)
    assert graph.calls == {"mul.Tensor"}
    graph = capture(Of(lambda x: x * torch.arange(6) + torch.full((6,), 2.0)), [ROWS], recording=True)
    assert graph.calls == {"mul.Tensor", "add.Tensor"}


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


def _written_detached(x: torch.Tensor) -> torch.Tensor:
    y = x * 2.0
    y.detach().mul_(2.0)
    return y * x


def _quantised(x: torch.Tensor) -> torch.Tensor:
    """A straight-through estimator, a teacher, and a view of what is detached."""
    steps = x + (x.round() - x).detach()
    teacher = (x.exp() * 2.0).data
    return steps * steps + teacher * x + x.detach()[:, :1].t().reshape(-1, 1) * x


@pytest.mark.parametrize("function", [_quantised, _no_grad, lambda x: x.detach() * x, lambda x: x.data * x,
                                      lambda x: (x - x.amax(1, True).detach()).exp()])
def test_no_gradient_goes_through_what_is_detached(function):
    graph = capture(Of(function), [ROWS], recording=True)
    backward, = make_backward(capture(Of(lambda x: torch.softmax(function(x), 1)), [ROWS], recording=True), GENERIC_CPU)
    x = ROWS.clone().requires_grad_()
    g = torch.randn(4, 6, dtype=torch.float64)
    expected, = torch.autograd.grad(torch.softmax(function(x), 1), [x], g)
    names = [i["name"] for i in backward.gradients.graph.inputs if i is not None]
    own, = evaluate(backward.gradients.graph.outputs, dict(zip(names, (ROWS, g), strict=True)))
    torch.testing.assert_close(own, expected)
    assert not any(node.op == "detached" for node in graph.nodes())  # the forward has no such nodes


@pytest.mark.parametrize("function", [lambda x: F.hardtanh(x) + x.clamp(-1, 1),
                                      lambda x: F.relu6(x) * x.clamp_min(0.5),
                                      _written_detached, lambda x: x.sin().detach_() * x, _hooked,
                                      Straight.apply, lambda x: F.embedding(torch.arange(4), x, sparse=True),
                                      lambda x: Straight.apply(x), lambda x: x.max(1, True).values * x.amax(0),
                                      lambda x: x.min(1, True).values * x.min()])
def test_what_changes_gradients_is_not_known(function):
    graph = capture(Of(lambda x: torch.softmax(function(x), 1)), [torch.randn(4, 6)], recording=True)
    with pytest.raises(NoAdjoint):
        make_backward(graph, GENERIC_CPU)
