"""All converters, which register themselves as they are imported (see :mod:`kernelwright.capture.converters.table`)."""

from __future__ import annotations

from kernelwright.capture.converters import (
    filled,
    integers,
    lookups,
    losses,
    moves,
    pointwise,
    products,
    recurrent,
    reductions,
    scans,
    views,
)

__all__ = ["filled", "integers", "lookups", "losses", "moves", "pointwise", "products", "recurrent", "reductions",
           "scans", "views"]
