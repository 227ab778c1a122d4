"""How the stream plan of a region sum lies on the device: lanes, rows in flight, blocks and shared memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernelwright.codegen.cuda.loops.schedule import MULTIPROCESSORS, power_at_least
from kernelwright.codegen.region_sum.axes import TooFineError
from kernelwright.codegen.region_sum.planning import Stream

BLOCKS_PER_MULTIPROCESSOR = 8
THREADS = 128
IN_FLIGHT = 32
"""Elements that a thread loads before it adds them."""
OWNED = 8
"""Most columns that a thread owns: each has a float64 accumulator in registers."""
SHARED_BYTES = 40960


@dataclass(frozen=True, slots=True)
class Layout:
    """How a stream plan lies on the device.

    ``vector`` elements per load, ``loads`` vectors per thread and row, ``rows`` rows in flight,
    ``group`` threads per row, ``streams`` groups per unit in a block, ``units`` units per block,
    ``split`` blocks per unit, ``slots`` column arrays per unit, ``padded`` columns of a slot;
    ``shared`` tells whether the slots are in shared memory or in the workspace.
    """

    vector: int
    loads: int
    rows: int
    group: int
    streams: int
    units: int
    split: int
    slots: int
    padded: int
    shared: bool

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.group * self.streams * self.units


def _lanes(columns: int, alignment: int, size: int) -> tuple[int, int, int]:
    vector = min(alignment & -alignment if alignment else 16, 16 // size)
    vectors = -(-columns // vector)
    group = min(32, power_at_least(vectors))
    return vector, group, -(-vectors // group)


def score_of(size: int) -> Callable[[int, int], float]:
    """How well a device adds rows of ``columns`` elements of ``size`` bytes that begin at multiples of ``alignment``
    elements: :func:`plan_stream` takes the tile of the best score."""

    def score(columns: int, alignment: int) -> float:
        vector, group, loads = _lanes(columns, alignment, size)
        if vector * loads > OWNED:
            return 0.0
        width = {2: 0.5, 4: 0.7, 8: 0.9}.get(vector * size, 1.0)
        line = min(1.0, columns * size / 128)  # a row shorter than a cache line wastes part of its sectors
        return columns / (group * loads * vector) * width * line * (group / 32) ** 0.1 * 0.98**loads

    return score


def lay_out(stream: Stream, size: int, elements: int) -> Layout:
    """The layout for elements of ``size`` bytes, ``elements`` in all. TooFineError where another kernel does better."""
    vector, group, loads = _lanes(stream.columns, stream.alignment, size)
    rows = 1 << (max(1, min(8, IN_FLIGHT // (vector * loads))).bit_length() - 1)
    groups = THREADS // group
    fill = MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR * groups
    streams = 1
    while streams < groups and stream.units * streams < fill and stream.rows >= 2 * streams * rows:
        streams *= 2
    units = groups // streams
    split = 1
    if streams == groups and stream.units * groups < fill:
        wanted = -(-MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR * 2 // stream.units)
        split = max(1, min(wanted, stream.rows // (groups * 4 * rows)))
    padded = -(-stream.columns // vector) * vector

    def slot_bytes() -> int:
        totals = 0 if stream.tile_axis is not None else 8 * units * len(stream.tasks)
        return 8 * units * (len(stream.atoms) + streams - 1) * padded + totals

    while slot_bytes() > SHARED_BYTES and units > 1 and group * streams * units > 64:
        units //= 2
    while slot_bytes() > SHARED_BYTES and streams > 1 and split == 1 and group * streams > 64:
        streams //= 2
    shared = slot_bytes() <= SHARED_BYTES
    slots = len(stream.atoms) + streams - 1
    blocks = -(-stream.units // units) * split
    if units * len(stream.tasks) > 2048 or (
        not shared and blocks * units * slots * padded * 64 > elements * size
    ):
        raise TooFineError
    return Layout(vector, loads, rows, group, streams, units, split, slots, padded, shared)
