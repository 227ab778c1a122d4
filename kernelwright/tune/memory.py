"""Times that were measured, kept in the cache folder for the next run under a key of everything they depend on.

A file that cannot be read, or is not what was written, is as good as none; a folder that cannot be written only means
that the next run measures again.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

import kernelwright.codegen
from kernelwright.roofline.devices import processor_name
from kernelwright.settings import cache_folder

_FORMAT = 1


def machine(device: torch.device) -> tuple[object, ...]:
    """What times on a device depend on beside what is timed."""
    if device.type == "cuda":
        return torch.__version__, torch.cuda.get_device_name(device), driver(), torch.version.cuda
    return torch.__version__, processor_name(), torch.get_num_threads()


def driver() -> str:
    """The version of the device's driver, as its kernel module says it or, where that is hidden, its library."""
    with suppress(OSError):
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0].strip()
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)


#: What our own code consists of.
_SOURCES = (".py", ".cuh", ".hpp")


@cache
def generator_digest() -> str:
    """A digest of the modules that write kernels, and of those that choose which to try: measurements of others do not
    count."""
    return digest_of(Path(kernelwright.codegen.__file__).parent, Path(__file__).parent)


@cache
def package_digest() -> str:
    """A digest of all of our own code."""
    return digest_of(Path(__file__).parents[1])


def digest_of(*folders: Path) -> str:
    """A digest of the source files in some folders: of what they contain, and where they are."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in _SOURCES):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:24]


def recall(kind: str, key: str) -> dict[str, float] | None:
    """The seconds that were kept under a key, by name; None where there are none to be used. kind: a folder's name."""
    try:
        document = json.loads(_path(kind, key).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT or document["key"] != key:
            return None
        return {str(name): float(seconds) for name, seconds in document["seconds"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def remember(kind: str, key: str, seconds: Mapping[str, float]) -> None:
    """Keep seconds by name under a key."""
    path, temporary = _path(kind, key), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "key": key, "seconds": dict(seconds)}, file, indent=1)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)


def folder() -> Path:
    """Where all this is kept."""
    return cache_folder() / "times"


def _path(kind: str, key: str) -> Path:
    return folder() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"
