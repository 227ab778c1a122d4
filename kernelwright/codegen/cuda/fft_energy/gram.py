"""Gram and fold kernels of the CUDA spectral energy.

Meaning, with B the fold tables (``spectral_tables.fold_matrix``, times 1/2 on the real axis where the
mirrored frequency is held too)::

    S(f)[i, j] = sum over n of conj(X[n, i, f]) * X[n, j, f]
    H(g)[i, j] = sum over the frequencies f held of B0[g0, f0] * B1[g1, f1] * B2[g2, f2] * S(f)[i, j]

and Ahat(g) = H(g) + conj(H(-g)), because S(-f) = conj(S(f)). The last axis is folded where S is formed:
a thread holds S of its channel pairs at one frequency and its sums over the frequencies of a line in
registers, so that S never reaches memory. The other axes are folded by a kernel each.
"""

from __future__ import annotations

from math import ceil, prod

from kernelwright.codegen.cuda.fft_energy.layout import Layout
from kernelwright.codegen.terms import grouped, modulo, over, times


def gram_shared(layout: Layout) -> int:
    """Bytes of dynamic shared memory of the Gram kernel."""
    return 8 * layout.gram_items * layout.frequencies_per_step * _plane(layout)


def _tile_channels(layout: Layout) -> int:
    return layout.tile * (1 if layout.channel_tiles == 1 else 2)


def _plane(layout: Layout) -> int:
    # 4 more complex numbers: the 4 frequencies that neighbouring lanes store fall into different banks.
    return layout.images_per_step * _tile_channels(layout) + 4


def gram_blocks(layout: Layout) -> int:
    """Blocks of the Gram kernel per tile pair."""
    return ceil(layout.lines / layout.gram_items) * layout.parts * layout.grid_chunks


def gram_kernel(layout: Layout) -> str:
    """Products of the spectrum over the batch, folded along the last axis."""
    axis = layout.axes[2]
    frequency_parts = ceil(axis.slots / layout.line_part)
    pitch = ceil(layout.grid_chunk / 4) * 4
    threads = layout.gram_threads
    sums = layout.rows_per_thread * 4 * layout.grid_chunk
    blocks = 2 if threads <= 128 else 1
    rows = layout.rows_per_thread
    return f"""
// folded[line][part][g][pair][i][j]: one block sums one part of {layout.gram_items} lines for one tile pair.
// A thread holds {rows} x 2 channel pairs at {layout.grid_chunk} grid points: {sums} registers.
static __global__ void __launch_bounds__({threads}, {blocks}) {layout.name}_gram(
    const float2* __restrict__ spectrum, const float* __restrict__ fold, float2* __restrict__ folded,
    int images, int pair_begin, int pair_count) {{
  constexpr int TILE = {layout.tile}, ROWS = {rows}, CHANNELS = {_tile_channels(layout)}, STEP = {
        layout.frequencies_per_step
    };
  constexpr int IMAGES = {layout.images_per_step}, PLANE = {_plane(layout)}, TILE_THREADS = {layout.tile_threads};
  constexpr int GRID = {axis.grid}, CHUNK = {layout.grid_chunk}, PITCH = {pitch};
  constexpr int SLOTS = {axis.slots}, PART = {layout.line_part}, ALL_CHANNELS = {layout.channels};
  constexpr int COLUMNS = TILE_THREADS / STEP;
  constexpr long long IMAGE = {layout.image}LL;
  __shared__ __align__(16) float factors[PART * PITCH];
  KW_DYNAMIC_SHARED(float2, data);

  // What this block computes.
  unsigned work = blockIdx.x;
  const int chunk = {modulo("work", layout.grid_chunks, "u")};
  work /= {layout.grid_chunks}u;
  const int part = {modulo("work", layout.parts, "u")};
  const int first = {modulo("part", frequency_parts)}{" * PART" * (frequency_parts > 1)};
  const int image_begin = {times(over("part", frequency_parts), layout.image_part)};
  const int image_end = image_begin + {layout.image_part} < images ? image_begin + {layout.image_part} : images;
  const int count = SLOTS - first < PART ? SLOTS - first : PART;
  const int slot = threadIdx.x / TILE_THREADS, lane = threadIdx.x % TILE_THREADS;
  const int line = {times(f"static_cast<int>({over('work', layout.parts, 'u')})", layout.gram_items)} + slot;
  const bool active = line < {layout.lines};
  const int pair = pair_begin + static_cast<int>(blockIdx.y);
  int column_tile = pair % {layout.pairs_per_group}, row_tile = 0;
  while (column_tile >= {layout.channel_tiles} - row_tile) column_tile -= {layout.channel_tiles} - row_tile++;
  column_tile += row_tile;
  const int group_channel = pair / {layout.pairs_per_group} * {layout.kernel.in_channels};
  const int width = row_tile == column_tile ? TILE : CHANNELS;

  for (int i = threadIdx.x; i < PART * PITCH; i += {threads}) {{
    const int f = i / PITCH, g = chunk * CHUNK + i % PITCH;
    factors[i] = f < count && g < GRID ? __ldg(fold + (first + f) * {axis.grid_pitch} + g) : 0.0f;
  }}

  // This thread's channels, and what it loads: one frequency of every COLUMNS-th channel.
  const int i0 = lane / (TILE / 2) * ROWS, j0 = lane % (TILE / 2) * 2;
  const int load_frequency = lane % STEP, load_channel = lane / STEP;
  float2* block_data = data + slot * (STEP * PLANE);
  const float2* rows = block_data + i0;
  const float2* columns = block_data + (width - TILE) + j0;
  float2 sums[CHUNK][ROWS][2];
#pragma unroll
  for (int g = 0; g < CHUNK; ++g)
#pragma unroll
    for (int i = 0; i < ROWS; ++i) sums[g][i][0] = sums[g][i][1] = make_float2(0.0f, 0.0f);

  for (int image = image_begin; image < image_end; image += IMAGES) {{
    for (int start = 0; start < count; start += STEP) {{
      __syncthreads();
      for (int c = load_channel; c < width; c += COLUMNS) {{
        const int channel = (c < TILE ? row_tile * TILE : column_tile * TILE - TILE) + c;
        const bool inside = active && start + load_frequency < count && channel < {layout.kernel.in_channels};
        const float2* source = spectrum + (static_cast<long long>(image) * ALL_CHANNELS + group_channel + channel) *
                                              IMAGE +
                               static_cast<long long>(line) * SLOTS + (first + start + load_frequency);
        float2* target = block_data + load_frequency * PLANE + c;
#pragma unroll 8
        for (int n = 0; n < IMAGES; ++n) {{
          target[n * CHANNELS] = inside && image + n < image_end ? __ldg(source + n * (ALL_CHANNELS * IMAGE))
                                                                 : make_float2(0.0f, 0.0f);
        }}
      }}
      __syncthreads();
#pragma unroll 1
      for (int f = 0; f < STEP; ++f) {{
        float2 products[ROWS][2];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) products[i][0] = products[i][1] = make_float2(0.0f, 0.0f);
#pragma unroll 4
        for (int n = 0; n < IMAGES; ++n) {{
          float2 a[ROWS];
#pragma unroll
          for (int i = 0; i < ROWS; i += 2) {{
            const float4 two = *reinterpret_cast<const float4*>(rows + f * PLANE + n * CHANNELS + i);
            a[i] = make_float2(two.x, two.y);
            a[i + 1] = make_float2(two.z, two.w);
          }}
          const float4 b = *reinterpret_cast<const float4*>(columns + f * PLANE + n * CHANNELS);
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {{
            products[i][0].x = fmaf(a[i].x, b.x, fmaf(a[i].y, b.y, products[i][0].x));
            products[i][0].y = fmaf(a[i].x, b.y, fmaf(-a[i].y, b.x, products[i][0].y));
            products[i][1].x = fmaf(a[i].x, b.z, fmaf(a[i].y, b.w, products[i][1].x));
            products[i][1].y = fmaf(a[i].x, b.w, fmaf(-a[i].y, b.z, products[i][1].y));
          }}
        }}
        const float* factor = factors + (start + f) * PITCH;
#pragma unroll
        for (int g = 0; g < CHUNK; ++g) {{
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {{
#pragma unroll
            for (int j = 0; j < 2; ++j) {{
              sums[g][i][j].x = fmaf(factor[g], products[i][j].x, sums[g][i][j].x);
              sums[g][i][j].y = fmaf(factor[g], products[i][j].y, sums[g][i][j].y);
            }}
          }}
        }}
      }}
    }}
  }}
  if (!active) return;
  const long long row = {times("static_cast<long long>(line)", layout.parts)} + part;
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) {{
    if (chunk * CHUNK + g >= GRID) break;
    float2* target = folded + ((row * GRID + chunk * CHUNK + g) * pair_count + blockIdx.y) * (TILE * TILE) +
                     i0 * TILE + j0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {{
      *reinterpret_cast<float4*>(target + i * TILE) =
          make_float4(sums[g][i][0].x, sums[g][i][0].y, sums[g][i][1].x, sums[g][i][1].y);
    }}
  }}
}}
""".strip()


def folds(layout: Layout) -> list[tuple[int, int]]:
    """The fold kernels in order: axis and number of partial sums that it adds first."""
    result, parts = [], layout.parts
    for number in (1, 0):
        axis = layout.axes[number]
        trivial = axis.slots == 1 and not axis.real
        if not trivial or (parts > 1 and number == 0):
            result.append((number, parts))
            parts = 1
    return result


def _fold_chunk(layout: Layout, number: int) -> int:
    axis = layout.axes[number]
    limit = 12 if axis.slots <= 64 else 8
    return ceil(axis.grid / ceil(axis.grid / limit))


def fold_grid(layout: Layout, number: int) -> tuple[int, int, int]:
    """Outer count, chunks of grid points, and inner complex numbers per tile pair of a fold kernel."""
    axes, entries = layout.axes, layout.tile * layout.tile
    chunks = ceil(axes[number].grid / _fold_chunk(layout, number))
    outer = prod(axis.slots for axis in axes[:number])
    return outer, chunks, prod(axis.grid for axis in axes[number + 1 :]) * entries


def fold_kernel(layout: Layout, number: int, parts: int) -> str:
    """Resampling of one axis, for sums over ``parts`` partial results."""
    axis, chunk = layout.axes[number], _fold_chunk(layout, number)
    _, chunks, _ = fold_grid(layout, number)
    double = axis.slots > 64
    shared = axis.slots * axis.grid_pitch <= 8192
    table = f"""  __shared__ float factors[{axis.slots * axis.grid_pitch}];
  for (int i = threadIdx.x; i < {axis.slots * axis.grid_pitch}; i += 128) factors[i] = __ldg(fold + i);
  __syncthreads();
""" if shared else "  const float* factors = fold;\n"
    add_parts = (
        f"""
    for (int part = 1; part < {parts}; ++part) {{
      const float4 more = __ldg(element + part * inner);
      value = make_float4(value.x + more.x, value.y + more.y, value.z + more.z, value.w + more.w);
    }}"""
        if parts > 1
        else ""
    )
    # Sums of more than 64 terms continue in double every 64 terms.
    totals = "  double totals[CHUNK][4] = {};\n" if double else ""
    flush = """
    if (m % 64 == 63 || m + 1 == SLOTS) {
#pragma unroll
      for (int g = 0; g < CHUNK; ++g) {
        totals[g][0] += sums[g].x, totals[g][1] += sums[g].y;
        totals[g][2] += sums[g].z, totals[g][3] += sums[g].w;
        sums[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      }
    }""" if double else ""
    result = (
        "make_float4(static_cast<float>(totals[g][0]), static_cast<float>(totals[g][1]),\n"
        "                           static_cast<float>(totals[g][2]), static_cast<float>(totals[g][3]))"
        if double
        else "sums[g]"
    )
    return f"""
// Axis {number}: {axis.slots} frequencies to {axis.grid} grid points; a thread owns two channel pairs.
static __global__ void __launch_bounds__(128) {layout.name}_fold{number}(
    const float4* __restrict__ source, const float* __restrict__ fold, float4* __restrict__ target,
    long long inner) {{
  constexpr int SLOTS = {axis.slots}, GRID = {axis.grid}, CHUNK = {chunk}, PITCH = {axis.grid_pitch};
{table}  const long long index = static_cast<long long>(blockIdx.x) * 128 + threadIdx.x;
  if (index >= inner) return;
  const int begin = {f"static_cast<int>(blockIdx.y % {chunks}u) * CHUNK" if chunks > 1 else "0"};
  const long long outer = {over("blockIdx.y", chunks, "u")};
  source += outer * (SLOTS * {parts}LL) * inner + index;
  target += (outer * GRID + begin) * inner + index;
  float4 sums[CHUNK];
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) sums[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
{totals}#pragma unroll 4
  for (int m = 0; m < SLOTS; ++m) {{
    const float4* element = source + m * {grouped(times("inner", parts))};
    float4 value = __ldg(element);{add_parts}
#pragma unroll
    for (int g = 0; g < CHUNK; ++g) {{
      const float factor = begin + g < GRID ? factors[m * PITCH + begin + g] : 0.0f;
      sums[g].x = fmaf(factor, value.x, sums[g].x);
      sums[g].y = fmaf(factor, value.y, sums[g].y);
      sums[g].z = fmaf(factor, value.z, sums[g].z);
      sums[g].w = fmaf(factor, value.w, sums[g].w);
    }}{flush}
  }}
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) {{
    if (begin + g < GRID) target[g * inner] = {result};
  }}
}}
""".strip()
