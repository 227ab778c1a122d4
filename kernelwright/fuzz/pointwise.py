"""Productions: pointwise functions, comparisons, masks, casts and changes in place."""

from __future__ import annotations

import torch

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import line, production

for _name in ("neg", "abs", "floor", "ceil", "round", "trunc"):
    line(_name, f"torch.{_name}({{x}})", weight=0.5)
for _name in ("sign", "sin", "cos", "erf", "tanh", "sigmoid"):
    line(_name, f"torch.{_name}({{x}})", weight=0.7, bits=0.0)
for _name in ("relu", "silu", "mish", "hardswish", "selu", "softsign", "gelu", "logsigmoid", "tanhshrink", "relu6",
              "hardsigmoid"):
    line(_name, f"F.{_name}({{x}})", weight=0.8)
line("gelu tanh", "F.gelu({x}, approximate='tanh')")
line("leaky_relu", "F.leaky_relu({x}, {positive})")
line("leaky_relu falling", "F.leaky_relu({x}, {low})", weight=0.4)
line("elu", "F.elu({x}, {positive})")
line("celu", "F.celu({x}, {positive})")
line("softplus", "F.softplus({x}, {positive}, 10)")
line("threshold", "F.threshold({x}, {high}, {low})")
line("softshrink", "F.softshrink({x}, {high})", weight=0.6)
line("hardshrink", "F.hardshrink({x}, {high})", weight=0.6)
line("hardtanh", "F.hardtanh({x}, {low}, {high})")
line("clamp", "torch.clamp({x}, {low}, {high})", weight=1.5)
line("clamp min", "{x}.clamp(min={low})", weight=1.2)
line("clamp max", "{x}.clamp_max({high})", weight=1.2)
line("clamp of clamp", "{x}.clamp({low}, {high}).clamp_min({high}).relu()", weight=0.6)
line("clamp crossed", "torch.clamp({x}, {high}, {low})", weight=0.4)
line("scale", "{x} * {positive}", weight=1.5)
line("divide by a number", "{x} / {positive}", weight=1.2)
line("shift", "{x} + {low}", weight=1.2)
line("shift from", "{high} - {x}", weight=0.8)
line("rsub", "torch.rsub({x}, {high}, alpha=2)", weight=0.3)
line("affine", "torch.add({x} * {positive}, {high}, alpha=0.5)", weight=0.6)
line("floor divide", "{x} // {positive}", weight=0.3)
line("remainder", "{x} % {positive}", weight=0.3, bits=1.0)
line("nan_to_num", "torch.nan_to_num({x}, 0.5, 9.0, -9.0)", weight=0.4)
line("atan", "torch.atan({x})", weight=0.4, bits=0.7)
line("frac", "torch.frac({x})", weight=0.2, bits=0.0)
line("exp", "torch.exp({x})", bits=6.0, tame=4.0)
line("expm1", "torch.expm1({x})", bits=6.0, tame=4.0)
line("exp2", "torch.exp2({x})", weight=0.4, bits=6.0, tame=4.0)
line("sinh", "torch.sinh({x})", weight=0.4, bits=6.0, tame=4.0)
line("log", "torch.log({x}.abs() + {positive})", bits=3.0)
line("log of anything", "torch.log({x})", weight=0.2, bits=3.0)
line("log2", "torch.log2({x}.square() + {positive})", bits=3.0)
line("log1p", "torch.log1p({x}.abs())", bits=3.0)
line("sqrt", "torch.sqrt({x}.abs())")
line("sqrt of anything", "{x}.sqrt()", weight=0.2)
line("rsqrt", "torch.rsqrt({x}.abs() + {positive})", bits=1.6)
line("reciprocal", "1 / ({x}.abs() + {positive})", bits=3.0)
line("reciprocal of square", "torch.reciprocal({x} * {x} + {positive})", bits=3.0)
line("scaled elu", "torch.nn.functional.elu({x}, 1.5).mul(-1)", weight=0.4)
line("swish", "{x} * torch.sigmoid({x})", weight=1.2)
line("hard swish by hand", "{x} * F.relu6({x} + 3) / 6", weight=0.6)
line("mish by hand", "{x} * torch.tanh(F.softplus({x}))", weight=0.5)
line("mish by hand, scaled", "torch.tanh(F.softplus({x} * {positive})) * ({x} / -2)", weight=0.3)
line("gelu by hand", "0.5 * {x} * (1.0 + torch.erf({x} / 1.4142135623730951))", weight=0.5)
line("gelu by hand, scaled", "({x} * {positive}) * (torch.erf({x} * 0.7071) + 1) / 2", weight=0.3)
line("gelu tanh by hand", "0.5 * {x} * (1 + torch.tanh(0.7978845608028654 * ({x} + 0.044715 * {x} ** 3)))", weight=0.4)
line("sigmoid by hand", "1 / (1 + torch.exp(-{x}))", weight=0.4)
line("swish by hand", "{x} / (torch.exp(-{x}) + 1)", weight=0.3)
line("twice", "{x} + {x}", weight=0.5)
line("minus itself", "({x} - {x} * 0.5)", weight=0.3)
line("contiguous", "{x}.contiguous()", weight=0.2)
line("clone", "{x}.clone()", weight=0.3)
line("detach", "{x}.detach()", weight=0.2)
line("isnan", "torch.isnan({x})", weight=0.2, bits=0.0)


@production("erfcx", 0.4)
def _erfcx(d: Draw, x: Value) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise Refused("PyTorch's CPU has no erfcx in 16 bits")
    d.emit(f"torch.special.erfcx({d.tamed(x, 1.6)})", bits=13.0)


@production("square", 0.8)
def _square(d: Draw, x: Value) -> None:
    d.emit(d.one_of([f"{x} ** 2", f"{x}.square()", f"{x} * {x}", f"torch.pow({x}, 2)"]), bits=2 * max(x.bits, 0.5))


@production("pow", 0.8)
def _pow(d: Draw, x: Value) -> None:
    x = d.tamed(x, 6.0)
    exponent = d.one_of([3, 0.5, -1, 1.5, 2.0, 0, 1, -2, 4])
    base = f"{x}" if (isinstance(exponent, int) and exponent >= 0) or d.chance(0.1) else f"({x}.abs() + 0.5)"
    d.emit(f"torch.pow({base}, {exponent})", bits=max(4 * x.bits, 2.0))


@production("pow of a tensor", 0.4)
def _pow_tensor(d: Draw, x: Value) -> None:
    x = d.tamed(x, 2.0)
    d.emit(f"torch.pow({x}.abs() + 0.5, {d.tamed(d.partner_tensor(x), 2.0)})", bits=8.0)


@production("binary", 7.0)
def _binary(d: Draw, x: Value) -> None:
    other = d.partner(x)
    left, right = (x, other) if d.chance(0.7) else (other, x)
    kind = d.one_of(["+", "+", "-", "*", "*", "/", "torch.maximum", "torch.minimum", "alpha"])
    size = other.bits if isinstance(other, Value) else 2.0
    if kind == "/":
        bottom = f"({right}.abs() + 0.5)" if not _is_number(right) else right
        d.emit(f"{left} / {bottom}", bits=max(x.bits, size) + 1)
    elif kind.startswith("torch."):
        if _is_number(other):
            raise Refused("an extremum of a number")
        d.emit(f"{kind}({left}, {right})")
    elif kind == "alpha":
        d.emit(f"torch.{d.one_of(['add', 'sub'])}({x}, {other}, alpha={d.one_of([2, 0.5, -1.5])})")
    else:
        d.emit(f"{left} {kind} {right}", bits=x.bits + size if kind == "*" else max(x.bits, size) + 1)


def _is_number(operand: object) -> bool:
    return isinstance(operand, str) and not operand.startswith("self.")


@production("affine by parameters", 2.0, (1, 5))
def _affine(d: Draw, x: Value) -> None:
    shape = [x.shape[1], *(1,) * (x.rank - 2)] if x.rank > 1 and d.chance(0.7) else [x.shape[-1]]
    d.emit(f"{x} * {d.parameter(shape)} + {d.parameter(shape)}", bits=x.bits + 2.5)


@production("comparison", 1.0)
def _comparison(d: Draw, x: Value) -> None:
    sign = d.one_of(["<", "<=", ">", ">=", "==", "!="])
    mask = f"{x} {sign} {d.partner(x) if d.chance(0.5) else d.real(-1, 1)}"
    result, = d.emit(mask, bits=0.0)
    kind = d.one_of(["where", "where number", "times", "fill", "fill large", "and", "or", "not", "float", "any"])
    y = d.emit(f"torch.{d.one_of(['relu', 'neg', 'sin'])}({x})", bits=x.bits)[0]
    if kind == "where":
        d.emit(f"torch.where({result}, {x}, {y})")
    elif kind == "where number":
        d.emit(d.one_of([f"torch.where({result}, {x}, 0.5)", f"torch.where({result}, -1.0, {x})"]))
    elif kind == "times":
        d.emit(d.one_of([f"{result} * {y}", f"{y} * {result}.to({y}.dtype)", f"{y} + {result}.float()"]))
    elif kind == "fill":
        d.emit(f"{y}.masked_fill({result}, {d.one_of([0, 0.0, -1, 2.5])})")
    elif kind == "fill large":
        d.emit(f"torch.softmax({y}.masked_fill({result}, float('-inf')), -1)" if y.rank else
               f"{y}.masked_fill({result}, 3)", bits=0.0)
    elif kind in ("and", "or"):
        both, = d.emit(f"torch.logical_{kind}({result}, {y} > 0)", bits=0.0)
        d.emit(f"torch.where({both}, {x}, {y})")
    elif kind == "not":
        d.emit(f"{x} * torch.logical_not({result})")
    elif kind == "float":
        d.emit(f"{result}.to({d.dtype}) * {y}")
    else:
        d.emit(f"{result}.any({d.axis(result) if result.rank else ''})", bits=0.0)


@production("cast", 0.8)
def _cast(d: Draw, x: Value) -> None:
    other = d.one_of([torch.float64, torch.float16, torch.bfloat16, torch.float32])
    low = other in (torch.float16, torch.bfloat16)
    x = d.tamed(x, 6.0) if low else x
    y, = d.emit(d.one_of([f"{x}.to({other})", f"{x}.type({other})"]), bits=x.bits)
    if d.chance(0.8):
        y, = d.emit(d.one_of([f"{y} * 2 + 1", f"torch.relu({y})", f"{y} + {x}"]), bits=x.bits + 1)
        if y.dtype != d.dtype:
            d.emit(f"{y}.to({d.dtype})", bits=y.bits)


@production("whole numbers", 0.6)
def _integers(d: Draw, x: Value) -> None:
    t = d.indices(x.shape or (3,), 5)
    d.emit(d.one_of([f"{x} * {t}", f"{x} + {t}.to({d.dtype})", f"torch.where({t} > 2, {x}, 0.0)",
                     f"({t} * 2 + 1) % 3", f"({t} > 1) & ({t} < 4)", f"{x} / ({t} + 1)"]), bits=x.bits + 2)


@production("prelu", 0.5, (2, 5))
def _prelu(d: Draw, x: Value) -> None:
    d.emit(f"{d.module(f'nn.PReLU({d.one_of([1, x.shape[1]])})')}({x})")


@production("glu", 0.4, (1, 5))
def _glu(d: Draw, x: Value) -> None:
    even = [a for a, s in enumerate(x.shape) if s % 2 == 0 and s]
    if not even:
        raise Refused("no even axis")
    d.emit(f"F.glu({x}, {d.one_of(even)})")


@production("dropout", 0.8)
def _dropout(d: Draw, x: Value) -> None:
    if d.chance(0.5):
        d.emit(f"{d.member(f'nn.Dropout({d.one_of([0.0, 0.1, 0.5])})')}({x})", bits=x.bits + 1)
    else:
        d.emit(f"F.dropout({x}, {d.one_of([0.0, 0.2, 0.5])}, self.training)", bits=x.bits + 1)


@production("fused arithmetic", 0.6)
def _fused(d: Draw, x: Value) -> None:
    a, b = d.partner_tensor(x), d.partner_tensor(x)
    d.emit(d.one_of([f"torch.addcmul({x}, {a}, {b}, value=0.5)", f"torch.addcdiv({x}, {a}, {b}.abs() + 0.5)",
                     f"torch.lerp({x}, {x} * 2, 0.3)", f"torch.hypot({x}, {x} + 1)", f"torch.logaddexp({x}, {x} * 0.5)",
                     f"torch.atan2({x}, {x}.abs() + 1)"]), bits=x.bits + 3)


@production("in place", 1.5)
def _in_place(d: Draw, x: Value) -> None:
    if not x.owned:
        x = d.emit(f"{x} * 1.5")[0]
    kind = d.one_of(["relu_()", "mul_(2)", "add_(0.5)", "clamp_(-1, 2)", "clamp_min_(0.1)", "sigmoid_()", "neg_()",
                     "sub_(1, alpha=2)", "div_(3)", "abs_()", "tanh_()", "F.relu", "F.leaky_relu", "F.hardtanh",
                     "masked_fill_", "tensor", "slice", "view"])
    if kind.startswith("F."):
        d.emit(f"{kind}({x}, inplace=True)")
    elif kind == "masked_fill_":
        d.emit(f"{x}.masked_fill_({x} > 0.5, -1.0)")
    elif kind == "tensor":
        d.emit(f"{x}.{d.one_of(['add_', 'mul_', 'sub_'])}({d.parameter(x.shape[-1:])})", bits=x.bits + 2)
    elif kind in ("slice", "view"):
        if not x.rank:
            raise Refused("no axis")
        part, = d.emit(f"{x}[..., :{max(1, x.shape[-1] // 2)}]" if kind == "slice" else f"{x}.unsqueeze(0)")
        d.emit(f"{part}.{d.one_of(['mul_(2)', 'relu_()', 'add_(1)'])}")
        d.emit(f"{x} + 1")
    elif d.chance(0.6):
        d.emit(f"{x}.{kind}")
    else:
        d.effect(f"{x}.{kind}")
        d.emit(f"{x} * 2")


@production("buffer", 0.8)
def _buffer(d: Draw, x: Value) -> None:
    """A buffer that the forward updates, read before, after, or never."""
    shape = x.shape[-1:]
    name = d.buffer(shape)
    new = f"{x}.reshape(-1, {shape[0]}).mean(0)" if shape else f"{x}.detach()"
    if d.chance(0.3):
        d.emit(f"{x} + {name}")
    kind = d.one_of(["moving", "count", "copy", "add"])
    if kind == "moving":
        d.effect(f"{name}.mul_(0.9).add_({new}, alpha=0.1)")
    elif kind == "count":
        d.effect(f"{name} += 1")
    elif kind == "copy":
        d.effect(f"{name}.copy_({new})")
    else:
        d.effect(f"{name}.add_({new})")
    if d.chance(0.6):
        d.emit(f"{x} - {name}")
