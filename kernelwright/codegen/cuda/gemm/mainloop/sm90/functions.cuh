@TABLES@@SECOND_TAPS@

@TILE_NOTE@
static __device__ __forceinline__ void @NAME@_tile(@TILE@ tile, int& group, int& phase_class, int& row_block,
                                                   int& column_block) {
@TILE_PLACE@
}

// Puts a thread's sums of a subtile's columns into the subtile; they begin at number `first` of its sums of 64 rows.
static __device__ __forceinline__ void @NAME@_stage(@STAGED@, int first, float* subtile,
                                                    int thread@STAGE_PLACES@) {
  @STAGE_AT@
#pragma unroll
  for (int j = 0; j < @SUBTILE_COLUMNS@ / 8; ++j) {
    const float* s = sums + first + 4 * j;
@STORE@
  }
}

// One step's products, of @TAPS_NOTE@, as one group. Operands begin at `a` and `b`, which count in rows of 16 bytes.
// The number of taps is a constant, because the compiler waits for products around loops that it cannot unroll.
template <@TAPS@>
static __device__ __forceinline__ void @NAME@_multiply(float (&sums)[@SUM_SETS@][@COLUMNS@ / 2], unsigned long long a,
                                                       unsigned long long b, const int (*taps)[@NUMS@]@ADD_PARAMETER@) {
  constexpr int CHUNKS = @CHUNKS@, TERMS = @TERMS@, PITCH = @PITCH@, COLUMNS = @COLUMNS@;
  kw_wgmma_fence();
#pragma unroll
  @PAIRS@  // of terms of x and w
#pragma unroll
    for (int tap = @FIRST_TAP@; tap < @END_TAP@; ++tap) {@TAP@
      const unsigned long long x = a + taps[tap][0] + (pair == 0 ? CHUNKS * PITCH : 0);
      const unsigned long long w = b + (tap * TERMS + (pair == 1 ? 1 : 0)) * (@TAP_CHUNKS@ * COLUMNS);
#pragma unroll
      for (int k = 0; k < CHUNKS; k += 2) {
#pragma unroll
        for (int p = @FIRST_PRODUCT@; p < @END_PRODUCT@; ++p)
          @PRODUCT@(sums[@TAP_SUMS@], x + k * PITCH + p * 64, w + k * COLUMNS, @ADD@);
      }
    }
  }
  kw_wgmma_commit();
}
@ADD_FUNCTION@
