// Executes generated CUDA source on the CPU, strictly, as a test bed.
//
//   g++ -std=c++17 -O2 -fPIC -shared -include emulation.hpp -x c++ kernel.cu -o kernel.so
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
// The blocks of a cluster run together: __syncthreads() waits for all of them, and they have no static shared memory.
//
// Not emulated: half types, textures, cooperative groups, progress between blocks, infinite loops; of PTX what the
// headers beside this one emulate, which `emulate.py` appends.
#pragma once
#define KERNELWRIGHT_EMULATION 1

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
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
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

#if defined(KW_OWN_SWITCH)
extern "C" __attribute__((visibility("hidden"))) void kw_emulation_switch(void** save, void* load);
asm(".text\n"
    ".p2align 4\n"
    ".type kw_emulation_switch,@function\n"
    "kw_emulation_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size kw_emulation_switch,.-kw_emulation_switch\n");
#endif

namespace kw_emulation {

constexpr size_t kDefaultShared = 48 * 1024;   // bytes a block may use without the function attribute
constexpr size_t kOptInShared = 227 * 1024;    // bytes a block may use with it
constexpr size_t kStackBytes = 128 * 1024;     // per fiber; the lowest page is a guard
constexpr size_t kPage = 4096;
constexpr size_t kCanary = 1024;               // bytes watched on both sides of dynamic shared memory
constexpr unsigned kFullMask = 0xffffffffu;
constexpr unsigned kMostClustered = 4;         // blocks of a cluster, which together have at most 1024 threads
// Repeated 0xFFFDCDCD is a NaN as float and as double, and an improbable index as int.
constexpr uint32_t kPoison = 0xFFFDCDCDu;

// ---------------------------------------------------------------------------------------- errors

static thread_local cudaError_t last_error = cudaSuccess;
static thread_local cudaError_t detailed_error = cudaSuccess;  // the error that `detail` explains
static thread_local char detail[512];
static thread_local char error_text[640];
static thread_local char failure_text[1280];
static thread_local char launch_text[256];
static thread_local volatile unsigned char tls_anchor = 0;

static inline cudaError_t set_error(cudaError_t error, const char* text) {
  last_error = detailed_error = error;
  snprintf(detail, sizeof(detail), "%s", text);
  return error;
}

template <typename... Args>
static std::string format(const char* pattern, Args... args) {
  char text[512];
  snprintf(text, sizeof(text), pattern, args...);
  return text;
}

// ---------------------------------------------------------------------------------------- fibers

enum class State : unsigned char { ready, at_barrier, at_warp, at_phase, at_named, done };
enum class WarpOperation : unsigned char { shuffle, ballot, sync, match };
static const char* const kWarpOperationNames[] = {"a shuffle (__shfl_*_sync)", "a vote (__ballot/any/all_sync)",
                                                  "__syncwarp()", "__match_any_sync()"};

struct Fiber {
#if defined(KW_OWN_SWITCH)
  void* context = nullptr;
#else
  ucontext_t context;
#endif
  bool started = false;
  State state = State::ready;
  uint3 index{};
  unsigned rank = 0;  // position in the block, x fastest
  int line = 0;       // source line of the operation it waits at
  // Warp operation: what the lane brings, and what it takes away.
  WarpOperation operation{};
  unsigned mask = 0;
  int source = 0;     // lane a shuffle reads
  uint64_t value = 0;
  uint64_t result = 0;
  unsigned participants = 0;
  // at_phase: the barrier's address in shared memory and the parity it waits for; at_named: the barrier's number.
  unsigned place = 0;
  unsigned parity = 0;
};

struct Machine {
  std::mutex mutex;  // one launch at a time
  std::vector<std::unique_ptr<Fiber>> fibers;
  char* stacks = nullptr;  // 1024 stacks, reserved at the first launch
  char* dynamic = nullptr;
  size_t dynamic_capacity = 0;
  char* dynamic_data = nullptr;
  size_t dynamic_bytes = 0;
#if defined(KW_OWN_SWITCH)
  void* scheduler = nullptr;
#else
  ucontext_t scheduler;
#endif
  void (*invoke)(void*) = nullptr;
  void* arguments = nullptr;
  Fiber* current = nullptr;
  bool failed = false;
  char failure[400];
  unsigned threads = 0, live = 0;  // of the cluster that runs
  unsigned block_threads = 0, cluster = 1;
  unsigned waiting = 0, predicate_count = 0, barrier_result = 0;
  int barrier_line = 0;
  std::array<unsigned, 32> alive{};  // by warp: lanes that have not exited
  std::map<const void*, size_t> dynamic_limit;  // set by cudaFuncSetAttribute
  std::map<std::string, unsigned> launch_bounds;
  std::map<std::string, size_t> static_shared;  // by kernel name, filled on demand
  struct Variable { std::string name; size_t offset, bytes; };
  std::vector<Variable> shared_variables;  // offsets from tls_anchor
  bool symbols_read = false;
  void (*block_begins)() = nullptr;          // of the headers that follow this one
  std::string (*block_ends)() = nullptr;     // returns an empty text, or what is wrong
};

static Machine& machine() {
  static Machine* const instance = new Machine;  // Never destroyed: a launch may come at process exit.
  return *instance;
}
// Plain globals, so that a kernel reads them without a call.
static uint3 thread_index, block_index;
static dim3 block_extent, grid_extent;
static volatile bool in_kernel = false;
static pthread_t kernel_thread;

static void switch_to_scheduler() {
  Machine& m = machine();
  in_kernel = false;
#if defined(KW_OWN_SWITCH)
  kw_emulation_switch(&m.current->context, m.scheduler);
#else
  swapcontext(&m.current->context, &m.scheduler);
#endif
}

// Ends the launch with a message. Called by a fiber; never returns.
[[noreturn]] static void fail(const std::string& text) {
  Machine& m = machine();
  m.failed = true;
  const uint3 t = m.current->index, b = block_index;
  snprintf(m.failure, sizeof(m.failure), "block (%u, %u, %u) thread (%u, %u, %u): %s", b.x, b.y, b.z, t.x, t.y, t.z,
           text.c_str());
  switch_to_scheduler();
  abort();
}

static void release_barrier(Machine& m) {
  m.barrier_result = m.predicate_count;
  m.waiting = m.predicate_count = 0;
  for (unsigned i = 0; i < m.threads; ++i)
    if (m.fibers[i]->state == State::at_barrier) m.fibers[i]->state = State::ready;
}

// Waits for all threads of the block that have not exited; returns the number with a true predicate.
static __attribute__((noinline)) unsigned barrier_slow(bool predicate, int line) {
  Machine& m = machine();
  Fiber& self = *m.current;
  if (m.waiting == 0) m.barrier_line = line;
  if (m.barrier_line != line)
    fail(format("divergent barrier: it reached the __syncthreads() of line %d while other threads of the block wait "
                "at that of line %d", line, m.barrier_line));
  self.line = line;
  m.predicate_count += predicate ? 1 : 0;
  if (++m.waiting == m.live) {
    release_barrier(m);
  } else {
    self.state = State::at_barrier;
    switch_to_scheduler();
  }
  return m.barrier_result;
}

// The empty assembly keeps the compiler from holding shared memory in registers across the barrier.
static inline __attribute__((always_inline)) unsigned barrier(bool predicate, int line) {
  asm volatile("" ::: "memory");
  const unsigned count = barrier_slow(predicate, line);
  asm volatile("" ::: "memory");
  return count;
}

// Completes the warp operation that lane `lane` of `warp` waits at, once every live lane of its mask waits there.
// Returns an empty text, or what is wrong.
static std::string complete_warp(Machine& m, unsigned warp, unsigned lane) {
  const Fiber& first = *m.fibers[warp * 32 + lane];
  const unsigned group = first.mask & m.alive[warp];
  for (unsigned i = 0; i < 32; ++i) {
    if (!(group >> i & 1u)) continue;
    const Fiber& other = *m.fibers[warp * 32 + i];
    if (other.state != State::at_warp || other.operation != first.operation || other.mask != first.mask) return {};
  }
  unsigned ballot = 0;
  for (unsigned i = 0; i < 32; ++i)
    if ((group >> i & 1u) && m.fibers[warp * 32 + i]->value) ballot |= 1u << i;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(group >> i & 1u)) continue;
    Fiber& fiber = *m.fibers[warp * 32 + i];
    fiber.participants = group;
    switch (fiber.operation) {
      case WarpOperation::shuffle:
        if (!(group >> fiber.source & 1u))
          return format("the shuffle of line %d: lane %u of warp %u reads lane %d, which takes no part (mask 0x%08x, "
                        "lanes present 0x%08x)", fiber.line, i, warp, fiber.source, fiber.mask, group);
        fiber.result = m.fibers[warp * 32 + fiber.source]->value;
        break;
      case WarpOperation::match:
        fiber.result = 0;
        for (unsigned j = 0; j < 32; ++j)
          if ((group >> j & 1u) && m.fibers[warp * 32 + j]->value == fiber.value) fiber.result |= 1u << j;
        break;
      default:
        fiber.result = ballot;
    }
    fiber.state = State::ready;
  }
  return {};
}

// Meets the other lanes of `mask`; the result is in the calling fiber's `result` and `participants`.
static __attribute__((noinline)) Fiber& meet_slow(WarpOperation operation, unsigned mask, uint64_t value, int source,
                                                 int line) {
  Machine& m = machine();
  Fiber& self = *m.current;
  const unsigned warp = self.rank / 32, lane = self.rank % 32;
  if (!(mask >> lane & 1u))
    fail(format("%s of line %d: the mask 0x%08x leaves out the calling lane %u",
                kWarpOperationNames[static_cast<int>(operation)], line, mask, lane));
  self.operation = operation;
  self.mask = mask;
  self.value = value;
  self.source = source;
  self.line = line;
  self.state = State::at_warp;
  const std::string wrong = complete_warp(m, warp, lane);
  if (!wrong.empty()) fail(wrong);
  if (self.state == State::at_warp) switch_to_scheduler();
  return self;
}

static inline __attribute__((always_inline)) Fiber& meet(WarpOperation operation, unsigned mask, uint64_t value,
                                                         int source, int line) {
  asm volatile("" ::: "memory");
  Fiber& self = meet_slow(operation, mask, value, source, line);
  asm volatile("" ::: "memory");
  return self;
}

// Shuffles: the lane within its segment of `width` lanes, as the PTX instruction defines it.
enum class Shuffle { index, up, down, exchange };
template <typename T>
static inline __attribute__((always_inline)) T shuffle(Shuffle kind, unsigned mask, T value, int operand, int width,
                                                       int line) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
  if (width < 1 || width > 32 || (width & (width - 1))) fail(format("shuffle of line %d: width %d", line, width));
  const int lane = static_cast<int>(machine().current->rank % 32), base = lane & ~(width - 1);
  int source = lane;
  switch (kind) {
    case Shuffle::index: source = base + (operand & (width - 1)); break;
    case Shuffle::up: if (lane - operand >= base) source = lane - operand; break;
    case Shuffle::down: if (lane + operand < base + width) source = lane + operand; break;
    case Shuffle::exchange: if ((lane ^ operand) < base + width) source = lane ^ operand; break;
  }
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = meet(WarpOperation::shuffle, mask, bits, source, line).result;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

static void fiber_main() {
  Machine& m = machine();
  for (;;) {
    m.invoke(m.arguments);
    Fiber& self = *m.current;
    self.state = State::done;
    const unsigned warp = self.rank / 32;
    m.alive[warp] &= ~(1u << self.rank % 32);
    --m.live;
    // Those that wait for this thread only may go on: exited threads are not waited for.
    if (m.live && m.waiting == m.live) release_barrier(m);
    if (m.alive[warp]) {
      for (unsigned i = 0; i < 32; ++i)
        if ((m.alive[warp] >> i & 1u) && m.fibers[warp * 32 + i]->state == State::at_warp) {
          const std::string wrong = complete_warp(m, warp, i);
          if (!wrong.empty()) fail(wrong);
        }
    }
    switch_to_scheduler();
  }
}

static char* stack_of(unsigned rank) { return machine().stacks + rank * kStackBytes; }

static void start_fiber(Fiber& fiber) {
  char* const low = stack_of(fiber.rank) + kPage;
  // Different tops, so that the active parts of the stacks fall into different cache sets.
  char* const top = stack_of(fiber.rank) + kStackBytes - 64 - (fiber.rank * 5 % 128) * 256;
  fiber.started = true;
#if defined(KW_OWN_SWITCH)
  (void)low;
  void** stack = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t{15});
  *--stack = nullptr;  // where fiber_main would return to; also aligns its frame
  *--stack = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--stack = nullptr;  // callee-saved registers
  fiber.context = stack;
#else
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = low;
  fiber.context.uc_stack.ss_size = static_cast<size_t>(top - low) & ~size_t{15};
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &fiber_main, 0);
#endif
}

// Where the dynamic shared memory of a block of the cluster begins: close to the end of its part of the memory, of
// which the canary takes the rest.
static char* dynamic_of(Machine& m, unsigned block) {
  return m.dynamic + (block + 1) * m.dynamic_capacity - kCanary - (m.dynamic_bytes + 127) / 128 * 128;
}

static inline void resume(Machine& m, Fiber& fiber) {
  m.current = &fiber;
  thread_index = fiber.index;
  if (m.cluster > 1) {
    const unsigned block = fiber.rank / m.block_threads;
    block_index.x = block_index.x / m.cluster * m.cluster + block;
    m.dynamic_data = dynamic_of(m, block);
  }
  in_kernel = true;
#if defined(KW_OWN_SWITCH)
  kw_emulation_switch(&m.scheduler, fiber.context);
#else
  swapcontext(&m.scheduler, &fiber.context);
#endif
}

static std::string describe_deadlock(Machine& m) {
  std::string text = "deadlock:";
  unsigned at_barrier = 0, at_warp = 0;
  const Fiber *barrier_fiber = nullptr, *warp_fiber = nullptr;
  for (unsigned i = 0; i < m.threads; ++i) {
    const Fiber& fiber = *m.fibers[i];
    if (fiber.state == State::at_barrier && !at_barrier++) barrier_fiber = &fiber;
    if (fiber.state == State::at_warp && !at_warp++) warp_fiber = &fiber;
  }
  if (warp_fiber) {
    const unsigned warp = warp_fiber->rank / 32;
    unsigned missing = warp_fiber->mask & m.alive[warp];
    for (unsigned i = 0; i < 32; ++i)
      if (missing >> i & 1u) {
        const Fiber& other = *m.fibers[warp * 32 + i];
        if (other.state == State::at_warp && other.operation == warp_fiber->operation && other.mask == warp_fiber->mask)
          missing &= ~(1u << i);
      }
    text += format(" %u threads wait at warp operations; the first, thread (%u, %u, %u), at %s of line %d, whose mask "
                   "0x%08x names lanes that never arrive: 0x%08x.", at_warp, warp_fiber->index.x, warp_fiber->index.y,
                   warp_fiber->index.z, kWarpOperationNames[static_cast<int>(warp_fiber->operation)], warp_fiber->line,
                   warp_fiber->mask, missing);
  }
  if (barrier_fiber)
    text += format(" %u threads wait at the __syncthreads() of line %d, the first is thread (%u, %u, %u).", at_barrier,
                   barrier_fiber->line, barrier_fiber->index.x, barrier_fiber->index.y, barrier_fiber->index.z);
  for (const State state : {State::at_phase, State::at_named}) {
    unsigned count = 0;
    const Fiber* first = nullptr;
    for (unsigned i = 0; i < m.threads; ++i)
      if (m.fibers[i]->state == state && !count++) first = m.fibers[i].get();
    if (!first) continue;
    text += state == State::at_phase
        ? format(" %u threads wait for phases of barriers in shared memory, the first, thread (%u, %u, %u), for parity %u "
                 "of that at byte %u.", count, first->index.x, first->index.y, first->index.z, first->parity, first->place)
        : format(" %u threads wait at named barriers, the first, thread (%u, %u, %u), at number %u.", count,
                 first->index.x, first->index.y, first->index.z, first->place);
  }
  return text;
}

// ---------------------------------------------------------------------------------------- shared memory

// Reads the library's own symbol table: tagged function-local thread_local variables are the __shared__ ones.
static void read_symbols(Machine& m) {
  if (m.symbols_read) return;
  m.symbols_read = true;
  Dl_info info{};
  std::vector<char> file;
  if (dladdr(reinterpret_cast<const void*>(&read_symbols), &info) && info.dli_fname) {
    std::ifstream stream(info.dli_fname, std::ios::binary);
    file.assign(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file.data());
  if (file.size() < sizeof(Elf64_Ehdr) || memcmp(header->e_ident, ELFMAG, SELFMAG)) {
    fprintf(stderr, "CUDA emulation: cannot read its own library %s\n", info.dli_fname ? info.dli_fname : "?");
    abort();
  }
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(file.data() + header->e_shoff);
  size_t anchor = 0;
  for (unsigned s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(file.data() + sections[s].sh_offset);
    const char* names = file.data() + sections[sections[s].sh_link].sh_offset;
    for (size_t i = 0; i < sections[s].sh_size / sizeof(Elf64_Sym); ++i) {
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_TLS || !symbols[i].st_size) continue;
      const std::string name = names + symbols[i].st_name;
      if (name.find("tls_anchor") != std::string::npos) anchor = symbols[i].st_value;
      if (name.compare(0, 3, "_ZZ") == 0 && name.find("B9kw_shared") != std::string::npos)
        m.shared_variables.push_back({name, symbols[i].st_value, symbols[i].st_size});
    }
  }
  for (auto& variable : m.shared_variables) variable.offset -= anchor;
}

// Static shared memory of a kernel, in bytes, without that of device functions it calls.
static size_t static_shared_bytes(Machine& m, const std::string& kernel) {
  const auto known = m.static_shared.find(kernel);
  if (known != m.static_shared.end()) return known->second;
  const std::string base = kernel.substr(0, kernel.find('<'));
  const std::string key = std::to_string(base.size()) + base;
  std::map<std::string, size_t> by_function;  // template instances are kept apart
  size_t largest = 0;
  for (const auto& variable : m.shared_variables) {
    if (variable.name.find(key) == std::string::npos) continue;
    size_t end = variable.name.rfind('E');  // _ZZ <function> E <length><variable>
    while (end != std::string::npos && end && !(end + 1 < variable.name.size() && isdigit(variable.name[end + 1])))
      end = variable.name.rfind('E', end - 1);
    size_t& sum = by_function[variable.name.substr(0, end)];
    sum += variable.bytes;
    largest = std::max(largest, sum);
  }
  return m.static_shared[kernel] = largest;
}

static void poison(char* data, size_t bytes) {
  const char* const pattern = reinterpret_cast<const char*>(&kPoison);
  while (bytes && reinterpret_cast<uintptr_t>(data) % 4) *data++ = pattern[3], --bytes;
  for (size_t i = 0; i < bytes / 4; ++i) memcpy(data + 4 * i, &kPoison, 4);
  for (size_t i = bytes / 4 * 4; i < bytes; ++i) data[i] = pattern[i % 4];
}

static void poison_shared(Machine& m) {
  char* const anchor = const_cast<char*>(reinterpret_cast<volatile char*>(&tls_anchor));
  for (const auto& variable : m.shared_variables) poison(anchor + static_cast<ptrdiff_t>(variable.offset), variable.bytes);
  if (m.dynamic_bytes)
    for (unsigned block = 0; block < m.cluster; ++block) poison(dynamic_of(m, block), m.dynamic_bytes);
}

static void place_dynamic_shared(Machine& m, size_t bytes) {
  if (!m.dynamic) {
    m.dynamic_capacity = (kOptInShared + 4 * kCanary + kPage - 1) / kPage * kPage;
    const size_t all = kMostClustered * m.dynamic_capacity;
    m.dynamic = static_cast<char*>(mmap(nullptr, all + 2 * kPage, PROT_NONE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) + kPage;
    mprotect(m.dynamic, all, PROT_READ | PROT_WRITE);
  }
  m.dynamic_bytes = bytes;
  for (unsigned block = m.cluster; block-- > 0;) {
    m.dynamic_data = dynamic_of(m, block);
    poison(m.dynamic_data - kCanary, kCanary);
    poison(m.dynamic_data + bytes, static_cast<size_t>(m.dynamic + (block + 1) * m.dynamic_capacity -
                                                       (m.dynamic_data + bytes)));
  }
}

// Offset from the start of dynamic shared memory of a byte written outside it, or LONG_MIN.
static long damaged_canary(Machine& m, unsigned block) {
  m.dynamic_data = dynamic_of(m, block);
  char expected[kCanary + 128];
  poison(expected, sizeof(expected));
  if (memcmp(m.dynamic_data - kCanary, expected, kCanary)) {
    for (long i = -1; i >= -static_cast<long>(kCanary); --i)
      if (m.dynamic_data[i] != expected[kCanary + i]) return i;
  }
  char* const behind = m.dynamic_data + m.dynamic_bytes;
  const size_t bytes = static_cast<size_t>(m.dynamic + (block + 1) * m.dynamic_capacity - behind);
  std::vector<char> pattern(bytes + 4);
  char* copy = pattern.data() + (reinterpret_cast<uintptr_t>(behind) - reinterpret_cast<uintptr_t>(pattern.data())) % 4;
  poison(copy, bytes);
  for (size_t i = 0; i < bytes; ++i)
    if (behind[i] != copy[i]) return static_cast<long>(m.dynamic_bytes + i);
  return std::numeric_limits<long>::min();
}

// ---------------------------------------------------------------------------------------- signals

static struct sigaction previous_segv, previous_bus, previous_fpe;

// A fault in a kernel becomes that launch's failure; any other goes to the handler that was there before.
static void on_signal(int number, siginfo_t* info, void*) {
  if (!in_kernel || !pthread_equal(pthread_self(), kernel_thread)) {
    sigaction(number, number == SIGSEGV ? &previous_segv : number == SIGBUS ? &previous_bus : &previous_fpe, nullptr);
    return;  // The instruction faults again.
  }
  if (number == SIGFPE) fail("integer division by zero or overflow");
  const char* const address = static_cast<const char*>(info->si_addr);
  const char* const stack = stack_of(machine().current->rank);
  if (address >= stack && address < stack + kPage) fail("the thread's stack overflowed (128 KB)");
  if (info->si_code == SI_KERNEL) fail("a misaligned vector access or an impossible address");
  fail(format("an illegal memory access at address %p", static_cast<const void*>(address)));
}

// Handlers, on a stack of their own, for the time of a launch.
struct SignalGuard {
  stack_t previous_stack{};
  std::unique_ptr<char[]> stack{new char[64 * 1024]};
  SignalGuard() {
    stack_t mine{};
    mine.ss_sp = stack.get();
    mine.ss_size = 64 * 1024;
    sigaltstack(&mine, &previous_stack);
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &previous_segv);
    sigaction(SIGBUS, &action, &previous_bus);
    sigaction(SIGFPE, &action, &previous_fpe);
  }
  ~SignalGuard() {
    sigaction(SIGSEGV, &previous_segv, nullptr);
    sigaction(SIGBUS, &previous_bus, nullptr);
    sigaction(SIGFPE, &previous_fpe, nullptr);
    sigaltstack(&previous_stack, nullptr);
  }
};

// ---------------------------------------------------------------------------------------- launches

struct Order {
  enum Kind { forward, reverse, seeded } kind = forward;
  uint64_t state = 0;
  std::vector<unsigned> permutation;

  explicit Order(unsigned threads) {
    const char* const text = getenv("KERNELWRIGHT_EMULATION_ORDER");
    if (!text || !*text || !strcmp(text, "forward")) return;
    if (!strcmp(text, "reverse")) { kind = reverse; return; }
    kind = seeded;
    state = 1469598103934665603ull;
    for (const char* c = text; *c; ++c) state = (state ^ static_cast<unsigned char>(*c)) * 1099511628211ull;
    permutation.resize(threads);
    std::iota(permutation.begin(), permutation.end(), 0u);
  }
  uint64_t next() {  // xorshift64*
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return state * 2685821657736338717ull;
  }
  void shuffle() {
    if (kind != seeded) return;
    for (size_t i = permutation.size(); i > 1; --i) std::swap(permutation[i - 1], permutation[next() % i]);
  }
  unsigned thread(unsigned position, unsigned threads) const {
    return kind == forward ? position : kind == reverse ? threads - 1 - position : permutation[position];
  }
};

static void run_block(Machine& m, Order& order) {
  m.live = m.threads;
  m.waiting = m.predicate_count = 0;
  for (unsigned warp = 0; warp * 32 < m.threads; ++warp) {
    const unsigned lanes = std::min(32u, m.threads - warp * 32);
    m.alive[warp] = lanes == 32 ? kFullMask : (1u << lanes) - 1;
  }
  for (unsigned i = 0; i < m.threads; ++i) m.fibers[i]->state = State::ready;
  poison_shared(m);
  if (m.block_begins) m.block_begins();
  while (m.live) {
    bool progressed = false;
    order.shuffle();
    for (unsigned position = 0; position < m.threads; ++position) {
      Fiber& fiber = *m.fibers[order.thread(position, m.threads)];
      if (fiber.state != State::ready) continue;
      progressed = true;
      resume(m, fiber);
      if (m.failed) return;
    }
    if (!progressed) {
      m.failed = true;
      snprintf(m.failure, sizeof(m.failure), "block (%u, %u, %u): %s", block_index.x, block_index.y, block_index.z,
               describe_deadlock(m).c_str());
      return;
    }
  }
  if (m.block_ends) {
    const std::string wrong = m.block_ends();
    if (!wrong.empty()) {
      m.failed = true;
      snprintf(m.failure, sizeof(m.failure), "block (%u, %u, %u): %s", block_index.x, block_index.y, block_index.z,
               wrong.c_str());
      return;
    }
  }
  for (unsigned block = 0; block < m.cluster; ++block) {
    const long damage = damaged_canary(m, block);
    if (damage == std::numeric_limits<long>::min()) continue;
    m.failed = true;
    snprintf(m.failure, sizeof(m.failure), "block (%u, %u, %u): wrote outside dynamic shared memory, at byte %ld of %zu",
             block_index.x, block_index.y, block_index.z, damage, m.dynamic_bytes);
  }
}

static void prepare_fibers(Machine& m, dim3 block) {
  if (!m.stacks) {
    m.stacks = static_cast<char*>(mmap(nullptr, 1024 * kStackBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (m.stacks == MAP_FAILED) { perror("CUDA emulation: stacks"); abort(); }
  }
  for (unsigned i = static_cast<unsigned>(m.fibers.size()); i < m.threads; ++i) {
    m.fibers.push_back(std::make_unique<Fiber>());
    m.fibers[i]->rank = i;
    mprotect(stack_of(i), kPage, PROT_NONE);
  }
  for (unsigned i = 0; i < m.threads; ++i) {
    Fiber& fiber = *m.fibers[i];
    const unsigned within = i % m.block_threads;
    fiber.index = {within % block.x, within / block.x % block.y, within / block.x / block.y};
    if (!fiber.started) start_fiber(fiber);
  }
}

// The checks that a device makes, with its error codes.
static cudaError_t check_launch(Machine& m, const char* name, const void* kernel, dim3 grid, dim3 block, size_t bytes) {
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  if (!grid.x || !grid.y || !grid.z || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return set_error(cudaErrorInvalidConfiguration, "a grid has 1..2147483647 x 1..65535 x 1..65535 blocks");
  if (!threads || block.x > 1024 || block.y > 1024 || block.z > 64 || threads > 1024)
    return set_error(cudaErrorInvalidConfiguration, "a block has 1..1024 threads, at most 64 along z");
  const std::string base = std::string(name).substr(0, std::string(name).find('<'));
  const auto bound = m.launch_bounds.find(base);
  if (bound != m.launch_bounds.end() && threads > bound->second)
    return set_error(cudaErrorInvalidValue,
                     format("%llu threads per block, __launch_bounds__(%u)", threads, bound->second).c_str());
  const size_t fixed = static_shared_bytes(m, name);
  if (fixed > kDefaultShared)
    return set_error(cudaErrorInvalidValue,
                     format("%zu bytes of static shared memory; nvcc accepts %zu", fixed, kDefaultShared).c_str());
  const auto limit = m.dynamic_limit.find(kernel);
  const size_t allowed = limit == m.dynamic_limit.end() ? kDefaultShared - fixed : limit->second;
  if (bytes > allowed)
    return set_error(cudaErrorInvalidValue,
                     format("%zu bytes of dynamic shared memory, of which %zu are allowed%s", bytes, allowed,
                            limit == m.dynamic_limit.end() ? " without cudaFuncSetAttribute" : "").c_str());
  if (fixed + bytes > kOptInShared)
    return set_error(cudaErrorInvalidValue, format("%zu bytes of static and %zu of dynamic shared memory; a block has %zu",
                                                   fixed, bytes, kOptInShared).c_str());
  return cudaSuccess;
}

static void run_grid(const char* name, const void* kernel, dim3 grid, dim3 block, size_t bytes, void (*invoke)(void*),
                     void* arguments, unsigned cluster = 1) {
  Machine& m = machine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  read_symbols(m);
  if (check_launch(m, name, kernel, grid, block, bytes) != cudaSuccess) return;
  m.block_threads = block.x * block.y * block.z;
  m.cluster = cluster;
  m.threads = cluster * m.block_threads;
  if (cluster > 1 && (grid.x % cluster || cluster > kMostClustered || m.threads > 1024 || m.block_threads % 32 ||
                      static_shared_bytes(m, name))) {
    set_error(cudaErrorInvalidValue, "a cluster that the emulation cannot run, or that does not divide the grid");
    return;
  }
  m.invoke = invoke;
  m.arguments = arguments;
  m.failed = false;
  block_extent = block;
  grid_extent = grid;
  prepare_fibers(m, block);
  place_dynamic_shared(m, bytes);
  Order order(m.threads);
  kernel_thread = pthread_self();
  {
    const SignalGuard guard;
    const uint64_t blocks = 1ull * grid.x / cluster * grid.y * grid.z;  // clusters of blocks
    uint64_t step = 1, start = 0;  // Blocks in the order start, start + step, ... modulo their number.
    if (order.kind == Order::reverse) step = blocks - 1, start = blocks - 1;
    if (order.kind == Order::seeded) {
      start = order.next() % blocks;
      do step = order.next() % std::min<uint64_t>(blocks, 1u << 30) + 1; while (std::gcd(step, blocks) != 1);
    }
    uint64_t block_rank = start;
    for (uint64_t i = 0; i < blocks && !m.failed; ++i) {
      const unsigned across = grid.x / cluster;
      block_index = {static_cast<unsigned>(block_rank % across) * cluster,
                     static_cast<unsigned>(block_rank / across % grid.y),
                     static_cast<unsigned>(block_rank / across / grid.y)};
      run_block(m, order);
      block_rank = (block_rank + step) % blocks;
    }
  }
  // The stacks' pages may be reclaimed; many libraries of one process would otherwise each hold megabytes.
  madvise(m.stacks, m.threads * kStackBytes, MADV_FREE);
  for (auto& fiber : m.fibers) fiber->started = false;
  if (m.failed) set_error(cudaErrorLaunchFailure, m.failure);
}

template <typename T> struct Same { using type = T; };

template <typename... Parameters>
static void launch_clusters(const char* name, void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block,
                            size_t shared_bytes, typename Same<Parameters>::type... values) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> values;
  } call{kernel, std::tuple<Parameters...>(values...)};
  run_grid(name, reinterpret_cast<const void*>(kernel), grid, block, shared_bytes,
           [](void* data) {
             Call& c = *static_cast<Call*>(data);
             std::apply(c.kernel, c.values);
           },
           &call, cluster);
}

template <typename... Parameters>
static void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   cudaStream_t, typename Same<Parameters>::type... values) {
  launch_clusters(name, kernel, 1, grid, block, shared_bytes, values...);
}

static inline bool register_launch_bounds(const char* kernel, unsigned threads) {
  machine().launch_bounds[kernel] = threads;
  return true;
}

template <typename T>
static inline T saturate(double value) {
  if (value != value) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

template <typename To, typename From>
static inline To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace kw_emulation

// ------------------------------------------------------------------------------------------ language

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define alignas(n) __attribute__((aligned(n)))  // allowed after __shared__, where C++ forbids the keyword
#define __shared__ static thread_local __attribute__((abi_tag("kw_shared")))

static const uint3& threadIdx = kw_emulation::thread_index;
static const uint3& blockIdx = kw_emulation::block_index;
static const dim3& blockDim = kw_emulation::block_extent;
static const dim3& gridDim = kw_emulation::grid_extent;
static constexpr int warpSize = 32;

#define KW_INLINE static inline __attribute__((always_inline, unused))

// ------------------------------------------------------------------------------------------ barriers, warps

KW_INLINE void __syncthreads(int line = __builtin_LINE()) { kw_emulation::barrier(false, line); }
KW_INLINE int __syncthreads_count(int predicate, int line = __builtin_LINE()) {
  return static_cast<int>(kw_emulation::barrier(predicate != 0, line));
}
KW_INLINE int __syncthreads_or(int predicate, int line = __builtin_LINE()) {
  return kw_emulation::barrier(predicate != 0, line) != 0;
}
KW_INLINE int __syncthreads_and(int predicate, int line = __builtin_LINE()) {
  return kw_emulation::barrier(predicate == 0, line) == 0;
}
KW_INLINE void __syncwarp(unsigned mask = kw_emulation::kFullMask, int line = __builtin_LINE()) {
  kw_emulation::meet(kw_emulation::WarpOperation::sync, mask, 0, 0, line);
}
KW_INLINE unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return static_cast<unsigned>(
      kw_emulation::meet(kw_emulation::WarpOperation::ballot, mask, predicate != 0, 0, line).result);
}
KW_INLINE int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, line) != 0;
}
KW_INLINE int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, !predicate, line) == 0;
}
template <typename T>
KW_INLINE unsigned __match_any_sync(unsigned mask, T value, int line = __builtin_LINE()) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return static_cast<unsigned>(kw_emulation::meet(kw_emulation::WarpOperation::match, mask, bits, 0, line).result);
}
// The lanes that have not exited: a device may name fewer.
KW_INLINE unsigned __activemask() {
  return kw_emulation::machine().alive[kw_emulation::machine().current->rank / 32];
}

#define KW_SHUFFLES(T)                                                                                              \
  KW_INLINE T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {          \
    return kw_emulation::shuffle(kw_emulation::Shuffle::index, mask, value, lane, width, line);                     \
  }                                                                                                                 \
  KW_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) { \
    return kw_emulation::shuffle(kw_emulation::Shuffle::up, mask, value, static_cast<int>(delta), width, line);     \
  }                                                                                                                 \
  KW_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,                              \
                               int line = __builtin_LINE()) {                                                       \
    return kw_emulation::shuffle(kw_emulation::Shuffle::down, mask, value, static_cast<int>(delta), width, line);   \
  }                                                                                                                 \
  KW_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {     \
    return kw_emulation::shuffle(kw_emulation::Shuffle::exchange, mask, value, lanes, width, line);                 \
  }
KW_SHUFFLES(int)
KW_SHUFFLES(unsigned)
KW_SHUFFLES(long)
KW_SHUFFLES(unsigned long)
KW_SHUFFLES(long long)
KW_SHUFFLES(unsigned long long)
KW_SHUFFLES(float)
KW_SHUFFLES(double)
#undef KW_SHUFFLES

KW_INLINE void __threadfence() {}
KW_INLINE void __threadfence_block() {}
KW_INLINE void __threadfence_system() {}
[[noreturn]] static inline void __trap() { kw_emulation::fail("__trap()"); }

// ------------------------------------------------------------------------------------------ atomics
// One OS thread runs all fibers, so plain memory operations are atomic. The overloads are the device's.

#define KW_ATOMIC(name, T, expression)                  \
  KW_INLINE T name(T* address, T value) {               \
    const T old = *address;                             \
    *address = (expression);                            \
    return old;                                         \
  }
#define KW_ATOMICS(T)                                   \
  KW_ATOMIC(atomicMax, T, old > value ? old : value)    \
  KW_ATOMIC(atomicMin, T, old < value ? old : value)    \
  KW_ATOMIC(atomicAnd, T, old & value)                  \
  KW_ATOMIC(atomicOr, T, old | value)                   \
  KW_ATOMIC(atomicXor, T, old ^ value)
KW_ATOMICS(int)
KW_ATOMICS(unsigned)
KW_ATOMICS(long long)
KW_ATOMICS(unsigned long long)
KW_ATOMIC(atomicAdd, int, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
KW_ATOMIC(atomicAdd, unsigned, old + value)
KW_ATOMIC(atomicAdd, unsigned long long, old + value)
KW_ATOMIC(atomicAdd, float, old + value)
KW_ATOMIC(atomicAdd, double, old + value)
KW_ATOMIC(atomicSub, int, static_cast<int>(static_cast<unsigned>(old) - static_cast<unsigned>(value)))
KW_ATOMIC(atomicSub, unsigned, old - value)
KW_ATOMIC(atomicInc, unsigned, old >= value ? 0u : old + 1u)
KW_ATOMIC(atomicDec, unsigned, (old == 0 || old > value) ? value : old - 1u)
KW_ATOMIC(atomicExch, int, value)
KW_ATOMIC(atomicExch, unsigned, value)
KW_ATOMIC(atomicExch, unsigned long long, value)
KW_ATOMIC(atomicExch, float, value)
#define KW_ATOMIC_CAS(T)                                              \
  KW_INLINE T atomicCAS(T* address, T compare, T value) {             \
    const T old = *address;                                           \
    if (old == compare) *address = value;                             \
    return old;                                                       \
  }
KW_ATOMIC_CAS(int)
KW_ATOMIC_CAS(unsigned)
KW_ATOMIC_CAS(unsigned short)
KW_ATOMIC_CAS(unsigned long long)
#undef KW_ATOMIC_CAS
#undef KW_ATOMICS
#undef KW_ATOMIC

// ------------------------------------------------------------------------------------------ loads and stores

template <typename T> KW_INLINE T __ldg(const T* address) { return *address; }
template <typename T> KW_INLINE T __ldca(const T* address) { return *address; }
template <typename T> KW_INLINE T __ldcg(const T* address) { return *address; }
template <typename T> KW_INLINE T __ldcs(const T* address) { return *address; }
template <typename T> KW_INLINE T __ldlu(const T* address) { return *address; }
template <typename T> KW_INLINE T __ldcv(const T* address) { return *address; }
template <typename T> KW_INLINE void __stwb(T* address, typename kw_emulation::Same<T>::type value) { *address = value; }
template <typename T> KW_INLINE void __stcg(T* address, typename kw_emulation::Same<T>::type value) { *address = value; }
template <typename T> KW_INLINE void __stcs(T* address, typename kw_emulation::Same<T>::type value) { *address = value; }
template <typename T> KW_INLINE void __stwt(T* address, typename kw_emulation::Same<T>::type value) { *address = value; }

// ------------------------------------------------------------------------------------------ arithmetic

#define KW_MIN_MAX(R, A, B)                                                       \
  KW_INLINE R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  KW_INLINE R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
KW_MIN_MAX(int, int, int)
KW_MIN_MAX(unsigned, unsigned, unsigned)
KW_MIN_MAX(unsigned, int, unsigned)
KW_MIN_MAX(unsigned, unsigned, int)
KW_MIN_MAX(long, long, long)
KW_MIN_MAX(unsigned long, unsigned long, unsigned long)
KW_MIN_MAX(unsigned long, long, unsigned long)
KW_MIN_MAX(unsigned long, unsigned long, long)
KW_MIN_MAX(long long, long long, long long)
KW_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
KW_MIN_MAX(unsigned long long, long long, unsigned long long)
KW_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef KW_MIN_MAX
// As on the device, these drop a NaN.
KW_INLINE float min(float a, float b) { return fminf(a, b); }
KW_INLINE float max(float a, float b) { return fmaxf(a, b); }
KW_INLINE double min(double a, double b) { return fmin(a, b); }
KW_INLINE double max(double a, double b) { return fmax(a, b); }
KW_INLINE double min(float a, double b) { return fmin(a, b); }
KW_INLINE double max(float a, double b) { return fmax(a, b); }
KW_INLINE double min(double a, float b) { return fmin(a, b); }
KW_INLINE double max(double a, float b) { return fmax(a, b); }

// std:: because a plain name could be the one of an enclosing scope; the fast forms are exact here.
KW_INLINE float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
KW_INLINE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
KW_INLINE float rsqrt(float x) { return rsqrtf(x); }
KW_INLINE float rcbrtf(float x) { return 1.0f / cbrtf(x); }
KW_INLINE float normcdff(float x) { return static_cast<float>(0.5 * erfc(-static_cast<double>(x) * M_SQRT1_2)); }
KW_INLINE double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
KW_INLINE float sinpif(float x) { return static_cast<float>(std::sin(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
KW_INLINE float cospif(float x) { return static_cast<float>(std::cos(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
KW_INLINE void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
// The C library declares functions of its own under the names of the quick device functions.
#define __expf kw_device_expf
#define __exp10f kw_device_exp10f
#define __logf kw_device_logf
#define __log2f kw_device_log2f
#define __log10f kw_device_log10f
#define __powf kw_device_powf
#define __sinf kw_device_sinf
#define __cosf kw_device_cosf
#define __tanf kw_device_tanf
KW_INLINE float __expf(float x) { return expf(x); }
KW_INLINE float __exp10f(float x) { return powf(10.0f, x); }
KW_INLINE float __logf(float x) { return logf(x); }
KW_INLINE float __log2f(float x) { return log2f(x); }
KW_INLINE float __log10f(float x) { return log10f(x); }
KW_INLINE float __powf(float x, float y) { return powf(x, y); }
KW_INLINE float __sinf(float x) { return sinf(x); }
KW_INLINE float __cosf(float x) { return cosf(x); }
KW_INLINE float __tanf(float x) { return tanf(x); }
KW_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
// The device's quick division flushes a quotient by 2^126 < |y| < 2^128 to zero; so does this one.
KW_INLINE float __fdividef(float x, float y) {
  const float size = fabsf(y);
  return size > 0x1p126f && size < INFINITY ? (std::isinf(x) ? NAN : x * 0.0f) : x / y;
}
KW_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
KW_INLINE float __fadd_rn(float x, float y) { return x + y; }
KW_INLINE float __fsub_rn(float x, float y) { return x - y; }
KW_INLINE float __fmul_rn(float x, float y) { return x * y; }
KW_INLINE float __fdiv_rn(float x, float y) { return x / y; }
KW_INLINE float __frcp_rn(float x) { return 1.0f / x; }
KW_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
KW_INLINE float __frsqrt_rn(float x) { return rsqrtf(x); }
KW_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
KW_INLINE double __dadd_rn(double x, double y) { return x + y; }
KW_INLINE double __dsub_rn(double x, double y) { return x - y; }
KW_INLINE double __dmul_rn(double x, double y) { return x * y; }
KW_INLINE double __ddiv_rn(double x, double y) { return x / y; }
KW_INLINE double __dsqrt_rn(double x) { return std::sqrt(x); }

// Conversions saturate and turn a NaN into 0.
#define KW_CONVERSIONS(from, T, to, R)                                                                            \
  KW_INLINE R __##from##2##to##_rn(T x) { return kw_emulation::saturate<R>(nearbyint(static_cast<double>(x))); }  \
  KW_INLINE R __##from##2##to##_rz(T x) { return kw_emulation::saturate<R>(trunc(static_cast<double>(x))); }      \
  KW_INLINE R __##from##2##to##_ru(T x) { return kw_emulation::saturate<R>(ceil(static_cast<double>(x))); }       \
  KW_INLINE R __##from##2##to##_rd(T x) { return kw_emulation::saturate<R>(floor(static_cast<double>(x))); }
KW_CONVERSIONS(float, float, int, int)
KW_CONVERSIONS(float, float, uint, unsigned)
KW_CONVERSIONS(float, float, ll, long long)
KW_CONVERSIONS(float, float, ull, unsigned long long)
KW_CONVERSIONS(double, double, int, int)
KW_CONVERSIONS(double, double, uint, unsigned)
KW_CONVERSIONS(double, double, ll, long long)
KW_CONVERSIONS(double, double, ull, unsigned long long)
#undef KW_CONVERSIONS
KW_INLINE float __int2float_rn(int x) { return static_cast<float>(x); }
KW_INLINE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
KW_INLINE float __ll2float_rn(long long x) { return static_cast<float>(x); }
KW_INLINE float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
KW_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
KW_INLINE double __int2double_rn(int x) { return x; }
KW_INLINE double __uint2double_rn(unsigned x) { return x; }
KW_INLINE double __ll2double_rn(long long x) { return static_cast<double>(x); }
KW_INLINE double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
KW_INLINE int __float_as_int(float x) { return kw_emulation::bit_cast<int>(x); }
KW_INLINE unsigned __float_as_uint(float x) { return kw_emulation::bit_cast<unsigned>(x); }
KW_INLINE float __int_as_float(int x) { return kw_emulation::bit_cast<float>(x); }
KW_INLINE float __uint_as_float(unsigned x) { return kw_emulation::bit_cast<float>(x); }
KW_INLINE long long __double_as_longlong(double x) { return kw_emulation::bit_cast<long long>(x); }
KW_INLINE double __longlong_as_double(long long x) { return kw_emulation::bit_cast<double>(x); }

KW_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
KW_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
KW_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
KW_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
KW_INLINE int __ffs(int x) { return __builtin_ffs(x); }
KW_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
KW_INLINE unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
KW_INLINE int __mul24(int x, int y) {  // low 24 bits of both, signed
  return static_cast<int>(static_cast<unsigned>((x << 8) >> 8) * static_cast<unsigned>((y << 8) >> 8));
}
KW_INLINE int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
KW_INLINE unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
KW_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

// ------------------------------------------------------------------------------------------ runtime functions
// "Device" memory is the process's own; all operations are synchronous.

KW_INLINE cudaError_t cudaGetLastError() {
  const cudaError_t error = kw_emulation::last_error;
  kw_emulation::last_error = cudaSuccess;
  return error;
}
KW_INLINE cudaError_t cudaPeekAtLastError() { return kw_emulation::last_error; }
static inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}
// The runtime's text, followed by what the emulation knows about the last such error of this thread.
static inline const char* cudaGetErrorString(cudaError_t error) {
  const char* text = "unknown error";
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: text = "invalid argument"; break;
    case cudaErrorMemoryAllocation: text = "out of memory"; break;
    case cudaErrorInvalidConfiguration: text = "invalid configuration argument"; break;
    case cudaErrorInvalidDevice: text = "invalid device ordinal"; break;
    case cudaErrorLaunchFailure: text = "unspecified launch failure"; break;
    default: break;
  }
  if (error != kw_emulation::detailed_error || !kw_emulation::detail[0]) return text;
  snprintf(kw_emulation::error_text, sizeof(kw_emulation::error_text), "%s (%s)", text, kw_emulation::detail);
  return kw_emulation::error_text;
}
static inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : kw_emulation::set_error(cudaErrorInvalidDevice, "the emulation has one device");
}
static inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer || !bytes ? cudaSuccess : kw_emulation::set_error(cudaErrorMemoryAllocation, "");
}
template <typename T>
static inline cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
static inline cudaError_t cudaFree(void* pointer) { free(pointer); return cudaSuccess; }
static inline cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  if (bytes && !pointer) return kw_emulation::set_error(cudaErrorInvalidValue, "cudaMemset of a null pointer");
  if (bytes) memset(pointer, value, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(pointer, value, bytes);
}
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes && (!to || !from)) return kw_emulation::set_error(cudaErrorInvalidValue, "cudaMemcpy of a null pointer");
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
namespace kw_emulation {
static int processors() {
  const char* const text = getenv("KERNELWRIGHT_EMULATION_PROCESSORS");
  return text && *text ? std::max(1, atoi(text)) : 132;
}
}  // namespace kw_emulation
static inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return kw_emulation::set_error(cudaErrorInvalidDevice, "the emulation has one device");
  switch (attribute) {  // an H200
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY:
      *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMultiProcessorCount: *value = kw_emulation::processors(); break;
    case cudaDevAttrL2CacheSize: *value = 50 * 1024 * 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    default: return kw_emulation::set_error(cudaErrorInvalidValue, "an attribute that the emulation lacks");
  }
  return cudaSuccess;
}
template <typename Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > kw_emulation::kOptInShared)
    return kw_emulation::set_error(
        cudaErrorInvalidValue,
        kw_emulation::format("%d bytes of dynamic shared memory; a block may have 0..%zu", value,
                             kw_emulation::kOptInShared).c_str());
  kw_emulation::Machine& m = kw_emulation::machine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.dynamic_limit[reinterpret_cast<const void*>(kernel)] = static_cast<size_t>(value);
  return cudaSuccess;
}

// ------------------------------------------------------------------------------------------ the contract's macros

static inline const char* kw_failure(const char* where, const char* call, cudaError_t error) {
  (void)cudaGetLastError();
  snprintf(kw_emulation::failure_text, sizeof(kw_emulation::failure_text), "%s: %s failed: %s (CUDA error %d)", where,
           call, cudaGetErrorString(error), static_cast<int>(error));
  return kw_emulation::failure_text;
}
static inline const char* kw_launch_failure(const char* where, const char* kernel, dim3 grid, dim3 block,
                                            size_t shared_bytes, cudaError_t error) {
  snprintf(kw_emulation::launch_text, sizeof(kw_emulation::launch_text),
           "launch of %s<<<(%u, %u, %u), (%u, %u, %u), %zu>>>", kernel, grid.x, grid.y, grid.z, block.x, block.y,
           block.z, shared_bytes);
  return kw_failure(where, kw_emulation::launch_text, error);
}
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
    kw_emulation::launch(#kernel, kernel, kw_grid_, kw_block_, kw_shared_, (stream), ##__VA_ARGS__); \
    const cudaError_t kw_error_ = cudaGetLastError();                                   \
    if (kw_error_ != cudaSuccess)                                                       \
      return kw_launch_failure(where, #kernel, kw_grid_, kw_block_, kw_shared_, kw_error_); \
  } while (0)

#define KW_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(kw_emulation::machine().dynamic_data)

// ------------------------------------------------------------------------------------------ sanitizer reports
// With -fsanitize=alignment,bounds,... the compiler calls these; defining them here turns a report into the
// launch's failure, with no run-time library.

namespace kw_emulation {
struct SourceLocation { const char* file; uint32_t line, column; };

static void report(const SourceLocation* location, const std::string& what) {
  const std::string text = what + format(" at %s:%u:%u", location->file, location->line, location->column);
  if (in_kernel && pthread_equal(pthread_self(), kernel_thread)) fail(text);
  fprintf(stderr, "CUDA emulation, host code: %s\n", text.c_str());
  set_error(cudaErrorUnknown, text.c_str());
}
}  // namespace kw_emulation

#if defined(KERNELWRIGHT_EMULATION_SANITIZE)
#define KW_REPORT(handler) extern "C" __attribute__((visibility("hidden"), used)) void __ubsan_handle_##handler
struct KwMismatch { kw_emulation::SourceLocation location; const void* type; unsigned char log_alignment, kind; };
KW_REPORT(type_mismatch_v1)(KwMismatch* data, void* address) {
  const unsigned long alignment = 1ul << data->log_alignment;
  if (!address)
    kw_emulation::report(&data->location, "an access through a null pointer");
  else
    kw_emulation::report(&data->location, kw_emulation::format("misaligned address %p: the access needs %lu bytes' "
                                                               "alignment", address, alignment));
}
KW_REPORT(out_of_bounds)(kw_emulation::SourceLocation* data, void* index) {
  kw_emulation::report(data, kw_emulation::format("array index %ld out of bounds", reinterpret_cast<long>(index)));
}
KW_REPORT(add_overflow)(kw_emulation::SourceLocation* d, void*, void*) { kw_emulation::report(d, "signed addition overflows"); }
KW_REPORT(sub_overflow)(kw_emulation::SourceLocation* d, void*, void*) { kw_emulation::report(d, "signed subtraction overflows"); }
KW_REPORT(mul_overflow)(kw_emulation::SourceLocation* d, void*, void*) { kw_emulation::report(d, "signed multiplication overflows"); }
KW_REPORT(negate_overflow)(kw_emulation::SourceLocation* d, void*) { kw_emulation::report(d, "signed negation overflows"); }
KW_REPORT(divrem_overflow)(kw_emulation::SourceLocation* d, void*, void*) { kw_emulation::report(d, "division by zero or overflow"); }
#undef KW_REPORT
#endif
