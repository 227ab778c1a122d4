"""What the threads of a warp do together with what they hold along a mode of a thread-value layout, as text.

A reduction along a mode has three steps, whatever holds the sums (`epilogue.accumulator_layout`): a thread folds its
registers that differ along it; lanes shuffle along its bits of their numbers, an `all_reduce` where each of them is to
have the result, a `reduce_scatter` where each has several of which one is to be its own; and warps meet in shared
memory. wgmma's positions and swapped wgmma's channels are the same rows of a product, so their reductions have the same
three steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernelwright.codegen.cuda.gemm.points import TAKES
from kernelwright.codegen.cuda.loops.site import indent
from kernelwright.codegen.terms import plus

_SHUFFLE = "__shfl_xor_sync(0xffffffffu, {0}, {1})"


def shuffled(value: str, apart: object) -> str:
    """The value of the lane whose number differs in the bits of ``apart``."""
    return _SHUFFLE.format(value, apart)


def all_reduce(kind: str, name: str, apart: object) -> str:
    """The statement with which both lanes whose numbers differ in ``apart`` have the sum or extremum of both."""
    return f"{name} = {TAKES[kind].format(name, shuffled(name, apart))};"


def reduce_scatter(arrays: Sequence[str], count: int, bits: Sequence[int],
                   together: Callable[[Sequence[str], Sequence[str]], list[str]]) -> list[str]:
    """Reduce ``count`` values of each array over lanes that share them, so that each lane ends with its own part.

    For each bit of a lane's number a lane keeps one half of what it has left, the upper one if its bit is set, gives
    away the other, and takes that half of what its partner gives: ``together(own, given)`` are the statements that put
    texts ``given`` to places ``own`` of all arrays. Where one value is left all lanes have the result of both.
    Values 0, 1, ... of each array are the lane's at last. Defines ``upper0``, ``upper1``, ... of the bits.
    """
    lines = []
    for step, bit in enumerate(bits):
        half = count >> (step + 1)
        if not half:
            given = [shuffled(f"{array}[0]", 1 << bit) for array in arrays]
            lines += together([f"{array}[0]" for array in arrays], given)
            continue
        own = [f"{array}[i]" for array in arrays]
        moves = []
        for k, (array, low) in enumerate(zip(arrays, own, strict=True)):
            high, upper = f"{array}[i + {half}]", f"upper{step}"
            moves += [f"const float given{k} = {shuffled(f'{upper} ? {low} : {high}', 1 << bit)};",
                      f"{low} = {upper} ? {high} : {low};"]
        lines += [f"const bool upper{step} = lane >> {bit} & 1;", "#pragma unroll",
                  f"for (int i = 0; i < {half}; ++i) {{",
                  *indent([*moves, *together(own, [f"given{k}" for k in range(len(arrays))])]), "}"]
    return lines


def every_sum(sets: int, registers: int, loop: str, first: Sequence[str], each: Sequence[str], *, keep: bool
              ) -> list[str]:
    """Statements for each sum of a thread, ``next[0]``, in one copy of long code: registers have numbers that are
    constants, so all sums move round, four at a time.

    The sums are ``sums[set][register]``, or of one set ``sums[register]`` (``sets`` 0). first: statements for number
    ``loop`` of four sums; each: those for number ``e`` of these. With ``keep`` they define ``value``, which takes the
    sum's place; without the sums are used up.
    """
    quads = max(1, sets) * registers // 4

    def at(place: str) -> str:
        return f"sums[{place} / {registers}][{place} % {registers}]" if sets else f"sums[{place}]"

    own = ", ".join(f"sums[0][{e}]" if sets else f"sums[{e}]" for e in range(4))
    shift = f"{at('i')} = {at('(i + 4)') if sets else 'sums[i + 4]'};"
    move = f"for (int i = 0; i < {4 * quads - 4}; ++i)"
    place = plus(registers - 4, "i")
    last = f"sums[{sets - 1}][{place}]" if sets else f"sums[{place}]"
    return ["#pragma unroll 1", f"for (int {loop} = 0; {loop} < {quads}; ++{loop}) {{", *indent([
        *first, f"float next[4] = {{{own}}};",
        "#pragma unroll 1", "for (int e = 0; e < 4; ++e) {", *indent([
            *each, f"next[0] = next[1], next[1] = next[2], next[2] = next[3]{', next[3] = value' * keep};"]), "}",
        "#pragma unroll", *([move, f"  {shift}"] if sets else [f"{move} {shift}"]),
        *["#pragma unroll", f"for (int i = 0; i < 4; ++i) {last} = next[i];"] * keep]), "}"]
