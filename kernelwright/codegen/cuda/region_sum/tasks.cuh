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
