// Where threads meet: barriers of a block, operations of a warp; and what is said where some never arrive.

namespace kw_emulation {

KW_MACHINE unsigned barrier_slow(bool predicate, int line);
KW_MACHINE Fiber& meet_slow(WarpOperation operation, unsigned mask, uint64_t value, int source, int line);
[[noreturn]] KW_MACHINE void fail_of_width(int line, int width);

#if defined(KW_DEFINES_MACHINE)
static void release_barrier(Machine& m) {
  m.barrier_result = m.predicate_count;
  m.waiting = m.predicate_count = 0;
  for (unsigned i = 0; i < m.threads; ++i)
    if (m.fibers[i]->state == State::at_barrier) m.fibers[i]->state = State::ready;
}

// Waits for all threads of the block that have not exited; returns the number with a true predicate.
KW_MACHINE __attribute__((noinline)) unsigned barrier_slow(bool predicate, int line) {
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
#endif

// The empty assembly keeps the compiler from holding shared memory in registers across the barrier.
static inline __attribute__((always_inline)) unsigned barrier(bool predicate, int line) {
  asm volatile("" ::: "memory");
  const unsigned count = barrier_slow(predicate, line);
  asm volatile("" ::: "memory");
  return count;
}

#if defined(KW_DEFINES_MACHINE)
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
KW_MACHINE __attribute__((noinline)) Fiber& meet_slow(WarpOperation operation, unsigned mask, uint64_t value,
                                                      int source, int line) {
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

[[noreturn]] KW_MACHINE void fail_of_width(int line, int width) {
  fail(format("shuffle of line %d: width %d", line, width));
}
#endif

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
  if (width < 1 || width > 32 || (width & (width - 1))) fail_of_width(line, width);
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

#if defined(KW_DEFINES_MACHINE)
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
  for (const State state : {State::at_phase, State::at_named, State::at_mark}) {
    unsigned count = 0;
    const Fiber* first = nullptr;
    for (unsigned i = 0; i < m.threads; ++i)
      if (m.fibers[i]->state == state && !count++) first = m.fibers[i].get();
    if (!first) continue;
    text += state == State::at_mark
        ? format(" %u threads wait for marks in global memory, the first is thread (%u, %u, %u).", count, first->index.x,
                 first->index.y, first->index.z)
        : state == State::at_phase
        ? format(" %u threads wait for phases of barriers in shared memory, the first, thread (%u, %u, %u), for parity %u "
                 "of that at byte %u.", count, first->index.x, first->index.y, first->index.z, first->parity, first->place)
        : format(" %u threads wait at named barriers, the first, thread (%u, %u, %u), at number %u.", count,
                 first->index.x, first->index.y, first->index.z, first->place);
  }
  return text;
}
#endif

}  // namespace kw_emulation
