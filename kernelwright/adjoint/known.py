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
          "hypot", "atan2", "logaddexp", "logaddexp2", "logical_and", "logical_or", "hardtanh", "relu6", "arccos",
          "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "clip", "frac", "any", "all", "logical_xor",
          "nan_to_num")
_OTHERS = ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "where.self", "where.ScalarOther",
           "where.ScalarSelf", "masked_fill.Scalar", "lerp.Scalar", "addcmul.default", "addcdiv.default", "to.dtype",
           "_to_copy.default", "to.dtype_layout", "type_as.default", "contiguous.default", "clone.default",
           "positive.default", "dropout.default", "feature_dropout.default", "_assert_tensor_metadata.default",
           "_assert_async.msg", "_assert_async.default", "alias.default", "max.other", "min.other", "xlogy.Tensor",
           "zeros_like.default", "ones_like.default", "full_like.default", "new_zeros.default", "new_ones.default",
           "new_full.default", "where.Scalar", "masked_fill.Tensor", "lerp.Tensor", "fmod.Scalar", "remainder.Scalar",
           "xlogy.Scalar_Other", "xlogy.Scalar_Self", "divide.Tensor", "multiply.Tensor", "subtract.Tensor",
           "true_divide.Tensor", "any.dim", "all.dim", "argmax.default", "argmin.default")
_REDUCTIONS = ("sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "amax.default", "amin.default",
               "max.default", "min.default", "max.dim", "min.dim", "prod.default", "prod.dim_int", "cumprod.default",
               "norm.ScalarOpt_dim", "norm.Scalar", "linalg_norm.default", "var_mean.correction", "std_mean.correction",
               "var_mean.dim", "std_mean.dim", "logsumexp.default", "var.correction", "var.dim", "var.default",
               "std.correction", "std.dim", "std.default", "softmax.int", "log_softmax.int", "cumsum.default",
               "linalg_vector_norm.default", "layer_norm.default", "rms_norm.default", "group_norm.default",
               "batch_norm.default", "instance_norm.default")
_PRODUCTS = ("linear.default", "matmul.default", "mm.default", "bmm.default", "addmm.default", "mv.default",
             "dot.default", "conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding",
             "conv3d.padding", "conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input",
             "convolution.default", "max_pool1d.default", "max_pool2d.default", "max_pool3d.default",
             "avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default", "adaptive_avg_pool1d.default",
             "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default", "adaptive_max_pool1d.default",
             "adaptive_max_pool2d.default", "adaptive_max_pool3d.default", "einsum.default", "outer.default",
             "ger.default", "inner.default", "vdot.default", "addmv.default", "baddbmm.default",
             "scaled_dot_product_attention.default")
_VIEWS = ("view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints", "unflatten.int",
          "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "permute.default", "transpose.int",
          "t.default", "numpy_T.default", "mT.default", "expand.default", "expand_as.default", "slice.Tensor",
          "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int", "movedim.int",
          "movedim.intlist", "swapaxes.default", "swapdims.default", "view_as.default", "reshape_as.default",
          "narrow.default", "flip.default", "pad.default", "constant_pad_nd.default", "roll.default", "tril.default",
          "triu.default", "cat.default", "concat.default", "stack.default", "repeat.default", "pixel_shuffle.default",
          "pixel_unshuffle.default", "channel_shuffle.default", "broadcast_tensors.default", "moveaxis.int",
          "moveaxis.intlist", "flipud.default", "fliplr.default", "ravel.default", "split.sizes", "unfold.default",
          "im2col.default", "col2im.default", "diff.default", "slice_scatter.default", "select_scatter.default")
_LOOKUPS = ("embedding.default", "index_select.default", "index.Tensor", "gather.default", "take_along_dim.default",
            "one_hot.default", "take.default", "topk.default", "sort.default", "index_copy.default", "diag.default",
            "grid_sampler.default", "scatter.value", "scatter.src", "scatter_add.default", "index_add.default",
            "diagonal.default", "repeat_interleave.self_int", "tile.default", "upsample_nearest1d.vec",
            "upsample_nearest2d.vec", "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec",
            "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec", "upsample_linear1d.vec",
            "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec")
_LOSSES = ("mse_loss.default", "l1_loss.default", "smooth_l1_loss.default", "huber_loss.default",
           "binary_cross_entropy_with_logits.default", "cross_entropy_loss.default", "nll_loss.default",
           "nll_loss_nd.default", "nll_loss2d.default", "binary_cross_entropy.default", "kl_div.default",
           "cosine_similarity.default", "cdist.default", "pairwise_distance.default",
           "triplet_margin_loss.default",
           "margin_ranking_loss.default", "hinge_embedding_loss.default", "cosine_embedding_loss.default",
           "soft_margin_loss.default", "poisson_nll_loss.default")

#: Names of operators (those in place have the derivatives of the others), and of picking one of several results.
KNOWN = frozenset((
    *(f"{name}.default" for name in _UNARY), *_OTHERS, *_REDUCTIONS, *_PRODUCTS, *_VIEWS, *_LOOKUPS, *_LOSSES,
    *(f"{name}.{kind}" for name in ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge")
      for kind in ("Tensor", "Scalar")), "<built-in function getitem>"))


def check_known(calls: Collection[str]) -> None:
    """Raise NoAdjoint where a model calls an operator whose graph may have other derivatives than PyTorch's."""
    unknown = sorted(name for name in calls if name not in KNOWN and name.replace("_.", ".") not in KNOWN)
    if unknown or not calls:
        raise NoAdjoint(f"{', '.join(unknown[:3]) or 'a graph of nobody knows what calls'} has no backward of kernels")
