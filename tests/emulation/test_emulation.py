"""The CPU emulation of CUDA kernels: results, strictness, and that the same texts compile with nvcc."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from kernelwright.codegen.cuda.emulation import compile as emulate
from kernelwright.codegen.cuda.emulation.compile import EmulationError, compile_emulated, emulation_text
from kernelwright.codegen.cuda.support.snippets import SNIPPETS, snippets

ORDER = "KERNELWRIGHT_EMULATION_ORDER"
ORDERS = ("forward", "reverse", "1", "2")

# Host functions take (inputs..., output, length); each returns null or a message.
VECTOR_ADD = """
static __global__ void __launch_bounds__(256) k0_add(const float* a, const float* b, float* c, long long n) {
  const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  c[i] = __ldg(a + i) + b[i];
}
extern "C" const char* run(const float* a, const float* b, float* c, long long n) {
  cudaStream_t stream = nullptr;
  KW_LAUNCH("k0_add", k0_add, (n + 255) / 256, 256, 0, stream, a, b, c, n);
  return nullptr;
}
"""

ROW_STATISTICS = """
// One block per row: sum in out[row], maximum in out[rows + row].
template <typename T>
static __global__ void k1_rows(const T* x, T* out, long long columns) {
  T sum = 0, largest = -INFINITY;
  for (long long i = threadIdx.x; i < columns; i += blockDim.x) {
    const T value = x[blockIdx.x * columns + i];
    sum += value;
    largest = kw_maximum(largest, value);
  }
  sum = kw_block_sum(sum);
  largest = kw_block_max(largest);
  if (threadIdx.x == blockDim.x - 1) out[blockIdx.x] = sum, out[gridDim.x + blockIdx.x] = largest;
}
extern "C" const char* run_float(const float* x, float* out, long long rows, long long columns, int threads) {
  KW_LAUNCH("k1_rows", k1_rows<float>, rows, threads, 0, nullptr, x, out, columns);
  return nullptr;
}
extern "C" const char* run_double(const double* x, double* out, long long rows, long long columns,
                                  int threads) {
  KW_LAUNCH("k1_rows", k1_rows<double>, rows, threads, 0, nullptr, x, out, columns);
  return nullptr;
}
"""

TRANSPOSE = """
static __global__ void __launch_bounds__(256) k2_transpose(const float* x, float* y, int rows, int columns) {
  __shared__ float tile[32][33];
  const int column = blockIdx.x * 32 + threadIdx.x;
  for (int r = threadIdx.y; r < 32; r += 8) {
    const int row = blockIdx.y * 32 + r;
    if (row < rows && column < columns)
      tile[r][threadIdx.x] = x[static_cast<long long>(row) * columns + column];
  }
  __syncthreads();
  const int row = blockIdx.y * 32 + threadIdx.x;
  for (int r = threadIdx.y; r < 32; r += 8) {
    const int out = blockIdx.x * 32 + r;
    if (row < rows && out < columns) y[static_cast<long long>(out) * rows + row] = tile[threadIdx.x][r];
  }
}
extern "C" const char* run(const float* x, float* y, int rows, int columns) {
  const dim3 grid((columns + 31) / 32, (rows + 31) / 32);
  KW_LAUNCH("k2_transpose", k2_transpose, grid, dim3(32, 8), 0, nullptr, x, y, rows, columns);
  return nullptr;
}
"""

HISTOGRAM = """
static __global__ void k3_histogram(const int* x, unsigned* bins, int bin_count, long long n) {
  KW_DYNAMIC_SHARED(unsigned, local);
  for (int b = threadIdx.x; b < bin_count; b += blockDim.x) local[b] = 0;
  __syncthreads();
  for (long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x; i < n;
       i += static_cast<long long>(gridDim.x) * blockDim.x)
    atomicAdd(&local[x[i]], 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < bin_count; b += blockDim.x) atomicAdd(&bins[b], local[b]);
}
extern "C" const char* run(const int* x, unsigned* bins, int bin_count, long long n) {
  cudaStream_t stream = nullptr;
  KW_CHECK("k3_histogram", cudaMemsetAsync(bins, 0, bin_count * 4, stream));
  const size_t bytes = bin_count * sizeof(unsigned);
  KW_LAUNCH("k3_histogram", k3_histogram, 3, 128, bytes, stream, x, bins, bin_count, n);
  return nullptr;
}
"""

WARP = """
// Every kind of warp operation, over segments of 8 lanes; 12 values per thread.
static __global__ void k4_warp(int* out) {
  const int lane = threadIdx.x % 32;
  int* o = out + threadIdx.x * 12;
  o[0] = __shfl_sync(0xffffffffu, lane * 10, 3, 8);
  o[1] = __shfl_up_sync(0xffffffffu, lane, 2, 8);
  o[2] = __shfl_down_sync(0xffffffffu, lane, 3, 8);
  o[3] = __shfl_xor_sync(0xffffffffu, lane, 5, 8);
  o[4] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  o[5] = __any_sync(0xffffffffu, lane == 7) * 2 + __all_sync(0xffffffffu, lane < 32);
  o[6] = __syncthreads_count(lane < 5);
  o[7] = __syncthreads_or(threadIdx.x == 40) * 2 + __syncthreads_and(threadIdx.x < 40);
  o[8] = static_cast<int>(__shfl_sync(0xffffffffu, 5000000000LL + lane, 9) - 5000000000LL);
  o[9] = static_cast<int>(__shfl_down_sync(0xffffffffu, lane + 0.25, 1) * 4);
  // Two halves of a warp meet on their own.
  const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
  o[10] = lane < 16 ? __shfl_xor_sync(half, lane, 8) : __shfl_xor_sync(half, lane, 4);
  __syncwarp(half);
  o[11] = __popc(__activemask()) + __float2int_rn(2.5f) + __clz(1) + __float2int_rz(-1.9f);
}
extern "C" const char* run(int* out) {
  KW_LAUNCH("k4_warp", k4_warp, 1, 64, 0, nullptr, out);
  return nullptr;
}
"""

RACE = """
static __global__ void k5_race(const float* x, float* y) {
  __shared__ float copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  // Missing: __syncthreads();
  y[threadIdx.x] = copy[63 - threadIdx.x];
}
extern "C" const char* run(const float* x, float* y) {
  KW_LAUNCH("k5_race", k5_race, 2, 64, 0, nullptr, x, y);
  return nullptr;
}
"""

# Each kernel of this text breaks one rule, except where a name ends in _fine.
FAULTS = """
static __global__ void divergent(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
    y[threadIdx.x] = 1.0f;
  } else {
    __syncthreads();
  }
}
static __global__ void waiting(float* y) {
  if (threadIdx.x == 0) { __syncthreads(); }
  y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 1);
}
static __global__ void exited_fine(float* y) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  y[threadIdx.x] = 2.0f;
}
static __global__ void exited_lanes(float* y) {
  if (threadIdx.x % 32 >= 20) return;
  y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 16);
}
static __global__ void absent(float* y) {
  if (threadIdx.x % 2) y[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 2);
  else __syncthreads();
}
static __global__ void not_in_mask(float* y) { y[threadIdx.x] = __shfl_sync(0x0000ffffu, 1.0f, 0); }
static __global__ void overrun(float* y) {
  KW_DYNAMIC_SHARED(float, s);
  s[threadIdx.x + 1] = y[threadIdx.x];
}
static __global__ void underrun(float* y) {
  KW_DYNAMIC_SHARED(float, s);
  s[static_cast<int>(threadIdx.x) - 2] = y[threadIdx.x];
}
static __global__ void wild(float* y) { y[threadIdx.x - (1LL << 40)] = 1.0f; }
static __global__ void null_pointer(float*) { *static_cast<volatile float*>(nullptr) = 1.0f; }
static __global__ void misaligned(float* y) {
  const float4 v = reinterpret_cast<const float4*>(y + 1)[threadIdx.x % 4];
  y[threadIdx.x] = v.x + v.w;
}
static __global__ void static_overrun(float* y) {
  __shared__ float s[32];
  volatile int at = threadIdx.x;
  s[at] = y[at];
  y[at] = s[at];
}
static __global__ void index_overflow(float* y) {
  volatile int large = 65536;
  const int at = large * large;
  y[threadIdx.x] = static_cast<float>(at);
}
static __global__ void uninitialised_fine(float* y) {
  __shared__ float s[64];
  KW_DYNAMIC_SHARED(double, d);
  volatile int at = threadIdx.x;
  y[at] = at % 2 ? s[at] : static_cast<float>(d[at]);
  s[at] = 1.0f;
  d[at] = 1.0;
}
static __global__ void trap(float*) { if (threadIdx.x == 5) __trap(); }
static __global__ void __launch_bounds__(32) bounded(float* y) { y[threadIdx.x] = 1.0f; }

#define ENTRY(name)                                                                                    \\
  extern "C" const char* run_##name(float* y, int blocks, int threads, int shared) {                   \\
    KW_LAUNCH(#name "_kernel", name, blocks, threads, shared, nullptr, y);                             \\
    KW_CHECK(#name "_kernel", cudaDeviceSynchronize());                                                \\
    return nullptr;                                                                                    \\
  }
ENTRY(divergent) ENTRY(waiting) ENTRY(exited_fine) ENTRY(exited_lanes) ENTRY(absent) ENTRY(not_in_mask)
ENTRY(overrun) ENTRY(underrun) ENTRY(wild) ENTRY(null_pointer) ENTRY(misaligned) ENTRY(static_overrun)
ENTRY(index_overflow) ENTRY(uninitialised_fine) ENTRY(trap) ENTRY(bounded)
"""

CONFIGURATION = """
static __global__ void k6_shared(float* y) {
  __shared__ float fixed[256];
  KW_DYNAMIC_SHARED(float, s);
  fixed[threadIdx.x] = 1.0f;
  s[threadIdx.x] = 2.0f;
  __syncthreads();
  y[threadIdx.x] = fixed[31 - threadIdx.x] + s[31 - threadIdx.x];
}
extern "C" const char* run(float* y, long long gx, int gy, int gz, int bx, int by, int bz, int shared,
                           int opt_in) {
  if (opt_in) {
    KW_CHECK("k6_shared",
             cudaFuncSetAttribute(k6_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, opt_in));
  }
  if (gy == 1 && gz == 1) {
    KW_LAUNCH("k6_shared", k6_shared, gx, dim3(bx, by, bz), shared, nullptr, y);
  } else {
    KW_LAUNCH("k6_shared", k6_shared, dim3(gx, gy, gz), dim3(bx, by, bz), shared, nullptr, y);
  }
  return nullptr;
}
static __global__ void k7_other(float* y) { y[threadIdx.x] = 3.0f; }
extern "C" const char* other(float* y) {
  KW_LAUNCH("k7_other", k7_other, 1, 32, 0, nullptr, y);
  return nullptr;
}
extern "C" int attribute(int which) {
  int device = -1, value = -1;
  if (cudaGetDevice(&device) != cudaSuccess) return -2;
  const cudaDeviceAttr names[] = {cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                  cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrComputeCapabilityMajor};
  return cudaDeviceGetAttribute(&value, names[which], device) == cudaSuccess ? value : -3;
}
"""

HOST_VARIABLES = """
template <typename T>
static __global__ void k8_tagged(T* y) {
  __shared__ T unset[32];
  volatile int at = threadIdx.x;
  y[at] = unset[at];
  unset[at] = 1;
}
extern "C" const char* run(float* y) {
  static thread_local long long calls = 0;
  thread_local float kept[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  KW_LAUNCH("k8_tagged", k8_tagged<float>, 1, 32, 0, nullptr, y);
  y[0] = static_cast<float>(++calls);
  for (int i = 0; i < 4; ++i) y[1 + i] = kept[i];
  return nullptr;
}
"""

TEXTS = {
    "host_variables": snippets() + HOST_VARIABLES,
    "add": snippets() + VECTOR_ADD,
    "rows": snippets(["block_sum", "block_max"]) + ROW_STATISTICS,
    "transpose": snippets() + TRANSPOSE,
    "histogram": snippets() + HISTOGRAM,
    "warp": snippets() + WARP,
    "race": snippets() + RACE,
    "faults": snippets() + FAULTS,
    "configuration": snippets() + CONFIGURATION,
}


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory):
    """Compiles into a folder of this run, so that a stale library cannot pass for the text's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.delenv(ORDER, raising=False)
    yield
    patch.undo()


def call(library: ctypes.CDLL, name: str, *arguments) -> str | None:
    """Calls an entry point with arrays as pointers; ints as C ints, or long long when wrapped."""
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    converted = [ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments]
    message = function(*converted)
    return None if message is None else message.decode()


def fault(
    name: str, blocks: int = 1, threads: int = 64, shared: int = 0, *, sanitize: bool = False
) -> str | None:
    library = compile_emulated(TEXTS["faults"], sanitize=sanitize)
    return call(library, f"run_{name}", np.ones(4096, np.float32), blocks, threads, shared)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("length", [1, 255, 256, 1000])
def test_vector_add_with_tail(order: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDER, order)
    generator = np.random.default_rng(length)
    a, b = generator.standard_normal((2, length)).astype(np.float32)
    c = np.full(length + 8, -7, np.float32)
    assert call(compile_emulated(TEXTS["add"]), "run", a, b, c, ctypes.c_longlong(length)) is None
    np.testing.assert_array_equal(c[:length], a + b)
    assert (c[length:] == -7).all()


@pytest.mark.parametrize("sanitize", [False, True])
@pytest.mark.parametrize(("threads", "columns"), [(32, 7), (128, 1000), (1024, 5000)])
def test_block_reductions(
    threads: int, columns: int, sanitize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compile_emulated(TEXTS["rows"], sanitize=sanitize)
    rows = 5
    for name, dtype, tolerance in (("run_float", np.float32, 1e-5), ("run_double", np.float64, 1e-14)):
        x = np.random.default_rng(columns).standard_normal((rows, columns)).astype(dtype)
        x[2, 3] = np.nan
        x[3, columns // 2] = np.inf
        found = []
        for order in ORDERS:
            monkeypatch.setenv(ORDER, order)
            out = np.full((2, rows), 99, dtype)
            assert call(library, name, x, out, *map(ctypes.c_longlong, x.shape), threads) is None
            found.append(out.tobytes())
        assert len(set(found)) == 1
        scale = np.abs(x[[0, 1, 4]]).sum(1, dtype=np.float64)
        assert (np.abs(out[0, [0, 1, 4]] - x[[0, 1, 4]].sum(1, dtype=np.float64)) <= tolerance * scale).all()
        np.testing.assert_array_equal(out[1], x.max(1))
        assert np.isnan(out[0, 2]) and out[0, 3] == np.inf


@pytest.mark.parametrize("order", ORDERS)
def test_shared_memory_transpose(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDER, order)
    x = np.random.default_rng(0).standard_normal((45, 70)).astype(np.float32)
    y = np.zeros((70, 45), np.float32)
    assert call(compile_emulated(TEXTS["transpose"]), "run", x, y, 45, 70) is None
    np.testing.assert_array_equal(y, x.T)


def test_no_launch_leaves_guards_of_its_stacks() -> None:
    """Each is a mapping, of which a process has 65530: a few dozen libraries would use them up."""
    a = np.ones(1000, np.float32)
    library = compile_emulated(TEXTS["add"] + "// that no other test has launched\n")
    before = len(Path("/proc/self/maps").read_text().splitlines())
    assert call(library, "run", a, a, np.empty_like(a), ctypes.c_longlong(a.size)) is None
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 64  # there were 256 threads


def test_atomic_histogram() -> None:
    x = np.random.default_rng(1).integers(0, 50, 3001).astype(np.int32)
    bins = np.full(50, 12345, np.uint32)
    assert call(compile_emulated(TEXTS["histogram"]), "run", x, bins, 50, ctypes.c_longlong(x.size)) is None
    np.testing.assert_array_equal(bins, np.bincount(x, minlength=50))


@pytest.mark.parametrize("order", ORDERS)
def test_warp_operations(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDER, order)
    out = np.zeros((64, 12), np.int32)
    assert call(compile_emulated(TEXTS["warp"]), "run", out) is None
    lane = np.arange(64) % 32
    segment, inside = lane // 8 * 8, lane % 8
    assert (out[:, 0] == (segment + 3) * 10).all()
    assert (out[:, 1] == np.where(inside >= 2, lane - 2, lane)).all()
    assert (out[:, 2] == np.where(inside < 5, lane + 3, lane)).all()
    assert (out[:, 3] == (lane ^ 5)).all()
    assert (out[:, 4] == sum(1 << i for i in range(0, 32, 3))).all()
    assert (out[:, 5] == 3).all()
    assert (out[:, 6] == 10).all()
    assert (out[:, 7] == 2).all()
    assert (out[:, 8] == 9).all()
    assert (out[:, 9] == (np.minimum(lane + 1, 31) * 4 + 1)).all()
    assert (out[:, 10] == np.where(lane < 16, lane ^ 8, lane ^ 4)).all()
    counted = out[:, 11] - (2 + 31 - 1)  # lanes that have not exited
    assert ((counted >= 1) & (counted <= 32)).all()


def test_missing_barrier_shows_between_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_emulated(TEXTS["race"])
    x = np.arange(1, 65, dtype=np.float32)
    found = {}
    for order in ("forward", "reverse", "7"):
        monkeypatch.setenv(ORDER, order)
        y = np.zeros(64, np.float32)
        assert call(library, "run", x, y) is None
        found[order] = y.tobytes()
        # What a thread reads too early is the poison of shared memory, in each block anew.
        wrong = y != x[::-1]
        assert wrong.any() and np.isnan(y[wrong]).all()
    assert len(set(found.values())) == 3


def test_uninitialised_shared_memory_is_nan_in_every_block() -> None:
    library = compile_emulated(TEXTS["faults"])
    y = np.ones(4096, np.float32)
    assert call(library, "run_uninitialised_fine", y, 3, 64, 64 * 8) is None
    assert np.isnan(y[:64]).all() and (y[64:] == 1).all()


def test_variables_of_host_code_are_no_shared_memory() -> None:
    """A counter and a table per host thread outlive launches; the kernel's own variable holds NaN."""
    library, y = compile_emulated(TEXTS["host_variables"]), np.zeros(64, np.float32)
    for calls in (1, 2):
        assert call(library, "run", y) is None
        assert list(y[:5]) == [calls, 1, 2, 3, 4] and np.isnan(y[5:32]).all()


def test_divergent_barriers_fail() -> None:
    message = fault("divergent")
    assert message.startswith("divergent_kernel: launch of divergent<<<(1, 1, 1), (64, 1, 1), 0>>> failed")
    assert "unspecified launch failure" in message and "divergent barrier" in message
    lines = TEXTS["faults"].splitlines()
    barriers = [i + 1 for i, line in enumerate(lines) if "__syncthreads();" in line][:2]
    assert re.findall(r"line (\d+)", message) == [str(barriers[1]), str(barriers[0])]


def test_barrier_that_part_of_the_block_never_reaches_fails() -> None:
    message = fault("waiting")
    assert "deadlock" in message and "1 threads wait at the __syncthreads()" in message
    assert "never arrive: 0x00000001" in message


def test_exited_threads_are_not_waited_for() -> None:
    library = compile_emulated(TEXTS["faults"])
    y = np.ones(4096, np.float32)
    assert call(library, "run_exited_fine", y, 1, 64, 0) is None
    assert (y[:40] == 2).all() and (y[40:] == 1).all()


@pytest.mark.parametrize("order", ORDERS)
def test_wrong_shuffles_fail(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDER, order)
    assert re.search(r"reads lane \d+, which takes no part \(mask 0xffffffff", fault("exited_lanes"))
    assert "never arrive: 0x55555555" in fault("absent")
    assert re.search(r"the mask 0x0000ffff leaves out the calling lane \d+", fault("not_in_mask", 1, 32))


def test_writes_outside_dynamic_shared_memory_fail() -> None:
    assert "wrote outside dynamic shared memory, at byte 256 of 256" in fault("overrun", 1, 64, 256)
    assert fault("overrun", 1, 64, 260) is None
    assert re.search(r"at byte -[1-8] of 256", fault("underrun", 1, 64, 256))
    assert "wrote outside" in fault("overrun", 1, 64, 0)


def test_bad_addresses_fail_and_the_process_lives_on() -> None:
    for name in ("wild", "null_pointer"):
        assert "an illegal memory access at address" in fault(name)
    assert "__trap()" in fault("trap")
    assert "block (0, 0, 0) thread (5, 0, 0)" in fault("trap")
    assert fault("exited_fine") is None


@pytest.mark.parametrize(
    ("name", "statement", "thread"),
    [("misaligned", "const float4 v", 0), ("static_overrun", "s[at] = y[at];", 32), ("index_overflow", "const int", 0)],
)
def test_sanitized_build_says_thread_and_line(name: str, statement: str, thread: int) -> None:
    """A misaligned pointer, an index outside its array and an overflow end the launch where they are."""
    text = TEXTS["faults"]
    line = 1 + text.count("\n", 0, text.index(statement, text.index(f"void {name}(")))
    message = fault(name, sanitize=True)
    assert f"thread ({thread}, 0, 0): a misaligned or null pointer, an index outside its array" in message
    assert f" at kernel.cu:{line})" in message


def test_sanitized_build_lets_pass_what_is_right() -> None:
    assert fault("static_overrun", threads=32, sanitize=True) is None
    assert fault("exited_fine", sanitize=True) is None


def test_without_a_tool_that_knows_lines_the_fault_is_still_said(monkeypatch: pytest.MonkeyPatch) -> None:
    library = compile_emulated(TEXTS["faults"], sanitize=True)
    monkeypatch.setenv("PATH", "")
    message = call(library, "run_static_overrun", np.ones(4096, np.float32), 1, 64, 0)
    assert "an index outside its array" in message and "kernel.cu" not in message


def configuration(grid=(1, 1, 1), block=(32, 1, 1), shared=128, opt_in=0) -> tuple[str | None, np.ndarray]:
    library = compile_emulated(TEXTS["configuration"])
    y = np.zeros(1024, np.float32)
    message = call(library, "run", y, ctypes.c_longlong(grid[0]), *grid[1:], *block, shared, opt_in)
    return message, y


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (32, 1, 1)),
        ((1, 65536, 1), (32, 1, 1)),
        ((1, 1, 65536), (32, 1, 1)),
        ((2**31, 1, 1), (32, 1, 1)),
        ((2**32 + 1, 1, 1), (32, 1, 1)),  # dim3 alone would cut this to 1
        ((1, 1, 1), (0, 1, 1)),
        ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (32, 33, 1)),
        ((1, 1, 1), (1, 1, 65)),
    ],
)
def test_impossible_configurations_are_refused(grid: tuple[int, ...], block: tuple[int, ...]) -> None:
    message, y = configuration(grid, block)
    assert message.startswith("k6_shared: launch of k6_shared<<<")
    assert "invalid configuration argument" in message and "(CUDA error 9)" in message
    assert (y == 0).all()
    library = compile_emulated(TEXTS["configuration"])
    assert call(library, "other", y) is None, "an error is reported once"
    assert (y[:32] == 3).all()


def test_shared_memory_limits() -> None:
    fixed = 256 * 4
    message, _ = configuration(shared=48 * 1024 - fixed + 4)
    assert message.startswith("k6_shared: launch of k6_shared<<<(1, 1, 1), (32, 1, 1), 48132>>> failed")
    assert "invalid argument" in message
    assert "without cudaFuncSetAttribute" in message
    message, y = configuration(shared=48 * 1024 - fixed)
    assert message is None and (y[:32] == 3).all()
    message, _ = configuration(opt_in=227 * 1024 + 1)
    assert message.startswith("k6_shared: cudaFuncSetAttribute(k6_shared,") and "invalid argument" in message
    message, y = configuration(shared=200 * 1024, opt_in=200 * 1024)
    assert message is None and (y[:32] == 3).all()
    message, _ = configuration(shared=200 * 1024 + 4)
    assert "204800 are allowed" in message
    message, _ = configuration(shared=227 * 1024, opt_in=227 * 1024)
    assert "1024 bytes of static and 232448 of dynamic shared memory" in message


def test_launch_bounds_are_held() -> None:
    assert fault("bounded", threads=32) is None
    message = fault("bounded", threads=64)
    assert message.startswith("bounded_kernel: launch of bounded") and "__launch_bounds__(32)" in message


def test_device_attributes() -> None:
    library = compile_emulated(TEXTS["configuration"])
    assert [library.attribute(i) for i in range(4)] == [132, 227 * 1024, 48 * 1024, 9]


def test_launches_from_several_threads() -> None:
    library = compile_emulated(TEXTS["rows"])
    x = np.random.default_rng(5).standard_normal((4, 600)).astype(np.float32)
    outputs = [np.zeros((2, 4), np.float32) for _ in range(4)]

    def work(out: np.ndarray) -> None:
        for _ in range(5):
            assert call(library, "run_float", x, out, *map(ctypes.c_longlong, x.shape), 96) is None

    threads = [threading.Thread(target=work, args=(out,)) for out in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({out.tobytes() for out in outputs}) == 1
    np.testing.assert_array_equal(outputs[0][1], x.max(1))


def test_cache_is_keyed_by_text_and_shared() -> None:
    folder = Path(os.environ["XDG_CACHE_HOME"], "kernelwright", "emulation")
    present = set(folder.glob("*.so"))
    text = 'extern "C" int number() { return %d; }'
    results = [None] * 2

    def work(i: int) -> None:
        results[i] = compile_emulated(text % 41).number()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [41, 41]
    (library,) = set(folder.glob("*.so")) - present
    assert not list(folder.glob("build-*"))
    before = library.stat().st_mtime_ns
    assert compile_emulated(text % 41).number() == 41 and library.stat().st_mtime_ns == before
    assert compile_emulated(text % 42).number() == 42
    assert len(set(folder.glob("*.so")) - present) == 2


def test_refused_source_is_an_error_with_the_compilers_text() -> None:
    with pytest.raises(EmulationError, match=r"kernel\.cu.*undefined_name"):
        compile_emulated("int f() { return undefined_name; }")


def test_every_header_of_the_emulation_is_in_its_text() -> None:
    folder = Path(emulate.__file__).parent
    headers = [path.read_text() for path in folder.glob("*.hpp")]
    assert len(headers) > 1 and all(emulation_text().count(header) == 1 for header in headers)


def test_snippets_come_once_and_in_order() -> None:
    text = snippets([*reversed(SNIPPETS), "block_sum"])
    positions = [text.index(SNIPPETS[name]) for name in SNIPPETS]
    assert positions == sorted(positions) and positions[0] == 0
    assert all(text.count(SNIPPETS[name]) == 1 for name in SNIPPETS)
    assert snippets([]) == SNIPPETS["check"] == snippets(["check"])
    assert SNIPPETS["maximum"] not in snippets(["block_sum"])
    with pytest.raises(ValueError, match="nothing"):
        snippets(["nothing"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not there")
def test_the_same_texts_compile_with_nvcc(tmp_path) -> None:
    # One file, one compilation: entry points of different texts get different names.
    texts = [SNIPPETS["check"]]
    for name, text in TEXTS.items():
        texts.append(re.sub(r"\brun\b", f"run_{name}", text.removeprefix(SNIPPETS["check"])))
    (tmp_path / "all.cu").write_text("\n".join(texts))
    architecture = "-gencode=arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++17", architecture, "-c", "all.cu", "-o", "all.o"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
