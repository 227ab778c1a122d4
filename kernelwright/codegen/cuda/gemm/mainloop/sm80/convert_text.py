"""Templates of the core on mma.sync for ``Tiling.converts_right``: w is read once, as it lies in memory, and split in
the block. ``@KEY@`` as in ``text.py``; long ones are files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.source import text_beside

CONVERT_PLACES = """
  // w as it lies in memory, in stages of 32 channels; its terms follow, of this step and the next, and their scales.
  constexpr int CHANNELS = @CHANNELS@, OUT_CHANNELS = @OUT_CHANNELS@, FLOAT_BYTES = COLUMNS * 128;
  static_assert(CHUNKS == 4 && COLUMNS == 32 * WARPS, "a thread splits 32 channels of one column");
  const unsigned float_buffer = right_buffer + 2 * RIGHT_BYTES;
  float* const factors = reinterpret_cast<float*>(shared + LEFT_STAGES * LEFT_BYTES + 2 * RIGHT_BYTES
                                                  + STAGES * FLOAT_BYTES);
  // Greatest magnitudes of columns so far, as bits, each its thread's own: registers are short.
  unsigned* const greatest = reinterpret_cast<unsigned*>(factors + 2 * COLUMNS) + threadIdx.x;
  *greatest = 0;
""".lstrip("\n")

#: Channels are neighbours in memory. A column's 16-byte vectors are rotated by its number: eight columns, eight banks.
CONVERT_COPY_CHANNELS = """
      const float* const from = @WEIGHT@;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int column = threadIdx.x / 8 + i * (COLUMNS / 8), vector = threadIdx.x % 8;
        const int channel = next_depth * 32 + vector * 4, o = place.first_column + column;
        const int given = o < OUT_CHANNELS ? min(max(CHANNELS - channel, 0), 4) * 4 : 0;
        kw_cp_async_16(float_buffer + stage * FLOAT_BYTES + column * 128 + (vector ^ column % 8) * 16,
                       from + (given ? o * @WEIGHT_STRIDE@LL + channel : 0), given);
      }
""".lstrip("\n")

CONVERT_READ_CHANNELS = """
#pragma unroll
    for (int vector = 0; vector < 8; ++vector) {
      const float4 four = reinterpret_cast<const float4*>(from)[threadIdx.x * 8 + (vector ^ threadIdx.x % 8)];
      w[vector * 4] = four.x, w[vector * 4 + 1] = four.y, w[vector * 4 + 2] = four.z, w[vector * 4 + 3] = four.w;
    }
""".lstrip("\n")

#: Output channels are neighbours in memory.
CONVERT_COPY_COLUMNS = """
      const float* const from = @WEIGHT@;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int row = threadIdx.x / (COLUMNS / 4) + i * 4, vector = threadIdx.x % (COLUMNS / 4);
        const int channel = next_depth * 32 + row, o = place.first_column + vector * 4;
        const int given = channel < CHANNELS ? min(max(OUT_CHANNELS - o, 0), 4) * 4 : 0;
        kw_cp_async_16(float_buffer + stage * FLOAT_BYTES + (row * COLUMNS + vector * 4) * 4,
                       from + (given ? channel * @WEIGHT_STRIDE@LL + o : 0), given);
      }
""".lstrip("\n")

CONVERT_READ_COLUMNS = """
#pragma unroll
    for (int c = 0; c < 32; ++c) w[c] = from[c * COLUMNS + threadIdx.x];
""".lstrip("\n")

CONVERT_STEP = text_beside(__file__, "convert_step.cuh")

CONVERT_AFTER = """
    if (!early && step + 1 < steps) split(stage + 1 == STAGES ? 0 : stage + 1, (step + 1) % 2);
""".lstrip("\n")

CONVERT_SCALES = """
  // Sums are of w itself. Where that is not finite, or so large or small that sums in float32 might not hold it, the
  // epilogue is told to compute them again.
  if (place.first_column + static_cast<int>(threadIdx.x) < OUT_CHANNELS) {
    const float size = __uint_as_float(*greatest);
    const bool fast = size == 0.0f || (size > 0x1p-80f && size < 0x1p80f);
    right_scales[place.group * @OUT_CHANNELS@LL + place.first_column + threadIdx.x] = fast ? 1.0f : INFINITY;
  }
  __syncthreads();  // Subtiles may lie where the magnitudes do.

""".lstrip("\n")

CONVERT_WRITTEN = """
  right_scales = kw_written(right_scales);
""".lstrip("\n")

CONVERT_PROMOTE = """
          // The chain's sum leaves the tensor cores, which truncate: float32 additions round. Columns have scales.
          const float2 two = *reinterpret_cast<const float2*>(factor + (j + half) * 8);
#pragma unroll
          for (int i = 0; i < TILE_ROWS; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              sums[j + half][i][e] = fmaf(part[i][e], e % 2 ? two.y : two.x, sums[j + half][i][e]);"""
