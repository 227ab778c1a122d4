"""The target c: plain C11 for one core, without OpenMP and without vector types."""
