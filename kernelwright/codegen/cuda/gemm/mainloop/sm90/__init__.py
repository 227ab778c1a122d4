"""The mainloop on wgmma: compute capability 9.0."""
