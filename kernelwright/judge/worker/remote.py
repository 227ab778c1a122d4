"""A module that stands here for a candidate in another process, so that VERIFY judges it like any other module."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kernelwright.judge.worker.gradients import call_with_gradients
from kernelwright.judge.worker.handover import NotHandedOver, arguments_of, gives_keywords
from kernelwright.judge.worker.link import CandidateRaised, Last, Link
from kernelwright.judge.worker.process import Worker, WorkerFailure
from kernelwright.problem import Problem
from kernelwright.problem.importing import IMPORT_SEED
from kernelwright.verify.flatten import tensors_of

__all__ = ["CandidateRaised", "Last", "NotHandedOver", "RemoteCandidate", "WorkerFailure"]


class _Fact:
    """Reads an attribute of the link. A state of the same name, which stands in the instance, goes first."""

    def __init__(self, name: str, words: str) -> None:
        self.name, self.__doc__ = name, words

    def __get__(self, remote: Any, kind: Any = None) -> Any:
        return self if remote is None else getattr(remote.__dict__["_kernelwright_link"], self.name)


class RemoteCandidate(nn.Module):
    """The candidate in ``worker``, constructed there with the problem's arguments under ``seed``, in mode ``training``.

    Has the candidate's parameters, buffers and plain tensor attributes, by name, with equal shapes, dtypes and sharing.
    A call sends what of them was written here, the random state and the inputs, and returns tensors made of the
    returned bytes; inputs, state and random state become what the call made of them there, and what shared memory
    there does here.

    Raises WorkerFailure where the process fails, CandidateRaised where the candidate raises, torch.OutOfMemoryError
    where the device had too little memory, and NotHandedOver (a TypeError) where the problem's arguments need its file.
    """

    last = _Fact("last", "Facts of the last call (`Last`).")
    ever_late = _Fact("ever_late", "Whether any call's outputs changed after its return.")
    launch_errors = _Fact("launch_errors", "Names of the launch errors of all calls that nobody read, each once.")
    attribute_names = _Fact("attribute_names", "Names of everything that ModelNew's constructor set, at most 500.")
    raised = _Fact("raised", "The candidate's last exception, or None.")
    link = _Fact("itself", "The connection (`Link`), for requests of other kinds.")

    def __init__(self, worker: Worker, problem: Problem, seed: int, training: bool, *, load: bool = True,
                 dtype: torch.dtype | None = None) -> None:
        """``load`` imports the candidate's file; without it another instance takes the place of the one before. With a
        ``dtype`` all its floating parameters and buffers are cast to that."""
        super().__init__()
        arguments = arguments_of(problem)
        self.__dict__["_kernelwright_link"] = link = Link(worker, problem.device, self)
        if load:
            link.ask("load", {"source_name": worker.source_name, "import_seed": IMPORT_SEED}, "build")
        link.construct(arguments, seed, training, gives_keywords(problem), dtype)
        self.training = training

    def expect(self, outputs: Any) -> None:
        """Say what the model returns: how many bytes are taken, and what sizes of memory are poisoned."""
        link: Link = self.__dict__["_kernelwright_link"]
        link.expected = [t.numel() * t.element_size() for t in tensors_of(outputs)]

    def poison_memory(self, outputs: Any) -> None:
        """The next call gets poisoned memory: freed blocks of these outputs' sizes, and all that is allocated in it."""
        RemoteCandidate.expect(self, list(outputs))
        self.__dict__["_kernelwright_link"].poisons = True

    def keep_inputs(self) -> None:
        """The next call's inputs lie where those of the call before lay, if that was told the same; else they lie in
        fresh memory."""
        self.__dict__["_kernelwright_link"].keeps_inputs = True

    def train(self, mode: bool = True) -> RemoteCandidate:
        """Choose the mode of the next call."""
        self.training = mode
        return self

    def forward(self, *arguments: Any) -> Any:
        """One call of the candidate."""
        link: Link = self.__dict__["_kernelwright_link"]
        if torch.is_grad_enabled() and any(t.requires_grad for t in (
                *tensors_of(list(arguments)), *link.mirror.parameters())):
            return call_with_gradients(self, arguments)
        return link.call(self, arguments, gradients=False)[0]
