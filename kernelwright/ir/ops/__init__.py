"""The operators, one file per family. Importing this package fills the registry."""

from kernelwright.ir.ops import (
    attention,
    batched,
    leaves,
    linear,
    lookups,
    losses,
    moves,
    norms,
    pointwise,
    recurrence,
    reductions,
    resampling,
    scans,
    special,
    views,
    windows,
)

__all__ = ["attention", "batched", "leaves", "linear", "lookups", "losses", "moves", "norms", "pointwise",
           "recurrence", "reductions", "resampling", "scans", "special", "views", "windows"]
