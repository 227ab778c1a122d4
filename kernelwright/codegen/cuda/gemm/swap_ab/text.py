"""The parts of the text of the core whose products have output channels as rows. ``@NAME@`` as in
`swap_ab`. Long ones are files beside this one."""

from __future__ import annotations

from kernelwright.codegen.source import part_beside, text_beside

#: Channels are neighbours in memory, and fours of them lie at multiples of 16 bytes.
TAKE_FOURS = """
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 four = @IN_BOUNDS@*reinterpret_cast<const float4*>(from + h * @APART@LL + 16 * k)@ELSE@;
      x[k][h][0] = four.x, x[k][h][1] = four.y, x[k][h][2] = four.z, x[k][h][3] = four.w;
    }"""
#: Output channels are, and pairs of them lie at multiples of 8 bytes.
TAKE_PAIRS = """
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 two = @IN_BOUNDS@*reinterpret_cast<const float2*>(from + (16 * k + e) * @APART@LL)@ELSE@;
      x[k][0][e] = two.x, x[k][1][e] = two.y;
    }"""
TAKE_SINGLY = """
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[k][h][e] = @IN_BOUNDS@from[h * @OWN_APART@LL + (16 * k + e) * @CHANNEL_APART@LL]@ELSE@;"""

SCALES = "right_scales[group * @OUT_CHANNELS@LL + o] = fast ? 1.0f : INFINITY;"
# Parts of a tile have parts of the channels: the greater of their scales counts, as bits.
SCALES_OF_PARTS = """atomicMax(reinterpret_cast<unsigned*>(right_scales) + group * @OUT_CHANNELS@LL + o,
                    fast ? 0x3f800000u : 0x7f800000u);"""

FINISH = """
      kw_part_sync(15, 128 * WORKERS);  // Scales are there, and the subtiles before have been read.
      @NAME@_results(@WRITTEN_ARGUMENTS@sums, reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES), worker, thread,
                     group, row_block, column_block);"""

MAKE_UP = """      // What tensor cores have cut off them.
#pragma unroll
      for (int i = 0; i < POSITIONS / 2; ++i) sums[i] = fmaf(sums[i], @LOST@f, sums[i]);
"""

PARTIAL = """
      float* const to = partial + thread
                        + ((part * @TILES@LL + partial_slot) * WORKERS + worker) * (POSITIONS / 2 * 128);
#pragma unroll
      for (int i = 0; i < POSITIONS / 2; ++i) to[i * 128] = sums[i];"""

FILL_TABLE = """
    @NAME@_columns(@COLUMN_ARGUMENTS@subtile + @FLOATS@, thread, group, column_block * @COLUMNS@);
    kw_part_sync(1 + worker, 128);"""

MERGE = "\n" + text_beside(__file__, "merge.cuh")

#: One warp brings x.
PRODUCE = "\n" + part_beside(__file__, "produce.cuh")
#: What the others do: nothing, or they bring the block's channels of w closer, to the second-level cache, as many steps
#: ahead as x is.
IDLE = """
      if (warp != 0) continue;"""
PREFETCH = "\n" + part_beside(__file__, "prefetch.cuh")
PROMOTE = """
        if (lane == 0) kw_barrier_arrive(empty + 8 * stage);
#pragma unroll
        for (int i = 0; i < POSITIONS / 2; ++i) sums[i] = fmaf(products[i], factor[i / 2 % 2], sums[i]);"""

FUNCTIONS = "\n" + text_beside(__file__, "functions.cuh")

#: Of the frame's kernel: its constants, its producers (one warpgroup), its consumers.
CONSTANTS = """\
  constexpr int COLUMNS = @COLUMNS@, POSITIONS = @POSITIONS@;         // of a tile: output channels, positions
  constexpr int CHUNKS = @CHUNKS@, TERMS = @TERMS@, WORKERS = @WORKERS@;  // chunks of 8 channels of a step; warpgroups
  constexpr int STAGES = @STAGES@, STAGE_BYTES = @STAGE_BYTES@, DEPTHS = @DEPTHS@, SPLIT = @SPLIT@;
  constexpr int WORKS = @WORKS@;  // parts of tiles"""
PRODUCERS = """\
  if (warp < 4) {  // the producers
    kw_registers_fewer<@FEWER@>();
    int stage = 0;
    unsigned parity = 0;@PRODUCE@
  }"""
CONSUMERS = part_beside(__file__, "consumers.cuh")
