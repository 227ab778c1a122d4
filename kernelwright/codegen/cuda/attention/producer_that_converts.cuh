    unsigned parity = 1, read_parity = 1, turn = 0;
    unsigned* const extremes = own_flags + 2;
    const auto arrive = [&](unsigned barrier) {
      kw_shared_written();
      __syncwarp();
      if (lane == 0) kw_barrier_arrive(barrier);
    };
#pragma unroll 1
    for (int work = blockIdx.x, number = 0;; ++number) {
      kw_barrier_wait(queries_read, read_parity);
      read_parity ^= 1;
      __syncwarp();
      unsigned* const flag = own_flags + number % 2;
      if (threadIdx.x == 0) {
        *next_work = work;
        *flag = 0u;
      }
      if (work >= WORKS) {
        arrive(queries_there);
        break;
      }
      int point, part, row_block;
      work_of(work, point, part, row_block);
@POINT_OF_WORK@
      const int begin = part * WIDE, tiles = tiles_of(row_block);
#pragma unroll 1
      for (int group = 0; group < GROUPS; ++group) {
        const int first = (row_block * GROUPS + group) * 64;
        Queries queries_of;
        queries_of.take([&](float (&x)[8], int row, int k) { if (first + row < ROWS) @TAKE_QUERY@; });
        queries_of.put(reinterpret_cast<unsigned short*>(shared + group * QUERY_BYTES), own_factors + group, flag,
                       extremes + turn * (PACKERS / 16));
        turn ^= 1;
      }
      arrive(queries_there);
      Keys keys;
      Values values;
      const auto take_keys = [&](int first) {
        keys.take([&](float (&x)[8], int row, int k) { if (first + row < COLUMNS) @TAKE_KEY@; });
      };
      if (tiles > 0) take_keys(0);
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        const int first = tile * TILE_COLUMNS;
        unsigned char* const to = shared + GROUPS * QUERY_BYTES + stage * STAGE_BYTES;
        values.take([&](float (&x)[8], int row, int k) { if (begin + row < WIDTH) @TAKE_VALUE@; });
        kw_barrier_wait(keys_read + 8 * stage, parity);
        __syncwarp();
        keys.put(reinterpret_cast<unsigned short*>(to), own_factors + GROUPS + stage, flag,
                 extremes + turn * (PACKERS / 16));
        turn ^= 1;
        arrive(keys_there + 8 * stage);
        if (tile + 1 < tiles) take_keys(first + TILE_COLUMNS);
        kw_barrier_wait(values_read + 8 * stage, parity);
        __syncwarp();
        values.put(reinterpret_cast<unsigned short*>(to + KEY_BYTES), own_factors + GROUPS + STAGES + stage, flag,
                   extremes + turn * (PACKERS / 16));
        turn ^= 1;
        arrive(values_there + 8 * stage);
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
      if (threadIdx.x == 0) *following = static_cast<int>(gridDim.x + atomicAdd(counter, 1u));
      kw_part_sync(1, PACKERS);
      work = *following;
    }
