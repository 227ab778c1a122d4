// Launches: the checks that a device makes, faults that become the launch's failure, and the walk over the grid.

namespace kw_emulation {

KW_MACHINE void run_grid(const char* name, const void* kernel, dim3 grid, dim3 block, size_t bytes,
                         void (*invoke)(void*), void* arguments, unsigned cluster = 1);
KW_MACHINE bool register_launch_bounds(const char* kernel, unsigned threads);

#if defined(KW_DEFINES_MACHINE)
constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
static struct sigaction previous_actions[sizeof(kSignals) / sizeof(*kSignals)];

static void put_previous_actions() {
  size_t at = 0;
  for (const int number : kSignals) sigaction(number, &previous_actions[at++], nullptr);
}

// A fault in a kernel becomes that launch's failure; any other goes to the handler that was there before.
static void on_signal(int number, siginfo_t* info, void*) {
  if (!in_kernel || !pthread_equal(pthread_self(), kernel_thread)) {
    put_previous_actions();
    return;  // The instruction faults again.
  }
  if (number == SIGILL || number == SIGTRAP) {
    machine().trapped = info->si_addr;
    fail("a misaligned or null pointer, an index outside its array, a signed overflow or a division by zero");
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
    size_t at = 0;
    for (const int number : kSignals) sigaction(number, &action, &previous_actions[at++]);
  }
  ~SignalGuard() {
    put_previous_actions();
    sigaltstack(&previous_stack, nullptr);
  }
};

// Where in the source an instruction of this library stands: " at kernel.cu:LINE", or nothing where no tool says so.
static std::string source_line(const void* instruction) {
  Dl_info library{};
  if (!dladdr(instruction, &library) || !library.dli_fname) return "";
  const size_t offset = static_cast<const char*>(instruction) - static_cast<const char*>(library.dli_fbase);
  const std::string command = "addr2line -e '" + std::string(library.dli_fname) + format("' %#zx 2> /dev/null", offset);
  char line[512] = "";
  if (FILE* const tool = popen(command.c_str(), "r")) {
    if (!fgets(line, sizeof(line), tool)) *line = 0;
    pclose(tool);
  }
  const char* const name = strrchr(line, '/');
  return name ? " at " + std::string(name + 1, strcspn(name + 1, " \n")) : "";
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

KW_MACHINE void run_grid(const char* name, const void* kernel, dim3 grid, dim3 block, size_t bytes,
                         void (*invoke)(void*), void* arguments, unsigned cluster) {
  Machine& m = machine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  read_symbols(m);
  if (check_launch(m, name, kernel, grid, block, bytes) != cudaSuccess) return;
  m.block_threads = block.x * block.y * block.z;
  m.cluster = cluster;
  m.threads = cluster * m.block_threads;
  if (cluster > 1 && (grid.x % cluster || cluster > kMostClustered || m.threads > kMostThreads || m.block_threads % 32 ||
                      static_shared_bytes(m, name))) {
    set_error(cudaErrorInvalidValue, "a cluster that the emulation cannot run, or that does not divide the grid");
    return;
  }
  m.invoke = invoke;
  m.arguments = arguments;
  m.failed = false;
  m.trapped = nullptr;
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
  // Each guard is a mapping of its own, of which a process may have 65530: many libraries would reach that.
  mprotect(m.stacks, m.threads * kStackBytes, PROT_READ | PROT_WRITE);
  for (auto& fiber : m.fibers) fiber->started = false;
  if (m.failed)
    set_error(cudaErrorLaunchFailure, (m.failure + (m.trapped ? source_line(m.trapped) : std::string())).c_str());
}

KW_MACHINE bool register_launch_bounds(const char* kernel, unsigned threads) {
  machine().launch_bounds[kernel] = threads;
  return true;
}
#endif

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

}  // namespace kw_emulation
