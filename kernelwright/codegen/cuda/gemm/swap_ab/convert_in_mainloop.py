"""How warps bring x as it lies in memory to a core whose weight goes into registers, and split it
(`Tiling.converts_left`).

Each of up to four warps has 32 positions, and shares nothing with the others: asynchronous copies bring what these
have in a step, three steps ahead of the one that the warp splits. A lane splits its position's 64 channels into float16
terms times a power of two and writes them to a stage, from which all products take them. That scale stays from step to
step until float16 does not hold a value of it; then the step is split again by one that leaves room for four times as
much, and whoever multiplies finds beside the stage what sums so far are to be multiplied by, and whether any are. At
last they are multiplied by the inverse.

Packed, x is read, written and read again by as many blocks as there are of output channels: 12 bytes an element and 4
more for each block. So read it is 4 bytes for each block. Of 256 x 524288 x 256, of 4 tiles in 33 parts (H100: 14 bytes
of memory in a cycle of a multiprocessor, 28 of L2), for a step of 64 channels, 128 positions and 128 output channels::

    memory         64 * 256 * 4 bytes, in 2 blocks        2340 cycles
    L2             64 * 256 * 4 bytes                     2340
    tensor cores   2 * 12 products of 128 * 64 * 16       1536
    shared memory  32 KB arrive, are read, leave as 32 KB, which products read three times: 192 KB    1500
    instructions   670 of a scheduler to multiply, 400 to split x    1070

and 248 steps on each multiprocessor: 0.35 ms predicted. Measured (one H100): 0.528 ms, the core 3,600 cycles a step, of
512 x 65536 x 512 3,400; packed 0.895, 0.44 of it the core. Both wait for the weight's loads, which are one step ahead
of their products (without them a quarter less), and for the warps that split (as much): registers for more of either
there are none.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.swap_ab.problem import RAW_PITCH, RAWS, WARP_POSITIONS, SwapAB, left_strides
from kernelwright.plan.expressions import loaded

INIT = """
  for (int i = threadIdx.x; i < 4 * STAGES; i += @THREADS@)
    reinterpret_cast<int*>(shared + STAGES * (STAGE_BYTES + 8 * POSITIONS))[i] = 0;  // scales that have changed"""

PRODUCE = """
    constexpr int RAWS = @RAWS@, RAW_FLOATS = @RAW_FLOATS@, DEPTH = 8 * CHUNKS;
    float* const raw = reinterpret_cast<float*>(shared + @RAW@) + warp * (RAWS * RAW_FLOATS);
    float2* const scales = reinterpret_cast<float2*>(shared + STAGES * STAGE_BYTES);
    int* const changes = reinterpret_cast<int*>(shared + STAGES * (STAGE_BYTES + 8 * POSITIONS));
    const int position = warp * 32 + lane;  // of a tile's
    // Of the steps of this warp, those that it has asked for: the part of a tile, how many of its steps are left, and
    // where this lane's first 16 bytes of the next one are.
    int asked_work = static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x), asked_left = 0;
    const float* from = nullptr;@ASKED_GUARDS@
    const auto ask = [&](int place) {
      if (asked_left == 0 && (asked_work += gridDim.x) < WORKS) {
        const int row_block = asked_work % @ROW_BLOCKS@, rest = asked_work / @ROW_BLOCKS@, part = rest % SPLIT;
        [[maybe_unused]] const int group = rest / SPLIT / @COLUMN_BLOCKS@;
        const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
        asked_left = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT) - begin;
        const long long row = row_block * @ROWS@LL + warp * 32 + @LANE_ROW@;
        const long long c = begin * static_cast<long long>(DEPTH) + @LANE_CHANNEL@;
        from = @LEFT@;@BEGIN_GUARDS@
      }
      if (asked_left > 0) {
        const unsigned to = kw_shared_address(raw + place * RAW_FLOATS) + @LANE_PLACE@;
#pragma unroll
        for (int i = 0; i < 16; ++i) kw_cp_async_16(to + i * @NEXT_PLACE@, from + i * @NEXT_FROM@LL@GIVEN@);
        from += @NEXT_STEP_LEFT@LL;
        --asked_left;@NEXT_GUARDS@
      }
      kw_cp_async_commit();
    };
    if (warp >= @WARPS@) asked_work = WORKS;
#pragma unroll 1
    for (int i = 0; i < RAWS; ++i) ask(i);
    int place = 0;
    for (int work = blockIdx.x; work < WORKS && warp < @WARPS@; work += gridDim.x) {
      // Tiles of other positions and the same channels of w follow each other, so that L2 holds these.
      const int row_block = work % @ROW_BLOCKS@, rest = work / @ROW_BLOCKS@, part = rest % SPLIT;
      [[maybe_unused]] const int group = rest / SPLIT / @COLUMN_BLOCKS@;
      const int begin = static_cast<int>(static_cast<long long>(DEPTHS) * part / SPLIT);
      const int end = static_cast<int>(static_cast<long long>(DEPTHS) * (part + 1) / SPLIT);
      float greatest = 0.0f;
      unsigned exponent = 253;  // of the scale: the first step finds what it has to be
#pragma unroll 1
      for (int step = begin; step < end; ++step) {
        kw_cp_async_wait<RAWS - 1>();
        __syncwarp();
        kw_barrier_wait(empty + 8 * stage, parity ^ 1);
        const float* const own = raw + place * RAW_FLOATS + lane * @PITCH@;
        uint4* const to = reinterpret_cast<uint4*>(shared + stage * STAGE_BYTES) + position;
        const unsigned before = exponent;
        for (bool again = true; again;) {
          const float scale = __uint_as_float(exponent << 23);
          float most = 0.0f;
#pragma unroll 1
          for (int chunk = 0; chunk < CHUNKS; chunk += 2) {
            // Pairs of channels go to one chunk and the next in turn.
            float x[16];
            unsigned high[8], low[8];
            @OWN@
#pragma unroll
            for (int e = 0; e < 16; ++e) most = fmaxf(most, fabsf(x[e]));
#pragma unroll
            for (int e = 0; e < 8; ++e) {
              const float first = x[2 * e] * scale, second = x[2 * e + 1] * scale;
              high[e] = kw_float16_pair(first, second);
              if (TERMS == 2)
                low[e] = kw_float16_pair(first - kw_float16_value(high[e]), second - kw_float16_value(high[e] >> 16));
            }
            if (position < POSITIONS) {
              uint4* const row = to + chunk * POSITIONS;
              row[0] = make_uint4(high[0], high[2], high[4], high[6]);
              row[POSITIONS] = make_uint4(high[1], high[3], high[5], high[7]);
              if (TERMS == 2) {
                row[CHUNKS * POSITIONS] = make_uint4(low[0], low[2], low[4], low[6]);
                row[(CHUNKS + 1) * POSITIONS] = make_uint4(low[1], low[3], low[5], low[7]);
              }
            }
          }
          // Where float16 does not hold them, a scale such that it would hold four times as much. What is not finite,
          // and NaN, is not finite in all sums of this position; they are computed again where it is remembered.
          again = most * scale >= 0x1p15f && most < INFINITY;
          if (again) exponent = min(266u - (__float_as_uint(most) >> 23), 253u);
          greatest = fmaxf(greatest, most);
          again = __any_sync(0xffffffffu, again);
        }
        // By what sums so far are multiplied, and by what they are at last.
        const unsigned ratio = exponent + 127 > before ? exponent + 127 - before : 0;
        if (position < POSITIONS)
          scales[stage * POSITIONS + position] =
              make_float2(__uint_as_float(ratio << 23), __uint_as_float((254u - exponent) << 23));
        const bool changed = __any_sync(0xffffffffu, exponent != before);
        if (lane == 0) changes[4 * stage + warp] = changed;
        kw_shared_written();
        __syncwarp();
        if (lane == 0) kw_barrier_arrive(full + 8 * stage);
        ask(place);
        if (++place == RAWS) place = 0;
        @NEXT_STAGE@
      }
      // Sums are of x itself at last: see below of w.
      const bool usual = greatest == 0.0f || (greatest > 0x1p-@USUAL@f && greatest < 0x1p@USUAL@f);
      const long long row = row_block * @ROWS@LL + position;
      if (position < POSITIONS && row < @BATCH@)
        atomicMax(reinterpret_cast<unsigned*>(left_scales) + row@SCALE_PLACE@, usual ? 0x3f800000u : 0x7f800000u);
    }
    kw_cp_async_wait<0>();"""

_OWN_ROWS = """
#pragma unroll
            for (int h = 0; h < 4; ++h) {
              const float4 four = *reinterpret_cast<const float4*>(own + 8 * chunk + 4 * h);
              x[4 * h] = four.x, x[4 * h + 1] = four.y, x[4 * h + 2] = four.z, x[4 * h + 3] = four.w;
            }"""
_OWN_LINES = """
#pragma unroll
            for (int e = 0; e < 16; ++e) x[e] = own[(8 * chunk + e) * 32];"""

PROMOTE = """
        // Sums are those of x times a scale of its position, which seldom changes; at last of x itself.
        const float4* const scale = reinterpret_cast<const float4*>(
            reinterpret_cast<const float2*>(shared + STAGES * STAGE_BYTES) + stage * POSITIONS + lane % 4 * 2);
        const uint4 changed = reinterpret_cast<const uint4*>(shared + STAGES * (STAGE_BYTES + 8 * POSITIONS))[stage];
        if ((changed.x | changed.y | changed.z | changed.w) != 0) {
#pragma unroll
          for (int i = 0; i < POSITIONS / 2; ++i) sums[i] *= i % 2 ? scale[i / 4 * 4].z : scale[i / 4 * 4].x;
        }
#pragma unroll
        for (int i = 0; i < POSITIONS / 2; ++i) sums[i] = fmaf(products[i], factor[i / 2 % 2], sums[i]);
        if (step + 1 == end) {
#pragma unroll
          for (int i = 0; i < POSITIONS / 2; ++i) sums[i] *= i % 2 ? scale[i / 4 * 4].w : scale[i / 4 * 4].y;
        }
        __syncwarp();
        if (lane == 0) kw_barrier_arrive(empty + 8 * stage);"""


def values(numbers: SwapAB) -> dict[str, object]:
    """What stands for names in the core's text, where x comes as it lies."""
    kernel, tiling = numbers.kernel, numbers.tiling
    position, group, channel = left_strides(kernel)
    by_channels, offset = channel == 1, loaded(kernel.left).index.offset
    left = f"in{loaded(kernel.left).buffer}" + (f" + {offset}LL" if offset else "") \
        + (f" + group * {group}LL" if kernel.groups > 1 else "") + f" + row * {position}LL + c * {channel}LL"
    # Of 16 bytes of a copy: lanes have so many of a line, which has that many floats.
    lanes, pitch = (16, RAW_PITCH) if by_channels else (8, WARP_POSITIONS)
    along, across = f"lane % {lanes} * 4", f"lane / {lanes}"
    # Rows, and channels, that there are from a lane's first ones on.
    ragged = [kernel.batch % numbers.positions > 0 or numbers.positions % WARP_POSITIONS > 0,
              kernel.in_channels % tiling.depth > 0]
    guards = [guard for guard, some in zip(("rows", "channels"), ragged, strict=True) if some]
    first = [f"{32 // lanes} * i < {guard}" if by_channels == (guard == "rows") else f"{guard} > 0"
             for guard in guards]
    most = {"rows": "@BATCH@LL - row > 32 ? 32 : static_cast<int>(@BATCH@LL - row)",
            "channels": "static_cast<int>(@IN_CHANNELS@LL - c)"}
    return {
        "PRODUCE": PRODUCE, "PROMOTE": PROMOTE, "FILLERS": numbers.warps, "INIT_SHARED": INIT,
        "OWN": (_OWN_ROWS if by_channels else _OWN_LINES).lstrip("\n"), "RAWS": RAWS,
        "RAW_FLOATS": numbers.raw_floats, "RAW": tiling.stages * (numbers.stage_bytes + 8 * numbers.positions + 16),
        "LANE_ROW": across if by_channels else along, "LANE_CHANNEL": along if by_channels else across,
        "LANE_PLACE": f"4 * ({across} * {pitch} + {along})", "NEXT_PLACE": 4 * 32 // lanes * pitch,
        "NEXT_FROM": 32 // lanes * (position if by_channels else channel), "NEXT_STEP_LEFT": tiling.depth * channel,
        "ASKED_GUARDS": f"\n    int {', '.join(f'{guard} = 0' for guard in guards)};  // that there are from there on"
        if guards else "", "BEGIN_GUARDS": "".join(f"\n        {guard} = {most[guard]};" for guard in guards),
        "NEXT_GUARDS": "\n        channels -= DEPTH;" * ragged[1],
        "GIVEN": f", {' && '.join(first)} ? 16 : 0" if first else "",
        "WARPS": numbers.warps, "LEFT": left, "BATCH": kernel.batch, "IN_CHANNELS": kernel.in_channels,
        "PITCH": RAW_PITCH if by_channels else 1,
        "SCALE_PLACE": f" * {kernel.groups} + group" if kernel.groups > 1 else ""}
