"""Extensions of candidates, built once for each text: by the judge's side, in a process without the candidate.

A candidate's file is imported where nothing is built, which says what it would build. Each such request is built in a
process of its own, confined as a candidate's is, in which none of the candidate's code runs: only compilers read its
text. The library is kept under a hash of all that it was made of, and given to the candidate's process, which finds it
where it would have built it. What cannot be said in full, and what a compiler refuses, is left to the candidate's own
process. ``docs/judge_isolation.md`` says why no candidate can plant a library for another.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension

from kernelwright.build.module import find_cuda_compiler
from kernelwright.judge.check.precompiled import files_of, precompiled
from kernelwright.judge.inside.builds import BUILD, FLAGS, IMPORT, MADE, key_of
from kernelwright.judge.sandbox.limits import Limits
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.problem.importing import IMPORT_SEED
from kernelwright.settings import cache_folder

#: Flags of which the outcome depends on the text, the compilers and the machine alone: none names a file or a folder,
#: a program, or a plug-in.
_FLAG = re.compile(r"-O[0-3sg]|-Ofast|-g|-w|-W[a-z][\w=+-]*|-std=[\w+]+|-D\w+(=[\w.+-]*)?|-U\w+|-pthread|-v|-lineinfo|"
                   r"-f(?!plugin|profile|auto-profile|dump|sanitize|branch|random|callgraph|stats|save)[\w-]+(=[\w-]+)?|"
                   r"-m(?!plt)[\w.-]+(=[\w.,-]+)?|--use_fast_math|-use_fast_math|--expt-[\w-]+|--extended-lambda|"
                   r"-gencode(=arch=compute_\w+,code=\[?\w+(,\w+)*\]?)?|arch=compute_\w+,code=\[?\w+(,\w+)*\]?|"
                   r"-arch=\w+|--maxrregcount=\d+|-maxrregcount=\d+|-Xptxas(=[\w,-]+)?|--ptxas-options=[\w,-]+|"
                   r"-Xcompiler(=[\w,-]+)?|--threads=?\d*|"
                   r"-l(cuda|cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusolver|gomp|m|dl|pthread)")
_NAME = re.compile(r"[A-Za-z_]\w{0,100}")
_FILE = re.compile(r"\w[\w.-]{0,100}\.(?:cpp|cc|cxx|c|cu)")
#: Bytes of a library, more than a text makes that a person reads.
_MOST_BYTES = 1 << 30
#: Seconds that a file may take to be imported where nothing is built.
_RECORD_SECONDS = 60.0
_WANTS_BUILDS = "cpp_extension"
#: What this process has asked for, by the candidate's file, its text and the device: a set's candidates are built
#: before there is room for them on the device, and find it here when they are judged.
_asked: dict[tuple[Path, str, str], dict[str, Path]] = {}


def prebuild(candidate: Path, text: str, device: torch.device, limits: Limits) -> dict[str, Path]:
    """The libraries of what a candidate's file has built while it is imported, by the keys of its requests; those that
    are not there yet are built now. Nothing where that goes wrong: its own process builds then, and says what is wrong.
    """
    if _WANTS_BUILDS not in text or not all(hasattr(cpp_extension, name) for name in (BUILD, IMPORT)):
        return {}
    asked = (candidate, text, str(device))
    if asked in _asked and all(library.exists() for library in _asked[asked].values()):
        return _asked[asked]
    try:
        found: dict[str, Path] = {}
        for request in _requested(candidate, device, limits):
            library = _kept(request, candidate, device, limits)
            if library is not None:
                found[key_of(request)] = library
        _asked[asked] = found
        return found
    except (WorkerFailure, OSError):
        return {}


def attach(libraries: Mapping[str, Path], worker: Worker, seconds: float = 60.0) -> None:
    """Give a candidate's process copies of its libraries, before its file is imported. Raises WorkerFailure."""
    if not libraries:
        return
    folder = worker.folder / "prebuilt"
    folder.mkdir(exist_ok=True)
    names = {}
    for key, library in libraries.items():
        shutil.copy(library, folder / library.name)
        names[key] = f"prebuilt/{library.name}"
    worker.request("prebuilt", {"libraries": names}, seconds=seconds, stage="build")


def _requested(candidate: Path, device: torch.device, limits: Limits) -> list[dict[str, Any]]:
    """What the file would build, as its process tells it, as far as that can be kept."""
    with Worker(candidate, device, limits, only_builds=True) as worker:
        request = {"source_name": worker.source_name, "import_seed": IMPORT_SEED}
        reply = worker.request("record-builds", request, seconds=min(_RECORD_SECONDS, limits.build_seconds),
                               stage="build")
    told = reply.get("requests") if reply.get("ok") else None
    return [request for request in told if can_be_kept(request)] if isinstance(told, list) else []


def can_be_kept(request: Any) -> bool:
    """Whether a request has the form of one, and names nothing that its texts do not say: it was told by a candidate's
    process."""
    if not isinstance(request, dict) or set(request) != {"name", "texts", "cuda", *FLAGS}:
        return False
    texts = request["texts"]
    plain = isinstance(request["name"], str) and _NAME.fullmatch(request["name"]) and isinstance(request["cuda"], bool)
    named = isinstance(texts, dict) and texts and all(
        isinstance(name, str) and _FILE.fullmatch(name) and isinstance(text, str) for name, text in texts.items())
    flags = all(isinstance(request[name], list) and all(isinstance(flag, str) for flag in request[name])
                for name in FLAGS)
    if not (plain and named and flags) or request["extra_include_paths"]:
        return False
    return all(_FLAG.fullmatch(word) for name in FLAGS for flag in request[name] for word in flag.split())


def _kept(request: dict[str, Any], candidate: Path, device: torch.device, limits: Limits) -> Path | None:
    """The library of a request, built now where it is not kept; None where a compiler refuses it."""
    folder = cache_folder() / "judge_builds"
    folder.mkdir(parents=True, exist_ok=True)
    identity = json.dumps([request, _tools(device)], sort_keys=True)
    name = hashlib.sha256(identity.encode()).hexdigest()[:40]
    library, refused = folder / f"{name}.so", folder / f"{name}.refused"
    with _alone(folder / f"{name}.lock"):
        if library.exists():
            return library
        if refused.exists():
            return None
        headers = precompiled(request, candidate, device, limits, _tools(device), _take)
        order = {**request, "headers": str(headers) if headers is not None else None}
        readable = files_of(headers) if headers is not None else ()
        with Worker(candidate, device, limits, readable=readable, only_builds=True) as builder:
            reply = builder.request("compile", order, seconds=limits.build_seconds, stage="build")
            if not reply.get("ok"):
                refused.touch()
                return None
            _take(builder.folder / MADE / f"{request['name']}{cpp_extension.LIB_EXT}", library)
    return library


def _take(made: Path, library: Path) -> None:
    """Keep what was built: a regular file that no link leads to. Raises OSError."""
    source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(source, "rb") as stream:
        facts = os.fstat(stream.fileno())
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > _MOST_BYTES:
            raise OSError(f"{made} is nothing that a compiler makes")
        descriptor, part = tempfile.mkstemp(dir=library.parent, prefix=".part-")
        try:
            with os.fdopen(descriptor, "wb") as kept:
                shutil.copyfileobj(stream, kept)
            os.chmod(part, 0o644)  # a worker may be another user
            os.replace(part, library)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Nobody else builds the same meanwhile; the lock ends with the process that holds it."""
    with open(file, "ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@functools.cache
def _tools(device: torch.device) -> tuple[str, ...]:
    """What a library is made with besides its request: compilers, headers, device, processor, variables."""
    programs = [shutil.which(os.environ.get("CXX") or "c++"), shutil.which(os.environ.get("CC") or "cc"),
                find_cuda_compiler(), shutil.which("ld"), shutil.which("ninja")]
    found = [f"{os.path.realpath(program)} {os.stat(program).st_size} {os.stat(program).st_mtime_ns}"
             for program in filter(None, programs)]
    processor = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "")
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else ""
    variables = [f"{name}={os.environ.get(name)}" for name in ("CXX", "CC", "TORCH_CUDA_ARCH_LIST", "CUDA_HOME",
                                                               "CUDA_PATH", "LD_LIBRARY_PATH")]
    headers = os.stat(Path(cpp_extension.__file__)).st_mtime_ns
    return (*found, processor, str(capability), *variables, torch.__version__, str(torch.version.cuda), str(headers),
            sys.version)


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []
