"""Scans and the places of extrema as CUDA."""
