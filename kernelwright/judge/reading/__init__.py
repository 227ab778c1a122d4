"""What a candidate's text says before it runs: the few things that are certain, and hints where to look."""

from __future__ import annotations

from kernelwright.judge.reading.certain import certain
from kernelwright.judge.reading.conduct import read_conduct
from kernelwright.judge.reading.extension import missing_functions
from kernelwright.judge.reading.hazards import read_hazards
from kernelwright.judge.reading.interface import read_interface
from kernelwright.judge.reading.kernels import read_kernels
from kernelwright.judge.reading.python import read_python
from kernelwright.judge.reading.sizes import frozen_sizes
from kernelwright.judge.reading.source import take_apart
from kernelwright.judge.reading.threads import read_threads
from kernelwright.judge.records import Finding

__all__ = ["certain", "read_candidate"]

#: Kinds of hints that come last: seldom the reason why a result is wrong.
_TELL_LESS = ("default-stream", "not-contiguous", "unused-input", "precision-flag")


def read_candidate(text: str, problem_text: str | None = None) -> list[Finding]:
    """Hints from reading a candidate's file, in the order of how much they tell: never a verdict alone.

    ``problem_text`` is the problem's file, which shows its sizes and what the model creates. Text that is no Python
    gives none: :func:`certain` says what is wrong with it.
    """
    try:
        source = take_apart(text, problem_text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [*read_python(source), *read_interface(source), *missing_functions(source), *read_kernels(source),
             *read_threads(source), *frozen_sizes(source), *read_hazards(source), *read_conduct(source)]
    return sorted(found, key=lambda finding: finding.kind in _TELL_LESS)
