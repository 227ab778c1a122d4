"""Failures of ours that cost a kernel or a mode, and not the whole run: a sentence on each, and its traceback."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from kernelwright.errors import FolderFull, KernelwrightError, describe, keep_traceback
from kernelwright.settings import cache_folder

#: How the reasons begin for which operators stay with PyTorch after such a failure.
FAILED = "kernelwright failed at it"


#: What operating systems say, and compilers after them, where nothing can be written.
_UNWRITABLE = {errno.ENOSPC: "has no space left", errno.EDQUOT: "has no space left within your quota",
               errno.EROFS: "is read-only", errno.EACCES: "may not be written to"}


def is_ours(error: BaseException) -> bool:
    """Whether an exception is a bug of ours: neither coded, nor memory or space on a disk that ran out."""
    return isinstance(error, Exception) and not isinstance(error, (KernelwrightError, MemoryError)) \
        and unwritable(error) is None


def unwritable(error: BaseException) -> FolderFull | None:
    """The coded error where an exception, or what caused it, says that a folder of ours can't be written to."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        if isinstance(current, OSError) and current.errno in _UNWRITABLE and (
                path := _of_ours(current.filename, current.errno)) is not None:
            return FolderFull(folder=path, problem=_UNWRITABLE[current.errno])
        if isinstance(current, FileNotFoundError) and "No usable temporary directory" in str(current):
            return FolderFull(folder=os.environ.get("TMPDIR", "/tmp"), problem="may not be written to")
        for number, problem in _UNWRITABLE.items():
            if not isinstance(current, OSError) and number != errno.EACCES and os.strerror(number) in str(current):
                return FolderFull(folder=_fullest(), problem=problem)
        current = current.__cause__ or current.__context__
    return None


def _of_ours(file: str | bytes | None, number: int) -> Path | None:
    """The folder that a failed write is about: the cache, the one for temporary files, or any that is full."""
    if file is None:  # a write to what was open
        return _fullest() if number in (errno.ENOSPC, errno.EDQUOT) else None
    path = Path(os.fsdecode(file))
    full = number in (errno.ENOSPC, errno.EDQUOT)
    return path.parent if full or any(path.is_relative_to(folder) for folder in _folders()) else None


def _folders() -> list[Path]:
    candidates = [cache_folder(), Path(os.environ.get("TMPDIR", "/tmp"))]
    return [folder.absolute() for folder in candidates]


def _fullest() -> Path:
    """The one of our folders with the least space."""
    def free(folder: Path) -> int:
        there = next(f for f in (folder, *folder.parents) if f.exists())
        return shutil.disk_usage(there).free

    return min(_folders(), key=free)


def told(error: BaseException) -> str:
    """What failed, and where its traceback is, as the reason for which something stays with PyTorch."""
    path = keep_traceback(error, cache_folder() / "tracebacks")
    return f"{FAILED}, please report it ({describe(error)}{f'; traceback in {path}' if path else ''})"
