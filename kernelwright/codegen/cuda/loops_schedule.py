"""How a loop kernel is spread over threads: chosen from its sizes and strides alone."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda.expressions import ITEM_BYTES
from kernelwright.codegen.cuda.loops_domain import largest_load, loads
from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import LoopKernel

MULTIPROCESSORS = 132
"""Multiprocessors that the schedules aim to fill (H100, H200); others work, at other occupancies."""

REGISTER_ROW = 32
"""Most 4-byte values of a row that a thread keeps in registers between walks."""

SHARED_BYTES = 200 * 1024
"""Most dynamic shared memory of a block."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A family of kernels and its sizes.

    family: "points" (no reduction), "rows" (the threads of a group lie along the row) or "columns"
        (they lie along the outer axes; a group's threads take turns on the row).
    lanes: neighbours that a thread handles together, along the row (rows) or the outer axes.
    window: whether the innermost row axis is unrolled beside the lanes.
    group: threads that share an outer point. threads: of a block.
    unroll: steps whose loads are in flight together. splits: blocks that share a row.
    keep: where a row's values stay between walks: "registers", "shared" or "" (read again).
    """

    family: str
    lanes: int = 1
    window: bool = False
    group: int = 1
    threads: int = 256
    unroll: int = 1
    splits: int = 1
    keep: str = ""


def power_at_least(value: int) -> int:
    """The least power of two that is no less than ``value``."""
    return 1 << max(0, value - 1).bit_length()


def lanes_along(kernel: LoopKernel, axis: int) -> int:
    """4 if some load or store can take four neighbours along ``axis`` in one access, else 1."""
    sizes = kernel.outer + kernel.row
    if sizes[axis] % 4:
        return 1
    indices = [load.index for load in loads(kernel) if not any(g.index.strides[axis] for g in load.guards)]
    indices += [store.index for store in kernel.row_stores]
    if not kernel.row or axis < len(kernel.outer):
        indices += [store.index for store in kernel.outer_stores]
    for index in indices:
        others = [s for a, s in enumerate(index.strides) if a != axis]
        if index.strides[axis] == 1 and index.offset % 4 == 0 and all(s % 4 == 0 for s in others):
            return 4
    return 1


def points(kernel: LoopKernel) -> Schedule:
    """The schedule of a pointwise kernel."""
    count = prod(kernel.outer)
    lanes = lanes_along(kernel, len(kernel.outer) - 1) if kernel.outer else 1
    unroll = 4
    while unroll > 1 and (
        count // (256 * lanes * unroll) < MULTIPROCESSORS * 8 or unroll * len(loads(kernel)) > 8
    ):
        unroll //= 2
    return Schedule("points", lanes=lanes, unroll=unroll)


def reductions(kernel: LoopKernel, kept: list[Expression], walks: int) -> Schedule:
    """The schedule of a kernel with reductions. ``kept``: row values used by several of its ``walks``."""
    return (_columns if _prefers_columns(kernel) else _rows)(kernel, kept, walks)


def _prefers_columns(kernel: LoopKernel) -> bool:
    large = largest_load(kernel)
    split = len(kernel.outer)
    if large is None or not kernel.outer:
        return False
    if not kernel.row:
        return True
    outer = [abs(s) for s in large.index.strides[:split] if s]
    row = [(abs(s), size) for s, size in zip(large.index.strides[split:], kernel.row, strict=True) if s]
    nearest, run = min(row, default=(1 << 62, 1))
    along_row = nearest == 1 and run >= 16
    along_outer = bool(outer) and min(outer) <= 4 and kernel.outer[-1] >= 8
    if along_row and along_outer:
        return prod(kernel.row) <= 128 and prod(kernel.outer) >= MULTIPROCESSORS * 512
    if along_row:
        return False
    if along_outer:
        # Few outer points with a short contiguous run each: lanes of rows would idle.
        return nearest > 1 or run < 16
    return nearest > 1 and prod(kernel.outer) >= MULTIPROCESSORS * 64


def _weight(kernel: LoopKernel, kept: list[Expression]) -> int:
    """4-byte registers per kept row element."""
    return len(kept) * ITEM_BYTES[kernel.compute] // 4


def _rows(kernel: LoopKernel, kept: list[Expression], walks: int) -> Schedule:
    count, outer = prod(kernel.row), prod(kernel.outer)
    lanes = lanes_along(kernel, len(kernel.outer) + len(kernel.row) - 1) if kernel.row else 1
    vectors = max(1, count // lanes)
    if kept:
        weight = _weight(kernel, kept)
        group = min(1024, max(power_at_least(-(-count * weight // 16)), 1))
        if group > 16 and -(-vectors // 32) * lanes * weight <= REGISTER_ROW:
            group = 32
        steps = -(-vectors // group)
        if steps * lanes * weight <= REGISTER_ROW:
            threads = max(group, 256 if group <= 128 else group)
            return Schedule("rows", lanes, group=group, threads=threads, unroll=steps, keep="registers")
        per_row = count * weight * 4
        if per_row <= SHARED_BYTES and outer >= 16:
            return Schedule(
                "rows",
                lanes,
                group=1024,
                threads=1024,
                unroll=_unroll(lanes, -(-vectors // 1024)),
                keep="shared",
            )
    fill = MULTIPROCESSORS * 1024
    group = min(32, power_at_least(vectors))
    while group < 512 and ((outer * group < fill and vectors >= 4 * group) or vectors >= 64 * group):
        group *= 2
    splits = 1
    if outer * group < fill and vectors >= 8 * group:
        group = 256
        splits = min(max(1, MULTIPROCESSORS * 8 // outer), max(1, vectors // (group * 4)))
    elif walks > 1 and vectors >= 4096:
        group = 1024
    steps = -(-vectors // (group * splits))
    return Schedule(
        "rows", lanes, group=group, threads=max(256, group), unroll=_unroll(lanes, steps), splits=splits
    )


def _unroll(lanes: int, steps: int) -> int:
    return max(1, min(steps, 16 // lanes if lanes > 1 else 8))


def _columns(kernel: LoopKernel, kept: list[Expression], walks: int) -> Schedule:
    count, outer = prod(kernel.row), prod(kernel.outer)
    axis = len(kernel.outer) - 1
    if count <= 128 and walks == 1 and kernel.row and kernel.row[-1] <= 16 and outer >= 4096:
        return _window(kernel, count, outer)
    lanes = lanes_along(kernel, axis)
    if kept:
        weight = _weight(kernel, kept)
        for width in dict.fromkeys((lanes, 1)):
            for group in (1, 2, 4, 8, 16, 32):
                steps = -(-count // group)
                enough = outer // width * group >= MULTIPROCESSORS * 512 or group >= min(8, count)
                if steps * width * weight <= (REGISTER_ROW if width == 1 else 16) and enough:
                    threads = max(256, 32 * group)
                    return Schedule(
                        "columns", width, group=group, threads=threads, unroll=steps, keep="registers"
                    )
        if count * 32 * weight * 4 <= SHARED_BYTES:
            return Schedule(
                "columns", 1, group=16, threads=512, unroll=_unroll(1, -(-count // 16)), keep="shared"
            )
    if lanes == 4 and outer // 4 < 32:
        lanes = 1
    fill = MULTIPROCESSORS * 1024
    columns = outer // lanes
    group = 1
    while group < 8 and columns * group < fill and count >= 8 * group:
        group *= 2
    splits = 1
    if columns * group < fill and count > 32 * group:
        splits = min(-(-fill // (columns * group)), count // (group * 16))
        splits = min(max(1, splits), 1024)
    steps = -(-count // (group * splits))
    return Schedule(
        "columns", lanes, group=group, threads=256, unroll=max(1, min(steps, 16 // lanes)), splits=splits
    )


def _window(kernel: LoopKernel, count: int, outer: int) -> Schedule:
    """One thread per output, or per four along the last outer axis where that reads and writes in fours."""
    lanes = 4 if kernel.outer[-1] % 4 == 0 and outer >= 4 * 4096 else 1
    steps = count // kernel.row[-1]
    reads = lanes * kernel.row[-1]
    return Schedule("columns", lanes, window=True, threads=256, unroll=max(1, min(steps, 48 // reads)))
