"""`kernelwright package`: a wheel of emitted files, each a module of one package.

Its format is https://packaging.python.org/en/latest/specifications/binary-distribution-format/, and it has the same
bytes for the same files. Its tag names the platform where files hold compiled kernels.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import keyword
import re
import sys
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from kernelwright.emit.write import write_file
from kernelwright.errors import (
    FileMissing,
    InvalidOption,
    NotAPythonFile,
    NotForWheel,
    OutputFolderUnusable,
)
from kernelwright.settings import MINIMUM_PYTHON, MINIMUM_TORCH, check_output
from kernelwright.version import VERSION

SCHEMA = 1
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
#: The canonical forms of https://peps.python.org/pep-0440.
_VERSION = re.compile(r"([1-9][0-9]*!)?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)(0|[1-9][0-9]*))?"
                      r"(\.post(0|[1-9][0-9]*))?(\.dev(0|[1-9][0-9]*))?(\+[a-z0-9]+(\.[a-z0-9]+)*)?")
#: What zip files have for the time of a file that has none.
_TIME = (1980, 1, 1, 0, 0, 0)
_ANY = "py3-none-any"


@dataclass(frozen=True, slots=True)
class Wheel:
    """What `package` has written.

    path: the wheel. name: of the distribution. version: of it. package: what is imported. modules: the package's
    modules, one for each file. tag: the interpreters and platforms that it is for. requires: the distributions that it
    needs. notes: plain sentences that the user should read.
    """

    path: Path
    name: str
    version: str
    package: str
    modules: tuple[str, ...]
    tag: str
    requires: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-ready dictionary."""
        return {"schema": SCHEMA, **asdict(self), "path": str(self.path)}

    def render(self) -> str:
        """What the command prints."""
        lines = [f"Written to {self.path}", f"  pip install {self.path}"]
        if len(self.modules) == 1:
            lines.append(f"  from {self.package} import ModelNew")
        else:
            lines += [f"  from {self.package}.{module} import ModelNew" for module in self.modules]
        lines.append(f"  needs {', '.join(self.requires)}; made for {self.tag}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class _Emitted:
    """An emitted file: its text, what it says it is, the platforms of the libraries in it, and what it imports.
    compiles: whether PyTorch compiles its kernels where it is used."""

    module: str
    text: str
    said: str
    platforms: frozenset[str]
    imports: frozenset[str]
    compiles: bool


def make_wheel(paths: Sequence[Path], *, name: str, version: str, output: Path, force: bool = False) -> Wheel:
    """Write a wheel of emitted files into the folder ``output``, which is made where its parent is there.

    Raises InvalidOption (KW403) for a name or version that is none, FileMissing (KW101), NotAPythonFile (KW102) and
    NotForWheel (KW405) for the files, and OutputFolderUnusable (KW401) and OutputExists (KW402). Then nothing is
    written.
    """
    package = re.sub(r"[-_.]+", "_", name).lower()
    if not _NAME.fullmatch(name) or not package.isidentifier() or keyword.iskeyword(package) \
            or package in sys.stdlib_module_names or package == "torch":
        raise InvalidOption(option="--name", value=repr(name), choices="the name of a package that can be imported: "
                            "letters, digits, -, _ and ., and no other package's of Python's own", default="")
    if not _VERSION.fullmatch(version):
        raise InvalidOption(option="--version", value=repr(version), choices="a version in its canonical form, such as "
                            "1.0, 1.2.3 or 2.0rc1", default="0.1.0")
    files = [_emitted(path) for path in paths]
    for number, file in enumerate(files):
        if file.module in [other.module for other in files[:number]]:
            raise NotForWheel(path=paths[number], found=f"another one is called {file.module}, too")
    platforms = sorted(set().union(*(file.platforms for file in files)))
    tag = f"py3-none-{'.'.join(platforms)}" if platforms else _ANY
    requires, notes = _requirements(files)
    path = output / f"{package}-{version}-{tag}.whl"
    data = _zipped(_members(files, name, version, package, tag, requires))
    _make_folder(output, path.name)
    check_output(path, force)
    write_file(path, data, force=force)
    return Wheel(path, name, version, package, tuple(file.module for file in files), tag, tuple(requires), tuple(notes))


def _emitted(path: Path) -> _Emitted:
    if not path.exists():
        raise FileMissing(path=path, folder=Path.cwd())
    if path.suffix != ".py" or not path.is_file():
        raise NotAPythonFile(path=path, found="a folder" if path.is_dir() else f"named {path.name}")
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem) or path.stem.startswith("__"):
        raise NotForWheel(path=path, found=f"{path.stem} is no name that Python can import")
    try:
        text = path.read_bytes().decode("utf-8")
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise NotForWheel(path=path, found=f"Python can't read it ({str(error).splitlines()[0]})") from error
    if "ModelNew" not in {node.name for node in tree.body if isinstance(node, ast.ClassDef)}:
        raise NotForWheel(path=path, found="it defines no class ModelNew")
    names = {node.targets[0].id: node.value for node in tree.body
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
    try:
        labels = ast.literal_eval(names.get("_KERNELWRIGHT_LIBRARIES", ast.List([])))
        platforms = frozenset(str(label["system"]).lower().replace(" ", "_") for label in labels)
    except (ValueError, TypeError, KeyError) as error:
        raise NotForWheel(path=path, found="the compiled kernels in it are damaged") from error
    # One command compiles C; PyTorch, with ninja, all else.
    compiles = "_KERNELWRIGHT_SOURCE" in names and not platforms and "from torch.utils import cpp_extension" in text
    said = (ast.get_docstring(tree) or "").split("\n")[0]
    return _Emitted(path.stem, text, said, platforms, _imports(tree), compiles)


def _imports(tree: ast.Module) -> frozenset[str]:
    """The packages beyond Python's own that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return frozenset(found - sys.stdlib_module_names)


def _requirements(files: Iterable[_Emitted]) -> tuple[list[str], list[str]]:
    """The distributions that files need, and sentences on what no distribution here has."""
    requires, notes = [f"torch>={'.'.join(map(str, MINIMUM_TORCH))}"], []
    known = packages_distributions()
    found: set[str] = set()
    for file in files:
        found |= {"ninja"} if file.compiles else set()
        for package in sorted(file.imports - {"torch"}):
            if package in known:
                found.add(sorted(known[package])[0])
            else:
                notes.append(f"{file.module} imports {package}, which no installed distribution has: it has to be "
                             "there where the wheel is used.")
    return [*requires, *sorted(found, key=str.lower)], notes


def _members(files: Sequence[_Emitted], name: str, version: str, package: str, tag: str, requires: Sequence[str]
             ) -> list[tuple[str, str]]:
    """The files of the wheel, without its record, by their names."""
    information = f"{package}-{version}.dist-info"
    summary = f"PyTorch models with custom kernels, written by kernelwright {VERSION}"
    described = "\n".join(f"- {file.module}: {file.said}" for file in files)
    if len(files) == 1:
        init = f'"""{summary}."""\n\nfrom {package}.{files[0].module} import ModelNew\n\n__all__ = ["ModelNew"]\n'
    else:  # each of them compiles or loads its kernels when it is imported
        modules = ", ".join(f'"{file.module}"' for file in files)
        init = f'"""{summary}: a module for each, with the class ModelNew."""\n\n__all__ = [{modules}]\n'
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", f"Summary: {summary}",
                f"Requires-Python: >={'.'.join(map(str, MINIMUM_PYTHON))}",
                *(f"Requires-Dist: {one}" for one in requires), "Description-Content-Type: text/markdown", "",
                described]
    wheel = ["Wheel-Version: 1.0", f"Generator: kernelwright {VERSION}",
             f"Root-Is-Purelib: {'true' if tag == _ANY else 'false'}", f"Tag: {tag}"]
    return [(f"{package}/__init__.py", init), *((f"{package}/{file.module}.py", file.text) for file in files),
            (f"{information}/METADATA", "\n".join(metadata) + "\n"), (f"{information}/WHEEL", "\n".join(wheel) + "\n")]


def _zipped(members: Sequence[tuple[str, str]]) -> bytes:
    """The bytes of a wheel of these files, with the record of their hashes."""
    record = [f"{name},sha256={_digest(text)},{len(text.encode())}" for name, text in members]
    name = f"{members[-1][0].rpartition('/')[0]}/RECORD"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in (*members, (name, "\n".join([*record, f"{name},,"]) + "\n")):
            entry = zipfile.ZipInfo(path, _TIME)
            entry.external_attr, entry.compress_type = 0o100644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, text.encode())
    return stream.getvalue()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def _make_folder(folder: Path, name: str) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputFolderUnusable(folder=folder, problem=f"can't be made ({error.strerror})", file=name) from error
