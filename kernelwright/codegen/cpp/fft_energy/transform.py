"""C++ text of the spectral energy, step 1: sections of x and their transforms."""

from __future__ import annotations

TRANSFORM = r"""
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
// LANES channels form a block and are innermost in every buffer: PARTS vectors, UNIT at a time.
constexpr int WIDTH = NATIVE < LANES ? NATIVE : LANES;
constexpr int PARTS = LANES / WIDTH;
constexpr int UNIT = PARTS < 2 ? PARTS : 2;
typedef float Vector __attribute__((vector_size(WIDTH * sizeof(float))));

inline Vector load(const float* p) { return *reinterpret_cast<const Vector*>(p); }
inline void store(float* p, Vector v) { *reinterpret_cast<Vector*>(p) = v; }
constexpr int round_up(int value, int unit) { return (value + unit - 1) / unit * unit; }
// An odd number of 64-byte lines: equal offsets of successive rows fall into different cache sets.
constexpr int64_t odd_stride(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

constexpr int HALF = LENGTH2 / 2 + 1;        // frequencies kept of axis 2: x is real
constexpr int FREQUENCIES_AT_ONCE = UNIT == 1 ? 2 : 1;
constexpr int REAL_AT_ONCE = 6 / UNIT;
constexpr int COMPLEX = 2 * LANES;           // floats of one complex value of a block
constexpr int64_t PLANE_ROW = odd_stride(int64_t(HALF) * COMPLEX);
constexpr int64_t VOLUME_ROW = odd_stride(int64_t(HALF) * LENGTH1 * COMPLEX);
constexpr int64_t SPECTRUM = int64_t(HALF) * LENGTH0 * LENGTH1;   // [f2][slot f0][slot f1]
constexpr int64_t BLOCK_STRIDE = odd_stride(SPECTRUM * COMPLEX);
constexpr int64_t ENTRY_STRIDE = BLOCKS * BLOCK_STRIDE;

// cos and sin of 2 pi f q / LENGTH: [f][q][2] for f = 0 .. LENGTH / 2, zero rows at the end.
std::vector<float> transform_table(int points, int length, int unit) {
    std::vector<float> table(size_t(round_up(length / 2 + 1, unit)) * points * 2, 0.0f);
    for (int64_t f = 0; f <= length / 2; ++f)
        for (int64_t q = 0; q < points; ++q) {
            const double angle = 2.0 * M_PI * double(f * q % length) / double(length);
            table[(f * points + q) * 2] = float(std::cos(angle));
            table[(f * points + q) * 2 + 1] = float(std::sin(angle));
        }
    return table;
}

// Half spectrum of real data: in [q][LANES], out [f][2][LANES].
void real_transform(const float* table, const float* in, float* out) {
    for (int f = 0; f < HALF; f += REAL_AT_ONCE)
        for (int part = 0; part < LANES; part += UNIT * WIDTH) {
            Vector re[REAL_AT_ONCE][UNIT] = {}, im[REAL_AT_ONCE][UNIT] = {};
            for (int q = 0; q < POINTS2; ++q)
                for (int u = 0; u < UNIT; ++u) {
                    const Vector a = load(in + q * LANES + part + u * WIDTH);
                    for (int r = 0; r < REAL_AT_ONCE; ++r) {
                        const float* t = table + ((f + r) * POINTS2 + q) * 2;
                        re[r][u] += a * t[0];
                        im[r][u] -= a * t[1];
                    }
                }
            for (int r = 0; r < REAL_AT_ONCE; ++r)
                for (int u = 0; u < UNIT; ++u)
                    if (f + r < HALF) {
                        store(out + (f + r) * COMPLEX + part + u * WIDTH, re[r][u]);
                        store(out + (f + r) * COMPLEX + LANES + part + u * WIDTH, im[r][u]);
                    }
        }
}

// Where axes 0 and 1 keep frequency f: |f| falls with the slot and f = 0 is last. The spectrum of
// data with a mean is largest there; float32 sums over f lose least when small terms come first.
constexpr int slot(int f, int length) {
    return f == 0 ? length - 1 : 2 * f <= length ? length - 2 * f : length - 1 - 2 * (length - f);
}

// Full spectrum of complex data a + i b, in the order of slots. The four real products serve f and
// its mirror LENGTH - f:
// X(f) = (ac + bs) + i (bc - as), X(-f) = (ac - bs) + i (bc + as).
template <int POINTS, int LENGTH>
void complex_transform(const float* table, const float* in, int64_t in_stride, float* out,
                       int64_t out_stride) {
    constexpr int AT_ONCE = FREQUENCIES_AT_ONCE, COUNT = LENGTH / 2 + 1;
    for (int f = 0; f < COUNT; f += AT_ONCE)
        for (int part = 0; part < LANES; part += UNIT * WIDTH) {
            Vector ac[AT_ONCE][UNIT] = {}, as[AT_ONCE][UNIT] = {};
            Vector bc[AT_ONCE][UNIT] = {}, bs[AT_ONCE][UNIT] = {};
            for (int q = 0; q < POINTS; ++q)
                for (int u = 0; u < UNIT; ++u) {
                    const Vector a = load(in + q * in_stride + part + u * WIDTH);
                    const Vector b = load(in + q * in_stride + LANES + part + u * WIDTH);
                    for (int r = 0; r < AT_ONCE; ++r) {
                        const float* t = table + ((f + r) * POINTS + q) * 2;
                        ac[r][u] += a * t[0];
                        as[r][u] += a * t[1];
                        bc[r][u] += b * t[0];
                        bs[r][u] += b * t[1];
                    }
                }
            for (int r = 0; r < AT_ONCE && f + r < COUNT; ++r)
                for (int u = 0; u < UNIT; ++u) {
                    float* own = out + slot(f + r, LENGTH) * out_stride + part + u * WIDTH;
                    store(own, ac[r][u] + bs[r][u]);
                    store(own + LANES, bc[r][u] - as[r][u]);
                    const int mirror = (LENGTH - f - r) % LENGTH;
                    if (mirror == f + r) continue;
                    float* other = out + slot(mirror, LENGTH) * out_stride + part + u * WIDTH;
                    store(other, ac[r][u] - bs[r][u]);
                    store(other + LANES, bc[r][u] + as[r][u]);
                }
        }
}

// Position of x at input point m of section s of an axis, or -1 for a zero. Positive sections hold
// LENGTH - LAG positions every LENGTH - 2 LAG; negative ones, numbered first, hold the overlaps of
// successive positive sections, LAG zeros apart.
template <int64_t SIZE, int LAG, int LENGTH, int SECTIONS, int NEGATIVE>
inline int64_t position(int section, int m) {
    if (SECTIONS == 1) return m < SIZE ? m : -1;
    constexpr int64_t ADVANCE = LENGTH - 2 * LAG;
    int64_t q = -1;
    if (section >= NEGATIVE) {
        if (m < LENGTH - LAG) q = (section - NEGATIVE) * ADVANCE + m;
    } else {
        constexpr int PIECE = LAG ? 2 * LAG : LENGTH, PIECES = LENGTH / PIECE;
        const int64_t later = int64_t(section) * PIECES + m / PIECE + 1;
        if (m / PIECE < PIECES && m % PIECE < LAG && later < SECTIONS - NEGATIVE)
            q = later * ADVANCE + m % PIECE;
    }
    return q < SIZE ? q : -1;
}

// An entry is one section of one batch element; the entries with a negative sign come first.
struct Section { int s0, s1, s2; };
std::vector<Section> ordered_sections() {
    std::vector<Section> result;
    for (int sign = 1; sign >= 0; --sign)
        for (int s0 = 0; s0 < SECTIONS0; ++s0)
            for (int s1 = 0; s1 < SECTIONS1; ++s1)
                for (int s2 = 0; s2 < SECTIONS2; ++s2)
                    if (((s0 < NEGATIVE0) + (s1 < NEGATIVE1) + (s2 < NEGATIVE2)) % 2 == sign)
                        result.push_back({s0, s1, s2});
    return result;
}

// Spectrum of one channel block of one entry: out [f2][slot f0][slot f1][2][LANES].
// scratch: row [q2][LANES], plane [q1][f2][2][LANES], volume [q0][f2][slot f1][2][LANES].
constexpr int64_t TRANSFORM_SCRATCH =
    round_up(POINTS2 * LANES, 16) + POINTS1 * PLANE_ROW + (LENGTH0 > 1 ? POINTS0 * VOLUME_ROW : 0);
void transform_block(const Tables& tables, const float* x, Section section, int channels, float* out,
                     float* scratch) {
    float* row = scratch;
    float* plane = row + round_up(POINTS2 * LANES, 16);
    float* volume = LENGTH0 > 1 ? plane + POINTS1 * PLANE_ROW : out;
    std::memset(row, 0, sizeof(float) * POINTS2 * LANES);
    for (int m0 = 0; m0 < POINTS0; ++m0) {
        const int64_t q0 = position<SIZE0, LAG0, LENGTH0, SECTIONS0, NEGATIVE0>(section.s0, m0);
        float* slice = volume + m0 * VOLUME_ROW;
        if (q0 < 0) {
            std::memset(slice, 0, sizeof(float) * HALF * LENGTH1 * COMPLEX);
            continue;
        }
        for (int m1 = 0; m1 < POINTS1; ++m1) {
            const int64_t q1 = position<SIZE1, LAG1, LENGTH1, SECTIONS1, NEGATIVE1>(section.s1, m1);
            if (q1 < 0) {
                std::memset(plane + m1 * PLANE_ROW, 0, sizeof(float) * HALF * COMPLEX);
                continue;
            }
            for (int c = 0; c < channels; ++c) {
                const float* source = x + ((c * SIZE0 + q0) * SIZE1 + q1) * SIZE2;
                for (int m2 = 0; m2 < POINTS2; ++m2) {
                    const int64_t q2 = position<SIZE2, LAG2, LENGTH2, SECTIONS2, NEGATIVE2>(section.s2, m2);
                    row[m2 * LANES + c] = q2 < 0 ? 0.0f : source[q2];
                }
            }
            real_transform(tables.transform2.data(), row, plane + m1 * PLANE_ROW);
        }
        for (int f2 = 0; f2 < HALF; ++f2)
            complex_transform<POINTS1, LENGTH1>(tables.transform1.data(), plane + f2 * COMPLEX, PLANE_ROW,
                                                slice + int64_t(f2) * LENGTH1 * COMPLEX, COMPLEX);
    }
    if (LENGTH0 == 1) return;
    for (int f2 = 0; f2 < HALF; ++f2)
        for (int f1 = 0; f1 < LENGTH1; ++f1)
            complex_transform<POINTS0, LENGTH0>(
                tables.transform0.data(), volume + (int64_t(f2) * LENGTH1 + f1) * COMPLEX, VOLUME_ROW,
                out + (int64_t(f2) * LENGTH0 * LENGTH1 + f1) * COMPLEX, int64_t(LENGTH1) * COMPLEX);
}
"""
