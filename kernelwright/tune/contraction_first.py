"""The first call of each candidate: it says whether the candidate runs at all, and whether it is worth further calls.

To hold a candidate to float64 and to time it takes several calls. One that is many times slower than what is known
already, or of which there is no time for so many, is given up by its first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kernelwright.device_lock import clock
from kernelwright.errors import DeviceLost
from kernelwright.timing.rounds import LEAST_ROUNDS
from kernelwright.tune.accuracy import DISTRIBUTIONS
from kernelwright.tune.contraction_memory import folder

#: A candidate that takes so many times the best so far, beside what a device needs to load a kernel, will not win.
_SLOWER, _LOADING_SECONDS = 4.0, 0.05
#: How often a candidate is called to see whether it writes the same bits each time.
SAME_CALLS = 3
#: Calls of a candidate after its first: on each distribution, for its bits, to warm up, and in each of the fewest
#: rounds.
CALLS = len(DISTRIBUTIONS) + SAME_CALLS + 1 + LEAST_ROUNDS


def first_call(call: Callable[[], object], name: str, device: torch.device) -> float:
    """Call, and wait for the device: the seconds of both; 0 of a call under the emulation, where they say nothing.

    Raises RuntimeError, and DeviceLost where nothing runs on the device any more.
    """
    if device.type != "cuda":
        call()
        return 0.0
    torch.cuda.synchronize(device)
    began = clock()
    try:
        call()
        torch.cuda.synchronize(device)
    except RuntimeError as failure:
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            message = str(failure).strip().splitlines()[0]
            raise DeviceLost(kernel=name, message=message, folder=folder()) from failure
        raise
    return clock() - began


def hopeless(seconds: float, best: float) -> bool:
    """Whether a candidate whose call took so long cannot be the fastest. best: seconds of the fastest call so far."""
    return seconds > _SLOWER * best + _LOADING_SECONDS


def affordable(first: Mapping[str, float], seconds: float) -> list[str]:
    """The candidates, fastest first, whose further calls take no longer than ``seconds`` together. first: seconds of
    the first call of each."""
    found, spent = list[str](), 0.0
    for name in sorted(first, key=first.__getitem__):
        spent += CALLS * first[name]
        if spent > seconds:
            break
        found.append(name)
    return found
