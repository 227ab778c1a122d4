"""Templates of the CUDA region sum; ``@KEY@`` is replaced by ``generate.py`` beside it."""

from __future__ import annotations

DIRECT = """
// One group of @LANES@ threads per output.
static __global__ void __launch_bounds__(256) @NAME@_direct(
    const @IN@* __restrict__ x, @OUT@* __restrict__ out) {
  const long long thread = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const long long output = thread / @LANES@;
  double sum = output < @OUTPUTS@ ? @NAME@_one(x, output, static_cast<int>(thread % @LANES@)) : 0.0;
  for (int offset = @LANES@ / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (output < @OUTPUTS@ && thread % @LANES@ == 0) out[output] = static_cast<@OUT@>(@SCALE@ * sum);
}

static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  (void)workspace;
  KW_LAUNCH("@NAME@", @NAME@_direct, @BLOCKS@, 256, 0, stream, x, out);
  return nullptr;
}
"""

EMPTY = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  (void)x; (void)out; (void)workspace; (void)stream;
  return nullptr;  // the output has no elements
}
"""

LOAD = """
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
"""

STREAM = """
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
"""

TASKS = """
  // Tasks: the sum of some columns of one atom over all streams of the block.
  __shared__ double totals[@UNITS@ * @TASKS@];
  for (int begin = 0; begin < @UNITS@ * @TASKS@; begin += @THREADS@ / @TASK_LANES@) {
    const int item = begin + threadIdx.x / @TASK_LANES@;
    double sum = 0;
    if (item < @UNITS@ * @TASKS@) {
      const int local = item / @TASKS@, task = item % @TASKS@;
      const int atom = @NAME@_task_atom(task);
      const int list = @NAME@_task_list(task);
      for (int s = 0; s < @STREAMS@; ++s) {
        const int owner = local * @STREAMS@ + s;
        if (atom < first_atom[owner] || atom > last_atom[owner]) continue;
        const double* slot = slots + (static_cast<long long>(local) * @SLOT_COUNT@ + atom + s) * @PADDED@;
        for (int i = threadIdx.x % @TASK_LANES@; i < @NAME@_list_length(list); i += @TASK_LANES@)
          sum += slot[@NAME@_column(list, i)];
      }
    }
    for (int offset = @TASK_LANES@ / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (item < @UNITS@ * @TASKS@ && threadIdx.x % @TASK_LANES@ == 0) totals[item] = sum;
  }
  __syncthreads();
"""

STORE = """
  for (int item = threadIdx.x; item < @UNITS@ * @OUTPUTS@; item += @THREADS@) {
    const int local = item / @OUTPUTS@, output = item % @OUTPUTS@;
    if (first_unit + local >= @ALL_UNITS@) break;
    long long x_offset, out_offset;
    @NAME@_place(first_unit + local, x_offset, out_offset);
    double sum = 0;
    for (int i = @NAME@_first_part(output); i < @NAME@_first_part(output + 1); ++i)
      sum += totals[local * @TASKS@ + @NAME@_part(i)];
    out[out_offset + @NAME@_output(output)] = static_cast<@OUT@>(@SCALE@ * sum);
  }
}
"""

STORE_SPLIT = """
  // One unit per block: its tasks go to the workspace.
  for (int task = threadIdx.x; task < @TASKS@; task += @THREADS@)
    scratch[static_cast<long long>(blockIdx.x) * @TASKS@ + task] = totals[task];
}

// One warp per output adds the tasks of all blocks of its unit.
static __global__ void __launch_bounds__(256) @NAME@_finish(
    const double* __restrict__ scratch, @OUT@* __restrict__ out) {
  const long long number = static_cast<long long>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (number >= @ALL_UNITS@ * @OUTPUTS@) return;
  const long long unit = number / @OUTPUTS@;
  const int output = static_cast<int>(number % @OUTPUTS@);
  double sum = 0;
  for (int i = @NAME@_first_part(output); i < @NAME@_first_part(output + 1); ++i)
    for (int block = threadIdx.x % 32; block < @SPLIT@; block += 32)
      sum += scratch[(unit * @SPLIT@ + block) * @TASKS@ + @NAME@_part(i)];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  long long x_offset, out_offset;
  @NAME@_place(unit, x_offset, out_offset);
  if (threadIdx.x % 32 == 0) out[out_offset + @NAME@_output(output)] = static_cast<@OUT@>(@SCALE@ * sum);
}
"""

STORE_COLUMNS = """
  // Kept columns: one thread per output and column.
  for (int item = threadIdx.x; item < @UNITS@ * @ITEMS@ * @COLUMNS@; item += @THREADS@) {
    const int column = item % @COLUMNS@, output = item / @COLUMNS@ % @ITEMS@;
    const int local = item / (@COLUMNS@ * @ITEMS@);
    if (first_unit + local >= @ALL_UNITS@) break;
    long long x_offset, out_offset;
    if (column >= @NAME@_place(first_unit + local, x_offset, out_offset)) continue;
    double sum = 0;
@PARTS@
      for (int s = 0; s < @STREAMS@; ++s) {
        const int owner = local * @STREAMS@ + s;
        if (atom < first_atom[owner] || atom > last_atom[owner]) continue;
        sum += slots[(static_cast<long long>(local) * @SLOT_COUNT@ + atom + s) * @PADDED@ + column];
      }
    }
@RESULT@
  }
}
"""

PARTS = """    for (int i = @NAME@_first_part(output); i < @NAME@_first_part(output + 1); ++i) {
      const int atom = @NAME@_part(i);"""

RESULT = "    out[out_offset + @NAME@_output(output) + column] = static_cast<@OUT@>(@SCALE@ * sum);"

PARTS_SPLIT = """    {
      const int atom = output;  // one unit per block: its atoms go to the workspace"""

RESULT_SPLIT = (
    "    scratch[(static_cast<long long>(blockIdx.x) * @TASKS@ + output) * @COLUMNS@ + column] = sum;"
)

FINISH_COLUMNS = """
// One thread per output and column adds the atoms of all blocks of its unit.
static __global__ void __launch_bounds__(256) @NAME@_finish(
    const double* __restrict__ scratch, @OUT@* __restrict__ out) {
  const long long number = static_cast<long long>(blockIdx.x) * 256 + threadIdx.x;
  const int column = static_cast<int>(number % @COLUMNS@);
  const int output = static_cast<int>(number / @COLUMNS@ % @OUTPUTS@);
  const long long unit = number / (@COLUMNS@ * @OUTPUTS@);
  long long x_offset, out_offset;
  if (unit >= @ALL_UNITS@ || column >= @NAME@_place(unit, x_offset, out_offset)) return;
  double sum = 0;
  for (int i = @NAME@_first_part(output); i < @NAME@_first_part(output + 1); ++i)
    for (int block = 0; block < @SPLIT@; ++block)
      sum += scratch[((unit * @SPLIT@ + block) * @TASKS@ + @NAME@_part(i)) * @COLUMNS@ + column];
  out[out_offset + @NAME@_output(output) + column] = static_cast<@OUT@>(@SCALE@ * sum);
}
"""

HOST = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace, cudaStream_t stream) {
  double* scratch = static_cast<double*>(workspace);
  KW_LAUNCH("@NAME@", @NAME@_stream, @BLOCKS@, @THREADS@, 0, stream, x, out, scratch);
@FINISH@  return nullptr;
}
"""
