"""What the spectral energy of all targets shares."""
