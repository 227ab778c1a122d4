"""Row-buffered implicit GEMM: weights resident, lines of x in a ring."""
