"""Where the scales of a contraction's rows and columns are, and what is read there, as CUDA text."""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.points import guessed
from kernelwright.codegen.cuda.gemm.problem import Geometry


def entry_place(geometry: Geometry, position: str = "p") -> str:
    """Where the scale of an entry is in ``left_scales``, by n, g and its coordinates, which are called ``position`` and
    a number."""
    kernel, place = geometry.kernel, "n"
    wide = "LL" * (kernel.entries * kernel.groups >= 2**31)
    for number, axis in enumerate(kernel.axes[:kernel.entry_axes]):
        place = f"({place} * {axis.in_size}{wide} + {position}{number})"
    return place if kernel.groups == 1 else f"{place} * {kernel.groups}{wide} + g"


def row_place(geometry: Geometry, position: str = "p") -> str:
    """The scale of a row, of an entry with such coordinates. A sign says how it was found."""
    return f"left_scales[{entry_place(geometry, position)}]"


def row_scale_text(geometry: Geometry, position: str = "p") -> str:
    """The scale of a row."""
    return without_mark(geometry, row_place(geometry, position))


def without_mark(geometry: Geometry, scale: str) -> str:
    """A scale without the sign that says how it was found. Where no kernel before packs x 0 counts as 1."""
    text = f"fabsf({scale})" if guessed(geometry, "left") else scale
    return f"{text} + float({scale} == 0.0f)" if geometry.tiling.takes_left and not geometry.splits_left \
        else text


def column_place(geometry: Geometry) -> str:
    """Where the scale of a column is, in ``right_scales``. A sign says how it was found."""
    kernel = geometry.kernel
    wide = "LL" * (kernel.groups * kernel.out_channels >= 2**31)
    return f"g * {kernel.out_channels}{wide} + o"


def column_scale_text(geometry: Geometry) -> str:
    """The scale of a column, without the sign that says how it was found."""
    place = f"right_scales[{column_place(geometry)}]"
    return f"fabsf({place})" if guessed(geometry, "right") else place
