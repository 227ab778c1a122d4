"""Operators of eager rounded otherwise, as another library, or another order of terms, may round them."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelwright.verify.sensitivity import MOVES, PRODUCTS, SUMS, WINDOWS, Rounding

#: Sums of which infinities of both signs leave NaN.
_CANCEL = frozenset(("sum", "mean", "cumsum"))


class OtherRounding(Rounding):
    """Rounding of what is computed alone: what is cast, moved, or chosen stays as it is, and so does a zero's sign.
    Every result is moved, those of few bits, too, so that a jump is met in either direction, and so are terms of sums.
    A sum of products that leaves its type on the way is what another order of its terms makes of it. overflows: whether
    every infinity is of what left its type, so that what two of them leave of each other is decided by what overflows
    first, and by whether a product is rounded before it is added.
    """

    seldom = 1

    def __init__(self, seed: int, unit: float | None = None, share: float = 1.0, overflows: bool = False) -> None:
        super().__init__(seed, unit, share)
        self.overflows = overflows

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        if name in MOVES:
            return func(*args, **kwargs)
        result = super().__torch_dispatch__(func, types, self.terms_off(args) if name in SUMS else args, kwargs)
        if self.overflows and name in _CANCEL and isinstance(result, torch.Tensor) and result.is_floating_point() \
                and not any(bool(value.isnan().any()) for value in args if isinstance(value, torch.Tensor)):
            return torch.where(result.isnan(), torch.full_like(result, self._either()), result)
        return self._in_other_order(func, args, kwargs, result) if name in PRODUCTS | WINDOWS else result

    def _either(self) -> float:
        return (math.inf, -math.inf, math.nan)[self.seed % 3]

    def _in_other_order(self, func: Any, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
        """``result`` with what some order of its terms gives where those of one sign exceed what the type holds.

        Where those of both signs do, the sum is an infinity of either sign (a multiplication and an addition in one
        keeps the first one's) or NaN, of two partial sums; where those of one do, it is that one's infinity, or what
        all terms add up to in float64.
        """
        operands = [value for value in args if isinstance(value, torch.Tensor)]
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or result.dtype == torch.float64 \
                or bool(result.isfinite().all()) or not all(bool(value.isfinite().all()) for value in operands):
            return result
        wide = [value.double() if isinstance(value, torch.Tensor) else value for value in args]
        total = func(*wide, **kwargs)
        sizes = func(*(value.abs() if isinstance(value, torch.Tensor) else value for value in wide), **kwargs)
        most = torch.finfo(result.dtype).max
        up, down = (sizes + total) / 2 > most, (sizes - total) / 2 > most
        either = torch.full_like(result, self._either())
        alone = torch.where(up, math.inf, -math.inf) if self.seed % 3 == 0 else total
        return torch.where(up & down, either, torch.where(up | down, alone.to(result.dtype), result))
