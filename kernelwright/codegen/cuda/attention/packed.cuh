static __global__ void __launch_bounds__(256) @NAME@_pack(@PACK_PARAMETERS@, unsigned char* packed) {
  using namespace @NAME@_detail;
  __shared__ unsigned extremes[PACKERS / 16];
  float* const factors = reinterpret_cast<float*>(packed + FACTORS);
  unsigned* const flags = reinterpret_cast<unsigned*>(packed + FLAGS);
  long long tile = blockIdx.x;
  if (tile < QUERY_TILES) {
    const int point = static_cast<int>(tile / ROW_TILES), first = static_cast<int>(tile % ROW_TILES) * 64;
@POINT_OF_QUERY@
    Queries queries;
    queries.take([&](float (&x)[8], int row, int k) { if (first + row < ROWS) @TAKE_QUERY@; });
    queries.put(reinterpret_cast<unsigned short*>(packed + tile * QUERY_BYTES), factors + tile, flags + point,
                extremes);
    return;
  }
  tile -= QUERY_TILES;
  if (tile < KEY_TILES) {
    const int point = static_cast<int>(tile / TILES), first = static_cast<int>(tile % TILES) * TILE_COLUMNS;
@POINT_OF_KEY@
    Keys keys;
    keys.take([&](float (&x)[8], int row, int k) { if (first + row < COLUMNS) @TAKE_KEY@; });
    keys.put(reinterpret_cast<unsigned short*>(packed + KEYS + tile * KEY_BYTES), factors + QUERY_TILES + tile,
             flags + point, extremes);
    return;
  }
  tile -= KEY_TILES;
  const int point = static_cast<int>(tile / (TILES * PARTS));
  const int first = static_cast<int>(tile / PARTS % TILES) * TILE_COLUMNS, begin = static_cast<int>(tile % PARTS) * WIDE;
@POINT_OF_VALUE@
  Values values;
  values.take([&](float (&x)[8], int row, int k) { if (begin + row < WIDTH) @TAKE_VALUE@; });
  values.put(reinterpret_cast<unsigned short*>(packed + VALUES + tile * VALUE_BYTES),
             factors + QUERY_TILES + KEY_TILES + tile, flags + point, extremes);
}

