// Maximum over all threads of a block, NaN when any thread holds one, returned to every thread; every thread
// of the block calls it. T is float or double; the block's thread count is a multiple of 32.
template <typename T>
static __device__ __forceinline__ T kw_block_max(T value) {
  __shared__ T partial[32];
  const unsigned rank = kw_thread_rank();
  const unsigned lane = rank % 32u;
  const unsigned warps = blockDim.x * blockDim.y * blockDim.z / 32u;
  value = kw_warp_max(value);
  if (lane == 0) partial[rank / 32u] = value;
  __syncthreads();
  value = kw_warp_max(lane < warps ? partial[lane] : static_cast<T>(-INFINITY));
  __syncthreads();  // The next call may overwrite `partial`.
  return value;
}
