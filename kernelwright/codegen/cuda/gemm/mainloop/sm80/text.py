"""Templates of the contraction's core on mma.sync; ``@KEY@`` is replaced by the generator in ``core.py``.

Those for ``Tiling.converts_right`` stand in ``convert_text.py``; long ones are files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.source import text_beside

CORE = "\n" + text_beside(__file__, "core.cuh")

PACKED_COPY = text_beside(__file__, "packed_copy.cuh")

#: The same of a step's pair of taps: each has a line of its own.
PAIRED_COPY = text_beside(__file__, "paired_copy.cuh")

NOTE_ROWS = """
      if (threadIdx.x == 0) tap_rows[stage] = left_stage * LEFT_BYTES + static_cast<int>(tap[2]) * 16;
""".lstrip("\n")
#: Of a pair: the second tap's rows are the second chunk of x.
NOTE_PAIRED_ROWS = """
      if (threadIdx.x < 2)
        tap_rows[stage * 2 + threadIdx.x] = left_stage * LEFT_BYTES + static_cast<int>(tap[threadIdx.x ? 5 : 2]) * 16;
""".lstrip("\n")

PACKED_STEP = """
  if (steps)
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage);
#pragma unroll 1
  for (int step = 0, stage = 0; step < steps; ++step) {
    kw_cp_async_wait<STAGES - 2>();
    __syncthreads();  // The step's operands are there, and nobody reads those of the step before.
    copy(stage ? stage - 1 : STAGES - 1);
    const unsigned from_left = left_lane + tap_rows[@TAP_ROW@], from_right = right_lane + stage * RIGHT_BYTES;
""".lstrip("\n")

# What the epilogue needs of columns, behind the subtiles.
FILL_TABLE = """
  if (threadIdx.x < 128)
    @NAME@_columns(@COLUMN_ARGUMENTS@subtiles + SUBTILES * SUBTILE, threadIdx.x, place.group, place.first_column);
""".lstrip("\n")
FILL_CONVERT_TABLE = FILL_TABLE + "  __syncthreads();\n"

PROMOTE = """
          // The chain's sum leaves the tensor cores, which truncate: float32 additions round.
#pragma unroll
          for (int i = 0; i < TILE_ROWS; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[j + half][i][e] += part[i][e];"""

STAGE_PAIRS = """
      for (int e = 0; e < 4; e += 2)
        *reinterpret_cast<float2*>(to + (@SUM_ROW@) * @ROW_STRIDE@ + @SUM_COLUMN@) =
            make_float2(sums[j][i][e], sums[j][i][e + 1]);""".lstrip("\n")

STAGE_SINGLY = """
      for (int e = 0; e < 4; ++e)
        to[(@SUM_ROW@) * @ROW_STRIDE@ + (@SUM_COLUMN@) * @COLUMN_STRIDE@] = sums[j][i][e];""".lstrip("\n")
