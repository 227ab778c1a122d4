"""SUITE: many problems on many devices, one process for each, with resume and scores.

The runner and the scheduler never import PyTorch: a CUDA context that breaks, memory that runs out and code
that hangs are the worker's.
"""
