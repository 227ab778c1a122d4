"""CUDA text of the transformed weights of the spectral energy.

Meaning, for every phase r and grid point g (the last axis only up to its lag: g and -g give the same)::

    What_r(g)[c, o] = sum over taps k of phase r: w[c, o, k] * exp(-2 pi i sum over axes g_a offset_a(k) / G_a)
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.terms import modulo, over


def weight_outputs(layout: Layout) -> int:
    """Output channels per block of the weight kernel: as many as 40 KB of weights hold, at most 32."""
    width = 32
    while width > 1 and 4 * width * (prod(layout.tap_sizes) | 1) > 40 * 1024:
        width //= 2
    if 4 * (prod(layout.tap_sizes) | 1) > 46 * 1024:
        raise ValueError("spectral energy: too many kernel taps for shared memory")
    return width


def weight_rows(layout: Layout) -> int:
    """Slices per block of the weight kernel."""
    return min(8, layout.slices_at_once)


def weight_kernel(layout: Layout) -> str:
    """The transform of the weights, axis by axis in registers."""
    kernel, axes = layout.kernel, layout.axes
    width, rows, taps = weight_outputs(layout), weight_rows(layout), prod(layout.tap_sizes)
    k0, k1, k2 = layout.phase_taps
    phases = [len(axis) for axis in layout.taps]
    half = axes[2].lag + 1
    if kernel.transposed:
        weight_row = f"(static_cast<long long>(group * {kernel.in_channels} + channel) * {kernel.out_channels} + o)"
    else:
        weight_row = f"(static_cast<long long>(group * {kernel.out_channels} + o) * {kernel.in_channels} + channel)"
    return f"""
// transformed[slice][g1][g0][channel][output], slice = (phase, g2).
static __global__ void __launch_bounds__({width * rows}) {layout.name}_weights(
    const float* __restrict__ weight, const float2* __restrict__ root0, const float2* __restrict__ root1,
    const float2* __restrict__ root2, const int* __restrict__ tap0, const int* __restrict__ tap1,
    const int* __restrict__ tap2, float2* __restrict__ transformed, int slice_begin, int slice_count) {{
  constexpr int TAPS = {taps}, PITCH = {taps | 1}, G0 = {axes[0].grid}, G1 = {axes[1].grid}, G2 = {axes[2].grid};
  constexpr int K0 = {k0}, K1 = {k1}, K2 = {k2}, OUTPUTS = {kernel.out_channels}, CHANNELS = {kernel.in_channels};
  __shared__ float taps[{width} * PITCH];
  const int blocks = (OUTPUTS + {width - 1}) / {width};
  const int group = blockIdx.x / blocks, o0 = blockIdx.x % blocks * {width}, channel = blockIdx.y;
  for (int i = threadIdx.y * {width} + threadIdx.x; i < {width} * TAPS; i += {width * rows}) {{
    const int o = o0 + i / TAPS;
    if (o < OUTPUTS) taps[i / TAPS * PITCH + i % TAPS] = __ldg(weight + {weight_row} * TAPS + i % TAPS);
  }}
  __syncthreads();
  const int slice = slice_begin + static_cast<int>(blockIdx.z) * {rows} + threadIdx.y, o = o0 + threadIdx.x;
  if (slice >= slice_begin + slice_count || o >= OUTPUTS) return;
  const int g2 = slice % {half}, phase = slice / {half};
  const int p2 = {modulo("phase", phases[2])}, p1 = {modulo(over("phase", phases[2]), phases[1])};
  const int p0 = {over("phase", phases[2] * phases[1])};

  // The last axis: real taps to complex values at g2.
  float2 v[K0][K1];
#pragma unroll
  for (int i = 0; i < K0; ++i) {{
#pragma unroll
    for (int j = 0; j < K1; ++j) {{
      const float* row = taps + threadIdx.x * PITCH +
                         (__ldg(tap0 + p0 * K0 + i) * {layout.tap_sizes[1]} + __ldg(tap1 + p1 * K1 + j)) * {
        layout.tap_sizes[2]
    };
      v[i][j] = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int k = 0; k < K2; ++k) {{
        const float2 root = __ldg(root2 + (p2 * K2 + k) * G2 + g2);
        const float value = row[__ldg(tap2 + p2 * K2 + k)];
        v[i][j].x = fmaf(value, root.x, v[i][j].x);
        v[i][j].y = fmaf(value, root.y, v[i][j].y);
      }}
    }}
  }}
  // Then axis 1 and axis 0.
  float2* target = transformed + static_cast<long long>(slice - slice_begin) * (G0 * G1) * CHANNELS * {layout.outputs} +
                   static_cast<long long>(channel) * {layout.outputs} + group * OUTPUTS + o;
#pragma unroll 1
  for (int g1 = 0; g1 < G1; ++g1) {{
    float2 u[K0];
#pragma unroll
    for (int i = 0; i < K0; ++i) u[i] = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int j = 0; j < K1; ++j) {{
      const float2 root = __ldg(root1 + (p1 * K1 + j) * G1 + g1);
#pragma unroll
      for (int i = 0; i < K0; ++i) {{
        u[i].x = fmaf(v[i][j].x, root.x, fmaf(-v[i][j].y, root.y, u[i].x));
        u[i].y = fmaf(v[i][j].x, root.y, fmaf(v[i][j].y, root.x, u[i].y));
      }}
    }}
    for (int g0 = 0; g0 < G0; ++g0) {{
      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < K0; ++i) {{
        const float2 root = __ldg(root0 + (p0 * K0 + i) * G0 + g0);
        sum.x = fmaf(u[i].x, root.x, fmaf(-u[i].y, root.y, sum.x));
        sum.y = fmaf(u[i].x, root.y, fmaf(u[i].y, root.x, sum.y));
      }}
      target[static_cast<long long>(g1 * G0 + g0) * CHANNELS * {layout.outputs}] = sum;
    }}
  }}
}}
""".strip()


def weight_blocks(layout: Layout) -> tuple[int, int]:
    """Blocks of the weight kernel over outputs and channels."""
    return (
        layout.kernel.groups * ceil(layout.kernel.out_channels / weight_outputs(layout)),
        layout.kernel.in_channels,
    )
