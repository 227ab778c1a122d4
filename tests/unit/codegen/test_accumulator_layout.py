"""Thread-value layouts of accumulators are those of the PTX ISA, and hold every element of a tile once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernelwright.codegen.cuda.gemm.epilogue.accumulator_layout import (
    CHANNEL,
    LINE,
    POSITION,
    AccumulatorLayout,
    mma_sync,
    over_subtile,
    two_lanes_a_row,
    wgmma,
    wgmma_stacked,
    wgmma_swapped,
    wgmma_swapped_in_pairs,
)

Place = tuple[int, int, int]


def row_and_column(thread: int, register: int) -> tuple[int, int]:
    """Of D of wgmma m64nNk16: the PTX ISA's formula."""
    warp, lane = thread // 32, thread % 32
    return warp % 4 * 16 + lane // 4 + register // 2 % 2 * 8, register // 4 * 8 + lane % 4 * 2 + register % 2


def of_wgmma(thread: int, register: int) -> Place:
    return *row_and_column(thread, register), 0


def of_two_products(thread: int, register: int) -> Place:
    """``sums[set][i]`` of 24 columns: a set has 12 registers of a thread."""
    row, column = row_and_column(thread, register % 12)
    return register // 12 * 64 + row, column, 0


def of_swapped(thread: int, register: int) -> Place:
    row, column = row_and_column(thread, register)
    return column, row, 0


def of_pairs(thread: int, register: int) -> Place:
    """As `swap_ab` stages them: output channels thread / 4 * 2 + h, h the half of the product's rows."""
    return row_and_column(thread, register)[1], thread // 4 * 2 + register // 2 % 2, 0


def of_stacked(channels: int) -> Callable[[int, int], Place]:
    def place(thread: int, register: int) -> Place:
        row, column = row_and_column(thread, register)
        return column, row % channels, row // channels
    return place


def of_interleaved(channels: int) -> Callable[[int, int], Place]:
    """Rows 8 apart are the two output phases of a channel."""
    def place(thread: int, register: int) -> Place:
        row, column = row_and_column(thread, register)
        channel = row // 16 * 8 + row % 8
        return 2 * column + row // 8 % 2, channel % channels, channel // channels
    return place


def of_mma_sync(thread: int, register: int) -> Place:
    """``sums[j][i][e]`` of 2 x 2 warps, each of 32 x 48 sums: c0 to c3 of mma.m16n8k16 by the PTX ISA's formula."""
    warp, group, within = thread // 32, thread % 32 // 4, thread % 4
    j, i, e = register // 8, register // 4 % 2, register % 4
    row = group if e < 2 else group + 8
    return warp // 2 * 32 + i * 16 + row, warp % 2 * 48 + j * 8 + within * 2 + (e & 1), 0


LAYOUTS = {
    "wgmma": (wgmma(48), of_wgmma), "two products": (wgmma(24, 2), of_two_products),
    "swapped": (wgmma_swapped(128), of_swapped), "in pairs": (wgmma_swapped_in_pairs(64), of_pairs),
    **{f"stacked {channels}": (wgmma_stacked(40, channels), of_stacked(channels)) for channels in (64, 32, 16)},
    **{f"interleaved {channels}": (wgmma_stacked(40, channels, 2), of_interleaved(channels))
       for channels in (32, 16, 8)},
    "mma.sync": (mma_sync(32, 48, 2, 2), of_mma_sync),
}
EACH = pytest.mark.parametrize(("layout", "formula"), LAYOUTS.values(), ids=LAYOUTS)


def every(layout: AccumulatorLayout) -> list[tuple[int, int]]:
    return [(thread, register) for thread in range(layout.thread_count) for register in range(layout.register_count)]


@EACH
def test_places_are_those_of_the_formula(layout, formula):
    assert layout.thread_count == 128
    assert all(layout.place(*number) == formula(*number) for number in every(layout))


@EACH
def test_every_element_is_held_once(layout, formula):
    places = {layout.place(*number) for number in every(layout)}
    sizes = [max(place[mode] for place in places) + 1 for mode in (POSITION, CHANNEL, LINE)]
    assert len(places) == len(every(layout)) == sizes[0] * sizes[1] * sizes[2]


@EACH
@pytest.mark.parametrize("mode", [POSITION, CHANNEL])
def test_registers_lanes_and_warps_of_a_mode_are_all_that_differ_along_it(layout, formula, mode):
    """What is folded, shuffled and met has each element of the mode once, whatever the place along the others."""
    other = CHANNEL if mode == POSITION else POSITION
    apart = sum(1 << bit for bit in layout.lane_bits(mode))
    groups = layout.together(other)
    assert sorted(register for group in groups for register in group) == list(range(layout.register_count))
    for thread in (0, 21, 70):
        own = {layout.place(thread, register)[mode] for register in groups[0]}
        lanes = [lane for lane in range(32) if (lane ^ thread % 32) & ~apart == 0]
        assert len(own) == len(groups[0])
        found = {layout.place(thread // 32 * 32 + lane, register)[mode] for lane in lanes for register in groups[0]}
        assert len(found) == len(own) * len(lanes)
        same = {layout.place(thread // 32 * 32 + lane, groups[0][0])[other] for lane in lanes}
        assert same == {layout.place(thread, groups[0][0])[other]}


SUBTILES = {
    "a row, half of 48 columns": (over_subtile(64, 24), "thread % 64", "thread / 64 * 24"),
    "two rows, a quarter": (over_subtile(32, 12, 2), "thread % 32 * 2", "thread / 32 * 12"),
    "a position of two phases": (over_subtile(128, 48), "thread", "0"),
    "four positions": (over_subtile(16, 4, 4), "thread % 16 * 4", "thread / 16 * 4"),
    "two lanes": (two_lanes_a_row(20), "thread / 32 * 16 + thread % 16", "thread / 16 % 2 * 20"),
}


@pytest.mark.parametrize(("layout", "position", "channel"), SUBTILES.values(), ids=SUBTILES)
def test_threads_over_a_subtile(layout, position, channel):
    places = {layout.place(*number) for number in every(layout)}
    sizes = [max(place[mode] for place in places) + 1 for mode in (POSITION, CHANNEL)]
    assert len(places) == len(every(layout)) == sizes[0] * sizes[1]
    assert (layout.of_thread(POSITION), layout.of_thread(CHANNEL)) == (position, channel)
    for thread in range(128):
        first = evaluated(position, thread=thread), evaluated(channel, thread=thread), 0
        assert layout.place(thread, 0) == first


def test_lanes_of_a_mode():
    assert wgmma(64).lane_bits(POSITION) == wgmma_swapped(64).lane_bits(CHANNEL) == (2, 3, 4)
    assert wgmma(64).lane_bits(CHANNEL) == wgmma_swapped(64).lane_bits(POSITION) == (0, 1)
    assert (wgmma(64).warps(POSITION), wgmma(64).warps(CHANNEL)) == (4, 1)
    assert [wgmma_stacked(64, channels).warps(CHANNEL) for channels in (64, 32, 16)] == [4, 2, 1]


def evaluated(text: str, **numbers: int) -> int:
    return eval(text.replace("/", "//"), {}, numbers)


@EACH
def test_texts_are_the_places(layout, formula):
    """Of every digit the term that stands in emitted text."""
    texts = {"quad": "lane % 4", "row": "lane / 4", "pair": "e % 2", "half": "e / 2"}
    digits = [digit.name for digit in (*layout.threads, *layout.registers)]
    names = {mode: [digit.name for digit in (*layout.threads, *layout.registers) if digit.mode == mode]
             for mode in (POSITION, CHANNEL)}
    for thread, register in every(layout)[::37]:
        values = {}
        for number, own in ((thread, layout.threads), (register, layout.registers)):
            for digit in own:
                number, values[digit.name] = divmod(number, digit.extent)
        values |= {"lane": thread % 32, "e": register % 4, "warp": thread // 32}
        for mode, moved in names.items():
            text = layout.text(mode, **{name: texts.get(name, name) for name in moved})
            assert evaluated(text, **values) == layout.place(thread, register)[mode], text
    assert set(digits) >= {"quad", "row", "pair", "half"}
    with pytest.raises(ValueError, match="does not move"):
        layout.text(CHANNEL if "quad" in names[POSITION] else POSITION, quad="lane % 4")
