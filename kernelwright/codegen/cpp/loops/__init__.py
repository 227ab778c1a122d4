"""Loop kernels as C++ with OpenMP."""
