"""Operations of scans and the scan of a block of a row; extrema with their places."""

from __future__ import annotations

SCAN_SNIPPETS: dict[str, str] = {}
_OPERATIONS = {"sum": "a + b", "product": "a * b", "max": "kw_maximum(a, b)", "min": "kw_minimum(a, b)",
               "logsumexp": "kw_logaddexp(a, b)"}

for _kind, _text in _OPERATIONS.items():
    SCAN_SNIPPETS[f"kw_scan_{_kind}"] = f"""\
struct kw_scan_{_kind} {{
  template <typename real> static real of(real a, real b) {{ return {_text}; }}
}};
"""
SCAN_SNIPPETS["kw_scan_block"] = """\
// Scan a block in place, starting from carry, which becomes the combination of everything so far. Eight runs of
// the block are scanned side by side, so that their operations do not wait for each other, and then shifted.
template <typename operation, typename real>
static inline void kw_scan_block(real* values, int64_t count, real& carry, bool exclusive) {
  constexpr int64_t runs = 8;
  const int64_t length = count / runs;
  if (length > 0) {
    real state[runs];
    for (int64_t r = 0; r < runs; ++r) state[r] = values[r * length];
    for (int64_t i = 1; i < length; ++i)
      for (int64_t r = 0; r < runs; ++r)
        values[r * length + i] = state[r] = operation::of(state[r], values[r * length + i]);
    for (int64_t r = 0; r < runs; ++r) {
      const real before = carry;
      real* run = values + r * length;
      carry = operation::of(before, state[r]);
      if (exclusive) {
        for (int64_t i = length - 1; i > 0; --i) run[i] = operation::of(before, run[i - 1]);
        run[0] = before;
      } else {
        #pragma omp simd
        for (int64_t i = 0; i < length; ++i) run[i] = operation::of(before, run[i]);
      }
    }
  }
  for (int64_t i = runs * length; i < count; ++i) {
    const real before = carry;
    carry = operation::of(before, values[i]);
    values[i] = exclusive ? before : carry;
  }
}
"""
SCAN_SNIPPETS["kw_scan_serial"] = """\
// The same in order: a product of a later part may overflow where the whole has met a zero.
template <typename operation, typename real>
static inline void kw_scan_serial(real* values, int64_t count, real& carry, bool exclusive) {
  for (int64_t i = 0; i < count; ++i) {
    const real before = carry;
    carry = operation::of(before, values[i]);
    values[i] = exclusive ? before : carry;
  }
}
"""

for _name, _sign in (("max", ">"), ("min", "<")):
    SCAN_SNIPPETS[f"kw_improves_{_name}"] = f"""\
// Whether x is the {_name} of it and best, and best is not: NaN comes before numbers.
template <typename real> static inline bool kw_improves_{_name}(real best, real x) {{
  return (x {_sign} best) | ((x != x) & (best == best));
}}
"""
    SCAN_SNIPPETS[f"kw_take_{_name}"] = f"""\
template <typename real> static inline void kw_take_{_name}(real& best, int64_t& place, real x, int64_t p) {{
  if (kw_improves_{_name}(best, x)) best = x, place = p;
}}
"""
SCAN_SNIPPETS["kw_place_of"] = """\
// The first place of a value, which may be NaN and is there.
template <typename real> static inline int64_t kw_place_of(const real* values, int64_t count, real value) {
  int64_t i = 0;
  while (i < count && values[i] != value && (values[i] == values[i] || value == value)) ++i;
  return i;
}
"""
