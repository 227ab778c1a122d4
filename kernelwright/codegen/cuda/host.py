"""Lines of the host functions of CUDA kernels, whatever the kernels do."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.expressions import C_TYPES


def head(name: str, input_dtypes: Sequence[str], output_dtypes: Sequence[str]) -> str:
    """The first line of the function ``name``, up to its brace: in0, ..., out0, ..., workspace, stream."""
    parameters = [f"const {C_TYPES[dtype]}* in{n}" for n, dtype in enumerate(input_dtypes)]
    parameters += [f"{C_TYPES[dtype]}* out{n}" for n, dtype in enumerate(output_dtypes)]
    return f"static const char* {name}({', '.join([*parameters, 'void* workspace', 'cudaStream_t stream'])}) {{"


def alignment_check(name: str, pointers: Sequence[str]) -> list[str]:
    """Lines that leave the function ``name`` where one of ``pointers`` is not aligned to 16 bytes; none without any."""
    if not pointers:
        return []
    together = " | ".join(f"reinterpret_cast<uintptr_t>({pointer})" for pointer in pointers)
    return [f"if (({together}) % 16 != 0)", f'  return "{name}: {", ".join(pointers)} must be aligned to 16 bytes";']
