"""What a core on wgmma says of output phases: one to a tile, or both of the last axis (``tiling.parities``).

With two, a warpgroup has sums of either, ``sums[phase * PRODUCTS + p]``: registers, which only a constant can name. So
a tap group's taps are in the order of the phases that they feed, and their numbers are constants of ``NAME_multiply``.
All products of a step are one group, whichever phase they feed: nothing waits between them.
"""

from __future__ import annotations

from functools import partial

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import wgmma
from kernelwright.codegen.cuda.gemm.epilogue.subtile import Epilogue
from kernelwright.codegen.cuda.gemm.mainloop.sm90.steps import TapGroup
from kernelwright.codegen.cuda.gemm.mainloop.sm90.threads import Layout
from kernelwright.codegen.terms import plus, times


def values(layout: Layout, epilogue: Epilogue, promoted: bool) -> dict[str, object]:
    """What stands for the names in the parts of the text that depend on the number of phases.

    ``promoted``: whether sums on tensor cores are added to others in registers.
    """
    strides, products = (epilogue.row_stride, epilogue.column_stride), layout.products
    half = ", int HALF" if layout.halves else ""
    if layout.geometry.tiling.parities == 1:
        return {
            "FIRST_TAP": 0, "END_TAP": "TAPS", "FIRST_PRODUCT": "HALF" if half else 0,
            "END_PRODUCT": "HALF + 1" if half else products,
            "TAPS": f"int TAPS{half}", "TAPS_NOTE": f"TAPS taps{' and one half of the rows' if half else ''}",
            "TAP_SUMS": "p", "TAP": "",
            "ALL_SUMS": "PRODUCTS", "SUM_SETS": products, "SECOND_TAPS": "", "ADVANCE": "last - first",
            "ADD": "pair == @FIRST_PAIR@ && tap == 0 && k == 0 ? add : 1" if promoted else "1",
            "STAGED": "const float (&sums)[@COLUMNS@ / 2]", "STAGED_SUMS": "sums[p]",
            "STORE": _store_places(strides[1]) if epilogue.places else _store(*strides)}
    tap = "\n      const int phase = tap < TAPS0 ? 0 : 1;  // the tap feeds its sums"
    if promoted:
        tap += "\n      const int kept = pair == @FIRST_PAIR@ && (tap == 0 || tap == TAPS0) ? add & 1 << phase : 1;"
    counted = promoted and not layout.halves and not (layout.parts == 2 and layout.single_steps)
    named = (counted or len(variants(layout)) > 1) and not layout.written_out
    return {
        "FIRST_TAP": "HALF * TAPS0" if half else 0, "FIRST_PRODUCT": 0, "END_PRODUCT": products,
        "END_TAP": "TAPS0 + HALF * TAPS1" if half else "TAPS0 + TAPS1",
        "TAPS": f"int TAPS0, int TAPS1{half}", "TAPS_NOTE": "the taps of one phase" if half else "all taps",
        "TAP_SUMS": f"phase{f' * {products}' * (products > 1)} + p", "TAP": tap,
        "ALL_SUMS": "2 * PRODUCTS", "SUM_SETS": 2 * products, "SECOND_TAPS": _second_taps(layout) if named else "",
        "ADVANCE": "last - middle > middle - first ? last - middle : middle - first",
        "ADD": "k == 0 ? kept : 1" if promoted else "1",
        "STAGED": f"const float (&sums)[@COLUMNS@ / 2],\n{' ' * 51}const float (&others)[@COLUMNS@ / 2]",
        "STAGED_SUMS": "sums[p], sums[PRODUCTS + p]",
        "STORE": _store_both_places(strides[1]) if epilogue.places else _store(*strides, both=True)}


def _tap_groups(layout: Layout) -> list[TapGroup]:
    """The tap groups of all classes, in order."""
    return [tap_group for group in layout.tap_groups for tap_group in group]


def variants(layout: Layout) -> list[tuple[int, ...]]:
    """The different numbers of taps, of each phase, that tap groups have."""
    least = (1,) * layout.geometry.tiling.parities
    return sorted({tap_group.counts for tap_group in _tap_groups(layout)}, reverse=True) or [least]


def calls(layout: Layout, into: str, add: str, advances: bool, half: int | None = None) -> list[str]:
    """The lines that call ``NAME_multiply`` for a step, by its numbers of taps.

    ``into``: the sums; ``add``: whether they hold something, where that is asked; ``advances``: whether ``@ADVANCE@``
    is of use behind them; ``half``: which half of the sums, where they are added by halves.
    """
    found, both = variants(layout), layout.geometry.tiling.parities == 2
    lines = ["const int middle = @NAME@_second_tap[tap_group];"] * (both and (advances or len(found) > 1))
    for i, counts in enumerate(found):
        which = f"last - first == {counts[0]}"
        if both:
            which = f"middle - first == {counts[0]} && last - middle == {counts[1]}"
        arguments = ", ".join(map(str, counts if half is None else (*counts, half)))
        call = f"@NAME@_multiply<{arguments}>({into}, a, b, @NAME@_taps + first{add and f', {add}'});"
        lines.append(" ".join(filter(None, ["else" * (i > 0), f"if ({which})" * (i + 1 < len(found)), call])))
    return lines


def added(layout: Layout) -> str:
    """What becomes of ``add`` behind a step: which phases' sums hold something, or whether the only one's do."""
    if layout.geometry.tiling.parities == 1:
        return "add = 1;"
    return "add = 3;" if layout.complete else "add |= (middle > first ? 1 : 0) | (last > middle ? 2 : 0);"


def _second_taps(layout: Layout) -> str:
    """The table of the first tap of each tap group that feeds the second phase."""
    taps, firsts = 0, []
    for tap_group in _tap_groups(layout):
        firsts.append(taps + tap_group.counts[0])
        taps += len(tap_group.taps)
    return "\n// Of a tap group, too: the first tap that feeds the second phase.\n" \
        f"static __constant__ int @NAME@_second_tap[] = {{{', '.join(map(str, firsts)) or '0'}}};"


def _store(row: int, column: int, both: bool = False) -> str:
    """The lines that put four sums of a thread, ``s``, into a subtile, two at a time where columns are neighbours; of
    both phases with those of the second, ``t``: they are neighbours in a subtile, as a row has two places."""
    places = [position * row + channel * column for position, channel, _ in map(partial(wgmma(8).place, 0), range(4))]
    own, kind, count = {e: f"s[{e}]" for e in range(4)}, "float", 1
    if both or column == 1:
        own = {e: f"make_float2(s[{e}], t[{e}])" for e in own} if both else \
            {e: f"make_float2(s[{e}], s[{e + 1}])" for e in (0, 2)}
        kind, count = "float2", 2
    apart = "8 * j + column" if column == 1 and not both else times("(8 * j + column)", column)
    first = plus("subtile", times("row", row), apart)
    lines = ["const float* t = others + first + 4 * j;"] * both
    lines.append(f"{kind}* to = {f'reinterpret_cast<float2*>({first})' if count > 1 else first};")
    for half in ((0, 1), (2, 3)):
        lines.append(", ".join(f"to[{places[e] // count}] = {own[e]}" for e in half if e in own) + ";")
    return "\n".join(f"    {line}" for line in lines)


def _store_places(column: int) -> str:
    """The lines that put four sums of a thread where its rows have places."""
    return f"""    float* to = subtile + (8 * j + column) * {column};
    if (places[0] >= 0) to[places[0]] = s[0], to[places[0] + {column}] = s[1];
    if (places[1] >= 0) to[places[1]] = s[2], to[places[1] + {column}] = s[3];"""


def _store_both_places(column: int) -> str:
    """The same of both phases, which are neighbours."""
    return f"""    const float* t = others + first + 4 * j;
    float* to = subtile + (8 * j + column) * {column};
#pragma unroll
    for (int i = 0; i < 2; ++i) {{
      if (places[i] < 0) continue;
      *reinterpret_cast<float2*>(to + places[i]) = make_float2(s[2 * i], t[2 * i]);
      *reinterpret_cast<float2*>(to + places[i] + {column}) = make_float2(s[2 * i + 1], t[2 * i + 1]);
    }}"""
