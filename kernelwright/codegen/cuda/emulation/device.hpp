// What device code is written in: qualifiers, indices, barriers, warps, atomics, loads and stores.

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
