static __global__ void __launch_bounds__(@THREADS@, @RESIDENT@) @NAME@_stream(
    const @IN@* __restrict__ x, @OUT@* __restrict__ out, double* __restrict__ scratch) {
  // Group `group` of the block is stream `stream` of the unit; it walks rows [row, end).
  const int lane = threadIdx.x % @GROUP@;
  const int group = threadIdx.x / @GROUP@;
  const long long first_unit = static_cast<long long>(blockIdx.x) / @SPLIT@ * @UNITS@;
  const long long unit = first_unit + group / @STREAMS@;
  const int stream = static_cast<int>(blockIdx.x % @SPLIT@) * @STREAMS@ + group % @STREAMS@;
  // Slot (atom + stream in block) of a unit: streams walk the atoms in order, so no two share one.
@SLOTS@
  __shared__ int first_atom[@GROUPS@], last_atom[@GROUPS@];

  int first = 0, last = -1;
  if (unit < @ALL_UNITS@) {
    long long x_offset, out_offset;
    const int columns = @NAME@_place(unit, x_offset, out_offset);
    long long row = @ALL_ROWS@ * stream / @ALL_STREAMS@;
    const long long end = @ALL_ROWS@ * (stream + 1) / @ALL_STREAMS@;
    int atom = 0;
    while (atom + 1 < @ATOMS@ && row >= @NAME@_first_row(atom + 1)) ++atom;
    first = atom;
    for (; row < end; ++atom) {
      const long long atom_end = @NAME@_first_row(atom + 1);
      const long long stop = end < atom_end ? end : atom_end;
      @NAME@_Walk walk;
      walk.start(atom, row - @NAME@_first_row(atom));
      const int limit = @LIMIT@;
      double sums[@OWNED@] = {};
@CALL@
      const int local = group / @STREAMS@, stream_in_block = group % @STREAMS@;
      double* slot = slots + (static_cast<long long>(local) * @SLOT_COUNT@
                      + atom + stream_in_block) * @PADDED@;
#pragma unroll
      for (int v = 0; v < @LOADS@; ++v) {
        const int column = (lane + v * @GROUP@) * @WIDTH@;
        if (column < @PADDED@) {
#pragma unroll
          for (int i = 0; i < @WIDTH@; ++i) slot[column + i] = sums[v * @WIDTH@ + i];
        }
      }
      row = stop;
      last = atom;
    }
  }
  if (lane == 0) {
    first_atom[group] = first;
    last_atom[group] = last;
  }
  __syncthreads();
