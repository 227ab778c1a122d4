"""The spectral energy as CUDA."""
