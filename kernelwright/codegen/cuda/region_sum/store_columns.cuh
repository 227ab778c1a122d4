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
