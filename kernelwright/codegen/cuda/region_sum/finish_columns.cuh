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
