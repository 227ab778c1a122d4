// @COMMENT@
//
// A thread has one element and takes it through all steps; what several steps read is asked for at once.
namespace @NAME@_detail {
constexpr int STEPS = @STEPS@;
constexpr long long POINTS = @POINTS@;
@CONSTANTS@
constexpr int AHEAD = @AHEAD@;  // steps that are read at once

@INITIAL@
@STEP@
}  // namespace @NAME@_detail

static __global__ void __launch_bounds__(@THREADS@) @NAME@_core(@PARAMETERS@) {
  using namespace @NAME@_detail;
  const long long point = static_cast<long long>(blockIdx.x) * @THREADS@ + threadIdx.x;
  if (point >= POINTS) return;
@DECODE@
  float state[STATES], still[STILL], x[AHEAD][MOVING], y[STORES];
@BEGIN@
#pragma unroll 1
  for (int begin = 0; begin < STEPS; begin += AHEAD) {
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      const int n = begin + a;
      if (n < STEPS) {
@READ@
      }
    }
#pragma unroll
    for (int a = 0; a < AHEAD; ++a) {
      const int n = begin + a;
      if (n < STEPS) {
        step(x[a], still, state, y);
@WRITE@
      }
    }
  }
}

@HEAD@
  using namespace @NAME@_detail;
  (void)workspace;
  KW_LAUNCH("@NAME@", @NAME@_core, @GRID@, @THREADS@, 0, stream, @ARGUMENTS@);
  return nullptr;
}
