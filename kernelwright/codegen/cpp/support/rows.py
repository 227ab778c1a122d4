"""Accumulators of row reductions, and the clipping of a loop to where guards hold.

Every accumulator takes contiguous blocks of at most 1024 values (``block``), absorbs another
(``merge``, in an order that the caller fixes) and answers (``value``). Float values are added in
32 lanes of at most 32 additions each, then in double precision.
"""

from __future__ import annotations

ROW_SNIPPETS: dict[str, str] = {}

ROW_SNIPPETS["kw_clip"] = """\
// Narrow [first, last) to the points i with 0 <= base + stride * i < size.
static inline void kw_clip(int64_t& first, int64_t& last, int64_t base, int64_t stride, int64_t size) {
  const auto below = [](int64_t a, int64_t b) { return a / b - (a % b < 0); };  // floor(a / b), b > 0
  int64_t low = first, high = last;
  if (stride > 0) {
    low = -below(base, stride), high = below(size - 1 - base, stride) + 1;
  } else if (stride < 0) {
    low = -below(size - 1 - base, -stride), high = below(base, -stride) + 1;
  } else if (base < 0 || base >= size) {
    high = low;
  }
  if (low > first) first = low < last ? low : last;
  if (high < last) last = high > first ? high : first;
}
"""
ROW_SNIPPETS["kw_vector"] = """\
// 32 bytes of values; g++ lowers its operations to the registers that the processor has.
template <typename real> struct kw_vector {
  typedef real type __attribute__((vector_size(32)));
  typedef double wide __attribute__((vector_size(32 / sizeof(real) * sizeof(double))));
  typedef real half __attribute__((vector_size(16)));
  static constexpr int64_t lanes = 32 / sizeof(real);
  static type load(const real* values) { type result; std::memcpy(&result, values, 32); return result; }
};
"""
ROW_SNIPPETS["kw_turn"] = """\
// One square block of kw_turn, in registers: pairs of rows exchange elements 1, then 2, then 4 apart.
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define KW_TURN_IN_REGISTERS 1
#endif
#endif
#ifdef KW_TURN_IN_REGISTERS
static inline void kw_turn_block(const float* from, int64_t from_step, float* to, int64_t to_step) {
  using V = kw_vector<float>::type;
  V a[8], b[8];
  for (int k = 0; k < 8; ++k) a[k] = kw_vector<float>::load(from + k * from_step);
  for (int k = 0; k < 8; k += 2) {
    b[k] = __builtin_shufflevector(a[k], a[k + 1], 0, 8, 2, 10, 4, 12, 6, 14);
    b[k + 1] = __builtin_shufflevector(a[k], a[k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
  }
  for (int k = 0; k < 8; k += 4)
    for (int n = 0; n < 2; ++n) {
      a[k + n] = __builtin_shufflevector(b[k + n], b[k + n + 2], 0, 1, 8, 9, 4, 5, 12, 13);
      a[k + n + 2] = __builtin_shufflevector(b[k + n], b[k + n + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int k = 0; k < 4; ++k) {
    b[k] = __builtin_shufflevector(a[k], a[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    b[k + 4] = __builtin_shufflevector(a[k], a[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (int k = 0; k < 8; ++k) std::memcpy(to + k * to_step, &b[k], 32);
}
static inline void kw_turn_block(const double* from, int64_t from_step, double* to, int64_t to_step) {
  using V = kw_vector<double>::type;
  V a[4], b[4];
  for (int k = 0; k < 4; ++k) a[k] = kw_vector<double>::load(from + k * from_step);
  for (int k = 0; k < 4; k += 2) {
    b[k] = __builtin_shufflevector(a[k], a[k + 1], 0, 4, 2, 6);
    b[k + 1] = __builtin_shufflevector(a[k], a[k + 1], 1, 5, 3, 7);
  }
  for (int k = 0; k < 2; ++k) {
    a[k] = __builtin_shufflevector(b[k], b[k + 2], 0, 1, 4, 5);
    a[k + 2] = __builtin_shufflevector(b[k], b[k + 2], 2, 3, 6, 7);
  }
  for (int k = 0; k < 4; ++k) std::memcpy(to + k * to_step, &a[k], 32);
}
#else
template <typename real>
static inline void kw_turn_block(const real* from, int64_t from_step, real* to, int64_t to_step) {
  for (int64_t k = 0; k < kw_vector<real>::lanes; ++k)
    for (int64_t n = 0; n < kw_vector<real>::lanes; ++n) to[n * to_step + k] = from[k * from_step + n];
}
#endif
// Transposes: to[n * to_step + k] = from[k * from_step + n] for k < rows, n < columns.
template <typename real>
static inline void kw_turn(
    const real* from, int64_t from_step, real* to, int64_t to_step, int64_t rows, int64_t columns) {
  constexpr int64_t L = kw_vector<real>::lanes;
  const int64_t whole_rows = rows / L * L, whole = columns / L * L;
  for (int64_t k = 0; k < whole_rows; k += L) {
    for (int64_t n = 0; n < whole; n += L)
      kw_turn_block(from + k * from_step + n, from_step, to + n * to_step + k, to_step);
    for (int64_t n = whole; n < columns; ++n)
      for (int64_t j = k; j < k + L; ++j) to[n * to_step + j] = from[j * from_step + n];
  }
  for (int64_t k = whole_rows; k < rows; ++k)
    for (int64_t n = 0; n < columns; ++n) to[n * to_step + k] = from[k * from_step + n];
}
"""
ROW_SNIPPETS["kw_add_lanes"] = """\
// The sum of the lanes of four or eight doubles, by halves.
template <typename wide> static inline double kw_add_lanes(wide x) {
  if constexpr (sizeof(wide) == 64) return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  else return (x[0] + x[2]) + (x[1] + x[3]);
}
"""
ROW_SNIPPETS["kw_lanes_from"] = """\
// The lanes from number first; zero in those before.
template <typename wide> static inline wide kw_lanes_from(wide lanes, int64_t first) {
  wide number;
  for (int64_t lane = 0; lane < int64_t(sizeof(wide) / sizeof(lanes[0])); ++lane) number[lane] = lane;
  return number >= decltype(+lanes[0])(first) ? lanes : wide{};
}
"""
ROW_SNIPPETS["kw_fold_sum"] = """\
// The sum of function(value) over a block, in 4 vectors of lanes. function takes vectors and scalars.
template <typename real, typename F>
static inline double kw_fold_sum(const real* values, int64_t count, F function) {
  using V = kw_vector<real>;
  constexpr int64_t L = V::lanes;
  typename V::type a{}, b{}, c{}, d{};
  int64_t i = 0;
  for (; i + 4 * L <= count; i += 4 * L) {
    a += function(V::load(values + i));
    b += function(V::load(values + i + L));
    c += function(V::load(values + i + 2 * L));
    d += function(V::load(values + i + 3 * L));
  }
  for (; i + L <= count; i += L) a += function(V::load(values + i));
  if (i < count && count >= L) {  // the last lanes of the last vector
    b += kw_lanes_from<typename V::type>(function(V::load(values + count - L)), L - (count - i));
    i = count;
  }
  a = (a + b) + (c + d);
  double total = kw_add_lanes(__builtin_convertvector(a, typename V::wide));
  for (; i < count; ++i) total += function(values[i]);
  return total;
}
"""
_EXTREMUM = """\
// {word} of a row, of equal zeros the first; NaN if any value is NaN.
template <typename real> struct kw_{name}_of {{
  real best = {sign}std::numeric_limits<real>::infinity();
  void block(const real* values, int64_t count) {{
    using V = kw_vector<real>;
    constexpr int64_t L = V::lanes;
    const real before = best;
    const auto further = [](auto x, auto y) {{ return x {op} y ? x : y; }};
    int64_t i = 0;
    if (count >= L) {{
      typename V::type a = V::load(values), b = a, c = a, d = a;
      auto lost = a != a;  // lanes of NaN, which comparisons drop
      for (; i + 4 * L <= count; i += 4 * L) {{
        const typename V::type x = V::load(values + i), y = V::load(values + i + L);
        const typename V::type z = V::load(values + i + 2 * L), w = V::load(values + i + 3 * L);
        lost |= (x != x) | (y != y) | (z != z) | (w != w);
        a = further(x, a), b = further(y, b), c = further(z, c), d = further(w, d);
      }}
      for (; i + L <= count; i += L) {{
        const typename V::type x = V::load(values + i);
        lost |= x != x, a = further(x, a);
      }}
      const typename V::type rest = V::load(values + count - L);  // what is left, and some once more
      lost |= rest != rest, b = further(rest, b);
      a = further(further(a, b), further(c, d));
      typename V::half low, high;
      std::memcpy(&low, &a, 16), std::memcpy(&high, reinterpret_cast<const char*>(&a) + 16, 16);
      low = further(low, high);
      for (int64_t lane = 0; lane < L / 2; lane += 2) best = kw_{full}(kw_{full}(low[lane], low[lane + 1]), best);
      bool any = false;
      for (int64_t lane = 0; lane < L; ++lane) any |= lost[lane] != 0;
      if (any) best = std::numeric_limits<real>::quiet_NaN();
      i = count;
    }}
    for (; i < count; ++i) best = kw_{full}(best, values[i]);
    if (best == 0) {{  // which zero, the lanes do not know
      for (i = 0; before != 0 && values[i] != 0;) ++i;
      best = before == 0 ? before : values[i];
    }}
  }}
  void merge(const kw_{name}_of& other) {{ best = kw_{full}(other.best, best); }}
  real value() const {{ return best; }}
}};
"""
ROW_SNIPPETS["kw_sum_of"] = """\
template <typename real> struct kw_sum_of {
  double total = 0;
  void block(const real* values, int64_t count) {
    total += kw_fold_sum(values, count, [](auto x) { return x; });
  }
  void merge(const kw_sum_of& other) { total += other.total; }
  real value() const { return real(total); }
};
"""
ROW_SNIPPETS["kw_product_of"] = """\
// Product of a row, in double: what it passes through is in range where the elements are floats.
template <typename real> struct kw_product_of {
  double total = 1;
  void block(const real* values, int64_t count) {
    using V = kw_vector<real>;
    typedef typename V::wide wide;
    constexpr int64_t L = V::lanes;
    wide a = wide{} + 1.0, b = a;
    int64_t i = 0;
    for (; i + 2 * L <= count; i += 2 * L) {
      a *= __builtin_convertvector(V::load(values + i), wide);
      b *= __builtin_convertvector(V::load(values + i + L), wide);
    }
    a *= b;
    for (int64_t lane = 0; lane < L; ++lane) total *= a[lane];
    for (; i < count; ++i) total *= double(values[i]);
  }
  void merge(const kw_product_of& other) { total *= other.total; }
  real value() const { return real(total); }
};
"""
ROW_SNIPPETS["kw_max_of"] = _EXTREMUM.format(word="Maximum", name="max", full="maximum", op=">", sign="-")
ROW_SNIPPETS["kw_min_of"] = _EXTREMUM.format(word="Minimum", name="min", full="minimum", op="<", sign="")
ROW_SNIPPETS["kw_fold_wide"] = """\
// The sum of function(value) over a block, in double. function takes vectors and scalars of double.
template <typename real, typename F>
static inline double kw_fold_wide(const real* values, int64_t count, F function) {
  using V = kw_vector<real>;
  typedef typename V::wide wide;
  constexpr int64_t L = V::lanes;
  wide a{}, b{};
  int64_t i = 0;
  for (; i + 2 * L <= count; i += 2 * L) {
    a += function(__builtin_convertvector(V::load(values + i), wide));
    b += function(__builtin_convertvector(V::load(values + i + L), wide));
  }
  if (i + L <= count) {
    a += function(__builtin_convertvector(V::load(values + i), wide));
    i += L;
  }
  if (i < count && count >= L) {  // the last lanes of the last vector
    b += kw_lanes_from<wide>(function(__builtin_convertvector(V::load(values + count - L), wide)), L - (count - i));
    i = count;
  }
  double total = kw_add_lanes(a + b);
  for (; i < count; ++i) total += function(double(values[i]));
  return total;
}
"""
ROW_SNIPPETS["kw_fold_both"] = """\
// The sums of x - base and of its square over a block of floats, in double.
static inline double kw_fold_both(const float* values, int64_t count, double base, double& squares) {
  using V = kw_vector<float>;
  typedef V::wide wide;
  constexpr int64_t L = V::lanes;
  wide a{}, b{}, square_a{}, square_b{};
  int64_t i = 0;
  for (; i + 2 * L <= count; i += 2 * L) {
    const wide x = __builtin_convertvector(V::load(values + i), wide) - base;
    const wide y = __builtin_convertvector(V::load(values + i + L), wide) - base;
    a += x, b += y, square_a += x * x, square_b += y * y;
  }
  if (i + L <= count) {
    const wide x = __builtin_convertvector(V::load(values + i), wide) - base;
    a += x, square_a += x * x;
    i += L;
  }
  if (i < count && count >= L) {  // the last lanes of the last vector
    const wide x = kw_lanes_from<wide>(__builtin_convertvector(V::load(values + count - L), wide) - base,
                                       L - (count - i));
    b += x, square_b += x * x;
    i = count;
  }
  double total = kw_add_lanes(a + b);
  squares = kw_add_lanes(square_a + square_b);
  for (; i < count; ++i) {
    const double x = double(values[i]) - base;
    total += x, squares += x * x;
  }
  return total;
}
"""
ROW_SNIPPETS["kw_moments_of"] = """\
// Mean and biased variance: squared deviations from each block's own mean, joined by Chan's formula. Sums are
// relative to the first element, so that a constant row has exactly that mean and no variance: a norm
// divides what rounding leaves by the square root of its epsilon. They are in double, as PyTorch's are: neither
// squares nor sums of them leave its range where the elements are floats. Of floats one walk has both sums: the first
// element is one of theirs, so that its squared distance from the mean is at most the sum of all, and a variance loses
// the digits of their number alone.
template <typename real> struct kw_moments_of {
  double count = 0, total = 0, squares = 0;
  real origin = 0;
  void join(double n, double sum, double deviations) {
    if (n == 0) return;
    const double gap = count > 0 ? sum / n - total / count : 0.0;
    squares += (deviations < 0 ? 0.0 : deviations) + gap * gap * (count * n / (count + n));
    total += sum;
    count += n;
  }
  void block(const real* values, int64_t n) {
    if (count == 0 && n > 0) origin = std::abs(values[0]) <= std::numeric_limits<real>::max() ? values[0] : real(0);
    const double base = origin;
    if constexpr (sizeof(real) == 4) {
      double squares;
      const double sum = kw_fold_both(values, n, base, squares);
      return join(double(n), sum, squares - sum * (sum / n));
    }
    const double sum = kw_fold_wide(values, n, [base](auto x) { return x - base; });
    const double mean = base + sum / n, rest = sum / n - (mean - base);
    const double around = kw_fold_wide(values, n, [mean](auto x) { return (x - mean) * (x - mean); });
    join(double(n), sum, around - n * rest * rest);
  }
  void merge(const kw_moments_of& other) {
    if (count == 0) origin = other.origin;
    join(other.count, other.total + other.count * (double(other.origin) - double(origin)), other.squares);
  }
  real mean() const { return real(double(origin) + total / count); }
  real variance() const { return real(squares / count); }
  real deviation() const { return real(std::sqrt(squares / count)); }
};
"""
ROW_SNIPPETS["kw_spread"] = """\
// The biased variance from n deviations' sum and sum of squares.
static inline double kw_spread(double sum, double squares, double n) {
  const double spread = (squares - sum * (sum / n)) / n;
  return spread < 0 ? 0.0 : spread;
}
"""
ROW_SNIPPETS["kw_rescale"] = """\
// exp(old - now), the factor of a sum of exponentials whose maximum moves from old to now. Sums are
// relative to the maximum where it is finite, else to 0.
template <typename real> static inline real kw_rescale(real old, real now) {
  const real factor = kw_exp(old - now);
  return old == now ? real(1) : factor;
}
template <typename real> static inline real kw_origin(real best) {
  return kw_abs(best) <= std::numeric_limits<real>::max() ? best : real(0);
}
"""
ROW_SNIPPETS["kw_logsumexp_of"] = """\
// log(sum(exp(x))): every block adds its exponentials relative to the maximum so far.
template <typename real> struct kw_logsumexp_of {
  kw_max_of<real> highest;
  double sum = 0;
  void block(const real* values, int64_t count) {
    const real old = highest.best;
    highest.block(values, count);
    sum *= kw_rescale(old, highest.best);
    const real origin = kw_origin(highest.best);
    real part = 0;
    #pragma omp simd reduction(+ : part)
    for (int64_t i = 0; i < count; ++i) part += kw_exp(values[i] - origin);
    sum += part;
  }
  void merge(const kw_logsumexp_of& other) {
    const real old = highest.best;
    highest.merge(other.highest);
    sum = sum * kw_rescale(old, highest.best) + other.sum * kw_rescale(other.highest.best, highest.best);
  }
  real value() const { return kw_origin(highest.best) + kw_log(real(sum)); }
};
"""
