"""The producers of a core on wgmma that takes x as it lies in memory (``Tiling.converts_left``): no packing of x.

Packing reads x and writes it in the order of the core, which then reads it again for every row of the window: of D
channels in T float16 terms, for each position, 4 D bytes from memory, 2 T D to it, and of a window of k rows 2 T D k
from the second-level cache. Here a step's rows come from x itself, 4 D k bytes from that cache and 4 D from memory. A
lane takes a row and 8 channels: 8 loads beside the next lane's, 4 T conversions of two values each, 16 T bytes to
shared memory.

Some warps (`Filling.warps`) bring a step together, the others the next (`Filling.steps_at_once`). They ask for x before
they wait for the stage to be free. What a warp can have on its way are the registers of its threads, 8 for each load
chunk of 32 rows and 8 channels (`Layout.fill_batch` of them at a time). Predicted, of a tile of 128 rows, 64 channels,
a window of 3 x 3 and 128 columns, in fp16 (128 x 128 x 576 multiply-adds: 4608 cycles of the tensor cores)::

    from the second-level cache   3 * 130 * 64 * 4 bytes, of which 28 come in a cycle                       3570 cycles
    instructions                  6 steps * 20 load chunks * (22 for coordinates + 30), 4 warps at a time     1560
    asked for                     6 steps of 2 at a time, each 5 load chunks deep: about 900 cycles each       2700
    packed instead                128 * 64 * 6 bytes of memory, of which 18 come in a cycle, and 1790          4500

Measured (benchmarks/notes/contractions.md, "x as it lies in memory"): a load chunk takes 90 instructions, not 52, and
the first-level cache, which is not among these figures, is busy 75 % of the time. So this loses against packing where
there are 64 channels in fp16 (0.83 ms instead of 0.76), and wins of 8 in fp16x3 (1.06 instead of 1.24).

Scales. As with packing they are found first, those of a large x guessed from a part of it. Who takes a value for which
that was not enough marks the scale; then a second search looks at all of these images, and the core runs again: its
blocks look first whether there is a mark. An image of which the part was zeros has a scale of 0: any other value marks
it, and an epilogue takes it for 1.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.cuda.gemm.operands.prepack_rows import define_in_bounds
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import (
    coordinates,
    device_function,
    entry_type,
    guessed,
    operands,
    parameter_texts,
    pointers_of,
    type_of_rows,
    value_call,
)
from kernelwright.codegen.cuda.gemm.precision.scales import entry_place
from kernelwright.codegen.cuda.gemm.problem import ROW_BYTES, Geometry
from kernelwright.codegen.source import part_beside

FILL = "\n" + part_beside(__file__, "convert_in_mainloop.cuh")

# By what an image is multiplied in which nothing but zeros was seen. Another value in it marks its scale.
_UNSEEN = "-1.0f"

# A second run does nothing unless a guess was wrong.
SECOND_RUN = """
  if (second_run) {
    int wrong = 0;
    for (int i = threadIdx.x; i < @SCALES@; i += @THREADS@) wrong |= marks[i] >> 31;
    if (!__syncthreads_or(wrong)) return;  // no guess was
  }"""


def parameters(geometry: Geometry) -> list[tuple[str, str]]:
    """What the core takes for its producers besides ``right``: types and names, of what others may take as well."""
    return _inputs(geometry) + [("const float* __restrict__", "left_scales")] * geometry.scaled


def _inputs(geometry: Geometry) -> list[tuple[str, str]]:
    return parameter_texts(geometry.kernel, set(pointers_of(geometry.kernel.left)))


def values(layout: Layout) -> dict[str, object]:
    """What stands for names in the producers' text."""
    geometry = layout.geometry
    whole = layout.filling.whole_tap_groups
    return {
        "PRODUCER_GROUPS": layout.producer_groups,
        "FILL_WARPS": layout.filling.warps, "FILL_STEPS_AT_ONCE": layout.filling.steps_at_once,
        "FILL_LOAD_CHUNKS": layout.filling.each, "FILL_BATCH": layout.fill_batch,
        "ROW": type_of_rows(geometry.allocated_rows),
        "TAKEN": "".join(f"{argument}, " for _, argument in _inputs(geometry)),
        "SCALES_OF": "left_scales, " * geometry.scaled,
        "MARKED": "marks, second_run, " if guessed(geometry, "left") else "",
        "FIND": "depth == 0 || step == begin" if whole else "true", "NEXT_PRODUCER": "depth == 0" if whole else "true",
        "SCALES": geometry.kernel.entries * geometry.kernel.groups}


def definitions(layout: Layout, name: str) -> str:
    """What is known of a row: ``NAME_find`` finds it, ``NAME_take`` asks for 8 of its channels, ``NAME_put`` rounds and
    writes them, to shared memory or, where the core packs x, to its place. And the tables of where tap groups begin."""
    geometry = layout.geometry
    kernel, operand = geometry.kernel, operands(geometry.kernel)[0]
    guess, kind, axes = guessed(geometry, "left"), type_of_rows(geometry.allocated_rows), range(len(kernel.axes))
    place = entry_place(geometry, "u")
    entry, positions = entry_type(kernel), ", ".join(f"q{a}" for a in axes)
    scales = "long long" if kernel.entries * kernel.groups >= 2**31 else "int"
    known = [f"{entry} n;", f"int {positions};", "bool in_bounds;", *["float scale;"] * geometry.scaled,
             *[f"{scales} place;"] * guess]
    find = [f"const bool row_in_bounds = row < {geometry.rows};", *coordinates(geometry, kind),
            *define_in_bounds(geometry),
            "known.n = n, " + ", ".join(f"known.q{a} = q{a}" for a in axes) + ";", "known.in_bounds = in_bounds;"]
    if geometry.scaled:
        find += [f"const unsigned bits = in_bounds ? __float_as_uint(left_scales[{place}]) & 0x7fffffffu : 0u;",
                 f"known.scale = bits == 0u ? {_UNSEEN} : {name}_inverse(__uint_as_float(bits));",
                 "known.in_bounds = in_bounds && known.scale != 0.0f;  // what is not finite is taken for zeros"]
    find += [f"known.place = {place};"] * guess
    bound = "c" if kernel.in_channels % CHUNK == 0 else "c + e"
    asked = (layout.asked_chunks if geometry.tiling.packs_concurrently else geometry.chunks) * CHUNK
    bounded = f" && {bound} < {kernel.in_channels}" * (kernel.in_channels < asked)
    take = [f"const {entry} n = known.n;", "const int " + ", ".join(f"q{a} = known.q{a}" for a in axes) + ";",
            "#pragma unroll",
            f"for (int e = 0; e < {CHUNK}; ++e)",
            f"  x[e] = known.in_bounds{bounded} ? {value_call(operand, name, c='c + e')} : 0.0f;"]
    pair, value = f"kw_{geometry.element}_pair", f"kw_{geometry.element}_value"
    scaled = " * known.scale" * geometry.scaled
    put = [f"unsigned high[4]{', low[4]' * (geometry.terms == 2)};", *["float all = 0.0f;"] * guess, "#pragma unroll",
           "for (int e = 0; e < 4; ++e) {", f"  const float a = x[2 * e]{scaled}, b = x[2 * e + 1]{scaled};",
           f"  high[e] = {pair}(a, b);",
           *[f"  low[e] = {pair}(a - {value}(high[e]), b - {value}(high[e] >> 16));"] * (geometry.terms == 2),
           *["  all += fabsf(a) + fabsf(b);"] * guess, "}",
           "to[0] = make_uint4(high[0], high[1], high[2], high[3]);"]
    if geometry.terms == 2:
        lines = geometry.tiling.depth // CHUNK * layout.pitch if geometry.tiling.converts_left else \
            f"{geometry.left_term_bytes // ROW_BYTES}LL"
        put += ["// What the first term leaves.", f"to[{lines}] = make_uint4(low[0], low[1], low[2], low[3]);"]
    if guess:
        put += ["// Some of them do not fit float16, or may not: the scale was not enough.",
                f"const float most = known.scale == {_UNSEEN} ? 0.0f : 65504.0f;",
                "if (!(all <= most) && !second_run) atomicOr(marks + known.place, 0x80000000u);"]
    heads = {"find": [f"{name}_row& known", *["const float* __restrict__ left_scales"] * geometry.scaled, f"{kind} row",
                      "int g", "int phase"],
             "take": [*(" ".join(parameter) for parameter in _inputs(geometry)), f"const {name}_row& known",
                      f"float (&x)[{CHUNK}]", "int g", "int c"],
             "put": [*["unsigned* marks", "bool second_run"] * guess, f"const {name}_row& known",
                     f"const float (&x)[{CHUNK}]", "uint4* to"]}
    comments = {"find": "Finds out about a row of x.",
                "take": "Asks for 8 channels of it from c on: zeros where x has none.",
                "put": "Rounds them, and writes them as a row of 16 bytes for each term."}
    functions = [device_function(comments[task], "void", f"{name}_{task}", heads[task], body)
                 for task, body in (("find", find), ("take", take), ("put", put))]
    members = "\n".join(f"  {member}" for member in known)
    return "\n".join([f"struct {name}_row {{\n{members}\n}};", *functions, _tables(layout, name)])


def _tables(layout: Layout, name: str) -> str:
    """Where each tap group begins."""
    rows = layout.geometry.allocated_rows
    whole = layout.geometry.chunks * rows
    places = [divmod(tap_group.place, whole) for group in layout.tap_groups for tap_group in group] or [(0, 0)]
    return f"""// Of a tap group, too: the input phase of its rows, and how far they begin beyond the tile's.
static __constant__ int {name}_input_phase[] = {{{", ".join(str(phase) for phase, _ in places)}}};
static __constant__ {type_of_rows(rows)} {name}_shift[] = {{{", ".join(str(s) for _, s in places)}}};"""
