"""CUDA kernels without a GPU: an emitted file whose kernels run under the CPU emulation."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import torch

from kernelwright.build.library import LAUNCHER
from kernelwright.build.module import load_text
from kernelwright.codegen.cuda.emulation.compile import EmulationError, compile_emulated


def load_emulated(text: str, kernels: str, name: str) -> ModuleType:
    """The module of an emitted CUDA file, its kernels compiled for the emulation; inputs live on the CPU."""
    module = load_text(text, name)
    vars(module).update(_KERNELWRIGHT_DEVICE="cpu", _kernelwright_library=emulated_library(kernels))
    return module


def emulated_library(kernels: str) -> ctypes.CDLL:
    """The library of CUDA text under the emulation, its launchers as those of an emitted file. Raises EmulationError.
    """
    library = compile_emulated(kernels)
    for launcher in LAUNCHER.findall(kernels):
        getattr(library, launcher).argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        getattr(library, launcher).restype = ctypes.c_char_p
    return library


def emulation_messages(kernels: str) -> str:
    """The compiler's messages on CUDA text that the emulation does not take, "" where all is well."""
    try:
        compile_emulated(kernels)
    except EmulationError as error:
        return str(error) or "the compiler failed"
    return ""


def fewer_entries(inputs: list[Any], most: int) -> list[Any]:
    """The inputs with at most ``most`` entries along the first tensor's batch axis."""
    first = next((i for i in inputs if isinstance(i, torch.Tensor) and i.ndim), None)
    if first is None or first.shape[0] <= most:
        return inputs
    return [i[:most].contiguous() if isinstance(i, torch.Tensor) and i.ndim and i.shape[0] == first.shape[0] else i
            for i in inputs]
