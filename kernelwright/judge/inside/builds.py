"""What a candidate's file has PyTorch build: written down in one process, built in a second one that never runs any of
the candidate's code, and found by the candidate's own process where it would have been built.

All of it stands around one step of ``load_inline`` and ``load``, after the texts are written and before the library is
imported; what this does not know is built by the candidate's process as ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils import cpp_extension

#: PyTorch's steps: one writes a build's description and runs it, one imports what came of it; the first's first half.
BUILD, IMPORT = "_write_ninja_file_and_build_library", "_import_module_from_library"
DESCRIBE = "_write_ninja_file_to_build_library"
#: Options of the step, which a request has beside the texts, by their names there.
FLAGS = ("extra_cflags", "extra_cuda_cflags", "extra_ldflags", "extra_include_paths")
_MOST_BYTES, _MOST_CALLS = 16 << 20, 16
#: Where the second process builds, below its folder, and how a header is called there that it precompiles.
MADE, PRECOMPILED = "made", "header.h"


#: PyTorch's header of everything, and what stands in its place where CUDA's compiler reads it, once for the device and
#: twice for the host: kernels and the functions that launch them use its tensors, rarely its Python bindings and
#: modules, which are more than half of the text.
HEADER = "torch/extension.h"
_SHORT = """#pragma once
#ifdef __CUDACC__
#include <torch/types.h>
#else
#include_next <torch/extension.h>
#endif
"""


class NotBuilt(Exception):
    """The library is missing in the process that only writes down what is asked for."""


def request_of(options: dict[str, Any]) -> dict[str, Any] | None:
    """A build as plain data: the extension's name, texts by the names of their files, flags; None where that does not
    say all of it."""
    if options.get("with_sycl") or options.get("is_standalone") or options.get("extra_sycl_cflags"):
        return None
    texts: dict[str, str] = {}
    try:
        for path in map(Path, options["sources"]):
            if path.name in texts or path.stat().st_size > _MOST_BYTES:
                return None
            texts[path.name] = path.read_bytes().decode()
    except (OSError, ValueError, TypeError, KeyError):  # the step itself says what is wrong
        return None
    flags = {name: [str(flag) for flag in options.get(name) or ()] for name in FLAGS}
    return {"name": str(options["name"]), "texts": texts, "cuda": bool(options.get("with_cuda")), **flags}


def key_of(request: dict[str, Any]) -> str:
    """What tells two requests apart."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:40]


def _record(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Import the candidate's file without building; what it would have built, as far as it got."""
    found: list[dict[str, Any]] = []

    def build(**options: Any) -> None:
        request = request_of(options)
        if request is not None and len(found) < _MOST_CALLS:
            found.append(request)

    def imported(name: str, *_: Any) -> types.ModuleType:
        return _Missing(name)

    _exchange(build, imported)
    try:
        session.load(payload)
    except Exception as error:
        return {"requests": found, "error": f"{type(error).__name__}: {error}"[:1000]}
    return {"requests": found, "error": None}


class _Missing(types.ModuleType):
    """An extension that was not built."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*_: Any, **__: Any) -> Any:
            raise NotBuilt(name)

        return function


def _compile(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Build a request with PyTorch's own step, and import nothing; ``headers`` is a folder of precompiled ones or None.

    Raises what that step raises.
    """
    folder = session.folder / MADE
    folder.mkdir()
    for name, text in payload["texts"].items():
        (folder / name).write_bytes(text.encode())
    flags = {name: list(payload[name]) for name in FLAGS}
    if payload["headers"] is not None:
        flags["extra_cflags"].insert(0, f"-I{payload['headers']}")  # which goes before PyTorch's own
    if any(name.endswith(".cu") and HEADER in text for name, text in payload["texts"].items()):
        short = session.folder / "short"
        (short / HEADER).parent.mkdir(parents=True)
        (short / HEADER).write_text(_SHORT)
        try:
            _build(payload, folder, {**flags, "extra_cuda_cflags": [f"-I{short}", *flags["extra_cuda_cflags"]]})
            return {}
        except RuntimeError:  # it wants what is left out, or is wrong anyway: what it is built with decides
            pass
    _build(payload, folder, flags)
    return {}


def _build(payload: dict[str, Any], folder: Path, flags: dict[str, list[str]]) -> None:
    getattr(cpp_extension, BUILD)(
        name=payload["name"], sources=[str(folder / name) for name in payload["texts"]], **flags, extra_sycl_cflags=[],
        build_directory=str(folder), verbose=False, with_cuda=payload["cuda"], with_sycl=False, is_standalone=False)


def _precompile(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """Precompile a header of PyTorch's with the flags that a build with ``extra_cflags`` has, but for the extension's
    name, which no header of PyTorch's asks for. Raises what the compiler's failure raises."""
    folder = session.folder / MADE
    folder.mkdir()
    description = folder / "build.ninja"
    getattr(cpp_extension, DESCRIBE)(
        path=str(description), name="header", sources=[str(folder / "main.cpp")],
        extra_cflags=list(payload["extra_cflags"]), extra_cuda_cflags=[], extra_sycl_cflags=[], extra_ldflags=[],
        extra_include_paths=[], with_cuda=payload["cuda"], with_sycl=False, is_standalone=False)
    told = dict(line.split(" = ", 1) for line in description.read_text().splitlines() if " = " in line)
    flags = [flag for flag in shlex.split(told["cflags"]) if not flag.startswith("-DTORCH_EXTENSION_NAME=")]
    header = next(path for path in (Path(place, payload["header"]) for place in cpp_extension.include_paths())
                  if path.exists())
    shutil.copy(header, folder / PRECOMPILED)
    subprocess.run([*shlex.split(told["cxx"]), *flags, "-x", "c++-header", str(header), "-o",
                    str(folder / f"{PRECOMPILED}.gch")], check=True, capture_output=True, cwd=folder)
    return {}


def _prebuilt(session: Any, payload: dict[str, Any]) -> dict[str, Any]:
    """From now on builds whose key is in ``libraries`` are the files named, below the worker's folder."""
    original = getattr(cpp_extension, BUILD)
    libraries = {str(key): session.folder / path for key, path in payload["libraries"].items()}

    def build(*arguments: Any, **options: Any) -> Any:
        request = None if arguments else request_of(options)
        library = libraries.get(key_of(request)) if request is not None else None
        if library is None:
            return original(*arguments, **options)
        # Under the name that is imported next; the file in the worker's folder stays for another import.
        target = os.path.join(options["build_directory"], f"{options['name']}{cpp_extension.LIB_EXT}")
        shutil.copy(library, target)
        return None

    _exchange(build, None)
    return {}


def _exchange(build: Callable[..., Any], imported: Callable[..., Any] | None) -> None:
    setattr(cpp_extension, BUILD, build)
    if imported is not None:
        setattr(cpp_extension, IMPORT, imported)


HANDLERS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "record-builds": _record, "compile": _compile, "precompile": _precompile, "prebuilt": _prebuilt}
