"""ModelNew: linear_gelu, with custom kernels. Written by kernelwright 0.1.0 for NVIDIA H200.

Same constructor, parameters and results as the original class. Where a call does not fit what the
kernels were built for, the original computation runs, with one warning.

Training mode: 2 of 2 operators replaced.
  operations 69.1 GFLOP -> 69.1 GFLOP, memory traffic 268 MB -> 268 MB
  kernel k0_matmul_gelu_erf: product of 4096 x 2048 and 2048 x 4096, fp16x3 on tensor cores (float32 operands
    split into two float16 terms, three products): linear, gelu_erf
"""


import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """``gelu(x @ weight.T + bias)``."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def _original_forward(self, x):
        return torch.nn.functional.gelu(self.linear(x))

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


_KERNELWRIGHT_OPERATORS = "linear_gelu_846137536e44"
_KERNELWRIGHT_NAME = "linear_gelu"
_KERNELWRIGHT_DEVICE = "cuda"
_KERNELWRIGHT_FLAGS = ['-O3', '-std=c++17', '-lineinfo']
_KERNELWRIGHT_LAUNCHERS = {
    "kernelwright_training_0": ['k0_matmul_gelu_erf'],
    "kernelwright_training_saving_0": ['k1_matmul_add_gelu_erf'],
    "kernelwright_training_backward_of_parameters_0": ['k2_mul', 'k3_sum'],
    "kernelwright_training_backward_0": ['k2_mul', 'k3_sum'],
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

#ifndef KERNELWRIGHT_EMULATION
static __device__ __forceinline__ unsigned kw_shared(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Barriers in shared memory, 8 bytes each. A phase ends when `arrivals` have arrived and all bytes that they announced
// are there. Waiting for a parity waits for the end of the phase of that parity: of 0 first, then 1, 0, ...; before the
// first phase has ended, parity 1 counts as over.
static __device__ __forceinline__ void kw_barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// Between initialisation and first use, followed by a barrier of the block (or cluster).
static __device__ __forceinline__ void kw_barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and announces bytes that copies will bring in this phase.
static __device__ __forceinline__ void kw_barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void kw_barrier_wait(unsigned barrier, unsigned parity) {
  unsigned over;
  do {
    asm volatile(
        "{\n"
        "  .reg .pred over;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  } while (!over);
}

// Copies bytes (a multiple of 16, from and to such addresses) to shared memory; they count at the barrier.
static __device__ __forceinline__ void kw_bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}

// Barrier `number` (1 to 15) of `threads` threads of the block.
static __device__ __forceinline__ void kw_part_sync(unsigned number, unsigned threads) {
  asm volatile("barrier.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}

// The calling warpgroup gives registers back, or takes what others gave.
template <int COUNT>
static __device__ __forceinline__ void kw_registers_fewer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT>
static __device__ __forceinline__ void kw_registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

// Descriptor of an operand that begins at an address; see above for the layout.
static __device__ __forceinline__ unsigned long long kw_operand(unsigned address, unsigned chunk_bytes) {
  return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(chunk_bytes >> 4) << 16 | 8ull << 32;
}
// Products run on their own until they are waited for: first a fence after what wrote their registers, then products,
// then `commit`, then `wait` until at most LEFT groups are left, and `hold` before the sums are read.
static __device__ __forceinline__ void kw_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void kw_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT>
static __device__ __forceinline__ void kw_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
template <int COUNT>
static __device__ __forceinline__ void kw_wgmma_hold(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
}
#endif  // KERNELWRIGHT_EMULATION

#ifndef KERNELWRIGHT_EMULATION
// Position of the block in its cluster.
static __device__ __forceinline__ unsigned kw_cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier of all threads of a cluster.
static __device__ __forceinline__ void kw_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier that has this address in the cluster's block `rank`.
static __device__ __forceinline__ void kw_barrier_arrive_at(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %0, %1;\n"
      "  mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}"
      :: "r"(barrier), "r"(rank) : "memory");
}
// A bulk copy to the same place of all blocks in `mask`; it counts at the barrier of this address in each of them.
static __device__ __forceinline__ void kw_bulk_copy_all(unsigned to, const void* from, unsigned bytes,
                                                        unsigned barrier, unsigned short mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(mask) : "memory");
}

// The launch of a kernel in clusters of `cluster_` blocks along x.
template <typename... Parameters, typename... Values>
static cudaError_t kw_launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream, Values... values) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, values...);
}
// Clusters that the device holds at a time.
template <typename Kernel>
static cudaError_t kw_resident_clusters(int* clusters, Kernel* kernel, unsigned cluster, dim3 block,
                                        size_t shared_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
}
#endif  // KERNELWRIGHT_EMULATION

#ifndef KERNELWRIGHT_EMULATION
// Sums of 64 rows and 192 columns plus (or, where `add` is 0, set to) the products over 16 float16 elements of both
// operands. A thread's sums 4 j + 2 h + c are of row lane / 4 + 8 h of its warp's 16, column 8 j + 2 (lane % 4) + c.
static __device__ __forceinline__ void kw_wgmma_f16(float (&d)[96], unsigned long long a,
                                                   unsigned long long b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      "}, %96, %97, add, 1, 1, 0, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
        "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
        "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
        "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
        "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
        "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
        "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
        "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
        "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
      : "l"(a), "l"(b), "r"(add));
}
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

// A float16 in memory: read as a float, rounded to the nearest (halves to even) where a float is assigned.
// The processor converts in one instruction; elsewhere the same is done by integer operations.
static __device__ __forceinline__ unsigned short kw_float16_bits(float x) {
#ifdef __CUDA_ARCH__
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  unsigned size;
  memcpy(&size, &x, 4);
  const unsigned sign = (size >> 16) & 0x8000u;
  size &= 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7e00u | sign;
  if (size >= 0x47800000u) return 0x7c00u | sign;
  if (size >= 0x38800000u) return ((size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13) | sign;
  const float moved = fabsf(x) + 0.5f;  // rounds to multiples of 2^-24
  memcpy(&size, &moved, 4);
  return (size - 0x3f000000u) | sign;
#endif
}
static __device__ __forceinline__ float kw_float16_value(unsigned short bits) {
  float x;
#ifdef __CUDA_ARCH__
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
#else
  const unsigned exponent = (bits >> 10) & 31u, digits = bits & 1023u;
  x = exponent == 0 ? ldexpf(float(digits), -24)
      : exponent == 31 ? (digits ? NAN : INFINITY) : ldexpf(float(1024u + digits), int(exponent) - 25);
  x = (bits & 0x8000u) ? -x : x;
#endif
  return x;
}

// Rounded as it stands: no product before it is fused into it.
static __device__ __forceinline__ float kw_unfused_add(float x, float y) { return __fadd_rn(x, y); }
static __device__ __forceinline__ double kw_unfused_add(double x, double y) { return __dadd_rn(x, y); }

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

//// k0_matmul_gelu_erf
// linear_gelu.py:15: return torch.nn.functional.gelu(self.linear(x))
// x at one point of its domain.
static __device__ __forceinline__ float k0_matmul_gelu_erf_left(const float* __restrict__ in0, int n, int g, int c) {
  float b0;
  b0 = in0[n * 2048 + c];
  return b0;
}

// w at one point of its domain.
static __device__ __forceinline__ float k0_matmul_gelu_erf_right(const float* __restrict__ in1, int g, int o, int c) {
  float b0;
  b0 = in1[o * 2048 + c];
  return b0;
}

// The power of two by which sums are multiplied whose operand's greatest magnitude has these bits, as bits: infinite
// where the operand is, 0 where all of it is 0.
static __device__ __forceinline__ unsigned k0_matmul_gelu_erf_scale(unsigned greatest) {
  if (greatest >= 0x7f800000u) return 0x7f800000u;
  return greatest == 0u ? 0u : (max(greatest >> 23, 15u) - 14u) << 23;
}
// Its inverse, by which the operand is multiplied; 0 where it is not finite.
static __device__ __forceinline__ float k0_matmul_gelu_erf_inverse(float factor) {
  return factor < 0x1p127f ? __uint_as_float(0x7f000000u - __float_as_uint(factor)) : 0.0f;
}

// Writes 8 channels of one row as float16, in two terms.
static __device__ __forceinline__ void k0_matmul_gelu_erf_write(unsigned short* __restrict__ to, long long at,
    long long term, const float (&x)[8], float scale) {
  unsigned high[8], low[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float value = scale == 0.0f ? 0.0f : x[e] * scale;
    high[e] = kw_float16_bits(value);
    low[e] = kw_float16_bits(value - kw_float16_value(high[e]));
  }
  uint4* const row = reinterpret_cast<uint4*>(to) + at;
  row[0] = make_uint4(high[0] | high[1] << 16, high[2] | high[3] << 16,
                      high[4] | high[5] << 16, high[6] | high[7] << 16);
  // What the first term leaves.
  row[term] = make_uint4(low[0] | low[1] << 16, low[2] | low[3] << 16,
                         low[4] | low[5] << 16, low[6] | low[7] << 16);
}

// Packs x: reads along channels, 8 rows a warp, with the scales of its rows.
static __device__ __forceinline__ void k0_matmul_gelu_erf_left_pack(const float* __restrict__ in0,
    float* __restrict__ left_scales, unsigned short* __restrict__ left, unsigned block) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = int(block % 512u) * 8 + lane % 8;
  const int g = 0;
  const bool row_in_bounds = row < 4096;
  const int first = lane / 8 + warp * 4;  // chunk
  const int n = unsigned(row);
  const long long line = row / 128 * 32768LL + row % 128;
  const bool in_bounds = row_in_bounds;
  __shared__ unsigned rows_greatest[8];
  if (threadIdx.x < 8) rows_greatest[threadIdx.x] = 0;
  __syncthreads();
  unsigned greatest = 0;
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in0 + (n * 2048 + c));
      kw_read4(b0 + 4, in0 + (n * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k0_matmul_gelu_erf_left(in0, n, g, c + e) : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) greatest = max(greatest, __float_as_uint(x[e]) & 0x7fffffffu);
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2)
    greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));
  if (lane < 8) atomicMax(&rows_greatest[lane], greatest);
  __syncthreads();
  float factor = __uint_as_float(k0_matmul_gelu_erf_scale(rows_greatest[lane % 8]));
  if (factor == 0.0f) factor = 1.0f;  // nothing but zeros
  if (row_in_bounds && threadIdx.x < 8) left_scales[n] = factor;
  const float scale = k0_matmul_gelu_erf_inverse(factor);
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in0 + (n * 2048 + c));
      kw_read4(b0 + 4, in0 + (n * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k0_matmul_gelu_erf_left(in0, n, g, c + e) : 0.0f;
    }
    if (row_in_bounds) k0_matmul_gelu_erf_write(left, g * 1048576LL + chunk * 128LL + line, 1048576LL, x, scale);
  }
}

// Packs w: reads along channels, 8 rows a warp, with the scales of its rows.
static __device__ __forceinline__ void k0_matmul_gelu_erf_right_pack(const float* __restrict__ in1,
    float* __restrict__ right_scales, unsigned short* __restrict__ right, unsigned block) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = int(block % 512u) * 8 + lane % 8;
  const int g = 0;
  const bool row_in_bounds = row < 4096;
  const int first = lane / 8 + warp * 4;  // chunk
  const int o = row;
  const long long line = row / 192 * 49152LL + row % 192;
  const bool in_bounds = row_in_bounds;
  __shared__ unsigned rows_greatest[8];
  if (threadIdx.x < 8) rows_greatest[threadIdx.x] = 0;
  __syncthreads();
  unsigned greatest = 0;
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in1 + (o * 2048 + c));
      kw_read4(b0 + 4, in1 + (o * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k0_matmul_gelu_erf_right(in1, g, o, c + e) : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) greatest = max(greatest, __float_as_uint(x[e]) & 0x7fffffffu);
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2)
    greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));
  if (lane < 8) atomicMax(&rows_greatest[lane], greatest);
  __syncthreads();
  float factor = __uint_as_float(k0_matmul_gelu_erf_scale(rows_greatest[lane % 8]));
  if (factor == 0.0f) factor = 1.0f;  // nothing but zeros
  if (row_in_bounds && threadIdx.x < 8) right_scales[g * 4096 + o] = factor;
  const float scale = k0_matmul_gelu_erf_inverse(factor);
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in1 + (o * 2048 + c));
      kw_read4(b0 + 4, in1 + (o * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k0_matmul_gelu_erf_right(in1, g, o, c + e) : 0.0f;
    }
    if (row_in_bounds) k0_matmul_gelu_erf_write(right, g * 1081344LL + chunk * 192LL + line, 1081344LL, x, scale);
  }
}

// Operands in the order of the core.
static __global__ void __launch_bounds__(256) k0_matmul_gelu_erf_pack(
    const float* __restrict__ in0,
    float* __restrict__ left_scales,
    unsigned short* __restrict__ left,
    const float* __restrict__ in1,
    float* __restrict__ right_scales,
    unsigned short* __restrict__ right) {
  if (blockIdx.x < 512u) {
    k0_matmul_gelu_erf_left_pack(in0, left_scales, left, 511u - blockIdx.x);
    return;
  }
  k0_matmul_gelu_erf_right_pack(in1, right_scales, right, blockIdx.x - 512u);
}

// A sum from the operands themselves, for those that are not finite.
static __device__ __forceinline__ float k0_matmul_gelu_erf_recompute(const float* __restrict__ in0,
    const float* __restrict__ in1, int n, int g, int o) {
  float sum = 0.0f;
  for (int block = 0; block < 2048; block += 64) {
    float part = 0.0f;
#pragma unroll 1
    for (int c = block; c < min(block + 64, 2048); ++c) {
      part = fmaf(k0_matmul_gelu_erf_left(in0, n, g, c), k0_matmul_gelu_erf_right(in1, g, o, c), part);
    }
    sum += part;
  }
  return sum;
}

// Whether sums may be multiplied by the product of this scale and another such one.
static __device__ __forceinline__ bool k0_matmul_gelu_erf_is_fast(float scale) {
  return __float_as_uint(scale) - 0x1a800000u <= 0x44800000u;  // 2^-74 to 2^63
}

// A sum that is multiplied by any scales.
static __device__ __forceinline__ float k0_matmul_gelu_erf_rescaled(const float* __restrict__ in0,
    const float* __restrict__ in1, float unscaled, float row_scale, float column_scale, int n, int g, int o) {
  if (row_scale == INFINITY || column_scale == INFINITY)
    return k0_matmul_gelu_erf_recompute(in0, in1, n, g, o);
  return ldexpf(unscaled, ilogbf(row_scale) + ilogbf(column_scale));
}

// Rewrites an element whose scales leave the fast path.
static __device__ __forceinline__ void k0_matmul_gelu_erf_rewrite(const float* __restrict__ in0,
    const float* __restrict__ in1, const float* __restrict__ in2, float* __restrict__ out0,
    const float* __restrict__ left_scales, const float* __restrict__ right_scales, float unscaled, int n, int g,
    int o) {
  const float row_scale = left_scales[n];
  const float column_scale = right_scales[g * 4096 + o];
  if (k0_matmul_gelu_erf_is_fast(row_scale) && k0_matmul_gelu_erf_is_fast(column_scale)) return;
  const float sum = k0_matmul_gelu_erf_rescaled(in0, in1, unscaled, row_scale, column_scale, n, g, o);
  float b0;
  b0 = in2[o];
  const float t1 = sum + b0;
  const float t2 = kw_gelu_erf(t1);
  out0[n * 4096 + o] = t2;
}

// Finishes 64 x 96 sums from (first_row, first_column): a thread takes neighbouring columns, and walks over rows.
static __device__ __forceinline__ void k0_matmul_gelu_erf_finish(const float* __restrict__ in0,
    const float* __restrict__ in1, const float* __restrict__ in2, float* __restrict__ out0,
    const float* __restrict__ left_scales, const float* __restrict__ right_scales, const float* sums, int thread,
    int phase_class, int group, long long first_row, int first_column) {
  const int g = group;
  if (thread >= 120) return;
  const int o = first_column + thread % 24 * 4;
  if (o >= 4096) return;
  const int last = min(64LL, 4096 - first_row);
  float column_scale[4];
  kw_read4(column_scale, right_scales + g * 4096 + o);
  bool fast = true;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    fast = k0_matmul_gelu_erf_is_fast(column_scale[v]) && fast;
  }
  float b0[4];
  kw_read4(b0, in2 + o);
#pragma unroll 8
  for (int r = thread / 24; r < last; r += 5) {
    const int row = first_row + r;
    const int n = unsigned(row);
    const float row_scale = left_scales[n];
    fast = k0_matmul_gelu_erf_is_fast(row_scale) && fast;
    float sum[4];
    kw_read4(sum, &sums[r * 104 + o - first_column]);
#pragma unroll
    for (int v = 0; v < 4; ++v) sum[v] *= row_scale * column_scale[v];
    float y3[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t1 = sum[v] + b0[v];
      const float t2 = kw_gelu_erf(t1);
      y3[v] = t2;
    }
    kw_write4(out0 + (n * 4096 + o), y3);
  }
  if (fast) return;
#pragma unroll 1
  for (int r = thread / 24; r < last; r += 5) {
    const int row = first_row + r;
    const int n = unsigned(row);
#pragma unroll 1
    for (int v = 0; v < 4; ++v) k0_matmul_gelu_erf_rewrite(in0, in1, in2, out0, left_scales, right_scales,
        sums[r * 104 + o + v - first_column], n, g, o + v);
  }
}


// Tap groups of a class of output positions. Of each: first row of x beyond the tile's, phases of
// the input included; rows; first tap. Of a tap: rows beyond, entry of the window.
static __constant__ int k0_matmul_gelu_erf_tap_groups[] = {0, 1};
static __constant__ long long k0_matmul_gelu_erf_place[] = {0};
static __constant__ int k0_matmul_gelu_erf_rows[] = {128};
static __constant__ int k0_matmul_gelu_erf_first_tap[] = {0, 1};
static __constant__ int k0_matmul_gelu_erf_taps[][2] = {{0, 0}};

// Tile number `tile`: neighbouring blocks work on a band of rows and share columns of w, so that L2 holds both.
static __device__ __forceinline__ void k0_matmul_gelu_erf_tile(int tile, int& group, int& phase_class, int& row_block,
                                                   int& column_block) {
  constexpr int ROW_BLOCKS = 16, CLASSES = 1, TILES_ACROSS = CLASSES * 22, BAND = 4;
  constexpr int ALL = static_cast<int>(ROW_BLOCKS) * TILES_ACROSS;
  group = static_cast<int>(tile / ALL);
  const int rest = tile % ALL;
  const int band = static_cast<int>(rest / (BAND * TILES_ACROSS)) * BAND;
  const int within = static_cast<int>(rest % (BAND * TILES_ACROSS));
  const int height = BAND < ROW_BLOCKS - band ? BAND : ROW_BLOCKS - band;
  const int across = within / height;
  row_block = band + within % height;
  phase_class = across % CLASSES;
  column_block = across / CLASSES;
}

// Puts a thread's sums of a subtile's columns into the subtile; they begin at number `first` of its sums of 64 rows.
static __device__ __forceinline__ void k0_matmul_gelu_erf_stage(const float (&sums)[192 / 2], int first, float* subtile,
                                                    int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < 96 / 8; ++j) {
    const float* s = sums + first + 4 * j;
    float2* to = reinterpret_cast<float2*>(subtile + row * 104 + 8 * j + column);
    to[0] = make_float2(s[0], s[1]);
    to[416] = make_float2(s[2], s[3]);
  }
}

// One step's products, of TAPS taps, as one group. Operands begin at `a` and `b`, which count in rows of 16 bytes.
// The number of taps is a constant, because the compiler waits for products around loops that it cannot unroll.
template <int TAPS>
static __device__ __forceinline__ void k0_matmul_gelu_erf_multiply(float (&sums)[1][192 / 2], unsigned long long a,
                                                       unsigned long long b, const int (*taps)[2], int add) {
  constexpr int CHUNKS = 4, TERMS = 2, PITCH = 128, COLUMNS = 192;
  kw_wgmma_fence();
#pragma unroll
  for (int pair = 0; pair < 3; ++pair) {  // of terms of x and w
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      const unsigned long long x = a + taps[tap][0] + (pair == 0 ? CHUNKS * PITCH : 0);
      const unsigned long long w = b + (tap * TERMS + (pair == 1 ? 1 : 0)) * (CHUNKS * COLUMNS);
#pragma unroll
      for (int k = 0; k < CHUNKS; k += 2) {
#pragma unroll
        for (int p = 0; p < 1; ++p)
          kw_wgmma_f16(sums[p], x + k * PITCH + p * 64, w + k * COLUMNS, pair == 0 && tap == 0 && k == 0 ? add : 1);
      }
    }
  }
  kw_wgmma_commit();
}

// Adds up what tensor cores have summed, of sets of 64 rows.
template <int FIRST, int END>
static __device__ __forceinline__ void k0_matmul_gelu_erf_add(float (&sums)[1][192 / 2],
                                                  float (&part)[1][192 / 2]) {
#pragma unroll
  for (int p = FIRST; p < END; ++p) {
    kw_wgmma_hold(part[p]);
#pragma unroll
    for (int i = 0; i < 192 / 2; ++i) sums[p][i] += part[p][i];
  }
}

static __global__ void __launch_bounds__(384, 1) k0_matmul_gelu_erf_core(
    const unsigned short* __restrict__ left, const unsigned short* __restrict__ right,
    const float* __restrict__ in0,
    const float* __restrict__ in1,
    const float* __restrict__ in2,
    float* __restrict__ out0,
    const float* __restrict__ left_scales,
    const float* __restrict__ right_scales) {
  constexpr int ROWS = 128, COLUMNS = 192;   // of a tile of sums
  constexpr int APART = 128;                // rows from one tile to the next
  constexpr int CHUNKS = 4, TERMS = 2, LINES = TERMS * CHUNKS;   // chunks of 8 channels of a step
  constexpr int PITCH = 128;                 // rows of x from one chunk to the next in shared memory
  constexpr int STAGES = 3, STAGE_BYTES = 40960, LEFT_BYTES = LINES * PITCH * 16;
  // Consumer warpgroups; tiles in work; products of 64 rows each.
  constexpr int WORKERS = 2, WARPGROUPS = 1, PRODUCTS = 1;
  // Of a subtile for the epilogue: floats, columns, products of 64 rows.
  constexpr int SUBTILE = 6656, SUBTILE_COLUMNS = 96;
  constexpr int SUBTILES = COLUMNS / SUBTILE_COLUMNS, HEIGHT = 1;
  constexpr int DEPTHS = 64, CLUSTER = 2, SPLIT = 1;
  constexpr long long ALL_CHUNKS = 256, ALL_ROWS = 4096, ALL_COLUMNS = 4224;
  constexpr int X_CHUNKS = 4, SHARE = CHUNKS * COLUMNS / CLUSTER;  // of x and w in one copy: chunks; rows
  constexpr int TILES = 352;
  KW_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned stages = kw_shared(shared);
  const unsigned full = stages + STAGES * STAGE_BYTES + SUBTILE * 4 * 2, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      kw_barrier_init(full + 8 * i, 1);  // the producer of the step
      kw_barrier_init(empty + 8 * i, 4 * WORKERS / WARPGROUPS * CLUSTER);  // warps that multiply
    }
    kw_barriers_ready();
  }
  kw_cluster_sync();
  // From lane 0, so that the compiler knows that warps do not part.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(kw_cluster_rank());
  const int first_tile = blockIdx.x / CLUSTER, next_tile = gridDim.x / CLUSTER;

  if (warp < 4) {  // the producers
    kw_registers_fewer<40>();
    // They bring steps one after the other, at most as many as there are stages: none is two phases of a barrier ahead.
    constexpr int PRODUCERS = STAGES < 4 ? STAGES : 4;
    int stage = 0, producer = 0;
    unsigned parity = 1;
    for (int tile = first_tile; tile < TILES; tile += next_tile) {
      int group, phase_class, row_block, column_block;
      k0_matmul_gelu_erf_tile(tile, group, phase_class, row_block, column_block);
      row_block = row_block * CLUSTER + rank;
      if (row_block > 31) row_block = 31;  // beyond the end: read, not used
      const unsigned short* x = left + static_cast<long long>(group) * (ALL_CHUNKS * ALL_ROWS * 8) +
                                static_cast<long long>(row_block) * (X_CHUNKS > 1 ? ALL_CHUNKS * ROWS * 8 : APART * 8);
      const unsigned short* w = right + static_cast<long long>(group) * (ALL_CHUNKS * ALL_COLUMNS * 8) +
                                static_cast<long long>(column_block) * (ALL_CHUNKS * COLUMNS * 8);
      const int first_tap_group = k0_matmul_gelu_erf_tap_groups[phase_class], last_tap_group =
          k0_matmul_gelu_erf_tap_groups[phase_class + 1];
      const int begin = 0, end = (last_tap_group - first_tap_group) * DEPTHS;
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;
      for (int step = begin; step < end; ++step) {
        if (producer == warp) {
          const int first = k0_matmul_gelu_erf_first_tap[tap_group], taps =
              k0_matmul_gelu_erf_first_tap[tap_group + 1] - first;
          const int rows = k0_matmul_gelu_erf_rows[tap_group];
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;
          kw_barrier_wait(empty + 8 * stage, parity);
          __syncwarp();
          if (lane == 0) kw_barrier_expect(filled, LINES * 16 * (rows + taps * COLUMNS));
          __syncwarp();
#pragma unroll 1
          for (int i = lane * X_CHUNKS; i < LINES; i += 32 * X_CHUNKS) {
            const unsigned short* from = x + i / CHUNKS * 8388608LL +
                ((depth * CHUNKS + i % CHUNKS) * 128LL + k0_matmul_gelu_erf_place[tap_group]) * 8;
            kw_bulk_copy(buffer + i * (PITCH * 16), from, X_CHUNKS * rows * 16, filled);
          }
#pragma unroll 1
          for (int j = lane; j < taps * TERMS; j += 32) {
            const long long entry = k0_matmul_gelu_erf_taps[first + j / TERMS][1];
            const unsigned short* from = w + j % TERMS * 8650752LL +
                entry * (ALL_CHUNKS * ALL_COLUMNS * 8) + depth * (CHUNKS * COLUMNS * 8);
            const unsigned to = buffer + LEFT_BYTES + (j * CLUSTER + rank) * (SHARE * 16);
            kw_bulk_copy_all(to, from + rank * (SHARE * 8), SHARE * 16, filled, (1u << CLUSTER) - 1);
          }
        }
        if (++producer == PRODUCERS) producer = 0;
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
    }
  } else {  // the consumers
    kw_registers_more<232>();
    const int worker = warp / 4 - 1, thread = threadIdx.x % 128;
    const int part_row = WARPGROUPS > 1 ? 0 : worker * (PRODUCTS * 64);  // of the tile's rows
    float* subtile = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES) + worker * SUBTILE;
    int stage = 0;
    unsigned parity = 0;
    for (int tile = first_tile; tile < TILES; tile += next_tile) {
      int group, phase_class, row_block, column_block;
      k0_matmul_gelu_erf_tile(tile, group, phase_class, row_block, column_block);
      row_block = row_block * CLUSTER + rank;
      const int first_tap_group = k0_matmul_gelu_erf_tap_groups[phase_class];
      const int last_tap_group = k0_matmul_gelu_erf_tap_groups[phase_class + 1];
      const int begin = 0, end = (last_tap_group - first_tap_group) * DEPTHS;
      float sums[PRODUCTS][COLUMNS / 2], part[PRODUCTS][COLUMNS / 2];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[p][i] = part[p][i] = 0.0f;
      int add = 0, since = worker * 2;  // whether `part` holds something; steps since the last promotion
      int before = -1;  // a stage whose products may still be running
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;
      for (int step = begin; step < end; ++step) {
        const int first = k0_matmul_gelu_erf_first_tap[tap_group], last = k0_matmul_gelu_erf_first_tap[tap_group + 1];
        const unsigned buffer = stages + stage * STAGE_BYTES;
        const unsigned long long a = kw_operand(buffer + part_row * 16, PITCH * 16);
        const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
        kw_barrier_wait(full + 8 * stage, parity);
        k0_matmul_gelu_erf_multiply<1>(part, a, b, k0_matmul_gelu_erf_taps + first, add);
        add = 1;
        since += last - first;
        if (since < 4) {
          kw_wgmma_wait<1>();  // The step before is done.
          if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
          before = stage;
        } else {
          kw_wgmma_wait<0>();
          if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
          if (lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * stage, lane);
          before = -1;
          k0_matmul_gelu_erf_add<0, 1>(sums, part);
          add = since = 0;
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
      kw_wgmma_wait<0>();
      if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
      if (add) {
        k0_matmul_gelu_erf_add<0, 1>(sums, part);
      }

      // What tensor cores have cut off these sums.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[p][i] = fmaf(sums[p][i], 4.738e-07f, sums[p][i]);

      // Subtile by subtile through shared memory to the epilogue.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > 31) continue;
#pragma unroll 1
      for (int number = 0; number < PRODUCTS / HEIGHT * SUBTILES; ++number) {
        const long long first_row = row_block * (1LL * APART) + part_row + number / SUBTILES * (HEIGHT * 64);
        kw_part_sync(1 + worker, 128);  // The subtile before has been read.
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
          for (int s = 0; s < SUBTILES; ++s)
            if (number == p / HEIGHT * SUBTILES + s)
              k0_matmul_gelu_erf_stage(sums[p], s * (SUBTILE_COLUMNS / 2), subtile, thread);
        kw_part_sync(1 + worker, 128);
        k0_matmul_gelu_erf_finish(in0, in1, in2, out0, left_scales, right_scales, subtile, thread, phase_class, group,
            first_row,
                      column_block * COLUMNS + number % SUBTILES * SUBTILE_COLUMNS);
      }
    }
  }
  kw_cluster_sync();  // No block ends while others copy to it or arrive at its barriers.
}
static const char* k0_matmul_gelu_erf(const float* in0, const float* in1, const float* in2, float* out0,
                                      void* workspace, cudaStream_t stream) {
  unsigned char* const base = static_cast<unsigned char*>(workspace);
  float* const left_scales = reinterpret_cast<float*>(base + 256LL);
  float* const right_scales = reinterpret_cast<float*>(base + 16640LL);
  unsigned short* const left = reinterpret_cast<unsigned short*>(base + 33024LL);
  unsigned short* const right = reinterpret_cast<unsigned short*>(base + 33587456LL);
  if ((reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(out0)) % 16 != 0)
    return "k0_matmul_gelu_erf: in2, out0 must be aligned to 16 bytes";
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1)) % 16 != 0)
    return "k0_matmul_gelu_erf: in0, in1 must be aligned to 16 bytes";
  KW_LAUNCH("k0_matmul_gelu_erf", k0_matmul_gelu_erf_pack, 1024, 256, 0, stream, in0, left_scales, left, in1,
            right_scales, right);
  KW_CHECK("k0_matmul_gelu_erf", cudaFuncSetAttribute(k0_matmul_gelu_erf_core,
                                                      cudaFuncAttributeMaxDynamicSharedMemorySize, 176176));
  static int clusters = 0;  // that the device holds at a time: asked once
  if (clusters == 0) KW_CHECK("k0_matmul_gelu_erf", kw_resident_clusters(&clusters, k0_matmul_gelu_erf_core, 2,
      dim3(384), 176176));
  if (clusters < 1) return "k0_matmul_gelu_erf: the device holds no cluster of 2 such blocks";
  const int used = clusters < 352LL ? clusters : 352;
  KW_CHECK("k0_matmul_gelu_erf", kw_launch_clusters(k0_matmul_gelu_erf_core, 2, dim3(used * 2), dim3(384), 176176,
                                                    stream, left, right, in0, in1, in2, out0, left_scales,
                                                    right_scales));
  return nullptr;
}

//// k1_matmul_add_gelu_erf
// linear_gelu.py:15: return torch.nn.functional.gelu(self.linear(x))
// x at one point of its domain.
static __device__ __forceinline__ float k1_matmul_add_gelu_erf_left(const float* __restrict__ in0, int n, int g,
    int c) {
  float b0;
  b0 = in0[n * 2048 + c];
  return b0;
}

// w at one point of its domain.
static __device__ __forceinline__ float k1_matmul_add_gelu_erf_right(const float* __restrict__ in1, int g, int o,
    int c) {
  float b0;
  b0 = in1[o * 2048 + c];
  return b0;
}

// The power of two by which sums are multiplied whose operand's greatest magnitude has these bits, as bits: infinite
// where the operand is, 0 where all of it is 0.
static __device__ __forceinline__ unsigned k1_matmul_add_gelu_erf_scale(unsigned greatest) {
  if (greatest >= 0x7f800000u) return 0x7f800000u;
  return greatest == 0u ? 0u : (max(greatest >> 23, 15u) - 14u) << 23;
}
// Its inverse, by which the operand is multiplied; 0 where it is not finite.
static __device__ __forceinline__ float k1_matmul_add_gelu_erf_inverse(float factor) {
  return factor < 0x1p127f ? __uint_as_float(0x7f000000u - __float_as_uint(factor)) : 0.0f;
}

// Writes 8 channels of one row as float16, in two terms.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_write(unsigned short* __restrict__ to, long long at,
    long long term, const float (&x)[8], float scale) {
  unsigned high[8], low[8];
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float value = scale == 0.0f ? 0.0f : x[e] * scale;
    high[e] = kw_float16_bits(value);
    low[e] = kw_float16_bits(value - kw_float16_value(high[e]));
  }
  uint4* const row = reinterpret_cast<uint4*>(to) + at;
  row[0] = make_uint4(high[0] | high[1] << 16, high[2] | high[3] << 16,
                      high[4] | high[5] << 16, high[6] | high[7] << 16);
  // What the first term leaves.
  row[term] = make_uint4(low[0] | low[1] << 16, low[2] | low[3] << 16,
                         low[4] | low[5] << 16, low[6] | low[7] << 16);
}

// Packs x: reads along channels, 8 rows a warp, with the scales of its rows.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_left_pack(const float* __restrict__ in0,
    float* __restrict__ left_scales, unsigned short* __restrict__ left, unsigned block) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = int(block % 512u) * 8 + lane % 8;
  const int g = 0;
  const bool row_in_bounds = row < 4096;
  const int first = lane / 8 + warp * 4;  // chunk
  const int n = unsigned(row);
  const long long line = row / 128 * 32768LL + row % 128;
  const bool in_bounds = row_in_bounds;
  __shared__ unsigned rows_greatest[8];
  if (threadIdx.x < 8) rows_greatest[threadIdx.x] = 0;
  __syncthreads();
  unsigned greatest = 0;
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in0 + (n * 2048 + c));
      kw_read4(b0 + 4, in0 + (n * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k1_matmul_add_gelu_erf_left(in0, n, g, c + e) : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) greatest = max(greatest, __float_as_uint(x[e]) & 0x7fffffffu);
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2)
    greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));
  if (lane < 8) atomicMax(&rows_greatest[lane], greatest);
  __syncthreads();
  float factor = __uint_as_float(k1_matmul_add_gelu_erf_scale(rows_greatest[lane % 8]));
  if (factor == 0.0f) factor = 1.0f;  // nothing but zeros
  if (row_in_bounds && threadIdx.x < 8) left_scales[n] = factor;
  const float scale = k1_matmul_add_gelu_erf_inverse(factor);
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in0 + (n * 2048 + c));
      kw_read4(b0 + 4, in0 + (n * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k1_matmul_add_gelu_erf_left(in0, n, g, c + e) : 0.0f;
    }
    if (row_in_bounds) k1_matmul_add_gelu_erf_write(left, g * 1048576LL + chunk * 128LL + line, 1048576LL, x, scale);
  }
}

// Packs w: reads along channels, 8 rows a warp, with the scales of its rows.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_right_pack(const float* __restrict__ in1,
    float* __restrict__ right_scales, unsigned short* __restrict__ right, unsigned block) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = int(block % 512u) * 8 + lane % 8;
  const int g = 0;
  const bool row_in_bounds = row < 4096;
  const int first = lane / 8 + warp * 4;  // chunk
  const int o = row;
  const long long line = row / 192 * 49152LL + row % 192;
  const bool in_bounds = row_in_bounds;
  __shared__ unsigned rows_greatest[8];
  if (threadIdx.x < 8) rows_greatest[threadIdx.x] = 0;
  __syncthreads();
  unsigned greatest = 0;
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in1 + (o * 2048 + c));
      kw_read4(b0 + 4, in1 + (o * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k1_matmul_add_gelu_erf_right(in1, g, o, c + e) : 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) greatest = max(greatest, __float_as_uint(x[e]) & 0x7fffffffu);
  }
#pragma unroll
  for (int offset = 8; offset < 32; offset *= 2)
    greatest = max(greatest, __shfl_xor_sync(0xffffffffu, greatest, offset));
  if (lane < 8) atomicMax(&rows_greatest[lane], greatest);
  __syncthreads();
  float factor = __uint_as_float(k1_matmul_add_gelu_erf_scale(rows_greatest[lane % 8]));
  if (factor == 0.0f) factor = 1.0f;  // nothing but zeros
  if (row_in_bounds && threadIdx.x < 8) right_scales[g * 4096 + o] = factor;
  const float scale = k1_matmul_add_gelu_erf_inverse(factor);
#pragma unroll 4
  for (int chunk = first; chunk < 256; chunk += 32) {
    float x[8];
    const int c = chunk * 8;
    if (in_bounds && c < 2048) {
      float b0[8];
      kw_read4(b0, in1 + (o * 2048 + c));
      kw_read4(b0 + 4, in1 + (o * 2048 + c + 4));
#pragma unroll
      for (int v = 0; v < 8; ++v) x[v] = b0[v];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        x[e] = in_bounds && c + e < 2048 ? k1_matmul_add_gelu_erf_right(in1, g, o, c + e) : 0.0f;
    }
    if (row_in_bounds) k1_matmul_add_gelu_erf_write(right, g * 1081344LL + chunk * 192LL + line, 1081344LL, x, scale);
  }
}

// Operands in the order of the core.
static __global__ void __launch_bounds__(256) k1_matmul_add_gelu_erf_pack(
    const float* __restrict__ in0,
    float* __restrict__ left_scales,
    unsigned short* __restrict__ left,
    const float* __restrict__ in1,
    float* __restrict__ right_scales,
    unsigned short* __restrict__ right) {
  if (blockIdx.x < 512u) {
    k1_matmul_add_gelu_erf_left_pack(in0, left_scales, left, 511u - blockIdx.x);
    return;
  }
  k1_matmul_add_gelu_erf_right_pack(in1, right_scales, right, blockIdx.x - 512u);
}

// A sum from the operands themselves, for those that are not finite.
static __device__ __forceinline__ float k1_matmul_add_gelu_erf_recompute(const float* __restrict__ in0,
    const float* __restrict__ in1, int n, int g, int o) {
  float sum = 0.0f;
  for (int block = 0; block < 2048; block += 64) {
    float part = 0.0f;
#pragma unroll 1
    for (int c = block; c < min(block + 64, 2048); ++c) {
      part = fmaf(k1_matmul_add_gelu_erf_left(in0, n, g, c), k1_matmul_add_gelu_erf_right(in1, g, o, c), part);
    }
    sum += part;
  }
  return sum;
}

// Whether sums may be multiplied by the product of this scale and another such one.
static __device__ __forceinline__ bool k1_matmul_add_gelu_erf_is_fast(float scale) {
  return __float_as_uint(scale) - 0x1a800000u <= 0x44800000u;  // 2^-74 to 2^63
}

// A sum that is multiplied by any scales.
static __device__ __forceinline__ float k1_matmul_add_gelu_erf_rescaled(const float* __restrict__ in0,
    const float* __restrict__ in1, float unscaled, float row_scale, float column_scale, int n, int g, int o) {
  if (row_scale == INFINITY || column_scale == INFINITY)
    return k1_matmul_add_gelu_erf_recompute(in0, in1, n, g, o);
  return ldexpf(unscaled, ilogbf(row_scale) + ilogbf(column_scale));
}

// Rewrites an element whose scales leave the fast path.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_rewrite(const float* __restrict__ in0,
    const float* __restrict__ in1, const float* __restrict__ in2, float* __restrict__ out0, float* __restrict__ out1,
    const float* __restrict__ left_scales, const float* __restrict__ right_scales, float unscaled, int n, int g,
    int o) {
  const float row_scale = left_scales[n];
  const float column_scale = right_scales[g * 4096 + o];
  if (k1_matmul_add_gelu_erf_is_fast(row_scale) && k1_matmul_add_gelu_erf_is_fast(column_scale)) return;
  const float sum = k1_matmul_add_gelu_erf_rescaled(in0, in1, unscaled, row_scale, column_scale, n, g, o);
  float b0;
  b0 = in2[o];
  const float t1 = sum + b0;
  const float t2 = kw_gelu_erf(t1);
  out0[n * 4096 + o] = t1;
  out1[n * 4096 + o] = t2;
}

// Finishes 64 x 96 sums from (first_row, first_column): a thread takes neighbouring columns, and walks over rows.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_finish(const float* __restrict__ in0,
    const float* __restrict__ in1, const float* __restrict__ in2, float* __restrict__ out0, float* __restrict__ out1,
    const float* __restrict__ left_scales, const float* __restrict__ right_scales, const float* sums, int thread,
    int phase_class, int group, long long first_row, int first_column) {
  const int g = group;
  if (thread >= 120) return;
  const int o = first_column + thread % 24 * 4;
  if (o >= 4096) return;
  const int last = min(64LL, 4096 - first_row);
  float column_scale[4];
  kw_read4(column_scale, right_scales + g * 4096 + o);
  bool fast = true;
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    fast = k1_matmul_add_gelu_erf_is_fast(column_scale[v]) && fast;
  }
  float b0[4];
  kw_read4(b0, in2 + o);
#pragma unroll 8
  for (int r = thread / 24; r < last; r += 5) {
    const int row = first_row + r;
    const int n = unsigned(row);
    const float row_scale = left_scales[n];
    fast = k1_matmul_add_gelu_erf_is_fast(row_scale) && fast;
    float sum[4];
    kw_read4(sum, &sums[r * 104 + o - first_column]);
#pragma unroll
    for (int v = 0; v < 4; ++v) sum[v] *= row_scale * column_scale[v];
    float y2[4];
    float y4[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const float t1 = sum[v] + b0[v];
      y2[v] = t1;
      const float t3 = kw_gelu_erf(t1);
      y4[v] = t3;
    }
    kw_write4(out0 + (n * 4096 + o), y2);
    kw_write4(out1 + (n * 4096 + o), y4);
  }
  if (fast) return;
#pragma unroll 1
  for (int r = thread / 24; r < last; r += 5) {
    const int row = first_row + r;
    const int n = unsigned(row);
#pragma unroll 1
    for (int v = 0; v < 4; ++v) k1_matmul_add_gelu_erf_rewrite(in0, in1, in2, out0, out1, left_scales, right_scales,
        sums[r * 104 + o + v - first_column], n, g, o + v);
  }
}


// Tap groups of a class of output positions. Of each: first row of x beyond the tile's, phases of
// the input included; rows; first tap. Of a tap: rows beyond, entry of the window.
static __constant__ int k1_matmul_add_gelu_erf_tap_groups[] = {0, 1};
static __constant__ long long k1_matmul_add_gelu_erf_place[] = {0};
static __constant__ int k1_matmul_add_gelu_erf_rows[] = {128};
static __constant__ int k1_matmul_add_gelu_erf_first_tap[] = {0, 1};
static __constant__ int k1_matmul_add_gelu_erf_taps[][2] = {{0, 0}};

// Tile number `tile`: neighbouring blocks work on a band of rows and share columns of w, so that L2 holds both.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_tile(int tile, int& group, int& phase_class,
    int& row_block,
                                                   int& column_block) {
  constexpr int ROW_BLOCKS = 16, CLASSES = 1, TILES_ACROSS = CLASSES * 22, BAND = 4;
  constexpr int ALL = static_cast<int>(ROW_BLOCKS) * TILES_ACROSS;
  group = static_cast<int>(tile / ALL);
  const int rest = tile % ALL;
  const int band = static_cast<int>(rest / (BAND * TILES_ACROSS)) * BAND;
  const int within = static_cast<int>(rest % (BAND * TILES_ACROSS));
  const int height = BAND < ROW_BLOCKS - band ? BAND : ROW_BLOCKS - band;
  const int across = within / height;
  row_block = band + within % height;
  phase_class = across % CLASSES;
  column_block = across / CLASSES;
}

// Puts a thread's sums of a subtile's columns into the subtile; they begin at number `first` of its sums of 64 rows.
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_stage(const float (&sums)[192 / 2], int first,
    float* subtile,
                                                    int thread) {
  const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
#pragma unroll
  for (int j = 0; j < 96 / 8; ++j) {
    const float* s = sums + first + 4 * j;
    float2* to = reinterpret_cast<float2*>(subtile + row * 104 + 8 * j + column);
    to[0] = make_float2(s[0], s[1]);
    to[416] = make_float2(s[2], s[3]);
  }
}

// One step's products, of TAPS taps, as one group. Operands begin at `a` and `b`, which count in rows of 16 bytes.
// The number of taps is a constant, because the compiler waits for products around loops that it cannot unroll.
template <int TAPS>
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_multiply(float (&sums)[1][192 / 2], unsigned long long a,
                                                       unsigned long long b, const int (*taps)[2], int add) {
  constexpr int CHUNKS = 4, TERMS = 2, PITCH = 128, COLUMNS = 192;
  kw_wgmma_fence();
#pragma unroll
  for (int pair = 0; pair < 3; ++pair) {  // of terms of x and w
#pragma unroll
    for (int tap = 0; tap < TAPS; ++tap) {
      const unsigned long long x = a + taps[tap][0] + (pair == 0 ? CHUNKS * PITCH : 0);
      const unsigned long long w = b + (tap * TERMS + (pair == 1 ? 1 : 0)) * (CHUNKS * COLUMNS);
#pragma unroll
      for (int k = 0; k < CHUNKS; k += 2) {
#pragma unroll
        for (int p = 0; p < 1; ++p)
          kw_wgmma_f16(sums[p], x + k * PITCH + p * 64, w + k * COLUMNS, pair == 0 && tap == 0 && k == 0 ? add : 1);
      }
    }
  }
  kw_wgmma_commit();
}

// Adds up what tensor cores have summed, of sets of 64 rows.
template <int FIRST, int END>
static __device__ __forceinline__ void k1_matmul_add_gelu_erf_add(float (&sums)[1][192 / 2],
                                                  float (&part)[1][192 / 2]) {
#pragma unroll
  for (int p = FIRST; p < END; ++p) {
    kw_wgmma_hold(part[p]);
#pragma unroll
    for (int i = 0; i < 192 / 2; ++i) sums[p][i] += part[p][i];
  }
}

static __global__ void __launch_bounds__(384, 1) k1_matmul_add_gelu_erf_core(
    const unsigned short* __restrict__ left, const unsigned short* __restrict__ right,
    const float* __restrict__ in0,
    const float* __restrict__ in1,
    const float* __restrict__ in2,
    float* __restrict__ out0,
    float* __restrict__ out1,
    const float* __restrict__ left_scales,
    const float* __restrict__ right_scales) {
  constexpr int ROWS = 128, COLUMNS = 192;   // of a tile of sums
  constexpr int APART = 128;                // rows from one tile to the next
  constexpr int CHUNKS = 4, TERMS = 2, LINES = TERMS * CHUNKS;   // chunks of 8 channels of a step
  constexpr int PITCH = 128;                 // rows of x from one chunk to the next in shared memory
  constexpr int STAGES = 3, STAGE_BYTES = 40960, LEFT_BYTES = LINES * PITCH * 16;
  // Consumer warpgroups; tiles in work; products of 64 rows each.
  constexpr int WORKERS = 2, WARPGROUPS = 1, PRODUCTS = 1;
  // Of a subtile for the epilogue: floats, columns, products of 64 rows.
  constexpr int SUBTILE = 6656, SUBTILE_COLUMNS = 96;
  constexpr int SUBTILES = COLUMNS / SUBTILE_COLUMNS, HEIGHT = 1;
  constexpr int DEPTHS = 64, CLUSTER = 2, SPLIT = 1;
  constexpr long long ALL_CHUNKS = 256, ALL_ROWS = 4096, ALL_COLUMNS = 4224;
  constexpr int X_CHUNKS = 4, SHARE = CHUNKS * COLUMNS / CLUSTER;  // of x and w in one copy: chunks; rows
  constexpr int TILES = 352;
  KW_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned stages = kw_shared(shared);
  const unsigned full = stages + STAGES * STAGE_BYTES + SUBTILE * 4 * 2, empty = full + 8 * STAGES;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      kw_barrier_init(full + 8 * i, 1);  // the producer of the step
      kw_barrier_init(empty + 8 * i, 4 * WORKERS / WARPGROUPS * CLUSTER);  // warps that multiply
    }
    kw_barriers_ready();
  }
  kw_cluster_sync();
  // From lane 0, so that the compiler knows that warps do not part.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(kw_cluster_rank());
  const int first_tile = blockIdx.x / CLUSTER, next_tile = gridDim.x / CLUSTER;

  if (warp < 4) {  // the producers
    kw_registers_fewer<40>();
    // They bring steps one after the other, at most as many as there are stages: none is two phases of a barrier ahead.
    constexpr int PRODUCERS = STAGES < 4 ? STAGES : 4;
    int stage = 0, producer = 0;
    unsigned parity = 1;
    for (int tile = first_tile; tile < TILES; tile += next_tile) {
      int group, phase_class, row_block, column_block;
      k1_matmul_add_gelu_erf_tile(tile, group, phase_class, row_block, column_block);
      row_block = row_block * CLUSTER + rank;
      if (row_block > 31) row_block = 31;  // beyond the end: read, not used
      const unsigned short* x = left + static_cast<long long>(group) * (ALL_CHUNKS * ALL_ROWS * 8) +
                                static_cast<long long>(row_block) * (X_CHUNKS > 1 ? ALL_CHUNKS * ROWS * 8 : APART * 8);
      const unsigned short* w = right + static_cast<long long>(group) * (ALL_CHUNKS * ALL_COLUMNS * 8) +
                                static_cast<long long>(column_block) * (ALL_CHUNKS * COLUMNS * 8);
      const int first_tap_group = k1_matmul_add_gelu_erf_tap_groups[phase_class], last_tap_group =
          k1_matmul_add_gelu_erf_tap_groups[phase_class + 1];
      const int begin = 0, end = (last_tap_group - first_tap_group) * DEPTHS;
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;
      for (int step = begin; step < end; ++step) {
        if (producer == warp) {
          const int first = k1_matmul_add_gelu_erf_first_tap[tap_group], taps =
              k1_matmul_add_gelu_erf_first_tap[tap_group + 1] - first;
          const int rows = k1_matmul_add_gelu_erf_rows[tap_group];
          const unsigned buffer = stages + stage * STAGE_BYTES, filled = full + 8 * stage;
          kw_barrier_wait(empty + 8 * stage, parity);
          __syncwarp();
          if (lane == 0) kw_barrier_expect(filled, LINES * 16 * (rows + taps * COLUMNS));
          __syncwarp();
#pragma unroll 1
          for (int i = lane * X_CHUNKS; i < LINES; i += 32 * X_CHUNKS) {
            const unsigned short* from = x + i / CHUNKS * 8388608LL +
                ((depth * CHUNKS + i % CHUNKS) * 128LL + k1_matmul_add_gelu_erf_place[tap_group]) * 8;
            kw_bulk_copy(buffer + i * (PITCH * 16), from, X_CHUNKS * rows * 16, filled);
          }
#pragma unroll 1
          for (int j = lane; j < taps * TERMS; j += 32) {
            const long long entry = k1_matmul_add_gelu_erf_taps[first + j / TERMS][1];
            const unsigned short* from = w + j % TERMS * 8650752LL +
                entry * (ALL_CHUNKS * ALL_COLUMNS * 8) + depth * (CHUNKS * COLUMNS * 8);
            const unsigned to = buffer + LEFT_BYTES + (j * CLUSTER + rank) * (SHARE * 16);
            kw_bulk_copy_all(to, from + rank * (SHARE * 8), SHARE * 16, filled, (1u << CLUSTER) - 1);
          }
        }
        if (++producer == PRODUCERS) producer = 0;
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
    }
  } else {  // the consumers
    kw_registers_more<232>();
    const int worker = warp / 4 - 1, thread = threadIdx.x % 128;
    const int part_row = WARPGROUPS > 1 ? 0 : worker * (PRODUCTS * 64);  // of the tile's rows
    float* subtile = reinterpret_cast<float*>(shared + STAGES * STAGE_BYTES) + worker * SUBTILE;
    int stage = 0;
    unsigned parity = 0;
    for (int tile = first_tile; tile < TILES; tile += next_tile) {
      int group, phase_class, row_block, column_block;
      k1_matmul_add_gelu_erf_tile(tile, group, phase_class, row_block, column_block);
      row_block = row_block * CLUSTER + rank;
      const int first_tap_group = k1_matmul_add_gelu_erf_tap_groups[phase_class];
      const int last_tap_group = k1_matmul_add_gelu_erf_tap_groups[phase_class + 1];
      const int begin = 0, end = (last_tap_group - first_tap_group) * DEPTHS;
      float sums[PRODUCTS][COLUMNS / 2], part[PRODUCTS][COLUMNS / 2];
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[p][i] = part[p][i] = 0.0f;
      int add = 0, since = worker * 2;  // whether `part` holds something; steps since the last promotion
      int before = -1;  // a stage whose products may still be running
      int tap_group = first_tap_group + begin / DEPTHS, depth = begin % DEPTHS;
      for (int step = begin; step < end; ++step) {
        const int first = k1_matmul_add_gelu_erf_first_tap[tap_group], last =
            k1_matmul_add_gelu_erf_first_tap[tap_group + 1];
        const unsigned buffer = stages + stage * STAGE_BYTES;
        const unsigned long long a = kw_operand(buffer + part_row * 16, PITCH * 16);
        const unsigned long long b = kw_operand(buffer + LEFT_BYTES, COLUMNS * 16);
        kw_barrier_wait(full + 8 * stage, parity);
        k1_matmul_add_gelu_erf_multiply<1>(part, a, b, k1_matmul_add_gelu_erf_taps + first, add);
        add = 1;
        since += last - first;
        if (since < 4) {
          kw_wgmma_wait<1>();  // The step before is done.
          if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
          before = stage;
        } else {
          kw_wgmma_wait<0>();
          if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
          if (lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * stage, lane);
          before = -1;
          k1_matmul_add_gelu_erf_add<0, 1>(sums, part);
          add = since = 0;
        }
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++depth == DEPTHS) depth = 0, ++tap_group;
      }
      kw_wgmma_wait<0>();
      if (before >= 0 && lane < CLUSTER) kw_barrier_arrive_at(empty + 8 * before, lane);
      if (add) {
        k1_matmul_add_gelu_erf_add<0, 1>(sums, part);
      }

      // What tensor cores have cut off these sums.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[p][i] = fmaf(sums[p][i], 4.738e-07f, sums[p][i]);

      // Subtile by subtile through shared memory to the epilogue.
#pragma unroll
      for (int p = 0; p < PRODUCTS; ++p) kw_wgmma_hold(sums[p]);
      if (row_block > 31) continue;
#pragma unroll 1
      for (int number = 0; number < PRODUCTS / HEIGHT * SUBTILES; ++number) {
        const long long first_row = row_block * (1LL * APART) + part_row + number / SUBTILES * (HEIGHT * 64);
        kw_part_sync(1 + worker, 128);  // The subtile before has been read.
#pragma unroll
        for (int p = 0; p < PRODUCTS; ++p)
#pragma unroll
          for (int s = 0; s < SUBTILES; ++s)
            if (number == p / HEIGHT * SUBTILES + s)
              k1_matmul_add_gelu_erf_stage(sums[p], s * (SUBTILE_COLUMNS / 2), subtile, thread);
        kw_part_sync(1 + worker, 128);
        k1_matmul_add_gelu_erf_finish(in0, in1, in2, out0, out1, left_scales, right_scales, subtile, thread,
            phase_class, group, first_row,
                      column_block * COLUMNS + number % SUBTILES * SUBTILE_COLUMNS);
      }
    }
  }
  kw_cluster_sync();  // No block ends while others copy to it or arrive at its barriers.
}
static const char* k1_matmul_add_gelu_erf(const float* in0, const float* in1, const float* in2, float* out0,
                                          float* out1, void* workspace, cudaStream_t stream) {
  unsigned char* const base = static_cast<unsigned char*>(workspace);
  float* const left_scales = reinterpret_cast<float*>(base + 256LL);
  float* const right_scales = reinterpret_cast<float*>(base + 16640LL);
  unsigned short* const left = reinterpret_cast<unsigned short*>(base + 33024LL);
  unsigned short* const right = reinterpret_cast<unsigned short*>(base + 33587456LL);
  if ((reinterpret_cast<uintptr_t>(in2) | reinterpret_cast<uintptr_t>(out0) | reinterpret_cast<uintptr_t>(out1)) % 16 !=
      0)
    return "k1_matmul_add_gelu_erf: in2, out0, out1 must be aligned to 16 bytes";
  if ((reinterpret_cast<uintptr_t>(in0) | reinterpret_cast<uintptr_t>(in1)) % 16 != 0)
    return "k1_matmul_add_gelu_erf: in0, in1 must be aligned to 16 bytes";
  KW_LAUNCH("k1_matmul_add_gelu_erf", k1_matmul_add_gelu_erf_pack, 1024, 256, 0, stream, in0, left_scales, left, in1,
            right_scales, right);
  KW_CHECK("k1_matmul_add_gelu_erf", cudaFuncSetAttribute(k1_matmul_add_gelu_erf_core,
                                                          cudaFuncAttributeMaxDynamicSharedMemorySize, 176176));
  static int clusters = 0;  // that the device holds at a time: asked once
  if (clusters == 0) KW_CHECK("k1_matmul_add_gelu_erf", kw_resident_clusters(&clusters, k1_matmul_add_gelu_erf_core, 2,
      dim3(384), 176176));
  if (clusters < 1) return "k1_matmul_add_gelu_erf: the device holds no cluster of 2 such blocks";
  const int used = clusters < 352LL ? clusters : 352;
  KW_CHECK("k1_matmul_add_gelu_erf", kw_launch_clusters(k1_matmul_add_gelu_erf_core, 2, dim3(used * 2), dim3(384),
                                                        176176, stream, left, right, in0, in1, in2, out0, out1,
                                                        left_scales, right_scales));
  return nullptr;
}

//// k2_mul
// linear_gelu.py:15: return torch.nn.functional.gelu(self.linear(x))
// points (16777216,)
// out0 = mul(in0, unfused_add(mul(0.5, add(1, erf(mul(in1, 0.707107)))), mul(in1, mul(exp(mul(square(in1), -0.5)),
// 0.398942))))
static __global__ void __launch_bounds__(256) k0_k2_mul(
    const float* __restrict__ in0, const float* __restrict__ in1, float* __restrict__ out0) {
  float x0[4][4];
  float x1[4][4];
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((blockIdx.x * 4 + u) * 256 + threadIdx.x) * 4;
    const int i0 = p;
    kw_read4(x0[u], in0 + i0);
    kw_read4(x1[u], in1 + i0);
  }
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const unsigned p = ((blockIdx.x * 4 + u) * 256 + threadIdx.x) * 4;
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

//// k3_sum
// linear_gelu.py:15: return torch.nn.functional.gelu(self.linear(x))
// Part 0: 17 parts of every row.
// outer (4096,), row (4096,)
// total0 = sum(in0)
static __global__ void __launch_bounds__(256) k0_k3_sum(
    const float* __restrict__ in0, double* __restrict__ partial0) {
  const unsigned block_number = gridDim.x - 1u - blockIdx.x;  // what was written last is in the cache
  const unsigned block = block_number % 32u, part = block_number / 32u;
  const unsigned column = threadIdx.x % 32u, t = threadIdx.x / 32u;  // t: turn on the row
  const unsigned o = (block * 32u + column) * 4u;
  const int i0 = o;
  const unsigned first = part * (unsigned)241;
  const unsigned end = (first + 241u) < 4096u ? (first + 241u) : 4096u;

  double sum0[4];
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    sum0[v] = 0;
  }
  for (unsigned k = 0; k < 31; k += 8) {
    float x0[8][4];
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      const unsigned p = (first + (k + u) * 8u + t);
      if (p < end) {
        const int r0 = p;
        kw_read4(x0[u], in0 + (i0 + r0 * 4096));
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
      double* part_of = partial0 + ((unsigned long long)(o + v) * 17 + part);
      part_of[0] = sum0[v];
    }
  }
}

// Merge of the parts, and what is stored once per row.
static __global__ void __launch_bounds__(256) k1_k3_sum(
    float* __restrict__ out0, double* __restrict__ partial0) {
  const unsigned t = threadIdx.x % 32u;  // place in the row's group
  const unsigned o = blockIdx.x * 8u + threadIdx.x / 32u;
  const int i0 = o;
  double sum0 = 0;
  for (unsigned s = t; s < 17u; s += 32u) {
    const double* part = partial0 + ((unsigned long long)o * 17 + s);
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

static const char* k3_sum(const float* in0, float* out0, void* workspace, cudaStream_t stream) {
  if ((reinterpret_cast<uintptr_t>(in0)) % 16 != 0)
    return "k3_sum: in0 must be aligned to 16 bytes";
  double* partial0 = reinterpret_cast<double*>(static_cast<char*>(workspace));
  KW_LAUNCH("k3_sum", k0_k3_sum, 544, 256, 0, stream, in0, partial0);
  KW_LAUNCH("k3_sum", k1_k3_sum, 512, 256, 0, stream, out0, partial0);
  return nullptr;
}

//// launchers
extern "C" const char* kernelwright_training_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* linear_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* linear_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* gelu_erf_k0_ptr = static_cast<float*>(tensors[3]);
    auto* workspace = static_cast<char*>(tensors[4]);
    if (const char* failure = k0_matmul_gelu_erf(x_ptr, linear_weight_ptr, linear_bias_ptr, gelu_erf_k0_ptr, workspace,
                                                 static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_saving_0(void* const* tensors, void* stream) {
    auto* x_ptr = static_cast<const float*>(tensors[0]);
    auto* linear_weight_ptr = static_cast<const float*>(tensors[1]);
    auto* linear_bias_ptr = static_cast<const float*>(tensors[2]);
    auto* add_k1_0_ptr = static_cast<float*>(tensors[3]);
    auto* gelu_erf_k1_1_ptr = static_cast<float*>(tensors[4]);
    auto* workspace = static_cast<char*>(tensors[5]);
    if (const char* failure = k1_matmul_add_gelu_erf(x_ptr, linear_weight_ptr, linear_bias_ptr, add_k1_0_ptr,
                                                     gelu_erf_k1_1_ptr, workspace, static_cast<cudaStream_t>(
        stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_of_parameters_0(void* const* tensors, void* stream) {
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[0]);
    auto* saved_0_ptr = static_cast<const float*>(tensors[1]);
    auto* mul_k2_ptr = static_cast<float*>(tensors[2]);
    auto* sum_k3_ptr = static_cast<float*>(tensors[3]);
    auto* workspace = static_cast<char*>(tensors[4]);
    if (const char* failure = k2_mul(gradient_of_output_0_ptr, saved_0_ptr, mul_k2_ptr, nullptr,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_sum(mul_k2_ptr, sum_k3_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}

extern "C" const char* kernelwright_training_backward_0(void* const* tensors, void* stream) {
    auto* gradient_of_output_0_ptr = static_cast<const float*>(tensors[0]);
    auto* saved_0_ptr = static_cast<const float*>(tensors[1]);
    auto* mul_k2_ptr = static_cast<float*>(tensors[2]);
    auto* sum_k3_ptr = static_cast<float*>(tensors[3]);
    auto* workspace = static_cast<char*>(tensors[4]);
    if (const char* failure = k2_mul(gradient_of_output_0_ptr, saved_0_ptr, mul_k2_ptr, nullptr,
                                     static_cast<cudaStream_t>(stream))) return failure;
    if (const char* failure = k3_sum(mul_k2_ptr, sum_k3_ptr, workspace,
                                     static_cast<cudaStream_t>(stream))) return failure;
    return nullptr;
}
"""


def _kernelwright_training(_device, _stream, x, linear_weight, linear_bias):
    """The program of training and inference mode: 1 kernel, 0 torch calls."""
    gelu_erf_k0 = torch.empty((4096, 4096), dtype=torch.float32, device=_device)
    workspace = torch.empty(68190464, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_0", _stream, x, linear_weight, linear_bias, gelu_erf_k0, workspace)
    return (gelu_erf_k0,)


def _kernelwright_training_saving(_device, _stream, x, linear_weight, linear_bias):
    """The program of training saving mode: 1 kernel, 0 torch calls."""
    add_k1_0 = torch.empty((4096, 4096), dtype=torch.float32, device=_device)
    gelu_erf_k1_1 = torch.empty_like(add_k1_0)
    workspace = torch.empty(68190464, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_saving_0", _stream, x, linear_weight, linear_bias, add_k1_0,
                         gelu_erf_k1_1, workspace)
    return (gelu_erf_k1_1, add_k1_0,)


def _kernelwright_training_backward_of_parameters(_device, _stream, x, gradient_of_output_0, saved_0):
    """The program of training backward of parameters mode: 2 kernels, 1 torch call."""
    mul_k2 = torch.empty_like(gradient_of_output_0)
    sum_k3 = torch.empty((4096,), dtype=torch.float32, device=_device)
    workspace = torch.empty(557056, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_of_parameters_0", _stream, gradient_of_output_0, saved_0,
                         mul_k2, sum_k3, workspace)
    del workspace
    _t5_permute = mul_k2.permute((1, 0))
    del mul_k2
    # return torch.nn.functional.gelu(self.linear(x))
    _t6_matmul = torch.matmul(_t5_permute, x)
    return (_t6_matmul, sum_k3,)


def _kernelwright_training_backward(_device, _stream, x, gradient_of_output_0, saved_0, linear_weight):
    """The program of training backward mode: 2 kernels, 2 torch calls."""
    mul_k2 = torch.empty_like(gradient_of_output_0)
    sum_k3 = torch.empty((4096,), dtype=torch.float32, device=_device)
    workspace = torch.empty(557056, dtype=torch.uint8, device=_device)
    _kernelwright_launch("kernelwright_training_backward_0", _stream, gradient_of_output_0, saved_0, mul_k2, sum_k3,
                         workspace)
    del workspace
    # return torch.nn.functional.gelu(self.linear(x))
    _t6_matmul = torch.matmul(mul_k2, linear_weight)
    _t7_permute = mul_k2.permute((1, 0))
    del mul_k2
    # return torch.nn.functional.gelu(self.linear(x))
    _t8_matmul = torch.matmul(_t7_permute, x)
    return (_t6_matmul, _t8_matmul, sum_k3,)


# What the kernels were built for; elsewhere the original computation runs -------------------------------------------


_KERNELWRIGHT_MODEL = {
    "modules": {'linear': 'torch.nn.modules.linear.Linear'},
    "attributes": {
        'linear': {'in_features': 2048, 'out_features': 4096},
    },
    "held": ('linear.bias', 'linear.weight'),
    "default_dtype": torch.float32,
    "inputs": (("x", (4096, 2048), torch.float32),),
    "tensors": {
        "linear.weight": ((4096, 2048), torch.float32),
        "linear.bias": ((4096,), torch.float32),
    },
    "run": _kernelwright_training,
    "ahead": True,
    "compiled": (((4096, 4096), (4096, 1), torch.float32),),
    "strides": ((4096, 1),),
}

_KERNELWRIGHT_TRAINING = {
    **_KERNELWRIGHT_MODEL,
    "training": True,
    "backward": {"of": (0,), "frozen": (), "saving": {"run": _kernelwright_training_saving, "results": 1},
                 "programs": ({"gives": {'linear.weight': 0, 'linear.bias': 1}, "saved": (1,), "tensors": (),
                               "orders": (), "run": _kernelwright_training_backward_of_parameters},
                              {"gives": {0: 0, 'linear.weight': 1, 'linear.bias': 2}, "saved": (1,),
                               "tensors": ('linear.weight',), "orders": (), "run": _kernelwright_training_backward},)},
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
