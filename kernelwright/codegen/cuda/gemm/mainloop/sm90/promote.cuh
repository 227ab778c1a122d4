since += @ADVANCE@;
        if (since < @EVERY@) {
          kw_wgmma_wait<1>();  // The step before is done.
          @FREE@
          before = stage;
        } else {
          kw_wgmma_wait<0>();
          @FREE@
          @FREE_THIS@
          before = -1;
          @ADD_PART@
          add = since = 0;
        }
