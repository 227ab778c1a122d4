"""The core for matrix products whose weight is read once, as it lies in memory: output channels are rows of products.

`contraction_turned` (codegen) has the arithmetic. Blocks stay on their multiprocessor and take tile after tile. One
warpgroup, the producers, brings x by bulk copies, as many steps ahead as there are stages. The others have 64 output
channels each: a thread reads two rows of them, four channels of every sixteen, before it waits for the step before;
splits them into float16 terms times a power of two of its own, which brings the greatest of the step's 64 channels into
[2^14, 2^15), so that w is read once; and multiplies. Sums leave the tensor cores after every step, where they are
multiplied by the inverse. So nothing of w passes through shared memory, and while one warpgroup splits another
multiplies.

Of a step of 64 channels and 128 positions in fp16x3 (H200: 2048 multiply-adds in a cycle of a multiprocessor, 20 bytes
of memory and 28 of L2)::

    tensor cores   2 warpgroups * 12 products * 128 * 64 * 16      1536 cycles
    memory         128 * 64 * 4 bytes of w                         1640
    L2             the same, and 2 * 128 * 64 * 2 bytes of x       2340
    instructions   2 * (32 loads' worth, 32 * 5 to split, 64 to add, 100)   700 of a scheduler

so that 128 x 32768 x 32768 is limited by what L2 gives: 1.4 ms predicted, where mma.sync took 3.5. Of 16 positions
memory is the limit. Measured (one H100, whose memory gives 14 bytes): 1.68 ms; of 1024 rows 2,500 cycles a step. It is
not L2: blocks of a cluster that shared x, so that each brought half or a quarter of it (48 and 40 KB a step, 0.55 ms
predicted for 1024 x 8192 x 8192), took 0.727 and 0.855 ms where each block brings its own in 0.728. Shared memory moves
160 KB a step, 1,250 cycles' worth: not that alone either.

Where w is not finite, or so large or small that sums might leave float32, the epilogue computes the sums again: a
thread remembers the greatest magnitudes of its rows, and writes their scales as 1, or as infinite.
"""

from __future__ import annotations

from kernelwright.codegen.contraction_geometry import SLAB_ROWS
from kernelwright.codegen.contraction_turned import PRODUCER_REGISTERS, ROWS, Turned, right_strides
from kernelwright.codegen.cuda.contraction_epilogue import Epilogue, slab_columns
from kernelwright.codegen.cuda.contraction_points import wrapped
from kernelwright.codegen.cuda.contraction_split import addition, addition_launch, parts_left
from kernelwright.codegen.cuda.contraction_turned_text import (
    CORE,
    FILL_TABLE,
    FINISH,
    MERGE,
    PARTIAL,
    SCALES,
    SCALES_OF_PARTS,
    TAKE_PAIRS,
    TAKE_SINGLY,
)
from kernelwright.codegen.cuda.contraction_wgmma import Core
from kernelwright.codegen.cuda.host import ask_processors
from kernelwright.codegen.cuda.math import snippets_of


def core(numbers: Turned, epilogue: Epilogue, name: str) -> Core:
    """``NAME_core`` and its launch, which reads ``left``, the packed x, and the epilogue's parameters, and writes
    ``right_scales``. Raises ValueError where a block has too little shared memory."""
    kernel, tiling = numbers.kernel, numbers.tiling
    width = slab_columns(kernel, tiling)
    if width % ROWS:
        raise ValueError(f"{name}: slabs of {width} columns divide a warpgroup's channels")
    slabs = tiling.rows // SLAB_ROWS * (tiling.columns // width)
    slab_floats = epilogue.floats + epilogue.column_floats
    shared = numbers.shared_bytes(slabs if tiling.split == 1 else 0, slab_floats)
    merging = numbers.shared_bytes(slabs, slab_floats) - numbers.tiling.stages * (numbers.stage_bytes + 16)
    group, channels_apart, columns_apart = right_strides(kernel)
    weight = f"in{kernel.right.buffer}"
    finishing = [p for p in epilogue.parameters if p[1] not in ("right_scales", weight)]
    taken = [("float*", "right_scales"), ("const float* __restrict__", weight)]
    parameters = [("const unsigned short* __restrict__", "left"), *taken,
                  *([("float* __restrict__", "partial")] if tiling.split > 1 else finishing)]
    by_channels = channels_apart == 1
    offset = kernel.right.index.offset
    pairs = by_channels and not any(number % 2 for number in (columns_apart, offset, kernel.in_channels, group))
    # Where not all of it is there, the output channel and the channel decide.
    ragged = [kernel.out_channels % tiling.columns > 0, kernel.in_channels % tiling.depth > 0]
    there = " && ".join(text for text, some in zip(
        (f"o + 8 * h < {kernel.out_channels}", f"c + 16 * k + 8 * i{'' if pairs else ' + e'} < {kernel.in_channels}"),
        ragged, strict=True) if some)

    def passed(*values: str) -> str:
        return "".join(f", {value}" for value, some in zip(values, ragged, strict=True) if some)

    along = "16 * k + 8 * i" + ("" if pairs else " + e")
    apart = columns_apart if by_channels else channels_apart
    own, begin = "lane % 4 * 2", f"begin * {tiling.depth} + lane % 4 * 2"
    values = {
        "WORKS": numbers.works, "PARTS_LEFT": parts_left(tiling.split),
        "PARTS": addition(name, tiling.split, numbers.sums_of_part) + MERGE if tiling.split > 1 else "",
        "RESULTS": PARTIAL if tiling.split > 1 else FINISH,
        "SCALES": SCALES_OF_PARTS if tiling.split > 1 else SCALES,
        "TAKE": TAKE_PAIRS if pairs else TAKE_SINGLY, "THERE": f"{there} ? " if there else "",
        "PLACE": f"8 * h * {apart}LL + {along}" if by_channels else f"({along}) * {apart}LL + 8 * h",
        "WHERE": passed("int o", "int c"), "FIRST_STEP": passed("first", begin),
        "NEXT_STEP": passed("first", f"(step + 1) * {tiling.depth} + {own}"),
        "STEP": tiling.depth if by_channels else f"{tiling.depth * apart}LL",
        "ELSE": " : 0.0f" if there else "", "ELSE_PAIR": " : make_float2(0.0f, 0.0f)" if there else "",
        "WEIGHT": weight + (f" + {offset}LL" if offset else "")
        + (f" + group * {group}LL" if kernel.groups > 1 else "")
        + (f" + first * {apart}LL + {begin}" if by_channels else f" + ({begin}) * {apart}LL + first"),
        "FILL_TABLE": FILL_TABLE if epilogue.column_floats else "", "COLUMN_ARGUMENTS":
        "".join(f"{parameter}, " for _, parameter in epilogue.column_parameters), "FLOATS": epilogue.floats,
        "COLUMN_TABLE": f", slab + {epilogue.floats}" if epilogue.column_floats else "",
        "ROW_SCALE": f", {name}_row_scale(left_scales, thread, group, first_row)" if epilogue.row_scales else "",
        "NAME": name, "PARAMETERS": ",\n    ".join(map(" ".join, parameters)),
        "FINISH_PARAMETERS": ",\n    ".join(map(" ".join, epilogue.parameters)),
        "MERGE_PARAMETERS": "".join(f",\n    {' '.join(p)}" for p in epilogue.parameters),
        "ARGUMENTS": "".join(f"{parameter}, " for _, parameter in epilogue.parameters), "WRITTEN_ARGUMENTS": "".join(
            f"{f'kw_written({p})' if p == 'right_scales' else p}, " for _, p in epilogue.parameters),
        "ROWS": tiling.rows, "COLUMNS": tiling.columns, "POSITIONS": numbers.positions, "WORKERS": numbers.workers,
        "THREADS": numbers.threads, "CHUNKS": numbers.step_chunks, "TERMS": numbers.terms, "STAGES": tiling.stages,
        "STAGE_BYTES": numbers.stage_bytes, "DEPTHS": numbers.depths, "SPLIT": tiling.split, "TILES": numbers.tiles,
        "ROW_BLOCKS": numbers.blocks[0], "COLUMN_BLOCKS": numbers.blocks[1], "OUT_CHANNELS": kernel.out_channels,
        "SLAB": slab_floats, "SLAB_COLUMNS": width, "SLABS": slabs, "ROW_STRIDE": epilogue.row_stride,
        "COLUMN_STRIDE": epilogue.column_stride, "ALL_CHUNKS": numbers.chunks, "LEFT_TERM":
        numbers.left_term_bytes // 2, "ALL_ROWS": numbers.allocated_rows, "FEWER": PRODUCER_REGISTERS,
        "BARRIERS": shared - 16 * tiling.stages,
        "MORE": f"kw_registers_{'more' if numbers.registers > numbers.launched_registers else 'fewer'}"
        f"<{numbers.registers}>();", "FIRST_PAIR": 0 if numbers.terms == 2 else 2}
    text = CORE
    for _ in range(3):  # some stand in others
        for key, value in values.items():
            text = text.replace(f"@{key}@", str(value))
    text = "\n".join(wrapped(text.split("\n")))
    support = epilogue.support | snippets_of(text) | {"tensor_core", "written", f"wgmma_f16_{numbers.positions}_own"}
    aligned = (f'if (reinterpret_cast<uintptr_t>({weight}) % 8 != 0)\n'
               f'    return "{name}: {weight} must be aligned to 8 bytes";',) * pairs
    launches = _launches(numbers, name, parameters, epilogue, shared, merging)
    return Core(text, (*aligned, *launches), support, numbers.threads, shared)


def _launches(numbers: Turned, name: str, parameters: list[tuple[str, str]], epilogue: Epilogue, shared: int,
              merging: int) -> tuple[str, ...]:
    """The host's lines: a block for each multiprocessor, where there are so many parts of tiles."""
    kernel, split, works = numbers.kernel, numbers.tiling.split, numbers.works
    passed = ", ".join("sums" if p == "partial" else p for _, p in parameters)
    lines = [f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, cudaFuncAttributeMaxDynamicSharedMemorySize, '
             f"{shared}));"]
    if split > 1:
        size = 4 * kernel.groups * kernel.out_channels
        lines.append(f'KW_CHECK("{name}", cudaMemsetAsync(right_scales, 0, {size}LL, stream));')
    lines += [*ask_processors(name),
              f'KW_LAUNCH("{name}", {name}_core, processors < {works} ? processors : {works}, {numbers.threads}, '
              f"{shared}, stream, {passed});"]
    if split > 1:
        finishing = ", ".join(["sums", *(p for _, p in epilogue.parameters)])
        lines += [*addition_launch(name, split, numbers.sums_of_part),
                  f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_merge, '
                  f"cudaFuncAttributeMaxDynamicSharedMemorySize, {merging}));",
                  f'KW_LAUNCH("{name}", {name}_merge, {numbers.tiles}, {128 * numbers.workers}, {merging}, stream, '
                  f"{finishing});"]
    return tuple(lines)
