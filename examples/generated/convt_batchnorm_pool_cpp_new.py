"""ModelNew: convt_batchnorm_pool, with custom kernels. Written by kernelwright 0.1.0 for generic CPU, 8 threads.

Same constructor, parameters and results as the original class. Where a call does not fit what the
kernels were built for, the original computation runs, with one warning.

Training mode: 4 of 4 operators replaced.
  operations 537 GFLOP -> 14.7 GFLOP, memory traffic 1.35 GB -> 143 MB
  rule pool to one is a mean: adaptive_avg_pool(x, 1) = mean(x); reassociates sums
  rule sum of a batch norm: sum_p ((y - m) r g + b) = ((sum_p y) - P m) r g + P b; reassociates sums
  rule constant factor out of a sum (3 times): sum(c x) = c sum(x); reassociates sums and products: where
    inputs are infinite, Inf and NaN may trade places, and a sum of zeros may have another sign
  rule sum of a convolution (3 times): sum_p conv(x, w)[p] = contraction of (sums of x over the positions each
    tap sees) with (sums of taps); reassociates sums and products: where inputs are infinite, Inf and NaN may
    trade places, and a sum of zeros may have another sign
  rule round late (16 times): f(round(x)) = round(f(x)) up to the rounding of x; changes rounding
  rule variance of an affine map: var(a x + b) = a^2 var(x), std(a x + b) = |a| std(x); changes rounding
  rule variance of a convolution: sum_p (w * x)[p]^2 = sum over lags of (autocorrelation of w)
    (autocorrelation of x); reassociates sums and products: where inputs are infinite, Inf and NaN may trade
    places, and a sum of zeros may have another sign
  rule sum of a sum of terms (2 times): sum(a + b) = sum(a) + sum(b); reassociates sums
  rule keep reduced axes (2 times): reduce(x) = reshape(reduce(x, keepdim)); bitwise
  rule biased variance: var with correction c = var with correction 0 times n / (n - c); changes rounding
  kernel k0_region_sum: sums of [16, 64, 16, 32, 32] over classes of positions, one pass, to [16, 64, 1, 1, 1]
  kernel k1_region_sum: sums of [1, 64, 128, 5, 5, 5] over classes of positions, one pass, to [1, 64, 128, 1,
    1, 1]
  kernel k2_sum: sum over rows of [16] for each of [64]: sum
  kernel k3_channel_energy: energy of 128 output channels through the input's spectrum on 20x36x36 points,
    without the output
  kernel k4_sum_cast: sum over rows of [64] for each of [128]: contract, cast, add, mul, clamp_min, sub,
    where, eq
  kernel k5_sum_cast: sum over rows of [64] for each of [16, 128]: contract, cast, add, mul, sub, rsqrt,
    clamp_min, where

Inference mode: 4 of 4 operators replaced.
  operations 537 GFLOP -> 18.1 MFLOP, memory traffic 1.35 GB -> 71.6 MB
  rule pool to one is a mean: adaptive_avg_pool(x, 1) = mean(x); reassociates sums
  rule sum of a batch norm: sum_p ((y - m) r g + b) = ((sum_p y) - P m) r g + P b; reassociates sums
  rule sum of a sum of terms (2 times): sum(a + b) = sum(a) + sum(b); reassociates sums
  rule constant factor out of a sum (2 times): sum(c x) = c sum(x); reassociates sums and products: where
    inputs are infinite, Inf and NaN may trade places, and a sum of zeros may have another sign
  rule sum of a convolution: sum_p conv(x, w)[p] = contraction of (sums of x over the positions each tap sees)
    with (sums of taps); reassociates sums and products: where inputs are infinite, Inf and NaN may trade
    places, and a sum of zeros may have another sign
  rule round late (4 times): f(round(x)) = round(f(x)) up to the rounding of x; changes rounding
  kernel k0_region_sum: sums of [16, 64, 16, 32, 32] over classes of positions, one pass, to [16, 64, 1, 1, 1]
  kernel k1_region_sum: sums of [1, 64, 128, 5, 5, 5] over classes of positions, one pass, to [1, 64, 128, 1,
    1, 1]
  kernel k6_sum_cast: sum over rows of [64] for each of [16, 128]: contract, cast, add, mul, sub, rsqrt
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Transposed convolution, scale, batch norm (training: batch statistics), global average pool."""

    def __init__(self, in_channels, out_channels, kernel_size, scale_factor):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose3d(in_channels, out_channels, kernel_size)
        self.scale_factor = scale_factor
        self.batch_norm = nn.BatchNorm3d(out_channels)
        self.pool = nn.AdaptiveAvgPool3d((1, 1, 1))

    def _original_forward(self, x):
        x = self.conv_transpose(x)
        x = x * self.scale_factor
        x = self.batch_norm(x)
        return self.pool(x)

    def forward(self, *inputs, **named):
        """The kernels where they fit this call, the original computation elsewhere."""
        return _kernelwright_call(self, inputs, named, _KERNELWRIGHT_PLANS)

    def why(self):
        """Why calls ran the original computation so far: reasons, each with its number of calls."""
        return dict(_kernelwright_fell_back.get(self, {}))

    def _kernelwright_traced(self, count, names):
        """What serves a call of so many arguments, and these by keyword, while torch.compile traces it."""
        return _kernelwright_serving(self, count, names)

    def _kernelwright_misfits(self, thing, problem):
        """Say what does not fit, while torch.compile traces a call."""
        _kernelwright_warn(self, _KernelwrightMisfit(thing, problem))

    # TorchDynamo calls these, and traces what follows from what they return.
    _kernelwright_traced._dynamo_marked_constant = _kernelwright_misfits._dynamo_marked_constant = True


# The kernels --------------------------------------------------------------------------------------------------------


_KERNELWRIGHT_OPERATORS = "convt_batchnorm_pool_d41641a82114"
_KERNELWRIGHT_NAME = "convt_batchnorm_pool"
_KERNELWRIGHT_DEVICE = "cpu"
_KERNELWRIGHT_FLAGS = ['-O3', '-march=native', '-fopenmp', '-std=c++17', '-fno-math-errno', '-fno-trapping-math']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_region_sum', 'k1_region_sum', 'k2_sum', 'k3_channel_energy', 'k4_sum_cast',
                                'k5_sum_cast'],
    "kernelwright_training_backward_of_parameters_0": ['k7_moments_mean_sum', 'k8_mean', 'k9_mul', 'k10_sum'],
    "kernelwright_training_backward_0": ['k7_moments_mean_sum', 'k8_mean', 'k9_mul', 'k10_sum'],
    "kernelwright_inference_0": ['k0_region_sum', 'k1_region_sum', 'k6_sum_cast'],
}

_KERNELWRIGHT_SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// The bits of a float as an integer, and back.
static inline int32_t kw_bits(float x) { int32_t bits; std::memcpy(&bits, &x, 4); return bits; }
static inline int64_t kw_bits(double x) { int64_t bits; std::memcpy(&bits, &x, 8); return bits; }

static inline float kw_float(int32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline double kw_float(int64_t bits) { double x; std::memcpy(&x, &bits, 8); return x; }

// condition ? a : b by bit masks: no branch that g++ could thread into later ones, which would keep
// the loop from being vectorised.
static inline float kw_select(bool condition, float a, float b) {
  const int32_t mask = -int32_t(condition);
  return kw_float((kw_bits(a) & mask) | (kw_bits(b) & ~mask));
}
static inline double kw_select(bool condition, double a, double b) {
  const int64_t mask = -int64_t(condition);
  return kw_float((kw_bits(a) & mask) | (kw_bits(b) & ~mask));
}

// A sum and a difference that no product before them is fused into, as g++ does across statements where the processor
// has fused operations: here these are used up. The last one is the negative of either, of which g++ would make one
// operation with it that gives +0 where -0 is right.
#ifdef __FP_FAST_FMAF
template <typename real> static inline real kw_unfused_add(real x, real y) { return std::fma(x, real(1), y); }
template <typename real> static inline real kw_unfused_sub(real x, real y) { return std::fma(y, real(-1), x); }
#else
template <typename real> static inline real kw_unfused_add(real x, real y) { return x + y; }
template <typename real> static inline real kw_unfused_sub(real x, real y) { return x - y; }
#endif

static inline float kw_sqrt(float x) { using real = float; return std::sqrt(x); }
static inline double kw_sqrt(double x) { using real = double; return std::sqrt(x); }

// 32 bytes of values; g++ lowers its operations to the registers that the processor has.
template <typename real> struct kw_vector {
  typedef real type __attribute__((vector_size(32)));
  typedef double wide __attribute__((vector_size(32 / sizeof(real) * sizeof(double))));
  typedef real half __attribute__((vector_size(16)));
  static constexpr int64_t lanes = 32 / sizeof(real);
  static type load(const real* values) { type result; std::memcpy(&result, values, 32); return result; }
};

// The sum of the lanes of four or eight doubles, by halves.
template <typename wide> static inline double kw_add_lanes(wide x) {
  if constexpr (sizeof(wide) == 64) return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
  else return (x[0] + x[2]) + (x[1] + x[3]);
}

// The lanes from number first; zero in those before.
template <typename wide> static inline wide kw_lanes_from(wide lanes, int64_t first) {
  wide number;
  for (int64_t lane = 0; lane < int64_t(sizeof(wide) / sizeof(lanes[0])); ++lane) number[lane] = lane;
  return number >= decltype(+lanes[0])(first) ? lanes : wide{};
}

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

template <typename real> struct kw_sum_of {
  double total = 0;
  void block(const real* values, int64_t count) {
    total += kw_fold_sum(values, count, [](auto x) { return x; });
  }
  void merge(const kw_sum_of& other) { total += other.total; }
  real value() const { return real(total); }
};

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

//// k0_region_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows are numbered atom by atom; an atom's rows belong to the same classes.
static inline int k0_region_sum_first_row(int i) { return i * 128; }
static inline int k0_region_sum_offset(int i) { (void)i; return 0; }
static inline int k0_region_sum_limit(int i) { (void)i; return 128; }
static inline int k0_region_sum_stride0(int i) { (void)i; return 128; }
struct k0_region_sum_Walk {
  long long offset;  // of the current row in its unit, in elements
  long long jump0;
  inline void start(int atom, long long row) {
    offset = k0_region_sum_offset(atom);
    jump0 = k0_region_sum_stride0(atom); offset += row * jump0;
  }
  inline void next() {
    offset += jump0;
  }
};
static inline int k0_region_sum_place(long long unit, long long& x_offset, long long& out_offset) {
  x_offset = 0; out_offset = 0;
  x_offset += unit * 16384; out_offset += unit;
  return 128;
}
static inline int k0_region_sum_output(int i) { (void)i; return 0; }
static inline int k0_region_sum_first_part(int i) { return i; }
static inline int k0_region_sum_part(int i) { (void)i; return 0; }
static inline int k0_region_sum_first_task(int i) { return i; }
static inline int k0_region_sum_task_list(int i) { (void)i; return 0; }
static inline int k0_region_sum_first_run(int i) { return i; }
static inline int k0_region_sum_run_start(int i) { (void)i; return 0; }
static inline int k0_region_sum_run_count(int i) { (void)i; return 128; }
static inline int k0_region_sum_run_step(int i) { (void)i; return 1; }

// Sum of every step-th column.
static inline double k0_region_sum_run(const double* sums, int count, int step) {
  double total = 0;
  if (step == 1) {
#pragma omp simd reduction(+ : total)
    for (int i = 0; i < count; ++i) total += sums[i];
  } else {
    for (int i = 0; i < count; ++i) total += sums[i * step];
  }
  return total;
}

// Sums of rows [row, end) of a unit by task; `columns` of every row exist.
static void k0_region_sum_rows(const float* x, int columns, long long row, long long end, double* totals) {
  (void)columns;
  for (int task = 0; task < 1; ++task) totals[task] = 0;
  int atom = 0;
  while (atom + 1 < 1 && row >= k0_region_sum_first_row(atom + 1)) ++atom;
  for (; row < end; ++atom) {
    const long long atom_end = k0_region_sum_first_row(atom + 1);
    const long long stop = end < atom_end ? end : atom_end;
    const int limit = 128;
    k0_region_sum_Walk walk;
    walk.start(atom, row - k0_region_sum_first_row(atom));
    alignas(64) double sums[128];
    for (int c = 0; c < limit; ++c) sums[c] = 0;
    for (; row < stop; ++row) {
      const float* row0 = x + walk.offset; walk.next();
#pragma omp simd
      for (int c = 0; c < limit; ++c) sums[c] += static_cast<double>(row0[c]);
    }
    for (int task = k0_region_sum_first_task(atom); task < k0_region_sum_first_task(atom + 1); ++task) {
      const int list = k0_region_sum_task_list(task);
      double total = 0;
      for (int run = k0_region_sum_first_run(list); run < k0_region_sum_first_run(list + 1); ++run)
        total += k0_region_sum_run(sums + k0_region_sum_run_start(run), k0_region_sum_run_count(run),
                                   k0_region_sum_run_step(run));
      totals[task] = total;
    }
  }
}

// Outputs of a unit from the tasks of its 1 part(s).
static void k0_region_sum_store(const double* totals, int columns, double* out) {
  (void)columns;
  for (int u = 0; u < 1; ++u) {
    double sum = 0;
    for (int part = 0; part < 1; ++part)
      for (int i = k0_region_sum_first_part(u); i < k0_region_sum_first_part(u + 1); ++i)
        sum += totals[static_cast<long long>(part) + k0_region_sum_part(i)];
    out[k0_region_sum_output(u)] = static_cast<double>(1.0 * sum);
  }
}

static const char* k0_region_sum(const float* x, double* out, void* workspace) {
  (void)workspace;
#pragma omp parallel for schedule(static)
  for (long long unit = 0; unit < 1024LL; ++unit) {
    long long x_offset, out_offset;
    const int columns = k0_region_sum_place(unit, x_offset, out_offset);
    double totals[1];
    k0_region_sum_rows(x + x_offset, columns, 0, 128LL, totals);
    k0_region_sum_store(totals, columns, out + out_offset);
  }
  return nullptr;
}

//// k1_region_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
static inline int k1_region_sum_first0(int i) { return i; }
static inline int k1_region_sum_start0(int i) { (void)i; return 0; }
static inline int k1_region_sum_stop0(int i) { (void)i; return 125; }
static inline int k1_region_sum_step0(int i) { (void)i; return 1; }

// Reduces one axis: source is [outer][125][inner * 8], target [outer][1][inner * 8].
static inline void k1_region_sum_axis0(const double* source, double* target) {
  for (int outer = 0; outer < 1; ++outer)
    for (int u = 0; u < 1; ++u) {
      double* sum = target + (outer + u) * 8;
      for (int e = 0; e < 8; ++e) sum[e] = 0;
      for (int p = k1_region_sum_first0(u); p < k1_region_sum_first0(u + 1); ++p)
        for (int q = k1_region_sum_start0(p); q < k1_region_sum_stop0(p); q += k1_region_sum_step0(p)) {
          const double* term = source + (outer * 125 + q) * 8;
#pragma omp simd
          for (int e = 0; e < 8; ++e) sum[e] += term[e];
        }
    }
}

static const char* k1_region_sum(const float* x, double* out, void* workspace) {
  (void)workspace;
  // Eight units at a time, one per vector lane.
#pragma omp parallel for schedule(static)
  for (long long first = 0; first < 8192LL; first += 8) {
    alignas(64) double buffer0[125 * 8], buffer1[125 * 8];
    const int units = 8192LL - first < 8 ? static_cast<int>(8192LL - first) : 8;
    for (int unit = 0; unit < 8; ++unit)
      for (int i = 0; i < 125; ++i)
        buffer0[i * 8 + unit] = unit < units ? static_cast<double>(x[(first + unit) * 125 + i]) : 0.0;
    k1_region_sum_axis0(buffer0, buffer1);
    for (int unit = 0; unit < units; ++unit)
      for (int u = 0; u < 1; ++u)
        out[(first + unit) + u] = static_cast<double>(1.0 * buffer1[u * 8 + unit]);
  }
  return nullptr;
}

//// k2_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Windows of 16 for each of 64: sum.
static const char* k2_sum(const double* __restrict__ in0, double* __restrict__ out0, void* workspace) {
  using real = double;
  (void)workspace;
  {
    #pragma omp simd
    for (int64_t i0 = 0; i0 < 64; ++i0) {
      const real v0 = real(in0[i0]);
      const real v1 = real(in0[i0 + 64]);
      const real v2 = v0 + v1;
      const real v3 = real(in0[i0 + 128]);
      const real v4 = real(in0[i0 + 192]);
      const real v5 = v3 + v4;
      const real v6 = v2 + v5;
      const real v7 = real(in0[i0 + 256]);
      const real v8 = real(in0[i0 + 320]);
      const real v9 = v7 + v8;
      const real v10 = real(in0[i0 + 384]);
      const real v11 = real(in0[i0 + 448]);
      const real v12 = v10 + v11;
      const real v13 = v9 + v12;
      const real v14 = v6 + v13;
      const real v15 = real(in0[i0 + 512]);
      const real v16 = real(in0[i0 + 576]);
      const real v17 = v15 + v16;
      const real v18 = real(in0[i0 + 640]);
      const real v19 = real(in0[i0 + 704]);
      const real v20 = v18 + v19;
      const real v21 = v17 + v20;
      const real v22 = real(in0[i0 + 768]);
      const real v23 = real(in0[i0 + 832]);
      const real v24 = v22 + v23;
      const real v25 = real(in0[i0 + 896]);
      const real v26 = real(in0[i0 + 960]);
      const real v27 = v25 + v26;
      const real v28 = v24 + v27;
      const real v29 = v21 + v28;
      const real v30 = v14 + v29;
      const real v31 = v30 + real(0.0);
      out0[i0] = v31;
    }
  }
  return nullptr;
}

//// k3_channel_energy
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <omp.h>

// k3_channel_energy: energy per output channel of the linear convolution of x (16x64x16x32x32),
// by the autocorrelation of x: transform, Gram matrix per frequency, fold to the grid of lags,
// quadratic form of the transformed weights. Frequencies f and grid points g of three axes.
namespace k3_channel_energy_detail {
namespace {
// axis 0: positions of x, largest lag, transform, grid of lags, sections, taps by phase
constexpr int64_t SIZE0 = 16;
constexpr int LAG0 = 4, GRID0 = 9;
constexpr int LENGTH0 = 20, POINTS0 = 16;
constexpr int SECTIONS0 = 1, NEGATIVE0 = 0;
constexpr int TAPS0 = 5, PHASES0 = 1;
constexpr int TAP0[] = {0, 1, 2, 3, 4};
constexpr int64_t OFFSET0[] = {0, 1, 2, 3, 4};
constexpr int PHASE_START0[] = {0, 5};
// axis 1: positions of x, largest lag, transform, grid of lags, sections, taps by phase
constexpr int64_t SIZE1 = 32;
constexpr int LAG1 = 4, GRID1 = 9;
constexpr int LENGTH1 = 36, POINTS1 = 32;
constexpr int SECTIONS1 = 1, NEGATIVE1 = 0;
constexpr int TAPS1 = 5, PHASES1 = 1;
constexpr int TAP1[] = {0, 1, 2, 3, 4};
constexpr int64_t OFFSET1[] = {0, 1, 2, 3, 4};
constexpr int PHASE_START1[] = {0, 5};
// axis 2: positions of x, largest lag, transform, grid of lags, sections, taps by phase
constexpr int64_t SIZE2 = 32;
constexpr int LAG2 = 4, GRID2 = 9;
constexpr int LENGTH2 = 36, POINTS2 = 32;
constexpr int SECTIONS2 = 1, NEGATIVE2 = 0;
constexpr int TAPS2 = 5, PHASES2 = 1;
constexpr int TAP2[] = {0, 1, 2, 3, 4};
constexpr int64_t OFFSET2[] = {0, 1, 2, 3, 4};
constexpr int PHASE_START2[] = {0, 5};
constexpr int64_t BATCH = 16;
constexpr int GROUPS = 1, CHANNELS = 64, OUT_CHANNELS = 128;
constexpr bool TRANSPOSED = true;
constexpr int LANES = 16, BLOCKS = 4, PAIRS = 10;
constexpr int64_t ENTRIES = 16, NEGATIVE_ENTRIES = 0;
constexpr int64_t ENTRIES_AT_ONCE = 16;
constexpr int PAIRS_AT_ONCE = 10, COLUMN_BLOCKS = 16, COLUMN_BLOCKS_AT_ONCE = 16;
using Folded = float;   // S folded along axes 0 and 1: [f2][pair][g0][g1][2][LANES][LANES]
constexpr int64_t FOLDED_STRIDE = int64_t(PAIRS_AT_ONCE) * GRID0 * GRID1 * 2 * LANES * LANES;
constexpr size_t WHAT_AT = 0, PARTIAL_AT = 53084160;
constexpr size_t FOLDED_AT = 112070656;   // bytes into the workspace

// Computed in double at the first call.
struct Section;
struct Tables {
    std::vector<float> transform0, transform1, transform2, fold0, fold1;
    std::vector<double> own2, mirror2;      // [f2][g2]: the fold of axis 2 from f2 and from its mirror -f2
    std::vector<double> tap0, tap1, tap2;
    std::vector<Section> sections;
    Tables();
    ~Tables();
};

#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
// LANES channels form a block and are innermost in every buffer: PARTS vectors, UNIT at a time.
constexpr int WIDTH = NATIVE < LANES ? NATIVE : LANES;
constexpr int PARTS = LANES / WIDTH;
constexpr int UNIT = PARTS < 2 ? PARTS : 2;
typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));

inline Vector load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
// An odd number of 64-byte lines: equal offsets of successive rows fall into different cache sets.
constexpr int64_t odd_stride(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

constexpr int HALF = LENGTH2 / 2 + 1;        // frequencies kept of axis 2: x is real
constexpr int FREQUENCIES_AT_ONCE = UNIT == 1 ? 2 : 1;
constexpr int REAL_AT_ONCE = 6 / UNIT;
constexpr int COMPLEX = 2 * LANES;           // floats of one complex value of a block
constexpr int64_t PLANE_ROW = odd_stride(int64_t(HALF) * COMPLEX);
constexpr int64_t VOLUME_ROW = odd_stride(int64_t(HALF) * LENGTH1 * COMPLEX);
constexpr int64_t SPECTRUM = int64_t(HALF) * LENGTH0 * LENGTH1;   // [f2][slot f0][slot f1]
constexpr int64_t BLOCK_STRIDE = odd_stride(SPECTRUM * COMPLEX);
constexpr int64_t ENTRY_STRIDE = BLOCKS * BLOCK_STRIDE;

// cos and sin of 2 pi f q / LENGTH: [f][q][2] for f = 0 .. LENGTH / 2, zero rows at the end.
std::vector<float> transform_table(int points, int length, int unit) {
    std::vector<float> table(size_t(round_up(length / 2 + 1, unit)) * points * 2, 0.0f);
    for (int64_t f = 0; f <= length / 2; ++f)
        for (int64_t q = 0; q < points; ++q) {
            const double angle = 2.0 * M_PI * double(f * q % length) / double(length);
            table[(f * points + q) * 2] = float(std::cos(angle));
            table[(f * points + q) * 2 + 1] = float(std::sin(angle));
        }
    return table;
}

// Half spectrum of real data: in [q][LANES], out [f][2][LANES].
void real_transform(const float* table, const float* in, float* out) {
    for (int f = 0; f < HALF; f += REAL_AT_ONCE)
        for (int part = 0; part < LANES; part += UNIT * WIDTH) {
            Vector re[REAL_AT_ONCE][UNIT] = {}, im[REAL_AT_ONCE][UNIT] = {};
            for (int q = 0; q < POINTS2; ++q)
                for (int u = 0; u < UNIT; ++u) {
                    const Vector a = load(in + q * LANES + part + u * WIDTH);
                    for (int r = 0; r < REAL_AT_ONCE; ++r) {
                        const float* t = table + ((f + r) * POINTS2 + q) * 2;
                        re[r][u] += a * t[0];
                        im[r][u] -= a * t[1];
                    }
                }
            for (int r = 0; r < REAL_AT_ONCE; ++r)
                for (int u = 0; u < UNIT; ++u)
                    if (f + r < HALF) {
                        store(out + (f + r) * COMPLEX + part + u * WIDTH, re[r][u]);
                        store(out + (f + r) * COMPLEX + LANES + part + u * WIDTH, im[r][u]);
                    }
        }
}

// Where axes 0 and 1 keep frequency f: |f| falls with the slot and f = 0 is last. The spectrum of
// data with a mean is largest there; float32 sums over f lose least when small terms come first.
constexpr int slot(int f, int length) {
    return f == 0 ? length - 1 : 2 * f <= length ? length - 2 * f : length - 1 - 2 * (length - f);
}

// Full spectrum of complex data a + i b, in the order of slots. The four real products serve f and
// its mirror LENGTH - f:
// X(f) = (ac + bs) + i (bc - as), X(-f) = (ac - bs) + i (bc + as).
template <int POINTS, int LENGTH>
void complex_transform(const float* table, const float* in, int64_t in_stride, float* out,
                       int64_t out_stride) {
    constexpr int AT_ONCE = FREQUENCIES_AT_ONCE, COUNT = LENGTH / 2 + 1;
    for (int f = 0; f < COUNT; f += AT_ONCE)
        for (int part = 0; part < LANES; part += UNIT * WIDTH) {
            Vector ac[AT_ONCE][UNIT] = {}, as[AT_ONCE][UNIT] = {};
            Vector bc[AT_ONCE][UNIT] = {}, bs[AT_ONCE][UNIT] = {};
            for (int q = 0; q < POINTS; ++q)
                for (int u = 0; u < UNIT; ++u) {
                    const Vector a = load(in + q * in_stride + part + u * WIDTH);
                    const Vector b = load(in + q * in_stride + LANES + part + u * WIDTH);
                    for (int r = 0; r < AT_ONCE; ++r) {
                        const float* t = table + ((f + r) * POINTS + q) * 2;
                        ac[r][u] += a * t[0];
                        as[r][u] += a * t[1];
                        bc[r][u] += b * t[0];
                        bs[r][u] += b * t[1];
                    }
                }
            for (int r = 0; r < AT_ONCE && f + r < COUNT; ++r)
                for (int u = 0; u < UNIT; ++u) {
                    float* own = out + slot(f + r, LENGTH) * out_stride + part + u * WIDTH;
                    store(own, ac[r][u] + bs[r][u]);
                    store(own + LANES, bc[r][u] - as[r][u]);
                    const int mirror = (LENGTH - f - r) % LENGTH;
                    if (mirror == f + r) continue;
                    float* other = out + slot(mirror, LENGTH) * out_stride + part + u * WIDTH;
                    store(other, ac[r][u] - bs[r][u]);
                    store(other + LANES, bc[r][u] + as[r][u]);
                }
        }
}

// Position of x at input point m of section s of an axis, or -1 for a zero. Positive sections hold
// LENGTH - LAG positions every LENGTH - 2 LAG; negative ones, numbered first, hold the overlaps of
// successive positive sections, LAG zeros apart.
template <int64_t SIZE, int LAG, int LENGTH, int SECTIONS, int NEGATIVE>
inline int64_t position(int section, int m) {
    if (SECTIONS == 1) return m < SIZE ? m : -1;
    constexpr int64_t ADVANCE = LENGTH - 2 * LAG;
    int64_t q = -1;
    if (section >= NEGATIVE) {
        if (m < LENGTH - LAG) q = (section - NEGATIVE) * ADVANCE + m;
    } else {
        constexpr int PIECE = LAG ? 2 * LAG : LENGTH, PIECES = LENGTH / PIECE;
        const int64_t later = int64_t(section) * PIECES + m / PIECE + 1;
        if (m / PIECE < PIECES && m % PIECE < LAG && later < SECTIONS - NEGATIVE)
            q = later * ADVANCE + m % PIECE;
    }
    return q < SIZE ? q : -1;
}

// An entry is one section of one batch element; the entries with a negative sign come first.
struct Section { int s0, s1, s2; };
std::vector<Section> ordered_sections() {
    std::vector<Section> result;
    for (int sign = 1; sign >= 0; --sign)
        for (int s0 = 0; s0 < SECTIONS0; ++s0)
            for (int s1 = 0; s1 < SECTIONS1; ++s1)
                for (int s2 = 0; s2 < SECTIONS2; ++s2)
                    if (((s0 < NEGATIVE0) + (s1 < NEGATIVE1) + (s2 < NEGATIVE2)) % 2 == sign)
                        result.push_back({s0, s1, s2});
    return result;
}

// Spectrum of one channel block of one entry: out [f2][slot f0][slot f1][2][LANES].
// scratch: row [q2][LANES], plane [q1][f2][2][LANES], volume [q0][f2][slot f1][2][LANES].
constexpr int64_t TRANSFORM_SCRATCH =
    round_up(POINTS2 * LANES, 16) + POINTS1 * PLANE_ROW + (LENGTH0 > 1 ? POINTS0 * VOLUME_ROW : 0);
void transform_block(const Tables& tables, const float* x, Section section, int channels, float* out,
                     float* scratch) {
    float* row = scratch;
    float* plane = row + round_up(POINTS2 * LANES, 16);
    float* volume = LENGTH0 > 1 ? plane + POINTS1 * PLANE_ROW : out;
    std::memset(row, 0, sizeof(float) * POINTS2 * LANES);
    for (int m0 = 0; m0 < POINTS0; ++m0) {
        const int64_t q0 = position<SIZE0, LAG0, LENGTH0, SECTIONS0, NEGATIVE0>(section.s0, m0);
        float* slice = volume + m0 * VOLUME_ROW;
        if (q0 < 0) {
            std::memset(slice, 0, sizeof(float) * HALF * LENGTH1 * COMPLEX);
            continue;
        }
        for (int m1 = 0; m1 < POINTS1; ++m1) {
            const int64_t q1 = position<SIZE1, LAG1, LENGTH1, SECTIONS1, NEGATIVE1>(section.s1, m1);
            if (q1 < 0) {
                std::memset(plane + m1 * PLANE_ROW, 0, sizeof(float) * HALF * COMPLEX);
                continue;
            }
            for (int c = 0; c < channels; ++c) {
                const float* source = x + ((c * SIZE0 + q0) * SIZE1 + q1) * SIZE2;
                for (int m2 = 0; m2 < POINTS2; ++m2) {
                    const int64_t q2 = position<SIZE2, LAG2, LENGTH2, SECTIONS2, NEGATIVE2>(section.s2, m2);
                    row[m2 * LANES + c] = q2 < 0 ? 0.0f : source[q2];
                }
            }
            real_transform(tables.transform2.data(), row, plane + m1 * PLANE_ROW);
        }
        for (int f2 = 0; f2 < HALF; ++f2)
            complex_transform<POINTS1, LENGTH1>(tables.transform1.data(), plane + f2 * COMPLEX, PLANE_ROW,
                                                slice + int64_t(f2) * LENGTH1 * COMPLEX, COMPLEX);
    }
    if (LENGTH0 == 1) return;
    for (int f2 = 0; f2 < HALF; ++f2)
        for (int f1 = 0; f1 < LENGTH1; ++f1)
            complex_transform<POINTS0, LENGTH0>(
                tables.transform0.data(), volume + (int64_t(f2) * LENGTH1 + f1) * COMPLEX, VOLUME_ROW,
                out + (int64_t(f2) * LENGTH0 * LENGTH1 + f1) * COMPLEX, int64_t(LENGTH1) * COMPLEX);
}


// ---- Gram and fold: S(f) of a pair of channel blocks, resampled to the grid of lags ----
constexpr int PAIR = 2 * LANES * LANES;      // floats of one complex LANES x LANES block
constexpr int LINE = PAIR + 16;              // padded against cache-set conflicts
constexpr int ROWS = LANES < 4 ? LANES : 4;

constexpr int64_t SUMMANDS = 32;             // entries summed in registers before they join the total

// S[i][j] = sum over entries of sign * conj(X[i]) * X[j]; the first `negative` entries have sign -1.
void gram(const float* left, const float* right, int64_t entries, int64_t negative, float* out) {
    for (int j = 0; j < LANES; j += WIDTH)
        for (int i = 0; i < LANES; i += ROWS)
            for (int64_t first = 0, last; first < entries; first = last) {
                const int64_t end = first < negative ? negative : entries;
                last = end - first < SUMMANDS ? end : first + SUMMANDS;
                Vector re[ROWS] = {}, im[ROWS] = {};
                for (int64_t n = first; n < last; ++n) {
                    const float* l = left + n * ENTRY_STRIDE + i;
                    const Vector a = load(right + n * ENTRY_STRIDE + j);
                    const Vector b = load(right + n * ENTRY_STRIDE + LANES + j);
                    for (int r = 0; r < ROWS; ++r) {
                        re[r] += l[r] * a;
                        im[r] += l[r] * b;
                    }
                    for (int r = 0; r < ROWS; ++r) {
                        re[r] += l[LANES + r] * b;
                        im[r] -= l[LANES + r] * a;
                    }
                }
                for (int r = 0; r < ROWS; ++r) {
                    float* to_re = out + (i + r) * LANES + j;
                    float* to_im = to_re + PAIR / 2;
                    if (first < negative) re[r] = -re[r], im[r] = -im[r];
                    store(to_re, first == 0 ? re[r] : load(to_re) + re[r]);
                    store(to_im, first == 0 ? im[r] : load(to_im) + im[r]);
                }
            }
}

// The real fold of one axis: out[g] (+)= sum over k < count of table[k][g] * in[k], element by element.
// AT_ONCE values of g stay in registers; tables and outputs are padded to PADDED rows.
template <int GRID>
struct Fold {
    static constexpr int CHUNKS = (GRID + 8) / 9, AT_ONCE = (GRID + CHUNKS - 1) / CHUNKS;
    static constexpr int PADDED = AT_ONCE * CHUNKS;

    static void apply(const float* table, int count, const float* in, int64_t in_stride, float* out,
                      int64_t out_stride, int columns, bool accumulate) {
        for (int g = 0; g < PADDED; g += AT_ONCE)
            for (int column = 0; column < columns; column += WIDTH) {
                Vector sum[AT_ONCE] = {};
                if (accumulate)
                    for (int r = 0; r < AT_ONCE; ++r) sum[r] = load(out + (g + r) * out_stride + column);
                for (int k = 0; k < count; ++k) {
                    const Vector value = load(in + k * in_stride + column);
                    for (int r = 0; r < AT_ONCE; ++r) sum[r] += table[k * PADDED + g + r] * value;
                }
                for (int r = 0; r < AT_ONCE; ++r) store(out + (g + r) * out_stride + column, sum[r]);
            }
    }
};
using Fold0 = Fold<GRID0>;
using Fold1 = Fold<GRID1>;

// B[g][f] = 1 / LENGTH * sum over |d| <= LAG of cos(2 pi d (f / LENGTH - g / GRID)).
double fold_value(int64_t f, int64_t g, int64_t length, int64_t lag) {
    const int64_t grid = 2 * lag + 1, denominator = length * grid;
    const int64_t numerator = ((f * grid - g * length) % denominator + denominator) % denominator;
    double sum = 1.0;
    for (int64_t d = 1; d <= lag; ++d)
        sum += 2.0 * std::cos(2.0 * M_PI * double(d * numerator % denominator) / double(denominator));
    return sum / double(length);
}

// [slot of f][g]
std::vector<float> fold_table(int length, int lag, int padded) {
    std::vector<float> table(size_t(length) * padded, 0.0f);
    for (int f = 0; f < length; ++f)
        for (int g = 0; g <= 2 * lag; ++g)
            table[size_t(slot(f, length)) * padded + g] = float(fold_value(f, g, length, lag));
    return table;
}

// One frequency f2 of one pair of blocks: all slots f0 and f1, folded to out [g0][g1][PAIR].
// scratch: line [f1][PAIR], lines [f0 % LINES_AT_ONCE][g1][PAIR], sums [g0][g1][PAIR], rows padded.
constexpr int LINES_AT_ONCE = LENGTH0 < 8 ? LENGTH0 : 8;
constexpr int64_t LINE_ROW = int64_t(Fold1::PADDED) * PAIR + 16;
constexpr int64_t GRAM_SCRATCH = int64_t(LENGTH1) * LINE + (LINES_AT_ONCE + Fold0::PADDED) * LINE_ROW;
void gram_fold(const Tables& tables, const float* left, const float* right, int64_t entries, int64_t negative,
               Folded* out, bool accumulate, float* scratch) {
    float* line = scratch;
    float* lines = line + int64_t(LENGTH1) * LINE;
    float* sums = lines + LINES_AT_ONCE * LINE_ROW;
    for (int f0 = 0; f0 < LENGTH0; ++f0) {
        for (int f1 = 0; f1 < LENGTH1; ++f1) {
            const int64_t f = (int64_t(f0) * LENGTH1 + f1) * COMPLEX;
            gram(left + f, right + f, entries, negative, line + int64_t(f1) * LINE);
        }
        const int slot = f0 % LINES_AT_ONCE;
        Fold1::apply(tables.fold1.data(), LENGTH1, line, LINE, lines + slot * LINE_ROW, PAIR, PAIR, false);
        if (slot == LINES_AT_ONCE - 1 || f0 == LENGTH0 - 1)
            Fold0::apply(tables.fold0.data() + int64_t(f0 - slot) * Fold0::PADDED, slot + 1, lines, LINE_ROW,
                         sums, LINE_ROW, GRID1 * PAIR, f0 >= LINES_AT_ONCE);
    }
    for (int g0 = 0; g0 < GRID0; ++g0) {
        const float* from = sums + g0 * LINE_ROW;
        Folded* to = out + int64_t(g0) * GRID1 * PAIR;
        if (accumulate)
            for (int i = 0; i < GRID1 * PAIR; ++i) to[i] += from[i];
        else
            for (int i = 0; i < GRID1 * PAIR; ++i) to[i] = from[i];
    }
}


// ---- weights and quadratic form, in double ----
// A column is an output channel in one phase; COLUMNS of them form a block of one phase.
constexpr int COLUMNS = 8;
constexpr int VALUE = 2 * COLUMNS;           // doubles of one complex value of a column block
constexpr int PADDED_CHANNELS = BLOCKS * LANES;
constexpr int GRID_HALF = LAG2 + 1;          // g2 = 0 .. LAG2; the others are mirrors
constexpr int64_t GRID_LINES = int64_t(GRID0) * GRID1;   // points (g0, g1)
constexpr int OUT_BLOCKS = (OUT_CHANNELS + COLUMNS - 1) / COLUMNS;
constexpr int NATIVE_DOUBLE = NATIVE / 2;
constexpr int DOUBLE_PARTS = COLUMNS / NATIVE_DOUBLE;
constexpr int FORM_ROWS = DOUBLE_PARTS == 1 ? 4 : 2;
typedef double DoubleVector __attribute__((vector_size(NATIVE_DOUBLE * sizeof(double))));
inline DoubleVector load(const double* p) { return *reinterpret_cast<const DoubleVector*>(p); }
inline void store(double* p, DoubleVector v) { *reinterpret_cast<DoubleVector*>(p) = v; }

// cos and sin of 2 pi g offset / GRID: [tap][g][2], taps in the order of their phases.
std::vector<double> tap_table(const int64_t* offsets, int taps, int grid) {
    std::vector<double> table(size_t(taps) * grid * 2);
    for (int t = 0; t < taps; ++t)
        for (int64_t g = 0; g < grid; ++g) {
            const double angle = 2.0 * M_PI * double(((offsets[t] % grid + grid) * g) % grid) / double(grid);
            table[(size_t(t) * grid + g) * 2] = std::cos(angle);
            table[(size_t(t) * grid + g) * 2 + 1] = std::sin(angle);
        }
    return table;
}

// out[column] += (re + i im)[column] * exp(-i angle)
inline void rotate_add(double* out, const double* in, const double* turn) {
    for (int p = 0; p < COLUMNS; p += NATIVE_DOUBLE) {
        const DoubleVector re = load(in + p), im = load(in + COLUMNS + p);
        store(out + p, load(out + p) + re * turn[0] + im * turn[1]);
        store(out + COLUMNS + p, load(out + COLUMNS + p) + im * turn[0] - re * turn[1]);
    }
}

// What(g)[c] of one channel and column block: out + ((g0 * GRID1 + g1) * GRID_HALF + g2) * out_stride.
constexpr int64_t GRID_PLANE = int64_t(GRID1) * GRID_HALF;
constexpr int64_t WEIGHT_SCRATCH = VALUE * (1 + int64_t(TAPS1) * GRID_HALF + TAPS0 * GRID_PLANE);
void transform_weights(const Tables& tables, const float* weight, int group, int channel, int column_block,
                       double* out, int64_t out_stride, double* scratch) {
    if (channel >= CHANNELS) {
        for (int64_t g = 0; g < GRID0 * GRID_PLANE; ++g)
            std::memset(out + g * out_stride, 0, VALUE * sizeof(double));
        return;
    }
    const int phase = column_block / OUT_BLOCKS, first = column_block % OUT_BLOCKS * COLUMNS;
    const int phase0 = phase / PHASES2 / PHASES1, phase1 = phase / PHASES2 % PHASES1;
    const int phase2 = phase % PHASES2;
    const int begin0 = PHASE_START0[phase0], taps0 = PHASE_START0[phase0 + 1] - begin0;
    const int begin1 = PHASE_START1[phase1], taps1 = PHASE_START1[phase1 + 1] - begin1;
    const int begin2 = PHASE_START2[phase2], taps2 = PHASE_START2[phase2 + 1] - begin2;
    const int columns = OUT_CHANNELS - first < COLUMNS ? OUT_CHANNELS - first : COLUMNS;
    // The weight of tap 0 of the block's first column, and the distance of its columns.
    constexpr int64_t TAPS = int64_t(TAPS0) * TAPS1 * TAPS2;
    constexpr int64_t COLUMN_STRIDE = (TRANSPOSED ? 1 : CHANNELS) * TAPS;
    weight += TRANSPOSED ? ((int64_t(group) * CHANNELS + channel) * OUT_CHANNELS + first) * TAPS
                         : ((int64_t(group) * OUT_CHANNELS + first) * CHANNELS + channel) * TAPS;
    double* value = scratch;                                    // one tap of the block's columns
    double* line = value + VALUE;                               // [t1][g2]
    double* plane = line + int64_t(TAPS1) * GRID_HALF * VALUE;  // [t0][g1][g2]
    std::memset(value, 0, VALUE * sizeof(double));
    std::memset(plane, 0, sizeof(double) * taps0 * GRID_PLANE * VALUE);
    for (int t0 = 0; t0 < taps0; ++t0) {
        std::memset(line, 0, sizeof(double) * taps1 * GRID_HALF * VALUE);
        for (int t1 = 0; t1 < taps1; ++t1)
            for (int t2 = 0; t2 < taps2; ++t2) {
                const int64_t row = int64_t(TAP0[begin0 + t0]) * TAPS1 + TAP1[begin1 + t1];
                const float* tap = weight + row * TAPS2 + TAP2[begin2 + t2];
                for (int u = 0; u < columns; ++u) value[u] = tap[u * COLUMN_STRIDE];
                for (int g2 = 0; g2 < GRID_HALF; ++g2)
                    rotate_add(line + (t1 * GRID_HALF + g2) * VALUE, value,
                               &tables.tap2[((begin2 + t2) * GRID2 + g2) * 2]);
            }
        for (int t1 = 0; t1 < taps1; ++t1)
            for (int g1 = 0; g1 < GRID1; ++g1)
                for (int g2 = 0; g2 < GRID_HALF; ++g2)
                    rotate_add(plane + (t0 * GRID_PLANE + g1 * GRID_HALF + g2) * VALUE,
                               line + (t1 * GRID_HALF + g2) * VALUE,
                               &tables.tap1[((begin1 + t1) * GRID1 + g1) * 2]);
    }
    for (int g0 = 0; g0 < GRID0; ++g0)
        for (int64_t g = 0; g < GRID_PLANE; ++g) {
            alignas(64) double sum[VALUE] = {};
            for (int t0 = 0; t0 < taps0; ++t0)
                rotate_add(sum, plane + (t0 * GRID_PLANE + g) * VALUE,
                           &tables.tap0[((begin0 + t0) * GRID0 + g0) * 2]);
            std::memcpy(out + (g0 * GRID_PLANE + g) * out_stride, sum, sizeof sum);
        }
}

// The last fold: Ahat(g) of one pair of blocks, times `weight`; own and mirror point at g and -g of
// axes 0 and 1 for f2 = 0. out [2][LANES][LANES].
void fold_pair(const Tables& tables, const Folded* own, const Folded* mirror, int g2, double weight,
               double* out) {
    for (int i = 0; i < PAIR; ++i) out[i] = 0.0;
    for (int f2 = 0; f2 < HALF; ++f2) {
        const double p = weight * tables.own2[size_t(f2) * GRID_HALF + g2];
        const double m = weight * tables.mirror2[size_t(f2) * GRID_HALF + g2];
        const Folded* a = own + f2 * FOLDED_STRIDE;
        const Folded* b = mirror + f2 * FOLDED_STRIDE;
        for (int i = 0; i < PAIR / 2; ++i) out[i] += p * a[i] + m * b[i];
        for (int i = PAIR / 2; i < PAIR; ++i) out[i] += p * a[i] - m * b[i];
    }
}

// sum[column] += Re(conj(What[i]) * A[i][j] * What[j]) over i of block `row` and j of the blocks
// first .. first + count - 1; what [channel][2][COLUMNS], a [block][2][LANES][LANES].
void quadratic_form(const double* a, const double* what, int row, int first, int count, double* sum) {
    DoubleVector total[DOUBLE_PARTS] = {};
    for (int i = 0; i < LANES; i += FORM_ROWS) {
        DoubleVector re[FORM_ROWS][DOUBLE_PARTS] = {}, im[FORM_ROWS][DOUBLE_PARTS] = {};
        for (int block = 0; block < count; ++block)
            for (int j = 0; j < LANES; ++j) {
                const double* w = what + ((first + block) * LANES + j) * VALUE;
                const double* entry = a + block * PAIR + i * LANES + j;
                for (int p = 0; p < DOUBLE_PARTS; ++p) {
                    const DoubleVector wr = load(w + p * NATIVE_DOUBLE);
                    const DoubleVector wi = load(w + COLUMNS + p * NATIVE_DOUBLE);
                    for (int r = 0; r < FORM_ROWS; ++r) {
                        const double ar = entry[r * LANES], ai = entry[PAIR / 2 + r * LANES];
                        re[r][p] += ar * wr;
                        im[r][p] += ar * wi;
                        re[r][p] -= ai * wi;
                        im[r][p] += ai * wr;
                    }
                }
            }
        for (int r = 0; r < FORM_ROWS; ++r)
            for (int p = 0; p < DOUBLE_PARTS; ++p) {
                const double* w = what + (row * LANES + i + r) * VALUE + p * NATIVE_DOUBLE;
                total[p] += load(w) * re[r][p] + load(w + COLUMNS) * im[r][p];
            }
    }
    for (int p = 0; p < DOUBLE_PARTS; ++p)
        for (int u = 0; u < NATIVE_DOUBLE; ++u) sum[p * NATIVE_DOUBLE + u] += total[p][u];
}


Tables::Tables()
    : transform0(transform_table(POINTS0, LENGTH0, FREQUENCIES_AT_ONCE)),
      transform1(transform_table(POINTS1, LENGTH1, FREQUENCIES_AT_ONCE)),
      transform2(transform_table(POINTS2, LENGTH2, REAL_AT_ONCE)),
      fold0(fold_table(LENGTH0, LAG0, Fold0::PADDED)),
      fold1(fold_table(LENGTH1, LAG1, Fold1::PADDED)),
      own2(size_t(HALF) * GRID_HALF),
      mirror2(size_t(HALF) * GRID_HALF),
      tap0(tap_table(OFFSET0, TAPS0, GRID0)),
      tap1(tap_table(OFFSET1, TAPS1, GRID1)),
      tap2(tap_table(OFFSET2, TAPS2, GRID2)),
      sections(ordered_sections()) {
    for (int f = 0; f < HALF; ++f)
        for (int g = 0; g < GRID_HALF; ++g) {
            own2[size_t(f) * GRID_HALF + g] = fold_value(f, g, LENGTH2, LAG2);
            // f = 0 and f = LENGTH / 2 are their own mirrors.
            if (2 * f % LENGTH2 == 0) continue;
            mirror2[size_t(f) * GRID_HALF + g] = fold_value(LENGTH2 - f, g, LENGTH2, LAG2);
        }
}
Tables::~Tables() = default;

constexpr int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }
constexpr int64_t SCRATCH_BYTES = largest(largest(TRANSFORM_SCRATCH, GRAM_SCRATCH) * 4,
                                          largest(WEIGHT_SCRATCH, int64_t(BLOCKS) * PAIR) * 8);
constexpr int64_t SCRATCH_STRIDE = (SCRATCH_BYTES + 127) / 64 * 64;


// ---- the four steps of one group, each a parallel loop over independent tasks ----
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct Run {
    const Tables& tables;
    int threads;
    char* scratch;               // SCRATCH_STRIDE bytes per thread
    float* spectrum;             // [entry][block][f2][slot f0][slot f1][2][LANES]
    Folded* folded;              // [f2][pair][g0][g1][2][LANES][LANES]
    double* what;                // [g0][g1][g2][column block][channel][2][COLUMNS]
    double* partial;             // [g0][g1][g2][row][column]
    std::vector<int> left, right;   // the pairs of blocks, left <= right: the others are conjugates

    template <typename T>
    T* own_scratch() const { return reinterpret_cast<T*>(scratch + SCRATCH_STRIDE * omp_get_thread_num()); }

    void transform(const float* x, int group, int64_t start, int64_t entries) const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < entries * BLOCKS; ++task) {
            const int64_t entry = task / BLOCKS, n = (start + entry) % BATCH;
            const int block = int(task % BLOCKS), channel = block * LANES;
            const float* from = x + ((n * GROUPS + group) * CHANNELS + channel) * (SIZE0 * SIZE1 * SIZE2);
            transform_block(tables, from, tables.sections[(start + entry) / BATCH],
                            int(least(CHANNELS - channel, LANES)),
                            spectrum + entry * ENTRY_STRIDE + block * BLOCK_STRIDE, own_scratch<float>());
        }
    }

    void gram(int first_pair, int pairs, int64_t start, int64_t entries) const {
        const int64_t negative = NEGATIVE_ENTRIES > start ? least(NEGATIVE_ENTRIES - start, entries) : 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < int64_t(HALF) * pairs; ++task) {
            const int64_t f2 = task / pairs, pair = task % pairs;
            const float* at = spectrum + f2 * LENGTH0 * LENGTH1 * COMPLEX;
            gram_fold(tables, at + left[first_pair + pair] * BLOCK_STRIDE,
                      at + right[first_pair + pair] * BLOCK_STRIDE, entries, negative,
                      folded + f2 * FOLDED_STRIDE + pair * GRID_LINES * PAIR, start > 0,
                      own_scratch<float>());
        }
    }

    void weights(const float* weight, int group, int first_block, int blocks) const {
        const int64_t stride = int64_t(blocks) * PADDED_CHANNELS * VALUE;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
        for (int64_t task = 0; task < int64_t(blocks) * PADDED_CHANNELS; ++task)
            transform_weights(tables, weight, group, int(task % PADDED_CHANNELS),
                              first_block + int(task / PADDED_CHANNELS), what + task * VALUE, stride,
                              own_scratch<double>());
    }

    // One task: one grid point g and one row of block pairs. g and -g contribute the same: g2 > 0
    // counts twice, and so does one half of the plane g2 = 0.
    void form(int first_pair, int pairs, int first_block, int blocks, double* energies) const {
        const int low = left[first_pair], rows = left[first_pair + pairs - 1] - low + 1;
        const int64_t tasks = GRID_LINES * GRID_HALF * rows;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < tasks; ++task) {
            double* sums = partial + task * blocks * COLUMNS;
            std::memset(sums, 0, sizeof(double) * blocks * COLUMNS);
            const int row = low + int(task % rows), g2 = int(task / rows % GRID_HALF);
            const int64_t g = task / rows / GRID_HALF;
            const int64_t mirror = (GRID0 - g / GRID1) % GRID0 * GRID1 + (GRID1 - g % GRID1) % GRID1;
            if (g2 == 0 && g > mirror) continue;
            const double times = g2 == 0 && g == mirror ? 1.0 : 2.0;
            double* a = own_scratch<double>();
            int count = 0, first = 0;
            for (int pair = 0; pair < pairs; ++pair) {
                if (left[first_pair + pair] != row) continue;
                const int column = right[first_pair + pair];
                if (count == 0) first = column;
                const Folded* from = folded + pair * GRID_LINES * PAIR;
                fold_pair(tables, from + g * PAIR, from + mirror * PAIR, g2,
                          column == row ? times : 2.0 * times, a + int64_t(count++) * PAIR);
            }
            for (int block = 0; block < blocks; ++block)
                quadratic_form(a, what + ((g * GRID_HALF + g2) * blocks + block) * PADDED_CHANNELS * VALUE,
                               row, first, count, sums + block * COLUMNS);
        }
        for (int column = 0; column < blocks * COLUMNS; ++column) {
            const int o = (first_block + column / COLUMNS) % OUT_BLOCKS * COLUMNS + column % COLUMNS;
            if (o >= OUT_CHANNELS) continue;
            double sum = 0.0;
            for (int64_t task = 0; task < tasks; ++task) sum += partial[task * blocks * COLUMNS + column];
            energies[o] += sum / (double(GRID0) * GRID1 * GRID2);
        }
    }
};

}  // namespace
}  // namespace k3_channel_energy_detail

static const char* k3_channel_energy(const float* x, const float* weight, double* energy, void* workspace) {
    using namespace k3_channel_energy_detail;
    static const Tables tables;
    const int threads = omp_get_max_threads();
    char* scratch = static_cast<char*>(std::aligned_alloc(64, size_t(SCRATCH_STRIDE) * threads));
    if (!scratch) return "k3_channel_energy: no memory for the scratch of its threads";
    char* base = static_cast<char*>(workspace);
    Run run{tables, threads, scratch, reinterpret_cast<float*>(base),
            reinterpret_cast<Folded*>(base + FOLDED_AT), reinterpret_cast<double*>(base + WHAT_AT),
            reinterpret_cast<double*>(base + PARTIAL_AT), {}, {}};
    for (int i = 0; i < BLOCKS; ++i)
        for (int j = i; j < BLOCKS; ++j) run.left.push_back(i), run.right.push_back(j);
    for (int group = 0; group < GROUPS; ++group) {
        double* energies = energy + int64_t(group) * OUT_CHANNELS;
        for (int o = 0; o < OUT_CHANNELS; ++o) energies[o] = 0.0;
        for (int pair = 0; pair < PAIRS; pair += PAIRS_AT_ONCE) {
            const int pairs = int(least(PAIRS - pair, PAIRS_AT_ONCE));
            for (int64_t start = 0; start < ENTRIES; start += ENTRIES_AT_ONCE) {
                const int64_t entries = least(ENTRIES - start, ENTRIES_AT_ONCE);
                if (pair == 0 || ENTRIES > ENTRIES_AT_ONCE) run.transform(x, group, start, entries);
                run.gram(pair, pairs, start, entries);
            }
            for (int block = 0; block < COLUMN_BLOCKS; block += COLUMN_BLOCKS_AT_ONCE) {
                const int blocks = int(least(COLUMN_BLOCKS - block, COLUMN_BLOCKS_AT_ONCE));
                run.weights(weight, group, block, blocks);
                run.form(pair, pairs, block, blocks, energies);
            }
        }
    }
    std::free(scratch);
    return nullptr;
}

//// k4_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Columns: rows of 64 for each of 128: sum.
static const char* k4_sum_cast(const double* __restrict__ in0, const double* __restrict__ in1,
                               const float* __restrict__ in2, const float* __restrict__ in3,
                               const float* __restrict__ in4, const double* __restrict__ in5, double* __restrict__ out0,
                               float* __restrict__ out1, float* __restrict__ out2, void* workspace) {
  using real = double;
  (void)workspace;
  {
    constexpr int64_t left = 0, right = 128;
    alignas(64) real part0[128];
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      part0[i0 - left] = 0;
    }
    for (int64_t row = 0; row + 4 <= 64; row += 4) {
      const int64_t r0 = row;
      const real w0 = real(in0[r0]);
      const real w1 = real(in0[r0 + 1]);
      const real w2 = real(in0[r0 + 2]);
      const real w3 = real(in0[r0 + 3]);
      #pragma omp simd
      for (int64_t i0 = left; i0 < right; ++i0) {
        const real v0 = real(in1[i0 + 128 * r0]);
        const real v1 = w0 * v0;
        const real v2 = real(in1[i0 + 128 * r0 + 128]);
        const real v3 = w1 * v2;
        const real v4 = real(in1[i0 + 128 * r0 + 256]);
        const real v5 = w2 * v4;
        const real v6 = real(in1[i0 + 128 * r0 + 384]);
        const real v7 = w3 * v6;
        part0[i0 - left] += ((v1 + v3) + (v5 + v7));
      }
    }
    for (int64_t row = 64 - 64 % 4; row + 1 <= 64; row += 1) {
      const int64_t r0 = row;
      const real w0 = real(in0[r0]);
      #pragma omp simd
      for (int64_t i0 = left; i0 < right; ++i0) {
        const real v0 = real(in1[i0 + 128 * r0]);
        const real v1 = w0 * v0;
        part0[i0 - left] += v1;
      }
    }
    alignas(64) real reduced0[128];
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      reduced0[i0 - left] = part0[i0 - left] + real(0);
    }
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      const real u0 = real(in2[i0]);
      const real u1 = u0 * real(0.9);
      const real u2 = real(in3[i0]);
      const real u3 = u2 * real(414720.0);
      const real u4 = kw_unfused_add(reduced0[i0 - left], u3);
      const real u5 = u4 * real(2.4112654320987654e-06);
      const real u6 = u5 * real(2.0);
      const real u7 = u6 * real(0.1);
      const real u8 = kw_unfused_add(u1, u7);
      const real u9 = real(in4[i0]);
      const real u10 = u9 * real(0.9);
      const real u11 = real(in5[i0]);
      const real u12 = real(u11 == u11);
      const real u13 = kw_select(u12 != real(0), u11, real(INFINITY));
      const real u14 = u13 * real(2.4112654320987654e-06);
      const real u15 = reduced0[i0 - left] * real(2.4112654320987654e-06);
      const real u16 = u15 * u15;
      const real u17 = kw_unfused_sub(u14, u16);
      const real u18 = kw_select(u17 < real(0.0), real(0.0), u17);
      const real u19 = u18 * real(4.0);
      const real u20 = u19 * real(1.0000024112712462);
      const real u21 = u20 * real(0.1);
      const real u22 = kw_unfused_add(u10, u21);
      out0[i0] = reduced0[i0 - left];
      out1[i0] = float(u8);
      out2[i0] = float(u22);
    }
  }
  return nullptr;
}

//// k5_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Columns: rows of 64 for each of 16 x 128: sum.
static const char* k5_sum_cast(const double* __restrict__ in0, const double* __restrict__ in1,
                               const float* __restrict__ in2, const double* __restrict__ in3,
                               const double* __restrict__ in4, const float* __restrict__ in5,
                               const float* __restrict__ in6, float* __restrict__ out0, void* workspace) {
  using real = double;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 16; ++task) {
    const int64_t i0 = task;
    constexpr int64_t left = 0, right = 128;
    alignas(64) real part0[128];
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      part0[i1 - left] = 0;
    }
    for (int64_t row = 0; row + 4 <= 64; row += 4) {
      const int64_t r0 = row;
      const real w0 = real(in0[64 * i0 + r0]);
      const real w1 = real(in0[64 * i0 + r0 + 1]);
      const real w2 = real(in0[64 * i0 + r0 + 2]);
      const real w3 = real(in0[64 * i0 + r0 + 3]);
      #pragma omp simd
      for (int64_t i1 = left; i1 < right; ++i1) {
        const real v0 = real(in1[i1 + 128 * r0]);
        const real v1 = w0 * v0;
        const real v2 = real(in1[i1 + 128 * r0 + 128]);
        const real v3 = w1 * v2;
        const real v4 = real(in1[i1 + 128 * r0 + 256]);
        const real v5 = w2 * v4;
        const real v6 = real(in1[i1 + 128 * r0 + 384]);
        const real v7 = w3 * v6;
        part0[i1 - left] += ((v1 + v3) + (v5 + v7));
      }
    }
    for (int64_t row = 64 - 64 % 4; row + 1 <= 64; row += 1) {
      const int64_t r0 = row;
      const real w0 = real(in0[64 * i0 + r0]);
      #pragma omp simd
      for (int64_t i1 = left; i1 < right; ++i1) {
        const real v0 = real(in1[i1 + 128 * r0]);
        const real v1 = w0 * v0;
        part0[i1 - left] += v1;
      }
    }
    alignas(64) real reduced0[128];
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      reduced0[i1 - left] = part0[i1 - left] + real(0);
    }
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      const real u0 = real(in2[i1]);
      const real u1 = u0 * real(25920.0);
      const real u2 = kw_unfused_add(reduced0[i1 - left], u1);
      const real u3 = u2 * real(3.8580246913580246e-05);
      const real u4 = u3 * real(2.0);
      const real u5 = real(in3[i1]);
      const real u6 = u0 * real(414720.0);
      const real u7 = kw_unfused_add(u5, u6);
      const real u8 = u7 * real(2.4112654320987654e-06);
      const real u9 = u8 * real(2.0);
      const real u10 = kw_unfused_sub(u4, u9);
      const real u11 = real(in4[i1]);
      const real u12 = real(u11 == u11);
      const real u13 = kw_select(u12 != real(0), u11, real(INFINITY));
      const real u14 = u13 * real(2.4112654320987654e-06);
      const real u15 = u5 * real(2.4112654320987654e-06);
      const real u16 = u15 * u15;
      const real u17 = kw_unfused_sub(u14, u16);
      const real u18 = kw_select(u17 < real(0.0), real(0.0), u17);
      const real u19 = u18 * real(4.0);
      const real u20 = kw_unfused_add(u19, real(1e-05));
      const real u21 = real(1) / kw_sqrt(u20);
      const real u22 = real(in5[i1]);
      const real u23 = u21 * u22;
      const real u24 = u10 * u23;
      const real u25 = real(in6[i1]);
      const real u26 = kw_unfused_add(u24, u25);
      out0[128 * i0 + i1] = float(u26);
    }
  }
  return nullptr;
}

//// k7_moments_mean_sum
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows of 16 x 25920 for each of 128: moments, sum.
static const char* k7_moments_mean_sum(const float* __restrict__ in0, const float* __restrict__ in1,
                                       float* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2,
                                       float* __restrict__ out3, float* __restrict__ out4, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 128; ++point) {
    const int64_t i0 = point;
    kw_moments_of<real> accumulator0;
    for (int64_t segment = 0; segment < 416; ++segment) {
      const int64_t r0 = segment / 26;
      const int64_t block = segment % 26;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 25920 ? begin + 1024 : 25920;
      accumulator0.block(in0 + 25920 * i0 + 3317760 * r0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    alignas(64) real values1[1024];
    kw_sum_of<real> accumulator1;
    const real c1_0 = reduced0_mean * real(2.0);
    const real c1_1 = reduced0_deviation * real(2.0);
    const real c1_2 = real(c1_1 < real(1000000000000000.0));
    const real c1_3 = reduced0_variance * real(4.0);
    const real c1_4 = kw_unfused_add(c1_3, real(1e-05));
    const real c1_5 = real(1) / kw_sqrt(c1_4);
    const real c1_6 = real(1) / c1_1;
    const real c1_7 = kw_select(c1_2 != real(0), c1_5, c1_6);
    for (int64_t segment = 0; segment < 416; ++segment) {
      const int64_t r0 = segment / 26;
      const int64_t block = segment % 26;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 25920 ? begin + 1024 : 25920;
      const real w0 = real(in1[i0 + 128 * r0]);
      const real w1 = w0 / real(25920.0);
      #pragma omp simd
      for (int64_t r1 = begin; r1 < end; ++r1) {
        const real v0 = real(in0[25920 * i0 + 3317760 * r0 + r1]);
        const real v1 = v0 * real(2.0);
        const real v2 = kw_unfused_sub(v1, c1_0);
        const real v3 = v2 * c1_7;
        const real v4 = w1 * v3;
        values1[r1 - begin] = v4;
      }
      accumulator1.block(values1, end - begin);
    }
    const real reduced1 = accumulator1.value();
    const real t8 = reduced1 / real(414720.0);
    out0[i0] = reduced0_deviation;
    out1[i0] = reduced0_variance;
    out2[i0] = reduced0_mean;
    out3[i0] = t8;
    out4[i0] = reduced1;
  }
  return nullptr;
}

//// k8_mean
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows of 16 x 25920 for each of 128: sum.
static const char* k8_mean(const float* __restrict__ in0, float* __restrict__ out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 128; ++point) {
    const int64_t i0 = point;
    alignas(64) real values0[1024];
    kw_sum_of<real> accumulator0;
    for (int64_t segment = 0; segment < 416; ++segment) {
      const int64_t r0 = segment / 26;
      const int64_t block = segment % 26;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 25920 ? begin + 1024 : 25920;
      const real w0 = real(in0[i0 + 128 * r0]);
      const real w1 = w0 / real(25920.0);
      #pragma omp simd
      for (int64_t r1 = begin; r1 < end; ++r1) {
        values0[r1 - begin] = w1;
      }
      accumulator0.block(values0, end - begin);
    }
    const real reduced0 = accumulator0.value();
    const real t0 = reduced0 / real(414720.0);
    out0[i0] = t0;
  }
  return nullptr;
}

//// k9_mul
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Pointwise over 16 x 128 x 25920.
static const char* k9_mul(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                          const float* __restrict__ in3, const float* in4, const float* __restrict__ in5,
                          const float* __restrict__ in6, const float* __restrict__ in7, float* out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 8192; ++task) {
    const int64_t i0 = task / 512;
    const int64_t i1 = task / 4 % 128;
    const int64_t block = task % 4;
    const int64_t first = block * 8192;
    const int64_t last = first + 8192 < 25920 ? first + 8192 : 25920;
    const real c0 = real(in0[i1]);
    const real c1 = c0 * real(2.0);
    const real c2 = real(c1 < real(1000000000000000.0));
    const real c3 = real(in1[i1]);
    const real c4 = c3 * real(4.0);
    const real c5 = kw_unfused_add(c4, real(1e-05));
    const real c6 = real(1) / kw_sqrt(c5);
    const real c7 = real(1) / c1;
    const real c8 = kw_select(c2 != real(0), c6, c7);
    const real c9 = real(in2[i1]);
    const real c10 = c8 * c9;
    const real c11 = real(in3[128 * i0 + i1]);
    const real c12 = c11 / real(25920.0);
    const real c13 = real(in5[i1]);
    const real c14 = c13 * real(2.0);
    const real c15 = real(in6[i1]);
    const real c16 = real(in7[i1]);
    #pragma omp simd
    for (int64_t i2 = first; i2 < last; ++i2) {
      const real v0 = real(in4[3317760 * i0 + 25920 * i1 + i2]);
      const real v1 = v0 * real(2.0);
      const real v2 = kw_unfused_sub(v1, c14);
      const real v3 = v2 * c8;
      const real v4 = v3 * c15;
      const real v5 = kw_unfused_sub(c12, v4);
      const real v6 = v5 - c16;
      const real v7 = c10 * v6;
      const real v8 = v7 * real(2.0);
      out0[3317760 * i0 + 25920 * i1 + i2] = v8;
    }
  }
  return nullptr;
}

//// k10_sum
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows of 16 x 25920 for each of 128: sum.
static const char* k10_sum(const float* __restrict__ in0, float* __restrict__ out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 128; ++point) {
    const int64_t i0 = point;
    alignas(64) real values0[1024];
    kw_sum_of<real> accumulator0;
    for (int64_t segment = 0; segment < 416; ++segment) {
      const int64_t r0 = segment / 26;
      const int64_t block = segment % 26;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 25920 ? begin + 1024 : 25920;
      const real w0 = real(in0[i0 + 128 * r0]);
      const real w1 = w0 / real(25920.0);
      #pragma omp simd
      for (int64_t r1 = begin; r1 < end; ++r1) {
        values0[r1 - begin] = w1;
      }
      accumulator0.block(values0, end - begin);
    }
    const real reduced0 = accumulator0.value();
    out0[i0] = reduced0;
  }
  return nullptr;
}

//// k6_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Columns: rows of 64 for each of 16 x 128: sum.
static const char* k6_sum_cast(const double* __restrict__ in0, const double* __restrict__ in1,
                               const float* __restrict__ in2, const float* __restrict__ in3,
                               const float* __restrict__ in4, const float* __restrict__ in5,
                               const float* __restrict__ in6, float* __restrict__ out0, void* workspace) {
  using real = double;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 16; ++task) {
    const int64_t i0 = task;
    constexpr int64_t left = 0, right = 128;
    alignas(64) real part0[128];
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      part0[i1 - left] = 0;
    }
    for (int64_t row = 0; row + 4 <= 64; row += 4) {
      const int64_t r0 = row;
      const real w0 = real(in0[64 * i0 + r0]);
      const real w1 = real(in0[64 * i0 + r0 + 1]);
      const real w2 = real(in0[64 * i0 + r0 + 2]);
      const real w3 = real(in0[64 * i0 + r0 + 3]);
      #pragma omp simd
      for (int64_t i1 = left; i1 < right; ++i1) {
        const real v0 = real(in1[i1 + 128 * r0]);
        const real v1 = w0 * v0;
        const real v2 = real(in1[i1 + 128 * r0 + 128]);
        const real v3 = w1 * v2;
        const real v4 = real(in1[i1 + 128 * r0 + 256]);
        const real v5 = w2 * v4;
        const real v6 = real(in1[i1 + 128 * r0 + 384]);
        const real v7 = w3 * v6;
        part0[i1 - left] += ((v1 + v3) + (v5 + v7));
      }
    }
    for (int64_t row = 64 - 64 % 4; row + 1 <= 64; row += 1) {
      const int64_t r0 = row;
      const real w0 = real(in0[64 * i0 + r0]);
      #pragma omp simd
      for (int64_t i1 = left; i1 < right; ++i1) {
        const real v0 = real(in1[i1 + 128 * r0]);
        const real v1 = w0 * v0;
        part0[i1 - left] += v1;
      }
    }
    alignas(64) real reduced0[128];
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      reduced0[i1 - left] = part0[i1 - left] + real(0);
    }
    #pragma omp simd
    for (int64_t i1 = left; i1 < right; ++i1) {
      const real u0 = real(in2[i1]);
      const real u1 = u0 * real(25920.0);
      const real u2 = kw_unfused_add(reduced0[i1 - left], u1);
      const real u3 = u2 * real(3.8580246913580246e-05);
      const real u4 = u3 * real(2.0);
      const real u5 = real(in3[i1]);
      const real u6 = kw_unfused_sub(u4, u5);
      const real u7 = real(in4[i1]);
      const real u8 = u7 + real(1e-05);
      const real u9 = real(1) / kw_sqrt(u8);
      const real u10 = real(in5[i1]);
      const real u11 = u9 * u10;
      const real u12 = u6 * u11;
      const real u13 = real(in6[i1]);
      const real u14 = kw_unfused_add(u12, u13);
      out0[128 * i0 + i1] = float(u14);
    }
  }
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* ) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* batch_norm_running_mean_ptr = static_cast<const float*>(tensors[2]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[3]);
    auto* batch_norm_running_var_ptr = static_cast<const float*>(tensors[4]);
    auto* batch_norm_running_mean_out5 = static_cast<float*>(tensors[5]);
    auto* batch_norm_running_var_out6 = static_cast<float*>(tensors[6]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[7]);
    auto* batch_norm_bias_ptr = static_cast<const float*>(tensors[8]);
    auto* cast_k5_ptr = static_cast<float*>(tensors[9]);
    auto* workspace = static_cast<char*>(tensors[10]);
    auto* region_sum_k0_ptr = reinterpret_cast<double*>(workspace);
    auto* region_sum_k1_ptr = reinterpret_cast<double*>(workspace + 8192);
    auto* sum_k2_ptr = reinterpret_cast<double*>(workspace + 73728);
    auto* channel_energy_k3_ptr = reinterpret_cast<double*>(workspace + 74240);
    auto* sum_k4_0_ptr = reinterpret_cast<double*>(workspace + 75264);
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, nullptr)) return failure;
    if (const char* failure = k1_region_sum(conv_transpose_weight_ptr, region_sum_k1_ptr, nullptr)) return failure;
    if (const char* failure = k2_sum(region_sum_k0_ptr, sum_k2_ptr, nullptr)) return failure;
    if (const char* failure = k3_channel_energy(x_ptr, conv_transpose_weight_ptr, channel_energy_k3_ptr,
                                                workspace + 76288)) return failure;
    if (const char* failure = k4_sum_cast(sum_k2_ptr, region_sum_k1_ptr, batch_norm_running_mean_ptr,
                                          conv_transpose_bias_ptr, batch_norm_running_var_ptr, channel_energy_k3_ptr,
                                          sum_k4_0_ptr, batch_norm_running_mean_out5, batch_norm_running_var_out6,
                                          nullptr)) return failure;
    if (const char* failure = k5_sum_cast(region_sum_k0_ptr, region_sum_k1_ptr, conv_transpose_bias_ptr, sum_k4_0_ptr,
                                          channel_energy_k3_ptr, batch_norm_weight_ptr, batch_norm_bias_ptr,
                                          cast_k5_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* ) {
    auto* _t5_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[1]);
    auto* sum_k7_4_ptr = static_cast<float*>(tensors[2]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[3]);
    auto* mul_k9_ptr = static_cast<float*>(tensors[4]);
    auto* sum_k10_ptr = static_cast<float*>(tensors[5]);
    alignas(256) char workspace[2560];
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 1024);
    auto* mean_k7_3_ptr = reinterpret_cast<float*>(workspace + 1536);
    auto* mean_k8_ptr = reinterpret_cast<float*>(workspace + 2048);
    if (const char* failure = k7_moments_mean_sum(_t5_convolution_ptr, gradient_of_output_0_ptr, std_k7_0_ptr,
                                                  var_k7_1_ptr, mean_k7_2_ptr, mean_k7_3_ptr, sum_k7_4_ptr,
                                                  nullptr)) return failure;
    if (const char* failure = k8_mean(gradient_of_output_0_ptr, mean_k8_ptr, nullptr)) return failure;
    if (const char* failure = k9_mul(std_k7_0_ptr, var_k7_1_ptr, batch_norm_weight_ptr, gradient_of_output_0_ptr,
                                     _t5_convolution_ptr, mean_k7_2_ptr, mean_k7_3_ptr, mean_k8_ptr, mul_k9_ptr,
                                     nullptr)) return failure;
    if (const char* failure = k10_sum(gradient_of_output_0_ptr, sum_k10_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* ) {
    auto* _t5_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[1]);
    auto* sum_k7_4_ptr = static_cast<float*>(tensors[2]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[3]);
    auto* mul_k9_ptr = static_cast<float*>(tensors[4]);
    auto* sum_k10_ptr = static_cast<float*>(tensors[5]);
    alignas(256) char workspace[2560];
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 1024);
    auto* mean_k7_3_ptr = reinterpret_cast<float*>(workspace + 1536);
    auto* mean_k8_ptr = reinterpret_cast<float*>(workspace + 2048);
    if (const char* failure = k7_moments_mean_sum(_t5_convolution_ptr, gradient_of_output_0_ptr, std_k7_0_ptr,
                                                  var_k7_1_ptr, mean_k7_2_ptr, mean_k7_3_ptr, sum_k7_4_ptr,
                                                  nullptr)) return failure;
    if (const char* failure = k8_mean(gradient_of_output_0_ptr, mean_k8_ptr, nullptr)) return failure;
    if (const char* failure = k9_mul(std_k7_0_ptr, var_k7_1_ptr, batch_norm_weight_ptr, gradient_of_output_0_ptr,
                                     _t5_convolution_ptr, mean_k7_2_ptr, mean_k7_3_ptr, mean_k8_ptr, mul_k9_ptr,
                                     nullptr)) return failure;
    if (const char* failure = k10_sum(gradient_of_output_0_ptr, sum_k10_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_inference_0(void* const* tensors, void* ) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* batch_norm_running_mean_ptr = static_cast<const float*>(tensors[3]);
    auto* batch_norm_running_var_ptr = static_cast<const float*>(tensors[4]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* batch_norm_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* cast_k6_ptr = static_cast<float*>(tensors[7]);
    auto* workspace = static_cast<char*>(tensors[8]);
    auto* region_sum_k0_ptr = reinterpret_cast<double*>(workspace);
    auto* region_sum_k1_ptr = reinterpret_cast<double*>(workspace + 8192);
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, nullptr)) return failure;
    if (const char* failure = k1_region_sum(conv_transpose_weight_ptr, region_sum_k1_ptr, nullptr)) return failure;
    if (const char* failure = k6_sum_cast(region_sum_k0_ptr, region_sum_k1_ptr, conv_transpose_bias_ptr,
                                          batch_norm_running_mean_ptr, batch_norm_running_var_ptr,
                                          batch_norm_weight_ptr, batch_norm_bias_ptr, cast_k6_ptr,
                                          nullptr)) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, conv_transpose_weight, conv_transpose_bias, batch_norm_weight,
                           batch_norm_bias, batch_norm_num_batches_tracked, batch_norm_running_mean,
                           batch_norm_running_var):
    """The program of training mode: 6 kernels, 0 torch calls."""
    cast_k5 = torch.empty((16, 128, 1, 1, 1), dtype=torch.float32, device=_device)
    workspace = torch.empty(143665664, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_0", _stream, x, conv_transpose_weight, batch_norm_running_mean,
                         conv_transpose_bias, batch_norm_running_var, batch_norm_running_mean, batch_norm_running_var,
                         batch_norm_weight, batch_norm_bias, cast_k5, workspace)
    torch.autograd.graph.increment_version((batch_norm_running_mean, batch_norm_running_var,))
    batch_norm_num_batches_tracked.add_(1)
    return (cast_k5,)


def _kernelwright_training_backward_of_parameters(_device, _stream, x, gradient_of_output_0, conv_transpose_weight,
                                                  conv_transpose_bias, batch_norm_weight):
    """The program of training backward of parameters mode: 4 kernels, 4 torch calls."""
    # x = self.conv_transpose(x)
    _t5_convolution = torch.nn.functional.conv_transpose3d(x, conv_transpose_weight, conv_transpose_bias, (1, 1, 1),
                                                           (0, 0, 0), (0, 0, 0), 1, (1, 1, 1)).contiguous()
    sum_k7_4 = torch.empty_like(batch_norm_weight)
    mul_k9 = _t5_convolution  # in place
    sum_k10 = torch.empty_like(batch_norm_weight)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, _t5_convolution,
                         gradient_of_output_0, sum_k7_4, batch_norm_weight, mul_k9, sum_k10)
    del _t5_convolution
    # x = self.conv_transpose(x)
    _t14_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k9, x, conv_transpose_weight, [128],
        [1, 1, 1], [0, 0, 0], [1, 1, 1], True, [0, 0, 0], 1, [False, True, True])
    del mul_k9
    # x = self.conv_transpose(x)
    _t15_item = _t14_convolution_backward[1]
    # x = self.conv_transpose(x)
    _t16_item = _t14_convolution_backward[2]
    return (_t15_item, _t16_item, sum_k7_4, sum_k10,)


def _kernelwright_training_backward(_device, _stream, x, gradient_of_output_0, conv_transpose_weight,
                                    conv_transpose_bias, batch_norm_weight):
    """The program of training backward mode: 4 kernels, 5 torch calls."""
    # x = self.conv_transpose(x)
    _t5_convolution = torch.nn.functional.conv_transpose3d(x, conv_transpose_weight, conv_transpose_bias, (1, 1, 1),
                                                           (0, 0, 0), (0, 0, 0), 1, (1, 1, 1)).contiguous()
    sum_k7_4 = torch.empty_like(batch_norm_weight)
    mul_k9 = _t5_convolution  # in place
    sum_k10 = torch.empty_like(batch_norm_weight)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, _t5_convolution, gradient_of_output_0, sum_k7_4,
                         batch_norm_weight, mul_k9, sum_k10)
    del _t5_convolution
    # x = self.conv_transpose(x)
    _t14_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k9, x, conv_transpose_weight, [128],
        [1, 1, 1], [0, 0, 0], [1, 1, 1], True, [0, 0, 0], 1, [True, True, True])
    del mul_k9
    # x = self.conv_transpose(x)
    _t15_item = _t14_convolution_backward[0]
    # x = self.conv_transpose(x)
    _t16_item = _t14_convolution_backward[1]
    # x = self.conv_transpose(x)
    _t17_item = _t14_convolution_backward[2]
    return (_t15_item, _t16_item, _t17_item, sum_k7_4, sum_k10,)


def _kernelwright_inference(_device, _stream, x, conv_transpose_weight, conv_transpose_bias, batch_norm_running_mean,
                            batch_norm_running_var, batch_norm_weight, batch_norm_bias):
    """The program of inference mode: 3 kernels, 0 torch calls."""
    cast_k6 = torch.empty((16, 128, 1, 1, 1), dtype=torch.float32, device=_device)
    workspace = torch.empty(73728, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_inference_0", _stream, x, conv_transpose_weight, conv_transpose_bias,
                         batch_norm_running_mean, batch_norm_running_var, batch_norm_weight, batch_norm_bias, cast_k6,
                         workspace)
    return (cast_k6,)


# What the kernels were built for; elsewhere the original computation runs -------------------------------------------


_KERNELWRIGHT_MODEL = {
    "modules": {'conv_transpose': 'torch.nn.modules.conv.ConvTranspose3d',
                'batch_norm': 'torch.nn.modules.batchnorm.BatchNorm3d',
                'pool': 'torch.nn.modules.pooling.AdaptiveAvgPool3d'},
    "attributes": {
        '': {'scale_factor': 2.0},
        'conv_transpose': {'in_channels': 64, 'out_channels': 128, 'kernel_size': ('tuple', 5, 5, 5),
                           'stride': ('tuple', 1, 1, 1), 'padding': ('tuple', 0, 0, 0), 'dilation': ('tuple', 1, 1, 1),
                           'transposed': True, 'output_padding': ('tuple', 0, 0, 0), 'groups': 1,
                           'padding_mode': 'zeros', '_reversed_padding_repeated_twice': ('tuple', 0, 0, 0, 0, 0, 0)},
        'batch_norm': {'num_features': 128, 'eps': 1e-05, 'momentum': 0.1, 'affine': True, 'track_running_stats': True},
        'pool': {'output_size': ('tuple', 1, 1, 1)},
    },
    "held": ('batch_norm.bias', 'batch_norm.num_batches_tracked', 'batch_norm.running_mean', 'batch_norm.running_var',
             'batch_norm.weight', 'conv_transpose.bias', 'conv_transpose.weight'),
    "default_dtype": torch.float32,
    "inputs": (("x", (16, 64, 16, 32, 32), torch.float32),),
    "seen": (),
    "strides": ((128, 1, 1, 1, 1),),
}

_KERNELWRIGHT_TRAINING = {
    **_KERNELWRIGHT_MODEL,
    "training": True,
    "tensors": {
        "conv_transpose.weight": ((64, 128, 5, 5, 5), torch.float32),
        "conv_transpose.bias": ((128,), torch.float32),
        "batch_norm.weight": ((128,), torch.float32),
        "batch_norm.bias": ((128,), torch.float32),
        "batch_norm.num_batches_tracked": ((), torch.int64),
        "batch_norm.running_mean": ((128,), torch.float32),
        "batch_norm.running_var": ((128,), torch.float32),
    },
    "updated": ('batch_norm.num_batches_tracked', 'batch_norm.running_mean', 'batch_norm.running_var'),
    "run": _kernelwright_training,
    "compiled": None,
    "backward": {"of": (0,), "frozen": (), "programs": ({"gives": {'conv_transpose.weight': 0, 'conv_transpose.bias': 1,
        'batch_norm.weight': 2, 'batch_norm.bias': 3}, "tensors": ('conv_transpose.weight', 'conv_transpose.bias',
        'batch_norm.weight'), "orders": (), "run": _kernelwright_training_backward_of_parameters},
                                                        {"gives": {0: 0, 'conv_transpose.weight': 1,
        'conv_transpose.bias': 2, 'batch_norm.weight': 3, 'batch_norm.bias': 4},
                                                         "tensors": ('conv_transpose.weight', 'conv_transpose.bias',
        'batch_norm.weight'), "orders": (), "run": _kernelwright_training_backward},)},
}

_KERNELWRIGHT_INFERENCE = {
    **_KERNELWRIGHT_MODEL,
    "training": False,
    "tensors": {
        "conv_transpose.weight": ((64, 128, 5, 5, 5), torch.float32),
        "conv_transpose.bias": ((128,), torch.float32),
        "batch_norm.running_mean": ((128,), torch.float32),
        "batch_norm.running_var": ((128,), torch.float32),
        "batch_norm.weight": ((128,), torch.float32),
        "batch_norm.bias": ((128,), torch.float32),
    },
    "updated": (),
    "run": _kernelwright_inference,
    "compiled": (((16, 128, 1, 1, 1), (128, 1, 1, 1, 1), torch.float32),),
    "backward": None,
}

_KERNELWRIGHT_PLANS = {  # by model.training and torch.is_grad_enabled()
    (True, False): _KERNELWRIGHT_TRAINING,
    (True, True): _KERNELWRIGHT_TRAINING,
    (False, False): _KERNELWRIGHT_INFERENCE,
    (False, True): _KERNELWRIGHT_INFERENCE,
}


# The runtime: build, check, launch, gradients -----------------------------------------------------------------------


import copy
import ctypes
import hashlib
import inspect
import operator
import os
import platform
import re
import struct
import tempfile
import threading
import warnings
import weakref
from pathlib import Path


def _kernelwright_units(most):
    """The kernels' text as texts to compile side by side: some of the kernels each, after what all of them share."""
    support, *kernels = re.split(r"^//// .*\n", _KERNELWRIGHT_SOURCE, flags=re.MULTILINE)
    launchers = kernels.pop() if kernels else ""
    count = min(most, len(kernels) // 2, sum(map(len, kernels)) // 16384)
    if count < 2:
        return [_KERNELWRIGHT_SOURCE]
    units = [support] * count
    for kernel in sorted(kernels, key=len, reverse=True):
        shortest = min(range(count), key=lambda unit: len(units[unit]))
        units[shortest] += kernel
    start = re.compile(r"^static (?=const char\* \w+\()", re.MULTILINE)
    shared = '__attribute__((visibility("hidden"))) '  # by the units of this library, and no other one
    heads = re.findall(r"^static (const char\* \w+\([^{]*\)) \{", "".join(kernels), re.MULTILINE)
    declarations = "".join(f"{shared}{head};\n" for head in heads)
    return [*(start.sub(shared, unit) for unit in units), f"{support}\n{declarations}\n{launchers}"]


def _kernelwright_missing():
    """The programs that compiling needs and that are not found."""
    import shlex
    import shutil

    from torch.utils import cpp_extension

    wanted = {"the C++ compiler": cpp_extension.get_cxx_compiler(), "": "ninja"}
    return [f"{what} {tool}".lstrip() for what, tool in wanted.items()
            if not shutil.which(next(iter(shlex.split(tool)), tool))]


def _kernelwright_compile(folder, name):
    """Compile the kernels into a shared library in a folder."""
    missing = _kernelwright_missing()
    if missing:
        raise RuntimeError(f"not found: {', '.join(missing)}")
    from torch.utils.cpp_extension import load, load_inline

    options = {"name": name, "build_directory": folder, "is_python_module": False}
    options |= {"extra_cflags": _KERNELWRIGHT_FLAGS, "extra_ldflags": ["-fopenmp"]}
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    units, files = _kernelwright_units(cores), []
    for number, unit in enumerate(units if len(units) > 1 else ()):
        files.append(os.path.join(folder, f"unit{number}.{'cu' if _KERNELWRIGHT_DEVICE == 'cuda' else 'cpp'}"))
        Path(files[-1]).write_text(unit, encoding="utf-8")
    if files:
        load(sources=files, **options)
        return
    load_inline(cpp_sources=[_KERNELWRIGHT_SOURCE], no_implicit_headers=True, **options)


def _kernelwright_build():
    """Compile the kernels once for this machine; later imports load the finished library."""
    identity = [_KERNELWRIGHT_SOURCE, *_KERNELWRIGHT_FLAGS, torch.__version__, platform.machine()]
    if os.path.exists("/proc/cpuinfo"):  # -march=native: a library is for one kind of processor
        with open("/proc/cpuinfo") as lines:
            identity += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    name = f"{_KERNELWRIGHT_NAME}_{hashlib.sha256(chr(0).join(identity).encode()).hexdigest()[:20]}"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    home = os.environ.get("KERNELWRIGHT_CACHE") or os.path.join(shared if os.path.isabs(shared) else "~/.cache",
                                                                "kernelwright")
    library = Path(home).expanduser() / "libraries" / f"{name}.so"
    if not library.exists():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            writable = os.access(library.parent, os.W_OK)
        except OSError:
            writable = False
        if not writable:  # a library for this process alone
            library = Path(tempfile.mkdtemp(prefix="kernelwright_")) / library.name
        # A folder of its own, then one atomic rename: builds can't wait for each other or be seen half done.
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            _kernelwright_compile(folder, name)
            os.replace(next(Path(folder).glob("*.so")), library)
    loaded = ctypes.CDLL(str(library))
    for launcher in _KERNELWRIGHT_LAUNCHERS:
        getattr(loaded, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(loaded, launcher).restype = ctypes.c_char_p
    return loaded


_kernelwright_library = None
_kernelwright_trouble = ""  # why there is no library
_kernelwright_details = ""  # the compiler's messages
_kernelwright_devices = {None, 0}  # indices of the devices that the library is for
try:
    _kernelwright_library = _kernelwright_build()
except Exception as error:
    _kernelwright_details = str(error).strip() or type(error).__name__
    _kernelwright_trouble = f"the kernels could not be built ({_kernelwright_details.splitlines()[0][:200]})"


def _kernelwright_name(value, own):
    """The full name of a class or function; without its module's where that is one of ``own``."""
    name = value.__qualname__.rpartition("<locals>.")[2]
    return name if value.__module__ in own else f"{value.__module__}.{name}"


def _kernelwright_form(value, own, depth=0):
    """An attribute's value as plain numbers, text and tuples, which compare across processes."""
    kind = type(value)
    if kind in (bool, int, float, str, bytes, type(None)):
        return value
    if isinstance(value, (tuple, list)):
        return (kind.__name__, *[_kernelwright_form(v, own, depth) for v in value])
    return ("object", _kernelwright_name(kind, own))  # as no attribute was


# What nn.Module and torch.compile keep for themselves.
_kernelwright_internal = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl", "_is_torch_compile"}


def _kernelwright_attributes(module, own):
    """The form of every attribute of a module and of every plain attribute of its own classes."""
    found = {key: _kernelwright_form(value, own) for key, value in vars(module).items()
             if key not in _kernelwright_internal and not isinstance(value, torch.Tensor)}
    for kind in type(module).__mro__:
        if kind.__module__ in own:
            found.update({f"class {key}": _kernelwright_form(value, own) for key, value in vars(kind).items()
                          if not key.startswith("__") and "class " + key not in found
                          and isinstance(value, (bool, int, float, str, tuple, list, dict))})
    return found


_kernelwright_own = {__name__}  # modules whose classes are those of this file
_kernelwright_bindings = weakref.WeakKeyDictionary()
_kernelwright_warned = weakref.WeakKeyDictionary()
_kernelwright_fell_back = weakref.WeakKeyDictionary()


class _KernelwrightMisfit(Exception):
    """The kernels don't fit a call: what does not fit, and what is wrong with it."""


def _kernelwright_count(model, reason):
    """Count a call that runs the original computation."""
    counts = _kernelwright_fell_back.setdefault(model, {})
    counts[reason] = counts.get(reason, 0) + 1


def _kernelwright_warn(model, misfit):
    """Say, once per model and misfitting thing, that the original computation runs; count each time."""
    thing, problem = misfit.args
    _kernelwright_count(model, f"{thing} {problem}")
    warned = _kernelwright_warned.setdefault(model, set())
    if thing not in warned:
        warned.add(thing)
        warnings.warn(f"ModelNew runs the original computation: {thing} {problem}", RuntimeWarning, stacklevel=6)


def _kernelwright_quick():
    """Two functions of torch.compile's own, which are private, where this PyTorch has them and they work: by them
    dictionaries tell by a version, and tensors by one call, that they are as they were. Elsewhere all is compared."""
    try:
        from torch._C._dynamo.guards import TensorGuards, dict_version

        module = torch.nn.Module()
        table = vars(module)
        seen = [dict_version(table)]
        for change in (lambda: setattr(module, "mine", 1), lambda: setattr(module, "mine", 1.0),
                       lambda: object.__setattr__(module, "mine", 2), lambda: table.update(training=False),
                       lambda: delattr(module, "mine"), lambda: table.pop("training")):
            change()
            seen.append(dict_version(table))
        like = torch.zeros(2, 3)
        others = (like.t(), like.double(), like[:, :2], torch.nn.Parameter(like), torch.zeros(3, 2), like.to_sparse())
        guard = TensorGuards(like, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        works = len(set(seen)) == len(seen) and dict_version(table) == seen[-1] and guard.check(torch.ones(2, 3)) \
            and not any([guard.check(other) for other in others])
    except Exception:
        works = False
    return (dict_version, TensorGuards) if works else (None, None)


_kernelwright_version, _kernelwright_tensors = _kernelwright_quick()


class _KernelwrightBinding:
    """A model that was compared with the facts of a mode, and how to see at later calls that it is the same.

    tables and snapshots: dictionaries (of attributes, submodules) and lists that must equal their copies. hooks: those
    that must be empty; to look at two for each takes longer, as a large model's are in no cache.
    numbers: (dictionary, key, value) of the own modules' attributes, and of_classes of their classes'; 2, 2.0 and True
    are equal, yet not the same. versions: of the tables that are dictionaries, when they were last compared. same: what
    tells whether tensors are of the kinds of those that were last found to fit and that kernels can read as they are.
    homes and keys: where the tensors of the facts are kept. Raises _KernelwrightMisfit.
    """

    def __init__(self, model, facts):
        own = _kernelwright_own | {type(model).__module__}
        modules = dict(model.named_modules())
        classes = {path: _kernelwright_name(type(m), own) for path, m in modules.items() if path}
        if classes != facts["modules"]:
            changed = sorted(p for p in classes.keys() | facts["modules"].keys()
                             if classes.get(p) != facts["modules"].get(p))
            raise _KernelwrightMisfit("a submodule", f"is not what it was: {', '.join(changed)}")
        self.tables, self.hooks, self.numbers, self.sized, self.absent, self.of_classes = [], [], [], [], [], []
        for path, module in modules.items():
            training = facts["training"]
            if module.training != training:
                raise _KernelwrightMisfit("the model", "has modules in training and others in evaluation mode")
            attributes, expected = _kernelwright_attributes(module, own), facts["attributes"].get(path, {})
            # Other versions of PyTorch may keep other attributes in its modules.
            both = attributes.keys() | expected.keys() if type(module).__module__ in own \
                else attributes.keys() & expected.keys()
            for key in sorted(both):
                if repr(attributes.get(key, "missing")) != repr(expected.get(key, "missing")):
                    raise _KernelwrightMisfit(f"attribute {(path + '.' + key).lstrip('.')}",
                                              f"is not {expected.get(key, 'missing')!r}")
            hooks = [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
                     module._backward_pre_hooks]
            if path and any(hooks):
                raise _KernelwrightMisfit(f"module {path}", "has a hook")
            self.tables += [vars(module), *([module._modules] if module._modules else [])]
            self.sized += [] if module._modules else [module._modules]
            self.hooks += hooks if path else []
            if type(module).__module__ in own:
                self.numbers += [(vars(module), key, value) for key, value in vars(module).items()
                                 if isinstance(value, (bool, int, float))]
                self.of_classes += [(vars(kind), key[6:], vars(kind)[key[6:]]) for kind in type(module).__mro__
                                    for key in expected if key.startswith("class ") and key[6:] in vars(kind)]
            self.sized += [module._parameters, module._buffers]
            self.absent += [(table, key) for table in (module._parameters, module._buffers)
                            for key, value in table.items() if value is None]
        self.snapshots = [copy.copy(table) for table in self.tables]
        self.versions, self.dicts = None, [table for table in self.tables if type(table) is dict]
        self.sizes = list(map(len, self.sized))
        self._bind_tensors(model, modules, facts)
        self.checks = [(name, *kind) for name, *kind in facts["inputs"] if len(kind) > 1]
        self.updated = [len(self.checks) + i for i, name in enumerate(facts["tensors"]) if name in facts["updated"]]
        self.checks += [(name, *kind) for name, kind in facts["tensors"].items()]
        self.kinds = self.types = self.same = None  # of the tensors that were last found to fit
        # Whether results show the order of inputs' axes in memory, by strides: as calls of the original told.
        self.shows = {(): False}
        self.steps = _kernelwright_steps.setdefault(model, set())
        self.backwards = {}  # how kernels find gradients, by which tensors need some
        self.twin, self.lock = None, threading.RLock()  # gradients of one call may need those of another

    def _bind_tensors(self, model, modules, facts):
        tables = {(path, key): table for path, m in modules.items()
                  for table in (vars(m), m._buffers, m._parameters) for key in table}

        def home(name):
            path, _, key = name.rpartition(".")
            if (path, key) not in tables:
                raise _KernelwrightMisfit(name, "is missing")
            return tables[path, key], key

        held = tuple(sorted(f"{path}.{key}".lstrip(".") for path, m in modules.items()
                            for table in (m._parameters, m._buffers) for key in table if table[key] is not None))
        if held != facts["held"]:
            changed = sorted(set(held) ^ set(facts["held"]))
            raise _KernelwrightMisfit("the model", f"has other parameters or buffers: {', '.join(changed)}")
        places = [home(name) for name in facts["tensors"]]
        self.homes, self.keys = [h for h, _ in places], [k for _, k in places]
        self.parameters = {name: home(name) for name, _ in model.named_parameters()}
        self.buffers = {name: home(name) for name, _ in model.named_buffers()}
        # Of the model's tensors those that a backward may need, behind a call's own; and where these are.
        self.state = {**self.parameters, **self.buffers}
        self.state = {name: place for name, place in self.state.items() if name not in facts["updated"]}
        self.places = [i for i, kind in enumerate(facts["inputs"]) if len(kind) > 2]
        finds = (model.named_parameters, model.named_buffers)
        own = [name for find in finds for name, _ in find(remove_duplicate=False)]
        self.kept = [home(name) for name in facts["tensors"] if name not in own]

    def holds(self, model):
        """Whether the model, and what it reads from outside, is still as it was when it was bound."""
        try:
            versions = list(map(_kernelwright_version, self.dicts)) if _kernelwright_version else None
            if versions is None or versions != self.versions:
                if self.tables != self.snapshots:
                    return False
                if not all([table[key] is value for table, key, value in self.numbers]):
                    return False
                self.versions = versions
            return (not any(self.hooks) and list(map(len, self.sized)) == self.sizes
                    and all([table[key] is value for table, key, value in self.of_classes])
                    and all([table[key] is None for table, key in self.absent]))
        except (NameError, LookupError, AttributeError, RuntimeError, ValueError, TypeError):
            return False  # something is gone, or can't be compared: bind anew


_kernelwright_types = operator.attrgetter("dtype", "shape", "layout", "device")


def _kernelwright_check(values, checks, count=0):
    """Compare tensors one by one with (name, shape, dtype, maybe order). count: how many are the call's own. Raises
    _KernelwrightMisfit."""
    for place, (value, (name, shape, dtype, *_)) in enumerate(zip(values, checks)):
        if type(value) is not torch.Tensor and type(value) is not torch.nn.Parameter:
            raise _KernelwrightMisfit(name, f"is a {type(value).__name__}")
        if value.dtype is not dtype or value.shape != shape:
            problem = f"is {value.dtype} {list(value.shape)}, not {dtype} {list(shape)}"
            if place < count and value.dtype is dtype and value.ndim == len(shape):
                problem += "; kernelwright's option --dynamic writes a file for several sizes"
            if value.is_floating_point() and dtype.is_floating_point and value.dtype is not dtype:
                problem += "; kernelwright's option --dtypes writes a file for several types"
            raise _KernelwrightMisfit(name, problem)
        if value.layout is not torch.strided:
            raise _KernelwrightMisfit(name, "is sparse")
        if value.device != values[0].device:
            raise _KernelwrightMisfit("the model", "has tensors on several devices")
        if value.device.type != _KERNELWRIGHT_DEVICE or value.device.index not in _kernelwright_devices:
            raise _KernelwrightMisfit(name, f"is on {value.device}, for which the kernels were not built")


def _kernelwright_intercepted():
    """What stands between this call and the tensors' memory, or ""."""
    if torch.is_autocast_enabled(_KERNELWRIGHT_DEVICE):
        return "autocast"
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return "a transform such as vmap or forward-mode differentiation"
    if torch._C._len_torch_dispatch_stack() or torch._C._is_tracing():
        return "a tracer or a dispatch mode"
    if torch._C._len_torch_function_stack() and any(
            type(mode).__name__ != "DeviceContext" for mode in torch.overrides._get_current_function_mode_stack()):
        return "a torch function mode"
    return "a global module hook" if torch.nn.modules.module._has_any_global_hook() else ""


def _kernelwright_fit(model, facts, inputs):
    """The binding and the tensors (inputs, then the model's) of a call, as kernels read them and as the caller has
    them. Raises _KernelwrightMisfit."""
    if _kernelwright_library is None:
        raise _KernelwrightMisfit("this machine", f"can't run the kernels: {_kernelwright_trouble}")
    intercepted = _kernelwright_intercepted()
    if intercepted:
        raise _KernelwrightMisfit("this call", f"is under {intercepted}")
    if torch.get_default_dtype() is not facts["default_dtype"]:
        raise _KernelwrightMisfit("this call", f"is under another default type than {facts['default_dtype']}")
    bindings = _kernelwright_bindings.get(model)
    if bindings is None:
        bindings = _kernelwright_bindings.setdefault(model, {})
    binding = bindings.get(id(facts))
    if binding is None or not binding.holds(model):
        binding = bindings[id(facts)] = _KernelwrightBinding(model, facts)
    values = list(inputs)
    count = len(values)
    try:
        values += map(operator.getitem, binding.homes, binding.keys)
    except KeyError as missing:
        raise _KernelwrightMisfit(missing.args[0], "is missing") from None
    same = binding.same is not None and binding.same.check(*values)
    if not same:
        kinds = list(map(type, values))
        if kinds != binding.kinds or list(map(_kernelwright_types, values)) != binding.types:
            _kernelwright_check(values, binding.checks, count)
            binding.kinds, binding.types = kinds, list(map(_kernelwright_types, values))
    given = tuple(values)
    addresses = list(map(torch.Tensor.data_ptr, values))
    readable = same or (all(map(torch.Tensor.is_contiguous, values)) and not any(map(torch.Tensor.is_neg, values)))
    if not same and readable and _kernelwright_tensors is not None:
        binding.same = _kernelwright_tensors(*given, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    turned = ()
    if not readable or any([address & 15 or not address for address in addresses]):
        for place, (value, (name, *kind)) in enumerate(zip(values, binding.checks)):
            somewhere = bool(value.data_ptr()) or value.numel() == 0
            if value.is_contiguous() and not value.is_neg() and not value.data_ptr() & 15 and somewhere:
                continue
            is_read_alone = place < count and somewhere
            if not is_read_alone:
                problem = "is not contiguous and aligned to 16 bytes"
                raise _KernelwrightMisfit(name, problem)
            steps = [step for step, size in zip(value.stride(), value.shape) if size > 1 and step]
            if place < count and steps != sorted(steps, reverse=True):
                turned = (*turned, (name, value.stride()))
            # An input of another layout is copied: one pass over it, where the original makes many.
            values[place] = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value.detach())
            addresses[place] = values[place].data_ptr()
    if any([addresses.count(addresses[i]) > 1 for i in binding.updated]):
        raise _KernelwrightMisfit("a buffer that is updated", "shares its memory with another tensor")
    if binding.shows.get(turned):
        raise _KernelwrightMisfit(turned[0][0], "has its axes in another order in memory, which the result shows")
    return binding, values, given, turned


def _kernelwright_twin(model, binding):
    """A copy of a model without its tensors: a backward fills in what the forward saw.

    The model itself may change before the backward, and may be in use by another thread.
    """
    memo = {}
    for module in model.modules():
        memo.update({id(p): torch.nn.Parameter(torch.empty(0)) for p in module._parameters.values() if p is not None})
        memo.update({id(b): torch.empty(0) for b in module._buffers.values() if b is not None})
        memo.update({id(value): value for value in vars(module).values() if isinstance(value, torch.Tensor)})
        for key in _kernelwright_internal - {"_parameters", "_buffers", "_modules"}:
            value = vars(module).get(key)
            if isinstance(value, (dict, set)):  # hooks
                memo[id(value)] = type(value)()
    twin = copy.deepcopy(model, memo)
    return twin


def _kernelwright_filled(twin, state):
    """The copy with tensors of its own; what one module shares with another is shared still."""
    shared = (*twin.named_parameters(remove_duplicate=False), *twin.named_buffers(remove_duplicate=False))
    held = {id(tensor): state[name] for name, tensor in shared if name in state}
    for module in twin.modules():
        for table in (module._parameters, module._buffers):
            table.update({key: held[id(t)] for key, t in table.items() if id(t) in held})
    return twin


class _KernelwrightOriginal(torch.nn.Module):
    """What is made of the original computation's result, as a module of its own (for functional_call)."""

    def __init__(self, model, then):
        super().__init__()
        self.model, self.then = model, then

    def forward(self, *inputs, **named):
        return self.then(self.model._original_forward(*inputs, **named))


class _KernelwrightFunction(torch.autograd.Function):
    """Kernels forward; backward recomputes the original under autograd, with the tensors of the forward, unless kernels
    find the gradients: where none do in a mode, further calls that record gradients are the original's."""

    @staticmethod
    def forward(ctx, call, *tensors):
        # In ``tensors`` are the inputs, then the state of the binding. Buffers that the forward changes are kept as
        # they are now where anything depends on them: the recomputation must not see the updates.
        binding, facts, inputs, values = call
        ctx.binding, ctx.facts, ctx.device = binding, facts, values[0].device
        ctx.changed = {name: home[key].clone() for name, (home, key) in binding.buffers.items()
                       if name in facts["seen"]}
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        outputs = _kernelwright_run(facts, values)
        return outputs

    @staticmethod
    def backward(ctx, *gradients):
        found = _kernelwright_gradients(ctx, gradients)
        if found is not None:
            return (None, *found)
        ctx.binding.steps.add(ctx.facts["training"])
        again = torch.is_grad_enabled()  # create_graph: keep the graph to the tensors of the forward
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad(), torch.autocast(ctx.device.type, enabled=False):
            # Aliases: one tensor may be given twice, and each place has a gradient of its own.
            # Behind them stands what kernels of a backward read.
            given = [t if not n else t.view_as(t) if again else t.detach().requires_grad_()
                     for t, n in zip(ctx.saved_tensors, needed)]
            places = ctx.binding.places
            inputs = given[:len(places)]
            state = dict(zip(ctx.binding.state, given[len(places):]))
            # Nor may it repeat them: it updates copies.
            kept = {name: home[key] for name, (home, key) in ctx.binding.buffers.items()
                    if name in ctx.facts["updated"]}
            state.update({name: ctx.changed.get(name, buffer).clone() for name, buffer in kept.items()})
            named = {}
            wanted = [i for i, n in enumerate(needed) if n]

            def gradients_of(result):
                pairs = [(result, gradients[0])]
                pairs = [(output, g) for output, g in pairs if g is not None and output.requires_grad]
                return torch.autograd.grad([o for o, _ in pairs], [given[i] for i in wanted], [g for _, g in pairs],
                                           create_graph=again, allow_unused=True) if pairs and wanted else []

            # What a backward computes again (torch.utils.checkpoint) reads the copy's tensors, which it has until then,
            # or for good where its gradients have a graph.
            with ctx.binding.lock:
                twin = ctx.binding.twin
                if again:
                    twin = _kernelwright_filled(_kernelwright_twin(twin, ctx.binding), state)
                original = _KernelwrightOriginal(twin, gradients_of)
                found = torch.func.functional_call(original, {f"model.{name}": t for name, t in state.items()},
                                                   tuple(inputs), named)
        result = [None] * len(given)
        for i, gradient in zip(wanted, found):
            result[i] = gradient
        return (None, *result)


# As a call under functorch's transforms is not for kernels, nothing of theirs is looked for in its arguments.
_kernelwright_apply = super(torch.autograd.Function, _KernelwrightFunction).apply


def _kernelwright_readable(value, order):
    """A tensor as kernels read it: contiguous and aligned, with its axes in an order (None: its own)."""
    value = value.detach()
    if order is not None:
        value = value.permute(order)
    if value.is_contiguous() and not value.is_neg() and not value.data_ptr() & 15:
        return value
    return torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)


class _KernelwrightBackward:
    """How kernels find the gradients of calls in which the same of these tensors need some.

    reads: places of what the program reads among the call's tensors, what the call handed over (``count`` of both), and
    the gradients of its results. gives: for each of the call's tensors the place of its gradient among the program's
    results, or None. saved: places of what is handed over among the results of the program of calls.
    """

    def __init__(self, backward, program, binding, needed):
        names = (*binding.places, *binding.state)
        self.program, self.saved = program, program.get("saved", ())
        self.count = len(names) + len(self.saved)
        self.reads = [*range(len(binding.places)), *[self.count + place for place in backward["of"]],
                      *range(len(names), self.count), *map(names.index, program["tensors"])]
        self.gives = [program["gives"].get(name) if n else None for name, n in zip(names, needed)]


def _kernelwright_backward_of(binding, facts, needed):
    """How kernels find the gradients of a call, by ``needs_input_grad``; None where they do not find all."""
    if needed not in binding.backwards:
        backward, names, found = facts["backward"], (*binding.places, *binding.state), None
        wanted = [name for name, n in zip(names, needed[1:]) if n]
        if backward is not None and not any([name in binding.buffers or name in backward["frozen"] for name in wanted]):
            everything = backward["programs"][-1]["gives"]
            program = next(p for p in backward["programs"]
                           if all([name in p["gives"] or name not in everything for name in wanted]))
            found = _KernelwrightBackward(backward, program, binding, needed[1:])
        binding.backwards[needed] = found
    return binding.backwards[needed]


def _kernelwright_gradients(ctx, gradients):
    """The gradients of a call by kernels, one for each of its tensors; None where the original computation is to find
    them: where they get a graph of their own, or gradients of some results are missing, or of another kind."""
    kernels, tensors = _kernelwright_backward_of(ctx.binding, ctx.facts, ctx.needs_input_grad), ctx.saved_tensors
    if kernels is None or torch.is_grad_enabled() or torch.is_anomaly_enabled() or _kernelwright_intercepted():
        return None
    given = [gradients[place] for place in ctx.facts["backward"]["of"]]
    if any([type(g) is not torch.Tensor or g.layout is not torch.strided or g.device != ctx.device
            for g in given]) or sum([g is not None for g in gradients]) != len(given):
        return None
    program, all_of = kernels.program, (*tensors, *gradients)
    values = [all_of[place] for place in kernels.reads]
    try:
        if program["orders"] or not all(map(torch.Tensor.is_contiguous, values)) or any(
                map(torch.Tensor.is_neg, values)) or any([v.data_ptr() & 15 for v in values]):
            values = list(map(_kernelwright_readable, values, program["orders"] or (None,) * len(values)))
    except RuntimeError:  # a batch of gradients in the place of one
        return None
    found = _kernelwright_run(program, values)
    return [None if place is None else found[place] for place in kernels.gives]


# By model the modes (whether of training) in which a backward computed the forward once more; None among them where
# all calls are to run kernels, as who judges these wants it.
_kernelwright_steps = weakref.WeakKeyDictionary()
# What saved tensors go through; torch.utils.checkpoint wants a call in a backward to save what the first one did.
_kernelwright_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: True)


def _kernelwright_twice(binding, facts):
    """Whether a call that records gradients is better the original computation's: no kernels find them in this mode, so
    that a backward computes the forward once more, and there was a backward of such a call, or hooks wait for one."""
    if facts["backward"] is not None:
        return False
    return None not in binding.steps and (facts["training"] in binding.steps or _kernelwright_hooks(True) is not None)


class _KernelwrightFailure(RuntimeError):
    """The kernels could not run."""


# How torch.utils.checkpoint ends a recomputation, where the last tensor is kept for the backward.
_kernelwright_stop = getattr(torch.utils.checkpoint, "_StopRecomputationError", _KernelwrightFailure)
_kernelwright_profiled = getattr(torch.autograd, "_profiler_enabled", bool)  # whether torch.profiler runs


def _kernelwright_launch(launcher, stream, *tensors):
    """Call a launcher with the addresses of its tensors; failures raise and name the kernel. In a profile it stands
    with the names of its kernels."""
    addresses = struct.pack(f"{len(tensors)}P", *[t.data_ptr() for t in tensors])
    if _kernelwright_profiled():
        with torch.profiler.record_function(f"kernelwright: {', '.join(_KERNELWRIGHT_LAUNCHERS[launcher])}"):
            failure = getattr(_kernelwright_library, launcher)(addresses, stream)
    else:
        failure = getattr(_kernelwright_library, launcher)(addresses, stream)
    if failure:
        raise _KernelwrightFailure(f"kernelwright: {failure.decode(errors='replace')}")


def _kernelwright_run(facts, values):
    """Run the program of a mode on its tensors' device and stream; gradients must be off."""
    device = values[0].device
    return facts["run"](device, None, *values)


def _kernelwright_laid(value, strides):
    """A result in memory as eager lays it out."""
    if all([a == b or size < 2 for a, b, size in zip(value.stride(), strides, value.shape)]) or not value.numel():
        return value
    wide = value  # what eager expands is stored once
    for axis, stride in enumerate(strides):
        value = value.narrow(axis, 0, 1) if not stride else value
    laid = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    return laid.copy_(value).expand(wide.shape)


_kernelwright_signatures = weakref.WeakKeyDictionary()


def _kernelwright_signature(forward):
    """The signature of a method, of what decorators wrap in it, too; asked for once."""
    function = getattr(forward, "__func__", forward)
    if function not in _kernelwright_signatures:
        _kernelwright_signatures[function] = inspect.signature(forward)
    return _kernelwright_signatures[function]


def _kernelwright_is_default(value, default):
    """Whether an argument is as if it were left out."""
    return value is default or (type(value) is type(default) and type(value) in (bool, int, float, str)
                                and repr(value) == repr(default))


def _kernelwright_arguments(model, inputs, named, count, keywords):
    """The arguments of a call: ``count`` by position, then those by keyword only; None where it is no call.

    Defaults beyond these are left out, as they are in what the kernels were made of.
    """
    signature = _kernelwright_signature(model._original_forward)
    try:
        bound = signature.bind(*inputs, **named)
    except TypeError:
        return None
    bound.apply_defaults()
    inputs, named = list(bound.args), bound.kwargs
    defaults = [p.default for p in signature.parameters.values()]
    while len(inputs) > count and len(inputs) <= len(defaults) and _kernelwright_is_default(
            inputs[-1], defaults[len(inputs) - 1]):
        inputs.pop()
    more = [name for name, value in named.items() if name not in keywords
            and (name not in signature.parameters
                 or not _kernelwright_is_default(value, signature.parameters[name].default))]
    beyond = list(signature.parameters)[count:len(inputs)] + more
    missing = [name for name in keywords if name not in named]
    if beyond:
        raise _KernelwrightMisfit("this call", f"gives {', '.join(beyond)}, which the example left out")
    if missing:
        raise _KernelwrightMisfit("this call", f"leaves out {', '.join(missing)}")
    if len(inputs) != count:
        raise _KernelwrightMisfit("this call", f"has {len(inputs)} arguments, not {count}")
    return inputs + [named[name] for name in keywords]


def _kernelwright_shows(facts, result):
    """Whether results of the original computation lie in another order than those of the kernels."""
    parts = {0: result}
    lain = [(parts[number], strides) for number, strides in enumerate(facts["strides"]) if strides is not None]
    return any([step != wanted and size > 1 for part, strides in lain
                for step, wanted, size in zip(part.stride(), strides, part.shape)])


def _kernelwright_call(model, inputs, named, plans):
    """The forward of ModelNew: kernels where they fit, the original computation elsewhere."""
    if torch.compiler.is_compiling():
        return _kernelwright_compiled(model, inputs, named)
    try:
        facts = plans.get((model.training, torch.is_grad_enabled()))
        if facts is None:
            mode = f"{'training' if model.training else 'inference'} mode"
            _kernelwright_count(model, f"nothing pays in {mode}{' with gradients' * torch.is_grad_enabled()}")
            return model._original_forward(*inputs, **named)
        keywords, count = (), len(facts["inputs"])
        given = inputs
        if named or keywords or len(inputs) != count:
            given = _kernelwright_arguments(model, inputs, named, count, keywords)
        if given is None:
            return model._original_forward(*inputs, **named)  # raises
        binding, values, tensors, turned = _kernelwright_fit(model, facts, given)
        if turned not in binding.shows:
            _kernelwright_count(model, "strides of inputs are new, and it is seen what results make of them")
            result = model._original_forward(*inputs, **named)
            binding.shows[turned] = _kernelwright_shows(facts, result)
            return result
        differentiated = torch.is_grad_enabled() and (
            any([value.requires_grad for value in tensors])
            or any([home[key].requires_grad for home, key in binding.parameters.values()]))
        twice = differentiated and _kernelwright_twice(binding, facts)
        if differentiated and not twice and binding.twin is None:
            try:
                binding.twin = _kernelwright_twin(model, binding)
            except Exception as error:
                raise _KernelwrightMisfit("the model", f"can't be copied for gradients ({error})") from None
    except _KernelwrightMisfit as misfit:
        reason = misfit
    else:
        if twice:
            _kernelwright_count(model, "no kernels find gradients here, and a step would compute its forward twice")
            return model._original_forward(*inputs, **named)
        if differentiated and any([home[key].requires_grad for home, key in binding.kept]):
            _kernelwright_count(model, "gradients of tensors that are not the model's own are asked for")
            return model._original_forward(*inputs, **named)
        try:
            if differentiated:
                computed = _kernelwright_apply((binding, facts, given, values), *tensors[:len(binding.places)],
                                               *[home[key] for home, key in binding.state.values()])
            elif torch.is_grad_enabled():
                with torch.no_grad():
                    computed = _kernelwright_run(facts, values)
            else:
                computed = _kernelwright_run(facts, values)
            return computed[0]
        except (_KernelwrightFailure, _kernelwright_stop):
            raise
        except Exception as error:  # a value that PyTorch refuses: the original computation says so in its own words
            reason = _KernelwrightMisfit("this call", f"is not for the kernels ({error})")
        result = model._original_forward(*inputs, **named)
        _kernelwright_warn(model, reason)
        return result
    _kernelwright_warn(model, reason)
    return model._original_forward(*inputs, **named)


_kernelwright_operators = {}  # the facts of a mode by the name of its operator


def _kernelwright_operator(facts):
    """The name of the operator that runs a mode's program, made when it is first asked for: a list of the tensors, as
    the caller has them, to a list of the computed results."""
    name = _KERNELWRIGHT_OPERATORS + facts["run"].__name__.removeprefix("_kernelwright")
    if name in _kernelwright_operators:
        return name
    checks = [(name, *kind) for name, *kind in facts["inputs"] if len(kind) > 1]
    checks += [(name, *kind) for name, kind in facts["tensors"].items()]

    def program(values):
        _kernelwright_check(values, checks)
        taken, results = {value.untyped_storage().data_ptr() for value in values}, []
        with torch.no_grad():
            given = []
            for value, check in zip(values, checks):
                if not value.is_contiguous() or value.is_neg() or value.data_ptr() & 15 or not value.data_ptr():
                    value = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)
                given.append(value)
            for value, (shape, strides, dtype) in zip(_kernelwright_run(facts, given), facts["compiled"]):
                value = _kernelwright_laid(value, strides)
                if value.untyped_storage().data_ptr() in taken:  # an operator's results have memory of their own
                    value = torch.empty_strided(shape, strides, dtype=dtype, device=value.device).copy_(value)
                taken.add(value.untyped_storage().data_ptr())
                results.append(value)
        return results

    def described(values):
        return [torch.empty_strided(shape, strides, dtype=dtype, device=values[0].device)
                for shape, strides, dtype in facts["compiled"]]

    operator = torch.library.custom_op(f"kernelwright::{name}", program, mutates_args=(),
                                       schema="(Tensor[] values) -> Tensor[]")
    operator.register_fake(described)
    _kernelwright_operators[name] = facts
    return name


def _kernelwright_serving(model, count, names):
    """The name of the operator that serves a call of ``count`` arguments by position and ``names`` by keyword, and
    those names in the order of the arguments; then, a line each, path, name and value of each float of the model's. ""
    where the original computation serves it. Warns of what does not fit."""
    facts = _KERNELWRIGHT_PLANS.get((model.training, torch.is_grad_enabled()))
    if facts is None:
        return ""
    try:
        if torch.compiler.is_exporting():
            raise _KernelwrightMisfit("torch.export", "exports it, so that the program needs nothing of this file")
        served = facts["compiled"] is not None
        if not served:
            raise _KernelwrightMisfit("torch.compile", "compiles it, as it can't call these kernels as one operator")
        return _kernelwright_called(model, facts, count, names)
    except _KernelwrightMisfit as misfit:
        _kernelwright_warn(model, misfit)
    return ""


def _kernelwright_called(model, facts, count, names):
    """As above, for a mode whose kernels can be an operator. Raises _KernelwrightMisfit."""
    if _kernelwright_library is None:
        raise _KernelwrightMisfit("this machine", f"can't run the kernels: {_kernelwright_trouble}")
    intercepted = _kernelwright_intercepted()
    if intercepted:
        raise _KernelwrightMisfit("this call", f"is under {intercepted}")
    if torch.get_default_dtype() is not facts["default_dtype"]:
        raise _KernelwrightMisfit("this call", f"is under another default type than {facts['default_dtype']}")
    if torch._dynamo.config.allow_unspec_int_on_nn_module:
        raise _KernelwrightMisfit("torch.compile", "may leave whole numbers of the model open")
    if torch.is_grad_enabled() and any([p.requires_grad for p in model.parameters()]):
        raise _KernelwrightMisfit(*_kernelwright_recorded_call)
    binding = _KernelwrightBinding(model, facts)
    values = list(map(operator.getitem, binding.homes, binding.keys))
    _kernelwright_check(values, binding.checks[len(binding.checks) - len(values):])
    expected = len(facts["inputs"])
    order = list(inspect.signature(model._original_forward).parameters)[count:expected]
    if count + len(names) != expected or set(order) != set(names):
        raise _KernelwrightMisfit("this call", "gives other arguments than the example")
    floats = [f"{path}\t{key.removeprefix('class ')}\t{value!r}" for path, found in facts["attributes"].items()
              for key, value in found.items() if type(value) is float and value - value == 0]
    return "\n".join((" ".join((_kernelwright_operator(facts), *order)), *floats))


_kernelwright_recorded_call = (
    "torch.compile", "compiles it where gradients are recorded; under torch.no_grad() it calls the kernels")


def _kernelwright_unlike(facts, arguments):
    """What of the arguments of a traced call the kernels do not take, and why; None where all is well. What is compiled
    for changing sizes then is not for the kernels' own, which are asked for at each call. Sizes that the caller has
    declared to change, or that only a call knows, are not theirs."""
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    for expected, value in zip(facts["inputs"], arguments):
        if len(expected) == 2:
            kept = expected[1]
            alike = type(value) is type(kept) and (kept is None or guard_or_false(value == kept))
            if not alike or (isinstance(kept, float) and not kept):  # zeros have signs
                return expected[0], f"is not {kept!r}"
            continue
        name, shape, dtype = expected[:3]
        if not isinstance(value, torch.Tensor) or value.dtype != dtype or len(value.shape) != len(shape):
            return name, f"is no tensor of type {dtype} and shape {list(shape)}"
        for size, wanted in zip(value.shape, shape):
            if hasattr(value, "_dynamo_dynamic_indices") or not guard_or_false(size == wanted):
                return name, f"has a size that is not the one in {list(shape)}"
        if value.device.type != _KERNELWRIGHT_DEVICE or value.device.index not in _kernelwright_devices:
            return name, f"is on {value.device}, for which the kernels were not built"
        if torch.is_grad_enabled() and value.requires_grad:
            return _kernelwright_recorded_call
    return None


def _kernelwright_compiled(model, inputs, named):
    """The forward of ModelNew while another compiler traces it."""
    result = model._original_forward(*inputs, **named)
    serving = model._kernelwright_traced(len(inputs), tuple(named))
    if serving:
        return _kernelwright_replaced(model, inputs, named, result, serving)
    return result


def _kernelwright_replaced(model, inputs, named, result, serving):
    """The result with what the kernels' operator gives for what the original computation does."""
    served, *floats = serving.split("\n")
    for line in floats:
        path, key, text = line.split("\t")
        if getattr(model.get_submodule(path), key) != float(text):
            return result
    name, *order = served.split(" ")
    facts = _kernelwright_operators[name]
    arguments = [*inputs, *[named[key] for key in order]]
    unlike = None
    if unlike is None:
        unlike = _kernelwright_unlike(facts, arguments)
    if unlike is not None:
        model._kernelwright_misfits(*unlike)
        return result
    values = [value for value in arguments if isinstance(value, torch.Tensor)]
    for tensor in facts["tensors"]:
        path, _, key = tensor.rpartition(".")
        values.append(getattr(model.get_submodule(path), key))
    computed = getattr(torch.ops.kernelwright, name)(values)
    return computed[0]
