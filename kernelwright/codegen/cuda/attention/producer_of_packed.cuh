    if (warp == 0 && lane == 0) {
      unsigned parity = 1, read_parity = 1;
#pragma unroll 1
      for (int work = blockIdx.x;;) {
        kw_barrier_wait(queries_read, read_parity);
        read_parity ^= 1;
        *next_work = work;
        if (work >= WORKS) {
          kw_barrier_arrive(queries_there);
          break;
        }
        int point, part, row_block;
        work_of(work, point, part, row_block);
        if (flags[point] != 0u) {
          kw_barrier_arrive(queries_there);
        } else {
          kw_barrier_expect(queries_there, GROUPS * QUERY_BYTES);
          for (int group = 0; group < GROUPS; ++group) {
            // Beyond the last row: read, not used.
            const int row_tile = row_block * GROUPS + group < ROW_TILES ? row_block * GROUPS + group : ROW_TILES - 1;
            kw_bulk_copy(queries + group * QUERY_BYTES, packed + (1LL * point * ROW_TILES + row_tile) * QUERY_BYTES,
                         QUERY_BYTES, queries_there);
          }
          const unsigned char* keys = packed + KEYS + 1LL * point * TILES * KEY_BYTES;
          const unsigned char* values = packed + VALUES + (1LL * point * TILES * PARTS + part) * VALUE_BYTES;
          const int tiles = tiles_of(row_block);
#pragma unroll 1
          for (int tile = 0; tile < tiles; ++tile) {
            const unsigned to = stages + stage * STAGE_BYTES;
            kw_barrier_wait(keys_read + 8 * stage, parity);
            kw_barrier_expect(keys_there + 8 * stage, KEY_BYTES);
            kw_bulk_copy(to, keys, KEY_BYTES, keys_there + 8 * stage);
            kw_barrier_wait(values_read + 8 * stage, parity);
            kw_barrier_expect(values_there + 8 * stage, VALUE_BYTES);
            kw_bulk_copy(to + KEY_BYTES, values, VALUE_BYTES, values_there + 8 * stage);
            keys += KEY_BYTES;
            values += PARTS * VALUE_BYTES;
            if (++stage == STAGES) stage = 0, parity ^= 1;
          }
        }
        work = static_cast<int>(gridDim.x + atomicAdd(counter, 1u));
      }
    }
