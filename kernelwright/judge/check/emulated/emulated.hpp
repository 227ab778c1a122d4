// What a candidate's CUDA text finds on a machine without a GPU: PyTorch's own types, the emulation of CUDA, and the few
// functions of at::cuda and c10::cuda that launches need. Tensors are CPU tensors.
//
// Each launch runs its threads and blocks in another order, so a race shows as a result that varies. A launch that
// fails throws. CPU tensors made after this library is loaded hold NaNs and end at a guard page, so that a store beyond
// the end is seen.
#pragma once
#if defined(KW_JUDGE_ALL_OF_TORCH)
#include <torch/extension.h>
#elif defined(KW_JUDGE_TORCH)
#include <torch/types.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <ATen/AccumulateType.h>
#include <ATen/Dispatch.h>
#endif
#include <algorithm>
#include <cfloat>
#include <chrono>
#include <functional>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <cstdlib>

// The order of each launch; the emulation asks for it by name.
static const char* kw_judge_order(const char*) {
  static unsigned launches = 0;
  static char text[16];
  const unsigned launch = launches++;
  if (launch % 4 == 0) return "forward";
  if (launch % 4 == 1) return "reverse";
  snprintf(text, sizeof(text), "%u", launch);
  return text;
}
#define getenv kw_judge_order
#include KW_JUDGE_EMULATION
#undef getenv

#undef assert
#define assert(condition)                                                                        \
  ((condition) ? (void)0                                                                         \
               : kw_emulation::in_kernel ? kw_emulation::fail("the assertion " #condition " fails") \
                                         : throw std::runtime_error("the assertion " #condition " fails"))
#undef CUDA_KERNEL_ASSERT
#define CUDA_KERNEL_ASSERT(condition) assert(condition)

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF static_cast<double>(INFINITY)
#define CUDART_PI_F 3.141592654f
#define __sincosf kw_device_sincosf
KW_INLINE void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
KW_INLINE float fdividef(float x, float y) { return x / y; }
template <typename T> KW_INLINE T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
#define CUDA_KERNEL_LOOP(i, n)                                                                        \
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < (n);          \
       i += static_cast<long long>(blockDim.x) * gridDim.x)

struct cudaDeviceProp {
  char name[256] = "emulated";
  size_t totalGlobalMem = size_t{139} << 30, sharedMemPerBlock = 48 * 1024, sharedMemPerBlockOptin = 227 * 1024,
         sharedMemPerMultiprocessor = 228 * 1024;
  int regsPerBlock = 65536, warpSize = 32, maxThreadsPerBlock = 1024, maxThreadsPerMultiProcessor = 2048;
  int maxThreadsDim[3] = {1024, 1024, 64}, maxGridSize[3] = {2147483647, 65535, 65535};
  int major = 9, minor = 0, multiProcessorCount = 132, l2CacheSize = 50 * 1024 * 1024;
};
KW_INLINE cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = cudaDeviceProp();
  return cudaSuccess;
}
template <typename Symbol>
KW_INLINE cudaError_t cudaMemcpyToSymbol(Symbol& symbol, const void* from, size_t bytes, size_t offset = 0,
                                         cudaMemcpyKind = cudaMemcpyHostToDevice) {
  if (offset + bytes > sizeof(Symbol))
    return kw_emulation::set_error(cudaErrorInvalidValue, "cudaMemcpyToSymbol beyond the symbol's end");
  memcpy(reinterpret_cast<char*>(&symbol) + offset, from, bytes);
  return cudaSuccess;
}
template <typename Symbol>
KW_INLINE cudaError_t cudaMemcpyToSymbolAsync(Symbol& symbol, const void* from, size_t bytes, size_t offset = 0,
                                              cudaMemcpyKind kind = cudaMemcpyHostToDevice, cudaStream_t = nullptr) {
  return cudaMemcpyToSymbol(symbol, from, bytes, offset, kind);
}

// ------------------------------------------------------------------------------------------ launches

namespace kw_judge {
// The emulation takes every thread_local of a function for a shared variable; those of libraries' inline functions are none.
inline void find_shared() {
  static const bool found = [] {
    kw_emulation::Machine& m = kw_emulation::machine();
    const std::lock_guard<std::mutex> lock(m.mutex);
    kw_emulation::read_symbols(m);
    auto& all = m.shared_variables;
    all.erase(std::remove_if(all.begin(), all.end(), [](const kw_emulation::Machine::Variable& variable) {
      for (const char* start : {"_ZZN8pybind11", "_ZZNK8pybind11", "_ZZN3c10", "_ZZNK3c10", "_ZZN2at", "_ZZNK2at", "_ZZN5torch",
                                "_ZZNK5torch", "_ZZNSt", "_ZZNKSt", "_ZZSt", "_ZZN9__gnu_cxx"})
        if (variable.name.compare(0, strlen(start), start) == 0) return true;
      return false;
    }), all.end());
    return true;
  }();
  (void)found;
}

inline void finish(const char* kernel, dim3 grid, dim3 block, size_t shared) {
  const cudaError_t error = cudaPeekAtLastError();
  if (error == cudaSuccess) return;
  char text[1024];
  const bool ran = error == cudaErrorLaunchFailure;
  snprintf(text, sizeof(text), "CUDA emulation: %s %s<<<(%u, %u, %u), (%u, %u, %u), %zu>>> failed: %s",
           ran ? "the kernel" : "the launch", kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared,
           cudaGetErrorString(error));
  (void)cudaGetLastError();
  throw std::runtime_error(text);
}

template <typename Grid, typename Block, typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), Grid grid, Block block, size_t shared, cudaStream_t stream,
            Arguments&&... arguments) {
  find_shared();
  kw_emulation::launch(name, kernel, kw_extent(grid), kw_extent(block), shared, stream,
                       std::forward<Arguments>(arguments)...);
  finish(name, kw_extent(grid), kw_extent(block), shared);
}

// A kernel whose template arguments follow from the launch's arguments.
template <typename Call, typename Grid, typename Block, typename... Arguments>
void launch_deduced(const char* name, Call call, Grid grid, Block block, size_t shared, cudaStream_t,
                    Arguments... arguments) {
  find_shared();
  auto run = [&] { call(arguments...); };
  kw_emulation::run_grid(name, nullptr, kw_extent(grid), kw_extent(block), shared,
                         [](void* data) { (*static_cast<decltype(run)*>(data))(); }, &run);
  finish(name, kw_extent(grid), kw_extent(block), shared);
}
}  // namespace kw_judge
#define KW_JUDGE_DEDUCED(kernel) [](auto... values) { kernel(values...); }

// ------------------------------------------------------------------------------------------ PyTorch's side

#if defined(KW_JUDGE_TORCH) || defined(KW_JUDGE_ALL_OF_TORCH)
namespace c10::cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
  void synchronize() const {}
  int device_index() const { return 0; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
inline CUDAStream getDefaultCUDAStream(int = -1) { return {}; }
struct CUDAGuard {
  template <typename Device> explicit CUDAGuard(Device&&) {}
};
struct OptionalCUDAGuard {
  OptionalCUDAGuard() = default;
  template <typename Device> explicit OptionalCUDAGuard(Device&&) {}
};
inline int device_count() { return 1; }
inline int current_device() { return 0; }
inline void device_synchronize() {}
}  // namespace c10::cuda
namespace at::cuda {
using c10::cuda::CUDAGuard;
using c10::cuda::CUDAStream;
using c10::cuda::OptionalCUDAGuard;
using c10::cuda::getCurrentCUDAStream;
using c10::cuda::getDefaultCUDAStream;
inline cudaDeviceProp* getCurrentDeviceProperties() {
  static cudaDeviceProp properties;
  return &properties;
}
inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace at::cuda
#define C10_CUDA_CHECK(call)                                                                 \
  do {                                                                                       \
    const cudaError_t kw_error_ = (call);                                                    \
    TORCH_CHECK(kw_error_ == cudaSuccess, "CUDA error: ", cudaGetErrorString(kw_error_));    \
  } while (0)
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define TORCH_CUDA_CHECK(call) C10_CUDA_CHECK(call)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())

namespace kw_judge {
// Tensors that end where a page begins which nobody may touch. The last bytes of 16 are not watched.
struct Guarded final : c10::Allocator {
  struct Block { void* base; size_t bytes; };
  static void remove(void* context) {
    Block* const block = static_cast<Block*>(context);
    munmap(block->base, block->bytes);
    delete block;
  }
  c10::DataPtr allocate(size_t bytes) override {
    constexpr size_t kPage = 4096;
    if (!bytes) return {nullptr, nullptr, &remove_nothing, c10::Device(c10::DeviceType::CPU)};
    const size_t used = (bytes + 15) / 16 * 16, pages = (used + kPage - 1) / kPage * kPage;
    char* const base = static_cast<char*>(
        mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    TORCH_CHECK(base != MAP_FAILED, "the CUDA emulation cannot have ", bytes, " bytes");
    mprotect(base + pages, kPage, PROT_NONE);
    char* const data = base + pages - used;
    kw_emulation::poison(data, used);
    return {data, new Block{base, pages + kPage}, &remove, c10::Device(c10::DeviceType::CPU)};
  }
  static void remove_nothing(void*) {}
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
static const bool installed = [] {
  static Guarded* const guarded = new Guarded;  // never destroyed: tensors may outlive the library's statics
  c10::SetAllocator(c10::DeviceType::CPU, guarded, 255);
  return true;
}();
}  // namespace kw_judge
#endif
