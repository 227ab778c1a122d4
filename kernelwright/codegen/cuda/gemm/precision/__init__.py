"""Float32 results of float16 products: scales, truncation, and what is computed again."""
