"""The values of C++ kernels: a float's bits, choices without branches, and 16-bit floats in memory.

Choices are made by bit masks, which is what lets the compiler vectorise the loops around them.
"""

from __future__ import annotations

VALUE_SNIPPETS: dict[str, str] = {}

VALUE_SNIPPETS["kw_bits"] = """\
// The bits of a float as an integer, and back.
static inline int32_t kw_bits(float x) { int32_t bits; std::memcpy(&bits, &x, 4); return bits; }
static inline int64_t kw_bits(double x) { int64_t bits; std::memcpy(&bits, &x, 8); return bits; }
"""
VALUE_SNIPPETS["kw_float"] = """\
static inline float kw_float(int32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline double kw_float(int64_t bits) { double x; std::memcpy(&x, &bits, 8); return x; }
"""

VALUE_SNIPPETS["kw_select"] = """\
// condition ? a : b by bit masks: no branch that g++ could thread into later ones, which would keep
// the loop from being vectorised.
static inline float kw_select(bool condition, float a, float b) {
  const int32_t mask = -int32_t(condition);
  return kw_float((kw_bits(a) & mask) | (kw_bits(b) & ~mask));
}
static inline double kw_select(bool condition, double a, double b) {
  const int64_t mask = -int64_t(condition);
  return kw_float((kw_bits(a) & mask) | (kw_bits(b) & ~mask));
}
"""

VALUE_SNIPPETS["kw_choose"] = """\
// condition ? a : b for integers, by bit masks as in kw_select.
static inline int32_t kw_choose(bool condition, int32_t a, int32_t b) {
  const int32_t mask = -int32_t(condition);
  return (a & mask) | (b & ~mask);
}
static inline int64_t kw_choose(bool condition, int64_t a, int64_t b) {
  const int64_t mask = -int64_t(condition);
  return (a & mask) | (b & ~mask);
}
"""
# The conversions are integer operations and one addition, so that g++ vectorises loops with them; it does not
# vectorise its own _Float16 before AVX512-FP16, and other compilers name the type otherwise. Flushing subnormal
# floats to zero changes nothing. Runs of float16 are converted by the processor where it can (kw_float16_load).
VALUE_SNIPPETS["kw_float16_bits"] = """\
// The nearest float16 (halves to even), as bits.
static inline uint16_t kw_float16_bits(float x) {
  const int32_t word = kw_bits(x), size = word & 0x7fffffff;
  const int32_t held = kw_choose(size < (143 << 23), size, 143 << 23);  // infinity is 2^16
  // The addition of 2^(e + 13), where 2^e <= |x| and e >= -14, rounds to multiples of 2^(e - 10).
  const int32_t exponent = held & 0x7f800000;
  const int32_t place = kw_choose(exponent < (113 << 23), 113 << 23, exponent) + (13 << 23);
  const int32_t sum = kw_bits(kw_float(held) + kw_float(place));
  const int32_t nan = kw_choose(size > 0x7f800000, 0x200, 0);
  return uint16_t((((sum & 0x1fff) + ((place - (126 << 23)) >> 13)) + nan) | ((word >> 16) & 0x8000));
}
"""
VALUE_SNIPPETS["kw_float16_value"] = """\
static inline float kw_float16_value(uint16_t bits) {
  const int32_t size = (int32_t(bits) & 0x7fff) << 13;
  const float tiny = kw_float(size + (113 << 23)) - 6.103515625e-05f;  // 2^-14 + x, less 2^-14
  const int32_t normal = size + kw_choose(size >= (31 << 23), 224 << 23, 112 << 23);
  const int32_t either = kw_choose(size < (1 << 23), kw_bits(tiny), normal);
  return kw_float(either | ((int32_t(bits) & 0x8000) << 16));
}
"""
VALUE_SNIPPETS["kw_bfloat16_bits"] = """\
// The nearest bfloat16 (halves to even), as bits.
static inline uint16_t kw_bfloat16_bits(float x) {
  const uint32_t size = uint32_t(kw_bits(x));
  return uint16_t(kw_choose(x != x, 0x7fc0, int32_t(size + 0x7fff + ((size >> 16) & 1)) >> 16));
}
"""
VALUE_SNIPPETS["kw_bfloat16_value"] = """\
static inline float kw_bfloat16_value(uint16_t bits) { return kw_float(int32_t(uint32_t(bits) << 16)); }
"""
for _name in ("float16", "bfloat16"):
    VALUE_SNIPPETS[f"kw_{_name}"] = f"""\
// A {_name} in memory: read as a float, rounded where a float is assigned.
struct kw_{_name} {{
  uint16_t bits;
  operator float() const {{ return kw_{_name}_value(bits); }}
  void operator=(float x) {{ bits = kw_{_name}_bits(x); }}
}};
"""

VALUE_SNIPPETS["kw_float16_load"] = """\
// A run of float16 as floats: eight in one instruction where the processor has it.
#ifdef __F16C__
#include <immintrin.h>
#endif
static inline void kw_float16_load(const kw_float16* from, int64_t count, float* to) {
  int64_t done = 0;
#ifdef __F16C__
  for (; done + 8 <= count; done += 8)
    _mm256_storeu_ps(to + done, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done))));
#endif
  #pragma omp simd
  for (int64_t i = done; i < count; ++i) to[i] = from[i];
}
"""
VALUE_SNIPPETS["kw_float16_store"] = """\
// Floats as a run of float16, rounded to nearest even.
#ifdef __F16C__
#include <immintrin.h>
#endif
static inline void kw_float16_store(const float* from, int64_t count, kw_float16* to) {
  int64_t done = 0;
#ifdef __F16C__
  for (; done + 8 <= count; done += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + done), _mm256_cvtps_ph(_mm256_loadu_ps(from + done), 0));
#endif
  #pragma omp simd
  for (int64_t i = done; i < count; ++i) to[i] = from[i];
}
"""
