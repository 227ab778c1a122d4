"""Runs of packed rows, the taps that read them, and two taps in one product where channels are few.

Tensor cores multiply 16 elements of 16 bits at a time: two chunks of 8 channels. Up to 8 channels would be filled up to
16 with zeros, which is twice the memory, twice the shared memory, and half of every product. But a tap is a shift in
rows, and where the two chunks of an operand lie is free: the second one may be the first one's rows at another tap. So
with ``Tiling.depth == 8`` a product takes a pair of taps of one run, 8 channels of each. Of w a pair has both taps'
entries, one behind the other. A tap without a partner has its own rows twice, which are always there, and for a second
entry zeros: packed w has one entry of zeros behind those of the window.

Zeros times what is not finite would be NaN. Operands that are scaled are packed as zeros where they are not finite;
16-bit operands as they are take no pairs where a tap has no partner.

For T terms, P products of terms (2 and 3 for fp16x3, 1 and 1 for fp16), a run of t taps and C columns, pairs against 16
channels::

    packed x, bytes of a row            16 T              32 T
    x of a step in shared memory        16 T rows         32 T rows
    w of a step                         32 T C ceil(t/2)  32 T C t
    products of 64 x C x 16             P ceil(t/2)       P t

A convolution of 8 to 64 channels, 3 x 3, 128 x 256 x 256 positions and a padding of 1 has three runs of three taps: six
products for nine. Its x is 268 MB, its result 2.15 GB. Predicted for an H200, tiles of 256 x 64 (the tensor cores' time
is 9 or 6 products of 253 waves of tiles at 1.75 GHz; packing reads x and writes it packed, at 4.3 TB/s)::

                                    fp16: 16 channels, pairs    fp16x3: 16 channels, pairs
    packed x                           273 MB       136 MB           545 MB       273 MB
    packing                           0.126 ms     0.094 ms         0.189 ms     0.126 ms
    tensor cores, of the core         0.167 ms     0.111 ms         0.500 ms     0.333 ms
    results to memory                  0.50 ms      0.50 ms          0.50 ms      0.50 ms
    the core, as tilings are ordered  0.566 ms     0.526 ms         0.938 ms     0.740 ms

Results are the core's limit where they hide the products; the last line is `predicted_milliseconds` of the first tiling
of either kind. With 16 channels an H200 took 0.167 and 0.240 ms to pack and 0.90 and 1.10 ms for the core
(benchmarks/results/convolutions_h200.jsonl); with pairs, in fp16, 0.136 and 0.92 ms (benchmarks/notes/contractions.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest


@dataclass(frozen=True, slots=True)
class Run:
    """Taps that read one run of rows: of input phase ``phase``, from ``shift`` rows beyond a block's first one.

    ``taps``: (rows beyond ``shift``, entry of the window, row-major over the weight's axes) for each of them.
    ``feeds``: for each of them the phase (`Rows.together`) whose sums it feeds, beyond the class's own.
    ``seconds``: nothing, or where taps are paired, for each of ``taps`` the one that is multiplied with it: (rows
    beyond that tap's own, entry).
    """

    phase: int
    shift: int
    taps: tuple[tuple[int, int], ...]
    feeds: tuple[int, ...]
    seconds: tuple[tuple[int, int], ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Taps or pairs that feed each phase, of those that some feed."""
        return tuple(self.feeds.count(feed) for feed in sorted(set(self.feeds)))

    @property
    def reaches(self) -> tuple[int, ...]:
        """Of each tap or pair, the rows beyond ``shift`` at which the last of its rows begin."""
        if not self.seconds:
            return tuple(beyond for beyond, _ in self.taps)
        return tuple(beyond + apart for (beyond, _), (apart, _) in zip(self.taps, self.seconds, strict=True))


def with_tap_pairs(run: Run, zeros: int) -> Run:
    """The run with its taps in pairs, neighbours of those that feed the same phase; by the first one's rows.

    ``zeros``: the entry that a tap without a partner has for a second one; its second rows are its own.
    """
    found = []
    for feed in set(run.feeds):
        own = [tap for tap, fed in zip(run.taps, run.feeds, strict=True) if fed == feed]
        for first, second in zip_longest(own[::2], own[1::2]):
            found.append((first, feed, (second[0] - first[0], second[1]) if second else (0, zeros)))
    found.sort()
    taps, feeds, seconds = zip(*found, strict=True)
    return Run(run.phase, run.shift, taps, feeds, seconds)
