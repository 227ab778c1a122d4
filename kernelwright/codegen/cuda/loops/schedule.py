"""How a loop kernel is spread over threads: chosen from its sizes and strides alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from kernelwright.codegen.cuda.loops.normal_form import largest_load, loads
from kernelwright.codegen.loops.order import WASTEFUL, Access, Memory, waste
from kernelwright.ir.registry import ITEM_BYTES
from kernelwright.plan.expressions import Expression
from kernelwright.plan.kernels import LoopKernel
from kernelwright.roofline.multiprocessors import HOPPER

MULTIPROCESSORS = HOPPER.count
"""Multiprocessors that the schedules aim to fill (H100, H200); others work, at other occupancies."""

REGISTER_ROW = 32
"""Most 4-byte values of a row that a thread keeps in registers between walks."""

_FEW = 16
"""Values that a thread holds where it has several neighbours of the outer axes, or all of a column."""

WIDE_ROW = 48
"""The same where there are rows enough to fill a device with at most 256 threads for each: several blocks of a
multiprocessor hold rows then, and one loads while another reduces (H200, benchmarks/results/h200_rows.txt: 0.69 to
0.50 ms for rows of 62 KB, with two blocks of 512 threads instead of one of 1024; at the memory's peak 0.48)."""

SHARED_BYTES = 200 * 1024
"""Most dynamic shared memory of a block."""

CACHED_BYTES = 128 * 1024
"""Most of a row that is read again while a block per multiprocessor keeps the rest: together it stays in the cache."""

PART_ELEMENTS = 32768
"""Elements of a block's part of a long row. Small parts in order keep the blocks at work in one region of memory,
and let fast multiprocessors take more of them."""

MOST_SPLITS = 65536
"""Most parts of a row: one block merges them."""

MEMORY = Memory(sector=32, neighbours=32, run=128, walk_run=256, points=2048, most=8192, room=40 * 1024)
"""Sectors of 32 bytes, lines of 128; the local copies of a tile stay within static shared memory."""

_LINES = Memory(sector=128, neighbours=32, run=128, walk_run=128, points=0, most=0, room=0)

STATIC_SHARED = 44 * 1024
COMPONENTS = {"sum": 1, "product": 1, "max": 1, "min": 1, "logsumexp": 2, "moments": 2}
"""Numbers in the state of a reduction, by kind."""


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
    kept_steps: the first steps of a thread, those whose values stay in shared memory; 0: all.
    turned: whether a block of columns reads its rows in the order of their memory into what it keeps.
    """

    family: str
    lanes: int = 1
    window: bool = False
    group: int = 1
    threads: int = 256
    unroll: int = 1
    splits: int = 1
    keep: str = ""
    kept_steps: int = 0
    turned: bool = False


def fits(schedule: Schedule, kernel: LoopKernel) -> bool:
    """Whether the states that threads of a column exchange fit static shared memory."""
    if schedule.family != "columns" or schedule.group == 1:
        return True
    components = sum(COMPONENTS[r.kind] for r in kernel.reductions)
    return components * schedule.threads * schedule.lanes * 8 <= STATIC_SHARED


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
    # One element of each load at a time leaves too few bytes on their way (five loads, H200: 0.50 ms with four, 0.79).
    most = 8 if lanes > 1 else 20
    while unroll > 1 and (
        count // (256 * lanes * unroll) < MULTIPROCESSORS * 8 or unroll * len(loads(kernel)) > most
    ):
        unroll //= 2
    return Schedule("points", lanes=lanes, unroll=unroll)


def points_in_rows(kernel: LoopKernel) -> Schedule | None:
    """The schedule of a pointwise kernel whose threads stay on one row of the last axis; None where that is no gain.

    It is where rows are long, of no multiple of four elements, and some operand is the same all along a row (a norm's
    statistics, say): where every thread takes elements from anywhere it finds out for each of them, by divisions, which
    row it is of, and reads and computes what belongs to the row once more.
    """
    if len(kernel.outer) < 2 or kernel.outer[-1] < 512 or prod(kernel.outer) < MULTIPROCESSORS * 4096:
        return None
    last = len(kernel.outer) - 1
    moves = [any(i.strides[last] for i in (load.index, *(g.index for g in load.guards))) for load in loads(kernel)]
    if all(moves) or lanes_along(kernel, last) > 1:
        return None
    # Eight elements of a thread; with sixteen or more, up to a third slower (benchmarks/results/h200_rows.txt).
    unroll = max(1, 8 // max(1, sum(moves)))
    return Schedule("rows", group=64, threads=256, unroll=unroll, splits=-(-kernel.outer[last] // 512))


def reductions(kernel: LoopKernel, kept: list[Expression], walks: int) -> Schedule:
    """The schedule of a kernel with reductions. ``kept``: row values used by several of its ``walks``."""
    return (_columns if _prefers_columns(kernel) else _rows)(kernel, kept, walks)


def column_parts(kernel: LoopKernel) -> Schedule:
    """The schedule of a kernel whose neighbouring threads take parts of rows along the last outer axis."""
    schedule = _columns(kernel, [], 2)
    return schedule if fits(schedule, kernel) else replace(schedule, lanes=1, group=1)


def takes_columns(kernel: LoopKernel, family: str) -> bool:
    """Whether the last row axis is so short that lines of memory hold parts of several rows.

    ``family``: of the schedule that the kernel has otherwise. Then neighbouring threads lie along that axis and
    along the outer axes beside it (groups of channels, channels last).
    """
    large = largest_load(kernel)
    if large is None or len(kernel.row) < 2 or not kernel.outer:
        return False
    outer, last = len(kernel.outer), len(kernel.outer + kernel.row) - 1
    sizes = kernel.outer + kernel.row
    access = Access(large.index.strides, ITEM_BYTES[kernel.input_dtypes[large.buffer]])
    order = range(last + 1) if family == "rows" else (*range(outer, last + 1), *range(outer))
    straight = waste(access, order, sizes, _LINES)
    return straight >= WASTEFUL * waste(access, (*range(outer, last), *range(outer), last), sizes, _LINES)


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
        weight, per_row = _weight(kernel, kept), count * _weight(kernel, kept) * 4
        group = _group(vectors, lanes * weight, outer)
        steps = -(-vectors // group)
        two = group == 1024 and 2 * per_row <= SHARED_BYTES and outer >= 2 * MULTIPROCESSORS
        if two:  # In registers there would be one.
            return Schedule("rows", lanes, group=512, threads=512, unroll=_unroll(lanes, steps), keep="shared")
        if steps * lanes * weight <= (WIDE_ROW if group <= 256 else REGISTER_ROW):
            threads = max(group, 256 if group <= 128 else group)
            return Schedule("rows", lanes, group=group, threads=threads, unroll=steps, keep="registers")
        fewest = 16 if per_row <= SHARED_BYTES else MULTIPROCESSORS // 2
        room = SHARED_BYTES // (1024 * lanes * weight * 4)
        if per_row <= SHARED_BYTES + (CACHED_BYTES if room else 0) and outer >= fewest:
            unroll = _unroll(lanes, -(-vectors // 1024))
            if per_row > SHARED_BYTES:
                unroll = min(unroll, room)
            return Schedule(
                "rows",
                lanes,
                group=1024,
                threads=1024,
                unroll=unroll,
                keep="shared",
                kept_steps=room // unroll * unroll if per_row > SHARED_BYTES else 0,
            )
    fill = MULTIPROCESSORS * 1024
    group = min(32, power_at_least(vectors))
    while group < 512 and ((outer * group < fill and vectors >= 4 * group) or vectors >= 64 * group):
        group *= 2
    splits = 1
    if outer * group < fill and vectors >= 8 * group:
        group = 256
        filling = min(max(1, MULTIPROCESSORS * 8 // outer), max(1, vectors // (group * 4)))
        splits = min(max(filling, count // PART_ELEMENTS), max(filling, MOST_SPLITS // outer))
    elif walks > 1 and vectors >= 4096:
        group = 1024
    steps = -(-vectors // (group * splits))
    return Schedule(
        "rows", lanes, group=group, threads=max(256, group), unroll=_unroll(lanes, steps), splits=splits
    )


def _group(vectors: int, weight: int, outer: int) -> int:
    """Threads that hold a row of so many vectors in registers, ``weight`` for each, if 1024 of them can.

    As few of them as can, but a warp at least, where there are rows enough to fill the device; otherwise those that
    keep 16 registers each. A warp needs no meeting of others: it may take rows of 32 registers each whatever there is.
    """
    group = power_at_least(-(-vectors * weight // 16))
    wide = 32
    while wide < 1024 and -(-vectors // wide) * weight > (WIDE_ROW if wide <= 256 else REGISTER_ROW):
        wide *= 2
    if group <= 16 or outer * wide < MULTIPROCESSORS * 512:
        in_warp = group > 16 and -(-vectors // 32) * weight <= REGISTER_ROW
        return 32 if in_warp else min(group, 1024)
    return wide


def _unroll(lanes: int, steps: int) -> int:
    return max(1, min(steps, 16 // lanes))


def _columns(kernel: LoopKernel, kept: list[Expression], walks: int) -> Schedule:
    count, outer = prod(kernel.row), prod(kernel.outer)
    axis = len(kernel.outer) - 1
    if count <= 128 and walks == 1 and kernel.row and kernel.row[-1] <= 16 and outer >= 4096:
        return _window(kernel, count, outer)
    lanes = lanes_along(kernel, axis)
    if kept:
        weight = _weight(kernel, kept)
        if count * weight <= _FEW < count * lanes * weight and outer >= MULTIPROCESSORS * 512:
            # A thread has all of a short row: nothing is exchanged, and states are floats.
            return Schedule("columns", group=1, threads=256, unroll=count, keep="registers")
        for width in dict.fromkeys((lanes, 1)):
            for group in (1, 2, 4, 8, 16, 32):
                steps = -(-count // group)
                enough = outer // width * group >= MULTIPROCESSORS * 512 or group >= min(8, count)
                schedule = Schedule("columns", width, group=group, threads=max(256, 32 * group), unroll=steps,
                                    keep="registers")
                small = steps * width * weight <= (REGISTER_ROW if width == 1 else _FEW)
                if small and enough and fits(schedule, kernel):
                    return schedule
        if count * 32 * weight * 4 <= SHARED_BYTES:
            return Schedule(
                "columns", 1, group=16, threads=512, unroll=_unroll(1, -(-count // 16)), keep="shared"
            )
    if lanes == 4 and outer // 4 < 32:
        lanes = 1
    fill = MULTIPROCESSORS * 1024
    columns = outer // lanes
    group = 1
    while group < 8 and columns * group < 4 * fill and count >= 8 * group:
        group *= 2
    splits = 1
    if columns * group < fill and count > 32 * group:
        splits = min(-(-fill // (columns * group)), count // (group * 16))
        splits = min(max(1, splits), 1024)
    steps = -(-count // (group * splits))
    unroll = max(1, min(steps, 8 if lanes == 4 else 16))
    return Schedule("columns", lanes, group=group, threads=256, unroll=unroll, splits=splits)


def _window(kernel: LoopKernel, count: int, outer: int) -> Schedule:
    """One thread per output, or per four along the last outer axis where that reads and writes in fours."""
    lanes = 4 if kernel.outer[-1] % 4 == 0 and outer >= 4 * 4096 else 1
    steps = count // kernel.row[-1]
    reads = lanes * kernel.row[-1]
    return Schedule("columns", lanes, window=True, threads=256, unroll=max(1, min(steps, 48 // reads)))
