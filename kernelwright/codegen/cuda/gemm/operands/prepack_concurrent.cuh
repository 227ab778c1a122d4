 else if (warp < 4 * @PRODUCER_GROUPS@) {  // who packs x
    @PACK_REGISTERS@
    // Of an item: chunks, those asked for together, and phases of the input.
    constexpr int PART = @PART@, BATCH = @PACK_BATCH@, PHASES = @PHASES@;
    constexpr unsigned ITEMS = @ITEMS@, PARTS = @PARTS@, ROW_TILES = @ROW_TILES@;
    unsigned item = 0, next = 0;
    if (lane == 0) item = atomicAdd(left_ready@TAKEN_OF@, 1u), next = atomicAdd(left_ready@TAKEN_OF@, 1u);
    item = __shfl_sync(0xffffffffu, item, 0);
    int phase = 0, chunk = 0;
    @NAME@_row known;
    float x[BATCH][8];
    @NAME@_ask(@ASKED@known, x, item, phase, chunk, lane);
    while (item < ITEMS) {
      // What has come is written, and the next is asked for before anybody waits for that.
      const @ROW@ row = static_cast<@ROW@>(item / PARTS % ROW_TILES) * @ITEM_ROWS@ + lane;
      const int first = item % PARTS * PART + chunk;
      uint4* const to = reinterpret_cast<uint4*>(left) + row +
          (static_cast<long long>(item / (PARTS * ROW_TILES)) * PHASES + phase) * (ALL_CHUNKS * ALL_ROWS);
#pragma unroll
      for (int b = 0; b < BATCH; ++b)
        if (@THERE@) @NAME@_put(@MARKED@known, x[b], to + (first + b) * ALL_ROWS);
      const unsigned written = item;
      chunk += BATCH;
      if (chunk >= PART) chunk = 0, ++phase;
      if (phase == PHASES) {
        phase = 0;
        item = __shfl_sync(0xffffffffu, next, 0);
        if (lane == 0) next = atomicAdd(left_ready@TAKEN_OF@, 1u);
      }
      @NAME@_ask(@ASKED@known, x, item, phase, chunk, lane);
      if (item != written) {
        __syncwarp();
        if (lane == 0) kw_mark(left_ready + 2 + written, @MARK@);
      }
    }
  }
