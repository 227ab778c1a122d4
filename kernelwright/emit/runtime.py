"""The text of the small runtime that stands at the end of every emitted file: build, guard, launch, gradients.

It is text and not an import, because an emitted file depends on PyTorch alone. Names start with
``_kernelwright`` so that they can't meet the user's. A file has what it uses of it (:mod:`kernelwright.emit.assembly`).
"""

from __future__ import annotations

from kernelwright.codegen.target import Target
from kernelwright.emit.assembly import folded
from kernelwright.emit.runtime_attributes import ATTRIBUTES
from kernelwright.emit.runtime_build import BUILD, IMPORTS, KERNEL_MARK, PIECE_CHARACTERS, PIECE_KERNELS
from kernelwright.emit.runtime_call import CALL, KEPT_BY_SIZES, ONCE, PARTS, REQUIRE, SIZES, STRUCTURES
from kernelwright.emit.runtime_compile import COMPILE, METHOD
from kernelwright.emit.runtime_graph import GRAPH
from kernelwright.emit.runtime_guard import FORMS, GUARD
from kernelwright.emit.runtime_twin import TWIN

_PARTS = [IMPORTS, BUILD, FORMS, ATTRIBUTES, GUARD, TWIN, CALL, GRAPH, COMPILE]
RUNTIME = "\n\n".join([*_PARTS, ONCE, REQUIRE, PARTS])
#: Of a file that serves calls of several sizes.
SIZED_RUNTIME = "\n\n".join([*_PARTS, SIZES, KEPT_BY_SIZES, REQUIRE, PARTS])


def conditions_of(target: Target) -> dict[str, bool]:
    """The runtime's conditions that a target decides."""
    return {"CUDA": target.built_by == "cuda extension", "COMMAND": target.built_by == "command"}


def build_text(target: Target) -> str:
    """The part of the runtime that builds the kernels of any text, of one piece or several."""
    return IMPORTS + "\n" + folded(BUILD, {**conditions_of(target), "UNITS": True})


def forms_text() -> str:
    """The part of the runtime that describes attributes of any kind."""
    return IMPORTS + folded(FORMS, {"OBJECTS": True})


__all__ = ["IMPORTS", "KERNEL_MARK", "METHOD", "PIECE_CHARACTERS", "PIECE_KERNELS", "RUNTIME", "SIZED_RUNTIME",
           "STRUCTURES", "build_text", "conditions_of", "forms_text"]
