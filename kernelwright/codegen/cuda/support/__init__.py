"""Snippets of CUDA that generated kernels share."""
