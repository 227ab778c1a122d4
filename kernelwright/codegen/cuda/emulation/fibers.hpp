// The machine that the emulation runs: errors, the fibers that stand for threads, how they give way and how they fail.

#if defined(KW_OWN_SWITCH) && defined(KW_DEFINES_MACHINE)
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
constexpr unsigned kMostClustered = 128;       // blocks of a cluster, or of a grid all of whose blocks run at once
constexpr unsigned kMostThreads = 32768;       // which they have together
constexpr unsigned kMostGuarded = 8192;        // of these, beyond which stacks have no guards, or mappings would run out
// Repeated 0xFFFDCDCD is a NaN as float and as double, and an improbable index as int.
constexpr uint32_t kPoison = 0xFFFDCDCDu;

// ---------------------------------------------------------------------------------------- errors

// Sets the last error, and keeps what the emulation knows of it.
KW_MACHINE cudaError_t set_error(cudaError_t error, const char* text);

// Ends the launch with a message. Called by a fiber; never returns.
[[noreturn]] KW_MACHINE void fail(const char* text);

#if defined(KW_DEFINES_MACHINE)
static thread_local cudaError_t last_error = cudaSuccess;
static thread_local cudaError_t detailed_error = cudaSuccess;  // the error that `detail` explains
static thread_local char detail[512];
static thread_local char error_text[640];
static thread_local char failure_text[1280];
static thread_local char launch_text[256];
static thread_local volatile unsigned char tls_anchor = 0;

KW_MACHINE cudaError_t set_error(cudaError_t error, const char* text) {
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
#endif

// ---------------------------------------------------------------------------------------- fibers

enum class State : unsigned char { ready, at_barrier, at_warp, at_phase, at_named, at_mark, done };
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
  char* stacks = nullptr;  // of kMostThreads, reserved at the first launch
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
  bool marked = false;  // a mark was set: those that wait for one look again
  bool failed = false;
  char failure[400];
  const void* trapped = nullptr;  // the instruction at which a sanitizer's check failed
  unsigned threads = 0, live = 0;  // of the cluster that runs
  unsigned block_threads = 0, cluster = 1;
  unsigned waiting = 0, predicate_count = 0, barrier_result = 0;
  int barrier_line = 0;
  std::array<unsigned, kMostThreads / 32> alive{};  // by warp: lanes that have not exited
  std::map<const void*, size_t> dynamic_limit;  // set by cudaFuncSetAttribute
  std::map<std::string, unsigned> launch_bounds;
  std::map<std::string, size_t> static_shared;  // by kernel name, filled on demand
  struct Variable { std::string name; size_t offset, bytes; };
  std::vector<Variable> shared_variables;  // offsets from tls_anchor
  bool symbols_read = false;
  void (*block_begins)() = nullptr;          // of the headers that follow this one
  std::string (*block_ends)() = nullptr;     // returns an empty text, or what is wrong
};

KW_MACHINE Machine& machine();
// Plain globals, so that a kernel reads them without a call.
KW_MACHINE_VARIABLE uint3 thread_index, block_index;
KW_MACHINE_VARIABLE dim3 block_extent, grid_extent;

#if defined(KW_DEFINES_MACHINE)
KW_MACHINE Machine& machine() {
  static Machine* const instance = new Machine;  // Never destroyed: a launch may come at process exit.
  return *instance;
}
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

[[noreturn]] static void fail(const std::string& text) {
  Machine& m = machine();
  m.failed = true;
  const uint3 t = m.current->index, b = block_index;
  snprintf(m.failure, sizeof(m.failure), "block (%u, %u, %u) thread (%u, %u, %u): %s", b.x, b.y, b.z, t.x, t.y, t.z,
           text.c_str());
  switch_to_scheduler();
  abort();
}

[[noreturn]] KW_MACHINE void fail(const char* text) { fail(std::string(text)); }
#endif

}  // namespace kw_emulation
