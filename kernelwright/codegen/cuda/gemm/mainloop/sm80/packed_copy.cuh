      const unsigned to = right_buffer + stage * RIGHT_BYTES + lane * 16;
      const auto* from = right + (((place.group * @WINDOW@LL + tap[3]) * ALL_CHUNKS + next_depth * CHUNKS) * ALL_COLUMNS
                                  + place.first_column + lane) * 8;
#pragma unroll
      for (int i = 0; i < LINES; i += WARPS) {
        const int line = i + warp;
        if (LINES % WARPS == 0 || line < LINES)
#pragma unroll
          for (int column = 0; column < COLUMNS; column += 32)
            if (column + 32 <= COLUMNS || column + lane < COLUMNS)
              kw_cp_async_16(to + (line * COLUMNS + column) * 16,
                             from + line / CHUNKS * @RIGHT_TERM@LL + (line % CHUNKS * ALL_COLUMNS + column) * 8);
      }
