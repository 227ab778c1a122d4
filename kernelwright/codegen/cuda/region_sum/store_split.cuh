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
