// d += a * b over 16 rows, 8 columns and 4 terms in float64: lane 4 r + k has a[r][k], a[r + 8][k] and b[k][r], and of
// d columns 2 k and 2 k + 1 of rows r and r + 8 (compute capability 9.0; products of 8 rows take it as long).
#ifndef KERNELWRIGHT_EMULATION
static __device__ __forceinline__ void kw_mma_float64(double (&d)[4], double a0, double a1, double b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3]) : "d"(a0), "d"(a1), "d"(b));
}
#endif
