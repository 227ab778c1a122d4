"""Candidates with CUDA kernels on a machine without a GPU: rewritten for the processor, built, and run by emulation."""
