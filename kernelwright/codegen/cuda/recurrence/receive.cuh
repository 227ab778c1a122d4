// The states of a step from all blocks, when they are there.
static __device__ __forceinline__ void receive(const unsigned long long* from, unsigned tag, float* state) {
  constexpr int MANY = 8;  // pairs that a thread asks for at once
#pragma unroll 1
  for (int base = 2 * threadIdx.x; base < BATCH * HIDDEN; base += 2 * MANY * THREADS) {
    float value[MANY][2];
    kw_tagged_receive(from + base, 2 * THREADS, BATCH * HIDDEN - base, tag, value);
#pragma unroll
    for (int i = 0; i < 2 * MANY; ++i) {
      const int place = base + i / 2 * 2 * THREADS + i % 2;
      if (place < BATCH * HIDDEN) state[place / HIDDEN * PADDED + place % HIDDEN] = value[i / 2][i % 2];
    }
  }
}
