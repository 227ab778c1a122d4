"""The row-buffered implicit GEMM: convolutions on wgmma whose output channels are the rows of products.

`row_buffered.problem` has the arithmetic. Blocks stay on their multiprocessor, with all of w in shared memory,
and go down one strip after the other. One warpgroup, the producers, reads x as it lies in memory, once for each line,
rounds or splits it and writes it to a ring of lines; the others multiply what a window spans there, and finish their
sums in registers (`row_buffered.epilogue`). A barrier of each slot says that a line is there, one of each work tile
that nobody needs its lines for it any more.

What the other core on wgmma (`mainloop.sm90.core`) does for the same sums: x is packed, or read once for each line of
the window; sums pass through shared memory, so that neighbouring threads store neighbouring positions; rows between
lines are computed and dropped. By count of instructions that a scheduler issues for 128 positions and 64 channels, of 8
channels in fp16x3 with a hardswish: 2,400 there, 920 here (written by hand).

Measured by hand, before it was generated (one H200, milliseconds, without the search for scales;
benchmarks/notes/contractions.md has what is generated):

    128, 8 to 64 channels, 3x3, 126 x 126, fp16x3, hardswish        0.207    (other core, all: 0.259)
    128, 64 to 128 channels, 3x3, 126 x 126, fp16, hardswish        0.574    (0.73)
    the same, moments alone                                         0.437
    128, 8 to 64 channels, 3x3, 254 x 254, fp16x3, mish             0.896    (1.26)
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.mainloop.sm90 import frame
from kernelwright.codegen.cuda.gemm.mainloop.sm90.core import Core
from kernelwright.codegen.cuda.gemm.operands.convert_in_mainloop import SECOND_RUN
from kernelwright.codegen.cuda.gemm.points import guessed, wrapped
from kernelwright.codegen.cuda.gemm.precision.split_fp16 import PAIRS, first_pair
from kernelwright.codegen.cuda.gemm.row_buffered import row_ring
from kernelwright.codegen.cuda.gemm.row_buffered.epilogue import Finish, finish
from kernelwright.codegen.cuda.gemm.row_buffered.problem import RowBuffered
from kernelwright.codegen.cuda.gemm.row_buffered.suitability import SECTOR
from kernelwright.codegen.cuda.gemm.row_buffered.text import (
    CONSTANTS,
    CONSUMERS,
    FOLDED,
    MULTIPLY,
    PRODUCERS,
    START,
    STEP,
    TABLE,
)
from kernelwright.codegen.cuda.gemm.row_buffered.work_tile import ROWS
from kernelwright.codegen.cuda.host import ask_processors
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.template import fill, fill_some
from kernelwright.plan.contraction.record import Contraction


def core(numbers: RowBuffered, name: str, original: Contraction, second_run: tuple[str, ...]) -> tuple[Core, Finish]:
    """``NAME_core`` and its launch, which reads ``right``, the packed w, and scales.

    original: the kernel before taps were folded. second_run: the lines between a first run and a second, where scales
    are guesses.
    """
    tiling, ending = numbers.tiling, finish(numbers, name, original)
    threads, guess = 128 * (tiling.pingpong + 1), guessed(numbers, "left")
    scales = "const float* __restrict__", "left_scales"
    parameters = [("const unsigned short* __restrict__", "right"),
                  *dict.fromkeys([*row_ring.inputs(numbers), *ending.parameters, scales]),
                  *[("unsigned* __restrict__", "marks"), ("bool", "second_run")] * guess]
    products = numbers.products
    values = {
        "NAME": name, "THREADS": threads, "PARAMETERS": ",\n    ".join(" ".join(p) for p in parameters),
        "OF_W": ", ".join(f"{{{', '.join(_places(numbers, half) for half in p.halves)}}}" for p in products),
        "COLUMNS": tiling.columns, "LINES_OF_W": numbers.stacked * numbers.interleaved,
        "WHICH": "row / 16 * 8 / COLUMNS * 2 + row / 8 % 2" if numbers.interleaved > 1 else "row / COLUMNS",
        "COLUMN": "row / 16 * 8 % COLUMNS + row % 8" if numbers.interleaved > 1 else "row % COLUMNS",
        "POSITIONS": tiling.rows, "SEGMENTS": numbers.segments // numbers.across, "BLOCKS": numbers.all_blocks,
        "WARPGROUPS": tiling.pingpong, "SLOTS": tiling.stages, "TERM_ROWS": numbers.term_rows,
        "TERMS": numbers.terms, "PRODUCTS": len(products), "SPAN": numbers.line_span,
        "STRIDE": numbers.line_stride, "STRIPS": numbers.strips, "ACROSS": numbers.across,
        "PARTS": numbers.parts, "OWN_POSITION": "segment * POSITIONS" if numbers.across == 1 else
        "strip / PARTS % ACROSS * POSITIONS",
        "EACH": numbers.strip_lines, "LINES": numbers.lines, "POOL_LINES": numbers.kernel.pool_lines,
        "WINDOW": numbers.window_lines, "FINISHED": numbers.finished,
        "RIGHT_TERM": numbers.right_term_bytes // 16, "CHUNKS": numbers.chunks,
        "ALL_COLUMNS": numbers.allocated_columns,
        "SECOND_RUN": fill_some(SECOND_RUN, {"SCALES": numbers.kernel.entries, "THREADS": threads})
        + "\n" if guess else "",
        **row_ring.values(numbers, name), "BEGIN_PARTIALS": ending.begin, "END_PARTIALS": ending.end,
        "ARGUMENTS": "".join(f"{p}, " for _, p in ending.parameters if p != "position_partials"),
        "PARTIALS": "partials, " * bool(numbers.kernel.position_reductions), "POOLED": ending.pooled,
        "STEP": FOLDED if numbers.kernel.reductions else STEP, "BESIDE": numbers.channel_blocks,
        "RESULTS": numbers.results_bytes // (8 * tiling.pingpong),
        "RESULTS_BEGIN": _RESULTS * bool(numbers.kernel.reductions) + _ENDS * tiling.sector_aligned,
        "ENDS": numbers.ends, "END_FLOATS": SECTOR * ROWS,
        "OWN_LINE": _own_line(numbers),
        "CONSTANTS": CONSTANTS, "START": START, "PRODUCERS": PRODUCERS, "CONSUMERS": CONSUMERS, **_barriers(numbers),
        "AWAIT_ORDER": frame.await_order("warpgroup", "(tiles_before + work_tile) / WARPGROUPS"),
        # With a remainder ptxas spills in windows of two lines, of four consumer warpgroups.
        "PASS_ORDER": frame.pass_order("warpgroup + 1 == WARPGROUPS ? 0 : warpgroup + 1", "WARPGROUPS > 1 && part == 0"
                                       if numbers.kernel.reductions else "WARPGROUPS > 1 && pool_line == 0"),
        "PRODUCT": "kw_wgmma_f16", "PAIRS": PAIRS, "FIRST_PAIR": first_pair(numbers.terms),
        "LINE": ", ".join(str(p.line) for p in products),
        "ROW": ", ".join(str(p.row + p.plane * numbers.chunks * numbers.line_rows) for p in products),
        "APART": ", ".join(str(p.apart) for p in products)}
    texts = [row_ring.definitions(numbers, name), ending.definitions, MULTIPLY, TABLE + frame.KERNEL]
    text = fill("\n".join(texts), frame.DEFAULTS | values, spare=frame.DEFAULTS | values)
    text = "\n".join(wrapped(text.split("\n")))
    support = snippets_of(text) | {"tensor_core", f"wgmma_f16_{tiling.rows}"}
    launches = _launches(numbers, name, threads, [p for _, p in parameters], second_run)
    return Core(text, launches, support, threads, numbers.shared_bytes), ending


def _barriers(numbers: RowBuffered) -> dict[str, object]:
    """The barriers of a block, behind w and the ring."""
    found = [frame.Barriers("full", "SLOTS", "4", "the producers' warps"),
             frame.Barriers("finished", "FINISHED", "4", "a warpgroup's warps"), frame.ordered("WARPGROUPS")]
    if numbers.tiling.sector_aligned:
        found.append(frame.Barriers("ended", f"{numbers.ends}", "4", "a warpgroup's warps",
                                    at=f"order + 8 * WARPGROUPS + 16 * SLOTS + {numbers.ends} * 4 * {SECTOR * ROWS}"))
    return frame.barrier_values("ring + SLOTS * TERMS * TERM_ROWS * 16", found,
                                "  const unsigned weights = kw_shared(shared), ring = weights + W_ROWS * 16;\n")


def _places(numbers: RowBuffered, half: tuple[int, tuple[int | None, ...]]) -> str:
    """Where a half of a product has its w, of each of the stacked lines and phases: an entry of the window and a chunk,
    as one number, -1 where there is none."""
    chunk, entries = half
    return f"{{{', '.join('-1' if e is None else str(e * numbers.chunks + chunk) for e in entries)}}}"


def _own_line(numbers: RowBuffered) -> str:
    """The first line of the output of a unit, and what its windows keep."""
    each = numbers.kernel.pool_lines * numbers.stacked
    line = f"(begin + line) * {each}" if each > 1 else "begin + line"
    ends = ", ends, ended, tiles_before + work_tile, work_tile >= BESIDE, work_tile + BESIDE < count * WORK_TILES" \
        * numbers.tiling.sector_aligned
    return line + " + pool_line" * (numbers.kernel.pool_lines > 1) + ", pooled" * bool(numbers.kernel.pools) + ends


#: Where consumer warpgroups meet, in shared memory behind all else.
_RESULTS = """
    float* const results = reinterpret_cast<float*>(shared + (order - weights) + 8 * WARPGROUPS + 16 * SLOTS);"""

#: Ends of lines, and barriers that say that they are there, in shared memory behind all else.
_ENDS = """
    const unsigned ended = order + 8 * WARPGROUPS + 16 * SLOTS + @ENDS@ * 4 * @END_FLOATS@;
    float* const ends = reinterpret_cast<float*>(shared + (order - weights) + 8 * WARPGROUPS + 16 * SLOTS);"""


def _launches(numbers: RowBuffered, name: str, threads: int, parameters: list[str], second_run: tuple[str, ...]
              ) -> tuple[str, ...]:
    """The host's lines: a block for each multiprocessor, where there are so many strips."""
    passed = ["reinterpret_cast<unsigned*>(left_scales)" if p == "marks" else p for p in parameters
              if p != "second_run"]
    shared = numbers.shared_bytes

    def launch(*more: str) -> str:
        return f'KW_LAUNCH("{name}", {name}_core, processors < {numbers.strips} ? processors : {numbers.strips}, ' \
            f"{threads}, {shared}, stream, {', '.join([*passed, *more])});"

    lines = (f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, cudaFuncAttributeMaxDynamicSharedMemorySize, '
             f"{shared}));", *ask_processors(name))
    if not second_run:
        return *lines, launch(*["false"] * guessed(numbers, "left"))
    return *lines, launch("false"), *second_run, launch("true")
