"""The core for matrix products whose weight is read once, as it lies in memory: output channels are rows of products.

`swap_ab.problem` has the arithmetic. Blocks stay on their multiprocessor and take tile after tile. One warpgroup, the
producers, brings x by bulk copies, as many steps ahead as there are stages (or splits it,
`swap_ab.convert_in_mainloop`). The others have 64 output channels each: a thread reads two rows of them, four channels
of every sixteen, before it waits for the step before; splits them into float16 terms times a power of two of its own,
which brings the greatest of the step's 64 channels into [2^14, 2^15), so that w is read once; and multiplies. Sums
leave the tensor cores after every step, where they are multiplied by the inverse. So nothing of w passes through shared
memory.

Of a step of 64 channels and 128 positions in fp16x3 (H200: 2048 multiply-adds in a cycle of a multiprocessor, 20 bytes
of memory and 28 of L2)::

    tensor cores   2 warpgroups * 12 products * 128 * 64 * 16      1536 cycles
    memory         128 * 64 * 4 bytes of w                         1640
    L2             the same, and 2 * 128 * 64 * 2 bytes of x       2340
    instructions   2 * (8 loads, 32 * 5 to split, 64 to add, 100)  670 of a scheduler

so that 128 x 32768 x 32768 is limited by what L2 gives: 1.4 ms predicted, where mma.sync took 3.5. Of 16 positions
memory is the limit. Measured (one H100, whose memory gives 14 bytes): 1.71 ms; 1024 x 8192 x 8192 0.740, 2,340 cycles a
step. Not by L2: clusters that shared x changed nothing. Two warpgroups left to themselves multiply at one time, and at
one time split and add, while tensor cores have nothing to do. In turns one multiplies while the other splits: 0.655 ms,
2,110 cycles (tensor cores' 690 TFLOP/s); 128 x 32768 x 32768 1.52, with w brought closer while it is not yet asked for.
benchmarks/notes/contractions.md has the steps between.

Where w is not finite, or so large or small that sums might leave float32, the epilogue computes the sums again: a
thread remembers the greatest magnitudes of its rows, and writes their scales as 1, or as infinite.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION, wgmma_swapped_in_pairs
from kernelwright.codegen.cuda.gemm.epilogue.subtile import Epilogue, subtile_columns
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import frame
from kernelwright.codegen.cuda.gemm.mainloop.sm90.core import Core
from kernelwright.codegen.cuda.gemm.points import wrapped
from kernelwright.codegen.cuda.gemm.precision.split_fp16 import PAIRS, first_pair
from kernelwright.codegen.cuda.gemm.precision.truncation_bias import LOSS, factor
from kernelwright.codegen.cuda.gemm.problem import SUBTILE_ROWS
from kernelwright.codegen.cuda.gemm.split_k import addition, addition_launch, parts_left
from kernelwright.codegen.cuda.gemm.swap_ab.convert_in_mainloop import values as values_of_converting
from kernelwright.codegen.cuda.gemm.swap_ab.problem import ROWS, SwapAB, right_strides
from kernelwright.codegen.cuda.gemm.swap_ab.text import (
    CONSTANTS,
    CONSUMERS,
    FILL_TABLE,
    FINISH,
    FUNCTIONS,
    IDLE,
    MAKE_UP,
    MERGE,
    PARTIAL,
    PREFETCH,
    PRODUCE,
    PRODUCERS,
    PROMOTE,
    SCALES,
    SCALES_OF_PARTS,
    TAKE_FOURS,
    TAKE_PAIRS,
    TAKE_SINGLY,
)
from kernelwright.codegen.cuda.host import alignment_check, ask_processors
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.template import fill
from kernelwright.codegen.terms import plus
from kernelwright.plan.expressions import loaded

#: Up to which power of two the greatest magnitude of a row of x or w leaves sums as they should be, and its inverse.
_FAST_EXPONENT = 80


def core(numbers: SwapAB, epilogue: Epilogue, name: str) -> Core:
    """``NAME_core`` and its launch, which reads ``left``, the packed x, or x itself, and the epilogue's parameters,
    and writes the scales of what it splits. Raises ValueError where a block has too little shared memory."""
    kernel, tiling = numbers.kernel, numbers.tiling
    width = subtile_columns(kernel, tiling)
    if width % ROWS:
        raise ValueError(f"{name}: subtiles of {width} columns divide a warpgroup's channels")
    subtiles = tiling.rows // SUBTILE_ROWS * (tiling.columns // width)
    subtile_floats = epilogue.floats + epilogue.column_floats
    layout, merging = wgmma_swapped_in_pairs(numbers.positions), 4 * subtiles * subtile_floats
    shared = numbers.shared_bytes(merging)
    group, channels_apart, columns_apart = right_strides(kernel)
    weight = f"in{loaded(kernel.right).buffer}"
    finishing = [p for p in epilogue.parameters if p[1] not in ("right_scales", weight)]
    taken = [("float*", "right_scales"), ("const float* __restrict__", weight)]
    if tiling.converts_left:
        taken += [("float*", "left_scales"), ("const float* __restrict__", f"in{loaded(kernel.left).buffer}")]
    else:
        taken.insert(0, ("const unsigned short* __restrict__", "left"))
    parameters = list(dict.fromkeys([*taken, *([("float* __restrict__", "partial")] if tiling.split_k > 1
                                               else finishing)]))
    by_channels, offset = channels_apart == 1, loaded(kernel.right).index.offset
    apart, ends, count = (columns_apart, kernel.in_channels, 4) if by_channels else \
        (channels_apart, kernel.out_channels, 2)
    together = not any(number % count for number in (apart, offset, ends, group))
    # Where not all of it is there, the output channel and the channel decide.
    ragged = [kernel.out_channels % tiling.columns > 0, kernel.in_channels % tiling.depth > 0]
    in_bounds = " && ".join(text for text, some in zip(
        (f"o{' + h' * (by_channels or not together)} < {kernel.out_channels}",
         f"c + 16 * k{' + e' * (not by_channels or not together)} < {kernel.in_channels}"),
        ragged, strict=True) if some)

    def passed(*values: str) -> str:
        return "".join(f", {value}" for value, some in zip(values, ragged, strict=True) if some)

    own = "lane % 4 * 4"
    begin = f"begin * {tiling.depth} + {own}"
    base = weight + (f" + {offset}LL" if offset else "") + (f" + group * {group}LL" if kernel.groups > 1 else "")
    zeros = ", ".join(["0.0f"] * count)
    values = {
        "WORKS": numbers.works, "PARTS_LEFT": parts_left(tiling.split_k),
        "PARTS": addition(name, tiling.split_k, numbers.sums_of_part) + MERGE if tiling.split_k > 1 else "",
        "RESULTS": PARTIAL if tiling.split_k > 1 else FINISH,
        "SCALES": SCALES_OF_PARTS if tiling.split_k > 1 else SCALES,
        "TAKE": (TAKE_FOURS if by_channels else TAKE_PAIRS) if together else TAKE_SINGLY,
        "IN_BOUNDS": f"{in_bounds} ? " if in_bounds else "", "APART": apart, "OWN_APART": columns_apart,
        "CHANNEL_APART": channels_apart,
        "WHERE": passed("int o", "int c"), "FIRST_STEP": passed("first", begin),
        "NEXT_STEP": passed("first", f"(step + 1) * {tiling.depth} + {own}"),
        "STEP": tiling.depth if by_channels else f"{tiling.depth * apart}LL",
        "ELSE": (f" : make_float{count}({zeros})" if together else " : 0.0f") if in_bounds else "",
        "WEIGHT": base + (f" + first * {apart}LL + {begin}" if by_channels else f" + ({begin}) * {apart}LL + first"),
        "FILL_TABLE": FILL_TABLE if epilogue.column_floats else "", "COLUMN_ARGUMENTS":
        "".join(f"{parameter}, " for _, parameter in epilogue.column_parameters), "FLOATS": epilogue.floats,
        "COLUMN_TABLE": ", " + plus("subtile", epilogue.floats) if epilogue.column_floats else "",
        "ROW_SCALE": f", {name}_row_scale(left_scales, thread, group, first_row)" if epilogue.row_scales else "",
        "NAME": name, "PARAMETERS": ",\n    ".join(map(" ".join, parameters)),
        "FINISH_PARAMETERS": ",\n    ".join(map(" ".join, epilogue.parameters)),
        "MERGE_PARAMETERS": "".join(f",\n    {' '.join(p)}" for p in epilogue.parameters),
        "ARGUMENTS": "".join(f"{parameter}, " for _, parameter in epilogue.parameters), "WRITTEN_ARGUMENTS": "".join(
            f"{f'kw_written({p})' if p == 'right_scales' else p}, " for _, p in epilogue.parameters),
        "ROWS": tiling.rows, "COLUMNS": tiling.columns, "POSITIONS": numbers.positions, "WORKERS": numbers.workers,
        "THREADS": numbers.threads, "CHUNKS": numbers.step_chunks, "TERMS": numbers.terms, "STAGES": tiling.stages,
        "STAGE_BYTES": numbers.stage_bytes, "DEPTHS": numbers.depths, "SPLIT": tiling.split_k, "TILES": numbers.tiles,
        "ROW_BLOCKS": numbers.blocks[0], "COLUMN_BLOCKS": numbers.blocks[1], "OUT_CHANNELS": kernel.out_channels,
        "SUBTILE": subtile_floats, "SUBTILE_COLUMNS": width, "SUBTILES": subtiles, "ROW_STRIDE": epilogue.row_stride,
        "COLUMN_STRIDE": epilogue.column_stride, "ALL_CHUNKS": numbers.chunks, "LEFT_TERM":
        numbers.left_term_bytes // 2, "ALL_ROWS": numbers.allocated_rows, "FEWER": numbers.producer_registers,
        "OWN_CHANNEL": layout.text(CHANNEL, row="thread / 4"), "OWN_PLACE": layout.text(POSITION, quad="thread % 4"),
        "BLOCK_PLACE": layout.text(POSITION, block="j % 8"), "PAIR_PLACE": layout.text(POSITION, pair="e % 2"),
        "HALF_CHANNEL": layout.text(CHANNEL, half="e / 2"),
        "MORE": f"kw_registers_{'more' if numbers.registers > numbers.launched_registers else 'fewer'}"
        f"<{numbers.registers}>();", "PAIRS": PAIRS, "FIRST_PAIR": first_pair(numbers.terms),
        "FAST_EXPONENT": _FAST_EXPONENT, "MAKE_UP": MAKE_UP if numbers.terms == 2 else "",
        # Of a step's products the low terms come first, so that each of high ones finds so much more of the sum.
        "LOST": f"{factor(LOSS * (tiling.depth / 16 + 1) / 2):.3e}"}
    # Left to themselves warpgroups multiply at one time, and split and add at one time.
    values |= {
        "TILE_NUMBER": ", tile_number = 0",
        "AWAIT_ORDER": f"        {frame.await_order('worker', 'tile_number')}\n        ++tile_number;\n"
                       "        __syncwarp();\n",
        "PASS_ORDER": f"\n        {frame.pass_order('(worker + 1) % WORKERS')}"} if numbers.in_order else \
        dict.fromkeys(("TILE_NUMBER", "AWAIT_ORDER", "PASS_ORDER"), "")
    across = tiling.columns // 32
    values |= {
        # Blocks that read w alone wait for memory: 128 x 32768 x 32768 1.59 ms for 1.69 (H100). Of several that share
        # it each would ask: 256 x 524288 x 256 0.93 for 0.90, 512 x 65536 x 512 0.37 for 0.33.
        "OTHERS": PREFETCH if numbers.blocks[0] == 1 else IDLE, "DEPTH": tiling.depth,
        "IN_CHANNELS": kernel.in_channels,
        "LINE_COLUMN": "line / 2" if by_channels else f"line % {across} * 32",
        "LINE_CHANNEL": "line % 2 * 32" if by_channels else f"line / {across}",
        "WEIGHT_OF_LINE": f"{base} + o * {columns_apart}LL + c * {channels_apart}LL"}
    left = values_of_converting(numbers) if tiling.converts_left else {
        "PRODUCE": PRODUCE, "PROMOTE": PROMOTE, "FILLERS": 1}
    barriers = [frame.Barriers("full", "STAGES", "@FILLERS@", "warps that bring x"),
                frame.Barriers("empty", "STAGES", "4 * WORKERS", "warps that multiply"),
                *[frame.ordered("WORKERS")] * numbers.in_order]
    values = frame.DEFAULTS | values | left | {
        "CONSTANTS": CONSTANTS, "PRODUCERS": PRODUCERS, "CONSUMERS": CONSUMERS, "NEXT_STAGE": frame.NEXT_STAGE,
        **frame.barrier_values(f"stages + {shared - 16 * tiling.stages - 8 * numbers.workers}", barriers,
                               "  const unsigned stages = kw_shared(shared);\n")}
    text = fill(FUNCTIONS + frame.KERNEL + "@PARTS@", values, spare=values)
    text = "\n".join(wrapped(text.split("\n")))
    support = epilogue.support | snippets_of(text) | {"tensor_core", "written", f"wgmma_f16_{numbers.positions}_own"} \
        | ({"mma_sync"} if tiling.converts_left else set())
    aligned = (f'if (reinterpret_cast<uintptr_t>({weight}) % {4 * count} != 0)\n'
               f'    return "{name}: {weight} must be aligned to {4 * count} bytes";',) * together
    if tiling.converts_left:
        aligned += ("\n  ".join(alignment_check(name, [f"in{loaded(kernel.left).buffer}"])),)
    launches = _launches(numbers, name, parameters, epilogue, shared, merging)
    return Core(text, (*aligned, *launches), support, numbers.threads, shared)


def _launches(numbers: SwapAB, name: str, parameters: list[tuple[str, str]], epilogue: Epilogue, shared: int,
              merging: int) -> tuple[str, ...]:
    """The host's lines: a block for each multiprocessor, where there are so many parts of tiles."""
    tiling, split, works = numbers.tiling, numbers.tiling.split_k, numbers.works
    passed = ", ".join("sums" if p == "partial" else p for _, p in parameters)
    lines = [f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, cudaFuncAttributeMaxDynamicSharedMemorySize, '
             f"{shared}));"]
    if split > 1:
        sides = [*["left"] * tiling.converts_left, "right"]
        lines += [f'KW_CHECK("{name}", cudaMemsetAsync({side}_scales, 0, {numbers.places[f"{side}_scales"][1]}LL, '
                  "stream));" for side in sides]
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
