"""Small models after public reports of PyTorch's compilers, exporters and fused kernels, each held against eager."""
