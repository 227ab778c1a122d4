"""CUDA text of a contraction's core on wgmma (compute capability 9.0).

Blocks stay on their multiprocessor and take tile after tile. One warpgroup of each, the producers, brings steps into
shared memory by bulk copies, as many ahead as there are stages; the others multiply them and hand finished sums to the
epilogue. Barriers with phases say of each stage that it is full, and that it is empty again. The blocks of a cluster
work on neighbouring rows and the same columns: each brings its share of w to all of them.

A copy takes its warp some 150 cycles, whatever its size up to 4 KB (the probe of copies in benchmarks/contractions.py,
H200), and what is around the copies of a step 460 (fitted to two tilings, and right for two others). So w lies in
memory tile by tile, and x where a tile reads no other rows: their copies are long and few; and a step is brought by one
warp, the next step by the next.

What a step costs, for tiles of R x C sums, D channels, T terms (2 for fp16x3, with 3 products, else 1 and 1):

    tensor cores    products * R * C * D / 2048 cycles (H200: 4096 operations a cycle and multiprocessor)
    from L2         2 * T * D * (R + C / cluster) bytes, of which 28 are taken to come in a cycle
    shared memory   (64 + C) * 32 bytes for each product of 64 x C x 16, and what is brought: 128 in a cycle

    cycles of a step                tensor    L2     shared   registers of sums   predicted (core alone)
    128x128x32 fp16x3                  768   1170       832       64 + 64         4096^3: 188 TFLOP/s
    the same, clusters of 2            768    878       832       64 + 64         4096^3: 242 TFLOP/s
    128x192x32 fp16x3, clusters       1152   1024      1088       96 + 96         4096^3: 247 TFLOP/s
    128x256x64 fp16, clusters         1024   1170      1024       128             4096^3: 689 TFLOP/s
    128x128x32 fp16, 3 taps, ping-pong 768    742       779       128                 see below

Three products have a peak of 330 TFLOP/s, one of 990. A convolution 128, 64, 128, 126, 3 in fp16 has 16384 tiles of
4608 cycles: 0.33 ms at 1.75 GHz, beside 1.3 GB of memory traffic, 0.31 ms. With two consumer warpgroups they overlap:
0.46 ms, 658 TFLOP/s predicted; without, 0.71 ms. (Measured: benchmarks/notes/contractions.md, "Predicted and
measured".)

Truncation: tensor cores cut what they add to the lowest bit of the sum. So sums are added up in float32 registers every
``promote`` steps, and within a step the small products (low times high terms) come before the large ones. How products
run on while that is done: `mainloop.sm90.accumulation_intervals`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda.gemm.epilogue.reduce_positions_in_registers import RESULTS_IN_REGISTERS
from kernelwright.codegen.cuda.gemm.epilogue.subtile import Epilogue
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import accumulate as sums
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import frame
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import output_parity as phases
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import results_text as results
from kernelwright.codegen.cuda.gemm.mainloop.sm90 import text as parts
from kernelwright.codegen.cuda.gemm.mainloop.sm90.steps import BLOCK_BYTES, TapGroup
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.operands import convert_in_mainloop as convert
from kernelwright.codegen.cuda.gemm.operands import prepack_concurrent as ahead
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import guessed, wrapped
from kernelwright.codegen.cuda.gemm.precision.split_fp16 import PAIRS, first_pair
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.gemm.split_k import addition, addition_launch, parts_left
from kernelwright.codegen.cuda.gemm.tiling import Tiling
from kernelwright.codegen.cuda.host import ask_processors, launch_of_clusters
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.template import fill, fill_some
from kernelwright.codegen.terms import plus, times

#: Rows of a band: tiles go down a band of row blocks before they move on to the next columns.
_BAND_ROWS = 1024
#: Where the leading offset stands in a descriptor.
_LEADING = 1 << 16
#: Dynamic shared memory that a kernel's blocks have without being given more.
_UNASKED_BYTES = 48 * 1024


@dataclass(frozen=True, slots=True)
class Core:
    """A core's device text, the host lines that launch it, the snippets it uses, and its demands of a block."""

    definitions: str
    launches: tuple[str, ...]
    support: frozenset[str]
    threads: int
    shared_bytes: int


def core(geometry: Geometry, epilogue: Epilogue, name: str, second_run: tuple[str, ...] = ()) -> Core:
    """The core for ``tiling.core == "wgmma"``: ``NAME_core`` and its launch.

    The launch reads ``left`` and ``right``, the packed operands, and the epilogue's parameters. ``second_run``: the
    lines between a first run and a second, where x is not packed and its scales are guesses. Raises ValueError for a
    tiling that does not fit a block.
    """
    kernel, tiling = geometry.kernel, geometry.tiling
    subtile_floats = epilogue.floats + epilogue.column_floats
    layout = Layout(geometry, subtile_floats if tiling.split_k == 1 else 0)
    if tiling.split_k > 1 and 4 * subtile_floats > BLOCK_BYTES:
        raise ValueError(f"{name}: {4 * subtile_floats} bytes of a subtile do not fit a block")
    row_blocks = -(-geometry.blocks[0] // tiling.cluster)
    tiles = kernel.groups * len(geometry.classes) * row_blocks * geometry.blocks[1] * tiling.split_k
    kind = "bf16" if geometry.element == "bfloat16" else "f16"
    cluster, promoted = tiling.cluster > 1, layout.parts > 0
    who, how = parts.FREE_CLUSTER if cluster else parts.FREE_ONE
    values = {
        "NAME": name, "TABLES": _tables(layout, name), "THREADS": layout.threads, "RESIDENT": layout.blocks,
        "PARAMETERS": "@LEFT_PARAMETER@const unsigned short* __restrict__ right" + "".join(
            ",\n    " + " ".join(parameter) for parameter in _parameters(geometry, epilogue)),
        "CONSTANTS": parts.CONSTANTS, "PLACE": parts.PLACE, "CONSUMERS": parts.CONSUMERS, **_barriers(layout),
        **_producers(layout),
        **_table(epilogue, tiling),
        "FINISH_PARAMETERS": ", ".join(["const float* __restrict__ partial", *map(" ".join, epilogue.parameters)]),
        "ARGUMENTS": "".join(f"{parameter}, " for _, parameter in epilogue.parameters),
        "SPLIT": tiling.split_k, "PARTS_LEFT": parts_left(tiling.split_k),
        "SPLIT_OF": parts.SPLIT_OF if tiling.split_k > 1 else "",
        "RESULTS": results.PARTIAL if tiling.split_k > 1 else RESULTS_IN_REGISTERS if epilogue.in_registers
        else results.RESULTS,
        "MERGE": addition(name, tiling.split_k, geometry.sums_of_part) + results.MERGE if tiling.split_k > 1 else "",
        "SUBTILE_POINTER": "" if tiling.split_k > 1 else results.SUBTILE_POINTER, "ALL_ROW_BLOCKS": geometry.blocks[0],
        "BEGIN": parts.BEGIN_PART if tiling.split_k > 1 else parts.BEGIN,
        "TILE": "long long" if tiles >= 2**30 else "int", "TILES": f"{tiles}{'LL' if tiles >= 2**30 else ''}",
        "ROWS": tiling.rows, "APART": geometry.step, "COLUMNS": tiling.columns,
        "CHUNKS": tiling.depth // CHUNK, "TERMS": geometry.terms,
        "PITCH": layout.pitch, "STAGES": tiling.stages, "STAGE_BYTES": layout.stage_bytes,
        "SUBTILE": subtile_floats, "SUBTILE_COLUMNS": epilogue.columns, **_subtiles(epilogue),
        "WORKERS": layout.workers, "WARPGROUPS": tiling.pingpong, "PRODUCTS": layout.products,
        "DEPTHS": geometry.depths,
        "GROUPS": kernel.groups,
        "ALL_CHUNKS": geometry.chunks, "ALL_ROWS": geometry.allocated_rows, "LEFT_BLOCK": geometry.left_block,
        "X_CHUNKS": 1 if kernel.axes else tiling.depth // CHUNK,
        "ALL_COLUMNS": geometry.allocated_columns, "LEFT_TERM": geometry.left_term_bytes // 2,
        "RIGHT_TERM": geometry.right_term_bytes // 2, "PHASES": prod(geometry.input_phases),
        "WINDOW": geometry.entries, "ROW_BLOCKS": row_blocks, "LAST_BLOCK": geometry.blocks[0] - 1,
        "COLUMN_BLOCKS": geometry.blocks[1], "CLASSES": len(geometry.classes),
        "BAND": max(1, _BAND_ROWS // tiling.rows // tiling.cluster), "CLUSTER": tiling.cluster,
        "PRODUCT": f"kw_wgmma_{kind}",
        "FEWER": parts.registers(layout, layout.producer_registers),
        "MORE": parts.registers(layout, layout.moved_registers),
        "RANK": "static_cast<int>(kw_cluster_rank())" if cluster else "0",
        "START": "kw_cluster_sync();" if cluster else "__syncthreads();",
        "END": "\n  kw_cluster_sync();  // No block ends while others copy to it or arrive at its barriers." if cluster
        else "",
        "FRESH": parts.FRESH if layout.keeps_right else "",
        **_taps(geometry, "fresh" if layout.keeps_right else "taps"),
        "FILLS": ", fills = 0" * layout.keeps_right + ", filled_class = -1" * (layout.order in parts.REFILLED),
        "OTHER_CLASS": parts.OTHER_CLASS * (layout.order in parts.REFILLED), **_order(layout),
        "COUNT_FILLS": parts.COUNT_FILLS if layout.keeps_right else "",
        "BRING": parts.BRING_CLUSTER if cluster else parts.BRING,
        "PAIRS": PAIRS, "FIRST_PAIR": first_pair(geometry.terms), "NEXT_STAGE": frame.NEXT_STAGE,
        **({"SKIP": parts.SKIP, "TILE_NUMBER": ", tile_number = 0",
            "AWAIT_ORDER": frame.await_order("worker", "(tile_number - 1) / WARPGROUPS")} if tiling.pingpong > 1 else
           {"SKIP": "@FILL_TABLE@", "TILE_NUMBER": ""}),
        **sums.values(layout, f"if (before >= 0 && {who}) {fill_some(how, {'STAGE': 'before'})}", f"if ({who}) {how}"),
        **phases.values(layout, epilogue, promoted),
    }
    text = fill(parts.FUNCTIONS + frame.KERNEL + "@MERGE@", frame.DEFAULTS | values, spare=frame.DEFAULTS | values)
    lines = wrapped([line.rstrip() for line in text.split("\n")])
    support = {"tensor_core", f"wgmma_{kind}_{tiling.columns}"} | ({"cluster"} if cluster else set())
    return Core("\n".join(line for line, after in zip(lines, [*lines[1:], ""], strict=True) if line or after),
                _launches(geometry, layout, epilogue, name, tiles, second_run), epilogue.support | support,
                layout.threads,
                layout.shared_bytes)


def _tables(layout: Layout, name: str) -> str:
    """What each step brings, by class of output positions."""
    tap_groups = [tap_group for group in layout.tap_groups for tap_group in group]
    taps = [numbers for tap_group in tap_groups for numbers in _numbers(tap_group)]
    begins, first_tap = [0], [0]
    for group in layout.tap_groups:
        begins.append(begins[-1] + len(group))
    for tap_group in tap_groups:
        first_tap.append(first_tap[-1] + len(tap_group.taps))
    two_taps = layout.geometry.two_taps
    taps_text = ", ".join("{" + ", ".join(map(str, numbers)) + "}" for numbers in taps) or f"{{0, 0{', 0' * two_taps}}}"
    of_taps = "Of a tap: rows beyond, entry of the window." if not two_taps else f"""Of a pair of taps: the first one's
// rows beyond, plus {_LEADING} times those from it to the second one; entries of both, or one of zeros."""
    more = "\n" + convert.definitions(layout, name) if layout.geometry.tiling.takes_left else ""
    if layout.geometry.tiling.packs_concurrently:
        more += "\n" + ahead.definitions(layout, name)
    return f"""// Tap groups of a class of output positions. Of each: first row of x beyond the tile's, phases of
// the input included; rows; first tap. {of_taps}
static __constant__ int {name}_tap_groups[] = {{{", ".join(map(str, begins))}}};
static __constant__ long long {name}_place[] = {{{", ".join(str(p.place) for p in tap_groups) or "0"}}};
static __constant__ int {name}_rows[] = {{{", ".join(str(p.rows) for p in tap_groups) or "0"}}};
static __constant__ int {name}_first_tap[] = {{{", ".join(map(str, first_tap))}}};
static __constant__ int {name}_taps[][{2 + two_taps}] = {{{taps_text}}};{more}"""


def _numbers(tap_group: TapGroup) -> list[tuple[int, ...]]:
    """Of each tap or pair of a tap group, its row in the table of taps."""
    if not tap_group.seconds:
        return list(tap_group.taps)
    return [(beyond + _LEADING * apart, entry, second)
            for (beyond, entry), (apart, second) in zip(tap_group.taps, tap_group.seconds, strict=True)]


def _taps(geometry: Geometry, taps: str) -> dict[str, object]:
    """How the text finds what it multiplies; ``taps``: how many of them a step brings w for."""
    if not geometry.two_taps:
        return {"NUMS": 2, "TAP_CHUNKS": "CHUNKS", "LEADING": "PITCH * 16", "LINE_TAPS": taps,
                "ENTRY": "@NAME@_taps[first + j / TERMS][1]", "TERM": "j % TERMS"}
    # The leading offset of x is added with a pair's rows: both are in its number.
    return {"NUMS": 3, "TAP_CHUNKS": "2", "LEADING": "0", "LINE_TAPS": f"2 * {taps}",
            "ENTRY": "@NAME@_taps[first + j / (2 * TERMS)][1 + j % 2]", "TERM": "j / 2 % TERMS"}


def _order(layout: Layout) -> dict[str, object]:
    """Where tiles lie, by their number, and which ones a block has."""
    classes, stacked = len(layout.geometry.classes), layout.order == "stacked"
    place, note = parts.ORDERS[layout.order]
    own = f"tile += tile % {classes} < {classes - 1} ? 1 : 1 + (next_tile - 1) * {classes}"
    return {"TILE_NOTE": f"// Tile number `tile`: {note}", "TILE_PLACE": place,
            "FIRST_TILE": f" * {classes}" * stacked, "NEXT_TILE": own if stacked else "tile += next_tile"}


def _table(epilogue: Epilogue, tiling: Tiling) -> dict[str, object]:
    """Where there is a table of columns: who fills it, and where it stands. And what is known of a row."""
    split = tiling.split_k > 1
    margin = "\n" + " " * (2 if split else 8)
    scale = f"{margin}const float scale_of_row = @NAME@_row_scale(left_scales, thread, group, first_row);"
    values: dict[str, object] = {"ROW_SCALE": scale if epilogue.row_scales else "",
              "PASS_SCALE": ", scale_of_row" if epilogue.row_scales else ""}
    if not epilogue.column_floats:
        empty = ("COLUMN_TABLE", "COLUMN_ARGUMENTS", "TABLE_OF", "FILL_TABLE", "FILL_MERGE_TABLE")
        return {**values, **dict.fromkeys(empty, "")}
    of, fill_it, merge = results.TABLE_OF, results.FILL_TABLE, results.FILL_MERGE_TABLE
    if epilogue.entry_rows:
        of, fill_it, merge = (results.TABLE_OF_ENTRIES, results.FILL_TABLE_OF_ENTRIES,
                              results.FILL_MERGE_TABLE_OF_ENTRIES)
    return {
        **values,
        "COLUMN_TABLE": ", " + plus("subtile", epilogue.floats),
        "TABLE_AT": epilogue.floats, "ENTRY_ROWS": epilogue.entry_rows,
        "COLUMN_ARGUMENTS": "".join(f"{parameter}, " for _, parameter in epilogue.column_parameters),
        "TABLE_OF": "" if split else of, "FILL_TABLE": "" if split else fill_it,
        "FILL_MERGE_TABLE": merge if split else ""}


def _subtiles(epilogue: Epilogue) -> dict[str, object]:
    """How high subtiles are, and where a thread's sums lie in them."""
    return {"HEIGHT": epilogue.height, "PLACES": results.PLACES if epilogue.places else "",
            "PASS_PLACES": ", places[p]" if epilogue.places else "",
            "STAGE_PLACES": ", const int (&places)[2]" if epilogue.places else "",
            "STAGE_AT": "const int column = thread % 4 * 2;" if epilogue.places
            else "const int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;"}


def _parameters(geometry: Geometry, epilogue: Epilogue) -> tuple[tuple[str, str], ...]:
    """What the core takes besides packed operands: what the epilogue does, or where sums of parts go; what producers do
    that read x themselves."""
    found = (("float* __restrict__", "partial"),) if geometry.tiling.split_k > 1 else epilogue.parameters
    if geometry.tiling.takes_left:
        found += (("unsigned*", "left_ready"),) * geometry.tiling.packs_concurrently
        found = tuple(dict.fromkeys((*found, *convert.parameters(geometry))))
        if guessed(geometry, "left"):
            found += (("unsigned*", "marks"), ("bool", "second_run"))
    return found


def _barriers(layout: Layout) -> dict[str, object]:
    """The barriers of a block, behind its stages and the epilogue's subtiles."""
    tiling = layout.geometry.tiling
    subtiles = "" if tiling.split_k > 1 else " + " + times("SUBTILE * 4", layout.workers)
    found = [frame.Barriers("full", "STAGES", "@FULL_ARRIVALS@", "@WHO_FILLS@"),
             frame.Barriers("empty", "STAGES", "4 * WORKERS / WARPGROUPS * CLUSTER", "warps that multiply")]
    found += [frame.ordered("WARPGROUPS")] * (tiling.pingpong > 1)
    return frame.barrier_values(f"stages + STAGES * STAGE_BYTES{subtiles}", found,
                                "  const unsigned stages = kw_shared(shared);\n")


def _producers(layout: Layout) -> dict[str, object]:
    """Who brings steps, and how."""
    geometry, tiling = layout.geometry, layout.geometry.tiling
    converts, packs = tiling.converts_left, tiling.packs_concurrently
    shared = {"PRODUCERS": convert.FILL if converts else parts.COPY + ahead.PACK * packs,
              "PRODUCED_TILES": parts.PRODUCED_TILES, "LEFT_OF_TILE": "" if converts else parts.LEFT_OF_TILE,
              "BRING_RIGHT": "\n".join(indent(parts.BRING_RIGHT.split("\n"), 16 if converts else 10))}
    second_run = guessed(geometry, "left") and geometry.tiling.takes_left
    if not converts:
        return {**shared, "PRODUCER_GROUPS": layout.producer_groups, "FULL_ARRIVALS": 1,
                "WHO_FILLS": "the producer of the step", "SECOND_RUN": convert.SECOND_RUN if second_run else "",
                **(ahead.values(layout) if packs else {"AWAIT_LEFT": ""}),
                "LEFT_PARAMETER": "unsigned short* left, " if packs else "const unsigned short* __restrict__ left, "}
    return {**shared, "FULL_ARRIVALS": 1 + layout.filling.warps, "LEFT_PARAMETER": "",
            "WHO_FILLS": "who brings w, and each warp that brings x",
            "SECOND_RUN": convert.SECOND_RUN if second_run else "", **convert.values(layout)}


def _launches(geometry: Geometry, layout: Layout, epilogue: Epilogue, name: str, tiles: int, second_run: tuple[str, ...]
              ) -> tuple[str, ...]:
    """The host's lines: as many blocks as stay on the device's multiprocessors."""
    finishing = [parameter for _, parameter in epilogue.parameters]
    split = geometry.tiling.split_k
    arguments = ", ".join([*["left"] * (not geometry.tiling.converts_left), "right",
                           *(_passed(given) for _, given in _parameters(geometry, epilogue) if given != "second_run")])
    blocks = prod(geometry.blocks) * geometry.kernel.groups * len(geometry.classes) * geometry.tiling.rows // 64
    shared = 4 * (epilogue.floats + epilogue.column_floats)
    merge = (*addition_launch(name, split, geometry.sums_of_part),
             f'KW_LAUNCH("{name}", {name}_merge, {blocks}LL, 128, {shared}, stream, '
             f"{', '.join(['sums', *finishing])});",) if split > 1 else ()
    if merge and shared > _UNASKED_BYTES:
        merge = (f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_merge, cudaFuncAttributeMaxDynamicSharedMemorySize, '
                 f"{shared}));", *merge)
    attribute = f'KW_CHECK("{name}", cudaFuncSetAttribute({name}_core, cudaFuncAttributeMaxDynamicSharedMemorySize, ' \
        f"{layout.shared_bytes}));"
    cluster = geometry.tiling.cluster
    if cluster == 1:
        device = [*ask_processors(name), f"const long long resident = {layout.blocks}LL * processors;"]
        launch = f'KW_LAUNCH("{name}", {name}_core, resident < {tiles}LL ? resident : {tiles}LL, {layout.threads}, ' \
            f"{layout.shared_bytes}, stream, {arguments});"
        return attribute, *device, *_runs(launch, arguments, second_run), *merge
    block = f"dim3({layout.threads}), {layout.shared_bytes}"
    *before, launch = launch_of_clusters(name, cluster, block, f"{tiles}LL", arguments)
    return attribute, *before, *_runs(launch, arguments, second_run), *merge


def _passed(parameter: str) -> str:
    """What the host passes for a parameter."""
    return {"partial": "sums", "marks": "reinterpret_cast<unsigned*>(left_scales)"}.get(parameter, parameter)


def _runs(launch: str, arguments: str, second_run: tuple[str, ...]) -> tuple[str, ...]:
    """A launch of the core; where scales may have been wrong two, with what finds better ones between them."""
    if not second_run:
        return (launch,)
    first, second = (launch.replace(arguments, f"{arguments}, {value}") for value in ("false", "true"))
    return first, *second_run, second
