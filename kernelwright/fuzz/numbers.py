"""Productions: numbers that few models meet: zeros of both signs, whole numbers of all widths, casts, complex ones."""

from __future__ import annotations

import torch

from kernelwright.fuzz.draw import Draw, Refused, Value
from kernelwright.fuzz.productions import line, production

line("times a zero", "{x} * 0.0", weight=0.15)
line("times a negative zero", "{x} * -0.0", weight=0.15)
line("less a zero", "{x} - 0.0", weight=0.1)
line("from a negative zero", "-0.0 - {x}", weight=0.15)
line("signed zeros added", "torch.ceil({x} * 0.3) + 0.0", weight=0.15)
line("at most a negative zero", "{x}.clamp(max=-0.0)", weight=0.15)
line("at least a zero", "torch.clamp({x}, -0.0, 3.0)", weight=0.15)
line("sign by a zero", "torch.copysign({x}, -0.0)", weight=0.1)
line("infinities by zeros", "1.0 / ({x} * 0.0)", weight=0.06)
line("infinities by negative zeros", "1.0 / ({x} * -0.0)", weight=0.06)
line("a quotient by what relu leaves", "{x} / F.relu({x})", weight=0.06)
line("angles of any size", "torch.sin({x} * 1e6) + torch.cos({x})", weight=0.1, bits=1.0)
line("small and large", "({x} * 1e-12) * 1e12", weight=0.15)
line("a mean far away", "({x} + 1000.0).var(-1, correction=0)", weight=0.12, ranks=(1, 6), bits=6.0)
line("a deviation far away", "torch.std({x} + 300.0, {axis}, correction=0)", weight=0.12, ranks=(1, 6), bits=4.0)


@production("narrowed and widened", 0.5)
def _rounded(d: Draw, x: Value) -> None:
    """What is narrowed keeps only so many digits, and the difference shows it."""
    narrow = d.one_of([torch.float16, torch.bfloat16, *([torch.float32] if d.dtype == torch.float64 else [])])
    x = d.tamed(x, 6.0)
    y, = d.emit(f"{x}.to({narrow}).to({d.dtype})", bits=x.bits)
    if d.chance(0.6):
        d.emit(d.one_of([f"({y} - {x}) * 100", f"{y} * 2 - {x}", f"({y} * 3).sum()"]), bits=x.bits + 3)


@production("integers of a width", 0.7)
def _width(d: Draw, x: Value) -> None:
    """Whole numbers that wrap where their width ends."""
    kind = d.one_of([torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
    sizes = ", ".join(map(str, x.shape or (3,)))
    low = 0 if kind == torch.uint8 else -60
    t = d.input(x.shape or (3,), f"torch.randint({low}, 61, ({sizes},), dtype={kind})", bits=7.0)
    y, = d.emit(d.one_of([
        f"{t} * 3 + 1", f"{t} * {t}", f"-{t}", f"{t} // 7", f"{t} % 5", f"{t} - 100", f"{t}.abs()", f"~{t}",
        f"{t} & 12", f"torch.maximum({t}, {t} * 2)", f"{t}.clamp(-5, 20)", f"torch.where({t} > 3, {t}, -{t})",
        f"{t} ^ 9"]), bits=8.0)
    d.emit(d.one_of([f"{y}.sum()", f"{y}.to({d.dtype}) * {x}", f"{y} + True", f"{y}.float().mean()", f"{y}.amax()",
                     f"{y} / 2", f"{y}.to(torch.int8)", f"{y} == {t}"]), bits=12.0)


@production("truth values", 0.3)
def _truth(d: Draw, x: Value) -> None:
    y, = d.emit(f"{x} > {d.real(-1, 1)}", bits=0.0)
    d.emit(d.one_of([f"{y}.sum()", f"{y} * 3 - 1", f"{y}.to(torch.uint8) + 255", f"{y} | ({x} < 0)",
                     f"{y}.float().mean()", f"{y}.all()", f"{y} ^ True", f"torch.where({y}, 1, 2.5)"]), bits=8.0)


@production("complex numbers", 0.5, (1, 4))
def _complex(d: Draw, x: Value) -> None:
    if d.dtype not in (torch.float32, torch.float64):
        raise Refused("no such complex numbers")
    z, = d.emit(d.one_of([f"torch.fft.rfft({x})", f"torch.complex({x}, {x}.tanh())", f"torch.fft.fft({x})",
                          f"torch.polar({x}.abs() + 0.1, {x})"]), bits=x.bits + 3)
    if d.chance(0.5):
        z, = d.emit(d.one_of([f"{z} * (0.5 + 1j)", f"{z}.conj()", f"{z} + {z} * 2", f"{z} / 3"]), bits=z.bits + 2)
    if d.chance(0.7):
        d.emit(d.one_of([f"{z}.abs()", f"{z}.real + {z}.imag", f"torch.view_as_real({z}).tanh()",
                         f"{z}.abs().square().sum(-1)", f"{z}.real.relu() * 2"]), bits=z.bits + 4)
