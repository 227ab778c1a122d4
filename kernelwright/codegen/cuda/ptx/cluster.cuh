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
// The same in two halves, between which a thread may do what no other one waits for.
static __device__ __forceinline__ void kw_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
static __device__ __forceinline__ void kw_cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Stores a value at the same place of shared memory in the cluster's block `rank`.
static __device__ __forceinline__ void kw_cluster_store(float* place, float value, unsigned rank) {
  asm volatile(
      "{\n"
      "  .reg .b32 remote;\n"
      "  mapa.shared::cluster.u32 remote, %0, %1;\n"
      "  st.shared::cluster.f32 [remote], %2;\n"
      "}"
      :: "r"(kw_shared(place)), "r"(rank), "f"(value) : "memory");
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
