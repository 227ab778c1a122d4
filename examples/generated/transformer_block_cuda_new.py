"""ModelNew: transformer_block, with custom kernels. Written by kernelwright 0.1.0 for NVIDIA H200.

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


_KERNELWRIGHT_OPERATORS = "transformer_block_c34cb40b989a"
_KERNELWRIGHT_NAME = "transformer_block"
_KERNELWRIGHT_DEVICE = "cuda"
_KERNELWRIGHT_FLAGS = ['-O3', '-std=c++17', '-lineinfo']
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

static __device__ __forceinline__ float kw_quick_exp2(float x) {
#ifdef __CUDA_ARCH__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return x < -126.0f ? 0.0f : exp2f(x);
#endif
}

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

// Up to 0.625 x times a polynomial of its square, to 2^-26.1; beyond, 1 - 2^p, where p is
// one of |x|, to 2^-26.8.
static __device__ __forceinline__ float kw_erf(float x) {
  const float s = x * x, a = fminf(fabsf(x), 4.0f);
  float p = fmaf(0.0044463924f, s, -0.026601795f); p = fmaf(p, s, 0.112800285f); p = fmaf(p, s, -0.37612447f);
  p = fmaf(p, s, 0.12837915f);
  float q = fmaf(0.00030222431f, a, -0.004599125f); q = fmaf(q, a, 0.032937452f); q = fmaf(q, a, -0.15177879f);
  q = fmaf(q, a, -0.9171773f); q = fmaf(q, a, -1.6281011f);
  const float near = fmaf(x, p, x), far = copysignf(1.0f - kw_quick_exp2(a * q), x);
  return fabsf(x) >= 0.625f ? far : near;
}
static __device__ __forceinline__ double kw_erf(double x) { return erf(x); }

// max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, where erfc is a power of two whose exponent
// is a polynomial that decreases for ever, to 2^-25.9 of the result for x > 0. Of a
// negative x the maximum is -0, and so is what vanishes.
static __device__ __forceinline__ float kw_gelu_erf(float x) {
  const float h = 0.5f * x, k = fminf(fabsf(h), 16.0f);
  float q = fmaf(-0.00072767859f, k, 0.0050516557f); q = fmaf(q, k, -0.011941995f); q = fmaf(q, k, -0.00435011f);
  q = fmaf(q, k, 0.112993695f); q = fmaf(q, k, -0.41996196f); q = fmaf(q, k, -1.8368341f);
  q = fmaf(q, k, -2.3022103f);
  const float below = -h - fabsf(h);
  return fmaf(-k, kw_quick_exp2(k * q), -below);
}
static __device__ __forceinline__ double kw_gelu_erf(double x) { return 0.5 * x * (1.0 + erf(x * 0.70710678118654752));
    }

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_add(float x, float y) { return __fadd_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_add(double x, double y) { return __dadd_rn(x, y); }

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_sub(float x, float y) { return __fsub_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_sub(double x, double y) { return __dsub_rn(x, y); }

static __device__ __forceinline__ float kw_exp(float x) { return expf(x); }
static __device__ __forceinline__ double kw_exp(double x) { return exp(x); }

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

//// k0_mean_moments_add
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// outer (8192,), row (512,)
// mean0/variance0/deviation0 = moments(in0)
// out0 = unfused_add(mul(mul(sub(in0, mean0), where(lt(deviation0, 1e+15), rsqrt(add(variance0, 1e-05)),
// reciprocal(deviation0))), in1), in2)
static __global__ void __launch_bounds__(256) k0_k0_mean_moments_add(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    float* __restrict__ out0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  float keep0[4][4];

  float b0;
  b0 = in0[i0 * 512];
  const double shift0 = b0 - b0 == 0 ? double(b0) : 0.0;
  double first0 = 0;
  double second0 = 0;
  float x1[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = (u * 32u + t) * 4u;
    const int r0 = p;
    kw_read4(x1[u], in0 + (i0 * 512 + r0));
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      keep0[u][v] = x1[u][v];
      const double apart0 = double(x1[u][v]) - shift0;
      first0 += apart0;
      second0 += apart0 * apart0;
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
  }
  const double centre0 = first0 / 512.0;
  const double spread0 = second0 / 512.0 - centre0 * centre0;
  const float mean0 = float(shift0 + centre0);
  const float variance0 = float(spread0 < 0 ? 0.0 : spread0);
  const float deviation0 = float(spread0 < 0 ? 0.0 : sqrt(spread0));

  const float t3 = float(deviation0 < 1e+15f);
  const float t4 = variance0 + 1e-05f;
  const float t5 = kw_rsqrt(t4);
  const float t6 = kw_divide(1.0f, deviation0);
  const float t7 = t3 != float(0) ? t5 : t6;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = (u * 32u + t) * 4u;
    const int r0 = p;
    float x9[4];
    float x11[4];
    kw_read4(x9, in1 + r0);
    kw_read4(x11, in2 + r0);
    float y13[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t2 = keep0[u][v] - mean0;
      const float t8 = t2 * t7;
      const float t10 = t8 * x9[v];
      const float t12 = kw_unfused_add(t10, x11[v]);
      y13[v] = t12;
    }
    kw_write4(out0 + (i0 * 512 + r0), y13);
  }
}

static const char* k0_mean_moments_add(const float* in0, const float* in1, const float* in2, float* out0,
                                       void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) |
       reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k0_mean_moments_add: in0, in1, in2, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k0_mean_moments_add", k0_k0_mean_moments_add, 1024, 256, 0, stream, in0, in1, in2, out0);
  return nullptr;
}

//// k1_gelu_erf
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// points (16777216,)
// out0 = gelu_erf(in0)
static __global__ void __launch_bounds__(256) k0_k1_gelu_erf(
    const float* __restrict__ in0, float* __restrict__ out0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  float x0[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((block_number * 4 + u) * 256 + threadIdx.x) * 4;
    const int i0 = p;
    kw_read4(x0[u], in0 + i0);
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((block_number * 4 + u) * 256 + threadIdx.x) * 4;
    const int i0 = p;
    float y2[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t1 = kw_gelu_erf(x0[u][v]);
      y2[v] = t1;
    }
    kw_write4(out0 + i0, y2);
  }
}

static const char* k1_gelu_erf(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k1_gelu_erf: in0, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k1_gelu_erf", k0_k1_gelu_erf, 4096, 256, 0, stream, in0, out0);
  return nullptr;
}

//// k2_mul
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// points (16777216,)
// out0 = mul(in0, unfused_add(mul(0.5, add(1, erf(mul(in1, 0.707107)))), mul(in1, mul(exp(mul(square(in1), -0.5)),
// 0.398942))))
static __global__ void __launch_bounds__(256) k0_k2_mul(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  float x0[4][4];
  float x1[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((block_number * 4 + u) * 256 + threadIdx.x) * 4;
    const int i0 = p;
    kw_read4(x0[u], in0 + i0);
    kw_read4(x1[u], in1 + i0);
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((block_number * 4 + u) * 256 + threadIdx.x) * 4;
    const int i0 = p;
    float y13[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t2 = x1[u][v] * 0.70710677f;
      const float t3 = kw_erf(t2);
      const float t4 = 1.0f + t3;
      const float t5 = 0.5f * t4;
      const float t6 = x1[u][v] * x1[u][v];
      const float t7 = t6 * (-0.5f);
      const float t8 = kw_exp(t7);
      const float t9 = t8 * 0.3989423f;
      const float t10 = x1[u][v] * t9;
      const float t11 = kw_unfused_add(t5, t10);
      const float t12 = x0[u][v] * t11;
      y13[v] = t12;
    }
    kw_write4(out0 + i0, y13);
  }
}

static const char* k2_mul(const float* in0, const float* in1, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(out0)) % 16 !=
      0)
    return "k2_mul: in0, in1, out0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k2_mul", k0_k2_mul, 4096, 256, 0, stream, in0, in1, out0);
  return nullptr;
}

//// k3_mean_moments
// outer (8192,), row (512,)
// mean0/variance0/deviation0 = moments(in0)
// out0 = mean0
// out1 = deviation0
// out2 = variance0
static __global__ void __launch_bounds__(256) k0_k3_mean_moments(
    const float* __restrict__ in0, float* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;

  float b0;
  b0 = in0[i0 * 512];
  const double shift0 = b0 - b0 == 0 ? double(b0) : 0.0;
  double first0 = 0;
  double second0 = 0;
  float x1[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = (u * 32u + t) * 4u;
    const int r0 = p;
    kw_read4(x1[u], in0 + (i0 * 512 + r0));
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const double apart0 = double(x1[u][v]) - shift0;
      first0 += apart0;
      second0 += apart0 * apart0;
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
  }
  const double centre0 = first0 / 512.0;
  const double spread0 = second0 / 512.0 - centre0 * centre0;
  const float mean0 = float(shift0 + centre0);
  const float variance0 = float(spread0 < 0 ? 0.0 : spread0);
  const float deviation0 = float(spread0 < 0 ? 0.0 : sqrt(spread0));

  if (t == 0) {
    out0[i0] = mean0;
    out1[i0] = deviation0;
    out2[i0] = variance0;
  }
}

static const char* k3_mean_moments(const float* in0, float* out0, float* out1, float* out2, void* workspace,
                                   cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k3_mean_moments: in0 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k3_mean_moments", k0_k3_mean_moments, 1024, 256, 0, stream, in0, out0, out1, out2);
  return nullptr;
}

//// k4_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Part 0: 64 parts of every row.
// outer (512,), row (8192,)
// total0 = sum(mul(in0, mul(sub(in1, in2), where(lt(in3, 1e+15), rsqrt(add(in4, 1e-05)), reciprocal(in3)))))
// total1 = sum(in0)
static __global__ void __launch_bounds__(256) k0_k4_sum(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, const float* __restrict__ in4, double* __restrict__ partial0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned block = block_number % 4u, part = block_number / 4u;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)128;
  const unsigned end = (first + 128u) < 8192u ? (first + 128u) : 8192u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  double sum1[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum1[v] = 0;
  }
  for (unsigned k = 0; k < 16; k += 8) {
    float x0[8][4];
    float x1[8][4];
    float x2[8];
    float x4[8];
    float x6[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p;
        kw_read4(x0[u], in0 + (i0 + r0 * 512));
        kw_read4(x1[u], in1 + (i0 + r0 * 512));
        x2[u] = in2[r0];
        x4[u] = in3[r0];
        x6[u] = in4[r0];
      }
    }
    float part0[4] = {};
    float part1[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const float t5 = float(x4[u] < 1e+15f);
        const float t7 = x6[u] + 1e-05f;
        const float t8 = kw_rsqrt(t7);
        const float t9 = kw_divide(1.0f, x4[u]);
        const float t10 = t5 != float(0) ? t8 : t9;
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t3 = x1[u][v] - x2[u];
          const float t11 = t3 * t10;
          const float t12 = x0[u][v] * t11;
          part0[v] += t12;
          part1[v] += x0[u][v];
        }
      }
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum0[v] += part0[v];
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum1[v] += part1[v];
    }
  }
  __shared__ double share0_sum0[8][128];
  __shared__ double share0_sum1[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
    share0_sum1[t][v * 32u + column] = sum1[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
    double sum1 = share0_sum1[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
      sum1 += share0_sum1[y][j];
    }
    share0_sum0[0][j] = sum0;
    share0_sum1[0][j] = sum1;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
    sum1[v] = share0_sum1[0][v * 32u + column];
  }
  if (t == 0) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      double* part_of = partial0 + ((unsigned long long)(o + v) * 64 + part) * 2;
      part_of[0] = sum0[v];
      part_of[1] = sum1[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k4_sum(
    float* __restrict__ out0, float* __restrict__ out1, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum0 = 0;
  double sum1 = 0;
  for (unsigned s = t; s < 64u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 64 + s) * 2;
    sum0 += part[0];
    sum1 += part[1];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  const float total0 = float(sum0);
  const float total1 = float(sum1);

  if (t == 0) {
    out0[i0] = total0;
    out1[i0] = total1;
  }
}

static const char* k4_sum(const float* in0, const float* in1, const float* in2, const float* in3, const float* in4,
                          float* out0, float* out1, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1)) % 16 != 0)
    return "k4_sum: in0, in1 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k4_sum", k0_k4_sum, 256, 256, 0, stream, in0, in1, in2, in3, in4, partial0);
  KW_LAUNCH("k4_sum", k1_k4_sum, 64, 256, 0, stream, out0, out1, partial0);
  return nullptr;
}

//// k5_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Part 0: 33 parts of every row.
// outer (2048,), row (8192,)
// total0 = sum(in0)
static __global__ void __launch_bounds__(256) k0_k5_sum(
    const float* __restrict__ in0, double* __restrict__ partial0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned block = block_number % 16u, part = block_number / 16u;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)249;
  const unsigned end = (first + 249u) < 8192u ? (first + 249u) : 8192u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  for (unsigned k = 0; k < 32; k += 8) {
    float x0[8][4];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p;
        kw_read4(x0[u], in0 + (i0 + r0 * 2048));
      }
    }
    float part0[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          part0[v] += x0[u][v];
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
      double* part_of = partial0 + ((unsigned long long)(o + v) * 33 + part);
      part_of[0] = sum0[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k5_sum(
    float* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum0 = 0;
  for (unsigned s = t; s < 33u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 33 + s);
    sum0 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  const float total0 = float(sum0);

  if (t == 0) {
    out0[i0] = total0;
  }
}

static const char* k5_sum(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k5_sum: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k5_sum", k0_k5_sum, 528, 256, 0, stream, in0, partial0);
  KW_LAUNCH("k5_sum", k1_k5_sum, 256, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// k6_sum
// transformer_block.py:20: return x + self.dropout(self.contract(hidden))
// Part 0: 64 parts of every row.
// outer (512,), row (8192,)
// total0 = sum(in0)
static __global__ void __launch_bounds__(256) k0_k6_sum(
    const float* __restrict__ in0, double* __restrict__ partial0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned block = block_number % 4u, part = block_number / 4u;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)128;
  const unsigned end = (first + 128u) < 8192u ? (first + 128u) : 8192u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  for (unsigned k = 0; k < 16; k += 8) {
    float x0[8][4];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p;
        kw_read4(x0[u], in0 + (i0 + r0 * 512));
      }
    }
    float part0[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          part0[v] += x0[u][v];
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
      double* part_of = partial0 + ((unsigned long long)(o + v) * 64 + part);
      part_of[0] = sum0[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k6_sum(
    float* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum0 = 0;
  for (unsigned s = t; s < 64u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 64 + s);
    sum0 += part[0];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
  }
  const float total0 = float(sum0);

  if (t == 0) {
    out0[i0] = total0;
  }
}

static const char* k6_sum(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k6_sum: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k6_sum", k0_k6_sum, 256, 256, 0, stream, in0, partial0);
  KW_LAUNCH("k6_sum", k1_k6_sum, 64, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// k7_moments_where_mean
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// outer (8192,), row (512,)
// mean0/variance0/deviation0 = moments(in0)
// total1 = sum(mul(mul(in1, in2), mul(sub(in0, mean0), where(lt(deviation0, 1e+15), rsqrt(add(variance0, 1e-05)),
// reciprocal(deviation0)))))
// total2 = sum(mul(in1, in2))
// out2 = unfused_add(in3, mul(where(lt(deviation0, 1e+15), rsqrt(add(variance0, 1e-05)), reciprocal(deviation0)),
// unfused_sub(unfused_sub(mul(in1, in2), mul(mul(sub(in0, mean0), where(lt(deviation0, 1e+15), rsqrt(...),
// reciprocal(deviation0))), div(total1, 512))), div(total2, 512))))
// out0 = where(lt(deviation0, 1e+15), rsqrt(add(variance0, 1e-05)), reciprocal(deviation0))
// out1 = mean0
static __global__ void __launch_bounds__(256) k0_k7_moments_where_mean(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, float* __restrict__ out0, float* __restrict__ out1, float* __restrict__ out2) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = block_number * 8u + threadIdx.x / 32u;
  const int i0 = o;
  float keep0[4][4];
  float keep1[4][4];

  float b0;
  b0 = in0[i0 * 512];
  const double shift0 = b0 - b0 == 0 ? double(b0) : 0.0;
  double first0 = 0;
  double second0 = 0;
  double sum2 = 0;
  float x1[4][4];
  float x2[4][4];
  float x3[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = (u * 32u + t) * 4u;
    const int r0 = p;
    kw_read4(x1[u], in0 + (i0 * 512 + r0));
    kw_read4(x2[u], in1 + (i0 * 512 + r0));
    kw_read4(x3[u], in2 + r0);
  }
  float part2[4] = {};
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      keep0[u][v] = x1[u][v];
      const float t4 = x2[u][v] * x3[u][v];
      keep1[u][v] = t4;
      const double apart0 = double(x1[u][v]) - shift0;
      first0 += apart0;
      second0 += apart0 * apart0;
      part2[v] += t4;
    }
  }
  sum2 += double(((part2[0] + part2[1]) + (part2[2] + part2[3])));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    first0 += __shfl_xor_sync(0xffffffffu, first0, d);
    second0 += __shfl_xor_sync(0xffffffffu, second0, d);
    sum2 += __shfl_xor_sync(0xffffffffu, sum2, d);
  }
  const double centre0 = first0 / 512.0;
  const double spread0 = second0 / 512.0 - centre0 * centre0;
  const float mean0 = float(shift0 + centre0);
  const float variance0 = float(spread0 < 0 ? 0.0 : spread0);
  const float deviation0 = float(spread0 < 0 ? 0.0 : sqrt(spread0));
  const float total2 = float(sum2);

  const float t6 = float(deviation0 < 1e+15f);
  const float t7 = variance0 + 1e-05f;
  const float t8 = kw_rsqrt(t7);
  const float t9 = kw_divide(1.0f, deviation0);
  const float t10 = t6 != float(0) ? t8 : t9;
  double sum1 = 0;
  float part1[4] = {};
#pragma unroll
  for (int u = 0; u < 4; ++u) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t5 = keep0[u][v] - mean0;
      const float t11 = t5 * t10;
      const float t12 = keep1[u][v] * t11;
      part1[v] += t12;
    }
  }
  sum1 += double(((part1[0] + part1[1]) + (part1[2] + part1[3])));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  const float total1 = float(sum1);

  const float t16 = total1 * 0.001953125f;
  const float t19 = total2 * 0.001953125f;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = (u * 32u + t) * 4u;
    const int r0 = p;
    float x13[4];
    kw_read4(x13, in3 + (i0 * 512 + r0));
    float y23[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t14 = keep0[u][v] - mean0;
      const float t15 = t14 * t10;
      const float t17 = t15 * t16;
      const float t18 = kw_unfused_sub(keep1[u][v], t17);
      const float t20 = kw_unfused_sub(t18, t19);
      const float t21 = t10 * t20;
      const float t22 = kw_unfused_add(x13[v], t21);
      y23[v] = t22;
    }
    kw_write4(out2 + (i0 * 512 + r0), y23);
  }

  if (t == 0) {
    out0[i0] = t10;
    out1[i0] = mean0;
  }
}

static const char* k7_moments_where_mean(const float* in0, const float* in1, const float* in2, const float* in3,
                                         float* out0, float* out1, float* out2, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1) | reinterpret_cast<uintptr_t>(in2) |
       reinterpret_cast<uintptr_t>(in3) | reinterpret_cast<uintptr_t>(out2)) % 16 != 0)
    return "k7_moments_where_mean: in0, in1, in2, in3, out2 must be aligned to 16 bytes";
  (void)workspace;
  KW_LAUNCH("k7_moments_where_mean", k0_k7_moments_where_mean, 1024, 256, 0, stream, in0, in1, in2, in3, out0, out1,
            out2);
  return nullptr;
}

//// k8_sum
// transformer_block.py:19: hidden = self.activation(self.expand(self.norm(x)))
// Part 0: 64 parts of every row.
// outer (512,), row (8192,)
// total0 = sum(mul(in0, mul(sub(in1, in2), in3)))
// total1 = sum(in0)
static __global__ void __launch_bounds__(256) k0_k8_sum(
    const float* __restrict__ in0, const float* __restrict__ in1, const float* __restrict__ in2,
    const float* __restrict__ in3, double* __restrict__ partial0) {
  const unsigned block = blockIdx.x % 4u, part = blockIdx.x / 4u;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)128;
  const unsigned end = (first + 128u) < 8192u ? (first + 128u) : 8192u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  double sum1[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum1[v] = 0;
  }
  for (unsigned k = 0; k < 16; k += 8) {
    float x0[8][4];
    float x1[8][4];
    float x2[8];
    float x4[8];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p;
        kw_read4(x0[u], in0 + (i0 + r0 * 512));
        kw_read4(x1[u], in1 + (i0 + r0 * 512));
        x2[u] = in2[r0];
        x4[u] = in3[r0];
      }
    }
    float part0[4] = {};
    float part1[4] = {};
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          const float t3 = x1[u][v] - x2[u];
          const float t5 = t3 * x4[u];
          const float t6 = x0[u][v] * t5;
          part0[v] += t6;
          part1[v] += x0[u][v];
        }
      }
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum0[v] += part0[v];
    }
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      sum1[v] += part1[v];
    }
  }
  __shared__ double share0_sum0[8][128];
  __shared__ double share0_sum1[8][128];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    share0_sum0[t][v * 32u + column] = sum0[v];
    share0_sum1[t][v * 32u + column] = sum1[v];
  }
  __syncthreads();
  for (unsigned j = threadIdx.x; j < 128u; j += 256u) {
    double sum0 = share0_sum0[0][j];
    double sum1 = share0_sum1[0][j];
#pragma unroll
    for (int y = 1; y < 8; ++y) {
      sum0 += share0_sum0[y][j];
      sum1 += share0_sum1[y][j];
    }
    share0_sum0[0][j] = sum0;
    share0_sum1[0][j] = sum1;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = share0_sum0[0][v * 32u + column];
    sum1[v] = share0_sum1[0][v * 32u + column];
  }
  if (t == 0) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      double* part_of = partial0 + ((unsigned long long)(o + v) * 64 + part) * 2;
      part_of[0] = sum0[v];
      part_of[1] = sum1[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k8_sum(
    float* __restrict__ out0, float* __restrict__ out1, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum0 = 0;
  double sum1 = 0;
  for (unsigned s = t; s < 64u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 64 + s) * 2;
    sum0 += part[0];
    sum1 += part[1];
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, d);
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, d);
  }
  const float total0 = float(sum0);
  const float total1 = float(sum1);

  if (t == 0) {
    out0[i0] = total0;
    out1[i0] = total1;
  }
}

static const char* k8_sum(const float* in0, const float* in1, const float* in2, const float* in3, float* out0,
                          float* out1, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1)) % 16 != 0)
    return "k8_sum: in0, in1 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k8_sum", k0_k8_sum, 256, 256, 0, stream, in0, in1, in2, in3, partial0);
  KW_LAUNCH("k8_sum", k1_k8_sum, 64, 256, 0, stream, out0, out1, partial0);
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* norm_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* norm_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* add_k0_ptr = static_cast<float*>(tensors[3]);
    if (const char* failure = k0_mean_moments_add(x_ptr, norm_weight_ptr, norm_bias_ptr, add_k0_ptr, nullptr,
                                                  static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_1(void* const* tensors, void* stream) {
    auto* _t8_linear_ptr = static_cast<const float*>(tensors[0]);
    auto* gelu_erf_k1_ptr = static_cast<float*>(tensors[1]);
    if (const char* failure = k1_gelu_erf(_t8_linear_ptr, gelu_erf_k1_ptr, nullptr,
                                          static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* norm_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* norm_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* add_k0_ptr = static_cast<float*>(tensors[3]);
    if (const char* failure = k0_mean_moments_add(x_ptr, norm_weight_ptr, norm_bias_ptr, add_k0_ptr, nullptr,
                                                  static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_1(void* const* tensors, void* stream) {
    auto* _t8_linear_ptr = static_cast<const float*>(tensors[0]);
    auto* gelu_erf_k1_ptr = static_cast<float*>(tensors[1]);
    if (const char* failure = k1_gelu_erf(_t8_linear_ptr, gelu_erf_k1_ptr, nullptr,
                                          static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* stream) {
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
    if (const char* failure = k2_mul(_t7_matmul_ptr, saved_1_ptr, mul_k2_ptr, nullptr,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_mean_moments(x_ptr, mean_k3_0_ptr, std_k3_1_ptr, var_k3_2_ptr, nullptr,
                                              static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k5_sum(mul_k2_ptr, sum_k5_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k6_sum(gradient_of_output_0_ptr, sum_k6_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_1(void* const* tensors, void* stream) {
    auto* _t19_matmul_ptr = static_cast<const float*>(tensors[0]);
    auto* x_ptr = static_cast<const float*>(tensors[1]);
    auto* mean_k3_0_ptr = static_cast<const float*>(tensors[2]);
    auto* std_k3_1_ptr = static_cast<const float*>(tensors[3]);
    auto* var_k3_2_ptr = static_cast<const float*>(tensors[4]);
    auto* sum_k4_0_ptr = static_cast<float*>(tensors[5]);
    auto* sum_k4_1_ptr = static_cast<float*>(tensors[6]);
    auto* workspace = static_cast<char*>(tensors[7]);
    if (const char* failure = k4_sum(_t19_matmul_ptr, x_ptr, mean_k3_0_ptr, std_k3_1_ptr, var_k3_2_ptr, sum_k4_0_ptr,
                                     sum_k4_1_ptr, workspace, static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* stream) {
    auto* _t8_matmul_ptr = static_cast<const float*>(tensors[0]);
    auto* saved_1_ptr = static_cast<const float*>(tensors[1]);
    auto* mul_k2_ptr = static_cast<float*>(tensors[2]);
    auto* sum_k5_ptr = static_cast<float*>(tensors[3]);
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[4]);
    auto* sum_k6_ptr = static_cast<float*>(tensors[5]);
    auto* workspace = static_cast<char*>(tensors[6]);
    if (const char* failure = k2_mul(_t8_matmul_ptr, saved_1_ptr, mul_k2_ptr, nullptr,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k5_sum(mul_k2_ptr, sum_k5_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k6_sum(gradient_of_output_0_ptr, sum_k6_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_1(void* const* tensors, void* stream) {
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
                                                    where_k7_0_ptr, mean_k7_1_ptr, add_k7_2_ptr, nullptr,
                                                    static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k8_sum(_t17_matmul_ptr, x_ptr, mean_k7_1_ptr, where_k7_0_ptr, sum_k8_0_ptr, sum_k8_1_ptr,
                                     workspace + 65536, static_cast<cudaStream_t>(stream))) return failure;
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
    gelu_erf_k1 = torch.empty_like(_t8_linear)
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
    mul_k2 = torch.empty_like(_t7_matmul)
    mean_k3_0 = torch.empty((32, 256, 1), dtype=torch.float32, device=_device)
    std_k3_1 = torch.empty_like(mean_k3_0)
    var_k3_2 = torch.empty_like(mean_k3_0)
    sum_k5 = torch.empty((2048,), dtype=torch.float32, device=_device)
    sum_k6 = torch.empty((512,), dtype=torch.float32, device=_device)
    workspace = torch.empty(540672, dtype=torch.uint8, device=_device)
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
    workspace = torch.empty(524288, dtype=torch.uint8, device=_device)
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
    mul_k2 = torch.empty_like(_t8_matmul)
    sum_k5 = torch.empty((2048,), dtype=torch.float32, device=_device)
    sum_k6 = torch.empty((512,), dtype=torch.float32, device=_device)
    workspace = torch.empty(540672, dtype=torch.uint8, device=_device)
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
    workspace = torch.empty(589824, dtype=torch.uint8, device=_device)
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
    "ahead": True,
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
