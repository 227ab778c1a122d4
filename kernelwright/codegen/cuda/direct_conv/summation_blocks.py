"""How many products of a direct contraction are one chain of float32 additions, by how exact the sums have to be.

A chain of n fused multiply-adds rounds n times, and its k-th partial sum is as large as sqrt(k) of n terms of random
sign: its error is that of sqrt(n / 2) roundings of the result (Higham, Accuracy and Stability of Numerical Algorithms,
2nd edition, section 4.2). Moved to a second level of sums after each m products it is that of ::

    sqrt(m / 2 + n / (2 m)),  least where m = sqrt(n)

(Blanchard, Higham, Mary, A Class of Fast and Accurate Summation Algorithms, SIAM J. Sci. Comput. 42, 2020). A kernel
here adds up all taps T of a channel before the next of C channels, so a block of b channels has m = b T and
sqrt(b T / 2 + C / (2 b)) roundings, least where b = sqrt(C / T).

cuDNN's float32 convolutions are one chain, as exact as ours. Its transposed ones add over channels for each tap, then
the taps, sqrt(C / 2 + T / 2) roundings: blocks are as exact, one chain is not. A rounding is 2.45e-8 of the result
(rms); with it, measured on an H200 against float64 and in brackets by these formulas::

    transposed convolution                        C     T      one chain               cuDNN
    8 of each group, 3 x 3 x 3, stride 2          8   4.6   1.1e-7 (1.1e-7)   6.9e-8 (6.6e-8)
    8 of each group, 3 x 5, stride 2 x 3          8   5.4   1.2e-7 (1.2e-7)   7.1e-8 (6.8e-8)
    8 of each group, 3 x 5 x 7, stride 2          8  15.2   2.0e-7 (1.9e-7)   9.1e-8 (8.7e-8)
    32, 3 x 5 x 7                                32   105   9.7e-7 (1.0e-6)   2.0e-7 (2.0e-7)
"""

from __future__ import annotations

from collections import Counter
from math import ceil, prod, sqrt

from kernelwright.plan.contraction.record import Contraction, ContractionAxis

#: Ratios of errors, one chain's over the library's: from the first on blocks are worth a try, from the second on they
#: are tried first (a tuner grants a quarter to sums of the same products in another order).
_NEAR, _GRANTED = 1.1, 1.25


def block(kernel: Contraction) -> int:
    """Input channels whose products are one chain at the best, where a single chain of all is less exact than the
    library's sums; otherwise 0."""
    return ceil(sqrt(kernel.in_channels / taps(kernel))) if chain_ratio(kernel) > _NEAR else 0


def blocks_first(kernel: Contraction) -> bool:
    """Whether a single chain is likely to be too inexact."""
    return chain_ratio(kernel) > _GRANTED


def taps(kernel: Contraction) -> float:
    """Taps of an output, on average over the products: phases with more of them have more of the error."""
    return prod(sum(n * n for n in counts) / max(1, sum(counts)) for counts in map(_counts, kernel.axes)) or 1.0


def library_roundings(kernel: Contraction) -> float:
    """Roundings in whose square root the error of the library's float32 sums is counted."""
    if any(_transposed(axis) for axis in kernel.axes):
        return (kernel.in_channels + taps(kernel)) / 2 + 1
    return _chain_roundings(kernel)


def chain_ratio(kernel: Contraction) -> float:
    """The error of a single chain over that of the library's sums."""
    return sqrt(_chain_roundings(kernel) / library_roundings(kernel))


def _chain_roundings(kernel: Contraction) -> float:
    return (kernel.in_channels * taps(kernel) + 1) / 2


def _counts(axis: ContractionAxis) -> list[int]:
    """Taps of each phase that has some."""
    return list(Counter(t.phase for t in axis.taps).values())


def _transposed(axis: ContractionAxis) -> bool:
    """Whether the axis is a transposed convolution's: of several phases, or with its window the other way round."""
    return axis.out_stride > 1 or (len(axis.taps) > 1 and axis.taps[0].offset > axis.taps[-1].offset)
