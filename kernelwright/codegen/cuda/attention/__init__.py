"""Attention, and other pairs of products with a function of the first one's results between them."""
