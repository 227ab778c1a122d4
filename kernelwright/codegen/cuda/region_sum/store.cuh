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
