"""Tables, transformed weights, quadratic form and last sum of the CUDA spectral energy.

Meaning, for every phase r and grid point g (the last axis only up to its lag: g and -g give the same)::

    What_r(g)[c, o] = sum over taps k of phase r: w[c, o, k] * exp(-2 pi i sum over axes g_a offset_a(k) / G_a)
    partial[r, g][o] = weight(g) * real(sum over i, j of conj(What[i, o]) * Ahat(g)[i, j] * What[j, o])
    energy[o] = 1 / prod(G) * sum over r and g of partial[r, g][o]
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.spectral_dft import radices
from kernelwright.codegen.cuda.spectral_layout import Layout


def tables_kernel(layout: Layout) -> str:
    """Twiddles, fold tables, and the roots of unity of the taps, in double, rounded to float32."""
    name = layout.name
    cases = []
    for number, axis in enumerate(layout.axes):
        stages, rest, lines = radices(axis), axis.length, []
        position = "slot"
        for i, radix in enumerate(stages):
            step = rest // radix
            scale = prod(stages[:i])
            lines.append(f"frequency += {position} / {step} * {scale};")
            lines.append(f"{position} %= {step};")
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
  const int p2 = phase % {phases[2]}, p1 = phase / {phases[2]} % {phases[1]}, p0 = phase / {phases[2] * phases[1]};

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


def weight_blocks(layout: Layout) -> tuple[int, int]:
    """Blocks of the weight kernel over outputs and channels."""
    return (
        layout.kernel.groups * ceil(layout.kernel.out_channels / weight_outputs(layout)),
        layout.kernel.in_channels,
    )
