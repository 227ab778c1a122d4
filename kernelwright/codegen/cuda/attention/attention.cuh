// @COMMENT@
//
@HOW@
namespace @NAME@_detail {
constexpr int BATCH = @BATCH@, ROWS = @ROWS@, COLUMNS = @COLUMNS@, DEPTH = @DEPTH@, WIDTH = @WIDTH@;
constexpr int GROUPS = @GROUPS@, STAGES = @STAGES@, TILE_COLUMNS = @TILE_COLUMNS@;
constexpr int PACKERS = @PACKERS@, THREADS = 128 * (GROUPS + 1), ARRIVALS = @ARRIVALS@;
constexpr unsigned LOUDER = 20;  // powers of two between values of a tile, beyond which float16 terms lose digits
constexpr int DEEP = @DEEP@, WIDE = @WIDE@;  // elements of a query and of a part of a value, with zeros at the end
constexpr int ROW_TILES = (ROWS + 63) / 64, ROW_BLOCKS = (ROWS + 64 * GROUPS - 1) / (64 * GROUPS);
constexpr int TILES = (COLUMNS + TILE_COLUMNS - 1) / TILE_COLUMNS, PARTS = (WIDTH + WIDE - 1) / WIDE;
constexpr int DEEP_CHUNKS = DEEP / 8, TILE_CHUNKS = TILE_COLUMNS / 8;
constexpr int QUERY_BYTES = 4 * DEEP * 64, KEY_BYTES = 4 * DEEP * TILE_COLUMNS, VALUE_BYTES = 4 * TILE_COLUMNS * WIDE;
constexpr int STAGE_BYTES = KEY_BYTES + VALUE_BYTES, OPERAND_BYTES = GROUPS * QUERY_BYTES + STAGES * STAGE_BYTES;
constexpr int BARRIERS = 2 + 4 * STAGES, SHARED_BYTES = OPERAND_BYTES + 8 * (BARRIERS + 1)@MORE_SHARED@;
@PLACES@constexpr int WORKS = BATCH * PARTS * ROW_BLOCKS;
static_assert(PACKED_BYTES == @WORKSPACE@LL, "the workspace is as large as what is packed");

@VALUES@
// Two values as two float16 terms each, whose sum has 22 bits of them.
static __device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low) {
  high = kw_float16_pair(x, y);
  low = kw_float16_pair(x - kw_float16_value(high & 0xffffu), y - kw_float16_value(high >> 16));
}

@PACK@
@UNITS@@WORK@@EXACT@}  // namespace @NAME@_detail

@PACK_KERNEL@// A block does one piece of work after the other: 64 rows for each of its warpgroups, and a part of the values.
static __global__ void __launch_bounds__(@THREADS@, @BLOCKS@) @NAME@_core(
    unsigned char* packed, @PARAMETERS@) {
  using namespace @NAME@_detail;
  KW_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned queries = kw_shared(shared), stages = queries + GROUPS * QUERY_BYTES;
  const unsigned queries_there = queries + OPERAND_BYTES, queries_read = queries_there + 8;
  const unsigned keys_there = queries_read + 8, values_there = keys_there + 8 * STAGES;
  const unsigned keys_read = values_there + 8 * STAGES, values_read = keys_read + 8 * STAGES;
  volatile int* const next_work = reinterpret_cast<int*>(shared + OPERAND_BYTES + 8 * BARRIERS);
  unsigned* const counter = reinterpret_cast<unsigned*>(packed + COUNTER);
@OWN@  if (threadIdx.x == 0) {
    kw_barrier_init(queries_there, ARRIVALS);
    kw_barrier_init(queries_read, 4 * GROUPS);
    for (int stage = 0; stage < STAGES; ++stage) {
      kw_barrier_init(keys_there + 8 * stage, ARRIVALS);
      kw_barrier_init(values_there + 8 * stage, ARRIVALS);
      kw_barrier_init(keys_read + 8 * stage, 4 * GROUPS);
      kw_barrier_init(values_read + 8 * stage, 4 * GROUPS);
    }
    kw_barriers_ready();
  }
  __syncthreads();
  // From lane 0, so that the compiler knows that warps do not part.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  int stage = 0;
  if (warp < 4) {  // the producer
    kw_registers_fewer<@FEWER@>();
@PRODUCER@    return;
  }
  // The consumers
  kw_registers_more<@MORE@>();
  const int group = warp / 4 - 1;
  const unsigned long long a = kw_operand(queries + group * QUERY_BYTES, 64 * 16);
  unsigned parity = 0, there_parity = 0;
#pragma unroll 1
  for (int number = 0;; ++number) {
    kw_barrier_wait(queries_there, there_parity);
    there_parity ^= 1;
    const int work = __shfl_sync(0xffffffffu, *next_work, 0);
    if (work >= WORKS) return;
    int point, part, row_block;
    work_of(work, point, part, row_block);
@POINT@
    const int begin = part * WIDE, first_row = row_block * 64 * GROUPS;
    const int own_row = first_row + group * 64 + warp % 4 * 16;  // the first of this warp
    const int tiles = tiles_of(row_block), fewest = columns_of(first_row);
@FACTORS@    const int i = own_row + lane / 4;  // the first of two rows, 8 apart
    float sums[WIDE / 2], top[2] = {@TOP@, @TOP@}, total[2] = {0.0f, 0.0f}@STATE@;
#pragma unroll
    for (int n = 0; n < WIDE / 2; ++n) sums[n] = 0.0f;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const unsigned from = stages + stage * STAGE_BYTES;
      float s[TILE_COLUMNS / 2];
      kw_barrier_wait(keys_there + 8 * stage, parity);
      __syncwarp();
      {
        const unsigned long long b = kw_operand(from, TILE_COLUMNS * 16);
        kw_wgmma_fence();
#pragma unroll
        for (int pair = 0; pair < 3; ++pair)  // of terms, small ones first
#pragma unroll
          for (int k = 0; k < DEEP_CHUNKS; k += 2)
            kw_wgmma_f16(s, a + ((pair == 0 ? DEEP_CHUNKS : 0) + k) * 64,
                         b + ((pair == 1 ? DEEP_CHUNKS : 0) + k) * TILE_COLUMNS, pair + k > 0);
        kw_wgmma_commit();
      }
      const float factor = query_factor * @KEY_FACTOR@;
      kw_wgmma_wait<0>();
      kw_wgmma_hold(s);
      if (lane == 0) {
        kw_barrier_arrive(keys_read + 8 * stage);
        if (tile == tiles - 1) kw_barrier_arrive(queries_read);
      }
      const int column = tile * TILE_COLUMNS + lane % 4 * 2;
      float kept[2];  // of what was summed up before
      const bool whole = (tile + 1) * TILE_COLUMNS <= fewest;  // every row has all of its columns
@SLOPE@#pragma unroll
      for (int h = 0; h < 2; ++h) {
@ROW@        float most = @MOST@;
@LIMIT@#pragma unroll
        for (int n = 0; n < TILE_COLUMNS / 4; ++n) {
          float& x = s[n / 2 * 4 + 2 * h + n % 2];
@SCORE@
          most = fmaxf(most, @MAGNITUDE@);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
@MOST_AFTER@@WEIGHTS@      }
      unsigned high[TILE_COLUMNS / 16][4], low[TILE_COLUMNS / 16][4];
#pragma unroll
      for (int n = 0; n < TILE_COLUMNS / 4; ++n) split(s[2 * n], s[2 * n + 1], high[n / 4][n % 4], low[n / 4][n % 4]);
      float part_sums[WIDE / 2];
      kw_barrier_wait(values_there + 8 * stage, parity);
      __syncwarp();
      const float value_factor = @VALUE_FACTOR@;
      {
        const unsigned long long b = kw_operand(from + KEY_BYTES, WIDE * 16);
        kw_wgmma_fence();
#pragma unroll
        for (int pair = 0; pair < 3; ++pair)
#pragma unroll
          for (int n = 0; n < TILE_COLUMNS / 16; ++n)
            kw_wgmma_f16(part_sums, pair == 0 ? low[n] : high[n],
                         b + ((pair == 1 ? TILE_CHUNKS : 0) + 2 * n) * WIDE, pair + n > 0);
        kw_wgmma_commit();
      }
      kw_wgmma_wait<0>();
      kw_wgmma_hold(part_sums);
      if (lane == 0) kw_barrier_arrive(values_read + 8 * stage);
#pragma unroll
      for (int n = 0; n < WIDE / 2; ++n) sums[n] = fmaf(part_sums[n], value_factor, sums[n] * kept[n / 2 % 2]);
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    if (tiles == 0 && lane == 0) kw_barrier_arrive(queries_read);
@WRONG@@FAR@#pragma unroll
    for (int h = 0; h < 2; ++h) {
@WHOLE@
      const int row = i + 8 * h;
      if (row < ROWS) {
#pragma unroll
        for (int n = 0; n < WIDE / 4; ++n) {
          const int p = begin + n / 2 * 8 + lane % 4 * 2 + n % 2;
          if (p < WIDTH) @STORE@
        }
      }
    }
  }
}

@HEAD@
@LAUNCH@
  return nullptr;
}
