"""The CUDA skeleton of :class:`Contraction`.

On tensor cores: kernels that pack both operands into the workspace (`contraction_pack`), then one that multiplies
blocks and finishes their sums (`contraction_wgmma` or `contraction_mma`, with `contraction_epilogue`). The scheme
float32 multiplies and adds without packing (`contraction_direct`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from kernelwright.codegen.contraction_geometry import Geometry
from kernelwright.codegen.cuda import contraction_direct, contraction_mma, contraction_wgmma
from kernelwright.codegen.cuda.contraction_epilogue import epilogue
from kernelwright.codegen.cuda.contraction_pack import packing
from kernelwright.codegen.cuda.contraction_tilings import tilings
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.source import KernelSource
from kernelwright.plan.kernels import Contraction

_TYPES = {"left_scales": "float", "right_scales": "float", "left": "unsigned short", "right": "unsigned short",
          "sums": "float"}


def generate(kernel: Contraction, name: str) -> KernelSource:
    """The CUDA text of a contraction, whose host function is ``name``.

    Where ``kernel.tiling`` is None, the first of :func:`tilings` for wgmma is taken. Raises ValueError for a tiling
    that does not fit a block, and where a grid would exceed 2**31 - 1 blocks.
    """
    if not prod(kernel.domain):
        return _source(kernel, name, [], [], 0, frozenset())
    if kernel.scheme == "float32":
        number = kernel.tiling if isinstance(kernel.tiling, int) else 0
        kernel = replace(kernel, tiling=None)
        schedules = contraction_direct.schedules(kernel)
        return contraction_direct.generate(kernel, name, schedules[number] if number < len(schedules) else None)
    tiling = kernel.tiling or tilings(kernel, "wgmma")[0]
    geometry = Geometry(kernel, tiling)
    packed, finish = packing(geometry, name), epilogue(geometry, name)
    core = (contraction_wgmma if tiling.core == "wgmma" else contraction_mma).core(geometry, finish, name)
    body = ["unsigned char* const base = static_cast<unsigned char*>(workspace);"]
    body += [f"{_TYPES[part]}* const {part} = reinterpret_cast<{_TYPES[part]}*>(base + {offset}LL);"
             for part, (offset, size) in geometry.places.items() if size]
    body += alignment_check(name, [v for v in sorted(finish.vectors) if v.startswith(("in", "out"))])
    body += [*packed.launches, *core.launches]
    return _source(kernel, name, [packed.definitions, finish.definitions, core.definitions], body,
                   geometry.workspace_bytes, packed.support | finish.support | core.support)


def _source(kernel: Contraction, name: str, definitions: list[str], body: list[str], workspace_bytes: int,
            support: frozenset[str]) -> KernelSource:
    """The host function behind the device texts."""
    lines = [head(name, kernel.input_dtypes, kernel.output_dtypes), *(f"  {line}" for line in body),
             "  return nullptr;", "}"]
    return KernelSource(name, "\n".join([*definitions, "\n".join(lines)]), workspace_bytes, tuple(sorted(support)))
