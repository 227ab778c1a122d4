"""What a target is: one object, which every later stage asks, so that none asks which target it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kernelwright.codegen.device_kind import HOST
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import grouped
from kernelwright.plan.records import Kernel

#: PyTorch's extensions of C++ and of CUDA, or one command.
BUILDERS = ("extension", "cuda extension", "command")


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a language says what launchers need: ``external`` linkage by the C name, the null pointer, alignment; whether
    ``casts`` name what they do."""

    external: str
    null: str
    aligned: str
    casts: bool

    def pointer(self, name: str, kind: str, value: str, *, raw: bool = False) -> str:
        """The definition of a pointer to ``kind``; ``raw``: from a pointer to bytes, not to void."""
        if not self.casts:
            return f"{kind}* {name} = ({kind}*){grouped(value)};"
        return f"auto* {name} = {'reinterpret' if raw else 'static'}_cast<{kind}*>({value});"

    def returning_failure(self, call: str) -> str:
        """A call whose message, where there is one, is the launcher's result."""
        if not self.casts:
            return f"{{ const char* failure = {call}; if (failure) return failure; }}"
        return f"if (const char* failure = {call}) return failure;"


PLAIN_CPP = Syntax('extern "C" ', "nullptr", "alignas", casts=True)
PLAIN_C = Syntax("", "NULL", "_Alignas", casts=False)


class Generator(Protocol):
    """A skeleton's entry: the text of a kernel, of the kind under which the target lists it, under a name."""

    def __call__(self, kernel: Any, name: str) -> KernelSource: ...


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A language for kernels, and the kind of device that runs them.

    ``name``: what the command line calls it; ``language``: what reports do; ``device``: the type of
    PyTorch's tensors that its kernels take.
    ``types``: its name of every element type, by PyTorch's. ``skeletons``: what writes each kind of kernel; kinds
    without one stay with PyTorch. ``support``: the text of the snippets of some names. ``flags``: the compiler's;
    ``suffix``: that of its source files. ``built_by``: what compiles them, of :data:`BUILDERS`; ``compiler``: the
    environment variable that names a compiler for the host, and the one without it. ``syntax``: of launchers.

    ``sharing``: a kernel's text where the buffers of these names in it may have the same memory, element for element;
    None where no buffers of a kernel may.
    ``stream``: the type of what kernels are launched on, or "" where calls run at once. ``stack_bytes``: the largest
    workspace that a launcher has on its own stack. ``asserts_late``: whether a check of values may be left to the
    device, which fails later. ``rounds_products``: whether PyTorch may round the operands of float32 products there.
    ``emulated``: whether an emulation on the host runs its kernels where there is no device.
    """

    name: str
    language: str
    device: str
    types: Mapping[str, str]
    skeletons: Mapping[type[Kernel], Generator]
    support: Callable[[Collection[str]], str]
    flags: tuple[str, ...]
    suffix: str
    built_by: str
    compiler: tuple[str, str] = ("CXX", "c++" if sys.platform == "darwin" else "g++")
    syntax: Syntax = PLAIN_CPP
    sharing: Callable[[str, Collection[str]], str] | None = None
    stream: str = ""
    stack_bytes: int = 0
    asserts_late: bool = False
    rounds_products: bool = False
    emulated: bool = False

    @property
    def on_host(self) -> bool:
        """Whether its kernels run on the processor on which Python runs, which every machine has."""
        return self.device == HOST
