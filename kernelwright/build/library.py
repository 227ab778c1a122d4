"""Compile a piece of generated text on its own, through the same path as an emitted file."""

from __future__ import annotations

import ctypes
import re

from kernelwright.build.module import BuildFailed
from kernelwright.emit.file import CPP_FLAGS, CUDA_FLAGS
from kernelwright.emit.runtime import BUILD, IMPORTS

_LAUNCHER = re.compile(r'^extern "C" const char\* (\w+)\(', re.MULTILINE)


def build_library(source: str, target: str, name: str = "kernelwright_region") -> ctypes.CDLL:
    """The library of a text whose launchers are extern "C" functions of (tensors, stream).

    Raises BuildFailed.
    """
    space: dict = {
        "_KERNELWRIGHT_NAME": name, "_KERNELWRIGHT_DEVICE": "cuda" if target == "cuda" else "cpu",
        "_KERNELWRIGHT_FLAGS": list(CUDA_FLAGS if target == "cuda" else CPP_FLAGS), "_KERNELWRIGHT_SOURCE": source,
        "_KERNELWRIGHT_LAUNCHERS": _LAUNCHER.findall(source),
    }
    exec(compile(IMPORTS + "\n" + BUILD, "<kernelwright build>", "exec"), space)
    if space["_kernelwright_library"] is None:
        raise BuildFailed(space["_kernelwright_details"] or space["_kernelwright_trouble"])
    return space["_kernelwright_library"]
