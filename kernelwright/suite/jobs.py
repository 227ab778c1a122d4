"""The problems of a folder, in their natural order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kernelwright.errors import FileMissing, NoProblems
from kernelwright.names import natural


@dataclass(frozen=True, slots=True)
class Job:
    """One problem of a suite."""

    problem: str
    """Path below the suite's folder, without ``.py``; its name everywhere."""
    level: str
    """Its folder below the suite's folder, or the name of that one."""
    path: str
    """The file, absolute."""
    sha256: str
    size: int
    """Bytes of the file."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What else its work is told, as plain data."""
    alone: bool = False
    """Whether nothing else may run on the machine beside it."""

    @property
    def emitted(self) -> str:
        """Path of the emitted file below the output folder."""
        return f"{self.problem}_new.py"

    @property
    def page(self) -> str:
        """Path of the report's page below the output folder."""
        return f"{self.problem}_new.html"

    def take_away(self, folder: Path) -> None:
        """Delete the emitted file and its page below the output folder, where they are."""
        for name in (self.emitted, self.page):
            (folder / name).unlink(missing_ok=True)


def find_jobs(folder: Path, filters: Sequence[str] = (), without: Path | None = None) -> list[Job]:
    """The problem files below ``folder`` (or that one file), sorted with numbers by value.

    Left out are names that begin with ``_`` or ``.``, emitted files (``NAME_new.py`` beside ``NAME.py``) and
    everything below ``without``, the output folder. Of the others, those remain whose name contains one of
    ``filters`` or matches it as a shell pattern. Raises FileMissing (KW101), NoProblems (KW601).
    """
    if not folder.exists():
        raise FileMissing(path=folder, folder=Path.cwd())
    root = (folder if folder.is_dir() else folder.parent).resolve()
    files = sorted(root.rglob("*.py")) if folder.is_dir() else [folder.resolve()]
    skipped = without.resolve() if without is not None else None
    found = [file for file in files if file.is_file() and (not folder.is_dir() or _is_problem(file, root, skipped))]
    named = {file.relative_to(root).with_suffix("").as_posix(): file for file in found}
    wanted = [name for name in sorted(named, key=natural) if not filters or any(fits(name, f) for f in filters)]
    if not wanted:
        raise NoProblems(folder=folder, found=f"None of its {len(named)} problems fits {' or '.join(filters)}." if named
                         else "No Python file that could be a problem stands in it.")
    return [_job(name, named[name], root) for name in wanted]


def longest_first(jobs: Iterable[Job], seconds: dict[str, float]) -> list[Job]:
    """The order in which to start: what took long last time, then long files first, so that none is left over alone
    at the end while other workers are idle."""
    return sorted(jobs, key=lambda job: (-seconds.get(job.problem, 0.0), -job.size, natural(job.problem)))


def _is_problem(file: Path, root: Path, skipped: Path | None) -> bool:
    if any(part.startswith((".", "_")) for part in file.relative_to(root).parts):
        return False
    if skipped is not None and (file == skipped or skipped in file.parents) and skipped != root:
        return False
    original = file.with_name(file.name.removesuffix("_new.py") + ".py")
    return not (file.name.endswith("_new.py") and original.exists())


def fits(name: str, pattern: str) -> bool:
    """Whether a name contains ``pattern``, or matches it as a shell pattern."""
    return pattern in name or fnmatchcase(name, pattern)


def _job(name: str, file: Path, root: Path) -> Job:
    content = file.read_bytes()
    level = name.rpartition("/")[0] or root.name
    return Job(name, level, str(file), hashlib.sha256(content).hexdigest(), len(content))
