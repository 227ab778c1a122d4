"""C++ text of the spectral energy, step 2: Gram matrices of the spectrum, folded to the grid of lags."""

from __future__ import annotations

GRAM = r"""
// ---- Gram and fold: S(f) of a pair of channel blocks, resampled to the grid of lags ----
constexpr int PAIR = 2 * LANES * LANES;      // floats of one complex LANES x LANES block
constexpr int LINE = PAIR + 16;              // padded against cache-set conflicts
constexpr int ROWS = LANES < 4 ? LANES : 4;

constexpr int64_t SUMMANDS = 32;             // entries summed in registers before they join the total

// S[i][j] = sum over entries of sign * conj(X[i]) * X[j]; the first `negative` entries have sign -1.
void gram(const float* left, const float* right, int64_t entries, int64_t negative, float* out) {
    for (int j = 0; j < LANES; j += WIDTH)
        for (int i = 0; i < LANES; i += ROWS)
            for (int64_t first = 0, last; first < entries; first = last) {
                const int64_t end = first < negative ? negative : entries;
                last = end - first < SUMMANDS ? end : first + SUMMANDS;
                Vector re[ROWS] = {}, im[ROWS] = {};
                for (int64_t n = first; n < last; ++n) {
                    const float* l = left + n * ENTRY_STRIDE + i;
                    const Vector a = load(right + n * ENTRY_STRIDE + j);
                    const Vector b = load(right + n * ENTRY_STRIDE + LANES + j);
                    for (int r = 0; r < ROWS; ++r) {
                        re[r] += l[r] * a;
                        im[r] += l[r] * b;
                    }
                    for (int r = 0; r < ROWS; ++r) {
                        re[r] += l[LANES + r] * b;
                        im[r] -= l[LANES + r] * a;
                    }
                }
                for (int r = 0; r < ROWS; ++r) {
                    float* to_re = out + (i + r) * LANES + j;
                    float* to_im = to_re + PAIR / 2;
                    if (first < negative) re[r] = -re[r], im[r] = -im[r];
                    store(to_re, first == 0 ? re[r] : load(to_re) + re[r]);
                    store(to_im, first == 0 ? im[r] : load(to_im) + im[r]);
                }
            }
}

// The real fold of one axis: out[g] (+)= sum over k < count of table[k][g] * in[k], element by element.
// AT_ONCE values of g stay in registers; tables and outputs are padded to PADDED rows.
template <int GRID>
struct Fold {
    static constexpr int CHUNKS = (GRID + 8) / 9, AT_ONCE = (GRID + CHUNKS - 1) / CHUNKS;
    static constexpr int PADDED = AT_ONCE * CHUNKS;

    static void apply(const float* table, int count, const float* in, int64_t in_stride, float* out,
                      int64_t out_stride, int columns, bool accumulate) {
        for (int g = 0; g < PADDED; g += AT_ONCE)
            for (int column = 0; column < columns; column += WIDTH) {
                Vector sum[AT_ONCE] = {};
                if (accumulate)
                    for (int r = 0; r < AT_ONCE; ++r) sum[r] = load(out + (g + r) * out_stride + column);
                for (int k = 0; k < count; ++k) {
                    const Vector value = load(in + k * in_stride + column);
                    for (int r = 0; r < AT_ONCE; ++r) sum[r] += table[k * PADDED + g + r] * value;
                }
                for (int r = 0; r < AT_ONCE; ++r) store(out + (g + r) * out_stride + column, sum[r]);
            }
    }
};
using Fold0 = Fold<GRID0>;
using Fold1 = Fold<GRID1>;

// B[g][f] = 1 / LENGTH * sum over |d| <= LAG of cos(2 pi d (f / LENGTH - g / GRID)).
double fold_value(int64_t f, int64_t g, int64_t length, int64_t lag) {
    const int64_t grid = 2 * lag + 1, denominator = length * grid;
    const int64_t numerator = ((f * grid - g * length) % denominator + denominator) % denominator;
    double sum = 1.0;
    for (int64_t d = 1; d <= lag; ++d)
        sum += 2.0 * std::cos(2.0 * M_PI * double(d * numerator % denominator) / double(denominator));
    return sum / double(length);
}

// [slot of f][g]
std::vector<float> fold_table(int length, int lag, int padded) {
    std::vector<float> table(size_t(length) * padded, 0.0f);
    for (int f = 0; f < length; ++f)
        for (int g = 0; g <= 2 * lag; ++g)
            table[size_t(slot(f, length)) * padded + g] = float(fold_value(f, g, length, lag));
    return table;
}

// One frequency f2 of one pair of blocks: all slots f0 and f1, folded to out [g0][g1][PAIR].
// scratch: line [f1][PAIR], lines [f0 % LINES_AT_ONCE][g1][PAIR], sums [g0][g1][PAIR], rows padded.
constexpr int LINES_AT_ONCE = LENGTH0 < 8 ? LENGTH0 : 8;
constexpr int64_t LINE_ROW = int64_t(Fold1::PADDED) * PAIR + 16;
constexpr int64_t GRAM_SCRATCH = int64_t(LENGTH1) * LINE + (LINES_AT_ONCE + Fold0::PADDED) * LINE_ROW;
void gram_fold(const Tables& tables, const float* left, const float* right, int64_t entries, int64_t negative,
               Folded* out, bool accumulate, float* scratch) {
    float* line = scratch;
    float* lines = line + int64_t(LENGTH1) * LINE;
    float* sums = lines + LINES_AT_ONCE * LINE_ROW;
    for (int f0 = 0; f0 < LENGTH0; ++f0) {
        for (int f1 = 0; f1 < LENGTH1; ++f1) {
            const int64_t f = (int64_t(f0) * LENGTH1 + f1) * COMPLEX;
            gram(left + f, right + f, entries, negative, line + int64_t(f1) * LINE);
        }
        const int slot = f0 % LINES_AT_ONCE;
        Fold1::apply(tables.fold1.data(), LENGTH1, line, LINE, lines + slot * LINE_ROW, PAIR, PAIR, false);
        if (slot == LINES_AT_ONCE - 1 || f0 == LENGTH0 - 1)
            Fold0::apply(tables.fold0.data() + int64_t(f0 - slot) * Fold0::PADDED, slot + 1, lines, LINE_ROW,
                         sums, LINE_ROW, GRID1 * PAIR, f0 >= LINES_AT_ONCE);
    }
    for (int g0 = 0; g0 < GRID0; ++g0) {
        const float* from = sums + g0 * LINE_ROW;
        Folded* to = out + int64_t(g0) * GRID1 * PAIR;
        if (accumulate)
            for (int i = 0; i < GRID1 * PAIR; ++i) to[i] += from[i];
        else
            for (int i = 0; i < GRID1 * PAIR; ++i) to[i] = from[i];
    }
}
"""
