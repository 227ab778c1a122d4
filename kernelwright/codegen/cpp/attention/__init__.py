"""Attention as C++ with OpenMP."""
