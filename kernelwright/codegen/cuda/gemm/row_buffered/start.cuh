// All of w, and zeros where no x will be.
  uint4* const operands = reinterpret_cast<uint4*>(shared);
  const uint4 zeros = make_uint4(0, 0, 0, 0);
  for (int i = threadIdx.x; i < W_ROWS; i += @THREADS@) {
    const int row = i % 64, block = i / 64 % BLOCKS, half = i / (64 * BLOCKS) % 2;
    const int product = i / (128 * BLOCKS) % PRODUCTS, term = i / (128 * BLOCKS * PRODUCTS);
    const int place = @NAME@_of_w[product][half][@WHICH@], entry = place / CHUNKS, chunk = place % CHUNKS;
    operands[i] = zeros;
    if (place >= 0)
      operands[i] = reinterpret_cast<const uint4*>(right)[term * @RIGHT_TERM@LL + entry * (@ALL_COLUMNS@LL * CHUNKS) +
                                                         (block * CHUNKS + chunk) * COLUMNS + @COLUMN@];
  }
  for (int i = threadIdx.x; i < SLOTS * TERMS * TERM_ROWS; i += @THREADS@) operands[W_ROWS + i] = zeros;
  kw_shared_written();
  __syncthreads();
