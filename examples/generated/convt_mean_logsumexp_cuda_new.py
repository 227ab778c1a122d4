"""ModelNew: convt_mean_logsumexp, with custom kernels. Written by kernelwright 0.1.0 for NVIDIA H200.

Same constructor, parameters and results as the original class. Where a call does not fit what the
kernels were built for, the original computation runs, with one warning.

Training mode: 6 of 6 operators replaced.
  operations 619 GFLOP -> 271 MFLOP, memory traffic 5.4 GB -> 1.08 GB
  rule sum of a convolution: sum_p conv(x, w)[p] = contraction of (sums of x over the positions each tap sees)
    with (sums of taps); reassociates sums and products: where inputs are infinite, Inf and NaN may trade
    places, and a sum of zeros may have another sign
  rule round late (5 times): f(round(x)) = round(f(x)) up to the rounding of x; changes rounding
  rule keep reduced axes: reduce(x) = reshape(reduce(x, keepdim)); bitwise
  rule reduction over a unit axis: reduce over an axis of size one is the identity (log(exp(x)) = x); a sum of
    one zero is +0; changes rounding
  kernel k0_region_sum: sums of [16, 64, 512, 512] over classes of positions, one pass, to [16, 64, 1, 1]
  kernel k1_sum: sum over rows of [64, 3, 3] for each of [16, 128]: contract, cast
  kernel k2_logsumexp_cast: logsumexp over rows of [128] for each of [16]: logsumexp, add, mul, cast
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Transposed convolution, global mean, bias, log-sum-exp over channels, sum, scale."""

    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super().__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def _original_forward(self, x):
        x = self.conv_transpose(x)
        x = torch.mean(x, dim=(2, 3), keepdim=True)
        x = x + self.bias
        x = torch.logsumexp(x, dim=1, keepdim=True)
        x = torch.sum(x, dim=(2, 3))
        return x * 10.0

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


_KERNELWRIGHT_OPERATORS = "convt_mean_logsumexp_0884ae81e945"
_KERNELWRIGHT_NAME = "convt_mean_logsumexp"
_KERNELWRIGHT_DEVICE = "cuda"
_KERNELWRIGHT_FLAGS = ['-O3', '-std=c++17', '-lineinfo']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_region_sum', 'k1_sum', 'k2_logsumexp_cast'],
    "kernelwright_training_backward_of_parameters_0": ['k0_region_sum', 'k1_sum', 'k3_logsumexp_cast', 'k4_sum_cast'],
    "kernelwright_training_backward_0": ['k0_region_sum', 'k1_sum', 'k3_logsumexp_cast', 'k4_sum_cast'],
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
#endif  // KERNELWRIGHT_EMULATION

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_add(float x, float y) { return __fadd_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_add(double x, double y) { return __dadd_rn(x, y); }

static __device__ __forceinline__ float kw_exp(float x) { return expf(x); }
static __device__ __forceinline__ double kw_exp(double x) { return exp(x); }

// Running log-sum-exp: the sum of the exponentials is exp(base) * scaled, base = top where top is finite, else 0.
template <typename T>
static __device__ __forceinline__ T kw_exponent_base(T top) { return top - top == T(0) || top != top ? top : T(0); }
static __device__ __forceinline__ float kw_exponential(float x) { return expf(x); }
static __device__ __forceinline__ double kw_exponential(double x) { return exp(x); }

// Adds `count` values to the pair (top, scaled).
template <int count, typename T, typename Wide>
static __device__ __forceinline__ void kw_logsumexp_add(T& top, Wide& scaled, const T* value) {
  T highest = top;
#pragma unroll
  for (int i = 0; i < count; ++i) highest = (highest > value[i] || highest != highest) ? highest : value[i];
  const T base = kw_exponent_base(highest);
  T part = T(0);
#pragma unroll
  for (int i = 0; i < count; ++i) part += kw_exponential(value[i] - base);
  scaled = scaled * Wide(kw_exponential(top - base)) + Wide(part);
  top = highest;
}

// Adds the pair (other_top, other_scaled) to the pair (top, scaled).
template <typename T, typename Wide>
static __device__ __forceinline__ void kw_logsumexp_merge(T& top, Wide& scaled, T other_top, Wide other_scaled) {
  const T highest = (top > other_top || top != top) ? top : other_top;
  const T base = kw_exponent_base(highest);
  // A side without elements has scaled = 0 and top = -inf: its factor is exp(-inf) = 0.
  const T place = kw_exponent_base(top) == top ? top - base : top;
  const Wide mine = scaled * Wide(kw_exponential(place));
  const T other_place = kw_exponent_base(other_top) == other_top ? other_top - base : other_top;
  const Wide other = other_scaled * Wide(kw_exponential(other_place));
  scaled = mine + other;
  top = highest;
}

template <typename T, typename Wide>
static __device__ __forceinline__ T kw_logsumexp_result(T top, Wide scaled) {
  return kw_exponent_base(top) + log(T(scaled));
}

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
// convt_mean_logsumexp.py:16: x = self.conv_transpose(x)
// convt_mean_logsumexp.py:17: x = torch.mean(x, dim=(2, 3), keepdim=True)
// Rows are numbered atom by atom; an atom's rows belong to the same classes.
static __device__ __forceinline__ int k0_region_sum_first_row(int i) { return i * 2048; }
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
  x_offset += unit * 262144; out_offset += unit;
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
  const long long first_unit = static_cast<long long>(blockIdx.x) / 3;
  const long long unit = first_unit + group / 4;
  const int stream = static_cast<int>(blockIdx.x % 3) * 4 + group % 4;
  // Slot (atom + stream in block) of a unit: streams walk the atoms in order, so no two share one.
  __shared__ double slots[512];
  __shared__ int first_atom[4], last_atom[4];

  int first = 0, last = -1;
  if (unit < 1024LL) {
    long long x_offset, out_offset;
    const int columns = k0_region_sum_place(unit, x_offset, out_offset);
    long long row = 2048LL * stream / 12;
    const long long end = 2048LL * (stream + 1) / 12;
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

  // One unit per block: its tasks go to the workspace.
  for (int task = threadIdx.x; task < 1; task += 128)
    scratch[static_cast<long long>(blockIdx.x) + task] = totals[task];
}

// One warp per output adds the tasks of all blocks of its unit.
static __global__ void __launch_bounds__(256) k0_region_sum_finish(
    const double* __restrict__ scratch, double* __restrict__ out) {
  const long long number = static_cast<long long>(blockIdx.x) * 8 + threadIdx.x / 32;
  if (number >= 1024LL) return;
  const long long unit = number;
  const int output = 0;
  double sum = 0;
  for (int i = k0_region_sum_first_part(output); i < k0_region_sum_first_part(output + 1); ++i)
    for (int block = threadIdx.x % 32; block < 3; block += 32)
      sum += scratch[(unit * 3 + block) + k0_region_sum_part(i)];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  long long x_offset, out_offset;
  k0_region_sum_place(unit, x_offset, out_offset);
  if (threadIdx.x % 32 == 0) out[out_offset + k0_region_sum_output(output)] = static_cast<double>(1.0 * sum);
}

static const char* k0_region_sum(const float* x, double* out, void* workspace, cudaStream_t stream) {
  double* scratch = static_cast<double*>(workspace);
  KW_LAUNCH("k0_region_sum", k0_region_sum_stream, 3072LL, 128, 0, stream, x, out, scratch);
  KW_LAUNCH("k0_region_sum", k0_region_sum_finish, 128LL, 256, 0, stream, scratch, out);
  return nullptr;
}

//// k1_sum
// convt_mean_logsumexp.py:16: x = self.conv_transpose(x)
// convt_mean_logsumexp.py:17: x = torch.mean(x, dim=(2, 3), keepdim=True)
// Part 0: 9 parts of every row.
// outer (16, 128, 9), row (64,)
// total0 = sum(mul(in0, in1))
static __global__ void __launch_bounds__(256) k0_k1_sum(
    const double* __restrict__ in0, const float* __restrict__ in1, double* __restrict__ partial0) {
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = blockIdx.x * 32u + column;
  const int i0 = o / 1152u;
  const int i1 = o / 9u % 128u;
  const int i2 = o % 9u;

  double sum0 = 0;
  double x0[8];
  float x1[8];
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const unsigned p = u * 8u + t;
    const int r0 = p;
    x0[u] = in0[i0 * 64 + r0];
    x1[u] = in1[i1 * 9 + i2 + r0 * 1152];
  }
#pragma unroll
  for (int u = 0; u < 8; ++u) {
    const double t2 = x0[u] * double(x1[u]);
    sum0 += t2;
  }
  __shared__ double share0_sum0[8][32];
  share0_sum0[t][column] = sum0;
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 32u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
  sum0 = share0_sum0[0][column];
  if (t == 0) {
    double* part_of = partial0 + ((unsigned long long)o);
    part_of[0] = sum0;
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k1_sum(
    double* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o / 128u;
  const int i1 = o % 128u;
  double sum0 = 0;
  for (unsigned s = t; s < 9u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 9 + s);
    sum0 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  const double total0 = double(sum0) + double(0);

  if (t == 0) {
    out0[i0 * 128 + i1] = total0;
  }
}

static const char* k1_sum(const double* in0, const float* in1, double* out0, void* workspace, cudaStream_t stream) {
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k1_sum", k0_k1_sum, 576, 256, 0, stream, in0, in1, partial0);
  KW_LAUNCH("k1_sum", k1_k1_sum, 256, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// k2_logsumexp_cast
// convt_mean_logsumexp.py:16: x = self.conv_transpose(x)
// convt_mean_logsumexp.py:17: x = torch.mean(x, dim=(2, 3), keepdim=True)
// convt_mean_logsumexp.py:18: x = x + self.bias
// convt_mean_logsumexp.py:19: x = torch.logsumexp(x, dim=1, keepdim=True)
// convt_mean_logsumexp.py:20: x = torch.sum(x, dim=(2, 3))
// convt_mean_logsumexp.py:21: return x * 10.0
// outer (16,), row (128,)
// logsumexp0 = logsumexp(unfused_add(mul(unfused_add(in0, mul(in1, 264196)), 3.78507e-06), in2))
// out0 = mul(add(logsumexp0, 0), 10)
static __global__ void __launch_bounds__(256) k0_k2_logsumexp_cast(
    const double* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    float* __restrict__ out0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;

  double top0 = -INFINITY;
  double scaled0 = 0;
  double value0[4];
#pragma unroll
  for (int e = 0; e < 4; ++e) value0[e] = -INFINITY;
  {
    const unsigned p = (t) * 4u;
    const int r0 = p;
    double x0[4];
    float x1[4];
    float x5[4];
    kw_read4(x0, in0 + (i0 * 128 + r0));
    kw_read4(x1, in1 + r0);
    kw_read4(x5, in2 + r0);
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t2 = double(x1[v]) * 264196.0;
      const double t3 = kw_unfused_add(x0[v], t2);
      const double t4 = t3 * 3.785068661145513e-06;
      const double t6 = kw_unfused_add(t4, double(x5[v]));
      value0[v] = t6;
    }
  }
  kw_logsumexp_add<4>(top0, scaled0, value0);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    kw_logsumexp_merge(top0, scaled0, double(__shfl_xor_sync(0xffffffffu, top0, d)),
                       double(__shfl_xor_sync(0xffffffffu, scaled0, d)));
  }
  const double logsumexp0 = kw_logsumexp_result(top0, scaled0);

  if (t == 0) {
    const double t7 = logsumexp0 + 0.0;
    const double t8 = t7 * 10.0;
    out0[i0] = (float)(t8);
  }
}

static const char* k2_logsumexp_cast(const double* in0, const float* in1, const float* in2, float* out0,
                                     void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2)) % 16 !=
      0)
    return "k2_logsumexp_cast: in0, in1, in2 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k2_logsumexp_cast", k0_k2_logsumexp_cast, 2, 256, 0, stream, in0, in1, in2, out0);
  return nullptr;
}

//// k3_logsumexp_cast
// convt_mean_logsumexp.py:16: x = self.conv_transpose(x)
// convt_mean_logsumexp.py:17: x = torch.mean(x, dim=(2, 3), keepdim=True)
// convt_mean_logsumexp.py:18: x = x + self.bias
// convt_mean_logsumexp.py:19: x = torch.logsumexp(x, dim=1, keepdim=True)
// convt_mean_logsumexp.py:20: x = torch.sum(x, dim=(2, 3))
// convt_mean_logsumexp.py:21: return x * 10.0
// outer (16,), row (128,)
// logsumexp0 = logsumexp(unfused_add(mul(unfused_add(in0, mul(in1, 264196)), 3.78507e-06), in2))
// out1 = div(mul(mul(in3, 10), exp(sub(unfused_add(mul(unfused_add(in0, mul(in1, 264196)), 3.78507e-06), in2),
// logsumexp0))), 264196)
// out0 = logsumexp0
static __global__ void __launch_bounds__(256) k0_k3_logsumexp_cast(
    const double* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, double* __restrict__ out0, float* __restrict__ out1) {
  const unsigned t = threadIdx.x % 16u;  // place in the row's group
  const unsigned o = blockIdx.x * 16u + threadIdx.x / 16u;
  const int i0 = o;
  double keep0[2][4];

  double top0 = -INFINITY;
  double scaled0 = 0;
  double x0[2][4];
  float x1[2][4];
  float x5[2][4];
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const unsigned p = (u * 16u + t) * 4u;
    const int r0 = p;
    kw_read4(x0[u], in0 + (i0 * 128 + r0));
    kw_read4(x1[u], in1 + r0);
    kw_read4(x5[u], in2 + r0);
  }
  double value0[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) value0[e] = -INFINITY;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t2 = double(x1[u][v]) * 264196.0;
      const double t3 = kw_unfused_add(x0[u][v], t2);
      const double t4 = t3 * 3.785068661145513e-06;
      const double t6 = kw_unfused_add(t4, double(x5[u][v]));
      keep0[u][v] = t6;
      value0[u * 4 + v] = t6;
    }
  }
  kw_logsumexp_add<8>(top0, scaled0, value0);
#pragma unroll
  for (int d = 8; d > 0; d /= 2) {
    kw_logsumexp_merge(top0, scaled0, double(__shfl_xor_sync(0xffffffffu, top0, d)),
                       double(__shfl_xor_sync(0xffffffffu, scaled0, d)));
  }
  const double logsumexp0 = kw_logsumexp_result(top0, scaled0);

  float b7;
  b7 = in3[i0];
  const double t8 = double(b7) * 10.0;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    const unsigned p = (u * 16u + t) * 4u;
    const int r0 = p;
    float y13[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t9 = keep0[u][v] - logsumexp0;
      const double t10 = kw_exp(t9);
      const double t11 = t8 * t10;
      const double t12 = t11 / 264196.0;
      y13[v] = (float)(t12);
    }
    kw_write4(out1 + (i0 * 128 + r0), y13);
  }

  if (t == 0) {
    out0[i0] = logsumexp0;
  }
}

static const char* k3_logsumexp_cast(const double* in0, const float* in1, const float* in2, const float* in3,
                                     double* out0, float* out1, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) |
       reinterpret_cast<uintptr_t>(out1)) % 16 != 0)
    return "k3_logsumexp_cast: in0, in1, in2, out1 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k3_logsumexp_cast", k0_k3_logsumexp_cast, 1, 256, 0, stream, in0, in1, in2, in3, out0, out1);
  return nullptr;
}

//// k4_sum_cast
// convt_mean_logsumexp.py:16: x = self.conv_transpose(x)
// convt_mean_logsumexp.py:17: x = torch.mean(x, dim=(2, 3), keepdim=True)
// convt_mean_logsumexp.py:18: x = x + self.bias
// convt_mean_logsumexp.py:19: x = torch.logsumexp(x, dim=1, keepdim=True)
// convt_mean_logsumexp.py:20: x = torch.sum(x, dim=(2, 3))
// convt_mean_logsumexp.py:21: return x * 10.0
// outer (128,), row (16,)
// total0 = sum(mul(mul(in0, 10), exp(sub(unfused_add(mul(unfused_add(in1, mul(in2, 264196)), 3.78507e-06), in3),
// in4))))
// out0 = total0
static __global__ void __launch_bounds__(256) k0_k4_sum_cast(
    const float* __restrict__ in0, const double* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, const double* __restrict__ in4, float* __restrict__ out0) {
  const unsigned column = threadIdx.x % 64u, t = threadIdx.x / 64u;  // t: turn on the row
  const unsigned point = (blockIdx.x * 64u + column) * 4u;
  const bool active = point < 128u;
  const unsigned o = active ? point : 124u;
  const int i0 = o;

  float b3[4];
  kw_read4(b3, in2 + i0);
  double t4[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    t4[v] = double(b3[v]) * 264196.0;
  }
  float b7[4];
  kw_read4(b7, in3 + i0);
  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  float x0[4];
  double x2[4][4];
  double x9[4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = u * 4u + t;
    const int r0 = p;
    x0[u] = in0[r0];
    kw_read4(x2[u], in1 + (i0 + r0 * 128));
    x9[u] = in4[r0];
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const double t1 = double(x0[u]) * 10.0;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double t5 = kw_unfused_add(x2[u][v], t4[v]);
      const double t6 = t5 * 3.785068661145513e-06;
      const double t8 = kw_unfused_add(t6, double(b7[v]));
      const double t10 = t8 - x9[u];
      const double t11 = kw_exp(t10);
      const double t12 = t1 * t11;
      sum0[v] += t12;
    }
  }
  __shared__ double share0_sum0[4][256];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 64u + column] = sum0[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 256u; j += 256u) {
    double sum0 = share0_sum0[0][j];
#pragma unroll
    for (int y = 1; y < 4; ++y) {
      sum0 += share0_sum0[y][j];
    }
    share0_sum0[0][j] = sum0;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 64u + column];
  }
  double total0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    total0[v] = double(sum0[v]) + double(0);
  }

  if (t == 0 && active) {
    float y13[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      y13[v] = (float)(total0[v]);
    }
    kw_write4(out0 + i0, y13);
  }
}

static const char* k4_sum_cast(const float* in0, const double* in1, const float* in2, const float* in3,
                               const double* in4, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(in3) |
       reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k4_sum_cast: in1, in2, in3, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k4_sum_cast", k0_k4_sum_cast, 1, 256, 0, stream, in0, in1, in2, in3, in4, out0);
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* bias_ptr = static_cast<const float*>(tensors[3]);
    auto* cast_k2_ptr = static_cast<float*>(tensors[4]);
    auto* workspace = static_cast<char*>(tensors[5]);
    auto* region_sum_k0_ptr = reinterpret_cast<double*>(workspace);
    auto* sum_k1_ptr = reinterpret_cast<double*>(workspace + 8192);
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, workspace + 24576,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k1_sum(region_sum_k0_ptr, conv_transpose_weight_ptr, sum_k1_ptr, workspace + 24576,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k2_logsumexp_cast(sum_k1_ptr, conv_transpose_bias_ptr, bias_ptr, cast_k2_ptr, nullptr,
                                                static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* bias_ptr = static_cast<const float*>(tensors[3]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[4]);
    auto* cast_k3_1_ptr = static_cast<float*>(tensors[5]);
    auto* cast_k4_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    auto* region_sum_k0_ptr = reinterpret_cast<double*>(workspace);
    auto* sum_k1_ptr = reinterpret_cast<double*>(workspace + 8192);
    auto* logsumexp_k3_0_ptr = reinterpret_cast<double*>(workspace + 24576);
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, workspace + 24832,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k1_sum(region_sum_k0_ptr, conv_transpose_weight_ptr, sum_k1_ptr, workspace + 24832,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_logsumexp_cast(sum_k1_ptr, conv_transpose_bias_ptr, bias_ptr, gradient_of_output_0_ptr,
                                                logsumexp_k3_0_ptr, cast_k3_1_ptr, nullptr,
                                                static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k4_sum_cast(gradient_of_output_0_ptr, sum_k1_ptr, conv_transpose_bias_ptr, bias_ptr,
                                          logsumexp_k3_0_ptr, cast_k4_ptr, nullptr,
                                          static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* conv_transpose_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* conv_transpose_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* bias_ptr = static_cast<const float*>(tensors[3]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[4]);
    auto* cast_k3_1_ptr = static_cast<float*>(tensors[5]);
    auto* cast_k4_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    auto* region_sum_k0_ptr = reinterpret_cast<double*>(workspace);
    auto* sum_k1_ptr = reinterpret_cast<double*>(workspace + 8192);
    auto* logsumexp_k3_0_ptr = reinterpret_cast<double*>(workspace + 24576);
    if (const char* failure = k0_region_sum(x_ptr, region_sum_k0_ptr, workspace + 24832,
                                            static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k1_sum(region_sum_k0_ptr, conv_transpose_weight_ptr, sum_k1_ptr, workspace + 24832,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_logsumexp_cast(sum_k1_ptr, conv_transpose_bias_ptr, bias_ptr, gradient_of_output_0_ptr,
                                                logsumexp_k3_0_ptr, cast_k3_1_ptr, nullptr,
                                                static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k4_sum_cast(gradient_of_output_0_ptr, sum_k1_ptr, conv_transpose_bias_ptr, bias_ptr,
                                          logsumexp_k3_0_ptr, cast_k4_ptr, nullptr,
                                          static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, conv_transpose_weight, conv_transpose_bias, bias):
    """The program of training and inference mode: 3 kernels, 0 torch calls."""
    cast_k2 = torch.empty((16, 1), dtype=torch.float32, device=_device)
    workspace = torch.empty(172032, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_0", _stream, x, conv_transpose_weight, conv_transpose_bias, bias,
                         cast_k2, workspace)
    return (cast_k2,)


def _kernelwright_training_backward_of_parameters(_device, _stream, x, gradient_of_output_0, conv_transpose_weight,
                                                  conv_transpose_bias, bias):
    """The program of training backward of parameters mode: 4 kernels, 3 torch calls."""
    cast_k3_1 = torch.empty((16, 128, 1, 1), dtype=torch.float32, device=_device)
    cast_k4 = torch.empty_like(bias)
    workspace = torch.empty(172288, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, x, conv_transpose_weight,
                         conv_transpose_bias, bias, gradient_of_output_0, cast_k3_1, cast_k4, workspace)
    del workspace
    _t10_expand = cast_k3_1.expand((16, 128, 514, 514))
    del cast_k3_1
    # x = self.conv_transpose(x)
    _t11_convolution_backward = torch.ops.aten.convolution_backward.default(_t10_expand, x, conv_transpose_weight,
        [128], [1, 1], [0, 0], [1, 1], True, [0, 0], 1, [False, True, True])
    del _t10_expand
    # x = self.conv_transpose(x)
    _t12_item = _t11_convolution_backward[1]
    # x = self.conv_transpose(x)
    _t13_item = _t11_convolution_backward[2]
    return (_t12_item, _t13_item, cast_k4,)


def _kernelwright_training_backward(_device, _stream, x, gradient_of_output_0, conv_transpose_weight,
                                    conv_transpose_bias, bias):
    """The program of training backward mode: 4 kernels, 4 torch calls."""
    cast_k3_1 = torch.empty((16, 128, 1, 1), dtype=torch.float32, device=_device)
    cast_k4 = torch.empty_like(bias)
    workspace = torch.empty(172288, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, x, conv_transpose_weight, conv_transpose_bias,
                         bias, gradient_of_output_0, cast_k3_1, cast_k4, workspace)
    del workspace
    _t10_expand = cast_k3_1.expand((16, 128, 514, 514))
    del cast_k3_1
    # x = self.conv_transpose(x)
    _t11_convolution_backward = torch.ops.aten.convolution_backward.default(_t10_expand, x, conv_transpose_weight,
        [128], [1, 1], [0, 0], [1, 1], True, [0, 0], 1, [True, True, True])
    del _t10_expand
    # x = self.conv_transpose(x)
    _t12_item = _t11_convolution_backward[0]
    # x = self.conv_transpose(x)
    _t13_item = _t11_convolution_backward[1]
    # x = self.conv_transpose(x)
    _t14_item = _t11_convolution_backward[2]
    return (_t12_item, _t13_item, _t14_item, cast_k4,)


# What the kernels were built for; elsewhere the original computation runs -------------------------------------------


_KERNELWRIGHT_MODEL = {
    "modules": {'conv_transpose': 'torch.nn.modules.conv.ConvTranspose2d'},
    "attributes": {
        'conv_transpose': {'in_channels': 64, 'out_channels': 128, 'kernel_size': ('tuple', 3, 3),
                           'stride': ('tuple', 1, 1), 'padding': ('tuple', 0, 0), 'dilation': ('tuple', 1, 1),
                           'transposed': True, 'output_padding': ('tuple', 0, 0), 'groups': 1, 'padding_mode': 'zeros',
                           '_reversed_padding_repeated_twice': ('tuple', 0, 0, 0, 0)},
    },
    "held": ('bias', 'conv_transpose.bias', 'conv_transpose.weight'),
    "default_dtype": torch.float32,
    "inputs": (("x", (16, 64, 512, 512), torch.float32),),
    "tensors": {
        "conv_transpose.weight": ((64, 128, 3, 3), torch.float32),
        "conv_transpose.bias": ((128,), torch.float32),
        "bias": ((128, 1, 1), torch.float32),
    },
    "run": _kernelwright_training,
    "ahead": True,
    "compiled": (((16, 1), (1, 1), torch.float32),),
    "strides": ((1, 1),),
}

_KERNELWRIGHT_TRAINING = {
    **_KERNELWRIGHT_MODEL,
    "training": True,
    "backward": {"of": (0,), "frozen": (), "programs": ({"gives": {'conv_transpose.weight': 0, 'conv_transpose.bias': 1,
        'bias': 2}, "tensors": ('conv_transpose.weight', 'conv_transpose.bias', 'bias'), "orders": (),
                                                         "run": _kernelwright_training_backward_of_parameters},
                                                        {"gives": {0: 0, 'conv_transpose.weight': 1,
        'conv_transpose.bias': 2, 'bias': 3}, "tensors": ('conv_transpose.weight', 'conv_transpose.bias', 'bias'),
                                                         "orders": (), "run": _kernelwright_training_backward},)},
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
