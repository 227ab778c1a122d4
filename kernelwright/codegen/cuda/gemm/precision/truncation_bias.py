"""What tensor cores lose of a sum, and what makes up for it (scheme fp16x3, whose sums are to have float32's digits).

Tensor cores cut what they add to the lowest bits of the sum. That is a share of every sum more than it is noise: a
product of 16 channels that is added to a sum takes about `LOSS` of it, whatever the product's own size. Of an interval
(`mainloop.sm90.accumulation_intervals`) of steps with q products of two high terms each, Q in all, the n-th of these
finds n / Q of the sum, and the 2 q products of a high and a low term of a step find what the steps before it have left:
added up, the interval has lost `interval_share` times `LOSS` of itself. Slopes of the error over the exact sum, an H200
(benchmarks/results/truncation_h200.md)::

    Q, steps                                        2, 1    4, 2    6, 3    6, 1    12, 2   8, 4    16, 8   32, 16
    interval_share                                  1.5     4.5     7.5     3.5     12.5    10.5    22.5    46.5
    operands normal, lost in 1e-8                   6.1     12.6    25.8    12.2    41      35      72      147
    operands positive                               7.5     16.7    37.8    33.7    104     64      152     333
    45e-9 * interval_share                          6.8     20      34      15.8    56      47      101     209

What a sum loses where all its products have one sign is twice as much, so `LOSS` stands between the two.

What is added again is rounded to units in the last place, and is about one of them: of sums with mantissas m a factor
of c adds k units from m c > (k - 1/2) 2^-23 on. With mantissas as numbers of any origin have them (1 / (m ln 2) of them
at m) `added` is what that comes to, and `factor` the c for what was lost. Where that is less than a unit, rounding does
as much harm to a single sum as truncation did (products of 32 channels, level1/9, were no longer accurate enough), and
it is left; but for reductions over positions, in which noise averages out and a share does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log

from kernelwright.codegen.cuda.gemm.mainloop.sm90.accumulation_intervals import interval_numbers
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.template import fill_some

#: The share of a sum that is cut off where a product is added to it.
LOSS = 45e-9

#: The last place of a float32 mantissa from 1 to 2.
UNIT = 2.0**-23

#: Behind the last product of a tile: what was lost is added again.
_MAKE_UP = """
      // What tensor cores have cut off these sums.
#pragma unroll
      for (int p = 0; p < @ALL_SUMS@; ++p)
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sums[p][i] = fmaf(sums[p][i], @FACTOR@f, sums[p][i]);
"""


def interval_share(products: Sequence[int]) -> float:
    """How often an interval loses `LOSS` of itself, from the products of two high terms of each of its steps."""
    total, before, found = sum(products), 0, 0.0
    for count in products:
        found += (2 * count * before + sum(before + n for n in range(1, count + 1))) / max(1, total)
        before += count
    return found


def lost(layout: Layout) -> float:
    """The share of its sums that a tile loses; the mean over the classes of output positions."""
    tiling, shares = layout.geometry.tiling, []
    deep = max(1, tiling.depth // 16)
    for group in layout.tap_groups:
        advances = [max(tap_group.counts) for tap_group in group for _ in range(layout.geometry.depths)]
        advances = advances[:max(1, len(advances) // tiling.split_k)]
        numbers = interval_numbers(advances, tiling.promote) if tiling.promote else [0] * len(advances)
        intervals: dict[int, list[int]] = {}
        for number, advance in zip(numbers, advances, strict=True):
            intervals.setdefault(number, []).append(advance * deep)
        total = sum(map(sum, intervals.values()))
        shares.append(sum(interval_share(s) * sum(s) for s in intervals.values()) / max(1, total))
    return LOSS * sum(shares) / max(1, len(shares))


def added(factor: float) -> float:
    """What a factor adds to sums, on average over their mantissas, as a share of them; units that are rounded."""
    found, units = 0.0, 1
    while (least := (units - 0.5) * UNIT / factor if factor else inf) < 2:
        found += UNIT / log(2) * (1 / max(1.0, least) - 0.5)
        units += 1
    return found


def factor(share: float) -> float:
    """The factor that adds a share of sums to them, on average."""
    low, high = 0.0, share + UNIT
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if added(middle) < share else (low, middle)
    return high if share else 0.0


def make_up(layout: Layout) -> str:
    """The lines that add to a tile's complete sums what they have lost; none for schemes with fewer digits, nor for
    less than a unit in the last place of sums that are not added up in reductions over positions."""
    if layout.geometry.terms != 2 or (lost(layout) < added(UNIT / 2)
                                      and not layout.geometry.kernel.position_reductions):
        return ""
    return fill_some(_MAKE_UP, {"FACTOR": f"{factor(lost(layout)):.3e}"})
