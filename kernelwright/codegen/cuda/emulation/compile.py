"""Compiles generated CUDA source for the CPU emulation and loads it, so that kernels run without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

_FLAGS = (
    "-std=c++17",
    # Kernels run a few times: -O2 takes the compiler half as long again, and they are hardly faster for it.
    "-O1",
    "-fPIC",
    "-fno-strict-aliasing",
    # Nothing is fused that the source does not fuse, so results do not depend on the processor.
    "-ffp-contract=off",
    "-w",
)
# Object size, shift and float-cast checks are left out: the device defines what those operations do. A check that fails
# is an instruction of its own, whose line the launch's message has. Calls of a sanitizer's run-time library, with what
# they would be told, make half as much work again for the compiler, and kernels of half the speed.
_SANITIZE = (
    "-fsanitize=alignment,bounds,null,integer-divide-by-zero,signed-integer-overflow",
    "-fsanitize-undefined-trap-on-error",
    "-g1",
)
# What takes g++ 12 two fifths of its time and saves kernels little: registers are given out without a look at loops,
# and stores, branches, loops and copies are left as they are. None of it changes a result.
_GNU = ("-fira-region=one", "-fno-tree-pta", "-fno-tree-dse", "-fno-dse", "-fno-tree-bit-ccp", "-fno-tree-slsr",
        "-fno-ivopts", "-fno-ssa-phiopt", "-fno-if-conversion", "-fno-if-conversion2", "-fno-tree-dominator-opts",
        "-fno-forward-propagate", "-fno-tree-forwprop", "-fno-thread-jumps", "-fno-tree-sink", "-fno-cprop-registers",
        "-fno-guess-branch-probability", "-fno-reorder-blocks", "-fno-ipa-modref", "-fno-ipa-pure-const",
        "-fno-ipa-reference", "-fno-tree-loop-optimize", "-fno-tree-loop-im", "-fno-move-loop-invariants")
# Kernels are compiled with the declarations of the machine that runs them, and linked to it: it is compiled once, and
# so it may take the compiler longer. It is not what is checked, and takes most of the time of a run.
_KERNELS = ("-DKW_EMULATION_KERNELS",)
_MACHINE = ("-DKW_EMULATION_MACHINE", "-O2")
#: The emulation's headers, each after those that it uses.
_HEADERS = ("emulation", "fibers", "meetings", "shared", "blocks", "launches", "device", "math", "runtime", "tensor",
            "mma")
_BOUNDED_KERNEL = re.compile(r"__launch_bounds__\s*\(\s*(\w+)\s*(?:,[^()]*)?\)\s*(?:void\s+)?(\w+)\s*\(")


class EmulationError(RuntimeError):
    """The emulated source did not compile or load; the text holds the compiler's messages."""


def emulation_text() -> str:
    """The header that the compiler includes before the CUDA source: the texts beside this file, in one."""
    return "\n".join(Path(__file__).with_name(f"{part}.hpp").read_text() for part in _HEADERS)


def compile_emulated(source: str, *, sanitize: bool = False) -> ctypes.CDLL:
    """Compile CUDA text that follows the contract of ``support/check.cuh`` for the CPU, and load it.

    ``source`` exports its entry points as ``extern "C"`` functions; "device" pointers are the
    process's own. With ``sanitize``, misaligned accesses, indices outside arrays of known extent,
    null pointers, signed overflow and division by zero end the launch with a message that has the
    line; in the source's host code they end the process.

    The library is kept under ``$XDG_CACHE_HOME/kernelwright/emulation`` (``~/.cache`` without the
    variable), under a name derived from the source, the header, the flags and the compiler, and is
    compiled once. Processes and threads may call this at the same time. ``CXX`` names another
    compiler than ``g++``.

    Raises EmulationError when there is no compiler or it refuses the source.
    """
    wanted = os.environ.get("CXX") or "g++"
    compiler = shutil.which(wanted)
    if compiler is None:
        raise EmulationError(f"the CUDA emulation needs a C++ compiler; {wanted} is not there")
    version = _compiler_version(compiler)
    machine = [*_FLAGS, *_processor_flags(), *_MACHINE]
    flags = [*_FLAGS, *_processor_flags(), *_KERNELS, *(_GNU if "Free Software Foundation" in version else ()),
             *(_SANITIZE if sanitize else ())]
    header = emulation_text()
    text = source + _launch_bounds(source)
    environment = (header, version, *flags, *machine)
    folder = _cache_folder()
    library = folder / f"{_digest(text, *environment)}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as build:
            prepared = folder / f"{_digest(*environment)}.hpp"
            with open(prepared.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # one process prepares, the others wait for it
                _prepare_header(compiler, machine, flags, header, prepared, Path(build))
            _compile(compiler, flags, prepared, text, Path(build))
            os.replace(Path(build, "kernel.so"), library)
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise EmulationError(f"cannot load the emulated library {library}: {error}") from error


def _prepare_header(
    compiler: str, machine: list[str], flags: list[str], text: str, header: Path, build: Path, stale_days: float = 2.0
) -> None:
    """Writes the header to ``header``, and beside it the object of its machine and its precompiled form, which save
    most of a compilation.

    A precompiled form takes some 70 MB, so those of other versions that have lain unused are removed;
    a compilation that misses one takes the header itself.
    """
    precompiled = header.with_name(header.name + ".gch")
    with contextlib.suppress(FileNotFoundError):
        for kept in (_machine(header), precompiled):
            os.utime(kept)  # in use
        return
    copy = build / "emulation.hpp"
    copy.write_text(text)
    _run([compiler, *machine, "-x", "c++", "-c", copy.name, "-o", "emulation.o"], build)
    _run([compiler, *flags, "-x", "c++-header", copy.name, "-o", "emulation.gch"], build)
    os.replace(build / "emulation.o", _machine(header))
    os.replace(copy, header)
    os.replace(build / "emulation.gch", precompiled)
    for other in header.parent.glob("*.gch"):
        with contextlib.suppress(OSError):
            if time.time() - other.stat().st_mtime > stale_days * 86400:
                other.unlink()


def _machine(header: Path) -> Path:
    return header.with_suffix(".o")


def _compile(compiler: str, flags: list[str], header: Path, text: str, build: Path) -> None:
    """Writes ``kernel.cu`` to ``build`` and compiles it to ``kernel.so`` there.

    Linking is a step of its own, without the sanitizer flags: they would link the sanitizer's
    run-time library, which nothing here calls.
    """
    (build / "kernel.cu").write_text(text)
    steps = (
        [*flags, "-include", str(header.resolve()), "-x", "c++", "-c", "kernel.cu", "-o", "kernel.o"],
        ["-shared", "-o", "kernel.so", "kernel.o", str(_machine(header).resolve()), "-lpthread", "-ldl"],
    )
    for step in steps:
        _run([compiler, *step], build)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if result.returncode != 0:
        raise EmulationError(f"the emulated CUDA source does not compile:\n{result.stderr[:8000]}")


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:40]


def _launch_bounds(source: str) -> str:
    """Text that registers each kernel's ``__launch_bounds__``, so that the emulation holds launches to them.

    g++ has no place for the attribute. Bounds that are neither a number nor a constant of the
    source's top level (a template's parameter) are left out.
    """
    lines = []
    for bound, kernel in _BOUNDED_KERNEL.findall(source):
        constant = rf"^(?:#define\s+{bound}\b|(?:static\s+)?constexpr\s+[\w\s]+\b{bound}\s*=)"
        if bound.isdigit() or re.search(constant, source, re.MULTILINE):
            lines.append(
                f"static const bool kw_bounds_{len(lines)} = "
                f'kw_emulation::register_launch_bounds("{kernel}", {bound});'
            )
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    # Absolute: a library finds its own file again at its first launch.
    return Path(base if base else Path.home() / ".cache").absolute() / "kernelwright" / "emulation"


@functools.cache
def _processor_flags() -> tuple[str, ...]:
    """Flags that make ``fmaf`` one instruction where the processor has it; results are the same without."""
    try:
        features = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = re.search(r"^flags\s*:(.*)$", features, re.MULTILINE)
    present = flags is not None and {"avx2", "fma"} <= set(flags.group(1).split())
    return ("-mavx2", "-mfma") if present else ()


@functools.cache
def _compiler_version(compiler: str) -> str:
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, errors="replace").stdout
