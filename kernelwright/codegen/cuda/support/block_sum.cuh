// Sum over all threads of a block, returned to every thread; every thread of the block calls it. The block's
// thread count is a multiple of 32. The order of additions is fixed, so equal inputs give equal bits.
template <typename T>
static __device__ __forceinline__ T kw_block_sum(T value) {
  __shared__ T partial[32];
  const unsigned rank = kw_thread_rank();
  const unsigned lane = rank % 32u;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32u;
  value = kw_warp_sum(value);
  if (lane == 0) partial[rank / 32u] = value;
  __syncthreads();
  value = kw_warp_sum(lane < warps ? partial[lane] : T(0));
  __syncthreads();  // The next call may overwrite `partial`.
  return value;
}
