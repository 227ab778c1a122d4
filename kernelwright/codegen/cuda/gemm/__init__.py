"""Matrix products and convolutions on tensor cores, as CUDA text. `docs/gemm.md` describes the parts."""
