"""Stage 7, BUILD: import an emitted text as a module, which compiles its kernels; find the compilers."""

from __future__ import annotations

import atexit
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

from kernelwright.codegen.target import Target
from kernelwright.errors import FolderFull, NoCppCompiler
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


def find_cuda_compiler() -> str | None:
    """The path of nvcc, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return os.environ.get("NVCC") or shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")


def load_text(text: str, name: str) -> ModuleType:
    """Import an emitted file's text under a module name of its own; its kernels are compiled on the way.

    It is imported under the seed of the original's import. The text stays findable for tracebacks and ``inspect``.
    Raises BuildFailed where the kernels don't compile.
    """
    folder = Path(tempfile.mkdtemp(prefix="kernelwright_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / f"{name}_new.py"
    path.write_text(text, encoding="utf-8", newline="\n")
    module_name = f"_kernelwright_emitted_{next(_numbers)}_{name}"
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
    return module


def kernels_of(text: str) -> str:
    """The kernels' text in an emitted file's; "" where it has none."""
    found = re.search(r'^_KERNELWRIGHT_SOURCE = r"""(.*?)"""', text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def build_failure(messages: str) -> BuildFailed | FolderFull:
    """What a compiler's messages mean: a bug of ours, or a folder that can't be written to (KW306). The first line is
    the first error, not the command."""
    first = next((line for line in messages.splitlines() if "error:" in line.lower()), "")
    failed = BuildFailed(f"{first}\n{messages}" if first else messages)
    return unwritable(failed) or failed


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
