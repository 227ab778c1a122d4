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
        raise NotAPythonFile(path=path, found=f"its name ends in {path.suffix!r}" if path.suffix
                             else "its name has no ending")
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


def import_file(path: Path) -> tuple[ModuleType, str]:
    """Run the file under a unique module name in ``sys.modules``; the module and the file's text.

    No bytecode is written. The file's folder is first on ``sys.path`` while it is imported, not after.
    A module that fails leaves ``sys.modules`` as it was.
    Raises KW101 to KW105.
    """
    text = read_source(path)
    tree = parse_source(text, path)
    name = f"kernelwright_problem_{next(_counter)}_{''.join(c if c.isalnum() else '_' for c in path.stem)}"
    module = ModuleType(name)
    module.__file__ = str(path)
    folder = path.resolve().parent
    for sibling in [known for known, home in _siblings.items() if home != folder]:
        sys.modules.pop(sibling, None)
        del _siblings[sibling]
    before = set(sys.modules)
    bytecode, search = sys.dont_write_bytecode, str(folder)
    sys.modules[name] = module
    sys.path.insert(0, search)
    sys.dont_write_bytecode = True
    try:
        # compile with the tree, not exec of text: __future__ flags of this file must not leak in.
        exec(compile(tree, str(path), "exec", dont_inherit=True), module.__dict__)
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
    return module, text
