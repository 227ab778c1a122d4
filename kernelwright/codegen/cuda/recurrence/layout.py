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
#: Registers of a multiprocessor, those that a thread needs beside weights, states and sums, and how many sums it may
#: have: more take fewer loads, fewer a shorter text.
_REGISTERS, _NEEDED, _SUMS = 65536, 30, (16, 32)
#: Bytes of shared memory that a block uses at most.
_MOST_SHARED = 220 * 1024
# What is expected of a device of compute capability 9.0, and by what layouts are compared: multiply-adds of a
# multiprocessor a cycle, and instructions of its warps.
_LANES, _ISSUED = 128, 4


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
    def blocks(self) -> int:
        """Blocks of rows that are multiplied at once."""
        return ceil(self.rows / self.together)

    @property
    def pairs(self) -> int:
        """Pairs of a row and an element of the state that a thread updates."""
        return ceil(32 // self.slices * self.own * self.rows / 32)

    @property
    def barriers(self) -> int:
        """Barriers in shared memory: of the states of two steps, in a cluster."""
        return 2 if self.cluster > 1 and not self.grid else 0

    def shared_bytes(self, gates: int) -> int:
        """The states, the sums, the weights that are not in registers, and barriers."""
        sums = self.blocks * self.together * (self.threads // self.slices) * self.own * gates
        return (4 * (self.buffers * self.rows * self.padded + sums + sums % 2) + 16 * self._shared_quads(gates)
                + 8 * self.barriers)

    def _shared_quads(self, gates: int) -> int:
        return (self.quads - self.held) * self.own * gates * self.threads

    def cycles(self, gates: int) -> float:
        """What a step is predicted to take: products of all rows, one block after the other, then updates and the
        exchange. The numbers were fitted to times that `benchmarks/kernels_recurrence.py --tune` printed on an H200.
        """
        warps, values = self.threads / 32, self.own * gates
        multiplied = self.together * self.threads * values * self.quads * 4 / _LANES
        loaded = 2.1 * warps * self.together * self.quads + 2.0 * self._shared_quads(gates) / 32
        summed = 2.0 * warps * self.together * values
        block = multiplied * (1 + 0.18 * _ISSUED / warps) + loaded + summed + 300
        updated = 240 + 67 * self.pairs * warps / _ISSUED
        if self.grid:
            exchanged = 2250 + 170 * self.rows * self.padded / self.threads
        else:
            exchanged = 150 + self.cluster * (8 + self.rows * self.padded / 34) if self.cluster > 1 else 0
        return self.blocks * block + updated + exchanged


def choose(gates: int, batch: int, hidden: int) -> Layout | None:
    """The layout of the least predicted time; one that not every device has must be better by a sixth. None where
    nothing holds the weights and the states."""
    def cost(layout: Layout) -> float:
        if layout.grid:
            return layout.cycles(gates)
        waves = ceil(ceil(batch / layout.rows) / _CLUSTERS[layout.cluster])
        return waves * layout.cycles(gates) * (7 / 6 if layout.cluster > PORTABLE else 1)

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
    """The layout for rows of a batch, of which a few or many are multiplied at once; none where registers or a block's
    shared memory do not hold them."""
    whole, values = replace(layout, rows=rows), layout.own * gates
    # Of a thread: what a step needs anyway, its weights, and of each pair what it reads and keeps.
    free = min(255, _REGISTERS // layout.threads) - _NEEDED - 4 * layout.held * values - whole.pairs * (2 * gates + 2)
    at_once = {min(rows, sums // values, free // (values + 4)) for sums in _SUMS}
    evenly = sorted({ceil(rows / ceil(rows / together)) for together in at_once if together > 0})
    return [x for together in evenly
            if (x := replace(whole, together=together)).shared_bytes(gates) <= _MOST_SHARED]
