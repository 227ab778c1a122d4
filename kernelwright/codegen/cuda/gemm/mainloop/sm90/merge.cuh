// Adds the parts of 64 rows of a tile in order, and finishes them.
static __global__ void __launch_bounds__(128) @NAME@_merge(
    @FINISH_PARAMETERS@) {
  constexpr int COLUMNS = @COLUMNS@, SUBTILE_COLUMNS = @SUBTILE_COLUMNS@, SUBTILES = COLUMNS / SUBTILE_COLUMNS;
  constexpr long long PART = @GROUPS@LL * @CLASSES@ * @ALL_ROW_BLOCKS@ * @COLUMN_BLOCKS@ * (@ROWS@ * COLUMNS);
  KW_DYNAMIC_SHARED(float, subtile);
  const int thread = threadIdx.x;
  unsigned at = blockIdx.x;
  const int rows = at % (@ROWS@ / 64);
  at /= @ROWS@ / 64;
  const int column_block = at % @COLUMN_BLOCKS@;
  at /= @COLUMN_BLOCKS@;
  const int row_block = at % @ALL_ROW_BLOCKS@;
  at /= @ALL_ROW_BLOCKS@;
  const int phase_class = at % @CLASSES@, group = at / @CLASSES@;@FILL_MERGE_TABLE@
  const float* from = partial + static_cast<long long>(blockIdx.x) * (COLUMNS / 2 * 128) + thread;
  float sums[COLUMNS / 2];
#pragma unroll
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = from[i * 128];
  for (int part = 1; part < @PARTS_LEFT@; ++part)
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; ++i) sums[i] += from[part * PART + i * 128];
  const long long first_row = row_block * @ROWS@LL + rows * 64;@ROW_SCALE@
#pragma unroll 1
  for (int number = 0; number < SUBTILES; ++number) {
    __syncthreads();  // The subtile before has been read.
    if (number == 0) @NAME@_stage(sums, 0, subtile, thread);
    if (number == 1) @NAME@_stage(sums, (SUBTILES - 1) * (SUBTILE_COLUMNS / 2), subtile, thread);
    __syncthreads();
    @NAME@_finish(@ARGUMENTS@subtile@COLUMN_TABLE@@PASS_SCALE@, thread, phase_class, group, first_row,
                  column_block * COLUMNS + number * SUBTILE_COLUMNS);
  }
}
