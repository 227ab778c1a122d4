"""The files to judge: those that were named, and the Python files of folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelwright.errors import (
    CandidateIsModel,
    CandidateMissing,
    CandidateTwice,
    CandidateUnreadable,
    FileMissing,
    NoCandidates,
)
from kernelwright.names import natural

#: Bytes of a candidate's text. What is larger was not written to be read.
MOST_BYTES = 16 << 20


def find_candidates(model: Path, given: Sequence[Path]) -> list[Path]:
    """The candidates' paths in the order given, each below the path that it was given by.

    A folder stands for the Python files in it and in its subfolders, sorted with numbers by value, without names that
    begin with ``_`` or ``.`` and without the model's own file. Raises FileMissing (KW101) for the model, NoCandidates
    (KW701), CandidateMissing (KW702), CandidateUnreadable (KW703), CandidateIsModel (KW704), CandidateTwice (KW705).
    """
    if not os.path.exists(model):  # unlike Path.exists, false for folders that may not be looked into
        raise FileMissing(path=model, folder=Path.cwd())
    own = model.resolve()
    found: dict[Path, Path] = {}
    for path in given:
        if not os.path.exists(path):
            raise CandidateMissing(path=path, folder=Path.cwd())
        files = list(_below(path, own)) if path.is_dir() else [path]
        if not files:
            raise NoCandidates(folder=path)
        for file in files:
            resolved = file.resolve()
            if resolved == own:
                raise CandidateIsModel(path=file, model=model)
            if resolved in found:
                raise CandidateTwice(path=file, first=found[resolved])
            _check(file)
            found[resolved] = file
    if not found:
        raise NoCandidates(folder="The command line")
    return list(found.values())


def _below(folder: Path, own: Path) -> Iterator[Path]:
    names = {file.relative_to(folder): file for file in folder.rglob("*.py") if file.is_file()}
    for name in sorted(names, key=lambda name: natural(name.as_posix())):
        if not any(part.startswith(("_", ".")) for part in name.parts) and names[name].resolve() != own:
            yield names[name]


def _check(file: Path) -> None:
    found = ""
    if file.suffix != ".py":
        found = "its name does not end in .py"
    elif not file.is_file():
        found = "it is no regular file"
    else:
        try:
            with open(file, "rb") as stream:
                size = len(stream.read(MOST_BYTES + 1))
        except OSError as error:
            found = f"{error.strerror or error}"
        else:
            if size > MOST_BYTES:
                found = f"it has more than {MOST_BYTES >> 20} MiB"
    if found:
        raise CandidateUnreadable(path=file, found=found)
