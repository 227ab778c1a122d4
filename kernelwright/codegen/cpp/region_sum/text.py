"""Templates of the C++ region sum; ``@KEY@`` is replaced by ``generate.py`` beside it."""

from __future__ import annotations

EMPTY = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace) {
  (void)x; (void)out; (void)workspace;
  return nullptr;  // the output has no elements
}
"""

DIRECT = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace) {
  (void)workspace;
#pragma omp parallel for schedule(static)@IF@
  for (long long output = 0; output < @OUTPUTS@; ++output)
    out[output] = static_cast<@OUT@>(@SCALE@ * @NAME@_one(x, output, 0));
  return nullptr;
}
"""

SMALL_AXIS = """
// Reduces one axis: source is [outer][@SIZE@][inner * 8], target [outer][@OUTPUTS@][inner * 8].
static inline void @NAME@_axis@AXIS@(const double* source, double* target) {
  for (int outer = 0; outer < @OUTER@; ++outer)
    for (int u = 0; u < @OUTPUTS@; ++u) {
      double* sum = target + (outer * @OUTPUTS@ + u) * @INNER@ * 8;
      for (int e = 0; e < @INNER@ * 8; ++e) sum[e] = 0;
      for (int p = @NAME@_first@AXIS@(u); p < @NAME@_first@AXIS@(u + 1); ++p)
        for (int q = @NAME@_start@AXIS@(p); q < @NAME@_stop@AXIS@(p); q += @NAME@_step@AXIS@(p)) {
          const double* term = source + (outer * @SIZE@ + q) * @INNER@ * 8;
#pragma omp simd
          for (int e = 0; e < @INNER@ * 8; ++e) sum[e] += term[e];
        }
    }
}
"""

SMALL = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace) {
  (void)workspace;
  // Eight units at a time, one per vector lane.
#pragma omp parallel for schedule(static)@IF@
  for (long long first = 0; first < @UNITS@; first += 8) {
    alignas(64) double buffer0[@ROOM@ * 8], buffer1[@ROOM@ * 8];
    const int units = @UNITS@ - first < 8 ? static_cast<int>(@UNITS@ - first) : 8;
    for (int unit = 0; unit < 8; ++unit)
      for (int i = 0; i < @SIZE@; ++i)
        buffer0[i * 8 + unit] = unit < units ? static_cast<double>(x[(first + unit) * @SIZE@ + i]) : 0.0;
@CALLS@
    for (int unit = 0; unit < units; ++unit)
      for (int u = 0; u < @OUTPUTS@; ++u)
        out[(first + unit) * @OUTPUTS@ + u] = static_cast<@OUT@>(@SCALE@ * buffer@LAST@[u * 8 + unit]);
  }
  return nullptr;
}
"""

ROWS = """
// Sums of rows [row, end) of a unit by task; `columns` of every row exist.
static void @NAME@_rows(const @IN@* x, int columns, long long row, long long end, double* totals) {
  (void)columns;
  for (int task = 0; task < @TOTALS@; ++task) totals[task] = 0;
  int atom = 0;
  while (atom + 1 < @ATOMS@ && row >= @NAME@_first_row(atom + 1)) ++atom;
  for (; row < end; ++atom) {
    const long long atom_end = @NAME@_first_row(atom + 1);
    const long long stop = end < atom_end ? end : atom_end;
    const int limit = @LIMIT@;
    @NAME@_Walk walk;
    walk.start(atom, row - @NAME@_first_row(atom));
    alignas(64) double sums[@COLUMNS@];
    for (int c = 0; c < limit; ++c) sums[c] = 0;
    for (; row < stop; ++row) {
      const @IN@* row0 = x + walk.offset; walk.next();
@PREFETCH@#pragma omp simd
      for (int c = 0; c < limit; ++c) sums[c] += static_cast<double>(row0[c]);
    }
@TASKS@
  }
}
"""

PREFETCH = """      // Atoms are not in memory order, so the next unit is fetched in that order meanwhile.
      for (int c = 0; c < @COLUMNS@; c += 64 / static_cast<int>(sizeof(@IN@)))
        __builtin_prefetch(x + @POSITIONS@ + row * @COLUMNS@ + c, 0, 2);
"""

TASKS = """    for (int task = @NAME@_first_task(atom); task < @NAME@_first_task(atom + 1); ++task) {
      const int list = @NAME@_task_list(task);
      double total = 0;
      for (int run = @NAME@_first_run(list); run < @NAME@_first_run(list + 1); ++run)
        total += @NAME@_run(sums + @NAME@_run_start(run), @NAME@_run_count(run), @NAME@_run_step(run));
      totals[task] = total;
    }"""

TASKS_COLUMNS = "    for (int c = 0; c < limit; ++c) totals[atom * @COLUMNS@ + c] = sums[c];"

RUN = """
// Sum of every step-th column.
static inline double @NAME@_run(const double* sums, int count, int step) {
  double total = 0;
  if (step == 1) {
#pragma omp simd reduction(+ : total)
    for (int i = 0; i < count; ++i) total += sums[i];
  } else {
    for (int i = 0; i < count; ++i) total += sums[i * step];
  }
  return total;
}
"""

STORE = """
// Outputs of a unit from the tasks of its @SPLIT@ part(s).
static void @NAME@_store(const double* totals, int columns, @OUT@* out) {
  (void)columns;
  for (int u = 0; u < @OUTPUTS@; ++u) {
    double sum = 0;
    for (int part = 0; part < @SPLIT@; ++part)
      for (int i = @NAME@_first_part(u); i < @NAME@_first_part(u + 1); ++i)
        sum += totals[static_cast<long long>(part) * @TOTALS@ + @NAME@_part(i)];
    out[@NAME@_output(u)] = static_cast<@OUT@>(@SCALE@ * sum);
  }
}
"""

STORE_COLUMNS = """
// Outputs of a unit from the atoms of its @SPLIT@ part(s).
static void @NAME@_store(const double* totals, int columns, @OUT@* out) {
  for (int u = 0; u < @OUTPUTS@; ++u) {
    alignas(64) double sum[@COLUMNS@] = {};
    for (int part = 0; part < @SPLIT@; ++part)
      for (int i = @NAME@_first_part(u); i < @NAME@_first_part(u + 1); ++i) {
        const double* term = totals + static_cast<long long>(part) * @TOTALS@ + @NAME@_part(i) * @COLUMNS@;
        for (int c = 0; c < columns; ++c) sum[c] += term[c];
      }
    for (int c = 0; c < columns; ++c) out[@NAME@_output(u) + c] = static_cast<@OUT@>(@SCALE@ * sum[c]);
  }
}
"""

WHOLE = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace) {
  (void)workspace;
#pragma omp parallel for schedule(static)@IF@
  for (long long unit = 0; unit < @UNITS@; ++unit) {
    long long x_offset, out_offset;
    const int columns = @NAME@_place(unit, x_offset, out_offset);
    double totals[@TOTALS@];
    @NAME@_rows(x + x_offset, columns, 0, @ALL_ROWS@, totals);
    @NAME@_store(totals, columns, out + out_offset);
  }
  return nullptr;
}
"""

SPLIT = """
static const char* @NAME@(const @IN@* x, @OUT@* out, void* workspace) {
  double* totals = static_cast<double*>(workspace);  // [unit][part][task]
#pragma omp parallel for schedule(static)
  for (long long item = 0; item < @UNITS@ * @SPLIT@; ++item) {
    const long long unit = item / @SPLIT@, part = item % @SPLIT@;
    long long x_offset, out_offset;
    const int columns = @NAME@_place(unit, x_offset, out_offset);
    @NAME@_rows(x + x_offset, columns, @ALL_ROWS@ * part / @SPLIT@, @ALL_ROWS@ * (part + 1) / @SPLIT@,
                totals + item * @TOTALS@);
  }
#pragma omp parallel for schedule(static)
  for (long long unit = 0; unit < @UNITS@; ++unit) {
    long long x_offset, out_offset;
    const int columns = @NAME@_place(unit, x_offset, out_offset);
    @NAME@_store(totals + unit * @SPLIT@ * @TOTALS@, columns, out + out_offset);
  }
  return nullptr;
}
"""
