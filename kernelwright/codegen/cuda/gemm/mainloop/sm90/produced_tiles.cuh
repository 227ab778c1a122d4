    int stage = 0, producer = 0@FILLS@;
    unsigned parity = 1;
    for (@TILE@ tile = first_tile; tile < TILES; @NEXT_TILE@) {
      int group, phase_class, row_block, column_block;
      @NAME@_tile(tile, group, phase_class, row_block, column_block);@SPLIT_OF@@OTHER_CLASS@
      row_block = row_block * CLUSTER + rank;
      if (row_block > @LAST_BLOCK@) row_block = @LAST_BLOCK@;  // beyond the end: read, not used@LEFT_OF_TILE@
      const unsigned short* w = right + static_cast<long long>(group) * (@WINDOW@ * ALL_CHUNKS * ALL_COLUMNS * 8) +
                                static_cast<long long>(column_block) * (ALL_CHUNKS * COLUMNS * 8);
      const int first_tap_group = @NAME@_tap_groups[phase_class], last_tap_group = @NAME@_tap_groups[phase_class + 1];
      @BEGIN@
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;
