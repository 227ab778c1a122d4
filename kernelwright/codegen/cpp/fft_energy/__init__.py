"""The spectral energy as C++ with OpenMP."""
