"""What was measured of a contraction, and where it is kept for the next run.

A file of the cache folder holds the measurements of one contraction under a key of everything that they depend on. The
decision is made from them anew. A file that cannot be read, or is not what was written, is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kernelwright.codegen
from kernelwright.errors import DeviceLost
from kernelwright.plan.kernels import Tiling
from kernelwright.plan.records import Choice
from kernelwright.settings import cache_folder
from kernelwright.tune.accuracy import Error

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """A form with the seconds of a call, and its errors on each of the distributions."""

    form: Choice
    seconds: float
    errors: tuple[Error, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a contraction: its forms that ran, why others did not, and what they replace.

    seconds: of the torch call and what fuses with a kernel instead. errors: of the torch call.
    """

    trials: tuple[Trial, ...]
    failures: tuple[str, ...]
    seconds: float
    errors: tuple[Error, ...]


def recall(key: str) -> Measured | None:
    """The measurements under a key, or None where there are none to be used."""
    try:
        document = json.loads(_path(key).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["key"] != key:
            return None
        trials = tuple(Trial(_choice(t["form"]), float(t["seconds"]), _errors(t)) for t in document["trials"])
        return Measured(trials, tuple(map(str, document["failures"])), float(document["seconds"]), _errors(document))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(key: str, measured: Measured) -> None:
    """Keep measurements. A folder that cannot be written only means that the next run measures again."""
    path, temporary = _path(key), None
    document = {"format": _FORMAT, "key": key, **asdict(measured)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".contraction-", suffix=".json")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


@contextmanager
def attempt(key: str, form: str) -> Iterator[None]:
    """Around the first call of a form, until the device is done with it. ``form``: in words, one line.

    While the block runs, and for good where the process ends in it or it raises DeviceLost, the form is one of `fatal`.
    """
    path = _path(key).with_suffix(".fatal")
    before = fatal(key)
    _write(path, [*before, form])
    try:
        yield
    except DeviceLost:
        raise
    except BaseException:
        _write(path, before)
        raise
    _write(path, before)


def fatal(key: str) -> list[str]:
    """The forms, in words, that are not to be tried again."""
    try:
        return _path(key).with_suffix(".fatal").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def folder() -> Path:
    """Where all this is kept."""
    return cache_folder() / "contractions"


def _write(path: Path, lines: list[str]) -> None:
    with suppress(OSError):
        if lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            path.unlink(missing_ok=True)


def _path(key: str) -> Path:
    return folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _errors(document: dict[str, Any]) -> tuple[Error, ...]:
    return tuple(Error(float(e["rms"]), float(e["largest"])) for e in document["errors"])


def _choice(document: dict[str, Any]) -> Choice:
    tiling = document["tiling"]
    return Choice(str(document["scheme"]), Tiling(**tiling) if isinstance(tiling, dict) else tiling)


@cache
def generator_digest() -> str:
    """A digest of the modules that write kernels: measurements of other texts do not count."""
    folder = Path(kernelwright.codegen.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.py"), *(folder / "cuda").glob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]
