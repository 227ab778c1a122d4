
// The states of a step from all blocks, when they are there.
static __device__ __forceinline__ void receive(const unsigned long long* from, unsigned tag, float* state) {
  constexpr int MANY = 8;  // that a thread asks for at once
#pragma unroll 1
  for (int base = threadIdx.x; base < BATCH * HIDDEN; base += MANY * THREADS) {
    unsigned long long word[MANY];
#pragma unroll
    for (int i = 0; i < MANY; ++i)
      word[i] = base + i * THREADS < BATCH * HIDDEN ? kw_tagged_load(from + base + i * THREADS) : 0;
#pragma unroll
    for (int i = 0; i < MANY; ++i) {
      const int place = base + i * THREADS;
      if (place < BATCH * HIDDEN)
        state[place / HIDDEN * PADDED + place % HIDDEN] = kw_tagged_await(from + place, word[i], tag);
    }
  }
}
