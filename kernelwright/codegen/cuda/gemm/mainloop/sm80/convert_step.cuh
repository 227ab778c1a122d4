  // Splits 32 channels of the thread's column into float16 terms, times the power of two that brings the greatest into
  // [2^14, 2^15). The step's sums are multiplied by its inverse when they leave the tensor cores, so a step may have a
  // scale of its own: w is read once. What is not finite is taken as 0 and remembered as infinite.
  const auto split = [&](int stage, int buffer) {
    const float* from = reinterpret_cast<const float*>(shared + LEFT_STAGES * LEFT_BYTES + 2 * RIGHT_BYTES
                                                       + stage * FLOAT_BYTES);
    float w[32];
@READ@    unsigned most = 0;
#pragma unroll
    for (int c = 0; c < 32; ++c) most = max(most, __float_as_uint(w[c]) & 0x7fffffffu);
    *greatest = max(*greatest, min(most, 0x7f800000u));
    if (most >= 0x7f800000u) {
      most = 0;
#pragma unroll
      for (int c = 0; c < 32; ++c) {
        w[c] = fabsf(w[c]) < INFINITY ? w[c] : 0.0f;
        most = max(most, __float_as_uint(w[c]) & 0x7fffffffu);
      }
    }
    const unsigned exponent = min(268u - (most >> 23), 253u);
    const float scale = __uint_as_float(exponent << 23);
    factors[buffer * COLUMNS + threadIdx.x] = __uint_as_float((254u - exponent) << 23);
    uint4* const to = reinterpret_cast<uint4*>(shared + LEFT_STAGES * LEFT_BYTES + buffer * RIGHT_BYTES) + threadIdx.x;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
      unsigned terms[TERMS][8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float value = w[chunk * 8 + c] * scale;
        terms[0][c] = kw_float16_bits(value);
        if (TERMS == 2) terms[TERMS - 1][c] = kw_float16_bits(value - kw_float16_value(terms[0][c]));
      }
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
        to[(term * CHUNKS + chunk) * COLUMNS] =
            make_uint4(terms[term][0] | terms[term][1] << 16, terms[term][2] | terms[term][3] << 16,
                       terms[term][4] | terms[term][5] << 16, terms[term][6] | terms[term][7] << 16);
    }
  };
  // Of the warps that share a scheduler one splits before it multiplies, the other afterwards.
  const bool early = WARPS == 4 || warp < 4;
  if (steps) {
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; ++stage) copy(stage);
    kw_cp_async_wait<STAGES - 2>();
    __syncthreads();
    split(0, 0);
  }
#pragma unroll 1
  for (int step = 0, stage = 0; step < steps; ++step) {
    kw_cp_async_wait<STAGES - 3>();
    __syncthreads();  // The step's terms are there, the next one's w, and nobody reads what follows the step before.
    copy(stage ? stage - 1 : STAGES - 1);
    const unsigned from_left = left_lane + tap_rows[stage], from_right = right_lane + step % 2 * RIGHT_BYTES;
    if (early && step + 1 < steps) split(stage + 1 == STAGES ? 0 : stage + 1, (step + 1) % 2);
    const float* const factor = factors + step % 2 * COLUMNS + warp_column + lane % 4 * 2;
