"""The text of the small runtime that stands at the end of every emitted file: build, guard, launch, gradients.

It is text and not an import, because an emitted file depends on PyTorch alone. Names start with
``_kernelwright`` so that they can't meet the user's. A file has what it uses of it (:mod:`kernelwright.emit.assembly`).
"""

from __future__ import annotations

from kernelwright.codegen.target import Target
from kernelwright.emit.assembly import folded, used
from kernelwright.emit.runtime_ahead import AHEAD
from kernelwright.emit.runtime_attributes import ATTRIBUTES
from kernelwright.emit.runtime_backward import BACKWARD, FUNCTION, STEPS
from kernelwright.emit.runtime_binding import BINDING, FORMS
from kernelwright.emit.runtime_build import BUILD, IMPORTS, KERNEL_MARK, PIECE_CHARACTERS, PIECE_KERNELS, START
from kernelwright.emit.runtime_call import CALL, PARTS, STRUCTURES
from kernelwright.emit.runtime_compile import COMPILE, METHOD
from kernelwright.emit.runtime_dtypes import DTYPES
from kernelwright.emit.runtime_embedded import EMBEDDED
from kernelwright.emit.runtime_graph import GRAPH, REQUIRE
from kernelwright.emit.runtime_guard import GUARD, MISFITS
from kernelwright.emit.runtime_sizes import KEPT_BY_SIZES, ONCE, SIZES, with_sizes
from kernelwright.emit.runtime_twin import TWIN

_MOST = (FORMS, ATTRIBUTES, MISFITS, BINDING, GUARD, DTYPES, TWIN, FUNCTION, BACKWARD, STEPS, CALL, AHEAD, GRAPH,
         COMPILE)
_REST = (*_MOST, ONCE, REQUIRE, PARTS)
RUNTIME = "\n\n".join([IMPORTS, BUILD, START, *_REST])
#: Of a file that holds its kernels compiled: these come last, so that a reader meets everything else before.
RUNTIME_EMBEDDED = "\n\n".join([IMPORTS, BUILD, *_REST, EMBEDDED, START])
#: Of a file that serves calls of several sizes.
_OF_SIZES = (*map(with_sizes, _MOST), SIZES, KEPT_BY_SIZES, REQUIRE, PARTS)
SIZED_RUNTIME = "\n\n".join([IMPORTS, BUILD, START, *_OF_SIZES])
SIZED_RUNTIME_EMBEDDED = "\n\n".join([IMPORTS, BUILD, *_OF_SIZES, EMBEDDED, START])


def conditions_of(target: Target) -> dict[str, bool]:
    """The runtime's conditions that a target decides."""
    return {"CUDA": target.built_by == "cuda extension", "COMMAND": target.built_by == "command"}


def build_text(target: Target) -> str:
    """The part of the runtime that builds the kernels of any text, of one piece or several."""
    return IMPORTS + "\n" + folded(f"{BUILD}\n\n{START}", {**conditions_of(target), "UNITS": True, "EMBEDDED": False})


def units_text() -> str:
    """The part of the runtime that takes the kernels' text apart."""
    return used(IMPORTS + "\n" + BUILD, ["_kernelwright_units"])


def fitting_text(*, cuda: bool) -> str:
    """The part of the runtime that finds out whether a library is for a machine."""
    return IMPORTS + "\n" + folded(EMBEDDED, {"CUDA": cuda})


def forms_text() -> str:
    """The part of the runtime that describes attributes of any kind."""
    return IMPORTS + folded(FORMS, {"OBJECTS": True})


__all__ = ["IMPORTS", "KERNEL_MARK", "METHOD", "PIECE_CHARACTERS", "PIECE_KERNELS", "RUNTIME",
           "RUNTIME_EMBEDDED", "SIZED_RUNTIME", "SIZED_RUNTIME_EMBEDDED", "STRUCTURES", "build_text", "conditions_of",
           "fitting_text", "forms_text", "units_text"]
