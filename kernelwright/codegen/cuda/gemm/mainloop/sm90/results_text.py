"""The parts of the text of a contraction's core on wgmma behind its products: what becomes of the sums of a tile.

``@NAME@`` as in `mainloop.sm90.text`.
"""

SLAB_POINTER = """    float* slab = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES) + worker * SLAB;
"""

# What the epilogue needs of columns, behind the slab.
TABLE_OF = """    int table_group = -1, table_block = -1;  // the columns that the table is of
"""
FILL_TABLE = """
      if (group != table_group || column_block != table_block) {
        kw_part_sync(1 + worker, 128);  // The table before has been read.
        @NAME@_columns(@COLUMN_ARGUMENTS@slab + @TABLE_AT@, thread, group, column_block * COLUMNS);
        table_group = group, table_block = column_block;
      }"""
FILL_MERGE_TABLE = """
  @NAME@_columns(@COLUMN_ARGUMENTS@slab + @TABLE_AT@, thread, group, column_block * COLUMNS);"""

# The same where the table is of entries of the batch, too.
TABLE_OF_ENTRIES = """    int table_group = -1, table_block = -1, table_n = -1;  // the columns that the table is of
"""
FILL_TABLE_OF_ENTRIES = """
      const int first_n = static_cast<int>(row_block * (1LL * APART) / @ENTRY_ROWS@);
      if (group != table_group || column_block != table_block || first_n != table_n) {
        kw_part_sync(1 + worker, 128);  // The table before has been read.
        @NAME@_columns(@COLUMN_ARGUMENTS@slab + @TABLE_AT@, thread, group, column_block * COLUMNS, first_n);
        table_group = group, table_block = column_block, table_n = first_n;
      }"""
FILL_MERGE_TABLE_OF_ENTRIES = """
  const int first_n = static_cast<int>(row_block * @ROWS@LL / @ENTRY_ROWS@);
  @NAME@_columns(@COLUMN_ARGUMENTS@slab + @TABLE_AT@, thread, group, column_block * COLUMNS, first_n);"""

RESULTS = """
      // Slab by slab through shared memory to the epilogue.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;@PLACES@
#pragma unroll 1
      for (int number = 0; number < PRODUCTS / HEIGHT * SLABS; ++number) {
        const long long first_row = row_block * (1LL * APART) + part_row + number / SLABS * (HEIGHT * 64);@ROW_SCALE@
        kw_part_sync(1 + worker, 128);  // The slab before has been read.
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
          for (int s = 0; s < SLABS; ++s)
            if (number == p / HEIGHT * SLABS + s)
              @NAME@_stage(@STAGED_SUMS@, s * (SLAB_COLUMNS / 2), slab, thread@PASS_PLACES@);
        kw_part_sync(1 + worker, 128);
        @NAME@_finish(@ARGUMENTS@slab@COLUMN_TABLE@@PASS_SCALE@, thread, phase_class, group, first_row,
                      column_block * COLUMNS + number % SLABS * SLAB_COLUMNS);
      }"""

# Where the sums of a thread's two rows of each product lie in the slab: a lane finds out for one of its warp's rows.
PLACES = """
      const int own_row = lane / 16 * (PRODUCTS - 1) * 64 + thread / 32 * 16 + lane % 16;
      const int own_place = @NAME@_row_place(row_block * (1LL * APART), own_row, phase_class);
      int places[PRODUCTS][2];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          places[p][i] = __shfl_sync(0xffffffffu, own_place, p * 16 + i * 8 + lane / 4);"""

PARTIAL = """
      // The sums of this part, thread after thread; @NAME@_merge finishes them.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > @LAST_BLOCK@) continue;
      const long long cell =
          ((part_number * @GROUPS@LL + group) * @CLASSES@ + phase_class) * @ALL_ROW_BLOCKS@ + row_block;
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) {
        float* to = partial + thread +
                    ((cell * @COLUMN_BLOCKS@ + column_block) * (ROWS / 64) + part_row / 64 + p) * (COLUMNS / 2 * 128);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) to[i * 128] = sums[p][i];
      }"""

MERGE = """
// Adds the parts of 64 rows of a tile in order, and finishes them.
static __global__ void __launch_bounds__(128) @NAME@_merge(
    @FINISH_PARAMETERS@) {
  constexpr int COLUMNS = @COLUMNS@, SLAB_COLUMNS = @SLAB_COLUMNS@, SLABS = COLUMNS / SLAB_COLUMNS;
  constexpr long long PART = @GROUPS@LL * @CLASSES@ * @ALL_ROW_BLOCKS@ * @COLUMN_BLOCKS@ * (@ROWS@ * COLUMNS);
  KW_DYNAMIC_SHARED(float, slab);
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
  for (int number = 0; number < SLABS; ++number) {
    __syncthreads();  // The slab before has been read.
    if (number == 0) @NAME@_stage(sums, 0, slab, thread);
    if (number == 1) @NAME@_stage(sums, (SLABS - 1) * (SLAB_COLUMNS / 2), slab, thread);
    __syncthreads();
    @NAME@_finish(@ARGUMENTS@slab@COLUMN_TABLE@@PASS_SCALE@, thread, phase_class, group, first_row,
                  column_block * COLUMNS + number * SLAB_COLUMNS);
  }
}
"""
