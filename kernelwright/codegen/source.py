"""The text of one kernel, as every target generates it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel's text and what its caller must provide.

    ``definition`` defines the host function::

        static const char* NAME(const T0* in0, ..., U0* out0, ..., void* workspace, STREAM)

    with inputs and outputs in the kernel record's order. It returns nullptr, or a message that
    names the kernel and the failed call. The C++ target has no STREAM argument; the CUDA target
    has ``cudaStream_t stream``. ``workspace`` is at least ``workspace_bytes`` long, aligned to
    256 bytes, and uninitialised; it may be null where ``workspace_bytes`` is 0.

    ``support`` names the snippets of the target's ``support/`` that the definition uses, in
    any order; the emitted file contains each snippet once, before all definitions.
    """

    name: str
    definition: str
    workspace_bytes: int = 0
    support: tuple[str, ...] = ()


class Unsuitable(Exception):
    """A skeleton takes no kernel of these sizes, which stays with PyTorch. That is no fault, neither ours nor a
    model's; the message says what does not fit."""


def text_beside(module: str, name: str) -> str:
    """The text of the file ``name`` beside a module, whose ``__file__`` is ``module``."""
    return Path(module).with_name(name).read_text(encoding="utf-8")


def part_beside(module: str, name: str) -> str:
    """`text_beside` without the end of its last line: a part of a text that goes on behind it."""
    return text_beside(module, name).removesuffix("\n")
