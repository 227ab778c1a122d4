"""Region sums as C++ with OpenMP."""
