@TAPS@

static __global__ void __launch_bounds__(@THREADS@, @LEAST_BLOCKS@) @NAME@_core(
    @PARAMETERS@) {
  constexpr int ROWS = @ROWS@, COLUMNS = @COLUMNS@;  // of a block's sums
  constexpr int CHUNKS = @CHUNKS@;  // of a step: 8 channels each
  constexpr int TERMS = @TERMS@, LINES = TERMS * CHUNKS;
  constexpr int RUN_ROWS = @RUN_ROWS@;  // rows of x that serve all taps of a run
  constexpr int STAGES = @STAGES@, LEFT_STAGES = @LEFT_STAGES@;  // steps, and runs of x, in shared memory
  constexpr int LEFT_BYTES = LINES * RUN_ROWS * 16, RIGHT_BYTES = @RIGHT_LINES@ * COLUMNS * 16;
  constexpr int WARPS = @WARPS@, ACROSS = @ACROSS@, WARP_ROWS = @WARP_ROWS@, WARP_COLUMNS = @WARP_COLUMNS@;
  constexpr int TILE_ROWS = WARP_ROWS / 16, TILE_COLUMNS = WARP_COLUMNS / 8;  // products of 16 x 8 sums
  constexpr int CHAIN = @CHAIN@;  // steps of 16 channels that tensor cores add up by themselves
  constexpr int DEPTHS = @DEPTHS@;  // steps over the channels
  constexpr long long ALL_CHUNKS = @ALL_CHUNKS@, ALL_ROWS = @ALL_ROWS@@ALL_COLUMNS@;
  constexpr int ROW_BLOCKS = @ROW_BLOCKS@, COLUMN_BLOCKS = @COLUMN_BLOCKS@, CLASSES = @CLASSES@;
  KW_DYNAMIC_SHARED(unsigned char, shared);
  __shared__ unsigned tap_rows[@TAP_ROWS@];  // where the rows of x of a step's tap begin, in bytes beyond left_buffer
  const unsigned left_buffer = kw_shared_address(shared), right_buffer = left_buffer + LEFT_STAGES * LEFT_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  // Blocks that run at the same time share rows of x and columns of w in the second-level cache: they go down a band of
  // row blocks before they move on to the next columns.
  constexpr int BAND = @BAND@, TASKS = CLASSES * COLUMN_BLOCKS;
  const int group = blockIdx.x / (ROW_BLOCKS * TASKS), rest = blockIdx.x % (ROW_BLOCKS * TASKS);
  const int band = rest / (BAND * TASKS) * BAND, within = rest % (BAND * TASKS);
  const int height = min(BAND, ROW_BLOCKS - band), task = within / height;
  const long long first_row = static_cast<long long>(band + within % height) * ROWS;
  const int phase_class = task / COLUMN_BLOCKS, first_column = task % COLUMN_BLOCKS * COLUMNS;
  // Kept here: registers are short.
  __shared__ struct { long long first_row; int phase_class, group, first_column; } place;
  if (threadIdx.x == 0) place = {first_row, phase_class, group, first_column};
  __syncthreads();

  const int first_tap = @NAME@_first_tap[phase_class], taps = @NAME@_first_tap[phase_class + 1] - first_tap;
  const int steps = taps * DEPTHS;
@RIGHT_PLACES@  // Copies the operands of the next step; one that is not there is an empty group, so groups count steps.
  int next_tap = 0, next_depth = 0, left_stage = LEFT_STAGES - 1;
  const auto copy = [&](int stage) {
    if (next_depth < DEPTHS) {
      const auto& tap = @NAME@_taps[first_tap + next_tap];
      if (tap[4]) {
        left_stage = left_stage + 1 == LEFT_STAGES ? 0 : left_stage + 1;
        const unsigned to = left_buffer + left_stage * LEFT_BYTES + lane * 16;
        const auto* from = left + (((place.group * @PHASES@LL + tap[0]) * ALL_CHUNKS + next_depth * CHUNKS) * ALL_ROWS
                                   + place.first_row + tap[1] + lane) * 8;
#pragma unroll
        for (int i = 0; i < LINES; i += WARPS) {
          const int line = i + warp;
          if (LINES % WARPS == 0 || line < LINES)
#pragma unroll
            for (int row = 0; row < RUN_ROWS; row += 32)
              if (row + 32 <= RUN_ROWS || row + lane < RUN_ROWS)
                kw_cp_async_16(to + (line * RUN_ROWS + row) * 16,
                               from + line / CHUNKS * @LEFT_TERM@LL + (line % CHUNKS * ALL_ROWS + row) * 8);
        }
      }
@NOTE_ROWS@@COPY_RIGHT@      if (++next_tap == taps) next_tap = 0, ++next_depth;
    }
    kw_cp_async_commit();
  };

  // Rows of the matrices that this lane names to ldmatrix: of x rows 0..15 of two chunks, of w columns 0..7 of two
  // chunks, then columns 8..15.
  const int warp_row = warp / ACROSS * WARP_ROWS, warp_column = warp % ACROSS * WARP_COLUMNS;
  const unsigned left_lane = left_buffer + (@SECOND_CHUNK@warp_row + lane % 16) * 16;
  const unsigned right_lane = right_buffer + (lane / 8 % 2 * COLUMNS + warp_column + lane / 16 * 8 + lane % 8) * 16;
  float sums[TILE_COLUMNS][TILE_ROWS][4] = {};
@STEP@#pragma unroll @UNROLL@
    for (int chunk = 0; chunk < CHUNKS; chunk += 2 * CHAIN) {
      unsigned a[TERMS][CHAIN][TILE_ROWS][4];
#pragma unroll
      for (int term = 0; term < TERMS; ++term)
#pragma unroll
        for (int k = 0; k < CHAIN; ++k)
#pragma unroll
          for (int i = 0; i < TILE_ROWS; ++i)
            kw_ldmatrix(a[term][k][i], from_left + ((term * CHUNKS + chunk + 2 * k) * RUN_ROWS + i * 16) * 16);
#pragma unroll
      for (int j = 0; j < TILE_COLUMNS; j += 2) {
        unsigned b[TERMS][CHAIN][4];
#pragma unroll
        for (int term = 0; term < TERMS; ++term)
#pragma unroll
          for (int k = 0; k < CHAIN; ++k)
            kw_ldmatrix(b[term][k], from_right + ((term * @TAP_CHUNKS@ + chunk + 2 * k) * COLUMNS + j * 8) * 16);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          @PART@
@PRODUCTS@@PROMOTE@
        }
      }
    }
@AFTER@    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
  kw_cp_async_wait<0>();
  __syncthreads();  // The buffers become subtiles of sums.

@SCALES@  // Groups of 128 threads finish subtiles of 64 rows and @SUBTILE_COLUMNS@ columns.
  constexpr int SUBTILES = ROWS / 64 * @PARTS@, SUBTILE = @SUBTILE@;
  float* const subtiles = reinterpret_cast<float*>(shared);
  float* const to = subtiles + (warp_row / 64 * @PARTS@ + warp_column / @SUBTILE_COLUMNS@) * SUBTILE
                    + (warp_row % 64 + @LANE_ROW@) * @ROW_STRIDE@
                    + (warp_column % @SUBTILE_COLUMNS@ + @LANE_COLUMN@) * @COLUMN_STRIDE@;
@FILL@#pragma unroll
  for (int j = 0; j < TILE_COLUMNS; ++j)
#pragma unroll
    for (int i = 0; i < TILE_ROWS; ++i)
#pragma unroll
@STAGE@
  __syncthreads();
@WRITTEN@#pragma unroll 1
  for (int subtile = warp / 4; subtile < SUBTILES; subtile += WARPS / 4) {
    const long long first_row = place.first_row + subtile / @PARTS@ * 64;
    @NAME@_finish(@ARGUMENTS@
        subtiles + subtile * SUBTILE,@TABLE@@ROW_SCALE@ threadIdx.x % 128, place.phase_class, place.group, first_row,
        place.first_column + subtile % @PARTS@ * @SUBTILE_COLUMNS@);
  }
}
