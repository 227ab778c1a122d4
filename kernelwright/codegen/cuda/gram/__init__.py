"""Moments of a convolution's sums from products of its input with itself."""
