"""CUDA text that brings the operands of a contraction into the packed layout of `Geometry`.

Scales. Sums are multiplied by ``left_scales[entry, g]`` and ``right_scales[g, o]``, powers of two that this text finds:
operands are packed times their inverses, so that the greatest magnitude lies in [2^14, 2^15), or is multiplied by
2^126 where even that is less. An infinite scale says that an operand is not finite; it is packed as zeros, and the
epilogue takes its sums from the operands themselves.

Which thread does what. Threads that work together read and write runs of 128 bytes or more. Where rows (or output
channels) are neighbours in memory a lane takes a row: 8 loads, each of 32 neighbours, then 16 bytes beside those of the
next lane. Where channels are, a warp takes 8 rows x 4 chunks: each lane reads 32 bytes of 128, and writes 16 of 128.
Windows of weights lie innermost; they pass through a tile in shared memory, which is read in the order of memory and
written in the order of the packed operand.

A block that owns whole rows (those of a matrix) finds their greatest magnitudes in a first pass and packs in a second,
which meets the caches, or what it kept in registers. Else a kernel of its own finds them (the maximum of bits is the
same in any order), and packing begins behind it. Of a large operand it looks at a part only, and leaves room above what
it finds; packing sees whether that was enough, and where it was not both are done again, with all of these rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kernelwright.codegen.cuda.gemm.operands.prepack_parts import FILLED, REPACK, THREADS, Part
from kernelwright.codegen.cuda.gemm.operands.prepack_rows import RowPacker
from kernelwright.codegen.cuda.gemm.operands.prepack_windows import WindowPacker
from kernelwright.codegen.cuda.gemm.packed_layout import CHUNK
from kernelwright.codegen.cuda.gemm.points import (
    device_function,
    guessed,
    operands,
    value_function,
    wrapped,
)
from kernelwright.codegen.cuda.gemm.problem import Geometry
from kernelwright.codegen.cuda.host import alignment_check
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import text_beside
from kernelwright.plan.contraction.record import Contraction


@dataclass(frozen=True, slots=True)
class Packing:
    """Device text, and the host's lines, which use the names ``left``, ``right``, ``left_scales``, ``right_scales``,
    ``in0`` ... and ``stream``; ``support`` names the snippets that the text uses. Where the core reads x itself and its
    scales are guesses, ``second_run`` are the lines between a first run of the core and a second."""

    definitions: str
    launches: tuple[str, ...]
    support: frozenset[str]
    second_run: tuple[str, ...] = ()


def packing(geometry: Geometry, name: str, original: Contraction | None = None) -> Packing:
    """What packs the operands into the workspace, in up to two launches; not those that the mainloop converts.

    original: the contraction of which ``geometry`` has folded taps, which says x several times: scales of x are looked
    for in what it has.
    Raises ValueError where an operand has no elements, and where a grid would exceed 2**31 - 1 blocks.
    """
    kernel = geometry.kernel
    if not prod(kernel.left_domain) * prod(kernel.right_domain):
        raise ValueError(f"{name}: an operand has no elements")
    sides = [RowPacker(geometry, name, o) if o.side == "left" or geometry.entries == 1
             else WindowPacker(geometry, name, o) for o in operands(kernel)]
    if original is not None:
        sides[0].searched = operands(original)[0]
    texts = [value_function(kernel, side.operand, name) for side in sides]
    if geometry.scaled and not geometry.splits_left:
        texts.append(_SCALES.replace("NAME", name))
    if not geometry.splits_left:
        texts.append(_writer(geometry, name))
    if geometry.tiling.converts_right:
        sides = [side for side in sides if side.operand.side == "left" and not geometry.splits_left]
    searched = [side for side in sides if geometry.scaled and not side.owns]
    searches = [side.search() for side in searched]
    if geometry.tiling.takes_left:
        sides = [side for side in sides if side.operand.side == "right"]
    # Blocks with most to do come first.
    packs = [side.pack() for side in sorted(sides, key=lambda side: -prod(side.operand.domain) // side.blocks)]
    launches = []
    if zeros := [*[REPACK] * any(part.guessed for part in packs), *(side.scales for side in searched),
                 *["left_ready"] * geometry.tiling.packs_concurrently]:
        first, last = geometry.places[zeros[0]][0], geometry.places[zeros[-1]]
        launches.append(f'KW_CHECK("{name}", cudaMemsetAsync({zeros[0]}, 0, {sum(last) - first}, stream));')
    if searches:
        texts += [*(p.text for p in searches), _kernel(name, "greatest", "Magnitudes of operands.", searches)]
        launches.append(_launch(name, f"{name}_greatest", searches))
    if packs:
        texts += [*(p.text for p in packs), _kernel(name, "pack", "Operands in the order of the core.", packs)]
        launches.append(_launch(name, f"{name}_pack", packs))
    if any(part.guessed for part in packs):
        launches += [_launch(name, f"{name}_greatest", searches, second_run=True),
                     _launch(name, f"{name}_pack", packs, second_run=True, most=FILLED)]
    guesses = geometry.tiling.takes_left and guessed(geometry, "left")
    second_run = (_launch(name, f"{name}_greatest", searches, second_run=True),) if guesses else ()
    vectors = sorted({v for part in (*searches, *packs) for v in part.vectors})
    if vectors:
        launches.insert(0, "\n  ".join(alignment_check(name, vectors)))
    definitions = "\n".join(texts)
    return Packing(definitions, tuple(launches), snippets_of(definitions), second_run)


def _arguments(parts: Sequence[Part]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(a for part in parts for a in part.arguments))


def _kernel(name: str, kind: str, comment: str, parts: Sequence[Part]) -> str:
    """The __global__ function NAME_KIND whose blocks are those of the parts, one after the other; of packing that may
    have to be done again, any number of blocks the second time."""
    lines = [f"// {comment}", f"static __global__ void __launch_bounds__({THREADS}) {name}_{kind}("]
    guessed = any(part.guessed for part in parts)
    parameters = [*(" ".join(a) for a in _arguments(parts)), *(["bool second_run"] if guessed else [])]
    lines.append("    " + ",\n    ".join(parameters) + ") {")
    first = 0
    if kind == "pack" and guessed:
        # Few blocks, as a rule for nothing: to start all of them takes up to 40 microseconds.
        lines += ["  if (second_run) {", f"    if (*{REPACK} == 0u) return;"]
        for part in parts:
            if part.guessed:
                call = f"{part.name}({', '.join([*(a for _, a in part.arguments), 'block', 'true'])});"
                lines += wrapped([f"    for (unsigned block = blockIdx.x; block < {part.blocks}u; block += gridDim.x)",
                                  f"      {call}"])
        lines += ["    return;", "  }"]
    for part in parts:
        block = f"{first + part.blocks - 1}u - blockIdx.x" if part.backwards else \
            f"blockIdx.x - {first}u" if first else "blockIdx.x"
        second_run = "false" if kind == "pack" else "second_run"
        call = f"{part.name}({', '.join([*(a for _, a in part.arguments), block, *([second_run] * part.guessed)])});"
        first += part.blocks
        if guessed and not part.guessed and kind != "pack":
            call = f"if (!second_run) {call}"
        inside = [f"  {call}"] if part is parts[-1] else \
            [f"  if (blockIdx.x < {first}u) {{", f"    {call}", "    return;", "  }"]
        lines += wrapped(inside)
    return "\n".join([*lines, "}", ""])


def _launch(name: str, kernel: str, parts: Sequence[Part], second_run: bool = False, most: int = 2**31) -> str:
    """The launch of all blocks, or at most so many."""
    blocks = min(most, sum(part.blocks for part in parts))
    if blocks >= 2**31:
        raise ValueError(f"{name}: {blocks} blocks exceed a grid")
    arguments = [a for _, a in _arguments(parts)]
    if any(part.guessed for part in parts):
        arguments.append("true" if second_run else "false")
    return f'KW_LAUNCH("{name}", {kernel}, {blocks}, {THREADS}, 0, stream, {", ".join(arguments)});'


def _writer(geometry: Geometry, name: str) -> str:
    """``NAME_write``: 8 channels of one row, rounded and written; pairs of them to two chunks in turn, where these are
    mixed."""
    kind, two = geometry.element, geometry.terms == 2
    parameters = ["unsigned short* __restrict__ to", "long long at", *(["long long term"] if two else []),
                  f"const float (&x)[{CHUNK}]", *(["float scale"] if geometry.scaled else []),
                  *(["int half", "long long apart"] if geometry.mixes else [])]
    scaled = "scale == 0.0f ? 0.0f : x[e] * scale" if geometry.scaled else "x[e]"
    body = [f"unsigned high[{CHUNK}]{f', low[{CHUNK}]' if two else ''};", "#pragma unroll",
            f"for (int e = 0; e < {CHUNK}; ++e) {{", f"  const float value = {scaled};",
            f"  high[e] = kw_{kind}_bits(value);"]
    if two:
        body.append(f"  low[e] = kw_{kind}_bits(value - kw_{kind}_value(high[e]));")
    if geometry.mixes:
        body += ["}", "// Pairs of channels to this chunk and the next in turn.",
                 "uint2* const row = reinterpret_cast<uint2*>(to) + 2 * at + half;", *_two("0", "high"),
                 *_two("2 * apart", "high", 1)]
        if two:
            body += ["// What the first term leaves.", *_two("2 * term", "low"), *_two("2 * (term + apart)", "low", 1)]
    else:
        body += ["}", "uint4* const row = reinterpret_cast<uint4*>(to) + at;", *_four("row[0]", "high")]
        if two:
            body += ["// What the first term leaves.", *_four("row[term]", "low")]
    comment = f"Writes {CHUNK} channels of one row as {kind}{', in two terms' * two}."
    return device_function(comment, "void", f"{name}_write", parameters, body)


def _four(target: str, name: str) -> list[str]:
    pairs = [f"{name}[{e}] | {name}[{e + 1}] << 16" for e in range(0, CHUNK, 2)]
    return [f"{target} = make_uint4({pairs[0]}, {pairs[1]},", " " * len(f"{target} = make_uint4(")
            + f"{pairs[2]}, {pairs[3]});"]


def _two(place: str, name: str, which: int = 0) -> list[str]:
    pairs = [f"{name}[{e}] | {name}[{e + 1}] << 16" for e in (2 * which, 4 + 2 * which)]
    return [f"row[{place}] = make_uint2({', '.join(pairs)});"]


_SCALES = text_beside(__file__, "scales.cuh")
