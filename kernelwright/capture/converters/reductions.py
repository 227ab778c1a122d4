"""Converters of reductions, norms and pools (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

import torch

from kernelwright.capture.converters.table import (
    Arguments,
    NotConvertible,
    axes_of,
    axis_of,
    converts,
    float_only,
    spread,
)
from kernelwright.capture.values import cast
from kernelwright.ir.node import Node, constant, make


def _into(x: Node, dtype: torch.dtype | None) -> Node:
    """x in the type that a reduction is asked for, to which PyTorch converts it first."""
    return x if dtype is None else float_only(cast(x, str(dtype).removeprefix("torch.")))


@converts("sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "amax.default", "amin.default",
          "logsumexp.default")
def _reduce(a: Arguments) -> Node:
    x = _into(float_only(a["self"]), a.get("dtype"))
    axes = axes_of(a.get("dim"), x.rank)
    return make(a["operator"].split(".")[0], x, axes=axes, keepdim=bool(a.get("keepdim", False)))


@converts("prod.default", "prod.dim_int")
def _product(a: Arguments) -> Node:
    x, keepdim = _into(float_only(a["self"]), a["dtype"]), bool(a.get("keepdim", False))
    return make("prod", x, axes=axes_of(a.get("dim"), x.rank), keepdim=keepdim)


@converts("max.default", "min.default")
def _extremum(a: Arguments) -> Node:
    x = float_only(a["self"])
    return make("a" + a["operator"].split(".")[0], x, axes=tuple(range(x.rank)), keepdim=False)


@converts("nansum.default")
def _sum_of_numbers(a: Arguments) -> Node:
    x = _into(float_only(a["self"]), a["dtype"])
    numbers = make("where", make("eq", x, x), x, constant(0.0))
    return make("sum", numbers, axes=axes_of(a["dim"], x.rank), keepdim=a["keepdim"])


@converts("aminmax.default")
def _extrema(a: Arguments) -> tuple[Node, Node]:
    x = float_only(a["self"])
    if not x.size:
        raise NotConvertible("an extremum of nothing")
    axes = axes_of(a["dim"], x.rank)
    least, greatest = (make(name, x, axes=axes, keepdim=a["keepdim"]) for name in ("amin", "amax"))
    return least, greatest


@converts("var_mean.correction", "std_mean.correction", "var_mean.dim", "std_mean.dim", "var_mean.default",
          "std_mean.default")
def _variance_and_mean(a: Arguments) -> tuple[Node, Node]:
    x = float_only(a["self"])
    spread = _variance({**a, "operator": a["operator"].replace("_mean", "")})
    return spread, make("mean", x, axes=axes_of(a.get("dim"), x.rank), keepdim=bool(a.get("keepdim", False)))


@converts("var.correction", "std.correction", "var.dim", "std.dim", "var.default", "std.default")
def _variance(a: Arguments) -> Node:
    x = float_only(a["self"])
    correction = a.get("correction", 1 if a.get("unbiased", True) else 0)
    return make(a["operator"].split(".")[0], x, axes=axes_of(a.get("dim"), x.rank),
                keepdim=bool(a.get("keepdim", False)), correction=1 if correction is None else correction)


@converts("softmax.int", "log_softmax.int")
def _softmax(a: Arguments) -> Node:
    x = _into(float_only(a["self"]), a.get("dtype"))
    return make(a["operator"].split(".")[0], x, axis=axis_of(a["dim"], x.rank))


# Norms --------------------------------------------------------------------------------------------


def _affine(weight: Node | None, bias: Node | None) -> list[Node]:
    if (weight is None) != (bias is None):
        raise NotConvertible("scale without shift")
    return [weight, bias] if weight is not None and bias is not None else []


@converts("layer_norm.default")
def _layer_norm(a: Arguments) -> Node:
    if a["weight"] is None and a["bias"] is not None:
        raise NotConvertible("shift without scale")
    rest = [n for n in (a["weight"], a["bias"]) if n is not None]
    return make("layer_norm", float_only(a["input"]), *rest, axes=len(a["normalized_shape"]), eps=a["eps"],
                affine=len(rest) > 0)


@converts("rms_norm.default")
def _rms_norm(a: Arguments) -> Node:
    """Without eps it is the machine's of the type that PyTorch computes in."""
    x, weight, eps = float_only(a["input"]), a["weight"], a["eps"]
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == "float64" else torch.float32).eps
    return make("rms_norm", x, *([] if weight is None else [weight]), axes=len(a["normalized_shape"]), eps=eps,
                affine=weight is not None)


@converts("group_norm.default")
def _group_norm(a: Arguments) -> Node:
    rest = _affine(a["weight"], a["bias"])
    return make("group_norm", float_only(a["input"]), *rest, groups=a["num_groups"], eps=a["eps"], affine=bool(rest))


@converts("instance_norm.default")
def _instance_norm(a: Arguments) -> Node:
    if not a["use_input_stats"] or a["running_mean"] is not None:
        raise NotConvertible("instance norm with running statistics")
    rest = _affine(a["weight"], a["bias"])
    return make("instance_norm", float_only(a["input"]), *rest, eps=a["eps"], affine=bool(rest))


# Pools --------------------------------------------------------------------------------------------


def _window(a: Arguments, name: str) -> tuple[int, ...]:
    return spread(a[name], int(a["operator"].split("pool")[1][0]))


@converts("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def _max_pool(a: Arguments) -> Node:
    kernel = _window(a, "kernel_size")
    return make("max_pool", float_only(a["self"]), kernel=kernel,
                stride=_window(a, "stride") if a["stride"] else kernel, padding=_window(a, "padding"),
                dilation=_window(a, "dilation"), ceil=a["ceil_mode"])


@converts("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(a: Arguments) -> Node:
    kernel = _window(a, "kernel_size")
    return make("average_pool", float_only(a["self"]), kernel=kernel,
                stride=_window(a, "stride") if a["stride"] else kernel, padding=_window(a, "padding"),
                ceil=a["ceil_mode"], include_padding=a["count_include_pad"], divisor=a.get("divisor_override"))


@converts("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
def _adaptive_average_pool(a: Arguments) -> Node:
    return make("adaptive_average_pool", float_only(a["self"]), size=_window(a, "output_size"))


@converts("adaptive_max_pool1d.default", "adaptive_max_pool2d.default", "adaptive_max_pool3d.default")
def _adaptive_max_pool(a: Arguments) -> tuple[Node, None]:
    x = float_only(a["self"])
    rank = int(a["operator"].split("pool")[1][0])
    sizes = spread(a["output_size"], rank)
    if a["results_used"] - {0} or any(n % s for n, s in zip(x.shape[-rank:], sizes, strict=True)):
        raise NotConvertible("the indices are used, or windows of several sizes")
    kernel = tuple(n // s for n, s in zip(x.shape[-rank:], sizes, strict=True))
    if all(s == 1 for s in sizes):
        return make("amax", x, axes=tuple(range(x.rank - rank, x.rank)), keepdim=True), None
    none, one = (0,) * rank, (1,) * rank
    return make("max_pool", x, kernel=kernel, stride=kernel, padding=none, dilation=one, ceil=False), None
