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
        if (lane == 0) kw_barrier_arrive(empty + 8 * stage);
