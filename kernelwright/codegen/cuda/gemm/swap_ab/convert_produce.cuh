    constexpr int FLOAT_STEPS = @FLOAT_STEPS@, STEP_FLOATS = @STEP_FLOATS@, DEPTH = 8 * CHUNKS;
    float* const floats = reinterpret_cast<float*>(shared + @FLOATS_AT@) + warp * (FLOAT_STEPS * STEP_FLOATS);
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
        const unsigned to = kw_shared_address(floats + place * STEP_FLOATS) + @LANE_PLACE@;
#pragma unroll
        for (int i = 0; i < 16; ++i) kw_cp_async_16(to + i * @NEXT_PLACE@, from + i * @NEXT_FROM@LL@GIVEN@);
        from += @NEXT_STEP_LEFT@LL;
        --asked_left;@NEXT_GUARDS@
      }
      kw_cp_async_commit();
    };
    if (warp >= @WARPS@) asked_work = WORKS;
#pragma unroll 1
    for (int i = 0; i < FLOAT_STEPS; ++i) ask(i);
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
        kw_cp_async_wait<FLOAT_STEPS - 1>();
        __syncwarp();
        kw_barrier_wait(empty + 8 * stage, parity ^ 1);
        const float* const own = floats + place * STEP_FLOATS + lane * @PITCH@;
        uint4* const to = reinterpret_cast<uint4*>(shared + stage * STAGE_BYTES) + position;
        const unsigned before = exponent;
        for (bool wrong = true; wrong;) {
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
          wrong = most * scale >= 0x1p15f && most < INFINITY;
          if (wrong) exponent = min(266u - (__float_as_uint(most) >> 23), 253u);
          greatest = fmaxf(greatest, most);
          wrong = __any_sync(0xffffffffu, wrong);
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
        if (++place == FLOAT_STEPS) place = 0;
        @NEXT_STAGE@
      }
      // Sums are of x itself at last: see below of w.
      const bool fast = greatest == 0.0f || (greatest > 0x1p-@FAST_EXPONENT@f && greatest < 0x1p@FAST_EXPONENT@f);
      const long long row = row_block * @ROWS@LL + position;
      if (position < POSITIONS && row < @BATCH@)
        atomicMax(reinterpret_cast<unsigned*>(left_scales) + row@SCALE_PLACE@, fast ? 0x3f800000u : 0x7f800000u);
    }
    kw_cp_async_wait<0>();
