"""How the producers of a row-buffered GEMM bring lines of x: 32 rows of 8 channels at a time, from memory,
rounded or split, to the ring (`row_buffered`).

Each lane has a row: 8 loads beside the next lane's, 4 conversions of two values for each term, and 16 bytes of each to
shared memory. x is read once for each plane of the window, and never packed. Where all results are stored, by whole
sectors (`row_buffered.store_shared_sectors`), and a warp has registers for one line alone, the next one is on its way
to the second-level cache (H100, 64 to 128 channels, 126 wide: 0.678 ms for 0.709; two lines and more 0.72 to 0.84;
where warps have several lines on their way it changes nothing; where less is stored, or not so,
benchmarks/notes/contractions.md). Scales, marks of those that were guessed too small, and what is not finite are as in
`operands.convert_in_mainloop`.
"""

from __future__ import annotations

from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import (
    device_function,
    emitter_of,
    entry_type,
    guessed,
    operands,
    parameter_texts,
    pointers_of,
    value_call,
)
from kernelwright.codegen.cuda.gemm.row_buffered.problem import LOAD_CHUNK_ROWS, RowBuffered
from kernelwright.codegen.terms import grouped, modulo, over, plus, times
from kernelwright.plan.expressions import Load, loaded

#: What brings the line that is asked for next closer.
_PREFETCH = """
      if (asked_strip < STRIPS) {
        const int next = asked_strip % PARTS * EACH * STRIDE + asked_line;
#pragma unroll
        for (int i = 0; i < LOAD_CHUNKS; ++i)
          @NAME@_prefetch(@TAKEN@asked_strip / (PARTS * ACROSS), next + @FIRST@, @FIRST_POSITION@, 4 * i + warp, lane);
      }"""
#: Load chunks that a warp has on their way at most, 8 registers each; lines that are written out one after the other.
_AHEAD, _LINES_AT_ONCE = 8, 4


def inputs(numbers: RowBuffered) -> list[tuple[str, str]]:
    """Types and names of what producers read x from."""
    return parameter_texts(numbers.kernel, set(pointers_of(numbers.kernel.left)))


def ahead(numbers: RowBuffered) -> int:
    """Lines that a warp has on their way."""
    return max(1, _AHEAD // 2 // load_chunks(numbers))


def load_chunks(numbers: RowBuffered) -> int:
    """Load chunks of a line that a warp brings."""
    return -(-numbers.brought // 4)


def prefetches(numbers: RowBuffered) -> bool:
    """Whether warps ask for a line before they have registers for it, beside stores of whole sectors: x lies in memory,
    neighbours along lines."""
    x = numbers.kernel.left
    lies = isinstance(x, Load) and not x.guards and x.index.strides[-1] == 1
    return lies and numbers.tiling.sector_aligned and ahead(numbers) == 1


def values(numbers: RowBuffered, name: str) -> dict[str, object]:
    """What stands for names in the producers' text."""
    stride = numbers.positions.in_stride
    find = f"{name}_scale_of({'left_scales, ' * numbers.scaled}strip)"
    return {
        "LOAD_CHUNKS": load_chunks(numbers), "AHEAD": ahead(numbers),
        "LINES_AT_ONCE": max(ahead(numbers), _LINES_AT_ONCE),
        "PREFETCH": _PREFETCH * prefetches(numbers),
        "TAKEN": "".join(f"{argument}, " for _, argument in inputs(numbers)), "FIRST": numbers.first_offset,
        "FIRST_POSITION": "0" if numbers.across == 1 else
        f"asked_strip / PARTS % ACROSS * {f'({stride} * POSITIONS)' if stride > 1 else 'POSITIONS'} - "
        f"{numbers.lead}",
        "MARKED": ("marks, second_run, strip, " if guessed(numbers, "left") else "") + "scale, ",
        "SCALE_OF_STRIP": f"\n    float scale = strip < STRIPS ? {find} : 0.0f;",
        "NEXT_SCALE": f"\n          if (strip < STRIPS) scale = {find};"}


def definitions(numbers: RowBuffered, name: str) -> str:
    """``NAME_take`` asks for a load chunk of a line, ``NAME_put`` rounds and writes it, ``NAME_scale_of`` has a strip's
    scale."""
    kernel, operand = numbers.kernel, operands(numbers.kernel)[0]
    guess, entry = guessed(numbers, "left"), entry_type(kernel)
    row, rest = times(modulo("load_chunk", numbers.row_load_chunks), LOAD_CHUNK_ROWS), over("load_chunk",
                                                                                            numbers.row_load_chunks)
    chunks, planes = numbers.brought_chunks, len(numbers.planes)
    chunk = "0" if chunks == 1 else modulo(rest, chunks) if planes > 1 else rest
    plane = "0" if planes == 1 else over(rest, chunks)
    axes = len(kernel.axes)
    line, position = f"q{axes - 2}", f"q{axes - 1}"
    none = [f"if (load_chunk >= {numbers.brought}) return;"] * (numbers.brought % 4 > 0)
    in_bounds = [f"unsigned({line}) < {numbers.line_axis.in_size}u",
                 f"unsigned({position}) < {numbers.positions.in_size}u"]
    places, image = [], "image"
    for a, axis in reversed(list(enumerate(numbers.outer))):
        offsets = [plane_[a].offset for plane_ in numbers.planes]
        table = f"constexpr int OFFSET{a}[] = {{{', '.join(map(str, offsets))}}};"
        step = f" * {axis.in_stride}" if axis.in_stride > 1 else ""
        places += [table, f"const int q{a} = {image} % {axis.out_size}{step} + OFFSET{a}[{plane}];"]
        in_bounds.append(f"unsigned(q{a}) < {axis.in_size}u")
        image = f"{image} / {axis.out_size}"
    bound = "c" if kernel.in_channels % CHUNK == 0 else "c + e"
    bounded = f" && {bound} < {kernel.in_channels}" * (kernel.in_channels < chunks * CHUNK)
    begin = [*none, *places, f"const {entry} n = {image};", "constexpr int g = 0;"]
    take = [*begin, f"const int {position} = {plus('first_position', row, 'lane')}, c = {times(chunk, CHUNK)};",
            f"const bool in_bounds = {' && '.join(in_bounds)};", "#pragma unroll", f"for (int e = 0; e < {CHUNK}; ++e)",
            f"  x[e] = in_bounds{bounded} ? {value_call(operand, name, c='c + e')} : 0.0f;"]
    stride = numbers.positions.in_stride
    place = "row" if stride == 1 else f"(row % {stride} * {numbers.phase_rows} + row / {stride})"
    line_number = plus(times(plane, numbers.chunks), chunk)
    pair, value = f"kw_{numbers.element}_pair", f"kw_{numbers.element}_value"
    put = [*none, f"unsigned high[4]{', low[4]' * (numbers.terms == 2)};", *["float all = 0.0f;"] * guess,
           "if (scale == 0.0f) {  // what is not finite is taken for zeros", "#pragma unroll",
           f"  for (int e = 0; e < {CHUNK}; ++e) x[e] = 0.0f;", "}", "#pragma unroll",
           "for (int e = 0; e < 4; ++e) {", "  const float a = x[2 * e] * scale, b = x[2 * e + 1] * scale;",
           f"  high[e] = {pair}(a, b);",
           *[f"  low[e] = {pair}(a - {value}(high[e]), b - {value}(high[e] >> 16));"] * (numbers.terms == 2),
           *["  all += fabsf(a) + fabsf(b);"] * guess, "}",
           f"const int row = {plus(row, 'lane', numbers.lead if numbers.across == 1 else 0)};",
           f"uint4* const to = {plus('slot', times(grouped(line_number), numbers.line_rows), place)};",
           f"if (row < {numbers.line_rows}) {{", "  to[0] = make_uint4(high[0], high[1], high[2], high[3]);"]
    if numbers.terms == 2:
        put += ["  // What the first term leaves.",
                f"  to[{numbers.term_rows}] = make_uint4(low[0], low[1], low[2], low[3]);"]
    put.append("}")
    entry_of_strip = over("strip", numbers.strips // numbers.kernel.entries)
    if guess:
        put += ["// Some of them do not fit float16, or may not: the scale was not enough.",
                "const float most = scale == -1.0f ? 0.0f : 65504.0f;",
                f"if (!(all <= most) && !second_run) atomicOr(marks + {entry_of_strip}, "
                "0x80000000u);"]
    of_strip = [f"const unsigned bits = __float_as_uint(left_scales[{entry_of_strip}]) "
                "& 0x7fffffffu;", f"return bits == 0u ? -1.0f : {name}_inverse(__uint_as_float(bits));"]
    source = [" ".join(parameter) for parameter in inputs(numbers)]
    load_chunk = ["int image", f"int {line}", "int first_position", "int load_chunk", "int lane"]
    closer = []
    if prefetches(numbers):
        index = loaded(operand.expression).index
        at = emitter_of(kernel, operand.domain, operand.names, [operand.expression]).site.base(index)
        first = plus("first_position", row, f"lane / {CHUNK} * {LOAD_CHUNK_ROWS - 1}")
        closer = [device_function(
            "Brings the same closer, to the second-level cache: of each channel the lines of memory in which its first "
            "row lies\nand its last.", "void", f"{name}_prefetch", [*source, *load_chunk],
            [*begin, f"const int {position} = min(max({first}, 0), {numbers.positions.in_size - 1}), "
             f"c = {chunk} * {CHUNK} + lane % {CHUNK};",
             f"if ({' && '.join([f'lane < {2 * CHUNK}', f'c < {kernel.in_channels}', *in_bounds])})",
             f"  kw_prefetch({pointers_of(operand.expression)[0]} + {at});"])]
    return "\n".join([
        device_function("Asks for 32 rows and 8 channels of a line of x: zeros where x has none.", "void",
                        f"{name}_take",
                        [*source, f"float (&x)[{CHUNK}]", *load_chunk], take), *closer,
        device_function("Rounds them, and writes them as rows of 16 bytes for each term.", "void", f"{name}_put",
                        [*["unsigned* marks", "bool second_run", "int strip"] * guess, "float scale",
                         f"float (&x)[{CHUNK}]", "uint4* slot", "int load_chunk", "int lane"], put),
        device_function("By what x is multiplied in a strip; 0 where it is not finite, -1 where only zeros were seen.",
                        "float", f"{name}_scale_of", ["const float* __restrict__ left_scales", "int strip"], of_strip)])
