 else if (warp < 4 * @PRODUCER_GROUPS@) {  // who packs x
    @PACK_REGISTERS@
    // Of a load chunk: chunks, those asked for together, and phases of the input.
    constexpr int PART = @PART@, BATCH = @PACK_BATCH@, PHASES = @PHASES@;
    constexpr unsigned LOAD_CHUNKS = @LOAD_CHUNKS@, PARTS = @PARTS@, ROW_TILES = @ROW_TILES@;
    unsigned load_chunk = 0, next = 0;
    if (lane == 0) load_chunk = atomicAdd(left_ready@TAKEN_OF@, 1u), next = atomicAdd(left_ready@TAKEN_OF@, 1u);
    load_chunk = __shfl_sync(0xffffffffu, load_chunk, 0);
    int phase = 0, chunk = 0;
    @NAME@_row known;
    float x[BATCH][8];
    @NAME@_ask(@ASKED@known, x, load_chunk, phase, chunk, lane);
    while (load_chunk < LOAD_CHUNKS) {
      // What has come is written, and the next is asked for before anybody waits for that.
      const @ROW@ row = static_cast<@ROW@>(load_chunk / PARTS % ROW_TILES) * @LOAD_CHUNK_ROWS@ + lane;
      const int first = load_chunk % PARTS * PART + chunk;
      uint4* const to = reinterpret_cast<uint4*>(left) + row +
          (static_cast<long long>(load_chunk / (PARTS * ROW_TILES)) * PHASES + phase) * (ALL_CHUNKS * ALL_ROWS);
#pragma unroll
      for (int b = 0; b < BATCH; ++b)
        if (@THERE@) @NAME@_put(@MARKED@known, x[b], to + (first + b) * ALL_ROWS);
      const unsigned written = load_chunk;
      chunk += BATCH;
      if (chunk >= PART) chunk = 0, ++phase;
      if (phase == PHASES) {
        phase = 0;
        load_chunk = __shfl_sync(0xffffffffu, next, 0);
        if (lane == 0) next = atomicAdd(left_ready@TAKEN_OF@, 1u);
      }
      @NAME@_ask(@ASKED@known, x, load_chunk, phase, chunk, lane);
      if (load_chunk != written) {
        __syncwarp();
        if (lane == 0) kw_mark(left_ready + 2 + written, @MARK@);
      }
    }
  }
