"""The operators, one file per family. Importing this package fills the registry."""

from kernelwright.ir.ops import leaves, linear, norms, pointwise, reductions, special, views, windows

__all__ = ["leaves", "linear", "norms", "pointwise", "reductions", "special", "views", "windows"]
