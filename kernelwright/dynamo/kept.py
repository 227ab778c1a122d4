"""What was made of a graph, kept for the next process: the text of its file, under a key of all that it depends on."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kernelwright.settings import cache_folder

try:
    import fcntl
except ImportError:  # no locks of files on this system
    fcntl = None

#: The first line of a kept text, so that a file of another form, or half of one, is as good as none.
_HEAD = "# kernelwright, made of a graph: {} {}\n"
_PAUSE_SECONDS = 0.1


def folder() -> Path:
    """Where texts are kept."""
    return cache_folder() / "graphs"


def name_of(key: str) -> str:
    """The name under which the text of a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def recall(name: str) -> str | None:
    """The text that was kept under a name; None where there is none to be used."""
    try:
        text = (folder() / f"{name}.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    head, _, rest = text.partition("\n")
    return rest if f"{head}\n" == _head(name, rest) else None


def keep(name: str, text: str) -> None:
    """Keep a text under a name, whole or not at all; where the folder cannot be written, the next process starts anew.
    """
    temporary = None
    try:
        folder().mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder(), prefix=f".{name}-", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(_head(name, text) + text)
        os.replace(temporary, folder() / f"{name}.py")
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def _head(name: str, text: str) -> str:
    return _HEAD.format(name, hashlib.sha256(text.encode()).hexdigest()[:16])


@contextmanager
def alone(name: str, seconds: float) -> Iterator[None]:
    """The block is the only one of its name among processes: another one waits until it ends, and then finds what it
    kept. It waits ``seconds`` at most, and not at all where files have no locks."""
    file = None
    try:
        if fcntl is not None:
            with suppress(OSError):
                folder().mkdir(parents=True, exist_ok=True)
                file = (folder() / f".{name}.lock").open("w")
        end = time.monotonic() + seconds
        while file is not None and fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    break
                time.sleep(_PAUSE_SECONDS)
            except OSError:
                break
        yield
    finally:
        if file is not None:
            file.close()
