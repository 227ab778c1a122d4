#ifndef KERNELWRIGHT_EMULATION
static __device__ __forceinline__ unsigned kw_shared(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Barriers in shared memory, 8 bytes each. A phase ends when `arrivals` have arrived and all bytes that they announced
// are there. Waiting for a parity waits for the end of the phase of that parity: of 0 first, then 1, 0, ...; before the
// first phase has ended, parity 1 counts as over.
static __device__ __forceinline__ void kw_barrier_init(unsigned barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// Between initialisation and first use, followed by a barrier of the block (or cluster).
static __device__ __forceinline__ void kw_barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void kw_barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// Arrives, and announces bytes that copies will bring in this phase.
static __device__ __forceinline__ void kw_barrier_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void kw_barrier_wait(unsigned barrier, unsigned parity) {
  unsigned over;
  do {
    asm volatile(
        "{\n"
        "  .reg .pred over;\n"
        "  mbarrier.try_wait.parity.shared::cta.b64 over, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  } while (!over);
}

// Copies bytes (a multiple of 16, from and to such addresses) to shared memory; they count at the barrier.
static __device__ __forceinline__ void kw_bulk_copy(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier) : "memory");
}

// Copies 16 bytes, from and to such addresses, or writes zeros unless `there`; the copies of a thread that have begun
// arrive at a barrier together, as one of the arrivals that it counts. Who waits for it says `kw_shared_written` before
// products read.
static __device__ __forceinline__ void kw_copy_16(unsigned to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void kw_copies_arrive(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
}

// Asks for 128 bytes of global memory that are read soon: they come to the second-level cache.
static __device__ __forceinline__ void kw_prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" :: "l"(__cvta_generic_to_global(from)));
}

// What the calling thread has stored to shared memory is seen by products, and by copies.
static __device__ __forceinline__ void kw_shared_written() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Sets a mark in global memory: who sees it sees what the calling thread has stored, and what others have before a
// barrier that it has passed with them.
static __device__ __forceinline__ void kw_mark(unsigned* mark, unsigned value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(__cvta_generic_to_global(mark)), "r"(value) : "memory");
}
// Waits until a mark is at least `value`.
static __device__ __forceinline__ void kw_await(const unsigned* mark, unsigned value) {
  unsigned found;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(__cvta_generic_to_global(mark)) : "memory");
  } while (found < value);
}
// The calling thread's copies see what it sees in global memory.
static __device__ __forceinline__ void kw_copies_see_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Barrier `number` (1 to 15) of `threads` threads of the block.
static __device__ __forceinline__ void kw_part_sync(unsigned number, unsigned threads) {
  asm volatile("barrier.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}
// The same without waiting: the others go on when all have come.
static __device__ __forceinline__ void kw_part_arrive(unsigned number, unsigned threads) {
  asm volatile("barrier.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory");
}

// The calling warpgroup gives registers back, or takes what others gave.
template <int COUNT>
static __device__ __forceinline__ void kw_registers_fewer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT>
static __device__ __forceinline__ void kw_registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

// Descriptor of an operand that begins at an address; see above for the layout.
static __device__ __forceinline__ unsigned long long kw_operand(unsigned address, unsigned chunk_bytes) {
  return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(chunk_bytes >> 4) << 16 | 8ull << 32;
}
// Descriptors of operands in panels of 128 bytes a row, which begin at multiples of 1,024: one whose rows are those of
// panels, and one whose columns these are, where every 64 rows have a panel of `panel_bytes` of their own.
static __device__ __forceinline__ unsigned long long kw_panel_operand(unsigned address) {
  return (address & 0x3ffffu) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
static __device__ __forceinline__ unsigned long long kw_turned_operand(unsigned address, unsigned panel_bytes) {
  return (address & 0x3ffffu) >> 4 | static_cast<unsigned long long>(panel_bytes >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
// Products run on their own until they are waited for: first a fence after what wrote their registers, then products,
// then `commit`, then `wait` until at most LEFT groups are left, and `hold` before the sums are read.
static __device__ __forceinline__ void kw_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void kw_wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int LEFT>
static __device__ __forceinline__ void kw_wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory");
}
template <int COUNT>
static __device__ __forceinline__ void kw_wgmma_hold(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i]) :: "memory");
}
#endif  // KERNELWRIGHT_EMULATION
