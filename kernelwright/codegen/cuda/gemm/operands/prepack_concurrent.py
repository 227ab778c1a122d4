"""The warps of a core on wgmma that pack x while the others multiply what is packed (``Tiling.packs_concurrently``).

A kernel that packs x before the core moves 4 D bytes from memory and 2 T D to it for each position of D channels in T
terms, while tensor cores idle; the core moves little while it multiplies. So one or two warpgroups of each block pack:
load chunks of 32 rows and the chunks of a part, in the order in which tiles need them, each taken by whichever warp of
the device is free. Nobody who packs waits for anyone, so there is always one who goes on, whatever blocks the device
has begun. Who brings a step waits until the load chunks that hold its rows are marked. A warp asks for its next load
chunk before it waits for its stores and marks the last one, so that both are on their way at a time.

Of 128 x 64 x 126 x 126 positions, padded by 1, 128 output channels, 3 x 3, fp16, an H200, in ms: packing and core
before, and this (0.62 was predicted where all is stored: 1.85 GB at 3.7 TB/s, and tensor cores busy for two thirds)::

    a mean stored               0.221 + 0.458    0.503
    pools of two stored         0.222 + 0.481    0.652
    all stored                  0.222 + 0.542    0.790
    64 x 64 x 256 x 256 to 64   0.422 + 0.646    0.955
    the same, pools of two      0.440 + 0.607    0.860

What was not predicted: where much is stored, memory is busy with that (sectors that two stores share,
`epilogue.store_overlapped`), and packing beside it gains little or nothing; measurement chooses. What did not help:
reads of marks that do not empty the first-level cache (0.801 for 0.790), and packers that stay close to the producers,
so that what they write is still in the second-level cache (six waves of tiles ahead: 0.799, 0.963 and 0.863 in the last
rows). The first version, with four chunks on their way and a wait for stores before more was asked for, took 0.887 in
the third row. Neighbours in the output of a transposed convolution: 1.13 ms, 0.96 with packing before.

Scales are found and mended as where x is not packed at all (`operands.convert_in_mainloop`): where a guess was wrong
the core runs again, and packs all of x again. Marks of the second run are 2, and it has a counter of its own.
"""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.gemm.mainloop.sm90 import text as parts
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.operands import convert_in_mainloop as convert
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import device_function, guessed, type_of_rows
from kernelwright.codegen.cuda.gemm.problem import LOAD_CHUNK_ROWS, Geometry
from kernelwright.codegen.source import part_beside
from kernelwright.codegen.terms import modulo, over, plus, times

PACK = part_beside(__file__, "prepack_concurrent.cuh")

AWAIT = """
          @NAME@_await(left_ready, group, static_cast<@ROW@>(row_block) * APART + @NAME@_shift[tap_group], rows,
                       depth * CHUNKS / @PART@, @MARK@, lane);"""


def values(layout: Layout) -> dict[str, object]:
    """What stands for names in the text. Raises ValueError where load chunks are too many to be counted."""
    geometry = layout.geometry
    if geometry.left_load_chunks >= 2**31:
        raise ValueError(f"{geometry.left_load_chunks} load_chunks of x")
    second_run, batch = guessed(geometry, "left"), layout.packing[1]
    return {
        **convert.values(layout), "AWAIT_LEFT": AWAIT, "LOAD_CHUNKS": f"{geometry.left_load_chunks}u",
        "PARTS": geometry.left_parts,
        "ROW_TILES": _row_tiles(geometry), "PART": geometry.part_chunks, "LOAD_CHUNK_ROWS": LOAD_CHUNK_ROWS,
        "PACK_BATCH": batch, "PHASES": prod(geometry.input_phases),
        "MARK": "second_run ? 2u : 1u" if second_run else "1u", "TAKEN_OF": " + second_run" * second_run,
        "ASKED": "".join(f"{argument}, " for _, argument in convert.parameters(geometry)),
        "THERE": " && ".join([*["row < ALL_ROWS"] * (geometry.allocated_rows % LOAD_CHUNK_ROWS > 0),
                              *[f"chunk + b < {geometry.part_chunks}"] * (geometry.part_chunks % batch > 0),
                              *["first + b < ALL_CHUNKS"] * (geometry.chunks % geometry.part_chunks > 0)]) or "true",
        "PACK_REGISTERS": parts.registers(layout, layout.pack_registers)}


def definitions(layout: Layout, name: str) -> str:
    """``NAME_ask``: asks for a part of a load chunk. ``NAME_await``: waits for the rows of a step."""
    geometry = layout.geometry
    kind, tiles, parts = type_of_rows(geometry.allocated_rows), _row_tiles(geometry), geometry.left_parts
    take = "".join(f"{argument}, " for _, argument in convert.parameters(geometry) if argument != "left_scales")
    first = times(modulo("load_chunk", parts, "u"), geometry.part_chunks)
    tile = modulo(over("load_chunk", parts, "u"), tiles, "u")
    ask = [f"if (load_chunk >= {geometry.left_load_chunks}u) return;",
           f"const int group = {over('load_chunk', parts * tiles, 'u')}, first = {plus(first, 'chunk')};",
           f"const {kind} row = static_cast<{kind}>({tile}) * {LOAD_CHUNK_ROWS} + lane;",
           f"if (chunk == 0) {name}_find(known, {'left_scales, ' * geometry.scaled}row, group, phase);",
           "#pragma unroll",
           f"for (int b = 0; b < {layout.packing[1]}; ++b)",
           f"  {name}_take({take}known, x[b], group, (first + b) * {CHUNK});"]
    parameters = [*(" ".join(parameter) for parameter in convert.parameters(geometry)), f"{name}_row& known",
                  f"float (&x)[{layout.packing[1]}][{CHUNK}]", "unsigned load_chunk", "int phase", "int chunk",
                  "int lane"]
    load_chunk = f"(static_cast<long long>(group) * {tiles} + tile)"
    wait = [f"const {kind} tile = first / {LOAD_CHUNK_ROWS} + lane;",
            f"if (tile * {LOAD_CHUNK_ROWS} < first + rows)",
            f"  kw_await({plus('left_ready + 2', times(load_chunk, parts), 'part')}, mark);",
            "__syncwarp();", "kw_copies_see_global();"]
    waits = ["const unsigned* left_ready", "int group", f"{kind} first", "int rows", "int part", "unsigned mark",
             "int lane"]
    functions: list[tuple[str, str, list[str], list[str]]] = [
        ("Asks for chunks of an load_chunk, from `chunk` of its part on.", f"{name}_ask", parameters, ask),
        ("Waits until rows of x are packed, of one part of their chunks. All lanes of a warp call it.",
         f"{name}_await", waits, wait)]
    return "\n".join(device_function(comment, "void", function, taken, body)
                     for comment, function, taken, body in functions)


def _row_tiles(geometry: Geometry) -> int:
    return -(-geometry.allocated_rows // LOAD_CHUNK_ROWS)
