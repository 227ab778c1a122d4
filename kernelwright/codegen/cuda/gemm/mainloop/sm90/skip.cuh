      @STEPS@
      const bool mine = turn % TEAMS == worker;
      turn += 1;
      if (!mine) {  // another team's tile
        stage += steps % STAGES;
        parity ^= steps / STAGES & 1;
        if (stage >= STAGES) stage -= STAGES, parity ^= 1;
        continue;
      }@FILL_TABLE@
      @AWAIT_ORDER@
      __syncwarp();
