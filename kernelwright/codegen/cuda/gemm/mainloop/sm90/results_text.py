"""The parts of the text of a contraction's core on wgmma behind its products: what becomes of the sums of a tile.

``@NAME@`` as in `mainloop.sm90.text`. Long ones are files beside this one.
"""

from __future__ import annotations

from kernelwright.codegen.source import part_beside, text_beside

SUBTILE_POINTER = """    float* subtile = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES) + worker * SUBTILE;
"""

# What the epilogue needs of columns, behind the subtile.
TABLE_OF = """    int table_group = -1, table_block = -1;  // the columns that the table is of
"""
FILL_TABLE = """
      if (group != table_group || column_block != table_block) {
        kw_part_sync(1 + worker, 128);  // The table before has been read.
        @NAME@_columns(@COLUMN_ARGUMENTS@subtile + @TABLE_AT@, thread, group, column_block * COLUMNS);
        table_group = group, table_block = column_block;
      }"""
FILL_MERGE_TABLE = """
  @NAME@_columns(@COLUMN_ARGUMENTS@subtile + @TABLE_AT@, thread, group, column_block * COLUMNS);"""

# The same where the table is of entries of the batch, too.
TABLE_OF_ENTRIES = """    int table_group = -1, table_block = -1, table_n = -1;  // the columns that the table is of
"""
FILL_TABLE_OF_ENTRIES = """
      const int first_n = static_cast<int>(row_block * (1LL * APART) / @ENTRY_ROWS@);
      if (group != table_group || column_block != table_block || first_n != table_n) {
        kw_part_sync(1 + worker, 128);  // The table before has been read.
        @NAME@_columns(@COLUMN_ARGUMENTS@subtile + @TABLE_AT@, thread, group, column_block * COLUMNS, first_n);
        table_group = group, table_block = column_block, table_n = first_n;
      }"""
FILL_MERGE_TABLE_OF_ENTRIES = """
  const int first_n = static_cast<int>(row_block * @ROWS@LL / @ENTRY_ROWS@);
  @NAME@_columns(@COLUMN_ARGUMENTS@subtile + @TABLE_AT@, thread, group, column_block * COLUMNS, first_n);"""

RESULTS = "\n" + part_beside(__file__, "results.cuh")

# Where the sums of a thread's two rows of each product lie in the subtile: a lane finds out for one of its warp's rows.
PLACES = """
      const int own_row = lane / 16 * (PRODUCTS - 1) * 64 + thread / 32 * 16 + lane % 16;
      const int own_place = @NAME@_row_place(row_block * (1LL * APART), own_row, phase_class);
      int places[PRODUCTS][2];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          places[p][i] = __shfl_sync(0xffffffffu, own_place, p * 16 + i * 8 + lane / 4);"""

PARTIAL = "\n" + part_beside(__file__, "partial.cuh")

MERGE = "\n" + text_beside(__file__, "merge.cuh")
