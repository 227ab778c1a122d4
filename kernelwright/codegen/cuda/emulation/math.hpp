// The arithmetic of device code: extrema, quick functions, rounded operations, conversions, bits.

namespace kw_emulation {

template <typename T>
static inline T saturate(double value) {
  if (value != value) return 0;
  if (value <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (value >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(value);
}

template <typename To, typename From>
static inline To bit_cast(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  memcpy(&result, &value, sizeof(To));
  return result;
}

}  // namespace kw_emulation

// ------------------------------------------------------------------------------------------ arithmetic

#define KW_MIN_MAX(R, A, B)                                                       \
  KW_INLINE R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  KW_INLINE R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
KW_MIN_MAX(int, int, int)
KW_MIN_MAX(unsigned, unsigned, unsigned)
KW_MIN_MAX(unsigned, int, unsigned)
KW_MIN_MAX(unsigned, unsigned, int)
KW_MIN_MAX(long, long, long)
KW_MIN_MAX(unsigned long, unsigned long, unsigned long)
KW_MIN_MAX(unsigned long, long, unsigned long)
KW_MIN_MAX(unsigned long, unsigned long, long)
KW_MIN_MAX(long long, long long, long long)
KW_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
KW_MIN_MAX(unsigned long long, long long, unsigned long long)
KW_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef KW_MIN_MAX
// As on the device, these drop a NaN.
KW_INLINE float min(float a, float b) { return fminf(a, b); }
KW_INLINE float max(float a, float b) { return fmaxf(a, b); }
KW_INLINE double min(double a, double b) { return fmin(a, b); }
KW_INLINE double max(double a, double b) { return fmax(a, b); }
KW_INLINE double min(float a, double b) { return fmin(a, b); }
KW_INLINE double max(float a, double b) { return fmax(a, b); }
KW_INLINE double min(double a, float b) { return fmin(a, b); }
KW_INLINE double max(double a, float b) { return fmax(a, b); }

// std:: because a plain name could be the one of an enclosing scope; the fast forms are exact here.
KW_INLINE float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
KW_INLINE double rsqrt(double x) { return 1.0 / std::sqrt(x); }
KW_INLINE float rsqrt(float x) { return rsqrtf(x); }
KW_INLINE float rcbrtf(float x) { return 1.0f / cbrtf(x); }
KW_INLINE float normcdff(float x) { return static_cast<float>(0.5 * erfc(-static_cast<double>(x) * M_SQRT1_2)); }
KW_INLINE double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
// With the digits that a long double has more; where erfc is small, the asymptotic series.
KW_INLINE double erfcx(double x) {
  const long double z = x, s = z * z;
  if (x < 30.0) return static_cast<double>(std::exp(s) * std::erfc(z));
  long double term = 1.0L, sum = 0.0L;
  for (int i = 1; i < 24; i += 2) sum += term, term *= -i / (2.0L * s);
  return static_cast<double>(sum / (z * std::sqrt(static_cast<long double>(M_PI))));
}
KW_INLINE float erfcxf(float x) { return static_cast<float>(erfcx(static_cast<double>(x))); }
KW_INLINE float sinpif(float x) { return static_cast<float>(std::sin(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
KW_INLINE float cospif(float x) { return static_cast<float>(std::cos(M_PI * std::fmod(static_cast<double>(x), 2.0))); }
KW_INLINE void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
// The C library declares functions of its own under the names of the quick device functions.
#define __expf kw_device_expf
#define __exp10f kw_device_exp10f
#define __logf kw_device_logf
#define __log2f kw_device_log2f
#define __log10f kw_device_log10f
#define __powf kw_device_powf
#define __sinf kw_device_sinf
#define __cosf kw_device_cosf
#define __tanf kw_device_tanf
KW_INLINE float __expf(float x) { return expf(x); }
KW_INLINE float __exp10f(float x) { return powf(10.0f, x); }
KW_INLINE float __logf(float x) { return logf(x); }
KW_INLINE float __log2f(float x) { return log2f(x); }
KW_INLINE float __log10f(float x) { return log10f(x); }
KW_INLINE float __powf(float x, float y) { return powf(x, y); }
KW_INLINE float __sinf(float x) { return sinf(x); }
KW_INLINE float __cosf(float x) { return cosf(x); }
KW_INLINE float __tanf(float x) { return tanf(x); }
KW_INLINE float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
// The device's quick division flushes a quotient by 2^126 < |y| < 2^128 to zero; so does this one.
KW_INLINE float __fdividef(float x, float y) {
  const float size = fabsf(y);
  return size > 0x1p126f && size < INFINITY ? (std::isinf(x) ? NAN : x * 0.0f) : x / y;
}
KW_INLINE float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
KW_INLINE float __fadd_rn(float x, float y) { return x + y; }
KW_INLINE float __fsub_rn(float x, float y) { return x - y; }
KW_INLINE float __fmul_rn(float x, float y) { return x * y; }
KW_INLINE float __fmul_rz(float x, float y) {
  const double exact = static_cast<double>(x) * y;
  const float nearest = static_cast<float>(exact);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(exact) ? std::nextafterf(nearest, 0.0f) : nearest;
}
KW_INLINE float __fdiv_rn(float x, float y) { return x / y; }
KW_INLINE float __frcp_rn(float x) { return 1.0f / x; }
KW_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
KW_INLINE float __frsqrt_rn(float x) { return rsqrtf(x); }
KW_INLINE double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
KW_INLINE double __dadd_rn(double x, double y) { return x + y; }
KW_INLINE double __dsub_rn(double x, double y) { return x - y; }
KW_INLINE double __dmul_rn(double x, double y) { return x * y; }
KW_INLINE double __ddiv_rn(double x, double y) { return x / y; }
KW_INLINE double __dsqrt_rn(double x) { return std::sqrt(x); }

// Conversions saturate and turn a NaN into 0.
#define KW_CONVERSIONS(from, T, to, R)                                                                            \
  KW_INLINE R __##from##2##to##_rn(T x) { return kw_emulation::saturate<R>(nearbyint(static_cast<double>(x))); }  \
  KW_INLINE R __##from##2##to##_rz(T x) { return kw_emulation::saturate<R>(trunc(static_cast<double>(x))); }      \
  KW_INLINE R __##from##2##to##_ru(T x) { return kw_emulation::saturate<R>(ceil(static_cast<double>(x))); }       \
  KW_INLINE R __##from##2##to##_rd(T x) { return kw_emulation::saturate<R>(floor(static_cast<double>(x))); }
KW_CONVERSIONS(float, float, int, int)
KW_CONVERSIONS(float, float, uint, unsigned)
KW_CONVERSIONS(float, float, ll, long long)
KW_CONVERSIONS(float, float, ull, unsigned long long)
KW_CONVERSIONS(double, double, int, int)
KW_CONVERSIONS(double, double, uint, unsigned)
KW_CONVERSIONS(double, double, ll, long long)
KW_CONVERSIONS(double, double, ull, unsigned long long)
#undef KW_CONVERSIONS
KW_INLINE float __int2float_rn(int x) { return static_cast<float>(x); }
KW_INLINE float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
KW_INLINE float __ll2float_rn(long long x) { return static_cast<float>(x); }
KW_INLINE float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
KW_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
KW_INLINE double __int2double_rn(int x) { return x; }
KW_INLINE double __uint2double_rn(unsigned x) { return x; }
KW_INLINE double __ll2double_rn(long long x) { return static_cast<double>(x); }
KW_INLINE double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
KW_INLINE int __float_as_int(float x) { return kw_emulation::bit_cast<int>(x); }
KW_INLINE unsigned __float_as_uint(float x) { return kw_emulation::bit_cast<unsigned>(x); }
KW_INLINE float __int_as_float(int x) { return kw_emulation::bit_cast<float>(x); }
KW_INLINE float __uint_as_float(unsigned x) { return kw_emulation::bit_cast<float>(x); }
KW_INLINE long long __double_as_longlong(double x) { return kw_emulation::bit_cast<long long>(x); }
KW_INLINE double __longlong_as_double(long long x) { return kw_emulation::bit_cast<double>(x); }

KW_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
KW_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
KW_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
KW_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
KW_INLINE int __ffs(int x) { return __builtin_ffs(x); }
KW_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
KW_INLINE unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1u) << (31 - i);
  return result;
}
KW_INLINE int __mul24(int x, int y) {  // low 24 bits of both, signed
  return static_cast<int>(static_cast<unsigned>((x << 8) >> 8) * static_cast<unsigned>((y << 8) >> 8));
}
KW_INLINE int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
KW_INLINE unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
KW_INLINE unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}

namespace kw_emulation {

// A multiplication by a power of two that is no subnormal rounds as ldexpf does, which is a call.
static inline float scaled(float x, int power) {
  return power >= -126 && power <= 127 ? x * bit_cast<float>(static_cast<uint32_t>(power + 127) << 23) : ldexpf(x, power);
}

}  // namespace kw_emulation
#define ldexpf kw_emulation::scaled
