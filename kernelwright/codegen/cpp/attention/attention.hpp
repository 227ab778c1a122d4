// @NAME@: @COMMENT@
//
// Lanes of vectors are rows of queries, so that a row's greatest score and its sums stay in a lane, and an element of
// keys or values is one for all lanes. A block of rows goes through tiles of columns: their scores, their weights,
// which stay in the nearest cache, and the products of these with values. What was summed up before a tile is scaled
// where a row's greatest score grows (M. Milakov and N. Gimelshein, arXiv 1805.02867; T. Dao et al., arXiv 2205.14135).
namespace @NAME@_detail {
constexpr int64_t ROWS = @ROWS@, COLUMNS = @COLUMNS@, DEPTH = @DEPTH@, WIDTH = @WIDTH@;
constexpr bool SOFTMAX = @SOFTMAX@, CAUSAL = @CAUSAL@, EMPTY_ROWS = @EMPTY_ROWS@;
// Columns of a tile, and elements of queries at a time.
constexpr int64_t TILE = 64, PART = 128;
using real = float;
#ifdef __AVX512F__
constexpr int LANES = 16, MOST = 4, SUMS = 24;
#else
constexpr int LANES = 8, MOST = 2, SUMS = 12;
#endif
// Vectors of rows: blocks have V of them, or one less. SUMS vectors of sums stay in registers at a time.
constexpr int64_t VECTORS = (ROWS + LANES - 1) / LANES, BLOCKS = (VECTORS + MOST - 1) / MOST;
constexpr int V = int((VECTORS + BLOCKS - 1) / BLOCKS);
// Elements of queries and of values, as whole vectors.
constexpr int64_t DEEP = (DEPTH + LANES - 1) / LANES * LANES, WIDE = (WIDTH + LANES - 1) / LANES * LANES;
constexpr int64_t FULL = VECTORS - BLOCKS * (V - 1);
typedef float Vector __attribute__((vector_size(LANES * sizeof(float)), aligned(alignof(float)), may_alias));
typedef int32_t Bits __attribute__((vector_size(LANES * sizeof(float)), may_alias));

// What a call works on, and a point of the outer axes.
struct Call {
@MEMBERS@
};
struct Point {
@AXES@
};

@FUNCTIONS@
// The columns that a row has, and the first row that has a column.
static inline int64_t columns_of(int64_t i) {
@COLUMNS_OF@
}
static inline int64_t first_with(int64_t j) { return @FIRST_WITH@; }

// A vector of equal elements, and those at an address.
static inline Vector same(float x) { return x - Vector{}; }
static inline Vector& at_vector(float* x) { return *reinterpret_cast<Vector*>(x); }
static inline const Vector& at_vector(const float* x) { return *reinterpret_cast<const Vector*>(x); }

// Two vectors exchange elements: where those of the first and of the second one come from, for steps of 1, 2, 4 and 8.
struct Exchanged {
  int32_t first[4][LANES] = {}, second[4][LANES] = {};
  constexpr Exchanged() {
    for (int number = 0, step = 1; step < LANES; ++number, step *= 2)
      for (int n = 0; n < LANES; ++n) {
        first[number][n] = n & step ? LANES + n - step : n;
        second[number][n] = n & step ? LANES + n : n + step;
      }
  }
};
alignas(64) static constexpr Exchanged EXCHANGED;

// LANES x LANES elements, whose rows are as far apart as a pitch says, with rows as columns.
static inline void turn(const float* from, int64_t pitch, float* to, int64_t pitch_to) {
#ifdef __clang__
  for (int n = 0; n < LANES; ++n)
    for (int m = 0; m < LANES; ++m) to[m * pitch_to + n] = from[n * pitch + m];
#else
  Vector x[LANES];
  #pragma GCC unroll 16
  for (int n = 0; n < LANES; ++n) x[n] = at_vector(from + n * pitch);
  #pragma GCC unroll 4
  for (int number = 0, step = 1; step < LANES; ++number, step *= 2) {
    const Bits first = *reinterpret_cast<const Bits*>(EXCHANGED.first[number]);
    const Bits second = *reinterpret_cast<const Bits*>(EXCHANGED.second[number]);
    #pragma GCC unroll 16
    for (int n = 0; n < LANES; ++n)
      if (!(n & step)) {
        const Vector one = x[n], other = x[n + step];
        x[n] = __builtin_shuffle(one, other, first);
        x[n + step] = __builtin_shuffle(one, other, second);
      }
  }
  #pragma GCC unroll 16
  for (int n = 0; n < LANES; ++n) at_vector(to + n * pitch_to) = x[n];
#endif
}

// exp(x) for x <= 0, as kw_exp finds it; but what is hidden goes no way through numbers that are subnormal, and slow.
static inline Vector exponential(Vector x) {
  const auto none = x < -104.0f;
  x = none ? Vector{} : x;
  const Vector shifted = x * 1.44269504088896341f + 12582912.0f, n = shifted - 12582912.0f;
  const Vector r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vector p = same(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const Bits whole = (Bits)shifted - 0x4b400000, half = whole >> 1;
  return none ? Vector{} : p * (Vector)((half + 127) << 23) * (Vector)((whole - half + 127) << 23);
}

// Products of J keys with N vectors of rows over some elements, and those of P elements of values with weights over
// some columns, which are added up.
template <int N, int J>
static inline void multiply(const float* queries, const float* keys, int64_t depth, bool more, float* products) {
  Vector sums[J][N];
  #pragma GCC unroll 24
  for (int c = 0; c < J; ++c)
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[c][n] = more ? at_vector(products + (c * N + n) * LANES) : Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector query[N];
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) query[n] = at_vector(queries + (k * N + n) * LANES);
    #pragma GCC unroll 24
    for (int c = 0; c < J; ++c) {
      const float key = keys[@KEY_PLACE@];
      #pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[c][n] += query[n] * key;
    }
  }
  #pragma GCC unroll 24
  for (int c = 0; c < J; ++c)
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) at_vector(products + (c * N + n) * LANES) = sums[c][n];
}

template <int N, int P>
static inline void add(const float* weights, const float* values, int64_t columns, const Vector* kept, float* results) {
  Vector sums[P][N];
  #pragma GCC unroll 24
  for (int c = 0; c < P; ++c)
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[c][n] = Vector{};
  for (int64_t j = 0; j < columns; ++j) {
    Vector weight[N];
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) weight[n] = at_vector(weights + (j * N + n) * LANES);
    #pragma GCC unroll 24
    for (int c = 0; c < P; ++c) {
      const float value = values[@VALUE_PLACE@];
      #pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[c][n] += weight[n] * value;
    }
  }
  #pragma GCC unroll 24
  for (int c = 0; c < P; ++c)
    #pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      Vector& result = at_vector(results + (c * N + n) * LANES);
      result = result * kept[n] + sums[c][n];
    }
}

// The same of what is not finite somewhere: what a row does not have does not reach it.
static inline void add_shown(const float* weights, const float* values, int64_t row, int64_t rows, int64_t begin,
                             int64_t columns, int64_t pitch, const float* kept, float* results) {
  for (int64_t p = 0; p < WIDTH; ++p)
    for (int64_t u = 0; u < rows; ++u) {
      const int64_t shown = columns_of(row + u) - begin;
      float sum = 0.0f;
      for (int64_t j = 0; j < columns && j < shown; ++j) sum += weights[j * pitch + u] * values[@SHOWN_PLACE@];
      results[p * pitch + u] = results[p * pitch + u] * kept[u] + sum;
    }
}

// Scores of one column, made of the products that stand in their places. All that it calls is put in its place, or the
// loop would be no vector loop.
__attribute__((flatten)) static inline void score(const Call& call, const Point& at, int64_t row, int64_t count,
                                                  int64_t j@TURNED_PARAMETERS@, float* scores) {
  #pragma omp simd
  for (int64_t u = 0; u < count; ++u) scores[u] = score_at(call, at, row + u, j@TURNED_VALUES@, scores[u]);
}

static inline bool is_finite(const float* x, int64_t count) {
  float sum = 0.0f;
  #pragma omp simd reduction(+ : sum)
  for (int64_t n = 0; n < count; ++n) sum += x[n] * 0.0f;
  return sum == 0.0f;
}

// A block of at most N vectors of rows.
template <int N>
static void attend(const Call& call, const Point& at, int64_t row, int64_t rows) {
  constexpr int64_t PITCH = N * LANES;
  constexpr int MANY = SUMS / N, FEW = MANY / 3;
  alignas(64) float queries[DEEP * PITCH], weights[TILE * PITCH], results[WIDE * PITCH], some[LANES * TILE] = {};
@MEMORY@
  for (int64_t first = 0; first < PITCH; first += LANES)
    for (int64_t begin = 0; begin < DEPTH; begin += TILE) {
      const int64_t depth = DEPTH - begin < TILE ? DEPTH - begin : TILE;
      for (int64_t u = 0; u < LANES; ++u)
        for (int64_t k = 0; k < depth; ++k)
          some[u * TILE + k] = first + u < rows ? query_at(call, at, row + first + u, begin + k) : 0.0f;
      for (int64_t k = 0; k < depth; k += LANES) turn(some + k, TILE, queries + (begin + k) * PITCH + first, PITCH);
    }
  const int64_t shown = columns_of(row), end = columns_of(row + rows - 1);
  Vector top[N], total[N], kept[N];
  for (int n = 0; n < N; ++n) top[n] = same(-INFINITY), total[n] = Vector{}, kept[n] = same(1.0f);
  // Sums of weights that are not divided yet may leave the range. Then the greatest scores and sums of all are known.
  for (bool known = false;; known = true) {
    for (int64_t n = 0; n < WIDTH * PITCH; ++n) results[n] = 0.0f;
    for (int64_t begin = 0; begin < end; begin += TILE) {
      const int64_t columns = end - begin < TILE ? end - begin : TILE;
@KEYS@
      for (int64_t first = 0; first < DEPTH; first += PART) {
        const int64_t depth = DEPTH - first < PART ? DEPTH - first : PART;
        const float* const query = queries + first * PITCH;
        int64_t j = 0;
        for (; j + MANY <= columns; j += MANY)
          multiply<N, MANY>(query, keys + @KEY_BEGIN@, depth, first > 0, weights + j * PITCH);
        for (; j + FEW <= columns; j += FEW)
          multiply<N, FEW>(query, keys + @KEY_BEGIN@, depth, first > 0, weights + j * PITCH);
        for (; j < columns; ++j)
          multiply<N, 1>(query, keys + @KEY_BEGIN@, depth, first > 0, weights + j * PITCH);
      }
@TURN@
      for (int64_t j = 0; j < columns; ++j)
        score(call, at, row, @SCORED@, begin + j@TURNED_BEGIN@, weights + j * PITCH);
      const bool hides = CAUSAL && begin + columns > shown;
      if (hides)
        for (int64_t j = 0; j < columns; ++j) {
          const int64_t above = first_with(begin + j) - row, hidden = above < PITCH ? above : PITCH;
          for (int64_t u = 0; u < hidden; ++u) weights[j * PITCH + u] = SOFTMAX ? -INFINITY : 0.0f;
        }
      if (SOFTMAX) {
        Vector before[N], base[N], sum[N];
        for (int n = 0; n < N; ++n) before[n] = top[n], sum[n] = Vector{};
        if (!known)
          for (int64_t j = 0; j < columns; ++j)
            #pragma GCC unroll 4
            for (int n = 0; n < N; ++n) {
              const Vector x = at_vector(weights + (j * N + n) * LANES);
              top[n] = x > top[n] ? x : top[n];
            }
        for (int n = 0; n < N; ++n) {
          base[n] = top[n] == -INFINITY ? Vector{} : top[n];  // a row without weights so far
          kept[n] = known ? same(1.0f) : exponential(before[n] - base[n]);
        }
        for (int64_t j = 0; j < columns; ++j)
          #pragma GCC unroll 4
          for (int n = 0; n < N; ++n) {
            Vector& weight = at_vector(weights + (j * N + n) * LANES);
            weight = exponential(weight - base[n]);
            sum[n] += weight;
          }
        for (int n = 0; n < N; ++n) total[n] = known ? total[n] : total[n] * kept[n] + sum[n];
        if (known)
          for (int64_t j = 0; j < columns; ++j)
            for (int n = 0; n < N; ++n) at_vector(weights + (j * N + n) * LANES) /= total[n];
      }
@VALUES@
      bool finite = true;
      if (hides) {
        float sum = 0.0f;
        for (int64_t j = 0; j < columns; ++j)
          #pragma omp simd reduction(+ : sum)
          for (int64_t p = 0; p < WIDTH; ++p) sum += values[@SHOWN_PLACE@] * 0.0f;
        finite = sum == 0.0f;
      }
      if (!finite) {
        add_shown(weights, values, row, rows, begin, columns, PITCH, reinterpret_cast<const float*>(kept), results);
        continue;
      }
      int64_t p = 0;
      for (; p + MANY <= WIDTH; p += MANY)
        add<N, MANY>(weights, values + @VALUE_BEGIN@, columns, kept, results + p * PITCH);
      for (; p + FEW <= WIDTH; p += FEW)
        add<N, FEW>(weights, values + @VALUE_BEGIN@, columns, kept, results + p * PITCH);
      for (; p < WIDTH; ++p) add<N, 1>(weights, values + @VALUE_BEGIN@, columns, kept, results + p * PITCH);
    }
    if (SOFTMAX)
      for (int n = 0; n < N; ++n) {
        kept[n] = known ? same(1.0f) : 1.0f / total[n];
        if (EMPTY_ROWS) kept[n] = total[n] == 0.0f ? Vector{} : kept[n];
      }
    if (!SOFTMAX || known || is_finite(results, WIDTH * PITCH)) break;
  }
  for (int64_t p = 0; p < WIDTH; p += LANES)
    for (int n = 0; n < N; ++n) {
      for (int64_t c = p; c < p + LANES && c < WIDTH; ++c) at_vector(results + (c * N + n) * LANES) *= kept[n];
      turn(results + (p * N + n) * LANES, PITCH, some, LANES);
      const int64_t width = WIDTH - p < LANES ? WIDTH - p : LANES;
      for (int64_t u = 0; u < LANES && n * LANES + u < rows; ++u) {
        const int64_t i = row + n * LANES + u;
        if (width == LANES) {
          for (int c = 0; c < LANES; ++c) call.out0[result_at(call, at, i, p + c)] = some[u * LANES + c];
        } else {
          for (int64_t c = 0; c < width; ++c) call.out0[result_at(call, at, i, p + c)] = some[u * LANES + c];
        }
      }
    }
}
}  // namespace @NAME@_detail

static const char* @NAME@(@PARAMETERS@, void* workspace) {
  using namespace @NAME@_detail;
  (void)workspace;
  const Call call = {@POINTERS@};
  #pragma omp parallel for schedule(dynamic)@IF@
  for (int64_t task = 0; task < @BATCH@ * BLOCKS; ++task) {
    const int64_t point = task / BLOCKS, block = task % BLOCKS;
@POINT@
    const Point at = {@OUTER@};
    const int64_t full = block < FULL ? block : FULL, row = (full * V + (block - full) * (V - 1)) * LANES;
    const int64_t most = (block < FULL ? V : V - 1) * LANES, rows = ROWS - row < most ? ROWS - row : most;
    if (block < FULL) attend<V>(call, at, row, rows);
    else if constexpr (V > 1 && FULL < BLOCKS) attend<V - 1>(call, at, row, rows);
  }
  return nullptr;
}
