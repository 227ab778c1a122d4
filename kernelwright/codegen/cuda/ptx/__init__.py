"""PTX that kernels use, as snippets."""
