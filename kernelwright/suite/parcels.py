"""What goes between the driver of a Ray cluster and its nodes besides a problem's file: folders and files, as bytes.

With ``judge --set`` a node gets the candidates of a job. With ``bench --propose`` it gets the answers that exist for a
problem, the prices, and the folder of a run that was ended before it was finished; the driver gets the folder of the
run. Nothing here imports PyTorch.
"""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelwright.suite.proposals import answers_of

#: Where a node keeps what it writes and what it is sent, below a folder of its own.
OUTPUT, CANDIDATES, _ANSWERS, _PRICES, _PROFILES = "output", "candidates", "answers", "prices", "profiles"


def packed(parts: Mapping[str, Path]) -> bytes:
    """Files and folders under other names, as one archive; what does not exist is left out."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in parts.items():
            for file in filter(Path.is_file, sorted(path.rglob("*")) if path.is_dir() else [path]):
                archive.write(file, f"{name}/{file.relative_to(path).as_posix()}" if path.is_dir() else name)
    return content.getvalue()


def unpacked(content: bytes, folder: Path) -> None:
    """Write an archive's files below a folder; none can lie elsewhere."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(folder)


def run_folder(problem: str, output: Path) -> Path:
    """The folder of a problem's run of ``propose``."""
    return output / f"{problem}_propose"


def for_node(problem: str, propose: Mapping[str, Any], output: Path) -> bytes:
    """What a node needs of a problem besides its file, to be unpacked in the node's folder."""
    parts, run = dict[str, Path](), run_folder(problem, output)
    if "from" in propose:
        answers = answers_of(Path(propose["from"]), problem)
        parts[f"{_ANSWERS}/{answers.relative_to(propose['from']).as_posix()}"] = answers
    if "prices" in propose:
        parts[_PRICES] = Path(propose["prices"])
    if not (run / "result.json").exists():
        parts[f"{OUTPUT}/{run.relative_to(output).as_posix()}"] = run
    return packed(parts)


def of_candidates(job: str, given: Mapping[str, Any]) -> bytes:
    """The candidates that a job is given, to be unpacked in the node's folder."""
    return packed({_place(job, number, candidate): Path(candidate["path"])
                   for number, candidate in enumerate(given["candidates"])})


def given_at_node(given: Mapping[str, Any], job: str, base: Path) -> dict[str, Any]:
    """What a job is given, with the paths that its candidates and profiles have in a node's folder."""
    moved = dict(given)
    if "candidates" in given:
        moved["candidates"] = [{**candidate, "path": str(base / _place(job, number, candidate))}
                               for number, candidate in enumerate(given["candidates"])]
    if "profiles" in given:
        moved["profiles"] = str(base / _PROFILES / job)
    return moved


def removed(job: str, base: Path) -> None:
    """Remove what a job has in a node's folder."""
    for folder in (CANDIDATES, _PROFILES):
        shutil.rmtree(base / folder / job, ignore_errors=True)


def _place(job: str, number: int, candidate: Mapping[str, Any]) -> str:
    return f"{CANDIDATES}/{job}/{number}/{Path(candidate['path']).name}"


def at_node(propose: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The options of ``propose`` with the paths that things have in a node's folder."""
    return {**propose, **{name: str(base / part) for name, part in (("from", _ANSWERS), ("prices", _PRICES))
                          if name in propose}}
