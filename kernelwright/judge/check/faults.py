"""Faults of a candidate's kernels in memory and in order, whoever saw them, the emulation of CUDA or compute-sanitizer:
one verdict for each kind, one finding."""

from __future__ import annotations

from typing import Any

from kernelwright.judge.diagnose.patterns import RACE_FIX
from kernelwright.judge.reading.sanitizer import BARRIER, MAYBE_RACE, MISALIGNED, OTHER, OUT_OF_BOUNDS, RACE, UNSET
from kernelwright.judge.records import Finding

_BARRIER_FIX = ("Let all threads of a block reach each __syncthreads(), and all lanes of its mask each __syncwarp(), "
                "shuffle and vote.")
#: Verdict and fix of each kind. What has no verdict limits a candidate: results do not show it.
_KINDS = {
    OUT_OF_BOUNDS: ("WRONG-OUT-OF-BOUNDS", "Keep every index below the length of its array: guard the last block, and "
                                           "vector loads at the end."),
    RACE: ("WRONG-RACE", f"{RACE_FIX[:1].upper()}{RACE_FIX[1:]}."),
    BARRIER: ("WRONG-RACE", _BARRIER_FIX),
    MISALIGNED: ("CRASH-DEVICE", "Ask the address before using vector accesses, or use scalar ones."),
    OTHER: ("CRASH-DEVICE", "Keep every index below the length of its array, and let all threads of a block reach each "
                            "barrier."),
    MAYBE_RACE: ("", f"{RACE_FIX[:1].upper()}{RACE_FIX[1:]}."),
    UNSET: ("", "Write memory before it is read, or do not read what does not count."),
}


def fault_verdict(kind: str) -> str:
    """The verdict that a fault of this kind calls for; empty where it is a limit."""
    return _KINDS[kind][0]


def fault_finding(kind: str, sentence: str, line: int | None = None, text: str = "", **evidence: Any) -> Finding:
    """A fault as a finding. ``line`` and ``text`` are of the candidate's file."""
    return Finding("kernel-failed" if kind == OTHER else kind, sentence, "run", _KINDS[kind][1], line, text, evidence)
