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
// Stores 1, 2 or 4 values at the same place of shared memory in the cluster's block `rank`, where their bytes count at
// the barrier of this address. Both places are multiples of their size.
template <int COUNT>
static __device__ __forceinline__ void kw_cluster_store(const float* place, const float* value, unsigned barrier,
                                                        unsigned rank) {
  unsigned to, counted;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(kw_shared(place)), "r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(barrier), "r"(rank));
  if constexpr (COUNT == 4) {
    const float4 v = *reinterpret_cast<const float4*>(value);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(counted) : "memory");
  } else if constexpr (COUNT == 2) {
    const float2 v = *reinterpret_cast<const float2*>(value);
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "f"(v.x), "f"(v.y), "r"(counted) : "memory");
  } else {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 :: "r"(to), "f"(*value), "r"(counted) : "memory");
  }
}
// Waits as `kw_barrier_wait`, for what other blocks of the cluster have stored.
static __device__ __forceinline__ void kw_cluster_await(unsigned barrier, unsigned parity) {
  unsigned over;
  do {
    asm volatile(
        "{\n"
        "  .reg .pred over;\n"
        "  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n"
        "  selp.u32 %0, 1, 0, over;\n"
        "}"
        : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
  } while (!over);
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
