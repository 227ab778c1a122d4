"""What the loop kernels of all targets share."""
