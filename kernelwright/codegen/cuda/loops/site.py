"""How one thread sees the domain: axes, lanes, window; and loops over them as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernelwright.codegen.cuda.expressions import affine_text
from kernelwright.plan.expressions import Index


@dataclass(frozen=True, slots=True)
class Site:
    """How one thread sees the domain. Axes are numbered over outer, then row.

    lane_axis, lanes: the axis along which the thread handles ``lanes`` neighbours, or None and 1.
    window_axis, window: the row axis that is unrolled beside the lanes, or None and 1.
    walked: the axes that a step of the walk moves along; the others are fixed.
    taken: how many of the last outer axes are row axes, along which neighbouring threads take parts of one row.
    """

    outer: tuple[int, ...]
    row: tuple[int, ...]
    real: str
    long: bool
    walked: tuple[int, ...]
    lane_axis: int | None = None
    lanes: int = 1
    window_axis: int | None = None
    window: int = 1
    taken: int = 0

    @property
    def names(self) -> list[str]:
        """Names of the axes: i0, i1, ... outer, r0, r1, ... row."""
        return [f"i{n}" for n in range(len(self.outer))] + [f"r{n}" for n in range(len(self.row))]

    @property
    def per_outer(self) -> bool:
        """Whether lanes are different outer points."""
        return self.lanes > 1 and self.lane_axis not in self.walked

    @property
    def lane_axes(self) -> tuple[int, ...]:
        """The axis of the lanes, where there are several."""
        return (self.lane_axis,) if self.lane_axis is not None and self.lanes > 1 else ()

    @property
    def window_axes(self) -> tuple[int, ...]:
        """The axis of the window, where it has several elements."""
        return (self.window_axis,) if self.window_axis is not None and self.window > 1 else ()

    def lane_strides(self, index: Index) -> tuple[int, int]:
        """The strides of an index per lane and per window element."""
        return sum(index.strides[a] for a in self.lane_axes), sum(index.strides[a] for a in self.window_axes)

    def base(self, index: Index) -> str:
        """Text of an index at lane 0 and window element 0."""
        strides = list(index.strides)
        for axis in self.window_axes:
            strides[axis] = 0
        return affine_text(strides, self.names, index.offset, self.long)

    def aligned(self, index: Index) -> bool:
        """Whether the base of an index is a multiple of 4 at every step."""
        lane = self.lane_axis if self.lanes > 1 else None
        window = self.window_axis if self.window > 1 else None
        sizes = self.outer + self.row
        return index.offset % 4 == 0 and all(
            (stride * (self.lanes if axis == lane else 1)) % 4 == 0 or size == 1
            for axis, (stride, size) in enumerate(zip(index.strides, sizes, strict=True))
            if axis != window
        )

    def depends(self, indices: Sequence[Index]) -> tuple[bool, bool]:
        """Whether indices move along the row walk, and whether they differ between lanes."""
        row = any(index.strides[a] for index in indices for a in (*self.walked, *self.window_axes))
        return row, any(any(self.lane_strides(index)) for index in indices)


def subscript(lane: int, window: int) -> str:
    """Text of ``lane * v + window * q``."""
    return affine_text((lane, window), ("v", "q"), 0, False)


def loops(site: Site, lines: Sequence[str], lane: bool = True, window: bool = True) -> list[str]:
    """``lines`` repeated over the window and the lanes."""
    lines = list(lines)
    for used, name, count in ((lane, "v", site.lanes), (window, "q", site.window)):
        if used and count > 1:
            lines = [
                "#pragma unroll",
                f"for (int {name} = 0; {name} < {count}; ++{name}) {{",
                *indent(lines),
                "}",
            ]
    return lines


def indent(lines: Sequence[str], by: int = 2) -> list[str]:
    """Lines moved to the right; preprocessor lines stay."""
    return [line if line.startswith("#") or not line else " " * by + line for line in lines]
