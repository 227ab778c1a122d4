"""Failures of ours that cost a kernel or a mode, and not the whole run: a sentence on each, and its traceback."""

from __future__ import annotations

from kernelwright.errors import KernelwrightError, describe, keep_traceback
from kernelwright.settings import cache_folder

#: How the reasons begin for which operators stay with PyTorch after such a failure.
FAILED = "kernelwright failed at it"


def is_ours(error: BaseException) -> bool:
    """Whether an exception is a bug of ours: neither coded, nor memory that ran out."""
    return isinstance(error, Exception) and not isinstance(error, (KernelwrightError, MemoryError))


def told(error: BaseException) -> str:
    """What failed, and where its traceback is, as the reason for which something stays with PyTorch."""
    path = keep_traceback(error, cache_folder() / "tracebacks")
    return f"{FAILED}, please report it ({describe(error)}{f'; traceback in {path}' if path else ''})"
