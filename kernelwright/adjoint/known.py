"""The operators of PyTorch whose graphs have PyTorch's derivatives.

A graph holds what a model computes. For the same values PyTorch may define other derivatives: hardtanh has none at its
bounds, where a clamp has one, detach has none at all. So a captured graph is differentiated where it is made of these
operators alone: what they become here has their derivatives, at kinks, too.
"""

from __future__ import annotations

from collections.abc import Collection

from kernelwright.adjoint.table import NoAdjoint

_UNARY = ("neg", "negative", "abs", "absolute", "reciprocal", "square", "sqrt", "rsqrt", "sign", "sgn", "floor", "ceil",
          "trunc", "fix", "round", "exp", "exp2", "expm1", "log", "log1p", "log10", "log2", "sin", "cos", "tan", "asin",
          "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf", "tanh", "relu", "sigmoid", "silu", "mish",
          "gelu", "hardswish", "hardsigmoid", "selu", "leaky_relu", "elu", "celu", "softplus", "threshold",
          "softshrink", "hardshrink", "log_sigmoid", "clamp", "clamp_min", "clamp_max", "isfinite", "isinf", "isnan",
          "logical_not", "deg2rad", "rad2deg", "glu", "prelu", "_prelu_kernel", "maximum", "minimum", "fmax", "fmin",
          "hypot", "logical_and", "logical_or")
_OTHERS = ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "where.self", "where.ScalarOther",
           "where.ScalarSelf", "masked_fill.Scalar", "lerp.Scalar", "addcmul.default", "addcdiv.default",
           "to.dtype", "_to_copy.default", "to.dtype_layout", "type_as.default", "contiguous.default",
           "clone.default", "positive.default", "dropout.default",
           "feature_dropout.default", "full.default", "ones.default", "zeros.default", "scalar_tensor.default",
           "arange.default", "arange.start", "arange.start_step", "_assert_tensor_metadata.default",
           "_assert_async.msg", "_assert_async.default")
_REDUCTIONS = ("sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "amax.default", "amin.default",
               "max.default", "min.default", "logsumexp.default", "var.correction", "var.dim", "var.default",
               "std.correction", "std.dim", "std.default", "softmax.int", "log_softmax.int", "cumsum.default",
               "linalg_vector_norm.default", "layer_norm.default", "rms_norm.default", "group_norm.default",
               "batch_norm.default")
_PRODUCTS = ("linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default", "mv.default",
             "dot.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
             "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
             "convolution.default", "max_pool1d.default", "max_pool2d.default", "max_pool3d.default",
             "avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default", "adaptive_avg_pool1d.default",
             "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
_VIEWS = ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
          "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default", "transpose.int",
          "t.default", "numpy_T.default", "mT.default", "expand.default", "expand_as.default", "slice.Tensor",
          "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "movedim.int",
          "movedim.intlist", "swapaxes.default", "swapdims.default", "view_as.default", "reshape_as.default",
          "narrow.default", "flip.default", "pad.default", "constant_pad_nd.default", "roll.default", "tril.default",
          "triu.default", "cat.default", "concat.default", "stack.default", "repeat.default", "pixel_shuffle.default",
          "pixel_unshuffle.default", "channel_shuffle.default", "broadcast_tensors.default")
_LOSSES = ("mse_loss.default", "l1_loss.default", "smooth_l1_loss.default", "huber_loss.default",
           "binary_cross_entropy_with_logits.default", "cross_entropy_loss.default", "nll_loss.default",
           "nll_loss_nd.default", "nll_loss2d.default")

#: Names of operators (those in place have the derivatives of the others), and of picking one of several results.
KNOWN = frozenset((
    *(f"{name}.default" for name in _UNARY), *_OTHERS, *_REDUCTIONS, *_PRODUCTS, *_VIEWS, *_LOSSES,
    *(f"{name}.{kind}" for name in ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge")
      for kind in ("Tensor", "Scalar")), "<built-in function getitem>"))


def check_known(calls: Collection[str]) -> None:
    """Raise NoAdjoint where a model calls an operator whose graph may have other derivatives than PyTorch's."""
    unknown = sorted(name for name in calls if name not in KNOWN and name.replace("_.", ".") not in KNOWN)
    if unknown or not calls:
        raise NoAdjoint(f"{', '.join(unknown[:3]) or 'a graph of nobody knows what calls'} has no backward of kernels")
