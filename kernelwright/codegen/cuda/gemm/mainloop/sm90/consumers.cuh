    @MORE@
    const int worker = warp / 4 - @PRODUCER_GROUPS@, thread = threadIdx.x % 128;
    const int part_row = WARPGROUPS > 1 ? 0 : worker * (PRODUCTS * 64);  // of the tile's rows
@SUBTILE_POINTER@@TABLE_OF@    int stage = 0@TILE_NUMBER@;
    unsigned parity = 0;
    for (@TILE@ tile = first_tile; tile < TILES; @NEXT_TILE@) {
      int group, phase_class, row_block, column_block;
      @NAME@_tile(tile, group, phase_class, row_block, column_block);@SPLIT_OF@
      row_block = row_block * CLUSTER + rank;@OWN_TAP_GROUPS@
      @OWN_BEGIN@@SKIP@@SUMS@
@RESULTS@
    }
