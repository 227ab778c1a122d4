// Position of the calling thread in its block, x fastest.
static __device__ __forceinline__ unsigned kw_thread_rank() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
