// @COMMENT@
//
// A warpgroup copies operands to shared memory as they are: queries for @GROUPS@ other warpgroups, 64 rows each, and
// @TILE_COLUMNS@ columns of keys and values at a time. What these have of scores and weights stays in their registers.
namespace @NAME@_detail {
constexpr int BATCH = @BATCH@, ROWS = @ROWS@, COLUMNS = @COLUMNS@, DEPTH = @DEPTH@, WIDTH = @WIDTH@;
constexpr int GROUPS = @GROUPS@, STAGES = @STAGES@, TILE_COLUMNS = @TILE_COLUMNS@;
constexpr int BRINGERS = 128, THREADS = 128 * (GROUPS + 1);
constexpr int DEEP = @DEEP@, WIDE = @WIDE@;  // elements of a query and of a part of a value, with zeros at the end
constexpr int ROW_BLOCKS = (ROWS + 64 * GROUPS - 1) / (64 * GROUPS);
constexpr int TILES = (COLUMNS + TILE_COLUMNS - 1) / TILE_COLUMNS, PARTS = (WIDTH + WIDE - 1) / WIDE;
// Operands are panels of 64 elements of all rows, 128 bytes a row, of which a copy writes what it reads of a line.
constexpr int DEEP_PANELS = (DEEP + 63) / 64, WIDE_PANELS = (WIDE + 63) / 64;
constexpr int QUERY_PANEL = 128 * 64 * GROUPS, COLUMN_PANEL = 128 * TILE_COLUMNS;
constexpr int QUERY_BYTES = DEEP_PANELS * QUERY_PANEL, KEY_BYTES = DEEP_PANELS * COLUMN_PANEL;
constexpr int STAGE_BYTES = KEY_BYTES + WIDE_PANELS * COLUMN_PANEL, OPERAND_BYTES = QUERY_BYTES + STAGES * STAGE_BYTES;
constexpr int BARRIERS = 2 + 4 * STAGES, SHARED_BYTES = 1024 + OPERAND_BYTES + 8 * (BARRIERS + 1) + 8;
constexpr int WORKS = BATCH * PARTS * ROW_BLOCKS;

@VALUES@
@WORK@// Brings TALL rows of CHUNKS pieces of 8 elements: `put` gets a place, and the row and the first element that belong
// there. Neighbouring threads have neighbouring pieces of a row.
template <int TALL, int CHUNKS, typename Put>
static __device__ __forceinline__ void bring(unsigned to, Put put) {
  constexpr int EACH = (TALL * CHUNKS + BRINGERS - 1) / BRINGERS;
#pragma unroll 4
  for (int n = 0; n < EACH; ++n) {
    const int place = threadIdx.x + n * BRINGERS;
    const int row = place / CHUNKS, chunk = place % CHUNKS;
    if (TALL * CHUNKS % BRINGERS == 0 || place < TALL * CHUNKS)
      put(to + chunk / 8 * (128 * TALL) + row * 128 + (chunk ^ row) % 8 * 16, row, chunk * 8);
  }
}
@EXACT@}  // namespace @NAME@_detail

// A block does one piece of work after the other: 64 rows for each of its warpgroups, and a part of the values.
static __global__ void __launch_bounds__(@THREADS@, @BLOCKS@) @NAME@_core(@COUNTER_PARAMETER@@PARAMETERS@) {
  using namespace @NAME@_detail;
  KW_DYNAMIC_SHARED(unsigned char, shared);
  // Panels begin at multiples of 1,024.
  unsigned char* const operands = shared + (1024 - kw_shared(shared) % 1024) % 1024;
  const unsigned queries = kw_shared(operands), stages = queries + QUERY_BYTES;
  const unsigned queries_there = queries + OPERAND_BYTES, queries_read = queries_there + 8;
  const unsigned keys_there = queries_read + 8, values_there = keys_there + 8 * STAGES;
  const unsigned keys_read = values_there + 8 * STAGES, values_read = keys_read + 8 * STAGES;
  volatile int* const next_work = reinterpret_cast<int*>(operands + OPERAND_BYTES + 8 * BARRIERS);
  if (threadIdx.x == 0) {
    kw_barrier_init(queries_there, BRINGERS + 1);
    kw_barrier_init(queries_read, 4 * GROUPS);
    for (int stage = 0; stage < STAGES; ++stage) {
      kw_barrier_init(keys_there + 8 * stage, BRINGERS);
      kw_barrier_init(values_there + 8 * stage, BRINGERS);
      kw_barrier_init(keys_read + 8 * stage, 4 * GROUPS);
      kw_barrier_init(values_read + 8 * stage, 4 * GROUPS);
    }
    kw_barriers_ready();
  }
  __syncthreads();
  // From lane 0, so that the compiler knows that warps do not part.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  if (warp < 4) {  // the producer
    kw_registers_fewer<@FEWER@>();
    unsigned parity = 1, read_parity = 1;
    int stage = 0;
#pragma unroll 1
    for (int work = blockIdx.x@NUMBER@;;) {
      kw_barrier_wait(queries_read, read_parity);
      read_parity ^= 1;
      if (threadIdx.x == 0) {
        *next_work = work;
        kw_barrier_arrive(queries_there);
      }
      if (work >= WORKS) {
        kw_barrier_arrive(queries_there);
        break;
      }
      int point, part, row_block;
      work_of(work, point, part, row_block);
@POINT_OF_WORK@
      const int begin = part * WIDE, tiles = tiles_of(row_block);
      bring<64 * GROUPS, DEEP / 8>(queries, [&](unsigned to, int row, int k) {
        const int i = row_block * 64 * GROUPS + row;
@PUT_QUERY@
      });
      @QUERIES_ARRIVE@
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
        const unsigned to_keys = stages + stage * STAGE_BYTES;
        kw_barrier_wait(keys_read + 8 * stage, parity);
        bring<TILE_COLUMNS, DEEP / 8>(to_keys, [&](unsigned to, int row, int k) {
          const int j = tile * TILE_COLUMNS + row;
@PUT_KEY@
        });
        @KEYS_ARRIVE@
        kw_barrier_wait(values_read + 8 * stage, parity);
        bring<TILE_COLUMNS, WIDE / 8>(to_keys + KEY_BYTES, [&](unsigned to, int row, int element) {
          const int j = tile * TILE_COLUMNS + row, p = begin + element;
@PUT_VALUE@
        });
        @VALUES_ARRIVE@
        if (++stage == STAGES) stage = 0, parity ^= 1;
      }
@NEXT_WORK@    }
    return;
  }
  // The consumers
  kw_registers_more<@MORE@>();
  const int group = warp / 4 - 1;
  const unsigned long long a = kw_panel_operand(queries + group * 64 * 128);
  int key_stage = 0, value_stage = 0;
  unsigned key_parity = 0, value_parity = 0, there_parity = 0;
@FIRST_TURN@#pragma unroll 1
  for (;;) {
    kw_barrier_wait(queries_there, there_parity);
    there_parity ^= 1;
    const int work = __shfl_sync(0xffffffffu, *next_work, 0);
    if (work >= WORKS) return;
    kw_shared_written();
    int point, part, row_block;
    work_of(work, point, part, row_block);
@POINT@
    const int begin = part * WIDE, first_row = row_block * 64 * GROUPS;
    const int own_row = first_row + group * 64 + warp % 4 * 16;  // the first of this warp
    // Of two tiles the compiler would make straight lines, and run out of registers: products then wait for each other
    // (C7512). So it is not told how many there are.
    const int all_tiles = tiles_of(row_block), fewest = columns_of(first_row);
    const int tiles = TILES == 2 ? __shfl_sync(0xffffffffu, all_tiles, 0) : all_tiles;
    const int i = own_row + lane / 4;  // the first of two rows, 8 apart
    float s[TILE_COLUMNS / 2], sums[WIDE / 2], top[2] = {@TOP@, @TOP@}, total[2] = {0.0f, 0.0f}@STATE@;
    float kept[2];  // of what was summed up before
    unsigned weights[TILE_COLUMNS / 16][4];
@SLOPE@#pragma unroll
    for (int n = 0; n < WIDE / 2; ++n) sums[n] = 0.0f;
    // Scores of the next tile: the product begins.
    const auto multiply_keys = [&]() {
      const unsigned long long b = kw_panel_operand(stages + key_stage * STAGE_BYTES);
      kw_wgmma_fence();
#pragma unroll
      for (int k = 0; k < DEEP / 16; ++k)
        kw_wgmma_@KIND@(s, a + k / 4 * (QUERY_PANEL / 16) + k % 4 * 2, b + k / 4 * (COLUMN_PANEL / 16) + k % 4 * 2,
                        k > 0);
      kw_wgmma_commit();
    };
    // Weights by the values of their tile: the product begins.
    const auto multiply_values = [&]() {
      const unsigned long long b = kw_turned_operand(stages + value_stage * STAGE_BYTES + KEY_BYTES, COLUMN_PANEL);
      kw_wgmma_fence();
#pragma unroll
      for (int n = 0; n < TILE_COLUMNS / 16; ++n) kw_wgmma_@KIND@_turned(sums, weights[n], b + 128 * n, 1);
      kw_wgmma_commit();
    };
    const auto keys_done = [&]() {
      if (lane == 0) kw_barrier_arrive(keys_read + 8 * key_stage);
      if (++key_stage == STAGES) key_stage = 0, key_parity ^= 1;
    };
    const auto values_done = [&]() {
      if (lane == 0) kw_barrier_arrive(values_read + 8 * value_stage);
      if (++value_stage == STAGES) value_stage = 0, value_parity ^= 1;
    };
    // The keys of the next tile, if there is one, and the values of this one are there. ahead: how many values before
    // these are not done yet.
    const auto await = [&](bool next, int ahead) {
      if (next) kw_barrier_wait(keys_there + 8 * key_stage, key_parity);
      const bool around = value_stage + ahead == STAGES;
      kw_barrier_wait(values_there + 8 * (around ? 0 : value_stage + ahead), value_parity ^ (around ? 1u : 0u));
      kw_shared_written();
      __syncwarp();
    };
    // From scores of a tile to weights, as floats.
    const auto weigh = [&](int tile) {
      const int column = tile * TILE_COLUMNS + lane % 4 * 2;
      const bool whole = (tile + 1) * TILE_COLUMNS <= fewest;  // every row has all of its columns
      (void)column, (void)whole;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
@ROW@@LIMIT@@WEIGH@      }
    };
    const auto round_weights = [&]() {
#pragma unroll
      for (int n = 0; n < TILE_COLUMNS / 4; ++n) weights[n / 4][n % 4] = @PAIR@(s[2 * n], s[2 * n + 1]);
    };
    if (tiles > 0) {
      kw_barrier_wait(keys_there + 8 * key_stage, key_parity);
      kw_shared_written();
      __syncwarp();
      multiply_keys();
      kw_wgmma_wait<0>();
      kw_wgmma_hold(s);
      if (tiles == 1 && lane == 0) kw_barrier_arrive(queries_read);
      keys_done();
      weigh(0);
      round_weights();
      await(tiles > 1, 0);
#pragma unroll 1
      for (int tile = 1; tile < tiles; ++tile) {
        // The next scores come first: while the values of this tile are multiplied, weights are made of them.
@TURN@        multiply_keys();
        multiply_values();
@TURN_OVER@        kw_wgmma_wait<1>();
        kw_wgmma_hold(s);
        if (tile == tiles - 1 && lane == 0) kw_barrier_arrive(queries_read);
        keys_done();
        weigh(tile);
        // With fewer stages what comes next has the place of these values: it is given back before anything is awaited.
        if (STAGES > 2) await(tile + 1 < tiles, 1);
        kw_wgmma_wait<0>();
        kw_wgmma_hold(sums);
        values_done();
        if (STAGES <= 2) await(tile + 1 < tiles, 0);
@RESCALE@        round_weights();
      }
      multiply_values();
      kw_wgmma_wait<0>();
      kw_wgmma_hold(sums);
      values_done();
    } else if (lane == 0) {
      kw_barrier_arrive(queries_read);
    }
    // What is not finite is told apart in multiply-adds: a weight of zero times infinity counts where the column does.
    bool wrong = @FAR@;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
@WHOLE@
#pragma unroll
      for (int n = 0; n < WIDE / 4; ++n) {
        float& sum = sums[n / 2 * 4 + 2 * h + n % 2];
        sum *= scale;
        wrong = wrong || !(fabsf(sum) < INFINITY);
      }
    }
    if (__any_sync(0xffffffffu, wrong)) {
      exactly(@EXACT_ARGUMENTS@own_row, own_row + 16 < ROWS ? own_row + 16 : ROWS, begin);
      continue;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = i + 8 * h;
@STORES@    }
  }
}

@HEAD@
@LAUNCH@
  return nullptr;
}
