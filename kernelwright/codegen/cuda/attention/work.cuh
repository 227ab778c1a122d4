// Columns that a row has.
static __device__ __forceinline__ int columns_of(int i) {
  return @COLUMNS_OF@;
}
// The last rows of a point come first: where columns are hidden they have the most work.
static __device__ __forceinline__ void work_of(int work, int& point, int& part, int& row_block) {
  row_block = ROW_BLOCKS - 1 - work % ROW_BLOCKS;
  part = work / ROW_BLOCKS % PARTS;
  point = work / (ROW_BLOCKS * PARTS);
}
// Tiles of columns that the rows of a block have together.
static __device__ __forceinline__ int tiles_of(int row_block) {
  const int end_row = (row_block + 1) * 64 * GROUPS < ROWS ? (row_block + 1) * 64 * GROUPS : ROWS;
  return (columns_of(end_row - 1) + TILE_COLUMNS - 1) / TILE_COLUMNS;
}
