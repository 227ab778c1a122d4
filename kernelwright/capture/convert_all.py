"""All converters, which register themselves as they are imported (see :mod:`kernelwright.capture.convert`)."""

from __future__ import annotations

from kernelwright.capture import (
    convert_filled,
    convert_integers,
    convert_losses,
    convert_moves,
    convert_pointwise,
    convert_products,
    convert_recurrent,
    convert_reductions,
    convert_scans,
    convert_views,
)

__all__ = ["convert_filled", "convert_integers", "convert_losses", "convert_moves", "convert_pointwise",
           "convert_products", "convert_recurrent", "convert_reductions", "convert_scans", "convert_views"]
