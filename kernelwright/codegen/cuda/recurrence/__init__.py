"""Recurrent layers as CUDA."""
