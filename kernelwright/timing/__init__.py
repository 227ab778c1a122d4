"""TIME: eager, torch.compile, candidate and floor, interleaved on cold caches, with their spread."""

from __future__ import annotations

from kernelwright.timing.baselines import CompiledBaseline, Timing, compiled_baseline, summarize, time_model
from kernelwright.timing.clock import Times, measure, ratio
from kernelwright.timing.statistics import Ratio

__all__ = [
    "CompiledBaseline",
    "Ratio",
    "Times",
    "Timing",
    "compiled_baseline",
    "measure",
    "ratio",
    "summarize",
    "time_model",
]
