// @COMMENT@
//
// @WHO@ rows of the batch for all steps. Each block has @UNITS@ elements of the
// state and the weights for them, in registers and as far as needed in shared memory: @SLICES@ neighbouring threads
// share an element, and each has all gates of it by every @SLICES@th four elements of the state. @AFTER@
namespace @NAME@_detail {
constexpr int STEPS = @STEPS@, BATCH = @BATCH@, HIDDEN = @HIDDEN@, GATES = @GATES@;
@CONSTANTS@
constexpr int CLUSTER = @CLUSTER@, THREADS = @THREADS@, UNITS = @UNITS@, SLICES = @SLICES@, OWN = @OWN@;
constexpr int QUADS = @QUADS@, HELD = @HELD@;  // four weights each: of a thread; in its registers, not in shared memory
constexpr int ROWS = @ROWS@, TOGETHER = @TOGETHER@;  // of a cluster; those that are multiplied at once
constexpr int CLUSTERS = (BATCH + ROWS - 1) / ROWS, GROUPS = THREADS / SLICES, PADDED = 4 * QUADS * SLICES;
constexpr int BLOCKS = (ROWS + TOGETHER - 1) / TOGETHER;  // of rows that are multiplied at once
constexpr int SUMS = TOGETHER * OWN * GATES;  // of a group of threads for these
constexpr int BUFFERS = @BUFFERS@, SHARED_STATES = BUFFERS * ROWS * PADDED;  // by turns
constexpr int WEIGHTS = 4 * (QUADS - HELD) * OWN * GATES * THREADS;
constexpr int SHARED_SUMS = (BLOCKS * GROUPS * SUMS + 1) / 2 * 2;
constexpr int SHARED_BYTES = 4 * (WEIGHTS + SHARED_STATES + SHARED_SUMS)@BARRIER_BYTES@;
constexpr int WARP_GROUPS = 32 / SLICES, WARP_UNITS = WARP_GROUPS * OWN;  // of a warp
constexpr int PAIRS = WARP_UNITS * ROWS, EACH = (PAIRS + 31) / 32;  // of a row and an element; of a warp, of its threads
constexpr int AHEAD = @AHEAD@;  // steps by which the second-level cache is asked for what a step reads
constexpr int CHAINS = SUMS >= 4 ? 1 : SUMS == 1 ? 4 : 2;  // sums of a product, so that adding waits for none
constexpr int SPREAD = SUMS <= 1 ? 1 : SUMS <= 2 ? 2 : SUMS <= 4 ? 4 : SUMS <= 8 ? 8 : SUMS <= 16 ? 16 : 32;
static_assert(SUMS <= 32, "sums stay in registers");

// Where the weights of an element's gate begin.
static __device__ __forceinline__ const float* weights_of(int gate, int unit, @WEIGHTS_GIVEN@) {
  return @WEIGHTS_FROM@;
}

// Four weights of a row, with zeros where the row ends, or where there is none.
static __device__ __forceinline__ float4 four(const float* row, int k, bool there) {
  return make_float4(there && k < HIDDEN ? row[k] : 0.0f, there && k + 1 < HIDDEN ? row[k + 1] : 0.0f,
                     there && k + 2 < HIDDEN ? row[k + 2] : 0.0f, there && k + 3 < HIDDEN ? row[k + 3] : 0.0f);
}

// Sums over LANES neighbouring threads of COUNT values (a power of two) each: a thread gets COUNT / LANES of them, in
// the order of the threads, or several threads the same one.
template <int LANES, int COUNT>
static __device__ __forceinline__ void spread_sums(float (&value)[SPREAD], unsigned lane) {
  if constexpr (LANES > 1) {
    const bool upper = lane & (LANES / 2);
    if constexpr (COUNT > 1) {
#pragma unroll
      for (int n = 0; n < COUNT / 2; ++n) {
        const float kept = upper ? value[COUNT / 2 + n] : value[n], given = upper ? value[n] : value[COUNT / 2 + n];
        value[n] = kept + __shfl_xor_sync(0xffffffffu, given, LANES / 2);
      }
    } else {
      value[0] += __shfl_xor_sync(0xffffffffu, value[0], LANES / 2);
    }
    spread_sums<LANES / 2, (COUNT > 1 ? COUNT / 2 : 1)>(value, lane);
  }
}

@INITIAL@
@STEP@
@RECEIVE@}  // namespace @NAME@_detail

static __global__ void __launch_bounds__(@THREADS@, 1) @NAME@_core(
    @PARAMETERS@) {
  using namespace @NAME@_detail;
  KW_DYNAMIC_SHARED(float, shared);
  float4* const weights = reinterpret_cast<float4*>(shared) + threadIdx.x;  // this thread's, THREADS apart
  float* const states = shared + WEIGHTS;
  float* const sums = states + SHARED_STATES + threadIdx.x / 32 * (BLOCKS * WARP_GROUPS * SUMS);  // of this warp
  const unsigned thread = threadIdx.x, warp = thread / 32, lane = thread % 32, slice = thread % SLICES;
  const int cluster = blockIdx.x / CLUSTER, rank = @RANK@;
  const int first_row = cluster * ROWS, rows = BATCH - first_row < ROWS ? BATCH - first_row : ROWS;
  const int first = rank * UNITS, count = HIDDEN - first < UNITS ? HIDDEN - first : UNITS;
  const int first_unit = warp * WARP_UNITS;

  float4 own[OWN][GATES][HELD > 0 ? HELD : 1];
#pragma unroll
  for (int v = 0; v < OWN; ++v) {
    const int unit = first_unit + v * WARP_GROUPS + lane / SLICES;
#pragma unroll
    for (int g = 0; g < GATES; ++g)
#pragma unroll
      for (int q = 0; q < QUADS; ++q) {
        const float4 w = four(weights_of(g, first + unit, @WEIGHTS@), 4 * (q * SLICES + slice), unit < count);
        if (q < HELD) {
          own[v][g][q < HELD ? q : 0] = w;
        } else {
          weights[(((q - HELD) * OWN + v) * GATES + g) * THREADS] = w;
        }
      }
  }

  // The first state as it is given, and zeros where no element is written.
  for (int place = thread; place < SHARED_STATES; place += THREADS) {
    const int row = place / PADDED, k = place % PADDED;
    states[place] = row < rows && k < HIDDEN ? @FIRST_STATE@ : 0.0f;
  }
  // Of each pair of this thread: it keeps its states, and asks for what it reads anew one step ahead.
  float own_state[EACH][STATES], still[EACH][STILL], x[EACH][MOVING];
#pragma unroll
  for (int e = 0; e < EACH; ++e) {
    const int pair = lane + 32 * e, own_row = pair / WARP_UNITS, row = first_row + own_row;
    const int own_unit = first_unit + pair % WARP_UNITS, unit = first + own_unit;
    const bool there = pair < PAIRS && own_row < rows && own_unit < count;
@BEGIN@
  }
@MEET@
#pragma unroll 1
  for (int n = 0; n < STEPS; ++n) {
    const float* const state = states + n % BUFFERS * ROWS * PADDED;
    float* const next = states + (n + 1) % BUFFERS * ROWS * PADDED;
@AWAIT@#pragma unroll 1
    for (int block = 0; block < BLOCKS; ++block) {
      const int row = block * TOGETHER;
      if (row >= rows) break;
      float sum[CHAINS][SPREAD];
#pragma unroll
      for (int c = 0; c < CHAINS; ++c)
#pragma unroll
        for (int s = 0; s < SPREAD; ++s) sum[c][s] = 0.0f;
#pragma unroll
      for (int q = 0; q < QUADS; ++q) {
        float4 h[TOGETHER];
#pragma unroll
        for (int r = 0; r < TOGETHER; ++r) {
          // A row that is not there reads one that is, and its sums are not used.
          const int there = row + r < ROWS ? row + r : ROWS - 1;
          h[r] = *reinterpret_cast<const float4*>(state + there * PADDED + 4 * (q * SLICES + slice));
        }
#pragma unroll
        for (int v = 0; v < OWN; ++v)
#pragma unroll
          for (int g = 0; g < GATES; ++g) {
            const float4 w = q < HELD ? own[v][g][q < HELD ? q : 0]
                                      : weights[(((q - HELD) * OWN + v) * GATES + g) * THREADS];
#pragma unroll
            for (int r = 0; r < TOGETHER; ++r) {
              const int s = (r * OWN + v) * GATES + g;
              sum[0][s] = fmaf(w.x, h[r].x, sum[0][s]);
              sum[1 % CHAINS][s] = fmaf(w.y, h[r].y, sum[1 % CHAINS][s]);
              sum[2 % CHAINS][s] = fmaf(w.z, h[r].z, sum[2 % CHAINS][s]);
              sum[3 % CHAINS][s] = fmaf(w.w, h[r].w, sum[3 % CHAINS][s]);
            }
          }
      }
#pragma unroll
      for (int c = CHAINS - 1; c > 0; --c)
#pragma unroll
        for (int s = 0; s < SPREAD; ++s) sum[c - 1][s] += sum[c][s];
      spread_sums<SLICES, SPREAD>(sum[0], slice);
      constexpr int LEFT = SPREAD > SLICES ? SPREAD / SLICES : 1, SAME = SLICES > SPREAD ? SLICES / SPREAD : 1;
#pragma unroll
      for (int l = 0; l < LEFT; ++l) {
        const int s = slice / SAME * LEFT + l;
        if (s < SUMS && slice % SAME == 0) sums[(block * WARP_GROUPS + lane / SLICES) * SUMS + s] = sum[0][l];
      }
    }
    __syncwarp();
    float y[EACH][STORES];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int pair = lane + 32 * e, own_row = pair / WARP_UNITS;
      const int own_unit = first_unit + pair % WARP_UNITS;
      if (pair < PAIRS && own_row < rows && own_unit < count) {
        const float* const from = sums + (own_row / TOGETHER * WARP_GROUPS + pair % WARP_GROUPS) * SUMS
                                  + (own_row % TOGETHER * OWN + pair % WARP_UNITS / WARP_GROUPS) * GATES;
        float gate[GATES];
#pragma unroll
        for (int g = 0; g < GATES; ++g) gate[g] = from[g];
        step(x[e], still[e], gate, own_state[e], y[e]);
@SEND@      }
    }
@SENT@#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const int pair = lane + 32 * e, own_row = pair / WARP_UNITS;
      const int own_unit = first_unit + pair % WARP_UNITS, unit = first + own_unit, row = first_row + own_row;
      if (pair < PAIRS && own_row < rows && own_unit < count) {
@WRITE@
        if (n + 1 < STEPS) {
@READ@
        }
        if (n + AHEAD < STEPS) {
@PREFETCH@
        }
      }
    }
@TURN@  }
}

@HEAD@
  using namespace @NAME@_detail;
@LAUNCH@
  return nullptr;
}
