"""The score of SOL-ExecBench: how much of the way from a baseline to the time that no version beats is done.

Lin et al., "SOL-ExecBench: Speed-of-Light Benchmarking for Real-World GPU Kernels Against Hardware Limits",
arXiv 2603.19173, and ``src/sol_execbench/sol_score.py`` of NVIDIA/SOL-ExecBench: 1 / (1 + (t - s) / (b - s)) for a
time t, a baseline's b and the limit s, so that the baseline has 0.5 and the limit 1. There the baseline is one that
comes with the benchmark; here it is eager in the same rounds, and the limit our roofline's.
"""

from __future__ import annotations

from kernelwright.judge.records import CandidateTiming


def sol_score(timing: CandidateTiming) -> float | None:
    """The score, at most 1; None without a limit or a comparison with eager, and where eager is at the limit."""
    if timing.floor_seconds is None or timing.speedup is None:
        return None
    room = timing.seconds * timing.speedup.value - timing.floor_seconds
    if room <= 0:
        return None
    return 1 / (1 + max(0.0, timing.seconds - timing.floor_seconds) / room)
