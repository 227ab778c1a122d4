"""Medians, intervals and paired ratios of repeated times, without touching PyTorch's random state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

RESAMPLES = 1000
#: Two-sided confidence of every interval.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Time of ``slower`` over time of ``faster`` (names as asked for, the value may be below 1): how many
    times faster the second is. ``low`` and ``high`` are a 95 % bootstrap interval over paired rounds."""

    slower: str
    faster: str
    value: float
    low: float
    high: float
    pairs: int

    def is_tie(self) -> bool:
        """Whether the interval contains 1, so that neither is shown to be faster."""
        return self.low <= 1.0 <= self.high

    def sentence(self) -> str:
        """Say it in words."""
        if self.is_tie():
            return (
                f"{self.faster} and {self.slower} tie ({self.value:.2f}x, {self.low:.2f} to {self.high:.2f})."
            )
        spread = f"{self.low:.2f} to {self.high:.2f}"
        return f"{self.faster} is {self.value:.2f}x as fast as {self.slower} ({spread})."


def quantile(values: Sequence[float], share: float) -> float:
    """Return the ``share`` quantile of ``values`` (linear interpolation). ``values`` must not be empty."""
    return float(torch.quantile(torch.tensor(sorted(values), dtype=torch.float64), share))


def _resampled(count: int, seed: int) -> torch.Tensor:
    """Row after row of ``count`` indices drawn with replacement: int64 (RESAMPLES, count)."""
    return torch.randint(count, (RESAMPLES, count), generator=torch.Generator().manual_seed(seed))


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the median; (value, value) for a single one."""
    data = torch.tensor(values, dtype=torch.float64)
    medians = torch.quantile(data[_resampled(len(values), 0)], 0.5, dim=1)
    tails = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    low, high = torch.quantile(medians, tails).tolist()
    return low, high


def paired_ratio(slower: str, faster: str, numerator: Sequence[float], denominator: Sequence[float]) -> Ratio:
    """Return the ratio of medians with an interval from resampling rounds (both times of a round together).

    ``numerator[i]`` and ``denominator[i]`` come from round i; surplus rounds of the longer one are dropped.
    Raises ValueError where either is empty.
    """
    pairs = min(len(numerator), len(denominator))
    if not pairs:
        raise ValueError(f"no times of {slower} and {faster} to compare")
    above = torch.tensor(numerator[:pairs], dtype=torch.float64)
    below = torch.tensor(denominator[:pairs], dtype=torch.float64).clamp_min(1e-12)
    draws = _resampled(pairs, 1)
    ratios = torch.quantile(above[draws], 0.5, dim=1) / torch.quantile(below[draws], 0.5, dim=1)
    tails = torch.tensor([(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], dtype=torch.float64)
    low, high = torch.quantile(ratios, tails).tolist()
    value = float(torch.quantile(above, 0.5) / torch.quantile(below, 0.5))
    return Ratio(slower, faster, value, low, high, pairs)
