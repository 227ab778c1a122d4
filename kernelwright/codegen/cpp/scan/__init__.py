"""Scans and the places of extrema as C++ with OpenMP."""
