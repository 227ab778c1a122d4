"""How a recurrence is spread over the multiprocessors of a cluster, which hold its weights.

A cluster of blocks computes some rows of the batch for all steps; every block has some elements of the state, and all
weights that these need, in its registers, and in its shared memory where those are too few. A step takes the
multiply-adds of the block's weights on each row, the sums over the threads that share an element, the update, and the
exchange of new states within the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

#: Blocks that every device with clusters has in one; more must be asked for.
PORTABLE = 8
#: Blocks of a cluster, and clusters of so many that a device of compute capability 9.0 holds at a time.
_CLUSTERS = {1: 128, 2: 60, 4: 28, PORTABLE: 14, 16: 6}
#: Blocks of a grid that run at once on every such device.
_MOST_BLOCKS = 112
#: Threads of a block, and weights that each may have in registers beside what else it needs there.
_WEIGHTS = {128: 160, 256: 160, 512: 72}
#: Bytes of shared memory that a block uses at most.
_MOST_SHARED = 220 * 1024
# What is expected of a device of compute capability 9.0, and by what layouts are compared: multiply-adds of a
# multiprocessor a cycle, and instructions of its warps. What a step waits for besides, alone, in a cluster and in a
# grid, and bytes a cycle that this exchanges, were fitted to times of `benchmarks/kernels_recurrence.py`.
_LANES, _ISSUED, _ALONE, _CLUSTERED, _GRID, _CACHE = 128, 4, 500.0, 900.0, 2200.0, 20.0


@dataclass(frozen=True, slots=True)
class Layout:
    """``cluster`` blocks of ``threads`` have ``units`` elements of the state each; they are a cluster, or, where it is
    a ``grid``, all blocks that there are, which hand each other new states through global memory. ``slices``
    neighbouring threads share an element: each has the weights of ``quads`` times four elements of the state, of
    ``own`` elements that it makes, ``held`` of these quads in registers and the others in shared memory. ``rows`` of
    the batch belong to a cluster, at most, of which products take ``together`` at once."""

    cluster: int
    threads: int
    units: int
    slices: int
    quads: int
    held: int
    own: int
    rows: int
    together: int
    grid: bool = False

    @property
    def buffers(self) -> int:
        """States in shared memory: of one step, where a block copies them there itself, or of two."""
        return 1 if self.grid else 2

    @property
    def padded(self) -> int:
        """Elements of a row of the state in shared memory."""
        return 4 * self.quads * self.slices

    @property
    def parts(self) -> int:
        """How often ``together`` rows are multiplied in a step."""
        return ceil(self.rows / self.together)

    @property
    def barriers(self) -> int:
        """Barriers in shared memory: of each part of the states of two steps, in a cluster."""
        return 2 * self.parts if self.cluster > 1 and not self.grid else 0

    def shared_bytes(self, gates: int) -> int:
        """The states, the sums of a part of the rows, the weights that are not in registers, and barriers."""
        sums = self.together * (self.threads // self.slices) * self.own * gates
        return (4 * (self.buffers * self.rows * self.padded + sums + sums % 2) + 16 * self._shared_quads(gates)
                + 8 * self.barriers)

    def _shared_quads(self, gates: int) -> int:
        return (self.quads - self.held) * self.own * gates * self.threads

    def cycles(self, gates: int) -> float:
        """What a step is predicted to take: all parts of the rows, one after the other, or one of them and what it
        waits for, as others go on meanwhile."""
        warps, sums = self.threads / 32, self.together * self.own * gates
        pairs = 32 // self.slices * self.own * self.together
        multiplied = sums * self.threads * self.quads * 4 / _LANES
        issued = self.together * self.quads + (self.quads - self.held) * self.own * gates + 4 * sums
        issued += ceil(pairs / 32) * (120 + 4 * self.cluster * min(32, pairs) / 32 * (not self.grid)) + 60
        part = (multiplied + issued * warps / _ISSUED) * (1 + 0.6 * _ISSUED / warps)
        if self.grid:
            return self.parts * part + _GRID + 8 * self.rows * self.padded / _CACHE
        return max(self.parts * part, part + (_CLUSTERED if self.cluster > 1 else _ALONE))


def choose(gates: int, batch: int, hidden: int) -> Layout | None:
    """The layout of the least predicted time, of clusters that every device has where one of these will do; None where
    nothing holds the weights and the states."""
    def cost(layout: Layout) -> tuple[bool, float]:
        waves = 1 if layout.grid else ceil(ceil(batch / layout.rows) / _CLUSTERS[layout.cluster])
        return layout.cluster > PORTABLE, waves * layout.cycles(gates)

    return min(layouts(gates, batch, hidden), key=cost, default=None)


def layouts(gates: int, batch: int, hidden: int) -> Iterator[Layout]:
    """All that hold the weights and the states."""
    for cluster, clusters in _CLUSTERS.items():
        units = ceil(hidden / cluster)
        if cluster > 1 and units * (cluster - 1) >= hidden:
            continue  # a block would have nothing
        for layout in _spread(gates, hidden, cluster, units):
            rows = ceil(batch / clusters)
            while rows:
                if found := _with_rows(layout, gates, rows):
                    yield from found
                    break
                rows //= 2
    units = ceil(hidden / _MOST_BLOCKS)
    for layout in _spread(gates, hidden, ceil(hidden / units), units):
        yield from _with_rows(replace(layout, grid=True), gates, batch)


def _spread(gates: int, hidden: int, cluster: int, units: int) -> Iterator[Layout]:
    """Layouts of a row, by threads and the slices that these have."""
    for threads, most in _WEIGHTS.items():
        for slices in (4, 8, 16, 32):
            own, quads = ceil(units / (threads // slices)), ceil(hidden / (4 * slices))
            held = min(quads, most // (4 * own * gates))
            if own * gates <= 32 and (units == 1 or (threads // slices) // 2 < units):
                yield Layout(cluster, threads, units, slices, quads, held, own, 1, 1)


def _with_rows(layout: Layout, gates: int, rows: int) -> list[Layout]:
    """The layout for rows of a batch, as many of which are multiplied at once as registers allow, or half of them at
    most, so that a part waits while others are computed; none where a block's shared memory is too small."""
    free = _WEIGHTS[layout.threads] - layout.own * gates * layout.held * 4
    parts = {_together(gates * layout.own, most, free) for most in (rows, ceil(rows / 2))}
    found = [replace(layout, rows=rows, together=together) for together in sorted(parts)]
    return [x for x in found if x.shared_bytes(gates) <= _MOST_SHARED]


def _together(values: int, rows: int, free: int) -> int:
    """Rows whose products are taken at once: as many sums as latency asks for and registers allow."""
    most = max(1, min(rows, 16 // values, (free + 16) // (values + 4)))
    return ceil(rows / ceil(rows / most))
