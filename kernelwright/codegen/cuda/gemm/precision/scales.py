"""Where the scales of a contraction's rows and columns are, and what is read there, as CUDA text."""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.points import guessed
from kernelwright.codegen.cuda.gemm.problem import Geometry


def row_place(geometry: Geometry) -> str:
    """Where the scale of a row is. A sign says how it was found."""
    groups = geometry.kernel.groups
    wide = "LL" * (geometry.kernel.batch * groups >= 2**31)
    return "left_scales[n]" if groups == 1 else f"left_scales[n * {groups}{wide} + g]"


def row_scale_text(geometry: Geometry) -> str:
    """The scale of a row."""
    return without_mark(geometry, row_place(geometry))


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
