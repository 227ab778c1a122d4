static __global__ void __launch_bounds__(@THREADS@, @RESIDENT@) @NAME@_core(
    @PARAMETERS@) {
@CONSTANTS@
@SECOND_RUN@  KW_DYNAMIC_SHARED(unsigned char, shared);@INIT_SHARED@
@ADDRESSES@
  if (threadIdx.x == 0) {
@INIT_BARRIERS@
    kw_barriers_ready();
  }
  @START@
  // From lane 0, so that the compiler knows that warps do not part.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0), lane = threadIdx.x % 32;@PLACE@
@PRODUCERS@ else {  // the consumers
@CONSUMERS@
  }@END@
}
