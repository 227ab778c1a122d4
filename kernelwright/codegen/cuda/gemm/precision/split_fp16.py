"""Products of operands that are split into two float16 terms: three of the four, of which the small ones come first.

Tensor cores cut what they add to the lowest bit of a sum, so that low terms are added while it is small; low times low
is beyond float32. One term has one product.
"""

from __future__ import annotations

#: The loop over pairs of terms, of the operands in the order of the product: low high, high low, high high.
PAIRS = "for (int pair = @FIRST_PAIR@; pair < 3; ++pair) {"


def first_pair(terms: int) -> int:
    """The number of the first pair of terms that is multiplied."""
    return 0 if terms == 2 else 2
