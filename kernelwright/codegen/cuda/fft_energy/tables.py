"""CUDA text of the tables of the spectral energy: twiddles, fold tables, and the roots of unity of the taps.

``kernelwright/codegen/fft_energy/tables.py`` says what they mean.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.fft_energy.dft import radices
from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.terms import over, times


def tables_kernel(layout: Layout) -> str:
    """The kernel that fills the tables, in double, rounded to float32."""
    name = layout.name
    cases = []
    for number, axis in enumerate(layout.axes):
        stages, rest, lines = radices(axis), axis.length, []
        position = "slot"
        for i, radix in enumerate(stages):
            step = rest // radix
            scale = prod(stages[:i])
            lines.append(f"frequency += {times(over(position, step), scale)};")
            lines += [f"{position} %= {step};"] * (step > 1)
            rest = step
        slot_frequency = ""
        if axis.radices:
            head = f"int slot = i / {axis.grid}, frequency = 0;"
            slot_frequency = f"      {head}\n      {' '.join(lines)}\n"
        factor = f"{name}_dirichlet(frequency * {axis.grid} - g * {axis.length}, {axis.length}, {axis.grid})"
        if not axis.radices:
            factor = "1.0"
        if axis.real:
            mirrored = (
                f"({axis.length} - frequency) % {axis.length} % {axis.radices[0]} <= {axis.radices[0] // 2}"
                if axis.radices
                else "true"
            )
            factor += f" * ({mirrored} ? 0.5 : 1.0)"
        taps, offsets = [], []
        for phase in layout.taps[number]:
            missing = layout.phase_taps[number] - len(phase)
            taps += [tap for tap, _ in phase] + [phase[0][0]] * missing
            offsets += [offset % axis.grid for _, offset in phase] + [-1] * missing
        cases.append(f"""  if (blockIdx.y == {number}) {{
    const int tap[] = {{{", ".join(map(str, taps))}}};
    const int offset[] = {{{", ".join(map(str, offsets))}}};  // modulo {axis.grid}; -1: this phase lacks the tap
    for (int i = begin; i < {axis.length}; i += stride) twiddle{number}[i] = {name}_root(i, {axis.length});
    for (int i = begin; i < {axis.slots * axis.grid}; i += stride) {{
      const int g = i % {axis.grid};
{slot_frequency}      fold{number}[i / {axis.grid} * {axis.grid_pitch} + g] = static_cast<float>({factor});
    }}
    for (int i = begin; i < {len(taps)}; i += stride) tap{number}[i] = tap[i];
    for (int i = begin; i < {len(taps) * axis.grid}; i += stride) {{
      const int k = i / {axis.grid}, g = i % {axis.grid};
      root{number}[i] = offset[k] < 0 ? make_float2(0.0f, 0.0f)
                                  : {name}_root(g * offset[k] % {axis.grid}, {axis.grid});
    }}
  }}""")
    parameters = ",\n    ".join(
        f"float2* __restrict__ twiddle{i}, float* __restrict__ fold{i}, "
        f"float2* __restrict__ root{i}, int* __restrict__ tap{i}"
        for i in range(3)
    )
    return f"""
// exp(-2 pi i numerator / denominator).
static __device__ inline float2 {name}_root(long long numerator, long long denominator) {{
  const double angle = 2.0 * static_cast<double>(numerator % denominator) / static_cast<double>(denominator);
  return make_float2(static_cast<float>(cos(3.14159265358979323846 * angle)),
                     static_cast<float>(-sin(3.14159265358979323846 * angle)));
}}

// 1 / length * sum over |d| <= grid / 2 of cos(2 pi d u) at u = numerator / (length * grid): a Dirichlet kernel.
static __device__ inline double {name}_dirichlet(long long numerator, long long length, long long grid) {{
  numerator = (numerator % (length * grid) + length * grid) % (length * grid);
  if (numerator == 0) return static_cast<double>(grid) / static_cast<double>(length);
  const double pi = 3.14159265358979323846;
  const double above = sin(pi * static_cast<double>(numerator % (2 * length)) / static_cast<double>(length));
  const double below = sin(pi * static_cast<double>(numerator) / static_cast<double>(length * grid));
  return above / (below * static_cast<double>(length));
}}

static __global__ void __launch_bounds__(128) {name}_tables(
    {parameters}) {{
  const int begin = blockIdx.x * 128 + threadIdx.x, stride = gridDim.x * 128;
{chr(10).join(cases)}
}}
""".strip()
