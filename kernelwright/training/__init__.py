"""Backward passes by kernels: planned for the modes of training, and kept where a step is faster by them."""
