// Adds the parts of a tile in order, and finishes them.
static __global__ void __launch_bounds__(128 * @WORKERS@) @NAME@_merge(
    const float* __restrict__ partial@MERGE_PARAMETERS@) {
  KW_DYNAMIC_SHARED(float, subtiles);
  const int worker = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int row_block = blockIdx.x % @ROW_BLOCKS@u, rest = blockIdx.x / @ROW_BLOCKS@u;
  const int column_block = rest % @COLUMN_BLOCKS@, group = rest / @COLUMN_BLOCKS@;
  constexpr long long PART = @TILES@LL * @WORKERS@ * (@POSITIONS@ / 2 * 128);
  const float* const from = partial + (blockIdx.x * @WORKERS@LL + worker) * (@POSITIONS@ / 2 * 128) + thread;
  float sums[@POSITIONS@ / 2];
#pragma unroll
  for (int i = 0; i < @POSITIONS@ / 2; ++i) sums[i] = from[i * 128];
  for (int part = 1; part < @PARTS_LEFT@; ++part)
#pragma unroll
    for (int i = 0; i < @POSITIONS@ / 2; ++i) sums[i] += from[part * PART + i * 128];
  @NAME@_results(@ARGUMENTS@sums, subtiles, worker, thread, group, row_block, column_block);
}
