"""ModelNew: conv_network, with custom kernels. Written by kernelwright 0.1.0 for generic CPU, 8 threads.

Same constructor, parameters and results as the original class. Where a call does not fit what the
kernels were built for, the original computation runs, with one warning.

Training mode: 7 of 10 operators replaced.
  operations 5.99 GFLOP -> 5.99 GFLOP, memory traffic 661 MB -> 661 MB
  rule keep reduced axes (5 times): reduce(x) = reshape(reduce(x, keepdim)); bitwise
  rule biased variance (2 times): var with correction c = var with correction 0 times n / (n - c); changes
    rounding
  kernel k0_mean_moments_add: moments over rows of [32, 128, 128] for each of [32]: batch_norm_training, add,
    mul
  kernel k1_max: max over rows of [2, 2] for each of [32, 32, 64, 64]: max_pool, relu, batch_norm_training
  kernel k2_mean_moments_add: moments over rows of [32, 64, 64] for each of [64]: batch_norm_training, add,
    mul
  kernel k3_mean: sum over rows of [32, 32] for each of [32, 64]: mean, max_pool, relu, batch_norm_training
  PyTorch keeps conv2d (2 times): a contraction that PyTorch's library does well
  PyTorch keeps linear: a contraction that PyTorch's library does well

Inference mode: 7 of 10 operators replaced.
  operations 5.84 GFLOP -> 5.84 GFLOP, memory traffic 661 MB -> 661 MB
  rule keep reduced axes: reduce(x) = reshape(reduce(x, keepdim)); bitwise
  kernel k4_max: max over rows of [2, 2] for each of [32, 32, 64, 64]: max_pool, relu, batch_norm_inference
  kernel k5_mean: sum over rows of [32, 32] for each of [32, 64]: mean, max_pool, relu, batch_norm_inference
  PyTorch keeps conv2d (2 times): a contraction that PyTorch's library does well
  PyTorch keeps linear: a contraction that PyTorch's library does well
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Twice: convolution, batch norm, ReLU, max pool; then a linear classifier."""

    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * channels)
        self.pool = nn.MaxPool2d(2)
        self.classify = nn.Linear(2 * channels, classes)

    def _original_forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = self.pool(torch.relu(self.norm2(self.conv2(x))))
        return self.classify(x.mean(dim=(2, 3)))

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


_KERNELWRIGHT_OPERATORS = "conv_network_9e1f31cb8cda"
_KERNELWRIGHT_NAME = "conv_network"
_KERNELWRIGHT_DEVICE = "cpu"
_KERNELWRIGHT_FLAGS = ['-O3', '-march=native', '-fopenmp', '-std=c++17', '-fno-math-errno', '-fno-trapping-math']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_mean_moments_add', 'k1_max'],
    "kernelwright_training_1": ['k2_mean_moments_add', 'k3_mean'],
    "kernelwright_training_saving_0": ['k0_mean_moments_add', 'k1_max'],
    "kernelwright_training_saving_1": ['k2_mean_moments_add', 'k3_mean'],
    "kernelwright_training_backward_of_parameters_0": ['k6_moments_mean', 'k7_moments_mean', 'k8_max_min_where',
                                                       'k9_mean_sum', 'k9_mean_sum', 'k10_mul'],
    "kernelwright_training_backward_of_parameters_1": ['k11_max_min_where', 'k12_mean_sum', 'k12_mean_sum', 'k13_mul'],
    "kernelwright_training_backward_0": ['k6_moments_mean', 'k7_moments_mean', 'k8_max_min_where', 'k9_mean_sum',
                                         'k9_mean_sum', 'k10_mul'],
    "kernelwright_training_backward_1": ['k11_max_min_where', 'k12_mean_sum', 'k12_mean_sum', 'k13_mul'],
    "kernelwright_inference_0": ['k4_max'],
    "kernelwright_inference_1": ['k5_mean'],
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
template <typename real> static inline real kw_unfused_neg(real x) { return std::fma(x, real(-1), real(-0.0)); }
#else
template <typename real> static inline real kw_unfused_add(real x, real y) { return x + y; }
template <typename real> static inline real kw_unfused_sub(real x, real y) { return x - y; }
template <typename real> static inline real kw_unfused_neg(real x) { return -x; }
#endif

static inline float kw_sqrt(float x) { using real = float; return std::sqrt(x); }
static inline double kw_sqrt(double x) { using real = double; return std::sqrt(x); }

static inline float kw_maximum(float x, float y) { using real = float; return kw_select((x > y) | (x != x), x, y); }
static inline double kw_maximum(double x, double y) { using real = double; return kw_select((x > y) | (x != x), x, y); }

static inline float kw_minimum(float x, float y) { using real = float; return kw_select((x < y) | (x != x), x, y); }
static inline double kw_minimum(double x, double y) { using real = double; return kw_select((x < y) | (x != x), x, y); }

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
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Rows of 32 x 16384 for each of 32: moments.
static const char* k0_mean_moments_add(const float* __restrict__ in0, const float* __restrict__ in1,
                                       const float* __restrict__ in2, float* __restrict__ out0,
                                       float* __restrict__ out1, float* __restrict__ out2, float* __restrict__ out3,
                                       float* __restrict__ out4, void* workspace) {
  using real = float;
  // Chunk results, then merged in order into results[point * 3 + component].
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial0 { kw_moments_of<real> accumulator0; };
    Partial0* const partial = reinterpret_cast<Partial0*>(static_cast<char*>(workspace) + 512);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 1024; ++task) {
      const int64_t point = task / 32;
      const int64_t chunk = task % 32;
      const int64_t first = chunk * 16;
      const int64_t last = first + 16 < 512 ? first + 16 : 512;
      const int64_t i0 = point;
      kw_moments_of<real> accumulator0;
      for (int64_t segment = first; segment < last; ++segment) {
        const int64_t r0 = segment / 16;
        const int64_t block = segment % 16;
        const int64_t begin = block * 1024;
        const int64_t end = begin + 1024 < 16384 ? begin + 1024 : 16384;
        accumulator0.block(in0 + 16384 * i0 + 524288 * r0 + begin, end - begin);
      }
      partial[task] = {accumulator0};
    }
    for (int64_t point = 0; point < 32; ++point) {
      Partial0 whole = partial[point * 32];
      for (int64_t chunk = 1; chunk < 32; ++chunk) {
        whole.accumulator0.merge(partial[point * 32 + chunk].accumulator0);
      }
      results[point * 3] = whole.accumulator0.mean();
      results[point * 3 + 1] = whole.accumulator0.variance();
      results[point * 3 + 2] = whole.accumulator0.deviation();
    }
  }
  for (int64_t point = 0; point < 32; ++point) {
    const int64_t i0 = point;
    const real reduced0_mean = results[point * 3];
    const real reduced0_variance = results[point * 3 + 1];
    const real reduced0_deviation = results[point * 3 + 2];
    const real c0 = real(in1[i0]);
    const real c1 = c0 * real(0.9);
    const real c2 = reduced0_mean * real(0.1);
    const real c3 = kw_unfused_add(c1, c2);
    const real c4 = real(in2[i0]);
    const real c5 = c4 * real(0.9);
    const real c6 = reduced0_variance * real(1.0000019073522708);
    const real c7 = c6 * real(0.1);
    const real c8 = kw_unfused_add(c5, c7);
    out0[i0] = reduced0_mean;
    out1[i0] = reduced0_deviation;
    out2[i0] = reduced0_variance;
    out3[i0] = c3;
    out4[i0] = c8;
  }
  return nullptr;
}

//// k1_max
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Windows of 2 x 2 for each of 32 x 32 x 64 x 64: max.
static const char* k1_max(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                          const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
                          float* __restrict__ out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 65536; ++task) {
    const int64_t i0 = task / 2048;
    const int64_t i1 = task / 64 % 32;
    const int64_t i2 = task % 64;
    const real c0 = real(in1[i1]);
    const real c1 = real(in2[i1]);
    const real c2 = real(c1 < real(1000000000000000.0));
    const real c3 = real(in3[i1]);
    const real c4 = c3 + real(1e-05);
    const real c5 = real(1) / kw_sqrt(c4);
    const real c6 = real(1) / c1;
    const real c7 = kw_select(c2 != real(0), c5, c6);
    const real c8 = real(in4[i1]);
    const real c9 = c7 * c8;
    const real c10 = real(in5[i1]);
    #pragma omp simd
    for (int64_t i3 = 0; i3 < 64; ++i3) {
      const real v0 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 129]);
      const real v1 = v0 - c0;
      const real v2 = v1 * c9;
      const real v3 = kw_unfused_add(v2, c10);
      const real v4 = kw_select(v3 < real(0), real(0), v3);
      const real v5 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 128]);
      const real v6 = v5 - c0;
      const real v7 = v6 * c9;
      const real v8 = kw_unfused_add(v7, c10);
      const real v9 = kw_select(v8 < real(0), real(0), v8);
      const real v10 = kw_maximum(v4, v9);
      const real v11 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 1]);
      const real v12 = v11 - c0;
      const real v13 = v12 * c9;
      const real v14 = kw_unfused_add(v13, c10);
      const real v15 = kw_select(v14 < real(0), real(0), v14);
      const real v16 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3]);
      const real v17 = v16 - c0;
      const real v18 = v17 * c9;
      const real v19 = kw_unfused_add(v18, c10);
      const real v20 = kw_select(v19 < real(0), real(0), v19);
      const real v21 = kw_maximum(v15, v20);
      const real v22 = kw_maximum(v10, v21);
      out0[131072 * i0 + 4096 * i1 + 64 * i2 + i3] = v22;
    }
  }
  return nullptr;
}

//// k2_mean_moments_add
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// Rows of 32 x 4096 for each of 64: moments.
static const char* k2_mean_moments_add(const float* __restrict__ in0, const float* __restrict__ in1,
                                       const float* __restrict__ in2, float* __restrict__ out0,
                                       float* __restrict__ out1, float* __restrict__ out2, float* __restrict__ out3,
                                       float* __restrict__ out4, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 64; ++point) {
    const int64_t i0 = point;
    kw_moments_of<real> accumulator0;
    for (int64_t segment = 0; segment < 128; ++segment) {
      const int64_t r0 = segment / 4;
      const int64_t block = segment % 4;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 4096 ? begin + 1024 : 4096;
      accumulator0.block(in0 + 4096 * i0 + 262144 * r0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    const real t0 = real(in1[i0]);
    const real t1 = t0 * real(0.9);
    const real t2 = reduced0_mean * real(0.1);
    const real t3 = kw_unfused_add(t1, t2);
    const real t4 = real(in2[i0]);
    const real t5 = t4 * real(0.9);
    const real t6 = reduced0_variance * real(1.0000076294527394);
    const real t7 = t6 * real(0.1);
    const real t8 = kw_unfused_add(t5, t7);
    out0[i0] = reduced0_mean;
    out1[i0] = reduced0_deviation;
    out2[i0] = reduced0_variance;
    out3[i0] = t3;
    out4[i0] = t8;
  }
  return nullptr;
}

//// k3_mean
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// conv_network.py:22: return self.classify(x.mean(dim=(2, 3)))
// Rows of 32 x 32 for each of 32 x 64: sum.
static const char* k3_mean(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                           const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
                           float* __restrict__ out0, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 2048; ++point) {
    const int64_t i0 = point / 64;
    const int64_t i1 = point % 64;
    alignas(64) real values0[1024];
    kw_sum_of<real> accumulator0;
    const real c0_0 = real(in1[i1]);
    const real c0_1 = real(in2[i1]);
    const real c0_2 = real(c0_1 < real(1000000000000000.0));
    const real c0_3 = real(in3[i1]);
    const real c0_4 = c0_3 + real(1e-05);
    const real c0_5 = real(1) / kw_sqrt(c0_4);
    const real c0_6 = real(1) / c0_1;
    const real c0_7 = kw_select(c0_2 != real(0), c0_5, c0_6);
    const real c0_8 = real(in4[i1]);
    const real c0_9 = c0_7 * c0_8;
    const real c0_10 = real(in5[i1]);
    {
      constexpr int64_t from = 0, to = 32;
      for (int64_t segment = from; segment < to; ++segment) {
        const int64_t r0 = segment;
        constexpr int64_t begin = 0, end = 32;
        #pragma omp simd
        for (int64_t r1 = begin; r1 < end; ++r1) {
          const real v0 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 65]);
          const real v1 = v0 - c0_0;
          const real v2 = v1 * c0_9;
          const real v3 = kw_unfused_add(v2, c0_10);
          const real v4 = kw_select(v3 < real(0), real(0), v3);
          const real v5 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 64]);
          const real v6 = v5 - c0_0;
          const real v7 = v6 * c0_9;
          const real v8 = kw_unfused_add(v7, c0_10);
          const real v9 = kw_select(v8 < real(0), real(0), v8);
          const real v10 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 1]);
          const real v11 = v10 - c0_0;
          const real v12 = v11 * c0_9;
          const real v13 = kw_unfused_add(v12, c0_10);
          const real v14 = kw_select(v13 < real(0), real(0), v13);
          const real v15 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1]);
          const real v16 = v15 - c0_0;
          const real v17 = v16 * c0_9;
          const real v18 = kw_unfused_add(v17, c0_10);
          const real v19 = kw_select(v18 < real(0), real(0), v18);
          const real v20 = kw_maximum(v14, v19);
          const real v21 = kw_maximum(v9, v20);
          const real v22 = kw_maximum(v4, v21);
          values0[32 * (segment - from) + r1] = v22;
        }
      }
      accumulator0.block(values0, 32 * (to - from));
    }
    const real reduced0 = accumulator0.value();
    const real t11 = reduced0 / real(1024.0);
    out0[64 * i0 + i1] = t11;
  }
  return nullptr;
}

//// k6_moments_mean
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Rows of 32 x 16384 for each of 32: moments.
static const char* k6_moments_mean(const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1,
                                   float* __restrict__ out2, void* workspace) {
  using real = float;
  // Chunk results, then merged in order into results[point * 3 + component].
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial0 { kw_moments_of<real> accumulator0; };
    Partial0* const partial = reinterpret_cast<Partial0*>(static_cast<char*>(workspace) + 512);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 1024; ++task) {
      const int64_t point = task / 32;
      const int64_t chunk = task % 32;
      const int64_t first = chunk * 16;
      const int64_t last = first + 16 < 512 ? first + 16 : 512;
      const int64_t i0 = point;
      kw_moments_of<real> accumulator0;
      for (int64_t segment = first; segment < last; ++segment) {
        const int64_t r0 = segment / 16;
        const int64_t block = segment % 16;
        const int64_t begin = block * 1024;
        const int64_t end = begin + 1024 < 16384 ? begin + 1024 : 16384;
        accumulator0.block(in0 + 16384 * i0 + 524288 * r0 + begin, end - begin);
      }
      partial[task] = {accumulator0};
    }
    for (int64_t point = 0; point < 32; ++point) {
      Partial0 whole = partial[point * 32];
      for (int64_t chunk = 1; chunk < 32; ++chunk) {
        whole.accumulator0.merge(partial[point * 32 + chunk].accumulator0);
      }
      results[point * 3] = whole.accumulator0.mean();
      results[point * 3 + 1] = whole.accumulator0.variance();
      results[point * 3 + 2] = whole.accumulator0.deviation();
    }
  }
  for (int64_t point = 0; point < 32; ++point) {
    const int64_t i0 = point;
    const real reduced0_mean = results[point * 3];
    const real reduced0_variance = results[point * 3 + 1];
    const real reduced0_deviation = results[point * 3 + 2];
    out0[i0] = reduced0_deviation;
    out1[i0] = reduced0_variance;
    out2[i0] = reduced0_mean;
  }
  return nullptr;
}

//// k7_moments_mean
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// Rows of 32 x 4096 for each of 64: moments.
static const char* k7_moments_mean(const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1,
                                   float* __restrict__ out2, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 64; ++point) {
    const int64_t i0 = point;
    kw_moments_of<real> accumulator0;
    for (int64_t segment = 0; segment < 128; ++segment) {
      const int64_t r0 = segment / 4;
      const int64_t block = segment % 4;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 4096 ? begin + 1024 : 4096;
      accumulator0.block(in0 + 4096 * i0 + 262144 * r0 + begin, end - begin);
    }
    const real reduced0_mean = accumulator0.mean();
    const real reduced0_variance = accumulator0.variance();
    const real reduced0_deviation = accumulator0.deviation();
    out0[i0] = reduced0_deviation;
    out1[i0] = reduced0_variance;
    out2[i0] = reduced0_mean;
  }
  return nullptr;
}

//// k8_max_min_where
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// conv_network.py:22: return self.classify(x.mean(dim=(2, 3)))
// Windows of 2 x 2 for each of 32 x 64 x 32 x 32: max, min.
static const char* k8_max_min_where(const float* __restrict__ in0, const float* __restrict__ in1,
                                    const float* __restrict__ in2, const float* __restrict__ in3,
                                    const float* __restrict__ in4, const float* __restrict__ in5,
                                    const int32_t* __restrict__ in6, const float* __restrict__ in7,
                                    float* __restrict__ out0, float* __restrict__ out1, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 65536; ++task) {
    const int64_t i0 = task / 2048;
    const int64_t i1 = task / 32 % 64;
    const int64_t i2 = task % 32;
    const real c0 = real(in1[i1]);
    const real c1 = real(in2[i1]);
    const real c2 = real(c1 < real(1000000000000000.0));
    const real c3 = real(in3[i1]);
    const real c4 = c3 + real(1e-05);
    const real c5 = real(1) / kw_sqrt(c4);
    const real c6 = real(1) / c1;
    const real c7 = kw_select(c2 != real(0), c5, c6);
    const real c8 = real(in4[i1]);
    const real c9 = c7 * c8;
    const real c10 = real(in5[i1]);
    const int64_t c11 = int64_t(in6[0]);
    const real c12 = real(c11);
    const real c13 = c12 * real(2.0);
    const real c14 = c12 * real(1.0);
    const real c15 = kw_unfused_add(c13, c14);
    const real c16 = kw_unfused_neg(c15);
    const int64_t c17 = int64_t(in6[1]);
    const real c18 = real(c17);
    const real c19 = c18 * real(2.0);
    const real c20 = c18 * real(1.0);
    const real c21 = kw_unfused_add(c19, c20);
    const real c22 = kw_unfused_neg(c21);
    const real c23 = kw_unfused_add(c19, c14);
    const real c24 = kw_unfused_neg(c23);
    const real c25 = kw_unfused_add(c13, c20);
    const real c26 = kw_unfused_neg(c25);
    const real c27 = real(in7[64 * i0 + i1]);
    const real c28 = c27 / real(1024.0);
    const real c29 = kw_unfused_add(c28, real(0.0));
    #pragma omp simd
    for (int64_t i3 = 0; i3 < 32; ++i3) {
      const real v0 = real(in0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3]);
      const real v1 = v0 - c0;
      const real v2 = v1 * c9;
      const real v3 = kw_unfused_add(v2, c10);
      const real v4 = kw_select(v3 < real(0), real(0), v3);
      const real v5 = real(v4 <= real(0.0));
      const real v6 = real(in0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 65]);
      const real v7 = v6 - c0;
      const real v8 = v7 * c9;
      const real v9 = kw_unfused_add(v8, c10);
      const real v10 = kw_select(v9 < real(0), real(0), v9);
      const real v11 = real(in0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 64]);
      const real v12 = v11 - c0;
      const real v13 = v12 * c9;
      const real v14 = kw_unfused_add(v13, c10);
      const real v15 = kw_select(v14 < real(0), real(0), v14);
      const real v16 = kw_maximum(v10, v15);
      const real v17 = real(in0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 1]);
      const real v18 = v17 - c0;
      const real v19 = v18 * c9;
      const real v20 = kw_unfused_add(v19, c10);
      const real v21 = kw_select(v20 < real(0), real(0), v20);
      const real v22 = kw_maximum(v21, v4);
      const real v23 = kw_maximum(v16, v22);
      const real v24 = real(v4 == v23);
      const real v25 = real(v4 != v4);
      const real v26 = kw_select(v25 != real(0), c16, real(4.0));
      const real v27 = kw_select(v24 != real(0), c15, v26);
      const real v28 = real(v10 == v23);
      const real v29 = real(v10 != v10);
      const real v30 = kw_select(v29 != real(0), c22, real(4.0));
      const real v31 = kw_select(v28 != real(0), c21, v30);
      const real v32 = real(v15 == v23);
      const real v33 = real(v15 != v15);
      const real v34 = kw_select(v33 != real(0), c24, real(4.0));
      const real v35 = kw_select(v32 != real(0), c23, v34);
      const real v36 = kw_minimum(v31, v35);
      const real v37 = real(v21 == v23);
      const real v38 = real(v21 != v21);
      const real v39 = kw_select(v38 != real(0), c26, real(4.0));
      const real v40 = kw_select(v37 != real(0), c25, v39);
      const real v41 = kw_minimum(v40, v27);
      const real v42 = kw_minimum(v36, v41);
      const real v43 = real(v27 == v42);
      const real v44 = kw_select(v43 != real(0), c29, real(0.0));
      const real v45 = kw_select(v5 != real(0), real(0.0), v44);
      const real v46 = real(v21 <= real(0.0));
      const real v47 = real(v40 == v42);
      const real v48 = kw_select(v47 != real(0), c29, real(0.0));
      const real v49 = kw_select(v46 != real(0), real(0.0), v48);
      const real v50 = real(v15 <= real(0.0));
      const real v51 = real(v35 == v42);
      const real v52 = kw_select(v51 != real(0), c29, real(0.0));
      const real v53 = kw_select(v50 != real(0), real(0.0), v52);
      const real v54 = real(v10 <= real(0.0));
      const real v55 = real(v31 == v42);
      const real v56 = kw_select(v55 != real(0), c29, real(0.0));
      const real v57 = kw_select(v54 != real(0), real(0.0), v56);
      const real v58 = v1 * c7;
      const real v59 = v45 * v58;
      const real v60 = v18 * c7;
      const real v61 = v49 * v60;
      const real v62 = v12 * c7;
      const real v63 = v53 * v62;
      const real v64 = v7 * c7;
      const real v65 = v57 * v64;
      out0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3] = v45;
      out0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 1] = v49;
      out0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 64] = v53;
      out0[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 65] = v57;
      out1[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3] = v59;
      out1[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 1] = v61;
      out1[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 64] = v63;
      out1[262144 * i0 + 4096 * i1 + 128 * i2 + 2 * i3 + 65] = v65;
    }
  }
  return nullptr;
}

//// k9_mean_sum
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// Rows of 32 x 4096 for each of 64: sum.
static const char* k9_mean_sum(const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1,
                               void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 64; ++point) {
    const int64_t i0 = point;
    kw_sum_of<real> accumulator0;
    for (int64_t segment = 0; segment < 128; ++segment) {
      const int64_t r0 = segment / 4;
      const int64_t block = segment % 4;
      const int64_t begin = block * 1024;
      const int64_t end = begin + 1024 < 4096 ? begin + 1024 : 4096;
      accumulator0.block(in0 + 4096 * i0 + 262144 * r0 + begin, end - begin);
    }
    const real reduced0 = accumulator0.value();
    const real t0 = reduced0 / real(131072.0);
    out0[i0] = t0;
    out1[i0] = reduced0;
  }
  return nullptr;
}

//// k10_mul
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// Pointwise over 32 x 64 x 4096.
static const char* k10_mul(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                           const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
                           const float* __restrict__ in6, const float* __restrict__ in7, float* __restrict__ out0,
                           void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 2048; ++task) {
    const int64_t i0 = task / 64;
    const int64_t i1 = task % 64;
    const real c0 = real(in0[i1]);
    const real c1 = real(c0 < real(1000000000000000.0));
    const real c2 = real(in1[i1]);
    const real c3 = c2 + real(1e-05);
    const real c4 = real(1) / kw_sqrt(c3);
    const real c5 = real(1) / c0;
    const real c6 = kw_select(c1 != real(0), c4, c5);
    const real c7 = real(in2[i1]);
    const real c8 = c6 * c7;
    const real c9 = real(in5[i1]);
    const real c10 = real(in6[i1]);
    const real c11 = real(in7[i1]);
    #pragma omp simd
    for (int64_t i2 = 0; i2 < 4096; ++i2) {
      const real v0 = real(in3[262144 * i0 + 4096 * i1 + i2]);
      const real v1 = real(in4[262144 * i0 + 4096 * i1 + i2]);
      const real v2 = v1 - c9;
      const real v3 = v2 * c6;
      const real v4 = v3 * c10;
      const real v5 = kw_unfused_sub(v0, v4);
      const real v6 = v5 - c11;
      const real v7 = c8 * v6;
      out0[262144 * i0 + 4096 * i1 + i2] = v7;
    }
  }
  return nullptr;
}

//// k11_max_min_where
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// Windows of 2 x 2 for each of 32 x 32 x 64 x 64: max, min.
static const char* k11_max_min_where(const float* __restrict__ in0, const float* __restrict__ in1,
                                     const float* __restrict__ in2, const float* __restrict__ in3,
                                     const float* __restrict__ in4, const float* __restrict__ in5,
                                     const int32_t* __restrict__ in6, const float* __restrict__ in7,
                                     float* __restrict__ out0, float* __restrict__ out1, void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 65536; ++task) {
    const int64_t i0 = task / 2048;
    const int64_t i1 = task / 64 % 32;
    const int64_t i2 = task % 64;
    const real c0 = real(in1[i1]);
    const real c1 = real(in2[i1]);
    const real c2 = real(c1 < real(1000000000000000.0));
    const real c3 = real(in3[i1]);
    const real c4 = c3 + real(1e-05);
    const real c5 = real(1) / kw_sqrt(c4);
    const real c6 = real(1) / c1;
    const real c7 = kw_select(c2 != real(0), c5, c6);
    const real c8 = real(in4[i1]);
    const real c9 = c7 * c8;
    const real c10 = real(in5[i1]);
    const int64_t c11 = int64_t(in6[0]);
    const real c12 = real(c11);
    const real c13 = c12 * real(2.0);
    const real c14 = c12 * real(1.0);
    const real c15 = kw_unfused_add(c13, c14);
    const real c16 = kw_unfused_neg(c15);
    const int64_t c17 = int64_t(in6[1]);
    const real c18 = real(c17);
    const real c19 = c18 * real(2.0);
    const real c20 = c18 * real(1.0);
    const real c21 = kw_unfused_add(c19, c20);
    const real c22 = kw_unfused_neg(c21);
    const real c23 = kw_unfused_add(c19, c14);
    const real c24 = kw_unfused_neg(c23);
    const real c25 = kw_unfused_add(c13, c20);
    const real c26 = kw_unfused_neg(c25);
    #pragma omp simd
    for (int64_t i3 = 0; i3 < 64; ++i3) {
      const real v0 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3]);
      const real v1 = v0 - c0;
      const real v2 = v1 * c9;
      const real v3 = kw_unfused_add(v2, c10);
      const real v4 = kw_select(v3 < real(0), real(0), v3);
      const real v5 = real(v4 <= real(0.0));
      const real v6 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 129]);
      const real v7 = v6 - c0;
      const real v8 = v7 * c9;
      const real v9 = kw_unfused_add(v8, c10);
      const real v10 = kw_select(v9 < real(0), real(0), v9);
      const real v11 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 128]);
      const real v12 = v11 - c0;
      const real v13 = v12 * c9;
      const real v14 = kw_unfused_add(v13, c10);
      const real v15 = kw_select(v14 < real(0), real(0), v14);
      const real v16 = kw_maximum(v10, v15);
      const real v17 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 1]);
      const real v18 = v17 - c0;
      const real v19 = v18 * c9;
      const real v20 = kw_unfused_add(v19, c10);
      const real v21 = kw_select(v20 < real(0), real(0), v20);
      const real v22 = kw_maximum(v21, v4);
      const real v23 = kw_maximum(v16, v22);
      const real v24 = real(v4 == v23);
      const real v25 = real(v4 != v4);
      const real v26 = kw_select(v25 != real(0), c16, real(4.0));
      const real v27 = kw_select(v24 != real(0), c15, v26);
      const real v28 = real(v10 == v23);
      const real v29 = real(v10 != v10);
      const real v30 = kw_select(v29 != real(0), c22, real(4.0));
      const real v31 = kw_select(v28 != real(0), c21, v30);
      const real v32 = real(v15 == v23);
      const real v33 = real(v15 != v15);
      const real v34 = kw_select(v33 != real(0), c24, real(4.0));
      const real v35 = kw_select(v32 != real(0), c23, v34);
      const real v36 = kw_minimum(v31, v35);
      const real v37 = real(v21 == v23);
      const real v38 = real(v21 != v21);
      const real v39 = kw_select(v38 != real(0), c26, real(4.0));
      const real v40 = kw_select(v37 != real(0), c25, v39);
      const real v41 = kw_minimum(v40, v27);
      const real v42 = kw_minimum(v36, v41);
      const real v43 = real(v27 == v42);
      const real v44 = real(in7[131072 * i0 + 4096 * i1 + 64 * i2 + i3]);
      const real v45 = v44 + real(0.0);
      const real v46 = kw_select(v43 != real(0), v45, real(0.0));
      const real v47 = kw_select(v5 != real(0), real(0.0), v46);
      const real v48 = real(v21 <= real(0.0));
      const real v49 = real(v40 == v42);
      const real v50 = kw_select(v49 != real(0), v45, real(0.0));
      const real v51 = kw_select(v48 != real(0), real(0.0), v50);
      const real v52 = real(v15 <= real(0.0));
      const real v53 = real(v35 == v42);
      const real v54 = kw_select(v53 != real(0), v45, real(0.0));
      const real v55 = kw_select(v52 != real(0), real(0.0), v54);
      const real v56 = real(v10 <= real(0.0));
      const real v57 = real(v31 == v42);
      const real v58 = kw_select(v57 != real(0), v45, real(0.0));
      const real v59 = kw_select(v56 != real(0), real(0.0), v58);
      const real v60 = v1 * c7;
      const real v61 = v47 * v60;
      const real v62 = v18 * c7;
      const real v63 = v51 * v62;
      const real v64 = v12 * c7;
      const real v65 = v55 * v64;
      const real v66 = v7 * c7;
      const real v67 = v59 * v66;
      out0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3] = v47;
      out0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 1] = v51;
      out0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 128] = v55;
      out0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 129] = v59;
      out1[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3] = v61;
      out1[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 1] = v63;
      out1[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 128] = v65;
      out1[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 129] = v67;
    }
  }
  return nullptr;
}

//// k12_mean_sum
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Rows of 32 x 16384 for each of 32: sum.
static const char* k12_mean_sum(const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1,
                                void* workspace) {
  using real = float;
  // Chunk results, then merged in order into results[point * 1 + component].
  real* const results = static_cast<real*>(workspace);
  {
    struct Partial0 { kw_sum_of<real> accumulator0; };
    Partial0* const partial = reinterpret_cast<Partial0*>(static_cast<char*>(workspace) + 256);
    #pragma omp parallel for schedule(static)
    for (int64_t task = 0; task < 1024; ++task) {
      const int64_t point = task / 32;
      const int64_t chunk = task % 32;
      const int64_t first = chunk * 16;
      const int64_t last = first + 16 < 512 ? first + 16 : 512;
      const int64_t i0 = point;
      kw_sum_of<real> accumulator0;
      for (int64_t segment = first; segment < last; ++segment) {
        const int64_t r0 = segment / 16;
        const int64_t block = segment % 16;
        const int64_t begin = block * 1024;
        const int64_t end = begin + 1024 < 16384 ? begin + 1024 : 16384;
        accumulator0.block(in0 + 16384 * i0 + 524288 * r0 + begin, end - begin);
      }
      partial[task] = {accumulator0};
    }
    for (int64_t point = 0; point < 32; ++point) {
      Partial0 whole = partial[point * 32];
      for (int64_t chunk = 1; chunk < 32; ++chunk) {
        whole.accumulator0.merge(partial[point * 32 + chunk].accumulator0);
      }
      results[point] = whole.accumulator0.value();
    }
  }
  for (int64_t point = 0; point < 32; ++point) {
    const int64_t i0 = point;
    const real reduced0 = results[point];
    const real c0 = reduced0 / real(524288.0);
    out0[i0] = c0;
    out1[i0] = reduced0;
  }
  return nullptr;
}

//// k13_mul
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Pointwise over 32 x 32 x 16384.
static const char* k13_mul(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                           const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
                           const float* __restrict__ in6, const float* __restrict__ in7, float* __restrict__ out0,
                           void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 2048; ++task) {
    const int64_t i0 = task / 64;
    const int64_t i1 = task / 2 % 32;
    const int64_t block = task % 2;
    const int64_t first = block * 8192;
    const int64_t last = first + 8192 < 16384 ? first + 8192 : 16384;
    const real c0 = real(in0[i1]);
    const real c1 = real(c0 < real(1000000000000000.0));
    const real c2 = real(in1[i1]);
    const real c3 = c2 + real(1e-05);
    const real c4 = real(1) / kw_sqrt(c3);
    const real c5 = real(1) / c0;
    const real c6 = kw_select(c1 != real(0), c4, c5);
    const real c7 = real(in2[i1]);
    const real c8 = c6 * c7;
    const real c9 = real(in5[i1]);
    const real c10 = real(in6[i1]);
    const real c11 = real(in7[i1]);
    #pragma omp simd
    for (int64_t i2 = first; i2 < last; ++i2) {
      const real v0 = real(in3[524288 * i0 + 16384 * i1 + i2]);
      const real v1 = real(in4[524288 * i0 + 16384 * i1 + i2]);
      const real v2 = v1 - c9;
      const real v3 = v2 * c6;
      const real v4 = v3 * c10;
      const real v5 = kw_unfused_sub(v0, v4);
      const real v6 = v5 - c11;
      const real v7 = c8 * v6;
      out0[524288 * i0 + 16384 * i1 + i2] = v7;
    }
  }
  return nullptr;
}

//// k4_max
// conv_network.py:20: x = self.pool(torch.relu(self.norm1(self.conv1(x))))
// Windows of 2 x 2 for each of 32 x 32 x 64 x 64: max.
static const char* k4_max(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                          const float* __restrict__ in3, const float* __restrict__ in4, float* __restrict__ out0,
                          void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < 65536; ++task) {
    const int64_t i0 = task / 2048;
    const int64_t i1 = task / 64 % 32;
    const int64_t i2 = task % 64;
    const real c0 = real(in1[i1]);
    const real c1 = real(in2[i1]);
    const real c2 = c1 + real(1e-05);
    const real c3 = real(1) / kw_sqrt(c2);
    const real c4 = real(in3[i1]);
    const real c5 = c3 * c4;
    const real c6 = real(in4[i1]);
    #pragma omp simd
    for (int64_t i3 = 0; i3 < 64; ++i3) {
      const real v0 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 129]);
      const real v1 = v0 - c0;
      const real v2 = v1 * c5;
      const real v3 = kw_unfused_add(v2, c6);
      const real v4 = kw_select(v3 < real(0), real(0), v3);
      const real v5 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 128]);
      const real v6 = v5 - c0;
      const real v7 = v6 * c5;
      const real v8 = kw_unfused_add(v7, c6);
      const real v9 = kw_select(v8 < real(0), real(0), v8);
      const real v10 = kw_maximum(v4, v9);
      const real v11 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3 + 1]);
      const real v12 = v11 - c0;
      const real v13 = v12 * c5;
      const real v14 = kw_unfused_add(v13, c6);
      const real v15 = kw_select(v14 < real(0), real(0), v14);
      const real v16 = real(in0[524288 * i0 + 16384 * i1 + 256 * i2 + 2 * i3]);
      const real v17 = v16 - c0;
      const real v18 = v17 * c5;
      const real v19 = kw_unfused_add(v18, c6);
      const real v20 = kw_select(v19 < real(0), real(0), v19);
      const real v21 = kw_maximum(v15, v20);
      const real v22 = kw_maximum(v10, v21);
      out0[131072 * i0 + 4096 * i1 + 64 * i2 + i3] = v22;
    }
  }
  return nullptr;
}

//// k5_mean
// conv_network.py:21: x = self.pool(torch.relu(self.norm2(self.conv2(x))))
// conv_network.py:22: return self.classify(x.mean(dim=(2, 3)))
// Rows of 32 x 32 for each of 32 x 64: sum.
static const char* k5_mean(const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
                           const float* __restrict__ in3, const float* __restrict__ in4, float* __restrict__ out0,
                           void* workspace) {
  using real = float;
  (void)workspace;
  #pragma omp parallel for schedule(static)
  for (int64_t point = 0; point < 2048; ++point) {
    const int64_t i0 = point / 64;
    const int64_t i1 = point % 64;
    alignas(64) real values0[1024];
    kw_sum_of<real> accumulator0;
    const real c0_0 = real(in1[i1]);
    const real c0_1 = real(in2[i1]);
    const real c0_2 = c0_1 + real(1e-05);
    const real c0_3 = real(1) / kw_sqrt(c0_2);
    const real c0_4 = real(in3[i1]);
    const real c0_5 = c0_3 * c0_4;
    const real c0_6 = real(in4[i1]);
    {
      constexpr int64_t from = 0, to = 32;
      for (int64_t segment = from; segment < to; ++segment) {
        const int64_t r0 = segment;
        constexpr int64_t begin = 0, end = 32;
        #pragma omp simd
        for (int64_t r1 = begin; r1 < end; ++r1) {
          const real v0 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 65]);
          const real v1 = v0 - c0_0;
          const real v2 = v1 * c0_5;
          const real v3 = kw_unfused_add(v2, c0_6);
          const real v4 = kw_select(v3 < real(0), real(0), v3);
          const real v5 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 64]);
          const real v6 = v5 - c0_0;
          const real v7 = v6 * c0_5;
          const real v8 = kw_unfused_add(v7, c0_6);
          const real v9 = kw_select(v8 < real(0), real(0), v8);
          const real v10 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1 + 1]);
          const real v11 = v10 - c0_0;
          const real v12 = v11 * c0_5;
          const real v13 = kw_unfused_add(v12, c0_6);
          const real v14 = kw_select(v13 < real(0), real(0), v13);
          const real v15 = real(in0[262144 * i0 + 4096 * i1 + 128 * r0 + 2 * r1]);
          const real v16 = v15 - c0_0;
          const real v17 = v16 * c0_5;
          const real v18 = kw_unfused_add(v17, c0_6);
          const real v19 = kw_select(v18 < real(0), real(0), v18);
          const real v20 = kw_maximum(v14, v19);
          const real v21 = kw_maximum(v9, v20);
          const real v22 = kw_maximum(v4, v21);
          values0[32 * (segment - from) + r1] = v22;
        }
      }
      accumulator0.block(values0, 32 * (to - from));
    }
    const real reduced0 = accumulator0.value();
    const real t7 = reduced0 / real(1024.0);
    out0[64 * i0 + i1] = t7;
  }
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* ) {
    auto* _t17_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm1_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm1_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm1_running_mean_out3 = static_cast<float*>(tensors[3]);
    auto* norm1_running_var_out4 = static_cast<float*>(tensors[4]);
    auto* norm1_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm1_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* amax_k1_ptr = static_cast<float*>(tensors[7]);
    auto* workspace = static_cast<char*>(tensors[8]);
    auto* mean_k0_0_ptr = reinterpret_cast<float*>(workspace);
    auto* std_k0_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* var_k0_2_ptr = reinterpret_cast<float*>(workspace + 512);
    if (const char* failure = k0_mean_moments_add(_t17_convolution_ptr, norm1_running_mean_ptr, norm1_running_var_ptr,
                                                  mean_k0_0_ptr, std_k0_1_ptr, var_k0_2_ptr, norm1_running_mean_out3,
                                                  norm1_running_var_out4, workspace + 768)) return failure;
    if (const char* failure = k1_max(_t17_convolution_ptr, mean_k0_0_ptr, std_k0_1_ptr, var_k0_2_ptr, norm1_weight_ptr,
                                     norm1_bias_ptr, amax_k1_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_1(void* const* tensors, void* ) {
    auto* _t25_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm2_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm2_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm2_running_mean_out3 = static_cast<float*>(tensors[3]);
    auto* norm2_running_var_out4 = static_cast<float*>(tensors[4]);
    auto* norm2_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm2_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* mean_k3_ptr = static_cast<float*>(tensors[7]);
    alignas(256) char workspace[768];
    auto* mean_k2_0_ptr = reinterpret_cast<float*>(workspace);
    auto* std_k2_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* var_k2_2_ptr = reinterpret_cast<float*>(workspace + 512);
    if (const char* failure = k2_mean_moments_add(_t25_convolution_ptr, norm2_running_mean_ptr, norm2_running_var_ptr,
                                                  mean_k2_0_ptr, std_k2_1_ptr, var_k2_2_ptr, norm2_running_mean_out3,
                                                  norm2_running_var_out4, nullptr)) return failure;
    if (const char* failure = k3_mean(_t25_convolution_ptr, mean_k2_0_ptr, std_k2_1_ptr, var_k2_2_ptr, norm2_weight_ptr,
                                      norm2_bias_ptr, mean_k3_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_0(void* const* tensors, void* ) {
    auto* _t17_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm1_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm1_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm1_running_mean_out3 = static_cast<float*>(tensors[3]);
    auto* norm1_running_var_out4 = static_cast<float*>(tensors[4]);
    auto* norm1_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm1_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* amax_k1_ptr = static_cast<float*>(tensors[7]);
    auto* workspace = static_cast<char*>(tensors[8]);
    auto* mean_k0_0_ptr = reinterpret_cast<float*>(workspace);
    auto* std_k0_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* var_k0_2_ptr = reinterpret_cast<float*>(workspace + 512);
    if (const char* failure = k0_mean_moments_add(_t17_convolution_ptr, norm1_running_mean_ptr, norm1_running_var_ptr,
                                                  mean_k0_0_ptr, std_k0_1_ptr, var_k0_2_ptr, norm1_running_mean_out3,
                                                  norm1_running_var_out4, workspace + 768)) return failure;
    if (const char* failure = k1_max(_t17_convolution_ptr, mean_k0_0_ptr, std_k0_1_ptr, var_k0_2_ptr, norm1_weight_ptr,
                                     norm1_bias_ptr, amax_k1_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_1(void* const* tensors, void* ) {
    auto* _t25_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm2_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm2_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm2_running_mean_out3 = static_cast<float*>(tensors[3]);
    auto* norm2_running_var_out4 = static_cast<float*>(tensors[4]);
    auto* norm2_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm2_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* mean_k3_ptr = static_cast<float*>(tensors[7]);
    alignas(256) char workspace[768];
    auto* mean_k2_0_ptr = reinterpret_cast<float*>(workspace);
    auto* std_k2_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* var_k2_2_ptr = reinterpret_cast<float*>(workspace + 512);
    if (const char* failure = k2_mean_moments_add(_t25_convolution_ptr, norm2_running_mean_ptr, norm2_running_var_ptr,
                                                  mean_k2_0_ptr, std_k2_1_ptr, var_k2_2_ptr, norm2_running_mean_out3,
                                                  norm2_running_var_out4, nullptr)) return failure;
    if (const char* failure = k3_mean(_t25_convolution_ptr, mean_k2_0_ptr, std_k2_1_ptr, var_k2_2_ptr, norm2_weight_ptr,
                                      norm2_bias_ptr, mean_k3_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* ) {
    auto* saved_0_ptr = static_cast<const float*>(tensors[0]);
    auto* std_k6_0_ptr = static_cast<float*>(tensors[1]);
    auto* var_k6_1_ptr = static_cast<float*>(tensors[2]);
    auto* mean_k6_2_ptr = static_cast<float*>(tensors[3]);
    auto* saved_2_ptr = static_cast<const float*>(tensors[4]);
    auto* norm2_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm2_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* _t13_places_ptr = static_cast<const int32_t*>(tensors[7]);
    auto* _t14_matmul_ptr = static_cast<const float*>(tensors[8]);
    auto* sum_k9_1_ptr = static_cast<float*>(tensors[9]);
    auto* sum_k9_1_2_ptr = static_cast<float*>(tensors[10]);
    auto* mul_k10_ptr = static_cast<float*>(tensors[11]);
    auto* workspace = static_cast<char*>(tensors[12]);
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* where_k8_0_ptr = reinterpret_cast<float*>(workspace + 768);
    auto* mul_k8_1_ptr = reinterpret_cast<float*>(workspace + 33555200);
    auto* mean_k9_0_ptr = reinterpret_cast<float*>(workspace + 67109632);
    auto* mean_k9_0_2_ptr = reinterpret_cast<float*>(workspace + 67109888);
    if (const char* failure = k6_moments_mean(saved_0_ptr, std_k6_0_ptr, var_k6_1_ptr, mean_k6_2_ptr,
                                              workspace + 67110144)) return failure;
    if (const char* failure = k7_moments_mean(saved_2_ptr, std_k7_0_ptr, var_k7_1_ptr, mean_k7_2_ptr,
                                              nullptr)) return failure;
    if (const char* failure = k8_max_min_where(saved_2_ptr, mean_k7_2_ptr, std_k7_0_ptr, var_k7_1_ptr, norm2_weight_ptr,
                                               norm2_bias_ptr, _t13_places_ptr, _t14_matmul_ptr, where_k8_0_ptr,
                                               mul_k8_1_ptr, nullptr)) return failure;
    if (const char* failure = k9_mean_sum(where_k8_0_ptr, mean_k9_0_ptr, sum_k9_1_ptr, nullptr)) return failure;
    if (const char* failure = k9_mean_sum(mul_k8_1_ptr, mean_k9_0_2_ptr, sum_k9_1_2_ptr, nullptr)) return failure;
    if (const char* failure = k10_mul(std_k7_0_ptr, var_k7_1_ptr, norm2_weight_ptr, where_k8_0_ptr, saved_2_ptr,
                                      mean_k7_2_ptr, mean_k9_0_2_ptr, mean_k9_0_ptr, mul_k10_ptr,
                                      nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_1(void* const* tensors, void* ) {
    auto* saved_0_ptr = static_cast<const float*>(tensors[0]);
    auto* mean_k6_2_ptr = static_cast<const float*>(tensors[1]);
    auto* std_k6_0_ptr = static_cast<const float*>(tensors[2]);
    auto* var_k6_1_ptr = static_cast<const float*>(tensors[3]);
    auto* norm1_weight_ptr = static_cast<const float*>(tensors[4]);
    auto* norm1_bias_ptr = static_cast<const float*>(tensors[5]);
    auto* _t13_places_ptr = static_cast<const int32_t*>(tensors[6]);
    auto* _t34_item_ptr = static_cast<const float*>(tensors[7]);
    auto* sum_k12_1_ptr = static_cast<float*>(tensors[8]);
    auto* sum_k12_1_2_ptr = static_cast<float*>(tensors[9]);
    auto* mul_k13_ptr = static_cast<float*>(tensors[10]);
    auto* workspace = static_cast<char*>(tensors[11]);
    auto* where_k11_0_ptr = reinterpret_cast<float*>(workspace);
    auto* mul_k11_1_ptr = reinterpret_cast<float*>(workspace + 67108864);
    auto* mean_k12_0_ptr = reinterpret_cast<float*>(workspace + 134217728);
    auto* mean_k12_0_2_ptr = reinterpret_cast<float*>(workspace + 134217984);
    if (const char* failure = k11_max_min_where(saved_0_ptr, mean_k6_2_ptr, std_k6_0_ptr, var_k6_1_ptr,
                                                norm1_weight_ptr, norm1_bias_ptr, _t13_places_ptr, _t34_item_ptr,
                                                where_k11_0_ptr, mul_k11_1_ptr, nullptr)) return failure;
    if (const char* failure = k12_mean_sum(mul_k11_1_ptr, mean_k12_0_ptr, sum_k12_1_ptr,
                                           workspace + 134218240)) return failure;
    if (const char* failure = k12_mean_sum(where_k11_0_ptr, mean_k12_0_2_ptr, sum_k12_1_2_ptr,
                                           workspace + 134218240)) return failure;
    if (const char* failure = k13_mul(std_k6_0_ptr, var_k6_1_ptr, norm1_weight_ptr, where_k11_0_ptr, saved_0_ptr,
                                      mean_k6_2_ptr, mean_k12_0_ptr, mean_k12_0_2_ptr, mul_k13_ptr,
                                      nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* ) {
    auto* saved_0_ptr = static_cast<const float*>(tensors[0]);
    auto* std_k6_0_ptr = static_cast<float*>(tensors[1]);
    auto* var_k6_1_ptr = static_cast<float*>(tensors[2]);
    auto* mean_k6_2_ptr = static_cast<float*>(tensors[3]);
    auto* saved_2_ptr = static_cast<const float*>(tensors[4]);
    auto* norm2_weight_ptr = static_cast<const float*>(tensors[5]);
    auto* norm2_bias_ptr = static_cast<const float*>(tensors[6]);
    auto* _t13_places_ptr = static_cast<const int32_t*>(tensors[7]);
    auto* _t14_matmul_ptr = static_cast<const float*>(tensors[8]);
    auto* sum_k9_1_ptr = static_cast<float*>(tensors[9]);
    auto* sum_k9_1_2_ptr = static_cast<float*>(tensors[10]);
    auto* mul_k10_ptr = static_cast<float*>(tensors[11]);
    auto* workspace = static_cast<char*>(tensors[12]);
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 256);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* where_k8_0_ptr = reinterpret_cast<float*>(workspace + 768);
    auto* mul_k8_1_ptr = reinterpret_cast<float*>(workspace + 33555200);
    auto* mean_k9_0_ptr = reinterpret_cast<float*>(workspace + 67109632);
    auto* mean_k9_0_2_ptr = reinterpret_cast<float*>(workspace + 67109888);
    if (const char* failure = k6_moments_mean(saved_0_ptr, std_k6_0_ptr, var_k6_1_ptr, mean_k6_2_ptr,
                                              workspace + 67110144)) return failure;
    if (const char* failure = k7_moments_mean(saved_2_ptr, std_k7_0_ptr, var_k7_1_ptr, mean_k7_2_ptr,
                                              nullptr)) return failure;
    if (const char* failure = k8_max_min_where(saved_2_ptr, mean_k7_2_ptr, std_k7_0_ptr, var_k7_1_ptr, norm2_weight_ptr,
                                               norm2_bias_ptr, _t13_places_ptr, _t14_matmul_ptr, where_k8_0_ptr,
                                               mul_k8_1_ptr, nullptr)) return failure;
    if (const char* failure = k9_mean_sum(where_k8_0_ptr, mean_k9_0_ptr, sum_k9_1_ptr, nullptr)) return failure;
    if (const char* failure = k9_mean_sum(mul_k8_1_ptr, mean_k9_0_2_ptr, sum_k9_1_2_ptr, nullptr)) return failure;
    if (const char* failure = k10_mul(std_k7_0_ptr, var_k7_1_ptr, norm2_weight_ptr, where_k8_0_ptr, saved_2_ptr,
                                      mean_k7_2_ptr, mean_k9_0_2_ptr, mean_k9_0_ptr, mul_k10_ptr,
                                      nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_1(void* const* tensors, void* ) {
    auto* saved_0_ptr = static_cast<const float*>(tensors[0]);
    auto* mean_k6_2_ptr = static_cast<const float*>(tensors[1]);
    auto* std_k6_0_ptr = static_cast<const float*>(tensors[2]);
    auto* var_k6_1_ptr = static_cast<const float*>(tensors[3]);
    auto* norm1_weight_ptr = static_cast<const float*>(tensors[4]);
    auto* norm1_bias_ptr = static_cast<const float*>(tensors[5]);
    auto* _t13_places_ptr = static_cast<const int32_t*>(tensors[6]);
    auto* _t34_item_ptr = static_cast<const float*>(tensors[7]);
    auto* sum_k12_1_ptr = static_cast<float*>(tensors[8]);
    auto* sum_k12_1_2_ptr = static_cast<float*>(tensors[9]);
    auto* mul_k13_ptr = static_cast<float*>(tensors[10]);
    auto* workspace = static_cast<char*>(tensors[11]);
    auto* where_k11_0_ptr = reinterpret_cast<float*>(workspace);
    auto* mul_k11_1_ptr = reinterpret_cast<float*>(workspace + 67108864);
    auto* mean_k12_0_ptr = reinterpret_cast<float*>(workspace + 134217728);
    auto* mean_k12_0_2_ptr = reinterpret_cast<float*>(workspace + 134217984);
    if (const char* failure = k11_max_min_where(saved_0_ptr, mean_k6_2_ptr, std_k6_0_ptr, var_k6_1_ptr,
                                                norm1_weight_ptr, norm1_bias_ptr, _t13_places_ptr, _t34_item_ptr,
                                                where_k11_0_ptr, mul_k11_1_ptr, nullptr)) return failure;
    if (const char* failure = k12_mean_sum(mul_k11_1_ptr, mean_k12_0_ptr, sum_k12_1_ptr,
                                           workspace + 134218240)) return failure;
    if (const char* failure = k12_mean_sum(where_k11_0_ptr, mean_k12_0_2_ptr, sum_k12_1_2_ptr,
                                           workspace + 134218240)) return failure;
    if (const char* failure = k13_mul(std_k6_0_ptr, var_k6_1_ptr, norm1_weight_ptr, where_k11_0_ptr, saved_0_ptr,
                                      mean_k6_2_ptr, mean_k12_0_ptr, mean_k12_0_2_ptr, mul_k13_ptr,
                                      nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_inference_0(void* const* tensors, void* ) {
    auto* _t15_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm1_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm1_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm1_weight_ptr = static_cast<const float*>(tensors[3]);
    auto* norm1_bias_ptr = static_cast<const float*>(tensors[4]);
    auto* amax_k4_ptr = static_cast<float*>(tensors[5]);
    if (const char* failure = k4_max(_t15_convolution_ptr, norm1_running_mean_ptr, norm1_running_var_ptr,
                                     norm1_weight_ptr, norm1_bias_ptr, amax_k4_ptr, nullptr)) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_inference_1(void* const* tensors, void* ) {
    auto* _t18_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* norm2_running_mean_ptr = static_cast<const float*>(tensors[1]);
    auto* norm2_running_var_ptr = static_cast<const float*>(tensors[2]);
    auto* norm2_weight_ptr = static_cast<const float*>(tensors[3]);
    auto* norm2_bias_ptr = static_cast<const float*>(tensors[4]);
    auto* mean_k5_ptr = static_cast<float*>(tensors[5]);
    if (const char* failure = k5_mean(_t18_convolution_ptr, norm2_running_mean_ptr, norm2_running_var_ptr,
                                      norm2_weight_ptr, norm2_bias_ptr, mean_k5_ptr, nullptr)) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, conv1_weight, conv1_bias, norm1_weight, norm1_bias, conv2_weight,
                           conv2_bias, norm2_weight, norm2_bias, classify_weight, classify_bias,
                           norm1_num_batches_tracked, norm2_num_batches_tracked, norm1_running_mean, norm1_running_var,
                           norm2_running_mean, norm2_running_var):
    """The program of training mode: 4 kernels, 3 torch calls."""
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t17_convolution = torch.nn.functional.conv2d(x, conv1_weight, conv1_bias, (1, 1), (1, 1), (1, 1), 1).contiguous()
    amax_k1 = torch.empty((32, 32, 64, 64, 1, 1), dtype=torch.float32, device=_device)
    workspace = torch.empty(34048, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_0", _stream, _t17_convolution, norm1_running_mean, norm1_running_var,
                         norm1_running_mean, norm1_running_var, norm1_weight, norm1_bias, amax_k1, workspace)
    torch.autograd.graph.increment_version((norm1_running_mean, norm1_running_var,))
    del _t17_convolution, workspace
    _t24_reshape = amax_k1.reshape((32, 32, 64, 64))
    del amax_k1
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t25_convolution = torch.nn.functional.conv2d(_t24_reshape, conv2_weight, conv2_bias, (1, 1), (1, 1), (1, 1),
                                                  1).contiguous()
    del _t24_reshape
    mean_k3 = torch.empty((32, 64, 1, 1), dtype=torch.float32, device=_device)
    _kernelwright_launch("kernelwright_training_1", _stream, _t25_convolution, norm2_running_mean, norm2_running_var,
                         norm2_running_mean, norm2_running_var, norm2_weight, norm2_bias, mean_k3)
    torch.autograd.graph.increment_version((norm2_running_mean, norm2_running_var,))
    del _t25_convolution
    _t32_reshape = mean_k3.reshape((32, 64))
    del mean_k3
    # return self.classify(x.mean(dim=(2, 3)))
    _t33_linear = torch.nn.functional.linear(_t32_reshape, classify_weight, classify_bias)
    norm1_num_batches_tracked.add_(1)
    norm2_num_batches_tracked.add_(1)
    return (_kernelwright_laid(_t33_linear, (10, 1)),)


def _kernelwright_training_saving(_device, _stream, x, conv1_weight, conv1_bias, norm1_weight, norm1_bias, conv2_weight,
                                  conv2_bias, norm2_weight, norm2_bias, classify_weight, classify_bias,
                                  norm1_num_batches_tracked, norm2_num_batches_tracked, norm1_running_mean,
                                  norm1_running_var, norm2_running_mean, norm2_running_var):
    """The program of training saving mode: 4 kernels, 3 torch calls."""
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t17_convolution_shown = torch.nn.functional.conv2d(x, conv1_weight, conv1_bias, (1, 1), (1, 1), (1, 1), 1)
    _t17_convolution = _t17_convolution_shown.contiguous()
    amax_k1 = torch.empty((32, 32, 64, 64), dtype=torch.float32, device=_device)
    workspace = torch.empty(34048, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_saving_0", _stream, _t17_convolution, norm1_running_mean,
                         norm1_running_var, norm1_running_mean, norm1_running_var, norm1_weight, norm1_bias, amax_k1,
                         workspace)
    torch.autograd.graph.increment_version((norm1_running_mean, norm1_running_var,))
    del workspace
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t25_convolution_shown = torch.nn.functional.conv2d(amax_k1, conv2_weight, conv2_bias, (1, 1), (1, 1), (1, 1), 1)
    _t25_convolution = _t25_convolution_shown.contiguous()
    mean_k3 = torch.empty((32, 64, 1, 1), dtype=torch.float32, device=_device)
    _kernelwright_launch("kernelwright_training_saving_1", _stream, _t25_convolution, norm2_running_mean,
                         norm2_running_var, norm2_running_mean, norm2_running_var, norm2_weight, norm2_bias, mean_k3)
    torch.autograd.graph.increment_version((norm2_running_mean, norm2_running_var,))
    _t32_reshape = mean_k3.reshape((32, 64))
    # return self.classify(x.mean(dim=(2, 3)))
    _t33_linear = torch.nn.functional.linear(_t32_reshape, classify_weight, classify_bias)
    norm1_num_batches_tracked.add_(1)
    norm2_num_batches_tracked.add_(1)
    return (_kernelwright_laid(_t33_linear, (10, 1)), _t17_convolution_shown, amax_k1, _t25_convolution_shown, mean_k3,)


def _kernelwright_training_backward_of_parameters_once(_device):
    """Tensors of training_backward_of_parameters mode that depend on no input."""
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t13_places = torch.arange(2, dtype=torch.int32, device=_device).contiguous()
    return (_t13_places,)


def _kernelwright_training_backward_of_parameters(_device, _stream, x, gradient_of_output_0, saved_0, saved_1, saved_2,
                                                  saved_3, norm1_weight, norm1_bias, norm2_weight, norm2_bias,
                                                  classify_weight, conv2_weight, conv1_weight):
    """The program of training backward of parameters mode: 10 kernels, 10 torch calls."""
    (_t13_places,) = _kernelwright_once(_kernelwright_training_backward_of_parameters_once, _device)
    # return self.classify(x.mean(dim=(2, 3)))
    _t14_matmul = torch.matmul(gradient_of_output_0, classify_weight).contiguous()
    _t15_permute = gradient_of_output_0.permute((1, 0))
    _t16_reshape = saved_3.reshape((32, 64))
    # return self.classify(x.mean(dim=(2, 3)))
    _t17_matmul = torch.matmul(_t15_permute, _t16_reshape)
    del _t15_permute, _t16_reshape
    # return self.classify(x.mean(dim=(2, 3)))
    _t18_sum = gradient_of_output_0.sum((0,), keepdim=True)
    _t19_reshape = _t18_sum.reshape((10,))
    del _t18_sum
    std_k6_0 = torch.empty((1, 32, 1, 1), dtype=torch.float32, device=_device)
    var_k6_1 = torch.empty_like(std_k6_0)
    mean_k6_2 = torch.empty_like(std_k6_0)
    sum_k9_1 = torch.empty_like(norm2_weight)
    sum_k9_1_2 = torch.empty_like(norm2_weight)
    mul_k10 = torch.empty_like(saved_2)
    workspace = torch.empty(67143424, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, saved_0, std_k6_0, var_k6_1,
                         mean_k6_2, saved_2, norm2_weight, norm2_bias, _t13_places, _t14_matmul, sum_k9_1, sum_k9_1_2,
                         mul_k10, workspace)
    del _t14_matmul, workspace
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t33_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k10, saved_1, conv2_weight, [64],
        [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    del mul_k10
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t34_item = _t33_convolution_backward[0].contiguous()
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t35_item = _t33_convolution_backward[1]
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t36_item = _t33_convolution_backward[2]
    del _t33_convolution_backward
    sum_k12_1 = torch.empty_like(norm1_weight)
    sum_k12_1_2 = torch.empty_like(norm1_weight)
    mul_k13 = torch.empty_like(saved_0)
    workspace = torch.empty(134251264, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_1", _stream, saved_0, mean_k6_2, std_k6_0,
                         var_k6_1, norm1_weight, norm1_bias, _t13_places, _t34_item, sum_k12_1, sum_k12_1_2, mul_k13,
                         workspace)
    del _t34_item, std_k6_0, var_k6_1, mean_k6_2, workspace
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t46_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k13, x, conv1_weight, [32], [1, 1],
        [1, 1], [1, 1], False, [0, 0], 1, [False, True, True])
    del mul_k13
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t47_item = _t46_convolution_backward[1]
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t48_item = _t46_convolution_backward[2]
    return (_t47_item, _t48_item, sum_k12_1, sum_k12_1_2, _t35_item, _t36_item, sum_k9_1_2, sum_k9_1, _t17_matmul,
            _t19_reshape,)


def _kernelwright_training_backward_once(_device):
    """Tensors of training_backward mode that depend on no input."""
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t13_places = torch.arange(2, dtype=torch.int32, device=_device).contiguous()
    return (_t13_places,)


def _kernelwright_training_backward(_device, _stream, x, gradient_of_output_0, saved_0, saved_1, saved_2, saved_3,
                                    norm1_weight, norm1_bias, norm2_weight, norm2_bias, classify_weight, conv2_weight,
                                    conv1_weight):
    """The program of training backward mode: 10 kernels, 11 torch calls."""
    (_t13_places,) = _kernelwright_once(_kernelwright_training_backward_once, _device)
    # return self.classify(x.mean(dim=(2, 3)))
    _t14_matmul = torch.matmul(gradient_of_output_0, classify_weight).contiguous()
    _t15_permute = gradient_of_output_0.permute((1, 0))
    _t16_reshape = saved_3.reshape((32, 64))
    # return self.classify(x.mean(dim=(2, 3)))
    _t17_matmul = torch.matmul(_t15_permute, _t16_reshape)
    del _t15_permute, _t16_reshape
    # return self.classify(x.mean(dim=(2, 3)))
    _t18_sum = gradient_of_output_0.sum((0,), keepdim=True)
    _t19_reshape = _t18_sum.reshape((10,))
    del _t18_sum
    std_k6_0 = torch.empty((1, 32, 1, 1), dtype=torch.float32, device=_device)
    var_k6_1 = torch.empty_like(std_k6_0)
    mean_k6_2 = torch.empty_like(std_k6_0)
    sum_k9_1 = torch.empty_like(norm2_weight)
    sum_k9_1_2 = torch.empty_like(norm2_weight)
    mul_k10 = torch.empty_like(saved_2)
    workspace = torch.empty(67143424, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, saved_0, std_k6_0, var_k6_1, mean_k6_2, saved_2,
                         norm2_weight, norm2_bias, _t13_places, _t14_matmul, sum_k9_1, sum_k9_1_2, mul_k10, workspace)
    del _t14_matmul, workspace
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t33_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k10, saved_1, conv2_weight, [64],
        [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    del mul_k10
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t34_item = _t33_convolution_backward[0].contiguous()
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t35_item = _t33_convolution_backward[1]
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t36_item = _t33_convolution_backward[2]
    del _t33_convolution_backward
    sum_k12_1 = torch.empty_like(norm1_weight)
    sum_k12_1_2 = torch.empty_like(norm1_weight)
    mul_k13 = torch.empty_like(saved_0)
    workspace = torch.empty(134251264, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_1", _stream, saved_0, mean_k6_2, std_k6_0, var_k6_1,
                         norm1_weight, norm1_bias, _t13_places, _t34_item, sum_k12_1, sum_k12_1_2, mul_k13, workspace)
    del _t34_item, std_k6_0, var_k6_1, mean_k6_2, workspace
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t46_convolution_backward = torch.ops.aten.convolution_backward.default(mul_k13, x, conv1_weight, [32], [1, 1],
        [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    del mul_k13
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t47_item = _t46_convolution_backward[0]
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t48_item = _t46_convolution_backward[1]
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t49_item = _t46_convolution_backward[2]
    return (_t47_item, _t48_item, _t49_item, sum_k12_1, sum_k12_1_2, _t35_item, _t36_item, sum_k9_1_2, sum_k9_1,
            _t17_matmul, _t19_reshape,)


def _kernelwright_inference(_device, _stream, x, conv1_weight, conv1_bias, norm1_running_mean, norm1_running_var,
                            norm1_weight, norm1_bias, conv2_weight, conv2_bias, norm2_running_mean, norm2_running_var,
                            norm2_weight, norm2_bias, classify_weight, classify_bias):
    """The program of inference mode: 2 kernels, 3 torch calls."""
    # x = self.pool(torch.relu(self.norm1(self.conv1(x))))
    _t15_convolution = torch.nn.functional.conv2d(x, conv1_weight, conv1_bias, (1, 1), (1, 1), (1, 1), 1).contiguous()
    amax_k4 = torch.empty((32, 32, 64, 64, 1, 1), dtype=torch.float32, device=_device)
    _kernelwright_launch("kernelwright_inference_0", _stream, _t15_convolution, norm1_running_mean, norm1_running_var,
                         norm1_weight, norm1_bias, amax_k4)
    del _t15_convolution
    _t17_reshape = amax_k4.reshape((32, 32, 64, 64))
    del amax_k4
    # x = self.pool(torch.relu(self.norm2(self.conv2(x))))
    _t18_convolution = torch.nn.functional.conv2d(_t17_reshape, conv2_weight, conv2_bias, (1, 1), (1, 1), (1, 1),
                                                  1).contiguous()
    del _t17_reshape
    mean_k5 = torch.empty((32, 64, 1, 1), dtype=torch.float32, device=_device)
    _kernelwright_launch("kernelwright_inference_1", _stream, _t18_convolution, norm2_running_mean, norm2_running_var,
                         norm2_weight, norm2_bias, mean_k5)
    del _t18_convolution
    _t20_reshape = mean_k5.reshape((32, 64))
    del mean_k5
    # return self.classify(x.mean(dim=(2, 3)))
    _t21_linear = torch.nn.functional.linear(_t20_reshape, classify_weight, classify_bias)
    return (_kernelwright_laid(_t21_linear, (10, 1)),)


# What the kernels were built for; elsewhere the original computation runs -------------------------------------------


_KERNELWRIGHT_MODEL = {
    "modules": {'conv1': 'torch.nn.modules.conv.Conv2d', 'norm1': 'torch.nn.modules.batchnorm.BatchNorm2d',
                'conv2': 'torch.nn.modules.conv.Conv2d', 'norm2': 'torch.nn.modules.batchnorm.BatchNorm2d',
                'pool': 'torch.nn.modules.pooling.MaxPool2d', 'classify': 'torch.nn.modules.linear.Linear'},
    "attributes": {
        'conv1': {'in_channels': 3, 'out_channels': 32, 'kernel_size': ('tuple', 3, 3), 'stride': ('tuple', 1, 1),
                  'padding': ('tuple', 1, 1), 'dilation': ('tuple', 1, 1), 'transposed': False,
                  'output_padding': ('tuple', 0, 0), 'groups': 1, 'padding_mode': 'zeros',
                  '_reversed_padding_repeated_twice': ('tuple', 1, 1, 1, 1)},
        'norm1': {'num_features': 32, 'eps': 1e-05, 'momentum': 0.1, 'affine': True, 'track_running_stats': True},
        'conv2': {'in_channels': 32, 'out_channels': 64, 'kernel_size': ('tuple', 3, 3), 'stride': ('tuple', 1, 1),
                  'padding': ('tuple', 1, 1), 'dilation': ('tuple', 1, 1), 'transposed': False,
                  'output_padding': ('tuple', 0, 0), 'groups': 1, 'padding_mode': 'zeros',
                  '_reversed_padding_repeated_twice': ('tuple', 1, 1, 1, 1)},
        'norm2': {'num_features': 64, 'eps': 1e-05, 'momentum': 0.1, 'affine': True, 'track_running_stats': True},
        'pool': {'kernel_size': 2, 'stride': 2, 'padding': 0, 'dilation': 1, 'return_indices': False,
                 'ceil_mode': False},
        'classify': {'in_features': 64, 'out_features': 10},
    },
    "held": ('classify.bias', 'classify.weight', 'conv1.bias', 'conv1.weight', 'conv2.bias', 'conv2.weight',
             'norm1.bias', 'norm1.num_batches_tracked', 'norm1.running_mean', 'norm1.running_var', 'norm1.weight',
             'norm2.bias', 'norm2.num_batches_tracked', 'norm2.running_mean', 'norm2.running_var', 'norm2.weight'),
    "default_dtype": torch.float32,
    "inputs": (("x", (32, 3, 128, 128), torch.float32),),
    "seen": (),
    "strides": ((10, 1),),
}

_KERNELWRIGHT_TRAINING = {
    **_KERNELWRIGHT_MODEL,
    "training": True,
    "tensors": {
        "conv1.weight": ((32, 3, 3, 3), torch.float32),
        "conv1.bias": ((32,), torch.float32),
        "norm1.weight": ((32,), torch.float32),
        "norm1.bias": ((32,), torch.float32),
        "conv2.weight": ((64, 32, 3, 3), torch.float32),
        "conv2.bias": ((64,), torch.float32),
        "norm2.weight": ((64,), torch.float32),
        "norm2.bias": ((64,), torch.float32),
        "classify.weight": ((10, 64), torch.float32),
        "classify.bias": ((10,), torch.float32),
        "norm1.num_batches_tracked": ((), torch.int64),
        "norm2.num_batches_tracked": ((), torch.int64),
        "norm1.running_mean": ((32,), torch.float32),
        "norm1.running_var": ((32,), torch.float32),
        "norm2.running_mean": ((64,), torch.float32),
        "norm2.running_var": ((64,), torch.float32),
    },
    "updated": ('norm1.num_batches_tracked', 'norm1.running_mean', 'norm1.running_var', 'norm2.num_batches_tracked',
                'norm2.running_mean', 'norm2.running_var'),
    "run": _kernelwright_training,
    "compiled": None,
    "backward": {"of": (0,), "frozen": (), "saving": {"run": _kernelwright_training_saving, "results": 1},
                 "programs": ({"gives": {'conv1.weight': 0, 'conv1.bias': 1, 'norm1.weight': 2, 'norm1.bias': 3,
                                         'conv2.weight': 4, 'conv2.bias': 5, 'norm2.weight': 6, 'norm2.bias': 7,
                                         'classify.weight': 8, 'classify.bias': 9}, "saved": (1, 2, 3, 4),
                               "tensors": ('norm1.weight', 'norm1.bias', 'norm2.weight', 'norm2.bias',
                                           'classify.weight', 'conv2.weight', 'conv1.weight'), "orders": (),
                               "run": _kernelwright_training_backward_of_parameters},
                              {"gives": {0: 0, 'conv1.weight': 1, 'conv1.bias': 2, 'norm1.weight': 3, 'norm1.bias': 4,
                                         'conv2.weight': 5, 'conv2.bias': 6, 'norm2.weight': 7, 'norm2.bias': 8,
                                         'classify.weight': 9, 'classify.bias': 10}, "saved": (1, 2, 3, 4),
                               "tensors": ('norm1.weight', 'norm1.bias', 'norm2.weight', 'norm2.bias',
                                           'classify.weight', 'conv2.weight', 'conv1.weight'), "orders": (),
                               "run": _kernelwright_training_backward},)},
}

_KERNELWRIGHT_INFERENCE = {
    **_KERNELWRIGHT_MODEL,
    "training": False,
    "tensors": {
        "conv1.weight": ((32, 3, 3, 3), torch.float32),
        "conv1.bias": ((32,), torch.float32),
        "norm1.running_mean": ((32,), torch.float32),
        "norm1.running_var": ((32,), torch.float32),
        "norm1.weight": ((32,), torch.float32),
        "norm1.bias": ((32,), torch.float32),
        "conv2.weight": ((64, 32, 3, 3), torch.float32),
        "conv2.bias": ((64,), torch.float32),
        "norm2.running_mean": ((64,), torch.float32),
        "norm2.running_var": ((64,), torch.float32),
        "norm2.weight": ((64,), torch.float32),
        "norm2.bias": ((64,), torch.float32),
        "classify.weight": ((10, 64), torch.float32),
        "classify.bias": ((10,), torch.float32),
    },
    "updated": (),
    "run": _kernelwright_inference,
    "compiled": (((32, 10), (10, 1), torch.float32),),
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


_kernelwright_kept = {}


def _kernelwright_once(make, device):
    """What ``make`` makes on a device of no input: made once, as nobody writes to it."""
    kept = _kernelwright_kept.get((make, device))
    if kept is None:
        with torch.inference_mode(False), torch.no_grad():
            kept = make(device)
        _kernelwright_kept[make, device] = kept
    return kept
