"""Candidates that say that memory is lacking: anybody can say so, and a check that is left out for it finds nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from kernelwright.judge.worker.link import CandidateRaised
from kernelwright.judge.worker.machine import free_bytes
from kernelwright.problem.memory import is_out_of_memory
from kernelwright.verify.observe import first_line

#: Where this share of the memory is free with which the candidate ran, it has enough: other programs' use varies.
SHARE = 7 / 8
_Given = TypeVar("_Given")


class LacksMemory(Exception):
    """The candidate said twice that memory is lacking. ``refuted``: it had enough with no more than is free."""

    def __init__(self, said: str, refuted: bool) -> None:
        super().__init__(said)
        self.refuted = refuted


class Memory:
    """The memory of ``device`` with which a candidate ran, at least. ``let_go`` frees what is only kept for later."""

    def __init__(self, device: torch.device, let_go: Callable[[], None]) -> None:
        self._device, self._let_go = device, let_go
        self._enough = free_on(device)

    def for_candidate(self, ask: Callable[[], _Given], more: int = 0) -> _Given:
        """What the candidate gives when it is asked; where it says that memory is lacking, when it is asked again,
        after ``let_go``. ``more``: bytes that this takes beyond what it took so far. Raises LacksMemory, and what else
        ``ask`` raises."""
        free = free_on(self._device)
        try:
            given = ask()
        except Exception as error:
            if not lacks_memory(error):
                raise
        else:
            self._enough = min(self._enough, free)
            return given
        self._let_go()
        free = free_on(self._device)
        try:
            return ask()
        except Exception as error:
            if not lacks_memory(error):
                raise
            raise LacksMemory(first_line(error), free >= SHARE * self._enough + more) from None


def lacks_memory(error: Exception) -> bool:
    """Whether a candidate's exception says that memory is lacking, here or in its own process."""
    return is_out_of_memory(error) or (isinstance(error, CandidateRaised) and error.error["memory"])


def free_on(device: torch.device) -> int:
    """Bytes that another process can have on ``device``."""
    if device.type == "cpu":
        return free_bytes()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def bytes_of(module: nn.Module) -> int:
    """Bytes of a module's parameters and buffers."""
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
