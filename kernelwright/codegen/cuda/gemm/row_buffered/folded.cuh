#pragma unroll 1
          for (int part = 0; part < BLOCKS; ++part) {
            const @NAME@_channels own = channels[part];
            @NAME@_multiply(sums, weights + part * 1024, ring + segment * (POSITIONS * 16), line_of_x);
            @PASS_ORDER@
            kw_wgmma_wait<0>();
            kw_wgmma_hold(sums);
            const int unit = tiles_before + work_tile;
            if (part == BLOCKS - 1 && lane == 0) kw_barrier_arrive(finished + 8 * (unit % FINISHED));
            @NAME@_finish(@ARGUMENTS@own, sums, strip / (PARTS * ACROSS), @OWN_LINE@, kept, part,
                          @OWN_POSITION@, part * COLUMNS, thread);
          }
          const int round = (tiles_before + work_tile) / WARPGROUPS;
          @NAME@_reduce(@ARGUMENTS@kept, results + (round % 2 * WARPGROUPS + warpgroup) * @RESULTS@, warpgroup,
                        strip / (PARTS * ACROSS), @OWN_LINE@, @OWN_POSITION@, thread);
