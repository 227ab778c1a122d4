"""CUDA text of one sum of a contraction from its operands' expressions, by float32 multiply-adds."""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.points import (
    device_function,
    operands,
    parameter_texts,
    pointers_of,
    typed_axes,
    value_call,
    value_function,
)
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus, times
from kernelwright.plan.contraction.record import Contraction, ContractionAxis

#: Channels whose products are added up before they are added to the sum: rounding grows with both numbers.
_BLOCK = 64


def recompute_function(kernel: Contraction, name: str, *, own: bool = False) -> str:
    """``NAME_recompute``: the sum at (n, g, o, p0, ...), from the functions ``NAME_left`` and ``NAME_right``, or from
    ``own`` ones where those are of another kernel."""
    left, right = operands(kernel)
    values, functions = f"{name}_own" if own else name, ""
    if own:
        functions = "\n".join(value_function(kernel, operand, values) for operand in (left, right)) + "\n"
    used = {*pointers_of(kernel.left), *pointers_of(kernel.right)}
    names = ("n", "g", "o", *(f"p{a}" for a in range(len(kernel.axes))))
    parameters = [*(" ".join(p) for p in parameter_texts(kernel, used)), *typed_axes(kernel, names)]
    loops = [_taps(axis, a, f"{name}_taps{a}") for a, axis in enumerate(kernel.axes)]
    numbers = {f"k{a}": number for a, (_, number, _) in enumerate(loops)}
    body = [f"part = fmaf({value_call(left, values)}, {value_call(right, values, **numbers)}, part);"]
    for head, _, _ in reversed(loops):
        body = [*head, *indent(body), "}"]
    body = ["float sum = 0.0f;", f"for (int block = 0; block < {kernel.in_channels}; block += {_BLOCK}) {{",
            "  float part = 0.0f;", "#pragma unroll 1",
            f"  for (int c = block; c < min(block + {_BLOCK}, {kernel.in_channels}); ++c) {{", *indent(body, 4), "  }",
            "  sum += part;", "}", "return sum;"]
    tables = "".join(table for _, _, table in loops)
    text = device_function("A sum from the operands themselves, for those that are not finite.", "float",
                           f"{name}_recompute", parameters, body)
    return functions + tables + text


def _taps(axis: ContractionAxis, a: int, table: str) -> tuple[list[str], str, str]:
    """The head of the loop over an axis' taps, which defines q, the text of a tap's number, and its table."""
    loop = f"for (int t{a} = 0; t{a} < {len(axis.taps)}; ++t{a}) {{"
    first = axis.taps[0].offset if axis.taps else 0
    step = axis.taps[1].offset - first if len(axis.taps) > 1 else 0
    position = f"p{a} / {axis.out_stride}" if axis.out_stride > 1 else f"p{a}"
    position = f"{position} * {axis.in_stride}" if axis.in_stride > 1 else position
    outside = f"  if (unsigned(q{a}) >= {axis.in_size}u) continue;"
    if all((t.number, t.phase, t.offset) == (i, 0, first + i * step) for i, t in enumerate(axis.taps)) \
            and axis.out_stride == 1:
        place = plus(position, times(f"t{a}", step), first)
        return ["#pragma unroll 1", loop, f"  const int q{a} = {place};", outside], f"t{a}", ""
    rows = ", ".join(f"{{{t.number}, {t.phase}, {t.offset}}}" for t in axis.taps)
    text = f"// Entries of the window along axis {a}: number, phase of output positions, offset in the input.\n" \
           f"static __constant__ int {table}[{max(1, len(axis.taps))}][3] = {{{rows or '{0, 0, 0}'}}};\n"
    head = ["#pragma unroll 1", loop, f"  if (p{a} % {axis.out_stride} != {table}[t{a}][1]) continue;",
            f"  const int q{a} = {position} + {table}[t{a}][2];", outside]
    return head, f"{table}[t{a}][0]", text
