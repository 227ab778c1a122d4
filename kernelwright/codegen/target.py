"""What a target is: one object, which every later stage asks, so that none asks which target it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernelwright.codegen.source import KernelSource
from kernelwright.plan.records import Kernel


class Generator(Protocol):
    """A skeleton's entry: the text of a kernel, of the kind under which the target lists it, under a name."""

    def __call__(self, kernel: Any, name: str) -> KernelSource: ...


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A language for kernels, and the kind of device that runs them.

    ``name``: what the command line calls it; ``device``: the type of PyTorch's tensors that its kernels take.
    ``types``: its name of every element type, by PyTorch's. ``skeletons``: what writes each kind of kernel; kinds
    without one stay with PyTorch. ``support``: the text of the snippets of some names. ``flags``: the compiler's;
    ``suffix``: that of its source files.

    ``stream``: the type of what kernels are launched on, or "" where calls run at once. ``stack_bytes``: the largest
    workspace that a launcher has on its own stack. ``asserts_late``: whether a check of values may be left to the
    device, which fails later. ``rounds_products``: whether PyTorch may round the operands of float32 products there.
    """

    name: str
    device: str
    types: Mapping[str, str]
    skeletons: Mapping[type[Kernel], Generator]
    support: Callable[[Collection[str]], str]
    flags: tuple[str, ...]
    suffix: str
    stream: str = ""
    stack_bytes: int = 0
    asserts_late: bool = False
    rounds_products: bool = False
