// The sums of a work tile: of output channels whose w begins at `weights`, at positions of a line whose first window
// begins at line number `first` of those brought. Low terms come first: tensor cores cut what they add to the last bits
// of a sum.
static __device__ __forceinline__ void @NAME@_multiply(float (&sums)[@POSITIONS@ / 2], unsigned weights, unsigned ring,
                                                       int first) {
  constexpr int PRODUCTS = @PRODUCTS@, SLOT = @TERMS@ * @TERM_ROWS@ * 16;
  // Of each product: line of the window, row of x, rows between its halves.
  constexpr int LINE[] = {@LINE@};
  constexpr int ROW[] = {@ROW@};
  constexpr int APART[] = {@APART@};
  unsigned lines[@WINDOW@];
#pragma unroll
  for (int i = 0; i < @WINDOW@; ++i) lines[i] = ring + (first + i) % @SLOTS@ * SLOT;
  kw_wgmma_fence();
#pragma unroll
  @PAIRS@  // of terms of x and w
#pragma unroll
    for (int k = 0; k < PRODUCTS; ++k) {
      const unsigned x = lines[LINE[k]] + (ROW[k] + (pair == 0 ? @TERM_ROWS@ : 0)) * 16;
      const unsigned w = weights + (k + (pair == 1 ? PRODUCTS : 0)) * (2 * @BLOCKS@ * 1024);
      @PRODUCT@(sums, kw_operand(w, @BLOCKS@ * 1024), kw_operand(x, APART[k] * 16), pair > @FIRST_PAIR@ || k > 0);
    }
  }
  kw_wgmma_commit();
}
