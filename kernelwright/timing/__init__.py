"""TIME: eager, torch.compile, candidate and floor, interleaved on cold caches, with their spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from kernelwright.timing.baselines import CompiledBaseline, Timing, compiled_baseline, summarize, time_model
    from kernelwright.timing.rounds import Times, measure, ratio
    from kernelwright.timing.statistics import Ratio

_HOMES = {"CompiledBaseline": "baselines", "Ratio": "statistics", "Times": "rounds", "Timing": "baselines",
          "compiled_baseline": "baselines", "measure": "rounds", "ratio": "rounds", "summarize": "baselines",
          "time_model": "baselines"}


def __getattr__(name: str) -> Any:
    # Who only wants an interval (`timing/statistics.py`) need not wait for what baselines import.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kernelwright.timing.{_HOMES[name]}"), name)
