// Executes generated CUDA source on the CPU, strictly, as a test bed.
//
//   g++ -std=c++17 -O1 -fPIC -shared -include TEXT -x c++ kernel.cu -o kernel.so
//
// Each thread of a block is a fiber; all fibers run on the launching OS thread, blocks one after another.
// A launch is synchronous. A kernel that breaks a rule of the CUDA model (a barrier that part of the block
// does not reach, a shuffle from a lane that takes no part, a write outside dynamic shared memory, a bad
// address, ...) ends with cudaErrorLaunchFailure and a text that says which thread did what. Errors are not
// sticky, unlike a device's.
//
// Shared memory holds NaNs at the start of each block: __shared__ variables are function-local thread_local
// variables with a tag in their names, found through the library's own symbol table. (So those of the source's host
// code are left alone.)
//
// KERNELWRIGHT_EMULATION_ORDER = forward | reverse | SEED sets the order of threads and blocks; a SEED
// also draws a new order of threads at each scheduling round. Results that differ between orders have a race.
//
// KERNELWRIGHT_EMULATION_PROCESSORS is the number of multiprocessors that a kernel is told (132): with few of them,
// blocks that stay and take work after work have more than one each.
//
// The blocks of a cluster run together, and so do those of a grid all of whose blocks run at once: __syncthreads() waits
// for all of them, and they have no static shared memory.
//
// Not emulated: half types, textures, cooperative groups, progress between other blocks, infinite loops; of PTX what
// tensor.hpp and mma.hpp have.
//
// This file has what the others rest on, the types of the language and of the runtime. `emulate.py` joins them to the
// one TEXT above, in which each follows those that it uses.
#pragma once
#define KERNELWRIGHT_EMULATION 1

// One text has kernels and the machine that runs them. Or two objects have them: what is compiled with
// KW_EMULATION_KERNELS declares the machine, and what is compiled with KW_EMULATION_MACHINE is the machine, which all
// libraries with the same flags share as an object. Compiling it is most of what a small kernel costs.
#if defined(KW_EMULATION_KERNELS)
#define KW_MACHINE __attribute__((visibility("hidden")))
#define KW_MACHINE_VARIABLE extern __attribute__((visibility("hidden")))
#else
#define KW_DEFINES_MACHINE 1
#if defined(KW_EMULATION_MACHINE)
#define KW_MACHINE __attribute__((visibility("hidden")))
#define KW_MACHINE_VARIABLE __attribute__((visibility("hidden")))
#else
#define KW_MACHINE static __attribute__((unused))
#define KW_MACHINE_VARIABLE static
#endif
#endif

#include <dlfcn.h>
#include <elf.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Fibers switch by a few instructions where the processor's are known, and by ucontext (slower: it makes system
// calls) elsewhere or on request.
#if defined(__x86_64__) && !defined(KERNELWRIGHT_EMULATION_UCONTEXT)
#define KW_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

// ------------------------------------------------------------------------------------------ vector types

#define KW_VECTORS(base, scalar, align2, align4)                                                              \
  struct base##1 { scalar x; };                                                                               \
  struct __attribute__((aligned(align2))) base##2 { scalar x, y; };                                           \
  struct base##3 { scalar x, y, z; };                                                                         \
  struct __attribute__((aligned(align4))) base##4 { scalar x, y, z, w; };                                     \
  static inline base##1 make_##base##1(scalar x) { return {x}; }                                              \
  static inline base##2 make_##base##2(scalar x, scalar y) { return {x, y}; }                                 \
  static inline base##3 make_##base##3(scalar x, scalar y, scalar z) { return {x, y, z}; }                    \
  static inline base##4 make_##base##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
KW_VECTORS(char, signed char, 2, 4)
KW_VECTORS(uchar, unsigned char, 2, 4)
KW_VECTORS(short, short, 4, 8)
KW_VECTORS(ushort, unsigned short, 4, 8)
KW_VECTORS(int, int, 8, 16)
KW_VECTORS(uint, unsigned int, 8, 16)
KW_VECTORS(longlong, long long, 16, 16)
KW_VECTORS(ulonglong, unsigned long long, 16, 16)
KW_VECTORS(float, float, 8, 16)
KW_VECTORS(double, double, 16, 16)
#undef KW_VECTORS

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  operator uint3() const { return {x, y, z}; }
};

// ------------------------------------------------------------------------------------------ runtime types

enum cudaError_t {  // The runtime's numbers.
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchFailure = 719,
  cudaErrorUnknown = 999
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 10
};
enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxBlockDimX = 2,
  cudaDevAttrMaxBlockDimY = 3,
  cudaDevAttrMaxBlockDimZ = 4,
  cudaDevAttrMaxGridDimX = 5,
  cudaDevAttrMaxGridDimY = 6,
  cudaDevAttrMaxGridDimZ = 7,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMaxRegistersPerBlock = 12,
  cudaDevAttrClockRate = 13,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrMaxRegistersPerMultiprocessor = 82,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
  cudaDevAttrReservedSharedMemoryPerBlock = 111
};
struct CUstream_st;
typedef CUstream_st* cudaStream_t;
