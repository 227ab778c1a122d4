"""The text of the small runtime that stands in every emitted file: build, guard, launch, gradients.

It is text and not an import, because an emitted file depends on PyTorch alone. Names start with
``_kernelwright`` so that they can't meet the user's.
"""

from kernelwright.emit.runtime_build import BUILDS, IMPORTS, KERNEL_MARK
from kernelwright.emit.runtime_call import CALL, ONCE, PARTS, REQUIRE, STRUCTURES
from kernelwright.emit.runtime_guard import FORMS, GUARD

RUNTIME = "\n\n".join([FORMS, GUARD, CALL])

__all__ = ["BUILDS", "FORMS", "IMPORTS", "KERNEL_MARK", "ONCE", "PARTS", "REQUIRE", "RUNTIME", "STRUCTURES"]
