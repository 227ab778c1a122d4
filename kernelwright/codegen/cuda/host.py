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


def ask_processors(name: str) -> list[str]:
    """Lines that define ``processors``, the multiprocessors of the current device."""
    return ["int device = 0, processors = 0;", f'KW_CHECK("{name}", cudaGetDevice(&device));',
            f'KW_CHECK("{name}", cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));']


def launch_of_clusters(name: str, cluster: int, block: str, works: str, arguments: str) -> list[str]:
    """The host's lines that launch ``NAME_core`` as so many clusters of ``cluster`` blocks as the device holds, or as
    there is work for; ``block`` are a block's threads and bytes of shared memory. The last one is the launch."""
    number = works.removesuffix("LL")
    fewest = number if number.isdecimal() and int(number) < 1 << 31 else f"static_cast<int>({works})"
    return ["static int clusters = 0;  // that the device holds at a time: asked once",
            f'if (clusters == 0) KW_CHECK("{name}", kw_resident_clusters(&clusters, {name}_core, {cluster}, {block}));',
            f"if (clusters < 1) return \"{name}: the device holds no cluster of {cluster} such blocks\";",
            f"const int used = clusters < {works} ? clusters : {fewest};",
            f'KW_CHECK("{name}", kw_launch_clusters({name}_core, {cluster}, dim3(used * {cluster}), {block}, '
            f"stream, {arguments}));"]
