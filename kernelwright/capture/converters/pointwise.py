"""Converters of pointwise operators, casts, and operators that do nothing (see
:mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from functools import cache
from math import inf, nan, pi

import torch

from kernelwright.capture.converters.table import (
    CONVERTERS,
    Arguments,
    NotConvertible,
    as_node,
    axes_of,
    converts,
    float_only,
    held,
    part,
    reshape,
)
from kernelwright.capture.values import cast
from kernelwright.ir.node import Node, constant, make
from kernelwright.ir.registry import torch_dtype

_UNARY = ("neg", "abs", "reciprocal", "square", "sqrt", "rsqrt", "sign", "floor", "ceil", "trunc", "exp", "expm1",
          "log", "log1p", "log10", "log2", "sin", "cos", "erf", "tanh", "relu", "sigmoid", "silu", "mish", "hardswish",
          "hardsigmoid", "selu", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "isfinite",
          "isinf", "signbit")
_BINARY = {"mul.Tensor": "mul", "mul.Scalar": "mul", "div.Tensor": "div", "div.Scalar": "div",
           "pow.Tensor_Tensor": "pow", "maximum.default": "maximum",
           "minimum.default": "minimum", "max.other": "maximum", "min.other": "minimum",
           "fmax.default": "fmax", "fmin.default": "fmin", "atan2.default": "atan2", "hypot.default": "hypot",
           "logaddexp.default": "logaddexp", "logaddexp2.default": "logaddexp2",
           "fmod.Tensor": "fmod", "fmod.Scalar": "fmod", "remainder.Tensor": "remainder",
           "logical_and.default": "logical_and", "logical_or.default": "logical_or",
           **{f"{n}.{kind}": n for n in ("eq", "ne", "lt", "le", "gt", "ge") for kind in ("Tensor", "Scalar")}}


for _name in _UNARY:
    CONVERTERS[f"{_name}.default"] = lambda a, name=_name: make(name, float_only(next(iter(a.values()))))
CONVERTERS["round.default"] = lambda a: make("round", float_only(a["self"]))
CONVERTERS["special_erfcx.default"] = lambda a: make("erfcx", float_only(a["self"]))
CONVERTERS["log_sigmoid.default"] = lambda a: make("logsigmoid", a["self"])


def _pair(a: Arguments) -> tuple[Node, Node]:
    left, right = list(a.values())[:2]
    nodes = as_node(left), as_node(right)
    for node in nodes:
        if node.op != "constant" and node.dtype != "bool":
            float_only(node)
    return nodes


for _torch_name, _name in _BINARY.items():
    CONVERTERS[_torch_name] = lambda a, name=_name: make(name, *_pair(a))


@converts("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "rsub.Tensor")
def _add(a: Arguments) -> Node:
    left, right = _pair(a)
    name = a["operator"].split(".")[0]
    if name == "rsub":  # other - alpha * self
        left, right, name = right, left, "sub"
    if a["alpha"] != 1:  # a number stays a number: it does not decide the type of a result without axes
        right = constant(right["value"] * a["alpha"]) if right.op == "constant" else \
            make("mul", right, constant(held(a["alpha"], right.dtype) if a["runs_on"] == "cpu" else a["alpha"]))
    return make(name, _summand(left, right, a["runs_on"]), _summand(right, left, a["runs_on"]))


def _summand(term: Node, other: Node, device: str) -> Node:
    """A number beside a tensor of 16 bits: on a CPU PyTorch adds it as that type holds it, elsewhere in float32; what
    the type takes for zero or infinity adds so, too, since the sum is of that type."""
    if term.op != "constant" or isinstance(term["value"], bool):
        return term
    value, rounded = term["value"], held(term["value"], other.dtype)
    return constant(rounded) if rounded != value and (device == "cpu" or rounded in (0.0, inf, -inf)) else term


@converts("pow.Tensor_Scalar")
def _power(a: Arguments) -> Node:
    x = float_only(a["self"])
    return make("pow", x, constant(held(a["exponent"], x.dtype)))


@converts("gelu.default")
def _gelu(a: Arguments) -> Node:
    return make("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf", float_only(a["self"]))


@converts("leaky_relu.default")
def _leaky_relu(a: Arguments) -> Node:
    return make("leaky_relu", float_only(a["self"]), constant(a["negative_slope"]))


@converts("elu.default")
def _elu(a: Arguments) -> Node:
    if a["scale"] != 1 or a["input_scale"] != 1:
        raise NotConvertible("scaled elu")
    return make("elu", float_only(a["self"]), constant(a["alpha"]))


@converts("celu.default")
def _celu(a: Arguments) -> Node:
    return make("celu", float_only(a["self"]), constant(a["alpha"]))


@converts("softplus.default")
def _softplus(a: Arguments) -> Node:
    return make("softplus", float_only(a["self"]), constant(a["beta"]), constant(a["threshold"]))


@converts("threshold.default")
def _threshold(a: Arguments) -> Node:
    return make("threshold", float_only(a["self"]), constant(a["threshold"]),
                constant(held(a["value"], a["self"].dtype)))


@converts("softshrink.default", "hardshrink.default")
def _shrink(a: Arguments) -> Node:
    return make(a["operator"].split(".")[0], float_only(a["self"]), constant(a["lambd"]))


@converts("hardtanh.default")
def _hardtanh(a: Arguments) -> Node:
    return _clamp({"self": a["self"], "min": a["min_val"], "max": a["max_val"]})


@converts("relu6.default")
def _relu6(a: Arguments) -> Node:
    return make("clamp_max", make("clamp_min", float_only(a["self"]), constant(0.0)), constant(6.0))


@cache
def _takes_nan() -> bool:
    """Whether a bound that is NaN is the result where it is the only one, too: PyTorch 2.11 ignores it there."""
    return bool(torch.zeros(1).clamp(min=nan).isnan())


@converts("clamp.default", "clamp.Tensor", "clamp_min.default", "clamp_max.default")
def _clamp(a: Arguments) -> Node:
    x = float_only(a["self"])
    bounds = [bound for bound in (a.get("min"), a.get("max")) if bound is not None]
    if any(bound != bound for bound in bounds):
        return make("mul", x, constant(nan)) if len(bounds) > 1 or _takes_nan() else x
    for name, bound in (("clamp_min", a.get("min")), ("clamp_max", a.get("max"))):
        if isinstance(bound, Node):  # a NaN among the bounds is the result
            x = make({"clamp_min": "maximum", "clamp_max": "minimum"}[name], x, bound)
        elif bound is not None:
            x = make(name, x, as_node(held(bound, x.dtype)))
    return x


@converts("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(a: Arguments) -> Node:
    condition, left, right = a["condition"], as_node(a["self"]), as_node(a["other"])
    if condition.dtype != "bool" or not any(n.dtype.startswith(("float", "bfloat")) for n in (left, right)):
        raise NotConvertible("where of these types")
    left, right = (constant(held(n["value"], other.dtype)) if n.op == "constant" else n
                   for n, other in ((left, right), (right, left)))
    return make("where", condition, left, right)


@converts("masked_fill.Scalar")
def _masked_fill(a: Arguments) -> Node:
    x = float_only(a["self"])
    return make("where", a["mask"], constant(held(float(a["value"]), x.dtype)), x)


# By another name, or a formula --------------------------------------------------------------------


for _alias, _name in (("multiply", "mul"), ("divide", "div"), ("true_divide", "div")):
    for _kind in ("Tensor", "Scalar"):
        CONVERTERS[f"{_alias}.{_kind}"] = CONVERTERS[f"{_name}.{_kind}"]
CONVERTERS["subtract.Tensor"] = lambda a: CONVERTERS["sub.Tensor"]({**a, "operator": "sub.Tensor"})
CONVERTERS["negative.default"] = CONVERTERS["neg.default"]
CONVERTERS["absolute.default"] = CONVERTERS["abs.default"]
CONVERTERS["sgn.default"] = CONVERTERS["sign.default"]
CONVERTERS["fix.default"] = CONVERTERS["trunc.default"]
CONVERTERS["arctan2.default"] = CONVERTERS["atan2.default"]
CONVERTERS["clip.default"] = CONVERTERS["clip.Tensor"] = CONVERTERS["clamp.default"]
for _name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
    CONVERTERS[f"arc{_name}.default"] = CONVERTERS[f"a{_name}.default"]

_LOGIC = {"and": "logical_and", "or": "logical_or", "xor": "ne"}
_LOGIC_NAMES = {f"{prefix}{name}{suffix}.Tensor": op for name, op in _LOGIC.items()
                for prefix, suffix in (("__", "__"), ("bitwise_", ""))}


@converts(*_LOGIC_NAMES, "logical_xor.default")
def _logic(a: Arguments) -> Node:
    left, right = list(a.values())[:2]
    if not (isinstance(left, Node) and isinstance(right, Node) and left.dtype == right.dtype == "bool"):
        raise NotConvertible("bits of integers")
    return make(_LOGIC_NAMES.get(a["operator"], "ne"), left, right)


@converts("bitwise_not.default", "logical_not.default")
def _negation(a: Arguments) -> Node:
    if a["operator"].startswith("bitwise") and a["self"].dtype != "bool":
        raise NotConvertible("bits of integers")
    return make("logical_not", a["self"] if a["self"].dtype == "bool" else float_only(a["self"]))


@converts("isnan.default")
def _isnan(a: Arguments) -> Node:
    return make("ne", float_only(a["self"]), a["self"])


@converts("isposinf.default", "isneginf.default")
def _is_infinite(a: Arguments) -> Node:
    return make("eq", float_only(a["self"]), constant(inf if a["operator"].startswith("ispos") else -inf))


@converts("nan_to_num.default")
def _nan_to_num(a: Arguments) -> Node:
    x = float_only(a["self"])
    most = torch.finfo(torch_dtype(x.dtype)).max
    given = (value if value is not None else other
             for value, other in ((a["nan"], 0.0), (a["posinf"], most), (a["neginf"], -most)))
    return make("nan_to_num", x, *(constant(held(float(value), x.dtype)) for value in given))


@converts("copysign.Tensor", "copysign.Scalar", "xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self",
          "heaviside.default")
def _of_two(a: Arguments) -> Node:
    return make(a["operator"].split(".")[0], *_pair(a))


@converts("remainder.Scalar", "floor_divide.default", "floor_divide.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def _divided(a: Arguments) -> Node:
    left, right = _pair(a)
    name, mode = a["operator"].split(".")[0], a.get("rounding_mode")
    if name == "div" and mode != "floor":
        quotient = make("div", left, right)
        return quotient if mode is None else make("trunc", quotient)
    return make("remainder" if name == "remainder" else "floor_divide", left, right)


@converts("deg2rad.default", "rad2deg.default")
def _angle(a: Arguments) -> Node:
    return make("mul", float_only(a["self"]), constant(pi / 180 if a["operator"].startswith("deg") else 180 / pi))


def _precise(x: Node) -> Node:
    """An operand of a formula whose steps PyTorch does not round to 16 bits one by one."""
    if x.dtype not in ("float32", "float64"):
        raise NotConvertible("a formula of 16 bits")
    return x


@converts("sinc.default", "special_sinc.default")
def _sinc(a: Arguments) -> Node:
    x = _precise(float_only(a["self"]))
    angle = make("mul", x, constant(pi))
    return make("where", make("eq", x, constant(0.0)), constant(1.0), make("div", make("sin", angle), angle))


@converts("logit.default", "special_logit.default")
def _logit(a: Arguments) -> Node:
    x = _precise(float_only(a["self"]))
    if a["eps"] is not None:
        x = make("clamp_max", make("clamp_min", x, constant(a["eps"])), constant(1.0 - a["eps"]))
    return make("log", make("div", x, make("sub", constant(1.0), x)))


@converts("prelu.default", "_prelu_kernel.default")
def _prelu(a: Arguments) -> Node:
    x, slope = float_only(a["self"]), a["weight"]
    shape = (1, slope.size, *(1,) * (x.rank - 2)) if slope.size != 1 else (1,) * x.rank
    return make("prelu", x, reshape(slope, shape))


@converts("exp2.default", "pow.Scalar")
def _power_of(a: Arguments) -> Node:
    base = a["self"] if a["operator"] == "pow.Scalar" else 2.0
    if base <= 0:
        raise NotConvertible("a power of a negative number")
    exponent = float_only(a["exponent"] if a["operator"] == "pow.Scalar" else a["self"])
    return make("pow", constant(held(float(base), exponent.dtype)), exponent)


@converts("frac.default")
def _frac(a: Arguments) -> Node:
    return make("sub", float_only(a["self"]), make("trunc", a["self"]))


@converts("addcmul.default", "addcdiv.default")
def _added_product(a: Arguments) -> Node:
    """x + (value * tensor1) * tensor2, or / tensor2: in this order nothing overflows that does not in PyTorch."""
    first = float_only(a["tensor1"])
    first = first if a["value"] == 1 else make("mul", first, constant(a["value"]))
    term = make("mul" if a["operator"].startswith("addcmul") else "div", first, float_only(a["tensor2"]))
    return make("add", float_only(a["self"]), term)


@converts("lerp.Scalar")
def _lerp(a: Arguments) -> Node:
    """As PyTorch does it: from the end that is nearer."""
    x, end, weight = float_only(a["self"]), float_only(a["end"]), float(a["weight"])
    way = make("sub", end, x)
    if abs(weight) < 0.5:
        return make("add", x, make("mul", way, constant(weight)))
    return make("sub", end, make("mul", way, constant(1.0 - weight)))


@converts("lerp.Tensor")
def _lerp_by_tensor(a: Arguments) -> Node:
    """As PyTorch does it: from the end that is nearer."""
    x, end, weight = (_precise(float_only(a[name])) for name in ("self", "end", "weight"))
    way = make("sub", end, x)
    near = make("lt", make("abs", weight), constant(0.5))
    return make("where", near, make("add", x, make("mul", weight, way)),
                make("sub", end, make("mul", way, make("sub", constant(1.0), weight))))


@converts("masked_fill.Tensor")
def _masked_fill_by_tensor(a: Arguments) -> Node:
    if a["value"].dtype != a["self"].dtype:
        raise NotConvertible("a value of another type")
    return make("where", a["mask"], as_node(a["value"]), float_only(a["self"]))


@converts("glu.default")
def _glu(a: Arguments) -> Node:
    x = float_only(a["self"])
    axis = axes_of(a["dim"], x.rank)[0]
    half = x.shape[axis] // 2
    return make("mul", part(x, axis, 0, half), make("sigmoid", part(x, axis, half, 2 * half)))


# Nothing happens, or the type changes -------------------------------------------------------------


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
    return cast(x, target)
