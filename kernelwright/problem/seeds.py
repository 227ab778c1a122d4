"""Running something under a seed without leaving traces in the global random states."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch


def seed_generators(seed: int) -> None:
    """Seed torch's generators as ``torch.manual_seed`` does. That notes the seed, and who gave it, for devices that may
    be started later: where there is no device, a fifth of a small trial's time."""
    if _has_device():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


@cache
def _has_device() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch (all devices), random and, if loaded, numpy; restore their states afterwards."""
    # fork_rng would start CUDA contexts on every device; only running ones have a state to keep.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices), others_kept():
        seed_generators(seed)
        seed_others(seed)
        yield


def seed_others(seed: int) -> None:
    """Seed random and, if loaded, numpy: speech models draw masks from it. Nobody draws from what is not loaded."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed % 2**32)


@contextmanager
def others_kept() -> Iterator[None]:
    """Restore the states of random and, if loaded, of numpy afterwards."""
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy:
            numpy.random.set_state(numpy_state)


def random_states() -> dict[str, bytes]:
    """Where the global generators of torch (CPU), random and, if loaded, numpy stand: equal only where none moved."""
    numpy = sys.modules.get("numpy")
    states = {"torch": bytes(torch.get_rng_state().numpy()),
              "random": repr(random.getstate()).encode()}
    if numpy:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = keys.tobytes() + repr((kind, rest)).encode()
    return states
