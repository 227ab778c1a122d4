"""Region sums as CUDA."""
