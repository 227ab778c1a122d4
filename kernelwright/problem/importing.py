"""Running a problem file's top level once, as a module of its own."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import platform
import sys
from pathlib import Path
from types import ModuleType

from kernelwright.errors import (
    FileMissing,
    FileSyntaxError,
    ImportRaised,
    MissingPackage,
    NotAPythonFile,
    describe,
    place,
    where_of,
)
from kernelwright.problem.seeds import random_states, seeded

#: The seed under which files are imported, so that tables drawn at import are the same in a file made of them.
IMPORT_SEED = 0
#: How the names begin under which problem files are modules.
PROBLEM_MODULE = "kernelwright_problem_"
_counter = itertools.count(1)
# Modules that stood beside a problem file, with their folder: a second problem's `import helpers` must
# not get the first one's.
_siblings: dict[str, Path] = {}


def read_source(path: Path) -> str:
    """The text of a Python file, decoded as it declares, newlines as ``\\n``.

    Raises FileMissing (KW101), NotAPythonFile (KW102).
    """
    if not path.exists():
        raise FileMissing(path=path, folder=Path.cwd())
    if path.is_dir():
        raise NotAPythonFile(path=path, found="a folder")
    if path.suffix != ".py":
        raise NotAPythonFile(path=path, found=f"a file whose name ends in {path.suffix!r}" if path.suffix
                             else "a file whose name has no ending")
    try:
        text = importlib.util.decode_source(path.read_bytes())
    except OSError as exception:
        raise NotAPythonFile(path=path, found=f"unreadable ({describe(exception)})") from exception
    except (UnicodeDecodeError, SyntaxError) as exception:
        raise NotAPythonFile(path=path, found=f"not text ({describe(exception)})") from exception
    return text


def parse_source(text: str, path: Path | str) -> ast.Module:
    """The syntax tree of ``text``. Raises FileSyntaxError (KW103), ``where`` being the line in error."""
    try:
        return ast.parse(text, filename=str(path))
    except (SyntaxError, ValueError) as exception:
        line = getattr(exception, "lineno", None) or 0
        source = (text.splitlines() or [""])[line - 1] if 0 < line <= len(text.splitlines()) else ""
        message = (getattr(exception, "msg", None) or str(exception)).rstrip(".")
        raise FileSyntaxError(where=place(path, line, source), path=path, message=message,
                              python=platform.python_version()) from exception


def import_file(path: Path) -> tuple[ModuleType, str, tuple[int, ...]]:
    """Run the file under a unique module name in ``sys.modules``; the module, the file's text, and the first lines of
    the statements at its top level that drew random numbers or seeded them.

    It runs under :data:`IMPORT_SEED`, and the global random states are given back as they were. No bytecode is
    written. The file's folder is first on ``sys.path`` while it is imported, not after.
    A module that fails leaves ``sys.modules`` as it was.
    Raises KW101 to KW105.
    """
    text = read_source(path)
    tree = parse_source(text, path)
    name = f"{PROBLEM_MODULE}{next(_counter)}_{''.join(c if c.isalnum() else '_' for c in path.stem)}"
    module = ModuleType(name)
    module.__file__ = str(path)
    folder = path.resolve().parent
    for sibling in [known for known, home in _siblings.items() if home != folder]:
        sys.modules.pop(sibling, None)
        del _siblings[sibling]
    draws = _Draws(module, tree)
    before = set(sys.modules)
    bytecode, search = sys.dont_write_bytecode, str(folder)
    sys.modules[name] = module
    sys.path.insert(0, search)
    sys.dont_write_bytecode = True
    try:
        # compile with the tree, not exec of text: __future__ flags of this file must not leak in.
        with seeded(IMPORT_SEED):
            exec(compile(tree, str(path), "exec", dont_inherit=True), module.__dict__)
            draws.finish()
    except (Exception, SystemExit) as exception:
        del sys.modules[name]
        where = where_of(exception, path)
        if isinstance(exception, ModuleNotFoundError) and exception.name:
            raise MissingPackage(where=where, path=path, package=exception.name.split(".")[0],
                                 executable=sys.executable, exception=describe(exception)) from exception
        raise ImportRaised(where=where, path=path, exception=describe(exception)) from exception
    finally:
        sys.dont_write_bytecode = bytecode
        if search in sys.path:
            sys.path.remove(search)
        for added in set(sys.modules) - before - {name}:
            file = getattr(sys.modules[added], "__file__", None)
            if file and folder in Path(file).resolve().parents and "site-packages" not in file:
                _siblings[added] = folder
    return module, text, tuple(draws.lines)


class _Draws:
    """Notes which statements of a module move a generator of random numbers, while the module runs.

    A call between every two statements of ``tree`` compares the generators' states.
    """

    _NAME = "_kernelwright_statement_begins"

    def __init__(self, module: ModuleType, tree: ast.Module) -> None:
        self.lines: list[int] = []
        self._module, self._running = module, 0
        self._states: dict[str, bytes] = {}
        body: list[ast.stmt] = []
        for number, statement in enumerate(tree.body):
            docstring = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not docstring and getattr(statement, "module", None) != "__future__":
                body += ast.parse(f"{self._NAME}({statement.lineno})").body
            body.append(statement)
        tree.body = body
        setattr(module, self._NAME, self._begins)

    def _begins(self, line: int) -> None:
        states = random_states()
        if self._running and states != self._states:
            self.lines.append(self._running)
        self._running, self._states = line, states

    def finish(self) -> None:
        """The last statement has run."""
        self._begins(0)
        delattr(self._module, self._NAME)
