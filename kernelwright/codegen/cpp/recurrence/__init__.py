"""Recurrent layers as C++ with OpenMP."""
