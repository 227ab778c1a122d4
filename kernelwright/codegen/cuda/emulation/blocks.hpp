// Running a block, or the blocks of a cluster: fibers that start, and take turns in an order.

#if defined(KW_DEFINES_MACHINE)
namespace kw_emulation {

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
    if (m.marked) {
      m.marked = false;
      for (unsigned i = 0; i < m.threads; ++i)
        if (m.fibers[i]->state == State::at_mark) m.fibers[i]->state = State::ready;
    }
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
    m.stacks = static_cast<char*>(mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (m.stacks == MAP_FAILED) { perror("CUDA emulation: stacks"); abort(); }
    // Touched while it is one mapping: its parts, between guards, can become one again.
    *static_cast<volatile char*>(m.stacks + kStackBytes - 1) = 0;
  }
  for (unsigned i = static_cast<unsigned>(m.fibers.size()); i < m.threads; ++i) {
    m.fibers.push_back(std::make_unique<Fiber>());
    m.fibers[i]->rank = i;
  }
  for (unsigned i = 0; i < m.threads && m.threads <= kMostGuarded; ++i)
    if (mprotect(stack_of(i), kPage, PROT_NONE)) { perror("CUDA emulation: guards of stacks"); abort(); }
  for (unsigned i = 0; i < m.threads; ++i) {
    Fiber& fiber = *m.fibers[i];
    const unsigned within = i % m.block_threads;
    fiber.index = {within % block.x, within / block.x % block.y, within / block.x / block.y};
    if (!fiber.started) start_fiber(fiber);
  }
}

}  // namespace kw_emulation
#endif
