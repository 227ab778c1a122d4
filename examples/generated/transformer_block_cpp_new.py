"""ModelNew: transformer_block, with custom kernels. Written by kernelwright 0.1.0 for generic CPU, 8 threads.

Same constructor, parameters and results as the original class. Where a call does not fit what the
kernels were built for, the original computation runs, with one warning.

Training mode: 2 of 5 operators replaced.
  operations 34.8 GFLOP -> 34.8 GFLOP, memory traffic 394 MB -> 394 MB
  kernel k0_mean_moments_add: moments over rows of [512] for each of [32, 256]: layer_norm
  kernel k1_gelu_erf: pointwise over [32, 256, 2048]: gelu_erf
  PyTorch keeps linear (2 times): a contraction that PyTorch's library does well
  PyTorch keeps add: one operator that PyTorch does well; nothing fuses with it
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """LayerNorm, Linear, GELU, Linear, dropout (rate 0), residual."""

    def __init__(self, width, hidden, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, hidden)
        self.activation = nn.GELU()
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def _original_forward(self, x):
        hidden = self.activation(self.expand(self.norm(x)))
        return x + self.dropout(self.contract(hidden))

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


_KERNELWRIGHT_OPERATORS = "transformer_block_1dc961540466"
_KERNELWRIGHT_NAME = "transformer_block"
_KERNELWRIGHT_DEVICE = "cpu"
_KERNELWRIGHT_FLAGS = ['-O3', '-march=native', '-fopenmp', '-std=c++17', '-fno-math-errno', '-fno-trapping-math']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_mean_moments_add'],
    "kernelwright_training_1": ['k1_gelu_erf'],
    "kernelwright_training_saving_0": ['k0_mean_moments_add'],
    "kernelwright_training_saving_1": ['k1_gelu_erf'],
    "kernelwright_training_backward_of_parameters_0": ['k2_mul', 'k3_mean_moments', 'k5_sum', 'k6_sum'],
    "kernelwright_training_backward_of_parameters_1": ['k4_sum'],
    "kernelwright_training_backward_0": ['k2_mul', 'k5_sum', 'k6_sum'],
    "kernelwright_training_backward_1": ['k7_moments_where_mean', 'k8_sum'],
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

static inline float kw_exp(float x) {
  // exp(x) = 2^n exp(r), |r| <= log(2) / 2; polynomial of Cephes expf. 2^n is applied in two
  // factors, which reaches the subnormal numbers and overflows to infinity: what n is shifted by, 1.5 * 2^23 + 2 * 127,
  // leaves the exponent of each in the last bits of a half. Below them the result is zero without a
  // product: one that underflows takes a processor a hundred times as long, and masks of scores ask for it.
  const bool vanishes = x < -104.0f;
  x = kw_select(vanishes, 0.0f, x);
  x = kw_select(x > 89.0f, 89.0f, x);
  const float shifted = x * 1.44269504088896341f + 12583166.0f;
  const float n = shifted - 12583166.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t whole = kw_bits(shifted), half = whole >> 1;
  const float power = p * kw_float(half << 23) * kw_float((whole - half) << 23);
  return kw_select(vanishes, 0.0f, power);
}
static inline double kw_exp(double x) {
  // The same with the series of exp(r), whose next term is below 2^-57, and 1.5 * 2^52 + 2 * 1023.
  const bool vanishes = x < -746.0;
  x = kw_select(vanishes, 0.0, x);
  x = kw_select(x > 710.0, 710.0, x);
  const double shifted = x * 1.4426950408889634074 + 6755399441057790.0;
  const double n = shifted - 6755399441057790.0;
  const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * (r * r) + r + 1.0;
  const int64_t whole = kw_bits(shifted), half = whole >> 1;
  const double power = p * kw_float(half << 52) * kw_float((whole - half) << 52);
  return kw_select(vanishes, 0.0, power);
}

// N. Juffa's error function: erf(t) for t <= 475/512 and 1 - erf(t) for t above, t >= 0.
static inline void kw_erf_parts(float t, float& inner, float& complement) {
  const float s = t * t;
  float r = -1.72853470e-5f * t + 3.83197126e-4f;
  const float u = -3.88396438e-3f * t + 2.42546219e-2f;
  r = r * s + u;
  r = r * t - 1.06777877e-1f;
  r = r * t - 6.34846687e-1f;
  r = r * t - 1.28717512e-1f;
  r = r * t - t;
  complement = kw_exp(r);
  float q = -5.96761703e-4f;
  q = q * s + 4.99119423e-3f;
  q = q * s - 2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s - 3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  inner = q * t + t;
}

static inline float kw_erf(float x) {
  const float t = std::abs(x);
  float inner, complement;
  kw_erf_parts(t, inner, complement);
  return std::copysign(kw_select(t > 0.927734375f, 1.0f - complement, inner), x);
}
static inline double kw_erf(double x) { return std::erf(x); }

static inline double kw_erfcx(double x) {
  // exp(t^2) erfc(t) times 1 + 2 t for t = |x|, a polynomial of (t - 3.75) / (t + 3.75).
  const double t = std::abs(x);
  const double q = 1.0 - 7.5 / (t + 3.75);
  double p = 4.434959070009628e-10;
  p = p * q + 3.110310719839165e-10;
  p = p * q + -5.28428697963142e-09;
  p = p * q + -3.743568033634583e-09;
  p = p * q + 3.8965452548985966e-08;
  p = p * q + 2.3261913276696566e-08;
  p = p * q + -2.591069687796658e-07;
  p = p * q + -5.721597255990987e-08;
  p = p * q + 1.752057970166318e-06;
  p = p * q + -9.735619015182663e-07;
  p = p * q + -1.1444412439171722e-05;
  p = p * q + 2.2384240314224437e-05;
  p = p * q + 5.1649211390702855e-05;
  p = p * q + -0.0002901540809795271;
  p = p * q + 0.0002937136342850081;
  p = p * q + 0.0017556258530017257;
  p = p * q + -0.009746579552504244;
  p = p * q + 0.028362277418940665;
  p = p * q + -0.058693398590212366;
  p = p * q + 0.09230432116037876;
  p = p * q + -0.10880393014171785;
  p = p * q + 0.08227673849014516;
  p = p * q + 0.003585415485463775;
  p = p * q + -0.14024059858554697;
  p = p * q + 1.2375126308378275;
  const double above = p * 0.5 / (t + 0.5);
  // 2 exp(x^2) - exp(x^2) erfc(-x) below zero, where x^2 needs the digits that its rounding loses.
  const double square = x * x;
  const double power = kw_exp(square);
  const double more = kw_select(square < 709.7, power * std::fma(x, x, -square), 0.0);
  return kw_select(x < 0.0, 2.0 * (more + power) - above, above);
}
static inline float kw_erfcx(float x) { return float(kw_erfcx(double(x))); }

static inline float kw_gelu_erf(float x) {
  // x times the normal distribution function; its lower tail comes from the complement, so small
  // values are not the difference of large ones.
  const float t = std::abs(x) * 0.70710678118654752f;
  float inner, complement;
  kw_erf_parts(t, inner, complement);
  const float tail = 0.5f * kw_select(t > 0.927734375f, complement, 1.0f - inner);
  return x * kw_select(x > 0.0f, 1.0f - tail, tail);
}
static inline double kw_gelu_erf(double x) {
  // By the scaled complementary error function, whose argument's rounding matters little; x^2 has all of its digits.
  const double square = x * x, left = kw_select(square < 1e300, std::fma(x, x, -square), 0.0);
  const double power = kw_exp(-0.5 * square);
  const double tail = 0.5 * kw_erfcx(std::abs(x) * 0.70710678118654752440) * (power - power * (0.5 * left));
  return x * kw_select(x > 0.0, 1.0 - tail, tail);
}

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

//// k0_mean_moments_add
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Rows of 512 for each of 8192: moments.
static const char* k0_mean_moments_add(const float* __restrict__ in0, const float* __restrict__ in1,
                                       const float* __restrict__ in2, float* __restrict__ out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 8192; ++point) {
    const int64_t i0 = point;
    kw_moments_of<real> accumulator0;
    {
      constexpr int64_t begin = 0, end = 512;
      accumulator0.block(in0 + 512 * i0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    const real s0 = real(reduced0_deviation < real(1000000000000000.0));
    const real s1 = reduced0_variance + real(1e-05);
    const real s2 = real(1) / kw_sqrt(s1);
    const real s3 = real(1) / reduced0_deviation;
    const real s4 = kw_select(s0 != real(0), s2, s3);
    {
      constexpr int64_t begin = 0, end = 512;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const real v0 = real(in0[512 * i0 + r0]);
        const real v1 = v0 - reduced0_mean;
        const real v2 = v1 * s4;
        const real v3 = real(in1[r0]);
        const real v4 = v2 * v3;
        const real v5 = real(in2[r0]);
        const real v6 = kw_unfused_add(v4, v5);
        out0[512 * i0 + r0] = v6;
      }
    }
  }
  return nullptr;
}

//// k1_gelu_erf
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Pointwise over 16777216.
static const char* k1_gelu_erf(const float* in0, float* out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 2048; ++task) {
    const int64_t block = task;
    const int64_t first = block * 8192;
    const int64_t last = first + 8192 < 16777216 ? first + 8192 : 16777216;
    #pragma omp simd
    for (int64_t i0 = first; i0 < last; ++i0) {
      const real v0 = real(in0[i0]);
      const real v1 = kw_gelu_erf(v0);
      out0[i0] = v1;
    }
  }
  return nullptr;
}

//// k2_mul
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Pointwise over 16777216.
static const char* k2_mul(const float* in0, const float* __restrict__ in1, float* out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 2048; ++task) {
    const int64_t block = task;
    const int64_t first = block * 8192;
    const int64_t last = first + 8192 < 16777216 ? first + 8192 : 16777216;
    #pragma omp simd
    for (int64_t i0 = first; i0 < last; ++i0) {
      const real v0 = real(in0[i0]);
      const real v1 = real(in1[i0]);
      const real v2 = v1 * real(0.7071067811865476);
      const real v3 = kw_erf(v2);
      const real v4 = real(1.0) + v3;
      const real v5 = real(0.5) * v4;
      const real v6 = v1 * v1;
      const real v7 = v6 * (-real(0.5));
      const real v8 = kw_exp(v7);
      const real v9 = v8 * real(0.3989422804014327);
      const real v10 = v1 * v9;
      const real v11 = kw_unfused_add(v5, v10);
      const real v12 = v0 * v11;
      out0[i0] = v12;
    }
  }
  return nullptr;
}

//// k3_mean_moments
// Rows of 512 for each of 8192: moments.
static const char* k3_mean_moments(const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1,
                                   float* __restrict__ out2, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 8192; ++point) {
    const int64_t i0 = point;
    kw_moments_of<real> accumulator0;
    {
      constexpr int64_t begin = 0, end = 512;
      accumulator0.block(in0 + 512 * i0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    out0[i0] = reduced0_mean;
    out1[i0] = reduced0_deviation;
    out2[i0] = reduced0_variance;
  }
  return nullptr;
}

//// k4_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Columns: rows of 8192 for each of 512: sum, sum.
static const char* k4_sum(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                          const float* __restrict__ in3, const float* __restrict__ in4, float* __restrict__ out0,
                          float* __restrict__ out1, void* workspace) {
  using real = float;
  // Results of every column, one component after another; behind them those of the chunks.
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial { kw_sum_of<real> total0; kw_sum_of<real> total1; };
    Partial* const partial = reinterpret_cast<Partial*>(static_cast<char*>(workspace) + 4096);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 64; ++task) {
      const int64_t chunk = task % 64;
      constexpr int64_t left = 0, right = 512;
      const int64_t first = chunk * 128;
      const int64_t last = first + 128 < 8192 ? first + 128 : 8192;
      const int64_t start = 0;  // its first column's number
      alignas(64) real part0[512];
      kw_sum_of<real> total0[512];
      alignas(64) real part1[512];
      kw_sum_of<real> total1[512];
      for (int64_t from = first; from < last; from += 128) {
        const int64_t to = from + 128 < last ? from + 128 : last;
        #pragma omp simd
        for (int64_t i0 = left; i0 < right; ++i0) {
          part0[i0 - left] = 0;
          part1[i0 - left] = 0;
        }
        for (int64_t row = from; row + 1 <= to; row += 1) {
          const int64_t r0 = row;
          const real w0 = real(in2[r0]);
          const real w1 = real(in3[r0]);
          const real w2 = real(w1 < real(1000000000000000.0));
          const real w3 = real(in4[r0]);
          const real w4 = w3 + real(1e-05);
          const real w5 = real(1) / kw_sqrt(w4);
          const real w6 = real(1) / w1;
          const real w7 = kw_select(w2 != real(0), w5, w6);
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 512 * r0]);
            const real v1 = real(in1[i0 + 512 * r0]);
            const real v2 = v1 - w0;
            const real v3 = v2 * w7;
            const real v4 = v0 * v3;
            part0[i0 - left] += v4;
            part1[i0 - left] += v0;
          }
        }
        for (int64_t i0 = left; i0 < right; ++i0) {
          total0[i0 - left].total += part0[i0 - left];
          total1[i0 - left].total += part1[i0 - left];
        }
      }
      for (int64_t i0 = left; i0 < right; ++i0) {
        partial[(start + i0) * 64 + chunk] = {total0[i0 - left], total1[i0 - left]};
      }
    }
    #pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < 512; ++column) {
      Partial whole = partial[column * 64];
      for (int64_t chunk = 1; chunk < 64; ++chunk) {
        whole.total0.merge(partial[column * 64 + chunk].total0);
        whole.total1.merge(partial[column * 64 + chunk].total1);
      }
      results[column] = whole.total0.value();
      results[512 + column] = whole.total1.value();
    }
  }
  {
    constexpr int64_t left = 0, right = 512;
    const int64_t start = 0;
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      out0[i0] = results[start + i0];
      out1[i0] = results[512 + start + i0];
    }
  }
  return nullptr;
}

//// k5_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Columns: rows of 8192 for each of 2048: sum.
static const char* k5_sum(const float* __restrict__ in0, float* __restrict__ out0, void* workspace) {
  using real = float;
  // Results of every column, one component after another; behind them those of the chunks.
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial { kw_sum_of<real> total0; };
    Partial* const partial = reinterpret_cast<Partial*>(static_cast<char*>(workspace) + 8192);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 64; ++task) {
      const int64_t block = task / 16;
      const int64_t chunk = task % 16;
      const int64_t left = block * 512;
      const int64_t right = left + 512 < 2048 ? left + 512 : 2048;
      const int64_t first = chunk * 512;
      const int64_t last = first + 512 < 8192 ? first + 512 : 8192;
      const int64_t start = 0;  // its first column's number
      alignas(64) real part0[512];
      kw_sum_of<real> total0[512];
      for (int64_t from = first; from < last; from += 128) {
        const int64_t to = from + 128 < last ? from + 128 : last;
        #pragma omp simd
        for (int64_t i0 = left; i0 < right; ++i0) {
          part0[i0 - left] = 0;
        }
        for (int64_t row = from; row + 4 <= to; row += 4) {
          const int64_t r0 = row;
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 2048 * r0]);
            const real v1 = real(in0[i0 + 2048 * r0 + 2048]);
            const real v2 = real(in0[i0 + 2048 * r0 + 4096]);
            const real v3 = real(in0[i0 + 2048 * r0 + 6144]);
            part0[i0 - left] += ((v0 + v1) + (v2 + v3));
          }
        }
        for (int64_t row = to - (to - from) % 4; row + 1 <= to; row += 1) {
          const int64_t r0 = row;
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 2048 * r0]);
            part0[i0 - left] += v0;
          }
        }
        for (int64_t i0 = left; i0 < right; ++i0) {
          total0[i0 - left].total += part0[i0 - left];
        }
      }
      for (int64_t i0 = left; i0 < right; ++i0) {
        partial[(start + i0) * 16 + chunk] = {total0[i0 - left]};
      }
    }
    #pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < 2048; ++column) {
      Partial whole = partial[column * 16];
      for (int64_t chunk = 1; chunk < 16; ++chunk) {
        whole.total0.merge(partial[column * 16 + chunk].total0);
      }
      results[column] = whole.total0.value();
    }
  }
  for (int64_t task = 0; task < 4; ++task) {
    const int64_t block = task;
    const int64_t left = block * 512;
    const int64_t right = left + 512 < 2048 ? left + 512 : 2048;
    const int64_t start = 0;
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      out0[i0] = results[start + i0];
    }
  }
  return nullptr;
}

//// k6_sum
// transformer_block.py:20: return x + self.dropout(self.contract(hidden))
// Columns: rows of 8192 for each of 512: sum.
static const char* k6_sum(const float* __restrict__ in0, float* __restrict__ out0, void* workspace) {
  using real = float;
  // Results of every column, one component after another; behind them those of the chunks.
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial { kw_sum_of<real> total0; };
    Partial* const partial = reinterpret_cast<Partial*>(static_cast<char*>(workspace) + 2048);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 64; ++task) {
      const int64_t chunk = task % 64;
      constexpr int64_t left = 0, right = 512;
      const int64_t first = chunk * 128;
      const int64_t last = first + 128 < 8192 ? first + 128 : 8192;
      const int64_t start = 0;  // its first column's number
      alignas(64) real part0[512];
      kw_sum_of<real> total0[512];
      for (int64_t from = first; from < last; from += 128) {
        const int64_t to = from + 128 < last ? from + 128 : last;
        #pragma omp simd
        for (int64_t i0 = left; i0 < right; ++i0) {
          part0[i0 - left] = 0;
        }
        for (int64_t row = from; row + 4 <= to; row += 4) {
          const int64_t r0 = row;
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 512 * r0]);
            const real v1 = real(in0[i0 + 512 * r0 + 512]);
            const real v2 = real(in0[i0 + 512 * r0 + 1024]);
            const real v3 = real(in0[i0 + 512 * r0 + 1536]);
            part0[i0 - left] += ((v0 + v1) + (v2 + v3));
          }
        }
        for (int64_t row = to - (to - from) % 4; row + 1 <= to; row += 1) {
          const int64_t r0 = row;
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 512 * r0]);
            part0[i0 - left] += v0;
          }
        }
        for (int64_t i0 = left; i0 < right; ++i0) {
          total0[i0 - left].total += part0[i0 - left];
        }
      }
      for (int64_t i0 = left; i0 < right; ++i0) {
        partial[(start + i0) * 64 + chunk] = {total0[i0 - left]};
      }
    }
    #pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < 512; ++column) {
      Partial whole = partial[column * 64];
      for (int64_t chunk = 1; chunk < 64; ++chunk) {
        whole.total0.merge(partial[column * 64 + chunk].total0);
      }
      results[column] = whole.total0.value();
    }
  }
  {
    constexpr int64_t left = 0, right = 512;
    const int64_t start = 0;
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      out0[i0] = results[start + i0];
    }
  }
  return nullptr;
}

//// k7_moments_where_mean
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Rows of 512 for each of 8192: moments, sum, sum.
static const char* k7_moments_where_mean(const float* __restrict__ in0, const float* __restrict__ in1,
                                         const float* __restrict__ in2, const float* __restrict__ in3,
                                         float* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2,
                                         void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 8192; ++point) {
    const int64_t i0 = point;
    alignas(64) real row0[512];
    kw_moments_of<real> accumulator0;
    kw_sum_of<real> accumulator2;
    {
      constexpr int64_t begin = 0, end = 512;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const real v0 = real(in1[512 * i0 + r0]);
        const real v1 = real(in2[r0]);
        const real v2 = v0 * v1;
        row0[r0] = v2;
      }
      accumulator0.block(in0 + 512 * i0 + begin, end - begin);
      accumulator2.block(row0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    const real reduced2 = accumulator2.value();
    alignas(64) real values1[512];
    kw_sum_of<real> accumulator1;
    const real c1_0 = real(reduced0_deviation < real(1000000000000000.0));
    const real c1_1 = reduced0_variance + real(1e-05);
    const real c1_2 = real(1) / kw_sqrt(c1_1);
    const real c1_3 = real(1) / reduced0_deviation;
    const real c1_4 = kw_select(c1_0 != real(0), c1_2, c1_3);
    {
      constexpr int64_t begin = 0, end = 512;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const real v0 = real(in0[512 * i0 + r0]);
        const real v1 = v0 - reduced0_mean;
        const real v2 = v1 * c1_4;
        const real v3 = row0[r0] * v2;
        values1[r0 - begin] = v3;
      }
      accumulator1.block(values1, end - begin);
    }
    const real reduced1 = accumulator1.value();
    const real s5 = reduced1 / real(512.0);
    const real s6 = reduced2 / real(512.0);
    {
      constexpr int64_t begin = 0, end = 512;
      #pragma omp simd
      for (int64_t r0 = begin; r0 < end; ++r0) {
        const real v0 = real(in3[512 * i0 + r0]);
        const real v1 = real(in0[512 * i0 + r0]);
        const real v2 = v1 - reduced0_mean;
        const real v3 = v2 * c1_4;
        const real v4 = v3 * s5;
        const real v5 = kw_unfused_sub(row0[r0], v4);
        const real v6 = kw_unfused_sub(v5, s6);
        const real v7 = c1_4 * v6;
        const real v8 = kw_unfused_add(v0, v7);
        out2[512 * i0 + r0] = v8;
      }
    }
    out0[i0] = c1_4;
    out1[i0] = reduced0_mean;
  }
  return nullptr;
}

//// k8_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Columns: rows of 8192 for each of 512: sum, sum.
static const char* k8_sum(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                          const float* __restrict__ in3, float* __restrict__ out0, float* __restrict__ out1,
                          void* workspace) {
  using real = float;
  // Results of every column, one component after another; behind them those of the chunks.
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial { kw_sum_of<real> total0; kw_sum_of<real> total1; };
    Partial* const partial = reinterpret_cast<Partial*>(static_cast<char*>(workspace) + 4096);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 64; ++task) {
      const int64_t chunk = task % 64;
      constexpr int64_t left = 0, right = 512;
      const int64_t first = chunk * 128;
      const int64_t last = first + 128 < 8192 ? first + 128 : 8192;
      const int64_t start = 0;  // its first column's number
      alignas(64) real part0[512];
      kw_sum_of<real> total0[512];
      alignas(64) real part1[512];
      kw_sum_of<real> total1[512];
      for (int64_t from = first; from < last; from += 128) {
        const int64_t to = from + 128 < last ? from + 128 : last;
        #pragma omp simd
        for (int64_t i0 = left; i0 < right; ++i0) {
          part0[i0 - left] = 0;
          part1[i0 - left] = 0;
        }
        for (int64_t row = from; row + 4 <= to; row += 4) {
          const int64_t r0 = row;
          const real w0 = real(in2[r0]);
          const real w1 = real(in3[r0]);
          const real w2 = real(in2[r0 + 1]);
          const real w3 = real(in3[r0 + 1]);
          const real w4 = real(in2[r0 + 2]);
          const real w5 = real(in3[r0 + 2]);
          const real w6 = real(in2[r0 + 3]);
          const real w7 = real(in3[r0 + 3]);
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 512 * r0]);
            const real v1 = real(in1[i0 + 512 * r0]);
            const real v2 = v1 - w0;
            const real v3 = v2 * w1;
            const real v4 = v0 * v3;
            const real v5 = real(in0[i0 + 512 * r0 + 512]);
            const real v6 = real(in1[i0 + 512 * r0 + 512]);
            const real v7 = v6 - w2;
            const real v8 = v7 * w3;
            const real v9 = v5 * v8;
            const real v10 = real(in0[i0 + 512 * r0 + 1024]);
            const real v11 = real(in1[i0 + 512 * r0 + 1024]);
            const real v12 = v11 - w4;
            const real v13 = v12 * w5;
            const real v14 = v10 * v13;
            const real v15 = real(in0[i0 + 512 * r0 + 1536]);
            const real v16 = real(in1[i0 + 512 * r0 + 1536]);
            const real v17 = v16 - w6;
            const real v18 = v17 * w7;
            const real v19 = v15 * v18;
            part0[i0 - left] += ((v4 + v9) + (v14 + v19));
            part1[i0 - left] += ((v0 + v5) + (v10 + v15));
          }
        }
        for (int64_t row = to - (to - from) % 4; row + 1 <= to; row += 1) {
          const int64_t r0 = row;
          const real w0 = real(in2[r0]);
          const real w1 = real(in3[r0]);
          #pragma omp simd
          for (int64_t i0 = left; i0 < right; ++i0) {
            const real v0 = real(in0[i0 + 512 * r0]);
            const real v1 = real(in1[i0 + 512 * r0]);
            const real v2 = v1 - w0;
            const real v3 = v2 * w1;
            const real v4 = v0 * v3;
            part0[i0 - left] += v4;
            part1[i0 - left] += v0;
          }
        }
        for (int64_t i0 = left; i0 < right; ++i0) {
          total0[i0 - left].total += part0[i0 - left];
          total1[i0 - left].total += part1[i0 - left];
        }
      }
      for (int64_t i0 = left; i0 < right; ++i0) {
        partial[(start + i0) * 64 + chunk] = {total0[i0 - left], total1[i0 - left]};
      }
    }
    #pragma omp parallel for schedule(static)
    for (int64_t column = 0; column < 512; ++column) {
      Partial whole = partial[column * 64];
      for (int64_t chunk = 1; chunk < 64; ++chunk) {
        whole.total0.merge(partial[column * 64 + chunk].total0);
        whole.total1.merge(partial[column * 64 + chunk].total1);
      }
      results[column] = whole.total0.value();
      results[512 + column] = whole.total1.value();
    }
  }
  {
    constexpr int64_t left = 0, right = 512;
    const int64_t start = 0;
    #pragma omp simd
    for (int64_t i0 = left; i0 < right; ++i0) {
      out0[i0] = results[start + i0];
      out1[i0] = results[512 + start + i0];
    }
  }
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* ) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* norm_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* norm_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* add_k0_ptr = static_cast<float*>(tensors[3]);
    if (const char* failure = k0_mean_moments_add(x_ptr, norm_weight_ptr, norm_bias_ptr, add_k0_ptr,
                                                  nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_1(void* const* tensors, void* ) {
    auto* _t8_linear_ptr = static_cast<const float*>(tensors[0]);
    auto* gelu_erf_k1_ptr = static_cast<float*>(tensors[1]);
    if (const char* failure = k1_gelu_erf(_t8_linear_ptr, gelu_erf_k1_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_0(void* const* tensors, void* ) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* norm_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* norm_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* add_k0_ptr = static_cast<float*>(tensors[3]);
    if (const char* failure = k0_mean_moments_add(x_ptr, norm_weight_ptr, norm_bias_ptr, add_k0_ptr,
                                                  nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_1(void* const* tensors, void* ) {
    auto* _t8_linear_ptr = static_cast<const float*>(tensors[0]);
    auto* gelu_erf_k1_ptr = static_cast<float*>(tensors[1]);
    if (const char* failure = k1_gelu_erf(_t8_linear_ptr, gelu_erf_k1_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* ) {
    auto* _t7_matmul_ptr = static_cast<const float*>(tensors[0]);
    auto* saved_1_ptr = static_cast<const float*>(tensors[1]);
    auto* mul_k2_ptr = static_cast<float*>(tensors[2]);
    auto* x_ptr = static_cast<const float*>(tensors[3]);
    auto* mean_k3_0_ptr = static_cast<float*>(tensors[4]);
    auto* std_k3_1_ptr = static_cast<float*>(tensors[5]);
    auto* var_k3_2_ptr = static_cast<float*>(tensors[6]);
    auto* sum_k5_ptr = static_cast<float*>(tensors[7]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[8]);
    auto* sum_k6_ptr = static_cast<float*>(tensors[9]);
    auto* workspace = static_cast<char*>(tensors[10]);
    if (const char* failure = k2_mul(_t7_matmul_ptr, saved_1_ptr, mul_k2_ptr, nullptr)) return failure;
    if (const char* failure = k3_mean_moments(x_ptr, mean_k3_0_ptr, std_k3_1_ptr, var_k3_2_ptr,
                                              nullptr)) return failure;
    if (const char* failure = k5_sum(mul_k2_ptr, sum_k5_ptr, workspace)) return failure;
    if (const char* failure = k6_sum(gradient_of_output_0_ptr, sum_k6_ptr, workspace)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_1(void* const* tensors, void* ) {
    auto* _t19_matmul_ptr = static_cast<const float*>(tensors[0]);
    auto* x_ptr = static_cast<const float*>(tensors[1]);
    auto* mean_k3_0_ptr = static_cast<const float*>(tensors[2]);
    auto* std_k3_1_ptr = static_cast<const float*>(tensors[3]);
    auto* var_k3_2_ptr = static_cast<const float*>(tensors[4]);
    auto* sum_k4_0_ptr = static_cast<float*>(tensors[5]);
    auto* sum_k4_1_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    if (const char* failure = k4_sum(_t19_matmul_ptr, x_ptr, mean_k3_0_ptr, std_k3_1_ptr, var_k3_2_ptr, sum_k4_0_ptr,
                                     sum_k4_1_ptr, workspace)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* ) {
    auto* _t8_matmul_ptr = static_cast<const float*>(tensors[0]);
    auto* saved_1_ptr = static_cast<const float*>(tensors[1]);
    auto* mul_k2_ptr = static_cast<float*>(tensors[2]);
    auto* sum_k5_ptr = static_cast<float*>(tensors[3]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[4]);
    auto* sum_k6_ptr = static_cast<float*>(tensors[5]);
    auto* workspace = static_cast<char*>(tensors[6]);
    if (const char* failure = k2_mul(_t8_matmul_ptr, saved_1_ptr, mul_k2_ptr, nullptr)) return failure;
    if (const char* failure = k5_sum(mul_k2_ptr, sum_k5_ptr, workspace)) return failure;
    if (const char* failure = k6_sum(gradient_of_output_0_ptr, sum_k6_ptr, workspace)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_1(void* const* tensors, void* ) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* _t17_matmul_ptr = static_cast<const float*>(tensors[1]);
    auto* norm_weight_ptr = static_cast<const float*>(tensors[2]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[3]);
    auto* add_k7_2_ptr = static_cast<float*>(tensors[4]);
    auto* sum_k8_0_ptr = static_cast<float*>(tensors[5]);
    auto* sum_k8_1_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    auto* where_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* mean_k7_1_ptr = reinterpret_cast<float*>(workspace + 32768);
    if (const char* failure = k7_moments_where_mean(x_ptr, _t17_matmul_ptr, norm_weight_ptr, gradient_of_output_0_ptr,
                                                    where_k7_0_ptr, mean_k7_1_ptr, add_k7_2_ptr,
                                                    nullptr)) return failure;
    if (const char* failure = k8_sum(_t17_matmul_ptr, x_ptr, mean_k7_1_ptr, where_k7_0_ptr, sum_k8_0_ptr, sum_k8_1_ptr,
                                     workspace + 65536)) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, norm_weight, norm_bias, expand_weight, expand_bias, contract_weight,
                           contract_bias):
    """The program of training and inference mode: 2 kernels, 3 torch calls."""
    add_k0 = torch.empty_like(x)
    _kernelwright_launch("kernelwright_training_0", _stream, x, norm_weight, norm_bias, add_k0)
    # hidden = self.activation(self.expand(self.norm(x)))
    _t8_linear = torch.nn.functional.linear(add_k0, expand_weight, expand_bias).contiguous()
    del add_k0
    gelu_erf_k1 = _t8_linear  # in place
    _kernelwright_launch("kernelwright_training_1", _stream, _t8_linear, gelu_erf_k1)
    del _t8_linear
    # return x + self.dropout(self.contract(hidden))
    _t10_linear = torch.nn.functional.linear(gelu_erf_k1, contract_weight, contract_bias)
    del gelu_erf_k1
    # return x + self.dropout(self.contract(hidden))
    _t11_add = (x + _t10_linear)
    return (_kernelwright_laid(_t11_add, (131072, 512, 1)),)


def _kernelwright_training_saving(_device, _stream, x, norm_weight, norm_bias, expand_weight, expand_bias,
                                  contract_weight, contract_bias):
    """The program of training saving mode: 2 kernels, 3 torch calls."""
    add_k0 = torch.empty_like(x)
    _kernelwright_launch("kernelwright_training_saving_0", _stream, x, norm_weight, norm_bias, add_k0)
    # hidden = self.activation(self.expand(self.norm(x)))
    _t8_linear_shown = torch.nn.functional.linear(add_k0, expand_weight, expand_bias)
    _t8_linear = _t8_linear_shown.contiguous()
    gelu_erf_k1 = torch.empty_like(_t8_linear)
    _kernelwright_launch("kernelwright_training_saving_1", _stream, _t8_linear, gelu_erf_k1)
    # return x + self.dropout(self.contract(hidden))
    _t10_linear = torch.nn.functional.linear(gelu_erf_k1, contract_weight, contract_bias)
    # return x + self.dropout(self.contract(hidden))
    _t11_add = (x + _t10_linear)
    return (_kernelwright_laid(_t11_add, (131072, 512, 1)), add_k0, _t8_linear_shown, gelu_erf_k1,)


def _kernelwright_training_backward_of_parameters(_device, _stream, x, gradient_of_output_0, saved_0, saved_1, saved_2,
                                                  contract_weight, expand_weight):
    """The program of training backward of parameters mode: 5 kernels, 4 torch calls."""
    # return x + self.dropout(self.contract(hidden))
    _t7_matmul = torch.matmul(gradient_of_output_0, contract_weight).contiguous()
    _t8_reshape = saved_0.reshape((8192, 512))
    _t9_reshape = gradient_of_output_0.reshape((8192, 512))
    _t10_permute = _t9_reshape.permute((1, 0))
    del _t9_reshape
    _t11_reshape = saved_2.reshape((8192, 2048))
    # return x + self.dropout(self.contract(hidden))
    _t12_matmul = torch.matmul(_t10_permute, _t11_reshape)
    del _t10_permute, _t11_reshape
    mul_k2 = _t7_matmul  # in place
    mean_k3_0 = torch.empty((32, 256, 1), dtype=torch.float32, device=_device)
    std_k3_1 = torch.empty_like(mean_k3_0)
    var_k3_2 = torch.empty_like(mean_k3_0)
    sum_k5 = torch.empty((2048,), dtype=torch.float32, device=_device)
    sum_k6 = torch.empty((512,), dtype=torch.float32, device=_device)
    workspace = torch.empty(1056768, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, _t7_matmul, saved_1, mul_k2, x,
                         mean_k3_0, std_k3_1, var_k3_2, sum_k5, gradient_of_output_0, sum_k6, workspace)
    del _t7_matmul, workspace
    # hidden = self.activation(self.expand(self.norm(x)))
    _t19_matmul = torch.matmul(mul_k2, expand_weight).contiguous()
    _t20_reshape = mul_k2.reshape((8192, 2048))
    del mul_k2
    _t21_permute = _t20_reshape.permute((1, 0))
    del _t20_reshape
    # hidden = self.activation(self.expand(self.norm(x)))
    _t22_matmul = torch.matmul(_t21_permute, _t8_reshape)
    del _t21_permute, _t8_reshape
    sum_k4_0 = torch.empty((512,), dtype=torch.float32, device=_device)
    sum_k4_1 = torch.empty_like(sum_k4_0)
    workspace = torch.empty(2101248, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_1", _stream, _t19_matmul, x, mean_k3_0, std_k3_1,
                         var_k3_2, sum_k4_0, sum_k4_1, workspace)
    return (sum_k4_0, sum_k4_1, _t22_matmul, sum_k5, _t12_matmul, sum_k6,)


def _kernelwright_training_backward(_device, _stream, x, gradient_of_output_0, saved_0, saved_1, saved_2,
                                    contract_weight, expand_weight, norm_weight):
    """The program of training backward mode: 5 kernels, 4 torch calls."""
    # return x + self.dropout(self.contract(hidden))
    _t8_matmul = torch.matmul(gradient_of_output_0, contract_weight).contiguous()
    _t9_reshape = saved_0.reshape((8192, 512))
    _t10_reshape = gradient_of_output_0.reshape((8192, 512))
    _t11_permute = _t10_reshape.permute((1, 0))
    del _t10_reshape
    _t12_reshape = saved_2.reshape((8192, 2048))
    # return x + self.dropout(self.contract(hidden))
    _t13_matmul = torch.matmul(_t11_permute, _t12_reshape)
    del _t11_permute, _t12_reshape
    mul_k2 = _t8_matmul  # in place
    sum_k5 = torch.empty((2048,), dtype=torch.float32, device=_device)
    sum_k6 = torch.empty((512,), dtype=torch.float32, device=_device)
    workspace = torch.empty(1056768, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, _t8_matmul, saved_1, mul_k2, sum_k5,
                         gradient_of_output_0, sum_k6, workspace)
    del _t8_matmul, workspace
    # hidden = self.activation(self.expand(self.norm(x)))
    _t17_matmul = torch.matmul(mul_k2, expand_weight).contiguous()
    _t18_reshape = mul_k2.reshape((8192, 2048))
    del mul_k2
    _t19_permute = _t18_reshape.permute((1, 0))
    del _t18_reshape
    # hidden = self.activation(self.expand(self.norm(x)))
    _t20_matmul = torch.matmul(_t19_permute, _t9_reshape)
    del _t19_permute, _t9_reshape
    add_k7_2 = torch.empty_like(x)
    sum_k8_0 = torch.empty_like(norm_weight)
    sum_k8_1 = torch.empty_like(norm_weight)
    workspace = torch.empty(2166784, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_1", _stream, x, _t17_matmul, norm_weight, gradient_of_output_0,
                         add_k7_2, sum_k8_0, sum_k8_1, workspace)
    return (add_k7_2, sum_k8_0, sum_k8_1, _t20_matmul, sum_k5, _t13_matmul, sum_k6,)


# What the kernels were built for; elsewhere the original computation runs -------------------------------------------


_KERNELWRIGHT_MODEL = {
    "modules": {'norm': 'torch.nn.modules.normalization.LayerNorm', 'expand': 'torch.nn.modules.linear.Linear',
                'activation': 'torch.nn.modules.activation.GELU', 'contract': 'torch.nn.modules.linear.Linear',
                'dropout': 'torch.nn.modules.dropout.Dropout'},
    "attributes": {
        'norm': {'normalized_shape': ('tuple', 512), 'eps': 1e-05, 'elementwise_affine': True},
        'expand': {'in_features': 512, 'out_features': 2048},
        'activation': {'approximate': 'none'},
        'contract': {'in_features': 2048, 'out_features': 512},
        'dropout': {'p': 0.0, 'inplace': False},
    },
    "held": ('contract.bias', 'contract.weight', 'expand.bias', 'expand.weight', 'norm.bias', 'norm.weight'),
    "default_dtype": torch.float32,
    "inputs": (("x", (32, 256, 512), torch.float32),),
    "tensors": {
        "norm.weight": ((512,), torch.float32),
        "norm.bias": ((512,), torch.float32),
        "expand.weight": ((2048, 512), torch.float32),
        "expand.bias": ((2048,), torch.float32),
        "contract.weight": ((512, 2048), torch.float32),
        "contract.bias": ((512,), torch.float32),
    },
    "run": _kernelwright_training,
    "compiled": (((32, 256, 512), (131072, 512, 1), torch.float32),),
    "strides": ((131072, 512, 1),),
}

_KERNELWRIGHT_TRAINING = {
    **_KERNELWRIGHT_MODEL,
    "training": True,
    "backward": {"of": (0,), "frozen": (), "saving": {"run": _kernelwright_training_saving, "results": 1},
                 "programs": ({"gives": {'norm.weight': 0, 'norm.bias': 1, 'expand.weight': 2, 'expand.bias': 3,
                                         'contract.weight': 4, 'contract.bias': 5}, "saved": (1, 2, 3),
                               "tensors": ('contract.weight', 'expand.weight'), "orders": (),
                               "run": _kernelwright_training_backward_of_parameters},
                              {"gives": {0: 0, 'norm.weight': 1, 'norm.bias': 2, 'expand.weight': 3, 'expand.bias': 4,
                                         'contract.weight': 5, 'contract.bias': 6}, "saved": (1, 2, 3),
                               "tensors": ('contract.weight', 'expand.weight', 'norm.weight'), "orders": (),
                               "run": _kernelwright_training_backward},)},
}

_KERNELWRIGHT_INFERENCE = {
    **_KERNELWRIGHT_MODEL,
    "training": False,
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
import struct
import tempfile
import threading
import warnings
import weakref
from pathlib import Path


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
        ctx.set_materialize_grads(False)
        kernels = _kernelwright_backward_of(binding, facts, ctx.needs_input_grad)
        if kernels is not None and kernels.saved:
            saving = facts["backward"]["saving"]
            made = _kernelwright_run(saving, values)
            outputs = made[:saving["results"]]
            ctx.save_for_backward(*tensors, *[made[place] for place in kernels.saved])
        else:
            outputs = _kernelwright_run(facts, values)
            ctx.save_for_backward(*tensors)
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
    if len(tensors) != kernels.count:  # the call ran as one that nothing was to be kept of
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
