"""What contractions use of PTX on compute capability 9.0, as snippets: device functions named ``kw_``.

``ptx.sm90``: barriers with phases in shared memory, bulk copies, barriers of a part of a block, registers moved
between warpgroups, fences and waits of matrix products. ``cluster``: the same across the blocks of a cluster, and
launches in clusters. ``wgmma_f16_N`` and ``wgmma_bf16_N``: one product of 64 rows and N columns; ``..._own``: the same
of rows that threads have in registers.

Shared memory is addressed by 32-bit addresses (`kw_shared`). Operands are K-major without swizzle (PTX ISA 9.0,
"Shared Memory Matrix Layout"): eight neighbours along k are 16 contiguous bytes, rows follow each other every 16
bytes (stride byte offset 128 for eight of them), and the next eight neighbours along k lie ``chunk_bytes`` further
(leading byte offset). So an operand may begin at any row. `emulation/tensor.hpp` defines the same functions.
"""

from __future__ import annotations

COLUMNS = tuple(range(8, 257, 8))
"""Columns that one product can have."""

_TENSOR_CORE = r"""
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
"""

_CLUSTER = r"""
#ifndef KERNELWRIGHT_EMULATION
// Position of the block in its cluster.
static __device__ __forceinline__ unsigned kw_cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barrier of all threads of a cluster.
static __device__ __forceinline__ void kw_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier that has this address in the cluster's block `rank`.
static __device__ __forceinline__ void kw_barrier_arrive_at(unsigned barrier, unsigned rank) {
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %0, %1;\n"
      "  mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
      "}"
      :: "r"(barrier), "r"(rank) : "memory");
}
// A bulk copy to the same place of all blocks in `mask`; it counts at the barrier of this address in each of them.
static __device__ __forceinline__ void kw_bulk_copy_all(unsigned to, const void* from, unsigned bytes,
                                                        unsigned barrier, unsigned short mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;"
      :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier), "h"(mask) : "memory");
}

// The launch of a kernel in clusters of `cluster_` blocks along x.
template <typename... Parameters, typename... Values>
static cudaError_t kw_launch_clusters(void (*kernel)(Parameters...), unsigned cluster, dim3 grid, dim3 block,
                                      size_t shared_bytes, cudaStream_t stream, Values... values) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, values...);
}
// Clusters that the device holds at a time.
template <typename Kernel>
static cudaError_t kw_resident_clusters(int* clusters, Kernel* kernel, unsigned cluster, dim3 block,
                                        size_t shared_bytes) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(clusters, kernel, &config);
}
#endif  // KERNELWRIGHT_EMULATION
"""


_WORDS = {"f16": "float16 elements", "bf16": "bfloat16 elements"}
"""What an operand consists of, by the name of its type in PTX."""


def _product(kind: str, columns: int) -> str:
    """The function of one product; overloads differ in the number of sums that a thread holds."""
    count = columns // 2
    places = ', "\n      "'.join(_lines([f"%{i}" for i in range(count)], 16))
    sums = ",\n        ".join(_lines([f'"+f"(d[{i}])' for i in range(count)], 6))
    return f"""
#ifndef KERNELWRIGHT_EMULATION
// Sums of 64 rows and {columns} columns plus (or, where `add` is 0, set to) the products over 16 {_WORDS[kind]} of both
// operands. A thread's sums 4 j + 2 h + c are of row lane / 4 + 8 h of its warp's 16, column 8 j + 2 (lane % 4) + c.
static __device__ __forceinline__ void kw_wgmma_{kind}(float (&d)[{count}], unsigned long long a,
{' ' * (48 + len(kind))}unsigned long long b, int add) {{
  asm volatile(
      "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 2}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{"
      "{places}"
      "}}, %{count}, %{count + 1}, add, 1, 1, 0, 0;\\n}}"
      : {sums}
      : "l"(a), "l"(b), "r"(add));
}}
#endif  // KERNELWRIGHT_EMULATION
"""


def _product_of_own(kind: str, columns: int) -> str:
    """The function of one product whose first operand is in registers."""
    count = columns // 2
    places = ', "\n      "'.join(_lines([f"%{i}" for i in range(count)], 16))
    sums = ",\n        ".join(_lines([f'"+f"(d[{i}])' for i in range(count)], 6))
    own = ", ".join(f"%{count + i}" for i in range(4))
    return f"""
#ifndef KERNELWRIGHT_EMULATION
// The same of rows in registers: of row lane / 4 of its warp's 16 and of the one 8 below a thread has {_WORDS[kind]}
// 2 (lane % 4) and the next of k in `a[0]` and `a[1]`, and those 8 further in `a[2]` and `a[3]`.
static __device__ __forceinline__ void kw_wgmma_{kind}(float (&d)[{count}], const unsigned (&a)[4],
{' ' * (48 + len(kind))}unsigned long long b, int add) {{
  asm volatile(
      "{{\\n.reg .pred add;\\nsetp.ne.b32 add, %{count + 5}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{"
      "{places}"
      "}}, {{{own}}}, %{count + 4}, add, 1, 1, 0;\\n}}"
      : {sums}
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}}
#endif  // KERNELWRIGHT_EMULATION
"""


def _lines(words: list[str], most: int) -> list[str]:
    """Words with commas between them, ``most`` to a line."""
    return [", ".join(words[i:i + most]) for i in range(0, len(words), most)]


TENSOR_SNIPPETS: dict[str, str] = {
    "tensor_core": _TENSOR_CORE.lstrip("\n"),
    "cluster": _CLUSTER.lstrip("\n"),
    **{f"wgmma_{kind}_{columns}": _product(kind, columns).lstrip("\n") for kind in _WORDS for columns in COLUMNS},
    **{f"wgmma_f16_{columns}_own": _product_of_own("f16", columns).lstrip("\n") for columns in COLUMNS},
}
"""Snippet texts by name, in the order in which they appear in a file."""

TENSOR_NEEDS: dict[str, tuple[str, ...]] = {
    "cluster": ("tensor_core",),
    **{name: ("tensor_core",) for name in TENSOR_SNIPPETS if name.startswith("wgmma_")},
}
"""Snippets that a snippet uses."""
