"""Snippets of C++ that generated kernels share."""
