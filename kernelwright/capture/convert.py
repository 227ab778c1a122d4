"""From an exported program's operators to ours: one converter per torch operator.

A converter gets the operator's arguments by their schema names (defaults filled in; tensors are
nodes) and returns the node, or a tuple of nodes for several results. What has no converter becomes
an opaque node, which stays a torch call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from kernelwright.ir.node import Node, constant, make

Arguments = dict[str, Any]
CONVERTERS: dict[str, Callable[[Arguments], Any]] = {}


def converts(*names: str) -> Callable[[Callable[[Arguments], Any]], Callable[[Arguments], Any]]:
    """Register a converter for torch operators, named as in "conv2d.default"."""

    def register(function: Callable[[Arguments], Any]) -> Callable[[Arguments], Any]:
        for name in names:
            CONVERTERS[name] = function
        return function

    return register


class NotConvertible(Exception):
    """These arguments have no counterpart here; the operator becomes opaque."""


def as_node(value: Any) -> Node:
    """A node for a tensor argument or a Python scalar."""
    if isinstance(value, Node):
        return value
    if isinstance(value, (int, float, bool)):
        return constant(value)
    raise NotConvertible(f"operand {value!r}")


def _axes(value: int | list[int] | None, rank: int) -> tuple[int, ...]:
    if value is None or value == []:
        return tuple(range(rank))
    axes = [value] if isinstance(value, int) else list(value)
    return tuple(sorted(a % rank if rank else 0 for a in axes))


def _axis(value: int, rank: int) -> int:
    return value % rank if rank else 0


def spread(value: int | list[int], rank: int) -> tuple[int, ...]:
    """One entry per spatial axis, from an int or a list of one or ``rank`` entries."""
    entries = [value] if isinstance(value, int) else list(value)
    return tuple(entries * rank if len(entries) == 1 else entries)


# Pointwise ---------------------------------------------------------------------------------------

_UNARY = ("neg", "abs", "reciprocal", "square", "sqrt", "rsqrt", "sign", "floor", "ceil", "trunc", "exp", "expm1",
          "log", "log1p", "log2", "sin", "cos", "erf", "tanh", "relu", "sigmoid", "silu", "mish", "hardswish",
          "hardsigmoid", "selu", "logical_not")
_BINARY = {"mul.Tensor": "mul", "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div",
           "pow.Tensor_Scalar": "pow", "pow.Tensor_Tensor": "pow", "maximum.default": "maximum",
           "minimum.default": "minimum", "max.other": "maximum", "min.other": "minimum",
           "logical_and.default": "logical_and", "logical_or.default": "logical_or",
           **{f"{n}.{kind}": n for n in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}}


def _float_only(node: Node) -> Node:
    """Kernels compute in floating point: functions of integers stay torch calls."""
    if node.dtype not in ("float32", "float64", "float16", "bfloat16"):
        raise NotConvertible(f"operand of type {node.dtype}")
    return node


for _name in _UNARY:
    CONVERTERS[f"{_name}.default"] = lambda a, name=_name: make(name, _float_only(next(iter(a.values()))))
CONVERTERS["round.default"] = lambda a: make("round", _float_only(a["self"]))
CONVERTERS["log_sigmoid.default"] = lambda a: make("logsigmoid", a["self"])


def _pair(a: Arguments) -> tuple[Node, Node]:
    left, right = list(a.values())[:2]
    nodes = as_node(left), as_node(right)
    for node in nodes:
        if node.op != "constant" and node.dtype != "bool":
            _float_only(node)
    return nodes


for _torch_name, _name in _BINARY.items():
    CONVERTERS[_torch_name] = lambda a, name=_name: make(name, *_pair(a))


@converts("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def _add(a: Arguments) -> Node:
    left, right = _pair(a)
    name = a["operator"].split(".")[0]
    if name == "rsub":  # other - alpha * self
        left, right, name = right, left, "sub"
    if a["alpha"] != 1:
        right = make("mul", right, constant(a["alpha"]))
    return make(name, left, right)


@converts("square.default")
def _square(a: Arguments) -> Node:
    return make("square", _float_only(a["self"]))


@converts("gelu.default")
def _gelu(a: Arguments) -> Node:
    return make("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf", _float_only(a["self"]))


@converts("leaky_relu.default")
def _leaky_relu(a: Arguments) -> Node:
    return make("leaky_relu", _float_only(a["self"]), constant(a["negative_slope"]))


@converts("elu.default")
def _elu(a: Arguments) -> Node:
    if a["scale"] != 1 or a["input_scale"] != 1:
        raise NotConvertible("scaled elu")
    return make("elu", _float_only(a["self"]), constant(a["alpha"]))


@converts("celu.default")
def _celu(a: Arguments) -> Node:
    return make("celu", _float_only(a["self"]), constant(a["alpha"]))


@converts("softplus.default")
def _softplus(a: Arguments) -> Node:
    return make("softplus", _float_only(a["self"]), constant(a["beta"]), constant(a["threshold"]))


@converts("threshold.default")
def _threshold(a: Arguments) -> Node:
    return make("threshold", _float_only(a["self"]), constant(a["threshold"]), constant(a["value"]))


@converts("softshrink.default", "hardshrink.default")
def _shrink(a: Arguments) -> Node:
    return make(a["operator"].split(".")[0], _float_only(a["self"]), constant(a["lambd"]))


@converts("hardtanh.default")
def _hardtanh(a: Arguments) -> Node:
    return make("clamp_max", make("clamp_min", _float_only(a["self"]), constant(a["min_val"])), constant(a["max_val"]))


@converts("relu6.default")
def _relu6(a: Arguments) -> Node:
    return make("clamp_max", make("clamp_min", _float_only(a["self"]), constant(0.0)), constant(6.0))


@converts("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default")
def _clamp(a: Arguments) -> Node:
    x = _float_only(a["self"])
    for name, bound in (("clamp_min", a.get("min")), ("clamp_max", a.get("max"))):
        if isinstance(bound, Node):  # a NaN among the bounds is the result
            x = make({"clamp_min": "maximum", "clamp_max": "minimum"}[name], x, bound)
        elif bound is not None:
            x = make(name, x, as_node(bound))
    return x


@converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(a: Arguments) -> Node:
    condition, left, right = a["condition"], as_node(a["self"]), as_node(a["other"])
    if condition.dtype != "bool" or not any(n.dtype.startswith(("float", "bfloat")) for n in (left, right)):
        raise NotConvertible("where of these types")
    return make("where", condition, left, right)


@converts("masked_fill.Scalar")
def _masked_fill(a: Arguments) -> Node:
    return make("where", a["mask"], constant(float(a["value"])), _float_only(a["self"]))


# Reductions --------------------------------------------------------------------------------------


@converts("sum.dim_IntList", "sum.default", "mean.dim", "mean.default", "amax.default", "amin.default",
          "logsumexp.default")
def _reduce(a: Arguments) -> Node:
    x = _float_only(a["self"])
    if a.get("dtype") is not None:
        raise NotConvertible("reduction into another type")
    return make(a["operator"].split(".")[0], x, axes=_axes(a.get("dim"), x.rank), keepdim=bool(a.get("keepdim", False)))


@converts("max.default", "min.default")
def _extremum(a: Arguments) -> Node:
    x = _float_only(a["self"])
    return make("a" + a["operator"].split(".")[0], x, axes=tuple(range(x.rank)), keepdim=False)


@converts("var.correction", "std.correction", "var.dim", "std.dim", "var.default", "std.default")
def _variance(a: Arguments) -> Node:
    x = _float_only(a["self"])
    correction = a.get("correction", 1 if a.get("unbiased", True) else 0)
    node = make("var", x, axes=_axes(a.get("dim"), x.rank), keepdim=bool(a.get("keepdim", False)),
                correction=1 if correction is None else correction)
    return make("sqrt", node) if a["operator"].startswith("std") else node


@converts("softmax.int", "log_softmax.int")
def _softmax(a: Arguments) -> Node:
    if a.get("dtype") is not None:
        raise NotConvertible("softmax into another type")
    return make(a["operator"].split(".")[0], _float_only(a["self"]), axis=_axis(a["dim"], a["self"].rank))


# Linear maps -------------------------------------------------------------------------------------


@converts("linear.default")
def _linear(a: Arguments) -> Node:
    return make("linear", a["input"], a["weight"], *([a["bias"]] if a["bias"] is not None else []))


@converts("matmul.default", "mm.default", "bmm.default")
def _matmul(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    return make("matmul", _float_only(left), right)


@converts("addmm.default")
def _addmm(a: Arguments) -> Node:
    if a["beta"] != 1 or a["alpha"] != 1:
        raise NotConvertible("scaled addmm")
    return make("add", make("matmul", a["mat1"], a["mat2"]), a["self"])


def _convolution_node(a: Arguments, *, transposed: bool, padding: tuple[int, ...], output_padding=None) -> Node:
    x = a["input"]
    rank = a["weight"].rank - 2
    squeeze = x.rank == rank + 1
    if squeeze:
        x = make("reshape", x, shape=(1, *x.shape))
    node = make("convolution", x, a["weight"], *([a["bias"]] if a["bias"] is not None else []),
                stride=spread(a["stride"], rank), padding=padding, dilation=spread(a["dilation"], rank),
                groups=a["groups"], transposed=transposed, output_padding=output_padding or (0,) * rank)
    return make("reshape", node, shape=node.shape[1:]) if squeeze else node


@converts("conv1d.default", "conv2d.default", "conv3d.default")
def _convolution(a: Arguments) -> Node:
    return _convolution_node(a, transposed=False, padding=spread(a["padding"], a["weight"].rank - 2))


@converts("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution_same(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    if a["padding"] == "valid":
        return _convolution_node(a, transposed=False, padding=(0,) * rank)
    total = [d * (k - 1) for d, k in zip(spread(a["dilation"], rank), a["weight"].shape[2:], strict=True)]
    if any(t % 2 for t in total):
        raise NotConvertible("uneven padding")
    return _convolution_node(a, transposed=False, padding=tuple(t // 2 for t in total))


@converts("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _convolution_transposed(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    return _convolution_node(a, transposed=True, padding=spread(a["padding"], rank),
                             output_padding=spread(a["output_padding"], rank))


@converts("convolution.default")
def _convolution_general(a: Arguments) -> Node:
    rank = a["weight"].rank - 2
    return _convolution_node(a, transposed=a["transposed"], padding=spread(a["padding"], rank),
                             output_padding=spread(a["output_padding"], rank))


# Norms -------------------------------------------------------------------------------------------


def _affine(weight: Node | None, bias: Node | None) -> list[Node]:
    if (weight is None) != (bias is None):
        raise NotConvertible("scale without shift")
    return [weight, bias] if weight is not None and bias is not None else []


@converts("layer_norm.default")
def _layer_norm(a: Arguments) -> Node:
    if a["weight"] is None and a["bias"] is not None:
        raise NotConvertible("shift without scale")
    rest = [n for n in (a["weight"], a["bias"]) if n is not None]
    return make("layer_norm", _float_only(a["input"]), *rest, axes=len(a["normalized_shape"]), eps=a["eps"],
                affine=len(rest) > 0)


@converts("group_norm.default")
def _group_norm(a: Arguments) -> Node:
    rest = _affine(a["weight"], a["bias"])
    return make("group_norm", _float_only(a["input"]), *rest, groups=a["num_groups"], eps=a["eps"], affine=bool(rest))


@converts("instance_norm.default")
def _instance_norm(a: Arguments) -> Node:
    if not a["use_input_stats"] or a["running_mean"] is not None:
        raise NotConvertible("instance norm with running statistics")
    rest = _affine(a["weight"], a["bias"])
    return make("instance_norm", _float_only(a["input"]), *rest, eps=a["eps"], affine=bool(rest))


# Pools -------------------------------------------------------------------------------------------


def _window(a: Arguments, name: str) -> tuple[int, ...]:
    return spread(a[name], int(a["operator"].split("pool")[1][0]))


@converts("max_pool1d.default", "max_pool2d.default", "max_pool3d.default")
def _max_pool(a: Arguments) -> Node:
    kernel = _window(a, "kernel_size")
    return make("max_pool", _float_only(a["self"]), kernel=kernel,
                stride=_window(a, "stride") if a["stride"] else kernel, padding=_window(a, "padding"),
                dilation=_window(a, "dilation"), ceil=a["ceil_mode"])


@converts("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(a: Arguments) -> Node:
    kernel = _window(a, "kernel_size")
    return make("average_pool", _float_only(a["self"]), kernel=kernel,
                stride=_window(a, "stride") if a["stride"] else kernel, padding=_window(a, "padding"),
                ceil=a["ceil_mode"], include_padding=a["count_include_pad"], divisor=a.get("divisor_override"))


@converts("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default")
def _adaptive_average_pool(a: Arguments) -> Node:
    return make("adaptive_average_pool", _float_only(a["self"]), size=_window(a, "output_size"))


# Views -------------------------------------------------------------------------------------------


def reshape(x: Node, shape: tuple[int, ...]) -> Node:
    """A reshape, or the node itself where the shape stays."""
    return x if x.shape == shape else make("reshape", x, shape=shape)


@converts("view.default", "reshape.default", "_unsafe_view.default")
def _reshape(a: Arguments) -> Node:
    x, shape = list(a.values())[:2]
    known = prod(s for s in shape if s != -1)
    return reshape(x, tuple(x.size // known if s == -1 else s for s in shape))


@converts("flatten.using_ints")
def _flatten(a: Arguments) -> Node:
    x = a["self"]
    first, last = _axis(a["start_dim"], x.rank), _axis(a["end_dim"], x.rank)
    return reshape(x, (*x.shape[:first], prod(x.shape[first:last + 1]), *x.shape[last + 1:]))


@converts("unflatten.int")
def _unflatten(a: Arguments) -> Node:
    x, axis = a["self"], _axis(a["dim"], a["self"].rank)
    known = prod(s for s in a["sizes"] if s != -1)
    sizes = tuple(x.shape[axis] // known if s == -1 else s for s in a["sizes"])
    return reshape(x, (*x.shape[:axis], *sizes, *x.shape[axis + 1:]))


@converts("unsqueeze.default")
def _unsqueeze(a: Arguments) -> Node:
    x = a["self"]
    axis = a["dim"] % (x.rank + 1)
    return reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@converts("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(a: Arguments) -> Node:
    x = a["self"]
    axes = _axes(a.get("dim"), x.rank)
    return reshape(x, tuple(s for i, s in enumerate(x.shape) if not (i in axes and s == 1)))


@converts("permute.default")
def _permute(a: Arguments) -> Node:
    axes = tuple(_axis(d, a["self"].rank) for d in a["dims"])
    return a["self"] if axes == tuple(range(len(axes))) else make("permute", a["self"], axes=axes)


@converts("transpose.int", "t.default", "numpy_T.default", "mT.default")
def _transpose(a: Arguments) -> Node:
    x = a["self"]
    axes = list(range(x.rank))
    if a["operator"] == "numpy_T.default":
        axes.reverse()
    elif x.rank >= 2:
        pair = (a["dim0"], a["dim1"]) if "dim0" in a else (-2, -1)
        first, second = (_axis(p, x.rank) for p in pair)
        axes[first], axes[second] = axes[second], axes[first]
    return x if axes == sorted(axes) else make("permute", x, axes=tuple(axes))


@converts("expand.default", "expand_as.default")
def _expand(a: Arguments) -> Node:
    x = a["self"]
    shape = a["other"].shape if "other" in a else a["size"]
    lead = len(shape) - x.rank
    sizes = tuple(x.shape[i - lead] if s == -1 else s for i, s in enumerate(shape))
    return x if sizes == x.shape else make("expand", x, shape=sizes)


@converts("slice.Tensor")
def _slice(a: Arguments) -> Node:
    x, axis = a["self"], _axis(a["dim"], a["self"].rank)
    start, stop, step = slice(a["start"], a["end"], a["step"]).indices(x.shape[axis])
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    return make("slice", x, axis=axis, start=start, stop=max(stop, start), step=step)


@converts("select.int")
def _select(a: Arguments) -> Node:
    x, axis = a["self"], _axis(a["dim"], a["self"].rank)
    index = a["index"] % x.shape[axis]
    part = x if x.shape[axis] == 1 else make("slice", x, axis=axis, start=index, stop=index + 1, step=1)
    return reshape(part, (*x.shape[:axis], *x.shape[axis + 1:]))


@converts("split.Tensor", "split_with_sizes.default", "chunk.default", "split.sizes")
def _split(a: Arguments) -> tuple[Node, ...]:
    x, axis = a["self"], _axis(a["dim"], a["self"].rank)
    length = x.shape[axis]
    if a["operator"] == "chunk.default":
        size = -(-length // a["chunks"])
        sizes = [size] * (length // size) + ([length % size] if length % size else [])
    else:
        given = a.get("split_sizes", a.get("split_size"))
        sizes = list(given) if isinstance(given, (list, tuple)) else \
            [given] * (length // given) + ([length % given] if length % given else [])
    parts, start = [], 0
    for size in sizes:
        parts.append(make("slice", x, axis=axis, start=start, stop=start + size, step=1) if size != length else x)
        start += size
    return tuple(parts)


@converts("cat.default", "concat.default", "stack.default")
def _concatenate(a: Arguments) -> Node:
    tensors = list(next(iter(a.values())))
    rank = tensors[0].rank
    if a["operator"] == "stack.default":
        axis = a["dim"] % (rank + 1)
        tensors = [reshape(t, (*t.shape[:axis], 1, *t.shape[axis:])) for t in tensors]
    else:
        tensors = [t for t in tensors if t.shape != (0,)]
        axis = _axis(a["dim"], rank)
    if len({t.dtype for t in tensors}) != 1:
        raise NotConvertible("concatenation of several types")
    first = tensors[0]
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in tensors), *first.shape[axis + 1:])
    return make("concatenate", *tensors, axis=axis, shape=shape, dtype=first.dtype)


# Nothing happens ---------------------------------------------------------------------------------


@converts("contiguous.default", "clone.default", "detach.default", "alias.default", "lift_fresh_copy.default",
          "lift_fresh.default", "positive.default", "detach_.default")
def _identity(a: Arguments) -> Node:
    return next(iter(a.values()))


@converts("dropout.default", "feature_dropout.default", "alpha_dropout.default", "feature_alpha_dropout.default")
def _dropout(a: Arguments) -> Node:
    if a["train"] and a["p"] != 0:
        raise NotConvertible("live dropout draws from torch's random stream")
    return a["input"]


@converts("to.dtype", "_to_copy.default", "to.dtype_layout", "type_as.default", "float.default")
def _cast(a: Arguments) -> Node:
    x = a["self"]
    if "other" in a:
        target = a["other"].dtype
    elif a.get("dtype") is None:
        return x
    else:
        target = str(a["dtype"]).removeprefix("torch.")
    return x if target == x.dtype else make("cast", x, to=target, shape=x.shape, dtype=target)
