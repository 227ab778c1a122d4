"""CUDA text of a contraction's core on mma.sync (compute capability 8.0 and later).

A block computes ``tiling.rows`` x ``tiling.columns`` sums, a warp a rectangle of them (`warps`), over steps of one tap
and ``tiling.depth`` channels. cp.async keeps ``tiling.stages`` steps under way; a run of x is copied once for all of
its taps. In shared memory ([term][chunk][row][8]) a matrix of ldmatrix is 128 contiguous bytes wherever it starts, so
shifted rows cost nothing and no bank is asked twice. Of a pair of taps (`tap_runs`) lanes 16 to 31, which name
the rows of x's second chunk, name those of the second tap.

Where ``tiling.promote`` is not 0, products of 16 or 32 channels (`chain`) are added up in the tensor cores, from zero,
and then added to the sums in float32: at least as often as the tiling says, as it costs no registers here.

A block has one tile: where two run on a multiprocessor one multiplies while the other finishes, without the barriers of
persistent blocks. With ``tiling.converts_right`` weights come as they lie in memory (`mainloop.sm80.layout` has the
arithmetic), and the block that splits them finds out where they are not finite.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import CHANNEL, POSITION, mma_sync
from kernelwright.codegen.cuda.gemm.epilogue.subtile import subtile_columns
from kernelwright.codegen.cuda.gemm.mainloop.sm80 import convert_text, text
from kernelwright.codegen.cuda.gemm.mainloop.sm80.layout import (
    BLOCK_BYTES,
    STATIC_BYTES,
    chain,
    least_blocks,
    left_stages,
    shared_bytes,
    sums_per_thread,
    tilings_mma,
    warps,
    weight_strides,
)
from kernelwright.codegen.cuda.gemm.mainloop.sm90.core import Core
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import wrapped
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.template import fill, fill_some
from kernelwright.plan.expressions import loaded

if TYPE_CHECKING:
    from kernelwright.codegen.cuda.gemm.epilogue.subtile import Epilogue

__all__ = ["core", "tilings_mma"]

#: Rows of sums of the blocks that run at the same time and share columns of w (a band of row blocks).
_BAND_ROWS = 2048


def core(geometry: Geometry, epilogue: Epilogue, name: str) -> Core:
    """The core for ``tiling.core == "mma"``: ``NAME_core`` and its launch.

    The launch reads ``left`` and ``right``, the packed operands, and the epilogue's parameters; with
    ``tiling.converts_right`` the right operand itself and no ``right``, and it writes ``right_scales``. Raises
    ValueError for a tiling that no arrangement of warps fits, or that takes more shared memory than a block has, for a
    right operand that cannot be converted in the mainloop, and where the grid would exceed 2**31 - 1 blocks.
    """
    kernel, tiling = geometry.kernel, geometry.tiling
    down, across = warps(tiling)
    rows, columns = tiling.rows // down, tiling.columns // across
    threads, shared = 32 * down * across, shared_bytes(geometry, epilogue.floats, epilogue.column_floats)
    blocks = geometry.blocks[0] * geometry.blocks[1] * kernel.groups * len(geometry.classes)
    if shared > BLOCK_BYTES - STATIC_BYTES:
        raise ValueError(f"{name}: {tiling} takes {shared} bytes of shared memory")
    if blocks >= 2**31:
        raise ValueError(f"{name}: {blocks} blocks exceed a grid")
    subtile = subtile_columns(kernel, tiling)
    parameters = [("const unsigned short* __restrict__", "left"), ("const unsigned short* __restrict__", "right"),
                  *epilogue.parameters]
    checks, support = [], epilogue.support | {"mma_sync"}
    if tiling.converts_right:
        weight = f"in{loaded(kernel.right).buffer}"
        # The block writes scales itself. The epilogue may read the operand, too, to compute sums again.
        own = {"left": 0, "right_scales": 1, weight: 2}
        parameters = [parameters[0], ("float*", "right_scales"), ("const float* __restrict__", weight),
                      *(p for p in epilogue.parameters if p[1] not in own)]
        checks = [f'if (reinterpret_cast<uintptr_t>({weight}) % 16 != 0)\n'
                  f'    return "{name}: {weight} must be aligned to 16 bytes";']
        support |= {"kw_float16", "written"}
    # Where registers are short, sums would move between registers from one iteration to the next.
    whole = not tiling.promote or sums_per_thread(tiling) <= 64
    values = {
        **_parts(geometry, epilogue, name), **_chunks(geometry),
        "PRODUCTS": _products(geometry), "TAPS": _taps(geometry, name),
        "NAME": name, "THREADS": threads, "LEAST_BLOCKS": least_blocks(tiling),
        "PARAMETERS": ",\n    ".join(" ".join(p) for p in parameters),
        "ARGUMENTS": ", ".join([*(parameter for _, parameter in epilogue.parameters), ""]).rstrip(),
        "ROWS": tiling.rows, "COLUMNS": tiling.columns, "CHUNKS": tiling.depth // CHUNK, "TERMS": geometry.terms,
        "RUN_ROWS": geometry.run_rows, "STAGES": tiling.stages, "LEFT_STAGES": left_stages(geometry),
        "WARPS": down * across, "ACROSS": across, "WARP_ROWS": rows, "WARP_COLUMNS": columns,
        "CHAIN": chain(geometry), "UNROLL": max(1, tiling.depth // 16) if whole else 1,
        "DEPTHS": geometry.depths, "ALL_CHUNKS": geometry.chunks, "ALL_ROWS": geometry.allocated_rows,
        "LEFT_TERM": geometry.left_term_bytes // 2, "RIGHT_TERM": geometry.right_term_bytes // 2,
        "PHASES": prod(geometry.input_phases), "WINDOW": geometry.entries,
        "ROW_BLOCKS": geometry.blocks[0], "COLUMN_BLOCKS": geometry.blocks[1], "CLASSES": len(geometry.classes),
        "BAND": min(geometry.blocks[0], _BAND_ROWS // tiling.rows),
        "SUBTILE_COLUMNS": subtile, "PARTS": tiling.columns // subtile, "ROW_STRIDE": epilogue.row_stride,
        "COLUMN_STRIDE": epilogue.column_stride, "SUBTILE": epilogue.floats,
        "COLUMN_ARGUMENTS": "".join(f"{parameter}, " for _, parameter in epilogue.column_parameters),
    }
    definitions = fill(text.CORE, values, spare=values)
    launches = (
        *checks,
        f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, cudaFuncAttributeMaxDynamicSharedMemorySize,\n'
        f"                                     {shared}));",
        f'KW_LAUNCH("{name}", {name}_core, {blocks}, {threads}, {shared}, stream, '
        f'{", ".join(parameter for _, parameter in parameters)});')
    return Core("\n".join(wrapped(definitions.split("\n"))), launches, support, threads, shared)


def _parts(geometry: Geometry, epilogue: Epilogue, name: str) -> dict[str, str]:
    """The parts of the text that differ between packed and converted weights, and between kinds of sums and
    subtiles."""
    kernel, tiling = geometry.kernel, geometry.tiling
    pairs = epilogue.column_stride == 1 and epilogue.row_stride % 2 == 0
    down, across = warps(tiling)
    layout = mma_sync(tiling.rows // down, tiling.columns // across, down, across)
    neighbour = {} if pairs else {"pair": "e % 2"}
    table = epilogue.column_floats > 0
    result = {
        "TABLE": " subtiles + SUBTILES * SUBTILE," if table else "",
        "ROW_SCALE": f" {name}_row_scale(left_scales, threadIdx.x % 128, place.group, first_row),"
        if epilogue.row_scales else "",
        "FILL": text.FILL_TABLE if table and not tiling.converts_right else "",
        "LANE_ROW": layout.text(POSITION, row="lane / 4"), "LANE_COLUMN": layout.text(CHANNEL, quad="lane % 4"),
        "SUM_ROW": layout.text(POSITION, tile_row="i", half="e / 2"),
        "SUM_COLUMN": layout.text(CHANNEL, tile_column="j", **neighbour),
        "STAGE": text.STAGE_PAIRS if pairs else text.STAGE_SINGLY,
        "PART": "float part[TILE_ROWS][4] = {};" if tiling.promote else "float(&part)[TILE_ROWS][4] = sums[j + half];",
    }
    if not tiling.converts_right:
        return result | {
            "ALL_COLUMNS": f", ALL_COLUMNS = {geometry.allocated_columns}", "RIGHT_PLACES": "",
            "COPY_RIGHT": text.PAIRED_COPY if geometry.two_taps else text.PACKED_COPY,
            "STEP": text.PACKED_STEP, "SCALES": "", "WRITTEN": "", "AFTER": "",
            "PROMOTE": text.PROMOTE if tiling.promote else ""}
    group, channels_apart, columns_apart = weight_strides(kernel)
    by_channels, offset = channels_apart == 1, loaded(kernel.right).index.offset
    return result | {
        "ALL_COLUMNS": "", "RIGHT_PLACES": convert_text.CONVERT_PLACES,
        "COPY_RIGHT": convert_text.CONVERT_COPY_CHANNELS if by_channels else convert_text.CONVERT_COPY_COLUMNS,
        "STEP": fill_some(convert_text.CONVERT_STEP, {
            "READ": convert_text.CONVERT_READ_CHANNELS if by_channels else convert_text.CONVERT_READ_COLUMNS}),
        "AFTER": convert_text.CONVERT_AFTER, "SCALES": convert_text.CONVERT_SCALES,
        "PROMOTE": convert_text.CONVERT_PROMOTE,
        "WRITTEN": convert_text.CONVERT_WRITTEN + text.FILL_CONVERT_TABLE * table,
        "WEIGHT_STRIDE": str(columns_apart if by_channels else channels_apart),
        "WEIGHT": f"in{loaded(kernel.right).buffer}" + (f" + {offset}LL" if offset else "")
        + (f" + place.group * {group}LL" if kernel.groups > 1 else ""),
        "CHANNELS": str(kernel.in_channels), "OUT_CHANNELS": str(kernel.out_channels)}


def _chunks(geometry: Geometry) -> dict[str, object]:
    """The parts of the text that differ between taps and pairs of them."""
    if not geometry.two_taps:
        return {"RIGHT_LINES": "LINES", "TAP_CHUNKS": "CHUNKS", "TAP_ROWS": "STAGES", "TAP_ROW": "stage",
                "NOTE_ROWS": text.NOTE_ROWS, "SECOND_CHUNK": "lane / 16 * RUN_ROWS + "}
    return {"RIGHT_LINES": "2 * LINES", "TAP_CHUNKS": 2, "TAP_ROWS": "2 * STAGES", "TAP_ROW": "stage * 2 + lane / 16",
            "NOTE_ROWS": text.NOTE_PAIRED_ROWS, "SECOND_CHUNK": ""}


def _taps(geometry: Geometry, name: str) -> str:
    """The table of taps by class, and where each class's begin."""
    rows, firsts = [], [0]
    for group in geometry.classes:
        for run in group.runs:
            for number, (beyond, entry) in enumerate(run.taps):
                second = (run.reaches[number], run.seconds[number][1]) if run.seconds else ()
                numbers = run.phase, run.shift, beyond, entry, int(number == 0), *second
                rows.append("{" + ", ".join(map(str, numbers)) + "}")
        firsts.append(len(rows))
    kind = "long long" if geometry.allocated_rows >= 2**31 else "int"
    width = 7 if geometry.two_taps else 5
    lines = [", ".join(rows[i:i + 6]) for i in range(0, len(rows), 6)] or ["{" + ", ".join(["0"] * width) + "}"]
    body = ",\n  ".join(lines)
    of_two_taps = """ Taps are in pairs: the last two numbers are
// the second one's rows and entry, or without one the first one's rows and an entry of zeros.""" * geometry.two_taps
    return f"""// Taps by class of output positions: input phase, first row of the tap's run beyond the block's, rows
// beyond that, entry of the window, and whether a run begins.{of_two_taps}
static __device__ const {kind} {name}_taps[][{width}] = {{
  {body}}};
static __device__ const int {name}_first_tap[] = {{{", ".join(map(str, firsts))}}};"""


def _products(geometry: Geometry) -> str:
    """The products of a chain, small ones first."""
    instruction = f"kw_mma_{geometry.element}"
    # The weight's low term times x's high one and the reverse, both terms' high parts last.
    pairs = ((1, 0), (0, 1), (0, 0)) if geometry.terms == 2 else ((0, 0),)
    lines = []
    for left, right in pairs:
        lines.append(f"""\
#pragma unroll
          for (int k = 0; k < CHAIN; ++k)
#pragma unroll
            for (int i = 0; i < TILE_ROWS; ++i)
              {instruction}(part[i], a[{left}][k][i], b[{right}][k][2 * half], b[{right}][k][2 * half + 1]);""")
    return "\n".join(lines)
