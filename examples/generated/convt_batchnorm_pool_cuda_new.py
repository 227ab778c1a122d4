"""ModelNew: convt_batchnorm_pool, with custom kernels. Written by kernelwright 0.1.0 for NVIDIA H200.

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


_KERNELWRIGHT_OPERATORS = "convt_batchnorm_pool_1f5185a25f6a"
_KERNELWRIGHT_NAME = "convt_batchnorm_pool"
_KERNELWRIGHT_DEVICE = "cuda"
_KERNELWRIGHT_FLAGS = ['-O3', '-std=c++17', '-lineinfo']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_region_sum', 'k1_region_sum', 'k2_sum', 'k3_channel_energy', 'k4_sum_cast',
                                'k5_sum_cast'],
    "kernelwright_training_backward_of_parameters_0": ['k7_moments_mean_sum', 'k8_mean', 'k9_mul', 'k10_sum'],
    "kernelwright_training_backward_0": ['k7_moments_mean_sum', 'k8_mean', 'k9_mul', 'k10_sum'],
    "kernelwright_inference_0": ['k0_region_sum', 'k1_region_sum', 'k6_sum_cast'],
}

_KERNELWRIGHT_SOURCE = r"""
// Checked CUDA calls and launches: a failure returns a message that names the kernel.
#include <cmath>
#include <cstdint>
#ifdef KERNELWRIGHT_EMULATION
// The emulation's header, which is included before this text, defines the same macros.
#else
#include <cstdio>
#include <cuda_runtime.h>

// Message of a failed call. The text is valid until this thread's next failure. Reading the
// error clears it, so that a later launch does not report it again.
static inline const char* kw_failure(const char* where, const char* call, cudaError_t error) {
  static thread_local char message[768];
  (void)cudaGetLastError();
  snprintf(message, sizeof(message), "%s: %s failed: %s (CUDA error %d)", where, call,
           cudaGetErrorString(error), static_cast<int>(error));
  return message;
}

static inline const char* kw_launch_failure(const char* where, const char* kernel, dim3 grid, dim3 block,
                                            size_t shared_bytes, cudaError_t error) {
  static thread_local char call[256];
  snprintf(call, sizeof(call), "launch of %s<<<(%u, %u, %u), (%u, %u, %u), %zu>>>", kernel, grid.x, grid.y,
           grid.z, block.x, block.y, block.z, shared_bytes);
  return kw_failure(where, call, error);
}

// Grid and block extents. An integer that dim3 would cut to 32 bits becomes 0, which no launch accepts.
static inline dim3 kw_extent(dim3 extent) { return extent; }
static inline dim3 kw_extent(long long extent) {
  return dim3(extent > 0 && extent <= 2147483647LL ? static_cast<unsigned>(extent) : 0u);
}

#define KW_CHECK(where, call)                                                           \
  do {                                                                                  \
    const cudaError_t kw_error_ = (call);                                               \
    if (kw_error_ != cudaSuccess) return kw_failure(where, #call, kw_error_);           \
  } while (0)

#define KW_LAUNCH(where, kernel, grid, block, shared_bytes, stream, ...)                \
  do {                                                                                  \
    const dim3 kw_grid_ = kw_extent(grid);                                              \
    const dim3 kw_block_ = kw_extent(block);                                            \
    const size_t kw_shared_ = (shared_bytes);                                           \
    kernel<<<kw_grid_, kw_block_, kw_shared_, (stream)>>>(__VA_ARGS__);                 \
    const cudaError_t kw_error_ = cudaGetLastError();                                   \
    if (kw_error_ != cudaSuccess)                                                       \
      return kw_launch_failure(where, #kernel, kw_grid_, kw_block_, kw_shared_, kw_error_); \
  } while (0)

// Declares `type* name`, the block's dynamic shared memory, aligned to 16 bytes.
#define KW_DYNAMIC_SHARED(type, name)                                                   \
  extern __shared__ __align__(16) unsigned char kw_dynamic_shared_[];                   \
  type* name = reinterpret_cast<type*>(kw_dynamic_shared_)
#endif  // KERNELWRIGHT_EMULATION

static __device__ __forceinline__ float kw_quick_reciprocal(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return fabsf(x) > 0x1p126f ? copysignf(0.0f, x) : __frcp_rn(fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x);
#endif
}

// x / y. With the scale, what is left of x is a float wherever the quotient is at least
// 2^-126; a product rounded toward zero is infinite only if x is. Where corrections lose an
// infinity or a zero's sign, what preceded them holds, enlarged lest its error hide one.
static __device__ __forceinline__ float kw_divide(float x, float y) {
  const float scale = fmaxf(fabsf(x), fabsf(y)) < 0x1p32f ? 0x1p64f : 0x1p-4f, n = x * scale, d = y * scale;
  const float first = kw_quick_reciprocal(d), r = fmaf(fmaf(-d, first, 1.0f), first, first), rough = __fmul_rz(n, r);
  const float near = fmaf(fmaf(-d, rough, n), r, rough), q = fmaf(fmaf(-d, near, n), r, near);
  return fabsf(q) > 0.0f ? q : n * first * 0x1.00001p0f;
}
static __device__ __forceinline__ double kw_divide(double x, double y) { return x / y; }

static __device__ __forceinline__ float kw_rsqrt(float x) { return rsqrtf(x); }
static __device__ __forceinline__ double kw_rsqrt(double x) { return rsqrt(x); }

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_add(float x, float y) { return __fadd_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_add(double x, double y) { return __dadd_rn(x, y); }

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_sub(float x, float y) { return __fsub_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_sub(double x, double y) { return __dsub_rn(x, y); }

// Four neighbours in one aligned access (16 bytes for float).
template <typename T>
struct alignas(sizeof(T) * 4 < 16 ? sizeof(T) * 4 : 16) kw_four { T at[4]; };
template <typename T>
static __device__ __forceinline__ void kw_read4(T* to, const T* from) {
  const kw_four<T> four = *reinterpret_cast<const kw_four<T>*>(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = four.at[i];
}
template <typename T>
static __device__ __forceinline__ void kw_write4(T* to, const T* from) {
  kw_four<T> four;
#pragma unroll
  for (int i = 0; i < 4; ++i) four.at[i] = from[i];
  *reinterpret_cast<kw_four<T>*>(to) = four;
}

//// k0_region_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows are numbered atom by atom; an atom's rows belong to the same classes.
static __device__ __forceinline__ int k0_region_sum_first_row(int i) { return i * 128; }
static __device__ __forceinline__ int k0_region_sum_offset(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_limit(int i) { (void)i; return 128; }
static __device__ __forceinline__ int k0_region_sum_stride0(int i) { (void)i; return 128; }
struct k0_region_sum_Walk {
  long long offset;  // of the current row in its unit, in elements
  long long jump0;
  __device__ __forceinline__ void start(int atom, long long row) {
    offset = k0_region_sum_offset(atom);
    jump0 = k0_region_sum_stride0(atom); offset += row * jump0;
  }
  __device__ __forceinline__ void next() {
    offset += jump0;
  }
};
static __device__ __forceinline__ int k0_region_sum_place(long long unit, long long& x_offset, long long& out_offset) {
  x_offset = 0; out_offset = 0;
  x_offset += unit * 16384; out_offset += unit;
  return 128;
}
static __device__ __forceinline__ int k0_region_sum_output(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_first_part(int i) { return i; }
static __device__ __forceinline__ int k0_region_sum_part(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_task_atom(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_task_list(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_list_length(int i) { (void)i; return 128; }
static __device__ __forceinline__ int k0_region_sum_list_start(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k0_region_sum_list_step(int i) { (void)i; return 1; }
static __device__ __forceinline__ int k0_region_sum_column(int list, int i) {
    return k0_region_sum_list_start(list) + i * k0_region_sum_list_step(list); }

// A thread's vector of the row; zeros from column `limit` on.
template <bool ragged>
static __device__ __forceinline__ float4 k0_region_sum_load(const float* __restrict__ row, int column, int limit) {
  float4 value = make_float4(0, 0, 0, 0);
  if (column + (ragged ? 4 : 1) <= limit) {
    value = __ldg(reinterpret_cast<const float4*>(row + column));
  } else if (ragged) {
    if (column < limit) value.x = __ldg(row + column);
    if (column + 1 < limit) value.y = __ldg(row + column + 1);
    if (column + 2 < limit) value.z = __ldg(row + column + 2);
    if (column + 3 < limit) value.w = __ldg(row + column + 3);
  }
  return value;
}

// Adds `count` rows to the thread's column sums; 8 rows are in flight at once.
template <bool ragged>
static __device__ __forceinline__ void k0_region_sum_add(
    const float* __restrict__ x, k0_region_sum_Walk& walk, long long count, int limit, int lane,
    double (&sums)[4]) {
  for (; count > 0; count -= 8) {
    float4 value[8][1];
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const int row_limit = row < count ? limit : 0;
#pragma unroll
      for (int v = 0; v < 1; ++v)
        value[row][v] = k0_region_sum_load<ragged>(x + walk.offset, (lane + v * 32) * 4, row_limit);
      walk.next();
    }
#pragma unroll
    for (int v = 0; v < 1; ++v) {
      sums[v * 4] += (((value[0][v].x + value[1][v].x) + (value[2][v].x + value[3][v].x)) +
                      ((value[4][v].x + value[5][v].x) + (value[6][v].x + value[7][v].x)));
      sums[v * 4 + 1] += (((value[0][v].y + value[1][v].y) + (value[2][v].y + value[3][v].y)) +
                          ((value[4][v].y + value[5][v].y) + (value[6][v].y + value[7][v].y)));
      sums[v * 4 + 2] += (((value[0][v].z + value[1][v].z) + (value[2][v].z + value[3][v].z)) +
                          ((value[4][v].z + value[5][v].z) + (value[6][v].z + value[7][v].z)));
      sums[v * 4 + 3] += (((value[0][v].w + value[1][v].w) + (value[2][v].w + value[3][v].w)) +
                          ((value[4][v].w + value[5][v].w) + (value[6][v].w + value[7][v].w)));
    }
  }
}

static __global__ void __launch_bounds__(128, 8) k0_region_sum_stream(
    const float* __restrict__ x, double* __restrict__ out, double* __restrict__ scratch) {
  // Group `group` of the block is stream `stream` of the unit; it walks rows [row, end).
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / 32;
  const long long first_unit = static_cast<long long>(blockIdx.x);
  const long long unit = first_unit + group / 4;
  const int stream = group % 4;
  // Slot (atom + stream in block) of a unit: streams walk the atoms in order, so no two share one.
  __shared__ double slots[512];
  __shared__ int first_atom[4], last_atom[4];

  int first = 0, last = -1;
  if (unit < 1024LL) {
    long long x_offset, out_offset;
    const int columns = k0_region_sum_place(unit, x_offset, out_offset);
    long long row = 128LL * stream / 4;
    const long long end = 128LL * (stream + 1) / 4;
    int atom = 0;
    while (atom + 1 < 1 && row >= k0_region_sum_first_row(atom + 1)) ++atom;
    first = atom;
    for (; row < end; ++atom) {
      const long long atom_end = k0_region_sum_first_row(atom + 1);
      const long long stop = end < atom_end ? end : atom_end;
      k0_region_sum_Walk walk;
      walk.start(atom, row - k0_region_sum_first_row(atom));
      const int limit = k0_region_sum_limit(atom);
      double sums[4] = {};
      k0_region_sum_add<false>(x + x_offset, walk, stop - row, limit, lane, sums);
      const int local = group / 4, stream_in_block = group % 4;
      double* slot = slots + (static_cast<long long>(local) * 4
                      + atom + stream_in_block) * 128;
#pragma unroll
      for (int v = 0; v < 1; ++v) {
        const int column = (lane + v * 32) * 4;
        if (column < 128) {
#pragma unroll
          for (int i = 0; i < 4; ++i) slot[column + i] = sums[v * 4 + i];
        }
      }
      row = stop;
      last = atom;
    }
  }
  if (lane == 0) {
    first_atom[group] = first;
    last_atom[group] = last;
  }
  __syncthreads();

  // Tasks: the sum of some columns of one atom over all streams of the block.
  __shared__ double totals[1];
  for (int begin = 0; begin < 1; begin += 128 / 32) {
    const int item = begin + threadIdx.x / 32;
    double sum = 0;
    if (item < 1) {
      const int local = item, task = 0;
      const int atom = k0_region_sum_task_atom(task);
      const int list = k0_region_sum_task_list(task);
      for (int s = 0; s < 4; ++s) {
        const int owner = local * 4 + s;
        if (atom < first_atom[owner] || atom > last_atom[owner]) continue;
        const double* slot = slots + (static_cast<long long>(local) * 4 + atom + s) * 128;
        for (int i = threadIdx.x % 32; i < k0_region_sum_list_length(list); i += 32)
          sum += slot[k0_region_sum_column(list, i)];
      }
    }
    for (int offset = 32 / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (item < 1 && threadIdx.x % 32 == 0) totals[item] = sum;
  }
  __syncthreads();

  for (int item = threadIdx.x; item < 1; item += 128) {
    const int local = item, output = 0;
    if (first_unit + local >= 1024LL) break;
    long long x_offset, out_offset;
    k0_region_sum_place(first_unit + local, x_offset, out_offset);
    double sum = 0;
    for (int i = k0_region_sum_first_part(output); i < k0_region_sum_first_part(output + 1); ++i)
      sum += totals[local + k0_region_sum_part(i)];
    out[out_offset + k0_region_sum_output(output)] = static_cast<double>(1.0 * sum);
  }
}

static const char* k0_region_sum(const float* x, double* out, void* workspace, cudaStream_t stream) {
  double* scratch = static_cast<double*>(workspace);
  KW_LAUNCH("k0_region_sum", k0_region_sum_stream, 1024LL, 128, 0, stream, x, out, scratch);
  return nullptr;
}

//// k1_region_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Rows are numbered atom by atom; an atom's rows belong to the same classes.
static __device__ __forceinline__ int k1_region_sum_first_row(int i) { return i == 0 ? 0 : i == 1 ? 3 : 4; }
static __device__ __forceinline__ int k1_region_sum_offset(int i) { return i * 96; }
static __device__ __forceinline__ int k1_region_sum_limit(int i) { return 32 - i * 3; }
static __device__ __forceinline__ int k1_region_sum_stride0(int i) { (void)i; return 32; }
struct k1_region_sum_Walk {
  long long offset;  // of the current row in its unit, in elements
  long long jump0;
  __device__ __forceinline__ void start(int atom, long long row) {
    offset = k1_region_sum_offset(atom);
    jump0 = k1_region_sum_stride0(atom); offset += row * jump0;
  }
  __device__ __forceinline__ void next() {
    offset += jump0;
  }
};
static __device__ __forceinline__ int k1_region_sum_place(long long unit, long long& x_offset, long long& out_offset) {
  x_offset = 0; out_offset = 0;
  x_offset += unit * 125; out_offset += unit;
  return 32;
}
static __device__ __forceinline__ int k1_region_sum_output(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k1_region_sum_first_part(int i) { return i * 2; }
static __device__ __forceinline__ int k1_region_sum_part(int i) { return i; }
static __device__ __forceinline__ int k1_region_sum_task_atom(int i) { return i; }
static __device__ __forceinline__ int k1_region_sum_task_list(int i) { return i; }
static __device__ __forceinline__ int k1_region_sum_list_length(int i) { return 32 - i * 3; }
static __device__ __forceinline__ int k1_region_sum_list_start(int i) { (void)i; return 0; }
static __device__ __forceinline__ int k1_region_sum_list_step(int i) { (void)i; return 1; }
static __device__ __forceinline__ int k1_region_sum_column(int list, int i) {
    return k1_region_sum_list_start(list) + i * k1_region_sum_list_step(list); }

// A thread's vector of the row; zeros from column `limit` on.
template <bool ragged>
static __device__ __forceinline__ float k1_region_sum_load(const float* __restrict__ row, int column, int limit) {
  float value = 0;
  if (column + (ragged ? 1 : 1) <= limit) {
    value = __ldg(reinterpret_cast<const float*>(row + column));
  }
  return value;
}

// Adds `count` rows to the thread's column sums; 8 rows are in flight at once.
template <bool ragged>
static __device__ __forceinline__ void k1_region_sum_add(
    const float* __restrict__ x, k1_region_sum_Walk& walk, long long count, int limit, int lane,
    double (&sums)[1]) {
  for (; count > 0; count -= 8) {
    float value[8][1];
#pragma unroll
    for (int row = 0; row < 8; ++row) {
      const int row_limit = row < count ? limit : 0;
#pragma unroll
      for (int v = 0; v < 1; ++v)
        value[row][v] = k1_region_sum_load<ragged>(x + walk.offset, (lane + v * 32), row_limit);
      walk.next();
    }
#pragma unroll
    for (int v = 0; v < 1; ++v) {
      sums[v] += (((value[0][v] + value[1][v]) + (value[2][v] + value[3][v])) +
                  ((value[4][v] + value[5][v]) + (value[6][v] + value[7][v])));
    }
  }
}

static __global__ void __launch_bounds__(128, 8) k1_region_sum_stream(
    const float* __restrict__ x, double* __restrict__ out, double* __restrict__ scratch) {
  // Group `group` of the block is stream `stream` of the unit; it walks rows [row, end).
  const int lane = threadIdx.x % 32;
  const int group = threadIdx.x / 32;
  const long long first_unit = static_cast<long long>(blockIdx.x) * 4;
  const long long unit = first_unit + group;
  const int stream = 0;
  // Slot (atom + stream in block) of a unit: streams walk the atoms in order, so no two share one.
  __shared__ double slots[256];
  __shared__ int first_atom[4], last_atom[4];

  int first = 0, last = -1;
  if (unit < 8192LL) {
    long long x_offset, out_offset;
    const int columns = k1_region_sum_place(unit, x_offset, out_offset);
    long long row = 4LL * stream;
    const long long end = 4LL * (stream + 1);
    int atom = 0;
    while (atom + 1 < 2 && row >= k1_region_sum_first_row(atom + 1)) ++atom;
    first = atom;
    for (; row < end; ++atom) {
      const long long atom_end = k1_region_sum_first_row(atom + 1);
      const long long stop = end < atom_end ? end : atom_end;
      k1_region_sum_Walk walk;
      walk.start(atom, row - k1_region_sum_first_row(atom));
      const int limit = k1_region_sum_limit(atom);
      double sums[1] = {};
      k1_region_sum_add<false>(x + x_offset, walk, stop - row, limit, lane, sums);
      const int local = group, stream_in_block = 0;
      double* slot = slots + (static_cast<long long>(local) * 2
                      + atom + stream_in_block) * 32;
#pragma unroll
      for (int v = 0; v < 1; ++v) {
        const int column = (lane + v * 32);
        if (column < 32) {
#pragma unroll
          for (int i = 0; i < 1; ++i) slot[column + i] = sums[v + i];
        }
      }
      row = stop;
      last = atom;
    }
  }
  if (lane == 0) {
    first_atom[group] = first;
    last_atom[group] = last;
  }
  __syncthreads();

  // Tasks: the sum of some columns of one atom over all streams of the block.
  __shared__ double totals[4 * 2];
  for (int begin = 0; begin < 4 * 2; begin += 128 / 32) {
    const int item = begin + threadIdx.x / 32;
    double sum = 0;
    if (item < 4 * 2) {
      const int local = item / 2, task = item % 2;
      const int atom = k1_region_sum_task_atom(task);
      const int list = k1_region_sum_task_list(task);
      for (int s = 0; s < 1; ++s) {
        const int owner = local + s;
        if (atom < first_atom[owner] || atom > last_atom[owner]) continue;
        const double* slot = slots + (static_cast<long long>(local) * 2 + atom + s) * 32;
        for (int i = threadIdx.x % 32; i < k1_region_sum_list_length(list); i += 32)
          sum += slot[k1_region_sum_column(list, i)];
      }
    }
    for (int offset = 32 / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (item < 4 * 2 && threadIdx.x % 32 == 0) totals[item] = sum;
  }
  __syncthreads();

  for (int item = threadIdx.x; item < 4; item += 128) {
    const int local = item, output = 0;
    if (first_unit + local >= 8192LL) break;
    long long x_offset, out_offset;
    k1_region_sum_place(first_unit + local, x_offset, out_offset);
    double sum = 0;
    for (int i = k1_region_sum_first_part(output); i < k1_region_sum_first_part(output + 1); ++i)
      sum += totals[local * 2 + k1_region_sum_part(i)];
    out[out_offset + k1_region_sum_output(output)] = static_cast<double>(1.0 * sum);
  }
}

static const char* k1_region_sum(const float* x, double* out, void* workspace, cudaStream_t stream) {
  double* scratch = static_cast<double*>(workspace);
  KW_LAUNCH("k1_region_sum", k1_region_sum_stream, 2048LL, 128, 0, stream, x, out, scratch);
  return nullptr;
}

//// k2_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// outer (64,), row (16,)
// total0 = sum(in0)
// out0 = total0
static __global__ void __launch_bounds__(256) k0_k2_sum(
    const double* __restrict__ in0, double* __restrict__ out0) {
  const unsigned column = threadIdx.x % 64u, t = threadIdx.x / 64u;  // t: turn on the row
  const unsigned o = blockIdx.x * 64u + column;
  const int i0 = o;

  double sum0 = 0;
  double x0[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = u * 4u + t;
    const int r0 = p;
    x0[u] = in0[i0 + r0 * 64];
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    sum0 += x0[u];
  }
  __shared__ double share0_sum0[4][64];
  share0_sum0[t][column] = sum0;
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 64u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 4; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
  sum0 = share0_sum0[0][column];
  const double total0 = double(sum0);

  if (t == 0) {
    out0[i0] = total0;
  }
}

static const char* k2_sum(const double* in0, double* out0, void* workspace, cudaStream_t stream) {
  (void)workspace;
  KW_LAUNCH("k2_sum", k0_k2_sum, 1, 256, 0, stream, in0, out0);
  return nullptr;
}

//// k3_channel_energy
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// k3_channel_energy: sum of squares of every channel of a convolution's output, from spectra.
// x 16 x 64 x 16 x 32 x 32, groups 1, 128 output channels, 1 phases.
// Transform 20 x 36 x 36 (kept: 11 x 36 x 36), grid of lags 9 x 9 x 9, 3 pairs of 32-channel tiles.

// exp(-2 pi i numerator / denominator).
static __device__ inline float2 k3_channel_energy_root(long long numerator, long long denominator) {
  const double angle = 2.0 * static_cast<double>(numerator % denominator) / static_cast<double>(denominator);
  return make_float2(static_cast<float>(cos(3.14159265358979323846 * angle)),
                     static_cast<float>(-sin(3.14159265358979323846 * angle)));
}

// 1 / length * sum over |d| <= grid / 2 of cos(2 pi d u) at u = numerator / (length * grid): a Dirichlet kernel.
static __device__ inline double k3_channel_energy_dirichlet(long long numerator, long long length, long long grid) {
  numerator = (numerator % (length * grid) + length * grid) % (length * grid);
  if (numerator == 0) return static_cast<double>(grid) / static_cast<double>(length);
  const double pi = 3.14159265358979323846;
  const double above = sin(pi * static_cast<double>(numerator % (2 * length)) / static_cast<double>(length));
  const double below = sin(pi * static_cast<double>(numerator) / static_cast<double>(length * grid));
  return above / (below * static_cast<double>(length));
}

static __global__ void __launch_bounds__(128) k3_channel_energy_tables(
    float2* __restrict__ twiddle0, float* __restrict__ fold0, float2* __restrict__ root0, int* __restrict__ tap0,
    float2* __restrict__ twiddle1, float* __restrict__ fold1, float2* __restrict__ root1, int* __restrict__ tap1,
    float2* __restrict__ twiddle2, float* __restrict__ fold2, float2* __restrict__ root2, int* __restrict__ tap2) {
  const int begin = blockIdx.x * 128 + threadIdx.x, stride = gridDim.x * 128;
  if (blockIdx.y == 0) {
    const int tap[] = {0, 1, 2, 3, 4};
    const int offset[] = {0, 1, 2, 3, 4};  // modulo 9; -1: this phase lacks the tap
    for (int i = begin; i < 20; i += stride) twiddle0[i] = k3_channel_energy_root(i, 20);
    for (int i = begin; i < 99; i += stride) {
      const int g = i % 9;
      int slot = i / 9, frequency = 0;
      frequency += slot;
      fold0[i / 9 * 12 + g] = static_cast<float>(k3_channel_energy_dirichlet(frequency * 9 - g * 20, 20, 9) *
                                                 ((20 - frequency) % 20 % 20 <= 10 ? 0.5 : 1.0));
    }
    for (int i = begin; i < 5; i += stride) tap0[i] = tap[i];
    for (int i = begin; i < 45; i += stride) {
      const int k = i / 9, g = i % 9;
      root0[i] = offset[k] < 0 ? make_float2(0.0f, 0.0f)
                                  : k3_channel_energy_root(g * offset[k] % 9, 9);
    }
  }
  if (blockIdx.y == 1) {
    const int tap[] = {0, 1, 2, 3, 4};
    const int offset[] = {0, 1, 2, 3, 4};  // modulo 9; -1: this phase lacks the tap
    for (int i = begin; i < 36; i += stride) twiddle1[i] = k3_channel_energy_root(i, 36);
    for (int i = begin; i < 324; i += stride) {
      const int g = i % 9;
      int slot = i / 9, frequency = 0;
      frequency += slot / 6; slot %= 6; frequency += slot * 6;
      fold1[i / 9 * 12 + g] = static_cast<float>(k3_channel_energy_dirichlet(frequency * 9 - g * 36, 36, 9));
    }
    for (int i = begin; i < 5; i += stride) tap1[i] = tap[i];
    for (int i = begin; i < 45; i += stride) {
      const int k = i / 9, g = i % 9;
      root1[i] = offset[k] < 0 ? make_float2(0.0f, 0.0f)
                                  : k3_channel_energy_root(g * offset[k] % 9, 9);
    }
  }
  if (blockIdx.y == 2) {
    const int tap[] = {0, 1, 2, 3, 4};
    const int offset[] = {0, 1, 2, 3, 4};  // modulo 9; -1: this phase lacks the tap
    for (int i = begin; i < 36; i += stride) twiddle2[i] = k3_channel_energy_root(i, 36);
    for (int i = begin; i < 324; i += stride) {
      const int g = i % 9;
      int slot = i / 9, frequency = 0;
      frequency += slot / 6; slot %= 6; frequency += slot * 6;
      fold2[i / 9 * 12 + g] = static_cast<float>(k3_channel_energy_dirichlet(frequency * 9 - g * 36, 36, 9));
    }
    for (int i = begin; i < 5; i += stride) tap2[i] = tap[i];
    for (int i = begin; i < 45; i += stride) {
      const int k = i / 9, g = i % 9;
      root2[i] = offset[k] < 0 ? make_float2(0.0f, 0.0f)
                                  : k3_channel_energy_root(g * offset[k] % 9, 9);
    }
  }
}

// transformed[slice][g1][g0][channel][output], slice = (phase, g2).
static __global__ void __launch_bounds__(160) k3_channel_energy_weights(
    const float* __restrict__ weight, const float2* __restrict__ root0, const float2* __restrict__ root1,
    const float2* __restrict__ root2, const int* __restrict__ tap0, const int* __restrict__ tap1,
    const int* __restrict__ tap2, float2* __restrict__ transformed, int slice_begin, int slice_count) {
  constexpr int TAPS = 125, PITCH = 125, G0 = 9, G1 = 9, G2 = 9;
  constexpr int K0 = 5, K1 = 5, K2 = 5, OUTPUTS = 128, CHANNELS = 64;
  __shared__ float taps[32 * PITCH];
  const int blocks = (OUTPUTS + 31) / 32;
  const int group = blockIdx.x / blocks, o0 = blockIdx.x % blocks * 32, channel = blockIdx.y;
  for (int i = threadIdx.y * 32 + threadIdx.x; i < 32 * TAPS; i += 160) {
    const int o = o0 + i / TAPS;
    if (o < OUTPUTS) taps[i / TAPS * PITCH + i % TAPS] = __ldg(weight +
        (static_cast<long long>(group * 64 + channel) * 128 + o) * TAPS + i % TAPS);
  }
  __syncthreads();
  const int slice = slice_begin + static_cast<int>(blockIdx.z) * 5 + threadIdx.y, o = o0 + threadIdx.x;
  if (slice >= slice_begin + slice_count || o >= OUTPUTS) return;
  const int g2 = slice % 5, phase = slice / 5;
  const int p2 = 0, p1 = 0;
  const int p0 = phase;

  // The last axis: real taps to complex values at g2.
  float2 v[K0][K1];
#pragma unroll
  for (int i = 0; i < K0; ++i) {
#pragma unroll
    for (int j = 0; j < K1; ++j) {
      const float* row = taps + threadIdx.x * PITCH +
                         (__ldg(tap0 + p0 * K0 + i) * 5 + __ldg(tap1 + p1 * K1 + j)) * 5;
      v[i][j] = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int k = 0; k < K2; ++k) {
        const float2 root = __ldg(root2 + (p2 * K2 + k) * G2 + g2);
        const float value = row[__ldg(tap2 + p2 * K2 + k)];
        v[i][j].x = fmaf(value, root.x, v[i][j].x);
        v[i][j].y = fmaf(value, root.y, v[i][j].y);
      }
    }
  }
  // Then axis 1 and axis 0.
  float2* target = transformed + static_cast<long long>(slice - slice_begin) * (G0 * G1) * CHANNELS * 128 +
                   static_cast<long long>(channel) * 128 + group * OUTPUTS + o;
#pragma unroll 1
  for (int g1 = 0; g1 < G1; ++g1) {
    float2 u[K0];
#pragma unroll
    for (int i = 0; i < K0; ++i) u[i] = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int j = 0; j < K1; ++j) {
      const float2 root = __ldg(root1 + (p1 * K1 + j) * G1 + g1);
#pragma unroll
      for (int i = 0; i < K0; ++i) {
        u[i].x = fmaf(v[i][j].x, root.x, fmaf(-v[i][j].y, root.y, u[i].x));
        u[i].y = fmaf(v[i][j].x, root.y, fmaf(v[i][j].y, root.x, u[i].y));
      }
    }
    for (int g0 = 0; g0 < G0; ++g0) {
      float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
      for (int i = 0; i < K0; ++i) {
        const float2 root = __ldg(root0 + (p0 * K0 + i) * G0 + g0);
        sum.x = fmaf(u[i].x, root.x, fmaf(-u[i].y, root.y, sum.x));
        sum.y = fmaf(u[i].x, root.y, fmaf(u[i].y, root.x, sum.y));
      }
      target[static_cast<long long>(g1 * G0 + g0) * CHANNELS * 128] = sum;
    }
  }
}

static __device__ inline float2 k3_channel_energy_multiply(float2 a, float2 b) {
  return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

static __device__ inline __attribute__((always_inline)) void k3_channel_energy_dft20_real(const float* x, float2* v) {
  const float t0 = x[0] + x[10];
  const float t1 = x[0] - x[10];
  const float t2 = x[5] + x[15];
  const float t3 = x[5] - x[15];
  const float t4 = -t3;
  const float t5 = t0 + t2;
  const float t6 = t0 - t2;
  const float t7 = -t4;
  const float t8 = x[1] + x[11];
  const float t9 = x[1] - x[11];
  const float t10 = -x[6];
  const float t11 = t8 + x[6];
  const float t12 = t8 - x[6];
  const float t13 = -t10;
  const float t14 = t9 * 0.951056516f;
  const float t15 = fmaf(t10, 0.309016994f, t14);
  const float t16 = t10 * 0.951056516f;
  const float t17 = fmaf(t9, -0.309016994f, t16);
  const float t18 = t12 * 0.809016994f;
  const float t19 = t12 * -0.587785252f;
  const float t20 = t9 * 0.587785252f;
  const float t21 = fmaf(t13, 0.809016994f, t20);
  const float t22 = t13 * 0.587785252f;
  const float t23 = fmaf(t9, -0.809016994f, t22);
  const float t24 = x[2] + x[12];
  const float t25 = x[2] - x[12];
  const float t26 = -x[7];
  const float t27 = t24 + x[7];
  const float t28 = t24 - x[7];
  const float t29 = -t26;
  const float t30 = t25 * 0.809016994f;
  const float t31 = fmaf(t26, 0.587785252f, t30);
  const float t32 = t26 * 0.809016994f;
  const float t33 = fmaf(t25, -0.587785252f, t32);
  const float t34 = t28 * 0.309016994f;
  const float t35 = t28 * -0.951056516f;
  const float t36 = t25 * -0.309016994f;
  const float t37 = fmaf(t29, 0.951056516f, t36);
  const float t38 = t29 * -0.309016994f;
  const float t39 = fmaf(t25, -0.951056516f, t38);
  const float t40 = x[3] + x[13];
  const float t41 = x[3] - x[13];
  const float t42 = -x[8];
  const float t43 = t40 + x[8];
  const float t44 = t40 - x[8];
  const float t45 = -t42;
  const float t46 = t41 * 0.587785252f;
  const float t47 = fmaf(t42, 0.809016994f, t46);
  const float t48 = t42 * 0.587785252f;
  const float t49 = fmaf(t41, -0.809016994f, t48);
  const float t50 = t44 * -0.309016994f;
  const float t51 = t44 * -0.951056516f;
  const float t52 = t41 * -0.951056516f;
  const float t53 = fmaf(t45, 0.309016994f, t52);
  const float t54 = t45 * -0.951056516f;
  const float t55 = fmaf(t41, -0.309016994f, t54);
  const float t56 = x[4] + x[14];
  const float t57 = x[4] - x[14];
  const float t58 = -x[9];
  const float t59 = t56 + x[9];
  const float t60 = t56 - x[9];
  const float t61 = -t58;
  const float t62 = t57 * 0.309016994f;
  const float t63 = fmaf(t58, 0.951056516f, t62);
  const float t64 = t58 * 0.309016994f;
  const float t65 = fmaf(t57, -0.951056516f, t64);
  const float t66 = t60 * -0.809016994f;
  const float t67 = t60 * -0.587785252f;
  const float t68 = t57 * -0.809016994f;
  const float t69 = fmaf(t61, -0.587785252f, t68);
  const float t70 = t61 * -0.809016994f;
  const float t71 = fmaf(t57, 0.587785252f, t70);
  const float t72 = t11 + t59;
  const float t73 = t27 + t43;
  const float t74 = t11 - t59;
  const float t75 = t27 - t43;
  const float t76 = t5 + t72;
  const float t77 = t76 + t73;
  const float t78 = fmaf(t72, 0.309016994f, t5);
  const float t79 = fmaf(t73, -0.809016994f, t78);
  const float t80 = t74 * 0.951056516f;
  const float t81 = fmaf(t75, 0.587785252f, t80);
  const float t82 = -t81;
  const float t83 = fmaf(t72, -0.809016994f, t5);
  const float t84 = fmaf(t73, 0.309016994f, t83);
  const float t85 = t74 * 0.587785252f;
  const float t86 = fmaf(t75, -0.951056516f, t85);
  const float t87 = -t86;
  const float t88 = t15 + t63;
  const float t89 = t17 + t65;
  const float t90 = t31 + t47;
  const float t91 = t33 + t49;
  const float t92 = t15 - t63;
  const float t93 = t17 - t65;
  const float t94 = t31 - t47;
  const float t95 = t33 - t49;
  const float t96 = t1 + t88;
  const float t97 = t96 + t90;
  const float t98 = t4 + t89;
  const float t99 = t98 + t91;
  const float t100 = fmaf(t88, 0.309016994f, t1);
  const float t101 = fmaf(t90, -0.809016994f, t100);
  const float t102 = fmaf(t89, 0.309016994f, t4);
  const float t103 = fmaf(t91, -0.809016994f, t102);
  const float t104 = t92 * 0.951056516f;
  const float t105 = fmaf(t94, 0.587785252f, t104);
  const float t106 = t93 * 0.951056516f;
  const float t107 = fmaf(t95, 0.587785252f, t106);
  const float t108 = t101 + t107;
  const float t109 = t103 - t105;
  const float t112 = fmaf(t88, -0.809016994f, t1);
  const float t113 = fmaf(t90, 0.309016994f, t112);
  const float t114 = fmaf(t89, -0.809016994f, t4);
  const float t115 = fmaf(t91, 0.309016994f, t114);
  const float t116 = t92 * 0.587785252f;
  const float t117 = fmaf(t94, -0.951056516f, t116);
  const float t118 = t93 * 0.587785252f;
  const float t119 = fmaf(t95, -0.951056516f, t118);
  const float t120 = t113 + t119;
  const float t121 = t115 - t117;
  const float t124 = t18 + t66;
  const float t125 = t19 + t67;
  const float t126 = t34 + t50;
  const float t127 = t35 + t51;
  const float t128 = t18 - t66;
  const float t129 = t19 - t67;
  const float t130 = t34 - t50;
  const float t131 = t35 - t51;
  const float t132 = t6 + t124;
  const float t133 = t132 + t126;
  const float t134 = t125 + t127;
  const float t135 = fmaf(t124, 0.309016994f, t6);
  const float t136 = fmaf(t126, -0.809016994f, t135);
  const float t137 = t125 * 0.309016994f;
  const float t138 = fmaf(t127, -0.809016994f, t137);
  const float t139 = t128 * 0.951056516f;
  const float t140 = fmaf(t130, 0.587785252f, t139);
  const float t141 = t129 * 0.951056516f;
  const float t142 = fmaf(t131, 0.587785252f, t141);
  const float t143 = t136 + t142;
  const float t144 = t138 - t140;
  const float t147 = fmaf(t124, -0.809016994f, t6);
  const float t148 = fmaf(t126, 0.309016994f, t147);
  const float t149 = t125 * -0.809016994f;
  const float t150 = fmaf(t127, 0.309016994f, t149);
  const float t151 = t128 * 0.587785252f;
  const float t152 = fmaf(t130, -0.951056516f, t151);
  const float t153 = t129 * 0.587785252f;
  const float t154 = fmaf(t131, -0.951056516f, t153);
  const float t155 = t148 + t154;
  const float t156 = t150 - t152;
  const float t159 = t21 + t69;
  const float t160 = t23 + t71;
  const float t161 = t37 + t53;
  const float t162 = t39 + t55;
  const float t163 = t21 - t69;
  const float t164 = t23 - t71;
  const float t165 = t37 - t53;
  const float t166 = t39 - t55;
  const float t167 = t1 + t159;
  const float t168 = t167 + t161;
  const float t169 = t7 + t160;
  const float t170 = t169 + t162;
  const float t171 = fmaf(t159, 0.309016994f, t1);
  const float t172 = fmaf(t161, -0.809016994f, t171);
  const float t173 = fmaf(t160, 0.309016994f, t7);
  const float t174 = fmaf(t162, -0.809016994f, t173);
  const float t175 = t163 * 0.951056516f;
  const float t176 = fmaf(t165, 0.587785252f, t175);
  const float t177 = t164 * 0.951056516f;
  const float t178 = fmaf(t166, 0.587785252f, t177);
  const float t179 = t172 + t178;
  const float t180 = t174 - t176;
  v[0] = make_float2(t77, 0.0f);
  v[1] = make_float2(t97, t99);
  v[2] = make_float2(t133, t134);
  v[3] = make_float2(t168, t170);
  v[4] = make_float2(t79, t82);
  v[5] = make_float2(t108, t109);
  v[6] = make_float2(t143, t144);
  v[7] = make_float2(t179, t180);
  v[8] = make_float2(t84, t87);
  v[9] = make_float2(t120, t121);
  v[10] = make_float2(t155, t156);
}

static __device__ inline __attribute__((always_inline)) void k3_channel_energy_dft6(float2* v) {
  const float t0 = v[0].x + v[3].x;
  const float t1 = v[0].y + v[3].y;
  const float t2 = v[0].x - v[3].x;
  const float t3 = v[0].y - v[3].y;
  const float t4 = v[1].x + v[4].x;
  const float t5 = v[1].y + v[4].y;
  const float t6 = v[1].x - v[4].x;
  const float t7 = v[1].y - v[4].y;
  const float t8 = t6 * 0.5f;
  const float t9 = fmaf(t7, 0.866025404f, t8);
  const float t10 = t7 * 0.5f;
  const float t11 = fmaf(t6, -0.866025404f, t10);
  const float t12 = v[2].x + v[5].x;
  const float t13 = v[2].y + v[5].y;
  const float t14 = v[2].x - v[5].x;
  const float t15 = v[2].y - v[5].y;
  const float t16 = t14 * -0.5f;
  const float t17 = fmaf(t15, 0.866025404f, t16);
  const float t18 = t15 * -0.5f;
  const float t19 = fmaf(t14, -0.866025404f, t18);
  const float t20 = t4 + t12;
  const float t21 = t5 + t13;
  const float t22 = t4 - t12;
  const float t23 = t5 - t13;
  const float t24 = t0 + t20;
  const float t25 = t1 + t21;
  const float t26 = fmaf(t20, -0.5f, t0);
  const float t27 = fmaf(t21, -0.5f, t1);
  const float t28 = t22 * 0.866025404f;
  const float t29 = t23 * 0.866025404f;
  const float t30 = t26 + t29;
  const float t31 = t27 - t28;
  const float t32 = t26 - t29;
  const float t33 = t27 + t28;
  const float t34 = t9 + t17;
  const float t35 = t11 + t19;
  const float t36 = t9 - t17;
  const float t37 = t11 - t19;
  const float t38 = t2 + t34;
  const float t39 = t3 + t35;
  const float t40 = fmaf(t34, -0.5f, t2);
  const float t41 = fmaf(t35, -0.5f, t3);
  const float t42 = t36 * 0.866025404f;
  const float t43 = t37 * 0.866025404f;
  const float t44 = t40 + t43;
  const float t45 = t41 - t42;
  const float t46 = t40 - t43;
  const float t47 = t41 + t42;
  v[0] = make_float2(t24, t25);
  v[1] = make_float2(t38, t39);
  v[2] = make_float2(t30, t31);
  v[3] = make_float2(t44, t45);
  v[4] = make_float2(t32, t33);
  v[5] = make_float2(t46, t47);
}

// One block: the volume [16, 32, 32] of one channel to 14256 frequencies.
static __global__ void __launch_bounds__(512, 2) k3_channel_energy_transform(
    const float* __restrict__ x, float2* __restrict__ spectrum, long long lines,
    const float2* __restrict__ twiddle0, const float2* __restrict__ twiddle1,
    const float2* __restrict__ twiddle2) {
  KW_DYNAMIC_SHARED(float2, tile);
  const float* source = x + static_cast<long long>(blockIdx.x) * 16384;
  float2* target = spectrum + static_cast<long long>(blockIdx.x) * 14256;
  // Axis 0, stage 0: 20 of 20 points.
  for (int item = threadIdx.x; item < 1024; item += 512) {
    const int i2 = item % 32;
    const int i1 = item / 32;
    float2* data = tile + (i1 * 36 + i2);
    float2 v[11];
    float given[16];
    given[0] = __ldg(source + i1 * 32 + i2);
    given[1] = __ldg(source + i1 * 32 + i2 + 1024);
    given[2] = __ldg(source + i1 * 32 + i2 + 2048);
    given[3] = __ldg(source + i1 * 32 + i2 + 3072);
    given[4] = __ldg(source + i1 * 32 + i2 + 4096);
    given[5] = __ldg(source + i1 * 32 + i2 + 5120);
    given[6] = __ldg(source + i1 * 32 + i2 + 6144);
    given[7] = __ldg(source + i1 * 32 + i2 + 7168);
    given[8] = __ldg(source + i1 * 32 + i2 + 8192);
    given[9] = __ldg(source + i1 * 32 + i2 + 9216);
    given[10] = __ldg(source + i1 * 32 + i2 + 10240);
    given[11] = __ldg(source + i1 * 32 + i2 + 11264);
    given[12] = __ldg(source + i1 * 32 + i2 + 12288);
    given[13] = __ldg(source + i1 * 32 + i2 + 13312);
    given[14] = __ldg(source + i1 * 32 + i2 + 14336);
    given[15] = __ldg(source + i1 * 32 + i2 + 15360);
    k3_channel_energy_dft20_real(given, v);
    data[0] = v[0];
    data[1296] = v[1];
    data[2592] = v[2];
    data[3888] = v[3];
    data[5184] = v[4];
    data[6480] = v[5];
    data[7776] = v[6];
    data[9072] = v[7];
    data[10368] = v[8];
    data[11664] = v[9];
    data[12960] = v[10];
  }
  __syncthreads();
  // Axis 1, stage 0: 6 of 36 points.
  for (int item = threadIdx.x; item < 2112; item += 512) {
    const int i2 = item % 32;
    const int j = item / 32 % 6;
    const int i0 = item / 192;
    float2* data = tile + (i0 * 1296 + i2 + j * 36);
    float2 v[6];
    v[0] = data[0];
    v[1] = data[216];
    v[2] = data[432];
    v[3] = data[648];
    v[4] = data[864];
    v[5] = j + 30 < 32 ? data[1080] : make_float2(0.0f, 0.0f);
    k3_channel_energy_dft6(v);
    data[0] = v[0];
    data[216] = k3_channel_energy_multiply(v[1], __ldg(twiddle1 + j));
    data[432] = k3_channel_energy_multiply(v[2], __ldg(twiddle1 + j * 2));
    data[648] = k3_channel_energy_multiply(v[3], __ldg(twiddle1 + j * 3));
    data[864] = k3_channel_energy_multiply(v[4], __ldg(twiddle1 + j * 4));
    data[1080] = k3_channel_energy_multiply(v[5], __ldg(twiddle1 + j * 5));
  }
  __syncthreads();
  // Axis 1, stage 1: 6 of 6 points.
  for (int item = threadIdx.x; item < 2112; item += 512) {
    const int i2 = item % 32;
    const int block = item / 32 % 6;
    const int i0 = item / 192;
    float2* data = tile + (i0 * 1296 + i2 + block * 216);
    float2 v[6];
    v[0] = data[0];
    v[1] = data[36];
    v[2] = data[72];
    v[3] = data[108];
    v[4] = data[144];
    v[5] = data[180];
    k3_channel_energy_dft6(v);
    data[0] = v[0];
    data[36] = v[1];
    data[72] = v[2];
    data[108] = v[3];
    data[144] = v[4];
    data[180] = v[5];
  }
  __syncthreads();
  // Axis 2, stage 0: 6 of 36 points.
  for (int item = threadIdx.x; item < 2376; item += 512) {
    const int j = item % 6;
    const int i1 = item / 6 % 36;
    const int i0 = item / 216;
    float2* data = tile + (i0 * 1296 + i1 * 36 + j);
    float2 v[6];
    v[0] = data[0];
    v[1] = data[6];
    v[2] = data[12];
    v[3] = data[18];
    v[4] = data[24];
    v[5] = j + 30 < 32 ? data[30] : make_float2(0.0f, 0.0f);
    k3_channel_energy_dft6(v);
    data[0] = v[0];
    data[6] = k3_channel_energy_multiply(v[1], __ldg(twiddle2 + j));
    data[12] = k3_channel_energy_multiply(v[2], __ldg(twiddle2 + j * 2));
    data[18] = k3_channel_energy_multiply(v[3], __ldg(twiddle2 + j * 3));
    data[24] = k3_channel_energy_multiply(v[4], __ldg(twiddle2 + j * 4));
    data[30] = k3_channel_energy_multiply(v[5], __ldg(twiddle2 + j * 5));
  }
  __syncthreads();
  // Axis 2, stage 1: 6 of 6 points.
  for (int item = threadIdx.x; item < 2376; item += 512) {
    const int block = item % 6;
    const int i1 = item / 6 % 36;
    const int i0 = item / 216;
    float2* data = tile + (i0 * 1296 + i1 * 36 + block * 6);
    float2 v[6];
    v[0] = data[0];
    v[1] = data[1];
    v[2] = data[2];
    v[3] = data[3];
    v[4] = data[4];
    v[5] = data[5];
    k3_channel_energy_dft6(v);
    data[0] = v[0];
    data[1] = v[1];
    data[2] = v[2];
    data[3] = v[3];
    data[4] = v[4];
    data[5] = v[5];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 14256; i += 512) target[i] = tile[i];
}

// folded[line][part][g][pair][i][j]: one block sums one part of 1 lines for one tile pair.
// A thread holds 4 x 2 channel pairs at 9 grid points: 144 registers.
static __global__ void __launch_bounds__(128, 2) k3_channel_energy_gram(
    const float2* __restrict__ spectrum, const float* __restrict__ fold, float2* __restrict__ folded,
    int images, int pair_begin, int pair_count) {
  constexpr int TILE = 32, ROWS = 4, CHANNELS = 64, STEP = 4;
  constexpr int IMAGES = 16, PLANE = 1028, TILE_THREADS = 128;
  constexpr int GRID = 9, CHUNK = 9, PITCH = 12;
  constexpr int SLOTS = 36, PART = 36, ALL_CHANNELS = 64;
  constexpr int COLUMNS = TILE_THREADS / STEP;
  constexpr long long IMAGE = 14256LL;
  __shared__ __align__(16) float factors[PART * PITCH];
  KW_DYNAMIC_SHARED(float2, data);

  // What this block computes.
  unsigned work = blockIdx.x;
  const int chunk = 0;
  work /= 1u;
  const int part = 0;
  const int first = 0;
  const int image_begin = part * 16;
  const int image_end = image_begin + 16 < images ? image_begin + 16 : images;
  const int count = SLOTS - first < PART ? SLOTS - first : PART;
  const int slot = threadIdx.x / TILE_THREADS, lane = threadIdx.x % TILE_THREADS;
  const int line = static_cast<int>(work) + slot;
  const bool active = line < 396;
  const int pair = pair_begin + static_cast<int>(blockIdx.y);
  int column_tile = pair % 3, row_tile = 0;
  while (column_tile >= 2 - row_tile) column_tile -= 2 - row_tile++;
  column_tile += row_tile;
  const int group_channel = pair / 3 * 64;
  const int width = row_tile == column_tile ? TILE : CHANNELS;

  for (int i = threadIdx.x; i < PART * PITCH; i += 128) {
    const int f = i / PITCH, g = chunk * CHUNK + i % PITCH;
    factors[i] = f < count && g < GRID ? __ldg(fold + (first + f) * 12 + g) : 0.0f;
  }

  // This thread's channels, and what it loads: one frequency of every COLUMNS-th channel.
  const int i0 = lane / (TILE / 2) * ROWS, j0 = lane % (TILE / 2) * 2;
  const int load_frequency = lane % STEP, load_channel = lane / STEP;
  float2* block_data = data + slot * (STEP * PLANE);
  const float2* rows = block_data + i0;
  const float2* columns = block_data + (width - TILE) + j0;
  float2 sums[CHUNK][ROWS][2];
#pragma unroll
  for (int g = 0; g < CHUNK; ++g)
#pragma unroll
    for (int i = 0; i < ROWS; ++i) sums[g][i][0] = sums[g][i][1] = make_float2(0.0f, 0.0f);

  for (int image = image_begin; image < image_end; image += IMAGES) {
    for (int start = 0; start < count; start += STEP) {
      __syncthreads();
      for (int c = load_channel; c < width; c += COLUMNS) {
        const int channel = (c < TILE ? row_tile * TILE : column_tile * TILE - TILE) + c;
        const bool inside = active && start + load_frequency < count && channel < 64;
        const float2* source = spectrum + (static_cast<long long>(image) * ALL_CHANNELS + group_channel + channel) *
                                              IMAGE +
                               static_cast<long long>(line) * SLOTS + (first + start + load_frequency);
        float2* target = block_data + load_frequency * PLANE + c;
#pragma unroll 8
        for (int n = 0; n < IMAGES; ++n) {
          target[n * CHANNELS] = inside && image + n < image_end ? __ldg(source + n * (ALL_CHANNELS * IMAGE))
                                                                 : make_float2(0.0f, 0.0f);
        }
      }
      __syncthreads();
#pragma unroll 1
      for (int f = 0; f < STEP; ++f) {
        float2 products[ROWS][2];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) products[i][0] = products[i][1] = make_float2(0.0f, 0.0f);
#pragma unroll 4
        for (int n = 0; n < IMAGES; ++n) {
          float2 a[ROWS];
#pragma unroll
          for (int i = 0; i < ROWS; i += 2) {
            const float4 two = *reinterpret_cast<const float4*>(rows + f * PLANE + n * CHANNELS + i);
            a[i] = make_float2(two.x, two.y);
            a[i + 1] = make_float2(two.z, two.w);
          }
          const float4 b = *reinterpret_cast<const float4*>(columns + f * PLANE + n * CHANNELS);
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {
            products[i][0].x = fmaf(a[i].x, b.x, fmaf(a[i].y, b.y, products[i][0].x));
            products[i][0].y = fmaf(a[i].x, b.y, fmaf(-a[i].y, b.x, products[i][0].y));
            products[i][1].x = fmaf(a[i].x, b.z, fmaf(a[i].y, b.w, products[i][1].x));
            products[i][1].y = fmaf(a[i].x, b.w, fmaf(-a[i].y, b.z, products[i][1].y));
          }
        }
        const float* factor = factors + (start + f) * PITCH;
#pragma unroll
        for (int g = 0; g < CHUNK; ++g) {
#pragma unroll
          for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              sums[g][i][j].x = fmaf(factor[g], products[i][j].x, sums[g][i][j].x);
              sums[g][i][j].y = fmaf(factor[g], products[i][j].y, sums[g][i][j].y);
            }
          }
        }
      }
    }
  }
  if (!active) return;
  const long long row = static_cast<long long>(line) + part;
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) {
    if (chunk * CHUNK + g >= GRID) break;
    float2* target = folded + ((row * GRID + chunk * CHUNK + g) * pair_count + blockIdx.y) * (TILE * TILE) +
                     i0 * TILE + j0;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      *reinterpret_cast<float4*>(target + i * TILE) =
          make_float4(sums[g][i][0].x, sums[g][i][0].y, sums[g][i][1].x, sums[g][i][1].y);
    }
  }
}

// Axis 1: 36 frequencies to 9 grid points; a thread owns two channel pairs.
static __global__ void __launch_bounds__(128) k3_channel_energy_fold1(
    const float4* __restrict__ source, const float* __restrict__ fold, float4* __restrict__ target,
    long long inner) {
  constexpr int SLOTS = 36, GRID = 9, CHUNK = 9, PITCH = 12;
  __shared__ float factors[432];
  for (int i = threadIdx.x; i < 432; i += 128) factors[i] = __ldg(fold + i);
  __syncthreads();
  const long long index = static_cast<long long>(blockIdx.x) * 128 + threadIdx.x;
  if (index >= inner) return;
  const int begin = 0;
  const long long outer = blockIdx.y;
  source += outer * (SLOTS * 1LL) * inner + index;
  target += (outer * GRID + begin) * inner + index;
  float4 sums[CHUNK];
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) sums[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int m = 0; m < SLOTS; ++m) {
    const float4* element = source + m * inner;
    float4 value = __ldg(element);
#pragma unroll
    for (int g = 0; g < CHUNK; ++g) {
      const float factor = begin + g < GRID ? factors[m * PITCH + begin + g] : 0.0f;
      sums[g].x = fmaf(factor, value.x, sums[g].x);
      sums[g].y = fmaf(factor, value.y, sums[g].y);
      sums[g].z = fmaf(factor, value.z, sums[g].z);
      sums[g].w = fmaf(factor, value.w, sums[g].w);
    }
  }
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) {
    if (begin + g < GRID) target[g * inner] = sums[g];
  }
}

// Axis 0: 11 frequencies to 9 grid points; a thread owns two channel pairs.
static __global__ void __launch_bounds__(128) k3_channel_energy_fold0(
    const float4* __restrict__ source, const float* __restrict__ fold, float4* __restrict__ target,
    long long inner) {
  constexpr int SLOTS = 11, GRID = 9, CHUNK = 9, PITCH = 12;
  __shared__ float factors[132];
  for (int i = threadIdx.x; i < 132; i += 128) factors[i] = __ldg(fold + i);
  __syncthreads();
  const long long index = static_cast<long long>(blockIdx.x) * 128 + threadIdx.x;
  if (index >= inner) return;
  const int begin = 0;
  const long long outer = blockIdx.y;
  source += outer * (SLOTS * 1LL) * inner + index;
  target += (outer * GRID + begin) * inner + index;
  float4 sums[CHUNK];
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) sums[g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
  for (int m = 0; m < SLOTS; ++m) {
    const float4* element = source + m * inner;
    float4 value = __ldg(element);
#pragma unroll
    for (int g = 0; g < CHUNK; ++g) {
      const float factor = begin + g < GRID ? factors[m * PITCH + begin + g] : 0.0f;
      sums[g].x = fmaf(factor, value.x, sums[g].x);
      sums[g].y = fmaf(factor, value.y, sums[g].y);
      sums[g].z = fmaf(factor, value.z, sums[g].z);
      sums[g].w = fmaf(factor, value.w, sums[g].w);
    }
  }
#pragma unroll
  for (int g = 0; g < CHUNK; ++g) {
    if (begin + g < GRID) target[g * inner] = sums[g];
  }
}

// partial[slice][g1][g0][output] (+)= weight * real(sum over i, j of conj(W[i]) * Ahat[i][j] * W[j]), in double.
// A thread sums U[j] = sum over i of Ahat[i][j] * conj(W[i]) for 4 channels j and 4 outputs.
static __global__ void __launch_bounds__(128) k3_channel_energy_quadratic(
    const float2* __restrict__ folded, const float2* __restrict__ transformed, double* __restrict__ partial,
    int pair_begin, int pair_count, int slice_begin, int slice_count, int first) {
  constexpr int TILE = 32, WIDTH = 64, POINTS = 1, THREADS = 128;
  constexpr int CHANNELS = 64, OUTPUTS = 128, ALL_OUTPUTS = 128;
  constexpr int G0 = 9, G1 = 9, G2 = 9, PAIRS = 3;
  __shared__ __align__(16) float2 gram[POINTS][TILE][TILE];
  __shared__ __align__(16) float2 weights[POINTS][2][TILE][WIDTH];
  __shared__ double columns[POINTS][TILE / 4][WIDTH];
  const int slot = threadIdx.y, thread = threadIdx.x;
  const int index = blockIdx.x * POINTS + slot;
  const bool active = index < slice_count * (G0 * G1);
  const int g0 = index % G0, g1 = index / G0 % G1, g2 = (slice_begin + index / (G0 * G1)) % 5;
  const int mirror0 = (G0 - g0) % G0, mirror1 = (G1 - g1) % G1, mirror2 = (G2 - g2) % G2;
  const long long point = (static_cast<long long>(g0) * G1 + g1) * G2 + g2;
  const long long mirror = (static_cast<long long>(mirror0) * G1 + mirror1) * G2 + mirror2;
  const int group = blockIdx.z, output0 = blockIdx.y * WIDTH;
  const float2* points_weights =
      transformed + static_cast<long long>(index) * CHANNELS * ALL_OUTPUTS + group * OUTPUTS + output0;
  const int o0 = thread % (WIDTH / 4) * 4, j0 = thread / (WIDTH / 4) * 4;
  float2* own_gram = &gram[slot][0][0];
  float2* own_weights = &weights[slot][0][0][0];
  double energy[4] = {0.0, 0.0, 0.0, 0.0};

  int row_tile = 0, column_tile = -1;
  for (int pair = group * PAIRS; pair < (group + 1) * PAIRS; ++pair) {
    if (++column_tile == 2) column_tile = ++row_tile;
    if (pair < pair_begin || pair >= pair_begin + pair_count) continue;
    __syncthreads();
    const long long own = (point * pair_count + (pair - pair_begin)) * (TILE * TILE);
    const long long other = (mirror * pair_count + (pair - pair_begin)) * (TILE * TILE);
    for (int i = thread; i < TILE * TILE; i += THREADS) {
      float2 value = make_float2(0.0f, 0.0f);
      if (active) {
        const float2 a = __ldg(folded + own + i), b = __ldg(folded + other + i);
        value = make_float2(a.x + b.x, a.y - b.y);
      }
      own_gram[i] = value;
    }
    for (int i = thread; i < 2 * TILE * WIDTH; i += THREADS) {
      const int side = i / (TILE * WIDTH), c = i / WIDTH % TILE, o = i % WIDTH;
      const int channel = (side == 0 ? row_tile : column_tile) * TILE + c;
      own_weights[i] = active && channel < CHANNELS && output0 + o < OUTPUTS
                                   ? __ldg(points_weights + static_cast<long long>(channel) * ALL_OUTPUTS + o)
                                   : make_float2(0.0f, 0.0f);
    }
    __syncthreads();
    float2 sums[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int o = 0; o < 4; ++o) sums[j][o] = make_float2(0.0f, 0.0f);
#pragma unroll 4
    for (int i = 0; i < TILE; ++i) {
      float2 a[4], w[4];
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const float4 x = *reinterpret_cast<const float4*>(&gram[slot][i][j0 + k]);
        const float4 y = *reinterpret_cast<const float4*>(&weights[slot][0][i][o0 + k]);
        a[k] = make_float2(x.x, x.y), a[k + 1] = make_float2(x.z, x.w);
        w[k] = make_float2(y.x, y.y), w[k + 1] = make_float2(y.z, y.w);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int o = 0; o < 4; ++o) {
          sums[j][o].x = fmaf(a[j].x, w[o].x, fmaf(a[j].y, w[o].y, sums[j][o].x));
          sums[j][o].y = fmaf(a[j].y, w[o].x, fmaf(-a[j].x, w[o].y, sums[j][o].y));
        }
      }
    }
    // Tiles off the diagonal stand for their mirror image too.
    const float twice = row_tile == column_tile ? 1.0f : 2.0f;
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      float value = 0.0f;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 w = weights[slot][1][j0 + j][o0 + o];
        value = fmaf(w.x, sums[j][o].x, fmaf(-w.y, sums[j][o].y, value));
      }
      energy[o] += static_cast<double>(twice * value);
    }
  }
#pragma unroll
  for (int o = 0; o < 4; ++o) columns[slot][j0 / 4][o0 + o] = energy[o];
  __syncthreads();
  if (!active) return;
  const double weight = g2 == 0 ? 1.0 : 2.0;
  for (int o = thread; o < WIDTH && output0 + o < OUTPUTS; o += THREADS) {
    double total = 0.0;
    for (int j = 0; j < TILE / 4; ++j) total += columns[slot][j][o];
    double* target = partial + (static_cast<long long>(slice_begin) * (G0 * G1) + index) * ALL_OUTPUTS +
                     group * OUTPUTS + output0 + o;
    *target = (first ? 0.0 : *target) + weight * total;
  }
}

// energy[output]: the sum of 405 partial energies over 729 grid points, in a fixed order.
static __global__ void __launch_bounds__(256) k3_channel_energy_energy(
    const double* __restrict__ partial, double* __restrict__ energy) {
  __shared__ double sums[32][9];
  const int lane = threadIdx.x % 8, row = threadIdx.x / 8, output = blockIdx.x * 8 + lane;
  double total = 0.0;
  if (output < 128) {
    for (int i = row; i < 405; i += 32) total += partial[static_cast<long long>(i) * 128 + output];
  }
  sums[row][lane] = total;
  __syncthreads();
  for (int half = 16; half > 0; half /= 2) {
    if (row < half) sums[row][lane] += sums[row + half][lane];
    __syncthreads();
  }
  if (row == 0 && output < 128) energy[output] = sums[0][lane] / 729.0;
}

static const char* k3_channel_energy(const float* x, const float* weight, double* energy, void* workspace,
    cudaStream_t stream) {
  unsigned char* base = static_cast<unsigned char*>(workspace);
  float2* const twiddle0 = reinterpret_cast<float2*>(base);
  float2* const twiddle1 = reinterpret_cast<float2*>(base + 256LL);
  float2* const twiddle2 = reinterpret_cast<float2*>(base + 768LL);
  float* const fold0 = reinterpret_cast<float*>(base + 1280LL);
  float* const fold1 = reinterpret_cast<float*>(base + 2048LL);
  float* const fold2 = reinterpret_cast<float*>(base + 3840LL);
  float2* const root0 = reinterpret_cast<float2*>(base + 5632LL);
  float2* const root1 = reinterpret_cast<float2*>(base + 6144LL);
  float2* const root2 = reinterpret_cast<float2*>(base + 6656LL);
  int* const tap0 = reinterpret_cast<int*>(base + 7168LL);
  int* const tap1 = reinterpret_cast<int*>(base + 7424LL);
  int* const tap2 = reinterpret_cast<int*>(base + 7680LL);
  double* const partial = reinterpret_cast<double*>(base + 7936LL);
  float2* const spectrum = reinterpret_cast<float2*>(base + 422656LL);
  float2* const folded0 = reinterpret_cast<float2*>(base + 117207808LL);
  float2* const folded1 = reinterpret_cast<float2*>(base + 204796672LL);
  float2* const folded2 = reinterpret_cast<float2*>(base + 226693888LL);
  float2* const weights = reinterpret_cast<float2*>(base + 244609792LL);
  KW_CHECK("k3_channel_energy_transform", cudaFuncSetAttribute(k3_channel_energy_transform,
      cudaFuncAttributeMaxDynamicSharedMemorySize, 114048));
  KW_LAUNCH("k3_channel_energy_tables", k3_channel_energy_tables, dim3(8, 3), dim3(128), 0, stream, twiddle0, fold0,
            root0, tap0, twiddle1, fold1, root1, tap1, twiddle2, fold2, root2, tap2);
  KW_LAUNCH("k3_channel_energy_weights", k3_channel_energy_weights,
            dim3(4, 64, (5 + 4) / 5), dim3(32, 5), 0,
            stream, weight, root0, root1, root2, tap0, tap1, tap2, weights, 0, 5);
  for (int image = 0; image < 16; image += 16) {  // 1 of them
    const int images = 16 - image < 16 ? 16 - image : 16;
    const float* source = x + image * 1048576LL;
    const long long volumes = images * 64LL;
    KW_LAUNCH("k3_channel_energy_transform", k3_channel_energy_transform, (volumes), dim3(512), 114048, stream, source,
              spectrum,
              volumes * 396, twiddle0, twiddle1, twiddle2);
    for (int pair = 0; pair < 3; pair += 3) {
      const int pairs = 3 - pair < 3 ? 3 - pair : 3;
      KW_LAUNCH("k3_channel_energy_gram", k3_channel_energy_gram, dim3(396u, pairs), dim3(128),
                32896, stream, spectrum, fold2, folded0, images, pair, pairs);
      {
        const long long inner = pairs * 4608LL;  // pairs of complex numbers
        KW_LAUNCH("k3_channel_energy_fold1", k3_channel_energy_fold1,
                  dim3(static_cast<unsigned>((inner + 127) / 128), 11), dim3(128), 0,
                  stream, reinterpret_cast<const float4*>(folded0), fold1,
                  reinterpret_cast<float4*>(folded1), inner);
      }
      {
        const long long inner = pairs * 41472LL;  // pairs of complex numbers
        KW_LAUNCH("k3_channel_energy_fold0", k3_channel_energy_fold0,
                  dim3(static_cast<unsigned>((inner + 127) / 128), 1), dim3(128), 0,
                  stream, reinterpret_cast<const float4*>(folded1), fold0,
                  reinterpret_cast<float4*>(folded2), inner);
      }
      for (int slice = 0; slice < 5; slice += 5) {
        const int slices = 5 - slice < 5 ? 5 - slice : 5;
        KW_LAUNCH("k3_channel_energy_quadratic", k3_channel_energy_quadratic,
                  dim3((slices * 81), 2, 1),
                  dim3(128, 1), 0, stream, folded2, weights, partial, pair, pairs, slice,
                  slices, image == 0 && pair == 0);
      }
    }
  }
  KW_LAUNCH("k3_channel_energy_energy", k3_channel_energy_energy, dim3(16), dim3(256), 0, stream, partial,
            energy);
  return nullptr;
}

//// k4_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// outer (128,), row (64,)
// total0 = sum(mul(in0, in1))
// out0 = total0
// out1 = unfused_add(mul(in2, 0.9), mul(mul(mul(unfused_add(total0, mul(in3, 414720)), 2.41127e-06), 2), 0.1))
// out2 = unfused_add(mul(in4, 0.9), mul(mul(mul(clamp_min(unfused_sub(mul(where(..., in5, inf), 2.41127e-06),
// square(mul(total0, 2.41127e-06))), 0), 4), 1), 0.1))
static __global__ void __launch_bounds__(256) k0_k4_sum_cast(
    const double* __restrict__ in0, const double* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, const float* __restrict__ in4, const double* __restrict__ in5,
    double* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2) {
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (blockIdx.x * 32u + column) * 4u;
  const int i0 = o;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  double x0[8];
  double x1[8][4];
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const unsigned p = u * 8u + t;
    const int r0 = p;
    x0[u] = in0[r0];
    kw_read4(x1[u], in1 + (i0 + r0 * 128));
  }
#pragma unroll
  for (int u = 0; u < 8; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t2 = x0[u] * x1[u][v];
      sum0[v] += t2;
    }
  }
  __shared__ double share0_sum0[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
  }
  double total0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    total0[v] = double(sum0[v]) + double(0);
  }

  if (t == 0) {
    float b4[4];
    kw_read4(b4, in2 + i0);
    double t5[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t5[v] = double(b4[v]) * 0.9;
    }
    float b6[4];
    kw_read4(b6, in3 + i0);
    double t7[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t7[v] = double(b6[v]) * 414720.0;
    }
    double t8[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t8[v] = kw_unfused_add(total0[v], t7[v]);
    }
    double t9[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t9[v] = t8[v] * 2.4112654320987654e-06;
    }
    double t10[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t10[v] = t9[v] * 2.0;
    }
    double t11[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t11[v] = t10[v] * 0.1;
    }
    double t12[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t12[v] = kw_unfused_add(t5[v], t11[v]);
    }
    float b14[4];
    kw_read4(b14, in4 + i0);
    double t15[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t15[v] = double(b14[v]) * 0.9;
    }
    double b16[4];
    kw_read4(b16, in5 + i0);
    double t17[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t17[v] = double(b16[v] == b16[v]);
    }
    double t18[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t18[v] = t17[v] != double(0) ? b16[v] : double(INFINITY);
    }
    double t19[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t19[v] = t18[v] * 2.4112654320987654e-06;
    }
    double t20[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t20[v] = total0[v] * 2.4112654320987654e-06;
    }
    double t21[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t21[v] = t20[v] * t20[v];
    }
    double t22[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t22[v] = kw_unfused_sub(t19[v], t21[v]);
    }
    double t23[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t23[v] = t22[v] < 0.0 ? 0.0 : t22[v];
    }
    double t24[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t24[v] = t23[v] * 4.0;
    }
    double t25[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t25[v] = t24[v] * 1.0000024112712462;
    }
    double t26[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t26[v] = t25[v] * 0.1;
    }
    double t27[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t27[v] = kw_unfused_add(t15[v], t26[v]);
    }
    double y3[4];
    float y13[4];
    float y28[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      y3[v] = total0[v];
      y13[v] = (float)(t12[v]);
      y28[v] = (float)(t27[v]);
    }
    kw_write4(out0 + i0, y3);
    kw_write4(out1 + i0, y13);
    kw_write4(out2 + i0, y28);
  }
}

static const char* k4_sum_cast(const double* in0, const double* in1, const float* in2, const float* in3,
                               const float* in4, const double* in5, double* out0, float* out1, float* out2,
                               void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(in3) |
       reinterpret_cast<uintptr_t>(in4) | reinterpret_cast<uintptr_t>(in5) | reinterpret_cast<uintptr_t>(out0) |
       reinterpret_cast<uintptr_t>(out1) | reinterpret_cast<uintptr_t>(out2)) % 16 != 0)
    return "k4_sum_cast: in1, in2, in3, in4, in5, out0, out1, out2 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k4_sum_cast", k0_k4_sum_cast, 1, 256, 0, stream, in0, in1, in2, in3, in4, in5, out0, out1, out2);
  return nullptr;
}

//// k5_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// outer (16, 128), row (64,)
// total0 = sum(mul(in0, in1))
// out0 = unfused_add(mul(unfused_sub(mul(mul(unfused_add(total0, mul(in2, 25920)), 3.85802e-05), 2),
// mul(mul(unfused_add(in3, mul(in2, 414720)), 2.41127e-06), 2)), mul(rsqrt(unfused_add(mul(clamp_min(unfused_sub(...,
// ...), 0), 4), 1e-05)), in5)), in6)
static __global__ void __launch_bounds__(256) k0_k5_sum_cast(
    const double* __restrict__ in0, const double* __restrict__ in1, const float* __restrict__ in2,
    const double* __restrict__ in3, const double* __restrict__ in4, const float* __restrict__ in5,
    const float* __restrict__ in6, float* __restrict__ out0) {
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (blockIdx.x * 32u + column) * 4u;
  const int i0 = o / 128u;
  const int i1 = o % 128u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  double x0[8];
  double x1[8][4];
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const unsigned p = u * 8u + t;
    const int r0 = p;
    x0[u] = in0[i0 * 64 + r0];
    kw_read4(x1[u], in1 + (i1 + r0 * 128));
  }
#pragma unroll
  for (int u = 0; u < 8; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t2 = x0[u] * x1[u][v];
      sum0[v] += t2;
    }
  }
  __shared__ double share0_sum0[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
  }
  double total0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    total0[v] = double(sum0[v]) + double(0);
  }

  if (t == 0) {
    float b3[4];
    kw_read4(b3, in2 + i1);
    double t4[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t4[v] = double(b3[v]) * 25920.0;
    }
    double t5[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t5[v] = kw_unfused_add(total0[v], t4[v]);
    }
    double t6[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t6[v] = t5[v] * 3.8580246913580246e-05;
    }
    double t7[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t7[v] = t6[v] * 2.0;
    }
    double b8[4];
    kw_read4(b8, in3 + i1);
    double t9[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t9[v] = double(b3[v]) * 414720.0;
    }
    double t10[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t10[v] = kw_unfused_add(b8[v], t9[v]);
    }
    double t11[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t11[v] = t10[v] * 2.4112654320987654e-06;
    }
    double t12[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t12[v] = t11[v] * 2.0;
    }
    double t13[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t13[v] = kw_unfused_sub(t7[v], t12[v]);
    }
    double b14[4];
    kw_read4(b14, in4 + i1);
    double t15[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t15[v] = double(b14[v] == b14[v]);
    }
    double t16[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t16[v] = t15[v] != double(0) ? b14[v] : double(INFINITY);
    }
    double t17[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t17[v] = t16[v] * 2.4112654320987654e-06;
    }
    double t18[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t18[v] = b8[v] * 2.4112654320987654e-06;
    }
    double t19[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t19[v] = t18[v] * t18[v];
    }
    double t20[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t20[v] = kw_unfused_sub(t17[v], t19[v]);
    }
    double t21[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t21[v] = t20[v] < 0.0 ? 0.0 : t20[v];
    }
    double t22[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t22[v] = t21[v] * 4.0;
    }
    double t23[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t23[v] = kw_unfused_add(t22[v], 1e-05);
    }
    double t24[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t24[v] = kw_rsqrt(t23[v]);
    }
    float b25[4];
    kw_read4(b25, in5 + i1);
    double t26[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t26[v] = t24[v] * double(b25[v]);
    }
    double t27[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t27[v] = t13[v] * t26[v];
    }
    float b28[4];
    kw_read4(b28, in6 + i1);
    double t29[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t29[v] = kw_unfused_add(t27[v], double(b28[v]));
    }
    float y30[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      y30[v] = (float)(t29[v]);
    }
    kw_write4(out0 + (i0 * 128 + i1), y30);
  }
}

static const char* k5_sum_cast(const double* in0, const double* in1, const float* in2, const double* in3,
                               const double* in4, const float* in5, const float* in6, float* out0, void* workspace,
                               cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(in3) |
       reinterpret_cast<uintptr_t>(in4) | reinterpret_cast<uintptr_t>(in5) | reinterpret_cast<uintptr_t>(in6) |
       reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k5_sum_cast: in1, in2, in3, in4, in5, in6, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k5_sum_cast", k0_k5_sum_cast, 16, 256, 0, stream, in0, in1, in2, in3, in4, in5, in6, out0);
  return nullptr;
}

//// k7_moments_mean_sum
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Part 0: 12 parts of every row.
// outer (128,), row (16, 25920)
// mean0/variance0/deviation0 = moments(add(in0, in1))
static __global__ void __launch_bounds__(256) k0_k7_moments_mean_sum(
    const float* __restrict__ in0, const float* __restrict__ in1, double* __restrict__ partial0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned block = block_number % 128u, part = block_number / 128u;
  const unsigned t = threadIdx.x % 256u;  // place in the row's group
  const unsigned o = block;
  const int i0 = o;
  const unsigned first = part * (unsigned)8640;
  const unsigned end = (first + 8640u) * 4u < 414720u ? (first + 8640u) * 4u : 414720u;

  float b0;
  b0 = in0[i0 * 25920];
  float b1;
  b1 = in1[i0];
  const float t2 = b0 + b1;
  const double shift0 = t2 - t2 == 0 ? double(t2) : 0.0;
  double first0 = 0;
  double second0 = 0;
  for (unsigned k = 0; k < 34; k += 4) {
    float x3[4][4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const unsigned p = (first + (k + u) * 256u + t) * 4u;
      if (p < end) {
        const int r0 = p / 25920u;
        const int r1 = p % 25920u;
        kw_read4(x3[u], in0 + (i0 * 25920 + r0 * 3317760 + r1));
      }
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const unsigned p = (first + (k + u) * 256u + t) * 4u;
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t4 = x3[u][v] + b1;
          const double apart0 = double(t4) - shift0;
          first0 += apart0;
          second0 += apart0 * apart0;
        }
      }
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
  }
  __shared__ double share0_first0[8];
  __shared__ double share0_second0[8];
  if (threadIdx.x % 32u == 0) {
    share0_first0[threadIdx.x / 32u] = first0;
    share0_second0[threadIdx.x / 32u] = second0;
  }
  __syncthreads();
  first0 = share0_first0[threadIdx.x % 8u];
  second0 = share0_second0[threadIdx.x % 8u];
#pragma unroll
  for (int d = 4; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
  }
  if (t == 0) {
    double* part_of = partial0 + ((unsigned long long)o * 12 + part) * 2;
    part_of[0] = first0;
    part_of[1] = second0;
  }
}

// Merge of the parts.
static __global__ void __launch_bounds__(256) k1_k7_moments_mean_sum(
    const float* __restrict__ in0, const float* __restrict__ in1, double* __restrict__ partial0,
    float* __restrict__ mean0_of, float* __restrict__ variance0_of, float* __restrict__ deviation0_of) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  float b0;
  b0 = in0[i0 * 25920];
  float b1;
  b1 = in1[i0];
  const float t2 = b0 + b1;
  const double shift0 = t2 - t2 == 0 ? double(t2) : 0.0;
  double first0 = 0;
  double second0 = 0;
  for (unsigned s = t; s < 12u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 12 + s) * 2;
    first0 += part[0];
    second0 += part[1];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
  }
  const double centre0 = first0 / 414720.0;
  const double spread0 = second0 / 414720.0 - centre0 * centre0;
  const float mean0 = float(shift0 + centre0);
  const float variance0 = float(spread0 < 0 ? 0.0 : spread0);
  const float deviation0 = float(spread0 < 0 ? 0.0 : sqrt(spread0));

  if (t == 0) {
    mean0_of[o] = mean0;
    variance0_of[o] = variance0;
    deviation0_of[o] = deviation0;
  }
}

// Part 1: 12 parts of every row.
// outer (128,), row (16, 25920)
// total1 = sum(mul(div(in2, 25920), mul(unfused_sub(mul(add(in0, in1), 2), mul(mean0_of, 2)),
// where(lt(mul(deviation0_of, 2), 1e+15), rsqrt(unfused_add(mul(variance0_of, 4), 1e-05)),
// reciprocal(mul(deviation0_of, 2))))))
static __global__ void __launch_bounds__(256) k2_k7_moments_mean_sum(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ mean0_of, const float* __restrict__ variance0_of, const float* __restrict__ deviation0_of,
    double* __restrict__ partial1) {
  const unsigned block = blockIdx.x % 128u, part = blockIdx.x / 128u;
  const unsigned t = threadIdx.x % 256u;  // place in the row's group
  const unsigned o = block;
  const int i0 = o;
  const unsigned first = part * (unsigned)8640;
  const unsigned end = (first + 8640u) * 4u < 414720u ? (first + 8640u) * 4u : 414720u;

  float b3;
  b3 = in1[i0];
  float b6;
  b6 = mean0_of[i0];
  const float t7 = b6 * 2.0f;
  float b9;
  b9 = deviation0_of[i0];
  const float t10 = b9 * 2.0f;
  const float t11 = float(t10 < 1e+15f);
  float b12;
  b12 = variance0_of[i0];
  const float t13 = b12 * 4.0f;
  const float t14 = kw_unfused_add(t13, 1e-05f);
  const float t15 = kw_rsqrt(t14);
  const float t16 = kw_divide(1.0f, t10);
  const float t17 = t11 != float(0) ? t15 : t16;
  double sum1 = 0;
  for (unsigned k = 0; k < 34; k += 4) {
    float x0[4];
    float x2[4][4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const unsigned p = (first + (k + u) * 256u + t) * 4u;
      if (p < end) {
        const int r0 = p / 25920u;
        const int r1 = p % 25920u;
        x0[u] = in2[i0 + r0 * 128];
        kw_read4(x2[u], in0 + (i0 * 25920 + r0 * 3317760 + r1));
      }
    }
    float part1[4] = {};
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const unsigned p = (first + (k + u) * 256u + t) * 4u;
      if (p < end) {
        const float t1 = x0[u] * 3.858025e-05f;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t4 = x2[u][v] + b3;
          const float t5 = t4 * 2.0f;
          const float t8 = kw_unfused_sub(t5, t7);
          const float t18 = t8 * t17;
          const float t19 = t1 * t18;
          part1[v] += t19;
        }
      }
    }
    sum1 += double(((part1[0] + part1[1]) + (part1[2] + part1[3])));
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  __shared__ double share0_sum1[8];
  if (threadIdx.x % 32u == 0) {
    share0_sum1[threadIdx.x / 32u] = sum1;
  }
  __syncthreads();
  sum1 = share0_sum1[threadIdx.x % 8u];
#pragma unroll
  for (int d = 4; d > 0; d /= 2) {
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  if (t == 0) {
    double* part_of = partial1 + ((unsigned long long)o * 12 + part);
    part_of[0] = sum1;
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k3_k7_moments_mean_sum(
    const float* __restrict__ mean0_of, const float* __restrict__ variance0_of, const float* __restrict__ deviation0_of,
    float* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2, float* __restrict__ out3,
    float* __restrict__ out4, double* __restrict__ partial1) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum1 = 0;
  for (unsigned s = t; s < 12u; s += 32u) {
    const double* part = partial1 + ((unsigned long long)o * 12 + s);
    sum1 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  const float total1 = float(sum1);

  if (t == 0) {
    float b0;
    b0 = deviation0_of[i0];
    float b1;
    b1 = variance0_of[i0];
    float b2;
    b2 = mean0_of[i0];
    const float t3 = total1 * 2.4112655e-06f;
    out0[i0] = b0;
    out1[i0] = b1;
    out2[i0] = b2;
    out3[i0] = t3;
    out4[i0] = total1;
  }
}

static const char* k7_moments_mean_sum(const float* in0, const float* in1, const float* in2, float* out0, float* out1,
                                       float* out2, float* out3, float* out4, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k7_moments_mean_sum: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  float* mean0_of = reinterpret_cast<float*>(static_cast<char*>(workspace) + 24576LL);
  float* variance0_of = reinterpret_cast<float*>(static_cast<char*>(workspace) + 25088LL);
  float* deviation0_of = reinterpret_cast<float*>(static_cast<char*>(workspace) + 25600LL);
  double* partial1 = reinterpret_cast<double*>(static_cast<char*>(workspace) + 26112LL);
  KW_LAUNCH("k7_moments_mean_sum", k0_k7_moments_mean_sum, 1536, 256, 0, stream, in0, in1, partial0);
  KW_LAUNCH("k7_moments_mean_sum", k1_k7_moments_mean_sum, 16, 256, 0, stream, in0, in1, partial0, mean0_of,
            variance0_of, deviation0_of);
  KW_LAUNCH("k7_moments_mean_sum", k2_k7_moments_mean_sum, 1536, 256, 0, stream, in0, in1, in2, mean0_of, variance0_of,
            deviation0_of, partial1);
  KW_LAUNCH("k7_moments_mean_sum", k3_k7_moments_mean_sum, 16, 256, 0, stream, mean0_of, variance0_of, deviation0_of,
            out0, out1, out2, out3, out4, partial1);
  return nullptr;
}

//// k8_mean
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Part 0: 528 parts of every row.
// outer (128,), row (16, 25920)
// total0 = sum(div(in0, 25920))
static __global__ void __launch_bounds__(256) k0_k8_mean(
    const float* __restrict__ in0, double* __restrict__ partial0) {
  const unsigned block = 0, part = blockIdx.x;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)786;
  const unsigned end = (first + 786u) < 414720u ? (first + 786u) : 414720u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  for (unsigned k = 0; k < 99; k += 8) {
    float x0[8][4];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p / 25920u;
        kw_read4(x0[u], in0 + (i0 + r0 * 128));
      }
    }
    float part0[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t1 = x0[u][v] * 3.858025e-05f;
          part0[v] += t1;
        }
      }
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum0[v] += part0[v];
    }
  }
  __shared__ double share0_sum0[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
  }
  if (t == 0) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      double* part_of = partial0 + ((unsigned long long)(o + v) * 528 + part);
      part_of[0] = sum0[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k8_mean(
    float* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 256u;  // place in the row's group
  const unsigned o = blockIdx.x;
  const int i0 = o;
  double sum0 = 0;
  for (unsigned s = t; s < 528u; s += 256u) {
    const double* part = partial0 + ((unsigned long long)o * 528 + s);
    sum0 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  __shared__ double share0_sum0[8];
  if (threadIdx.x % 32u == 0) {
    share0_sum0[threadIdx.x / 32u] = sum0;
  }
  __syncthreads();
  sum0 = share0_sum0[threadIdx.x % 8u];
#pragma unroll
  for (int d = 4; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  const float total0 = float(sum0);

  if (t == 0) {
    const float t0 = total0 * 2.4112655e-06f;
    out0[i0] = t0;
  }
}

static const char* k8_mean(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k8_mean: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k8_mean", k0_k8_mean, 528, 256, 0, stream, in0, partial0);
  KW_LAUNCH("k8_mean", k1_k8_mean, 128, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// k9_mul
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// points (16, 128, 25920)
// out0 = mul(mul(mul(where(lt(mul(in0, 2), 1e+15), rsqrt(unfused_add(mul(in1, 4), 1e-05)), reciprocal(mul(in0, 2))),
// in2), sub(unfused_sub(div(in3, 25920), mul(mul(unfused_sub(mul(..., 2), mul(in6, 2)), where(lt(..., 1e+15),
// rsqrt(...), reciprocal(...))), in7)), in8)), 2)
static __global__ void __launch_bounds__(256) k0_k9_mul(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
    const float* __restrict__ in6, const float* __restrict__ in7, const float* __restrict__ in8,
    float* __restrict__ out0) {
  {
    const unsigned p = (blockIdx.x * 256 + threadIdx.x) * 4;
    const int i0 = p / 3317760u;
    const int i1 = p / 25920u % 128u;
    const int i2 = p % 25920u;
    float x0;
    float x3;
    float x9;
    float x11;
    float x13[4];
    float x14;
    float x17;
    float x21;
    float x24;
    x0 = in0[i1];
    x3 = in1[i1];
    x9 = in2[i1];
    x11 = in3[i0 * 128 + i1];
    kw_read4(x13, in4 + (i0 * 3317760 + i1 * 25920 + i2));
    x14 = in5[i1];
    x17 = in6[i1];
    x21 = in7[i1];
    x24 = in8[i1];
    const float t1 = x0 * 2.0f;
    const float t2 = float(t1 < 1e+15f);
    const float t4 = x3 * 4.0f;
    const float t5 = kw_unfused_add(t4, 1e-05f);
    const float t6 = kw_rsqrt(t5);
    const float t7 = kw_divide(1.0f, t1);
    const float t8 = t2 != float(0) ? t6 : t7;
    const float t10 = t8 * x9;
    const float t12 = x11 * 3.858025e-05f;
    const float t18 = x17 * 2.0f;
    float y28[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t15 = x13[v] + x14;
      const float t16 = t15 * 2.0f;
      const float t19 = kw_unfused_sub(t16, t18);
      const float t20 = t19 * t8;
      const float t22 = t20 * x21;
      const float t23 = kw_unfused_sub(t12, t22);
      const float t25 = t23 - x24;
      const float t26 = t10 * t25;
      const float t27 = t26 * 2.0f;
      y28[v] = t27;
    }
    kw_write4(out0 + (i0 * 3317760 + i1 * 25920 + i2), y28);
  }
}

static const char* k9_mul(const float* in0, const float* in1, const float* in2, const float* in3, const float* in4,
                          const float* in5, const float* in6, const float* in7, const float* in8, float* out0,
                          void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in4) | reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k9_mul: in4, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k9_mul", k0_k9_mul, 51840, 256, 0, stream, in0, in1, in2, in3, in4, in5, in6, in7, in8, out0);
  return nullptr;
}

//// k10_sum
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// Part 0: 528 parts of every row.
// outer (128,), row (16, 25920)
// total0 = sum(div(in0, 25920))
static __global__ void __launch_bounds__(256) k0_k10_sum(
    const float* __restrict__ in0, double* __restrict__ partial0) {
  const unsigned block = 0, part = blockIdx.x;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)786;
  const unsigned end = (first + 786u) < 414720u ? (first + 786u) : 414720u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  for (unsigned k = 0; k < 99; k += 8) {
    float x0[8][4];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p / 25920u;
        kw_read4(x0[u], in0 + (i0 + r0 * 128));
      }
    }
    float part0[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t1 = x0[u][v] * 3.858025e-05f;
          part0[v] += t1;
        }
      }
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum0[v] += part0[v];
    }
  }
  __shared__ double share0_sum0[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
  }
  if (t == 0) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      double* part_of = partial0 + ((unsigned long long)(o + v) * 528 + part);
      part_of[0] = sum0[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k10_sum(
    float* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 256u;  // place in the row's group
  const unsigned o = blockIdx.x;
  const int i0 = o;
  double sum0 = 0;
  for (unsigned s = t; s < 528u; s += 256u) {
    const double* part = partial0 + ((unsigned long long)o * 528 + s);
    sum0 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  __shared__ double share0_sum0[8];
  if (threadIdx.x % 32u == 0) {
    share0_sum0[threadIdx.x / 32u] = sum0;
  }
  __syncthreads();
  sum0 = share0_sum0[threadIdx.x % 8u];
#pragma unroll
  for (int d = 4; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  const float total0 = float(sum0);

  if (t == 0) {
    out0[i0] = total0;
  }
}

static const char* k10_sum(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k10_sum: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k10_sum", k0_k10_sum, 528, 256, 0, stream, in0, partial0);
  KW_LAUNCH("k10_sum", k1_k10_sum, 128, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// k6_sum_cast
// convt_batchnorm_pool.py:18: x = self.conv_transpose(x)
// convt_batchnorm_pool.py:19: x = x * self.scale_factor
// convt_batchnorm_pool.py:20: x = self.batch_norm(x)
// convt_batchnorm_pool.py:21: return self.pool(x)
// outer (16, 128), row (64,)
// total0 = sum(mul(in0, in1))
// out0 = unfused_add(mul(unfused_sub(mul(mul(unfused_add(total0, mul(in2, 25920)), 3.85802e-05), 2), in3),
// mul(rsqrt(add(in4, 1e-05)), in5)), in6)
static __global__ void __launch_bounds__(256) k0_k6_sum_cast(
    const double* __restrict__ in0, const double* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, const float* __restrict__ in4, const float* __restrict__ in5,
    const float* __restrict__ in6, float* __restrict__ out0) {
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (blockIdx.x * 32u + column) * 4u;
  const int i0 = o / 128u;
  const int i1 = o % 128u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  double x0[8];
  double x1[8][4];
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const unsigned p = u * 8u + t;
    const int r0 = p;
    x0[u] = in0[i0 * 64 + r0];
    kw_read4(x1[u], in1 + (i1 + r0 * 128));
  }
#pragma unroll
  for (int u = 0; u < 8; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t2 = x0[u] * x1[u][v];
      sum0[v] += t2;
    }
  }
  __shared__ double share0_sum0[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
  }
  double total0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    total0[v] = double(sum0[v]) + double(0);
  }

  if (t == 0) {
    float b3[4];
    kw_read4(b3, in2 + i1);
    double t4[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t4[v] = double(b3[v]) * 25920.0;
    }
    double t5[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t5[v] = kw_unfused_add(total0[v], t4[v]);
    }
    double t6[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t6[v] = t5[v] * 3.8580246913580246e-05;
    }
    double t7[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t7[v] = t6[v] * 2.0;
    }
    float b8[4];
    kw_read4(b8, in3 + i1);
    double t9[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t9[v] = kw_unfused_sub(t7[v], double(b8[v]));
    }
    float b10[4];
    kw_read4(b10, in4 + i1);
    double t11[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t11[v] = double(b10[v]) + 1e-05;
    }
    double t12[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t12[v] = kw_rsqrt(t11[v]);
    }
    float b13[4];
    kw_read4(b13, in5 + i1);
    double t14[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t14[v] = t12[v] * double(b13[v]);
    }
    double t15[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t15[v] = t9[v] * t14[v];
    }
    float b16[4];
    kw_read4(b16, in6 + i1);
    double t17[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      t17[v] = kw_unfused_add(t15[v], double(b16[v]));
    }
    float y18[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      y18[v] = (float)(t17[v]);
    }
    kw_write4(out0 + (i0 * 128 + i1), y18);
  }
}

static const char* k6_sum_cast(const double* in0, const double* in1, const float* in2, const float* in3,
                               const float* in4, const float* in5, const float* in6, float* out0, void* workspace,
                               cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(in3) |
       reinterpret_cast<uintptr_t>(in4) | reinterpret_cast<uintptr_t>(in5) | reinterpret_cast<uintptr_t>(in6) |
       reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k6_sum_cast: in1, in2, in3, in4, in5, in6, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k6_sum_cast", k0_k6_sum_cast, 16, 256, 0, stream, in0, in1, in2, in3, in4, in5, in6, out0);
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* stream) {
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
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, nullptr,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k1_region_sum(conv_transpose_weight_ptr, region_sum_k1_ptr, nullptr,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k2_sum(region_sum_k0_ptr, sum_k2_ptr, nullptr,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_channel_energy(x_ptr, conv_transpose_weight_ptr, channel_energy_k3_ptr,
                                                workspace + 76288, static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k4_sum_cast(sum_k2_ptr, region_sum_k1_ptr, batch_norm_running_mean_ptr,
                                          conv_transpose_bias_ptr, batch_norm_running_var_ptr, channel_energy_k3_ptr,
                                          sum_k4_0_ptr, batch_norm_running_mean_out5, batch_norm_running_var_out6,
                                          nullptr, static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k5_sum_cast(region_sum_k0_ptr, region_sum_k1_ptr, conv_transpose_bias_ptr, sum_k4_0_ptr,
                                          channel_energy_k3_ptr, batch_norm_weight_ptr, batch_norm_bias_ptr,
                                          cast_k5_ptr, nullptr, static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* stream) {
    auto* _t5_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[1]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[2]);
    auto* sum_k7_4_ptr = static_cast<float*>(tensors[3]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[4]);
    auto* mul_k9_ptr = static_cast<float*>(tensors[5]);
    auto* sum_k10_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 1024);
    auto* mean_k7_3_ptr = reinterpret_cast<float*>(workspace + 1536);
    auto* mean_k8_ptr = reinterpret_cast<float*>(workspace + 2048);
    if (const char* failure = k7_moments_mean_sum(_t5_convolution_ptr, conv_transpose_bias_ptr,
                                                  gradient_of_output_0_ptr, std_k7_0_ptr, var_k7_1_ptr, mean_k7_2_ptr,
                                                  mean_k7_3_ptr, sum_k7_4_ptr, workspace + 2560,
                                                  static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k8_mean(gradient_of_output_0_ptr, mean_k8_ptr, workspace + 2560,
                                      static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k9_mul(std_k7_0_ptr, var_k7_1_ptr, batch_norm_weight_ptr, gradient_of_output_0_ptr,
                                     _t5_convolution_ptr, conv_transpose_bias_ptr, mean_k7_2_ptr, mean_k7_3_ptr,
                                     mean_k8_ptr, mul_k9_ptr, nullptr, static_cast<cudaStream_t>(
        stream))) return failure;
    if (const char* failure = k10_sum(gradient_of_output_0_ptr, sum_k10_ptr, workspace + 2560,
                                      static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* stream) {
    auto* _t5_convolution_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[1]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[2]);
    auto* sum_k7_4_ptr = static_cast<float*>(tensors[3]);
    auto* batch_norm_weight_ptr = static_cast<const float*>(tensors[4]);
    auto* mul_k9_ptr = static_cast<float*>(tensors[5]);
    auto* sum_k10_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    auto* std_k7_0_ptr = reinterpret_cast<float*>(workspace);
    auto* var_k7_1_ptr = reinterpret_cast<float*>(workspace + 512);
    auto* mean_k7_2_ptr = reinterpret_cast<float*>(workspace + 1024);
    auto* mean_k7_3_ptr = reinterpret_cast<float*>(workspace + 1536);
    auto* mean_k8_ptr = reinterpret_cast<float*>(workspace + 2048);
    if (const char* failure = k7_moments_mean_sum(_t5_convolution_ptr, conv_transpose_bias_ptr,
                                                  gradient_of_output_0_ptr, std_k7_0_ptr, var_k7_1_ptr, mean_k7_2_ptr,
                                                  mean_k7_3_ptr, sum_k7_4_ptr, workspace + 2560,
                                                  static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k8_mean(gradient_of_output_0_ptr, mean_k8_ptr, workspace + 2560,
                                      static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k9_mul(std_k7_0_ptr, var_k7_1_ptr, batch_norm_weight_ptr, gradient_of_output_0_ptr,
                                     _t5_convolution_ptr, conv_transpose_bias_ptr, mean_k7_2_ptr, mean_k7_3_ptr,
                                     mean_k8_ptr, mul_k9_ptr, nullptr, static_cast<cudaStream_t>(
        stream))) return failure;
    if (const char* failure = k10_sum(gradient_of_output_0_ptr, sum_k10_ptr, workspace + 2560,
                                      static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_inference_0(void* const* tensors, void* stream) {
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
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, nullptr,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k1_region_sum(conv_transpose_weight_ptr, region_sum_k1_ptr, nullptr,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k6_sum_cast(region_sum_k0_ptr, region_sum_k1_ptr, conv_transpose_bias_ptr,
                                          batch_norm_running_mean_ptr, batch_norm_running_var_ptr,
                                          batch_norm_weight_ptr, batch_norm_bias_ptr, cast_k6_ptr, nullptr,
                                          static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, conv_transpose_weight, conv_transpose_bias, batch_norm_weight,
                           batch_norm_bias, batch_norm_num_batches_tracked, batch_norm_running_mean,
                           batch_norm_running_var):
    """The program of training mode: 6 kernels, 0 torch calls."""
    cast_k5 = torch.empty((16, 128, 1, 1, 1), dtype=torch.float32, device=_device)
    workspace = torch.empty(271228160, dtype=torch.uint8, device=_device)
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
    _t5_convolution = torch.nn.functional.conv_transpose3d(x, conv_transpose_weight, None, (1, 1, 1), (0, 0, 0),
                                                           (0, 0, 0), 1, (1, 1, 1)).contiguous()
    sum_k7_4 = torch.empty_like(conv_transpose_bias)
    mul_k9 = torch.empty_like(_t5_convolution)
    sum_k10 = torch.empty_like(conv_transpose_bias)
    workspace = torch.empty(543232, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, _t5_convolution,
                         conv_transpose_bias, gradient_of_output_0, sum_k7_4, batch_norm_weight, mul_k9, sum_k10,
                         workspace)
    del _t5_convolution, workspace
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
    _t5_convolution = torch.nn.functional.conv_transpose3d(x, conv_transpose_weight, None, (1, 1, 1), (0, 0, 0),
                                                           (0, 0, 0), 1, (1, 1, 1)).contiguous()
    sum_k7_4 = torch.empty_like(conv_transpose_bias)
    mul_k9 = torch.empty_like(_t5_convolution)
    sum_k10 = torch.empty_like(conv_transpose_bias)
    workspace = torch.empty(543232, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, _t5_convolution, conv_transpose_bias,
                         gradient_of_output_0, sum_k7_4, batch_norm_weight, mul_k9, sum_k10, workspace)
    del _t5_convolution, workspace
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
    "ahead": False,
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
    "ahead": True,
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
    nvcc = os.path.join(cpp_extension.CUDA_HOME or "", "bin" if cpp_extension.CUDA_HOME else "", "nvcc")
    wanted["the CUDA compiler"] = os.environ.get("PYTORCH_NVCC") or nvcc
    return [f"{what} {tool}".lstrip() for what, tool in wanted.items()
            if not shutil.which(next(iter(shlex.split(tool)), tool))]


def _kernelwright_compile(folder, name):
    """Compile the kernels into a shared library in a folder."""
    missing = _kernelwright_missing()
    if missing:
        raise RuntimeError(f"not found: {', '.join(missing)}")
    from torch.utils.cpp_extension import load, load_inline

    options = {"name": name, "build_directory": folder, "is_python_module": False}
    options["extra_cuda_cflags"] = _KERNELWRIGHT_FLAGS
    cores = len(os.sched_getaffinity(0)) if platform.system() == "Linux" else os.cpu_count() or 1
    units, files = _kernelwright_units(cores), []
    for number, unit in enumerate(units if len(units) > 1 else ()):
        files.append(os.path.join(folder, f"unit{number}.{'cu' if _KERNELWRIGHT_DEVICE == 'cuda' else 'cpp'}"))
        Path(files[-1]).write_text(unit, encoding="utf-8")
    if files:
        load(sources=files, **options)
        return
    load_inline(cpp_sources=[""], cuda_sources=[_KERNELWRIGHT_SOURCE], no_implicit_headers=True, **options)


def _kernelwright_build():
    """Compile the kernels once for this machine; later imports load the finished library."""
    identity = [_KERNELWRIGHT_SOURCE, *_KERNELWRIGHT_FLAGS, torch.__version__, platform.machine()]
    major, minor = torch.cuda.get_device_capability()
    architecture = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
    identity.append(architecture)
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
            before = os.environ.get("TORCH_CUDA_ARCH_LIST")
            os.environ["TORCH_CUDA_ARCH_LIST"] = architecture
            try:
                _kernelwright_compile(folder, name)
            finally:
                if before is None:
                    del os.environ["TORCH_CUDA_ARCH_LIST"]
                else:
                    os.environ["TORCH_CUDA_ARCH_LIST"] = before
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
    if torch.cuda.is_available():
        _kernelwright_library = _kernelwright_build()
        _kernelwright_devices = {i for i in range(torch.cuda.device_count())
                                 if torch.cuda.get_device_capability(i) == torch.cuda.get_device_capability()}
    else:
        _kernelwright_trouble = "there is no CUDA device"
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
        # In which gradient mode the next call is likely to find all as it was, and ask for no gradients.
        self.trusted = None

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


# The current stream of a device, by its index; PyTorch's own function for it makes no object.
_kernelwright_stream = getattr(torch._C, "_cuda_getCurrentRawStream",
                               lambda index: torch.cuda.current_stream(index).cuda_stream)


def _kernelwright_run(facts, values):
    """Run the program of a mode on its tensors' device and stream; gradients must be off."""
    device = values[0].device
    if device.type == "cuda":
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return _kernelwright_run(facts, values)
        return facts["run"](device, _kernelwright_stream(device.index), *values)
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
        ahead = _kernelwright_ahead(model, facts, given)
        if ahead is not None:
            return ahead[0]
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
            binding.trusted = None if differentiated else torch.is_grad_enabled()
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


def _kernelwright_ahead(model, facts, inputs):
    """The result, as a tuple of one, of a call whose tensors are of the kinds of those of the call before; or None.
    Whether all else is as it was is asked once the kernels are launched. Where it is not, what they computed is
    dropped: they change nothing, and read tensors that are known to fit."""
    binding = _kernelwright_bindings.get(model, {}).get(id(facts))
    recording = torch.is_grad_enabled()
    if binding is None or binding.trusted is not recording or not facts["ahead"] or _kernelwright_intercepted():
        return None
    binding.trusted = None  # a model that is another is not tried again and again
    try:
        given = (*[value for value in inputs if isinstance(value, torch.Tensor)],
                 *map(operator.getitem, binding.homes, binding.keys))
        if binding.same is None or not binding.same.check(*given):
            return None
        values = list(given)
        if any([address & 15 or not address for address in map(torch.Tensor.data_ptr, values)]):
            return None
        with torch.no_grad():
            computed = _kernelwright_run(facts, values)
    except Exception:  # found again, and said, where all is asked first
        return None
    if not binding.holds(model) or torch.get_default_dtype() is not facts["default_dtype"]:
        return None
    if recording and any([home[key].requires_grad for home, key in binding.parameters.values()]):
        return None
    try:
        found = computed[0]
    except Exception:  # as above
        return None
    binding.trusted = recording
    return (found,)


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
