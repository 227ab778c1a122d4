"""C++ text of the spectral energy, steps 3 and 4: weights, quadratic form, host function."""

from __future__ import annotations

QUADRATIC = r"""
// ---- weights and quadratic form, in double ----
// A column is an output channel in one phase; COLUMNS of them form a block of one phase.
constexpr int COLUMNS = 8;
constexpr int VALUE = 2 * COLUMNS;           // doubles of one complex value of a column block
constexpr int PADDED_CHANNELS = BLOCKS * LANES;
constexpr int GRID_HALF = LAG2 + 1;          // g2 = 0 .. LAG2; the others are mirrors
constexpr int64_t GRID_LINES = int64_t(GRID0) * GRID1;   // points (g0, g1)
constexpr int OUT_BLOCKS = (OUT_CHANNELS + COLUMNS - 1) / COLUMNS;
constexpr int NATIVE_DOUBLE = NATIVE / 2;
constexpr int DOUBLE_PARTS = COLUMNS / NATIVE_DOUBLE;
constexpr int FORM_ROWS = DOUBLE_PARTS == 1 ? 4 : 2;
typedef double DoubleVector __attribute__((vector_size(NATIVE_DOUBLE * sizeof(double))));
inline DoubleVector load(const double* p) { return *reinterpret_cast<const DoubleVector*>(p); }
inline void store(double* p, DoubleVector v) { *reinterpret_cast<DoubleVector*>(p) = v; }

// cos and sin of 2 pi g offset / GRID: [tap][g][2], taps in the order of their phases.
std::vector<double> tap_table(const int64_t* offsets, int taps, int grid) {
    std::vector<double> table(size_t(taps) * grid * 2);
    for (int t = 0; t < taps; ++t)
        for (int64_t g = 0; g < grid; ++g) {
            const double angle = 2.0 * M_PI * double(((offsets[t] % grid + grid) * g) % grid) / double(grid);
            table[(size_t(t) * grid + g) * 2] = std::cos(angle);
            table[(size_t(t) * grid + g) * 2 + 1] = std::sin(angle);
        }
    return table;
}

// out[column] += (re + i im)[column] * exp(-i angle)
inline void rotate_add(double* out, const double* in, const double* turn) {
    for (int p = 0; p < COLUMNS; p += NATIVE_DOUBLE) {
        const DoubleVector re = load(in + p), im = load(in + COLUMNS + p);
        store(out + p, load(out + p) + re * turn[0] + im * turn[1]);
        store(out + COLUMNS + p, load(out + COLUMNS + p) + im * turn[0] - re * turn[1]);
    }
}

// What(g)[c] of one channel and column block: out + ((g0 * GRID1 + g1) * GRID_HALF + g2) * out_stride.
constexpr int64_t GRID_PLANE = int64_t(GRID1) * GRID_HALF;
constexpr int64_t WEIGHT_SCRATCH = VALUE * (1 + int64_t(TAPS1) * GRID_HALF + TAPS0 * GRID_PLANE);
void transform_weights(const Tables& tables, const float* weight, int group, int channel, int column_block,
                       double* out, int64_t out_stride, double* scratch) {
    if (channel >= CHANNELS) {
        for (int64_t g = 0; g < GRID0 * GRID_PLANE; ++g)
            std::memset(out + g * out_stride, 0, VALUE * sizeof(double));
        return;
    }
    const int phase = column_block / OUT_BLOCKS, first = column_block % OUT_BLOCKS * COLUMNS;
    const int phase0 = phase / PHASES2 / PHASES1, phase1 = phase / PHASES2 % PHASES1;
    const int phase2 = phase % PHASES2;
    const int begin0 = PHASE_START0[phase0], taps0 = PHASE_START0[phase0 + 1] - begin0;
    const int begin1 = PHASE_START1[phase1], taps1 = PHASE_START1[phase1 + 1] - begin1;
    const int begin2 = PHASE_START2[phase2], taps2 = PHASE_START2[phase2 + 1] - begin2;
    const int columns = OUT_CHANNELS - first < COLUMNS ? OUT_CHANNELS - first : COLUMNS;
    // The weight of tap 0 of the block's first column, and the distance of its columns.
    constexpr int64_t TAPS = int64_t(TAPS0) * TAPS1 * TAPS2;
    constexpr int64_t COLUMN_STRIDE = (TRANSPOSED ? 1 : CHANNELS) * TAPS;
    weight += TRANSPOSED ? ((int64_t(group) * CHANNELS + channel) * OUT_CHANNELS + first) * TAPS
                         : ((int64_t(group) * OUT_CHANNELS + first) * CHANNELS + channel) * TAPS;
    double* value = scratch;                                    // one tap of the block's columns
    double* line = value + VALUE;                               // [t1][g2]
    double* plane = line + int64_t(TAPS1) * GRID_HALF * VALUE;  // [t0][g1][g2]
    std::memset(value, 0, VALUE * sizeof(double));
    std::memset(plane, 0, sizeof(double) * taps0 * GRID_PLANE * VALUE);
    for (int t0 = 0; t0 < taps0; ++t0) {
        std::memset(line, 0, sizeof(double) * taps1 * GRID_HALF * VALUE);
        for (int t1 = 0; t1 < taps1; ++t1)
            for (int t2 = 0; t2 < taps2; ++t2) {
                const int64_t row = int64_t(TAP0[begin0 + t0]) * TAPS1 + TAP1[begin1 + t1];
                const float* tap = weight + row * TAPS2 + TAP2[begin2 + t2];
                for (int u = 0; u < columns; ++u) value[u] = tap[u * COLUMN_STRIDE];
                for (int g2 = 0; g2 < GRID_HALF; ++g2)
                    rotate_add(line + (t1 * GRID_HALF + g2) * VALUE, value,
                               &tables.tap2[((begin2 + t2) * GRID2 + g2) * 2]);
            }
        for (int t1 = 0; t1 < taps1; ++t1)
            for (int g1 = 0; g1 < GRID1; ++g1)
                for (int g2 = 0; g2 < GRID_HALF; ++g2)
                    rotate_add(plane + (t0 * GRID_PLANE + g1 * GRID_HALF + g2) * VALUE,
                               line + (t1 * GRID_HALF + g2) * VALUE,
                               &tables.tap1[((begin1 + t1) * GRID1 + g1) * 2]);
    }
    for (int g0 = 0; g0 < GRID0; ++g0)
        for (int64_t g = 0; g < GRID_PLANE; ++g) {
            alignas(64) double sum[VALUE] = {};
            for (int t0 = 0; t0 < taps0; ++t0)
                rotate_add(sum, plane + (t0 * GRID_PLANE + g) * VALUE,
                           &tables.tap0[((begin0 + t0) * GRID0 + g0) * 2]);
            std::memcpy(out + (g0 * GRID_PLANE + g) * out_stride, sum, sizeof sum);
        }
}

// The last fold: Ahat(g) of one pair of blocks, times `weight`; own and mirror point at g and -g of
// axes 0 and 1 for f2 = 0. out [2][LANES][LANES].
void fold_pair(const Tables& tables, const Folded* own, const Folded* mirror, int g2, double weight,
               double* out) {
    for (int i = 0; i < PAIR; ++i) out[i] = 0.0;
    for (int f2 = 0; f2 < HALF; ++f2) {
        const double p = weight * tables.own2[size_t(f2) * GRID_HALF + g2];
        const double m = weight * tables.mirror2[size_t(f2) * GRID_HALF + g2];
        const Folded* a = own + f2 * FOLDED_STRIDE;
        const Folded* b = mirror + f2 * FOLDED_STRIDE;
        for (int i = 0; i < PAIR / 2; ++i) out[i] += p * a[i] + m * b[i];
        for (int i = PAIR / 2; i < PAIR; ++i) out[i] += p * a[i] - m * b[i];
    }
}

// sum[column] += Re(conj(What[i]) * A[i][j] * What[j]) over i of block `row` and j of the blocks
// first .. first + count - 1; what [channel][2][COLUMNS], a [block][2][LANES][LANES].
void quadratic_form(const double* a, const double* what, int row, int first, int count, double* sum) {
    DoubleVector total[DOUBLE_PARTS] = {};
    for (int i = 0; i < LANES; i += FORM_ROWS) {
        DoubleVector re[FORM_ROWS][DOUBLE_PARTS] = {}, im[FORM_ROWS][DOUBLE_PARTS] = {};
        for (int block = 0; block < count; ++block)
            for (int j = 0; j < LANES; ++j) {
                const double* w = what + ((first + block) * LANES + j) * VALUE;
                const double* entry = a + block * PAIR + i * LANES + j;
                for (int p = 0; p < DOUBLE_PARTS; ++p) {
                    const DoubleVector wr = load(w + p * NATIVE_DOUBLE);
                    const DoubleVector wi = load(w + COLUMNS + p * NATIVE_DOUBLE);
                    for (int r = 0; r < FORM_ROWS; ++r) {
                        const double ar = entry[r * LANES], ai = entry[PAIR / 2 + r * LANES];
                        re[r][p] += ar * wr;
                        im[r][p] += ar * wi;
                        re[r][p] -= ai * wi;
                        im[r][p] += ai * wr;
                    }
                }
            }
        for (int r = 0; r < FORM_ROWS; ++r)
            for (int p = 0; p < DOUBLE_PARTS; ++p) {
                const double* w = what + (row * LANES + i + r) * VALUE + p * NATIVE_DOUBLE;
                total[p] += load(w) * re[r][p] + load(w + COLUMNS) * im[r][p];
            }
    }
    for (int p = 0; p < DOUBLE_PARTS; ++p)
        for (int u = 0; u < NATIVE_DOUBLE; ++u) sum[p * NATIVE_DOUBLE + u] += total[p][u];
}
"""

RUN = r"""
// ---- the four steps of one group, each a parallel loop over independent tasks ----
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

struct Run {
    const Tables& tables;
    int threads;
    char* scratch;               // SCRATCH_STRIDE bytes per thread
    float* spectrum;             // [entry][block][f2][slot f0][slot f1][2][LANES]
    Folded* folded;              // [f2][pair][g0][g1][2][LANES][LANES]
    double* what;                // [g0][g1][g2][column block][channel][2][COLUMNS]
    double* partial;             // [g0][g1][g2][row][column]
    std::vector<int> left, right;   // the pairs of blocks, left <= right: the others are conjugates

    template <typename T>
    T* own_scratch() const { return reinterpret_cast<T*>(scratch + SCRATCH_STRIDE * omp_get_thread_num()); }

    void transform(const float* x, int group, int64_t start, int64_t entries) const {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < entries * BLOCKS; ++task) {
            const int64_t entry = task / BLOCKS, n = (start + entry) % BATCH;
            const int block = int(task % BLOCKS), channel = block * LANES;
            const float* from = x + ((n * GROUPS + group) * CHANNELS + channel) * (SIZE0 * SIZE1 * SIZE2);
            transform_block(tables, from, tables.sections[(start + entry) / BATCH],
                            int(least(CHANNELS - channel, LANES)),
                            spectrum + entry * ENTRY_STRIDE + block * BLOCK_STRIDE, own_scratch<float>());
        }
    }

    void gram(int first_pair, int pairs, int64_t start, int64_t entries) const {
        const int64_t negative = NEGATIVE_ENTRIES > start ? least(NEGATIVE_ENTRIES - start, entries) : 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < int64_t(HALF) * pairs; ++task) {
            const int64_t f2 = task / pairs, pair = task % pairs;
            const float* at = spectrum + f2 * LENGTH0 * LENGTH1 * COMPLEX;
            gram_fold(tables, at + left[first_pair + pair] * BLOCK_STRIDE,
                      at + right[first_pair + pair] * BLOCK_STRIDE, entries, negative,
                      folded + f2 * FOLDED_STRIDE + pair * GRID_LINES * PAIR, start > 0,
                      own_scratch<float>());
        }
    }

    void weights(const float* weight, int group, int first_block, int blocks) const {
        const int64_t stride = int64_t(blocks) * PADDED_CHANNELS * VALUE;
#pragma omp parallel for schedule(dynamic, 8) num_threads(threads)
        for (int64_t task = 0; task < int64_t(blocks) * PADDED_CHANNELS; ++task)
            transform_weights(tables, weight, group, int(task % PADDED_CHANNELS),
                              first_block + int(task / PADDED_CHANNELS), what + task * VALUE, stride,
                              own_scratch<double>());
    }

    // One task: one grid point g and one row of block pairs. g and -g contribute the same: g2 > 0
    // counts twice, and so does one half of the plane g2 = 0.
    void form(int first_pair, int pairs, int first_block, int blocks, double* energies) const {
        const int low = left[first_pair], rows = left[first_pair + pairs - 1] - low + 1;
        const int64_t tasks = GRID_LINES * GRID_HALF * rows;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
        for (int64_t task = 0; task < tasks; ++task) {
            double* sums = partial + task * blocks * COLUMNS;
            std::memset(sums, 0, sizeof(double) * blocks * COLUMNS);
            const int row = low + int(task % rows), g2 = int(task / rows % GRID_HALF);
            const int64_t g = task / rows / GRID_HALF;
            const int64_t mirror = (GRID0 - g / GRID1) % GRID0 * GRID1 + (GRID1 - g % GRID1) % GRID1;
            if (g2 == 0 && g > mirror) continue;
            const double times = g2 == 0 && g == mirror ? 1.0 : 2.0;
            double* a = own_scratch<double>();
            int count = 0, first = 0;
            for (int pair = 0; pair < pairs; ++pair) {
                if (left[first_pair + pair] != row) continue;
                const int column = right[first_pair + pair];
                if (count == 0) first = column;
                const Folded* from = folded + pair * GRID_LINES * PAIR;
                fold_pair(tables, from + g * PAIR, from + mirror * PAIR, g2,
                          column == row ? times : 2.0 * times, a + int64_t(count++) * PAIR);
            }
            for (int block = 0; block < blocks; ++block)
                quadratic_form(a, what + ((g * GRID_HALF + g2) * blocks + block) * PADDED_CHANNELS * VALUE,
                               row, first, count, sums + block * COLUMNS);
        }
        for (int column = 0; column < blocks * COLUMNS; ++column) {
            const int o = (first_block + column / COLUMNS) % OUT_BLOCKS * COLUMNS + column % COLUMNS;
            if (o >= OUT_CHANNELS) continue;
            double sum = 0.0;
            for (int64_t task = 0; task < tasks; ++task) sum += partial[task * blocks * COLUMNS + column];
            energies[o] += sum / (double(GRID0) * GRID1 * GRID2);
        }
    }
};
"""

HOST = r"""
static const char* @NAME@(const float* x, const float* weight, double* energy, void* workspace) {
    using namespace @NAME@_detail;
    static const Tables tables;
    const int threads = omp_get_max_threads();
    char* scratch = static_cast<char*>(std::aligned_alloc(64, size_t(SCRATCH_STRIDE) * threads));
    if (!scratch) return "@NAME@: no memory for the scratch of its threads";
    char* base = static_cast<char*>(workspace);
    Run run{tables, threads, scratch, reinterpret_cast<float*>(base),
            reinterpret_cast<Folded*>(base + FOLDED_AT), reinterpret_cast<double*>(base + WHAT_AT),
            reinterpret_cast<double*>(base + PARTIAL_AT), {}, {}};
    for (int i = 0; i < BLOCKS; ++i)
        for (int j = i; j < BLOCKS; ++j) run.left.push_back(i), run.right.push_back(j);
    for (int group = 0; group < GROUPS; ++group) {
        double* energies = energy + int64_t(group) * OUT_CHANNELS;
        for (int o = 0; o < OUT_CHANNELS; ++o) energies[o] = 0.0;
        for (int pair = 0; pair < PAIRS; pair += PAIRS_AT_ONCE) {
            const int pairs = int(least(PAIRS - pair, PAIRS_AT_ONCE));
            for (int64_t start = 0; start < ENTRIES; start += ENTRIES_AT_ONCE) {
                const int64_t entries = least(ENTRIES - start, ENTRIES_AT_ONCE);
                if (pair == 0 || ENTRIES > ENTRIES_AT_ONCE) run.transform(x, group, start, entries);
                run.gram(pair, pairs, start, entries);
            }
            for (int block = 0; block < COLUMN_BLOCKS; block += COLUMN_BLOCKS_AT_ONCE) {
                const int blocks = int(least(COLUMN_BLOCKS - block, COLUMN_BLOCKS_AT_ONCE));
                run.weights(weight, group, block, blocks);
                run.form(pair, pairs, block, blocks, energies);
            }
        }
    }
    std::free(scratch);
    return nullptr;
}
"""
