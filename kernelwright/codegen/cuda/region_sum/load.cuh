// A thread's vector of the row; zeros from column `limit` on.
template <bool ragged>
static __device__ __forceinline__ @VECTOR@ @NAME@_load(const @IN@* __restrict__ row, int column, int limit) {
  @VECTOR@ value = @ZERO@;
  if (column + (ragged ? @WIDTH@ : 1) <= limit) {
    value = __ldg(reinterpret_cast<const @VECTOR@*>(row + column));
  }@RAGGED@
  return value;
}

// Adds `count` rows to the thread's column sums; @ROWS@ rows are in flight at once.
template <bool ragged>
static __device__ __forceinline__ void @NAME@_add(
    const @IN@* __restrict__ x, @NAME@_Walk& walk, long long count, int limit, int lane,
    double (&sums)[@OWNED@]) {
  for (; count > 0; count -= @ROWS@) {
    @VECTOR@ value[@ROWS@][@LOADS@];
#pragma unroll
    for (int row = 0; row < @ROWS@; ++row) {
      const int row_limit = row < count ? limit : 0;
#pragma unroll
      for (int v = 0; v < @LOADS@; ++v)
        value[row][v] = @NAME@_load<ragged>(x + walk.offset, (lane + v * @GROUP@) * @WIDTH@, row_limit);
      walk.next();
    }
#pragma unroll
    for (int v = 0; v < @LOADS@; ++v) {
@ADDS@
    }
  }
}
