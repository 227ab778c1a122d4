      @STEPS@
      const bool mine = tile_number % WARPGROUPS == worker;
      tile_number += 1;
      if (!mine) {  // another consumer warpgroup's tile
        stage += steps % STAGES;
        parity ^= steps / STAGES & 1;
        if (stage >= STAGES) stage -= STAGES, parity ^= 1;
        continue;
      }@FILL_TABLE@
      @AWAIT_ORDER@
      __syncwarp();
