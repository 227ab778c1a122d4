      const unsigned to = right_buffer + stage * RIGHT_BYTES + lane * 16;
      const auto* from = right + ((place.group * @WINDOW@LL * ALL_CHUNKS + next_depth) * ALL_COLUMNS
                                  + place.first_column + lane) * 8;
#pragma unroll
      for (int i = 0; i < 2 * LINES; i += WARPS) {
        const int line = i + warp;
        if (2 * LINES % WARPS == 0 || line < 2 * LINES) {
          const long long entry = tap[line % 2 ? 6 : 3] * (ALL_CHUNKS * ALL_COLUMNS * 8);
#pragma unroll
          for (int column = 0; column < COLUMNS; column += 32)
            if (column + 32 <= COLUMNS || column + lane < COLUMNS)
              kw_cp_async_16(to + (line * COLUMNS + column) * 16,
                             from + entry + line / 2 * @RIGHT_TERM@LL + column * 8);
        }
      }
