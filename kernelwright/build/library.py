"""Compile a piece of generated text on its own, through the same path as an emitted file."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch

from kernelwright.build.module import BuildFailed, build_failure
from kernelwright.codegen.generate import TARGETS
from kernelwright.emit.runtime import BUILD, IMPORTS

#: The launchers that a text defines.
LAUNCHER = re.compile(r'^extern "C" const char\* (\w+)\(', re.MULTILINE)


def build_libraries(sources: Sequence[str], target: str, names: Sequence[str]) -> list[ctypes.CDLL | BuildFailed]:
    """The libraries of several texts, compiled at the same time; in place of each that does not compile, why.

    Their symbols share the process: what the texts define outside of ``static`` has to have different names.
    """
    def build(source: str, name: str) -> ctypes.CDLL | BuildFailed:
        try:
            return build_library(source, target, name)
        except BuildFailed as failure:
            return failure

    workers = max(1, min(len(sources), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 4))
    with _architecture(target), ThreadPoolExecutor(workers) as pool:
        return list(pool.map(build, sources, names))


@contextmanager
def _architecture(target: str) -> Iterator[None]:
    """A build sets this variable for its compiler and restores it: builds at the same time must find it set."""
    name = "TORCH_CUDA_ARCH_LIST"
    if target != "cuda" or not torch.cuda.is_available():
        yield
        return
    before = os.environ.get(name)
    major, minor = torch.cuda.get_device_capability()
    os.environ[name] = f"{major}.{minor}" + ("a" if (major, minor) == (9, 0) else "")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def build_library(source: str, target: str, name: str = "kernelwright_region") -> ctypes.CDLL:
    """The library of a text whose launchers are extern "C" functions of (tensors, stream).

    Raises BuildFailed, and FolderFull (KW306).
    """
    space: dict = {
        "_KERNELWRIGHT_NAME": name, "_KERNELWRIGHT_DEVICE": TARGETS[target].device,
        "_KERNELWRIGHT_FLAGS": list(TARGETS[target].flags), "_KERNELWRIGHT_SOURCE": source,
        "_KERNELWRIGHT_LAUNCHERS": LAUNCHER.findall(source),
    }
    exec(compile(IMPORTS + "\n" + BUILD, "<kernelwright build>", "exec"), space)
    if space["_kernelwright_library"] is None:
        raise build_failure(space["_kernelwright_details"] or space["_kernelwright_trouble"])
    return space["_kernelwright_library"]
