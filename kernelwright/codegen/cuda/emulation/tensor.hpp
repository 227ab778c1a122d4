// Emulates what `tensor_core.py` wraps of PTX: barriers with phases in shared memory, bulk copies, named barriers and
// warpgroup-wide matrix products.
//
// What is asynchronous on a device is late here: a bulk copy arrives when a thread waits for its barrier, and a
// product reads shared memory when its thread waits for it. So a missing wait, or a buffer that is filled again too
// early, gives wrong numbers here, too.

namespace kw_emulation {

// Eight bytes in shared memory. The tag (2) tells a barrier from the NaNs that shared memory holds at first.
struct Phases {
  uint64_t tag : 2, phase : 1, pending : 20, expected : 20, bytes : 21;  // bytes + 2^20 are still to come
};
static_assert(sizeof(Phases) == 8, "a barrier has 8 bytes");

struct BulkCopy { unsigned block, to; const void* from; unsigned bytes, barrier, value = 0; };  // from nowhere: a value
// Copies of 16 bytes each that a thread has begun, and the barrier at which they arrive.
struct Batch { unsigned block = 0, barrier = 0; std::vector<std::pair<unsigned, const void*>> copies; };
struct Product {
  float* sums;
  uint64_t a, b;
  bool add, brain;
  unsigned columns;
  bool own = false;           // the first operand is in registers, not at `a`
  std::array<unsigned, 4> registers{};
  bool turned = false;        // the second operand's neighbours are those along its columns
};

KW_MACHINE unsigned shared_address(const void* pointer);
// Position of the calling thread's block in its cluster.
KW_MACHINE unsigned cluster_rank();
// Where `bytes` bytes of the dynamic shared memory of a block of the cluster are.
KW_MACHINE char* cluster_pointer(unsigned block, unsigned address, size_t bytes, unsigned alignment, const char* what);
KW_MACHINE Phases& phases(unsigned block, unsigned barrier, bool fresh = false);
KW_MACHINE void barrier_init(unsigned barrier, unsigned arrivals);
KW_MACHINE void barrier_arrive(unsigned block, unsigned barrier, unsigned bytes);
KW_MACHINE void barrier_wait(unsigned barrier, unsigned parity);
// A copy begins. It arrives when somebody waits for it.
KW_MACHINE void under_way(const BulkCopy& copy);
KW_MACHINE void bulk_copy(unsigned block, unsigned to, const void* from, unsigned bytes, unsigned barrier);
// Marks in global memory, which threads wait for; values with a tag in the upper half of their eight bytes.
KW_MACHINE void mark(unsigned* place, unsigned value);
KW_MACHINE void await(const unsigned* place, unsigned value);
KW_MACHINE void tagged(unsigned long long* place, unsigned long long word);
KW_MACHINE float await_tagged(const unsigned long long* place, unsigned tag);
// waits: whether the calling thread stays until all have come.
KW_MACHINE void named_barrier(unsigned number, unsigned threads, bool waits);
KW_MACHINE void copy_16(unsigned to, const void* from);
KW_MACHINE void copies_arrive(unsigned barrier);
KW_MACHINE void wgmma_fence();
KW_MACHINE void wgmma(const Product& product);
KW_MACHINE void wgmma_commit();
KW_MACHINE void wgmma_wait(unsigned left);

#if defined(KW_DEFINES_MACHINE)
constexpr unsigned kSharedBase = 1024;  // address of the first byte of dynamic shared memory, as on a device

KW_MACHINE unsigned shared_address(const void* pointer) {
  Machine& m = machine();
  const ptrdiff_t offset = static_cast<const char*>(pointer) - m.dynamic_data;
  if (offset < 0 || static_cast<size_t>(offset) > m.dynamic_bytes)
    fail("the address of something that is not in dynamic shared memory");
  return kSharedBase + static_cast<unsigned>(offset);
}

KW_MACHINE unsigned cluster_rank() { return machine().current->rank / machine().block_threads; }

KW_MACHINE char* cluster_pointer(unsigned block, unsigned address, size_t bytes, unsigned alignment, const char* what) {
  Machine& m = machine();
  if (block >= m.cluster) fail(format("%s in block %u of a cluster of %u", what, block, m.cluster));
  if (address % alignment) fail(format("%s at shared address %u, which is no multiple of %u", what, address, alignment));
  if (address < kSharedBase || address - kSharedBase + bytes > m.dynamic_bytes)
    fail(format("%s of %zu bytes at shared address %u, outside of the block's %zu bytes", what, bytes, address,
                m.dynamic_bytes));
  return dynamic_of(m, block) + (address - kSharedBase);
}

// The same of the calling thread's block.
static char* shared_pointer(unsigned address, size_t bytes, unsigned alignment, const char* what) {
  return cluster_pointer(cluster_rank(), address, bytes, alignment, what);
}

// ---------------------------------------------------------------------------------------- barriers with phases

constexpr uint64_t kNoBytes = 1u << 20;

struct Products {
  std::vector<Product> open;               // not committed yet
  std::vector<std::vector<Product>> groups;
  bool fenced = false;
};
struct TensorState {
  std::vector<BulkCopy> copies;            // on their way
  std::array<std::array<unsigned, 16>, kMostClustered> named_arrived{}, named_threads{};  // by block and number
  std::vector<Products> products{kMostThreads};    // by thread
  std::vector<Batch> begun{kMostThreads};          // copies that arrive nowhere yet, by thread
  std::vector<Batch> batches;                      // on their way
};
static TensorState& tensor_state() {
  static TensorState* const instance = new TensorState;
  return *instance;
}

KW_MACHINE Phases& phases(unsigned block, unsigned barrier, bool fresh) {
  Phases& state = *reinterpret_cast<Phases*>(cluster_pointer(block, barrier, 8, 8, "a barrier"));
  if (!fresh && state.tag != 2) fail(format("the barrier at shared address %u was not initialised", barrier));
  return state;
}

KW_MACHINE void barrier_init(unsigned barrier, unsigned arrivals) {
  if (arrivals < 1 || arrivals >= 1u << 20) fail(format("a barrier for %u arrivals", arrivals));
  phases(cluster_rank(), barrier, true) = Phases{2, 0, arrivals, arrivals, kNoBytes};
}

// Whether a thread waits for a barrier of a block.
static bool waits_for(const Machine& m, unsigned thread, unsigned block, unsigned barrier) {
  const Fiber& fiber = *m.fibers[thread];
  return fiber.state == State::at_phase && fiber.place == barrier && thread / m.block_threads == block;
}

// Ends the phase once all have arrived and all bytes are there.
static void barrier_turn(unsigned block, unsigned barrier, Phases& state) {
  if (state.pending || state.bytes != kNoBytes) return;
  state.phase ^= 1;
  state.pending = state.expected;
  Machine& m = machine();
  for (unsigned i = 0; i < m.threads; ++i)
    if (waits_for(m, i, block, barrier)) m.fibers[i]->state = State::ready;
}

KW_MACHINE void barrier_arrive(unsigned block, unsigned barrier, unsigned bytes) {
  Phases& state = phases(block, barrier);
  if (!state.pending) fail(format("one arrival too many at the barrier at shared address %u", barrier));
  if (bytes >= kNoBytes) fail(format("a barrier cannot expect %u bytes", bytes));
  state.bytes += bytes;
  --state.pending;
  barrier_turn(block, barrier, state);
}

// Copies of 16 bytes: what is nowhere is zero.
static void arrive_batches(unsigned block, unsigned barrier) {
  std::vector<Batch>& all = tensor_state().batches;
  std::vector<Batch> mine;
  for (size_t i = 0; i < all.size();) {
    if (all[i].barrier != barrier || all[i].block != block) { ++i; continue; }
    mine.push_back(std::move(all[i]));
    all.erase(all.begin() + static_cast<ptrdiff_t>(i));
  }
  for (const Batch& batch : mine) {
    for (const auto& [to, from] : batch.copies) {
      char* const place = cluster_pointer(block, to, 16, 16, "a copy");
      if (from) memcpy(place, from, 16);
      else memset(place, 0, 16);
    }
    barrier_arrive(block, barrier, 0);
  }
}

// The copies of a block's barrier arrive.
static void arrive_copies(unsigned block, unsigned barrier) {
  arrive_batches(block, barrier);
  std::vector<BulkCopy>& all = tensor_state().copies;
  const auto rest = std::stable_partition(all.begin(), all.end(), [&](const BulkCopy& copy) {
    return copy.barrier != barrier || copy.block != block;
  });
  const std::vector<BulkCopy> mine(rest, all.end());
  all.erase(rest, all.end());
  for (const BulkCopy& copy : mine) {
    memcpy(cluster_pointer(block, copy.to, copy.bytes, 4, "a bulk copy"), copy.from ? copy.from : &copy.value, copy.bytes);
    Phases& state = phases(block, barrier);
    state.bytes -= copy.bytes;
    barrier_turn(block, barrier, state);
  }
}

KW_MACHINE void under_way(const BulkCopy& copy) {
  tensor_state().copies.push_back(copy);
  const Machine& m = machine();
  for (unsigned i = 0; i < m.threads; ++i)
    if (waits_for(m, i, copy.block, copy.barrier)) return arrive_copies(copy.block, copy.barrier);
}

KW_MACHINE void bulk_copy(unsigned block, unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  if (bytes == 0 || bytes % 16 || reinterpret_cast<uintptr_t>(from) % 16)
    fail(format("a bulk copy of %u bytes from %p: both are to be multiples of 16", bytes, from));
  cluster_pointer(block, to, bytes, 16, "a bulk copy");
  phases(block, barrier);
  under_way({block, to, from, bytes, barrier});
}

KW_MACHINE void copy_16(unsigned to, const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16) fail(format("a copy of 16 bytes from %p, which is no multiple of 16", from));
  cluster_pointer(cluster_rank(), to, 16, 16, "a copy");
  tensor_state().begun[machine().current->rank].copies.emplace_back(to, from);
}

KW_MACHINE void copies_arrive(unsigned barrier) {
  const unsigned block = cluster_rank();
  Batch& begun = tensor_state().begun[machine().current->rank];
  phases(block, barrier);
  tensor_state().batches.push_back({block, barrier, std::move(begun.copies)});
  begun.copies.clear();
  const Machine& m = machine();
  for (unsigned i = 0; i < m.threads; ++i)
    if (waits_for(m, i, block, barrier)) return arrive_batches(block, barrier);
}

KW_MACHINE void barrier_wait(unsigned barrier, unsigned parity) {
  Machine& m = machine();
  const unsigned block = cluster_rank();
  for (;;) {
    arrive_copies(block, barrier);
    if (phases(block, barrier).phase != (parity & 1)) return;
    m.current->state = State::at_phase;
    m.current->place = barrier;
    m.current->parity = parity & 1;
    switch_to_scheduler();
  }
}

template <typename T>
static void put_mark(T* place, T value) {
  Machine& m = machine();
  *static_cast<volatile T*>(place) = value;
  m.marked = true;
}

KW_MACHINE void mark(unsigned* place, unsigned value) { put_mark(place, value); }

KW_MACHINE void await(const unsigned* place, unsigned value) {
  Machine& m = machine();
  while (*static_cast<const volatile unsigned*>(place) < value) {
    m.current->state = State::at_mark;
    switch_to_scheduler();
  }
}

KW_MACHINE void tagged(unsigned long long* place, unsigned long long word) { put_mark(place, word); }

KW_MACHINE float await_tagged(const unsigned long long* place, unsigned tag) {
  for (;;) {
    const unsigned long long word = *static_cast<const volatile unsigned long long*>(place);
    if (word >> 32 == tag) {
      const unsigned bits = static_cast<unsigned>(word);
      float value;
      memcpy(&value, &bits, 4);
      return value;
    }
    machine().current->state = State::at_mark;
    switch_to_scheduler();
  }
}

KW_MACHINE void named_barrier(unsigned number, unsigned threads, bool waits) {
  Machine& m = machine();
  const unsigned block = cluster_rank();
  if (number < 1 || number > 15 || threads % 32 || !threads)
    fail(format("named barrier %u of %u threads", number, threads));
  unsigned& arrived = tensor_state().named_arrived[block][number];
  unsigned& wanted = tensor_state().named_threads[block][number];
  if (arrived && wanted != threads) fail(format("named barrier %u is for %u and for %u threads", number, wanted, threads));
  wanted = threads;
  if (++arrived < threads) {
    if (!waits) return;
    m.current->state = State::at_named;
    m.current->place = number;
    switch_to_scheduler();
    return;
  }
  arrived = 0;
  for (unsigned i = block * m.block_threads; i < (block + 1) * m.block_threads; ++i)
    if (m.fibers[i]->state == State::at_named && m.fibers[i]->place == number) m.fibers[i]->state = State::ready;
}

// ---------------------------------------------------------------------------------------- products of matrices

// A float16 number; in arithmetic, so that the compiler takes eight at a time.
static inline float half_value(uint16_t bits) {
  const uint32_t exponent = bits & 0x7c00u, digits = (bits & 0x7fffu) << 13;
  const uint32_t bias = (exponent == 0x7c00u ? 224u : exponent ? 112u : 113u) << 23;
  const float size = bit_cast<float>(digits + bias) - (exponent ? 0.0f : 0x1p-14f);  // no subnormal float32 on the way
  return bit_cast<float>(bit_cast<uint32_t>(size) | (bits & 0x8000u) << 16);
}

static inline float value_of(uint16_t bits, bool brain) {
  return brain ? bit_cast<float>(static_cast<uint32_t>(bits) << 16) : half_value(bits);
}

// Whether an operand lies in panels of 128 bytes a row; without any swizzle else.
static bool is_of_panels(uint64_t operand) {
  if (operand & ~0x40003fff3fff3fffull) fail("a matrix descriptor with bits that an operand of neither layout has");
  return operand >> 62;
}
// Where what belongs at an address of a panel is: eight rows of 128 bytes have their pieces of 16 bytes in other orders.
static unsigned swizzled(unsigned address) { return address ^ ((address >> 7 & 7) << 4); }

// An operand in the shared memory of the calling thread's block, as its descriptor says.
struct Operand {
  bool brain, panels;
  unsigned start, leading, stride;
  const char* memory;
  size_t bytes;

  Operand(uint64_t descriptor, bool of_brain)
      : brain(of_brain), panels(is_of_panels(descriptor)), start((descriptor & 0x3fff) << 4),
        leading((descriptor >> 16 & 0x3fff) << 4), stride((descriptor >> 32 & 0x3fff) << 4),
        memory(dynamic_of(machine(), cluster_rank())), bytes(machine().dynamic_bytes) {}

  void read(unsigned address, uint16_t (&bits)[8]) const {
    if (address % 16 || address < kSharedBase || address - kSharedBase + 16 > bytes)
      shared_pointer(address, 16, 16, "an operand");  // which ends the launch
    memcpy(bits, memory + (address - kSharedBase), 16);
  }

  // Sixteen elements along k of one row of a K-major operand: eight elements are 16 contiguous bytes, eight rows 128;
  // then the leading offset leads to the next eight elements of k, the stride offset to the next eight rows.
  void row(unsigned row, float (&values)[16]) const {
    for (unsigned half = 0; half < 2; ++half) {
      uint16_t bits[8];
      read(panels ? swizzled(start + half * 16 + row / 8 * stride + row % 8 * 128)
                  : start + half * leading + row / 8 * stride + row % 8 * 16, bits);
      float* const to = values + half * 8;
      if (brain) for (unsigned k = 0; k < 8; ++k) to[k] = value_of(bits[k], true);
      else for (unsigned k = 0; k < 8; ++k) to[k] = value_of(bits[k], false);
    }
  }

  // Sixteen elements along k of one column of an operand of panels whose rows are k: 64 columns are 128 bytes, the
  // stride offset leads to the next eight k, the leading offset to the panel of the next 64 columns.
  void column(unsigned column, float (&values)[16]) const {
    if (!panels) fail("a turned operand that does not lie in panels");
    for (unsigned k = 0; k < 16; ++k) {
      uint16_t bits[8];
      read(swizzled(start + column / 64 * leading + k / 8 * stride + k % 8 * 128 + column % 64 / 8 * 16), bits);
      values[k] = value_of(bits[column % 8], brain);
    }
  }
};

// The float32 next to a number on the side of zero: tensor cores cut, they do not round.
static float cut(double exact) {
  const float near = static_cast<float>(exact);
  const bool away = std::isfinite(near) && fabs(static_cast<double>(near)) > fabs(exact);
  return away ? bit_cast<float>(bit_cast<uint32_t>(near) - 1) : near;  // below the sign, bits count magnitudes
}

static Products& my_products() { return tensor_state().products[machine().current->rank]; }

// The same of rows that four lanes have in registers, of product `number` of their first group.
static void rows_of_lanes(size_t number, bool brain, float (&values)[2][16]) {
  const unsigned first = machine().current->rank / 4 * 4;
  for (unsigned lane = 0; lane < 4; ++lane) {
    const Products& theirs = tensor_state().products[first + lane];
    if (theirs.groups.empty() || theirs.groups.front().size() <= number || !theirs.groups.front()[number].own)
      fail("a product of rows in registers that not all lanes ask for");
    const std::array<unsigned, 4>& own = theirs.groups.front()[number].registers;
    for (unsigned r = 0; r < 4; ++r)
      for (unsigned e = 0; e < 2; ++e)
        values[r % 2][r / 2 * 8 + lane * 2 + e] = value_of(static_cast<uint16_t>(own[r] >> 16 * e), brain);
  }
}

// Two rows of two columns each, side by side: every sum has its terms in their order.
typedef double Four __attribute__((vector_size(32)));

// The calling thread's part of a 64 x columns product over 16 elements of k, number `number` of its first group.
static void multiply(const Product& p, size_t number) {
  const unsigned thread = machine().current->rank % 128, lane = thread % 32;
  float left[2][16], right[2][16];
  if (p.own) {
    rows_of_lanes(number, p.brain, left);
  } else {
    const Operand a(p.a, p.brain);
    for (unsigned h = 0; h < 2; ++h) a.row(thread / 32 * 16 + lane / 4 + 8 * h, left[h]);
  }
  Four lefts[16];
  for (unsigned k = 0; k < 16; ++k) lefts[k] = Four{left[0][k], left[0][k], left[1][k], left[1][k]};
  const Operand b(p.b, p.brain);
  for (unsigned j = 0; j < p.columns / 8; ++j) {
    for (unsigned c = 0; c < 2; ++c) {
      const unsigned column = 8 * j + 2 * (lane % 4) + c;
      if (p.turned) b.column(column, right[c]);
      else b.row(column, right[c]);
    }
    float* const sums = p.sums + 4 * j;
    Four totals{};
    if (p.add) totals = Four{sums[0], sums[1], sums[2], sums[3]};
    for (unsigned k = 0; k < 16; ++k) totals += lefts[k] * Four{right[0][k], right[1][k], right[0][k], right[1][k]};
    for (unsigned i = 0; i < 4; ++i) sums[i] = cut(totals[i]);
  }
}

KW_MACHINE void wgmma_fence() { my_products().fenced = true; }

KW_MACHINE __attribute__((noinline)) void wgmma(const Product& product) {
  Products& mine = my_products();
  if (!mine.fenced) fail("a product without a fence between it and what wrote its registers");
  mine.open.push_back(product);
}

KW_MACHINE void wgmma_commit() {
  Products& mine = my_products();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

KW_MACHINE __attribute__((noinline)) void wgmma_wait(unsigned left) {
  Products& mine = my_products();
  while (mine.groups.size() > left) {
    const std::vector<Product>& group = mine.groups.front();
    const bool own = std::any_of(group.begin(), group.end(), [](const Product& p) { return p.own; });
    // Lanes read what others of their warp have in registers: all have asked by then, and none has forgotten yet.
    if (own) meet(WarpOperation::sync, 0xffffffffu, 0, 0, __LINE__);
    for (size_t i = 0; i < group.size(); ++i) multiply(group[i], i);
    if (own) meet(WarpOperation::sync, 0xffffffffu, 0, 0, __LINE__);
    mine.groups.erase(mine.groups.begin());
  }
  if (mine.groups.empty() && mine.open.empty()) mine.fenced = false;
}

static const bool tensor_registered = [] {
  machine().block_begins = [] {
    TensorState& state = tensor_state();
    state.copies.clear();
    state.batches.clear();
    state.named_arrived = {};
    for (unsigned i = 0; i < machine().threads; ++i)  // the others have none
      state.products[i] = Products{}, state.begun[i] = Batch{};
  };
  machine().block_ends = []() -> std::string {
    const TensorState& state = tensor_state();
    if (!state.copies.empty()) return format("it ends with %zu bulk copies on their way", state.copies.size());
    if (!state.batches.empty()) return format("it ends with copies of %zu threads on their way", state.batches.size());
    for (unsigned i = 0; i < machine().threads; ++i)
      if (!state.begun[i].copies.empty()) return format("thread %u ends with copies that arrive nowhere", i);
    for (unsigned i = 0; i < machine().threads; ++i)
      if (!state.products[i].open.empty() || !state.products[i].groups.empty())
        return format("thread %u ends without waiting for its products", i);
    return {};
  };
  return true;
}();
#endif

}  // namespace kw_emulation

// ------------------------------------------------------------------------------------------ as tensor_core.py names them

static inline unsigned kw_shared(const void* pointer) { return kw_emulation::shared_address(pointer); }
static inline void kw_barrier_init(unsigned barrier, unsigned arrivals) { kw_emulation::barrier_init(barrier, arrivals); }
static inline void kw_barriers_ready() {}
static inline void kw_barrier_arrive(unsigned barrier) {
  kw_emulation::barrier_arrive(kw_emulation::cluster_rank(), barrier, 0);
}
static inline void kw_barrier_expect(unsigned barrier, unsigned bytes) {
  kw_emulation::barrier_arrive(kw_emulation::cluster_rank(), barrier, bytes);
}
static inline void kw_barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile("" ::: "memory");
  kw_emulation::barrier_wait(barrier, parity);
  asm volatile("" ::: "memory");
}
static inline void kw_bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  kw_emulation::bulk_copy(kw_emulation::cluster_rank(), to, from, bytes, barrier);
}
static inline void kw_copy_16(unsigned to, const void* from, bool there) {
  kw_emulation::copy_16(to, there ? from : nullptr);
}
static inline void kw_copies_arrive(unsigned barrier) {
  asm volatile("" ::: "memory");
  kw_emulation::copies_arrive(barrier);
}
static inline void kw_prefetch(const void*) {}
static inline void kw_shared_written() { asm volatile("" ::: "memory"); }
static inline void kw_mark(unsigned* mark, unsigned value) {
  asm volatile("" ::: "memory");
  kw_emulation::mark(mark, value);
}
static inline void kw_await(const unsigned* mark, unsigned value) {
  kw_emulation::await(mark, value);
  asm volatile("" ::: "memory");
}
static inline void kw_copies_see_global() { asm volatile("" ::: "memory"); }
static inline void kw_part_sync(unsigned number, unsigned threads) {
  asm volatile("" ::: "memory");
  kw_emulation::named_barrier(number, threads, true);
  asm volatile("" ::: "memory");
}
static inline void kw_part_arrive(unsigned number, unsigned threads) {
  asm volatile("" ::: "memory");
  kw_emulation::named_barrier(number, threads, false);
}
template <int COUNT>
static inline void kw_registers_fewer() { static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "registers"); }
template <int COUNT>
static inline void kw_registers_more() { static_assert(COUNT % 8 == 0 && COUNT >= 24 && COUNT <= 256, "registers"); }
static inline unsigned long long kw_operand(unsigned address, unsigned chunk_bytes) {
  return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(chunk_bytes >> 4) << 16 | 8ull << 32;
}
static inline unsigned long long kw_panel_operand(unsigned address) {
  return (address & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
static inline unsigned long long kw_turned_operand(unsigned address, unsigned panel_bytes) {
  return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(panel_bytes >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
static inline void kw_wgmma_fence() { kw_emulation::wgmma_fence(); }
static inline void kw_wgmma_commit() { kw_emulation::wgmma_commit(); }
// The warp's lanes go on together, as the instruction demands.
template <int LEFT>
static inline void kw_wgmma_wait() {
  asm volatile("" ::: "memory");
  kw_emulation::wgmma_wait(LEFT);
  kw_emulation::meet(kw_emulation::WarpOperation::sync, 0xffffffffu, 0, 0, __LINE__);
}
template <size_t COUNT>
static inline void kw_wgmma_hold(float (&)[COUNT]) { asm volatile("" ::: "memory"); }
template <size_t COUNT>
static inline void kw_wgmma_f16(float (&sums)[COUNT], unsigned long long a, unsigned long long b, int add) {
  kw_emulation::wgmma({sums, a, b, add != 0, false, 2 * COUNT});
}
template <size_t COUNT>
static inline void kw_wgmma_f16(float (&sums)[COUNT], const unsigned (&a)[4], unsigned long long b, int add) {
  kw_emulation::wgmma({sums, 0, b, add != 0, false, 2 * COUNT, true, {a[0], a[1], a[2], a[3]}});
}
template <size_t COUNT>
static inline void kw_wgmma_bf16(float (&sums)[COUNT], unsigned long long a, unsigned long long b, int add) {
  kw_emulation::wgmma({sums, a, b, add != 0, true, 2 * COUNT});
}
template <size_t COUNT>
static inline void kw_wgmma_f16_turned(float (&sums)[COUNT], const unsigned (&a)[4], unsigned long long b, int add) {
  kw_emulation::wgmma({sums, 0, b, add != 0, false, 2 * COUNT, true, {a[0], a[1], a[2], a[3]}, true});
}
template <size_t COUNT>
static inline void kw_wgmma_bf16_turned(float (&sums)[COUNT], const unsigned (&a)[4], unsigned long long b, int add) {
  kw_emulation::wgmma({sums, 0, b, add != 0, true, 2 * COUNT, true, {a[0], a[1], a[2], a[3]}, true});
}

static inline unsigned kw_cluster_rank() { return kw_emulation::cluster_rank(); }
static inline void kw_cluster_sync(int line = __builtin_LINE()) { kw_emulation::barrier(false, line); }
template <int COUNT>
static inline void kw_cluster_store(const float* place, const float* value, unsigned barrier, unsigned rank) {
  const unsigned to = kw_emulation::shared_address(place);
  kw_emulation::cluster_pointer(rank, to, 4 * COUNT, 4 * COUNT, "a store");
  if (kw_emulation::shared_address(value) % (4 * COUNT)) kw_emulation::fail("values that are stored lie at odd places");
  kw_emulation::phases(rank, barrier);
  for (unsigned i = 0; i < COUNT; ++i) {
    kw_emulation::BulkCopy stored{rank, to + 4 * i, nullptr, 4, barrier};
    memcpy(&stored.value, value + i, 4);
    kw_emulation::under_way(stored);
  }
}
static inline void kw_cluster_await(unsigned barrier, unsigned parity) { kw_barrier_wait(barrier, parity); }
static inline void kw_barrier_arrive_at(unsigned barrier, unsigned rank) {
  kw_emulation::barrier_arrive(rank, barrier, 0);
}
static inline void kw_bulk_copy_all(unsigned to, const void* from, unsigned bytes, unsigned barrier,
                                    unsigned short mask) {
  for (unsigned block = 0; block < 16; ++block)
    if (mask >> block & 1) kw_emulation::bulk_copy(block, to, from, bytes, barrier);
}
template <typename... Parameters, typename... Values>
static cudaError_t kw_launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t, Values... values) {
  kw_emulation::launch_clusters("a kernel in clusters", kernel, cluster, grid, block, shared_bytes, values...);
  return cudaGetLastError();
}
static inline void kw_tagged_store(unsigned long long* to, float value, unsigned tag) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  kw_emulation::tagged(to, static_cast<unsigned long long>(tag) << 32 | bits);
}
template <int COUNT>
static inline void kw_tagged_receive(const unsigned long long* from, int apart, int there, unsigned tag,
                                     float (&value)[COUNT][2]) {
  for (int i = 0; i < 2 * COUNT; ++i)
    if (i / 2 * apart + i % 2 < there)
      value[i / 2][i % 2] = kw_emulation::await_tagged(from + i / 2 * apart + i % 2, tag);
}
// All blocks run together, as those of a cluster do.
template <typename... Parameters, typename... Values>
static cudaError_t kw_launch_together(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                                      cudaStream_t, Values... values) {
  kw_emulation::launch_clusters("a kernel whose blocks run at once", kernel, grid.x, grid, block, shared_bytes, values...);
  return cudaGetLastError();
}
template <typename Kernel>
static cudaError_t kw_resident_clusters(int* clusters, Kernel*, unsigned cluster, dim3, size_t) {
  *clusters = std::max(1, kw_emulation::processors() / static_cast<int>(cluster));
  return cudaSuccess;
}
