"""CUDA text of the quadratic form and the last sum of the spectral energy.

Meaning, with the transformed weights What of `fft_energy.weights`, for every phase r and grid point g::

    partial[r, g][o] = weight(g) * real(sum over i, j of conj(What[i, o]) * Ahat(g)[i, j] * What[j, o])
    energy[o] = 1 / prod(G) * sum over r and g of partial[r, g][o]
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.fft_energy.layout import Layout


def quadratic_outputs(layout: Layout) -> int:
    """Output channels of one block of the quadratic kernel."""
    count = layout.kernel.out_channels
    return 64 if count > 32 else 32 if count > 16 else 16


def quadratic_shape(layout: Layout) -> tuple[int, int]:
    """Threads per grid point and grid points per block."""
    threads = layout.tile // 4 * (quadratic_outputs(layout) // 4)
    return threads, max(1, 64 // threads)


def quadratic_kernel(layout: Layout) -> str:
    """The quadratic form at one grid point for a tile of output channels."""
    kernel, axes = layout.kernel, layout.axes
    width = quadratic_outputs(layout)
    threads, points = quadratic_shape(layout)
    half = axes[2].lag + 1
    return f"""
// partial[slice][g1][g0][output] (+)= weight * real(sum over i, j of conj(W[i]) * Ahat[i][j] * W[j]), in double.
// A thread sums U[j] = sum over i of Ahat[i][j] * conj(W[i]) for 4 channels j and 4 outputs.
static __global__ void __launch_bounds__({threads * points}) {layout.name}_quadratic(
    const float2* __restrict__ folded, const float2* __restrict__ transformed, double* __restrict__ partial,
    int pair_begin, int pair_count, int slice_begin, int slice_count, int first) {{
  constexpr int TILE = {layout.tile}, WIDTH = {width}, POINTS = {points}, THREADS = {threads};
  constexpr int CHANNELS = {kernel.in_channels}, OUTPUTS = {kernel.out_channels}, ALL_OUTPUTS = {layout.outputs};
  constexpr int G0 = {axes[0].grid}, G1 = {axes[1].grid}, G2 = {axes[2].grid}, PAIRS = {layout.pairs_per_group};
  __shared__ __align__(16) float2 gram[POINTS][TILE][TILE];
  __shared__ __align__(16) float2 weights[POINTS][2][TILE][WIDTH];
  __shared__ double columns[POINTS][TILE / 4][WIDTH];
  const int slot = threadIdx.y, thread = threadIdx.x;
  const int index = blockIdx.x * POINTS + slot;
  const bool active = index < slice_count * (G0 * G1);
  const int g0 = index % G0, g1 = index / G0 % G1, g2 = (slice_begin + index / (G0 * G1)) % {half};
  const int mirror0 = (G0 - g0) % G0, mirror1 = (G1 - g1) % G1, mirror2 = (G2 - g2) % G2;
  const long long point = (static_cast<long long>(g0) * G1 + g1) * G2 + g2;
  const long long mirror = (static_cast<long long>(mirror0) * G1 + mirror1) * G2 + mirror2;
  const int group = blockIdx.z, output0 = blockIdx.y * WIDTH;
  const float2* points_weights =
      transformed + static_cast<long long>(index) * CHANNELS * ALL_OUTPUTS + group * OUTPUTS + output0;
  const int o0 = thread % (WIDTH / 4) * 4, j0 = thread / (WIDTH / 4) * 4;
  float2* own_gram = &gram[slot][0][0];
  float2* own_weights = &weights[slot][0][0][0];
  double energy[4] = {{0.0, 0.0, 0.0, 0.0}};

  int row_tile = 0, column_tile = -1;
  for (int pair = group * PAIRS; pair < (group + 1) * PAIRS; ++pair) {{
    if (++column_tile == {layout.channel_tiles}) column_tile = ++row_tile;
    if (pair < pair_begin || pair >= pair_begin + pair_count) continue;
    __syncthreads();
    const long long own = (point * pair_count + (pair - pair_begin)) * (TILE * TILE);
    const long long other = (mirror * pair_count + (pair - pair_begin)) * (TILE * TILE);
    for (int i = thread; i < TILE * TILE; i += THREADS) {{
      float2 value = make_float2(0.0f, 0.0f);
      if (active) {{
        const float2 a = __ldg(folded + own + i), b = __ldg(folded + other + i);
        value = make_float2(a.x + b.x, a.y - b.y);
      }}
      own_gram[i] = value;
    }}
    for (int i = thread; i < 2 * TILE * WIDTH; i += THREADS) {{
      const int side = i / (TILE * WIDTH), c = i / WIDTH % TILE, o = i % WIDTH;
      const int channel = (side == 0 ? row_tile : column_tile) * TILE + c;
      own_weights[i] = active && channel < CHANNELS && output0 + o < OUTPUTS
                                   ? __ldg(points_weights + static_cast<long long>(channel) * ALL_OUTPUTS + o)
                                   : make_float2(0.0f, 0.0f);
    }}
    __syncthreads();
    float2 sums[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int o = 0; o < 4; ++o) sums[j][o] = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (int i = 0; i < TILE; ++i) {{
      float2 a[4], w[4];
#pragma unroll
      for (int k = 0; k < 4; k += 2) {{
        const float4 x = *reinterpret_cast<const float4*>(&gram[slot][i][j0 + k]);
        const float4 y = *reinterpret_cast<const float4*>(&weights[slot][0][i][o0 + k]);
        a[k] = make_float2(x.x, x.y), a[k + 1] = make_float2(x.z, x.w);
        w[k] = make_float2(y.x, y.y), w[k + 1] = make_float2(y.z, y.w);
      }}
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
#pragma unroll
        for (int o = 0; o < 4; ++o) {{
          sums[j][o].x = fmaf(a[j].x, w[o].x, fmaf(a[j].y, w[o].y, sums[j][o].x));
          sums[j][o].y = fmaf(a[j].y, w[o].x, fmaf(-a[j].x, w[o].y, sums[j][o].y));
        }}
      }}
    }}
    // Tiles off the diagonal stand for their mirror image too.
    const float twice = row_tile == column_tile ? 1.0f : 2.0f;
#pragma unroll
    for (int o = 0; o < 4; ++o) {{
      float value = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        const float2 w = weights[slot][1][j0 + j][o0 + o];
        value = fmaf(w.x, sums[j][o].x, fmaf(-w.y, sums[j][o].y, value));
      }}
      energy[o] += static_cast<double>(twice * value);
    }}
  }}
#pragma unroll
  for (int o = 0; o < 4; ++o) columns[slot][j0 / 4][o0 + o] = energy[o];
  __syncthreads();
  if (!active) return;
  const double weight = g2 == 0 ? 1.0 : 2.0;
  for (int o = thread; o < WIDTH && output0 + o < OUTPUTS; o += THREADS) {{
    double total = 0.0;
    for (int j = 0; j < TILE / 4; ++j) total += columns[slot][j][o];
    double* target = partial + (static_cast<long long>(slice_begin) * (G0 * G1) + index) * ALL_OUTPUTS +
                     group * OUTPUTS + output0 + o;
    *target = (first ? 0.0 : *target) + weight * total;
  }}
}}
""".strip()


def energy_kernel(layout: Layout) -> str:
    """The sum over phases and grid points."""
    rows = layout.slices * layout.slice
    scale = prod(axis.grid for axis in layout.axes)
    return f"""
// energy[output]: the sum of {rows} partial energies over {scale} grid points, in a fixed order.
static __global__ void __launch_bounds__(256) {layout.name}_energy(
    const double* __restrict__ partial, double* __restrict__ energy) {{
  __shared__ double sums[32][9];
  const int lane = threadIdx.x % 8, row = threadIdx.x / 8, output = blockIdx.x * 8 + lane;
  double total = 0.0;
  if (output < {layout.outputs}) {{
    for (int i = row; i < {rows}; i += 32) total += partial[static_cast<long long>(i) * {layout.outputs} + output];
  }}
  sums[row][lane] = total;
  __syncthreads();
  for (int half = 16; half > 0; half /= 2) {{
    if (row < half) sums[row][lane] += sums[row + half][lane];
    __syncthreads();
  }}
  if (row == 0 && output < {layout.outputs}) energy[output] = sums[0][lane] / {scale}.0;
}}
""".strip()
