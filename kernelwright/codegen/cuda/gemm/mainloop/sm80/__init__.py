"""The mainloop on mma.sync: compute capability 8.0 and later."""
