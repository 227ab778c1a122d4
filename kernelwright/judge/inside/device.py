"""The worker's device: synchronisation, errors that no one read, and random state."""

from __future__ import annotations

import ctypes
import random
import sys
from typing import Any

import torch

#: Shares of a device's memory: nothing is kept that is not needed where this process has more, or less can be had.
CROWDED_SHARE, FREE_SHARE = 0.5, 0.25
_cuda_synchronize = torch.cuda.synchronize
_current_stream, _set_stream = torch.cuda.current_stream, torch.cuda.set_stream
_allocated, _reserved = torch.cuda.memory_allocated, torch.cuda.memory_reserved
_memory_of = torch.cuda.mem_get_info
_get_rng, _set_rng = torch.get_rng_state, torch.set_rng_state
_seed_python = random.seed
_get_cuda_rng, _set_cuda_rng = torch.cuda.get_rng_state, torch.cuda.set_rng_state


class Device:
    """Where the candidate runs."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)
        self.cuda = self.device.type == "cuda"
        self._runtime: Any = None
        self._stream: Any = None

    def note_stream(self) -> None:
        """Remember the current stream, before a call."""
        self._stream = _current_stream(self.device) if self.cuda else None

    def back_to_stream(self) -> None:
        """Work on the remembered stream again, whatever the candidate made the current one."""
        if self._stream is not None:
            _set_stream(self._stream)

    def is_crowded(self) -> bool:
        """Whether most of the device's memory is in use."""
        if not self.cuda:
            return False
        free, total = _memory_of(self.device)
        used, held = _allocated(self.device), _reserved(self.device)
        return used > CROWDED_SHARE * total or free + held - used < FREE_SHARE * total

    def synchronize(self) -> None:
        """Wait for all streams of the device. Raises what kernels failed with."""
        if self.cuda:
            _cuda_synchronize(self.device)

    def random_state(self) -> list[torch.Tensor]:
        """The states of the CPU's generator and, on a GPU, of the device's."""
        return [_get_rng(), _get_cuda_rng(self.device)] if self.cuda else [_get_rng()]

    def set_random_state(self, states: list[torch.Tensor]) -> None:
        """Set what `random_state` gave in another process."""
        _set_rng(states[0])
        if self.cuda and len(states) > 1:
            _set_cuda_rng(states[1], self.device)

    def seed_others(self, seed: int) -> None:
        """Seed random and, if loaded, numpy as the judge's own process did before the model's call."""
        _seed_python(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed % 2**32)

    def last_error(self) -> str | None:
        """The error that a launch left behind and nobody read, by name; it is cleared. None where there is none.

        Launches report an invalid configuration only here. A candidate that never asks leaves it, and its output stays
        what it was.
        """
        if not self.cuda:
            return None
        if self._runtime is None:
            self._runtime = _cuda_runtime()
        code = self._runtime.cudaGetLastError() if self._runtime else 0
        return None if code == 0 else self._runtime.cudaGetErrorName(code).decode(errors="replace")

    def is_broken(self) -> bool:
        """Whether the device's context is lost: every later call would fail, too."""
        if not self.cuda:
            return False
        try:
            self.synchronize()
        except Exception:
            return True
        return False


def _cuda_runtime() -> Any:
    """The CUDA runtime that PyTorch has loaded into this process, or False."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "libcudart" in line}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
            library.cudaGetErrorName.restype = ctypes.c_char_p
        except (OSError, AttributeError):
            continue
        return library
    return False
