"""Compile the kernels of an emitted file for others: libraries that the file itself holds.

They depend on neither Python's nor PyTorch's binary interface, as launchers take plain pointers. Of OpenMP they take
what PyTorch has loaded, whose threads they then share; those in CUDA need the CUDA runtime of PyTorch's, of the same
major version. The same text gives the same bytes, whatever folder it is compiled in.
"""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from kernelwright.build.module import find_compiler, find_cuda_compiler
from kernelwright.codegen.target import Target
from kernelwright.emit.embedded import Library
from kernelwright.emit.runtime import units_text
from kernelwright.errors import CannotEmbed, InvalidOption
from kernelwright.processors import share_of_processors

#: The levels of x86-64 of its psABI, https://gitlab.com/x86-psABIs/x86-64-ABI, and the flags of /proc/cpuinfo that each
#: has beside those of the ones before it.
X86_64 = {
    "x86-64": "",
    "x86-64-v2": "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3",
    "x86-64-v3": "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave",
    "x86-64-v4": "avx512bw avx512cd avx512dq avx512f avx512vl",
}
#: What a machine of a higher level has a library for, too: nearly all processors since 2015 are of this one.
PORTABLE = "x86-64-v3"
#: Where there is no device to ask: the one that kernels are developed for.
_DEVICE = "sm_90a"
_LINUX = "Linux x86_64"
#: Texts that a long one is compiled as side by side, on whatever machine, so that the bytes are the same.
_PIECES = 8
_UNITS = compile(units_text(), "<kernelwright units>", "exec")
_NOT_COMPILED = "The kernels do not compile for {}: {}"
#: Neither names of folders nor of symbols that nobody asks for.
_LINKED = "-s,--build-id=none,--as-needed"


def flags_of(level: str) -> list[str]:
    """The flags of /proc/cpuinfo that a level of x86-64 asks for."""
    names = list(X86_64)
    return " ".join(X86_64[name] for name in names[:names.index(level) + 1]).split()


def own_level(processor: str | None = None) -> str:
    """The highest level of x86-64 that a processor has: of a text like /proc/cpuinfo, by default this machine's."""
    text = Path("/proc/cpuinfo").read_text() if processor is None else processor
    found = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    has = set(found[1].split()) if found else set()
    return [level for level in X86_64 if has.issuperset(flags_of(level))][-1]


def names_wanted(embed: bool | str, target: Target) -> tuple[str, ...]:
    """What the libraries of a file are to be for, the best first: this machine's own, where ``embed`` is True.

    Raises InvalidOption (KW403) for a name that is not the target's, and CannotEmbed (KW307) where this machine can
    make no such libraries.
    """
    here = f"{platform.system()} {platform.machine()}"
    if here != _LINUX:
        raise CannotEmbed(found=f"this is {here}")
    if target.built_by == "cuda extension":
        known = _architectures()
        wanted = embed.split(",") if isinstance(embed, str) else [_own_architecture()]
        wrong = [name for name in wanted if name != "ptx" and name.rstrip("a") not in known]
        choices, default = f"names of what nvcc compiles for: ptx, {', '.join(known)}, with an a for some", "this GPU's"
        order = {name: (name == "ptx", -int("".join(filter(str.isdigit, name)) or 0)) for name in wanted}
    else:
        own = own_level()
        levels = list(X86_64)
        default_names = [own, PORTABLE] if levels.index(own) > levels.index(PORTABLE) else [own]
        wanted = embed.split(",") if isinstance(embed, str) else default_names
        wrong = [name for name in wanted if name not in X86_64]
        choices, default = f"levels of processors, with commas between: {', '.join(X86_64)}", ",".join(default_names)
        order = {name: (False, -levels.index(name)) for name in wanted if name in X86_64}
    if wrong:
        raise InvalidOption(option="--embed-for", value=",".join(wrong), choices=choices, default=default)
    return tuple(sorted(dict.fromkeys(wanted), key=lambda name: order[name]))


def _architectures() -> list[str]:
    """What nvcc compiles for. Raises CannotEmbed (KW307) where there is no nvcc."""
    compiler = find_cuda_compiler()
    if compiler is None:
        raise CannotEmbed(found="no CUDA compiler (nvcc) was found")
    run = subprocess.run([compiler, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return run.stdout.split()


def _own_architecture() -> str:
    if not torch.cuda.is_available():
        return _DEVICE
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


def compiled_for(source: str, names: Sequence[str], target: Target) -> tuple[list[Library], list[str]]:
    """The libraries of a text of kernels, in the order of ``names``, and sentences on those that do not compile.

    Processors have a library for each level; GPUs one with the code for all of those for which they compile.
    """
    build = _for_devices if target.built_by == "cuda extension" else _for_processors
    found = build(source, names, target)
    return [made for made in found if isinstance(made, Library)], [made for made in found if isinstance(made, str)]


def _for_processors(source: str, names: Sequence[str], target: Target) -> list[Library | str]:
    compiler, found = find_compiler(target), list[Library | str]()
    for level in names:
        flags = [f"-march={level}" if flag.startswith("-march=") else flag for flag in target.flags]
        # OpenMP at compilation alone: its functions are PyTorch's, by whatever name that ships its library.
        made = _made(source, target, [compiler, *flags, "-fPIC"], [compiler, "-shared", f"-Wl,{_LINKED}"])
        found.append(_NOT_COMPILED.format(level, made) if isinstance(made, str) else
                     Library(level, _LINUX, _glibc(made), (("flags", " ".join(flags_of(level))),), made))
    return found


def _for_devices(source: str, names: Sequence[str], target: Target) -> list[Library | str]:
    real = [name for name in names if name != "ptx"]
    highest = (*real, _own_architecture())[0].removeprefix("sm_").rstrip("a")
    # PTX that nothing assembles may be none: what is put in is compiled for its own architecture, too.
    codes = {name: [f"sm_{highest}", f"compute_{highest}"] if name == "ptx" else [name] for name in names}
    made = _fat_library(source, [code for name in names for code in codes[name]], target)
    if isinstance(made, Library) or len(names) == 1:
        return [made if isinstance(made, Library) else _NOT_COMPILED.format(names[0], made)]
    alone = {name: _fat_library(source, codes[name], target) for name in names}
    fitting = [code for name in names if isinstance(alone[name], Library) for code in codes[name]]
    notes = [_NOT_COMPILED.format(name, found) for name, found in alone.items() if isinstance(found, str)]
    return [*([_fat_library(source, fitting, target)] if fitting else []), *notes]


def _fat_library(source: str, codes: Sequence[str], target: Target) -> Library | str:
    """A library with kernels for these architectures, as nvcc calls them, or why there is none."""
    compiler = shlex.split(find_cuda_compiler() or "nvcc")
    codes = list(dict.fromkeys(codes))
    asked = [f"-gencode=arch=compute_{code.partition('_')[2]},code={code}" for code in codes]
    flags = [flag for flag in target.flags if flag != "-lineinfo"]  # has names of folders
    made = _made(source, target, [*compiler, *flags, *_as_pytorch(), *asked, "-Xcompiler", "-fPIC"],
                 [*compiler, "-shared", "-cudart", "shared", "-Xlinker", _LINKED])
    if isinstance(made, str):
        return made
    run = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"release (\d+\.\d+)", run.stdout)
    toolkit, held = version[1] if version else str(torch.version.cuda), " ".join(codes)
    return Library(f"CUDA {toolkit}, {held}", _LINUX, _glibc(made), (("toolkit", toolkit), ("codes", held)), made)


def _as_pytorch() -> list[str]:
    """The flags that PyTorch gives nvcc where it compiles the same text."""
    from torch.utils import cpp_extension

    return list(cpp_extension.COMMON_NVCC_FLAGS)


def _made(source: str, target: Target, compiling: Sequence[str], linking: Sequence[str]) -> bytes | str:
    """The bytes of the library that commands make of a text in a folder of their own, or the first line of what was
    wrong. Long texts are compiled in pieces, side by side."""
    space: dict[str, Any] = {"_KERNELWRIGHT_SOURCE": source}
    exec(_UNITS, space)
    units = space["_kernelwright_units"](_PIECES) if target.built_by != "command" else [source]
    with tempfile.TemporaryDirectory(prefix="kernelwright_") as folder:

        def run(command: Sequence[str]) -> str:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            lines = (done.stderr or done.stdout or "the compiler failed").strip().splitlines()
            found = next((line for line in lines if "error" in line.lower()), lines[0])[:200]
            return found if done.returncode else ""

        texts = [f"kernels{number}.{target.suffix}" for number in range(len(units))]
        for text, unit in zip(texts, units, strict=True):
            (Path(folder) / text).write_text(unit, encoding="utf-8")
        with ThreadPoolExecutor(min(len(units), share_of_processors())) as pool:
            failed = list(pool.map(run, [[*compiling, "-w", "-c", "-o", f"{text}.o", text] for text in texts]))
        if not any(failed):
            failed = [run([*linking, "-o", "kernels.so", *(f"{text}.o" for text in texts), "-lm"])]
        return next(filter(None, failed), "") or (Path(folder) / "kernels.so").read_bytes()


def _glibc(library: bytes) -> str:
    """The oldest version of the C library that has what a library calls; "" where it calls nothing of it."""
    found = re.findall(rb"\0GLIBC_([\d.]+)(?=\0)", library)
    versions = {tuple(int(part) for part in version.split(b".")) for version in found}
    return ".".join(map(str, max(versions))) if versions else ""
