// @COMMENT@
// A block brings tiles of both operands to shared memory, @STEP@ points of depth at a time, each in the order in which
// memory has it. A thread has the sums of @ROWS_EACH@ rows and @COLUMNS_EACH@ columns in registers.
namespace @NAME@_detail {
@VALUES@
}  // namespace @NAME@_detail

static __global__ void __launch_bounds__(@THREADS@) @NAME@_core(@PARAMETERS@) {
  using namespace @NAME@_detail;
  __shared__ __align__(16) float lefts[@LEFT_FLOATS@], rights[@RIGHT_FLOATS@];
  const int thread = threadIdx.x;
@TILE@
@OWN@
  float sums[@ROWS_EACH@][@COLUMNS_EACH@] = {};
@EACH_STEP@
@LOAD_LEFT@
@LOAD_RIGHT@
    __syncthreads();
@IF_OWN@
      const float* const left_tile = @LEFT_TILE@;
      const float* const right_tile = @RIGHT_TILE@;
#pragma unroll 2
      for (int k = 0; k < @STEP@; k += 4) {
        float a[@ROWS_EACH@][4], b[@COLUMNS_EACH@][4];
@READ_LEFT@
@READ_RIGHT@
#pragma unroll
        for (int e = 0; e < 4; ++e) {
#pragma unroll
          for (int r = 0; r < @ROWS_EACH@; ++r) {
#pragma unroll
            for (int c = 0; c < @COLUMNS_EACH@; ++c) sums[r][c] = fmaf(a[r][e], b[c][e], sums[r][c]);
          }
        }
      }
    }
@AFTER_STEP@  }
@LEAVE@@STORE@
}

@HEAD@
@LAUNCH@
  return nullptr;
}
