"""Matrix products and convolutions: what their kernels mean, and how a group of nodes becomes such a kernel."""
