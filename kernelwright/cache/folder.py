"""`kernelwright cache`: what runs keep for later ones, in the folder that ``KERNELWRIGHT_CACHE`` names: shown, cleared,
and taken to another machine.

Each kind of it has a folder of its own. Nothing else in that place is touched.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import tempfile
import textwrap
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kernelwright.emit.write import write_file
from kernelwright.errors import CacheFileInvalid, FileMissing, InvalidOption, OutputFolderUnusable
from kernelwright.settings import cache_folder, check_output
from kernelwright.version import VERSION

SCHEMA = 1
#: Of the column of words.
_LEAST_WIDTH = 15
ACTIONS = ("show", "clear", "export", "import")
#: What a file of an exported cache says about itself, in its first entry.
_MANIFEST = "kernelwright_cache.json"
#: What zip files have for the time of a file that has none.
_TIME = (1980, 1, 1, 0, 0, 0)
#: Files that somebody is writing at the moment, or holds a lock by.
_UNDER_WAY = (".part", ".lock", ".tmp")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of what is kept. folder: its name. what: in words. travels: whether another machine can use it, as names
    in it say for which compilers, processors and devices each file is."""

    folder: str
    what: str
    travels: bool


KINDS = (
    Kind("libraries", "compiled kernels of emitted files", True),
    Kind("graphs", "files that were made for torch.compile", True),
    Kind("results", "whole results of optimize, for the same command", True),
    Kind("contractions", "measured products and convolutions", True),
    Kind("times", "measured regions, layouts and reductions", True),
    Kind("peaks", "measured peaks of this machine", True),
    Kind("emulation", "CUDA kernels compiled for the emulation", False),
    Kind("judge_builds", "extensions of candidates", False),
    Kind("judge_headers", "precompiled headers for these", False),
    Kind("judge_emulation", "candidates' CUDA kernels compiled for the emulation", False),
    Kind("written", "hashes of files that were written, which runs may replace", False),
    Kind("tracebacks", "tracebacks of what failed", False),
)


@dataclass(frozen=True, slots=True)
class Kept:
    """How much there is of a kind. newest: when its last file was written, in seconds since 1970; None without any."""

    kind: str
    what: str
    files: int
    bytes: int
    newest: float | None


@dataclass(frozen=True, slots=True)
class Cache:
    """What was done, and what is there now.

    action: show, clear, export or import. folder: where it is kept. kinds: all of them, also the empty ones. file: what
    was written or read, or None. moved: how many files were removed, written or taken over. bytes: of these. skipped:
    files of an import that were there already.
    """

    action: str
    folder: Path
    kinds: tuple[Kept, ...]
    file: Path | None = None
    moved: int = 0
    bytes: int = 0
    skipped: int = 0

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-ready dictionary."""
        return {"schema": SCHEMA, **asdict(self), "folder": str(self.folder),
                "file": None if self.file is None else str(self.file)}

    def render(self, width: int = 100) -> str:
        """What the command prints."""
        moved = f"{self.moved} file{'s' * (self.moved != 1)} ({_size(self.bytes)})"
        done = {"show": "", "clear": f"Removed {moved}.", "export": f"Written to {self.file}: {moved}.",
                "import": f"Taken from {self.file}: {moved}"
                          + (f"; {self.skipped} were there already." if self.skipped else ".")}[self.action]
        rows = [(k.kind, str(k.files), _size(k.bytes), _age(k.newest), k.what) for k in self.kinds if k.files]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
        lines = []
        for kind, *figures, what in rows:
            padded = (text.rjust(width) for text, width in zip(figures, widths[1:-1], strict=True))
            start = "  ".join(["", kind.ljust(widths[0]), *padded, ""])
            first, *more = textwrap.wrap(what, max(_LEAST_WIDTH, width - len(start)))
            lines += [start + first, *(" " * len(start) + line for line in more)]
        total = sum(k.bytes for k in self.kinds)
        return "\n".join([*filter(None, [done]), f"{self.folder}: {_size(total)}" if rows else
                          f"{self.folder}: nothing is kept", *lines])


def kept(action: str, file: Path | None = None, *, only: Sequence[str] = (), force: bool = False) -> Cache:
    """Show, clear, export or import what is kept. file: the ``.zip`` to write or to read. only: kinds, by their
    folders; by default all, of which those travel that another machine can use.

    Raises InvalidOption (KW403) for an action or a kind that is none, CacheFileInvalid (KW407) and FileMissing (KW101)
    for a file to import, OutputExists (KW402) and OutputFolderUnusable (KW401) for one to write.
    """
    if action not in ACTIONS:
        raise InvalidOption(option="ACTION", value=repr(action), choices=" or ".join(ACTIONS), default="show")
    known = {kind.folder: kind for kind in KINDS}
    if wrong := [name for name in only if name not in known]:
        raise InvalidOption(option="--only", value=repr(wrong[0]), choices=", ".join(known), default="all of them")
    if file is None and action in ("export", "import"):
        raise InvalidOption(option="FILE", value="missing", choices="the .zip file to write or to read", default="")
    if file is not None and action in ("show", "clear"):
        raise InvalidOption(option="FILE", value=repr(str(file)), default="none",
                            choices=f"a .zip file for export and import, and nothing for {action}")
    kinds = [known[name] for name in dict.fromkeys(only)] or list(KINDS)
    folder = cache_folder()
    done: dict[str, int] = {}
    if action == "clear":
        done = _clear(folder, kinds)
    elif action == "export" and file is not None:
        done = _export(folder, [kind for kind in kinds if kind.travels or only], file, force)
    elif action == "import" and file is not None:
        done = _import(folder, {kind.folder for kind in kinds}, file)
    return Cache(action, folder, tuple(_measured(folder, kind) for kind in KINDS), file, **done)


def _files(folder: Path) -> Iterator[Path]:
    """The regular files below a folder, by name."""
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _measured(folder: Path, kind: Kind) -> Kept:
    sizes, times = list[int](), list[float]()
    for path in _files(folder / kind.folder):
        try:
            facts = path.stat()
        except OSError:  # gone meanwhile
            continue
        sizes.append(facts.st_size)
        times.append(facts.st_mtime)
    return Kept(kind.folder, kind.what, len(sizes), sum(sizes), max(times, default=None))


def _clear(folder: Path, kinds: Sequence[Kind]) -> dict[str, int]:
    """Remove what is kept of some kinds; a process that has loaded a library keeps it."""
    before = [_measured(folder, kind) for kind in kinds]
    for kind in kinds:
        place = folder / kind.folder
        if place.is_symlink():
            continue
        try:
            if place.exists():
                shutil.rmtree(place)
        except OSError as error:
            raise OutputFolderUnusable(folder=place, problem=f"can't be removed ({error.strerror})",
                                       file=kind.folder) from error
    after = [_measured(folder, kind) for kind in kinds]
    return {"moved": sum(k.files for k in before) - sum(k.files for k in after),
            "bytes": sum(k.bytes for k in before) - sum(k.bytes for k in after)}


def _export(folder: Path, kinds: Sequence[Kind], file: Path, force: bool) -> dict[str, int]:
    if file.suffix != ".zip":
        raise InvalidOption(option="FILE", value=repr(str(file)), choices="a name that ends in .zip", default="")
    check_output(file, force)
    stream, count, size = io.BytesIO(), 0, 0
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        import torch  # for its version alone: to show and to clear waits for nothing

        about = {"schema": SCHEMA, "version": VERSION, "torch": torch.__version__, "system": platform.platform()}
        archive.writestr(_entry(_MANIFEST), json.dumps(about, indent=1))
        for kind in kinds:
            for path in _files(folder / kind.folder):
                if path.name.endswith(_UNDER_WAY):
                    continue
                data = path.read_bytes()
                archive.writestr(_entry(path.relative_to(folder).as_posix()), data)
                count, size = count + 1, size + len(data)
    write_file(file, stream.getvalue(), force=force)
    return {"moved": count, "bytes": size}


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
    return entry


def _import(folder: Path, wanted: set[str], file: Path) -> dict[str, int]:
    """Take over files that are not there yet. All are looked at before the first is written."""
    if not file.is_file():
        raise FileMissing(path=file, folder=Path.cwd())
    known = {kind.folder for kind in KINDS}
    count = size = skipped = 0
    try:
        with zipfile.ZipFile(file) as archive:
            names = [entry.filename for entry in archive.infolist()]
            if not names or names[0] != _MANIFEST or json.loads(archive.read(_MANIFEST)).get("schema") != SCHEMA:
                raise CacheFileInvalid(path=file, found="it is none that `kernelwright cache export` has written")
            for name in names[1:]:
                parts = PurePosixPath(name).parts
                if len(parts) < 2 or parts[0] not in known or ".." in parts or name != "/".join(parts) or "\\" in name:
                    raise CacheFileInvalid(path=file, found=f"it holds {name!r}, which is no place of the cache")
            if (damaged := archive.testzip()) is not None:
                raise CacheFileInvalid(path=file, found=f"{damaged!r} in it is damaged")
            for name in (name for name in names[1:] if name.split("/")[0] in wanted):
                target = folder / name
                if target.exists() or target.is_symlink():
                    skipped += 1
                    continue
                data = archive.read(name)
                _put(target, data)
                count, size = count + 1, size + len(data)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError) as error:
        raise CacheFileInvalid(path=file, found=f"it can't be read ({error})") from error
    return {"moved": count, "bytes": size, "skipped": skipped}


def _put(target: Path, data: bytes) -> None:
    """Write a file in one step, and its folder before."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, part = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.replace(part, target)
    except OSError as error:
        raise OutputFolderUnusable(folder=target.parent, problem=f"may not be written to ({error.strerror})",
                                   file=target.name) from error


def _size(count: int) -> str:
    """Bytes in a unit that suits: "812 B", "41 kB", "3.2 MB"."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _age(newest: float | None) -> str:
    """How long ago the last file was written."""
    if newest is None:
        return ""
    seconds = max(0.0, time.time() - newest)
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit}{'s' * (number > 1)} ago"
    return "just now"
