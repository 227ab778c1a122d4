"""Sets of candidates: problems, each with candidates for it, in a folder or in lines of JSON.

A folder: each of its subfolders that holds ``problem.py`` is a problem, whose candidates are the other Python files in
it and below it, but those that it imports. Lines of JSON: one candidate each, with ``problem`` and ``candidate``
(paths, seen from the file's folder, or texts) and, if wanted, ``id``.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelwright.errors import FileMissing, KernelwrightError, NoSet, SetUnreadable
from kernelwright.judge.candidates import find_candidates
from kernelwright.names import natural
from kernelwright.suite.jobs import fits

PROBLEM_FILE = "problem.py"
_FIELDS = {"problem", "candidate", "id"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One candidate of a set."""

    id: str
    """What tells it apart within the set: its path below the set's folder without ``.py``, or what its line says."""
    problem: str
    """The problem's name: its folder's path below the set's folder, or its file's name without ``.py``."""
    problem_path: Path
    candidate_path: Path
    problem_sha256: str
    candidate_sha256: str
    beside_sha256: tuple[str, ...]
    """Of the files beside the problem's that it imports, and of those that these import."""

    def key(self, settings: dict[str, Any], machine: Sequence[str]) -> str:
        """What a verdict holds for: all texts, the settings, the machine and the versions on it."""
        told = [self.problem_sha256, *self.beside_sha256, self.candidate_sha256, settings, list(machine)]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:40]


def find_entries(path: Path, texts: Path, filters: Sequence[str] = ()) -> list[Entry]:
    """The candidates of the set at ``path``, in its order; of a folder sorted with numbers by value.

    Texts that stand in lines are written as files below ``texts``. With ``filters`` those remain whose id contains one
    of them or matches it as a shell pattern. Raises FileMissing (KW101), NoSet (KW707), SetUnreadable (KW706) and, for
    single candidates, what `find_candidates` raises.
    """
    if not path.exists():
        raise FileMissing(path=path, folder=Path.cwd())
    found = list(_of_folder(path.resolve()) if path.is_dir() else _of_lines(path.resolve(), texts.resolve()))
    wanted = [entry for entry in found if not filters or any(fits(entry.id, pattern) for pattern in filters)]
    if not wanted:
        raise NoSet(path=path, found=f"none of its {len(found)} candidates fits {' or '.join(filters)}" if found else
                    f"it has no folder with {PROBLEM_FILE} and candidates beside it" if path.is_dir()
                    else "it has no line")
    return wanted


def _of_folder(root: Path) -> Iterator[Entry]:
    problems = [file for file in root.rglob(PROBLEM_FILE) if file.is_file() and not any(
        part.startswith((".", "_")) for part in file.relative_to(root).parts)]
    for problem in sorted(problems, key=lambda file: natural(file.parent.relative_to(root).as_posix())):
        folder = problem.parent
        name = folder.relative_to(root).as_posix() if folder != root else root.name
        if not any(other != problem for other in folder.rglob("*.py")):
            continue
        nested = [other.parent for other in problems if other != problem and folder in other.parents]
        own = imported_beside(problem)
        for candidate in find_candidates(problem, [folder]):
            if candidate not in own and not any(place in candidate.parents for place in nested):  # another problem's
                yield _entry(candidate.relative_to(root).with_suffix("").as_posix(), name, problem, candidate)


def _of_lines(file: Path, texts: Path) -> Iterator[Entry]:
    known: dict[str, int] = {}
    for number, line in enumerate(_read(file), start=1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
        except ValueError as error:
            raise SetUnreadable(path=file, line=number, found=f"it is no JSON ({error})") from error
        if not isinstance(told, dict) or not _FIELDS - {"id"} <= set(told) <= _FIELDS \
                or not all(isinstance(told[name], str) and told[name] for name in ("problem", "candidate")) \
                or not isinstance(told.get("id", ""), (str, int)):
            raise SetUnreadable(path=file, line=number, found="it is no object with problem, candidate and, if wanted, "
                                                              "id")
        name = str(told.get("id", number))
        if name in known:
            raise SetUnreadable(path=file, line=number, found=f"its id, {name}, is that of line {known[name]}")
        known[name] = number
        # Equal texts of problems are one file, so that their candidates are one problem's.
        digest = hashlib.sha256(told["problem"].encode()).hexdigest()[:16]
        paths = [_path(told["problem"], file, texts / f"problem_{digest}.py"),
                 _path(told["candidate"], file, texts / f"candidate_{number}.py")]
        try:
            find_candidates(paths[0], [paths[1]])
        except KernelwrightError as error:
            raise SetUnreadable(path=file, line=number, found=error.what) from error
        yield _entry(name, paths[0].stem, *paths)


def _read(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SetUnreadable(path=file, line=1, found=f"the file cannot be read ({error})") from error


def _path(told: str, file: Path, text: Path) -> Path:
    """The file that ``told`` names; what has more than one line is a text, and becomes the file ``text``."""
    if "\n" not in told:
        return file.parent / told
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(told, encoding="utf-8")
    return text


def _entry(name: str, problem: str, problem_path: Path, candidate_path: Path) -> Entry:
    problem_hash, candidate_hash, *beside = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (
        problem_path, candidate_path, *imported_beside(problem_path))]
    return Entry(name, problem, problem_path, candidate_path, problem_hash, candidate_hash, tuple(beside))


def imported_beside(file: Path) -> list[Path]:
    """The Python files beside ``file`` that it imports, and those that these import, as far as their texts say so."""
    found: dict[Path, None] = {}
    waiting = [file]
    while waiting:
        try:
            tree = ast.parse(waiting.pop().read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # whoever runs it says what is wrong with it
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [
                node.module or alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
            for top in dict.fromkeys(name.partition(".")[0] for name in names):
                paths = [file.parent / f"{top}.py", *sorted((file.parent / top).rglob("*.py"))]
                new = [path for path in paths if path.is_file() and path != file and path not in found]
                found.update(dict.fromkeys(new))
                waiting += new
    return list(found)


def plain_name(text: str) -> str:
    """``text`` as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", text)[:80]
