  constexpr int ROWS = @ROWS@, COLUMNS = @COLUMNS@;   // of a tile of sums
  constexpr int APART = @APART@;                // rows from one tile to the next
  constexpr int CHUNKS = @CHUNKS@, TERMS = @TERMS@, LINES = TERMS * CHUNKS;   // chunks of 8 channels of a step
  constexpr int PITCH = @PITCH@;                 // rows of x from one chunk to the next in shared memory
  constexpr int STAGES = @STAGES@, STAGE_BYTES = @STAGE_BYTES@, LEFT_BYTES = LINES * PITCH * 16;
  // Consumer warpgroups; tiles in work; products of 64 rows each.
  constexpr int WORKERS = @WORKERS@, WARPGROUPS = @WARPGROUPS@, PRODUCTS = @PRODUCTS@;
  // Of a subtile for the epilogue: floats, columns, products of 64 rows.
  constexpr int SUBTILE = @SUBTILE@, SUBTILE_COLUMNS = @SUBTILE_COLUMNS@;
  constexpr int SUBTILES = COLUMNS / SUBTILE_COLUMNS, HEIGHT = @HEIGHT@;
  constexpr int DEPTHS = @DEPTHS@, CLUSTER = @CLUSTER@, SPLIT = @SPLIT@;
  constexpr long long ALL_CHUNKS = @ALL_CHUNKS@, ALL_ROWS = @ALL_ROWS@, ALL_COLUMNS = @ALL_COLUMNS@;
  constexpr int X_CHUNKS = @X_CHUNKS@, SHARE = CHUNKS * COLUMNS / CLUSTER;  // of x and w in one copy: chunks; rows
  constexpr @TILE@ TILES = @TILES@;
