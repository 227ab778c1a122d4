// Adds up what tensor cores have summed, of sets of 64 rows.
template <int FIRST, int END>
static __device__ __forceinline__ void @NAME@_add(float (&sums)[@SUM_SETS@][@COLUMNS@ / 2],
                                                  float (&part)[@SUM_SETS@][@COLUMNS@ / 2]) {
#pragma unroll
  for (int p = FIRST; p < END; ++p) {
    kw_wgmma_hold(part[p]);
#pragma unroll
    for (int i = 0; i < @COLUMNS@ / 2; ++i) sums[p][i] += part[p][i];
  }
}
