"""How the steps of a tile on wgmma are cut into intervals, whose sums are promoted to float32 registers.

Tensor cores truncate as they add. So an *interval*, ``tiling.promote`` steps of a tap each, or the one step that has
more, is summed on them from zero, and what it gives is added up in float32. A warpgroup that waits for its products and
then adds leaves the tensor cores idle, unless another one multiplies in the meantime; with consumer warpgroups none
did. Of a tile of 64 P rows and C columns a set of sums is P * C / 2 registers of a thread, and adding one is as many
instructions of each warp, with one warp on a scheduler; from the end of the last product to the first one behind the
additions there are some 100 cycles more (a guess: nobody has measured this).

What is done about it:

- The first interval is summed in ``sums`` themselves, its first product sets them: a tile of S intervals adds S - 1
  times, one of one interval not at all and has no other registers than its sums.
- Two sets of registers, ``part[0]`` and ``part[1]``, are filled in turn, where a thread has room for them: the products
  of an interval are on their way before the interval in front of it is waited for and added.
- The order passes on to the next consumer warpgroup as soon as the last products of a tile have been issued: those of
the next tile
  follow them while this one's last interval is waited for and added (`mainloop.sm90.threads`, on barriers).

Convolution of 8 to 64 channels, 3 x 3, fp16x3, pairs of taps, 3 steps to a tile, each an interval. A step has 2 * 3
products of 64 x 64 x 16, of 32 cycles each, for each 64 rows::

    a tile, consumer warpgroups        128x64, 2           64x64, 3
                                       before     now            before     now
    tensor cores, cycles               1152       1152           576        576
    sums set to zero, registers        128        0              64         0
    additions, of a thread             192        128            96         64
    waits and additions of a tile      3 x 164    0              3 x 132    0
    a tile, cycles                     1644       1152           972        576
    registers of sums                  64 + 64    64 + 2 x 64    32 + 32    32 + 2 x 32
    registers there are for them       192        192            112        112

Where paths meet ptxas has to see that no product is on its way to a register that something else reads: otherwise it
makes every product wait for the one before (C7514; nvcc 13.0 does so for any loop that is entered, left or repeated in
such a state). So few steps (`FEW`) are written out one behind the other, each with its own set of sums; of more, a
*round* of `ROUND` intervals is, and ends with a wait for all of them. It exposes one wait in `ROUND`. Two warpgroups
that share a tile (one consumer warpgroup) expose none in any case: one begins half an interval earlier, and adds while
the other multiplies. They keep one set.

Rounds need some 8 registers more than what is written out, which 128x64 with two consumer warpgroups has not: with two
sets ptxas spilled 8 to 180 bytes of some. Where there are 128 rows, or two output phases, and a step is an interval,
one set will do: its halves, of 64 rows or of a phase, are groups of products of their own, and one half is added while
the other one's products run. The order of what is added to each sum stays.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Products of 64 rows, all steps together, up to which a tile's steps are written out; and those of a round.
FEW = 64
#: The same of a round that adds sums by halves.
MANY = 160
#: Intervals of a round at most, an even number.
ROUND = 4
#: Steps that are looked at: a tile of more has several intervals.
_LOOKED_AT = 64


def interval_numbers(advances: Sequence[int], promote: int, since: int = 0) -> list[int]:
    """Of each step the number of the interval that it belongs to. ``advances``: how many taps of each step follow each
    other in one sum; ``since``: how many count as if they had been before the first one."""
    numbers, number = [], 0
    for advance in advances:
        numbers.append(number)
        since += advance
        if since >= promote:
            number, since = number + 1, 0
    return numbers


def most_intervals(advances: Sequence[int], promote: int, offsets: Sequence[int]) -> int:
    """The intervals that these steps have for one of the ``offsets`` of `interval_numbers`, at least; up to 64 steps
    exactly."""
    looked_at = advances[:_LOOKED_AT]
    return max((interval_numbers(looked_at, promote, since)[-1] + 1 for since in offsets if looked_at), default=0)
