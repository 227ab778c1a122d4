"""What was measured of a contraction, and where it is kept for the next run.

A file of the cache folder holds the measurements of one contraction under a key of everything that they depend on. The
decision is made from them anew. A file that cannot be read, or is not what was written, is as good as none.

Beside them stands a mark for each candidate that is being tried: a file that its process holds locked, and that
outlives the process only where the candidate ended it. Many processes may use the folder at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.errors import DeviceLost
from kernelwright.plan.records import KernelConfig
from kernelwright.settings import cache_folder
from kernelwright.tune.accuracy import DISTRIBUTIONS, Error

_FORMAT = 3
#: Marks of candidates that nobody asked for in so long are of generators that are gone.
_STALE_SECONDS = 30 * 86400.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate with the seconds of a call, and the errors of each of its results on each of the distributions."""

    config: KernelConfig
    seconds: float
    errors: tuple[Error, ...]

    @property
    def usual(self) -> float:
        """See :func:`usual_error`."""
        return usual_error(self.errors)

    def no_worse(self, error: Error, other: Error) -> bool:
        """Whether one of the candidate's errors is no larger than the torch call's."""
        return error.no_worse_than(other, ordered=self.config.scheme == "float32")


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a contraction: its candidates that ran, why others did not, and what they replace.

    seconds: of the torch call and what fuses with a kernel instead; infinite where nothing was timed. errors: of the
    torch call, as a trial's. granted: errors that are allowed besides (:func:`kernelwright.tune.accuracy.granted`).
    """

    trials: tuple[Trial, ...]
    failures: tuple[str, ...]
    seconds: float
    errors: tuple[Error, ...]
    granted: tuple[Error, ...] = ()

    @property
    def usual(self) -> float:
        """See :func:`usual_error`; of the torch call."""
        return usual_error(self.errors)

    @property
    def accurate(self) -> list[Trial]:
        """The candidates whose errors are no larger than the torch call's, or than what is granted."""
        granted = self.granted or self.errors
        return [t for t in self.trials if len(t.errors) == len(self.errors) == len(granted) and all(
            t.no_worse(e, m) or t.no_worse(e, g) for e, m, g in zip(t.errors, self.errors, granted, strict=True))]


def usual_error(errors: Sequence[Error]) -> float:
    """The largest rms error of results on operands as given, which stand first."""
    return max((e.rms for e in errors[:max(1, len(errors) // len(DISTRIBUTIONS))]), default=inf)


def recall(key: str) -> Measured | None:
    """The measurements under a key, or None where there are none to be used."""
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["key"] != key:
            return None
        trials = tuple(Trial(_config(t["config"]), float(t["seconds"]), _errors(t)) for t in document["trials"])
        return Measured(trials, tuple(map(str, document["failures"])), float(document["seconds"]), _errors(document),
                        _errors(document, "granted"))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(key: str, measured: Measured) -> None:
    """Keep measurements. A folder that cannot be written only means that the next run measures again."""
    document = {"format": _FORMAT, "key": key, **asdict(measured)}
    temporary = None
    try:
        handle, temporary = _new_file(key)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary, _path(key))
    except OSError:
        if temporary is not None:
            _remove(temporary)
    for name in _names():
        path = folder() / name
        with suppress(OSError):
            if name.endswith((".tried", ".part")) and time.time() - path.stat().st_mtime > _STALE_SECONDS:
                path.unlink()


@contextmanager
def attempt(key: str, config: str) -> Iterator[None]:
    """Around the first call of a candidate, until the device is done with it. ``config``: in words, one line.

    Where the process ends in the block, or it raises DeviceLost, the candidate is one of `fatal` from then on. Nothing
    is noted where the folder cannot be written, or its file system has no locks (flock).
    """
    mark = _mark(key, config)
    lost = False
    try:
        yield
    except DeviceLost:
        lost = True
        raise
    finally:
        if mark is not None:
            handle, path = mark
            if not lost:
                with suppress(OSError):
                    os.ftruncate(handle, 0)  # who has it open already takes the lock next, and reads nothing
                _remove(path)
            with suppress(OSError):
                os.close(handle)


def fatal(key: str) -> set[str]:
    """The candidates, in words, that are not to be tried again: marked, and by no process that is still at it."""
    found: set[str] = set()
    for name in _names():
        if not name.startswith(f"{_path(key).stem}-") or not name.endswith(".tried"):
            continue
        with suppress(OSError, ValueError), open(folder() / name, encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that others may ask at the same time
            if config := file.read():
                found.add(config)
                os.utime(file.name)  # in use
    return found


def folder() -> Path:
    """Where all this is kept."""
    return cache_folder() / "contractions"


def _mark(key: str, config: str) -> tuple[int, str] | None:
    """A mark of the candidate: the descriptor that holds its lock, and its path. It gets its name once it is locked: no
    other process sees it sooner. The lock is the open file's (flock), so that its own process may ask for `fatal`."""
    handle = temporary = None
    try:
        handle, temporary = _new_file(key)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(handle, config.encode())
        path = str(Path(temporary).with_name(f"{Path(temporary).stem.removeprefix('.')}.tried"))
        os.rename(temporary, path)
        return handle, path
    except OSError:
        if handle is not None and temporary is not None:
            _remove(temporary)
            with suppress(OSError):
                os.close(handle)
        return None


def _new_file(key: str) -> tuple[int, str]:
    """A descriptor and the path of a file that no other process reads before it is renamed. Raises OSError."""
    folder().mkdir(parents=True, exist_ok=True)
    return tempfile.mkstemp(dir=folder(), prefix=f".{_path(key).stem}-", suffix=".part")


def _names() -> list[str]:
    try:
        return os.listdir(folder())
    except OSError:
        return []


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _path(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _errors(document: dict[str, Any], name: str = "errors") -> tuple[Error, ...]:
    return tuple(Error(float(e["rms"]), float(e["largest"]), int(e["count"])) for e in document[name])


def _config(document: dict[str, Any]) -> KernelConfig:
    tiling = document["tiling"]
    return KernelConfig(str(document["scheme"]), Tiling(**tiling) if isinstance(tiling, dict) else tiling)
