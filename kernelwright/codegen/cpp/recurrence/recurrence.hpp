// @NAME@: @COMMENT@
//
// The weights are packed once a call: a panel has all gates of some elements of the state, in vectors, one after the
// other for each element that they are multiplied by. A panel is multiplied by several rows of the batch at once, whose
// sums stay in registers, and what follows is computed there. Threads have rows of the batch to themselves, or share
// them by panels and meet after each step.
namespace @NAME@_detail {
constexpr int64_t STEPS = @STEPS@, BATCH = @BATCH@, HIDDEN = @HIDDEN@;
constexpr int GATES = @GATES@;
constexpr bool FROM_ZERO = @FROM_ZERO@;  // whether the state is zero before the first step
using real = float;
#ifdef __AVX512F__
constexpr int LANES = 16, REGISTERS = 32;
#else
constexpr int LANES = 8, REGISTERS = 16;
#endif
// Vectors of a panel for each gate, and in all; where there is one gate, more of them use what is loaded of a state.
constexpr int BLOCKS = GATES > 1 || HIDDEN <= LANES ? 1 : HIDDEN <= 2 * LANES ? 2 : 4;
constexpr int COLUMNS = GATES * BLOCKS, UNITS = BLOCKS * LANES;
constexpr int64_t PANELS = (HIDDEN + UNITS - 1) / UNITS, PANEL_SIZE = HIDDEN * COLUMNS * LANES;
constexpr int FIT = (REGISTERS - COLUMNS - 1) / COLUMNS, ROWS = FIT < 8 ? FIT : 8;
static_assert(PANELS * PANEL_SIZE <= @PACKED@, "the packed weights fit into the workspace");
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(alignof(float)), may_alias));

// What a call works on. Rows of states are HIDDEN apart.
struct Call {
@MEMBERS@
  float* packed;
  float* finite;   // of each panel, whether all of its weights are: products with zeros are zero then
  float* initial;  // state
  float* states;   // that is multiplied
};

// Where among the states the one after step n is.
static inline int64_t place(int64_t n) {
  return @PLACE@;
}

// Panel number `panel` of the weights, with zeros for elements that the state does not have.
static inline void pack(const Call& call, int64_t panel) {
  float* packed = call.packed + panel * PANEL_SIZE;
  for (int column = 0; column < COLUMNS; ++column) {
    const int gate = column / BLOCKS;
    const int64_t first = panel * UNITS + column % BLOCKS * LANES;
    const float* rows = @ROWS@;
    for (int64_t begin = 0; begin < HIDDEN; begin += 16) {
      const int64_t end = begin + 16 < HIDDEN ? begin + 16 : HIDDEN;
      for (int lane = 0; lane < LANES; ++lane) {
        float* to = packed + column * LANES + lane;
        if (first + lane < HIDDEN) {
          const float* from = rows + (first + lane) * HIDDEN;
          for (int64_t k = begin; k < end; ++k) to[k * COLUMNS * LANES] = from[k];
        } else {
          for (int64_t k = begin; k < end; ++k) to[k * COLUMNS * LANES] = 0.0f;
        }
      }
    }
  }
  if (FROM_ZERO) {
    float sum = 0.0f;  // of zeros, but where a weight is no number
    #pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < PANEL_SIZE; ++n) sum += packed[n] * 0.0f;
    call.finite[panel] = sum == 0.0f;
  }
}

// States of `count` elements after a step, from the products, UNITS apart, and all else that lies at these elements.
// All that it calls is put in its place, or the loop would be no vector loop.
__attribute__((flatten)) static inline void update(@GIVEN@, int64_t count) {
  (void)before;
  #pragma omp simd
  for (int64_t u = 0; u < count; ++u) {
@UPDATE@
  }
}

// One step for R rows from `row` on and the elements of one panel.
template <int R>
static inline void advance(const Call& call, int64_t n, int64_t row, int64_t panel) {
  const float* state = (n > 0 ? call.states + place(n - 1) : call.initial) + row * HIDDEN;
  // Loops over sums are unrolled, or they would not stay in registers.
  Vector sums[R][COLUMNS];
  #pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    #pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) sums[r][c] = Vector{};
  if (!FROM_ZERO || n > 0 || !call.finite[panel]) {
    const float* weights = call.packed + panel * PANEL_SIZE;
    for (int64_t k = 0; k < HIDDEN; ++k) {
      const Vector* loaded = reinterpret_cast<const Vector*>(weights + k * COLUMNS * LANES);
      Vector w[COLUMNS];
      #pragma GCC unroll 8
      for (int c = 0; c < COLUMNS; ++c) w[c] = loaded[c];
      #pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const float h = state[r * HIDDEN + k];
        #pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; ++c) sums[r][c] += w[c] * h;
      }
    }
  }
  alignas(64) float products[R][GATES * UNITS];
  #pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
    #pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) reinterpret_cast<Vector*>(products[r])[c] = sums[r][c];
  const int64_t first = panel * UNITS, count = HIDDEN - first < UNITS ? HIDDEN - first : UNITS;
  for (int r = 0; r < R; ++r) {
@POINTERS@
    if (count == UNITS)
      update(@NAMES@, UNITS);
    else
      update(@NAMES@, count);
  }
}

template <int R>
static inline void advance_rows(int64_t count, const Call& call, int64_t n, int64_t row, int64_t panel) {
  if (count == R) {
    advance<R>(call, n, row, panel);
  } else if constexpr (R > 1) {
    advance_rows<R - 1>(count, call, n, row, panel);
  }
}

// How threads share the work: `teams` have rows of their own, and `parts` of a team have panels.
struct Shares {
  int64_t teams, parts;
};

static inline Shares shares(int64_t threads) {
  // Vector operations of a thread's step: multiply-adds, and loads of the weights for each block of rows.
  constexpr double LOADS = 2.0, MEETING = 3000.0;
  Shares best = {1, 1};
  double least = -1.0;
  for (int64_t teams = 1; teams <= threads && teams <= BATCH; ++teams) {
    for (int64_t parts : {int64_t(1), threads / teams}) {
      if (parts > PANELS) parts = PANELS;
      const double rows = double((BATCH + teams - 1) / teams), blocks = double((int64_t(rows) + ROWS - 1) / ROWS);
      const double panels = double((PANELS + parts - 1) / parts);
      const double cost = panels * HIDDEN * COLUMNS * (rows + LOADS * blocks) + (parts > 1 ? MEETING : 0.0);
      if (least < 0.0 || cost < least) {
        least = cost;
        best = {teams, parts};
      }
    }
  }
  return best;
}
}  // namespace @NAME@_detail

static const char* @NAME@(@PARAMETERS@, void* workspace) {
  using namespace @NAME@_detail;
  float* packed = static_cast<float*>(workspace);
  const Call call = {@VALUES@, packed, packed + @PACKED@, const_cast<float*>(@INITIAL@), @STATES@};
  #pragma omp parallel@IF@
  {
    const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    const Shares share = shares(threads);
    for (int64_t number = thread; number < PANELS; number += threads)
      pack(call, number);
@BEGIN@
    #pragma omp barrier
    const int64_t team = thread / share.parts, part = thread % share.parts;
    const bool works = team < share.teams;
    const int64_t row = works ? BATCH * team / share.teams : 0;
    const int64_t rows = works ? BATCH * (team + 1) / share.teams - row : 0;
    const int64_t panel = PANELS * part / share.parts, panels = PANELS * (part + 1) / share.parts;
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    for (int64_t n = 0; n < STEPS; ++n) {
      for (int64_t p = panel; p < panels; ++p)
        for (int64_t block = 0; block < blocks; ++block) {
          const int64_t begin = rows * block / blocks, end = rows * (block + 1) / blocks;
          advance_rows<ROWS>(end - begin, call, n, row + begin, p);
        }
      if (share.parts > 1) {
        #pragma omp barrier
      }
    }
  }
  return nullptr;
}
