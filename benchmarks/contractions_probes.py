"""What contractions on wgmma rest on, one thing at a time, on a GPU of compute capability 9.0.

``TEXT`` is CUDA text of the probes, and `probe` runs one of them from a library that was built from it. Each returns a
dictionary: what was found, and ``pass`` where there is a right answer. (Those that have one run under the emulation,
too: tests/emulation/gemm/test_sm90.py.)
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from kernelwright.codegen.cuda.support.snippets import snippets

_RATE_COLUMNS = (64, 128, 192, 256)
_KERNELS = r"""
// Between stores to shared memory and products that read it.
static __device__ __forceinline__ void written() {
#ifndef KERNELWRIGHT_EMULATION
  asm volatile("fence.proxy.async;" ::: "memory");
#endif
}

// One product of 64 x 64 x 16: x[chunk][72 rows][8], w[chunk][64][8], x from row `shift` on. The offsets are those of
// the operands' descriptors, in bytes.
static __global__ void product(const unsigned short* x, const unsigned short* w, float* out, int shift, int leading_x,
                               int leading_w, int stride_x, int stride_w) {
  KW_DYNAMIC_SHARED(unsigned short, shared);
  for (int i = threadIdx.x; i < 2 * 72 * 8; i += 128) shared[i] = x[i];
  for (int i = threadIdx.x; i < 2 * 64 * 8; i += 128) shared[2 * 72 * 8 + i] = w[i];
  written();
  __syncthreads();
  const unsigned base = kw_shared(shared);
  const unsigned long long a = (base + shift * 16) >> 4 | static_cast<unsigned long long>(leading_x >> 4) << 16 |
                               static_cast<unsigned long long>(stride_x >> 4) << 32;
  const unsigned long long b = (base + 2 * 72 * 16) >> 4 | static_cast<unsigned long long>(leading_w >> 4) << 16 |
                               static_cast<unsigned long long>(stride_w >> 4) << 32;
  float sums[32];
  for (int i = 0; i < 32; ++i) sums[i] = 1000.0f;
  kw_wgmma_fence();
  kw_wgmma_f16(sums, a, b, 0);
  kw_wgmma_commit();
  kw_wgmma_wait<0>();
  kw_wgmma_hold(sums);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
  for (int j = 0; j < 8; ++j)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c) out[(row + 8 * h) * 64 + 8 * j + column + c] = sums[4 * j + 2 * h + c];
}
extern "C" const char* run_product(const unsigned short* x, const unsigned short* w, float* out, int shift,
                                   int leading_x, int leading_w, int stride_x, int stride_w) {
  KW_LAUNCH("product", product, 1, 128, 16384, 0, x, w, out, shift, leading_x, leading_w, stride_x, stride_w);
  KW_CHECK("product", cudaDeviceSynchronize());
  return nullptr;
}

// Sixteen bulk copies of 1024 bytes through two stages, two phases each and more.
static __global__ void copies(const unsigned* from, unsigned* to) {
  KW_DYNAMIC_SHARED(unsigned, shared);
  const unsigned base = kw_shared(shared), full = base + 2048, empty = full + 16;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) kw_barrier_init(full + 8 * s, 1), kw_barrier_init(empty + 8 * s, 1);
    kw_barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int i = 0; i < 16; ++i) {
      kw_barrier_wait(empty + 8 * (i % 2), i / 2 % 2 ^ 1);
      __syncwarp();
      if (threadIdx.x == 0) kw_barrier_expect(full + 8 * (i % 2), 1024);
      if (threadIdx.x < 4) kw_bulk_copy(base + i % 2 * 1024 + threadIdx.x * 256, from + i * 256 + threadIdx.x * 64, 256,
                                        full + 8 * (i % 2));
    }
  } else {
    const int lane = threadIdx.x % 32;
    for (int i = 0; i < 16; ++i) {
      kw_barrier_wait(full + 8 * (i % 2), i / 2 % 2);
      for (int j = lane; j < 256; j += 32) to[i * 256 + j] = shared[i % 2 * 256 + j];
      __syncwarp();
      if (lane == 0) kw_barrier_arrive(empty + 8 * (i % 2));
    }
  }
}
extern "C" const char* run_copies(const unsigned* from, unsigned* to) {
  KW_LAUNCH("copies", copies, 1, 64, 4096, 0, from, to);
  KW_CHECK("copies", cudaDeviceSynchronize());
  return nullptr;
}

// Each block of a pair brings its half of 1024 bytes to both.
static __global__ void shared_copies(const unsigned* from, unsigned* to) {
  KW_DYNAMIC_SHARED(unsigned, shared);
  const unsigned base = kw_shared(shared), full = base + 1024, rank = kw_cluster_rank();
  if (threadIdx.x == 0) {
    kw_barrier_init(full, 3);
    kw_barriers_ready();
  }
  kw_cluster_sync();
  if (threadIdx.x == 0) {
    kw_barrier_expect(full, 1024);
    kw_bulk_copy_all(base + rank * 512, from + rank * 128, 512, full, 3);
  }
  if (threadIdx.x < 2) kw_barrier_arrive_at(full, threadIdx.x);
  kw_barrier_wait(full, 0);
  for (int j = threadIdx.x; j < 256; j += 32) to[blockIdx.x * 256 + j] = shared[j];
  kw_cluster_sync();
}
extern "C" const char* run_shared_copies(const unsigned* from, unsigned* to) {
  KW_CHECK("shared_copies", kw_launch_clusters(shared_copies, 2, dim3(4), dim3(32), 2048, nullptr, from, to));
  KW_CHECK("shared_copies", cudaDeviceSynchronize());
  return nullptr;
}

// Products from shared memory alone: two warpgroups of a block, 4 steps of 16 channels in a group.
template <int COLUMNS>
static __global__ void __launch_bounds__(256, 1) product_rate(const unsigned* noise, float* out, int pitch, int shift,
                                                              int loops) {
  KW_DYNAMIC_SHARED(unsigned, shared);
  for (int i = threadIdx.x; i < 4096 * 4; i += 256) shared[i] = noise[i];
  written();
  __syncthreads();
  const unsigned base = kw_shared(shared);
  const unsigned long long a = kw_operand(base + (threadIdx.x / 128 * 64 + shift) * 16, pitch * 16);
  const unsigned long long b = kw_operand(base + 8 * pitch * 16, COLUMNS * 16);
  float sums[COLUMNS / 2];
  for (int i = 0; i < COLUMNS / 2; ++i) sums[i] = 0.0f;
  for (int n = 0; n < loops; ++n) {
    kw_wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; k += 2) kw_wgmma_f16(sums, a + k * pitch, b + k * COLUMNS, 1);
    kw_wgmma_commit();
    kw_wgmma_wait<1>();
  }
  kw_wgmma_wait<0>();
  kw_wgmma_hold(sums);
  float sum = 0.0f;
  for (int i = 0; i < COLUMNS / 2; ++i) sum += sums[i];
  if (sum == 12345.678f) out[threadIdx.x] = sum;
}

// Bytes from L2: every block copies `count` pieces of `bytes` bytes from all over a buffer, 8 at a time.
static __global__ void copy_rate(const char* from, long long pieces, int bytes, int count) {
  KW_DYNAMIC_SHARED(unsigned, shared);
  const unsigned base = kw_shared(shared), full = base + 8 * bytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 8; ++s) kw_barrier_init(full + 8 * s, 1);
    kw_barriers_ready();
  }
  __syncthreads();
  if (threadIdx.x >= 4) return;
  long long piece = (blockIdx.x * 977LL + threadIdx.x * 131) % pieces;
  for (int i = threadIdx.x; i < count + 8; i += 4) {  // four threads of one warp, two stages each
    const int s = i % 8;
    if (i >= 8) kw_barrier_wait(full + 8 * s, (i / 8 - 1) % 2);
    if (i >= count) continue;
    kw_barrier_expect(full + 8 * s, bytes);
    kw_bulk_copy(base + s * bytes, from + piece * bytes, bytes, full + 8 * s);
    piece = (piece + 4 * 977 * gridDim.x + 13) % pieces;
  }
}
extern "C" const char* run_copy_rate(const char* from, long long pieces, int bytes, int count, int blocks) {
  KW_CHECK("copy_rate", cudaFuncSetAttribute(copy_rate, cudaFuncAttributeMaxDynamicSharedMemorySize, 8 * bytes + 64));
  KW_LAUNCH("copy_rate", copy_rate, blocks, 32, 8 * bytes + 64, 0, from, pieces, bytes, count);
  return nullptr;
}
"""
_RATE = """
extern "C" const char* run_product_rate_{0}(const unsigned* noise, float* out, int pitch, int shift, int loops,
                                            int blocks) {{
  KW_CHECK("product_rate", cudaFuncSetAttribute(product_rate<{0}>, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304));
  KW_LAUNCH("product_rate", product_rate<{0}>, blocks, 256, 98304, 0, noise, out, pitch, shift, loops);
  return nullptr;
}}
"""
TEXT = snippets({"tensor_core", "cluster", *(f"wgmma_f16_{n}" for n in _RATE_COLUMNS)}) + _KERNELS \
    + "".join(_RATE.format(n) for n in _RATE_COLUMNS)


def _call(library: ctypes.CDLL, name: str, *arguments: torch.Tensor | int) -> None:
    """Calls a probe's host function; raises RuntimeError with its message."""
    function = getattr(library, f"run_{name}")
    function.restype = ctypes.c_char_p
    message = function(*(ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else
                         ctypes.c_longlong(a) if name == "copy_rate" and place == 1 else ctypes.c_int(a)
                         for place, a in enumerate(arguments)))
    if message is not None:
        raise RuntimeError(message.decode())


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Rows of 16 channels as [chunk][row][8]."""
    return values.half().reshape(-1, 2, 8).permute(1, 0, 2).contiguous()


def _product(library: ctypes.CDLL, device: str) -> dict:
    """Which descriptor gives the product: leading offset between chunks (as the core uses it), or stride offset."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-8, 9, (72, 16), generator=generator).double()
    w = torch.randint(-8, 9, (64, 16), generator=generator).double()
    found = {}
    for shift in (0, 1, 3, 8):
        for name, offsets in {"leading is between chunks": (72 * 16, 64 * 16, 128, 128),
                              "stride is between chunks": (128, 128, 72 * 16, 64 * 16)}.items():
            out = torch.zeros(64, 64, device=device)
            _call(library, "product", _bits(x).to(device), _bits(w).to(device), out, shift, *offsets)
            found[f"shift {shift}, {name}"] = bool(torch.equal(out.double().cpu(), x[shift:shift + 64] @ w.T))
    return {"found": found, "pass": all(v for k, v in found.items() if "leading" in k)}


def _copies(library: ctypes.CDLL, name: str, out: int, device: str) -> dict:
    source = torch.randint(0, 2**31 - 1, (4096,), dtype=torch.int32).to(device)
    target = torch.zeros(out, dtype=torch.int32, device=device)
    _call(library, name, source, target)
    expected = source if name == "copies" else source[:256].repeat(out // 256)
    return {"pass": bool(torch.equal(target, expected))}


def _seconds(work: Callable[[], None]) -> float:
    """The least time of five runs."""
    times = []
    for _ in range(6):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return min(times[1:])


def _rates(library: ctypes.CDLL, device: str) -> dict:
    """TFLOP/s of products from shared memory, by columns, rows between chunks, and shift of x."""
    blocks, loops = torch.cuda.get_device_properties(0).multi_processor_count, 4000
    noise = torch.randn(32768).half().to(device).view(torch.int32)
    found = {}
    for columns in _RATE_COLUMNS:
        for pitch, shift in ((128, 0), (136, 0), (136, 1), (136, 3)):
            out = torch.zeros(256, device=device)
            seconds = _seconds(lambda c=columns, p=pitch, s=shift, o=out: _call(
                library, f"product_rate_{c}", noise, o, p, s, loops, blocks))
            found[f"{columns} columns, pitch {pitch}, shift {shift}"] = round(
                2 * 128 * columns * 64 * loops * blocks / seconds / 1e12, 1)
    return {"tflops": found}


def _copy_rates(library: ctypes.CDLL, device: str) -> dict:
    """TB/s of bulk copies from L2 (a buffer of 16 MB), by bytes of one copy."""
    blocks, found = torch.cuda.get_device_properties(0).multi_processor_count, {}
    source = torch.zeros(1 << 24, dtype=torch.uint8, device=device)
    for size in (512, 1024, 2048, 4096, 8192, 16384):
        count = (1 << 24) // size
        seconds = _seconds(lambda s=size, c=count: _call(library, "copy_rate", source, (1 << 24) // s, s, c, blocks))
        found[size] = round(count * size * blocks / seconds / 1e12, 2)
    return {"tb_per_second": found}


PROBES: dict[str, Callable[[ctypes.CDLL, str], dict]] = {
    "product": _product, "copies": lambda library, device: _copies(library, "copies", 4096, device),
    "copies in a cluster": lambda library, device: _copies(library, "shared_copies", 1024, device),
    "product rates": _rates, "copy rates": _copy_rates,
}
"""Probes by name."""


def probe(name: str, library: ctypes.CDLL, device: str = "cuda") -> dict:
    """What a probe found. Raises RuntimeError where a CUDA call fails."""
    return {"probe": name, **PROBES[name](library, device)}
