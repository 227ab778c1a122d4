"""Stage 7, BUILD: import an emitted text as a module, which compiles its kernels; find the compilers."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from kernelwright.codegen.target import Target
from kernelwright.errors import FolderFull, NinjaMissing, NoCppCompiler
from kernelwright.failures import unwritable
from kernelwright.problem.importing import IMPORT_SEED
from kernelwright.problem.seeds import seeded

_numbers = itertools.count()


class BuildFailed(RuntimeError):
    """The emitted kernels did not compile: a bug of ours."""


def find_compiler(target: Target) -> str:
    """The path of the compiler for the host that a target's build uses. Raises NoCppCompiler (KW301)."""
    variable, usual = target.compiler
    wanted = os.environ.get(variable) or usual
    found = shutil.which(wanted)
    if found is None:
        raise NoCppCompiler(looked_for=wanted, variable=variable, value=os.environ.get(variable, "not set"))
    return found


def find_tools(target: Target) -> None:
    """See that what a target's build needs on the host is found: its compiler, and ninja where PyTorch builds, which is
    also looked for in the package of that name. Raises NoCppCompiler (KW301) and NinjaMissing (KW308)."""
    find_compiler(target)
    if target.built_by != "command" and shutil.which("ninja") is None:
        try:
            import ninja
        except ImportError:
            raise NinjaMissing() from None
        if shutil.which("ninja", path=ninja.BIN_DIR) is None:
            raise NinjaMissing()
        os.environ["PATH"] = os.pathsep.join([*filter(None, [os.environ.get("PATH")]), ninja.BIN_DIR])


def find_cuda_compiler() -> str | None:
    """The path of nvcc, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def load_text(text: str, name: str) -> ModuleType:
    """Import an emitted file's text under a module name of its own; its kernels are compiled on the way.

    It is imported under the seed of the original's import. The text stays findable for tracebacks and ``inspect``.
    Its modules can be pickled, and loaded where there is no such file: they carry the text. Raises BuildFailed where
    the kernels don't compile.
    """
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return _imported(text, name, f"_kernelwright_emitted_{next(_numbers)}_{os.getpid()}_{digest}_{name}")


def _imported(text: str, name: str, module_name: str) -> ModuleType:
    folder = Path(tempfile.mkdtemp(prefix="kernelwright_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{name}_new.py"
    path.write_text(text, encoding="utf-8", newline="\n")
    specification = importlib.util.spec_from_file_location(module_name, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[module_name] = module
    try:
        with warnings.catch_warnings(), seeded(IMPORT_SEED):
            warnings.simplefilter("ignore")
            specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    if getattr(module, "_kernelwright_details", ""):
        raise build_failure(module._kernelwright_details)
    _pickle_with(module, text, name)
    return module


def carry(model: nn.Module, text: str, name: str) -> None:
    """From now on modules of an emitted file are pickled with another text of it. model: one of them."""
    _pickle_with(sys.modules[type(model).__module__], text, name)


def _pickle_with(module: ModuleType, text: str, name: str) -> None:
    for kind in [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, nn.Module)]:
        plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
        if kind.__module__ == module.__name__ and (plain or hasattr(kind.__reduce_ex__, "_kernelwright_carries")):
            kind.__reduce_ex__ = _reduced(text, name, module.__name__)  # type: ignore[method-assign]


def _reduced(text: str, name: str, module_name: str) -> Any:
    """How modules of an emitted text are pickled: with the text, as no file of theirs is there where they are loaded.
    Submodules keep the classes of the user's files, whose names go along."""
    def reduced(self: nn.Module, protocol: int) -> str | tuple[Any, ...]:
        own = getattr(sys.modules[module_name], "_kernelwright_own", set())
        kind = type(self)
        if kind.__module__ != module_name:  # a class of somebody else's that derives from it
            return object.__reduce_ex__(self, protocol)
        return unpickled, (text, name, module_name, kind.__qualname__, tuple(sorted(own))), self.__getstate__()
    reduced._kernelwright_carries = True  # pyrefly: ignore[missing-attribute]  # functions take any
    return reduced


def unpickled(text: str, name: str, module_name: str, kind: str, own: tuple[str, ...]) -> nn.Module:
    """A module of an emitted text without its state, which the unpickler fills in. The text is imported, and its
    kernels compiled, once in a process. Raises BuildFailed."""
    module = sys.modules.get(module_name) or _imported(text, name, module_name)
    if hasattr(module, "_kernelwright_own"):
        module._kernelwright_own.update(own)
    found: Any = module
    for part in kind.split("."):
        found = getattr(found, part)
    return found.__new__(found)


def kernels_of(text: str) -> str:
    """The kernels' text in an emitted file's; "" where it has none."""
    found = re.search(r'^_KERNELWRIGHT_SOURCE = r"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def build_failure(messages: str) -> BuildFailed | FolderFull:
    """What a compiler's messages mean: a bug of ours, or a folder that can't be written to (KW306). The first line is
    the first error, not the command."""
    first = first_error(messages)
    failed = BuildFailed(f"{first}\n{messages}" if first else messages)
    return unwritable(failed) or failed


def first_error(messages: str) -> str:
    """The first line of a compiler's messages that says what is wrong, as ``ptxas fatal   : ...`` does; "" if none."""
    return next((line for line in messages.splitlines() if re.search(r"(error|fatal) *:", line, re.IGNORECASE)), "")


def check_text(source: str, target: Target) -> str:
    """The compiler's messages on a text that it does not take, "" where all is well; nothing is generated."""
    if target.built_by == "cuda extension":
        return compile_cuda(source)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"kernels.{target.suffix}"
        path.write_text(source, encoding="utf-8")
        run = subprocess.run([find_compiler(target), *target.flags, "-fsyntax-only", str(path)],
                             capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else (run.stderr or run.stdout or "the compiler failed")


def compile_cuda(source: str, architecture: str = "90a") -> str:
    """Compile CUDA text with nvcc without running it; the compiler's messages, "" where all is well.

    Without nvcc the message says so: callers ask :func:`find_cuda_compiler` first.
    """
    compiler = find_cuda_compiler()
    if compiler is None:
        return "no nvcc"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cu"
        path.write_text(source)
        code = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
        run = subprocess.run([compiler, "-std=c++17", code, "-cubin", "-o", str(path.with_suffix(".cubin")), str(path)],
                             capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else (run.stderr or run.stdout)
