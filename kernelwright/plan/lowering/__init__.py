"""Composite operators as primitives that kernels are made of."""
