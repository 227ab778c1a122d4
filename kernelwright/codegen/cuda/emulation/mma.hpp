// Emulates the warp instructions of compute capability 8.0 that the contraction kernels use: cp.async, ldmatrix and
// mma.sync. It follows tensor.hpp and stands for the PTX of ptx/sm80.py.
//
// A copy arrives when it is waited for, and its destination is poisoned until then: a missing wait, or a buffer that
// others still read, shows as NaNs.

namespace kw_emulation {

KW_MACHINE void copy_async(unsigned to, const void* from, unsigned bytes, unsigned given, int line);
KW_MACHINE void commit_copies();
// Waits until at most `left` of the committed groups are under way.
KW_MACHINE void await_copies(size_t left);
KW_MACHINE void load_matrices(unsigned (&to)[4], unsigned address, int line);
// m16n8k16: the fragments of the PTX manual. d = a * b + d.
KW_MACHINE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool brain, int line);
// m16n8k4 of float64, term by term: the order of the device is not known.
KW_MACHINE void multiply(double (&d)[4], double a0, double a1, double b, int line);

#if defined(KW_DEFINES_MACHINE)
// Where `bytes` bytes of the block's dynamic shared memory are.
static char* own_shared(unsigned address, unsigned bytes, const char* what, int line) {
  const Machine& m = machine();
  if (address % bytes) fail(format("%s of line %d: shared address %u is no multiple of %u", what, line, address, bytes));
  if (address > m.dynamic_bytes || address + bytes > m.dynamic_bytes)
    fail(format("%s of line %d: shared address %u of %zu bytes", what, line, address, m.dynamic_bytes));
  return m.dynamic_data + address;
}

// -------------------------------------------------------------------------------------------- cp.async

// Copies of one thread, by group; the last group is open.
struct Copy { char* to; const char* from; unsigned bytes, given; };
using Copies = std::vector<std::vector<Copy>>;

static std::vector<Copies>& all_copies() {
  static auto* const all = new std::vector<Copies>(kMostThreads, Copies(1));
  return *all;
}
static Copies& own_copies() { return all_copies()[machine().current->rank]; }

KW_MACHINE void copy_async(unsigned to, const void* from, unsigned bytes, unsigned given, int line) {
  char* const place = own_shared(to, bytes, "cp.async", line);
  if (reinterpret_cast<uintptr_t>(from) % bytes) fail(format("cp.async of line %d: address %p", line, from));
  if (given > bytes) fail(format("cp.async of line %d: %u of %u bytes", line, given, bytes));
  poison(place, bytes);
  own_copies().back().push_back({place, static_cast<const char*>(from), bytes, given});
}

KW_MACHINE void commit_copies() { own_copies().emplace_back(); }

KW_MACHINE void await_copies(size_t left) {
  Copies& groups = own_copies();
  while (groups.size() - 1 > left) {
    for (const Copy& copy : groups.front()) {
      memcpy(copy.to, copy.from, copy.given);
      memset(copy.to + copy.given, 0, copy.bytes - copy.given);
    }
    groups.erase(groups.begin());
  }
}

// -------------------------------------------------------------------------------------------- warp instructions

// What the lanes of a warp show each other. A lane may be one instruction ahead of those that still read, never two:
// hence two sets in turn.
struct Shown {
  const char* instruction;
  const char* row;  // ldmatrix
  float values[12];  // mma: a, then b, as (register, half)
  double exact[3];  // mma of float64: a, then b
};

static Shown* show(const char* instruction, Shown value, int line) {
  static Shown shown[2][32][32];
  static unsigned char turns[kMostThreads];
  const unsigned rank = machine().current->rank, warp = rank / 32;
  const unsigned turn = turns[rank] ^= 1;
  value.instruction = instruction;
  shown[turn][warp][rank % 32] = value;
  meet(WarpOperation::sync, kFullMask, 0, 0, line);
  for (const Shown& other : shown[turn][warp])
    if (other.instruction != instruction)
      fail(format("line %d: lanes of a warp meet at different instructions, or not all are there: %s", line, instruction));
  return shown[turn][warp];
}

KW_MACHINE void load_matrices(unsigned (&to)[4], unsigned address, int line) {
  Shown own{};
  own.row = own_shared(address, 16, "ldmatrix", line);
  const Shown* const lanes = show("ldmatrix", own, line);
  const unsigned lane = machine().current->rank % 32;
  for (int i = 0; i < 4; ++i) memcpy(&to[i], lanes[8 * i + lane / 4].row + 4 * (lane % 4), 4);
}

KW_MACHINE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool brain, int line) {
  const unsigned words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  Shown own{};
  for (int i = 0; i < 12; ++i)
    own.values[i] = value_of(static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16)), brain);
  const Shown* const lanes = show("mma", own, line);
  const unsigned lane = machine().current->rank % 32;
  for (int i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + (i >= 2 ? 8 : 0), column = 2 * (lane % 4) + i % 2;
    double sum = d[i];
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair = k % 8 / 2, upper = k / 8;
      const float left = lanes[row % 8 * 4 + pair].values[2 * (row / 8 + 2 * upper) + k % 2];
      const float right = lanes[column * 4 + pair].values[8 + 2 * upper + k % 2];
      sum += static_cast<double>(left) * static_cast<double>(right);
    }
    d[i] = cut(sum);
  }
}

KW_MACHINE void multiply(double (&d)[4], double a0, double a1, double b, int line) {
  Shown own{};
  own.exact[0] = a0, own.exact[1] = a1, own.exact[2] = b;
  const Shown* const lanes = show("mma of float64", own, line);
  const unsigned lane = machine().current->rank % 32;
  for (unsigned i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 4; ++k)
      d[i] += lanes[lane / 4 * 4 + k].exact[i / 2] * lanes[(2 * (lane % 4) + i % 2) * 4 + k].exact[2];
}

static const bool copies_registered = [] {
  static void (*const others)() = machine().block_begins;
  machine().block_begins = [] {
    if (others) others();
    for (unsigned i = 0; i < machine().threads; ++i) {  // the others have none
      Copies& copies = all_copies()[i];
      if (copies.size() > 1 || !copies[0].empty()) copies.assign(1, {});
    }
  };
  return true;
}();
#endif

}  // namespace kw_emulation

// An offset into the block's dynamic shared memory.
KW_INLINE unsigned kw_shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - kw_emulation::machine().dynamic_data);
}
KW_INLINE void kw_cp_async_16(unsigned to, const void* from, unsigned given = 16, int line = __builtin_LINE()) {
  kw_emulation::copy_async(to, from, 16, given, line);
}
KW_INLINE void kw_cp_async_commit() { kw_emulation::commit_copies(); }
template <typename T> KW_INLINE T* kw_written(T* pointer) { return pointer; }
template <int left> KW_INLINE void kw_cp_async_wait() { kw_emulation::await_copies(left); }
KW_INLINE void kw_ldmatrix(unsigned (&to)[4], unsigned address, int line = __builtin_LINE()) {
  kw_emulation::load_matrices(to, address, line);
}
KW_INLINE void kw_mma_float16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                              int line = __builtin_LINE()) {
  kw_emulation::multiply(d, a, b0, b1, false, line);
}
KW_INLINE void kw_mma_bfloat16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1,
                               int line = __builtin_LINE()) {
  kw_emulation::multiply(d, a, b0, b1, true, line);
}
KW_INLINE void kw_mma_float64(double (&d)[4], double a0, double a1, double b, int line = __builtin_LINE()) {
  kw_emulation::multiply(d, a0, a1, b, line);
}
