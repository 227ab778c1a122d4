"""The parts of the text of the core whose products have output channels as rows. ``@NAME@`` as in
`swap_ab`."""

from __future__ import annotations

#: Channels are neighbours in memory, and fours of them lie at multiples of 16 bytes.
TAKE_FOURS = """
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float4 four = @THERE@*reinterpret_cast<const float4*>(from + h * @APART@LL + 16 * k)@ELSE@;
      x[k][h][0] = four.x, x[k][h][1] = four.y, x[k][h][2] = four.z, x[k][h][3] = four.w;
    }"""
#: Output channels are, and pairs of them lie at multiples of 8 bytes.
TAKE_PAIRS = """
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float2 two = @THERE@*reinterpret_cast<const float2*>(from + (16 * k + e) * @APART@LL)@ELSE@;
      x[k][0][e] = two.x, x[k][1][e] = two.y;
    }"""
TAKE_SINGLY = """
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[k][h][e] = @THERE@from[h * @OWN_APART@LL + (16 * k + e) * @CHANNEL_APART@LL]@ELSE@;"""

SCALES = "right_scales[group * @OUT_CHANNELS@LL + o] = usual ? 1.0f : INFINITY;"
# Parts of a tile have parts of the channels: the greater of their scales counts, as bits.
SCALES_OF_PARTS = """atomicMax(reinterpret_cast<unsigned*>(right_scales) + group * @OUT_CHANNELS@LL + o,
                    usual ? 0x3f800000u : 0x7f800000u);"""

FINISH = """
      kw_part_sync(15, 128 * WORKERS);  // Scales are there, and the slabs before have been read.
      @NAME@_results(@WRITTEN_ARGUMENTS@sums, reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES), worker, thread,
                     group, row_block, column_block);"""

MAKE_UP = """      // What tensor cores have cut off them.
#pragma unroll
      for (int i = 0; i < POSITIONS / 2; ++i) sums[i] = fmaf(sums[i], @LOST@f, sums[i]);
"""

PARTIAL = """
      float* const to = partial + ((part * @TILES@LL + cell) * WORKERS + worker) * (POSITIONS / 2 * 128) + thread;
#pragma unroll
      for (int i = 0; i < POSITIONS / 2; ++i) to[i * 128] = sums[i];"""

FILL_TABLE = """
    @NAME@_columns(@COLUMN_ARGUMENTS@slab + @FLOATS@, thread, group, column_block * @COLUMNS@);
    kw_part_sync(1 + worker, 128);"""

MERGE = """
// Adds the parts of a tile in order, and finishes them.
static __global__ void __launch_bounds__(128 * @WORKERS@) @NAME@_merge(
    const float* __restrict__ partial@MERGE_PARAMETERS@) {
  KW_DYNAMIC_SHARED(float, slabs);
  const int worker = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int row_block = blockIdx.x % @ROW_BLOCKS@u, rest = blockIdx.x / @ROW_BLOCKS@u;
  const int column_block = rest % @COLUMN_BLOCKS@, group = rest / @COLUMN_BLOCKS@;
  constexpr long long PART = @TILES@LL * @WORKERS@ * (@POSITIONS@ / 2 * 128);
  const float* const from = partial + (blockIdx.x * @WORKERS@LL + worker) * (@POSITIONS@ / 2 * 128) + thread;
  float sums[@POSITIONS@ / 2];
#pragma unroll
  for (int i = 0; i < @POSITIONS@ / 2; ++i) sums[i] = from[i * 128];
  for (int part = 1; part < @PARTS_LEFT@; ++part)
#pragma unroll
    for (int i = 0; i < @POSITIONS@ / 2; ++i) sums[i] += from[part * PART + i * 128];
  @NAME@_results(@ARGUMENTS@sums, slabs, worker, thread, group, row_block, column_block);
}
"""

#: One warp brings x.
PRODUCE = """
    for (int work = blockIdx.x; work < WORKS; work += gridDim.x) {
      // Tiles of other positions and the same channels of w follow each other, so that L2 holds these.
      const int row_block = work % @ROW_BLOCKS@, rest = work / @ROW_BLOCKS@, part = rest % SPLIT;
      const int group = rest / SPLIT / @COLUMN_BLOCKS@;
      const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT);@OTHERS@
      for (int step = begin; step < end; ++step) {
        kw_barrier_wait(empty + 8 * stage, parity ^ 1);
        __syncwarp();
        if (lane == 0) kw_barrier_expect(full + 8 * stage, STAGE_BYTES);
        __syncwarp();
        for (int line = lane; line < TERMS * CHUNKS; line += 32) {
          const unsigned short* const from = left + line / CHUNKS * @LEFT_TERM@LL +
              (group * (@ALL_CHUNKS@LL * @ALL_ROWS@) + row_block * (@ALL_CHUNKS@LL * @ROWS@) +
               (step * CHUNKS + line % CHUNKS) * @ROWS@LL) * 8;
          const unsigned to = stages + stage * STAGE_BYTES + line * (POSITIONS * 16);
          kw_bulk_copy(to, from, POSITIONS * 16, full + 8 * stage);
        }
        @NEXT_STAGE@
      }
    }"""
#: What the others do: nothing, or they bring the block's channels of w closer, to the second-level cache, as many steps
#: ahead as x is.
IDLE = """
      if (warp != 0) continue;"""
PREFETCH = """
      if (warp != 0) {
        const int column_block = rest / SPLIT % @COLUMN_BLOCKS@;
        for (int step = begin; step < end; ++step) {
          kw_barrier_wait(empty + 8 * stage, parity ^ 1);
          for (int line = 32 * (warp - 1) + lane; line < 2 * COLUMNS; line += 96) {  // of 128 bytes
            const long long o = column_block * COLUMNS + @LINE_COLUMN@, c = step * @DEPTH@LL + @LINE_CHANNEL@;
            if (o < @OUT_CHANNELS@ && c < @IN_CHANNELS@) kw_prefetch(@WEIGHT_OF_LINE@);
          }
          @NEXT_STAGE@
        }
        continue;
      }"""
PROMOTE = """
        if (lane == 0) kw_barrier_arrive(empty + 8 * stage);
#pragma unroll
        for (int i = 0; i < POSITIONS / 2; ++i) sums[i] = fmaf(products[i], factor[i / 2 % 2], sums[i]);"""

FUNCTIONS = """
// A thread's part of w in a step, which begins at `from`: of rows o and o + 1 four channels of every 16. What products
// take as their terms k, k + 1, k + 8, k + 9 are four neighbours; x is packed in the same order.
static __device__ __forceinline__ void @NAME@_take(const float* __restrict__ from, float (&x)[4][2][4]@WHERE@) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {@TAKE@
  }
}

// Splits them into float16 terms, times the power of two that brings the greatest of a row's channels into
// [2^14, 2^15); `factor` is its inverse, `greatest` the greatest magnitude of a row so far. What is not finite, and
// NaN, is not finite in all sums of its row; where it is in `greatest` they are computed again. Four lanes have a row.
static __device__ __forceinline__ void @NAME@_split(const float (&x)[4][2][4], unsigned (&high)[4][4],
                                                    unsigned (&low)[4][4], float (&factor)[2], float (&greatest)[2]) {
  constexpr int TERMS = @TERMS@;
  float most[2] = {};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int e = 0; e < 4; ++e) most[h] = fmaxf(most[h], fabsf(x[k][h][e]));
#pragma unroll
    for (int lanes = 1; lanes < 4; lanes *= 2) most[h] = fmaxf(most[h], __shfl_xor_sync(0xffffffffu, most[h], lanes));
    greatest[h] = fmaxf(greatest[h], most[h]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const unsigned exponent = min(268u - (__float_as_uint(most[h]) >> 23), 253u);
    const float scale = __uint_as_float(exponent << 23);
    factor[h] = __uint_as_float((254u - exponent) << 23);
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float first = x[k][h][2 * i] * scale, second = x[k][h][2 * i + 1] * scale;
        high[k][h + 2 * i] = kw_float16_pair(first, second);
        if (TERMS == 2)
          low[k][h + 2 * i] = kw_float16_pair(first - kw_float16_value(high[k][h + 2 * i]),
                                              second - kw_float16_value(high[k][h + 2 * i] >> 16));
      }
  }
}

// Finishes a tile: its warpgroups put their sums into slabs of 64 positions, and finish one of these each.
static __device__ __forceinline__ void @NAME@_results(
    @FINISH_PARAMETERS@, const float (&sums)[@POSITIONS@ / 2], float* slabs, int worker, int thread, int group,
    int row_block, int column_block) {
  constexpr int COLUMNS = @COLUMNS@, SLAB_COLUMNS = @SLAB_COLUMNS@, ACROSS = COLUMNS / SLAB_COLUMNS;
  // Of a thread's sums: the slab, the first channel in it, the first position.
  const int channel = worker * 64 % SLAB_COLUMNS + @OWN_CHANNEL@, position = @OWN_PLACE@;
  float* const own = slabs + worker * 64 / SLAB_COLUMNS * @SLAB@;
#pragma unroll
  for (int j = 0; j < @ROWS@ / 8; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      own[j / 8 * ACROSS * @SLAB@ + (@BLOCK_PLACE@ + position + @PAIR_PLACE@) * @ROW_STRIDE@ +
          (channel + @HALF_CHANNEL@) * @COLUMN_STRIDE@] = j < @POSITIONS@ / 8 ? sums[4 * j + e] : 0.0f;
  kw_part_sync(15, 128 * @WORKERS@);
#pragma unroll 1
  for (int number = worker; number < @SLABS@; number += @WORKERS@) {
    float* const slab = slabs + number * @SLAB@;
    const long long first_row = row_block * @ROWS@LL + number / ACROSS * 64;@FILL_TABLE@
    @NAME@_finish(@ARGUMENTS@slab@COLUMN_TABLE@@ROW_SCALE@, thread, 0, group, first_row,
                  column_block * COLUMNS + number % ACROSS * SLAB_COLUMNS);
  }
}
"""

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
CONSUMERS = """\
    @MORE@
    const int worker = warp / 4 - 1, thread = threadIdx.x % 128;
    int stage = 0;
    unsigned parity = 0@TURN@;
    for (int work = blockIdx.x; work < WORKS; work += gridDim.x) {
      const int row_block = work % @ROW_BLOCKS@, rest = work / @ROW_BLOCKS@, part = rest % SPLIT;
      const int column_block = rest / SPLIT % @COLUMN_BLOCKS@, group = rest / SPLIT / @COLUMN_BLOCKS@;
      [[maybe_unused]] const int cell = (group * @COLUMN_BLOCKS@ + column_block) * @ROW_BLOCKS@ + row_block;
      const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT);
      const int first = column_block * COLUMNS + worker * 64 + thread / 4 * 2;  // of two output channels
      const float* from = @WEIGHT@;
      float sums[POSITIONS / 2] = {}, x[4][2][4];
      float greatest[2] = {};
      @NAME@_take(from, x@FIRST_STEP@);
#pragma unroll 1
      for (int step = begin; step < end; ++step) {
        unsigned high[4][4], low[4][4];
        float factor[2], products[POSITIONS / 2];
        @NAME@_split(x, high, low, factor, greatest);
        // On its way while this step's products are formed.
        from += @STEP@;
        if (step + 1 < end) @NAME@_take(from, x@NEXT_STEP@);
        kw_barrier_wait(full + 8 * stage, parity);
        __syncwarp();
        const unsigned long long right = kw_operand(stages + stage * STAGE_BYTES, POSITIONS * 16);
@AWAIT_ORDER@        kw_wgmma_fence();
        // Terms of w and x: low high, high low, high high. Low ones come first, because tensor cores cut sums.
#pragma unroll
        @PAIRS@
#pragma unroll
          for (int k = 0; k < 4; ++k)
            kw_wgmma_f16(products, pair == 0 ? low[k] : high[k],
                         right + (pair == 1 ? CHUNKS * POSITIONS : 0) + 2 * k * POSITIONS,
                         pair > @FIRST_PAIR@ || k > 0);
        }
        kw_wgmma_commit();@PASS_ORDER@
        kw_wgmma_wait<0>();
        kw_wgmma_hold(products);@PROMOTE@
        @NEXT_STAGE@
      }
@MAKE_UP@      // Sums are of w itself. Where that is not finite, or so large or small that sums in float32 might not
      // hold it, the epilogue is told to compute them again.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool usual = greatest[h] == 0.0f || (greatest[h] > 0x1p-@USUAL@f && greatest[h] < 0x1p@USUAL@f);
        const int o = first + h;
        if (lane % 4 == 0 && o < @OUT_CHANNELS@) {
          @SCALES@
        }
      }@RESULTS@
    }"""
